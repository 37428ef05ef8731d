"""A worker whose contribution is not finite ends the run, or all alike leave it out of the round (docs/correctness.md, 3)."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from crossover.algorithms import aggregation
from crossover.errors import CrossoverError, Refused, Unavailable
from crossover.experiment import Aggregation, Experiment, Faults
from crossover.learning.datasets import load as load_dataset
from crossover.learning.reference import train_reference
from crossover.running.results import list_dropped
from crossover.workflow.architecture import load
from tests.architectures.harness import Job, Killed, Zombies, claiming, every_step, small, tree_architectures
from tests.architectures.trained import assert_equal_to_reference, run
from tests.sampling import WHOLE

ALL = [
    name for name in claiming("equals_reference") if not load(name).alone
]  # five workers, of which one or two are faulty
TREES = [name for name in tree_architectures("equals_reference") if name in ALL]
RULES = {
    "median": Aggregation(rule="median", non_finite="drop"),
    "trimmed_mean": Aggregation(rule="trimmed_mean", trim=1, non_finite="drop"),
    "krum": Aggregation(rule="krum", faulty=1, select=2, non_finite="drop"),
}


def attacked(architecture: str, aggregation: Aggregation, *attackers: int, epochs: int = 1) -> Experiment:
    """Return an experiment of five workers with this aggregation, of which `attackers` send non-finite gradients."""
    experiment = small(architecture, workers=5, epochs=epochs)
    return replace(experiment, aggregation=aggregation, faults=Faults(attack="non_finite", workers=attackers))


TAKES = [(name, rule) for name in ALL for rule in RULES if not [*load(name).checks(attacked(name, RULES[rule]))]]


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "rule"), TAKES)
def test_who_is_dropped_is_dropped_by_all_and_named(architecture: str, rule: str) -> None:
    """Check that a worker's whole gradient is dropped everywhere, as in the reference, if one of its coordinates is not finite."""
    experiment = attacked(architecture, RULES[rule], 3, epochs=2)
    found = list_dropped(assert_equal_to_reference(experiment).prepared)
    assert [each["round"] for each in found] == list(range(len(found)))
    assert len(found) >= 2 and all(each["workers"] == [3] for each in found)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("rule", ["mean", "median"])
@pytest.mark.parametrize("architecture", ALL)
def test_by_default_the_run_ends_and_says_whose_it_is(architecture: str, rule: Any) -> None:
    """Check that a run with a worker whose gradients are not finite ends with an error that names the worker."""
    with pytest.raises(CrossoverError, match="NaN or infinite values") as failure:
        run(Job(attacked(architecture, Aggregation(rule=rule), 3)))
    assert "/3" in str(failure.value) or "peer 3" in str(failure.value)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ALL)
def test_more_than_the_rule_bears_are_refused_by_name(architecture: str) -> None:
    """Check that the run ends if more workers have non-finite gradients than the rule tolerates, and that the error names them."""
    with pytest.raises(Refused, match=r"2 of 5 contain NaN .* trimmed_mean bears 1") as failure:
        run(Job(attacked(architecture, RULES["trimmed_mean"], 1, 3)))
    names = str(failure.value)
    assert ("/1" in names and "/3" in names) or ("peer 1" in names and "peer 3" in names)


@pytest.mark.parametrize("architecture", TREES)
def test_the_reference_refuses_too(architecture: str) -> None:
    """Check that the reference implementation refuses a worker's non-finite gradients."""
    experiment = attacked(architecture, Aggregation(), 2)
    with pytest.raises(Refused, match="worker 2, round 0: its average contains NaN"):
        train_reference(Job(experiment).prepared.experiment, load_dataset(experiment))


# --- between agreeing and combining -----------------------------------------------------------------------------------


class DyingBeforeItCombines:
    """A patch by which the n-th combination of gradients in the run raises `error` before it begins; by then the workers to drop have been
    agreed.
    """

    def __init__(self, n: int, error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
        """Patch the combination of gradients. `n`: number of the combination that fails, 0 for none; `error`: type of the error."""
        self.count, self.lock = 0, threading.Lock()

        def applied(*arguments: Any) -> Any:
            """Count the combination; raise the error at the n-th, else combine."""
            with self.lock:
                self.count += 1
                hit = self.count == n
            if hit:
                raise error(f"combining {n} did not begin")
            return combine(*arguments)

        combine = aggregation.apply_rule
        monkeypatch.setattr(aggregation, "apply_rule", applied)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ALL)
def test_whoever_dies_between_agreeing_and_combining_agrees_alike_again(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let each combination of gradients fail once after the workers have agreed whom to drop. Check that the repetition drops the same
    workers and that the model is that of an undisturbed run.
    """
    experiment, error = attacked(architecture, RULES["median"], 3), Killed if architecture not in TREES else Unavailable
    with monkeypatch.context() as patch:
        counting = DyingBeforeItCombines(0, error, patch)
        clean = Job(experiment)
        model = run(clean)
    assert counting.count >= 2
    for n in range(1, counting.count + 1):
        with monkeypatch.context() as patch:
            DyingBeforeItCombines(n, error, patch)
            job = Job(experiment)
            assert run(job) == model, n
        assert job.tensor_keys() == [], n
        assert list_dropped(job.prepared) == list_dropped(clean.prepared), n


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("until_end", [False, True], ids=["until the retry is done", "until the run is over"])
@pytest.mark.parametrize("architecture", TREES)
def test_a_late_attempt_agrees_with_what_was_agreed(
    architecture: str, until_end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a superseded attempt, stopped at various calls, does not change which workers were dropped, nor the model."""
    experiment = attacked(architecture, RULES["median"], 3)
    clean = Job(experiment)
    model, step = clean.run(), "aggregate_peers" if architecture == "spirt" else "train"
    for k in range(3, 33, 1 if WHOLE else 6):
        job = Job(experiment)
        zombies = Zombies(step, k, job.clients, until_end=until_end)
        with every_step(monkeypatch, zombies.wrap):
            assert job.run() == model, f"stopped at call {k}"
        zombies.finish()
        assert list_dropped(job.prepared) == list_dropped(clean.prepared), f"stopped at call {k}"
