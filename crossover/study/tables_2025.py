"""Tables and figures of the 2025 paper: epochs, convergence, communication."""

from collections.abc import Mapping, Sequence
from functools import partial

from crossover.reports import bill, published
from crossover.reports.folder import RunFolder
from crossover.reports.published import Row
from crossover.study import paper_cells, runs_2025
from crossover.study.paper_cells import (
    Curve,
    Drawing,
    FoundRuns,
    NoFigure,
    Ours,
    Section,
    TableCell,
    Unit,
    derive,
    list_points,
    make_measured,
    make_printed_cell,
    make_projected,
    make_row_cells,
)
from crossover.study.runs_2025 import BATCH, MINIBATCHES, WORKERS

# --- communication 2025 -----------------------------------------------------------------------------------------------

SHARED_CORES = "waits for peers that share this machine's cores included"
COMPUTES = ("fetch", "in_database")  # SPIRT's arithmetic, by the fields of config/published.yaml without their unit
FILTER_UNITS: Mapping[str, Unit] = {"without_filter_s": "s", "with_filter_s": "s", "speedup": "x"}
SAME_ROUNDS = "of the same rounds; the paper's until convergence"


def fill_section_4_2(found: FoundRuns) -> Section:
    """Build the section of section 4.2: SPIRT's averaging and update, MLLess's filter, and seconds of communication."""
    cells: list[TableCell] = []
    for row in runs_2025.load_rows("Section 4.2"):
        if "stage" in row.figures:
            cells += _make_averaging_cells(row, found)
        elif "with_filter_s" in row.figures:
            cells += make_row_cells(row, FILTER_UNITS, _measure_filter(found))
        else:
            words = f"communication, {row.figures.get('workers', '4 to 16')} workers"
            seconds = _measure_communication(row, found)
            cells.append(make_printed_cell(row, "communication_s", "s", seconds, words=words))
    notes = ["Averaging: of as many gradients as the cut leaves of 24; the ratio of the two ways is what to compare."]
    return found.section(cells, notes=notes)


def _make_averaging_cells(row: Row, found: FoundRuns) -> list[TableCell]:
    """Return the cells of a row on SPIRT's averaging or update: its seconds in functions that fetch and in the database, and, if both were
    run, their quotient.
    """
    read = partial(_measure_stage, stage="average" if row.figures["stage"] == "averaging" else "update")
    ours = {f"{compute}_s": found.derive(runs_2025.make_averaging_run(compute), read) for compute in COMPUTES}
    cells = make_row_cells(row, dict.fromkeys(ours, "s"), ours)
    fetch, inside = (cell.value for cell in cells)
    if fetch and inside is not None:
        ratio = row.figures["in_database_s"] / row.figures["fetch_s"]
        quotient = make_measured(float(inside) / float(fetch))
        cells.append(TableCell(row=row.row, figure="in_database / fetch", unit="x", published=ratio, ours=quotient))
    return cells


def _measure_stage(run: RunFolder, stage: str) -> Ours:
    """Return the mean seconds of a stage of the run as our measured figure."""
    note = f"{paper_cells.peer_minibatches(run)} gradients a worker" if stage == "average" else ""
    return make_measured(paper_cells.stage(run, stage)["wall_s"], note)


def _measure_filter(found: FoundRuns) -> Mapping[str, Ours | NoFigure]:
    """Return the seconds of a run of MLLess without its filter and with it, and their quotient, by the keys of FILTER_UNITS; NoFigure for
    those whose run is missing.
    """
    measured = partial(make_measured, note=SAME_ROUNDS, cut=True)
    durations = [
        found.derive(runs_2025.make_filter_run(threshold), lambda run: float(run.result["duration_s"]))
        for threshold in runs_2025.FILTER_THRESHOLDS
    ]
    without, filtering = (derive(measured, each) for each in durations)
    speedup = derive(lambda a, b: measured(a / b), *durations)
    return {"without_filter_s": without, "with_filter_s": filtering, "speedup": speedup}


