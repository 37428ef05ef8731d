"""The GPU fleet that `baseline: gpu` asks for, after the experiment itself; and which of the two goes on when resumed."""

from collections.abc import Callable
from pathlib import Path

from crossover.architecture import load
from crossover.experiment import Experiment
from crossover.reports.folder import RunFolder, read
from crossover.running import provenance, resumption
from crossover.running.preparing import versions
from crossover.running.resumption import Unfinished


def with_baseline(
    run: Callable[[Experiment, Path, Unfinished | None], RunFolder],
    experiment: Experiment,
    out: Path,
    *,
    resume: str = "",
) -> RunFolder:
    """`run` of the experiment into `out` and, with `baseline: gpu`, of the GPU fleet after it into `out`/baseline: measured one at a time.
    `resume` (inline or local): the one that its folder holds unfinished, and what follows.
    """
    companion, baseline = experiment.companion(), out / "baseline"
    if resume and companion is not None and resumption.holds(baseline) and not resumption.holds(out):
        run(companion, baseline, _unfinished(companion, baseline, where=resume))
        return read(out)
    folder = run(experiment, out, _unfinished(experiment, out, where=resume) if resume else None)
    if companion is not None:
        run(companion, baseline, None)
    return folder


def _unfinished(experiment: Experiment, folder: Path, *, where: str) -> Unfinished:
    """Raises UserError where `folder` holds none, or one of another experiment."""
    found = resumption.find(folder)
    asked = load(experiment.architecture).resolve(experiment)
    found.check(asked, where=where, versions=versions(), code=provenance.code(asked))
    return found
