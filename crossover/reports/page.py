"""What a report page is made of, as data: tiles, plots and sheets of text. The template only lays them out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from crossover.experiment import flat
from crossover.reports import display

LABELS = {
    "measured-local": "seconds and bytes measured on this machine",
    "measured-aws": "measured on AWS, from the platform's own records",
    "published": "printed in a paper, not measured here",
    "projected": "computed from measured seconds and AWS's prices, not billed by AWS",
}


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A headline figure, or two that belong together, such as a time and its dollars."""

    name: str
    value: str
    beside: str = ""
    note: str = ""
    label: str | None = None


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A figure with its caption; `svg` comes from our own plots only, which escape what they print."""

    title: str
    svg: Markup
    caption: str = ""
    wide: bool = False
    label: str | None = None


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table of text. `words`: how many leading columns are words (left), the rest are figures (right)."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    words: int = 1
    folded: bool = False
    label: str | None = None


@dataclass(frozen=True, kw_only=True)
class Page:
    """One report.html."""

    title: str
    subtitle: str
    labels: Sequence[str]
    answer: str = ""  # one line: what, time, dollars, and how sure
    verdict: str = ""  # the whole of it, folded below the answer
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


def plot(title: str, svg: str, *, caption: str = "", wide: bool = False, label: str | None = None) -> Plot:
    """`svg` by `plots.svg`: our own markup, in which matplotlib has escaped every text."""
    return Plot(title=title, svg=Markup(svg), caption=caption, wide=wide, label=label)


def epochs_sheet(result: Mapping[str, Any]) -> list[Sheet]:
    """Every value that a run's curves have, where it trained."""
    metric = display.metric_of(result)
    rows = [
        [
            str(epoch["epoch"]),
            display.seconds(epoch["elapsed_s"]),
            display.judged(epoch["val_metric"], metric),
            display.number(epoch["train_loss"]),
            display.number(epoch["val_loss"]),
            display.usd(epoch["paper_method_usd"]),
            display.usd(epoch["full_usd"]),
        ]
        for epoch in result["epochs"]
    ]
    head = ["epoch", "time", metric.words, "training loss", "validation loss", "papers' method", "in full"]
    return [Sheet(title="Epochs", head=head, rows=rows, words=0, folded=True)] if rows else []


def stages_sheet(result: Mapping[str, Any]) -> Sheet:
    """Time, processor and memory by stage: the rows of the 2023 paper's Table I."""
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
    note = "Sums over all invocations, which run side by side. Memory is the peak of the process that ran the stage."
    return Sheet(title="Stages", head=["stage", "count", "wall", "mean", "cpu", "peak memory"], rows=rows, note=note)


def steps_sheet(result: Mapping[str, Any]) -> Sheet:
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
    note = "Billed: wall and INIT of every attempt, each rounded up to a millisecond; waits for a core are not billed."
    return Sheet(title="Steps", head=head, rows=rows, note=note)


def cost_sheet(result: Mapping[str, Any], *, title: str = "Cost, line by line") -> Sheet:
    cost = result["cost"]
    rows = [
        [line["item"], display.usd(line["usd"]), display.number(line["quantity"]), line["unit"], line["as_of"]]
        for line in sorted(cost["lines"], key=lambda line: -line["usd"])
    ]
    rows.append(["all", display.usd(cost["full_usd"]), "", "", ""])
    note = (
        f"{cost['basis'].capitalize()}; on-demand prices of {cost['region']}, without free tier. By the papers' method: "
        f"{display.usd(cost['paper_method_usd'])} ({cost['paper_method']})."
    )
    head = ["item", "dollars", "quantity", "unit", "price as of"]
    return Sheet(title=title, head=head, rows=rows, note=note, label=cost["label"])


def traffic_sheet(result: Mapping[str, Any]) -> Sheet:
    rows = [
        [
            channel.replace("_", " "),
            display.bytes_(moved["bytes_in"]),
            display.bytes_(moved["bytes_out"]),
            f"{moved['requests']:,}",
        ]
        for channel, moved in result["traffic"].items()
    ]
    note = "Payload that steps received and sent, without protocol framing."
    return Sheet(title="Traffic", head=["channel", "received", "sent", "requests"], rows=rows, note=note)


def facts_sheet(title: str, facts: Mapping[str, Any], *, folded: bool = False, note: str = "") -> Sheet:
    rows = [[name, str(value)] for name, value in flat(facts)]
    return Sheet(title=title, head=["name", "value"], rows=rows, note=note, words=2, folded=folded)
