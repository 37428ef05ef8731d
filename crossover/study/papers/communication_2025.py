"""Section 4.2 and figures 2 and 3 of the 2025 paper: what communication costs, and what less of it is worth."""

from collections.abc import Iterator

from crossover.reports import published
from crossover.reports.folder import RunFolder
from crossover.reports.published import Row
from crossover.study.papers import figures, runs_2025
from crossover.study.papers.cells import Curve, Drawing, NoFigure, Ours, Section, TableCell, measured, printed, where
from crossover.study.papers.part import Found

SHARED_CORES = "waits for peers that share this machine's cores included"
SAME_ROUNDS = "of the same rounds; the paper's until convergence"


def section_4_2(found: Found) -> Section:
    cells: list[TableCell] = []
    for row in runs_2025.rows("Section 4.2"):
        if "stage" in row.figures:
            cells += _in_database_row(row, found)
        elif "with_filter_s" in row.figures:
            cells += _filter_row(row, found)
        else:
            words = f"communication, {row.figures.get('workers', '4 to 16')} workers"
            cells.append(printed(row, "communication_s", "s", _communication(row, found), words=words))
    notes = ["Averaging: of as many gradients as the cut leaves of 24; the ratio of the two ways is what to compare."]
    return found.section(cells, notes=notes)


def _in_database_row(row: Row, found: Found) -> Iterator[TableCell]:
    stage = "average" if row.figures["stage"] == "averaging" else "update"
    values: list[float] = []
    for figure, compute in (("fetch_s", "fetch"), ("in_database_s", "in_database")):
        run = found.run(runs_2025.in_database(compute))
        yield printed(row, figure, "s", where(run, lambda run: _stage(run, stage)))
        values += [] if isinstance(run, NoFigure) else [figures.stage(run, stage)["wall_s"]]
    if len(values) == 2 and values[0]:
        ratio = row.figures["in_database_s"] / row.figures["fetch_s"]
        ours = measured(values[1] / values[0])
        yield TableCell(row=row.row, figure="in_database / fetch", unit="x", published=ratio, ours=ours)


def _stage(run: RunFolder, stage: str) -> Ours:
    note = f"{figures.peer_minibatches(run)} gradients a worker" if stage == "average" else ""
    return measured(figures.stage(run, stage)["wall_s"], note)


def _filter_row(row: Row, found: Found) -> Iterator[TableCell]:
    without, filtering = (found.run(runs_2025.filtered(threshold)) for threshold in runs_2025.FILTER_THRESHOLDS)
    for figure, run in (("without_filter_s", without), ("with_filter_s", filtering)):
        yield printed(
            row, figure, "s", where(run, lambda run: measured(run.result["duration_s"], SAME_ROUNDS, cut=True))
        )
    faster = without if isinstance(without, NoFigure) else where(filtering, lambda run: _speedup(without, run))
    yield printed(row, "speedup", "x", faster)


def _speedup(without: RunFolder, filtering: RunFolder) -> Ours:
    return measured(without.result["duration_s"] / filtering.result["duration_s"], SAME_ROUNDS, cut=True)


def _communication(row: Row, found: Found) -> Ours | NoFigure:
    """The slowest of the numbers of workers, or that of the row's own."""
    f = row.figures
    counts = [f["workers"]] if "workers" in f else runs_2025.worker_counts(found.scale, f["model"])
    runs = {n: found.run(runs_2025.exchange(f["architecture"], f["model"], n)) for n in counts}
    seconds = {n: _communication_s(run) for n, run in runs.items() if not isinstance(run, NoFigure)}
    if not seconds:
        return where(runs[counts[0]], lambda run: measured(0.0))  # why it is missing
    slowest = max(seconds, key=lambda n: seconds[n])
    return measured(seconds[slowest], f"a round with {slowest} workers, {SHARED_CORES}")


def _communication_s(run: RunFolder) -> float:
    return figures.per_round_s(run, "store", "aggregate", "synchronise")


def figure_2(found: Found) -> Section:
    cells, drawn = [], []
    for model, words in (("mobilenet", "MobileNet"), ("resnet50", "ResNet-50")):
        curves: list[Curve] = []
        for architecture, name in (("all_reduce", "AllReduce"), ("scatter_reduce", "ScatterReduce")):
            points = []
            for workers in runs_2025.worker_counts(found.scale, model):
                run = found.run(runs_2025.exchange(architecture, model, workers))
                ours = where(run, lambda run: measured(_communication_s(run), SHARED_CORES))
                points += [(float(workers), float(ours.value))] if isinstance(ours, Ours) else []
                row, figure = f"{name} / {words}", f"{workers} workers"
                cells.append(TableCell(row=row, figure=figure, unit="s", published=None, ours=ours))
            curves.append(Curve(label=name, points=points))
            curves.append(Curve(label=f"{name}, printed", points=_printed_points(architecture, model), dashed=True))
        title = f"2025, figure 2: communication, {words}"
        drawn.append(Drawing(title=title, x="workers", y="seconds", curves=curves))
    note = (
        "The figure prints no numbers: its points here are the text's. Its caption says ResNet-18, the text ResNet-50."
    )
    return found.section(cells, drawings=drawn, notes=[note])


def _printed_points(architecture: str, model: str) -> list[tuple[float, float]]:
    rows = published.rows(paper=runs_2025.PAPER, table="Section 4.2", architecture=architecture, model=model)
    printed = [row.figures for row in rows if "communication_s" in row.figures]
    return [(float(f.get("workers", 16)), f["communication_s"]) for f in printed]


def figure_3(found: Found) -> Section:
    cells, bars = [], []
    for threshold in runs_2025.FILTER_THRESHOLDS:
        run = found.run(runs_2025.filtered(threshold))
        row = f"threshold {threshold:g}" if threshold else "without the filter"
        moved = where(run, lambda run: measured(figures.moved_bytes(run, "tensor_store") / 1e6, "shared database"))
        spent = where(
            run, lambda run: measured(figures.per_round_s(run, "store", "synchronise", "filter"), SHARED_CORES)
        )
        bars += [(row, float(moved.value))] if isinstance(moved, Ours) else []
        cells.append(TableCell(row=row, figure="moved", unit="MB", published=None, ours=moved))
        cells.append(TableCell(row=row, figure="communication of a round", unit="s", published=None, ours=spent))
    drawing = Drawing(title="2025, figure 3: bytes through the database", x="MB", bars=bars)
    notes = ["The figure prints no numbers; what the text says of it stands in section 4.2."]
    return found.section(cells, drawings=[drawing] if bars else [], notes=notes)
