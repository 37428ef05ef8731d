"""An execution as several threads see it: started once, listed, described, stopped and ended in one piece.

moto runs each in a thread of its own, and changes it step by step under the eyes of the requests that ask for it.
"""

import threading
import time
import uuid
import weakref
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from crossover.local.moto_patches.replacing import Replacements

_STARTED: weakref.WeakSet[Any] = weakref.WeakSet()
_adding = threading.Lock()
_BEGINS_S = 10.0
_LOOK_S = 0.001


def install(changes: Replacements) -> None:
    _starts(changes)
    _ends(changes)
    _stops(changes)


def stop() -> None:
    """All that still run, those of deleted state machines too, which moto no longer lists: one may wait for hours."""
    with _adding:
        running = [each for each in _STARTED if not each.crossover_end.is_set()]
    for execution in running:
        execution.stop(stop_date=datetime.now(UTC), error=None, cause="its cloud ends")


def join(patience_s: float) -> None:
    """Wait for the threads of executions, which moto never does; those that sleep before a retry may outlast `patience_s`."""
    from moto.stepfunctions.parser.utils import TMP_THREADS

    ends = time.monotonic() + patience_s
    for thread in list(TMP_THREADS):
        thread.join(max(0.0, ends - time.monotonic()))
    TMP_THREADS[:] = [thread for thread in TMP_THREADS if thread.is_alive()]


def _starts(changes: Replacements) -> None:
    """An execution without a name gets one; moto would give all of them the ARN ending in None. Starts happen one after another, and none
    during a list: between moto's look for a namesake and its start another thread would find none, or one without a status.
    """
    from moto.stepfunctions.parser.models import StepFunctionsParserBackend

    one_at_a_time = threading.Lock()

    @changes.wraps(StepFunctionsParserBackend, "start_execution")
    def start(old: Any, self: Any, state_machine_arn: str, name: str | None = None, *rest: Any, **named: Any) -> Any:
        with one_at_a_time:
            return old(self, state_machine_arn, name or str(uuid.uuid4()), *rest, **named)

    @changes.wraps(StepFunctionsParserBackend, "list_executions")
    def listed(old: Any, self: Any, *arguments: Any, **named: Any) -> Any:
        with one_at_a_time:
            return old(self, *arguments, **named)


def _ends(changes: Replacements) -> None:
    """The status changes after the result. Every execution has an event that is set when it ends: who waits for a child need not poll."""
    from moto.stepfunctions.parser.backend.execution import BaseExecutionWorkerCommunication, Execution

    @changes.wraps(Execution, "start")
    def start(old: Any, self: Any) -> None:
        self.crossover_end = threading.Event()
        old(self)
        with _adding:
            _STARTED.add(self)

    @changes.wraps(BaseExecutionWorkerCommunication, "terminated")
    def terminated(old: Any, self: Any) -> None:
        execution = self.execution
        self.execution = end = SimpleNamespace(
            exec_worker=execution.exec_worker
        )  # what moto fills in, the status first
        try:
            old(self)
            for name in sorted(vars(end), key="exec_status".__eq__):
                setattr(execution, name, getattr(end, name))
        finally:
            self.execution = execution
            execution.crossover_end.set()


def _stops(changes: Replacements) -> None:
    """A stop finds an execution that runs: before its thread has begun, moto fails; before the first state, it forgets. It is told at once,
    as by the service; in moto the state that it is in, a function's seconds perhaps, comes to its end first.
    """
    from moto.stepfunctions.parser.api import ExecutionStatus
    from moto.stepfunctions.parser.asl.eval.program_state import ProgramStopped
    from moto.stepfunctions.parser.backend.execution import Execution

    def begun(execution: Any) -> bool:
        env = execution.exec_worker and execution.exec_worker.env
        return bool(env and env.program_state())

    @changes.wraps(Execution, "stop")
    def stop(old: Any, self: Any, stop_date: Any, **said: Any) -> None:
        ends = time.monotonic() + _BEGINS_S
        while not begun(self) and time.monotonic() < ends:
            self.crossover_end.wait(_LOOK_S)
        old(self, stop_date=stop_date, **said)
        if isinstance(self.exec_worker.env.program_state(), ProgramStopped):
            self.stop_date, self.exec_status = stop_date, ExecutionStatus.ABORTED
