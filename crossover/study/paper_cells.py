"""A published figure with ours beside it: ratio, label, and whether the paper's finding is reproduced."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from statistics import median
from typing import Any, Literal, TypeVar

from crossover.reports import display
from crossover.reports.folder import RunFolder
from crossover.reports.published import Row
from crossover.simulation.papers import ComparedFigure, compare_figures
from crossover.study.paper_runs import Measurement, Scale

# --- figures ----------------------------------------------------------------------------------------------------------

COMPUTING = ("train", "compute_gradients", "compute_gradient")  # the functions that compute


def function_s(run: RunFolder) -> float:
    """Return the mean seconds of one function as the 2025 paper counts them: wall time of all successful invocations that compute
    gradients, without their evaluation, divided by the number of minibatches of all workers.

    In SPIRT that is one invocation. An invocation of a worker that trains many minibatches is shared out among them. 0 if nothing was
    computed.
    """
    records = [r for r in run.records if r["step"] in COMPUTING and r["outcome"] == "ok"]
    total = sum(float(r["wall_s"]) - _sum_stage_s(r, "evaluate") for r in records)
    return total / minibatches(run)


def minibatches(run: RunFolder) -> int:
    """Return how many minibatches all workers computed in the whole run, by the entries of its stage `compute`; 1 if it has none, so that
    callers can divide by it.
    """
    stages = {row["stage"]: row for row in run.result["stages"]}
    computed = stages.get("compute") or {"count": 0}
    return max(1, int(computed["count"]))


def _sum_stage_s(record: Mapping[str, Any], stage: str) -> float:
    """Return the seconds that one record spent in the stage with this name."""
    return sum(float(each["wall_s"]) for each in record["stages"] if each["stage"] == stage)


def stage(run: RunFolder, name: str) -> Mapping[str, float]:
    """Return the figures of one stage of the run, over all workers: `count` of its executions, `wall_s` as mean seconds of one execution,
    `cpu` as processor seconds per wall second, `max_rss_mb` as peak memory in MB; all 0 if the run never entered it. `name`: name of the
    stage, such as "compute".
    """
    row = next((row for row in run.result["stages"] if row["stage"] == name), None)
    if row is None or not row["count"]:
        return {"count": 0, "wall_s": 0.0, "cpu": 0.0, "max_rss_mb": 0.0}
    share = row["cpu_s"] / row["wall_s"] if row["wall_s"] else 0.0
    return {
        "count": row["count"],
        "wall_s": row["wall_s"] / row["count"],
        "cpu": share,
        "max_rss_mb": row["max_rss_mb"],
    }


def total_s(run: RunFolder, *names: str) -> float:
    """Return the wall seconds of the stages called `names`, added up over all workers; 0 for stages that the run never entered."""
    return float(sum(row["wall_s"] for row in run.result["stages"] if row["stage"] in names))


def peak_mb(run: RunFolder) -> float:
    """Return the highest memory in MB that any worker used while computing; 0 if none computed."""
    rows = [row for row in run.result["stages"] if row["stage"] in ("compute", "compute gradients")]
    return max((float(row["max_rss_mb"]) for row in rows), default=0.0)


def workers(run: RunFolder) -> int:
    """Return the run's number of workers."""
    return int(run.result["experiment"]["workers"])


def epochs(run: RunFolder) -> int:
    """Return the number of epochs that the run completed; 0 if none."""
    return display.epochs_of(run.result)


def batch_size(run: RunFolder) -> int:
    """Return the run's minibatch size (images per worker)."""
    return int(run.result["experiment"]["training"]["batch_size"])


def per_round_s(run: RunFolder, *names: str) -> float:
    """Return the mean wall seconds of the stages called `names` together, per worker and round: their total divided by the number of model
    updates of all workers (1 if the run has none).
    """
    rounds = stage(run, "update")["count"] or stage(run, "model update")["count"] or 1
    return total_s(run, *names) / rounds


def best_metric(run: RunFolder) -> float | None:
    """Return the best validation metric of any epoch, that is the highest, or the lowest if the run's metric falls; None if no epoch has
    one.
    """
    return display.metric_of(run.result).best(
        e["val_metric"] for e in run.result["epochs"] if e["val_metric"] is not None
    )


