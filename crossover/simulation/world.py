"""The simulated cloud of one run: its clock, hosts and functions, what its members share, and what has been used so far."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import simpy

from crossover.algorithms.calendar import Calendar
from crossover.architecture import Architecture, steps
from crossover.architecture.infrastructure import NETWORK, shared_stacks
from crossover.experiment import Experiment
from crossover.simulation.calibration import SIGMAS, Calibration
from crossover.simulation.kernel import Environments, Gate, Host, Link, Luck, Phase, SimProcess, Slots
from crossover.simulation.services import ServiceClient
from crossover.simulation.usage import StepUse, Tally, Usage, WhereInRun
from crossover.simulation.workload import Workload
from crossover.workflow import Step


@dataclass(frozen=True, slots=True)
class Script:
    """What an invocation does that waits for nobody: phases one after another, and all their requests."""

    phases: tuple[Phase, ...]
    tally: Tally


class Phased(Protocol):
    """A step's script at a place; the same object for the same kind of place, since thousands share it."""

    def __call__(self, world: "World", place: WhereInRun) -> Script: ...


class Living(Protocol):
    """A step that waits for others: a process of its own, which adds to `invocation` what it does."""

    def __call__(self, world: "World", place: WhereInRun, invocation: "SimulatedInvocation") -> SimProcess: ...


