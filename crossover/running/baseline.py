"""The baselines that an experiment asks for, after it; and which of them goes on when resumed."""

import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from crossover.architecture import architecture_of
from crossover.errors import ConfigError, UserError
from crossover.experiment import Experiment
from crossover.reports.folder import UNFINISHED, RunFolder, read
from crossover.running import provenance, resumption
from crossover.running.keeping import begun
from crossover.running.preparing import versions
from crossover.running.resumption import Unfinished
from crossover.simulation.processors import fixed
from crossover.training.baselines import companions

FOLDER = "baseline"  # of the GPU fleet; the others' begin so


def folders(out: Path, experiment: Experiment) -> dict[Path, Experiment]:
    """Every run's folder, in their order: the experiment's own, `out`, and its baselines' within."""
    beside = {
        out / (FOLDER if each.module == "gpu" else f"{FOLDER}-{each.module}"): each for each in companions(experiment)
    }
    return {out: experiment, **beside}


def unfinished_in(out: Path) -> bool:
    """Whether a run of `out`, or of a baseline within, can go on."""
    return any(resumption.holds(folder) for folder in (out, *out.glob(f"{FOLDER}*")))


def goes_on(experiment: Experiment, out: Path, *, where: str, cores: int | None = None) -> bool:
    """Whether what `out` holds unfinished is of this experiment, code and machine: gone on with, it ends as if nobody had stopped it."""
    for folder, each in folders(out, experiment).items():
        if resumption.holds(folder):
            try:
                return resumption.only_begun(folder) or bool(_unfinished(fixed(each, cores=cores), folder, where=where))
            except UserError:
                return False
    return False


def with_baseline(
    run: Callable[[Experiment, Path, Unfinished | None], RunFolder],
    experiment: Experiment,
    out: Path,
    *,
    where: str,
    resume: bool = False,
    cores: int | None = None,
) -> RunFolder:
    """`run` of the experiment into `out` and of its baselines after it into folders there: measured one at a time. `resume` (inline or
    local): the first one that its folder holds unfinished, and what follows. `cores`: of the machine that they run on, where that is not
    AWS.
    """
    wanted = [(folder, fixed(each, cores=cores)) for folder, each in folders(out, experiment).items()]
    _check_divided([each for _, each in wanted[1:]])
    if resume:
        first = next((n for n, (folder, _) in enumerate(wanted) if resumption.holds(folder)), 0)
        (folder, each), *wanted = wanted[first:]
        if again := resumption.only_begun(folder):
            shutil.rmtree(folder / UNFINISHED / "runs", ignore_errors=True)  # what it told without getting anywhere
        run(each, folder, None if again else _unfinished(each, folder, where=where))
    for folder, each in wanted:
        with nullcontext() if where == "aws" else begun(folder, where=where):
            run(each, folder, None)
    return read(out)


def _check_divided(beside: Sequence[Experiment]) -> None:
    """Before the experiment itself trains, not after. Raises ConfigError where the data cannot be divided as a baseline needs it."""
    from crossover.learning.datasets import training_samples  # torch comes with them
    from crossover.learning.staging import plan

    samples = training_samples(beside[0]) if beside else 0  # the same data for all, loaded once
    for each in beside:
        try:
            plan(architecture_of(each).resolve(each), samples)
        except ConfigError as error:
            raise ConfigError(f"baseline: {each.module}, {each.name}, cannot run: {error}") from error


def _unfinished(experiment: Experiment, folder: Path, *, where: str) -> Unfinished:
    """Raises UserError where `folder` holds none, or one of another experiment."""
    found = resumption.find(folder)
    asked = architecture_of(experiment).resolve(experiment)
    found.check(asked, where=where, versions=versions(), code=provenance.code(asked))
    return found
