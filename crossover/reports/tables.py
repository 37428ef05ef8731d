"""Tables and lines on the terminal, in its width or, for a pipe, without a limit."""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from crossover.errors import quote_controls
from crossover.reports import display
from crossover.reports.comparison import Comparison
from crossover.reports.display import DASH, GAP
from crossover.reports.folder import Result
from crossover.reports.on_aws import OnAws
from crossover.reports.pages import AWS, name_dollars, place_of, stages_sheet

# --- terminal ---------------------------------------------------------------------------------------------------------

Cell = str | Text

ENDLESS = 1_000_000  # columns of a pipe: a line stays whole for the program that reads it
LEAST = 24  # columns for a table's last column, which may be broken between words; with fewer its rows become records
_HELD = "\ue000"  # a space at which no line is broken: rich breaks lines at a GAP too
_UNITS = r"%|ms|s|min|h|d|days?|hours?|minutes|vCPUs?|[kMGT]?B|MiB|GiB|x"
_INSIDE = re.compile(rf"(?<=\d) (?=(?:{_UNITS})(?![\w-]))|(?<=\bmin) (?=\d\d\b)|(?<=\bh) (?=\d\d\b)")  # of a figure
_FIGURE = re.compile(r"[-+$<(±]?[\s$]*\d")


def console(*, stderr: bool = False) -> Console:
    """Return a new rich console for standard output or standard error. Its width is that of the terminal, or COLUMNS; if there is neither,
    as for a pipe, lines are never broken. `stderr`: for standard error.
    """
    known = (sys.stderr if stderr else sys.stdout).isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return Console(stderr=stderr, highlight=False, emoji=False, markup=False, width=None if known else ENDLESS)


def show(*parts: RenderableType | str, stderr: bool = False) -> None:
    """Print texts and tables, one below the other. Lines of text are broken between words, never inside a figure; control characters are
    shown as escapes. `stderr`: print to standard error in place of standard output.
    """
    screen = console(stderr=stderr)
    for part in parts:
        screen.print(
            WholeLine(_text(part)) if isinstance(part, str | Text) else part,
            crop=False,
        )


@dataclass(frozen=True)
class WholeLine:
    """Text for the terminal whose lines are broken only between words, never inside a figure or path."""

    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield this text's lines for the width of the terminal. Called by rich when it prints this object."""
        yield from _forbid_wrapping(lines_of(self.text, options.max_width, console))


@dataclass(frozen=True)
class TextTable:
    """Table for the terminal with a title and one line for each row; long text in the last column is continued on further lines. If the
    terminal is too narrow, each row becomes a block of lines. Columns of figures are aligned right. `title`: "" for none; `head`: names of
    the columns, all "" for no head.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield this table's lines for the width of the terminal. If too little width is left for the last column, each row becomes a block
        of lines (see `_records`). Called by rich when it prints this object.
        """
        if self.title:
            yield from _forbid_wrapping(
                lines_of(Text(quote_controls(self.title), style="italic"), options.max_width, console)
            )
        head = [Text(name, style="dim") for name in self.head]
        rows = [[_text(cell) for cell in row] for row in self.rows]
        columns = list(zip(head, *rows, strict=True))
        widths = [max(cell.cell_len for cell in column) for column in columns]
        left = options.max_width - sum(widths[:-1]) - 2 * (len(widths) - 1)
        if left < min(widths[-1], LEAST):
            yield from _forbid_wrapping(self._records(rows, options.max_width, console))
            return
        right = [all(_FIGURE.match(text) or text in ("", DASH) for text in (c.plain for c in cs[1:])) for cs in columns]
        for row in (head, *rows) if any(self.head) else rows:
            cells = [_pad(cell, n, is_right) for cell, n, is_right in zip(row[:-1], widths, right, strict=False)]
            last, *more = lines_of(row[-1], min(left, widths[-1]), console)
            line = Text("  ").join([*cells, _pad(last, min(left, widths[-1]), right[-1])])
            line.rstrip()
            hanging = Text(" " * (sum(widths[:-1]) + 2 * len(cells)))
            yield from _forbid_wrapping([line, *(hanging + each for each in more)])

    def _records(self, rows: Sequence[Sequence[Text]], width: int, console: Console) -> list[Text]:
        """Return the lines of the rows as blocks, for a narrow terminal: the first cell, and below it each other cell that is not empty,
        after its column's name. `width`: columns of the terminal.
        """
        found = []
        begin = max(map(len, self.head[1:]), default=0) + 4
        for row in rows:
            first = Text(f"{self.head[0]} ", style="dim") if self.head[0] else Text("")
            found += lines_of(first + row[0], width, console)
            for name, cell in zip(self.head[1:], row[1:], strict=True):
                beside, *below = lines_of(cell, max(LEAST, width - begin), console) if cell.plain else [None]
                if beside is not None:
                    found += [Text(f"  {name:<{begin - 2}}", style="dim") + beside]
                    found += [Text(" " * begin) + each for each in below]
        return found


