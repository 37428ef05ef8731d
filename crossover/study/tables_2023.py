"""Tables and figures of the 2023 peer-to-peer paper: stages and gradients."""

from collections.abc import Mapping
from functools import partial

from crossover.reports import bill
from crossover.reports.folder import RunFolder
from crossover.reports.published import Row
from crossover.study import paper_cells, runs_2023
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
from crossover.study.paper_runs import Scale
from crossover.study.runs_2023 import BATCH_SIZES, MEASURED_SIZE, MNIST_IMAGES, PEER_COUNTS, PEERS, STAGES

# --- stages 2023 ------------------------------------------------------------------------------------------------------

NO_NUMBERS = "The figure prints no numbers"
WAITS = "waits for slower peers included"
MODELS = {"mobilenet_v3_small": "MobileNet V3 Small", "vgg11": "VGG-11"}
FIGURE_4_STAGES = {"computing": STAGES[:1], "communication": STAGES[1:3]}
EXCHANGE_UNITS: Mapping[str, Unit] = {"send": "s", "receive": "s", "moved": "MB"}
UNITS: Mapping[str, Unit] = {"wall_s": "s", "cpu_percent": "%", "memory_mb": "MB"}


def fill_table_1(found: FoundRuns) -> Section:
    """Build the section of Table I: seconds, CPU and memory of each stage of a peer."""
    cells: list[TableCell] = []
    for row in runs_2023.load_rows("Table I"):
        run = found.run(runs_2023.make_stages_run(row, found.scale))
        for place in range(len(STAGES)):
            cells += make_row_cells(row, UNITS, derive(_measure_stage, run, row, place), place=place)
    notes = [
        "Computing is per batch of 512. Ours: one thread a peer, on this machine; the papers' t2 instances have two processors.",
        "Memory of ours is the process's while in the stage.",
    ]
    return found.section(cells, notes=notes)


def _measure_stage(run: RunFolder, row: Row, place: int) -> Mapping[str, Ours] | NoFigure:
    """Return our figures of one stage of a row of Table I, by the keys of UNITS; NoFigure for the stage "receive" if the run had only one
    peer. `place`: index of the stage in STAGES.
    """
    column = row.figures["columns"][place]
    if column == "receive" and paper_cells.workers(run) == 1:
        command = runs_2023.make_stages_run(row, Scale(1)).command(Scale(1))
        reason = "one peer alone was run, which receives nothing: four of this model want 20 GB"
        return NoFigure(reason=reason, command=command)
    mine, note = paper_cells.stage(run, STAGES[place]), _note_fewer_peers(run)
    seconds = make_measured(mine["wall_s"], note)
    return {
        "wall_s": _scale_to_512(mine["wall_s"] / paper_cells.peer_minibatches(run), run)
        if column == "compute"
        else seconds,
        "cpu_percent": make_measured(100 * mine["cpu"], note),
        "memory_mb": make_measured(mine["max_rss_mb"], note),
    }


def _scale_to_512(seconds: float, run: RunFolder) -> Ours:
    """Return the seconds of a batch of 512 images as our figure: measured, or projected in proportion if the run's batches are smaller.
    `seconds`: of a batch of the run.
    """
    size = paper_cells.batch_size(run)
    if size == 512:
        return make_measured(seconds, _note_fewer_peers(run))
    return make_projected(
        seconds * 512 / size, f"measured {seconds:.3g} s with {size} images, taken {512 / size:g}-fold"
    )


def _note_fewer_peers(run: RunFolder) -> str:
    """Return a remark if the run had another number of peers than the paper; otherwise ""."""
    count = paper_cells.workers(run)
    return "" if count == PEERS else f"{count} peers instead of {PEERS}"


def fill_figure_4(found: FoundRuns) -> Section:
    """Build the section of figure 4: seconds of computing and of communication by number of peers."""
    cells, drawn = [], []
    for model, words in MODELS.items():
        curves: dict[str, list[tuple[float, float]]] = {name: [] for name in FIGURE_4_STAGES}
        for peers in runs_2023.PEER_COUNTS:
            wanted = runs_2023.make_peers_run(model, peers)
            note = f"an epoch of a peer, {found.describe_size(wanted)}; {WAITS}"
            for name, stages in FIGURE_4_STAGES.items():
                ours = found.derive(wanted, partial(_sum_stages, stages=stages, note=note))
                cells.append(TableCell(row=f"{words}, {peers} peers", figure=name, unit="s", ours=ours))
                curves[name] += list_points(float(peers), ours)
        if curves["computing"]:
            lines = [Curve(label=name, points=points) for name, points in curves.items()]
            title = f"2023, figure 4: computing and communication, {words}"
            drawn.append(Drawing(title=title, x="peers", y="seconds", curves=lines))
    notes = [f"{NO_NUMBERS}: computing falls with more peers, communication rises."]
    return found.section(cells, drawings=drawn, notes=notes)


