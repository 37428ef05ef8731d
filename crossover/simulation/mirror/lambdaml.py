"""LambdaML, the family of AllReduce and ScatterReduce: a long worker's requests to the shared store, and the start and end of its round."""

from collections.abc import Callable, Sequence
from functools import cache, partial

from crossover.algorithms import codecs
from crossover.errors import NoProjection
from crossover.learning.sizes import DATA
from crossover.simulation.kernel import Phase, SimProcess, Tally, WhereInRun
from crossover.simulation.mirror.long_worker import WorkerInvocation, WorkerProgress, build_last_step, run_invocation
from crossover.simulation.mirror.spirt import begin_run, optimizer_vectors, outer_vectors
from crossover.simulation.workload import MODELS as SIZES
from crossover.simulation.workload import VECTOR_HEADER_BYTES
from crossover.simulation.world import Model, Script, SimulatedInvocation, World


def checkpoint_bytes(world: World, round: int) -> int:
    """Return the size in bytes of a worker's checkpoint at the start of `round`: the model, the vectors of the optimizers, each with a
    header, and the vectors that a codec keeps. In round 0 the inner optimizer has no vectors, unless workers take local steps.
    """
    stepped = round > 0 or world.experiment.exchange.what != "gradients"
    kept = (optimizer_vectors(world) if stepped else 0) + outer_vectors(world)
    fed_back = codec_state_bytes(world) if round else 0
    return (
        world.workload.vector_bytes + kept * 4 * world.workload.parameters + (1 + kept) * VECTOR_HEADER_BYTES + fed_back
    )


def codec_state_bytes(world: World) -> int:
    """Return the bytes that a worker's codec keeps from round to round: the residual, and the contributions to the second and later
    exchanges of a round. 0 if contributions are not compressed.
    """
    asked = world.experiment.exchange
    residual = 4 * world.workload.parameters + VECTOR_HEADER_BYTES if codecs.has_error_feedback(asked) else 0
    return residual + sum(up + VECTOR_HEADER_BYTES for up, _ in exchange_sizes(world)[1:])


def exchange_sizes(world: World) -> list[tuple[int, int]]:
    """Return a pair (bytes that a worker contributes, bytes of the combined result) for each exchange of a round, as the experiment's codec
    defines them. PowerSGD has two exchanges, the others one. Raises NoProjection if the sizes depend on the shapes of a model whose shapes
    are not known.
    """
    workload, asked = world.workload, world.experiment.exchange

    def shapes() -> Sequence[Sequence[int]]:
        """Return the shapes of the model's parameters. Raises NoProjection if the model is not one of the project's own."""
        if workload.model not in SIZES:
            raise NoProjection(
                f"exchange.compression: what {asked.compression} makes of {workload.model} follows from its matrices, which are not "
                f"known here; expected a model that is: {', '.join(SIZES)}"
            )
        return _list_shapes(workload.model, DATA[world.experiment.data.dataset].image)

    if "travels" not in world.state:
        sizes = workload.parameters, workload.buffers
        world.state["travels"] = codecs.build_codec(asked).exchanged_bytes(*sizes, workers=world.workers, shapes=shapes)
    found: list[tuple[int, int]] = world.state["travels"]
    return found


@cache
def _list_shapes(model: str, image: tuple[int, int, int]) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the parameters of one of the project's own models for ten classes of such images."""
    from crossover.learning.learner import list_shapes

    return list_shapes(model, 10, image)


CODEC_PASSES = 12  # over a gradient, read or written, beside exchanging it: about what benchmarks/compression.py finds


def run_codec(worker_call: WorkerInvocation) -> SimProcess:
    """Simulate the time that one worker takes in a round to encode and decode contributions. Takes no time if they are not compressed."""
    if worker_call.world.experiment.exchange.compression != "none":
        yield from simulate_arithmetic(worker_call, "compress", CODEC_PASSES * worker_call.world.workload.vector_bytes)


