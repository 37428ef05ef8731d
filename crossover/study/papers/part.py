"""A table or figure: which runs it wants, and how it is filled from those that are there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from crossover.reports.folder import RunFolder
from crossover.study.papers.cells import Drawing, NoFigure, Section, TableCell
from crossover.study.papers.measurement import Measurement, Scale


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a part is filled from: finished runs by key, and why others have none."""

    part: "Part"
    scale: Scale
    runs: Mapping[str, RunFolder]
    whole: frozenset[str] = frozenset()  # keys of runs that were kept at the published size
    missing: Mapping[str, str] = field(default_factory=dict)  # reason by key
    has_gpu: bool = False

    def run(self, measurement: Measurement) -> RunFolder | NoFigure:
        """The run, or why there is none and the command that makes it."""
        run = self.runs.get(measurement.key)
        if run is not None:
            return run
        reason = self.missing.get(measurement.key, f"left out at scale {self.scale.share:g}")
        return NoFigure(reason=reason, command=measurement.command(Scale(1)))

    def cut(self, measurement: Measurement) -> bool:
        """Whether the run is smaller than the published one."""
        return not (self.scale.whole or measurement.key in self.whole)

    def size_of(self, measurement: Measurement) -> str:
        """In words, which size the run had."""
        return f"cut down to {self.scale.share:g}" if self.cut(measurement) else "at the published size"

    def section(
        self, cells: Sequence[TableCell], *, drawings: Sequence[Drawing] = (), notes: Sequence[str] = ()
    ) -> Section:
        return Section(
            name=self.part.name,
            title=self.part.title,
            cells=cells,
            drawings=drawings,
            notes=notes,
            measurements=self.part.measurements(self.scale),
        )


def _drawing(found: Found) -> Section:
    return found.section((), notes=["A drawing of boxes and arrows: there is nothing to measure."])


@dataclass(frozen=True)
class Part:
    """`measurements`: the runs it wants at a scale. `fill`: the section from what is there."""

    name: str
    title: str
    measurements: Callable[[Scale], Sequence[Measurement]] = lambda scale: ()
    fill: Callable[[Found], Section] = _drawing
