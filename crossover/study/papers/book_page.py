"""What replicate leaves: index.html, index.md and cells.csv, from the same cells."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossover.reports import display, folder, html, plots
from crossover.reports.display import DASH
from crossover.reports.page import Page, Plot, Sheet, Tile, plot
from crossover.study.papers import findings
from crossover.study.papers.cells import NOT_RUN, Drawing, Section, TableCell, Unit, Value
from crossover.study.papers.measurement import Measurement, Scale
from crossover.study.papers.runner import Replicated

INDEX, MARKDOWN, CSV = "index.html", "index.md", "cells.csv"
HEAD = ("row", "figure", "printed", "ours", "ratio", "label", "simulated", "ratio", "remarks")
COLUMNS = (
    "section", "row", "figure", "unit", "printed", "formula", "deviation", "ours", "label", "ratio", "simulated",
    "simulated_ratio", "remarks", "command",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Book:
    """Everything a page is made of."""

    sections: Sequence[Section]
    outcome: Replicated
    scale: Scale
    command: str  # the line that made this
    machine: str


def write(book: Book, out: Path) -> Path:
    """Write all three into `out`; the path of the page."""
    out.mkdir(parents=True, exist_ok=True)
    folder.write_atomically(out / CSV, to_csv(book).encode())
    folder.write_atomically(out / MARKDOWN, to_markdown(book).encode())
    folder.write_atomically(out / INDEX, html.render(page(book)).encode())
    return out / INDEX


# --- counts and cuts --------------------------------------------------------------------------------------------------


def counts(sections: Sequence[Section]) -> dict[str, int]:
    """How many cells of each label."""
    found = dict.fromkeys(("measured-local", "projected", NOT_RUN), 0)
    for cell in (cell for section in sections for cell in section.cells):
        found[cell.label] += 1
    return found


def verdict(sections: Sequence[Section]) -> str:
    """The last line: how much of the papers stands beside a figure of ours, and how many of their findings are reproduced."""
    cells = [cell for section in sections for cell in section.cells]
    by = counts(sections)
    beside = [cell for cell in cells if cell.published is not None]
    filled = sum(cell.label != NOT_RUN for cell in beside)
    made = f"{by['measured-local']} cells measured here, {by['projected']} projected, {by[NOT_RUN]} not run"
    return (
        f"{len(sections)} tables and figures: {filled} of {len(beside)} printed figures have ours beside them ({made}); "
        f"{findings.words(list(findings.findings(sections)))}"
    )


def cut_rows(book: Book) -> list[list[str]]:
    """What the scale changed, run by run; and the command of each."""
    measurements: dict[str, Measurement] = {each.key: each for s in book.sections for each in s.measurements}
    rows = []
    for key, each in measurements.items():
        whole = key in book.outcome.whole
        cuts = {} if whole else each.cuts(book.scale)
        changed = ", ".join(f"{name} {_shown(a)} → {_shown(b)}" for name, (a, b) in cuts.items()) or "nothing"
        state = "finished" if key in book.outcome.runs else NOT_RUN
        rows.append([key, state, changed, each.command(Scale(1) if whole else book.scale)])
    return rows


def _shown(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def cut_note(book: Book) -> str:
    if book.scale.whole:
        return "Everything at the published size."
    return (
        f"--scale {book.scale.share:g}: of the minibatches per worker and epoch, of the epochs, of the validation images and of the size "
        "of gradients that are made that share is run, with the least numbers that the table shows; models and, where the table does not "
        "say otherwise, workers and minibatch sizes are the published ones. Seconds of one minibatch or one exchange are not cut; "
        "accuracies, totals and seconds of one aggregation are."
    )


# --- HTML -------------------------------------------------------------------------------------------------------------


def page(book: Book) -> Page:
    by = counts(book.sections)
    tiles = [Tile(name="tables and figures", value=str(len(book.sections)), note="of the papers")]
    tiles += [
        Tile(name=name, value=str(count), note="cells", label=None if name == NOT_RUN else name)
        for name, count in by.items()
    ]
    drawn = [
        _plot(drawing, name=f"{section.name.replace('.', '-')}-{n}")
        for section in book.sections
        for n, drawing in enumerate(section.drawings)
    ]
    return Page(
        title="The papers' tables and figures, and ours beside them",
        subtitle=f"{book.command}; {book.machine}",
        labels=["published", "measured-local", "projected"],
        answer=findings.words(list(findings.findings(book.sections))),
        verdict=verdict(book.sections),
        commands=[book.command],
        warnings=[
            f"{key} was not run: {why}" for key, why in book.outcome.missing.items() if key in book.outcome.failed
        ],
        tiles=tiles,
        plots=drawn,
        sheets=[_reproduced(book), *(_sheet(section) for section in book.sections), *_appendix(book)],
    )


def _reproduced(book: Book) -> Sheet:
    return Sheet(
        title="What is reproduced",
        head=findings.HEAD,
        rows=[each.row for each in findings.findings(book.sections)],
        note="Simulated at the published size where the simulator can tell, else measured here; sizes of like figures only.",
        words=3,
    )


def _sheet(section: Section) -> Sheet:
    rows = [
        [
            cell.row, cell.figure, _printed(cell), _ours(cell), _times(cell.ratio), cell.label,
            shown(cell.simulated, cell.unit), _times(cell.simulated_ratio), cell.remarks,
        ]
        for cell in section.cells
    ]  # fmt: skip
    return Sheet(title=section.title, head=HEAD, rows=rows, note=" ".join(section.notes), words=len(HEAD))


def _appendix(book: Book) -> list[Sheet]:
    missing = list(
        dict.fromkeys((cell.remarks, cell.command) for s in book.sections for cell in s.cells if cell.command)
    )
    sheets = [
        Sheet(
            title="What was run, and what the scale has cut",
            head=("run", "state", "cut", "command"),
            rows=cut_rows(book),
            note=cut_note(book),
            words=4,
        )
    ]
    if missing:
        sheets.append(
            Sheet(
                title="What was not run",
                head=("why", "the command that runs it at the published size"),
                rows=[list(each) for each in missing],
                words=2,
            )
        )
    return sheets


def _plot(drawing: Drawing, *, name: str) -> Plot:
    if drawing.bars:
        picture = plots.bars(drawing.bars, x=drawing.x, name=name, shown=lambda v: f"{v:.3g}", title=drawing.title)
        return plot(drawing.title, picture, caption=drawing.caption)
    curves = {curve.label: list(curve.points) for curve in drawing.curves}
    dashed = frozenset(curve.label for curve in drawing.curves if curve.dashed)
    picture = plots.lines(
        curves, x=drawing.x, y=drawing.y, name=name, log_x=drawing.log_x, percent=drawing.percent, dashed=dashed
    )
    return plot(drawing.title, picture, caption=drawing.caption)


# --- figures as text --------------------------------------------------------------------------------------------------


def shown(value: Value | None, unit: Unit) -> str:
    """A figure with its unit; a dash where there is none."""
    if value is None or isinstance(value, str):
        return value or DASH
    match unit:
        case "s":
            return f"{value:,.5g}{display.GAP}s"
        case "min":
            return f"{value:,.4g}{display.GAP}min"
        case "MB":
            return f"{value:,.0f}{display.GAP}MB" if value >= 100 else f"{value:.3g}{display.GAP}MB"
        case "USD":
            return display.usd(value)
        case "USD/s":
            return f"${value:.3g}/s" if value >= 1e-3 else f"${value:.8f}/s"
        case "%":
            return f"{value:.1f}{display.GAP}%"
        case "share":
            return display.percent(value)
        case "x":
            return f"{value:.4g}"
        case "text":
            return str(value)


def _printed(cell: TableCell) -> str:
    """With every digit of the paper's."""
    if cell.unit == "USD" and isinstance(cell.published, float):
        return f"${cell.published:g}"
    return shown(cell.published, cell.unit)


