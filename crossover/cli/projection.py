"""`crossover breakeven` and `crossover project`: simulated time, cost and traffic of runs on AWS. Every figure is projected."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossover.cli.arguments import (
    AsJson,
    Config,
    Debug,
    Override,
    check_writable,
    load_runnable,
    print_json,
    set_options,
    show_waiting,
)
from crossover.errors import ConfigError, NoProjection
from crossover.reports import display, tables
from crossover.reports.tables import TextTable

if TYPE_CHECKING:
    from crossover.simulation.calibration import Calibration
    from crossover.simulation.repetitions import Projection

Configs = Annotated[
    list[Path],
    typer.Argument(
        metavar="CONFIG...", help="YAML files of experiments that train the same model.", show_default=False
    ),
]
Calibrated = Annotated[
    list[str] | None,
    typer.Option(
        "--calibration",
        help="Calibration: folders of runs that measured the speed of computing; comparison-2025 or p2p-2023 (fitted to that paper); "
        "or aws-2026-08 (functions outside a VPC have the network of August 2026).",
    ),
]

Repetitions = Annotated[
    int,
    typer.Option(
        help="Number of simulations of each run, with different AWS conditions and stragglers. p5, p50 and p95 are taken over them.",
        min=20,
    ),
]

Play = Annotated[
    bool,
    typer.Option("--play", help="Also write play.html, with sliders for epochs, model size, workers and deadline."),
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
    """Project which option is cheapest and which is soonest at which size: yours, one function, one machine, one GPU or a GPU fleet.

    The page is written even if AWS would run none of the experiments; the command then fails.
    """
    from crossover.advice.own_speed import adopt_kept_speed
    from crossover.advice.question import make_sizes_function
    from crossover.reports import prices  # matplotlib comes with the page: not for --help
    from crossover.simulation import breakeven_page as page
    from crossover.simulation.breakeven import breakeven as compare_axes

    experiments = [load_runnable(config, override) for config in configs]
    cloud, sizes = _choose_calibration(calibration, experiments[0].architecture), make_sizes_function(experiments[0])
    cloud = adopt_kept_speed(cloud, experiments[0], sizes(experiments[0]))
    check_writable(out)
    with show_waiting(f"{repetitions} simulations of each run, over four axes"):
        found = compare_axes(experiments, cloud, prices.load(), repetitions=repetitions, sizes=sizes)
    tables.show(
        TextTable(
            f"[projected] the options with your settings ({page.FROM_DEPLOY})",
            page.HERE_HEAD,
            page.rows_at_own_settings(found),
        )
    )
    for axis in page.AXES:
        if found.points_of_axis(axis):
            tables.show(
                TextTable(
                    f"[projected] over {axis}: p50 (p5/p95)", page.axis_head(found, axis), page.axis_rows(found, axis)
                )
            )
    tables.show(TextTable(f"[projected] {page.CROSSINGS.lower()}", page.CROSSINGS_HEAD, page.crossing_rows(found)))
    for note in page.list_notes(found):
        tables.show(f"note: {note}")
    if play:
        with show_waiting(f"{repetitions} simulations of each run, over a grid"):
            cells = page.simulate_grid(experiments, cloud, prices.load(), repetitions=repetitions, sizes=sizes)
        tables.show(f"sliders: {page.write_sliders(cells, out)}")
    given_ = [*map(str, configs), *set_options(override), "--out", str(out)]
    tables.show(f"report: {page.write_page(found, out, shlex.join(['crossover', 'breakeven', *given_, '--play']))}")
    tables.show(page.describe_winner(found))
    given = {each.name for each in experiments}
    if not any(point.would_run for point in found.here if point.name in given):
        raise NoProjection("AWS would run none of these experiments with its settings; the notes above say why")


Workers = Annotated[
    int | None, typer.Option(help="Number of workers, which may exceed 64. Each keeps its amount of data.", min=1)
]
Parameters = Annotated[int | None, typer.Option(help="Number of parameters of the model.", min=1)]
Concurrency = Annotated[
    int | None, typer.Option(help="The account's quota of concurrent executions; 0: no limit.", min=0)
]


def project(
    config: Config,
    override: Override = None,
    calibration: Calibrated = None,
    workers: Workers = None,
    parameters: Parameters = None,
    concurrency: Concurrency = None,
    repetitions: Repetitions = 30,
    out: Annotated[Path | None, typer.Option(help="File for the projection as JSON.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Project a run's time, cost and traffic on AWS, without running it.

    Fails, with the reasons, if AWS would not run it.
    """
    from dataclasses import replace

    from crossover.advice.own_speed import adopt_kept_speed
    from crossover.advice.question import make_sizes_function
    from crossover.simulation import repetitions as repeating
    from crossover.simulation.breakeven import with_workers

    experiment = load_runnable(config, override)
    cloud = _choose_calibration(calibration, experiment.architecture)
    if concurrency is not None:
        cloud = replace(cloud, concurrency=concurrency or None)
    own = make_sizes_function(experiment)(experiment)
    cloud = adopt_kept_speed(cloud, experiment, own)
    workload = own if parameters is None else own.with_parameters(parameters)
    if workers is not None:
        experiment = with_workers(experiment, workers)
    with show_waiting(f"{repetitions} simulations"):
        found = repeating.project(experiment, cloud, workload=workload, repetitions=repetitions)
    if not found.would_run:
        why = "; ".join(found.problems)
        raise NoProjection(f"{experiment.name}: AWS would not run this, so there is no projection: {why}")
    print_json(found.as_json()) if as_json else _print_projection(found)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(found.as_json(), indent=1) + "\n", encoding="utf-8")
        tables.show(f"written: {out}", stderr=as_json)


