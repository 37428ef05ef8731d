"""`crossover breakeven` and `crossover project`: what a run would take on AWS, by simulation. Every figure is projected."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from crossover.cli.arguments import Config, Debug, Override, accepted
from crossover.errors import ConfigError, NoProjection

if TYPE_CHECKING:
    from crossover.simulation.calibration import Calibration
    from crossover.simulation.simulate import Simulated

Configs = Annotated[
    list[Path], typer.Argument(metavar="CONFIG...", help="Experiments that train the same model.", show_default=False)
]
Calibrated = Annotated[
    list[str] | None,
    typer.Option(
        "--calibration",
        help="Folders of runs whose records say how fast computing is, or comparison-2025 or p2p-2023: fitted to that paper.",
    ),
]


def breakeven(
    configs: Configs,
    out: Annotated[Path, typer.Option(help="Folder for breakeven.html, breakeven.csv and the curves.")] = Path(
        "results/breakeven"
    ),
    override: Override = None,
    calibration: Calibrated = None,
    debug: Debug = False,
) -> None:
    """Project where serverless overtakes the GPU fleet: over model size, batch, workers and epochs."""
    from crossover.costs import prices  # matplotlib comes with the page: not for --help
    from crossover.simulation import breakeven_page as page
    from crossover.simulation.breakeven import breakeven as swept

    experiments = [accepted(config, override) for config in configs]
    console = Console(highlight=False)
    try:
        found = swept(experiments, _calibration(calibration, experiments[0].architecture), prices.load())
    except NoProjection as unknown:
        print(f"[projected] no projection: {unknown}")
        return
    for axis in page.AXES:
        if found.of(axis):
            console.print(
                _table(f"[projected] over {axis}: dollars, time", page.head(found, axis), page.rows(found, axis))
            )
    leads = page.crossings(found)
    if leads:
        head = ["over", "by", "at about", "until there", "from there on"]
        console.print(_table("[projected] where one overtakes the other", head, leads))
    else:
        print("[projected] nowhere in these ranges does one overtake the other")
    for note in page.notes(found):
        print(f"note: {note}")
    print(f"report: {page.write(found, out)}")
    print(page.verdict(found))


def project(
    config: Config,
    override: Override = None,
    calibration: Calibrated = None,
    workers: Annotated[
        int | None, typer.Option(help="So many workers, also more than 64; each keeps its share of the data.", min=1)
    ] = None,
    parameters: Annotated[int | None, typer.Option(help="A model of so many parameters.", min=1)] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Concurrent executions that the account allows; 0: as many as needed.", min=0)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the projection as JSON.")] = None,
    judge: Annotated[
        bool, typer.Option("--judge", help="Show the error on the papers' rows that calibration has not seen.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Project a run's time, cost and traffic on AWS, without running it."""
    from dataclasses import replace

    from crossover.simulation import Workload, simulate

    experiment = accepted(config, override)
    cloud = _calibration(calibration, experiment.architecture)
    if concurrency is not None:
        cloud = replace(cloud, concurrency=concurrency or None)
    try:
        workload = Workload.of(experiment, parameters=parameters)
        if workers is not None:
            gpu = replace(experiment.gpu, instances=max(1, workers // experiment.gpu.gpus_per_instance))
            experiment = replace(experiment, workers=workers, gpu=gpu)
        run = simulate(experiment, cloud, workload=workload)
    except NoProjection as unknown:
        print(f"[projected] no projection: {unknown}")
    else:
        _show(run)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(run.as_json(), indent=1) + "\n", encoding="utf-8")
            print(f"written: {out}")
    if judge:
        _judge()


def _calibration(given: list[str] | None, architecture: str) -> "Calibration":
    from crossover.simulation import AWS
    from crossover.simulation.measured import calibrated
    from crossover.simulation.papers import PAPERS
    from crossover.simulation.papers_deployments import calibration as fitted

    given = given or []
    papers = [name for name in given if name in PAPERS]
    if len(papers) > 1:
        raise ConfigError(f"--calibration: {' and '.join(papers)} are deployments of their own; give one of them")
    base = fitted(papers[0], architecture) if papers else AWS
    return calibrated([Path(name) for name in given if name not in PAPERS], base)


def _table(title: str, head: list[str], rows: list[list[str]]) -> Table:
    table = Table(*head, title=Text(title), title_justify="left")  # as text: brackets are no markup
    for row in rows:
        table.add_row(*row)
    return table


def _show(run: "Simulated") -> None:
    from crossover.reports import display

    experiment, console = run.experiment, Console(highlight=False)
    print(
        f"[projected] {experiment.name}: {run.workload.model}, {experiment.workers:,} workers, {experiment.training.epochs} epochs"
    )
    steps = [
        [use.step, f"{use.invocations:,}", f"{use.cold:,}", display.seconds(use.mean_s), display.seconds(use.longest_s)]
        for use in run.steps.values()
    ]
    console.print(_table("[projected] steps", ["step", "invocations", "cold", "mean", "longest"], steps))
    lines = [
        [line.item, display.usd(line.usd), display.number(line.quantity), line.unit, line.as_of]
        for line in sorted(run.lines, key=lambda line: -line.usd)
    ]
    console.print(_table("[projected] cost", ["item", "dollars", "quantity", "unit", "price as of"], lines))
    moved = [
        [name, display.bytes_(each["bytes_in"]), display.bytes_(each["bytes_out"]), f"{each['requests']:,}"]
        for name, each in run.traffic.items()
    ]
    console.print(_table("[projected] traffic", ["channel", "received", "sent", "requests"], moved))
    print(f"calibration: {run.calibration.name}: {'; '.join(run.calibration.basis)}")
    for problem in run.problems:
        print(f"would not run so on AWS: {problem}")
    if not run.finished:
        print("the simulation ends where AWS would have ended the run: figures are those until then")
    print(
        f"[projected] {display.seconds(run.seconds)}, {display.seconds(run.epoch_s)} an epoch; {display.usd(run.usd)} in full, "
        f"{display.usd(run.paper_method_usd)} by the papers' method; {display.bytes_(run.moved_bytes)} moved; "
        f"at most {run.concurrency:,} functions at once"
    )


def _judge() -> None:
    from crossover.simulation import judgement

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
    Console(highlight=False).print(_table("published beside projected, seconds", head, rows))
    print(judgement.headline().replace("**", ""))
