"""Retries, repetitions and late attempts change nothing: every architecture that is a tree, at every call of its data plane.

A clean run gives the bits that every disturbed run must end with (docs/correctness.md, 1).
"""

import pytest

from crossover.architecture import load, steps
from tests.architectures.harness import (
    Duplicates,
    FailAt,
    Job,
    Zombies,
    every_step,
    small,
    tree_architectures,
)
from tests.architectures.lives import LONG, twice
from tests.architectures.trained import trained
from tests.sampling import WHOLE, chosen

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", tree_architectures("survives_kills"))
def test_every_step_run_twice_changes_nothing(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(small(architecture))
    undisturbed = trained(small(architecture))
    with every_step(monkeypatch, twice):
        assert job.run() == undisturbed.model
    assert job.tensor_keys() == []


@pytest.mark.sampled
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("architecture", tree_architectures("survives_kills"))
def test_a_call_that_fails_anywhere_is_made_good_by_the_retry(architecture: str, moment: str) -> None:
    run = trained(small(architecture))
    assert len(run.calls) > 50
    for k in chosen(run.calls):
        job = Job(small(architecture))
        job.clients.hook = fault = FailAt(k, moment)
        assert job.run() == run.model, f"call {k} ({fault.failed}), {moment}"
        assert job.tensor_keys() == [], f"call {k} ({fault.failed}), {moment}"


def steps_of(architecture: str) -> list[tuple[str, str]]:
    return [(architecture, step.name) for step in steps(load(architecture))]


@pytest.mark.sampled
@pytest.mark.parametrize("until_end", [False, True], ids=["after_the_retry", "after_the_run"])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    ("architecture", "step"), [pair for name in tree_architectures("survives_kills") for pair in steps_of(name)]
)
def test_a_first_attempt_that_comes_late_changes_nothing(
    architecture: str, step: str, k: int, until_end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(small(architecture))
    zombies = Zombies(step, k, job.clients, until_end=until_end)
    with every_step(monkeypatch, zombies.wrap):
        model = job.run()
        zombies.finish()
    assert model == trained(small(architecture)).model
    assert job.model() == model


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("ahead", [10, 40, 10_000])
@pytest.mark.parametrize("k", range(1, 60) if WHOLE else (4, 12, 30))
@pytest.mark.parametrize(
    ("architecture", "step"),
    [pair for name in tree_architectures("survives_kills") for pair in steps_of(name) if pair[1] in LONG],
)
def test_a_live_invocation_overtaken_by_a_duplicate_of_itself_goes_on(
    architecture: str, step: str, k: int, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lambda delivers at least once: the same event runs twice side by side, and the one whose answer is waited for falls behind."""
    job = Job(small(architecture, epochs=4))
    duplicates = Duplicates(step, k, job.clients, ahead=ahead)
    with every_step(monkeypatch, duplicates.wrap):
        model = job.run()
        duplicates.finish()
    assert model == trained(small(architecture, epochs=4)).model
    assert job.tensor_keys() == []
    assert job.object_keys("checkpoint", "evaluating") == []
