"""Arguments that commands share, and the progress lines that are shown during a wait."""

import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.status import Status

from crossover import bundling
from crossover.cli import answers
from crossover.errors import ConfigError, MissingTool, print_line, quote_controls
from crossover.experiment import Experiment
from crossover.pools import POOLED
from crossover.reports import display
from crossover.validation import load

if TYPE_CHECKING:
    from crossover.running.monitor import Progress


# --- waiting ----------------------------------------------------------------------------------------------------------

SILENT_S = 3.0  # what is done by then says nothing
UPDATE_EVERY_S = {True: 0.5, False: 15.0}  # on a terminal, and elsewhere


@contextmanager
def show_waiting(what: str, *, usual: tuple[int, int] | None = None) -> Iterator[None]:
    """Context manager that shows on standard error, during its block, what is being computed, how many parts are done, and the time so far;
    nothing in the first 3 s on a terminal, or in the first 15 s elsewhere. On a terminal one line is updated, otherwise lines are printed.
    `what`: words for the work.

    `usual`: smallest and largest number of parts that such work usually has, if the number is not known from the start; no time left is
    then shown. Parts are those of `pools.POOLED`.
    """
    screen, ended = Console(stderr=True, highlight=False), threading.Event()
    status = screen.status(what) if sys.stderr.isatty() else None
    teller = threading.Thread(target=_show_elapsed, args=(what, usual, ended, status), daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
        if status is not None:
            status.stop()


def _show_elapsed(what: str, usual: tuple[int, int] | None, ended: threading.Event, status: Status | None) -> None:
    """Show a progress line on standard error every half second, first after 3 s, until `ended` is set; without `status`, print a new line
    every 15 s. Runs in a thread. Parts are counted from the call on. `what`, `usual`: as for `show_waiting`; `status`: line of the terminal
    to start and update, which the caller stops, or None without a terminal.
    """
    began_s, given, done = time.monotonic(), POOLED.given, POOLED.done
    pause_s = SILENT_S if status is not None else UPDATE_EVERY_S[False]
    while not ended.wait(pause_s):
        line = format_wait(what, POOLED.done - done, POOLED.given - given, time.monotonic() - began_s, usual=usual)
        if status is None:
            print_line(line, stderr=True)
            continue
        status.update(line)
        status.start()
        pause_s = UPDATE_EVERY_S[True]


def format_wait(what: str, done: int, given: int, seconds: float, *, usual: tuple[int, int] | None = None) -> str:
    """Return a progress line: `30 repetitions: 12 of 60 parts, 40.0 s so far, about 2 min 40 s left`; or, with `usual`, `searching: 100
    parts of usually 300 to 800, 10.0 s so far`: as later parts may take much longer, no time left is promised.

    `what`: words for the work; `done`, `given`: number of parts computed and started, 0 if the work has none; `seconds`: time so far;
    `usual`: smallest and largest usual number of parts, None if `given` is the total.
    """
    total = f"{done:,} parts of usually {usual[0]:,} to {usual[1]:,}" if usual else f"{done:,} of {given:,} parts"
    left_s = seconds * (given - done) / done if done and usual is None else 0.0
    left = f", about {display.seconds(left_s)} left" if left_s > 0 else ""
    return f"{what}: {f'{total}, ' if given else ''}{display.seconds(seconds)} so far{left}".replace(display.GAP, " ")


# --- progress ---------------------------------------------------------------------------------------------------------
# A run as it goes: one line an epoch, and on a terminal a bar below them.

WHERE = {"local": "on this machine's local cloud", "inline": "in this process", "aws": "on AWS"}


@contextmanager
def show_progress(
    experiment: Experiment, *, where: str, out: Path, console: Console | None = None
) -> Iterator[Callable[["Progress"], None]]:
    """Context manager that prints a first and a last line about a run, and yields a function to be called after each epoch, which prints
    the epoch's line. The function takes the run's progress; on a terminal it also moves a bar, which is removed at the block's end.

    `experiment`: experiment that is trained; `where`: where the run trains, a key of WHERE. `out`: folder that is named in the last line;
    `console`: where to print, by default standard output. The last line is not printed if the block fails.
    """
    console = console or Console(emoji=False, highlight=False, markup=False, soft_wrap=True)
    started = time.monotonic()
    epochs, training = experiment.training.epochs, experiment.training
    size = f"{display.count(experiment.workers, 'worker')}, at most {display.count(epochs, 'epoch')}"
    work = f"{training.model} on {experiment.data.dataset}, {size}"
    console.print(quote_controls(f"{experiment.name}: {experiment.architecture}, {work}, {WHERE[where]}"))
    with _show_bar(console, epochs=epochs) as (advance, close):

        def show(progress: "Progress") -> None:
            """Print the line of the epoch that has ended, and move the bar to it."""
            console.print(format_epoch(progress))
            advance(progress.epoch)

        try:
            yield show
        finally:
            close()
    console.print(quote_controls(f"finished in {time.monotonic() - started:.1f} s; results in {out}"))


def format_epoch(progress: "Progress") -> str:
    """Return the line that reports an epoch, with its losses, metric, seconds and dollars at AWS's prices; what is unknown is left out.

    `epoch 3/20 loss 0.4121 validation loss 0.3902 accuracy 91.20 % 12.3 s $0.0012 at AWS's prices`
    """
    width = len(str(progress.epochs))
    parts = [
        f"epoch {progress.epoch:>{width}}/{progress.epochs}",
        "" if progress.train_loss is None else f"loss {progress.train_loss:.4f}",
        f"validation loss {progress.val_loss:.4f}",
        f"{progress.metric.words} {_format_metric(progress)}",
        f"{progress.seconds:7.1f} s",
        "" if progress.usd is None else f"${progress.usd:.4f} at AWS's prices",
    ]
    return "  ".join(part for part in parts if part)


def _format_metric(progress: "Progress") -> str:
    """Return the validation metric of an epoch as text of fixed width: in percent if the metric is a share, such as accuracy, else as a
    number.
    """
    return f"{100 * progress.val_metric:6.2f} %" if progress.metric.is_share else f"{progress.val_metric:8.4g}"


@contextmanager
def _show_bar(console: Console, *, epochs: int) -> Iterator[tuple[Callable[[int], None], Callable[[], None]]]:
    """Context manager that shows a progress bar during its block if the console is a terminal. Yields two functions: one moves the bar to a
    given epoch, one removes the bar. Both do nothing without a terminal. `epochs`: number of epochs.
    """
    if not console.is_terminal:
        yield (lambda epoch: None), (lambda: None)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("preparing", total=epochs)
        yield (lambda epoch: bar.update(task, completed=epoch, description="training")), bar.stop


# --- arguments --------------------------------------------------------------------------------------------------------
# Arguments that several commands share, and the experiment that they make.

Config = Annotated[
    Path, typer.Argument(help="The experiment's YAML file, such as config/spirt.yaml.", show_default=False)
]
Override = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="A.B=C", help="Override a field of the YAML file, such as training.epochs=3. Repeatable."
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print only JSON. `crossover schema COMMAND` prints its JSON Schema.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Change AWS resources without asking.")]
TakeOver = Annotated[bool, typer.Option("--take-over", help="Use the stack even if it belongs to another owner.")]


def print_json(answer: Mapping[str, Any]) -> None:
    """Print `answer` as the command's JSON answer. Raises ValueError if a number is not finite: the caller must have replaced such values
    by None.
    """
    answers.write_answer(answer)


def set_options(override: list[str] | None) -> list[str]:
    """Return the --set options in `override` as words of a command line: `["--set", "training.epochs=3"]`; an empty list for None."""
    return [word for each in override or () for word in ("--set", each)]


def command_words(config: Path, override: list[str] | None) -> str:
    """Return the words that name an experiment on a command line, quoted for the shell: its file `config` and its --set
    options `override`.
    """
    return shlex.join([str(config), *set_options(override)])


ROOT = Path(__file__).parents[2]


def is_checkout() -> bool:
    """Return True if this program runs from the project's repository, False if it is an installed package, which lacks templates, build
    files and the Redis module's source.
    """
    return (ROOT / "cdk.json").is_file()


NEEDS_CHECKOUT = (
    "needs a checkout of the project, and this is an installed wheel: clone the project's repository with `git clone`, run "
    "`make setup` there, and use its .venv/bin/crossover"
)


def require_checkout(command: str, *, otherwise: str = "") -> None:
    """Raise MissingTool if this program is an installed package, not the project's repository. `command`: the command that needs the
    repository; `otherwise`: what works instead; both for the message.
    """
    if not is_checkout():
        raise MissingTool(f"{command}: {NEEDS_CHECKOUT}{f'; {otherwise}' if otherwise else ''}")


def load_runnable(config: Path, override: list[str] | None = None, *, travels: bool = True) -> Experiment:
    """Load the experiment of the file `config`, make all checks that come before a run, and return it. Notes about its user code are
    printed to standard error. A model that is not built in is imported.

    `override`: --set options; `travels`: whether user code will run in other processes or on AWS, where it must be packed. Raises
    ConfigError, or OwnCodeError for user code, for everything that `run` refuses before it starts.
    """
    experiment = load(config, override or [])  # before torch, so that an architecture is noticed that brings it
    from crossover.simulation.workload import MODEL_SIZES

    for note in bundling.check_user_code(experiment, travels=travels):
        print_line(f"note: {note}", stderr=True)
    if experiment.training.model not in MODEL_SIZES:
        from crossover.learning.zoo import find_factory  # torch takes a second

        find_factory(experiment.training.model)
    return experiment


# --- folders ----------------------------------------------------------------------------------------------------------


def check_writable(folder: Path) -> None:
    """Raise ConfigError unless a file can be created in `folder`, the value of --out; it is tried. Folders that this creates are removed
    again.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {folder}: this is a file; expected a folder")
    try:
        with _create_temporarily(folder), tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:  # now, not after an hour of training
        raise ConfigError(f"--out {folder}: cannot be written to: {error.strerror}") from error


@contextmanager
def _create_temporarily(folder: Path) -> Iterator[None]:
    """Context manager that creates the folder for its block. Afterwards those folders that it created, and that are empty, are removed."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for each in missing:
            with suppress(OSError):
                each.rmdir()
