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
from crossover.errors import RunFailed
from crossover.experiment import Experiment
from crossover.stores.connecting import open_object_tensors
from crossover.stores.fetch_compute import FetchCompute
from crossover.stores.memory import MemoryMessageBus, MemoryObjectStore, MemoryTensorStore
from crossover.stores.protocols import MessageBus, ObjectStore, TensorCompute, TensorStore, Traffic

# --- protocol ---------------------------------------------------------------------------------------------------------

Event = dict[
    str, Any
]  # the state that travels from step to step; crossover/workflow/__init__.py says what it consists of


class Clients(Protocol):
    """Protocol of the object from which a process gets the clients of its stores, message bus and state machines. A client's
    requests are counted in the `traffic` given for it.

    Methods that return clients may raise ConfigError or botocore's ClientError if the deployment lacks or refuses what they need, and
    RunFailed if the run in this process was stopped; the clients themselves raise the errors of their protocols.
    """

    def objects(self, traffic: Traffic) -> ObjectStore:
        """Return a client of the run's object store, whose requests are counted in `traffic`."""

    def data(self, worker: int, traffic: Traffic) -> ObjectStore:
        """Return a client of the object store that has the training data of `worker`. Its requests are counted in `traffic`."""

    def uses_object_store(self, experiment: Experiment) -> bool:
        """Return whether the experiment's vectors (models, gradients) are stored in the object store instead of a tensor store, so
        that requests for vectors are requests to the object store.
        """

    def tensors(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorStore:
        """Return a client of the tensor store of `worker`, of the kind that the `experiment` names. If there are fewer stores than workers,
        they are shared. Its requests are counted in `traffic`.
        """

    def compute(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorCompute:
        """Return a client that averages and updates the vectors in the tensor store of `worker`, in the database or by fetching
        them, as the `experiment` says. Its requests are counted in `traffic`.
        """

    def bus(self, traffic: Traffic) -> MessageBus:
        """Return a client of the message bus, whose requests are counted in `traffic`. The caller closes it."""

    def run_machine(self, name: str, event: Event) -> Event:
        """Start the architecture's state machine `name` with the input `event`, in Step Functions or in this process, and wait for
        its end. Returns its output event. Raises RunFailed or a UserError with the cause if it failed. On AWS a second call with
        the same run, worker and round in its `event` finds the execution that the first one started; a failed one is started again,
        twice at most; and Unavailable is raised if Step Functions does not answer.
        """

    def hold_slot(self) -> AbstractContextManager[float]:
        """Return a context manager that holds one compute slot of this machine; entering it waits for a free slot and gives the
        seconds waited. On AWS there are no slots, so no wait.
        """


# --- slots ------------------------------------------------------------------------------------------------------------
# Compute slots: one per core, so that 64 workers can wait at a barrier on two cores without computing over one another.
#
# A slot is a locked file, because the workers are processes that may die at any moment: the kernel gives a dead process's locks back.
# Local only. On AWS every environment has its own processor, `CROSSOVER_SLOTS` is unset and no slots are needed.

_IDLE_S = 0.5  # longer than the way from one minibatch to the next
_POLL_S = 0.002  # only the head of the queue polls, so this costs one process a thousandth of a core

_release_timer: threading.Timer | None = None


def create_slots(folder: str | Path, count: int) -> None:
    """Create the files of `count` compute slots in `folder`; existing ones are left as they are. Raises ValueError if `count` is
    below 1.
    """
    if count < 1:
        raise ValueError(f"count: {count} slots asked for; at least 1 is needed")
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (path / f"slot-{number}").touch()


@contextmanager
def hold_slot(folder: str | Path) -> Iterator[float]:
    """Within the `with` block, hold one of the compute slots in `folder`; yields the seconds spent waiting for it. Limits how many
    processes of a machine compute at once. A slot is free again at the block's end or when its process dies.

    First come, first served. Raises FileNotFoundError if there are no slots. Half a second after the block, memory that this process
    has freed is returned to the system, unless it holds a slot again.
    """
    started = time.monotonic()
    paths = sorted(Path(folder).glob("slot-*"))
    if not paths:
        raise FileNotFoundError(
            f"{folder}: no compute slots here; crossover.stores.clients.create_slots(folder, count) makes them"
        )
    descriptor = _lock_free_slot(paths, Path(folder) / "queue")
    _cancel_memory_release()
    try:
        yield time.monotonic() - started
    finally:
        os.close(descriptor)  # closing gives the lock back
        _release_memory_when_idle()


def _release_memory_when_idle() -> None:
    """Start a timer that returns freed memory to the system in 0.5 seconds, for other workers of this machine, unless this process
    holds a slot again before.
    """
    global _release_timer
    _cancel_memory_release()
    _release_timer = threading.Timer(_IDLE_S, _release_memory)
    _release_timer.daemon = True
    _release_timer.start()


def _cancel_memory_release() -> None:
    """Stop the timer of `_release_memory_when_idle`, if there is one."""
    if _release_timer is not None:
        _release_timer.cancel()


def _release_memory() -> None:
    """Return freed memory of this process to the system now (glibc's malloc_trim)."""
    ctypes.CDLL(None).malloc_trim(0)


def _lock_free_slot(paths: list[Path], queue: Path) -> int:
    """Wait until this process is first in the queue, that is, has locked the file `queue`; then wait until one of the slot files
    `paths` can be locked, trying each every 2 ms. Returns the locked file's open descriptor; closing it releases the slot.
    """
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
    """Lock the file and return its open descriptor, or return None if another process has locked it. Does not wait."""
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
# A limit on simultaneous work: a machine has a few cores, a cloud has many.


class Pool:
    """Semaphore of which at most `places` threads can hold one place each at a time, first come, first served."""

    def __init__(self, places: int) -> None:
        """Create the semaphore with `places` free places."""
        self._free = places
        self._queue: deque[runtime.EventFlag] = deque()
        self._lock = runtime.lock()

    @contextlib.contextmanager
    def hold_place(self) -> Iterator[None]:
        """Within the `with` block, hold one place; wait for it if all are taken."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        """Take a place; if all are taken, wait until another thread hands over its place."""
        turn = runtime.event()
        with self._lock:
            if self._free:
                self._free -= 1
                return
            self._queue.append(turn)
        turn.wait()

    def _leave(self) -> None:
        """Hand this thread's place over to the first thread in the queue; if nobody waits, free it."""
        with self._lock:
            if self._queue:
                self._queue.popleft().set()  # the place goes from hand to hand
            else:
                self._free += 1


# --- on demand --------------------------------------------------------------------------------------------------------
# What is made when it is first asked for.

T = TypeVar("T")


class lazy(Generic[T]):
    """Decorator for a property that is computed at the first access and then stored in the instance, like functools.cached_property
    but without a lock: two threads may both compute it.

    functools.cached_property of Python 3.11 holds one lock for all objects while it computes; with I/O inside, one hanging attempt
    would hang every worker of an inline run.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        """Wrap `compute`, the method that computes the value."""
        self._compute = compute

    def __set_name__(self, owner: type, name: str) -> None:
        """Store the property's name, under which the value will be stored in the instance."""
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        """Compute the value, store it in the instance, where later accesses find it, and return it. If computing raises, nothing is
        stored, so that the next access computes again.
        """
        value = self._compute(instance)
        instance.__dict__[self._name] = value  # found there first from now on
        return value


class ByWorker(Mapping[int, T], Generic[T]):
    """Mapping from worker to its client, which `make` builds at the first access and which is then kept. `workers`: number of workers."""

    def __init__(self, workers: int, make: Callable[[int], T]) -> None:
        """Prepare without making a client. `workers`: number of workers; `make`: builds the client of a worker."""
        self._workers, self._make = workers, make
        self._made: dict[int, T] = {}

    def __getitem__(self, worker: int) -> T:
        """Return the client of `worker`, built now if this is the first access. Raises KeyError for a worker out of range."""
        if not 0 <= worker < self._workers:
            raise KeyError(worker)
        if worker not in self._made:
            self._made[worker] = self._make(worker)
        return self._made[worker]

    def __iter__(self) -> Iterator[int]:
        """Return an iterator over all workers, from 0."""
        return iter(range(self._workers))

    def __len__(self) -> int:
        """Return the number of workers."""
        return self._workers


# --- memory -----------------------------------------------------------------------------------------------------------
# Clients of a run in this process: what it stores lies in memory.


class MemoryClients:
    """Clients for a run whose workers are all in this process and whose stores are in its memory.

    After `stop`, every request for a client or slot raises RunFailed, which ends the run's steps and programs. `run_machine`: function
    that runs a state machine; it must be set before a program calls it. `object_store`, `tensor_stores` (by worker, or one for all) and
    `message_bus`: the stores themselves.
    """

    def __init__(self, *, workers: int, shared_tensors: bool = False, slots: int = 0) -> None:
        """Create empty stores and a bus. `shared_tensors`: one tensor store for all workers instead of one each. `slots`: number of
        workers that may compute at once; 0: one per core.
        """
        self.object_store = MemoryObjectStore(Traffic())
        self.shared_tensors = shared_tensors
        count = 1 if shared_tensors else workers
        self.tensor_stores = [MemoryTensorStore(Traffic()) for _ in range(count)]
        self.message_bus = MemoryMessageBus(Traffic())
        self.run_machine: Callable[[str, Event], Event] = _refuse_machine
        self._stopped = runtime.event()
        self._slots = Pool(slots or os.cpu_count() or 1)

    def stop(self) -> None:
        """Make all later requests for clients and slots raise RunFailed. Stored objects and vectors stay."""
        self._stopped.set()

    def _raise_if_stopped(self) -> None:
        """Raise RunFailed if `stop` was called."""
        if self._stopped.is_set():
            raise RunFailed("the run was stopped")

    def objects(self, traffic: Traffic) -> ObjectStore:
        """Return a client of the run's object store, whose requests are counted in `traffic`. Raises RunFailed after `stop`."""
        self._raise_if_stopped()
        return self.object_store.with_traffic(traffic)

    def data(self, worker: int, traffic: Traffic) -> ObjectStore:
        """Return a client of the store with the training data, which is the run's object store for every `worker`. Its requests are
        counted in `traffic`. Raises RunFailed after `stop`.
        """
        return self.objects(traffic)

    def uses_object_store(self, experiment: Experiment) -> bool:
        """Return whether the experiment's vectors are stored in the object store: if `storage.channel` is s3 and workers share
        their store.
        """
        return experiment.storage.channel == "s3" and self.shared_tensors

    def tensors(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorStore:
        """Return a client of the tensor store of `worker`, or of the object store if the `experiment` stores vectors there. Its
        requests are counted in `traffic`. Raises RunFailed after `stop`.
        """
        self._raise_if_stopped()
        if self.uses_object_store(experiment):
            return open_object_tensors(self.objects(traffic))
        return self.tensor_stores[worker % len(self.tensor_stores)].with_traffic(traffic)

    def compute(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorCompute:
        """Return a client that averages and updates the vectors of `worker` in this process: it fetches them from the store that
        the `experiment` names, computes, and stores the results. Its requests are counted in `traffic`. Raises RunFailed after
        `stop`.
        """
        return FetchCompute(self.tensors(experiment, worker, traffic))

    def bus(self, traffic: Traffic) -> MessageBus:
        """Return a client of the message bus, whose requests are counted in `traffic`. Raises RunFailed after `stop`."""
        self._raise_if_stopped()
        return self.message_bus.with_traffic(traffic)

    @contextmanager
    def hold_slot(self) -> Iterator[float]:
        """Within the `with` block, hold one compute slot; yields the seconds spent waiting for it. Raises RunFailed if the run was
        stopped meanwhile.
        """
        began_s = runtime.monotonic()
        with self._slots.hold_place():
            self._raise_if_stopped()
            yield runtime.monotonic() - began_s


def _refuse_machine(name: str, event: Event) -> Event:
    """Raise AssertionError, because `MemoryClients.run_machine` was not replaced by a function that runs state machines."""
    raise AssertionError("set `run_machine` before programs are started")
