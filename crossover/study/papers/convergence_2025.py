"""Table 3 and figure 4 of the 2025 paper: accuracy, and how long it takes."""

from crossover.reports.folder import RunFolder
from crossover.study.papers import figures, runs_2025
from crossover.study.papers.cells import Curve, Drawing, NoFigure, Ours, Section, TableCell, measured, printed, where
from crossover.study.papers.part import Found

NO_GPU = NoFigure(
    reason="seconds of GPU workers on a CPU say nothing",
    command="crossover run config/gpu-cifar10.yaml --set recipe=fast --on aws",
)


def table_3(found: Found) -> Section:
    cells = []
    for row in runs_2025.rows("Table 3"):
        on_cpu = row.figures["architecture"] == "gpu" and not found.has_gpu
        wanted = runs_2025.convergence(row.figures["architecture"])
        run, size, cut = found.run(wanted), found.size_of(wanted), found.cut(wanted)

        def minutes(run: RunFolder, size: str = size, cut: bool = cut) -> Ours:
            note = f"to the last of {figures.epochs(run)} epochs; {size}"
            return measured(run.result["duration_s"] / 60, note, cut=cut)

        def accuracy(run: RunFolder, size: str = size, cut: bool = cut) -> Ours:
            note = f"the best of {figures.epochs(run)} epochs; {size}"
            return measured(figures.best_accuracy(run) or 0.0, note, cut=cut)

        there = NO_GPU if on_cpu and not isinstance(run, NoFigure) else run
        cells.append(printed(row, "minutes", "min", where(there, minutes)))
        cells.append(printed(row, "accuracy", "share", where(run, accuracy)))
    notes = [
        "All with recipe: fast. Cut down, an accuracy is that of a cut-down training, and no statement about the paper's."
    ]
    return found.section(cells, notes=notes)


def figure_4(found: Found) -> Section:
    cells, curves = [], []
    rows = runs_2025.rows("Table 3")
    for row in rows:
        wanted = runs_2025.convergence(row.figures["architecture"])
        run, note = found.run(wanted), f"of the curve; {found.size_of(wanted)}"
        epochs = where(run, lambda run, note=note: measured(float(figures.epochs(run)), note))  # type: ignore[misc]
        cells.append(TableCell(row=row.row, figure="epochs", unit="x", published=None, ours=epochs))
        curves += [] if isinstance(run, NoFigure) else [Curve(label=row.row, points=figures.curve(run))]
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
