"""The page of one run."""

from collections.abc import Callable, Sequence
from datetime import datetime

from crossover.experiment import OF_TRAINING, Experiment, flat
from crossover.reports import display, plots, published, timeline
from crossover.reports.bands import Band
from crossover.reports.folder import Result, RunFolder
from crossover.reports.on_aws import OnAws
from crossover.reports.page import (
    Page,
    Plot,
    Sheet,
    Tile,
    cost_sheet,
    epochs_sheet,
    facts_sheet,
    plot,
    stages_sheet,
    steps_sheet,
    traffic_sheet,
)
from crossover.reports.tables import warnings


def page(run: RunFolder, on_aws: OnAws | None = None) -> Page:
    """Everything a run's records say, what it would take on AWS, and the papers' figures beside it."""
    result = run.result
    return Page(
        title=result["architecture"],
        subtitle=subtitle(result),
        labels=[result["label"], *({result["cost"]["label"]} - {result["label"]})],
        answer=answer(result, on_aws),
        warnings=[*warnings(result), *_refused(on_aws)],
        tiles=tiles(result, on_aws),
        plots=[*_plots(result), *_timeline(run)],
        sheets=[
            figures_sheet(result, on_aws),
            *epochs_sheet(result),
            stages_sheet(result),
            steps_sheet(result),
            cost_sheet(result),
            traffic_sheet(result),
            *printed([result["architecture"]]),
            _configuration(result),
            facts_sheet("Data", result.get("data", {}), folded=True),
            facts_sheet("Versions", result["versions"], folded=True),
        ],
    )


def subtitle(result: Result) -> str:
    return f"{display.made_of(result)}, started {result['started_at'][:19]} UTC"


def _refused(on_aws: OnAws | None) -> list[str]:
    return [] if on_aws is None or on_aws.would_run else [f"AWS would not run it: {'; '.join(on_aws.problems)}"]


def answer(result: Result, on_aws: OnAws | None = None) -> str:
    """What came of it, how long it takes and what it costs: on AWS, where that is known, else where it ran."""
    metric, value = display.metric_of(result), _judged(result)
    reached = f"{display.judged(value, metric)} {metric.words} after {display.epochs_of(result)} epochs"
    if not display.trains(result):
        reached = f"means {display.checked(result)} to one process's"
    if on_aws is not None and on_aws.would_run:
        time, dollars = on_aws.shown
        return f"{reached}: on AWS in {time} for {dollars}, by simulation."
    return (
        f"{reached}: in {display.seconds(result['duration_s'])} for {display.usd(result['cost']['full_usd'])} in full."
    )


def _judged(result: Result) -> float | None:
    epochs = result["epochs"]
    value: float | None = (result["final"] or {}).get("val_metric", epochs[-1]["val_metric"] if epochs else None)
    return value


def tiles(result: Result, on_aws: OnAws | None = None) -> list[Tile]:
    """What it reached, and one time and one sum of dollars, both of AWS or both of where it ran."""
    cost, metric = result["cost"], display.metric_of(result)
    best = metric.best(e["val_metric"] for e in result["epochs"] if e["val_metric"] is not None)
    judged = Tile(
        name=metric.words,
        value=display.judged(_judged(result), metric),
        note=f"best {display.judged(best, metric)}",
        label=result["label"],
    )
    if not display.trains(result):
        judged = Tile(name="means", value=display.checked(result), note="to one process's, bit for bit")
    if on_aws is not None and on_aws.would_run:
        return [
            judged,
            _middle("time on AWS", on_aws.time, display.seconds, *on_aws.limits),
            _middle("dollars on AWS, in full", on_aws.dollars, display.usd),
        ]
    time, dollars = display.seconds(result["duration_s"]), display.usd(cost["full_usd"])
    return [
        judged,
        Tile(name="time", value=time, note="first start to last end", label=result["label"]),
        Tile(name="dollars in full", value=dollars, note=cost["basis"], label=cost["label"]),
    ]


def _middle(name: str, band: Band, shown: Callable[[float], str], *more: str) -> Tile:
    note = f"by simulation; p5 to p95: {shown(band.p5)} to {shown(band.p95)}"
    return Tile(name=name, value=shown(band.p50), note="; ".join((note, *more)), label="projected")


def figures_sheet(result: Result, on_aws: OnAws | None = None) -> Sheet:
    """Every other figure of the whole run, each with its label."""
    cost, made = result["cost"], result["invocations"]
    requests = sum(channel["requests"] for channel in result["traffic"].values())
    rows = [
        ["time where it ran", display.seconds(result["duration_s"]), result["label"], "first start to last end"],
        ["dollars in full", display.usd(cost["full_usd"]), cost["label"], cost["basis"]],
        ["papers' method", display.usd(cost["paper_method_usd"]), cost["label"], cost["basis"]],
        ["moved", display.bytes_(display.moved(result["traffic"])), result["label"], f"{requests:,} requests"],
        ["invocations", f"{made['count']:,}", result["label"], display.attempts(result)],
    ]
    if on_aws is not None:
        time, dollars = on_aws.shown
        rows += [["on AWS", f"{time}; {dollars}", "projected", "; ".join((on_aws.words, *on_aws.limits))]]
    if stale := result.get("staleness"):
        rows.append(["staleness", f"{stale['mean']:.2f}", "", f"rounds in the mean, {stale['max']:.0f} at most"])
    rows += [
        ["dropped", f"worker {worker}", "", f"from {rounds}: its contribution was not finite"]
        for worker, rounds in display.dropped(result).items()
    ]
    return Sheet(title="The whole run", head=["", "figure", "label", ""], rows=rows, words=4)