def _measure_communication(row: Row, found: FoundRuns) -> Ours | NoFigure:
    """Return our seconds of communication of one round: for the row's number of workers, or, if the row has none, the highest of all
    numbers of workers that were run. NoFigure if no such run exists.
    """
    f = row.figures
    counts = [f["workers"]] if "workers" in f else runs_2025.list_worker_counts(found.scale, f["model"])
    runs = {n: found.run(runs_2025.make_exchange_run(f["architecture"], f["model"], n)) for n in counts}
    seconds = {n: _communication_s(run) for n, run in runs.items() if not isinstance(run, NoFigure)}
    first = runs[counts[0]]
    if isinstance(first, NoFigure) and not seconds:
        return first
    slowest = max(seconds, key=lambda n: seconds[n])
    return make_measured(seconds[slowest], f"a round with {slowest} workers, {SHARED_CORES}")


def _communication_s(run: RunFolder) -> float:
    """Return the run's mean seconds of communication per worker and round: its stages store, aggregate and synchronise, waits included."""
    return paper_cells.per_round_s(run, "store", "aggregate", "synchronise")


def fill_figure_2(found: FoundRuns) -> Section:
    """Build the section of figure 2: seconds of communication by number of workers."""
    cells, drawn = [], []
    for model, words in (("mobilenet", "MobileNet"), ("resnet50", "ResNet-50")):
        curves: list[Curve] = []
        for architecture, name in (("all_reduce", "AllReduce"), ("scatter_reduce", "ScatterReduce")):
            points = []
            for workers in runs_2025.list_worker_counts(found.scale, model):
                run = runs_2025.make_exchange_run(architecture, model, workers)
                ours = found.derive(run, lambda run: make_measured(_communication_s(run), SHARED_CORES))
                cells.append(TableCell(row=f"{name} / {words}", figure=f"{workers} workers", unit="s", ours=ours))
                points += list_points(float(workers), ours)
            printed = _find_printed_points(architecture, model)
            curves += [Curve(label=name, points=points), Curve(label=f"{name}, printed", points=printed, dashed=True)]
        title = f"2025, figure 2: communication, {words}"
        drawn.append(Drawing(title=title, x="workers", y="seconds", curves=curves))
    note = (
        "The figure prints no numbers: its points here are the text's. Its caption says ResNet-18, the text ResNet-50."
    )
    return found.section(cells, drawings=drawn, notes=[note])


def _find_printed_points(architecture: str, model: str) -> list[tuple[float, float]]:
    """Return the points (workers, seconds of communication) that the paper's text prints for an architecture and a model; 16 workers if the
    text names no number.
    """
    rows = published.rows(paper=runs_2025.PAPER, table="Section 4.2", architecture=architecture, model=model)
    printed = [row.figures for row in rows if "communication_s" in row.figures]
    return [(float(f.get("workers", 16)), f["communication_s"]) for f in printed]


def fill_figure_3(found: FoundRuns) -> Section:
    """Build the section of figure 3: bytes and seconds of communication with and without MLLess's filter."""
    cells, bars = [], []
    for threshold in runs_2025.FILTER_THRESHOLDS:
        run = found.run(runs_2025.make_filter_run(threshold))
        row = f"threshold {threshold:g}" if threshold else "without the filter"
        moved = derive(
            lambda run: make_measured(paper_cells.moved_bytes(run, "tensor_store") / 1e6, "shared database"), run
        )
        spent = derive(
            lambda run: make_measured(paper_cells.per_round_s(run, "store", "synchronise", "filter"), SHARED_CORES), run
        )
        cells.append(TableCell(row=row, figure="moved", unit="MB", ours=moved))
        cells.append(TableCell(row=row, figure="communication of a round", unit="s", ours=spent))
        bars += list_points(row, moved)
    drawing = Drawing(title="2025, figure 3: bytes through the database", x="MB", bars=bars)
    notes = ["The figure prints no numbers; what the text says of it stands in section 4.2."]
    return found.section(cells, drawings=[drawing] if bars else [], notes=notes)


# --- convergence 2025 -------------------------------------------------------------------------------------------------
# Table 3 and figure 4 of the 2025 paper: accuracy, and how long it takes.

CONVERGENCE_UNITS: Mapping[str, Unit] = {"minutes": "min", "accuracy": "share"}
NO_GPU = NoFigure(
    reason="seconds of GPU workers on a CPU say nothing",
    command="crossover run config/gpu-cifar10.yaml --set recipe=fast --on aws",
)


