"""The surroundings of one invocation: stores, bus, learner, clock and deadline; and the record that it writes."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from crossover import runtime
from crossover.errors import Corrupt, CrossoverError, StaleAttempt
from crossover.experiment import Experiment, from_plain
from crossover.stores import documents, keys
from crossover.stores.clients import ByWorker, Clients, Event, lazy
from crossover.stores.deployed_clients import DeployedClients
from crossover.stores.documents import seal
from crossover.stores.keys import Keys
from crossover.stores.local_copies import LocalCopies
from crossover.stores.protocols import MessageBus, ObjectStore, ReadableObjects, TensorCompute, TensorStore, Traffic

if TYPE_CHECKING:
    from crossover.learning.learner import Learner


# --- run configuration ------------------------------------------------------------------------------------------------

FACTS = {
    "experiment": {},
    "data": str,
    "parameters": int,
    "buffers": int,
    "created_at": float,
    "money?": {},
    "undecayed?": [[int]],
    "data_manifest": {"minibatches": int, "counts?": [[int]], "validation_chunks?": int},
}


@dataclass(frozen=True)
class RunConfiguration:
    """The configuration of one run (`ctx.facts`): the content of `runs/<id>/experiment.json`, read once per process and run.

    `data`: fingerprint of the staged data; `manifest`: description of the staged data, such as numbers of minibatches; `parameters`,
    `buffers`: numbers of values in the model; `created_at`: unix seconds; `constants`: whether the store also has constants of the model
    that no vector holds; `undecayed`: ranges (first, end) of the model's elements that weight decay leaves out; `money`: figures by which a
    run with a budget is judged.
    """

    experiment: Experiment
    data: str  # fingerprint of the staged data
    manifest: Mapping[str, Any]  # of the staged data
    parameters: int  # P
    buffers: int  # B
    created_at: float
    constants: bool = False  # whether what no vector holds of the model lies beside these, at `Keys.constants`
    undecayed: tuple[tuple[int, int], ...] = ()  # elements of the model that `weight_decay` leaves alone
    money: Mapping[str, Any] = field(
        default_factory=dict
    )  # what a run with a budget is judged by: crossover/reports/spending.py

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> "RunConfiguration":
        """Return the run's configuration described by `plain`, the JSON that crossover/running/preparing.py writes. Raises KeyError if a
        field is missing, TypeError or AttributeError if it has another form.
        """
        names = ("data", "parameters", "buffers", "created_at")
        return cls(
            experiment=from_plain(plain["experiment"]),
            manifest=plain["data_manifest"],
            money=plain.get("money", {}),
            constants=plain.get("constants", False),
            undecayed=tuple((first, end) for first, end in plain.get("undecayed", ())),
            **{name: plain[name] for name in names},
        )


# --- context ----------------------------------------------------------------------------------------------------------
# The services and data that a step may use.
#
# `Resources` lives as long as the process and holds the clients, which crossover/stores/clients.py makes (Redis connections outlive an
# invocation, an AMQP connection does not: a frozen function misses heartbeats). `Context` lives for one invocation and counts what it
# moved. Imports of boto3, redis, pika and torch are inside the functions that need them: a handler that only asks the broker must not
# wait for torch.

SERVICES = {"objects": "object_store", "tensors": "tensor_store", "bus": "bus"}


def new_learner(experiment: Experiment, manifest: Mapping[str, Any]) -> "Learner":
    """Build the learner, which holds and trains the model that `experiment` describes. `manifest`: description of the prepared data."""
    from crossover.learning.learner import Learner  # the only import of torch here

    return Learner(
        experiment,
        classes=manifest["classes"],
        input_shape=tuple(manifest["input_shape"]),
        affine=manifest["affine"],
    )


@dataclass
class Resources:
    """Everything that a process keeps from one invocation to the next. `clients`: opens stores, bus and state machines; `facts`: run
    configurations by run; `learners`: learners that are not in use, by run; `records`: records that decisions have read, by run and key;
    `make_learner`: builds a learner from an experiment and the manifest of its data; `lock`: protects `facts` and `learners` between
    threads.
    """

    clients: Clients
    facts: dict[str, RunConfiguration] = field(default_factory=dict)
    learners: dict[str, list["Learner"]] = field(default_factory=dict)  # idle ones, by run
    # What decisions have read, by run and key.
    records: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    make_learner: Callable[[Experiment, Mapping[str, Any]], "Learner"] = new_learner
    lock: runtime.Lock = field(default_factory=runtime.lock)

    def read_configuration(self, run: str, objects: ObjectStore) -> RunConfiguration:
        """Return the configuration of `run`; it is read from `objects` at the first call and kept. Raises Missing if there is none, Corrupt
        if it is damaged or has another form.
        """
        with self.lock:  # steps side by side in one process read them once
            if run not in self.facts:
                try:
                    self.facts[run] = RunConfiguration.from_json(
                        documents.read_document(objects, key := Keys(run).experiment, FACTS)
                    )
                except (TypeError, AttributeError) as error:
                    raise Corrupt(f"{key}: experiment: {error}") from error
            return self.facts[run]

    def take_learner(self, run: str, configuration: RunConfiguration, objects: ObjectStore) -> "Learner":
        """Return a learner of the run for one invocation's own use: one that is not in use, or a new one. `return_learner` gives it back.
        The vectors of a used one hold what the invocation before left.

        `objects`: holds the weights and constants for a new learner. Raises Missing if they are not stored, Corrupt if the weights'
        checksum differs, and the errors of `make_learner`.
        """
        with self.lock:
            idle = self.learners.setdefault(run, [])
            if idle:
                return idle.pop()
        self.load_base_weights(configuration.experiment, objects)
        learner = self.make_learner(configuration.experiment, configuration.manifest)
        if configuration.constants:
            learner.take_constants(objects.get(Keys(run).constants))
        return learner

    def load_base_weights(self, experiment: Experiment, objects: ObjectStore) -> None:
        """Load the pretrained weights that `experiment` starts from (`training.weights`) from the store `objects` into this process. Does
        nothing if none are set, or if they are loaded already. Raises Missing if the store does not have them, Corrupt if their checksum
        differs.
        """
        if experiment.training.weights.file is None:
            return
        from crossover.learning import weights

        base = experiment.training.weights
        weights.load_base_once(base, lambda: objects.get(keys.weights(str(base.sha256))))

    def return_learner(self, run: str, learner: "Learner") -> None:
        """Give a learner that `take_learner` returned back, so that later invocations of `run` in this process can take it."""
        with self.lock:
            self.learners[run].append(learner)


class Context:
    """Everything that one invocation works with: the run's stores and bus, its configuration, learner, clock and deadline, and the figures
    for its record. A context manager that closes the bus and gives the learner back.
    """

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
        """Create the context of one invocation; clients are opened when they are first used. Its `keys` are those of attempt 0 until a step
        runs, which sets those of its event's attempt.

        `deadline`: unix seconds; `request_id`: made up if empty; `memory_mb`: of the function, 0 if there is none; `clock`: returns unix
        seconds.
        """
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
        # A long invocation reports its usage at its start and after every epoch, for the bill of a run under way. Set by `Meter`.
        self.report_usage: Callable[[], None] = lambda: None
        self._uses: frozenset[str] | None = None
        self._learner: Learner | None = None
        self._bus: MessageBus | None = None
        self._keeps_data = False

    def __enter__(self) -> "Context":
        """Return the context itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the bus, and give the learner back to the resources unless the block raised an error: its buffers may then hold
        anything.
        """
        if self._learner is not None and error is None:  # after a failure its buffers may hold anything: let it go
            self.resources.return_learner(self.run, self._learner)
        self._learner = None
        close = getattr(self._bus, "close", None)
        if close is not None:
            close()
        self._bus = None

    def child(self) -> "Context":
        """Return a new context for another invocation of the same run in this process, with the same resources and deadline, and with a
        request id, bus, learner and counters of its own. Its `keys` are those of attempt 0 until a step runs.
        """
        return Context(self.resources, run=self.run, deadline=self.deadline, memory_mb=self.memory_mb, clock=self.clock)

    @contextmanager
    def invocation(self, uses: frozenset[str]) -> Iterator[None]:
        """Return a context manager within which only the services named in `uses` can be used, as on AWS, where a step has no access to
        others. After it all are allowed again.
        """
        self._uses = uses
        try:
            yield
        finally:
            self._uses = None

    def _require_declared(self, service: str) -> None:
        """Raise AssertionError if a step is running that does not declare that it uses `service`. Outside a step all services are
        allowed.
        """
        assert self._uses is None or service in self._uses, f"the step does not declare uses={{{service!r}}}"

    # --- services -----------------------------------------------------------------------------------------------------

    @lazy
    def objects(self) -> ObjectStore:
        """The run's bucket as an object store, opened at the first use; its requests and bytes are counted for the record."""
        return self.resources.clients.objects(self.traffic["object_store"])

    @lazy
    def data(self) -> ByWorker[ReadableObjects]:
        """The stores with the workers' training data, by rank. Each is opened at its first use."""

        def open_data(worker: int) -> ReadableObjects:
            """Open the store with the training data of the rank `worker`. After `keep_data`, it keeps each object that was read, in memory
            or on disk while there is room.
            """
            store = self.resources.clients.data(worker, self.traffic["object_store"])
            return LocalCopies(store) if self._keeps_data else store

        return ByWorker(self.experiment.workers, open_data)

    def keep_data(self) -> None:
        """Keep training data in memory, then on disk, from now on, so that each object is read from its bucket only once while there is
        room. Raises AssertionError if `data` was used before.
        """
        assert "data" not in vars(self), "keep_data comes before the first read"
        self._keeps_data = True

    @property
    def _vectors(self) -> Traffic:
        """The counter of requests and bytes for vectors: that of the object store if the run exchanges through the bucket, otherwise that
        of the tensor store.
        """
        through_objects = self.resources.clients.uses_object_store(self.experiment)
        return self.traffic["object_store" if through_objects else "tensor_store"]

    @lazy
    def _tensors(self) -> ByWorker[TensorStore]:
        """The tensor stores of the workers, by rank. Each is opened at its first use."""
        make, traffic = self.resources.clients.tensors, self._vectors
        return ByWorker(self.experiment.workers, lambda w: make(self.experiment, w, traffic))

    @property
    def tensors(self) -> ByWorker[TensorStore]:
        """The tensor stores of the workers, by rank. Raises AssertionError in a step that does not declare `uses={"tensors"}`."""
        self._require_declared("tensors")
        return self._tensors

    @lazy
    def _compute(self) -> ByWorker[TensorCompute]:
        """The objects that average and update the workers' stored vectors, by rank. Each is opened at its first use."""
        make, traffic = self.resources.clients.compute, self._vectors
        return ByWorker(self.experiment.workers, lambda w: make(self.experiment, w, traffic))

    @property
    def compute(self) -> ByWorker[TensorCompute]:
        """Objects that average and update the workers' stored vectors, in the database or by fetching them, by rank. Raises AssertionError
        in a step that does not declare `uses={"tensors"}`.
        """
        self._require_declared("tensors")
        return self._compute

    @property
    def bus(self) -> MessageBus:
        """The message bus, opened at the first use. Raises AssertionError in a step that does not declare `uses={"bus"}`."""
        self._require_declared("bus")
        if self._bus is None:
            self._bus = self.resources.clients.bus(self.traffic["bus"])
        return self._bus

    def run_machine(self, name: str, event: Event) -> Event:
        """Run the architecture's state machine `name` with `event`, wait for its end, and return its last event. Raises RunFailed or a
        UserError if it failed. Raises AssertionError in a step that does not declare `uses={"machines"}`.
        """
        self._require_declared("machines")
        return self.resources.clients.run_machine(name, event)

    @property
    def learner(self) -> "Learner":
        """The learner of this invocation, which holds and trains the model; taken from the process's resources, or built, at the first use.
        Only for steps with `torch=True`. Raises what `Resources.take_learner` raises, such as Missing.
        """
        if self._learner is None:
            self._learner = self.resources.take_learner(self.run, self.facts, self.objects)
            self._learner.slot = self._hold_slot
        return self._learner

    @contextmanager
    def _hold_slot(self) -> Iterator[None]:
        """Return a context manager that holds one of this machine's slots for computing, waiting until one is free; the seconds waited are
        added to `slot_wait_s`. On AWS there are no slots, and it does nothing. Raises RunFailed in a run inside one process that was
        stopped meanwhile.
        """
        with self.resources.clients.hold_slot() as waited_s:
            self.slot_wait_s += waited_s
            yield

    # --- the run ------------------------------------------------------------------------------------------------------

    @lazy
    def facts(self) -> RunConfiguration:
        """The run's configuration, which is read from the bucket at the first use. Raises Missing if there is none, Corrupt if it is
        damaged.
        """
        return self.resources.read_configuration(self.run, self.objects)

    @property
    def experiment(self) -> Experiment:
        """The experiment of the run."""
        return self.facts.experiment

    @property
    def architecture(self) -> str:
        """The name of the run's architecture; empty if the run's configuration cannot be read."""
        try:
            return self.experiment.architecture
        except CrossoverError:  # a record is written even where the run's own facts cannot be read
            return ""

    # --- time and records ---------------------------------------------------------------------------------------------

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Return a context manager that measures wall and processor time of its block as the stage `name` (fetch, compute, synchronise,
        update, evaluate, as in the papers), also if it fails, and appends it to `stages`. A stage that occurs twice is in the list twice.
        Waits for a compute slot are not counted in the wall time.
        """
        wall_s, cpu_s, waited_s = runtime.perf_counter(), runtime.processor_s(), self.slot_wait_s
        try:
            yield
        finally:
            spent_s = runtime.perf_counter() - wall_s - (self.slot_wait_s - waited_s)
            self.stages.append(
                {"stage": name, "wall_s": round(spent_s, 6), "cpu_s": round(runtime.processor_s() - cpu_s, 6)}
            )

    def note(self, **figures: float | int | str) -> None:
        """Add named figures, such as `loss`, to the record of this invocation; a later value replaces an earlier one. A figure with the
        name of a field that every record has replaces that field.
        """
        self.notes.update(figures)

    def has_timed_out(self, event: Mapping[str, Any]) -> bool:
        """Return whether the wait that `event` describes (`since`, `timeout_s`) has lasted longer than its timeout. Raises ValueError
        outside a Repeat, because `since` is empty then.
        """
        from datetime import datetime

        since = datetime.fromisoformat(event["since"]).timestamp()
        return bool(self.clock() - since > event["timeout_s"])

    def remaining_s(self) -> float:
        """Return the seconds until the invocation's deadline; infinite if it has none, negative after it."""
        return self.deadline - self.clock()

    def pause(self, seconds: float) -> None:
        """Sleep for `seconds`, but at most 1 ms. For polls of a tree that runs in this process: its stores are in memory, so there is no
        need to wait as long as on AWS.
        """
        runtime.sleep(min(seconds, 0.001))

    def write_usage_snapshot(self, mark: bytes) -> None:
        """Store `mark`, the JSON of what this invocation has used so far, under its request id. It replaces the one before. The request is
        not counted for the record.
        """
        self.resources.clients.objects(Traffic()).put(self.keys.mark(self.request_id), mark)

    def delete_usage_snapshot(self) -> None:
        """Delete the stored usage snapshot of this invocation. The request is not counted for the record."""
        self.resources.clients.objects(Traffic()).delete(self.keys.mark(self.request_id))

    def write_record(self, step: str, record: bytes) -> None:
        """Store `record`, the sealed JSON of a finished invocation of `step`, under a new key. This request is not counted in a record."""
        self.resources.clients.objects(Traffic()).put(self.keys.record(step, runtime.identifier()), record)


