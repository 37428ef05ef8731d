"""LambdaML, the family of AllReduce and ScatterReduce: a long worker's requests to the shared store, and the start and end of its round."""

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

import simpy

from crossover.algorithms import codecs
from crossover.errors import NoProjection
from crossover.learning.sizes import DATA, list_known_shapes
from crossover.simulation.kernel import Phase, SimProcess, Tally, WhereInRun
from crossover.simulation.mirror.long_worker import WorkerInvocation, WorkerProgress, build_last_step, run_invocation
from crossover.simulation.mirror.spirt import begin_run, count_optimizer_vectors, count_outer_vectors
from crossover.simulation.workload import MODEL_SIZES, VECTOR_HEADER_BYTES
from crossover.simulation.world import Model, Script, SimulatedInvocation, World


def checkpoint_bytes(world: World, round: int) -> int:
    """Return the size in bytes of a worker's checkpoint at the start of `round`: the model, the optimizers' vectors, their headers, and
    what a codec keeps. In round 0 the inner optimizer has no vectors yet, unless workers take local steps.
    """
    stepped = round > 0 or world.experiment.exchange.what != "gradients"
    kept = (count_optimizer_vectors(world) if stepped else 0) + count_outer_vectors(world)
    fed_back = codec_state_bytes(world) if round else 0
    return (
        world.workload.vector_bytes + kept * 4 * world.workload.parameters + (1 + kept) * VECTOR_HEADER_BYTES + fed_back
    )


def codec_state_bytes(world: World) -> int:
    """Return the bytes that a worker's codec keeps from one round to the next: the residual of error feedback, if it has that, and the
    contributions to the second and later exchanges of a round, if it has several. 0 if neither applies, as without compression.
    """
    asked = world.experiment.exchange
    residual = 4 * world.workload.parameters + VECTOR_HEADER_BYTES if codecs.has_error_feedback(asked) else 0
    return residual + sum(up + VECTOR_HEADER_BYTES for up, _ in exchange_sizes(world)[1:])


def exchange_sizes(world: World) -> list[tuple[int, int]]:
    """Return, for each exchange of a round, (bytes that a worker contributes, bytes of the combined result), as the experiment's codec
    defines them. PowerSGD has two exchanges, all other codecs one. Computed once per simulated run: later calls return the same list, which
    must not be changed. Raises NoProjection if the sizes depend on the shapes of the model's parameters and these are not known.
    """
    workload, asked = world.workload, world.experiment.exchange

    def shapes() -> Sequence[Sequence[int]]:
        """Return the shapes of the parameters of the simulated run's model, in the order of its vector. Raises NoProjection if the model is
        not one of the project's own.
        """
        if workload.model not in MODEL_SIZES:
            raise NoProjection(
                f"exchange.compression: what {asked.compression} makes of {workload.model} follows from its matrices, which are not "
                f"known here; expected a model that is: {', '.join(MODEL_SIZES)}"
            )
        return list_known_shapes(workload.model, DATA[world.experiment.data.dataset].image)

    if "travels" not in world.state:
        sizes = workload.parameters, workload.buffers
        world.state["travels"] = codecs.build_codec(asked).exchanged_bytes(*sizes, workers=world.workers, shapes=shapes)
    found: list[tuple[int, int]] = world.state["travels"]
    return found


CODEC_PASSES = 12  # over a gradient, read or written, beside exchanging it: about what benchmarks/compression.py finds


def run_codec(worker_call: WorkerInvocation) -> SimProcess:
    """Simulate, as a simpy process, the time that one worker needs in a round to encode and decode contributions; nothing if they are not
    compressed.
    """
    if worker_call.world.experiment.exchange.compression != "none":
        yield from simulate_arithmetic(worker_call, "compress", CODEC_PASSES * worker_call.world.workload.vector_bytes)


