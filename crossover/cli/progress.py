"""A run as it goes: one line an epoch, and on a terminal a bar below them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from crossover.architecture import architecture_of
from crossover.experiment import Experiment

if TYPE_CHECKING:
    from crossover.running import Progress

WHERE = {"local": "on the cloud on this machine", "inline": "in this process", "aws": "on AWS"}


@contextmanager
def show_progress(
    experiment: Experiment, *, where: str, out: Path, console: Console | None = None
) -> Iterator[Callable[["Progress"], None]]:
    """Within it the yielded function shows an epoch that has ended; plain lines where the output is no terminal."""
    console = console or Console(emoji=False, highlight=False, soft_wrap=True)
    started = time.monotonic()
    epochs, training = experiment.training.epochs, experiment.training
    work = (
        f"{training.model} on {experiment.data.dataset}, {experiment.workers} workers, at most {training.epochs} epochs"
    )
    if aggregates := architecture_of(experiment).aggregates:
        work, epochs = aggregates(experiment).words, 1
    console.print(f"{experiment.name}: {experiment.architecture}, {work}, {WHERE[where]}")
    with _bar(console, epochs=epochs) as (advance, close):

        def show(progress: "Progress") -> None:
            console.print(epoch_line(progress))
            advance(progress.epoch)

        try:
            yield show
        finally:
            close()
    console.print(f"finished in {time.monotonic() - started:.1f} s; results in {out}")


def epoch_line(progress: "Progress") -> str:
    """`epoch  3/20  loss 0.4121  validation loss 0.3902  accuracy 91.20 %  12.3 s  $0.0012`; dollars by AWS's prices."""
    width = len(str(progress.epochs))
    parts = [
        f"epoch {progress.epoch:>{width}}/{progress.epochs}",
        "" if progress.train_loss is None else f"loss {progress.train_loss:.4f}",
        f"validation loss {progress.val_loss:.4f}",
        f"{progress.metric.words} {_value(progress)}",
        f"{progress.seconds:7.1f} s",
        "" if progress.usd is None else f"${progress.usd:.4f} by AWS's prices",
    ]
    return "  ".join(part for part in parts if part)


def _value(progress: "Progress") -> str:
    return f"{100 * progress.val_metric:6.2f} %" if progress.metric.is_share else f"{progress.val_metric:8.4g}"


@contextmanager
def _bar(console: Console, *, epochs: int) -> Iterator[tuple[Callable[[int], None], Callable[[], None]]]:
    """Functions that move the bar to an epoch and close it; both do nothing without a terminal."""
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
