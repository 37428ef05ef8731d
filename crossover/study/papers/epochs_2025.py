"""Tables 1 and 2 of the 2025 paper: what an epoch consists of and costs."""

from collections.abc import Iterator, Mapping, Sequence

from crossover.costs import paper_cost
from crossover.reports.folder import RunFolder
from crossover.reports.published import Row
from crossover.study.papers import figures, runs_2025
from crossover.study.papers.cells import NoFigure, Ours, Section, TableCell, Unit, measured, printed, projected, where
from crossover.study.papers.part import Found
from crossover.study.papers.runs_2025 import BATCH, MINIBATCHES, WORKERS

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
OF_FUNCTIONS: Mapping[str, Unit] = {
    "function_s": "s",
    "memory_mb": "MB",
    "function_usd": "USD",
    "total_s": "s",
    "worker_usd": "USD",
    "total_usd": "USD",
}
OF_GPUS: Mapping[str, Unit] = {"epoch_s": "s", "worker_usd": "USD", "total_usd": "USD"}


def table_1(found: Found) -> Section:
    cells = []
    for row in runs_2025.rows("Table 1"):
        gpu = row.figures["architecture"] == "gpu"
        run = found.run(runs_2025.mobilenet_epoch(row.figures["architecture"]))
        for figure, stages in (GPU_STAGES if gpu else STAGES).items():
            ours = where(run, lambda run, stages=stages: measured(_spent(run, stages)))  # type: ignore[misc]
            cells.append(printed(row, figure, "text", ours))
    return found.section(cells, notes=["Ours: the stages of a run, with their mean seconds; MobileNet."])


def _spent(run: RunFolder, stages: Sequence[str]) -> str:
    parts = [f"{name} {found['wall_s']:.3g} s" for name in stages if (found := figures.stage(run, name))["count"]]
    return ", ".join(parts) or "no stage of its own"


def table_2(found: Found) -> Section:
    cells: list[TableCell] = []
    for row in runs_2025.rows("Table 2"):
        run = found.run(runs_2025.epoch(row))
        gpu = row.figures["architecture"] == "gpu"
        if isinstance(run, NoFigure):
            cells += [printed(row, figure, unit, run) for figure, unit in (OF_GPUS if gpu else OF_FUNCTIONS).items()]
        else:
            cells += _gpu_row(row, run) if gpu else _function_row(row, run)
    return found.section(
        cells,
        notes=[
            "Our cost is the paper's formula over our seconds and peak memory; in full, with database, broker, storage and "
            "orchestration, it stands in each run's report.",
            "A function's seconds: computing, exchange and update of one minibatch, waits for peers that share this machine's "
            "cores included, evaluation left out; in SPIRT, the function that computes one gradient.",
        ],
    )


def _function_row(row: Row, run: RunFolder) -> Iterator[TableCell]:
    size, peak_mb, count = figures.batch_size(run), figures.peak_mb(run), row.figures["functions_per_worker"]
    first = _function(run, size)
    seconds = float(first.value)
    usd = paper_cost.lambda_usd(seconds, memory_mb=peak_mb)
    of_fewer = "" if size == BATCH else f", {size} images"
    values: Mapping[str, Ours] = {
        "function_s": first,
        "memory_mb": measured(peak_mb, f"peak of the process{of_fewer}"),
        "function_usd": projected(usd, "seconds x GB x 0.0000166667"),
        "total_s": projected(count * seconds, f"{count} x"),
        "worker_usd": projected(count * usd, f"{count} x"),
        "total_usd": projected(count * WORKERS * usd, f"{count} x {WORKERS} x"),
    }
    for figure, unit in OF_FUNCTIONS.items():
        yield printed(row, figure, unit, values[figure])


def _function(run: RunFolder, size: int) -> Ours:
    """Seconds of a function of 512 images; of fewer, computing is taken as proportional to them."""
    seconds = figures.function_s(run)
    if size == BATCH:
        return measured(seconds)
    more = figures.stage(run, "compute")["wall_s"] * (BATCH / size - 1)
    note = f"measured {seconds:.3g} s with {size} images; computing taken {BATCH / size:.3g}-fold"
    return projected(seconds + more, note)


def _gpu_row(row: Row, run: RunFolder) -> Iterator[TableCell]:
    share = figures.peer_minibatches(run) / MINIBATCHES
    seconds = float(run.result["epochs"][0]["wall_s"]) / share
    whole = measured(seconds, "on this machine's GPU")
    cut = projected(seconds, f"{share:.3g} of an epoch on this machine's GPU, taken {1 / share:.3g}-fold")
    values = {
        "epoch_s": whole if share == 1 else cut,
        "worker_usd": projected(paper_cost.gpu_usd(seconds), "at the paper's $0.526 an hour"),
        "total_usd": projected(paper_cost.gpu_usd(seconds, instances=WORKERS), f"{WORKERS} instances"),
    }
    for figure, unit in OF_GPUS.items():
        yield printed(row, figure, unit, values[figure])
