"""Tables for the terminal: one run's summary, and several runs side by side with a last line that says what won."""

from rich.console import Group, RenderableType
from rich.text import Text

from crossover.reports import display
from crossover.reports.comparison import Comparison
from crossover.reports.folder import Result
from crossover.reports.on_aws import OnAws
from crossover.reports.page import stages_sheet
from crossover.reports.terminal import Cell, TextTable, WholeLine

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
    parts: list[RenderableType] = [_title(result), Text(), _figures(result), Text(), _stages(result)]
    if on_aws is not None:
        time, dollars = on_aws.shown
        parts.append(Text.assemble("\non AWS, by simulation: ", time, "; ", dollars, "  ", label("projected")))
        parts += [Text(f"  {limit}") for limit in on_aws.limits]
    parts += [Text(f"! {warning}", style="bold red") for warning in warnings(result)]
    return Group(*(WholeLine(each) if isinstance(each, Text) else each for each in parts))


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


def _figures(result: Result) -> TextTable:
    rows = list[tuple[Cell, ...]]()

    def add(*cells: Cell) -> None:
        rows.append(cells)

    cost, made, epochs = result["cost"], result["invocations"], result["epochs"]
    basis = Text.assemble(label(cost["label"]), f" {cost['basis']}, prices of {cost['prices_as_of']}")
    metric = display.metric_of(result)
    value = (result["final"] or {}).get("val_metric", epochs[-1]["val_metric"] if epochs else None)
    waited_s = sum(step["slot_wait_s"] for step in result["steps"])
    waits = f"functions waited {display.seconds(waited_s)} in all for a core of this machine" if waited_s > 0.05 else ""
    if display.trains(result):
        add(metric.words, display.judged(value, metric), "on the validation set")
    else:
        add("means", display.checked(result), "bit for bit, to those of one process that adds in the same order")
        between = "from the first aggregator's start to the last one's end"
        add("aggregation", display.seconds((result["final"] or {}).get("seconds")), between)
    add("time", display.seconds(result["duration_s"]), waits)
    add(
        "cost, papers' method",
        display.usd(cost["paper_method_usd"]),
        Text.assemble(label(cost["label"]), f" {cost['paper_method']}"),
    )
    add("cost, in full", display.usd(cost["full_usd"]), basis)
    add("invocations", f"{made['count']:,}", display.attempts(result))
    if stale := result.get("staleness"):
        rounds = f"rounds old at most, {stale['mean']:.2f} in the mean of {stale['gradients']:,} of peers' gradients"
        add("staleness", f"{stale['max']:.0f}", rounds)
    for worker, rounds in display.dropped(result).items():
        add("dropped", f"worker {worker}", f"from {rounds}, where its contribution was not finite")
    for channel, moved in result["traffic"].items():
        facts = f"{display.bytes_(moved['bytes_out'])} sent, {moved['requests']:,} requests"
        add(channel.replace("_", " "), display.bytes_(moved["bytes_in"]), f"received, {facts}")
    return TextTable("", ["", "", ""], rows)


def _stages(result: Result) -> TextTable:
    sheet = stages_sheet(result)
    return TextTable("stages", sheet.head, sheet.rows)


def comparison(found: Comparison) -> RenderableType:
    """Several runs: one row each, the marks, and the verdict last."""
    metric, goal = found.metric, found.to_goal
    labels = {entry.label for entry in found.entries}
    apart = len(labels) > 1  # else the label stands once, above
    head = [
        "run",
        *(["label"] if apart else []),
        *([f"best {metric.words}"] if found.trains else []),
        *([f"time {goal}", f"papers' method {goal}", f"in full {goal}"] if goal else []),
        "time",
        "in full",
        "moved",
    ]
    rows: list[list[Cell]] = [
        [
            Text(entry.display_name, style="bold"),
            *([label(entry.label)] if apart else []),
            *([display.judged(entry.best_metric, metric)] if found.trains else []),
            *(entry.to_goal if goal else []),
            display.seconds(entry.duration_s),
            display.usd(entry.full_usd),
            display.bytes_(entry.moved_bytes),
        ]
        for entry in found.entries
    ]
    notes = [Text(f"! {mark}", style="yellow") for mark in found.marks]
    if any(entry.cost_label == "projected" for entry in found.entries):
        notes.append(Text.assemble(label("projected"), " dollars are projected from local seconds"))
    for name, known in found.on_aws.items():
        time, dollars = known.shown
        notes.append(Text.assemble(label("projected"), f" {name} on AWS, by simulation: {time}; {dollars}"))
        notes += [Text(f"  {limit}") for limit in known.limits]
    above = [] if apart else [label(*labels)]
    lines = [WholeLine(each) for each in (*notes, Text(found.verdict, style="bold"))]
    return Group(*map(WholeLine, above), TextTable("", head, rows), *lines)