def lines_of(text: Text, width: int, console: Console) -> list[Text]:
    """Return the text broken into lines of at most `width` columns, at least one line. Lines are broken between words, never inside a
    figure; a word that is longer than a line stays whole.
    """
    held = text.copy()
    held.plain = _INSIDE.sub(_HELD, held.plain.replace(GAP, _HELD))
    found = list[Text]()
    for line in held.split("\n", allow_blank=True):
        begin, breaks = 0, list[int]()
        for word in re.finditer(r"\S+", line.plain):
            if word.end() - begin > width and word.start() > begin:
                begin = word.start()
                breaks.append(begin)
        for part in line.divide(breaks):
            part.plain = part.plain.replace(_HELD, " ")
            part.rstrip()
            found.append(part)
    return found or [Text("")]


def _text(cell: Cell) -> Text:
    """Return a table cell as a rich text of its own, in which control characters are replaced by visible escapes. If there are any, styles
    inside the text are lost.
    """
    if isinstance(cell, str):
        return Text(quote_controls(cell))
    return cell.copy() if quote_controls(cell.plain) == cell.plain else Text(quote_controls(cell.plain), cell.style)


def _pad(cell: Text, width: int, right: bool) -> Text:
    """Pad the cell with spaces to `width` columns, in place, and return it. `right`: align right."""
    cell.plain = cell.plain.replace(GAP, " ")
    (cell.pad_left if right else cell.pad_right)(width - cell.cell_len)
    return cell


def _forbid_wrapping(lines: Sequence[Text]) -> RenderResult:
    """Mark the lines so that the console neither wraps nor cuts them, and yield them."""
    for line in lines:
        line.no_wrap, line.overflow, line.end = True, "ignore", "\n"
        yield line


# --- tables -----------------------------------------------------------------------------------------------------------
# Tables for the terminal: one run's summary, and several runs side by side with a last line that says what won.

LABEL_STYLES = {
    "measured-local": "cyan",
    "measured-aws": "green",
    "published": "magenta",
    "projected": "yellow",
}


def label(name: str) -> Text:
    """Return the origin of a figure, such as `measured-aws`, as text in brackets and in the colour of this origin."""
    return Text(f"[{name}]", style=LABEL_STYLES.get(name, "red"))


def summary(result: Result, on_aws: OnAws | None = None) -> RenderableType:
    """Return one run for the terminal, to be printed by `show`: the projection `on_aws` if there is one; then time, dollars, traffic and
    stages where it ran; and warnings. `result`: content of result.json.
    """
    parts: list[RenderableType] = [_title_line(result), Text()]
    if on_aws is not None:
        time, dollars = on_aws.shown
        parts.append(Text.assemble((f"{AWS}, by simulation", "bold"), f": {time}; {dollars}  ", label("projected")))
        parts += [*(Text(f"  {limit}") for limit in on_aws.limits), Text()]
    parts += [
        Text.assemble((place_of(result), "bold"), "  ", label(result["label"])),
        _figures_table(result),
        Text(),
        _stages_table(result),
    ]
    parts += [Text(f"! {warning}", style="bold red") for warning in warnings(result)]
    return Group(*(WholeLine(each) if isinstance(each, Text) else each for each in parts))


def warnings(result: Result) -> list[str]:
    """Return a sentence for everything that makes a run's figures doubtful: it failed, is incomplete or damaged, was not checked, or
    diverged; an empty list if nothing does. `result`: content of result.json.
    """
    found = []
    if result["outcome"] != "finished":
        found.append(f"this run failed: {result.get('failure') or 'no cause was recorded'}")
    found += [f"incomplete: {sentence}" for sentence in result["incomplete"]]
    found += [f"damaged: {sentence}" for sentence in result.get("damaged", [])]
    if result["completeness"] != "checked":
        found.append(f"completeness {result['completeness']}")
    if any(epoch["val_loss"] is None for epoch in result["epochs"]):
        found.append("diverged: the validation loss is not a finite number in at least one epoch")
    return found