def fill_table_3(found: FoundRuns) -> Section:
    """Build the section of Table 3: minutes until convergence, and accuracy."""
    cells = []
    for row in runs_2025.load_rows("Table 3"):
        on_cpu = row.figures["architecture"] == "gpu" and not found.has_gpu
        wanted = runs_2025.make_convergence_run(row.figures["architecture"])
        read = partial(_measure_convergence, size=found.describe_size(wanted), cut=found.is_cut(wanted))
        ours = found.derive(wanted, read)
        if on_cpu and not isinstance(ours, NoFigure):
            ours = {**ours, "minutes": NO_GPU}
        cells += make_row_cells(row, CONVERGENCE_UNITS, ours)
    notes = [
        "All with recipe: fast. Cut down, an accuracy is that of a cut-down training, and no statement about the paper's."
    ]
    return found.section(cells, notes=notes)


def _measure_convergence(run: RunFolder, size: str, *, cut: bool) -> dict[str, Ours | NoFigure]:
    """Return the minutes of a run and its best accuracy, by the keys of CONVERGENCE_UNITS. `size`: size of the run in words; `cut`: whether
    it is smaller than the paper's.
    """
    epochs = paper_cells.epochs(run)
    return {
        "minutes": make_measured(run.result["duration_s"] / 60, f"to the last of {epochs} epochs; {size}", cut=cut),
        "accuracy": make_measured(paper_cells.best_metric(run) or 0.0, f"the best of {epochs} epochs; {size}", cut=cut),
    }


def fill_figure_4(found: FoundRuns) -> Section:
    """Build the section of figure 4: accuracy against time."""
    cells, curves = [], []
    rows = runs_2025.load_rows("Table 3")
    for row in rows:
        wanted = runs_2025.make_convergence_run(row.figures["architecture"])
        run, note = found.run(wanted), f"of the curve; {found.describe_size(wanted)}"
        epochs = derive(lambda run, note: make_measured(float(paper_cells.epochs(run)), note), run, note)
        cells.append(TableCell(row=row.row, figure="epochs", unit="x", ours=epochs))
        curves += [] if isinstance(run, NoFigure) else [Curve(label=row.row, points=paper_cells.curve(run))]
    for row in rows:
        end = (60 * row.figures["minutes"], row.figures["accuracy"])
        curves.append(Curve(label=f"{row.row}, printed end", points=[end], dashed=True))
    drawing = Drawing(
        title="2025, figure 4: accuracy against time",
        x="seconds",
        y="validation accuracy",
        curves=curves,
        log_x=True,
        percent=True,
    )
    notes = ["The figure prints no numbers; the single points are the ends that Table 3 prints."]
    return found.section(cells, drawings=[drawing], notes=notes)


# --- epochs 2025 ------------------------------------------------------------------------------------------------------
# Tables 1 and 2 of the 2025 paper: stages and cost of an epoch.

STAGES = {  # of our runs, by the row of Table 1 that they belong to
    "fetch": ("fetch",),
    "compute": ("compute", "store", "average", "filter"),
    "synchronise": ("synchronise", "aggregate"),
    "update": ("update",),
}
GPU_STAGES = {
    "fetch": (),
    "compute": ("compute gradients",),
    "synchronise": ("send", "receive"),
    "update": ("model update",),
}
FUNCTION_UNITS: Mapping[str, Unit] = {
    "function_s": "s",
    "memory_mb": "MB",
    "function_usd": "USD",
    "total_s": "s",
    "worker_usd": "USD",
    "total_usd": "USD",
}
GPU_UNITS: Mapping[str, Unit] = {"epoch_s": "s", "worker_usd": "USD", "total_usd": "USD"}


def fill_table_1(found: FoundRuns) -> Section:
    """Build the section of Table 1: which stages an epoch has, with mean seconds of ours."""
    cells = []
    for row in runs_2025.load_rows("Table 1"):
        stages = GPU_STAGES if row.figures["architecture"] == "gpu" else STAGES
        run = found.run(runs_2025.make_mobilenet_run(row.figures["architecture"]))
        ours = {figure: derive(_describe_stages, run, names) for figure, names in stages.items()}
        cells += make_row_cells(row, dict.fromkeys(stages, "text"), ours)
    return found.section(cells, notes=["Ours: the stages of a run, with their mean seconds; MobileNet."])