class StoreConnection:
    """Simulated connection of one worker to the shared store, Redis or S3. Each request takes time, shares the host's network link, and is
    counted in the invocation's tally. In S3 each vector has a header besides the given bytes. A request during which the invocation's
    deadline passes ends the whole simulation.
    """

    def __init__(self, worker_call: WorkerInvocation) -> None:
        """Connect the worker of an invocation to S3 if the experiment exchanges through it, otherwise to the database."""
        world = worker_call.world
        self.worker_call, self.world = worker_call, world
        self.channel = "objects" if world.uses_object_store else "tensors"
        self.service = world.objects(worker_call.step) if world.uses_object_store else world.tensors(worker_call.step)
        self.host = world.host(worker_call.place.worker)
        self.factors = world.factors[worker_call.place.worker]
        self.header_bytes = VECTOR_HEADER_BYTES if world.uses_object_store else 0  # of a vector as an object

    def put(self, stage: str, bytes_: float, requests: int = 1) -> SimProcess:
        """Simulate, as a simpy process, `requests` writes to the store, one after another, of `bytes_` bytes in all. They share the host's
        network link with all other writers. `stage`: stage to which the seconds are added, "" for none.
        """
        bytes_ += requests * self.header_bytes
        self.worker_call.tally.count(
            self.channel, "create" if self.channel == "tensors" else "put", requests, out=round(bytes_)
        )
        queued_s = yield from self._reserve("ingress", bytes_)
        seconds = self.service.write.seconds(bytes_, requests) * self.factors.draw_request_factor()
        yield from self.worker_call.spend(stage, queued_s + seconds)

    def get(self, stage: str, bytes_: float, requests: int = 1) -> SimProcess:
        """Simulate, as a simpy process, `requests` reads from the store, one after another, of `bytes_` bytes in all. They share the host's
        network link with all other readers. `stage`: stage to which the seconds are added, "" for none.
        """
        bytes_ += requests * self.header_bytes
        self.worker_call.tally.count(self.channel, "get", requests, into=round(bytes_))
        queued_s = yield from self._reserve("egress", bytes_)
        seconds = self.service.read.seconds(bytes_, requests) * self.factors.draw_request_factor()
        yield from self.worker_call.spend(stage, queued_s + seconds)

    def _reserve(self, link: str, bytes_: float) -> Generator[simpy.Event, Any, float]:
        """Reserve a link of the host, "ingress" or "egress", for a transfer of `bytes_` bytes, as a simpy process. Returns the seconds for
        which the transfer waits for the link, 0 without a host.
        """
        if not self.host:
            return 0.0
        yield from self.worker_call.catch_up()
        now = self.worker_call.now
        return self.host.link(link).reserve(now, bytes_) - now

    def gather(self, stage: str, what: str, bytes_: float, count: int, before: Callable[[int], int]) -> SimProcess:
        """Simulate, as a simpy process, reading `count` vectors of `bytes_` bytes each, each one as soon as its sender has published it in
        this round. `what`: name under which they are published; `stage`: stage to which the seconds are added; `before`: function that
        returns how many vectors are read before that of a given rank. The polls in vain while it waits are counted too. Does nothing if
        `count` is 0. Raises Leave if the invocation's time ends first.
        """
        if not count:
            return
        worker_call = self.worker_call
        bytes_ += self.header_bytes
        gate = self.world.gate(what, worker_call.progress.round)
        queued_s = yield from self._reserve("egress", count * bytes_)
        worker_call.tally.count(self.channel, "get", count, into=round(count * bytes_))
        yield from worker_call.spend("", queued_s)
        each_s = self.service.read.seconds(bytes_) * self.factors.draw_request_factor()
        waited = yield from worker_call.read_in_order(gate, stage, each_s=each_s, count=count, before=before)
        worker_call.tally.count(self.channel, "get", worker_call.count_polls(waited, self.channel))

    def publish(self, what: str) -> SimProcess:
        """Mark this worker's vector of the round as stored, as a simpy process, so that workers which wait for it can read it. `what`: name
        under which it is published. Does nothing if an earlier invocation of this worker has already published it.
        """
        progress = self.worker_call.progress
        yield from self.worker_call.catch_up()
        if progress.published.get(what, -1) < progress.round:
            progress.published[what] = progress.round
            self.world.gate(what, progress.round).arrive(self.world.env, self.worker_call.place.worker)

    def exists(self) -> SimProcess:
        """Simulate, as a simpy process, one request that asks the store whether a key exists. Its seconds count to no stage."""
        self.worker_call.tally.count(self.channel, "exists")
        yield from self.worker_call.spend("", self.service.read.latency_s)

    def delete(self) -> SimProcess:
        """Simulate, as a simpy process, one request that deletes keys from the store. Its seconds count to no stage."""
        self.worker_call.tally.count(self.channel, "delete")
        yield from self.worker_call.spend("", self.service.read.latency_s)


