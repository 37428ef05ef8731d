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

PARENT_POLL_S = 0.25


@dataclass
class PooledJobs:
    """Counters of the jobs that this process has given to its process pools: `given`, and `done` so far."""

    given: int = 0
    done: int = 0

    def count(self, job: "Future[Any]") -> None:
        """Count `job`, which has ended, as done."""
        self.done += 1


POOLED = PooledJobs()


class _CountedPool(ProcessPoolExecutor):
    """Process pool that counts its jobs in POOLED and terminates its processes at once if its `with` block is
    interrupted.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Submit a call to the pool, as ProcessPoolExecutor.submit does, and count it in POOLED. Returns the job's
        future.
        """
        job = super().submit(fn, *args, **kwargs)
        POOLED.given += 1
        job.add_done_callback(POOLED.count)
        return job

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut the pool down. If the block was interrupted (no ordinary exception), its processes are terminated at
        once.
        """
        if kind is not None and not issubclass(kind, Exception):
            for process in list((self._processes or {}).values()):
                process.terminate()
        self.shutdown(wait=True, cancel_futures=kind is not None)


class _ProcessEndingWithParent(SpawnProcess):
    """Spawned process that watches its parent and exits when the parent is gone, from before its own imports on."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the process such that unpickling it, in the new process, starts the watch of the parent first."""
        return _start_watched_process, (os.getpid(),), self.__dict__


class _WatchedSpawnContext(SpawnContext):
    """Multiprocessing context that spawns processes which end with their parent."""

    Process = _ProcessEndingWithParent  # the same, and it ends


def start_pool(processes: int, begin: Callable[..., None] | None = None, *given: Any) -> ProcessPoolExecutor:
    """Return a pool of `processes` spawned processes that never outlive this one. `begin`: called first in each
    process, with `given`.

    Processes are spawned, not forked: a fork would copy torch's threads and the caller's only in part.
    """
    return _CountedPool(processes, mp_context=_WatchedSpawnContext(), initializer=begin, initargs=given)


def _start_watched_process(parent: int) -> _ProcessEndingWithParent:
    """Start the thread that watches the process `parent`, and return a process object to unpickle into. Ctrl-C gets its
    default action.
    """
    # The process that asked says what is to be said of Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_exit_when_orphaned, args=(parent,), daemon=True).start()
    return _ProcessEndingWithParent.__new__(_ProcessEndingWithParent)


def _exit_when_orphaned(parent: int) -> None:
    """Poll until the process `parent` is no longer this process's parent, then exit this process with status 1."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    os._exit(1)
