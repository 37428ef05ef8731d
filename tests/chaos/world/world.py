"""One run of the real code in a virtual world: its services and processes, what time everything takes, and what is left at the end."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from math import inf
from typing import Any, Protocol
from unittest.mock import patch

from crossover.algorithms import schedule
from crossover.errors import Unavailable
from crossover.experiment import Experiment, from_plain
from crossover.learning.samples import Dataset
from crossover.reports import prices as pricing
from crossover.running.preparing import Materials
from crossover.simulation.calibration import AWS, Calibration, Service
from crossover.stores.clients import Clients
from crossover.stores.encoding import decode
from crossover.stores.keys import Keys
from crossover.training.fleet import ServingSettings
from crossover.workflow import context
from crossover.workflow.architecture import Architecture, architecture_of, steps
from crossover.workflow.context import Resources
from crossover.workflow.state_machines import build_definitions
from tests.chaos.world.client import FLEET, Client
from tests.chaos.world.clients import VirtualClients, VirtualServers
from tests.chaos.world.fleet import VirtualFleet
from tests.chaos.world.functions import Delivery, VirtualFunction, VirtualFunctions
from tests.chaos.world.kernel import Kernel, Process
from tests.chaos.world.learner import BUFFERS, PARAMETERS, ExactLearner, samples_of
from tests.chaos.world.machines import MachinesOf, VirtualMachines
from tests.chaos.world.polls import Looks
from tests.chaos.world.process_runtime import install_runtime
from tests.chaos.world.requests import Effect, LostReply, Request, ServerRefusal

BOOT_S = 45.0  # of an instance, assumed
# This world's own pace, which recorded schedules stand on; no projection reads it.
TRANSITION_S, INVOKE_S, REDIS_S = 0.03, 0.015, 0.001
COLD_S = {False: 0.9, True: 4.5}  # by whether the function has torch
ASKED = 8  # how often boto3 asks one of AWS's own APIs, as stores/deployed_clients.py has set it
_LONGEST_GRADIENT = 0.75  # of a function's timeout
SILENT_S = 60.0  # how long a client waits for a reply if the request has no limit
RESUME_S = 10.0
CODE: Mapping[str, Any] = {"digest": "", "settings": {}, "files": {}}  # the same wherever it runs, as all of a history


@dataclass(slots=True)
class VirtualCall:
    """A request in progress: which process made it, when, and its outcome. `outcome`: "ok", the name of the error, or "" before the server
    has seen it.
    """

    number: int
    request: Request
    process: Process
    at_s: float  # when it reached the server
    outcome: str = ""  # "ok", the name of what the server refused with, or "" before the server has seen it
    reply: Any = None
    bytes_in: int = 0


class Nemesis(Protocol):
    """The source of faults. Each method may let time pass, kill or freeze processes, or raise the error that the caller is to get."""

    def before(self, call: VirtualCall) -> None:
        """React to a request that has reached its server and has had no effect yet. May raise LostReply or ServerRefusal, so that it has
        none.
        """

    def failed(self, call: VirtualCall) -> None:
        """React to a request that has had no effect, because it was lost, refused, or failed in the server; its `outcome` says which. The
        error is raised afterwards.
        """

    def after(self, call: VirtualCall) -> None:
        """React to a request that has taken effect. May raise LostReply: the caller gets that instead of the reply."""

    def delivered(self, function: str, event: Mapping[str, Any]) -> Delivery:
        """Return how an invocation is delivered. Raises machines.Failed if Lambda throttles it."""
        ...

    def starting(self, machine: str, name: str) -> None:
        """React to the start of an execution. Raises machines.Failed if Step Functions throttles it."""

    def began(self, world: "VirtualWorld") -> None:
        """Prepare the world before anything happens in it, for example by starting tasks of the nemesis."""

    def boot_s(self, number: int) -> float:
        """Return by how many seconds instance `number` boots later than usual."""
        ...

    def resumes_after_s(self) -> float:
        """Return how many seconds after a client's end another one resumes the run."""
        ...


class Nothing:
    """A nemesis that causes no faults."""

    def before(self, call: VirtualCall) -> None:
        """Do nothing."""

    def failed(self, call: VirtualCall) -> None:
        """Do nothing."""

    def after(self, call: VirtualCall) -> None:
        """Do nothing."""

    def delivered(self, function: str, event: Mapping[str, Any]) -> Delivery:
        """Return a delivery without delays or repetitions."""
        return Delivery()

    def starting(self, machine: str, name: str) -> None:
        """Do nothing."""

    def began(self, world: "VirtualWorld") -> None:
        """Do nothing."""

    def boot_s(self, number: int) -> float:
        """Return 0: no instance is late."""
        return 0.0

    def resumes_after_s(self) -> float:
        """Return RESUME_S, the usual number of seconds."""
        return RESUME_S