def _describe_stages(run: RunFolder, stages: Sequence[str]) -> Ours:
    """Return those of the stages called `stages` that the run has, with their mean seconds, as our figure in the form of text; "no stage of
    its own" if it has none.
    """
    parts = [f"{name} {found['wall_s']:.3g} s" for name in stages if (found := paper_cells.stage(run, name))["count"]]
    return make_measured(", ".join(parts) or "no stage of its own")


def fill_table_2(found: FoundRuns) -> Section:
    """Build the section of Table 2: time, memory and cost of an epoch."""
    cells: list[TableCell] = []
    for row in runs_2025.load_rows("Table 2"):
        units, measure = (
            (GPU_UNITS, _measure_gpu) if row.figures["architecture"] == "gpu" else (FUNCTION_UNITS, _measure_functions)
        )
        cells += make_row_cells(row, units, derive(measure, found.run(runs_2025.make_epoch_run(row)), row))
    return found.section(
        cells,
        notes=[
            "Our cost is the paper's formula over our seconds and peak memory; in full, with database, broker, storage and "
            "orchestration, it stands in each run's report.",
            "A function's seconds: computing, exchange and update of one minibatch, waits for peers that share this machine's "
            "cores included, evaluation left out; in SPIRT, the function that computes one gradient.",
        ],
    )


def _measure_functions(run: RunFolder, row: Row) -> Mapping[str, Ours]:
    """Return our figures for a row of Table 2 about an architecture on functions, by the keys of FUNCTION_UNITS: seconds and memory of one
    function, and what follows by the paper's formulas for its number of functions and workers.
    """
    size, peak_mb, count = paper_cells.batch_size(run), paper_cells.peak_mb(run), row.figures["functions_per_worker"]
    first = _measure_function(run, size)
    seconds = float(first.value)
    usd = bill.lambda_usd(seconds, memory_mb=peak_mb)
    of_fewer = "" if size == BATCH else f", {size} images"
    return {
        "function_s": first,
        "memory_mb": make_measured(peak_mb, f"peak of the process{of_fewer}"),
        "function_usd": make_projected(usd, "seconds x GB x 0.0000166667"),
        "total_s": make_projected(count * seconds, f"{count} x"),
        "worker_usd": make_projected(count * usd, f"{count} x"),
        "total_usd": make_projected(count * WORKERS * usd, f"{count} x {WORKERS} x"),
    }


def _measure_function(run: RunFolder, size: int) -> Ours:
    """Return the seconds of one function that processes 512 images, as our figure. If the run's minibatches are smaller (`size` images),
    computing is extrapolated in proportion.
    """
    seconds = paper_cells.function_s(run)
    if size == BATCH:
        return make_measured(seconds)
    more = paper_cells.stage(run, "compute")["wall_s"] * (BATCH / size - 1)
    note = f"measured {seconds:.3g} s with {size} images; computing taken {BATCH / size:.3g}-fold"
    return make_projected(seconds + more, note)


def _measure_gpu(run: RunFolder, row: Row) -> Mapping[str, Ours]:
    """Return our figures for a row of Table 2 about the GPU architecture, by the keys of GPU_UNITS; extrapolated in proportion to a whole
    epoch if the run was cut.
    """
    share = paper_cells.peer_minibatches(run) / MINIBATCHES
    seconds = float(run.result["epochs"][0]["wall_s"]) / share
    whole = make_measured(seconds, "on this machine's GPU")
    cut = make_projected(seconds, f"{share:.3g} of an epoch on this machine's GPU, taken {1 / share:.3g}-fold")
    return {
        "epoch_s": whole if share == 1 else cut,
        "worker_usd": make_projected(bill.gpu_usd(seconds), "at the paper's $0.526 an hour"),
        "total_usd": make_projected(bill.gpu_usd(seconds, instances=WORKERS), f"{WORKERS} instances"),
    }
