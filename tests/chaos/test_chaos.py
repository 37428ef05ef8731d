"""All architectures under schedules of faults: some seeds that are always the same, and some that nobody has tried."""

import hashlib
import random
import warnings
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from crossover import user_code
from crossover.experiment import Exchange, Functions, Lifetime, Weights
from crossover.workflow.architecture import architectures
from functions.mlless.settings import MLLess
from tests.architectures.harness import small
from tests.chaos.world.schedule import CONFLICT, Fault, Side, pass_by
from tests.chaos.world.trials import Trials, reduce_experiment, run_trials
from tests.sampling import WHOLE

FIXED, FRESH = 43, 3  # of each architecture
_known: dict[str, Trials] = {}


def trials(architecture: str) -> Trials:
    """Return the trials of a reduced experiment of one architecture; created once per test process."""
    if architecture not in _known:
        _known[architecture] = Trials(reduce_experiment(small(architecture)))
    return _known[architecture]


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, FIXED), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("architecture", architectures())
def test_no_schedule_of_the_fixed_seeds_breaks_a_promise(architecture: str, seeds: range) -> None:
    """Run the schedules of faults that `seeds` draw for the architecture, and check that no oracle finds a broken promise."""
    broken = {seed: trial.findings for seed in seeds if (trial := trials(architecture).run_seed(seed)).findings}

    assert not broken


@pytest.mark.slow
def test_no_schedule_breaks_a_promise_of_unfiltered_mlless_which_ends_with_the_references_model() -> None:
    """Run the schedules of all fixed seeds on MLLess with a threshold of 0. No promise is broken, and enough schedules are such that no
    worker may be removed, so that the model must be the reference's.
    """
    unfiltered = Trials(reduce_experiment(small("mlless").with_settings(MLLess(threshold=0.0))))
    tried = {seed: unfiltered.run_seed(seed) for seed in range(FIXED)}

    assert not {seed: trial.findings for seed, trial in tried.items() if trial.findings}
    assert sum(pass_by(trial.struck) for trial in tried.values()) > FIXED // 5  # else workers may be removed


@pytest.mark.slow
@pytest.mark.parametrize("architecture", architectures())
def test_no_schedule_breaks_a_promise_if_each_process_reads_base_weights(architecture: str, tmp_path: Path) -> None:
    """Run six schedules on an experiment with pretrained weights: no promise is broken, and at least one process per worker reads the
    weights from the bucket.
    """
    save_file({"frozen": torch.ones(64)}, tmp_path / "base.safetensors")
    user_code.set_folders(tmp_path)
    digest = hashlib.sha256((tmp_path / "base.safetensors").read_bytes()).hexdigest()
    plain = small(architecture)
    weights = Weights(file="base.safetensors", sha256=digest)
    frozen = Trials(reduce_experiment(replace(plain, training=replace(plain.training, weights=weights))))
    tried = {seed: frozen.run_seed(seed) for seed in range(6)}

    assert not {seed: trial.findings for seed, trial in tried.items() if trial.findings}
    reads = {entry.process for trial in tried.values() for entry in trial.history.entries if "weights" in entry.key}
    assert len(reads) >= frozen.experiment.workers


def test_killed_clients_do_not_use_up_the_patience_for_failures() -> None:
    """Kill the client nine times, more often than clients may fail: the run still ends well."""
    kills = [Fault(kind="kill", role="client", request=number) for number in range(1, 10)]
    trial = trials("all_reduce").run_with(kills, 0)

    assert len(trial.struck) == 9 and not trial.findings


KEPT = [  # beside model and optimizer: a residual, PowerSGD's factors, an outer velocity, the inner optimizer's
    ("all_reduce", "train 1", Exchange(compression="powersgd", rank=1)),
    ("all_reduce", "train 1", Exchange(every=2, what="delta", minibatches_per_invocation=1)),
    ("scatter_reduce", "train 1", Exchange(every=2, what="model")),
    ("p2p_instance", "program 1", Exchange(every=1, compression="powersgd", rank=1)),
    ("p2p_instance", "program 1", Exchange(every=1, what="delta", compression="top_k", share=0.3)),
    ("spirt", "compute_gradients 1", Exchange(every="epoch", what="delta")),
    ("gpu", "program 0", Exchange(every=1, compression="powersgd", rank=1)),
    ("gpu", "program 0", Exchange(every=1, compression="top_k", share=0.3)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "role", "exchange"), KEPT, ids=lambda value: str(value).partition("(")[0])
