"""The seam's other side: what code asks of its process, answered by the virtual world, by whose task it is that asks."""

import random
import select
import sys
import sysconfig
import threading
import time as clock
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType, TracebackType
from typing import Any

from greenlet import getcurrent

from crossover import runtime
from tests.chaos.world.kernel import Kernel, Process, Signal, Task, WorldFault
from tests.chaos.world.polls import Looks

BEGAN_S = 1_767_225_600.0  # unix seconds of a world's first moment: 2026-01-01, wherever and whenever it is run

# What would really wait, or leave the process (docs.python.org, "Audit events table").
_REAL = {
    *("socket.__new__", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"),
    *("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn"),
}
# What Python announces no event of, at least not before 3.13. A bare lock that is held for good is not among them.
_UNANNOUNCED: tuple[tuple[Any, str], ...] = (
    (clock, "sleep"),
    (threading.Thread, "start"),
    (threading.Condition, "wait"),  # an Event's, a Queue's and a Future's too
    (select, "select"),
)
_OTHERS = (__file__, sysconfig.get_path("stdlib"), "site-packages", "<frozen")  # parts of paths that no step's code has
_watching = False


class BlocksForReal(WorldFault):
    """Error of code in the virtual world that would block this real process instead of going through crossover/runtime."""


class VirtualRuntime(runtime.ThisProcess):
    """The runtime of simulated processes: each call is answered for the process whose task makes it. Outside of all tasks it answers with
    the kernel's own time.
    """

    simulated = True

    def __init__(self, kernel: Kernel, looks: Looks) -> None:
        """Answer from the clock of `kernel`. `looks`: decides how long pauses last."""
        self._kernel, self._looks = kernel, looks
        self._outside = Process(kernel, "outside")
        # Draws of its own: what faults a schedule has must not change which identifiers are drawn.
        self._chance = random.Random(kernel.chance.random())

    @property
    def _process(self) -> Process:
        """The process whose task is running now; outside of all tasks the process "outside"."""
        current = getcurrent()
        return current.process if isinstance(current, Task) else self._outside

    def time(self) -> float:
        """Return the wall time of the process in unix seconds; its clock may be wrong."""
        return BEGAN_S + self._kernel.now_s + self._kernel.skew_s(self._process)

    def monotonic(self) -> float:
        """Return the kernel's time in seconds."""
        return self._kernel.now_s

    perf_counter = monotonic

    def processor_s(self) -> float:
        """Return 0: simulated code uses no processor time."""
        return 0.0

    def process_s(self) -> float | None:
        """Return None: processes share this one, so there is no processor time of one of them."""
        return None

    def peak_memory_mb(self) -> float:
        """Return 100, a constant."""
        return 100.0

    def started_at(self) -> float:
        """Return when the process was started, in unix seconds of its own clock."""
        process = self._process
        return BEGAN_S + process.began_s + self._kernel.skew_s(process)

    def sleep(self, seconds: float) -> None:
        """Let the calling task sleep for `seconds` of virtual time."""
        self._kernel.sleep(seconds)

    def pause(self, seconds: float, *, calm_s: float) -> None:
        """Sleep between two polls; longer if nothing can have changed. `calm_s`: longest pause."""
        self._looks.pause(seconds, calm_s)

    def thread(self, target: Callable[..., object], *args: Any, name: str | None = None) -> "VirtualThread":
        """Return a thread of the running process, not yet started."""
        return VirtualThread(self._kernel, self._process, target, args, name or "thread")

    def event(self) -> "VirtualEvent":
        """Return a new event, not set."""
        return VirtualEvent(self._kernel)

    def lock(self) -> "VirtualLock":
        """Return a new lock, free."""
        return VirtualLock(self._kernel)

    def local(self) -> Any:
        """Return an object with separate attributes for each task."""
        return OfTask()

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables of the running process."""
        return self._process.environment

    def state(self) -> dict[str, Any]:
        """Return what the modules of the running process keep between calls, by name."""
        return self._process.state


class VirtualThread:
    """A thread: a further task of the process that creates it."""

    def __init__(
        self, kernel: Kernel, process: Process, target: Callable[..., object], args: tuple[Any, ...], name: str
    ) -> None:
        """Prepare a thread of `process` that runs `target(*args)`; `start` starts it."""
        self._kernel, self._process, self._target, self._args, self._name = kernel, process, target, args, name
        self._task: Task | None = None

    def start(self) -> None:
        """Start the thread. Raises Killed if its process is dead."""
        self._process.check()
        self._task = self._kernel.spawn(self._target, *self._args, process=self._process, name=self._name)

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, for at most `timeout` seconds."""
        if self._task is not None and not self._task.over:
            self._kernel.wait(self._task.ended, float("inf") if timeout is None else timeout)

    def is_alive(self) -> bool:
        """Return whether the thread was started and has not ended."""
        return self._task is not None and not self._task.over


class VirtualEvent:
    """An event with the interface of threading.Event."""

    def __init__(self, kernel: Kernel) -> None:
        """Start with the event not set."""
        self._kernel, self._signal, self._set = kernel, Signal(), False

    def set(self) -> None:
        """Set the event for good, and wake all tasks that wait for it."""
        self._set = True
        self._signal.set()

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set, for at most `timeout` seconds. Return whether it is set."""
        if not self._set:
            self._kernel.wait(self._signal, float("inf") if timeout is None else timeout)
        return self._set


class VirtualLock:
    """A lock with the interface of threading.Lock; a task that waits for it lets others run."""

    def __init__(self, kernel: Kernel) -> None:
        """Start with the lock free."""
        self._kernel, self._free, self._held = kernel, Signal(), False

    def __enter__(self) -> bool:
        """Wait until the lock is free, take it, and return True."""
        while self._held:
            self._kernel.wait(self._free)
        self._held = True
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Free the lock, and wake the tasks that wait for it."""
        self._held = False
        self._free.set()


class OfTask:
    """An object like threading.local, with separate attributes for each task."""

    def _own(self) -> dict[str, Any]:
        """Return the current task's attributes."""
        current: Any = getcurrent()
        kept: dict[int, dict[str, Any]] = current.__dict__.setdefault("kept", {})
        return kept.setdefault(id(self), {})

    def __getattr__(self, name: str) -> Any:
        """Return the current task's attribute `name`. Raises AttributeError if this task has not set it."""
        try:
            return self._own()[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the attribute for the current task only."""
        self._own()[name] = value

    def __delattr__(self, name: str) -> None:
        """Delete the current task's attribute. Raises AttributeError if this task has not set it."""
        try:
            del self._own()[name]
        except KeyError:
            raise AttributeError(name) from None


@contextmanager
def install_runtime(kernel: Kernel, looks: Looks | None = None) -> Iterator[None]:
    """Let this process's code use the virtual world's runtime within the block, and raise BlocksForReal for real blocking calls in its
    tasks. The audit hook that does so stays installed for good.
    """
    global _watching
    if not _watching:
        sys.addaudithook(_refuse)  # for good: Python has no way to take one back
        _watching = True
    with ExitStack() as undone, runtime.use(VirtualRuntime(kernel, looks or Looks(kernel))):
        for owner, name in _UNANNOUNCED:
            real = getattr(owner, name)
            undone.callback(setattr, owner, name, real)
            setattr(owner, name, _refusing(f"{owner.__name__}.{name}", real))
        yield


def _refusing(what: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function like `real` that raises BlocksForReal if a task of a virtual world calls it."""

    def call(*arguments: Any, **named: Any) -> Any:
        """Call the real function. Raises BlocksForReal if a task of the virtual world makes the call."""
        _refuse_in_a_task(what)
        return real(*arguments, **named)

    return call


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise BlocksForReal for an audit event of real input or output inside a task."""
    if event in _REAL:
        _refuse_in_a_task(event)


def _refuse_in_a_task(what: str) -> None:
    """Raise BlocksForReal, with the place of the call, if a task of the virtual world is running."""
    if isinstance(getcurrent(), Task):
        raise BlocksForReal(f"{what} inside the virtual world, {_where(sys._getframe(2))}: ask crossover/runtime")


def _where(frame: FrameType | None) -> str:
    """Return file and line of the innermost frame that is the project's own code."""
    while frame is not None and any(part in frame.f_code.co_filename for part in _OTHERS):
        frame = frame.f_back
    if frame is None:
        return "an unknown place"
    file = frame.f_code.co_filename
    ours = max(file.rfind(f"/{part}/") for part in ("crossover", "functions", "peers"))
    return f"{file[ours + 1 :]}, line {frame.f_lineno}"
