"""`crossover study`, `reproduce` and `replicate`."""

import json
import math
import os
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossover.cli.arguments import Debug, require_checkout
from crossover.cli.run import Where, lock_folder
from crossover.cli.signals import stop_on_signals
from crossover.errors import ConfigError, DataError, RunFailed, print_line
from crossover.reports import display

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crossover.study.bundle import Bundle
    from crossover.study.paper_cells import Part
    from crossover.study.paper_runs import Measurement, Runner
    from crossover.study.report import StudyCell


# --- study ------------------------------------------------------------------------------------------------------------


def study(
    file: Annotated[
        Path,
        typer.Argument(metavar="STUDY", help="The study's YAML file; docs/using.md describes it.", show_default=False),
    ],
    on: Annotated[
        Where,
        typer.Option(
            help="Where the trials run, as for `crossover run`; aws: stacks are deployed for them and deleted afterwards."
        ),
    ] = "local",
    out: Annotated[Path | None, typer.Option(help="Folder for tables and runs.", show_default="results/<name>")] = None,
    budget: Annotated[
        float | None,
        typer.Option(metavar="USD", help="Most dollars that all trials together may cost at AWS's prices."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print which trials would run, with their projected time and cost.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the unfinished study in the folder.")] = False,
    bundle: Annotated[
        bool,
        typer.Option(
            "--bundle", help="Also write an archive (study file, versions, digests, records) for `crossover reproduce`."
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Run a grid or a search over seeds, and write study.csv and study.html with confidence intervals and the declared comparisons.

    If trials fail, so does the command in the end; the report says why, and --resume runs them again.
    """
    from crossover.reports import tables
    from crossover.reports.tables import TextTable
    from crossover.study import bundle as bundles
    from crossover.study import (
        report,
        runner,  # reports come with them: not for --help
    )
    from crossover.study.file import read
    from crossover.study.plan import StudyPlan, carry_out

    check_dollars(budget)
    asked = read(file)
    plan = StudyPlan(asked, where=on, tell=tables.show)
    if budget is not None:
        runner.check_budget(plan.forecast, budget)
    if dry_run:
        return
    if on == "local":
        require_checkout("study --on local", otherwise="`--on inline` runs the trials in this process and needs none")
    folder = out or Path("results") / asked.name
    with lock_folder(folder), stop_on_signals():
        end = carry_out(plan, folder.absolute(), where=on, budget_usd=budget, resume=resume, tell=print_line)
    for sheet in end.tables.tables:
        tables.show(TextTable(sheet.title, sheet.head, sheet.rows))
    tables.show(f"{end.tables.words}; report: {folder / report.PAGE}")
    if bundle:
        tables.show(f"bundle: {bundles.write(folder, end.rows)}")
    if end.failed:
        raise RunFailed(
            f"{len(end.failed)} of {asked.count} trials failed; the report says why, and --resume runs them again: "
            + ", ".join(end.failed)
        )


def check_dollars(budget: float | None) -> None:
    """Raise ConfigError unless `budget` is None or a positive, finite number of dollars."""
    if budget is not None and not 0 < budget < math.inf:
        raise ConfigError(f"--budget {budget:g}: expected a number of dollars above 0")


# --- reproduce --------------------------------------------------------------------------------------------------------
# `crossover reproduce`: recomputes a study's results from its bundle, or runs its trials again.

MAX_SHOWN = 3  # most differing trials that are printed, and most differing figures of one trial
MARKER_FILE = "reproduction.json"  # names the bundle that a folder reproduces


def reproduce(
    bundle: Annotated[Path, typer.Argument(help="Archive that `crossover study --bundle` wrote.", show_default=False)],
    run: Annotated[
        bool,
        typer.Option("--run", help="Run every trial again. Without --run, results are recomputed from the records."),
    ] = False,
    on: Annotated[
        Where | None,
        typer.Option(help="With --run: where the trials run, as for `crossover study`.", show_default="inline"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="With --run: a new folder for the results.", show_default="results/<name>-again")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(metavar="USD", help="With --run: most dollars that all trials may cost. Required with --on aws."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="With --run: resume an unfinished reproduction of the same bundle.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Recompute a study's tables from its bundle, and report for each cell if it is identical, within the interval, or not reproduced.

    Fails if a cell is not reproduced, or if the bundle contradicts its own records.
    """
    from crossover.reports import tables as tables_
    from crossover.study import bundle as bundles
    from crossover.study import own_modules, report

    options = {"--on": on, "--out": out, "--budget": budget, "--resume": resume or None}
    if not run and (given := [name for name, value in options.items() if value is not None]):
        raise ConfigError(f"{', '.join(given)}: works only with --run; add --run or leave it out")
    check_dollars(budget)
    if on == "aws" and budget is None:
        raise ConfigError(
            "--on aws: runs someone else's trials at your expense; expected --budget USD, a limit after which no trial starts"
        )
    found = bundles.read(bundle)
    versions = ", ".join(f"{escape_controls(name)} {escape_controls(value)}" for name, value in found.versions.items())
    tables_.show(
        f"study {_shorten_name(found.study.name)}, {versions}: {len(found.rows)} of {found.study.count} trials, --on {found.where}"
    )
    untrue = _compare_with_records(found)
    if run:
        folder = out or _default_folder(found.study.name)
        for line in own_modules.check(found, (bundle.parent, Path.cwd())):
            tables_.show(escape_controls(line))
        here = _run_again(found, on or "inline", folder, budget, resume)
    else:
        here = found.recompute_cells()
    held = list(
        report.compare_cells(
            found.cells, here, incomparable=report.list_incomparable(found.study) if run else (), same_records=not run
        )
    )
    _show_cells(held)
    lost = sum(how == report.NOT for _, _, how in held)
    failures = [*untrue, *([f"{lost} of {len(held)} cells were not reproduced"] if lost else [])]
    if failures:
        raise RunFailed("; ".join(failures))


def _show_cells(held: "Sequence[tuple[StudyCell | None, StudyCell | None, str]]") -> None:
    """Print a table of each figure of a bundle beside the reproduced one, and a line that counts how they compare.

    `held`: result of `report.compare_cells`: for each figure the bundle's cell, the reproduced cell (None if missing), and how they
    compare, in words.
    """
    from crossover.reports import tables as tables_
    from crossover.reports.tables import TextTable
    from crossover.study import report

    shown = [
        [escape_controls(cell.row), escape_controls(cell.column), _format_cell(there), _format_cell(mine), how]
        for there, mine, how in held
        if (cell := there or mine)
    ]
    tables_.show(TextTable("Cell by cell", ["row", "figure", "bundle", "again", ""], shown))
    counts = Counter(how for _, _, how in held)
    told = [report.EQUAL, report.WITHIN, report.NOT]
    told += [each for each in (report.ROUNDED, report.INCOMPARABLE) if counts[each]]
    tables_.show(", ".join(f"{counts[how]} {how}" for how in told))


def _compare_with_records(found: "Bundle") -> list[str]:
    """Print how a bundle's results and files differ from its own records, digests and from the code of this installation. Returns a
    sentence for each kind of difference that makes the bundle untrustworthy; empty if there is none. Different code and a missing
    digests.json are only reported.
    """
    from crossover.reports import tables as tables_

    untrue = {name: each.differing for name, each in found.recounts.items() if each.differing}
    for name, differing in list(untrue.items())[:MAX_SHOWN]:
        more = f"; and {len(differing) - MAX_SHOWN} more" if len(differing) > MAX_SHOWN else ""
        tables_.show(escape_controls(f"{name}: {'; '.join(differing[:MAX_SHOWN])}{more}"))
    if len(untrue) > MAX_SHOWN:
        tables_.show(f"and {len(untrue) - MAX_SHOWN} more trials whose results differ from their records")
    agree = len(found.recounts) - len(untrue)
    tables_.show(
        f"recomputed from the records: seconds, bytes, dollars and invocations of {agree} of {len(found.recounts)} trials agree with "
        "their result.json; accuracies are not in the records, and only --run reproduces them"
    )
    for why in sorted({each.unchecked for each in found.recounts.values() if each.unchecked}):
        tables_.show(escape_controls(f"dollars are not recomputed: {why}"))
    if others := found.list_other_code():
        more = f" and {len(others) - MAX_SHOWN} more" if len(others) > MAX_SHOWN else ""
        named = f"{', '.join(others[:MAX_SHOWN])}{more}"
        tables_.show(
            escape_controls(
                f"code: {len(others)} of the {len(found.code)} files that computed the study differ in this version: {named}"
            )
        )
    for line in [*found.undigested, *found.other_bytes[:MAX_SHOWN]]:
        tables_.show(escape_controls(line))
    if found.other_bytes[MAX_SHOWN:]:
        tables_.show(f"and {len(found.other_bytes) - MAX_SHOWN} more files")
    failures = []
    if untrue:
        failures.append(f"{len(untrue)} of {len(found.recounts)} trials' results do not follow from their records")
    if found.other_bytes:
        failures.append(f"{len(found.other_bytes)} files differ from their digests in digests.json")
    return failures


def escape_controls(text: str) -> str:
    """Return `text` with its control characters replaced by visible escapes, so that a file from somebody else cannot
    control the terminal.
    """
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _shorten_name(name: str) -> str:
    """Return a study's name with control characters escaped, and its middle left out if it has more than 80 characters."""
    shown = escape_controls(name)
    return shown if len(shown) <= 80 else f"{shown[:60]}...{shown[-10:]}"


def _default_folder(name: str) -> Path:
    """Return the folder results/<name>-again. Raises ConfigError if `name`, the study's, cannot be a folder's name, since a bundle may come
    from somebody else.
    """
    if not re.fullmatch(r"\w[\w .+=~-]*", name):
        raise ConfigError(f"study {_shorten_name(name)!r} cannot be a folder's name; add --out FOLDER")
    return Path("results") / f"{name}-again"


def _run_again(found: "Bundle", on: Where, folder: Path, budget_usd: float | None, resume: bool) -> "list[StudyCell]":
    """Run all trials of the bundle again with results in `folder`, and return the cells of the resulting tables. Trials that fail twice or
    do not fit into the budget are left out of the tables. `on`: where the trials run; `budget_usd`: most dollars for all trials, or None.
    `resume`: continue the unfinished reproduction of this same bundle that `folder` holds; otherwise `folder` must be new or empty.

    Raises ConfigError if the budget is too small for any trial, if a setting is not valid here, or if `folder` and `resume` do not fit
    together; UserError if another process holds the folder's lock.
    """
    from crossover.reports import tables as tables_
    from crossover.reports.folder import write_atomically
    from crossover.study import report, runner
    from crossover.study.plan import StudyPlan, carry_out

    plan, mark = StudyPlan(found.study, where=on, tell=tables_.show), folder / MARKER_FILE
    if budget_usd is not None:
        runner.check_budget(plan.forecast, budget_usd)
    body = json.dumps({"bundle_sha256": found.digest}).encode() + b"\n"
    with lock_folder(folder), stop_on_signals():
        if not resume and (folder / runner.STATE).exists():
            raise ConfigError(
                f"--out {folder}: this folder holds a study, whose trials would count as reproduced; give another folder, or --resume "
                "if it is an unfinished reproduction of this bundle"
            )
        if not resume:
            runner.begin_study(found.study, folder, where=on, resume=False)
            write_atomically(mark, body)
        elif not mark.is_file() or mark.read_bytes() != body:
            raise ConfigError(
                f"--resume: {folder} does not hold a reproduction of this bundle; leave out --resume, or give the right --out"
            )
        end = carry_out(plan, folder, where=on, budget_usd=budget_usd, resume=True, tell=print_line)
    return report.make_cells(found.study, end.rows)


def _format_cell(cell: "StudyCell | None") -> str:
    """Return a figure of a study's table as text, with its confidence interval if it has one, such as `0.91 (0.9 to 0.92)`; "-" if it has
    no value.
    """
    if cell is None or cell.value is None:
        return "-"
    return f"{cell.value:.6g}" if cell.low is None else f"{cell.value:.6g} ({cell.low:.6g} to {cell.high:.6g})"


# --- replicate --------------------------------------------------------------------------------------------------------
# `crossover replicate`: every table and figure of the papers, with our values beside the published ones.


def replicate(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE|FIGURE|all]...",
            help="Tables and figures, such as 2025-table-2 or 2023-figure-5; a year; or all.",
            show_default="all",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for index.html, index.md, cells.csv and the runs.")] = Path(
        "results/replication"
    ),
    scale: Annotated[
        float,
        typer.Option(help="Share of the published size that is run; 0.02 takes about 15 minutes on 2 cores."),
    ] = 0.02,
    data: Annotated[Path | None, typer.Option(help="Folder with the data sets' files.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "--list", help="Only print which runs are needed, with their expected time.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Reproduce the papers' tables and figures, beside the published values. Finished runs are kept, so that a second call resumes.

    If runs fail, the report is written without them, and the command fails.
    """
    from crossover.study import papers
    from crossover.study.paper_runs import Runner, Scale
    from crossover.study.papers import choose_parts, list_measurements

    names, size = what or ["all"], Scale(scale)
    parts = choose_parts(names)
    wanted = list_measurements(parts, size)
    runner = Runner(out=out, scale=size, data=_find_data_folder(data), tell=print_line)
    if dry_run:
        _print_forecast(runner, parts, wanted)
        return
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: this is a file; expected a folder")
    outcome = runner.run(wanted)
    folder = ["--data", str(data)] if data else []
    line = shlex.join(["crossover", "replicate", *names, "--scale", f"{scale:g}", *folder, "--out", str(out)])
    made = papers.fill_book(parts, outcome, size, command=line)
    report = papers.write(made, out)
    print_line(f"report: {report}")
    print_line(papers.summarize_book(made.sections))
    if outcome.failed:
        raise RunFailed(
            f"{len(outcome.failed)} of {len(wanted)} runs failed; the report says why, and the same command runs them again: "
            + ", ".join(outcome.failed)
        )


def _find_data_folder(data: Path | None) -> Path | None:
    """Return the absolute folder of the data sets: `data` if given, else the first that exists of the folder that CROSSOVER_DATA names and
    shared/datasets in or beside the repository; None if none exists, so that files are downloaded. Raises DataError if `data` is given and
    does not exist; a missing folder of CROSSOVER_DATA is skipped without a message.
    """
    if data is not None and not data.is_dir():
        raise DataError(f"--data {data}: no such folder")
    root = Path(__file__).parents[2]
    named = os.environ.get("CROSSOVER_DATA")
    places = [data, Path(named) if named else None, root / "shared" / "datasets", root.parent / "shared" / "datasets"]
    return next((place.resolve() for place in places if place is not None and place.is_dir()), None)


def _print_forecast(runner: "Runner", parts: "Sequence[Part]", wanted: "Sequence[Measurement]") -> None:
    """Print a table of the runs that the tables and figures `parts` need, with the seconds that each is expected to take on this machine (0
    for finished runs), and which need a data set that is not available. May try to download data sets. `wanted`: the runs.
    """
    from crossover.reports import tables

    cores = os.cpu_count() or 1
    rows, total_s, generated, absent = list[list[str]](), 0.0, 0, dict[str, str]()
    for each in wanted:
        refusal, unreadable = runner.explain_refusal(each), runner.explain_generated(each)
        dataset = each.experiment(runner.scale).data.dataset
        absent |= {dataset: unreadable} if unreadable else {}
        seconds = each.forecast_s(runner.scale, cores=cores)
        if runner.find_finished(each) is not None:
            about, seconds = "kept", 0.0
        elif refusal:
            about, seconds = f"not run: {f'needs {dataset} itself' if refusal == unreadable else refusal}", 0.0
        else:
            generated += bool(unreadable)
            about = display.seconds(seconds) + (", on generated images" if unreadable else "")
        total_s += seconds
        users = ", ".join(part.name for part in parts if each.key in {m.key for m in part.measurements(runner.scale)})
        rows.append([each.key, about, users])
    unable = sum(row[1].startswith("not run") for row in rows)
    able = f"{len(wanted) - unable} can run here; " if unable else ""
    able += f"{generated} of them on generated images; " if generated else ""
    total = f"{able}about {display.seconds(total_s)} on {cores} otherwise idle cores"
    tables.show(
        tables.TextTable("", ["run", "about", "for"], rows),
        f"{len(parts)} tables and figures, {len(wanted)} runs, {total}",
    )
    for dataset, why in absent.items():
        tables.show(f"{dataset} is not available: {why}")
    if absent:
        tables.show(
            "Generated images replace the data set in runs that only measure time, bytes and requests. Accuracies need the data set, "
            "and so does MLLess, whose bytes depend on the gradients."
        )
