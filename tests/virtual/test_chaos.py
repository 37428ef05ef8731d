"""All architectures under schedules of faults: some seeds that are always the same, and some that nobody has tried."""

import random

import pytest

from crossover.architecture import training_architectures
from crossover.virtual.trials import Trials, reduced
from tests.architectures.harness import small

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
    """Printed where one does: `crossover chaos` takes it."""
    seeds = random.SystemRandom().sample(range(10**6, 10**9), FRESH)
    broken = {seed: trial.findings for seed in seeds if (trial := trials(architecture).of(seed)).findings}

    assert not broken


@pytest.mark.parametrize("architecture", training_architectures())
def test_a_seed_gives_one_history(architecture: str) -> None:
    first, again = trials(architecture).of(7), Trials(reduced(small(architecture))).of(7)

    assert (first.digest, first.findings) == (again.digest, again.findings)