def simulate_arithmetic(worker_call: WorkerInvocation, stage: str, bytes_: float) -> SimProcess:
    """Simulate, as a simpy process, vector arithmetic in the function of `worker_call`. `bytes_`: bytes of all vectors that are read and
    written.

    The seconds are added to `stage`. If the invocation has entered that stage before, the stage's count stays, except for "update", whose
    count increases each time.
    """
    seconds = worker_call.world.arithmetic_s(bytes_, worker_call.step)
    if stage in worker_call.invocation.stages and stage != "update":
        worker_call.invocation.stages[stage][0] += seconds
        stage = ""
    yield from worker_call.spend(stage, seconds)


def check_first_round(worker_call: WorkerInvocation, store: StoreConnection) -> SimProcess:
    """Simulate, as a simpy process, the request by which an invocation asks the store whether its first round is already done. Does nothing
    in later rounds of the same invocation; a mark in the invocation's notes ("asked") says that it was asked.
    """
    if worker_call.computed == 0 and "asked" not in worker_call.invocation.notes:
        worker_call.invocation.notes["asked"] = True
        yield from store.exists()


def update_parameters(worker_call: WorkerInvocation) -> SimProcess:
    """Simulate, as a simpy process, the optimizer's step of a worker. Its time depends on the number of vectors that the optimizer reads
    and writes.
    """
    kept = count_optimizer_vectors(worker_call.world)
    yield from simulate_arithmetic(worker_call, "update", (3 + 2 * kept) * worker_call.world.workload.vector_bytes)


def finish_round(worker_call: WorkerInvocation, store: StoreConnection) -> SimProcess:
    """Simulate, as a simpy process, the end of a worker's round: read earlier results if needed, update the model, delete old keys. Also
    delete the gates of the second-last round.
    """
    world, progress = worker_call.world, worker_call.progress
    yield from worker_call.read_history()
    yield from update_parameters(worker_call)
    yield from store.delete()
    old = progress.round - 2
    for what in ("average", "merged", "chunks", "verdict", "average 1", "merged 1"):
        world.drop_gate(what, old)


def build_models(exchange: Callable[[WorkerInvocation], SimProcess]) -> dict[str, Model]:
    """Return the simulation models of the steps that all LambdaML architectures have, by name: initialise, train and collect. `exchange`:
    function that simulates one whole round of a worker as a simpy process, including its computing.
    """

    def train(world: World, place: WhereInRun, invocation: SimulatedInvocation) -> SimProcess:
        """Simulate one invocation of a worker, as a simpy process, from its checkpoint until training ends or the invocation's time is
        nearly over. Each of its rounds is simulated by `exchange`.
        """
        progress = world.state.setdefault(("progress", place.worker), WorkerProgress())
        worker_call = WorkerInvocation(world, place, invocation, progress, partial(checkpoint_bytes, world))
        yield from run_invocation(worker_call, exchange)
        invocation.notes.pop("asked", None)

    def collect(world: World, place: WhereInRun) -> Script:
        """Return the phases and requests of the last step, which reads a checkpoint, stores the trained model and deletes keys."""
        return build_last_step(world, checkpoint_bytes(world, world.days.rounds), members=world.workers, bus=False)

    return {
        "initialise": Model(script=store_first_checkpoints, changes=begin_run),
        "train": Model(process=train),
        "collect": Model(script=collect),
    }


def store_first_checkpoints(world: World, place: WhereInRun) -> Script:
    """Return the phases and requests of the first step, which looks for checkpoints of an earlier attempt and stores the initial model as
    the first checkpoint of every worker.
    """
    return build_first_step(world, looks=world.workers)


def build_first_step(world: World, *, looks: int, supervised: bool = False) -> Script:
    """Return the phase and requests of the first step of a run whose workers are long functions, each training many rounds: it looks for an
    earlier attempt's checkpoints and stores a first checkpoint for each worker, one after the other. `looks`: number of members whose
    checkpoints are listed, one request each; `supervised`: whether a supervisor gets a first checkpoint too.
    """
    one = world.workload.vector_bytes + VECTOR_HEADER_BYTES
    puts, out = world.workers + supervised, world.workers * one
    tally = Tally().count("objects", "put", 1 + puts, out=out)  # the attempt's marker too
    tally.count("objects", "list", 2 + looks).count("objects", "exists", 3)
    objects = world.objects("initialise")
    request_s = objects.write.seconds(out, 1 + puts) + (5 + looks) * objects.read.latency_s
    return Script((Phase("set up", request_s=request_s),), tally)