def _sum_stages(run: RunFolder, stages: tuple[str, ...], note: str) -> Ours:
    """Return the sum of the mean seconds of the stages called `stages` as our measured figure. `note`: remark shown beside it."""
    return make_measured(sum(paper_cells.stage(run, stage)["wall_s"] for stage in stages), note)


def fill_figure_5(found: FoundRuns) -> Section:
    """Build the section of figure 5: seconds of sending and receiving, and MB moved, with and without compression."""
    cells, bars = [], []
    for size in runs_2023.BATCH_SIZES:
        for kind, words in zip(runs_2023.COMPRESSIONS, ("without compression", "QSGD"), strict=True):
            run = found.run(runs_2023.make_compression_run(kind, size))
            for figure, unit in EXCHANGE_UNITS.items():
                ours = derive(_measure_exchange, run, figure)
                cells.append(TableCell(row=f"{words}, batch {size}", figure=figure, unit=unit, ours=ours))
                bars += list_points(f"{figure}, {words}, {size}", ours) if unit == "s" else []
    notes = [f"{NO_NUMBERS}: compression shortens sending and receiving at every batch size."]
    drawing = Drawing(title="2023, figure 5: sending and receiving, by batch size", x="seconds", bars=bars)
    return found.section(cells, drawings=[drawing] if bars else [], notes=notes)


def _measure_exchange(run: RunFolder, figure: str) -> Ours:
    """Return our figure of the exchange between peers. `figure`: "send" or "receive" (mean seconds of the stage), or "moved" (MB of all
    peers).
    """
    model = MODELS[run.result["experiment"]["training"]["model"]]
    if figure == "moved":
        return make_measured(paper_cells.moved_bytes(run, "bus") / 1e6, f"{model}, through the broker, all peers")
    return make_measured(paper_cells.stage(run, figure)["wall_s"], f"{model}; {WAITS}")


def fill_figure_6(found: FoundRuns) -> Section:
    """Build the section of figure 6: accuracy over epochs with a barrier and without."""
    cells, curves = [], []
    for mode in runs_2023.MODES:
        measurement = runs_2023.make_barrier_run(mode)
        run = found.run(measurement)
        ours = derive(find_best_accuracy, run, found.describe_size(measurement), found.is_cut(measurement))
        printed = 0.843 if mode == "synchronous" else None
        cells.append(TableCell(row=mode, figure="accuracy", unit="share", published=printed, ours=ours))
        curves += [] if isinstance(run, NoFigure) else [Curve(label=mode, points=paper_cells.curve(run, "epoch"))]
    drawing = Drawing(
        title="2023, figure 6: accuracy against epochs, MobileNet V3 Small",
        x="epoch",
        y="validation accuracy",
        curves=curves,
        percent=True,
    )
    notes = ["Of the figure the text prints the end alone: 84.3 % after about 128 epochs."]
    return found.section(cells, drawings=[drawing] if curves else [], notes=notes)


def find_best_accuracy(run: RunFolder, size: str, cut: bool) -> Ours:
    """Return the best validation accuracy of a run as our measured figure, 0 if no epoch has one. `size`: size of the run in words; `cut`:
    whether it is smaller than the paper's.
    """
    note = f"the best of {paper_cells.epochs(run)} epochs on CIFAR-10; {size}"
    return make_measured(paper_cells.best_metric(run) or 0.0, note, cut=cut)


# --- gradients 2023 ---------------------------------------------------------------------------------------------------
# Tables II and III, figure 3 and the text of the 2023 paper: gradients in functions and on the instance.

BOTH = ("with functions", "on the instance")


def _mean_batch_s(run: RunFolder) -> float:
    """Return the mean seconds of one batch in a run on the instance, where one stage computes all batches of an epoch."""
    return paper_cells.stage(run, "compute gradients")["wall_s"] / paper_cells.peer_minibatches(run)


