"""`crossover compare`: several runs side by side, in one table, one report, one CSV."""

from pathlib import Path
from typing import Annotated

import typer

from crossover.cli.arguments import AsJson, Debug, print_json


def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for report.html and comparison.csv.")] = Path("results/comparison"),
    at: Annotated[
        float | None,
        typer.Option(
            help="Who is there first: a value of the metric, such as 0.85.  [default: the target of all runs]"
        ),
    ] = None,
    mixed: Annotated[bool, typer.Option("--mixed", help="Show different data or models side by side.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare runs: one table, report.html and a CSV file. Who won is said of settings with runs of three seeds or more."""
    from crossover.reports import comparison as comparing
    from crossover.reports import terminal
    from crossover.reports.html import write_comparison
    from crossover.reports.tables import comparison
    from crossover.simulation.of_runs import on_aws

    found = comparing.read(folders, at=at, mixed=mixed, simulated=on_aws)
    report = write_comparison(found, out)
    if as_json:
        print_json(comparing.as_json(found))
        return
    terminal.show(comparison(found), f"report: {report}")
