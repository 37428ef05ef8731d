"""Runs what is missing on the cloud on this machine, and keeps what is finished: a second call goes on where the first one stopped."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crossover.errors import DataError
from crossover.reports import folder
from crossover.reports.folder import RunFolder
from crossover.study.machines import OnThisMachine
from crossover.study.papers.measurement import Measurement, Scale
from crossover.study.runner import Announce, carry_out, one_line
from crossover.study.runner import finished as finished_run

RUNS = "runs"
KEPT = Path(__file__).parents[3] / "docs" / "results"  # runs at the published size that come with the project


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
            if (found := finished_run(path.parent, whole)) is not None:
                return found, True
        run = finished_run(self.out / RUNS / measurement.key, measurement.experiment(self.scale))
        return None if run is None else (run, self.scale.whole)

    def run(self, measurements: Sequence[Measurement]) -> Replicated:
        """Every measurement that is not finished, one after another. One that fails twice is told and left out: the others go on."""
        with OnThisMachine() as machine:
            done = carry_out(
                ((each.key, each) for each in measurements),
                total=len(measurements),
                kept=self.finished,
                refused=self.cannot,
                run=lambda each: (self._measured(each, machine), self.scale.whole),
                tell=self.tell,
            )
        whole = frozenset(key for key, (_, whole) in done.found.items() if whole)
        runs = {key: run for key, (run, _) in done.found.items()}
        return Replicated(runs=runs, whole=whole, missing=done.missing, failed=tuple(done.failed))

    def _measured(self, measurement: Measurement, machine: OnThisMachine) -> RunFolder:
        """Half a run of it goes on; one of another scale goes into a folder of its own there. Its stack is no other's."""
        experiment = measurement.experiment(self.scale, data=self.data)
        run = machine.run(experiment, self.out / RUNS / measurement.key, lambda progress: None)
        machine.leave(experiment)
        return run


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
        return one_line(error)
    return ""