def _choose_calibration(given: list[str] | None, architecture: str) -> "Calibration":
    """Return the calibration (speeds of AWS) that the --calibration options `given` name: the current one by default, a named or a paper's
    one; with computing speeds from folders of runs, if such are given. `architecture`: architecture for which a paper's calibration is
    fitted. Raises ConfigError if two named ones are given, DataError for a folder without a run.
    """
    from crossover.simulation.calibration import AWS, NAMED
    from crossover.simulation.measured import calibrate_from_runs
    from crossover.simulation.papers import PAPERS, calibration_of

    given = given or []
    named = [name for name in given if name in PAPERS or name in NAMED]
    if len(named) > 1:
        raise ConfigError(f"--calibration: {' and '.join(named)} exclude each other; give one of them")
    base = AWS if not named else NAMED[named[0]] if named[0] in NAMED else calibration_of(named[0], architecture)
    return calibrate_from_runs([Path(name) for name in given if name not in named], base)


def _print_projection(found: "Projection") -> None:
    """Print the projection of a run: its steps, cost lines, traffic, percentiles and caveats. Steps, lines and traffic are those of the
    median simulation.
    """
    from crossover.reports import prices

    run = found.run
    experiment = run.experiment
    size = f", {display.count(experiment.workers, 'worker')}, {display.count(experiment.training.epochs, 'epoch')}"
    tables.show(f"[projected] {experiment.name}: {run.workload.model}{size}")
    steps = [
        [use.step, f"{use.invocations:,}", f"{use.cold:,}", display.seconds(use.mean_s), display.seconds(use.longest_s)]
        for use in run.steps.values()
    ]
    tables.show(
        TextTable(
            "[projected] steps, in the median simulation", ["step", "invocations", "cold", "mean", "longest"], steps
        )
    )
    lines = [
        [line.item, display.usd(line.usd), display.number(line.quantity), line.unit, line.as_of]
        for line in sorted(run.lines, key=lambda line: -line.usd)
    ]
    tables.show(
        TextTable(
            f"[projected] cost, in the median simulation, {prices.load().basis}",
            ["item", "dollars", "quantity", "unit", "price as of"],
            lines,
        )
    )
    moved = [
        [name, display.bytes_(each["bytes_in"]), display.bytes_(each["bytes_out"]), f"{each['requests']:,}"]
        for name, each in run.traffic.items()
    ]
    tables.show(TextTable("[projected] traffic", ["channel", "received", "sent", "requests"], moved))
    tables.show(_bands_table(found))
    tables.show(f"bands: {found.words}")
    tables.show(f"calibration: {run.calibration.name}: {'; '.join(run.calibration.basis)}")
    for limit in run.outside:
        tables.show(f"beyond the measured range: {limit}")
    for problem in found.problems:
        tables.show(f"AWS would not run this: {problem}")
    tables.show(
        f"[projected] {display.band(display.seconds, *found.band('seconds'))}; "
        f"{display.band(display.usd, *found.band('usd'))} (total AWS bill); {display.bytes_(run.moved_bytes)} moved; "
        f"at most {display.count(run.concurrency, 'function')} at once"
    )


def _bands_table(found: "Projection") -> TextTable:
    """Return a table with the 5th, 50th and 95th percentile of a run's time, time per epoch, total AWS bill and cost by the papers'
    method.
    """
    rows = [
        [words, *(shown(each) for each in found.band(name))]
        for words, name, shown in (
            ("time", "seconds", display.seconds),
            ("time per epoch", "epoch_s", display.seconds),
            ("total AWS bill", "usd", display.usd),
            ("cost by the papers' method", "paper_method_usd", display.usd),
        )
    ]
    title = f"[projected] uncertainty, from {len(found.outcomes)} simulations"
    return TextTable(title, ["", "p5", "p50", "p95"], rows)