def _plots(result: Result) -> list[Plot]:
    epochs = [epoch for epoch in result["epochs"] if epoch["val_metric"] is not None]
    if not epochs:
        return [] if display.trains(result) else _bars(result)
    metric = display.metric_of(result)
    projected = " (projected from local seconds)" if result["cost"]["label"] == "projected" else ""
    in_time = {"validation": [(e["elapsed_s"], e["val_metric"]) for e in epochs]}
    in_usd = {
        "papers' method": [(e["paper_method_usd"], e["val_metric"]) for e in epochs],
        "in full": [(e["full_usd"], e["val_metric"]) for e in epochs],
    }
    losses = {
        "training": [(e["epoch"], e["train_loss"]) for e in epochs if e["train_loss"] is not None],
        "validation": [(e["epoch"], e["val_loss"]) for e in epochs if e["val_loss"] is not None],
    }
    losses = {name: points for name, points in losses.items() if points}
    found = [
        plot(
            f"{metric.words.capitalize()} against time",
            plots.lines(
                in_time,
                x="seconds",
                y=f"validation {metric.words}",
                name="time",
                percent=metric.is_share,
                log_x=plots.spread(in_time),
            ),
        ),
        plot(
            f"{metric.words.capitalize()} against dollars",
            plots.lines(
                in_usd,
                x=f"dollars{projected}",
                y=f"validation {metric.words}",
                name="usd",
                percent=metric.is_share,
                log_x=plots.spread(in_usd),
                format_x=display.usd_tick,
            ),
        ),
    ]
    if losses:
        found.append(plot("Loss", plots.lines(losses, x="epoch", y="loss", name="loss", log_y=True)))
    return [*found, *_bars(result)]


def _bars(result: Result) -> list[Plot]:
    stages = [(row["stage"], row["wall_s"]) for row in result["stages"]]
    lines = sorted(((line["item"], line["usd"]) for line in result["cost"]["lines"]), key=lambda row: -row[1])
    moved = [
        (f"{channel.replace('_', ' ')}, {way}", figures[key])
        for channel, figures in result["traffic"].items()
        for way, key in (("received", "bytes_in"), ("sent", "bytes_out"))
    ]
    top = [(_short(item), usd) for item, usd in lines[:8]]
    draw = plots.bars
    return [
        plot(
            "Time by stage",
            draw(stages, x="seconds, all invocations", name="st", shown=display.seconds, title="Stages"),
        ),
        plot(
            "Largest cost lines",
            draw(top, x="dollars", name="cost", shown=display.usd, tick=display.usd_tick, title="Cost lines"),
        ),
        plot("Traffic", draw(moved, x="bytes", name="tr", shown=display.bytes_, title="Traffic by channel")),
    ]


def _short(item: str) -> str:
    """A cost line's name in the room that a plot has; the table has the whole."""
    item = item.removesuffix(" (price not verified)")
    item = item if len(item) <= 26 else item.split(", ")[0]
    return item if len(item) <= 26 else item[:25] + "…"


def _timeline(run: RunFolder) -> list[Plot]:
    if not run.records:
        return []
    started_at = datetime.fromisoformat(run.result["started_at"]).timestamp()
    epochs = run.result["epochs"]
    first = timeline.opening(run.records, epochs, started_at=started_at)
    merged = " Too many for a screen: neighbours are drawn as one, the first epochs follow singly." if first else ""
    found = [
        plot(
            "Every invocation",
            timeline.draw(run.records, started_at=started_at, epochs=epochs, name="tl"),
            caption=f"{len(run.records):,} invocations, one row per worker. INIT lies before its step; a wait for a "
            f"core of this machine is drawn where its step begins. metrics.jsonl has each with its figures.{merged}",
            wide=True,
        )
    ]
    if first:
        drawn = timeline.draw(first, started_at=started_at, epochs=[], name="tf")
        found.append(plot("The first epochs", drawn, caption=f"The first {len(first):,} of them, singly.", wide=True))
    return found


def printed(architectures: Sequence[str]) -> list[Sheet]:
    """The papers' rows for these architectures, with their source and what does not follow from the paper's formula."""
    shown = {"model", "accuracy", "minutes", "function_s", "epoch_s", "compute_s", "memory_mb", "total_usd", "peer_usd"}
    rows = []
    for row in published.load():
        if row.figures.get("architecture") in architectures and shown & (row.figures.keys() - {"model"}):
            figures = ", ".join(f"{name} {value}" for name, value in row.figures.items() if name in shown)
            rows.append([row.row, figures, row.note, f"{row.paper}, {row.table}"])
    note = "Other models, data and machines than this run's, unless the row says so: to stand beside, not to race."
    head = ["row", "figures", "note", "source"]
    title = "What the papers printed"
    sheet = Sheet(title=title, head=head, rows=rows, note=note, words=4, folded=True, label="published")
    return [sheet] if rows else []


def _configuration(result: Result) -> Sheet:
    experiment = result["experiment"]
    default = Experiment(name=experiment["name"], architecture=experiment["architecture"]).resolved()
    usual = dict(flat(default))
    rows = [
        [name, str(value), "" if name not in usual or usual[name] == value else f"default {usual[name]}"]
        for name, value in flat(experiment)
        if display.trains(result) or name.split(".")[0] not in OF_TRAINING
    ]
    head = ["field", "value", ""]
    return Sheet(title="Configuration", head=head, rows=rows, words=3, folded=True)
