"""One virtual clock: tasks that run until they wait, processes that can be killed or frozen, ties broken by the seed.

A task is a greenlet (greenlet.readthedocs.io): code as it is deployed, which gives up control only where it asks the kernel to. So between
two such points nothing else happens, and the order of all that happens follows from the seed alone.
"""

import heapq
import random
from collections.abc import Callable
from math import inf
from typing import Any

from greenlet import getcurrent, greenlet


class Killed(BaseException):
    """Exception that ends a task whose process is dead: nothing that it does from now on, even in a `finally`, has any effect."""


class Stuck(Exception):
    """Error of a world that can make no progress any more, or makes progress without end."""


class WorldFault(BaseException):
    """An error of the virtual world itself. It ends the kernel's run, and no `except Exception` of the simulated code hides it."""


class Process:
    """A simulated process, whose tasks live and die together: a function's environment, a program on an instance, the client that follows a
    run.

    `state`: what its modules keep between calls; `of_the_world`: whether it is a service, whose errors are errors of the world.
    """

    def __init__(self, kernel: "Kernel", name: str, *, of_the_world: bool = False) -> None:
        """Start a process that is alive and has no tasks yet. Its role is its name until somebody changes it."""
        self.kernel, self.name, self.of_the_world = kernel, name, of_the_world
        self.role = name  # whose work it does: a function's environment does another worker's with each invocation
        self.state: dict[str, Any] = {}
        self.environment: dict[str, str] = {}
        self.began_s = kernel.now_s
        self.deadline_s = inf  # of a long worker's invocation
        self.longest_s = 0.0  # what its gradients have taken at most
        self.computes_until_s = 0.0
        self.alive = True
        self.at_end: Callable[[], None] = lambda: None  # what the rest of the world sees of its death
        self.frozen_until_s = -inf
        self.tasks: list[Task] = []
        self.parked: list[Task] = []  # tasks whose turn came while the process was frozen without a limit

    def freeze(self, until_s: float) -> None:
        """Let none of the process's tasks continue before the time `until_s`, or before `thaw`."""
        self.frozen_until_s = max(self.frozen_until_s, until_s)

    def thaw(self) -> None:
        """Let the process's tasks continue, those whose time has come immediately."""
        self.frozen_until_s = -inf
        parked, self.parked = self.parked, []
        for task in parked:
            self.kernel.wake(task)

    def kill(self) -> None:
        """Kill the process immediately, as kill -9 does; do nothing if it is dead. A task that kills its own process gets Killed at its
        next request.
        """
        if not self.alive:
            return
        self.alive = False
        self.at_end()
        for task in [each for each in self.tasks if each is not getcurrent()]:
            task.end()

    def check(self) -> None:
        """Raise Killed if the process is dead."""
        if not self.alive:
            raise Killed(self.name)


class Signal:
    """A signal to wait for. Setting it wakes the tasks that wait at that moment; it does not stay set."""

    def __init__(self) -> None:
        """Start with no tasks waiting."""
        self.waiting: list[Task] = []

    def set(self) -> None:
        """Wake all tasks that are waiting for this signal."""
        waiting, self.waiting = self.waiting, []
        for task in waiting:
            task.kernel.wake(task)


class Task(greenlet):
    """One thread of control of a process. `ended`: signal that is set when it is over; `failure`: the exception that ended it, None if none
    did.
    """

    def __init__(
        self, kernel: "Kernel", process: Process, target: Callable[..., object], args: tuple[Any, ...], name: str
    ) -> None:
        """Prepare a task that runs `target(*args)`; the kernel starts it."""
        super().__init__(parent=kernel.hub)
        self.kernel, self.process, self.name = kernel, process, name
        self.ended, self.over = Signal(), False
        self.result: object = None
        self.failure: BaseException | None = None
        self.ticket = 0  # of the entry in the queue that may wake it; older ones are void
        self._target, self._args = target, args

    def run(self) -> None:
        """Run the task to its end, and record its result or failure. An error in a service becomes a WorldFault."""
        try:
            self.result = self._target(*self._args)
        except BaseException as error:  # kept for whoever waits for the task; the kernel must go on
            self.failure = error
            if isinstance(error, WorldFault):
                self.kernel.fault = error
            elif self.process.of_the_world and isinstance(error, Exception):
                self.kernel.fault = WorldFault(f"{self.process.name}, {self.name}: {type(error).__name__}: {error}")
                self.kernel.fault.__cause__ = error
        finally:
            self._finish()

    def end(self) -> None:
        """End the task now by raising Killed in it, because its process is dead."""
        if self.over:
            return
        if self:  # it has begun, and waits somewhere
            self.parent = getcurrent()  # the caller continues once the task is unwound
            try:
                self.throw(Killed(self.process.name))
            finally:
                if not self.over:  # it caught Killed and waits again: never woken, since its process is dead
                    self.parent = self.kernel.hub
                    self._finish()
        else:
            self._finish()

    def _finish(self) -> None:
        """Mark the task as over, and wake who waits for its end. Does nothing the second time."""
        if not self.over:
            self.over = True
            self.process.tasks.remove(self)
            self.ended.set()


