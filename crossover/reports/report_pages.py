"""Pages of a run and of a comparison, and functions that write them."""

import base64
import hashlib
import math
import os
import re
import shlex
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from crossover.errors import quote_controls
from crossover.experiment import Experiment, flatten_fields
from crossover.reports import display, folder, plots, published
from crossover.reports.comparison import Comparison, RaceEntry, to_csv
from crossover.reports.display import PALETTE, Band, SeriesLook, look_of_experiment
from crossover.reports.folder import Result, RunFolder
from crossover.reports.on_aws import OnAws
from crossover.reports.pages import (
    AWS,
    HERE,
    LABELS,
    PLACES,
    Page,
    Plot,
    Sheet,
    Tile,
    cost_sheet,
    epochs_sheet,
    facts_sheet,
    label_dollars,
    list_labels,
    name_dollars,
    offer_choice,
    place_of,
    plot,
    shorten,
    stages_sheet,
    steps_sheet,
    traffic_sheet,
)
from crossover.reports.tables import warnings

# --- run page ---------------------------------------------------------------------------------------------------------


def run_page(run: RunFolder, on_aws: OnAws | None = None) -> Page:
    """Return the page of a run, as data for `render`: its figures, plots and tables, its projection `on_aws` if there is one, and the
    papers' figures for its architecture.
    """
    result = run.result
    return Page(
        kind="Run",
        title=make_run_title(result, on_aws),
        subtitle=subtitle(result),
        labels=list_labels(result),
        links=_list_existing_links(run.path, (folder.RESULT, "result.json"), (folder.METRICS, "metrics.jsonl")),
        warnings=[*warnings(result), *_warn_if_refused(on_aws)],
        caveats=on_aws.limits if on_aws is not None else (),
        tiles=tiles(result, on_aws),
        **offer_choice(_curves_of_run(result)),
        sheets=[
            figures_sheet(result, on_aws),
            *epochs_sheet(result),
            *published_sheets([result["architecture"]]),
            _configuration_sheet(result),
            facts_sheet("Data", result.get("data", {}), folded=True),
            facts_sheet("Versions", result["versions"], folded=True),
        ],
        folded=[
            Page(
                title="Where time, dollars and bytes went",
                subtitle="",
                labels=[],
                plots=[*(_run_bars(result) if result["epochs"] else []), *_timeline(run)],
                sheets=[stages_sheet(result), steps_sheet(result), cost_sheet(result), traffic_sheet(result)],
            )
        ],
    )


def subtitle(result: Result) -> str:
    """Return one line with the run's model, data, size, place, start, and the date of the prices. `result`: content of result.json."""
    return f"{display.describe_run(result)}, started {result['started_at'][:19]} UTC; {prices_of(result)}"


def prices_of(result: Result) -> str:
    """Return in words the region and date of the prices by which a run's dollars were computed. `result`: content of result.json."""
    cost = result["cost"]
    return f"prices of {', '.join(filter(None, (cost.get('region'), str(cost['prices_as_of']))))}"


