"""All architectures under schedules of faults: some seeds that are always the same, and some that nobody has tried."""

import random
import warnings

import pytest

from crossover.architecture import training_architectures
from crossover.virtual.schedule import Fault
from crossover.virtual.trials import Trials, reduced
from tests.architectures.harness import small
from tests.sampling import WHOLE

FIXED, FRESH = 43, 3  # of each architecture
_known: dict[str, Trials] = {}


def trials(architecture: str) -> Trials:
    if architecture not in _known:
        _known[architecture] = Trials(reduced(small(architecture)))
    return _known[architecture]


@pytest.mark.parametrize("architecture", training_architectures())
def test_no_schedule_of_the_fixed_seeds_breaks_a_promise(architecture: str) -> None:
    broken = {seed: trial.findings for seed in range(FIXED) if (trial := trials(architecture).of(seed)).findings}

    assert not broken


@pytest.mark.parametrize("architecture", training_architectures())
def test_nor_do_seeds_that_nobody_has_tried(architecture: str) -> None:
    """What they find is as old as the code, not the work of whoever runs this: it is told in pytest's summary, with its seed for `crossover
    chaos` takes, and fails only where every call is tried.
    """
    seeds = random.SystemRandom().sample(range(10**6, 10**9), FRESH)
    broken = {seed: trial.findings for seed in seeds if (trial := trials(architecture).of(seed)).findings}

    if broken:
        with warnings.catch_warnings():
            warnings.simplefilter("always")  # elsewhere a warning is a failure
            warnings.warn(f"{architecture}, seeds {broken}", stacklevel=1)
    assert not (broken and WHOLE)


@pytest.mark.parametrize("architecture", training_architectures())
def test_a_seed_gives_one_history(architecture: str) -> None:
    first, again = trials(architecture).of(7), Trials(reduced(small(architecture))).of(7)

    assert (first.digest, first.findings) == (again.digest, again.findings)


@pytest.mark.parametrize("architecture", ["mlless", "spirt"])  # whose first step declares queues
def test_an_invocation_that_comes_again_when_the_run_is_over_leaves_nothing(architecture: str) -> None:
    late = Fault(kind="duplicate", role="initialise 0", request=1, side="after", seconds=290.0)
    trial = trials(architecture).under((late,), 5)

    assert trial.struck == (late,) and not trial.findings
