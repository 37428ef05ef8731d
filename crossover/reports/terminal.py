"""Text and tables for any terminal and any pipe: no figure is cut, and none is broken over lines."""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from crossover.reports.display import DASH, GAP

Cell = str | Text

ENDLESS = 1_000_000  # columns of a pipe: a line stays whole for the program that reads it
LEAST = 24  # columns for a table's last column, which may be broken between words; with fewer its rows become records
_HELD = "\ue000"  # a space at which no line is broken: rich breaks lines at a GAP too
_UNITS = r"%|ms|s|min|h|d|days?|hours?|minutes|vCPUs?|[kMGT]?B|MiB|GiB|x"
_INSIDE = re.compile(rf"(?<=\d) (?=(?:{_UNITS})(?![\w-]))|(?<=\bmin) (?=\d\d\b)|(?<=\bh) (?=\d\d\b)")  # of a figure
_FIGURE = re.compile(r"[-+$<(±]?[\s$]*\d")


def console(*, stderr: bool = False) -> Console:
    """As wide as the terminal, or as COLUMNS says; endless in a pipe of which nobody says how wide its reader's screen is."""
    known = (sys.stderr if stderr else sys.stdout).isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return Console(stderr=stderr, highlight=False, emoji=False, markup=False, width=None if known else ENDLESS)


def show(*parts: RenderableType | str, stderr: bool = False) -> None:
    """One under the other; text is broken between words, and not inside a figure."""
    screen = console(stderr=stderr)
    for part in parts:
        screen.print(
            WholeLine(part if isinstance(part, Text) else Text(part)) if isinstance(part, str | Text) else part,
            crop=False,
        )


@dataclass(frozen=True)
class WholeLine:
    """Text whose figures, paths and words are whole."""

    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _printed(lines_of(self.text, options.max_width, console))


@dataclass(frozen=True)
class TextTable:
    """`rows` under `head` where they fit, a last column of words broken; else records under one another. Columns of figures end at the
    right.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield from _printed(lines_of(Text(self.title, style="italic"), options.max_width, console))
        head = [Text(name, style="dim") for name in self.head]
        rows = [[cell.copy() if isinstance(cell, Text) else Text(cell) for cell in row] for row in self.rows]
        columns = list(zip(head, *rows, strict=True))
        widths = [max(cell.cell_len for cell in column) for column in columns]
        left = options.max_width - sum(widths[:-1]) - 2 * (len(widths) - 1)
        if left < min(widths[-1], LEAST):
            yield from _printed(self._records(rows, options.max_width, console))
            return
        right = [all(_FIGURE.match(text) or text in ("", DASH) for text in (c.plain for c in cs[1:])) for cs in columns]
        for row in (head, *rows) if any(self.head) else rows:
            cells = [_padded(cell, n, is_right) for cell, n, is_right in zip(row[:-1], widths, right, strict=False)]
            last, *more = lines_of(row[-1], min(left, widths[-1]), console)
            line = Text("  ").join([*cells, _padded(last, min(left, widths[-1]), right[-1])])
            line.rstrip()
            hanging = Text(" " * (sum(widths[:-1]) + 2 * len(cells)))
            yield from _printed([line, *(hanging + each for each in more)])

    def _records(self, rows: Sequence[Sequence[Text]], width: int, console: Console) -> list[Text]:
        """Each row as a block: its first cell, and under it the others that hold something, each after its column's name."""
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
    """Broken between words, never inside a figure; a word that is longer than a line stays whole. At least one line."""
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


def _padded(cell: Text, width: int, right: bool) -> Text:
    cell.plain = cell.plain.replace(GAP, " ")
    (cell.pad_left if right else cell.pad_right)(width - cell.cell_len)
    return cell


def _printed(lines: Sequence[Text]) -> RenderResult:
    for line in lines:
        line.no_wrap, line.overflow, line.end = True, "ignore", "\n"
        yield line