def test_state_kept_between_rounds_outlives_its_process(architecture: str, role: str, exchange: Exchange) -> None:
    """Kill the role's process at 5, 7 and 9 twelfths of its requests: each time the run resumes the state that it keeps besides model and
    optimizer, and breaks no promise.
    """
    each_round = replace(small(architecture, workers=2), exchange=exchange, functions=Functions(checkpoint_every=1))
    experiment = Trials(reduce_experiment(each_round))
    requests = len(experiment.undisturbed[1].requests[role])
    for twelfth in (5, 7, 9):
        kill = Fault(kind="kill", role=role, request=requests * twelfth // 12, side="after")
        trial = experiment.run_with((kill,), 0)
        assert trial.struck == (kill,) and not trial.findings


@pytest.mark.slow
@pytest.mark.parametrize("architecture", architectures())
def test_no_schedule_of_a_fresh_seed_breaks_a_promise(architecture: str) -> None:
    """Run schedules of seeds drawn anew at each run. A finding is as old as the code, so it is only a warning in pytest's summary, with its
    seed for `make chaos`; it is a failure if every call is tried.
    """
    seeds = random.SystemRandom().sample(range(10**6, 10**9), FRESH)
    broken = {seed: trial.findings for seed in seeds if (trial := trials(architecture).run_seed(seed)).findings}

    if broken:
        with warnings.catch_warnings():
            warnings.simplefilter("always")  # elsewhere a warning is a failure
            warnings.warn(f"{architecture}, seeds {broken}", stacklevel=1)
    assert not (broken and WHOLE)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", architectures())
def test_a_seed_gives_one_history(architecture: str) -> None:
    """Run the schedule of one seed twice: both runs have the same requests and the same findings."""
    first, again = trials(architecture).run_seed(7), Trials(reduce_experiment(small(architecture))).run_seed(7)

    assert (first.history.digest, first.findings) == (again.history.digest, again.findings)


@pytest.mark.parametrize(("architecture", "request_"), [("p2p_instance", 46), ("p2p_serverless", 85)])
def test_a_peer_that_is_killed_between_rounds_of_local_steps_has_the_outer_velocity_again(
    architecture: str, request_: int
) -> None:
    """Kill peer 0 at its request number `request_`, between two rounds of local steps: its successor ends with the right model, which needs
    the outer optimizer's velocity.
    """
    local = Exchange(what="delta", every="epoch")
    mine = Trials(replace(reduce_experiment(small(architecture, workers=2)), exchange=local))
    kill = Fault(kind="kill", role="program 0", request=request_)
    trial = mine.run_with((kill,), 1)

    assert trial.struck == (kill,) and not trial.findings


@pytest.mark.slow
def test_closing_the_trials_does_not_wait_for_the_remaining_seeds() -> None:
    """Take one of 100,000 trials, then close the iterator: it returns without running the others."""
    with closing(run_trials(trials("all_reduce"), range(100_000), processes=2)) as each_trial:  # hours of them
        assert next(each_trial).seed == 0


@pytest.mark.slow
def test_new_processes_continue_with_the_seed_after_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each pool of processes run few seeds: the trials of all seeds still come, in order."""
    monkeypatch.setattr("tests.chaos.world.trials._SEEDS_OF_A_PROCESS", 2)

    assert [trial.seed for trial in run_trials(trials("single"), range(3, 9), processes=2)] == list(range(3, 9))


@pytest.mark.parametrize("architecture", ["mlless", "spirt"])  # whose first step declares queues
def test_an_invocation_that_comes_again_when_the_run_is_over_leaves_nothing(architecture: str) -> None:
    """Deliver the run's first invocation a second time after the run has ended: it leaves no queue, key or object behind."""
    late = Fault(kind="duplicate", role="initialise 0", request=1, side="after", seconds=290.0)
    trial = trials(architecture).run_with((late,), 5)

    assert trial.struck == (late,) and not trial.findings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "fault"),
    [
        ("spirt", Fault(kind="message", role="notify_peers 0", request=1, seconds=40.0)),
        ("p2p_instance", Fault(kind="message", role="program 0", request=3, side="after", seconds=3.0)),
        ("all_reduce", Fault(kind="outage", service="s3", at_s=0.1, seconds=2.0)),  # while data is staged, by no step
        ("all_reduce", Fault(kind="refusal", service="s3", at_s=0.1, seconds=2.0)),
        ("spirt", Fault(kind="refusal", service="s3", at_s=12.0, seconds=5.0)),
        ("all_reduce", Fault(kind="refusal", service="s3", code=CONFLICT, at_s=5.0, seconds=4.0)),
        ("spirt", Fault(kind="refusal", service="s3", code="InternalError", side="after", at_s=12.0, seconds=2.0)),
        ("spirt", Fault(kind="refusal", service="redis", code="TRYAGAIN", at_s=12.0, seconds=2.0)),
        ("spirt", Fault(kind="refusal", service="redis", at_s=12.0, seconds=5.0)),
        ("spirt", Fault(kind="refusal", service="rabbitmq", at_s=12.0, seconds=10.0)),
        ("p2p_serverless", Fault(kind="refusal", service="aws", at_s=60.0, seconds=2.0)),
        ("all_reduce", Fault(kind="outage", service="aws", seconds=3.0)),
        ("p2p_instance", Fault(kind="outage", service="aws", seconds=3.0)),
        ("all_reduce", Fault(kind="starts", seconds=10.0)),
        ("p2p_serverless", Fault(kind="starts", at_s=45.0, seconds=5.0)),
        ("p2p_instance", Fault(kind="late", role="program 1", seconds=788.0)),  # given up, then resumed once
    ],
    ids=lambda value: value if isinstance(value, str) else str(value).replace(" ", "_"),
)
def test_what_passes_by_itself_strikes_and_breaks_nothing(architecture: str, fault: Fault) -> None:
    """Run the experiment under a single fault that passes by itself: the fault takes effect, and no promise is broken."""
    trial = trials(architecture).run_with((fault,), 5)

    assert trial.struck == (fault,) and not trial.findings