def _title_line(result: Result) -> Text:
    """Return a title with the run's architecture, model, data and size. `result`: content of result.json."""
    return Text.assemble((result["architecture"], "bold"), f"  {display.describe_run(result)}")


def _figures_table(result: Result) -> TextTable:
    """Return a table of a run's metric, time, dollars, invocations and traffic, and of staleness and excluded workers if there were any.
    `result`: content of result.json.
    """
    rows = list[tuple[Cell, ...]]()

    def add(*cells: Cell) -> None:
        """Append a row with these cells to the table."""
        rows.append(cells)

    cost, made, epochs = result["cost"], result["invocations"], result["epochs"]
    priced = f"{cost['region']}, {cost['prices_as_of']}" if cost.get("region") else str(cost["prices_as_of"])
    basis = Text.assemble(label(cost["label"]), f" {cost['basis']}, prices of {priced}")
    metric = display.metric_of(result)
    value = (result["final"] or {}).get("val_metric", epochs[-1]["val_metric"] if epochs else None)
    waited_s = sum(step["slot_wait_s"] for step in result["steps"])
    waits = (
        f"functions waited {display.seconds(waited_s)} in total for a core of this machine" if waited_s > 0.05 else ""
    )
    add(metric.words, display.format_metric(value, metric), "on the validation set")
    add("time", display.seconds(result["duration_s"]), waits)
    add(
        "cost by the papers' method",
        display.usd(cost["paper_method_usd"]),
        Text.assemble(label(cost["label"]), f" {cost['paper_method']}"),
    )
    add(name_dollars(result), display.usd(cost["full_usd"]), basis)
    add("invocations", f"{made['count']:,}", display.describe_attempts(result))
    if stale := result.get("staleness"):
        rounds = f"rounds at most, {stale['mean']:.2f} on average over {stale['gradients']:,} gradients of peers"
        add("staleness", f"{stale['max']:.0f}", rounds)
    for worker, rounds in display.describe_dropped(result).items():
        add("excluded", f"worker {worker}", f"from {rounds}, because its contribution was not finite")
    for channel, moved in result["traffic"].items():
        facts = f"{display.bytes_(moved['bytes_out'])} sent, {moved['requests']:,} requests"
        add(channel.replace("_", " "), display.bytes_(moved["bytes_in"]), f"received, {facts}")
    return TextTable("", ["", "", ""], rows)


def _stages_table(result: Result) -> TextTable:
    """Return a table of a run's time by stage. `result`: content of result.json."""
    sheet = stages_sheet(result)
    return TextTable("stages", sheet.head, sheet.rows)


def comparison(found: Comparison) -> RenderableType:
    """Return a comparison of several runs for the terminal, to be printed by `show`: a table with one row for each run, the caveats,
    projections on AWS, and the verdict as the last line.
    """
    metric, goal = found.metric, found.to_goal
    labels = {entry.label for entry in found.entries}
    apart = len(labels) > 1  # else the label stands once, above
    dollars = name_dollars(*(run.result for run in found.runs))
    head = [
        "run",
        *(["label"] if apart else []),
        f"best {metric.words}",
        *([f"time {goal}", f"papers' method {goal}", f"{dollars} {goal}"] if goal else []),
        "time",
        dollars,
        "moved",
    ]
    rows: list[list[Cell]] = [
        [
            Text(entry.display_name, style="bold"),
            *([label(entry.label)] if apart else []),
            display.format_metric(entry.best_metric, metric),
            *(entry.to_goal if goal else []),
            display.seconds(entry.duration_s),
            display.usd(entry.full_usd),
            display.bytes_(entry.moved_bytes),
        ]
        for entry in found.entries
    ]
    notes = [Text(f"! {mark}", style="yellow") for mark in found.marks]
    if any(entry.cost_label == "projected" for entry in found.entries):
        notes.append(Text.assemble(label("projected"), " dollars: this machine's seconds at AWS's prices"))
    for name, known in found.on_aws.items():
        time, dollars = known.shown
        notes.append(Text.assemble(label("projected"), f" {name} on AWS, by simulation: {time}; {dollars}"))
        notes += [Text(f"  {limit}") for limit in known.limits]
    above = [] if apart else [label(*labels)]
    lines = [WholeLine(each) for each in (*notes, Text(found.verdict, style="bold"))]
    return Group(*map(WholeLine, above), TextTable("", head, rows), *lines)