def instance_batch_s(found: FoundRuns, size: int) -> Ours | NoFigure:
    """Return the seconds of one batch of `size` images on the instance as our figure: measured, or projected in proportion to the images
    from batches of MEASURED_SIZE; NoFigure if neither size was run.
    """
    run = found.run(runs_2023.make_gradients_run("p2p_instance", size))
    if not isinstance(run, NoFigure):
        return make_measured(_mean_batch_s(run), f"mean of {paper_cells.peer_minibatches(run)} batches")
    note = f"in proportion to measured batches of {MEASURED_SIZE}"
    known = runs_2023.make_gradients_run("p2p_instance", MEASURED_SIZE)
    return found.derive(known, lambda run: make_projected(_mean_batch_s(run) * size / MEASURED_SIZE, note))


def functions_s(found: FoundRuns, size: int) -> Ours | NoFigure:
    """Return, as our figure, the seconds until functions have computed all batches at the same time. These are the seconds of one function,
    including its transfer of model and gradient; projected if batches of `size` images were not run.
    """
    run = found.run(runs_2023.make_gradients_run("p2p_serverless", size))
    if not isinstance(run, NoFigure):
        return make_measured(paper_cells.function_s(run), "one function: side by side, all take about as long")
    known, batch_s = (
        found.run(runs_2023.make_gradients_run("p2p_serverless", MEASURED_SIZE)),
        instance_batch_s(found, size),
    )
    return derive(_project_function_s, known, run if isinstance(batch_s, NoFigure) else batch_s)


def _project_function_s(known: RunFolder, batch_s: Ours) -> Ours:
    """Return the projected seconds of one function: a batch on the instance (`batch_s`) plus the function's seconds outside of computing in
    the run `known`.
    """
    around_s = paper_cells.function_s(known) - paper_cells.stage(known, "compute")["wall_s"]
    note = f"a batch as on the instance, and {around_s:.3g} s that a function of {MEASURED_SIZE} images takes around it"
    return make_projected(around_s + float(batch_s.value), note)


def fill_table_2(found: FoundRuns) -> Section:
    """Build the section of Table II: seconds and dollars of gradients computed in functions."""
    cells: list[TableCell] = []
    for row in runs_2023.load_rows("Table II"):
        seconds = functions_s(found, row.figures["batch_size"])
        ours = {
            "compute_s": seconds,
            "lambda_usd_per_s": make_projected(_lambda_usd_per_s(row), "the formula: MB / 1,024 x 0.0000133334"),
            "peer_usd": derive(_serverless_usd, seconds, row),
        }
        cells += make_row_cells(row, {"compute_s": "s", "lambda_usd_per_s": "USD/s", "peer_usd": "USD"}, ours)
    return found.section(cells)


def _lambda_usd_per_s(row: Row) -> float:
    """Return the dollars per second of the row's Lambda function, by the paper's formula."""
    return bill.lambda_usd_per_s(row.figures["memory_mb"])


def _serverless_usd(seconds: Ours, row: Row) -> Ours:
    """Return the projected dollars of one peer with functions, by the paper's equation 1. `seconds`: of computing all its batches."""
    f = row.figures
    usd = bill.peer_serverless_usd(
        float(seconds.value),
        batches=f["batches"],
        lambda_usd_per_s=_lambda_usd_per_s(row),
        ec2_usd_per_s=f["ec2_usd_per_s"],
    )
    return make_projected(usd, "equation 1 over our seconds, with the paper's memory and prices")


def fill_table_3(found: FoundRuns) -> Section:
    """Build the section of Table III: seconds and dollars of gradients computed on the instance."""
    cells: list[TableCell] = []
    batches = {row.figures["batch_size"]: row.figures["batches"] for row in runs_2023.load_rows("Table II")}
    for row in runs_2023.load_rows("Table III"):
        size = row.figures["batch_size"]
        ours = derive(_project_instance, instance_batch_s(found, size), row, batches[size])
        cells += make_row_cells(row, {"compute_s": "s", "peer_usd": "USD"}, ours)
    return found.section(cells)


def _project_instance(batch_s: Ours, row: Row, count: int) -> Mapping[str, Ours]:
    """Return a peer's projected figures of Table III on the instance: `compute_s`, seconds of all its batches, and `peer_usd`, dollars by
    equation 2. `batch_s`: seconds of one batch; `count`: number of batches. Called through `derive`, so `batch_s` is no NoFigure.
    """
    seconds = count * float(batch_s.value)
    note = f"{count} x {float(batch_s.value):.3g} s of a batch, {batch_s.label}: {batch_s.note}"
    usd = bill.peer_instance_usd(seconds, ec2_usd_per_s=row.figures["ec2_usd_per_s"])
    return {
        "compute_s": make_projected(seconds, note),
        "peer_usd": make_projected(usd, "equation 2 over our seconds"),
    }