@pytest.mark.parametrize(("side", "outcomes"), [("before", ["LostReply", ""]), ("after", ["no reply", ""])])
def test_a_start_without_an_answer_is_asked_for_again_and_is_one(side: Side, outcomes: list[str]) -> None:
    """Lose the request or the reply that starts the execution: the client asks again, and only one attempt begins."""
    trial = trials("all_reduce").run_with((Fault(kind="lose", role="client", request=15, side=side),), 5)
    entries = trial.history.entries

    assert not trial.findings
    assert [each.outcome for each in entries if each.operation == "StartExecution"] == outcomes
    assert len([each for each in entries if "/attempt/" in each.key and each.operation == "PutObject"]) == 1


def test_clients_have_a_clock_each() -> None:
    """Set the second client's clock wrong: the fault takes effect only if the first client dies, so that there is a second one."""
    dies, late = (
        Fault(kind="client_dies", at_s=5.0, seconds=5.0),
        Fault(kind="clock", role="client", request=2, seconds=60.0),
    )

    assert trials("all_reduce").run_with((dies, late), 4).struck == (dies, late)
    assert trials("all_reduce").run_with((late,), 4).struck == ()


@pytest.mark.slow
def test_a_run_that_faults_make_dearer_stays_within_its_budget() -> None:
    """Run eight schedules on an experiment with a small budget: no promise is broken, that of the budget included."""
    dear = replace(small("all_reduce"), lifetime=Lifetime(budget_usd=0.0145))
    broken = {
        seed: trial.findings for seed in range(8) if (trial := Trials(reduce_experiment(dear)).run_seed(seed)).findings
    }

    assert not broken
