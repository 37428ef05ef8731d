"""One worker alone: the same bits on a function and as a program, whatever makes one batch of several minibatches."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossover.errors import ConfigError
from crossover.experiment import Experiment, Gpu, from_plain
from crossover.reports.folder import RunFolder
from crossover.running import inline
from crossover.simulation.workload import Workload
from crossover.training.gradients import build_baselines
from crossover.training.peer import Replica
from crossover.validation import validate
from crossover.workflow.architecture import architecture_of
from tests.architectures.fleet import Fleet
from tests.architectures.harness import Job, small
from tests.architectures.trained import assert_equal_to_reference

PLAIN = {"name": "one", "architecture": "single", "workers": 1}


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3, "epoch"])
@pytest.mark.parametrize("on", ["instance", "gpu"])
def test_a_program_ends_with_the_bits_of_the_reference(on: str, every: int | str) -> None:
    """Check that the program of the architecture `single` ends with the bits of the reference and leaves no checkpoints."""
    experiment = replace(small("single", every=every), sections={"single": {"on": on}})
    assert architecture_of(experiment).program is not None
    job = assert_equal_to_reference(experiment)
    assert not job.object_keys("bodies", "checkpoints")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"workers": 4}, "workers: 4: single has one worker; expected 1"),
        ({"single": {"instance_type": "c7g.large"}}, "single.instance_type: c7g.large applies to an instance"),
        ({"single": {"spot": True}}, "single.spot: true applies to an instance"),
        ({"exchange": {"what": "model"}}, "exchange.what: single does not exchange models"),
        ({"training": {"precision": "fp16"}}, "training.precision: fp16 needs a GPU"),
        ({"functions": {"memory_mb": {"trane": 512}}}, "functions.memory_mb.trane: is no step of single"),
        ({"functions": {"memory_mb": {"train": 512}}, "single": {"on": "instance"}}, "functions.memory_mb.train"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_what_one_worker_cannot_have_is_refused(given: dict[str, object], told: str) -> None:
    """Check that settings which a single worker does not support are refused."""
    with pytest.raises(ConfigError, match=told):
        validate({**PLAIN, **given})


def test_a_single_worker_on_a_gpu_may_compute_in_half_precision() -> None:
    """Check that fp16 is accepted for a single worker on a GPU."""
    validate({**PLAIN, "single": {"on": "gpu"}, "training": {"precision": "fp16"}})


def test_beside_an_experiment_it_updates_by_as_many_minibatches_as_all_workers_together() -> None:
    """Check the settings of the baselines of an experiment: `single` takes as many minibatches for an update as all workers of the
    experiment together.
    """
    experiment = validate(
        {"name": "four", "architecture": "spirt", "baseline": ["gpu", "single"], "exchange": {"every": 3}}
        | {"aggregation": {"rule": "median"}, "functions": {"memory_mb": {"default": 3000, "update_model": 512}}}
    )
    fleet, alone = build_baselines(experiment)
    assert (fleet.name, fleet.architecture, fleet.exchange.every) == ("four-gpu", "gpu", None)
    assert (alone.name, alone.architecture, alone.workers, alone.exchange.every) == ("four-single", "single", 1, 12)
    assert from_plain(json.loads(json.dumps(experiment.to_plain()))) == experiment
    assert validate(alone.to_plain()) == alone
    assert (
        build_baselines(replace(experiment, exchange=replace(experiment.exchange, every="epoch")))[1].exchange.every
        == "epoch"
    )
    models = replace(experiment, exchange=replace(experiment.exchange, what="model", every=24))
    assert build_baselines(models)[1].exchange.every == 4
    assert replace(fleet, baseline=("gpu", "single")).baselines == ("single",)


def test_beside_workers_whose_last_minibatches_are_small_it_updates_once_an_epoch() -> None:
    """Check that a baseline beside workers that update once an epoch does so too, whatever number of minibatches it has.

    5 workers of 288 samples have 5 minibatches of 60 each; one of 1,438 has 24, not 25.
    """
    experiment = validate(
        {"name": "five", "architecture": "all_reduce", "baseline": "single", "workers": 5, "exchange": {"every": 5}}
    )
    (alone,) = build_baselines(experiment)
    assert alone.exchange.every == 24
    assert Workload.from_experiment(alone).minibatches == 24


def test_a_baseline_that_cannot_run_is_refused_before_the_experiment_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a baseline which cannot run is refused before anything is trained, once the data's size is known.

    Each of five workers has two minibatches, one alone nine.
    """
    experiment = replace(small("all_reduce", workers=5, every=2), baseline="single")
    monkeypatch.setattr("crossover.learning.sizes.count_split", lambda experiment: None)
    with pytest.raises(ConfigError, match=r"baseline: single.*exchange\.every: 10"):
        inline.run_with_baselines(lambda *_: pytest.fail("trained"), experiment, tmp_path, where="inline")


def test_several_baselines_run_one_after_another_and_resume_where_they_stood(tmp_path: Path) -> None:
    """Check the order in which an experiment and its baselines are run, and that resuming begins with the first unfinished one."""
    experiment = replace(small("spirt"), baseline=("gpu", "single"), gpu=Gpu(instances=2))
    calls = list[tuple[str, str, bool]]()

    def run(each: Experiment, folder: Path, unfinished: object) -> RunFolder:
        """Record the call instead of a run, and return an empty run folder."""
        calls.append((each.name, folder.name, unfinished is not None))
        return RunFolder.__new__(RunFolder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inline, "read", lambda out: None)
        patch.setattr(inline, "_load_unfinished", lambda *asked, **where: "found")
        inline.run_with_baselines(run, experiment, tmp_path / "out", where="inline")
        names = [("small", "out"), ("small-gpu", "baseline"), ("small-single", "baseline-single")]
        assert calls == [(*name, False) for name in names]
        checkpoint = tmp_path / "out/baseline/unfinished/runs/r/checkpoint/0/0/00000000.00000"
        checkpoint.parent.mkdir(parents=True)
        checkpoint.touch()
        assert inline.has_unfinished_run(tmp_path / "out") and not inline.has_unfinished_run(tmp_path)
        calls.clear()
        inline.run_with_baselines(run, experiment, tmp_path / "out", where="inline", resume=True)
        assert calls == [(*names[1], True), (*names[2], False)]


def test_a_spot_instance_that_is_taken_away_saves_between_two_checkpoints_and_no_round_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Announce to a spot instance that it is taken away. Check that its program saves a checkpoint at once, and that the next program
    repeats no round.
    """
    experiment = replace(small("single", every=1), sections={"single": {"on": "instance"}})
    assert experiment.functions.checkpoint_every == 2
    unbroken = Fleet(Job(experiment)).run(monkeypatch)
    monkeypatch.setattr("crossover.training.fleet.NOTICE_S", 0.0)
    fleet = Fleet(Job(experiment), members=2)  # the second program takes over
    rounds: list[int] = []
    update = Replica.advance

    def announce_interruption(replica: Replica, *given: Any, **named: Any) -> None:
        """Record the round and update the replica; after round 3 mark the instance as about to be taken away."""
        rounds.append(replica.round)
        update(replica, *given, **named)
        if replica.round == 3:
            member = fleet.threads[threading.current_thread()]
            assert member is not None
            member.interrupted = True

    monkeypatch.setattr(Replica, "advance", announce_interruption)
    assert fleet.run(monkeypatch) == unbroken
    assert len(rounds) > 4 and rounds == list(range(len(rounds)))
