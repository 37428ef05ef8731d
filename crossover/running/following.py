"""From an execution that was started to its end: progress, records, the budget, and the folder whatever the end."""

import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from crossover import runtime
from crossover.costs import budget, spending
from crossover.costs.budget import BudgetReached
from crossover.dataplane import documents
from crossover.errors import FULL, ConfigError, CrossoverError, RunFailed, UserError
from crossover.experiment import Metric
from crossover.keys import UNDER_WAY
from crossover.reports.folder import RunFolder, make_way
from crossover.reports.result import train_losses
from crossover.running.patience import Look, at_once
from crossover.running.preparing import Prepared
from crossover.running.results import so_far, write_folder
from crossover.training.agreement import DECISION
from crossover.training.calendar import calendar_of

POLL_S = 0.25
BUDGET_LOOK_S = 5.0
PUT_OFF_S = 60.0  # between two writes of the deadline


@dataclass(frozen=True)
class Progress:
    """What is known after an epoch. `usd`: by AWS's prices for what was recorded so far."""

    epoch: int
    epochs: int
    train_loss: float | None
    val_loss: float
    val_metric: float
    metric: Metric
    seconds: float
    usd: float | None


OnProgress = Callable[[Progress], None]
Complete = Callable[[Prepared], None]  # what is learned of the records once the run has ended


Interruption = Callable[[], None]  # raises what else than the run's own failure keeps it from going on


def all_well() -> None:
    """Nothing but the run itself tells how it fares."""


def nothing_more(prepared: Prepared) -> None:
    """The steps' own records say all there is."""


def after(keep: Callable[[], None], tell: OnProgress) -> OnProgress:
    """Of an epoch is told once it is kept."""

    def both(progress: Progress) -> None:
        keep()
        tell(progress)

    return both


class Execution(Protocol):
    """A run under way."""

    def ended(self) -> bool:
        """Whether it succeeded; False while it runs. Raises RunFailed with the cause in plain words."""

    def stop(self) -> None: ...


def finish(
    prepared: Prepared,
    execution: Execution,
    out: Path,
    on_progress: OnProgress,
    *,
    where: str,
    complete: Complete = nothing_more,
    look: Look = at_once,
) -> RunFolder:
    """Follow the execution to its end and write the folder, whatever the end."""
    if where == "aws":  # elsewhere it was made before anything was started
        make_way(out, prepared.run)
    try:
        follow(prepared, execution, on_progress, look=look)
    except KeyboardInterrupt:  # whoever pressed Ctrl-C does not want to wait for logs
        write_folder(prepared, out, where=where, failure="interrupted")
        raise
    except Exception as error:
        write_folder(prepared, out, where=where, failure=str(error))  # first: the rest can fail or be interrupted
        with suppress(Exception):  # the run's own failure is what to tell
            complete(prepared)
            write_folder(prepared, out, where=where, failure=str(error))
        raise
    look(lambda: complete(prepared))
    return look(lambda: _written(prepared, out, where=where))


def _written(prepared: Prepared, out: Path, *, where: str) -> RunFolder:
    """The finished run's folder; elsewhere where there is no room for it, so that the trained model is not lost. Raises UserError then."""
    try:
        return write_folder(prepared, out, where=where)
    except OSError as error:
        if error.errno not in FULL:
            raise
        elsewhere = Path(tempfile.mkdtemp(prefix=f"crossover-{prepared.experiment.name}-"))
        try:
            write_folder(prepared, elsewhere, where=where)
        except OSError:
            shutil.rmtree(elsewhere, ignore_errors=True)
            raise error from None
        raise UserError(
            f"{out}: {error.strerror}; the run is finished, and its folder lies in {elsewhere}: move it where there is room"
        ) from error


def follow(prepared: Prepared, execution: Execution, on_progress: OnProgress, *, look: Look = at_once) -> None:
    """Until the execution ends: read new records and decisions, tell about each epoch. Whatever else ends the looking, Ctrl-C and the
    budget too, stops the execution first.
    """
    try:
        _until_it_ends(prepared, execution, on_progress, look)
    except (RunFailed, ConfigError):  # it has ended
        _read_the_rest(prepared)
        raise
    except BaseException as error:
        _stop(execution, why=error)
        _read_the_rest(prepared)
        raise
    _check_budget(prepared)


