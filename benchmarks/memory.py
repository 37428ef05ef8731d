"""Peak memory of this process and all below it, shared pages counted once (PSS): here of one process that imports PyTorch, and of four.

python -m benchmarks.memory [--quick]      --quick: one process alone
"""

import argparse
import contextlib
import subprocess
import sys
import threading
from types import TracebackType

import psutil

from benchmarks.report import Figure, write

_EVERY_S = 0.25


class Watch:
    """A context manager that samples the memory of this process and all its descendants every _EVERY_S seconds, in a thread. `peak_mb`:
    highest sum in MB so far, shared pages counted once; `processes`: number of processes at that moment.

    A process that was once seen as a descendant is counted even after its parent has ended. A watch can be entered once.
    """

    def __init__(self) -> None:
        """Prepare the watch. Sampling begins with the block."""
        self.peak_mb = 0.0
        self.processes = 0
        self._seen: dict[int, psutil.Process] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watch":
        """Start sampling the memory in a thread."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop sampling, and wait until the thread has ended."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        """Sample the memory every _EVERY_S seconds until the context exits."""
        own = psutil.Process()
        while not self._over.wait(_EVERY_S):
            self._seen |= {process.pid: process for process in [own, *own.children(recursive=True)]}
            sizes = [size for process in list(self._seen.values()) if (size := self._pss(process))]
            total_mb = sum(sizes) / 1e6
            if total_mb > self.peak_mb:
                self.peak_mb, self.processes = total_mb, len(sizes)

    def _pss(self, process: psutil.Process) -> int:
        """Return a process's memory in bytes (proportional set size). If it has ended, return 0 and stop watching it."""
        with contextlib.suppress(psutil.Error, OSError):
            return int(process.memory_full_info().pss)
        self._seen.pop(process.pid, None)
        return 0


def measure_imports(count: int) -> Watch:
    """Start `count` processes that import PyTorch, and return the memory watch over them and this process after the processes have
    ended.
    """
    command = [sys.executable, "-c", "import torch; print(flush=True); input()"]
    with Watch() as watch, contextlib.ExitStack() as running:
        started = [
            running.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(count)
        ]
        for each in started:
            assert each.stdout is not None
            each.stdout.readline()
        threading.Event().wait(4 * _EVERY_S)  # some samples of all of them
        for each in started:
            each.communicate("\n")
    return watch


def main() -> None:
    """Measure the memory of one and of four processes that import PyTorch, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one process alone")
    figures = []
    for count in (1,) if parser.parse_args().quick else (1, 4):
        watch = measure_imports(count)
        figures.append(Figure(f"this process and {count} that imported PyTorch, peak", watch.peak_mb, "MB"))
        figures.append(Figure("  processes at that moment", watch.processes, ""))
    write("memory", figures)


if __name__ == "__main__":
    main()
