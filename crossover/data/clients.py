"""Give a process its stores, bus and state machines: in memory, pooled, or opened when they are first used."""

import contextlib
import ctypes
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from crossover import runtime
from crossover.data.connecting import object_tensors
from crossover.data.fetch_compute import FetchCompute
from crossover.data.memory import MemoryMessageBus, MemoryObjectStore, MemoryTensorStore
from crossover.data.protocols import MessageBus, ObjectStore, TensorCompute, TensorStore, Traffic
from crossover.errors import RunFailed
from crossover.experiment import Experiment

# --- protocol ---------------------------------------------------------------------------------------------------------

Event = dict[
    str, Any
]  # the state that travels from step to step; crossover/workflow/__init__.py says what it consists of


class Clients(Protocol):
    """How clients are made: by the deployment's environment, or in memory. Each counts into the traffic it is given."""

    def objects(self, traffic: Traffic) -> ObjectStore: ...
    def data(self, worker: int, traffic: Traffic) -> ObjectStore: ...
    def through_objects(self, experiment: Experiment) -> bool:
        """Whether vectors lie in the object store, whose requests theirs then are."""

    def tensors(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorStore: ...
    def compute(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorCompute: ...
    def bus(self, traffic: Traffic) -> MessageBus: ...
    def run_machine(self, name: str, event: Event) -> Event:
        """Run the architecture's machine `name` to its end: in Step Functions, or the tree in this process."""

    def slot(self) -> AbstractContextManager[float]:
        """Hold a share of this machine's cores while computing; yields the seconds waited for it. On AWS there is nothing to wait for."""


# --- slots ------------------------------------------------------------------------------------------------------------
# Compute slots: one per core, so that 64 workers can wait at a barrier on two cores without computing over one another.
#
# A slot is a locked file, because the workers are processes that may die at any moment: the kernel gives a dead process's locks back.
# Local only. On AWS every environment has its own processor, `CROSSOVER_SLOTS` is unset and nobody asks for a slot.

_IDLE_S = 0.5  # longer than the way from one minibatch to the next
_POLL_S = 0.002  # only the head of the queue polls, so this costs one process a thousandth of a core

_idle: threading.Timer | None = None


def create(folder: str | Path, count: int) -> None:
    """Make `count` slots in `folder`; harmless to repeat."""
    if count < 1:
        raise ValueError(f"count: {count} slots asked for; at least 1 is needed")
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (path / f"slot-{number}").touch()


@contextmanager
def slot(folder: str | Path) -> Iterator[float]:
    """Hold one slot of `folder` for the length of the block; yields the seconds it waited for it.

    First come, first served: whoever holds the file `queue` is next. Raises FileNotFoundError where `create` was never called.
    """
    started = time.monotonic()
    paths = sorted(Path(folder).glob("slot-*"))
    if not paths:
        raise FileNotFoundError(
            f"{folder}: no compute slots here; crossover.data.clients.create(folder, count) makes them"
        )
    descriptor = _first_free(paths, Path(folder) / "queue")
    _stay_as_you_are()
    try:
        yield time.monotonic() - started
    finally:
        os.close(descriptor)  # closing gives the lock back
        _give_memory_back_when_idle()


def _give_memory_back_when_idle() -> None:
    """Return the pages that a training step has freed (for MobileNet nine tenths of the process) once this process computes no more.

    The next step pays for them with page faults, so a process that goes on at once keeps them; one that waits for others must not: their
    steps need the memory, and 64 workers live on one machine.
    """
    global _idle
    _stay_as_you_are()
    _idle = threading.Timer(_IDLE_S, _give_memory_back)
    _idle.daemon = True
    _idle.start()


def _stay_as_you_are() -> None:
    if _idle is not None:
        _idle.cancel()


def _give_memory_back() -> None:
    ctypes.CDLL(None).malloc_trim(0)


def _first_free(paths: list[Path], queue: Path) -> int:
    head = os.open(queue, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(head, fcntl.LOCK_EX)
        while True:
            for path in paths:
                descriptor = _try_lock(path)
                if descriptor is not None:
                    return descriptor
            time.sleep(_POLL_S)
    finally:
        os.close(head)


def _try_lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


# --- pools ------------------------------------------------------------------------------------------------------------
# How many work at once: what stands for a cloud's plenty on a machine with a few cores.


class Pool:
    """At most `places` at once, first come, first served."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._queue: deque[runtime.EventFlag] = deque()
        self._lock = runtime.lock()

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        turn = runtime.event()
        with self._lock:
            if self._free:
                self._free -= 1
                return
            self._queue.append(turn)
        turn.wait()

    def _leave(self) -> None:
        with self._lock:
            if self._queue:
                self._queue.popleft().set()  # the place goes from hand to hand
            else:
                self._free += 1


# --- on demand --------------------------------------------------------------------------------------------------------
# What is made when it is first asked for.

T = TypeVar("T")


class lazy(Generic[T]):
    """A property computed once per object. functools.cached_property of Python 3.11 holds one lock for all objects while it computes, and
    ours do I/O: an attempt that hangs would hang every other worker of an inline run.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        value = self._compute(instance)
        instance.__dict__[self._name] = value  # found there first from now on
        return value


class ByWorker(Mapping[int, T], Generic[T]):
    """Clients by worker, made when first asked for: one warm process serves several workers."""

    def __init__(self, workers: int, make: Callable[[int], T]) -> None:
        self._workers, self._make = workers, make
        self._made: dict[int, T] = {}

    def __getitem__(self, worker: int) -> T:
        if not 0 <= worker < self._workers:
            raise KeyError(worker)
        if worker not in self._made:
            self._made[worker] = self._make(worker)
        return self._made[worker]

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._workers))

    def __len__(self) -> int:
        return self._workers


# --- memory -----------------------------------------------------------------------------------------------------------
# Clients of a run in this process: what it stores lies in memory.


class MemoryClients:
    """Memory stores for a run in this process. Once it is stopped nobody gets a client or a slot any more: its steps end where they begin,
    and its programs before they compute. `slots`: how many of them compute at a time, one for each core unless said: a training step may
    hold gigabytes, and SPIRT has a function for every minibatch of every worker.
    """

    def __init__(self, *, workers: int, shared_tensors: bool = False, slots: int = 0) -> None:
        self.object_store = MemoryObjectStore(Traffic())
        self.shared_tensors = shared_tensors
        count = 1 if shared_tensors else workers
        self.tensor_stores = [MemoryTensorStore(Traffic()) for _ in range(count)]
        self.message_bus = MemoryMessageBus(Traffic())
        self.run_machine: Callable[[str, Event], Event] = _nobody_runs_machines
        self._stopped = runtime.event()
        self._slots = Pool(slots or os.cpu_count() or 1)

    def stop(self) -> None:
        """End the run; what it has stored stays."""
        self._stopped.set()

    def _go_on(self) -> None:
        if self._stopped.is_set():
            raise RunFailed("the run was stopped")

    def objects(self, traffic: Traffic) -> ObjectStore:
        self._go_on()
        return self.object_store.beside(traffic)

    def data(self, worker: int, traffic: Traffic) -> ObjectStore:
        return self.objects(traffic)

    def through_objects(self, experiment: Experiment) -> bool:
        return experiment.storage.channel == "s3" and self.shared_tensors

    def tensors(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorStore:
        self._go_on()
        if self.through_objects(experiment):
            return object_tensors(self.objects(traffic))
        return self.tensor_stores[worker % len(self.tensor_stores)].beside(traffic)

    def compute(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorCompute:
        return FetchCompute(self.tensors(experiment, worker, traffic))

    def bus(self, traffic: Traffic) -> MessageBus:
        self._go_on()
        return self.message_bus.beside(traffic)

    @contextmanager
    def slot(self) -> Iterator[float]:
        """To compute; yields the seconds it was waited for."""
        began_s = runtime.monotonic()
        with self._slots.place():
            self._go_on()
            yield runtime.monotonic() - began_s


def _nobody_runs_machines(name: str, event: Event) -> Event:
    raise AssertionError("whoever starts programs says how their machines run: `run_machine`")