class StoreConnection:
    """Simulated connection of one worker to the shared store, Redis or S3. Each request takes time, shares the host's network link, and is
    counted in the invocation's tally.
    """

    def __init__(self, worker_call: WorkerInvocation) -> None:
        world = worker_call.world
        self.worker_call, self.world = worker_call, world
        self.channel = "objects" if world.through_objects else "tensors"
        self.service = world.objects(worker_call.step) if world.through_objects else world.tensors(worker_call.step)
        self.host = world.host(worker_call.place.worker)
        self.factors = world.factors[worker_call.place.worker]
        self.header_bytes = VECTOR_HEADER_BYTES if world.through_objects else 0  # of a vector as an object

    def put(self, stage: str, bytes_: float, requests: int = 1) -> SimProcess:
        """Simulate `requests` writes to the store, one after another, of `bytes_` bytes in all. The writes share the host's network link
        with all other writers. `stage`: stage to which the seconds are added, or "".
        """
        env = self.world.env
        bytes_ += requests * self.header_bytes
        self.worker_call.tally.count(
            self.channel, "create" if self.channel == "tensors" else "put", requests, out=round(bytes_)
        )
        start = self.host.ingress.reserve(env.now, bytes_) if self.host else env.now
        seconds = self.service.write.seconds(bytes_, requests) * self.factors.request()
        yield from self.worker_call.spend(stage, start - env.now + seconds)

    def get(self, stage: str, bytes_: float, requests: int = 1) -> SimProcess:
        """Simulate `requests` reads from the store, one after another, of `bytes_` bytes in all. `stage`: stage to which the seconds are
        added, or "".
        """
        env = self.world.env
        bytes_ += requests * self.header_bytes
        self.worker_call.tally.count(self.channel, "get", requests, into=round(bytes_))
        start = self.host.egress.reserve(env.now, bytes_) if self.host else env.now
        seconds = self.service.read.seconds(bytes_, requests) * self.factors.request()
        yield from self.worker_call.spend(stage, start - env.now + seconds)

    def gather(self, stage: str, what: str, bytes_: float, count: int, before: Callable[[int], int]) -> SimProcess:
        """Simulate reading `count` vectors of `bytes_` bytes each, as soon as their senders have published them for this round. `what`:
        name under which they are published; `stage`: stage to which the seconds are added; `before`: returns how many vectors are read
        before the one of a given rank. Raises Leave if the invocation's time is over first.
        """
        if not count:
            return
        worker_call, env = self.worker_call, self.world.env
        bytes_ += self.header_bytes
        gate = self.world.gate(what, worker_call.progress.round)
        start = self.host.egress.reserve(env.now, count * bytes_) if self.host else env.now
        worker_call.tally.count(self.channel, "get", count, into=round(count * bytes_))
        yield from worker_call.spend("", start - env.now)
        each_s = self.service.read.seconds(bytes_) * self.factors.request()
        waited = yield from worker_call.read_in_order(gate, stage, each_s=each_s, count=count, before=before)
        worker_call.tally.count(self.channel, "get", worker_call.count_polls(waited, self.channel))

    def publish(self, what: str) -> None:
        """Report to the other workers that this worker has stored its vector of the round.

        `what`: name of the gate at which they wait for it. Does nothing if an earlier invocation of the worker has done
        so.
        """
        progress = self.worker_call.progress
        if progress.published.get(what, -1) < progress.round:
            progress.published[what] = progress.round
            self.world.gate(what, progress.round).arrive(self.world.env, self.worker_call.place.worker)

    def exists(self) -> SimProcess:
        """Simulate a request that asks the store whether a key exists."""
        self.worker_call.tally.count(self.channel, "exists")
        yield from self.worker_call.spend("", self.service.read.latency_s)

    def delete(self) -> SimProcess:
        """Simulate a request that deletes keys from the store."""
        self.worker_call.tally.count(self.channel, "delete")
        yield from self.worker_call.spend("", self.service.read.latency_s)


