"""A projection where nobody has described the steps: the real ones run in the virtual world, on the durations of a calibration.

Vectors have a few hundred elements and stand for the declared ones: what a request moves is affine in parameters and buffers, by
recordings of three small models (`recording.py`). A function's own arithmetic is not seen from outside: each byte of a vector that comes in
or goes out is taken to pass through its processor once. Network buckets are full at each request. The account's concurrency does not bind.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from crossover.errors import NoProjection, RunFailed
from crossover.experiment import Experiment
from crossover.learning.batch import Batch
from crossover.learning.objectives import Evaluation
from crossover.simulation.figures import UNKNOWN_INSTANCE
from crossover.simulation.kernel import Host, Link
from crossover.simulation.services import Client, Service
from crossover.simulation.usage import Place
from crossover.simulation.workload import BATCH_HEADER_BYTES, SAMPLE_FACTS_BYTES, Workload
from crossover.simulation.world import World as Parts
from crossover.virtual.functions import Delivery
from crossover.virtual.kernel import Process, Stuck, WorldFault
from crossover.virtual.process_runtime import BEGAN_S
from crossover.virtual.recording import Asked, Invoked, Recorder, Told, asked_by, recorded
from crossover.virtual.wire import Effect, Request
from crossover.virtual.world import Call, World

SIZES = ((768, 384), (1_152, 384), (768, 768))  # parameters and buffers of the models that are recorded
BATCH, IMAGE_BYTES = 2, 1  # real samples of a minibatch, whatever its declared ones
TURNS = 20_000_000
OF_ITSELF = ("runs//records/", "runs//marks/")  # what an invocation says of itself; the scripts leave it out, too
Kind = tuple[str, str, str]  # of requests that move alike: service, operation, key
_NUMBER = re.compile(r"[0-9a-f]{32,}|\d+")
_WRITES = ("PutObject", "AI.TENSORSET", "basic.publish")


def affine(bytes_: Sequence[float], sizes: tuple[int, int]) -> float:
    """What is moved at `sizes`, by what is at each of SIZES."""
    first, more_parameters, more_buffers = bytes_
    by_parameter = (more_parameters - first) / (SIZES[1][0] - SIZES[0][0])
    by_buffer = (more_buffers - first) / (SIZES[2][1] - SIZES[0][1])
    return first + by_parameter * (sizes[0] - SIZES[0][0]) + by_buffer * (sizes[1] - SIZES[0][1])


def kind_of(service: str, operation: str, key: str) -> Kind:
    """Keys of one kind differ in numbers and digests only."""
    return service, operation, _NUMBER.sub("#", key)


Moves = Mapping[Kind, tuple[float, float]]  # bytes up and down
_recordings: dict[
    str, Mapping[Kind, Sequence[tuple[float, float]]]
] = {}  # repetitions of a run, and other sizes of it, ask again


def declared(experiment: Experiment, sizes: tuple[int, int], minibatches: int) -> Moves:
    """What requests move at the declared size, from runs of one epoch."""
    short = replace(experiment, seed=1, training=replace(experiment.training, epochs=1, batch_size=BATCH))
    asked = f"{short} {minibatches}"
    if asked not in _recordings:
        tables = [_recorded(short, each, minibatches) for each in SIZES]
        common = [kind for kind in tables[0] if all(kind in table for table in tables)]
        _recordings[asked] = {kind: [table[kind] for table in tables] for kind in common}
    return {
        kind: (affine([up for up, _ in found], sizes), affine([down for _, down in found], sizes))
        for kind, found in _recordings[asked].items()
    }


def _recorded(experiment: Experiment, sizes: tuple[int, int], minibatches: int) -> Moves:
    """The mean of each kind of request."""
    found: dict[Kind, list[Asked]] = defaultdict(list)
    for invoked in recorded(experiment, sizes=sizes, minibatches=minibatches):
        for asked in invoked.requests:
            if not asked.vain:
                found[kind_of(asked.service, asked.operation, asked.key)].append(asked)
    return {
        kind: (_mean([each.up for each in asked]), _mean([each.down for each in asked]))
        for kind, asked in found.items()
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@dataclass
class _Watch(Recorder):
    """Notes when the run began, when epochs were decided, and how many functions there were at once."""

    began_s: float = inf
    epochs_end_s: dict[int, float] = field(default_factory=dict)
    most: int = 0

    def starting(self, machine: str, name: str) -> None:
        assert self._world is not None
        self.began_s = min(self.began_s, self._world.kernel.now_s)

    def delivered(self, function: str, event: Mapping[str, Any]) -> Delivery:
        assert self._world is not None
        self.most = max(self.most, self._world.functions.under_way + 1)
        assert isinstance(self._world, _Timed)
        return Delivery(self._world.own_s(function))

    def after(self, call: Call) -> None:
        super().after(call)
        assert self._world is not None
        if call.request.operation == "PutObject" and "/decision/" in call.request.keys[0]:
            self.epochs_end_s.setdefault(int(call.request.keys[0][-11:-5]), self._world.kernel.now_s)


class _Learner(Told):
    """Lets the time pass that computing takes."""

    world: "_Timed"

    def compute_gradient(self, batch: Batch, *, epoch: int, round: int, worker: int, minibatch: int) -> float:
        self.world.gradient(round, minibatch)
        return super().compute_gradient(batch, epoch=epoch, round=round, worker=worker, minibatch=minibatch)

    def evaluate(self, batches: Iterable[Batch]) -> Evaluation:
        found = super().evaluate(batches)
        self.world.evaluation()
        return found


@dataclass
class _Timed(World):
    """A virtual world whose requests and computing take what a calibration says. `parts`: the simulated cloud's hosts and functions."""

    parts: Parts = None  # type: ignore[assignment]  # dataclasses put what has a default first
    moves: Moves = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        program = self.architecture.program
        self._instances = None if program is None else program.instances(self.parts.experiment)
        kind = "" if self._instances is None else self._instances.instance_type
        known = self.calibration.instances.get(kind, UNKNOWN_INSTANCE)
        self._network = {"burst_bytes": 0.0, "floor_bytes_s": known.bytes_s or inf}
        broker = self.parts.experiment.network.broker_instance_type
        self._bus = self.calibration.on_host(self.calibration.bus, broker)
        self._databases = [Link(self.calibration.database_bytes_s) for _ in self.servers.databases]
        self._luck: dict[Process, tuple[float, float]] = {}

    def spread(self, seconds: float) -> float:
        return seconds

    def _boot_s(self, number: int) -> float:
        return 0.0

    def _learner(self, experiment: Experiment, manifest: Mapping[str, Any]) -> Any:
        learner = _Learner(experiment, sizes=self.sizes)
        learner.world = self
        return learner

    def own_s(self, name: str) -> float:
        """What an invocation takes outside of what it asks and computes."""
        torch = self.functions.functions[name].step.needs_torch(self.parts.experiment)
        return self.calibration.torch_step_s if torch else self.calibration.plain_step_s

    # --- computing ----------------------------------------------------------------------------------------------------

    def gradient(self, round: int, minibatch: int) -> None:
        """Of one minibatch, by who asks."""
        work = self.parts.workload
        number = self.parts.days.first_minibatch(round) + minibatch
        self._computes(work, work.samples[number % len(work.samples)], share=1.0)

    def evaluation(self) -> None:
        whole = self.parts.workload.evaluated
        self._computes(whole, whole.validation_samples, share=self.calibration.evaluate_share)

    def _computes(self, work: Workload, samples: int, *, share: float) -> None:
        process = self.kernel.task.process
        step, experiment = process.role.partition(" ")[0], self.parts.experiment
        if step != "program":
            memory_mb = self.parts.memory_of(step)
            seconds = self.calibration.in_function(experiment, work, samples, memory_mb=memory_mb)
        else:
            assert self._instances is not None
            kind = self._instances.instance_type
            if self._instances.gpu:
                seconds = self.calibration.on_gpu(work, samples, instance_type=kind)
            else:
                seconds = self.calibration.on_instance(experiment, work, samples, instance_type=kind)
        self.kernel.sleep(share * seconds * self._chance(process)[1])

    def _chance(self, process: Process) -> tuple[float, float]:
        """A straggler's factors on requests and on computing, drawn for each invocation."""
        if process not in self._luck:
            luck = self.parts.luck[min(int(process.role.rpartition(" ")[2]), self.parts.workers)]
            self._luck[process] = luck.request(), luck.compute()
        return self._luck[process]

    # --- requests -----------------------------------------------------------------------------------------------------

    def carry(self, request: Request, effect: Effect) -> Any:
        """To the server and back, as a function of that step or a program sees it. Who prepares and follows the run takes no time."""
        kernel, process = self.kernel, self.kernel.task.process
        call = Call(0, request, process, kernel.now_s)
        step, _, number = process.role.rpartition(" ")
        asked = asked_by(self, call)
        if asked.key.startswith("runs//records/"):
            self._luck.pop(process, None)  # the next invocation has its own
        if not number.isdigit() or step == "client" or asked.key.startswith(OF_ITSELF):
            return self._done(call, effect)
        client, host = self._reached(request, step)
        luck, writes = self._chance(process)[0], request.operation in _WRITES
        up, _ = self.bytes_of(asked)
        way = client.write if writes else client.read
        start = host.ingress.reserve(kernel.now_s, up) if host and up else kernel.now_s
        kernel.sleep(start - kernel.now_s + luck * (way.seconds(up) - 0.5 * way.latency_s))
        reply = self._done(call, effect)
        asked = asked_by(self, call)
        _, down = self.bytes_of(asked)
        start = host.egress.reserve(kernel.now_s, down) if host and down else kernel.now_s
        seconds = start - kernel.now_s + luck * (way.seconds(down) - 0.5 * way.latency_s) + self._inside(request)
        if step != "program" and not asked.key.startswith("data/"):
            seconds += self.parts.arithmetic_s(up + down, step)
        kernel.sleep(seconds)
        return reply

    def _done(self, call: Call, effect: Effect) -> Any:
        process = call.process
        process.check()
        call.outcome = "refused"
        call.reply, call.bytes_in = effect()
        call.outcome = "ok"
        self.looks.served(self.kernel.task, call.request)
        self.nemesis.after(call)
        process.check()
        return call.reply

    def _reached(self, request: Request, step: str) -> tuple[Client, Host | None]:
        """The service as the step sees it, and the host whose link it shares."""
        calibration, program = self.calibration, step == "program"
        match request.service:
            case "redis":
                return self.parts.tensors(step), self.parts.hosts[request.server]
            case "s3":
                return (calibration.instance_objects.at(**self._network) if program else self.parts.objects(step)), None
        bus: Service = calibration.instance_bus if program else self._bus
        return bus.at(**(self._network if program else {})), self.parts.broker

    def _inside(self, request: Request) -> float:
        """What a database computes takes, one command after another."""
        if request.service != "redis" or request.operation.partition(".")[2] in ("GET", "TENSORSET", "INFO", ""):
            return 0.0
        link, vectors = self._databases[request.server], len(request.keys)
        bytes_ = vectors * self.parts.workload.vector_bytes
        start = link.reserve(self.kernel.now_s, bytes_)
        calibration = self.calibration
        return start - self.kernel.now_s + bytes_ / link.bytes_s + vectors * calibration.database_batch_s

    def bytes_of(self, asked: Asked) -> tuple[float, float]:
        """Up and down, at the declared sizes of model and samples."""
        if asked.key.startswith("data/") and "manifest" not in asked.key:
            work = self.parts.workload
            if "/validation/" in asked.key:
                return 0.0, work.validation_bytes
            samples = (asked.down - BATCH_HEADER_BYTES) / (SAMPLE_FACTS_BYTES + IMAGE_BYTES) / BATCH
            return 0.0, work.batch_bytes(round(samples * _mean(work.samples)))
        known = self.moves.get(kind_of(asked.service, asked.operation, asked.key), (asked.up, asked.down))
        return known[0], 0.0 if asked.vain else known[1]


