"""Contents of a report page as data: tiles, plots and tables of text. The template only lays them out."""

import base64
import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from markupsafe import Markup

from crossover.errors import quote_controls
from crossover.experiment import flatten_fields
from crossover.reports import display
from crossover.reports.display import PALETTE

LABELS = {
    "measured-local": "seconds and bytes measured on this machine",
    "measured-aws": "measured on AWS, from the platform's own records",
    "published": "printed in a paper, not measured here",
    "projected": "computed from measured seconds and AWS's prices, not billed by AWS",
}


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A headline figure at the top of a page. `name`: what it is; `value`: the figure as text; `beside`: a second figure that belongs to
    it; `note`: small text below; `label`: origin of the figure, such as measured-local; `where`: a key of PLACES, the heading under which
    it is shown.
    """

    name: str
    value: str
    beside: str = ""
    note: str = ""
    label: str | None = None
    where: str = ""  # one of PLACES: whose clock and bill the figure comes from


MOST_ROWS = 6  # of a table that is not folded
AWS, HERE = "On AWS", "On this machine"
PLACES = {AWS: "aws", HERE: "here"}  # with the style that marks each of them


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A picture of a page with its caption. `svg`: inline SVG made by this project, in which all texts are escaped; `wide`: whether it has
    the page's full width; `label`: origin of the figures; `choice`: values of the page's choices for which it is shown, empty if it is
    always shown; `narrow`: the same picture drawn for a phone's width, None if `svg` is for every width.
    """

    title: str
    svg: Markup
    narrow: Markup | None = None
    caption: str = ""
    wide: bool = False
    label: str | None = None
    choice: Sequence[str] = ()

    @property
    def download(self) -> str:
        """Link to the picture as an SVG file, which contains the file as data; "" for a wide picture, which may be large."""
        return "" if self.wide else _link("image/svg+xml", as_svg_file(str(self.svg)))


def as_svg_file(svg: str) -> str:
    """Return the text of an SVG file for `svg`, the inline picture of a page: with the SVG name space, and with fixed colours in place of
    the page's CSS variables.
    """
    for n, (colour, _) in enumerate(PALETTE):
        svg = svg.replace(f"var(--series-{n})", colour)
    svg = svg.replace("var(--faint)", "#8886").replace("var(--card)", "none").replace("currentColor", "#777")
    return (
        svg if "xmlns=" in svg.split(">", 1)[0] else svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    )


