"""Every table and figure of two papers by name, and the pages that show them."""

import csv
import io
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crossover.errors import ConfigError
from crossover.reports import display, folder, plots, report_pages
from crossover.reports.display import DASH
from crossover.reports.pages import Page, Plot, Sheet, Tile, plot
from crossover.study import paper_cells, paper_runs, runs_2023, runs_2025, tables_2023, tables_2025
from crossover.study.paper_cells import (
    NOT_RUN,
    Drawing,
    FoundRuns,
    Part,
    Section,
    TableCell,
    Unit,
    Value,
    add_projections,
)
from crossover.study.paper_runs import Measurement, ReplicationOutcome, Scale
from crossover.validation.documents import did_you_mean

# --- parts ------------------------------------------------------------------------------------------------------------

_2025 = (
    Part("2025-figure-1", "2025, figure 1: the training flow that all share"),
    Part(
        "2025-table-1",
        "2025, Table 1: the architectures, stage by stage",
        lambda scale: [
            runs_2025.make_mobilenet_run(row.figures["architecture"]) for row in runs_2025.load_rows("Table 1")
        ],
        tables_2025.fill_table_1,
    ),
    Part(
        "2025-table-2",
        "2025, Table 2: time, memory and cost of an epoch",
        lambda scale: [runs_2025.make_epoch_run(row) for row in runs_2025.load_rows("Table 2")],
        tables_2025.fill_table_2,
    ),
    Part(
        "2025-section-4.2",
        "2025, section 4.2: what less communication is worth",
        runs_2025.list_section_4_2_runs,
        tables_2025.fill_section_4_2,
    ),
    Part(
        "2025-figure-2",
        "2025, figure 2: communication against workers",
        runs_2025.list_exchange_runs,
        tables_2025.fill_figure_2,
    ),
    Part("2025-figure-3", "2025, figure 3: MLLess's filter", runs_2025.list_filter_runs, tables_2025.fill_figure_3),
    Part(
        "2025-figure-4", "2025, figure 4: accuracy against time", runs_2025.list_table_3_runs, tables_2025.fill_figure_4
    ),
    Part(
        "2025-table-3",
        "2025, Table 3: time to converge, accuracy",
        runs_2025.list_table_3_runs,
        tables_2025.fill_table_3,
    ),
)
_2023 = (
    Part("2023-figure-1", "2023, figure 1: peers and services"),
    Part("2023-figure-2", "2023, figure 2: synchronous and asynchronous exchange"),
    Part(
        "2023-table-I",
        "2023, Table I: what the stages of a peer need",
        lambda scale: [runs_2023.make_stages_run(row, scale) for row in runs_2023.load_rows("Table I")],
        tables_2023.fill_table_1,
    ),
    Part(
        "2023-figure-3",
        "2023, figure 3: computing gradients with and without functions",
        runs_2023.list_gradient_runs,
        tables_2023.fill_figure_3,
    ),
    Part(
        "2023-table-II",
        "2023, Table II: gradients in functions",
        runs_2023.list_gradient_runs,
        tables_2023.fill_table_2,
    ),
    Part(
        "2023-table-III",
        "2023, Table III: gradients on the instance",
        runs_2023.list_gradient_runs,
        tables_2023.fill_table_3,
    ),
    Part("2023-text", "2023: what the text states", runs_2023.list_text_runs, tables_2023.fill_text),
    Part("2023-figure-4", "2023, figure 4: more peers", runs_2023.list_figure_4_runs, tables_2023.fill_figure_4),
    Part("2023-figure-5", "2023, figure 5: compression", runs_2023.list_figure_5_runs, tables_2023.fill_figure_5),
    Part(
        "2023-figure-6",
        "2023, figure 6: with a barrier and without",
        lambda scale: [runs_2023.make_barrier_run(mode) for mode in runs_2023.MODES],
        tables_2023.fill_figure_6,
    ),
)
PARTS: Mapping[str, Part] = {part.name: part for part in (*_2025, *_2023)}