def simulate_arithmetic(worker_call: WorkerInvocation, stage: str, bytes_: float) -> SimProcess:
    """Simulate vector arithmetic inside the function of `worker_call`, a worker's invocation.

    `bytes_`: bytes of all vectors that are read and written. The seconds are added to `stage`; they count as a further
    part of it if the invocation has already begun it, except for "update", which is counted anew each time.
    """
    seconds = worker_call.world.arithmetic_s(bytes_, worker_call.step)
    if stage in worker_call.invocation.stages and stage != "update":
        worker_call.invocation.stages[stage][0] += seconds
        stage = ""
    yield from worker_call.spend(stage, seconds)


def check_first_round(worker_call: WorkerInvocation, store: StoreConnection) -> SimProcess:
    """Simulate the request by which an invocation asks the store whether its first round is already done. Later rounds of the invocation
    make no such request.
    """
    if worker_call.computed == 0 and "asked" not in worker_call.invocation.notes:
        worker_call.invocation.notes["asked"] = True
        yield from store.exists()


def update_parameters(worker_call: WorkerInvocation) -> SimProcess:
    """Simulate the optimizer's step in a worker's function. Its time follows from the vectors that the optimizer reads and writes."""
    kept = optimizer_vectors(worker_call.world)
    yield from simulate_arithmetic(worker_call, "update", (3 + 2 * kept) * worker_call.world.workload.vector_bytes)


def finish_round(worker_call: WorkerInvocation, store: StoreConnection) -> SimProcess:
    """Simulate the end of a worker's round: read earlier results if needed, update the model, delete old keys. Also drops the gates of the
    round before the last one.
    """
    world, progress = worker_call.world, worker_call.progress
    yield from worker_call.read_history()
    yield from update_parameters(worker_call)
    yield from store.delete()
    old = progress.round - 2
    for what in ("average", "merged", "chunks", "verdict", "average 1", "merged 1"):
        world.drop_gate(what, old)


def build_models(exchange: Callable[[WorkerInvocation], SimProcess]) -> dict[str, Model]:
    """Return the simulation models of the steps that all LambdaML architectures have (initialise, train, collect), by step name.
    `exchange`: function that simulates one round of a worker.
    """

    def train(world: World, place: WhereInRun, invocation: SimulatedInvocation) -> SimProcess:
        """Simulate one invocation of a worker, from its checkpoint until training ends or its time is over."""
        progress = world.state.setdefault(("progress", place.worker), WorkerProgress())
        worker_call = WorkerInvocation(world, place, invocation, progress, partial(checkpoint_bytes, world))
        yield from run_invocation(worker_call, exchange)
        invocation.notes.pop("asked", None)

    def collect(world: World, place: WhereInRun) -> Script:
        """Return the script of the last step, which stores the trained model."""
        return build_last_step(world, checkpoint_bytes(world, world.days.rounds), members=world.workers, bus=False)

    return {
        "initialise": Model(script=first_checkpoints, changes=begin_run),
        "train": Model(living=train),
        "collect": Model(script=collect),
    }


def first_checkpoints(world: World, place: WhereInRun) -> Script:
    """Return the script of the first step. The step looks for checkpoints of an earlier attempt, then stores the seeded model as the first
    checkpoint of every worker.
    """
    return build_first_step(world, looks=world.workers)


def build_first_step(world: World, *, looks: int, supervised: bool = False) -> Script:
    """Return the script of the first step of a run of long workers in `world`: look for an earlier attempt, store first checkpoints.

    `looks`: number of members whose checkpoints are looked for; `supervised`: True if a supervisor gets a first
    checkpoint too.
    """
    one = world.workload.vector_bytes + VECTOR_HEADER_BYTES
    puts, out = world.workers + supervised, world.workers * one
    tally = Tally().count("objects", "put", 1 + puts, out=out)  # the attempt's marker too
    tally.count("objects", "list", 2 + looks).count("objects", "exists", 3)
    objects = world.objects("initialise")
    request_s = objects.write.seconds(out, 1 + puts) + (5 + looks) * objects.read.latency_s
    return Script((Phase("set up", request_s=request_s),), tally)