def process_resources() -> Resources:
    """Return the resources of this process; at the first call, they are built for AWS from its environment variables."""
    return runtime.get_or_make("resources", lambda: Resources(DeployedClients(dict(runtime.environment()))))


# --- metering ---------------------------------------------------------------------------------------------------------
# One record per invocation: what every figure of a report comes from.
#
# A record lies under `runs/<id>/records/<step>/`, because a function cannot know its own billed time, INIT or peak memory on AWS: the
# platform's log records are joined to it later, by request id. Locally the record's own seconds count, less the wait for a compute slot.


def _is_restored_from_snapshot() -> bool:
    """Return whether this process came from a SnapStart snapshot.

    Such a process began long before the invocation, and cannot know how long the restore took.
    """
    return runtime.environment().get("AWS_LAMBDA_INITIALIZATION_TYPE") == "snap-start"


class Meter:
    """Context manager around one invocation of `step` that measures it and stores its record at the end, even if the body raises."""

    def __init__(self, step: str, ctx: Context, event: Event) -> None:
        """Describe the invocation of `step` with `event`. It counts as a cold start if it is the first of this process and runs in a
        function.
        """
        self._step, self._ctx, self._event = step, ctx, event
        seen: set[str] = runtime.get_or_make("steps seen", set)  # the first one was a cold start
        self._cold = not seen and ctx.memory_mb > 0  # a tree in this process has no environment that starts
        seen.add(step)

    def __enter__(self) -> "Meter":
        """Start measuring, and let the context's `report_usage` store snapshots."""
        self._started_at = runtime.time()
        self._wall_s, self._cpu_s = runtime.perf_counter(), runtime.processor_s()
        self._marks: list[dict[str, Any]] = []
        self._ctx.report_usage = self.report_usage
        return self

    def report_usage(self) -> None:
        """Take a snapshot of what this long invocation has used so far (seconds, requests to the object store, bytes), and store it with
        the record so far, for the programs that follow the run; it replaces the one stored before. All snapshots are also kept for the
        final record (`marks`).

        Errors of the store are ignored, because they are no reason to end the invocation.
        """
        stored = self._ctx.traffic["object_store"]  # the other channels are paid by the hour
        traffic = {"object_store": {**stored.as_record(), "operations": dict(stored.operations)}}
        self._marks.append({"at": runtime.time(), "wall_s": round(self._spent_s(), 6), "traffic": traffic})
        with suppress(CrossoverError):
            self._ctx.write_usage_snapshot(json.dumps(self._record("under way")).encode())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Store the record, with the outcome ok, stale (StaleAttempt) or error, and delete the usage snapshot. If storing fails, raise that
        error unless the body has raised one.
        """
        self._ctx.report_usage = lambda: None
        outcome = "ok" if error is None else "stale" if isinstance(error, StaleAttempt) else "error"
        record = self._record(outcome, error="" if error is None else f"{type(error).__name__}: {error}"[:1_000])
        try:
            self._ctx.write_record(self._step, seal(record))
        except CrossoverError:
            if error is None:  # the report notices a missing record; the body's own error matters more
                raise
        if self._marks:  # the record replaces the snapshot
            with suppress(CrossoverError):
                self._ctx.delete_usage_snapshot()

    def _spent_s(self) -> float:
        """Return the wall-clock seconds since the invocation began, without the time that it waited for a compute slot."""
        return runtime.perf_counter() - self._wall_s - self._ctx.slot_wait_s

    def _record(self, outcome: str, *, error: str = "") -> dict[str, Any]:
        """Return the record of the invocation as plain values: position, times, memory, stages, traffic and notes. `outcome`: how it ended;
        `error`: its message.
        """
        ctx, event = self._ctx, self._event
        return {
            "run": event["run"],
            "step": self._step,
            "architecture": ctx.architecture,
            **{name: event[name] for name in ("worker", "epoch", "round", "minibatch")},
            "request_id": ctx.request_id,
            "started_at": self._started_at,
            "wall_s": round(self._spent_s(), 6),
            "cpu_s": round(runtime.processor_s() - self._cpu_s, 6),
            "slot_wait_s": round(ctx.slot_wait_s, 6),
            "max_rss_mb": round(runtime.peak_memory_mb(), 1),
            "memory_mb": ctx.memory_mb,
            "cold": self._cold,
            "init_s": round(self._started_at - runtime.started_at(), 6)
            if self._cold and not _is_restored_from_snapshot()
            else 0.0,
            "outcome": outcome,
            "error": error,
            "stages": ctx.stages,
            "traffic": {
                name: {**counter.as_record(), "operations": counter.operations} for name, counter in ctx.traffic.items()
            },
            **({"marks": self._marks} if self._marks else {}),
            **ctx.notes,
        }


def gather_stages(ctx: "Context") -> None:
    """Replace the stages in `ctx` by one row per stage name, in the order of first appearance, with the summed times and the number of
    stages as `count`, so that the record of a long invocation does not grow with every round. Of `max_rss_mb`, if stages have it, the row
    keeps the largest; other fields are dropped. It may be repeated: rows that it has made are counted as so many stages.
    """
    table: dict[str, dict[str, Any]] = {}
    for stage in ctx.stages:
        row = table.setdefault(stage["stage"], {"stage": stage["stage"], "count": 0, "wall_s": 0.0, "cpu_s": 0.0})
        row["count"] += stage.get("count", 1)
        for figure in ("wall_s", "cpu_s"):
            row[figure] = round(row[figure] + stage[figure], 6)
        if "max_rss_mb" in stage:
            row["max_rss_mb"] = max(row.get("max_rss_mb", 0.0), stage["max_rss_mb"])
    ctx.stages[:] = table.values()