def _ours(cell: TableCell) -> str:
    value = getattr(cell.ours, "value", None)
    return NOT_RUN if value is None else shown(value, cell.unit)


def _times(ratio: float | None) -> str:
    return DASH if ratio is None else display.times(ratio) if ratio >= 0.1 else f"{ratio:.2g}x"


# --- Markdown, CSV ----------------------------------------------------------------------------------------------------


def to_markdown(book: Book) -> str:
    lines = [
        "# The papers' tables and figures, and ours beside them",
        "",
        f"`{book.command}`; {book.machine}",
        "",
        verdict(book.sections),
        "",
    ]
    lines += [cut_note(book), ""]
    for section in book.sections:
        lines += [f"## {section.title}", "", *(f"{note}\n" for note in section.notes)]
        if section.cells:
            lines += ["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
            lines += ["| " + " | ".join(_escaped(each) for each in row) + " |" for row in _sheet(section).rows]
            lines.append("")
    for sheet in (_reproduced(book), *_appendix(book)):
        lines += [f"## {sheet.title}", "", "| " + " | ".join(sheet.head) + " |", "|" + " --- |" * len(sheet.head)]
        lines += ["| " + " | ".join(_escaped(each) for each in row) + " |" for row in sheet.rows]
        lines.append("")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace(display.GAP, " ")


def to_csv(book: Book) -> str:
    """One line per cell, raw figures: seconds, dollars, megabytes, shares."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for section in book.sections:
        for cell in section.cells:
            ours = getattr(cell.ours, "value", None)
            row = (
                section.name, cell.row, cell.figure, cell.unit, cell.published, cell.formula, cell.deviation, ours, cell.label,
                cell.ratio, cell.simulated, cell.simulated_ratio, cell.remarks, cell.command,
            )  # fmt: skip
            writer.writerow(["" if value is None else value for value in row])
    return file.getvalue()
