"""One run after another: what is finished is kept, what cannot be run is told, what fails is tried once more and left out."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from crossover.architecture import architecture_of
from crossover.errors import CrossoverError, DataError, UserError
from crossover.experiment import Experiment
from crossover.reports import folder
from crossover.reports.folder import RunFolder

NOT_COMPARED = ("project", "owner", "name", "lifetime", "recipe")  # what does not change a figure
Announce = Callable[[str], None]
T = TypeVar("T")
R = TypeVar("R")


@dataclass(kw_only=True)
class CarriedOut(Generic[R]):
    """What came of each, by key: `missing` says why there is nothing; `failed` of them were tried twice."""

    found: dict[str, R] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


def carry_out(
    wanted: Iterable[tuple[str, T]],
    *,
    total: int,
    kept: Callable[[T], R | None],
    refused: Callable[[T], str],
    run: Callable[[T], R],
    tell: Announce,
    into: CarriedOut[R] | None = None,
) -> CarriedOut[R]:
    """Each of `wanted`, which may look `into` what came of those before. `kept`: what an earlier command has made of it; `refused`: why it
    is not run, empty where it is.
    """
    outcome = CarriedOut[R]() if into is None else into
    for number, (key, each) in enumerate(wanted, start=1):
        line, began = f"{number}/{total} {key}", time.monotonic()
        if (found := kept(each)) is not None:
            outcome.found[key] = found
            tell(f"{line}: kept")
            continue
        if reason := refused(each):
            outcome.missing[key] = reason
            tell(f"{line}: not run: {reason}")
            continue
        for last in (False, True):
            try:
                outcome.found[key] = run(each)
                tell(f"{line}: {time.monotonic() - began:.0f} s")
                break
            except (CrossoverError, OSError) as error:  # a busy machine may not start a server in time
                tell(f"{line}: failed{'' if last else ', tried once more'}: {one_line(error)}")
                if last:
                    outcome.missing[key] = f"it failed here: {one_line(error)}"
                    outcome.failed.append(key)
    return outcome


def finished(path: Path, experiment: Experiment) -> RunFolder | None:
    """The run of exactly this experiment in `path`, finished and complete. Half a run is none."""
    try:
        run = folder.read(path)
    except (UserError, DataError, OSError):
        return None
    if run.result.get("outcome") != "finished" or run.result.get("incomplete"):
        return None
    return run if is_of(run, experiment) else None


def is_of(run: RunFolder, experiment: Experiment) -> bool:
    """Whether it is of this experiment, but for what does not change a figure."""
    asked = architecture_of(experiment).resolve(experiment)  # as the run has filled in what is left to the architecture
    made = _comparable(
        folder.experiment_of(run.result)
    )  # may hold another architecture's section, as earlier versions wrote them all
    return all(made[name] == value for name, value in _comparable(asked).items())


def _comparable(experiment: Experiment) -> dict[str, Any]:
    """An experiment as plain data without what does not change a figure."""
    plain: Mapping[str, Any] = experiment.resolved()
    kept = {name: value for name, value in plain.items() if name not in NOT_COMPARED}
    kept["data"] = {name: value for name, value in plain["data"].items() if name != "directory"}
    return kept


def one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."
