"""What a step may touch. The composition root: which client stands behind a Protocol is decided here, once.

`Resources` lives as long as the process and holds the clients (Redis connections outlive an invocation, an AMQP
connection does not: a frozen
function misses heartbeats). `Context` lives for one invocation and counts what it moved. Imports of boto3, redis, pika and torch stand
inside the functions that need them: a handler that only asks the broker must not wait for torch.
"""

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Event, Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from crossover.dataplane.protocols import MessageBus, ObjectStore, TensorCompute, TensorStore
from crossover.dataplane.traffic import Traffic
from crossover.errors import CrossoverError, RunFailed
from crossover.experiment import Experiment, from_resolved
from crossover.keys import Keys

if TYPE_CHECKING:
    from crossover.learning.learner import Learner
    from crossover.metering import Meter

T = TypeVar("T")
SERVICES = {"objects": "object_store", "tensors": "tensor_store", "bus": "bus"}


class lazy(Generic[T]):
    """A property computed once per object. functools.cached_property of Python 3.11 holds one lock for all objects
    while it computes, and ours
    do I/O: an attempt that hangs would hang every other worker of an inline run."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        value = self._compute(instance)
        instance.__dict__[self._name] = value  # found there first from now on
        return value


class Machines(Protocol):
    """Step Functions, or the tree in this process."""

    def run(self, name: str, event: dict[str, Any]) -> dict[str, Any]: ...


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


@dataclass(frozen=True)
class RunFacts:
    """What stands in `runs/<id>/experiment.json`, read once per process and run."""

    experiment: Experiment
    data: str  # fingerprint of the staged data
    manifest: Mapping[str, Any]  # of the staged data
    parameters: int  # P
    buffers: int  # B
    created_at: float
    money: Mapping[str, Any] = field(
        default_factory=dict
    )  # crossover/costs/spending.py: what a run with a budget is judged by


class Clients(Protocol):
    """How clients are made: by the deployment's environment, or in memory. Each counts into the traffic it is given."""

    def objects(self, traffic: Traffic) -> ObjectStore: ...
    def data(self, worker: int, traffic: Traffic) -> ObjectStore: ...
    def through_objects(self, experiment: Experiment) -> bool:
        """Whether vectors lie in the object store, whose requests theirs then are."""

    def tensors(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorStore: ...
    def compute(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorCompute: ...
    def bus(self, traffic: Traffic) -> MessageBus: ...
    def machines(self) -> Machines: ...
    def slot(self) -> AbstractContextManager[float]:
        """A share of this machine's cores, around computing; yields the seconds waited for it. On AWS there is nothing to wait for."""


@dataclass
class Resources:
    """What a process keeps between invocations."""

    clients: Clients
    facts: dict[str, RunFacts] = field(default_factory=dict)
    learners: dict[str, list["Learner"]] = field(default_factory=dict)  # idle ones, by run
    records: dict[str, dict[str, dict[str, Any]]] = field(
        default_factory=dict
    )  # what decisions have read, by run and key
    lock: Lock = field(default_factory=Lock)

    def facts_of(self, run: str, objects: ObjectStore) -> RunFacts:
        if run not in self.facts:
            plain = json.loads(objects.get(Keys(run).experiment))
            self.facts[run] = RunFacts(
                from_resolved(plain["experiment"]),
                plain["data"],
                plain["data_manifest"],
                plain["parameters"],
                plain["buffers"],
                plain["created_at"],
                plain.get("money", {}),
            )
        return self.facts[run]

    def take_learner(self, run: str, facts: RunFacts) -> "Learner":
        with self.lock:
            idle = self.learners.setdefault(run, [])
            if idle:
                return idle.pop()
        from crossover.learning.learner import Learner  # torch lives behind this line only

        manifest = facts.manifest
        return Learner(
            facts.experiment,
            classes=manifest["classes"],
            input_shape=tuple(manifest["input_shape"]),
            affine=manifest["affine"],
        )

    def return_learner(self, run: str, learner: "Learner") -> None:
        with self.lock:
            self.learners[run].append(learner)


class Context:
    """What one invocation may touch; a context manager that closes what must not outlive it."""

    def __init__(
        self,
        resources: Resources,
        *,
        run: str,
        deadline: float = float("inf"),
        request_id: str = "",
        memory_mb: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.run = run
        self.keys = Keys(run)
        self.deadline = deadline  # unix seconds; what waits returns well before
        self.request_id = request_id or uuid.uuid4().hex
        self.memory_mb = memory_mb
        self.resources = resources
        self.clock = clock
        self.traffic = {name: Traffic() for name in SERVICES.values()}
        self.stages: list[dict[str, Any]] = []
        self.notes: dict[str, Any] = {}
        self.slot_wait_s = 0.0
        self.meter: Meter | None = None  # of the invocation under way
        self._uses: frozenset[str] | None = None
        self._learner: Learner | None = None
        self._bus: MessageBus | None = None

    def __enter__(self) -> "Context":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._learner is not None and error is None:  # after a failure its buffers may hold anything: let it go
            self.resources.return_learner(self.run, self._learner)
        self._learner = None
        close = getattr(self._bus, "close", None)
        if close is not None:
            close()
        self._bus = None

    def child(self) -> "Context":
        """Another invocation of the same run in this process."""
        return Context(self.resources, run=self.run, deadline=self.deadline, memory_mb=self.memory_mb, clock=self.clock)

    @contextmanager
    def invocation(self, uses: frozenset[str]) -> Iterator[None]:
        """Within it only the declared services can be reached: on AWS the others have neither route nor permission."""
        self._uses = uses
        try:
            yield
        finally:
            self._uses = None

    def _allowed(self, service: str) -> None:
        assert self._uses is None or service in self._uses, f"the step does not declare uses={{{service!r}}}"

    # --- services -----------------------------------------------------------------------------------------------------

    @lazy
    def objects(self) -> ObjectStore:
        """The run's bucket."""
        return self.resources.clients.objects(self.traffic["object_store"])

    @lazy
    def data(self) -> ByWorker[ObjectStore]:
        """Where each worker's minibatches lie."""
        return ByWorker(self.experiment.workers, lambda w: self.resources.clients.data(w, self.traffic["object_store"]))

    @property
    def _vectors(self) -> Traffic:
        through_objects = self.resources.clients.through_objects(self.experiment)
        return self.traffic["object_store" if through_objects else "tensor_store"]

    @lazy
    def _tensors(self) -> ByWorker[TensorStore]:
        make, traffic = self.resources.clients.tensors, self._vectors
        return ByWorker(self.experiment.workers, lambda w: make(self.experiment, w, traffic))

    @property
    def tensors(self) -> ByWorker[TensorStore]:
        self._allowed("tensors")
        return self._tensors

    @lazy
    def _compute(self) -> ByWorker[TensorCompute]:
        make, traffic = self.resources.clients.compute, self._vectors
        return ByWorker(self.experiment.workers, lambda w: make(self.experiment, w, traffic))

    @property
    def compute(self) -> ByWorker[TensorCompute]:
        self._allowed("tensors")
        return self._compute

    @property
    def bus(self) -> MessageBus:
        self._allowed("bus")
        if self._bus is None:
            self._bus = self.resources.clients.bus(self.traffic["bus"])
        return self._bus

    @property
    def machines(self) -> Machines:
        self._allowed("machines")
        return self.resources.clients.machines()

    @property
    def learner(self) -> "Learner":
        """This invocation's learner; only steps marked torch=True have one."""
        if self._learner is None:
            self._learner = self.resources.take_learner(self.run, self.facts)
            self._learner.slot = self._slot
        return self._learner

    @contextmanager
    def _slot(self) -> Iterator[None]:
        with self.resources.clients.slot() as waited_s:
            self.slot_wait_s += waited_s
            yield

    # --- the run ------------------------------------------------------------------------------------------------------

    @lazy
    def facts(self) -> RunFacts:
        return self.resources.facts_of(self.run, self.objects)

    @property
    def experiment(self) -> Experiment:
        return self.facts.experiment

    @property
    def architecture(self) -> str:
        try:
            return self.experiment.architecture
        except CrossoverError:  # a record is written even where the run's own facts cannot be read
            return ""

    # --- time and records ---------------------------------------------------------------------------------------------

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A timed span: what the papers name (fetch, compute, synchronise, update, evaluate). Waits for a slot are not part of it."""
        wall_s, cpu_s, waited_s = time.perf_counter(), time.thread_time(), self.slot_wait_s
        try:
            yield
        finally:
            spent_s = time.perf_counter() - wall_s - (self.slot_wait_s - waited_s)
            self.stages.append(
                {"stage": name, "wall_s": round(spent_s, 6), "cpu_s": round(time.thread_time() - cpu_s, 6)}
            )

    def note(self, **figures: float | int | str) -> None:
        """Figures of this invocation that its record carries, such as the training loss."""
        self.notes.update(figures)

    def overdue(self, event: Mapping[str, Any]) -> bool:
        """Whether the innermost wait of `event` has passed its time-out."""
        from datetime import datetime

        since = datetime.fromisoformat(event["since"]).timestamp()
        return bool(self.clock() - since > event["timeout_s"])

    def remaining_s(self) -> float:
        """Until the invocation's deadline."""
        return self.deadline - self.clock()

    def pause(self, seconds: float) -> None:
        """Between two polls, in this process: the stores are in memory, so there is no point in waiting as long as on AWS."""
        time.sleep(min(seconds, 0.001))

    def mark(self) -> None:
        """A long invocation says what it has used, at its start and at every epoch: the bill of a moment counts it."""
        if self.meter is not None:
            self.meter.mark()

    def write_mark(self, mark: bytes) -> None:
        self.resources.clients.objects(Traffic()).put(self.keys.mark(self.request_id), mark)

    def forget_mark(self) -> None:
        self.resources.clients.objects(Traffic()).delete(self.keys.mark(self.request_id))

    def write_record(self, step: str, record: bytes) -> None:
        self.resources.clients.objects(Traffic()).put(self.keys.record(step, uuid.uuid4().hex), record)


# --- clients in memory ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InlineMachines:
    """Trees in this process: `execute`, which stands above this module, is handed in."""

    execute: Callable[[str, dict[str, Any]], dict[str, Any]]

    def run(self, name: str, event: dict[str, Any]) -> dict[str, Any]:
        return self.execute(name, event)


class InlineClients:
    """Memory stores for a run in this process. Once it is stopped nobody gets a client or a slot any more: its steps end
    where they begin, and its programs before they compute.
    """

    def __init__(self, *, workers: int, shared_tensors: bool = False) -> None:
        from crossover.dataplane.memory import MemoryObjectStore, MemoryTensorStore
        from crossover.dataplane.memory_bus import MemoryMessageBus

        self.object_store = MemoryObjectStore(Traffic())
        self.shared_tensors = shared_tensors
        count = 1 if shared_tensors else workers
        self.tensor_stores = [MemoryTensorStore(Traffic()) for _ in range(count)]
        self.message_bus = MemoryMessageBus(Traffic())
        self.run_machine: Callable[[str, dict[str, Any]], dict[str, Any]] | None = None
        self._stopped = Event()

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
            from crossover.dataplane.connecting import object_tensors

            return object_tensors(self.objects(traffic))
        return self.tensor_stores[worker % len(self.tensor_stores)].beside(traffic)

    def compute(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorCompute:
        from crossover.dataplane.fetch_compute import FetchCompute  # brings torch

        return FetchCompute(self.tensors(experiment, worker, traffic))

    def bus(self, traffic: Traffic) -> MessageBus:
        self._go_on()
        return self.message_bus.beside(traffic)

    def machines(self) -> Machines:
        assert self.run_machine is not None, "whoever starts programs says how their machines run"
        return InlineMachines(self.run_machine)

    def slot(self) -> AbstractContextManager[float]:
        self._go_on()
        return nullcontext(0.0)


# --- clients of a deployment ------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def process_resources() -> Resources:
    """This process's resources, by its environment: the deployment facts that the stack wrote there."""
    from crossover.clients.deployed import DeployedClients

    return Resources(DeployedClients(dict(os.environ)))
