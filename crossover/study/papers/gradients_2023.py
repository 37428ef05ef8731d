"""Tables II and III, figure 3 and the text of the 2023 paper: gradients in functions and on the instance."""

from crossover.costs import paper_cost
from crossover.reports.folder import RunFolder
from crossover.reports.published import Row
from crossover.study.papers import figures, runs_2023
from crossover.study.papers.cells import (
    Curve,
    Drawing,
    NoFigure,
    Ours,
    Section,
    TableCell,
    measured,
    printed,
    projected,
)
from crossover.study.papers.part import Found
from crossover.study.papers.runs_2023 import BATCH_SIZES, MEASURED_SIZE, MNIST_IMAGES, PEER_COUNTS, PEERS
from crossover.study.papers.stages_2023 import NO_NUMBERS, best

BOTH = ("with functions", "on the instance")


def _batch_s(run: RunFolder) -> float:
    """Seconds of one batch on the instance: a peer's stage computes all of an epoch."""
    return figures.stage(run, "compute gradients")["wall_s"] / figures.peer_minibatches(run)


def instance_batch_s(found: Found, size: int) -> Ours | NoFigure:
    """Measured, or in proportion to the images of the size that was."""
    run = found.run(runs_2023.gradients("p2p_instance", size))
    if not isinstance(run, NoFigure):
        return measured(_batch_s(run), f"mean of {figures.peer_minibatches(run)} batches")
    known = found.run(runs_2023.gradients("p2p_instance", MEASURED_SIZE))
    if isinstance(known, NoFigure):
        return known
    note = f"in proportion to measured batches of {MEASURED_SIZE}"
    return projected(_batch_s(known) * size / MEASURED_SIZE, note)


def functions_s(found: Found, size: int) -> Ours | NoFigure:
    """Seconds until all batches are computed in functions side by side: those of one, model and gradient on their way included."""
    run = found.run(runs_2023.gradients("p2p_serverless", size))
    if not isinstance(run, NoFigure):
        return measured(figures.function_s(run), "one function: side by side, all take about as long")
    known, batch_s = found.run(runs_2023.gradients("p2p_serverless", MEASURED_SIZE)), instance_batch_s(found, size)
    if isinstance(known, NoFigure) or isinstance(batch_s, NoFigure):
        return known if isinstance(known, NoFigure) else run
    around_s = figures.function_s(known) - figures.stage(known, "compute")["wall_s"]
    note = f"a batch as on the instance, and {around_s:.3g} s that a function of {MEASURED_SIZE} images takes around it"
    return projected(around_s + float(batch_s.value), note)


def table_2(found: Found) -> Section:
    cells: list[TableCell] = []
    for row in runs_2023.rows("Table II"):
        seconds, price = functions_s(found, row.figures["batch_size"]), _lambda_usd_per_s(row)
        cells.append(printed(row, "compute_s", "s", seconds))
        cells.append(
            printed(row, "lambda_usd_per_s", "USD/s", projected(price, "the formula: MB / 1,024 x 0.0000133334"))
        )
        usd = seconds if isinstance(seconds, NoFigure) else _serverless_usd(row, float(seconds.value))
        cells.append(printed(row, "peer_usd", "USD", usd))
    return found.section(cells)


def _lambda_usd_per_s(row: Row) -> float:
    return paper_cost.lambda_usd_per_s(row.figures["memory_mb"])


def _serverless_usd(row: Row, seconds: float) -> Ours:
    f = row.figures
    usd = paper_cost.peer_serverless_usd(
        seconds, batches=f["batches"], lambda_usd_per_s=_lambda_usd_per_s(row), ec2_usd_per_s=f["ec2_usd_per_s"]
    )
    return projected(usd, "equation 1 over our seconds, with the paper's memory and prices")