def project(parts: Parts) -> float:
    """Run the architecture of `parts` and note what it uses there; the seconds that it takes. Raises NoProjection where its code fails,
    goes around crossover/runtime.py, or never ends.
    """
    experiment, work = parts.experiment, parts.workload
    short = replace(experiment, training=replace(experiment.training, batch_size=BATCH))
    every = experiment.exchange.every
    some = min(work.minibatches, 2 * every if isinstance(every, int) else 2)
    watch = _Watch()
    try:
        moves = declared(experiment, (work.parameters, work.buffers), some)
        world = _Timed(
            short,
            experiment.seed,
            watch,
            minibatches=work.minibatches,
            calibration=parts.calibration,
            sizes=SIZES[0],
            turns=TURNS,
            parts=parts,
            moves=moves,
        )
        outcome = world.run()
    except (RunFailed, Stuck, WorldFault) as problem:
        raise NoProjection(f"architecture: {experiment.architecture}: {problem}") from problem
    if outcome.failure:
        parts.doom(outcome.failure)
    parts.transitions = sum(len(execution.visited) for execution in world.machines.executions.values())
    parts.slots.most = watch.most
    began_s, end_s = watch.began_s, outcome.seconds
    if parts.architecture.program is not None:  # from the first program's start to the last one's end
        lives = [each.record for each in watch.invoked if each.record["step"] == parts.architecture.program.step]
        began_s = min(each["started_at"] for each in lives) - BEGAN_S
        end_s = max(each["started_at"] + each["wall_s"] for each in lives) - BEGAN_S
    parts.epochs_end_s.update({epoch: at_s - began_s for epoch, at_s in watch.epochs_end_s.items()})
    for invoked in watch.invoked:
        _note(world, invoked, began_s)
    return end_s - began_s


def _note(world: _Timed, invoked: Invoked, began_s: float) -> None:
    """One invocation, or a program's epoch, as its record and its requests say."""
    record, parts, calibration = invoked.record, world.parts, world.calibration
    step, place = record["step"], Place(*(record[name] for name in ("worker", "epoch", "round", "minibatch")))
    own_s = init_s = 0.0
    notes = dict[str, Any]()
    if step not in world.functions.functions:
        use, notes["instance_type"] = parts.usage.of(step, memory_mb=0), record["instance_type"]
    else:
        function = world.functions.functions[step]
        use, own_s = parts.use(function.step), world.own_s(step)
        torch = function.step.needs_torch(parts.experiment)
        init_s = (calibration.cold_torch_s if torch else calibration.cold_s) * record["cold"]
    parts.usage.add(
        use,
        place,
        started_at=record["started_at"] - BEGAN_S - began_s,
        wall_s=record["wall_s"] + own_s,
        init_s=init_s,
        cold=record["cold"],
        tally=invoked.tally(world.bytes_of, vain=True),
        stages=[(each["stage"], each["wall_s"], each.get("count", 1)) for each in record["stages"]],
        notes=notes,
    )
