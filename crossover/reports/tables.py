"""Tables for the terminal: one run's summary, and several runs side by side with a last line that says what won."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from crossover.reports import display
from crossover.reports.comparison import Comparison
from crossover.reports.folder import Result
from crossover.reports.on_aws import OnAws
from crossover.reports.page import stages_sheet

LABEL_STYLES = {
    "measured-local": "cyan",
    "measured-aws": "green",
    "published": "magenta",
    "projected": "yellow",
}


def label(name: str) -> Text:
    """A label, always in the same colour and brackets."""
    return Text(f"[{name}]", style=LABEL_STYLES.get(name, "red"))


def summary(result: Result, on_aws: OnAws | None = None) -> RenderableType:
    """One run: outcome, metric, time, cost both ways, traffic, stages; what it would take on AWS; and what is missing, if anything is."""
    parts: list[RenderableType] = [_title(result), Padding(_figures(result), (1, 0, 1, 0)), _stages(result)]
    if on_aws is not None:
        time, dollars = on_aws.shown
        parts.append(Text.assemble("\non AWS, by simulation: ", time, "; ", dollars, "  ", label("projected")))
        parts += [Text(f"  {limit}") for limit in on_aws.limits]
    parts += [Text(f"! {warning}", style="bold red") for warning in warnings(result)]
    return Group(*parts)


def warnings(result: Result) -> list[str]:
    """What a reader must know before believing the figures."""
    found = []
    if result["outcome"] != "finished":
        found.append(f"this run failed: {result.get('failure') or 'no cause was recorded'}")
    found += [f"incomplete: {sentence}" for sentence in result["incomplete"]]
    if result["completeness"] != "checked":
        found.append(f"completeness {result['completeness']}")
    if any(epoch["val_loss"] is None for epoch in result["epochs"]):
        found.append("diverged: the validation loss is not a finite number in at least one epoch")
    return found


def _title(result: Result) -> Text:
    return Text.assemble((result["architecture"], "bold"), "  ", label(result["label"]), f"  {display.made_of(result)}")


def _figures(result: Result) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column()
    cost, made, epochs = result["cost"], result["invocations"], result["epochs"]
    basis = Text.assemble(label(cost["label"]), f" {cost['basis']}, prices of {cost['prices_as_of']}")
    metric = display.metric_of(result)
    value = (result["final"] or {}).get("val_metric", epochs[-1]["val_metric"] if epochs else None)
    waited_s = sum(step["slot_wait_s"] for step in result["steps"])
    waits = f"functions waited {display.seconds(waited_s)} in all for a core of this machine" if waited_s > 0.05 else ""
    if display.trains(result):
        table.add_row(metric.words, display.judged(value, metric), "on the validation set")
    else:
        table.add_row(
            "means", display.checked(result), "bit for bit, to those of one process that adds in the same order"
        )
        between = "from the first aggregator's start to the last one's end"
        table.add_row("aggregation", display.seconds((result["final"] or {}).get("seconds")), between)
    table.add_row("time", display.seconds(result["duration_s"]), waits)
    table.add_row(
        "cost, papers' method",
        display.usd(cost["paper_method_usd"]),
        Text.assemble(label(cost["label"]), f" {cost['paper_method']}"),
    )
    table.add_row("cost, in full", display.usd(cost["full_usd"]), basis)
    table.add_row("invocations", f"{made['count']:,}", display.attempts(result))
    if stale := result.get("staleness"):
        rounds = f"rounds old at most, {stale['mean']:.2f} in the mean of {stale['gradients']:,} of peers' gradients"
        table.add_row("staleness", f"{stale['max']:.0f}", rounds)
    for worker, rounds in display.dropped(result).items():
        table.add_row("dropped", f"worker {worker}", f"from {rounds}, where its contribution was not finite")
    for channel, moved in result["traffic"].items():
        facts = f"{display.bytes_(moved['bytes_out'])} sent, {moved['requests']:,} requests"
        table.add_row(channel.replace("_", " "), display.bytes_(moved["bytes_in"]), f"received, {facts}")
    return table


def _stages(result: Result) -> Table:
    sheet = stages_sheet(result)
    table = Table(title="stages", title_justify="left", box=None, header_style="dim", padding=(0, 2, 0, 0))
    for place, column in enumerate(sheet.head):
        table.add_column(column, justify="right" if place else "left")
    for stage, *figures in sheet.rows:
        table.add_row(Text(stage), *figures)
    return table


def comparison(found: Comparison) -> RenderableType:
    """Several runs: one row each, the marks, and the verdict last."""
    metric = found.metric
    goal = found.to_goal
    table = Table(box=None, header_style="dim", padding=(0, 1, 0, 0))
    table.add_column("run", style="bold", no_wrap=True)
    labels = {entry.label for entry in found.entries}
    if len(labels) > 1:  # else once, above: figures must stay whole where a terminal has 80 columns
        table.add_column("label", no_wrap=True)
    for column in (
        *([f"best {metric.words}"] if found.trains else []),
        *([f"time {goal}", f"papers' method {goal}", f"in full {goal}"] if goal else []),
        "time",
        "in full",
        "moved",
    ):
        table.add_column(Text(column), justify="right", min_width=8)
    for entry in found.entries:
        table.add_row(
            Text(entry.display_name),
            *([label(entry.label)] if len(labels) > 1 else []),
            *([display.judged(entry.best_metric, metric)] if found.trains else []),
            *(entry.to_goal if goal else []),
            display.seconds(entry.duration_s),
            display.usd(entry.full_usd),
            display.bytes_(entry.moved_bytes),
        )
    notes = [Text(f"! {mark}", style="yellow") for mark in found.marks]
    if any(entry.cost_label == "projected" for entry in found.entries):
        notes.append(Text.assemble(label("projected"), " dollars are projected from local seconds"))
    for name, known in found.on_aws.items():
        time, dollars = known.shown
        notes.append(Text.assemble(label("projected"), f" {name} on AWS, by simulation: {time}; {dollars}"))
        notes += [Text(f"  {limit}") for limit in known.limits]
    above = [label(labels.pop())] if len(labels) == 1 else []
    return Group(*above, table, *notes, Text(found.verdict, style="bold"))
