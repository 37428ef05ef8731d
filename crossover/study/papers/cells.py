"""One published figure with ours beside it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from crossover.reports.folder import RunFolder
from crossover.reports.published import Row
from crossover.study.papers.measurement import Measurement

Unit = Literal["s", "min", "MB", "USD", "%", "share", "x", "USD/s", "text"]
Value = float | str
NOT_RUN = "not run"


@dataclass(frozen=True, kw_only=True)
class Ours:
    """Our figure: measured, or following from measured ones as `note` says."""

    value: Value
    label: Literal["measured-local", "projected"] = "measured-local"
    note: str = ""
    cut: bool = False  # of a smaller task than the paper's: the ratio says nothing about who is faster or better


@dataclass(frozen=True, kw_only=True)
class NoFigure:
    """No figure: why, and what would give one."""

    reason: str
    command: str


@dataclass(frozen=True, kw_only=True)
class TableCell:
    """A line of a table. `simulated`: what the simulator says of the published size; `formula`: what the paper's own formula gives where
    its printed figure does not follow from it.
    """

    row: str
    figure: str
    unit: Unit
    published: Value | None
    ours: Ours | NoFigure
    formula: float | None = None
    deviation: float | None = None
    simulated: float | None = None
    note: str = ""
    by: Row | None = None  # the printed row and its figure's name, where the simulator can be asked
    name: str = ""

    @property
    def label(self) -> str:
        return self.ours.label if isinstance(self.ours, Ours) else NOT_RUN

    @property
    def ratio(self) -> float | None:
        """Ours by the printed figure."""
        return _ratio(self.ours.value if isinstance(self.ours, Ours) else None, self.published)

    @property
    def compares(self) -> bool:
        """Whether the ratio is of like figures."""
        return self.ratio is not None and isinstance(self.ours, Ours) and not self.ours.cut

    @property
    def simulated_ratio(self) -> float | None:
        return _ratio(self.simulated, self.published)

    @property
    def remarks(self) -> str:
        """All that a reader must know about this line."""
        marked = []
        if self.formula is not None and self.deviation is not None:
            marked = [
                f"printed figure does not follow from the paper's formula, which gives {self.formula:.6g} ({100 * self.deviation:+.1f} %)"
            ]
        mine = [self.ours.note] if isinstance(self.ours, Ours) else [self.ours.reason]
        if isinstance(self.ours, Ours) and self.ours.cut:
            mine.append("the ratio compares unlike tasks")
        return "; ".join(part for part in (*marked, *mine, self.note) if part)

    @property
    def command(self) -> str:
        return self.ours.command if isinstance(self.ours, NoFigure) else ""


def measured(value: Value, note: str = "", *, cut: bool = False) -> Ours:
    """A figure of this machine; `cut`: of a smaller task than the paper's."""
    return Ours(value=value, note=note, cut=cut)


def projected(value: Value, note: str) -> Ours:
    """A figure that follows from measured ones as `note` says."""
    return Ours(value=value, label="projected", note=note)


def where(run: RunFolder | NoFigure, make: Callable[[RunFolder], Ours]) -> Ours | NoFigure:
    """What `make` reads from the run; without a run, why there is none."""
    return run if isinstance(run, NoFigure) else make(run)


def _ratio(mine: Value | None, printed: Value | None) -> float | None:
    if isinstance(mine, str) or isinstance(printed, str) or mine is None or not printed:
        return None
    return mine / printed


def printed(row: Row, figure: str, unit: Unit, ours: Ours | NoFigure, *, words: str = "", note: str = "") -> TableCell:
    """The cell of a printed figure, with what config/published.yaml says of its deviation."""
    listed: Mapping[str, Any] = row.deviates.get(figure, {})
    return TableCell(
        row=row.row,
        figure=words or figure,
        unit=unit,
        published=row.figures[figure],
        ours=ours,
        formula=listed.get("formula"),
        deviation=listed.get("relative"),
        note=note,
        by=row,
        name=figure,
    )


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line of a figure; `dashed` marks what is not measured."""

    label: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A plot of a figure: curves, or `bars` by name."""

    title: str
    x: str
    y: str = ""
    curves: Sequence[Curve] = ()
    bars: Sequence[tuple[str, float]] = ()
    log_x: bool = False
    percent: bool = False
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Section:
    """One table or figure, filled."""

    name: str
    title: str
    cells: Sequence[TableCell] = ()
    drawings: Sequence[Drawing] = ()
    notes: Sequence[str] = ()
    measurements: Sequence[Measurement] = field(default=())
