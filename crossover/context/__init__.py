"""What a step may touch.

`Resources` lives as long as the process and holds the clients, which crossover/clients makes (Redis connections outlive an invocation, an
AMQP connection does not: a frozen function misses heartbeats). `Context` lives for one invocation and counts what it moved. Imports of
boto3, redis, pika and torch stand inside the functions that need them: a handler that only asks the broker must not wait for torch.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from crossover import keys, runtime
from crossover.clients.deployed import DeployedClients
from crossover.clients.on_demand import ByWorker, lazy
from crossover.clients.protocol import Clients, Event
from crossover.context.run_facts import FACTS, RunFacts
from crossover.dataplane import documents
from crossover.dataplane.protocols import MessageBus, ObjectStore, TensorCompute, TensorStore
from crossover.dataplane.traffic import Traffic
from crossover.errors import Corrupt, CrossoverError
from crossover.experiment import Experiment
from crossover.keys import Keys

if TYPE_CHECKING:
    from crossover.learning.learner import Learner

SERVICES = {"objects": "object_store", "tensors": "tensor_store", "bus": "bus"}


def new_learner(experiment: Experiment, manifest: Mapping[str, Any]) -> "Learner":
    """The learner of a run on the staged data that the manifest describes."""
    from crossover.learning.learner import Learner  # torch lives behind this line only

    return Learner(
        experiment,
        classes=manifest["classes"],
        input_shape=tuple(manifest["input_shape"]),
        affine=manifest["affine"],
    )


@dataclass
class Resources:
    """What a process keeps between invocations."""

    clients: Clients
    facts: dict[str, RunFacts] = field(default_factory=dict)
    learners: dict[str, list["Learner"]] = field(default_factory=dict)  # idle ones, by run
    # What decisions have read, by run and key.
    records: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    make_learner: Callable[[Experiment, Mapping[str, Any]], "Learner"] = new_learner
    lock: runtime.Lock = field(default_factory=runtime.lock)

    def facts_of(self, run: str, objects: ObjectStore) -> RunFacts:
        with self.lock:  # steps side by side in one process read them once
            if run not in self.facts:
                try:
                    self.facts[run] = RunFacts.from_json(documents.read(objects, key := Keys(run).experiment, FACTS))
                except (TypeError, AttributeError) as error:
                    raise Corrupt(f"{key}: experiment: {error}") from error
            return self.facts[run]

    def take_learner(self, run: str, facts: RunFacts, objects: ObjectStore) -> "Learner":
        with self.lock:
            idle = self.learners.setdefault(run, [])
            if idle:
                return idle.pop()
        self.hold_base(facts.experiment, objects)
        learner = self.make_learner(facts.experiment, facts.manifest)
        if facts.constants:
            learner.take_constants(objects.get(Keys(run).constants))
        return learner

    def hold_base(self, experiment: Experiment, objects: ObjectStore) -> None:
        """Have the process read the weights that the run's model begins from, if there are any and it has not."""
        if experiment.training.weights.file is None:
            return
        from crossover.learning.models import weights

        base = experiment.training.weights
        weights.hold(base, lambda: objects.get(keys.weights(str(base.sha256))))

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
        clock: Callable[[], float] = runtime.time,
    ) -> None:
        self.run = run
        self.keys = Keys(run)
        self.deadline = deadline  # unix seconds; what waits returns well before
        self.request_id = request_id or runtime.identifier()
        self.memory_mb = memory_mb
        self.resources = resources
        self.clock = clock
        self.traffic = {name: Traffic() for name in SERVICES.values()}
        self.stages: list[dict[str, Any]] = []
        self.notes: dict[str, Any] = {}
        self.slot_wait_s = 0.0
        # A long invocation says what it has used, at its start and at every epoch, where it is metered: the bill of a moment counts it.
        self.mark: Callable[[], None] = lambda: None
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

    def run_machine(self, name: str, event: Event) -> Event:
        """Run the architecture's machine `name` to its end; the event that it ends with."""
        self._allowed("machines")
        return self.resources.clients.run_machine(name, event)

    @property
    def learner(self) -> "Learner":
        """This invocation's learner; only steps marked torch=True have one."""
        if self._learner is None:
            self._learner = self.resources.take_learner(self.run, self.facts, self.objects)
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
        wall_s, cpu_s, waited_s = runtime.perf_counter(), runtime.processor_s(), self.slot_wait_s
        try:
            yield
        finally:
            spent_s = runtime.perf_counter() - wall_s - (self.slot_wait_s - waited_s)
            self.stages.append(
                {"stage": name, "wall_s": round(spent_s, 6), "cpu_s": round(runtime.processor_s() - cpu_s, 6)}
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
        runtime.sleep(min(seconds, 0.001))

    def write_mark(self, mark: bytes) -> None:
        self.resources.clients.objects(Traffic()).put(self.keys.mark(self.request_id), mark)

    def forget_mark(self) -> None:
        self.resources.clients.objects(Traffic()).delete(self.keys.mark(self.request_id))

    def write_record(self, step: str, record: bytes) -> None:
        self.resources.clients.objects(Traffic()).put(self.keys.record(step, runtime.identifier()), record)


def process_resources() -> Resources:
    """This process's resources, by its environment: the deployment facts that the stack wrote there."""
    return runtime.kept("resources", lambda: Resources(DeployedClients(dict(runtime.environment()))))