def curve(run: RunFolder, figure: str = "elapsed_s") -> list[tuple[float, float]]:
    """Return (seconds since the start, validation metric) for each evaluated epoch, in order. `figure`: field of an epoch in result.json to
    use in place of the seconds, such as "epoch".
    """
    return [(e[figure], e["val_metric"]) for e in run.result["epochs"] if e["val_metric"] is not None]


def moved_bytes(run: RunFolder, *channels: str) -> int:
    """Return the bytes that the run's steps received and sent through the given channels ("object_store", "tensor_store" or "bus"); by
    default through all. Raises KeyError for another channel.
    """
    chosen = channels or tuple(run.result["traffic"])
    return sum(run.result["traffic"][c]["bytes_in"] + run.result["traffic"][c]["bytes_out"] for c in chosen)


def peer_minibatches(run: RunFolder) -> int:
    """Return the number of minibatches that one peer or worker computes in an epoch; 1 if the result does not say."""
    return int(run.result["data"].get("minibatches", 1))


# --- cells ------------------------------------------------------------------------------------------------------------
# A published figure with ours beside it.

Unit = Literal["s", "min", "MB", "USD", "%", "share", "x", "USD/s", "text"]
Value = float | str
Derived = TypeVar("Derived")
Place = TypeVar("Place", float, str)
NOT_RUN = "not run"


@dataclass(frozen=True, kw_only=True)
class Ours:
    """Our figure for a cell: measured on this machine, or projected from measured ones. `value`: in the unit of the cell; `label`:
    measured-local or projected; `note`: remark on how it was made; `cut`: whether it was measured on a smaller task than the paper's, so
    that the ratio does not compare the two.
    """

    value: Value
    label: Literal["measured-local", "projected"] = "measured-local"
    note: str = ""
    cut: bool = False  # measured on a smaller task than the paper's: the ratio does not compare the two


@dataclass(frozen=True, kw_only=True)
class NoFigure:
    """The place of a figure of ours that is missing, built with two texts. `reason`: why it is missing; `command`: the command line that
    would produce it.
    """

    reason: str
    command: str


@dataclass(frozen=True, kw_only=True)
class TableCell:
    """One printed figure of a paper beside ours. `row`, `figure`: names of its row and column; `unit`: of all values; `note`: remark for
    the page, or ""; `published`: the printed figure, None if the paper prints none; `ours`: our figure, or why there is none; `formula`:
    what the paper's own formula gives, if its printed figure does not follow from it; `deviation`: formula / printed - 1; `simulated`: the
    simulator's figure for the published size; `by`, `name`: the printed row and the figure's key in it, by which the simulator's figure is
    found.
    """

    row: str
    figure: str
    unit: Unit
    published: Value | None = None
    ours: Ours | NoFigure
    formula: float | None = None
    deviation: float | None = None
    simulated: float | None = None
    note: str = ""
    by: Row | None = None  # the printed row, for the simulator, with `name`: the figure's name in it
    name: str = ""

    @property
    def value(self) -> Value | None:
        """Our figure in the unit of the cell; None if it is missing."""
        return self.ours.value if isinstance(self.ours, Ours) else None

    @property
    def label(self) -> str:
        """The label of our figure ("measured-local" or "projected"), or "not run"."""
        return self.ours.label if isinstance(self.ours, Ours) else NOT_RUN

    @property
    def ratio(self) -> float | None:
        """Our figure divided by the printed one; None if either is missing or a text, or if the printed one is 0."""
        return _compute_ratio(self.value, self.published)

    @property
    def is_comparable(self) -> bool:
        """True if the ratio exists and our figure is of a task of the paper's size."""
        return self.ratio is not None and isinstance(self.ours, Ours) and not self.ours.cut

    @property
    def simulated_ratio(self) -> float | None:
        """The simulated figure divided by the printed one; None if either is missing or a text, or if the printed one is 0."""
        return _compute_ratio(self.simulated, self.published)

    @property
    def remarks(self) -> str:
        """All remarks of this cell joined by semicolons: whether the printed figure contradicts the paper's formula, our note or the reason
        why our figure is missing, whether the tasks differ in size, and the cell's note; "" if there are none.
        """
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
        """The command line that would produce a missing figure; "" if the figure is there."""
        return self.ours.command if isinstance(self.ours, NoFigure) else ""