def table_3(found: Found) -> Section:
    cells: list[TableCell] = []
    batches = {row.figures["batch_size"]: row.figures["batches"] for row in runs_2023.rows("Table II")}
    for row in runs_2023.rows("Table III"):
        batch_s = instance_batch_s(found, row.figures["batch_size"])
        if isinstance(batch_s, NoFigure):
            cells += [printed(row, "compute_s", "s", batch_s), printed(row, "peer_usd", "USD", batch_s)]
            continue
        count, each_s = batches[row.figures["batch_size"]], float(batch_s.value)
        note = f"{count} x {each_s:.3g} s of a batch, {batch_s.label}: {batch_s.note}"
        usd = paper_cost.peer_instance_usd(count * each_s, ec2_usd_per_s=row.figures["ec2_usd_per_s"])
        cells.append(printed(row, "compute_s", "s", projected(count * each_s, note)))
        cells.append(printed(row, "peer_usd", "USD", projected(usd, "equation 2 over our seconds")))
    return found.section(cells)


def _both_s(found: Found, size: int, *, peers: int = PEERS) -> tuple[float, float] | NoFigure:
    """Seconds to compute a peer's gradients of an epoch: (with functions, on the instance)."""
    functions, batch = functions_s(found, size), instance_batch_s(found, size)
    if isinstance(functions, NoFigure):
        return functions
    if isinstance(batch, NoFigure):
        return batch
    return float(functions.value), float(batch.value) * -(-MNIST_IMAGES // (peers * size))


def figure_3(found: Found) -> Section:
    cells, drawn = [], []
    for peers in PEER_COUNTS:
        points: list[list[tuple[float, float]]] = [[], []]
        for size in reversed(BATCH_SIZES):
            both = _both_s(found, size, peers=peers)
            for place, name in enumerate(BOTH):
                row, known = f"{peers} peers, batch {size}", _printed_s(peers, size, place)
                ours = (
                    both if isinstance(both, NoFigure) else projected(both[place], "from one peer's measured batches")
                )
                points[place] += [(float(size), float(ours.value))] if isinstance(ours, Ours) else []
                cells.append(TableCell(row=row, figure=name, unit="s", published=known, ours=ours))
        curves = [Curve(label=name, points=points[place], dashed=True) for place, name in enumerate(BOTH)]
        title = f"2023, figure 3: computing gradients, {peers} peers (projected)"
        drawn.append(Drawing(title=title, x="batch size", y="seconds", curves=curves, log_x=True))
    notes = [f"{NO_NUMBERS}; for {PEERS} peers Tables II and III have them."]
    return found.section(cells, drawings=drawn, notes=notes)


def _printed_s(peers: int, size: int, place: int) -> float | None:
    rows = runs_2023.rows("Table II" if place == 0 else "Table III")
    return next(
        (row.figures["compute_s"] for row in rows if peers == PEERS and row.figures["batch_size"] == size), None
    )


def text(found: Found) -> Section:
    cells: list[TableCell] = []
    for row in runs_2023.rows("Text"):
        f = row.figures
        if "accuracy" in f:
            measurement = runs_2023.barrier("synchronous")
            run, size, cut = found.run(measurement), found.size_of(measurement), found.cut(measurement)
            accuracy = run if isinstance(run, NoFigure) else best(run, size, cut=cut)
            epochs = run if isinstance(run, NoFigure) else measured(float(figures.epochs(run)), size, cut=cut)
            cells.append(printed(row, "accuracy", "share", accuracy))
            cells.append(printed(row, "epochs", "x", epochs))
            continue
        both = _both_s(found, f["batch_size"], peers=f.get("workers", PEERS))
        if "cost_ratio" in f:
            cells.append(
                printed(row, "cost_ratio", "x", both if isinstance(both, NoFigure) else _cost_ratio(row, both))
            )
        else:
            less = both if isinstance(both, NoFigure) else projected(1 - both[0] / both[1], "from our seconds")
            cells.append(printed(row, "reduction", "share", less))
    return found.section(cells)


def _cost_ratio(row: Row, both: tuple[float, float]) -> Ours:
    (functions,) = [r for r in runs_2023.rows("Table II") if r.figures["batch_size"] == row.figures["batch_size"]]
    instance_usd = paper_cost.peer_instance_usd(both[1], ec2_usd_per_s=paper_cost.PEER_USD_PER_S["t2.large"])
    ratio = float(_serverless_usd(functions, both[0]).value) / instance_usd
    return projected(ratio, "both by the paper's equations over our seconds")