def _list_existing_links(path: Path, *names: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the links (file name, words) among `names` whose file exists in the folder `path`."""
    return [(name, words) for name, words in names if (path / name).is_file()]


def _warn_if_refused(on_aws: OnAws | None) -> list[str]:
    """Return a warning with the reasons, in a list, if AWS would not run the projected run; otherwise an empty list."""
    return [] if on_aws is None or on_aws.would_run else [f"AWS would not run this: {'; '.join(on_aws.problems)}"]


def make_run_title(result: Result, on_aws: OnAws | None = None) -> str:
    """Return the title of a run's page: a sentence with the metric that the run reached and its time and dollars, those projected on AWS if
    `on_aws` would run, otherwise those where it ran. `result`: content of result.json.
    """
    metric, value = display.metric_of(result), _final_metric(result)
    reached = f"{display.format_metric(value, metric)} {metric.words} after {display.count(display.epochs_of(result), 'epoch')}"
    begins = (
        f"{result['architecture']} reached {reached}"
        if value is not None
        else f"{result['architecture']} has no result yet"
    )
    if on_aws is not None and on_aws.would_run:
        time, dollars = on_aws.shown
        return f"{begins}; on AWS it takes {time} and costs {dollars}, by simulation."
    time, dollars = display.seconds(result["duration_s"]), display.usd(result["cost"]["full_usd"])
    if place_of(result) == HERE:
        return f"{begins}, in {time} on this machine ({dollars} at AWS's prices)."
    return f"{begins}, in {time} on AWS for {dollars} (total AWS bill)."


def _final_metric(result: Result) -> float | None:
    """Return the value of the run's metric that result.json has for its end, or else after the last epoch in it; None if nothing was
    evaluated. `result`: content of result.json.
    """
    epochs = result["epochs"]
    value: float | None = (result["final"] or {}).get("val_metric", epochs[-1]["val_metric"] if epochs else None)
    return value


def tiles(result: Result, on_aws: OnAws | None = None) -> list[Tile]:
    """Return the headline figures of a run's page: time and dollars projected on AWS, if `on_aws` would run, then the metric, time and
    dollars of the run itself. `result`: content of result.json.
    """
    cost, metric = result["cost"], display.metric_of(result)
    best = metric.best(e["val_metric"] for e in result["epochs"] if e["val_metric"] is not None)
    judged = Tile(
        name=metric.words,
        value=display.format_metric(_final_metric(result), metric),
        note=f"best {display.format_metric(best, metric)}",
        label=result["label"],
        where=place_of(result),
    )
    simulated = []
    if on_aws is not None and on_aws.would_run:
        simulated = [
            _make_median_tile("time", on_aws.time, display.seconds),
            _make_median_tile("total AWS bill", on_aws.dollars, display.usd),
        ]
    time, dollars, where = display.seconds(result["duration_s"]), display.usd(cost["full_usd"]), place_of(result)
    return [
        *simulated,
        judged,
        Tile(name="time", value=time, note="first start to last end", label=result["label"], where=where),
        Tile(name=name_dollars(result), value=dollars, note=cost["basis"], label=cost["label"], where=where),
    ]


def _make_median_tile(name: str, band: Band, shown: Callable[[float], str]) -> Tile:
    """Return a headline figure with the median of a projection on AWS, and with the percentiles in its note. `shown`: formats a value."""
    note = f"by simulation; p5 to p95: {shown(band.p5)} to {shown(band.p95)}"
    return Tile(name=name, value=shown(band.p50), note=note, label="projected", where=AWS)


def figures_sheet(result: Result, on_aws: OnAws | None = None) -> Sheet:
    """Return a table of the figures of the whole run, such as time, dollars, bytes and invocations, each with its origin. `result`: content
    of result.json; `on_aws`: the run's projection on AWS, if known.
    """
    cost, made = result["cost"], result["invocations"]
    requests = sum(channel["requests"] for channel in result["traffic"].values())
    rows = [
        ["time where it ran", display.seconds(result["duration_s"]), result["label"], "first start to last end"],
        [name_dollars(result), display.usd(cost["full_usd"]), cost["label"], cost["basis"]],
        ["cost by the papers' method", display.usd(cost["paper_method_usd"]), cost["label"], cost["basis"]],
        [
            "moved",
            display.bytes_(display.sum_moved_bytes(result["traffic"])),
            result["label"],
            f"{requests:,} requests",
        ],
        ["invocations", f"{made['count']:,}", result["label"], display.describe_attempts(result)],
    ]
    if on_aws is not None:
        time, dollars = on_aws.shown
        rows += [["on AWS", f"{time}; {dollars}", "projected", "; ".join((on_aws.words, *on_aws.limits))]]
    if stale := result.get("staleness"):
        rows.append(["staleness", f"{stale['mean']:.2f}", "", f"rounds on average, {stale['max']:.0f} at most"])
    rows += [
        ["excluded", f"worker {worker}", "", f"from {rounds}, because its contribution was not finite"]
        for worker, rounds in display.describe_dropped(result).items()
    ]
    return Sheet(title="The whole run", head=["", "figure", "label", ""], rows=rows, words=4, stacked=True)


def _curves_of_run(result: Result) -> list[Plot]:
    """Return plots of a run's metric against time and against dollars, and of its losses; an empty list if no epoch was evaluated.
    `result`: content of result.json.
    """
    epochs = [epoch for epoch in result["epochs"] if epoch["val_metric"] is not None]
    if not epochs:
        return []
    metric = display.metric_of(result)
    clock = f"seconds{_clock_suffix(result)}"
    projected = " (this machine's seconds at AWS's prices)" if result["cost"]["label"] == "projected" else ""
    in_time = {"validation": [(e["elapsed_s"], e["val_metric"]) for e in epochs]}
    in_usd = {
        "papers' method": [(e["paper_method_usd"], e["val_metric"]) for e in epochs],
        name_dollars(result): [(e["full_usd"], e["val_metric"]) for e in epochs],
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
                x=clock,
                y=f"validation {metric.words}",
                name="time",
                percent=metric.is_share,
                log_x=plots.needs_log_axis(in_time),
            ),
            label=result["label"],
        ),
        plot(
            f"{metric.words.capitalize()} against dollars",
            plots.lines(
                in_usd,
                x=f"dollars{projected}",
                y=f"validation {metric.words}",
                name="usd",
                percent=metric.is_share,
                log_x=plots.needs_log_axis(in_usd),
                format_x=display.usd_tick,
            ),
            label=result["cost"]["label"],
        ),
    ]
    if losses:
        drawn = plots.lines(losses, x="epoch", y="loss", name="loss", log_y=True)
        found.append(plot("Loss", drawn, label=result["label"]))
    return found


def _clock_suffix(result: Result) -> str:
    """Return the words that follow "seconds" in an axis title: " of this machine" for a run that was measured here, "" for one on AWS.
    `result`: content of result.json.
    """
    return " of this machine" if place_of(result) == HERE else ""


def _run_bars(result: Result) -> list[Plot]:
    """Return bar charts of a run's time by stage, its largest cost lines, and its traffic. `result`: content of result.json."""
    stages = [(row["stage"], row["wall_s"]) for row in result["stages"]]
    lines = sorted(((line["item"], line["usd"]) for line in result["cost"]["lines"]), key=lambda row: -row[1])
    moved = [
        (f"{channel.replace('_', ' ')}, {way}", figures[key])
        for channel, figures in result["traffic"].items()
        for way, key in (("received", "bytes_in"), ("sent", "bytes_out"))
    ]
    top = [(_shorten_item(item), usd) for item, usd in lines[:8]]
    draw = plots.bars
    return [
        plot(
            "Time by stage",
            draw(
                stages,
                x=f"seconds{_clock_suffix(result)}, all invocations",
                name="st",
                shown=display.seconds,
                title="Stages",
            ),
            label=result["label"],
        ),
        plot(
            "Largest cost lines",
            draw(top, x="dollars", name="cost", shown=display.usd, tick=display.usd_tick, title="Cost lines"),
            label=result["cost"]["label"],
        ),
        plot(
            "Traffic",
            draw(moved, x="bytes", name="tr", shown=display.bytes_, title="Traffic by channel"),
            label=result["label"],
        ),
    ]


def _shorten_item(item: str) -> str:
    """Return the name of a cost line cut to at most 26 characters, so that it fits beside a bar."""
    item = item.removesuffix(" (price not verified)")
    item = item if len(item) <= 26 else item.split(", ")[0]
    return item if len(item) <= 26 else item[:25] + "…"


def _timeline(run: RunFolder) -> list[Plot]:
    """Return a plot of all invocations of a run over time, in a list; if they are too many to show singly, also one of those of the first
    epochs. An empty list if the run has no records.
    """
    if not run.records:
        return []
    started_at = datetime.fromisoformat(run.result["started_at"]).timestamp()
    epochs = run.result["epochs"]
    first = plots.select_first_epochs(run.records, epochs, started_at=started_at)
    merged = (
        " Neighbouring invocations are merged, because there are too many for a screen; the next plot shows the first epochs unmerged."
        if first
        else ""
    )
    found = [
        plot(
            "Every invocation",
            plots.draw(run.records, started_at=started_at, epochs=epochs, name="tl"),
            caption=f"{len(run.records):,} invocations, one row per worker. INIT is drawn before its step, and a wait for a "
            f"core of this machine at the step's start. metrics.jsonl has the figures of each invocation.{merged}",
            wide=True,
            label=run.result["label"],
        )
    ]
    if first:
        drawn = plots.draw(first, started_at=started_at, epochs=[], name="tf")
        found.append(
            plot(
                "Invocations of the first epochs",
                drawn,
                caption=f"The first {len(first):,} invocations.",
                wide=True,
                label=run.result["label"],
            )
        )
    return found


def published_sheets(architectures: Sequence[str]) -> list[Sheet]:
    """Return a folded table of the papers' rows for these architectures with their source and notes, in a list; an empty list if there are
    none. `architectures`: their names, such as "spirt".
    """
    shown = {"model", "accuracy", "minutes", "function_s", "epoch_s", "compute_s", "memory_mb", "total_usd", "peer_usd"}
    rows = []
    for row in published.load():
        if row.figures.get("architecture") in architectures and shown & (row.figures.keys() - {"model"}):
            figures = ", ".join(f"{name} {value}" for name, value in row.figures.items() if name in shown)
            rows.append([row.row, figures, row.note, f"{row.paper}, {row.table}"])
    note = "Context, not a fair comparison: unless a row says so, models, data and machines differ from this run's."
    head = ["row", "figures", "note", "source"]
    title = "Published results"
    sheet = Sheet(title=title, head=head, rows=rows, note=note, words=4, folded=True, label="published")
    return [sheet] if rows else []


def _configuration_sheet(result: Result) -> Sheet:
    """Return a table of all fields of a run's experiment; a field that differs from its default has the default beside it. `result`:
    content of result.json.
    """
    experiment = result["experiment"]
    default = Experiment(name=experiment["name"], architecture=experiment["architecture"]).to_plain()
    usual = dict(flatten_fields(default))
    rows = [
        [
            name,
            display.plain(value),
            "" if name not in usual or usual[name] == value else f"default {display.plain(usual[name])}",
        ]
        for name, value in flatten_fields(experiment)
    ]
    head = ["field", "value", ""]
    return Sheet(title="Configuration", head=head, rows=rows, words=3, folded=True)


# --- comparison page --------------------------------------------------------------------------------------------------
# The page of several runs side by side.

Points = dict[str, list[tuple[float, float]]]


def comparison_page(found: Comparison, links: Sequence[tuple[str, str]] = ()) -> Page:
    """Return the page of a comparison, as data for `render`: verdict, tables, curves, and the stages and cost of each run, folded. `links`:
    (path, words) of files in the page's folder.
    """
    labels = list(dict.fromkeys(name for e in found.entries for name in (e.label, e.cost_label)))
    at = [] if found.goal is None else ["--at", f"{found.goal:g}"]
    priced = dict.fromkeys(prices_of(run.result) for run in found.runs)
    facts = f"{display.describe_subject(found.runs[0].result)}, {display.count(len(found.runs), 'run')}; {', '.join(priced)}"
    return Page(
        kind="Comparison",
        title=_make_comparison_title(found),
        subtitle=facts,
        labels=labels,
        links=links,
        verdict=found.verdict,
        commands=[shlex.join(["crossover", "compare", *(str(run.path) for run in found.runs), *at])],
        warnings=_shorten_marks(found.marks),
        **offer_choice(_comparison_curves(found)),
        sheets=[
            *_projection_sheets(found),
            *_run_sheets(found),
            *_list_differences(found.marks),
            *published_sheets([entry.architecture for entry in found.entries]),
        ],
        folded=[
            Page(title="Dollars and traffic", subtitle="", labels=labels, plots=_comparison_bars(found)),
            *(
                Page(
                    title=entry.name,
                    subtitle=subtitle(run.result),
                    labels=list_labels(run.result),
                    tiles=tiles(run.result),
                    sheets=[
                        figures_sheet(run.result),
                        *epochs_sheet(run.result),
                        stages_sheet(run.result),
                        cost_sheet(run.result),
                    ],
                )
                for run, entry in zip(found.runs, found.entries, strict=True)
            ),
        ],
    )


DIFFERENCE = re.compile(r"(\S+) differs: (.*)")  # a mark of a comparison about one setting
MOST_MARKS = 3


def _split_marks(marks: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Return (marks, differences) of a comparison's caveats `marks`. If more than MOST_MARKS of them say that a setting differs, these are
    returned as (setting, values) in the second list; otherwise all are in the first, and the second is empty.
    """
    differing = [(found[1], found[2]) for mark in marks if (found := DIFFERENCE.fullmatch(mark))]
    if len(differing) <= MOST_MARKS:
        return list(marks), []
    return [mark for mark in marks if not DIFFERENCE.fullmatch(mark)], differing


def _shorten_marks(marks: Sequence[str]) -> list[str]:
    """Return a comparison's caveats as warnings for its page, with those about settings combined into one line if they are more than
    MOST_MARKS.
    """
    kept, differing = _split_marks(marks)
    names = ", ".join(name for name, _ in differing)
    return [
        *kept,
        *([f"{len(differing)} settings differ between these runs, listed below: {names}"] if differing else []),
    ]


def _list_differences(marks: Sequence[str]) -> list[Sheet]:
    """Return a folded table of the settings that differ between the runs, in a list; an empty list if there are at most MOST_MARKS, which
    the warnings name.
    """
    _, differing = _split_marks(marks)
    rows = [list(each) for each in differing]
    return (
        [Sheet(title="Settings that differ", head=["setting", "values"], rows=rows, words=2, folded=True)]
        if rows
        else []
    )


def _make_comparison_title(found: Comparison) -> str:
    """Return the title of a comparison's page: which run is cheapest and which soonest on AWS, if at least two runs have projections;
    otherwise the first sentence of the verdict, and in front of it, if nobody won, which run reached the best metric.
    """
    running = {name: each for name, each in found.on_aws.items() if each.would_run}
    leads = (
        display.describe_leader({name: each.usd for name, each in running.items()}, "cheapest", display.usd),
        display.describe_leader({name: each.seconds for name, each in running.items()}, "soonest", display.seconds),
    )
    if any(leads):
        return f"On AWS, by simulation: {'; '.join(filter(None, leads))}."
    said = found.verdict.split(". ")[0].removesuffix(".") + "."
    if found.goal is None and said.startswith("no winner by"):
        said = "no winner by time, because no goal was named (--at)."
    best = _rank_by_metric(found)[0]
    if not said.startswith("no winner") or best.best_metric is None:
        return said
    reached = (
        f"{best.name} reached the best {found.metric.words}, {display.format_metric(best.best_metric, found.metric)}"
    )
    return f"{reached}; {said}"


def _rank_by_metric(found: Comparison) -> list[RaceEntry]:
    """Return the compared runs from the best metric (the best of each run's epochs) to the worst. Runs without an evaluation are last."""
    sign = -1 if found.metric.higher_wins else 1
    return sorted(found.entries, key=lambda each: math.inf if each.best_metric is None else sign * each.best_metric)


def _looks(found: Comparison) -> dict[str, SeriesLook]:
    """Return the colour and marker of each compared run, by its name."""
    pairs = zip(found.runs, found.entries, strict=True)
    return {
        entry.name: look_of_experiment(entry.architecture, run.result["experiment"], n)
        for n, (run, entry) in enumerate(pairs)
    }


def _points(found: Comparison, figure: str) -> Points:
    """Return the curve of each compared run by its name: points (x, metric) of its evaluated epochs. `figure`: the field of an epoch that
    is x, such as "elapsed_s".
    """
    return {
        entry.name: [
            (epoch[figure], epoch["val_metric"]) for epoch in run.result["epochs"] if epoch["val_metric"] is not None
        ]
        for run, entry in zip(found.runs, found.entries, strict=True)
    }


def _comparison_curves(found: Comparison) -> list[Plot]:
    """Return the plots of a comparison: the metric against time, against dollars (twice) and against epochs."""
    projected = any(entry.cost_label == "projected" for entry in found.entries)
    basis = " (this machine's seconds at AWS's prices)" if projected else ""
    name = found.metric.words.capitalize()
    wanted: list[tuple[str, str, str, Callable[[float], str] | None]] = [
        (f"{name} against time", "elapsed_s", f"seconds{_common_clock_suffix(found)}", None),
        (
            f"{name} against {name_dollars(*(run.result for run in found.runs))}",
            "full_usd",
            f"dollars{basis}",
            display.usd_tick,
        ),
        (f"{name} against dollars, papers' method", "paper_method_usd", f"dollars{basis}", display.usd_tick),
        (f"{name} against epochs", "epoch", "epoch", None),
    ]
    drawn = []
    for title, figure, axis, shown in wanted:
        points = _points(found, figure)
        labels = {entry.cost_label if "usd" in figure else entry.label for entry in found.entries}
        log_x = figure != "epoch" and plots.needs_log_axis(points)
        picture = plots.lines(
            points,
            x=axis,
            y=f"validation {found.metric.words}",
            name=figure,
            percent=found.metric.is_share,
            log_x=log_x,
            format_x=shown,
            looks=_looks(found),
        )
        drawn.append(plot(title, picture, label=_find_common(labels)))
    return drawn


def _find_common(labels: set[str]) -> str | None:
    """Return the one label of several figures, None if they differ."""
    return next(iter(labels)) if len(labels) == 1 else None


def _common_clock_suffix(found: Comparison) -> str:
    """Return the words that follow "seconds" in an axis title: those of `_clock_suffix` if they are equal for all compared runs, otherwise
    "".
    """
    told = {_clock_suffix(run.result) for run in found.runs}
    return told.pop() if len(told) == 1 else ""


def _comparison_bars(found: Comparison) -> list[Plot]:
    """Return bar charts of the total AWS bill and of the traffic of each compared run."""
    entries, looks = found.entries, list(_looks(found).values())
    moved = [(entry.name, float(entry.moved_bytes)) for entry in entries]
    full = [(entry.name, entry.full_usd) for entry in entries]
    return [
        plot(
            "Dollars of each run",
            plots.bars(
                full,
                x=name_dollars(*(run.result for run in found.runs)),
                name="full",
                shown=display.usd,
                tick=display.usd_tick,
                title="Cost",
                looks=looks,
            ),
            label=_find_common({entry.cost_label for entry in entries}),
        ),
        plot(
            "Traffic",
            plots.bars(moved, x="bytes", name="moved", shown=display.bytes_, title="Traffic", looks=looks),
            label=_find_common({entry.label for entry in entries}),
        ),
    ]


def _run_sheets(found: Comparison) -> list[Sheet]:
    """Return the table of a comparison with one row per run, in a list; if there are more than MOST_ROWS runs, it is folded, and preceded
    by a table of those with the best metric.
    """
    label, cost_label = (
        _find_common({getattr(entry, name) for entry in found.entries}) for name in ("label", "cost_label")
    )
    goal, dollars = found.to_goal, ("papers' method", name_dollars(*(run.result for run in found.runs)))
    names = ["run", "what", *([] if label else ["label"]), *([] if cost_label else ["dollars' label"])]
    head = [
        *names, f"best {found.metric.words}",
        *([f"time {goal}", *(f"{each} {goal}" for each in dollars)] if goal else []),
        "time", *dollars, "moved", "invocations",
    ]  # fmt: skip
    rows = {
        entry.name: [
            entry.display_name,
            found.describe(entry),
            *([] if label else [entry.label]),
            *([] if cost_label else [entry.cost_label]),
            display.format_metric(entry.best_metric, found.metric),
            *(entry.to_goal if goal else []),
            display.seconds(entry.duration_s),
            display.usd(entry.paper_method_usd),
            display.usd(entry.full_usd),
            display.bytes_(entry.moved_bytes),
            f"{entry.invocations:,}",
        ]
        for entry in found.entries
    }
    kinds = {entry.cost_label for entry in found.entries}
    places = {place_of(run.result) for run in found.runs}
    sheet = Sheet(
        title="Side by side",
        head=head,
        rows=list(rows.values()),
        words=len(names),
        note="Dollars: this machine's seconds at AWS's prices." if "projected" in kinds else "",
        label=label,
        labels=label_dollars([each for each in head if each.startswith(dollars)], label, cost_label),
        stacked=True,
        where=places.pop() if len(places) == 1 else "",
    )
    ranked = [rows[entry.name] for entry in _rank_by_metric(found)]
    return shorten(sheet, best=ranked, what=f"with the best {found.metric.words}")


def _projection_sheets(found: Comparison) -> list[Sheet]:
    """Return a table of the time and dollars of each run as projected on AWS, in a list, shortened if it is long; an empty list if there
    are no projections.
    """
    if not found.on_aws:
        return []
    what = {entry.name: found.describe(entry) for entry in found.entries}
    rows = [[name, what[name], *known.shown, "; ".join(known.limits)] for name, known in found.on_aws.items()]
    words = next(iter(found.on_aws.values())).words
    note = f"p50 (p5 to p95) of simulations of each run, with its number of epochs: {words}."
    sheet = Sheet(
        title="On AWS, by simulation",
        head=["run", "what", "time", "total AWS bill", ""],
        rows=rows,
        note=note,
        words=2,
        last_words=1,
        label="projected",
        where=AWS,
        stacked=True,
    )
    return shorten(sheet)


# --- html -------------------------------------------------------------------------------------------------------------
# Pages: one file each, without anything from elsewhere, for a screen of any width, for paper, dark or light. Those of `play` alone have
# scripts, which the page's policy knows by their hashes.

CSV = "comparison.csv"
SCRIPTS = Path(__file__).parent


def write_report(run: Path | RunFolder, on_aws: OnAws | None = None) -> Path:
    """Write `report.html` into a run's folder, replacing an earlier one, and return its path. `run`: the run or its folder; `on_aws`: the
    run's projection on AWS, if known. Raises DataError for a folder that holds no run.
    """
    if isinstance(run, Path):
        run = folder.read(run)
    target = run.path / folder.REPORT
    folder.write_atomically(target, render(run_page(run, on_aws)).encode())
    return target


def write_comparison(found: Comparison, out: Path) -> Path:
    """Write the page (report.html) and the CSV file (comparison.csv) of a comparison into the folder `out`, which is created if necessary,
    and return the path of the page. It links to the runs' own reports that exist.
    """
    out.mkdir(parents=True, exist_ok=True)
    folder.write_atomically(out / CSV, to_csv(found).encode())
    reports = [(run.path / folder.REPORT, entry.name) for run, entry in zip(found.runs, found.entries, strict=True)]
    runs = [(Path(os.path.relpath(path, out)).as_posix(), name) for path, name in reports if path.is_file()]
    page = comparison_page(found, [(CSV, CSV), *runs])
    folder.write_atomically(out / folder.REPORT, render(page).encode())
    return out / folder.REPORT


def render(page: Page) -> str:
    """Return the HTML text of a page, one file that loads nothing. Every text is escaped except the project's own SVG, styles and
    scripts.
    """
    environment = Environment(
        loader=FileSystemLoader(SCRIPTS),
        autoescape=True,
        finalize=_quote_text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.jinja").render(
        page=page,
        prose=_mark_words,
        meanings=LABELS,
        places=PLACES,
        file_name=file_name,
        palette=PALETTE,
        hashes=[_hash(script) for script in page.scripts],
        data=Markup(page.data.replace("<", "\\u003c")),  # in JSON the same, in HTML no tag
    )


def _quote_text(value: object) -> object:
    """Return a value of a page with the control characters of a text quoted; the project's own SVG, styles and scripts stay."""
    return quote_controls(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _mark_words(text: str) -> Markup:
    """Return a sentence of a page as HTML, escaped: words between backticks as code, and a label in brackets, such as `[projected]`, as the
    page shows labels.
    """
    labels = "|".join(LABELS)
    marked = re.sub(rf"\[({labels})\]", r'<span class="label \1">\1</span>', str(escape(quote_controls(text))))
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", marked))


def file_name(title: str) -> str:
    """Return the title as a file name without an extension: in lower case, with hyphens in place of everything but letters and digits;
    "page" if nothing is left.
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "page"


def _hash(script: str) -> str:
    """Return the hash of a script in the form in which a content security policy allows it: `sha256-...`."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