@dataclass
class SimulatedInvocation:
    """A living step's (or a program's) stages and requests so far."""

    started_at: float
    deadline_s: float
    tally: Tally = field(default_factory=Tally)
    stages: dict[str, list[float]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    def spent(self, stage: str, seconds: float) -> None:
        known = self.stages.setdefault(stage, [0.0, 0])
        known[0] += seconds
        known[1] += 1

    def as_stages(self) -> list[tuple[str, float, int]]:
        return [(name, seconds, int(count)) for name, (seconds, count) in self.stages.items()]


@dataclass(frozen=True)
class Model:
    """How a step is simulated: by a script, or living. `changes`: what it changes of the event, once it is through.

    `polls`: the gate that the step looks at for `patience_s` before it gives up and is asked again.
    """

    script: Phased | None = None
    living: Living | None = None
    changes: Callable[["World", WhereInRun], None] | None = None
    polls: Callable[["World", WhereInRun], Gate] | None = None
    patience_s: float = 0.0


@dataclass
class World:
    """Everything that the walk and the steps' models share."""

    experiment: Experiment
    architecture: Architecture
    workload: Workload
    calibration: Calibration
    days: Calendar
    usage: Usage
    env: simpy.Environment = field(default_factory=simpy.Environment)
    epochs_end_s: dict[int, float] = field(default_factory=dict)
    transitions: int = 0
    branches: int = 0  # the most of one Map
    state: dict[Any, Any] = field(default_factory=dict)  # of one architecture's protocol, by keys of its own
    scripts: dict[Any, Script] = field(default_factory=dict)

    def __post_init__(self) -> None:
        experiment, calibration = self.experiment, self.calibration
        count = {"per_worker": experiment.workers, "shared": 1, "none": 0}[self.architecture.tensor_hosts]
        # Stores on hosts of their own have those hosts' links.
        tensors = calibration.on_host(calibration.tensors, experiment.database.instance_type)
        bus = calibration.on_host(calibration.bus, experiment.network.broker_instance_type)
        self._services = {"objects": calibration.objects, "tensors": tensors}
        tour = Link(tensors.host_bytes_s)
        self.hosts = [Host(tensors.host_bytes_s, tour) for _ in range(count)]
        self.broker = Host(bus.host_bytes_s)
        self._memories = {step.name: self.memory_mb(step) for step in steps(self.architecture)}
        self._in_vpc = NETWORK in shared_stacks(experiment, self.architecture)
        self._clients: dict[tuple[str, str], ServiceClient] = {}
        self.doomed = self.env.event()
        self.slots = Slots(self.env, calibration.concurrency)
        self._environments: dict[str, Environments] = {}
        self._gates: dict[Any, Gate] = {}
        self._uses: dict[str, StepUse] = {}
        sigmas = {name: getattr(calibration, name) for name in SIGMAS}
        # One more: the supervisor's, and that of steps before and after the workers.
        self.luck = [Luck(experiment.seed, worker, **sigmas) for worker in range(experiment.workers + 1)]

    @property
    def workers(self) -> int:
        return self.experiment.workers

    def host(self, worker: int) -> Host | None:
        """The database host of a worker; None where there is none, or where exchanges go through the object store."""
        if not self.hosts or self.through_objects:
            return None
        return self.hosts[worker % len(self.hosts)]

    @property
    def through_objects(self) -> bool:
        """Whether long workers exchange through S3."""
        return self.architecture.tensor_hosts == "shared" and self.experiment.storage.channel == "s3"

    @property
    def new_environments_waited_s(self) -> float:
        """The longest that an invocation waited for one."""
        return max((each.longest_wait_s for each in self._environments.values()), default=0.0)

    def environments(self, step: str) -> Environments:
        found = self._environments.get(step)
        if found is None:
            found = self._environments[step] = Environments(
                self.calibration.keep_warm_s, at_once=self.calibration.ramp_at_once, per_s=self.calibration.ramp_per_s
            )
        return found

    def gate(self, *key: Any, needed: int | None = None) -> Gate:
        """The gate of that name; the workers' unless `needed` says otherwise."""
        found = self._gates.get(key)
        if found is None:
            found = self._gates[key] = Gate(self.env, self.workers if needed is None else needed)
        return found

    def forget(self, *key: Any) -> None:
        self._gates.pop(key, None)

    def memory_mb(self, step: Step) -> int:
        return self.experiment.functions.memory_of(step.name, torch=step.needs_torch(self.experiment))

    def memory_of(self, step: str) -> int:
        return self._memories[step]

    def objects(self, step: str) -> ServiceClient:
        """The object store as the functions of that step see it."""
        return self._client("objects", step)

    def tensors(self, step: str) -> ServiceClient:
        """A worker's database, or the shared one, as the functions of that step see it."""
        return self._client("tensors", step)

    def _client(self, service: str, step: str) -> ServiceClient:
        found = self._clients.get((service, step))
        if found is None:
            memory_mb = self._memories[step]
            found = self.calibration.client(self._services[service], memory_mb=memory_mb, in_vpc=self._in_vpc)
            self._clients[service, step] = found
        return found

    def arithmetic_s(self, bytes_: float, step: str) -> float:
        """Vector arithmetic in a function of that step, by bytes that go in and come out."""
        return self.calibration.arithmetic_s(bytes_, memory_mb=self._memories[step])

    def base_s(self, step: Step) -> float:
        """What a fresh environment takes to read the base and to know it by its digest; 0 without one."""
        if not self.workload.base_bytes or step.torch is not True:
            return 0.0
        memory_mb = self._memories[step.name]
        return self.calibration.base_s(self.workload.base_bytes, memory_mb=memory_mb, in_vpc=self._in_vpc)

    def use(self, step: Step) -> StepUse:
        found = self._uses.get(step.name)
        if found is None:
            base_bytes = self.workload.base_bytes if step.torch is True else 0
            found = self.usage.of(step.name, memory_mb=self.memory_mb(step), base_bytes=base_bytes)
            self._uses[step.name] = found
        return found

    def evaluate_s(self, *, memory_mb: int) -> float:
        """The validation set forward, in a function."""
        whole = self.calibration.in_function(
            self.experiment, self.workload.evaluated, self.workload.validation_samples, memory_mb=memory_mb
        )
        return self.calibration.evaluate_share * whole

    def doom(self, why: str) -> None:
        """AWS would end an invocation whose work nobody can take over: the run cannot go on, and neither does the simulation."""
        if not self.doomed.triggered:
            self.doomed.succeed(why)

    def epoch_ended(self, epoch: int) -> None:
        """Its decision is there."""
        self.epochs_end_s.setdefault(epoch, self.env.now)
