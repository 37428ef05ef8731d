"""`crossover run` and `crossover compare`."""

import fcntl
import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from crossover.cli.arguments import (
    AsJson,
    Config,
    Debug,
    Override,
    TakeOver,
    check_writable,
    command_words,
    load_runnable,
    print_json,
    require_checkout,
    show_progress,
)
from crossover.cli.signals import stop_on_signals
from crossover.errors import ConfigError, Corrupt, DataError, UserError, print_line
from crossover.experiment import Experiment
from crossover.reports.folder import PROJECTION, RunFolder, is_ours, write_atomically
from crossover.running import account, deploying, running_costs
from crossover.running.account import explain_aws_errors
from crossover.simulation import processors
from crossover.simulation.processors import describe_idle_vcpus
from crossover.validation import check_deployment

if TYPE_CHECKING:
    from crossover.running.monitor import OnProgress


# --- compare ----------------------------------------------------------------------------------------------------------


def compare(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Results folders of runs.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Folder for report.html and comparison.csv.")] = Path("results/comparison"),
    at: Annotated[
        float | None,
        typer.Option(
            help="Show which run reaches this value of the metric first, such as 0.85.",
            show_default="the runs' common target",
        ),
    ] = None,
    mixed: Annotated[bool, typer.Option("--mixed", help="Allow runs with different data or models.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare runs in a table, report.html and a CSV file. A winner is named only among settings with at least three seeds each."""
    from crossover.reports import comparison as comparing
    from crossover.reports import tables
    from crossover.reports.report_pages import write_comparison
    from crossover.reports.tables import comparison
    from crossover.simulation.repetitions import project_results

    found = comparing.compare_folders(folders, at=at, mixed=mixed, simulated=project_results)
    report = write_comparison(found, out)
    if as_json:
        print_json(comparing.as_json(found))
        return
    tables.show(comparison(found), f"report: {report}")


# --- run --------------------------------------------------------------------------------------------------------------
# `crossover run`: trains once, shows each epoch when it ends, and writes a folder with the results.


class LogTo(StrEnum):
    """The experiment-tracking tools for which --log writes curves, by the names of their libraries."""

    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"


Where = Literal["local", "inline", "aws"]


def run(
    config: Config,
    on: Annotated[
        Where,
        typer.Option(
            help="local: AWS's services simulated on this machine; inline: only this process; aws: the stack that `deploy` created."
        ),
    ] = "local",
    override: Override = None,
    data: Annotated[Path | None, typer.Option(help="Folder with the data sets' files.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results.", show_default="results/<name>")] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER|RUN", help="Resume the unfinished run in this folder; with --on aws, the run of this name."
        ),
    ] = None,
    log: Annotated[
        list[LogTo] | None,
        typer.Option(help="Also write the curves for this tool to <out>/<tool>. Repeatable."),
    ] = None,
    take_over: TakeOver = False,
    debug: Debug = False,
) -> None:
    """Train a model, and write result.json, metrics.jsonl, the model and report.html into a folder.

    An earlier run's files in the folder are moved aside, unless that run is resumed. A failed run that can be resumed prints how.
    """
    here = Path.cwd()  # before any user code runs, which may change the current folder
    overrides = [*(override or []), *_data_override(data)]
    experiment, named = load_runnable(config, overrides, travels=on != "inline"), command_words(config, overrides)
    if on == "local":
        require_checkout("run --on local", otherwise="`--on inline` trains in this process and needs none")
    asked = _find_resume_folder(resume, out) if resume and on != "aws" else out or Path("results") / experiment.name
    folder = here / asked
    _check_folder(asked)
    if log:
        from crossover.reports import tracking  # not for --help

        for tool in log:
            tracking.check_installed(tool.value)
    if on == "aws":
        check_deployment(experiment)
        processors.check_fits(experiment)
        experiment = _check_deployed(experiment, named, take_over=take_over)
    if wasted := describe_idle_vcpus(experiment):
        print_line(f"note: {wasted}", stderr=True)
    with lock_folder(asked):
        try:
            with stop_on_signals(), show_progress(experiment, where=on, out=asked) as on_progress:
                finished = _start(experiment, on, folder, on_progress, resume=resume or "")
        except BaseException as error:
            if not ((resume and _is_damage(error)) or _has_diverged(error)):
                _print_resume_command(named, on, asked)
            raise
        _summarise(finished, shown=asked)
        for tool in log or []:
            print_line(f"{tool}: {tracking.write_curves(finished, tool.value, where=str(asked / tool.value))}")


def _start(experiment: Experiment, on: Where, out: Path, on_progress: "OnProgress", *, resume: str) -> RunFolder:
    """Train the experiment where `on` says (inline, local or aws), and return the run in the folder `out`. `on_progress`: called after each
    epoch; `resume`: the run to resume (on AWS its name), "" for a new one. Raises what the run raises; on AWS, botocore's errors become
    UserError or CrossoverError.
    """
    from crossover.running import deployed, inline  # reports, and torch once it stages data

    match on:
        case "inline":
            return inline.run_inline(experiment, out, on_progress, resume=bool(resume))
        case "local":
            return deployed.run_local(experiment, out, on_progress, resume=bool(resume))
        case "aws":
            with explain_aws_errors():  # a missing permission is noticed only at the first call that needs it
                return deployed.run_aws(experiment, out, on_progress, resume=resume)


def _find_resume_folder(resume: str, out: Path | None) -> Path:
    """Return the folder that the option --resume names, if it holds an unfinished run. Raises UserError if it holds none, or if `out`, the
    option --out, is another folder.
    """
    from crossover.running import inline
    from crossover.running import resume as resumption

    folder = Path(resume)
    if out is not None and out.resolve() != folder.resolve():
        raise UserError(f"--out {out}: a resumed run keeps its folder, {folder}; leave out --out")
    if not inline.has_unfinished_run(folder):
        resumption.find_unfinished(folder)
    return folder


def _is_damage(error: BaseException) -> bool:
    """Return whether `error` says that a run could not be resumed because its data is corrupt, so that the same command would fail
    again.
    """
    return any(isinstance(each, Corrupt) for each in (error, error.__cause__)) or f"{Corrupt.__name__}: " in str(error)


def _has_diverged(error: BaseException) -> bool:
    """Return whether `error` says that training failed because values were no longer finite, so that a resumed run would fail again. Goes
    by the error's words.
    """
    return any(advice in str(error) for advice in ("may keep it finite", "may keep them finite"))


def _print_resume_command(config: str, on: Where, folder: Path) -> None:
    """Print to standard error the command that resumes the run in `folder`, if that holds an unfinished run of this machine; nothing for
    runs on AWS. `config`: words that name the experiment on a command line; `on`: where the run trains.
    """
    from crossover.running import inline

    if on != "aws" and inline.has_unfinished_run(folder):
        again = f"crossover run {config} --on {on} --resume {shlex.quote(str(folder))}"
        kept = f"{folder} holds an unfinished run; to resume it (with unchanged code): {again}"
        print_line(kept, stderr=True)  # possibly an earlier run's, if this one failed before it began


def _check_deployed(experiment: Experiment, config: str, *, take_over: bool) -> Experiment:
    """Check that the experiment can run on its deployed stack, and return the experiment with its budget reduced to what is left of it.
    Prints a note if a run is still under way, which will be resumed.

    `config`: words that name the experiment on a command line; `take_over`: whether another owner's stack may be used. Raises UserError if
    the stack is missing, incomplete, expired, changed or another owner's, if the budget is spent, or if the prices are of another region.
    """
    import boto3

    from crossover.running import monitor

    now, session = datetime.now(UTC), boto3.Session()
    with explain_aws_errors():
        stack = account.check_runnable(
            session, f"{experiment.project}-{experiment.name}", project=experiment.project, config=config, now=now
        )
        if not take_over:
            account.check_owner(session, stack.name, owner=experiment.owner, command=f"crossover run {config} --on aws")
        running_costs.check_prices(session, experiment)
        deploying.check_unchanged(session, experiment, config=config)
        if found := monitor.find_run_under_way(experiment, session):
            print_line(f"resuming {found.run}, which is still running")
    if experiment.lifetime.budget_usd is None:
        return experiment
    left = running_costs.find_budget_left(experiment, stack, now=now, config=config)
    return replace(experiment, lifetime=replace(experiment.lifetime, budget_usd=left))


def _summarise(folder: RunFolder, *, shown: Path) -> None:
    """Print the result of a run. If the run finished and can be simulated, also project it on AWS, write the projection into the folder and
    the report anew with it.

    `shown`: the folder as the user named it.
    """
    from crossover.advice.question import size_run
    from crossover.reports import tables
    from crossover.reports.report_pages import write_report
    from crossover.reports.tables import summary
    from crossover.simulation.repetitions import project_results

    def missing(reason: str) -> None:
        """Print a note that the run has no projection on AWS, with the reason."""
        tables.show(f"note: no {PROJECTION}: {reason}")

    finished = [folder.result] if folder.result["outcome"] == "finished" else []
    projected = next(iter(project_results(finished, tell=missing, size_run=size_run)), None)
    if projected is not None:
        write_atomically(folder.path / PROJECTION, json.dumps(projected.as_json(), indent=1).encode() + b"\n")
        write_report(folder, projected)
    tables.show(summary(folder.result, projected), f"report: {shown / 'report.html'}")


def _data_override(folder: Path | None) -> list[str]:
    """Return, in a list, the --set option that makes an experiment read its data from `folder`, as an absolute path; an empty list if that
    is None. Raises DataError if there is no such folder.
    """
    if folder is None:
        return []
    if not folder.is_dir():
        raise DataError(f"--data {folder}: no such folder")
    return [f"data.directory={json.dumps(str(folder.resolve()))}"]


def _check_folder(folder: Path) -> None:
    """Raise ConfigError unless results can be written to `folder`: it is new or empty, or holds a result.json or only files with names that
    runs give; and a file can be created in it, which is tried. Folders that this creates are removed again.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {folder}: this is a file; expected a folder")
    if folder.is_dir() and not (folder / "result.json").exists() and not all(map(is_ours, folder.iterdir())):
        raise ConfigError(
            f"--out {folder}: this folder holds other files; expected a new or empty folder, or one of an earlier run"
        )
    check_writable(folder)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Context manager that holds the lock of `folder` during its block, so that no other process trains there. Raises UserError at once if
    another process, or another such block of this one, holds it, or if the lock file cannot be created.

    The lock is a file beside the folder, so that the folder itself need not exist. The kernel releases it when the process ends, however
    that ends. The file, and parent folders that were created for it and are empty, are deleted at the end. A process that has opened the
    deleted file meanwhile notices this and opens the new one.
    """
    path = folder.resolve()
    made = [each for each in path.parents if not each.exists()]
    lock = path.parent / f".{path.name}.lock"
    while True:
        held = _open_lock(lock, folder)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            raise UserError(
                f"{folder}: another run is using this folder; wait until it ends, or give another --out"
            ) from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(held), lock.stat()):
                break
        os.close(held)
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()
        os.close(held)
        for each in made:
            with suppress(OSError):  # something was written there
                each.rmdir()


def _open_lock(lock: Path, folder: Path) -> int:
    """Open the lock file `lock`, creating it and its parent folders if necessary, and return its file descriptor. Raises UserError if that
    fails. `folder`: the folder that it locks, for the message.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another run that ends has just removed the folder
            return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        lock.parent.mkdir(parents=True, exist_ok=True)
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UserError(
            f"{folder}: the lock file beside this folder cannot be created ({lock}: {error.strerror}); give another --out"
        ) from None