def _both_s(found: FoundRuns, size: int, *, peers: int = PEERS) -> tuple[float, float] | NoFigure:
    """Return (seconds with functions, all batches at once; seconds on the instance, one batch after another) in which one peer's gradients
    of an epoch are computed; NoFigure if either is missing. `size`: images in a batch; `peers`: number of peers that share the data.
    """
    batches = -(-MNIST_IMAGES // (peers * size))
    return derive(
        lambda functions, batch: (float(functions.value), float(batch.value) * batches),
        functions_s(found, size),
        instance_batch_s(found, size),
    )


def fill_figure_3(found: FoundRuns) -> Section:
    """Build the section of figure 3: seconds of computing gradients with and without functions."""
    cells, drawn = [], []
    for peers in PEER_COUNTS:
        points: list[list[tuple[float, float]]] = [[], []]
        for size in reversed(BATCH_SIZES):
            both = _both_s(found, size, peers=peers)
            for place, name in enumerate(BOTH):
                ours = derive(_project_gradients_s, both, place)
                row, printed = f"{peers} peers, batch {size}", _find_printed_s(peers, size, place)
                cells.append(TableCell(row=row, figure=name, unit="s", published=printed, ours=ours))
                points[place] += list_points(float(size), ours)
        curves = [Curve(label=name, points=points[place], dashed=True) for place, name in enumerate(BOTH)]
        title = f"2023, figure 3: computing gradients, {peers} peers (projected)"
        drawn.append(Drawing(title=title, x="batch size", y="seconds", curves=curves, log_x=True))
    notes = [f"{NO_NUMBERS}; for {PEERS} peers Tables II and III have them."]
    return found.section(cells, drawings=drawn, notes=notes)


def _project_gradients_s(both: tuple[float, float], place: int) -> Ours:
    """Return the projected seconds of all gradients of an epoch. `both`: result of `_both_s`; `place`: 0 for functions, 1
    for the instance.
    """
    return make_projected(both[place], "from one peer's measured batches")


def _find_printed_s(peers: int, size: int, place: int) -> float | None:
    """Return the seconds that Table II (`place` 0, functions) or Table III (1, the instance) prints for computing all gradients in batches
    of `size` images; None unless `peers` is 4, or if the table has no such batch.
    """
    rows = runs_2023.load_rows("Table II" if place == 0 else "Table III")
    return next(
        (row.figures["compute_s"] for row in rows if peers == PEERS and row.figures["batch_size"] == size), None
    )


def fill_text(found: FoundRuns) -> Section:
    """Build the section of the figures that the paper's text states: accuracy, cost ratio, reduction of the time."""
    cells: list[TableCell] = []
    for row in runs_2023.load_rows("Text"):
        f = row.figures
        if "accuracy" in f:
            wanted = runs_2023.make_barrier_run("synchronous")
            run, size, cut = found.run(wanted), found.describe_size(wanted), found.is_cut(wanted)
            accuracy = derive(find_best_accuracy, run, size, cut)
            epochs = derive(
                lambda run, size, cut: make_measured(float(paper_cells.epochs(run)), size, cut=cut), run, size, cut
            )
            cells += make_row_cells(row, {"accuracy": "share", "epochs": "x"}, {"accuracy": accuracy, "epochs": epochs})
            continue
        both = _both_s(found, f["batch_size"], peers=f.get("workers", PEERS))
        if "cost_ratio" in f:
            cells.append(make_printed_cell(row, "cost_ratio", "x", derive(_compute_cost_ratio, both, row)))
        else:
            less = derive(lambda both: make_projected(1 - both[0] / both[1], "from our seconds"), both)
            cells.append(make_printed_cell(row, "reduction", "share", less))
    return found.section(cells)


def _compute_cost_ratio(both: tuple[float, float], row: Row) -> Ours:
    """Return the projected cost with functions divided by that on the instance. `both`: result of `_both_s`; `row`: gives
    the batch size.
    """
    (functions,) = [r for r in runs_2023.load_rows("Table II") if r.figures["batch_size"] == row.figures["batch_size"]]
    instance_usd = bill.peer_instance_usd(both[1], ec2_usd_per_s=bill.PEER_USD_PER_S["t2.large"])
    ratio = float(_serverless_usd(make_projected(both[0], ""), functions).value) / instance_usd
    return make_projected(ratio, "both by the paper's equations over our seconds")
