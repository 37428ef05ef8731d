"""The page of several runs side by side."""

import shlex
from collections.abc import Callable

from crossover.reports import bands, display, plots
from crossover.reports.comparison import Comparison
from crossover.reports.looks import SeriesLook, of_experiment
from crossover.reports.page import Page, Plot, Sheet, cost_sheet, epochs_sheet, plot, stages_sheet
from crossover.reports.run_page import figures_sheet, printed, subtitle, tiles

Points = dict[str, list[tuple[float, float]]]


def page(found: Comparison) -> Page:
    """Verdict, table, curves over one another, and every run's stages and cost folded below."""
    labels = list(dict.fromkeys(name for e in found.entries for name in (e.label, e.cost_label)))
    at = [] if found.goal is None else ["--at", f"{found.goal:g}"]
    facts = f"{display.subject(found.runs[0].result)}, {len(found.runs)} runs"
    return Page(
        title="Comparison",
        subtitle=facts,
        labels=labels,
        answer=_answer(found),
        verdict=found.verdict,
        commands=[shlex.join(["crossover", "compare", *(str(run.path) for run in found.runs), *at])],
        warnings=found.marks,
        plots=[*_curves(found), *_bars(found)],
        sheets=[
            _table(found),
            *_on_aws(found),
            *printed([entry.architecture for entry in found.entries]),
        ],
        folded=[
            Page(
                title=entry.name,
                subtitle=subtitle(run.result),
                labels=[run.result["label"]],
                tiles=tiles(run.result),
                sheets=[
                    figures_sheet(run.result),
                    *epochs_sheet(run.result),
                    stages_sheet(run.result),
                    cost_sheet(run.result),
                ],
            )
            for run, entry in zip(found.runs, found.entries, strict=True)
        ],
    )


def _answer(found: Comparison) -> str:
    """Who is cheapest and soonest on AWS, where that is known; else how the verdict begins."""
    running = {name: each for name, each in found.on_aws.items() if each.would_run}
    leads = (
        bands.leader({name: each.usd for name, each in running.items()}, "cheapest", display.usd),
        bands.leader({name: each.seconds for name, each in running.items()}, "soonest", display.seconds),
    )
    if any(leads):
        return f"On AWS, by simulation: {'; '.join(filter(None, leads))}."
    return found.verdict.split(". ")[0].removesuffix(".") + "."


def _looks(found: Comparison) -> dict[str, SeriesLook]:
    pairs = zip(found.runs, found.entries, strict=True)
    return {
        entry.name: of_experiment(entry.architecture, run.result["experiment"], n)
        for n, (run, entry) in enumerate(pairs)
    }


def _points(found: Comparison, figure: str) -> Points:
    return {
        entry.name: [
            (epoch[figure], epoch["val_metric"]) for epoch in run.result["epochs"] if epoch["val_metric"] is not None
        ]
        for run, entry in zip(found.runs, found.entries, strict=True)
    }


def _curves(found: Comparison) -> list[Plot]:
    if not found.trains:
        return []
    projected = any(entry.cost_label == "projected" for entry in found.entries)
    basis = " (projected from local seconds)" if projected else ""
    name = found.metric.words.capitalize()
    wanted: list[tuple[str, str, str, Callable[[float], str] | None]] = [
        (f"{name} against time", "elapsed_s", "seconds", None),
        (f"{name} against dollars, in full", "full_usd", f"dollars{basis}", display.usd_tick),
        (f"{name} against dollars, papers' method", "paper_method_usd", f"dollars{basis}", display.usd_tick),
        (f"{name} against epochs", "epoch", "epoch", None),
    ]
    drawn = []
    for title, figure, axis, shown in wanted:
        points = _points(found, figure)
        labels = {entry.cost_label if "usd" in figure else entry.label for entry in found.entries}
        log_x = figure != "epoch" and plots.spread(points)
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
        drawn.append(plot(title, picture, label=labels.pop() if len(labels) == 1 else None))
    return drawn


def _bars(found: Comparison) -> list[Plot]:
    entries, looks = found.entries, list(_looks(found).values())
    moved = [(entry.name, float(entry.moved_bytes)) for entry in entries]
    full = [(entry.name, entry.full_usd) for entry in entries]
    return [
        plot(
            "Cost of the whole run, in full",
            plots.bars(
                full, x="dollars", name="full", shown=display.usd, tick=display.usd_tick, title="Cost", looks=looks
            ),
        ),
        plot("Traffic", plots.bars(moved, x="bytes", name="moved", shown=display.bytes_, title="Traffic", looks=looks)),
    ]


def _table(found: Comparison) -> Sheet:
    goal = found.to_goal
    head = [
        "run", "label", *([f"best {found.metric.words}"] if found.trains else []),
        *([f"time {goal}", f"papers' method {goal}", f"in full {goal}"] if goal else []),
        "time", "papers' method", "in full", "moved", "invocations",
    ]  # fmt: skip
    rows = [
        [
            entry.display_name,
            entry.label,
            *([display.judged(entry.best_metric, found.metric)] if found.trains else []),
            *(entry.to_goal if goal else []),
            display.seconds(entry.duration_s),
            display.usd(entry.paper_method_usd),
            display.usd(entry.full_usd),
            display.bytes_(entry.moved_bytes),
            f"{entry.invocations:,}",
        ]
        for entry in found.entries
    ]
    kinds = {entry.cost_label for entry in found.entries}
    note = "Dollars are projected from local seconds." if "projected" in kinds else ""
    return Sheet(title="Side by side", head=head, rows=rows, words=2, note=note)


def _on_aws(found: Comparison) -> list[Sheet]:
    """What each run would take on AWS, with percentiles."""
    if not found.on_aws:
        return []
    rows = [[name, *known.shown, "; ".join(known.limits)] for name, known in found.on_aws.items()]
    words = next(iter(found.on_aws.values())).words
    note = f"p50 (p5 to p95) of a simulation of each run with the epochs that it had: {words}."
    head = ["run", "time", "in full", ""]
    return [Sheet(title="On AWS, by simulation", head=head, rows=rows, note=note, words=1, label="projected")]
