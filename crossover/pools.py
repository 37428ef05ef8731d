"""Run jobs in pools of processes that never outlive the process that asked for them, however that process ends."""

import atexit
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
    """Counters of the jobs that this process has submitted to pools of `start_pool`: `given` in total, and `done`, those that have
    ended in any way.
    """

    given: int = 0
    done: int = 0

    def count(self, job: "Future[Any]") -> None:
        """Add 1 to `done`; the callback for a `job` that has ended."""
        self.done += 1


POOLED = PooledJobs()


class _CountedPool(ProcessPoolExecutor):
    """Process pool that counts its jobs in POOLED. If its `with` block is interrupted, its processes are terminated at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Submit the call `fn(*args, **kwargs)` to the pool, as ProcessPoolExecutor.submit does, and count it in POOLED. Returns
        the call's future.
        """
        job = super().submit(fn, *args, **kwargs)
        POOLED.given += 1
        job.add_done_callback(POOLED.count)
        return job

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut the pool down and wait for its processes. If the block raised, jobs that have not begun are cancelled; if it was
        interrupted (KeyboardInterrupt or the like), the processes are terminated first.
        """
        if kind is not None and not issubclass(kind, Exception):
            for process in list((self._processes or {}).values()):
                process.terminate()
        self.shutdown(wait=True, cancel_futures=kind is not None)


class _ProcessEndingWithParent(SpawnProcess):
    """Spawned process that exits as soon as its parent process is gone; the check starts before its own imports."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the pickled form, which, when the new process unpickles it, first starts the thread that watches the parent."""
        return _start_watched_process, (os.getpid(),), self.__dict__


class _WatchedSpawnContext(SpawnContext):
    """Multiprocessing context whose processes exit when their parent process is gone."""

    Process = _ProcessEndingWithParent  # the same, and it ends


def start_pool(processes: int, begin: Callable[..., None] | None = None, *given: Any) -> ProcessPoolExecutor:
    """Return a pool of at most `processes` spawned processes, which exit when this process does, however it ends. Use it in a `with`
    block, which waits for them. `begin`: called first in each process, with the arguments `given`.

    Processes are spawned, not forked, because a fork copies only the calling thread, not torch's others.
    """
    return _CountedPool(processes, mp_context=_WatchedSpawnContext(), initializer=begin, initargs=given)


def _start_watched_process(parent: int) -> _ProcessEndingWithParent:
    """Start the thread that exits this new process when the process `parent` is gone, restore the default action of Ctrl-C, and let the
    process end without freeing its modules. Returns an empty process object, which pickle then fills.
    """
    # Ctrl-C reaches every process of the terminal's group; only the parent prints a message about it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    atexit.register(
        os._exit, 0
    )  # the first to be registered, so the last to be called; the parent waits for this process
    threading.Thread(target=_exit_when_orphaned, args=(parent,), daemon=True).start()
    return _ProcessEndingWithParent.__new__(_ProcessEndingWithParent)


def _exit_when_orphaned(parent: int) -> None:
    """Poll every 0.25 s until the process with the id `parent` is no longer this process's parent; then exit this process with status 1."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    os._exit(1)