def _until_it_ends(prepared: Prepared, execution: Execution, on_progress: OnProgress, look: Look) -> None:
    started = looked = put = runtime.monotonic()
    limit_usd = prepared.experiment.lifetime.budget_usd
    while True:
        ended = look(partial(has_ended, prepared, execution))
        while look(lambda: _next_decision(prepared)):
            look(lambda: read_records(prepared))
            on_progress(_progress(prepared, seconds=runtime.monotonic() - started))
        if ended:
            return look(lambda: read_records(prepared))
        if limit_usd is not None and runtime.monotonic() - looked > BUDGET_LOOK_S:
            looked = runtime.monotonic()
            look(lambda: read_records(prepared))
            now = runtime.time()
            usd = so_far(prepared, now=now).until(now).full_usd
            budget.check(limit_usd, usd)
            if looked - put > PUT_OFF_S:  # what has not been spent lasts longer
                put = looked
                look(partial(put_off, prepared, usd=usd))
        runtime.sleep(POLL_S)


def has_ended(prepared: Prepared, execution: Execution) -> bool:
    """A run that is finished has ended well, however the execution that found it so ends: one that only cleared away, one stopped late."""
    try:
        return execution.ended()
    except RunFailed:
        with suppress(CrossoverError):  # why the execution failed matters more than that this cannot be asked
            if prepared.objects.exists(prepared.keys.finished):
                return True
        raise


def _read_the_rest(prepared: Prepared) -> None:
    """What the end was faster than. Where nothing can be read any more, what was read before is kept."""
    with suppress(CrossoverError):
        catch_up(prepared)


def catch_up(prepared: Prepared) -> None:
    """Whatever decisions and records there are now."""
    while _next_decision(prepared):
        pass
    read_records(prepared)


def _stop(execution: Execution, *, why: BaseException) -> None:
    """A stop that is refused hides nothing: the run's deadline ends it all the same."""
    try:
        execution.stop()
    except Exception as error:
        why.add_note(f"the execution could not be stopped: {error}")
        print(f"the run could not be stopped and goes on until its deadline at the latest: {error}", file=sys.stderr)


def put_off(prepared: Prepared, *, usd: float | None = None) -> None:
    """Write until when the run may go on though its command be gone. `usd` so far: None counts it."""
    if usd is None:
        read_records(prepared)  # of a run that is resumed
        now = runtime.time()
        usd = so_far(prepared, now=now).until(now).full_usd
    facts, money = prepared.facts, prepared.facts.get("money", {})
    spending.write_deadline(
        prepared.objects, prepared.keys, prepared.experiment, money, began=facts["created_at"], usd=usd
    )


def begin_deadline(prepared: Prepared) -> None:
    """Before anything is started: this run's deadline counts from now on, and no other's."""
    put_off(prepared)
    prepared.objects.put(UNDER_WAY, prepared.keys.deadline(prepared.facts["created_at"]).encode())


def _check_budget(prepared: Prepared) -> None:
    """Raises BudgetReached where the last decision ended the run for it."""
    last = prepared.decisions[-1] if prepared.decisions else {}
    if str(last.get("reason", "")).startswith("budget: "):
        raise BudgetReached(last["over_budget"])


def _next_decision(prepared: Prepared) -> bool:
    days = calendar_of(prepared.experiment, prepared.facts["data_manifest"])
    number = len(prepared.decisions) + 1
    key = prepared.keys.decision(days.decided(number))
    if number > days.decisions or not prepared.objects.exists(key):
        return False
    prepared.decisions.append(documents.read(prepared.objects, key, DECISION))
    return True


def read_records(prepared: Prepared) -> None:
    """The records that are new since the last call, and the marks of invocations that have left none yet."""
    prepared.under_way = spending.read(prepared.objects, prepared.keys, prepared.records)


def _progress(prepared: Prepared, *, seconds: float) -> Progress:
    decision = prepared.decisions[-1]
    return Progress(
        epoch=decision["epoch"],
        epochs=prepared.experiment.training.epochs,
        train_loss=train_losses(list(prepared.records.values())).get(decision["epoch"]),
        val_loss=decision["val_loss"],
        val_metric=decision["val_metric"],
        metric=prepared.experiment.training.metric,
        seconds=seconds,
        usd=so_far(prepared, now=runtime.time()).until(decision["at"]).full_usd,
    )