@dataclass
class RunOutcome:
    """The result of a run. `model`: SHA-256 of its final model, "" if none is stored; `stored`: that model's vector, empty if there is
    none; `left`: what each service still contains at the end; `said`: the outcome's document, empty if there is none. `cut_off`: (role,
    process) of the long workers that Lambda killed while they waited.
    """

    run: str
    failure: str
    model: str
    clients: int
    seconds: float
    left: dict[str, list[str]]
    crashes: list[BaseException]
    decisions: list[dict[str, Any]] = field(default_factory=list)  # after each epoch
    failures: list[str] = field(default_factory=list)  # how clients ended that were not the last
    timed_out: frozenset[str] = frozenset()  # processes that Lambda killed
    cut_off: Sequence[tuple[str, str]] = ()
    said: Mapping[str, Any] = field(default_factory=dict)
    stored: bytes = b""


@dataclass
class VirtualWorld:
    """Everything that one simulated run needs. `minibatch_s`: seconds of a minibatch's gradient; `sizes`: the model's number of parameters
    and buffers.
    """

    experiment: Experiment
    seed: int | str
    nemesis: Nemesis = field(default_factory=Nothing)
    minibatches: int = 2
    minibatch_s: float = 1.0
    calibration: Calibration = AWS
    sizes: tuple[int, int] = (PARAMETERS, BUFFERS)
    turns: int = 1_000_000  # of all tasks; a run that takes more is taken for one that never ends
    part_bytes: int = schedule.PART_BYTES  # of a gradient, that one averaging function takes
    page_keys: int = 1_000  # of a listing
    page_s: float = 0.0  # what a page of a listing takes
    spares: int = 0  # instances beside those that hold a rank
    missing_samples: int = 0  # of the training data
    unlabelled: int = 0  # workers with a minibatch without labels
    own_bits: bool = False  # whether gradients depend on the process that computes them, as on a GPU
    even_s: float = 0.0  # of every gradient, if its duration is not drawn
    waits_s: float = inf  # at most, of a step that polls

    def __post_init__(self) -> None:
        """Build the kernel, servers, functions, state machines and fleet of the experiment; nothing runs yet."""
        self.architecture: Architecture = architecture_of(self.experiment)
        self.resolved = self.architecture.resolve(self.experiment)
        self.kernel = Kernel(self.seed)
        self.looks = Looks(self.kernel)
        self.history: list[VirtualCall] = []
        self.services = {name: make(self.calibration) for name, make in _SERVICES.items()}
        databases = {"per_worker": self.resolved.workers, "shared": 1, "none": 0}[self.architecture.tensor_hosts]
        if self.resolved.storage.channel == "s3":
            databases = 0
        self.servers = VirtualServers(self.carry, databases=databases, now_s=lambda: self.kernel.now_s)
        self.servers.bucket.page_keys, self.servers.bucket.page_s = self.page_keys, self.page_s
        self.processes: list[Process] = []
        self.machines = VirtualMachines(
            self.kernel,
            self._shared("definitions", partial(build_definitions, self.architecture, self.resolved)),
            lambda name, event: self.functions.invoke(name, self._limit_wait(event)),
            transition_s=lambda: self.spread(TRANSITION_S),
        )
        self.machines.starting = self.nemesis.starting
        self.functions = VirtualFunctions(
            self.kernel,
            {step.name: self._function(step) for step in steps(self.architecture)},
            self.resources,
            invoke_s=lambda: self.spread(INVOKE_S),
            keep_warm_s=self.calibration.keep_warm_s,
            delivered=self.nemesis.delivered,
        )
        self.fleet = VirtualFleet(self.kernel, self._program, self._boot_s) if self.architecture.program else None
        self.client = Client(self)
        self.begun_late: list[tuple[str, str]] = []  # gradients: their role; which process, and when, in words

    def _limit_wait(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of the event whose wait times out after `waits_s` at the latest."""
        return {**event, "timeout_s": int(min(event["timeout_s"], self.waits_s))}

    # --- time -------------------------------------------------------------------------------------------------------------

    def spread(self, seconds: float) -> float:
        """Return a random duration near `seconds`, sometimes several times as long. The arithmetic is exact, so it is the same on every
        machine.
        """
        drawn = self.kernel.chance.random()
        return seconds * (0.6 + 0.6 * drawn + 4.0 * drawn**16)

    def asks(self, operation: str, effect: Callable[[], Any] = lambda: None) -> Any:
        """Send a request of the calling task to one of AWS's own APIs, repeated as boto3 repeats it, and return what `effect` returned.
        Raises Unavailable after ASKED failures.
        """
        asked = Request("aws", operation, ("",), within_s=SILENT_S)
        for number in range(ASKED):
            try:
                return self.carry(asked, lambda: (effect(), 0))
            except (LostReply, ServerRefusal) as error:
                why = error
                self.kernel.sleep(self.kernel.chance.random() * min(20.0, 2.0**number))
        raise Unavailable(f"{operation}: {why}")

    def computes(self, samples: int, *, gradient: bool) -> None:
        """Let the time pass that computing takes. Records gradients that a long worker begins too late: less time is left until its timeout
        than its longest gradient took. `samples` is not used; `gradient`: whether a gradient is computed, else an evaluation.
        """
        share = 1.0 if gradient else self.calibration.evaluate_share
        seconds, process = self.even_s * share or self.spread(self.minibatch_s * share), self.kernel.task.process
        if process.deadline_s < inf:  # a function that cannot be done within its timeout would be as good as dead
            seconds = min(seconds, _LONGEST_GRADIENT * self.resolved.functions.timeout_s)
        if gradient and (left_s := process.deadline_s - self.kernel.now_s) < process.longest_s:
            self.begun_late.append((process.role, f"{process.name}, {left_s:.1f} s before its timeout"))
        process.longest_s = max(process.longest_s, seconds * gradient)
        process.computes_until_s = self.kernel.now_s + seconds
        self.kernel.sleep(seconds)

    def carry(self, request: Request, effect: Effect) -> Any:
        """Carry a request to its server and its reply back, and return the reply; the nemesis may intervene. Raises what the server or the
        nemesis raises, such as LostReply or ServerRefusal. A silent loss is raised only after the client's timeout.
        """
        kernel = self.kernel
        service = self.services[request.service]
        task = kernel.task
        process = task.process
        try:
            kernel.sleep(self.spread(0.5 * service.latency_s) + request.bytes_out / service.client_bytes_s)
            call = VirtualCall(len(self.history) + 1, request, process, kernel.now_s)
            self.history.append(call)
            try:
                self.nemesis.before(call)
                process.check()
                call.reply, call.bytes_in = effect()
                call.outcome = "ok"
                self.looks.served(task, request)
            except Exception as refused:
                call.outcome = refused.code if isinstance(refused, ServerRefusal) else type(refused).__name__
                self.nemesis.failed(call)
                raise
            self.nemesis.after(call)
            process.check()
        except LostReply as lost:
            if lost.silent:
                kernel.sleep(request.within_s if request.within_s < inf else SILENT_S)
            raise
        kernel.sleep(request.takes_s + self.spread(0.5 * service.latency_s) + call.bytes_in / service.client_bytes_s)
        return call.reply

    # --- processes --------------------------------------------------------------------------------------------------------

    def clients(self, process: Process) -> Clients:
        """Return new clients for a process; their connections break when the process ends."""
        found = VirtualClients(self.servers, self.run_machine)
        process.at_end = found.cut
        return found

    def resources(self, process: Process) -> Resources:
        """Return the resources of a process that starts, and register the process to be killed at the end of the world."""
        self.processes.append(process)
        return Resources(self.clients(process), make_learner=self._learner)

    def run_machine(self, name: str, event: Any) -> Any:
        """Run a state machine to its end and return its output."""
        return MachinesOf(self.machines, self.asks, list(self.architecture.machines)).run(name, event)

    def _learner(self, experiment: Experiment, manifest: Mapping[str, Any]) -> Any:
        """Return the exact learner in place of the real one."""
        own = (lambda: self.kernel.task.process.name.encode()) if self.own_bits else bytes
        return ExactLearner(experiment, computes=self.computes, sizes=self.sizes, own=own)

    def materials(self, experiment: Experiment) -> Materials:
        """Return what a client uploads for a run: data set, code, versions, learner."""
        return Materials(self.dataset, CODE, {"crossover": "virtual"}, self._learner)

    @property
    def dataset(self) -> Dataset:
        """Return the run's data set; created once and shared."""
        found: Dataset = self._shared(
            f"dataset without {self.missing_samples} and {self.unlabelled}",
            partial(
                samples_of,
                self.resolved,
                size=self.resolved.training.batch_size,
                missing=self.missing_samples,
                unlabelled=self.unlabelled,
            ),
        )
        return found

    def _shared(self, what: str, make: Callable[..., Any]) -> Any:
        """Return an object that worlds of the same experiment share and do not change; `make` creates it at the first call. `what`: name of
        the object.
        """
        key = f"{what} {self.minibatches} {self.resolved}"
        if key not in _made:
            _made[key] = make(minibatches=self.minibatches)
        return _made[key]

    def _function(self, step: Any) -> VirtualFunction:
        """Return the Lambda function of a step."""
        functions, torch = self.resolved.functions, step.needs_torch(self.resolved)
        return VirtualFunction(
            step=step,
            memory_mb=functions.memory_of(step.name, torch=torch),
            timeout_s=functions.timeout_s,
            cold_s=partial(self.spread, COLD_S[torch]),
        )

    def _program(self, process: Process) -> Callable[[], object]:
        """Return the main function of the architecture's program for a process."""
        assert self.architecture.program is not None
        return partial(self.architecture.program.main, self.resources(process), ServingSettings(fleet=FLEET))

    def _boot_s(self, number: int) -> float:
        """Return the seconds that an instance takes to boot, with the nemesis's delay."""
        return self.spread(BOOT_S) + self.nemesis.boot_s(number)

    def resumes_after_s(self) -> float:
        """Return after how many seconds another client resumes the run."""
        return self.nemesis.resumes_after_s()

    # --- a run ------------------------------------------------------------------------------------------------------------

    def run(self) -> RunOutcome:
        """Run the world from the first client until everything has ended, and return the result. All processes are killed at the end, also
        if the run raises.
        """
        with (
            install_runtime(self.kernel, self.looks),
            patch.object(schedule, "PART_BYTES", self.part_bytes),
            patch.object(context, "from_plain", _read_once),
            patch.object(pricing, "load", _load_once),
        ):
            self.nemesis.began(self)
            process = Process(self.kernel, "operator", of_the_world=True)
            operator = self.kernel.spawn(self._operate, process=process, name="operator")
            try:
                self.kernel.run(lambda: operator.over, at_most=self.turns)
            finally:
                self._close()
            return self._outcome()

    def _operate(self) -> None:
        """Let the client run the experiment, then wait until all invocations and instances have ended."""
        self.client.operate()
        while self.functions.under_way or (self.fleet and self.fleet.instances):
            self.kernel.sleep(30.0)

    def _close(self) -> None:
        """Stop all executions and kill all processes."""
        for execution in self.machines.executions.values():
            execution.stop()
        for process in self.processes:
            process.kill()

    def _outcome(self) -> RunOutcome:
        """Return the run's result from the state of the world."""
        run, left = self.client.run, self.left()
        said, stored, model = dict[str, Any](), b"", ""
        if Keys(run).outcome in left["s3"]:
            said = json.loads(self.servers.bucket.objects[Keys(run).outcome])
            if (key := Keys(run).final_model(said.get("parameters_sha256", ""))) in left["s3"]:
                model, stored = said["parameters_sha256"], bytes(decode(self.servers.bucket.objects[key], key=key).data)
        told = [key for key in left["s3"] if key.startswith(Keys(run).decisions)] if run else []
        decisions = [json.loads(self.servers.bucket.objects[key]) for key in told]
        crashes = [*self.functions.crashes, *(self.fleet.crashes if self.fleet else [])]
        return RunOutcome(
            run,
            self.client.failure,
            model,
            self.client.attempts,
            self.kernel.now_s,
            left,
            crashes,
            decisions,
            self.client.failures,
            frozenset(self.functions.timed_out),
            self.functions.cut_off,
            said,
            stored,
        )

    def left(self) -> dict[str, list[str]]:
        """Return what each service still contains, by service: keys in S3, "NUMBER: KEY" in the databases, names of queues and exchanges in
        RabbitMQ.
        """
        servers = self.servers
        return {
            "s3": sorted(servers.bucket.objects),
            "redis": [f"{server.number}: {key}" for server in servers.databases for key in server.held()],
            "rabbitmq": sorted([*servers.broker.queues, *servers.broker.exchanges]),
        }


_SERVICES: Mapping[str, Callable[[Calibration], Service]] = {
    "redis": lambda calibration: replace(calibration.tensors, latency_s=REDIS_S),
    "s3": lambda calibration: calibration.objects,
    "rabbitmq": lambda calibration: calibration.bus,
    "aws": lambda calibration: Service(latency_s=0.05),  # assumed
}


_made: dict[str, Any] = {}
_load_once = cache(pricing.load)  # the price list, of which each client of a run makes its facts


def _read_once(plain: Mapping[str, Any]) -> Experiment:
    """Return the experiment that `plain` describes. All processes of a run share one object, which is immutable."""
    return _experiment_of(json.dumps(plain))


@lru_cache(maxsize=64)
def _experiment_of(plain: str) -> Experiment:
    """Return the experiment that JSON text describes."""
    return from_plain(json.loads(plain))
