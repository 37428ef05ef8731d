"""`crossover study`: many experiments from one file, under one budget."""

import math
from pathlib import Path
from typing import Annotated

import typer

from crossover.account import tell
from crossover.cli.arguments import Debug
from crossover.cli.run import Where, alone_in
from crossover.cli.signals import as_ctrl_c
from crossover.errors import ConfigError, RunFailed


def study(
    file: Annotated[Path, typer.Argument(metavar="STUDY", help="A study: docs/using.md.", show_default=False)],
    on: Annotated[
        Where, typer.Option(help="Where its trials run, as of crossover run; aws: their stacks come and go.")
    ] = "local",
    out: Annotated[Path | None, typer.Option(help="Folder for tables and runs; by default results/<name>.")] = None,
    budget: Annotated[
        float | None, typer.Option(metavar="USD", help="What all trials together may cost at AWS's prices, at most.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be run, for how long and for how much.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the study that the folder holds.")] = False,
    bundle: Annotated[
        bool,
        typer.Option(
            "--bundle", help="Also one archive of file, versions, digests and records, for crossover reproduce."
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Run a grid or a search over seeds: study.csv, and study.html with intervals and the comparisons that were named beforehand."""
    from crossover.reports import terminal
    from crossover.reports.terminal import TextTable
    from crossover.study import bundle as bundles
    from crossover.study import forecast, report  # reports come with them: not for --help
    from crossover.study.file import read
    from crossover.study.plan import StudyPlan, carry_out

    check_dollars(budget)
    asked = read(file)
    plan = StudyPlan(asked, where=on, tell=terminal.show)
    if budget is not None:
        forecast.check_budget(plan.forecast, budget)
    if dry_run:
        return
    folder = out or Path("results") / asked.name
    with alone_in(folder), as_ctrl_c():
        end = carry_out(plan, folder, where=on, budget_usd=budget, resume=resume, tell=tell)
    for sheet in end.tables.tables:
        terminal.show(TextTable(sheet.title, sheet.head, sheet.rows))
    terminal.show(f"{end.tables.words}; report: {folder / report.PAGE}")
    if bundle:
        terminal.show(f"bundle: {bundles.write(folder, end.rows)}")
    if end.failed:
        raise RunFailed(
            f"{len(end.failed)} of {asked.count} trials failed, the page says why; --resume tries them again: "
            + ", ".join(end.failed)
        )


def check_dollars(budget: float | None) -> None:
    """Raises ConfigError for a --budget that is no sum of dollars."""
    if budget is not None and not 0 < budget < math.inf:
        raise ConfigError(f"--budget {budget:g}: expected dollars, more than 0")
