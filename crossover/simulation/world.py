"""The simulated cloud of one run: its clock, hosts, functions, shared state, and the usage so far."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from crossover.algorithms.schedule import Calendar
from crossover.experiment import Experiment
from crossover.simulation.calibration import SIGMAS, Calibration, ServiceClient
from crossover.simulation.kernel import (
    Clock,
    Environments,
    Gate,
    Host,
    Link,
    Phase,
    RandomFactors,
    SimProcess,
    Slots,
    StepUse,
    Tally,
    Usage,
    WhereInRun,
)
from crossover.simulation.workload import Workload
from crossover.workflow import Step
from crossover.workflow.architecture import Architecture, steps
from crossover.workflow.infrastructure import NETWORK, shared_stacks


@dataclass(frozen=True, slots=True)
class Script:
    """Description of a simulated invocation that waits for no other one: its phases in order, and its requests (`tally`)."""

    phases: tuple[Phase, ...]
    tally: Tally


class ScriptBuilder(Protocol):
    """Type of a function that returns the script of a step at a position in the run. It should return the same script for equal positions,
    because thousands of invocations ask for one.
    """

    def __call__(self, world: "World", place: WhereInRun) -> Script:
        """Return the script of the step at the position `place`."""


class StepProcess(Protocol):
    """Type of a function that simulates, as a simpy process, a step that waits for other workers. The function adds the step's stages and
    requests to `invocation`.
    """

    def __call__(self, world: "World", place: WhereInRun, invocation: "SimulatedInvocation") -> SimProcess:
        """Simulate one invocation of the step at the position `place`, which may be changed, and add what it uses to `invocation`."""


@dataclass
class SimulatedInvocation:
    """The stages and requests so far of one simulated invocation, or of a program between two decisions. `started_at`: simulated time of
    its start; `tally`: requests and their bytes; `deadline_s`: simulated time of its timeout; `stages`: [seconds, count] by name; `notes`:
    further fields of its record.
    """

    started_at: float
    deadline_s: float
    tally: Tally = field(default_factory=Tally)
    stages: dict[str, list[float]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    def add_seconds(self, stage: str, seconds: float, times: int = 1) -> None:
        """Add seconds to the stage with that name, and increase the stage's count by `times`."""
        known = self.stages.setdefault(stage, [0.0, 0])
        known[0] += seconds
        known[1] += times

    def as_stages(self) -> list[tuple[str, float, int]]:
        """Return the invocation's stages as a list of (name, seconds, count)."""
        return [(name, seconds, int(count)) for name, (seconds, count) in self.stages.items()]


@dataclass(frozen=True)
class Model:
    """The way in which a step is simulated: by a `script`, or as a simpy process (`process`).

    `changes`: function that changes the position in the run as the finished step does; `polls`: function that returns the gate for which
    the step polls; `polls_for_s`: seconds for which one invocation polls before it ends and is invoked again.
    """

    script: ScriptBuilder | None = None
    process: StepProcess | None = None
    changes: Callable[["World", WhereInRun], None] | None = None
    polls: Callable[["World", WhereInRun], Gate] | None = None
    polls_for_s: float = 0.0


