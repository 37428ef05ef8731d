"""Peak memory of this process and all below it, shared pages counted once (PSS)."""

import contextlib
import threading
from types import TracebackType

import psutil

_EVERY_S = 0.25


class Watch:
    """Context manager that samples the process tree until it ends; `peak_mb` and `processes` at that moment hold afterwards.

    A process seen once as a descendant stays one, also when its parent ends before it.
    """

    def __init__(self) -> None:
        self.peak_mb = 0.0
        self.processes = 0
        self._seen: dict[int, psutil.Process] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        own = psutil.Process()
        while not self._over.wait(_EVERY_S):
            self._seen |= {process.pid: process for process in [own, *own.children(recursive=True)]}
            sizes = [size for process in list(self._seen.values()) if (size := self._pss(process))]
            total_mb = sum(sizes) / 1e6
            if total_mb > self.peak_mb:
                self.peak_mb, self.processes = total_mb, len(sizes)

    def _pss(self, process: psutil.Process) -> int:
        with contextlib.suppress(psutil.Error, OSError):
            return int(process.memory_full_info().pss)
        self._seen.pop(process.pid, None)
        return 0
