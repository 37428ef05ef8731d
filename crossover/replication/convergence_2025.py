"""Table 3 and figure 4 of the 2025 paper: accuracy, and how long it takes."""

from crossover.replication import figures, runs_2025
from crossover.replication.cells import Cell, Curve, Drawing, Missing, Ours, Section, measured, printed
from crossover.replication.part import Found
from crossover.reports.folder import RunFolder
from crossover.reports.published import Row

NO_GPU = Missing(
    reason="seconds of GPU workers on a CPU say nothing",
    command="crossover run config/gpu-cifar10.yaml --set recipe=fast --on aws",
)


def table_3(found: Found) -> Section:
    cells = []
    for row in runs_2025.rows("Table 3"):
        on_cpu = row.figures["architecture"] == "gpu" and not found.has_gpu
        run = found.run(runs_2025.convergence(row.figures["architecture"]))
        minutes = run if isinstance(run, Missing) else NO_GPU if on_cpu else _minutes(run, found, row)
        accuracy = run if isinstance(run, Missing) else _accuracy(run, found, row)
        cells.append(printed(row, "minutes", "min", minutes))
        cells.append(printed(row, "accuracy", "share", accuracy))
    notes = [
        "All with recipe: fast. Cut down, an accuracy is that of a cut-down training, and no statement about the paper's."
    ]
    return found.section(cells, notes=notes)


def _size(found: Found, row: Row) -> str:
    return found.size_of(runs_2025.convergence(row.figures["architecture"]))


def _cut(found: Found, row: Row) -> bool:
    return found.cut(runs_2025.convergence(row.figures["architecture"]))


def _minutes(run: RunFolder, found: Found, row: Row) -> Ours:
    note = f"to the last of {figures.epochs(run)} epochs; {_size(found, row)}"
    return measured(run.result["duration_s"] / 60, note, cut=_cut(found, row))


def _accuracy(run: RunFolder, found: Found, row: Row) -> Ours:
    note = f"the best of {figures.epochs(run)} epochs; {_size(found, row)}"
    return measured(figures.best_accuracy(run) or 0.0, note, cut=_cut(found, row))


def _epochs(run: RunFolder, found: Found, row: Row) -> Ours:
    return measured(float(figures.epochs(run)), f"of the curve; {_size(found, row)}")


def figure_4(found: Found) -> Section:
    cells, curves = [], []
    rows = runs_2025.rows("Table 3")
    for row in rows:
        run = found.run(runs_2025.convergence(row.figures["architecture"]))
        epochs = run if isinstance(run, Missing) else _epochs(run, found, row)
        cells.append(Cell(row=row.row, figure="epochs", unit="x", published=None, ours=epochs))
        curves += [] if isinstance(run, Missing) else [Curve(label=row.row, points=figures.curve(run))]
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
