"""One flipped bit in what a run that was stopped on this machine's local cloud has left: the resumption is right, or refused by name."""

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from crossover.experiment import Data, Experiment, Functions
from crossover.running.deployed import run_local
from crossover.running.inline import run_inline
from crossover.running.monitor import Progress
from tests.architectures.flips import AGES, KINDS, flip_and_judge, victim_of
from tests.architectures.harness import claiming, small, tree_architectures

Runs = Callable[[str], tuple[Path, str]]


def experiment(architecture: str) -> Experiment:
    """Return an experiment of the architecture that is long enough to be stopped before it ends."""
    return replace(
        small(architecture, epochs=8 if architecture in tree_architectures() else 40),
        name="flipped",
        data=Data(dataset="digits", limit=40, validation=0.02),
        functions=Functions(checkpoint_every=2, timeout_s=60),
    )


def ignore(progress: Progress) -> None:
    """Do nothing with the progress of a run."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Return a function that gives, for an architecture, (folder of a run that was stopped after two epochs, digest of an undisturbed run's
    model).
    """
    known: dict[str, tuple[Path, str]] = {}

    def stop(progress: Progress) -> None:
        """Interrupt the run after its second epoch, as Ctrl-C does."""
        if progress.epoch == 2:
            raise KeyboardInterrupt

    def of(architecture: str) -> tuple[Path, str]:
        """Return an architecture's folder and digest; both runs are made at the first call."""
        if architecture not in known:
            folder = tmp_path_factory.mktemp(architecture)
            whole = run_inline(experiment(architecture), folder / "whole", ignore).result
            with pytest.raises(KeyboardInterrupt):
                run_local(experiment(architecture), folder / "stopped", stop)
            known[architecture] = folder / "stopped", str(whole["final"]["parameters_sha256"])
        return known[architecture]

    return of


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.sampled
@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", claiming("resumes"))
def test_one_flipped_bit(architecture: str, kind: str, age: str, runs: Runs, tmp_path: Path) -> None:
    """Flip one bit in what a stopped run has left, then resume it: the result is right, or the damage is refused by name. `kind`, `age`:
    which of its objects.
    """
    stopped, whole = runs(architecture)
    folder, rng = Path(shutil.copytree(stopped, tmp_path / "run")), random.Random(f"{architecture} {kind} {age}")
    victim = victim_of(folder, kind, age, rng)
    resume = partial(run_local, experiment(architecture), folder, ignore, resume=True)
    flip_and_judge(folder, victim, kind, rng, resume=resume, whole=whole)