def make_measured(value: Value, note: str = "", *, cut: bool = False) -> Ours:
    """Return `value` as a figure measured on this machine. `note`: remark shown beside it; `cut`: whether the task was smaller than the
    paper's.
    """
    return Ours(value=value, note=note, cut=cut)


def make_projected(value: Value, note: str) -> Ours:
    """Return `value` as a figure that was derived from measured ones. `note`: how it was derived."""
    return Ours(value=value, label="projected", note=note)


def derive(make: Callable[..., Derived], *known: Any) -> Derived | NoFigure:
    """Return `make(*known)`. If any of `known` (runs or figures) is a NoFigure, return the first of these instead, without calling
    `make`.
    """
    return next((each for each in known if isinstance(each, NoFigure)), None) or make(*known)


def list_points(place: Place, ours: Ours | NoFigure) -> list[tuple[Place, float]]:
    """Return our figure as a list with one point of a drawing, (place, value); an empty list if the figure is missing. `place`: x position
    in a curve, or label of a bar. Raises ValueError if the figure is a text that is no number.
    """
    return [] if isinstance(ours, NoFigure) else [(place, float(ours.value))]


def _compute_ratio(mine: Value | None, printed: Value | None) -> float | None:
    """Return our figure divided by the printed one; None if either is missing or a text, or if the printed one is 0."""
    if isinstance(mine, str) or isinstance(printed, str) or mine is None or not printed:
        return None
    return mine / printed


def make_printed_cell(
    row: Row, figure: str, unit: Unit, ours: Ours | NoFigure, *, words: str = "", place: int | None = None
) -> TableCell:
    """Return the cell of one printed figure with ours beside it. `figure`: the figure's key in the row; `ours`: our figure, or why there is
    none; `words`: the figure's name on the page, by default its key; `place`: index of the row's column, if the row prints the figure once
    per column.
    """
    listed: Mapping[str, Any] = row.deviates.get(figure, {})
    column = "" if place is None else row.figures["columns"][place]
    return TableCell(
        row=row.row,
        figure=words or (f"{column}, {figure}" if column else figure),
        unit=unit,
        published=row.figures[figure] if place is None else row.figures[figure][place],
        ours=ours,
        formula=listed.get("formula"),
        deviation=listed.get("relative"),
        by=row,
        name=f"{figure}.{column}" if column else figure,
    )


def make_row_cells(
    row: Row,
    units: Mapping[str, Unit],
    ours: Mapping[str, Ours | NoFigure] | NoFigure,
    *,
    place: int | None = None,
) -> list[TableCell]:
    """Return one cell for each printed figure of a row. `units`: unit by the figure's key in the row, in the order of the cells; `ours`:
    our figures, one for each of these keys, or why all are missing; `place`: index of the row's column, if the row prints its figures once
    per column.
    """
    return [
        make_printed_cell(row, figure, unit, ours if isinstance(ours, NoFigure) else ours[figure], place=place)
        for figure, unit in units.items()
    ]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A curve of a drawing. `label`: its name; `points`: (x, y); `dashed`: drawn dashed, because it is not measured."""

    label: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A plot for the page: horizontal bars, as (label, value), if there are any, otherwise curves. `title`, `caption`: its texts; `x`, `y`:
    titles of the axes; `log_x`: use a logarithmic x axis; `percent`: show y, a share, in percent.
    """

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
    """One table or figure of a paper as the page shows it. `name`: name of the part, such as "2025-table-2"; `title`: its heading; `cells`:
    its printed figures beside ours; `drawings`: plots below them; `notes`: sentences about it; `measurements`: the runs that it needs.
    """

    name: str
    title: str
    cells: Sequence[TableCell] = ()
    drawings: Sequence[Drawing] = ()
    notes: Sequence[str] = ()
    measurements: Sequence[Measurement] = field(default=())


# --- findings ---------------------------------------------------------------------------------------------------------
# Whether the papers' findings are reproduced: in direction (what is larger there is larger here) and in size.