def choose_parts(names: Sequence[str]) -> list[Part]:
    """Return the tables and figures with these names, each once, in the papers' order. "all" or a year such as "2025" selects all that
    belong to it. Raises ConfigError for an unknown name. An empty list for no names.
    """
    wanted: set[str] = set()
    for name in names:
        found = {each for each in PARTS if name in ("all", each) or each.startswith(f"{name}-")}
        if not found:
            raise ConfigError(
                f"{name}: is no table or figure of the papers{did_you_mean(name, list(PARTS))}; one of all, 2025, 2023, "
                + ", ".join(PARTS)
            )
        wanted |= found
    return [part for name, part in PARTS.items() if name in wanted]


def list_measurements(parts: Sequence[Part], scale: Scale) -> list[Measurement]:
    """Return the measurements that these tables and figures need at `scale`, in their order. If several need measurements of one key, the
    last of them is listed, in the place of the first.
    """
    by_key = {each.key: each for part in parts for each in part.measurements(scale)}
    return list(by_key.values())


# --- book page --------------------------------------------------------------------------------------------------------
# The files of `crossover replicate`: index.html, index.md and cells.csv, from the same cells.

INDEX, MARKDOWN, CSV = "index.html", "index.md", "cells.csv"
HEAD = ("row", "figure", "printed", "ours", "ratio", "label", "simulated", "ratio", "remarks")
COLUMNS = (
    "section", "row", "figure", "unit", "printed", "formula", "deviation", "ours", "label", "ratio", "simulated",
    "simulated_ratio", "remarks", "command",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Book:
    """All content of the replication's pages. `sections`: the filled tables and figures; `outcome`: the runs they were filled from;
    `scale`: size of those runs; `command`: the command line that made them; `machine`: description of this machine.
    """

    sections: Sequence[Section]
    outcome: ReplicationOutcome
    scale: Scale
    command: str  # the line that made this
    machine: str


def write(book: Book, out: Path) -> Path:
    """Write the replication's page, Markdown and CSV (index.html, index.md, cells.csv) into the folder `out`, which is created if
    necessary, and return the path of index.html.
    """
    out.mkdir(parents=True, exist_ok=True)
    folder.write_atomically(out / CSV, to_csv(book).encode())
    folder.write_atomically(out / MARKDOWN, to_markdown(book).encode())
    folder.write_atomically(out / INDEX, report_pages.render(build_page(book)).encode())
    return out / INDEX


# --- counts and cuts --------------------------------------------------------------------------------------------------


def count_labels(sections: Sequence[Section]) -> dict[str, int]:
    """Return the number of table cells by label: "measured-local", "projected" and "not run"."""
    found = dict.fromkeys(("measured-local", "projected", NOT_RUN), 0)
    for cell in (cell for section in sections for cell in section.cells):
        found[cell.label] += 1
    return found


def summarize_book(sections: Sequence[Section]) -> str:
    """Return the summary line of the page: for how many printed figures we have our own figure, and how many columns of printed figures are
    reproduced.
    """
    cells = [cell for section in sections for cell in section.cells]
    by = count_labels(sections)
    beside = [cell for cell in cells if cell.published is not None]
    filled = sum(cell.label != NOT_RUN for cell in beside)
    made = f"{by['measured-local']} cells measured here, {by['projected']} projected, {by[NOT_RUN]} not run"
    return (
        f"{len(sections)} tables and figures: {filled} of {len(beside)} printed figures have ours beside them ({made}); "
        f"{paper_cells.summarize_findings(list(paper_cells.judge_findings(sections)))}"
    )


def list_cuts(book: Book) -> list[list[str]]:
    """Return one table row for each measurement of the book, finished or not: its key, its state, which settings the scale changed, and the
    command that runs it.
    """
    measurements: dict[str, Measurement] = {each.key: each for s in book.sections for each in s.measurements}
    rows = []
    for key, each in measurements.items():
        whole = key in book.outcome.whole
        if key in book.outcome.generated:
            each = each.on_generated_images()
        cuts = {} if whole else each.list_cuts(book.scale)
        changed = (
            ", ".join(f"{name} {_format_setting(a)} → {_format_setting(b)}" for name, (a, b) in cuts.items())
            or "nothing"
        )
        state = "finished" if key in book.outcome.runs else NOT_RUN
        state += ", on generated images" if key in book.outcome.generated else ""
        rows.append([key, state, changed, each.command(Scale(1) if whole else book.scale)])
    return rows


def _format_setting(value: Any) -> str:
    """Return a setting's value as text."""
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def explain_cuts(book: Book) -> str:
    """Return the page's note on which quantities the scale has cut down, and which figures are affected; at the published size a note that
    says so.
    """
    if book.scale.whole:
        return "Everything at the published size."
    return (
        f"--scale {book.scale.share:g}: of the minibatches per worker and epoch, of the epochs, of the validation images and of the size "
        "of gradients that are made that share is run, with the least numbers that the table shows; models and, where the table does not "
        "say otherwise, workers and minibatch sizes are the published ones. Seconds of one minibatch or one exchange are not cut; "
        "accuracies, totals and seconds of one aggregation are."
    )


# --- HTML -------------------------------------------------------------------------------------------------------------


def build_page(book: Book) -> Page:
    """Return the replication's HTML page as data: findings, drawings, a table for each section of the papers, and warnings about runs that
    failed or used generated images.
    """
    by = count_labels(book.sections)
    tiles = [Tile(name="tables and figures", value=str(len(book.sections)), note="of the papers")]
    tiles += [
        Tile(name=name, value=str(count), note="cells", label=None if name == NOT_RUN else name)
        for name, count in by.items()
    ]
    drawn = [
        _draw_figure(drawing, name=f"{section.name.replace('.', '-')}-{n}")
        for section in book.sections
        for n, drawing in enumerate(section.drawings)
    ]
    words = paper_cells.summarize_findings(list(paper_cells.judge_findings(book.sections)))
    return Page(
        kind="Replication: the papers' tables and figures, and ours beside them",
        title=f"{words[:1].upper()}{words[1:]}",
        subtitle=f"{book.command}; {book.machine}",
        labels=["published", "measured-local", "projected"],
        verdict=summarize_book(book.sections),
        commands=[book.command],
        warnings=[
            f"{key} was not run: {why}" for key, why in book.outcome.missing.items() if key in book.outcome.failed
        ]
        + [_explain_generated(book.outcome.generated)] * bool(book.outcome.generated),
        tiles=tiles,
        plots=drawn,
        sheets=[
            _build_findings_sheet(book),
            *(_build_section_sheet(section) for section in book.sections),
            *_build_appendix(book),
        ],
    )


def _explain_generated(generated: Mapping[str, str]) -> str:
    """Return a sentence, without a full stop, on the runs that used generated images instead of their data set. `generated`: reason by key
    of the run.
    """
    reasons = "; ".join(dict.fromkeys(generated.values()))
    return (
        f"Generated images of the same number and shape took the data set's place in {', '.join(generated)}: their seconds, bytes and "
        f"requests do not depend on the images' values ({reasons})"
    )


def _build_findings_sheet(book: Book) -> Sheet:
    """Build the page's table of which findings of the papers are reproduced, one row per column of printed figures."""
    return Sheet(
        title="What is reproduced",
        head=paper_cells.FINDINGS_HEAD,
        rows=[each.row for each in paper_cells.judge_findings(book.sections)],
        note="Simulated at the published size where the simulator can tell, else measured here; sizes of like figures only.",
        words=3,
    )


def _build_section_sheet(section: Section) -> Sheet:
    """Build the page's table of one section: one row of texts per cell, with the printed figure, ours ("not run" if missing), the simulated
    one and their ratios (a dash if there is none).
    """
    rows = [
        [
            cell.row, cell.figure, _format_printed(cell), _format_ours(cell), _format_ratio(cell.ratio), cell.label,
            format_figure(cell.simulated, cell.unit), _format_ratio(cell.simulated_ratio), cell.remarks,
        ]
        for cell in section.cells
    ]  # fmt: skip
    return Sheet(title=section.title, head=HEAD, rows=rows, note=" ".join(section.notes), words=len(HEAD))


def _build_appendix(book: Book) -> list[Sheet]:
    """Build the page's last tables: what was run with what the scale has cut, and, if anything is missing, what was not run with the
    command that produces it.
    """
    missing = list(
        dict.fromkeys((cell.remarks, cell.command) for s in book.sections for cell in s.cells if cell.command)
    )
    sheets = [
        Sheet(
            title="What was run, and what the scale has cut",
            head=("run", "state", "cut", "command"),
            rows=list_cuts(book),
            note=explain_cuts(book),
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


def _draw_figure(drawing: Drawing, *, name: str) -> Plot:
    """Draw one figure as a plot of the page: bars if it has any, otherwise curves. `name`: prefix that makes the picture's ids unique in
    the page.
    """
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


def format_figure(value: Value | None, unit: Unit) -> str:
    """Return a figure as text with its unit; a dash if it is None or "". Other text is returned as it is. A `share` is shown in percent."""
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


def _format_printed(cell: TableCell) -> str:
    """Return the cell's printed figure as text, a dash if there is none. Dollars given as a float have up to six significant digits,
    without trailing zeros; other units are as in `format_figure`.
    """
    if cell.unit == "USD" and isinstance(cell.published, float):
        return f"${cell.published:g}"
    return format_figure(cell.published, cell.unit)


def _format_ours(cell: TableCell) -> str:
    """Return our figure of the cell as text; "not run" if it is missing."""
    return NOT_RUN if cell.value is None else format_figure(cell.value, cell.unit)


def _format_ratio(ratio: float | None) -> str:
    """Return a ratio as text, such as `1.5x`; a dash if it is None."""
    return DASH if ratio is None else display.times(ratio) if ratio >= 0.1 else f"{ratio:.2g}x"


# --- Markdown, CSV ----------------------------------------------------------------------------------------------------


def to_markdown(book: Book) -> str:
    """Return the replication's page as Markdown text, with its tables and notes and without its drawings."""
    lines = [
        "# The papers' tables and figures, and ours beside them",
        "",
        f"`{book.command}`; {book.machine}",
        "",
        summarize_book(book.sections),
        "",
    ]
    lines += [explain_cuts(book), ""]
    for section in book.sections:
        lines += [f"## {section.title}", "", *(f"{note}\n" for note in section.notes)]
        if section.cells:
            lines += ["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
            lines += [
                "| " + " | ".join(_escape(each) for each in row) + " |" for row in _build_section_sheet(section).rows
            ]
            lines.append("")
    for sheet in (_build_findings_sheet(book), *_build_appendix(book)):
        lines += [f"## {sheet.title}", "", "| " + " | ".join(sheet.head) + " |", "|" + " --- |" * len(sheet.head)]
        lines += ["| " + " | ".join(_escape(each) for each in row) + " |" for row in sheet.rows]
        lines.append("")
    return "\n".join(lines)


def _escape(text: str) -> str:
    """Return the text as it may stand in a cell of a Markdown table: bars escaped, line breaks and non-breaking spaces replaced by
    spaces.
    """
    return text.replace("|", "\\|").replace("\n", " ").replace(display.GAP, " ")


def to_csv(book: Book) -> str:
    """Return CSV text with the head COLUMNS and one line per cell. Figures are unrounded and in the unit of the `unit` column; missing
    values are empty. Text that a spreadsheet would calculate begins with an apostrophe.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for section in book.sections:
        for cell in section.cells:
            row = (
                section.name, cell.row, cell.figure, cell.unit, cell.published, cell.formula, cell.deviation, cell.value, cell.label,
                cell.ratio, cell.simulated, cell.simulated_ratio, cell.remarks, cell.command,
            )  # fmt: skip
            writer.writerow(["" if value is None else display.escape_formula(value) for value in row])
    return file.getvalue()


# --- book -------------------------------------------------------------------------------------------------------------
# From existing runs to filled tables and figures.


def fill_book(parts: Sequence[Part], outcome: paper_runs.ReplicationOutcome, scale: Scale, *, command: str) -> Book:
    """Fill the tables and figures `parts` from the runs of `outcome` at `scale`, add the simulator's figures, and return all content of the
    pages. Cells without a run contain the reason and the command that would run it. `command`: the present command line, for the page.
    """
    sections = []
    for part in parts:
        found = FoundRuns(
            part=part,
            scale=scale,
            runs=outcome.runs,
            whole=outcome.whole,
            missing=outcome.missing,
            has_gpu=paper_runs.has_gpu(),
        )
        section = add_projections(part.fill(found))
        used = {each.key: outcome.generated[each.key] for each in section.measurements if each.key in outcome.generated}
        sections.append(replace(section, notes=[*section.notes, _explain_generated(used) + "."]) if used else section)
    return Book(sections=sections, outcome=outcome, scale=scale, command=command, machine=describe_machine())


def describe_machine() -> str:
    """Return a description of this machine: number of cores, processor architecture, Python version."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
