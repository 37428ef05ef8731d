"""Run jobs in pools of processes that never outlive the process that asked for them, however that process ends."""

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.context import SpawnContext, SpawnProcess
from types import TracebackType
from typing import Any

LOOK_S = 0.25


@dataclass
class PooledJobs:
    """Jobs of this process's pools: how many were given to them, and how many are done."""

    given: int = 0
    done: int = 0

    def count(self, job: "Future[Any]") -> None:
        self.done += 1


POOLED = PooledJobs()


class _Pool(ProcessPoolExecutor):
    """Told of in POOLED, for whoever shows how far the work is."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        job = super().submit(fn, *args, **kwargs)
        POOLED.given += 1
        job.add_done_callback(POOLED.count)
        return job

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes, at once if the block is interrupted; their queues are closed either way, and leave no semaphores."""
        if kind is not None and not issubclass(kind, Exception):
            for process in list((self._processes or {}).values()):
                process.terminate()
        self.shutdown(wait=True, cancel_futures=kind is not None)


class _Ending(SpawnProcess):
    """Looks at its parent from before what it is to do is imported."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _looked_after, (os.getpid(),), self.__dict__


class _Context(SpawnContext):
    Process = _Ending  # the same, and it ends


def pool(processes: int, begin: Callable[..., None] | None = None, *given: Any) -> ProcessPoolExecutor:
    """Each process calls `begin` first. They are not forked: whoever calls may have threads, and torch's would be copied half."""
    return _Pool(processes, mp_context=_Context(), initializer=begin, initargs=given)


def _looked_after(parent: int) -> _Ending:
    # The process that asked says what is to be said of Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    return _Ending.__new__(_Ending)


def _end_with(parent: int) -> None:
    """Orphans have another parent: init, or who adopts in its place."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os._exit(1)
