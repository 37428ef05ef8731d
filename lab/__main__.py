"""The commands that fit the calibration to what others measured and show the errors of the projections: `python -m lab fit`, `python -m
lab judge`.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from crossover.cli.main import run_command
from crossover.reports import tables
from crossover.reports.tables import TextTable
from crossover.simulation import papers
from crossover.simulation.figures import FITTED, GPUS
from crossover.simulation.gpu_steps import load_cards
from lab import cells, service_fits
from lab.measurements import FOLDER

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)


@app.command()
def fit(
    folder: Annotated[Path, typer.Argument(help="The folder of the measurements.")] = FOLDER,
) -> None:
    """Fit the services' figures to the measurements in a folder, and write config/calibration/fitted.yaml."""
    found = service_fits.fit(folder)
    rows = [
        [each["figure"], f"{each['value']:.4g}", each["unit"], each["source"].partition(":")[0]]
        for each in found["figures"]
    ]
    tables.show(TextTable("fitted to measurements", ["figure", "value", "unit", "source"], rows))
    left = [
        [
            *(each[name] for name in ("part", "session", "level")),
            f"{each['measured_s']:.3g}",
            f"{each['fitted_s']:.3g}",
            f"{each['error']:+.0%}",
        ]
        for each in found["residuals"]
    ]
    tables.show(TextTable("residuals", ["part", "session", "level", "measured, s", "fitted, s", "error"], left))
    tables.show(f"written: {FITTED}")


@app.command()
def gpus(
    folder: Annotated[Path, typer.Argument(help="The folder of the measured GPU steps.")],
) -> None:
    """Fit the factors of GPU steps to the measurements in a folder, write config/calibration/gpus.yaml, and show the errors of the fits."""
    from lab import gpu_steps  # torch comes with it

    gpu_steps.write_factors(gpu_steps.fit(folder))
    tables.show(
        TextTable("errors of fits that have not seen the family", gpu_steps.HEAD, gpu_steps.judge_cards(folder))
    )
    tables.show(
        TextTable("fp32 training, images a second", gpu_steps.PRINTED_HEAD, gpu_steps.tabulate_printed(load_cards()))
    )
    tables.show(f"written: {GPUS}")


@app.command()
def judge() -> None:
    """Show the projections' errors on all rows of the papers, and on measured experiments that no fit has used."""
    rows = [
        [
            each.row.source,
            each.figure,
            f"{each.printed:g}",
            f"{each.projected:.3g}",
            f"{each.error:.1%}",
            "held out" if each.held_out else "calibration",
        ]
        for each in papers.compare_figures()
    ]
    head = ["row", "figure", "published", "projected", "error", "set"]
    tables.show(TextTable("published beside projected, seconds", head, rows))
    tables.show(papers.describe_errors().replace("**", ""))
    tables.show(TextTable("measured cells held out", cells.HEAD, cells.tabulate_held_out()))
    tables.show(cells.write_headline().replace("**", ""))
    tables.show(TextTable("[projected] cells that others judge", cells.ASIDE_HEAD, cells.tabulate_aside()))


if __name__ == "__main__":
    run_command(app, sys.argv[1:], name="python -m lab")
