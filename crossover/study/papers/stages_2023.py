"""Table I and figures 4 to 6 of the 2023 paper: what the stages of a peer need."""

from collections.abc import Iterator, Mapping

from crossover.reports.folder import RunFolder
from crossover.reports.published import Row
from crossover.study.papers import figures, runs_2023
from crossover.study.papers.cells import Curve, Drawing, NoFigure, Ours, Section, TableCell, Unit, measured, projected
from crossover.study.papers.measurement import Scale
from crossover.study.papers.part import Found
from crossover.study.papers.runs_2023 import PEERS, STAGES

NO_NUMBERS = "The figure prints no numbers"
WAITS = "waits for slower peers included"
MODELS = {"mobilenet_v3_small": "MobileNet V3 Small", "vgg11": "VGG-11"}
UNITS: Mapping[str, Unit] = {"wall_s": "s", "cpu_percent": "%", "memory_mb": "MB"}


def table_1(found: Found) -> Section:
    cells: list[TableCell] = []
    for row in runs_2023.rows("Table I"):
        run = found.run(runs_2023.stages(row, found.scale))
        for place, column in enumerate(row.figures["columns"]):
            cells += _stage(row, place, column, run)
    notes = [
        "Computing is per batch of 512. Ours: one thread a peer, on this machine; the papers' t2 instances have two processors.",
        "Memory of ours is the process's while in the stage.",
    ]
    return found.section(cells, notes=notes)


def _stage(row: Row, place: int, column: str, run: RunFolder | NoFigure) -> Iterator[TableCell]:
    def value(figure: str, run: RunFolder) -> Ours:
        mine = figures.stage(run, STAGES[place])
        if figure == "wall_s" and column == "compute":
            return _at_512(mine["wall_s"] / figures.peer_minibatches(run), run)
        values = {"wall_s": mine["wall_s"], "cpu_percent": 100 * mine["cpu"], "memory_mb": mine["max_rss_mb"]}
        return measured(values[figure], _fewer(run))

    for figure, unit in UNITS.items():
        ours = run if isinstance(run, NoFigure) else _alone(row, run, column) or value(figure, run)
        printed = row.figures[figure][place]
        yield TableCell(
            row=row.row,
            figure=f"{column}, {figure}",
            unit=unit,
            published=printed,
            ours=ours,
            by=row,
            name=f"{figure}.{column}",
        )


def _alone(row: Row, run: RunFolder, column: str) -> NoFigure | None:
    """A peer without peers receives nothing, and no figure of that stage."""
    if column != "receive" or figures.workers(run) > 1:
        return None
    command = runs_2023.stages(row, Scale(1)).command(Scale(1))
    return NoFigure(
        reason="one peer alone was run, which receives nothing: four of this model want 20 GB", command=command
    )


def _at_512(seconds: float, run: RunFolder) -> Ours:
    size = figures.batch_size(run)
    if size == 512:
        return measured(seconds, _fewer(run))
    return projected(seconds * 512 / size, f"measured {seconds:.3g} s with {size} images, taken {512 / size:g}-fold")


def _fewer(run: RunFolder) -> str:
    count = figures.workers(run)
    return "" if count == PEERS else f"{count} peers instead of {PEERS}"


def figure_4(found: Found) -> Section:
    cells, drawn = [], []
    for model, words in MODELS.items():
        curves: dict[str, list[tuple[float, float]]] = {"computing": [], "communication": []}
        for peers in runs_2023.PEER_COUNTS:
            measurement = runs_2023.grown(model, peers)
            run = found.run(measurement)
            size = found.size_of(measurement)
            for name, stages in (("computing", STAGES[:1]), ("communication", STAGES[1:3])):
                ours = run if isinstance(run, NoFigure) else _sum(run, stages, f"an epoch of a peer, {size}; {WAITS}")
                curves[name] += [(float(peers), float(ours.value))] if isinstance(ours, Ours) else []
                row = f"{words}, {peers} peers"
                cells.append(TableCell(row=row, figure=name, unit="s", published=None, ours=ours))
        if curves["computing"]:
            lines = [Curve(label=name, points=points) for name, points in curves.items()]
            title = f"2023, figure 4: computing and communication, {words}"
            drawn.append(Drawing(title=title, x="peers", y="seconds", curves=lines))
    notes = [f"{NO_NUMBERS}: computing falls with more peers, communication rises."]
    return found.section(cells, drawings=drawn, notes=notes)


def _sum(run: RunFolder, stages: tuple[str, ...], note: str) -> Ours:
    return measured(sum(figures.stage(run, stage)["wall_s"] for stage in stages), note)


def figure_5(found: Found) -> Section:
    cells, bars = [], []
    for size in runs_2023.BATCH_SIZES:
        for kind, words in zip(runs_2023.COMPRESSIONS, ("without compression", "QSGD"), strict=True):
            run = found.run(runs_2023.compressed(kind, size))
            for figure in ("send", "receive", "moved"):
                ours = run if isinstance(run, NoFigure) else _exchanged(run, figure)
                unit: Unit = "MB" if figure == "moved" else "s"
                bars += (
                    [(f"{figure}, {words}, {size}", float(ours.value))]
                    if isinstance(ours, Ours) and unit == "s"
                    else []
                )
                cells.append(
                    TableCell(row=f"{words}, batch {size}", figure=figure, unit=unit, published=None, ours=ours)
                )
    notes = [f"{NO_NUMBERS}: compression shortens sending and receiving at every batch size."]
    drawing = Drawing(title="2023, figure 5: sending and receiving, by batch size", x="seconds", bars=bars)
    return found.section(cells, drawings=[drawing] if bars else [], notes=notes)


def _exchanged(run: RunFolder, figure: str) -> Ours:
    model = MODELS[run.result["experiment"]["training"]["model"]]
    if figure == "moved":
        return measured(figures.moved_bytes(run, "bus") / 1e6, f"{model}, through the broker, all peers")
    return measured(figures.stage(run, figure)["wall_s"], f"{model}; {WAITS}")


def figure_6(found: Found) -> Section:
    cells, curves = [], []
    for mode in runs_2023.MODES:
        measurement = runs_2023.barrier(mode)
        run, size = found.run(measurement), found.size_of(measurement)
        ours = run if isinstance(run, NoFigure) else best(run, size, cut=found.cut(measurement))
        printed = 0.843 if mode == "synchronous" else None
        cells.append(TableCell(row=mode, figure="accuracy", unit="share", published=printed, ours=ours))
        curves += [] if isinstance(run, NoFigure) else [Curve(label=mode, points=figures.curve(run, "epoch"))]
    drawing = Drawing(
        title="2023, figure 6: accuracy against epochs, MobileNet V3 Small",
        x="epoch",
        y="validation accuracy",
        curves=curves,
        percent=True,
    )
    notes = ["Of the figure the text prints the end alone: 84.3 % after about 128 epochs."]
    return found.section(cells, drawings=[drawing] if curves else [], notes=notes)


def best(run: RunFolder, size: str, *, cut: bool) -> Ours:
    """The best accuracy of a run, with its size in words."""
    note = f"the best of {figures.epochs(run)} epochs on CIFAR-10; {size}"
    return measured(figures.best_accuracy(run) or 0.0, note, cut=cut)
