"""Runs what is missing on the cloud on this machine, and keeps what is finished: a second call goes on where the first one stopped."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from crossover.architecture import architecture_of
from crossover.errors import CrossoverError, DataError, UserError
from crossover.experiment import Experiment
from crossover.reports import folder
from crossover.reports.folder import RunFolder
from crossover.running.cdk_process import synthesized
from crossover.running.keeping import begun
from crossover.study.papers.measurement import Measurement, Scale

RUNS = "runs"
KEPT = Path(__file__).parents[3] / "docs" / "results"  # runs at the published size that come with the project
NOT_COMPARED = ("project", "owner", "name", "lifetime", "recipe")  # what does not change a figure
Announce = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Replicated:
    """What there is after a call: runs by key, which of them are of the published size, and why others are missing."""

    runs: Mapping[str, RunFolder]
    whole: frozenset[str] = frozenset()
    missing: Mapping[str, str] = field(default_factory=dict)
    failed: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Runner:
    """`out`/runs/<key> holds the run of each measurement; `data`: the folder of the data sets."""

    out: Path
    scale: Scale
    data: Path | None
    tell: Announce = lambda line: None
    _readable: dict[str, str] = field(default_factory=dict)  # by data set: why it cannot be read, or nothing

    def cannot(self, measurement: Measurement) -> str:
        """Why a measurement cannot be made here; empty: it can."""
        if measurement.needs_gpu and not has_gpu():
            return "no GPU on this machine"
        if not measurement.trains:
            return ""
        name = measurement.experiment(self.scale).data.dataset
        if name not in self._readable:
            self._readable[name] = _unreadable(name, self.data)
        return self._readable[name]

    def finished(self, measurement: Measurement) -> tuple[RunFolder, bool] | None:
        """The run of exactly this experiment, finished and complete: one that comes with the project at the published size (True), or one
        of an earlier call. Half a run is none.
        """
        whole = measurement.experiment(Scale(1))
        for path in sorted(KEPT.glob(f"*/{folder.RESULT}")):
            if (found := _finished(path.parent, whole)) is not None:
                return found, True
        run = _finished(self.out / RUNS / measurement.key, measurement.experiment(self.scale))
        return None if run is None else (run, self.scale.whole)

    def run(self, measurements: Sequence[Measurement]) -> Replicated:
        """Every measurement that is not finished, one after another. One that fails twice is told and left out: the others go on."""
        runs: dict[str, RunFolder] = {}
        whole: set[str] = set()
        missing: dict[str, str] = {}
        failed: list[str] = []
        with ExitStack() as stack:
            machine = _Machine(stack)
            for number, measurement in enumerate(measurements, start=1):
                line, began = f"{number}/{len(measurements)} {measurement.key}", time.monotonic()
                if (found := self.finished(measurement)) is not None:
                    runs[measurement.key] = found[0]
                    whole |= {measurement.key} if found[1] else set()
                    self.tell(f"{line}: kept")
                    continue
                if reason := self.cannot(measurement):
                    missing[measurement.key] = reason
                    self.tell(f"{line}: not run: {reason}")
                    continue
                for last in (False, True):
                    try:
                        runs[measurement.key] = self._measured(measurement, machine)
                        whole |= {measurement.key} if self.scale.whole else set()
                        self.tell(f"{line}: {time.monotonic() - began:.0f} s")
                        break
                    except (CrossoverError, OSError) as error:  # a busy machine may not start a server in time
                        self.tell(f"{line}: failed{'' if last else ', tried once more'}: {_line(error)}")
                        if last:
                            missing[measurement.key] = f"it failed here: {_line(error)}"
                            failed.append(measurement.key)
        return Replicated(runs=runs, whole=frozenset(whole), missing=missing, failed=tuple(failed))

    def _measured(self, measurement: Measurement, machine: "_Machine") -> RunFolder:
        """Anew, in a folder of its own: a run of another scale, or half a one, goes into one of its own there."""
        target = self.out / RUNS / measurement.key
        with begun(target, where="local"):
            return machine.run(measurement.experiment(self.scale, data=self.data), target)


class _Machine:
    """The cloud on this machine, started when the first run needs it and shared by all; each run's stack goes after it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._cloud: Any = None
        self._folder = Path()

    def run(self, experiment: Experiment, out: Path) -> RunFolder:
        from crossover import running

        if self._cloud is None:
            self._start()
        with tempfile.TemporaryDirectory(dir=self._folder) as assembly:
            self._cloud.deploy(synthesized(experiment, Path(assembly)))
            stack = f"{experiment.project}-{experiment.name}"
            try:
                found = running.run_deployed(
                    experiment,
                    out,
                    lambda progress: None,
                    session=self._cloud.session(),
                    where="local",
                    check=partial(self._cloud.check, out / folder.SERVER_LOG),
                )
            except Exception:
                self._cloud.destroy(stack)
                raise
            self._cloud.destroy(stack)
            return found  # interrupted, it leaves its stack to the cloud's end, which is next

    def _start(self) -> None:
        from crossover.local import processes, tools
        from crossover.local.cloud import LocalCloud

        tools.check()
        self._folder = self._stack.enter_context(processes.temporary_folder())
        self._cloud = self._stack.enter_context(LocalCloud(self._folder / "cloud"))


def has_gpu() -> bool:
    """Whether NVIDIA's driver is here."""
    return shutil.which("nvidia-smi") is not None and os.path.exists("/proc/driver/nvidia")


def _unreadable(dataset: str, data: Path | None) -> str:
    """Why the data set cannot be had, asked once: fetching it may take its time to fail."""
    from crossover.learning import cifar10, mnist

    read = {"cifar10": cifar10.read, "mnist": mnist.read}[dataset]
    try:
        read(None if data is None else str(data))
    except DataError as error:
        return _line(error)
    return ""


def _finished(path: Path, experiment: Experiment) -> RunFolder | None:
    try:
        run = folder.read(path)
    except (UserError, DataError, OSError):
        return None
    whole = run.result.get("outcome") == "finished" and not run.result.get("incomplete")
    asked = architecture_of(experiment).resolve(experiment)  # as the run has filled in what is left to the architecture
    if not whole:
        return None
    made = _comparable(
        folder.experiment_of(run.result)
    )  # may hold another architecture's section, as earlier versions wrote them all
    return run if all(made[name] == value for name, value in _comparable(asked).items()) else None


def _comparable(experiment: Experiment) -> dict[str, Any]:
    """An experiment as plain data without what does not change a figure."""
    plain = experiment.resolved()
    kept = {name: value for name, value in plain.items() if name not in NOT_COMPARED}
    kept["data"] = {name: value for name, value in plain["data"].items() if name != "directory"}
    return kept


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."
