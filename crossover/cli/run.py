"""`crossover run`: train once, show each epoch as it ends, leave a folder with the results."""

import errno
import hashlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from crossover.account import standing
from crossover.account.credentials import aws_errors_explained
from crossover.account.deployment import changes
from crossover.account.resources import stacks
from crossover.cli.arguments import Config, Debug, Override, TakeOver, accepted
from crossover.cli.progress import show_progress
from crossover.cli.signals import as_ctrl_c
from crossover.errors import ConfigError, DataError, UserError
from crossover.experiment import Experiment
from crossover.reports.folder import PROJECTION, RunFolder, is_ours, write_atomically
from crossover.simulation import own_steps
from crossover.simulation.processors import idle
from crossover.validation import check_deployment

if TYPE_CHECKING:
    from crossover.running import OnProgress


class LogTo(StrEnum):
    """Tools that draw curves, by the names of their libraries."""

    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"


Where = Literal["local", "inline", "aws"]


def run(
    config: Config,
    on: Annotated[
        Where,
        typer.Option(help="local: the cloud on this machine; inline: this process alone; aws: what `deploy` made."),
    ] = "local",
    override: Override = None,
    data: Annotated[Path | None, typer.Option(help="Folder with the data sets' files.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; by default results/<name>.")] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="FOLDER|RUN", help="Go on with the failed run in this folder; --on aws: with this run."),
    ] = None,
    log: Annotated[
        list[LogTo] | None,
        typer.Option(help="Also write the curves for this tool, into <out>/<tool>."),
    ] = None,
    take_over: TakeOver = False,
    debug: Debug = False,
) -> None:
    """Train, and leave result.json, metrics.jsonl, the model and report.html in a folder."""
    experiment = accepted(config, [*(override or []), *_data(data)], travels=on != "inline")
    folder = _resumed(resume, out) if resume and on != "aws" else out or Path("results") / experiment.name
    _check_folder(folder)
    if log:
        from crossover.reports import tracking  # not for --help

        for tool in log:
            tracking.check(tool.value)
    if on == "aws":
        check_deployment(experiment)
        own_steps.check_fits(experiment)
        experiment = _check_deployed(experiment, config, take_over=take_over)
    if wasted := idle(experiment):
        print(f"note: {wasted}", file=sys.stderr, flush=True)
    with alone_in(folder):
        try:
            with as_ctrl_c(), show_progress(experiment, where=on, out=folder) as on_progress:
                finished = _start(experiment, on, folder, on_progress, resume=resume or "")
        except BaseException:
            _say_how_to_go_on(config, on, folder)
            raise
        _summarise(finished)
        for tool in log or []:
            print(f"{tool}: {tracking.log(finished, tool.value, where=str(finished.path / tool.value))}")


def _start(experiment: Experiment, on: Where, out: Path, on_progress: "OnProgress", *, resume: str) -> RunFolder:
    from crossover import running  # reports, and torch once it stages data

    match on:
        case "inline":
            return running.run_inline(experiment, out, on_progress, resume=bool(resume))
        case "local":
            return running.run_local(experiment, out, on_progress, resume=bool(resume))
        case "aws":
            with aws_errors_explained():  # a permission that is lacking shows itself at the first call that needs it
                return running.run_aws(experiment, out, on_progress, resume=resume)


def _resumed(resume: str, out: Path | None) -> Path:
    """The folder to go on in. Raises UserError before anything heavy is started."""
    from crossover.running import baseline, resumption

    folder = Path(resume)
    if out is not None and out.resolve() != folder.resolve():
        raise UserError(f"--out {out}: results go to the folder that is resumed, {folder}; leave --out away")
    if not baseline.unfinished_in(folder):
        resumption.find(folder)
    return folder


def _say_how_to_go_on(config: Path, on: Where, folder: Path) -> None:
    from crossover.running import baseline

    if on != "aws" and baseline.unfinished_in(folder):
        again = f"crossover run {config} --on {on} --resume {folder}"
        kept = f"{folder} holds an unfinished run; with the code and the --set that it was started with, this goes on: {again}"
        print(kept, file=sys.stderr, flush=True)  # an earlier one's, where this run failed before it began


def _check_deployed(experiment: Experiment, config: Path, *, take_over: bool) -> Experiment:
    """With what is left of its budget. Raises UserError where the stack is missing, another owner's, half way or over, or the budget is
    spent, or would be counted at another region's prices.
    """
    import boto3

    from crossover import running

    now, session = datetime.now(UTC), boto3.Session()
    with aws_errors_explained():
        stack = stacks.check_runnable(
            session, f"{experiment.project}-{experiment.name}", project=experiment.project, config=str(config), now=now
        )
        if not take_over:
            stacks.check_owner(session, stack.name, owner=experiment.owner, command=f"run {config} --on aws")
        standing.check_prices(session, experiment)
        changes.check_unchanged(session, experiment, config=config)
        if found := running.under_way(experiment, session):
            print(f"taking up {found.run}, which is under way", flush=True)
    if experiment.lifetime.budget_usd is None:
        return experiment
    left = standing.left_of_budget(experiment, stack, now=now, config=config)
    return replace(experiment, lifetime=replace(experiment.lifetime, budget_usd=left))


def _summarise(folder: RunFolder) -> None:
    from crossover.reports import terminal
    from crossover.reports.html import write_report
    from crossover.reports.tables import summary
    from crossover.simulation.of_runs import on_aws

    def missing(reason: str) -> None:
        terminal.show(f"note: no {PROJECTION}: {reason}")

    (projected,) = on_aws([folder.result], tell=missing) if folder.result["outcome"] == "finished" else (None,)
    if projected is not None:
        write_atomically(folder.path / PROJECTION, json.dumps(projected.as_json(), indent=1).encode() + b"\n")
        write_report(folder, projected)
    terminal.show(summary(folder.result, projected), f"report: {folder.path / 'report.html'}")


def _data(folder: Path | None) -> list[str]:
    if folder is None:
        return []
    if not folder.is_dir():
        raise DataError(f"--data {folder}: no such folder")
    return [f"data.directory={json.dumps(str(folder.resolve()))}"]


def _check_folder(folder: Path) -> None:
    """A new or empty folder, or one of an earlier run: other people's files are not mixed with ours."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {folder}: is a file; expected a folder")
    if folder.is_dir() and not (folder / "result.json").exists() and not all(map(is_ours, folder.iterdir())):
        raise ConfigError(
            f"--out {folder}: holds other files; expected a new or empty folder, or one of an earlier run"
        )
    try:
        with _made(folder), tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:  # now, not after an hour of training
        raise ConfigError(f"--out {folder}: cannot be written to: {error.strerror}") from error


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """With the folder there; a run that cannot start leaves no empty one."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for each in missing:
            with suppress(OSError):
                each.rmdir()


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """While no other process trains there: one that was stopped and still writes down how far it came would mix with its own resumption.

    Raises UserError where one does. What is held is a name that Linux keeps for a socket without a file: it goes with
    the process, also with one that is killed, and a new run's folder need not be made before there is anything to
    write into it. Elsewhere (macOS) there are no such names, and nobody is kept out.
    """
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held:
        try:
            held.bind(f"\0crossover-run-{name}")
            held.shutdown(socket.SHUT_RDWR)  # a name and no mailbox: anybody on this machine could write there
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UserError(
                    f"{folder}: another run is at work there; wait until it has ended, or give another --out"
                ) from error
        yield