def _link(kind: str, text: str) -> str:
    """Return a data URL that contains `text`. `kind`: media type, such as text/csv."""
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table of a page. `head`, `rows`: texts; `note`: text below; `words`, `last_words`: number of leading and of trailing columns with
    words (aligned left), the others are figures (aligned right); `folded`: whether it is closed at first; `label`: origin of the figures;
    `labels`: origin of a column's figures, by the column's head, if it differs from `label`; `where`: a key of PLACES if all figures are
    from there; `stacked`: whether each row becomes a block of lines on a phone, so that no column is out of sight; `command`: text to copy,
    below the note, "" for none.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    words: int = 1
    last_words: int = 0
    folded: bool = False
    label: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    where: str = ""
    stacked: bool = False
    command: str = ""

    def has_figures(self, column: int) -> bool:
        """Return whether the `column`, counted from 0, has figures, not words."""
        return self.words <= column < len(self.head) - self.last_words

    @property
    def download(self) -> str:
        """Link to the table as a CSV file, which contains the file as data."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [display.escape_formula(cell) for cell in row] for row in (self.head, *self.rows)
        )
        return _link("text/csv;charset=utf-8", text.getvalue())


@dataclass(frozen=True, kw_only=True)
class Page:
    """Content of one HTML page, which a template lays out. `title`: the finding, as a sentence; `subtitle`: text below it; `links`: (path,
    words) of files in the same folder; `tiles`, `plots`, `sheets`: figures, pictures and tables; `kind`: sort of page; `labels`: origins of
    its figures; `verdict`: the whole finding; `assumptions`: what the finding depends on, the first open and the others folded; `choices`:
    options that select which plot is shown; `commands`: command lines to copy; `warnings`, `caveats`: doubts about these figures, and about
    all such figures; `folded`: pages inside this one, closed at first; `play`, `data`, `styles`, `scripts`: HTML, JSON, CSS and JavaScript
    of an interactive part.
    """

    title: str  # the finding, as a sentence with a figure
    subtitle: str
    labels: Sequence[str]
    kind: str = ""  # what sort of page it is
    links: Sequence[tuple[str, str]] = ()  # to files of the same folder: path and words
    verdict: str = ""  # the whole of the finding, folded below it
    assumptions: Sequence[str] = ()  # what the finding depends on
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)  # which of the plots is shown
    commands: Sequence[str] = ()  # to copy: what to type next
    warnings: Sequence[str] = ()  # something is wrong with these very figures
    caveats: Sequence[str] = ()  # what is so of all such figures
    tiles: Sequence[Tile] = ()
    plots: Sequence[Plot] = ()
    sheets: Sequence[Sheet] = ()
    folded: Sequence["Page"] = field(default_factory=tuple)
    play: str = ""  # our own elements, which `scripts` move by `data`, a JSON text; `styles`: of what they draw with
    data: str = ""
    styles: Sequence[Markup] = ()
    scripts: Sequence[Markup] = ()

    @property
    def groups(self) -> list[tuple[str, list[Tile]]]:
        """The page's tiles grouped by the heading (`where`) under which they are shown: (heading, tiles), in their order. Only neighbouring
        tiles are put together, so a heading may come twice.
        """
        return [(where, list(tiles)) for where, tiles in groupby(self.tiles, key=lambda tile: tile.where)]


def plot(
    title: str, svg: str, *, caption: str = "", wide: bool = False, label: str | None = None, narrow: str | None = None
) -> Plot:
    """Return a picture for a page. `svg`: inline SVG from `plots.svg`, in which all texts are escaped; `caption`: sentence below it;
    `wide`: whether it has the page's full width; `label`: origin of the figures, such as measured-local; `narrow`: inline SVG of the same
    picture for a phone's width, None if `svg` is for every width.
    """
    shown, small = (Markup(quote_controls(each)) if each else None for each in (svg, narrow))
    return Plot(title=title, svg=shown or Markup(), caption=caption, wide=wide, label=label, narrow=small)


def offer_choice(found: Sequence[Plot]) -> dict[str, Any]:
    """Return values for the fields `plots` and `choices` of a Page that shows one of the plots at a time, chosen by its title. A single
    plot is shown without a choice; the result then lacks `choices`.
    """
    if len(found) < 2:
        return {"plots": found}
    titles = [each.title for each in found]
    return {
        "plots": [replace(each, choice=(each.title,)) for each in found],
        "choices": {"Chart": titles},
    }


def shorten(sheet: Sheet, *, best: Sequence[Sequence[str]] | None = None, what: str = "that come first") -> list[Sheet]:
    """Return the table in a list if it has at most MOST_ROWS rows; otherwise two tables: the first MOST_ROWS rows, and the whole table,
    folded. `best`: the rows in another order, from which the first table takes its rows; `what`: words for the chosen rows, which follow
    "The 6 of 9".
    """
    if len(sheet.rows) <= MOST_ROWS:
        return [sheet]
    note = f"The {MOST_ROWS} of {len(sheet.rows)} {what}; all are folded below. {sheet.note}".strip()
    title = f"{sheet.title}, all {len(sheet.rows)}"
    shown = list(sheet.rows if best is None else best)[:MOST_ROWS]
    return [replace(sheet, rows=shown, note=note), replace(sheet, title=title, folded=True)]


def place_of(result: Mapping[str, Any]) -> str:
    """Return the heading for a run's figures: AWS if its seconds were measured there, else HERE. `result`: content of its result.json."""
    return AWS if result["label"] == "measured-aws" else HERE


def name_dollars(*results: Mapping[str, Any]) -> str:
    """Return what the dollars of runs are: their total AWS bills if all ran on AWS, otherwise dollars at AWS's prices, since those of a run
    on this machine are this machine's seconds at these prices. `results`: contents of their result.json.
    """
    return "total AWS bill" if all(place_of(each) == AWS for each in results) else "dollars at AWS's prices"


def list_labels(result: Mapping[str, Any]) -> list[str]:
    """Return the origins of a run's figures: of its seconds and bytes, and of its dollars if that differs. `result`: content of its
    result.json.
    """
    return list(dict.fromkeys((result["label"], result["cost"]["label"])))


def epochs_sheet(result: Mapping[str, Any]) -> list[Sheet]:
    """Return a folded table of the values of each epoch of a run, in a list; an empty list if the run has no epochs. `result`: content of
    result.json.
    """
    metric = display.metric_of(result)
    rows = [
        [
            str(epoch["epoch"]),
            display.seconds(epoch["elapsed_s"]),
            display.format_metric(epoch["val_metric"], metric),
            display.number(epoch["train_loss"]),
            display.number(epoch["val_loss"]),
            display.usd(epoch["paper_method_usd"]),
            display.usd(epoch["full_usd"]),
        ]
        for epoch in result["epochs"]
    ]
    dollars = ("papers' method", name_dollars(result))
    head = ["epoch", "time", metric.words, "training loss", "validation loss", *dollars]
    labels = label_dollars(dollars, result["label"], result["cost"]["label"])
    sheet = Sheet(title="Epochs", head=head, rows=rows, words=0, folded=True, label=result["label"], labels=labels)
    return [sheet] if rows else []


