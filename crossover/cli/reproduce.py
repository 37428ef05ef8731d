"""`crossover reproduce`: a study's tables again, from its bundle."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossover.account import tell
from crossover.cli.arguments import Debug
from crossover.cli.run import Where, alone_in
from crossover.cli.signals import as_ctrl_c
from crossover.cli.study import check_dollars
from crossover.errors import ConfigError, RunFailed

if TYPE_CHECKING:
    from crossover.study.bundle import Bundle
    from crossover.study.tables import StudyCell

MARK = "reproduction.json"  # of which bundle a folder's trials were run again


def reproduce(
    bundle: Annotated[Path, typer.Argument(help="What crossover study --bundle wrote.", show_default=False)],
    run: Annotated[
        bool, typer.Option("--run", help="Run every trial again; else its records are counted again.")
    ] = False,
    on: Annotated[
        Where | None,
        typer.Option(help="With --run: where, as of crossover study; by default inline.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="With --run: a new folder for it; by default results/<name>-again.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(metavar="USD", help="With --run: as of crossover study; --on aws needs one.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="With --run: go on with the same bundle's.")] = False,
    debug: Debug = False,
) -> None:
    """Make a study's tables again, and say of every cell: equal bits, within the interval, or not."""
    from crossover.reports import terminal
    from crossover.reports.terminal import TextTable
    from crossover.study import bundle as bundles
    from crossover.study import tables

    options = {"--on": on, "--out": out, "--budget": budget, "--resume": resume or None}
    if not run and (given := [name for name, value in options.items() if value is not None]):
        raise ConfigError(f"{', '.join(given)}: of trials that are run again; expected --run beside it")
    check_dollars(budget)
    if on == "aws" and budget is None:
        raise ConfigError(
            "--on aws: somebody else's trials on your account; expected --budget USD, beyond which none begins"
        )
    found = bundles.read(bundle)
    versions = ", ".join(f"{name} {value}" for name, value in found.versions.items())
    terminal.show(
        f"study {found.study.name}, {versions}: {len(found.rows)} of {found.study.count} trials, --on {found.where}"
    )
    here = (
        _run_again(found, on or "inline", out or Path("results") / f"{found.study.name}-again", budget, resume)
        if run
        else found.made_again()
    )
    held = list(tables.held_against(found.cells, here))
    shown = [
        [cell.row, cell.column, _figure(there), _figure(mine), how]
        for there, mine, how in held
        if (cell := there or mine)
    ]
    terminal.show(TextTable("Cell by cell", ["row", "figure", "bundle", "again", ""], shown))
    counts = Counter(how for _, _, how in held)
    terminal.show(", ".join(f"{counts[how]} {how}" for how in (tables.EQUAL, tables.WITHIN, tables.NOT)))
    if counts[tables.NOT]:
        raise RunFailed(f"{counts[tables.NOT]} of {len(held)} cells were not reproduced")


def _run_again(found: "Bundle", on: Where, folder: Path, budget_usd: float | None, resume: bool) -> "list[StudyCell]":
    """Tables of trials run in `folder`, which is new, or was begun by this for the same archive: no trial of the original's counts."""
    from crossover.reports import terminal
    from crossover.reports.folder import write_atomically
    from crossover.study import conduct, forecast, tables
    from crossover.study.plan import StudyPlan, carry_out

    plan, mark = StudyPlan(found.study, where=on, tell=terminal.show), folder / MARK
    if budget_usd is not None:
        forecast.check_budget(plan.forecast, budget_usd)
    body = json.dumps({"bundle_sha256": found.digest}).encode() + b"\n"
    with alone_in(folder), as_ctrl_c():
        if not resume and (folder / conduct.STATE).exists():
            raise ConfigError(
                f"--out {folder}: holds a study, whose trials would be counted as run again; give another folder, or --resume "
                "where it is this bundle's"
            )
        if not resume:
            conduct.begin(found.study, folder, where=on, resume=False)
            write_atomically(mark, body)
        elif not mark.is_file() or mark.read_bytes() != body:
            raise ConfigError(f"--resume: {folder} is no reproduction of this bundle; leave it away, or give its --out")
        end = carry_out(plan, folder, where=on, budget_usd=budget_usd, resume=True, tell=tell)
    return tables.cells(found.study, end.rows)


def _figure(cell: "StudyCell | None") -> str:
    if cell is None or cell.value is None:
        return "-"
    return f"{cell.value:.6g}" if cell.low is None else f"{cell.value:.6g} ({cell.low:.6g} to {cell.high:.6g})"