DIRECTION_THRESHOLD = 1.05  # printed figures that differ by less have no direction
AGREEMENT_THRESHOLD = 0.9  # share of pairs from which the direction counts as reproduced
SIZE_FACTOR = 2.0  # a size counts as reproduced within this factor
VERDICTS = ("direction and size", "direction alone", "size alone", "neither")


@dataclass(frozen=True)
class Reproduction:
    """The comparison of one column of printed figures with ours. `section`, `figure`: names of the table and of the column; `pairs`: number
    of pairs of rows whose printed figures differ by at least DIRECTION_THRESHOLD; `agreeing`: how many of these pairs differ in the same
    direction in our figures; `ratio`: median ratio of our figures to the printed ones, of tasks of equal size, None if there are none.
    """

    section: str
    figure: str
    agreeing: int
    pairs: int
    ratio: float | None

    @property
    def verdict(self) -> str:
        """The verdict, one of VERDICTS. If the column allows to judge only direction or only size, the verdict depends on
        that one alone.
        """
        direction = self.agreeing >= AGREEMENT_THRESHOLD * self.pairs
        size = self.ratio is not None and 1 / SIZE_FACTOR <= self.ratio <= SIZE_FACTOR
        if not self.pairs or self.ratio is None:  # only one of the two is known
            return VERDICTS[3] if not (direction if self.pairs else size) else VERDICTS[1 if self.pairs else 2]
        return VERDICTS[(0 if size else 1) if direction else (2 if size else 3)]

    @property
    def row(self) -> list[str]:
        """The table row of this comparison, in the order of FINDINGS_HEAD."""
        pairs = f"{self.agreeing} of {self.pairs} pairs" if self.pairs else display.DASH
        size = display.DASH if self.ratio is None else f"{self.ratio:.2g}x"
        return [self.section, self.figure, self.verdict, pairs, size]


FINDINGS_HEAD = ("table or figure", "figure", "reproduced", "direction", "ours by printed")


def judge_findings(sections: Sequence[Section]) -> Iterator[Reproduction]:
    """Yield the comparison of every column, that is all cells of a section with equal figure and unit, that has both printed figures and
    ours. Figures simulated at the published size are preferred to measured ones. Columns with neither pairs of different printed figures
    nor a ratio are left out.
    """
    for section in sections:
        columns: dict[tuple[str, str], list[TableCell]] = {}
        for cell in section.cells:
            if _our_number(cell) is not None and isinstance(cell.published, float | int):
                columns.setdefault((cell.figure, cell.unit), []).append(cell)
        for (figure, _), cells in columns.items():
            values = [(float(cell.published or 0), _our_number(cell) or 0.0) for cell in cells]
            pairs = [
                (a, b) for a, b in combinations(values, 2) if max(a[0], b[0]) > DIRECTION_THRESHOLD * min(a[0], b[0])
            ]
            agreeing = sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in pairs)
            ratios = [ratio for cell in cells if (ratio := _compared_ratio(cell))]
            if pairs or ratios:
                yield Reproduction(section.name, figure, agreeing, len(pairs), median(ratios) if ratios else None)


def _our_number(cell: TableCell) -> float | None:
    """Return our figure of a cell as a number: the simulated one if there is one, otherwise the measured or projected one; None if it is a
    text or missing.
    """
    value = cell.ours.value if cell.simulated is None and isinstance(cell.ours, Ours) else cell.simulated
    return None if isinstance(value, str) else value


def _compared_ratio(cell: TableCell) -> float | None:
    """Return the ratio by which the size of a finding is judged: the simulated figure's if there is one, otherwise that of our figure if
    its task had the paper's size; else None.
    """
    return cell.simulated_ratio if cell.simulated is not None else cell.ratio if cell.is_comparable else None


def summarize_findings(found: Sequence[Reproduction]) -> str:
    """Return a sentence with the number of columns of each verdict, such as `of 40 columns of printed figures 20 in direction and size,
    ...`.
    """
    counts = Counter(each.verdict for each in found)
    told = ", ".join(f"{counts[word]} in {word}" for word in VERDICTS)
    limits = f"direction: {AGREEMENT_THRESHOLD:.0%} of the pairs; size: within {SIZE_FACTOR:g}x"
    return f"of {len(found)} columns of printed figures {told} ({limits})"