def label_dollars(heads: Sequence[str], label: str | None, cost_label: str | None) -> dict[str, str]:
    """Return the origin of the dollars, `cost_label`, for each of the columns `heads`; {} if it is None, or `label`, that of the table."""
    return {} if cost_label in (None, label) else dict.fromkeys(heads, str(cost_label))


def stages_sheet(result: Mapping[str, Any]) -> Sheet:
    """Return a table with the count, time, processor use and peak memory of each stage of a run, as in the 2023 paper's Table I. `result`:
    content of result.json.
    """
    rows = [
        [
            row["stage"],
            f"{row['count']:,}",
            display.seconds(row["wall_s"]),
            display.seconds(row["wall_s"] / row["count"]),
            display.percent(row["cpu_s"] / row["wall_s"] if row["wall_s"] else None),
            f"{row['max_rss_mb']:,.0f} MB",
        ]
        for row in result["stages"]
    ]
    note = "Sums over all invocations, which partly run in parallel. Memory: peak of the process that ran the stage."
    return Sheet(
        title="Stages",
        head=["stage", "count", "wall", "mean", "cpu", "peak memory"],
        rows=rows,
        note=note,
        label=result["label"],
    )


def steps_sheet(result: Mapping[str, Any]) -> Sheet:
    """Return a table with the invocations, failures and times of each step of a run. `result`: content of result.json."""
    rows = [
        [
            row["step"],
            f"{row['count']:,}",
            f"{row['cold']:,}",
            f"{row['failed']:,}",
            display.seconds(row["billed_s"]),
            display.seconds(row["wall_s"]),
            display.seconds(row["init_s"]),
            display.seconds(row["slot_wait_s"]),
        ]
        for row in result["steps"]
    ]
    head = ["step", "invocations", "cold", "failed", "billed", "wall", "init", "waited for a core"]
    note = "Billed: wall time and INIT of every attempt, each rounded up to a millisecond. Waiting for a core is not billed."
    return Sheet(title="Steps", head=head, rows=rows, note=note, label=result["label"])


def cost_sheet(result: Mapping[str, Any], *, title: str = "Cost by item") -> Sheet:
    """Return a table, with the given `title`, of the lines of a run's AWS bill, the most expensive first, and their total. `result`:
    content of result.json.
    """
    cost = result["cost"]
    rows = [
        [line["item"], display.usd(line["usd"]), display.number(line["quantity"]), line["unit"], line["as_of"]]
        for line in sorted(cost["lines"], key=lambda line: -line["usd"])
    ]
    rows.append(["total", display.usd(cost["full_usd"]), "", "", ""])
    note = (
        f"{cost['basis'].capitalize()}; on-demand prices of {cost['region']}, without free tier. By the papers' method: "
        f"{display.usd(cost['paper_method_usd'])} ({cost['paper_method']})."
    )
    head = ["item", "dollars", "quantity", "unit", "price as of"]
    return Sheet(title=title, head=head, rows=rows, note=note, last_words=2, label=cost["label"])


def traffic_sheet(result: Mapping[str, Any]) -> Sheet:
    """Return a table with the bytes and requests of each channel of a run, such as the object store. `result`: content of result.json."""
    rows = [
        [
            channel.replace("_", " "),
            display.bytes_(moved["bytes_in"]),
            display.bytes_(moved["bytes_out"]),
            f"{moved['requests']:,}",
        ]
        for channel, moved in result["traffic"].items()
    ]
    note = "Payload that steps received and sent, without protocol overhead."
    return Sheet(
        title="Traffic", head=["channel", "received", "sent", "requests"], rows=rows, note=note, label=result["label"]
    )


def facts_sheet(title: str, facts: Mapping[str, Any], *, folded: bool = False, note: str = "") -> Sheet:
    """Return a table of names and values with the given `title`. `facts`: the values by name; names of nested mappings are joined by dots;
    `folded`: whether the table is closed at first; `note`: text below it.
    """
    rows = [[name, display.plain(value)] for name, value in flatten_fields(facts)]
    return Sheet(title=title, head=["name", "value"], rows=rows, note=note, words=2, folded=folded)