@dataclass
class World:
    """State of one simulated run, shared by the interpreter (`Walk`) and the models of the steps.

    `experiment`, `architecture`, `workload`, `calibration`: what is simulated; `days`: calendar of the run; `usage`: usage so far; `env`:
    simulated clock; `epochs_end_s`: time of each epoch's decision; `transitions`: state transitions so far; `branches`: largest number of
    branches of one Map so far; `state`: state of the architecture's protocol, by keys of its own; `scripts`: scripts made so far.
    """

    experiment: Experiment
    architecture: Architecture
    workload: Workload
    calibration: Calibration
    days: Calendar
    usage: Usage
    env: Clock = field(default_factory=Clock)
    epochs_end_s: dict[int, float] = field(default_factory=dict)
    transitions: int = 0
    branches: int = 0  # the most of one Map
    state: dict[Any, Any] = field(default_factory=dict)  # of one architecture's protocol, by keys of its own
    scripts: dict[Any, Script] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Create the database hosts, the broker's host, the execution slots, and the random factors of each worker and of one more for what
        no worker does.
        """
        experiment, calibration = self.experiment, self.calibration
        count = {"per_worker": experiment.workers, "shared": 1, "none": 0}[self.architecture.tensor_hosts]
        # Stores on hosts of their own have those hosts' links.
        tensors = calibration.limit_by_host(calibration.tensors, experiment.database.instance_type)
        bus = calibration.limit_by_host(calibration.bus, experiment.network.broker_instance_type)
        self._services = {"objects": calibration.objects, "tensors": tensors}
        tour = Link(tensors.host_bytes_s)
        self.hosts = [Host(tensors.host_bytes_s, tour) for _ in range(count)]
        self.broker = Host(bus.host_bytes_s)
        self._memories = {step.name: self.memory_mb(step) for step in steps(self.architecture)}
        self._in_vpc = NETWORK in shared_stacks(experiment, self.architecture)
        self._clients: dict[tuple[str, str], ServiceClient] = {}
        self.ended_early = self.env.event()
        self.slots = Slots(self.env, calibration.concurrency)
        self._environments: dict[str, Environments] = {}
        self._gates: dict[Any, Gate] = {}
        self._uses: dict[str, StepUse] = {}
        sigmas = {name: getattr(calibration, name) for name in SIGMAS}
        # One more: the supervisor's, and that of steps before and after the workers.
        self.factors = [RandomFactors(experiment.seed, worker, **sigmas) for worker in range(experiment.workers + 1)]

    @property
    def workers(self) -> int:
        """Number of workers of the simulated run."""
        return self.experiment.workers

    def host(self, worker: int) -> Host | None:
        """Return the database host of a worker. None if the architecture has no databases, or if vectors are exchanged through the object
        store.
        """
        if not self.hosts or self.uses_object_store:
            return None
        return self.hosts[worker % len(self.hosts)]

    @property
    def uses_object_store(self) -> bool:
        """True if the architecture has one shared store for vectors and the experiment chooses S3 for it instead of a database."""
        return self.architecture.tensor_hosts == "shared" and self.experiment.storage.channel == "s3"

    @property
    def new_environments_waited_s(self) -> float:
        """Longest time in seconds that an invocation waited for a new environment, over all functions so far; 0 if none waited."""
        return max((each.longest_wait_s for each in self._environments.values()), default=0.0)

    def environments(self, step: str) -> Environments:
        """Return the execution environments of the function for the step named `step`; create them, all cold, at the first call."""
        found = self._environments.get(step)
        if found is None:
            found = self._environments[step] = Environments(
                self.calibration.keep_warm_s, at_once=self.calibration.ramp_at_once, per_s=self.calibration.ramp_per_s
            )
        return found

    def gate(self, *key: Any, needed: int | None = None) -> Gate:
        """Return the gate identified by `key`; create it at the first call. `needed`: number of arrivals that open it, by default one per
        worker; used by the first call only.
        """
        found = self._gates.get(key)
        if found is None:
            found = self._gates[key] = Gate(self.env, self.workers if needed is None else needed)
        return found

    def drop_gate(self, *key: Any) -> None:
        """Delete the gate identified by `key`, if it exists, to free memory once no worker needs it any more: `gate` would create a new,
        closed one for the same key.
        """
        self._gates.pop(key, None)

    def memory_mb(self, step: Step) -> int:
        """Return the memory in MB of the function that runs `step`."""
        return self.experiment.functions.memory_of(step.name, torch=step.needs_torch(self.experiment))

    def memory_of(self, step: str) -> int:
        """Return the memory in MB of the function for the step named `step`. Raises KeyError if the architecture has no such step."""
        return self._memories[step]

    def objects(self, step: str) -> ServiceClient:
        """Return latency and bandwidth of the object store as functions of the step named `step` see them. Raises KeyError if the
        architecture has no such step.
        """
        return self._client("objects", step)

    def tensors(self, step: str) -> ServiceClient:
        """Return latency and bandwidth of the tensor database (the worker's own or the shared one) as functions of the step named `step`
        see them, also if vectors go through the object store instead. Raises KeyError if the architecture has no such step.
        """
        return self._client("tensors", step)

    def _client(self, service: str, step: str) -> ServiceClient:
        """Return latency and bandwidth of a service as functions of the step named `step` see them. Cached. `service`: "objects" or
        "tensors".
        """
        found = self._clients.get((service, step))
        if found is None:
            memory_mb = self._memories[step]
            found = self.calibration.client(self._services[service], memory_mb=memory_mb, in_vpc=self._in_vpc)
            self._clients[service, step] = found
        return found

    def arithmetic_s(self, bytes_: float, step: str) -> float:
        """Return the seconds that a function of the step named `step` needs for vector arithmetic. `bytes_`: bytes of all vectors that are
        read and written.
        """
        return self.calibration.arithmetic_s(bytes_, memory_mb=self._memories[step])

    def base_s(self, step: Step) -> float:
        """Return the seconds in which a fresh environment of the step reads the base weights and checks their digest; 0 if there are no
        base weights, or if the step does not always use PyTorch.
        """
        if not self.workload.base_bytes or step.torch is not True:
            return 0.0
        memory_mb = self._memories[step.name]
        return self.calibration.base_s(self.workload.base_bytes, memory_mb=memory_mb, in_vpc=self._in_vpc)

    def usage_of(self, step: Step) -> StepUse:
        """Return the usage of `step` so far in this run; create it at the first call."""
        found = self._uses.get(step.name)
        if found is None:
            base_bytes = self.workload.base_bytes if step.torch is True else 0
            found = self.usage.for_step(step.name, memory_mb=self.memory_mb(step), base_bytes=base_bytes)
            self._uses[step.name] = found
        return found

    def evaluate_s(self, *, memory_mb: int) -> float:
        """Return the seconds in which a function with `memory_mb` MB evaluates the model on the whole validation set."""
        whole = self.calibration.function_gradient_s(
            self.experiment, self.workload.at_full_size, self.workload.validation_samples, memory_mb=memory_mb
        )
        return self.calibration.evaluate_share * whole

    def end_simulation(self, why: str) -> None:
        """Let the simulation end now, unfinished, because AWS would end an invocation whose work no other could continue. `why`: sentence
        for the result; only that of the first call counts.
        """
        if not self.ended_early.triggered:
            self.ended_early.succeed(why)

    def note_epoch_end(self, epoch: int) -> None:
        """Record the current simulated time as the time at which the decision after `epoch` (whether training continues) was made, unless
        one is recorded already.
        """
        self.epochs_end_s.setdefault(epoch, self.env.now)