class Kernel:
    """The virtual clock, the queue of coming events, and the random generator that breaks ties."""

    def __init__(self, seed: int | str) -> None:
        """Start the clock at 0 s, with no tasks. `seed`: of the random generator."""
        self.chance = random.Random(f"virtual {seed}")
        self.now_s = 0.0
        self.hub = getcurrent()
        self.skew_s: Callable[[Process], float] = lambda process: 0.0  # by how much a process's wall clock is ahead
        self.switches, self.at_most = 0, 1_000_000
        self.fault: WorldFault | None = None
        self._queue: list[tuple[float, float, int, Task, int]] = []
        self._count = 0

    @property
    def task(self) -> Task:
        """The running task. Raises AssertionError outside any task."""
        current = getcurrent()
        assert isinstance(current, Task), "asked outside any task of the virtual world"
        return current

    def spawn(self, target: Callable[..., object], *args: Any, process: Process, name: str) -> Task:
        """Create a task of a process, which starts at the present time after the calling task pauses, and return it."""
        task = Task(self, process, target, args, name)
        process.tasks.append(task)
        self.wake(task)
        return task

    def wake(self, task: Task, at_s: float | None = None) -> None:
        """Schedule the task to continue at `at_s`, by default now; its earlier appointment is void."""
        self._count += 1
        task.ticket = self._count
        when_s = self.now_s if at_s is None else at_s
        heapq.heappush(self._queue, (when_s, self.chance.random(), self._count, task, self._count))

    def sleep(self, seconds: float) -> None:
        """Let the calling task sleep for `seconds`. Raises Killed if its process dies meanwhile."""
        task = self.task
        process = task.process
        process.check()
        until_s = self.now_s + max(0.0, seconds)
        alone = not self._queue or until_s < self._queue[0][0]
        if alone and process.frozen_until_s <= until_s and self.switches < self.at_most:
            self.now_s = until_s
            self.switches += 1
            return
        self.wake(task, until_s)
        self._pause(task)

    def wait(self, signal: Signal, within_s: float = inf) -> bool:
        """Let the calling task wait until the signal is set, for at most `within_s` seconds. Return whether it was set in that time. Raises
        Killed if its process dies meanwhile.
        """
        task = self.task
        task.process.check()
        signal.waiting.append(task)
        self._count += 1
        task.ticket = self._count
        if within_s < inf:
            self.wake(task, self.now_s + max(0.0, within_s))
        self._pause(task)
        if task in signal.waiting:
            signal.waiting.remove(task)
            return False
        return True

    def _pause(self, task: Task) -> None:
        """Switch to the kernel until the task is woken. Raises Killed if its process has died meanwhile."""
        self.hub.switch()
        task.process.check()

    def run(self, until: Callable[[], bool], *, at_most: int = 1_000_000) -> None:
        """Run the world's tasks in the order of time until `until` returns True. Raises Stuck if no task can continue or after `at_most`
        turns, and the WorldFault of a task.
        """
        self.at_most = at_most
        while self.fault is None and not until():
            if not self._queue:
                raise Stuck("every task waits for another, and no time-out is under way")
            when_s, _, _, task, ticket = heapq.heappop(self._queue)
            process = task.process
            if task.over or ticket != task.ticket or not process.alive:
                continue
            if process.frozen_until_s > when_s:
                if process.frozen_until_s == inf:
                    process.parked.append(task)
                else:
                    self.wake(task, process.frozen_until_s)
                continue
            self.now_s = max(self.now_s, when_s)
            self.switches += 1
            if self.switches > at_most:
                raise Stuck(f"{at_most} turns, and no end; {process.name}, {task.name} had the last one")
            task.switch()
        if self.fault is not None:
            raise self.fault