# --- projection -------------------------------------------------------------------------------------------------------
# Simulated figures beside printed ones: the papers' deployment at the published size, always projected.

HELD_OUT = "simulator: has not seen this row"
FITTED = "simulator: fitted to this row"


def add_projections(section: Section) -> Section:
    """Return the section with the simulator's figures in its cells, each with a remark whether the simulator was fitted to that row. Cells
    that the simulator does not predict stay unchanged. The first call simulates all papers' rows.
    """
    cells = []
    for cell in section.cells:
        known = None if cell.by is None else _load_simulated().get((cell.by.source, cell.name))
        if known is not None:
            remark = HELD_OUT if known.held_out else FITTED
            cell = replace(cell, simulated=known.projected, note="; ".join(filter(None, (cell.note, remark))))
        cells.append(cell)
    return replace(section, cells=cells)


@cache
def _load_simulated() -> Mapping[tuple[str, str], ComparedFigure]:
    """Return the simulator's figures beside the printed ones, by (source of the row, name of the figure). They are simulated at the first
    call and kept for the process.
    """
    return {(each.row.source, each.figure): each for each in compare_figures()}


# --- part -------------------------------------------------------------------------------------------------------------
# A table or figure: which runs it needs, and how it is filled from existing runs.


@dataclass(frozen=True, kw_only=True)
class FoundRuns:
    """The runs from which one table or figure, `part`, is filled. `scale`: size of the runs; `runs`: finished runs by key of their
    measurement; `whole`: keys of runs of the published size; `missing`: by key, why there is no run; `has_gpu`: whether this machine has a
    GPU.
    """

    part: "Part"
    scale: Scale
    runs: Mapping[str, RunFolder]
    whole: frozenset[str] = frozenset()  # keys of runs that were kept at the published size
    missing: Mapping[str, str] = field(default_factory=dict)  # reason by key
    has_gpu: bool = False

    def run(self, measurement: Measurement) -> RunFolder | NoFigure:
        """Return the run of a measurement; if it is missing, a NoFigure with the reason and the command that makes it at the published
        size.
        """
        run = self.runs.get(measurement.key)
        if run is not None:
            return run
        reason = self.missing.get(measurement.key, f"left out at scale {self.scale.share:g}")
        return NoFigure(reason=reason, command=measurement.command(Scale(1)))

    def derive(self, measurement: Measurement, make: Callable[[RunFolder], Derived]) -> Derived | NoFigure:
        """Return `make` of the run of a measurement; a NoFigure if the run is missing. `make`: function that reads a figure from a run."""
        return derive(make, self.run(measurement))

    def is_cut(self, measurement: Measurement) -> bool:
        """Return whether the run of a measurement is smaller than the published one. It need not exist."""
        return not (self.scale.whole or measurement.key in self.whole)

    def describe_size(self, measurement: Measurement) -> str:
        """Return the size of a measurement's run in words: "at the published size", or the scale, such as "cut down to 0.02"."""
        return f"cut down to {self.scale.share:g}" if self.is_cut(measurement) else "at the published size"

    def section(
        self, cells: Sequence[TableCell], *, drawings: Sequence[Drawing] = (), notes: Sequence[str] = ()
    ) -> Section:
        """Build the part's section from its cells. `drawings`: plots below the table; `notes`: sentences below the table."""
        return Section(
            name=self.part.name,
            title=self.part.title,
            cells=cells,
            drawings=drawings,
            notes=notes,
            measurements=self.part.measurements(self.scale),
        )


def _fill_without_cells(found: FoundRuns) -> Section:
    """Return the section of a figure that prints no numbers: no cells, only a note."""
    return found.section((), notes=["A drawing of boxes and arrows: there is nothing to measure."])


@dataclass(frozen=True)
class Part:
    """A table or figure of the papers. `name`: name on the command line; `title`: heading on the page; `measurements`: function that
    returns the runs it needs at a scale; `fill`: function that builds its section from the runs that exist, by default one without cells.
    """

    name: str
    title: str
    measurements: Callable[[Scale], Sequence[Measurement]] = lambda scale: ()
    fill: Callable[[FoundRuns], Section] = _fill_without_cells
