"""`crossover reproduce`: a study's tables again, from its bundle."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossover.account import tell
from crossover.cli.arguments import Debug
from crossover.cli.run import alone_in
from crossover.cli.signals import as_ctrl_c
from crossover.errors import RunFailed

if TYPE_CHECKING:
    from crossover.study.tables import StudyCell


def reproduce(
    bundle: Annotated[Path, typer.Argument(help="What crossover study --bundle wrote.", show_default=False)],
    run: Annotated[
        bool,
        typer.Option("--run", help="Run every trial again, where the study ran; else its records are counted again."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="With --run: folder for it; by default results/<name>-again.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Make a study's tables again, and say of every cell: equal bits, within the interval, or not."""
    from crossover.reports import terminal
    from crossover.reports.terminal import TextTable
    from crossover.study import bundle as bundles
    from crossover.study import conduct, tables
    from crossover.study.plan import StudyPlan, carry_out

    found = bundles.read(bundle)
    terminal.show(f"study {found.study.name}, {', '.join(f'{name} {value}' for name, value in found.versions.items())}")
    if run:
        folder = out or Path("results") / f"{found.study.name}-again"
        plan = StudyPlan(found.study, where=found.where, tell=terminal.show)
        with alone_in(folder), as_ctrl_c():
            resume = (folder / conduct.STATE).is_file()
            end = carry_out(plan, folder, where=found.where, budget_usd=None, resume=resume, tell=tell)
        here = tables.cells(found.study, end.rows)
    else:
        here = found.made_again()
    held = list(tables.held_against(found.cells, here))
    shown = [
        [there.row, there.column, _figure(there), "-" if mine is None else _figure(mine), how]
        for there, mine, how in held
    ]
    terminal.show(TextTable("Cell by cell", ["row", "figure", "bundle", "again", ""], shown))
    counts = Counter(how for _, _, how in held)
    terminal.show(", ".join(f"{counts[how]} {how}" for how in (tables.EQUAL, tables.WITHIN, tables.NOT)))
    if counts[tables.NOT]:
        raise RunFailed(f"{counts[tables.NOT]} of {len(held)} cells were not reproduced")


def _figure(cell: "StudyCell") -> str:
    if cell.value is None:
        return "-"
    return f"{cell.value:.6g}" if cell.low is None else f"{cell.value:.6g} ({cell.low:.6g} to {cell.high:.6g})"
