"""`crossover breakeven` and `crossover project`: what a run would take on AWS, by simulation. Every figure is projected."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossover.architecture import architecture_of
from crossover.cli.arguments import AsJson, Debug, Override, accepted, print_json
from crossover.cli.waiting import waiting
from crossover.errors import ConfigError, NoProjection
from crossover.reports import display, terminal
from crossover.reports.terminal import TextTable

if TYPE_CHECKING:
    from crossover.simulation.calibration import Calibration
    from crossover.simulation.repetitions import Projection

Configs = Annotated[
    list[Path], typer.Argument(metavar="CONFIG...", help="Experiments that train the same model.", show_default=False)
]
Calibrated = Annotated[
    list[str] | None,
    typer.Option(
        "--calibration",
        help="Folders of runs whose records say how fast computing is; or comparison-2025 or p2p-2023: fitted to that paper; or "
        "aws-2026-08: functions outside a VPC by the network rule of August 2026.",
    ),
]

Repetitions = Annotated[
    int,
    typer.Option(
        help="How often a run is simulated, each time in another session and with other stragglers: p5, p50 and p95 come from them.",
        min=20,
    ),
]

Play = Annotated[
    bool, typer.Option("--play", help="Also play.html: sliders for epochs, model size, workers, deadline.")
]


def breakeven(
    configs: Configs,
    out: Annotated[Path, typer.Option(help="Folder for breakeven.html, breakeven.csv and the curves.")] = Path(
        "results/breakeven"
    ),
    override: Override = None,
    calibration: Calibrated = None,
    repetitions: Repetitions = 30,
    play: Play = False,
    debug: Debug = False,
) -> None:
    """Project where an architecture overtakes the cheapest of one function, one machine, one GPU and the GPU fleet."""
    from crossover.advice.subject import sizes
    from crossover.costs import prices  # matplotlib comes with the page: not for --help
    from crossover.simulation import breakeven_page as page
    from crossover.simulation.breakeven import breakeven as swept

    experiments = [accepted(config, override) for config in configs]
    for each in experiments:
        if not architecture_of(each).trains:
            raise ConfigError(
                f"{each.name}: {each.architecture} trains nothing, so nothing overtakes it; crossover project and compare show it"
            )
    cloud = _calibration(calibration, experiments[0].architecture)
    with waiting(f"{repetitions} repetitions of each run, over four axes"):
        found = swept(experiments, cloud, prices.load(), repetitions=repetitions, sizes=sizes(experiments[0]))
    for axis in page.AXES:
        if found.of(axis):
            terminal.show(
                TextTable(f"[projected] over {axis}: p50 (p5/p95)", page.head(found, axis), page.rows(found, axis))
            )
    leads = page.crossings(found)
    if leads:
        terminal.show(TextTable("[projected] where one overtakes the other", page.CROSSINGS_HEAD, leads))
    else:
        terminal.show("[projected] nowhere in these ranges does one overtake the other")
    for note in page.notes(found):
        terminal.show(f"note: {note}")
    if play:
        from crossover.simulation import play as playing
        from crossover.simulation import play_page

        with waiting(f"{repetitions} repetitions of each run, over a grid"):
            cells = playing.grid(
                experiments, cloud, prices.load(), repetitions=repetitions, sizes=sizes(experiments[0])
            )
        terminal.show(f"sliders: {play_page.write(cells, out)}")
    given_ = [*map(str, configs), *(word for each in override or () for word in ("--set", each)), "--out", str(out)]
    terminal.show(f"report: {page.write(found, out, shlex.join(['crossover', 'breakeven', *given_, '--play']))}")
    terminal.show(page.verdict(found))
    given = {each.name for each in experiments}
    if not any(point.would_run for point in found.here if point.name in given):
        raise NoProjection("AWS would run none of these as its file says; the notes above say why")


ConfigOrNone = Annotated[
    Path | None, typer.Argument(help="An experiment; --judge and --fit go without.", show_default=False)
]
Workers = Annotated[
    int | None, typer.Option(help="So many workers, also more than 64; each keeps its share of the data.", min=1)
]
Parameters = Annotated[int | None, typer.Option(help="A model of so many parameters.", min=1)]
Concurrency = Annotated[
    int | None, typer.Option(help="Concurrent executions that the account allows; 0: as many as needed.", min=0)
]
Judge = Annotated[
    bool, typer.Option("--judge", help="Show the error on the papers' rows and measured cells that no fit has seen.")
]
Fit = Annotated[
    Path | None,
    typer.Option(
        help="Alone: fit to the measurements in this folder, say config/calibration; writes config/calibration/fitted.yaml."
    ),
]


def project(
    config: ConfigOrNone = None,
    override: Override = None,
    calibration: Calibrated = None,
    workers: Workers = None,
    parameters: Parameters = None,
    concurrency: Concurrency = None,
    repetitions: Repetitions = 30,
    out: Annotated[Path | None, typer.Option(help="File for the projection as JSON.")] = None,
    judge: Judge = False,
    fit: Fit = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Project a run's time, cost and traffic on AWS, without running it."""
    from dataclasses import replace

    if fit is not None:
        _fit(fit, alone=config is None and not judge)
        return
    if as_json and judge:
        raise ConfigError("--json: says nothing of --judge; give one of them")
    if config is None and judge:
        _judge()
        return
    if config is None:
        raise ConfigError("CONFIG: none is given; expected an experiment, for example config/spirt.yaml, or --judge")
    from crossover.advice.subject import sizes
    from crossover.simulation import repetitions as repeating

    experiment = accepted(config, override)
    aggregates = architecture_of(experiment).aggregates
    if aggregates and parameters is not None:
        raise ConfigError(
            f"--parameters: {experiment.architecture} trains no model; set {experiment.module}.parameters"
        )
    cloud = _calibration(calibration, experiment.architecture)
    if concurrency is not None:
        cloud = replace(cloud, concurrency=concurrency or None)
    workload = None
    if not aggregates:
        own = sizes(experiment)(experiment)
        workload = own if parameters is None else own.sized(parameters)
    if workers is not None:
        gpu = replace(experiment.gpu, instances=max(1, workers // experiment.gpu.gpus_per_instance))
        experiment = replace(experiment, workers=workers, gpu=gpu)
    with waiting(f"{repetitions} repetitions"):
        found = repeating.project(experiment, cloud, workload=workload, repetitions=repetitions)
    if not found.would_run:
        why = "; ".join(found.problems)
        raise NoProjection(f"{experiment.name}: AWS would not run it so, and there is no total: {why}")
    print_json(found.as_json()) if as_json else _show(found)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(found.as_json(), indent=1) + "\n", encoding="utf-8")
        terminal.show(f"written: {out}", stderr=as_json)
    if judge:
        _judge()


def _fit(folder: Path, *, alone: bool) -> None:
    from crossover.calibration import service_fits
    from crossover.simulation.figures import FITTED

    if not alone:
        raise ConfigError("--fit: goes alone; projections use what it wrote from the next command on")
    found = service_fits.fit(folder)
    rows = [
        [each["figure"], f"{each['value']:.4g}", each["unit"], each["source"].partition(":")[0]]
        for each in found["figures"]
    ]
    terminal.show(TextTable("fitted to measurements", ["figure", "value", "unit", "source"], rows))
    left = [
        [
            *(each[name] for name in ("part", "session", "level")),
            f"{each['measured_s']:.3g}",
            f"{each['fitted_s']:.3g}",
            f"{each['error']:+.0%}",
        ]
        for each in found["residuals"]
    ]
    terminal.show(TextTable("residuals", ["part", "session", "level", "measured, s", "fitted, s", "error"], left))
    terminal.show(f"written: {FITTED}")


def _calibration(given: list[str] | None, architecture: str) -> "Calibration":
    from crossover.calibration.measured import calibrated
    from crossover.calibration.papers import PAPERS
    from crossover.calibration.papers_deployments import calibration as fitted
    from crossover.simulation.calibration import AWS, NAMED

    given = given or []
    named = [name for name in given if name in PAPERS or name in NAMED]
    if len(named) > 1:
        raise ConfigError(f"--calibration: {' and '.join(named)} are deployments of their own; give one of them")
    base = AWS if not named else NAMED[named[0]] if named[0] in NAMED else fitted(named[0], architecture)
    return calibrated([Path(name) for name in given if name not in named], base)


def _show(found: "Projection") -> None:
    run = found.run
    experiment = run.experiment
    trains = architecture_of(experiment).trains
    size = f", {experiment.workers:,} workers, {experiment.training.epochs} epochs" if trains else ""
    terminal.show(f"[projected] {experiment.name}: {run.workload.model}{size}")
    steps = [
        [use.step, f"{use.invocations:,}", f"{use.cold:,}", display.seconds(use.mean_s), display.seconds(use.longest_s)]
        for use in run.steps.values()
    ]
    terminal.show(
        TextTable("[projected] steps, in the middle session", ["step", "invocations", "cold", "mean", "longest"], steps)
    )
    lines = [
        [line.item, display.usd(line.usd), display.number(line.quantity), line.unit, line.as_of]
        for line in sorted(run.lines, key=lambda line: -line.usd)
    ]
    terminal.show(
        TextTable(
            "[projected] cost, in the middle session", ["item", "dollars", "quantity", "unit", "price as of"], lines
        )
    )
    moved = [
        [name, display.bytes_(each["bytes_in"]), display.bytes_(each["bytes_out"]), f"{each['requests']:,}"]
        for name, each in run.traffic.items()
    ]
    terminal.show(TextTable("[projected] traffic", ["channel", "received", "sent", "requests"], moved))
    terminal.show(_bands(found))
    terminal.show(f"bands: {found.words}")
    terminal.show(f"calibration: {run.calibration.name}: {'; '.join(run.calibration.basis)}")
    for limit in run.outside:
        terminal.show(f"outside what was measured: {limit}")
    for problem in found.problems:
        terminal.show(f"would not run so on AWS: {problem}")
    terminal.show(
        f"[projected] {display.band(display.seconds, *found.band('seconds'))}; "
        f"{display.band(display.usd, *found.band('usd'))} in full; {display.bytes_(run.moved_bytes)} moved; "
        f"at most {run.concurrency:,} functions at once"
    )


def _bands(found: "Projection") -> TextTable:
    """The figures of a run with their percentiles."""
    rows = [
        [words, *(shown(each) for each in found.band(name))]
        for words, name, shown in (
            ("time", "seconds", display.seconds),
            ("time of an epoch", "epoch_s", display.seconds),
            ("dollars in full", "usd", display.usd),
            ("dollars by the papers' method", "paper_method_usd", display.usd),
        )
        if name != "epoch_s" or architecture_of(found.run.experiment).trains
    ]
    title = f"[projected] how sure, by {len(found.outcomes)} repetitions"
    return TextTable(title, ["", "p5", "p50", "p95"], rows)


def _judge() -> None:
    from crossover.calibration import cells, judgement

    rows = [
        [
            each.row.source,
            each.figure,
            f"{each.printed:g}",
            f"{each.projected:.3g}",
            f"{each.error:.1%}",
            "held out" if each.held_out else "calibration",
        ]
        for each in judgement.judged()
    ]
    head = ["row", "figure", "published", "projected", "error", "set"]
    terminal.show(TextTable("published beside projected, seconds", head, rows))
    terminal.show(judgement.headline().replace("**", ""))
    terminal.show(TextTable("measured cells held out", cells.HEAD, cells.rows()))
    terminal.show(cells.headline().replace("**", ""))
    terminal.show(TextTable("[projected] cells that others judge", cells.ASIDE_HEAD, cells.rows_aside()))
