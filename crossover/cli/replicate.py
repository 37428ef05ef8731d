"""`crossover replicate`: every table and figure of the papers, with ours beside the printed figures."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossover.account import tell
from crossover.cli.arguments import Debug
from crossover.errors import ConfigError, DataError, RunFailed
from crossover.reports import display

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crossover.study.papers.measurement import Measurement
    from crossover.study.papers.part import Part
    from crossover.study.papers.runner import Runner


def replicate(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE|FIGURE|all]...",
            help="For example 2025-table-2 or 2023-figure-5; all; a year; ic2e-2026.",
            show_default="all",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for index.html, index.md, cells.csv and the runs.")] = Path(
        "results/replication"
    ),
    scale: Annotated[
        float,
        typer.Option(help="How much of the published size is run; 0.02 takes about a quarter of an hour on 2 cores."),
    ] = 0.02,
    data: Annotated[Path | None, typer.Option(help="Folder with the data sets' files.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "--list", help="Only say what would be run, and for how long.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Run the papers' tables and figures anew, and set ours beside the printed ones. Finished runs are kept: a second call goes on."""
    from crossover.study.papers import book, book_page
    from crossover.study.papers.measurement import Scale
    from crossover.study.papers.parts import chosen, measurements
    from crossover.study.papers.runner import Runner

    names, size = what or ["all"], Scale(scale)
    parts = chosen(names)
    wanted = measurements(parts, size)
    runner = Runner(out=out, scale=size, data=_folder(data), tell=tell)
    if dry_run:
        _forecast(runner, parts, wanted)
        return
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is a file; expected a folder")
    outcome = runner.run(wanted)
    line = " ".join(["crossover replicate", *names, f"--scale {scale:g}", f"--out {out}"])
    made = book.of(parts, outcome, size, command=line)
    report = book_page.write(made, out)
    print(f"report: {report}")
    print(book_page.verdict(made.sections))
    if outcome.failed:
        raise RunFailed(
            f"{len(outcome.failed)} of {len(wanted)} runs failed, the page says why; the same command tries them again: "
            + ", ".join(outcome.failed)
        )


def _folder(data: Path | None) -> Path | None:
    """--data, else CROSSOVER_DATA, else shared/datasets in or beside the checkout; None: the user's cache, or fetched."""
    if data is not None and not data.is_dir():
        raise DataError(f"--data {data}: no such folder")
    root = Path(__file__).parents[2]
    named = os.environ.get("CROSSOVER_DATA")
    places = [data, Path(named) if named else None, root / "shared" / "datasets", root.parent / "shared" / "datasets"]
    return next((place.resolve() for place in places if place is not None and place.is_dir()), None)


def _forecast(runner: "Runner", parts: "Sequence[Part]", wanted: "Sequence[Measurement]") -> None:
    """The runs of the parts, with the seconds that they may take here, undisturbed."""
    from crossover.reports import terminal

    cores = os.cpu_count() or 1
    rows, total_s = list[list[str]](), 0.0
    for each in wanted:
        why = runner.cannot(each)
        kept = runner.finished(each) is not None
        seconds = 0.0 if kept or why else each.forecast_s(runner.scale, cores=cores)
        total_s += seconds
        users = ", ".join(part.name for part in parts if each.key in {m.key for m in part.measurements(runner.scale)})
        rows.append([each.key, "kept" if kept else f"not run: {why}" if why else display.seconds(seconds), users])
    total = f"about {display.seconds(total_s)} on {cores} undisturbed cores"
    terminal.show(
        terminal.TextTable("", ["run", "about", "for"], rows),
        f"{len(parts)} tables and figures, {len(wanted)} runs, {total}",
    )
