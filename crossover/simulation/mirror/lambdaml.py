"""LambdaML, the family of AllReduce and ScatterReduce: a long worker's requests to the shared store, and the start and end of its round."""

from collections.abc import Callable, Sequence
from functools import partial

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
    """Return the bytes of a checkpoint at the start of `round`: the model and the optimizer's vectors, each with a header, and what a codec
    keeps. Before the first step an optimizer has no vectors, but the outer optimizer has.
    """
    stepped = round > 0 or world.experiment.exchange.what != "gradients"
    kept = (optimizer_vectors(world) if stepped else 0) + outer_vectors(world)
    fed_back = codec_state_bytes(world) if round else 0
    return (
        world.workload.vector_bytes + kept * 4 * world.workload.parameters + (1 + kept) * VECTOR_HEADER_BYTES + fed_back
    )


def codec_state_bytes(world: World) -> int:
    """Return the bytes that a codec keeps from round to round: its residual, and the contributions to a second exchange."""
    asked = world.experiment.exchange
    residual = 4 * world.workload.parameters + VECTOR_HEADER_BYTES if codecs.feeds_back(asked) else 0
    return residual + sum(up + VECTOR_HEADER_BYTES for up, _ in exchange_sizes(world)[1:])


def exchange_sizes(world: World) -> list[tuple[int, int]]:
    """Return (bytes of a worker's contribution, bytes of the result) for each exchange of a round, as the codec says.

    Raises NoProjection if they depend on a model's shapes and only its number of parameters is known.
    """
    workload, asked = world.workload, world.experiment.exchange

    def shapes() -> Sequence[Sequence[int]]:
        """Return the shapes of the model's parameters. Raises NoProjection if they are not known."""
        if workload.model not in SIZES:
            raise NoProjection(
                f"exchange.compression: what {asked.compression} makes of {workload.model} follows from its matrices, which are not "
                f"known here; expected a model that is: {', '.join(SIZES)}"
            )
        from crossover.learning.learner import shapes_of

        return shapes_of(workload.model, 10, DATA[world.experiment.data.dataset].image)

    if "travels" not in world.state:
        sizes = workload.parameters, workload.buffers
        world.state["travels"] = codecs.named(asked).travels(*sizes, workers=world.workers, shapes=shapes)
    found: list[tuple[int, int]] = world.state["travels"]
    return found


CODEC_PASSES = 12  # over a gradient, read or written, beside exchanging it: about what benchmarks/compression.py finds


def run_codec(life: WorkerInvocation) -> SimProcess:
    """Simulate the encoding and decoding of contributions, if the experiment compresses them."""
    if life.world.experiment.exchange.compression != "none":
        yield from arithmetic(life, "compress", CODEC_PASSES * life.world.workload.vector_bytes)


class StoreConnection:
    """One worker's connection to the shared store: Redis, or S3."""

    def __init__(self, life: WorkerInvocation) -> None:
        world = life.world
        self.life, self.world = life, world
        self.channel = "objects" if world.through_objects else "tensors"
        self.service = world.objects(life.step) if world.through_objects else world.tensors(life.step)
        self.host = world.host(life.place.worker)
        self.luck = world.luck[life.place.worker]
        self.header_bytes = VECTOR_HEADER_BYTES if world.through_objects else 0  # of a vector as an object

    def put(self, stage: str, bytes_: float, requests: int = 1) -> SimProcess:
        """Simulate `requests` writes, one after another. They share the host's link with all other writers."""
        env = self.world.env
        bytes_ += requests * self.header_bytes
        self.life.tally.count(
            self.channel, "create" if self.channel == "tensors" else "put", requests, out=round(bytes_)
        )
        start = self.host.ingress.reserve(env.now, bytes_) if self.host else env.now
        seconds = self.service.write.seconds(bytes_, requests) * self.luck.request()
        yield from self.life.spend(stage, start - env.now + seconds)

    def get(self, stage: str, bytes_: float, requests: int = 1) -> SimProcess:
        """Simulate `requests` reads, one after another, of `bytes_` in all."""
        env = self.world.env
        bytes_ += requests * self.header_bytes
        self.life.tally.count(self.channel, "get", requests, into=round(bytes_))
        start = self.host.egress.reserve(env.now, bytes_) if self.host else env.now
        seconds = self.service.read.seconds(bytes_, requests) * self.luck.request()
        yield from self.life.spend(stage, start - env.now + seconds)

    def gather(self, stage: str, what: str, bytes_: float, count: int, before: Callable[[int], int]) -> SimProcess:
        """Simulate reading `count` vectors of `bytes_` each, as soon as their senders have published `what`. `before`: returns how many are
        read before a given rank's.
        """
        if not count:
            return
        life, env = self.life, self.world.env
        bytes_ += self.header_bytes
        gate = self.world.gate(what, life.standing.round)
        start = self.host.egress.reserve(env.now, count * bytes_) if self.host else env.now
        life.tally.count(self.channel, "get", count, into=round(count * bytes_))
        yield from life.spend("", start - env.now)
        each_s = self.service.read.seconds(bytes_) * self.luck.request()
        waited = yield from life.read_in_order(gate, stage, each_s=each_s, count=count, before=before)
        life.tally.count(self.channel, "get", life.count_polls(waited, self.channel))

    def publish(self, what: str) -> None:
        """Record that this worker has stored its `what` of the round, unless an earlier invocation has done so."""
        standing = self.life.standing
        if standing.published.get(what, -1) < standing.round:
            standing.published[what] = standing.round
            self.world.gate(what, standing.round).arrive(self.world.env, self.life.place.worker)

    def exists(self) -> SimProcess:
        """Simulate a request whether a key exists."""
        self.life.tally.count(self.channel, "exists")
        yield from self.life.spend("", self.service.read.latency_s)

    def delete(self) -> SimProcess:
        """Simulate a request that deletes keys."""
        self.life.tally.count(self.channel, "delete")
        yield from self.life.spend("", self.service.read.latency_s)


def arithmetic(life: WorkerInvocation, stage: str, bytes_: float) -> SimProcess:
    """Simulate vector arithmetic in the function. `bytes_`: of all vectors read and written. A stage that has begun is continued, except
    "update".
    """
    seconds = life.world.arithmetic_s(bytes_, life.step)
    if stage in life.invocation.stages and stage != "update":
        life.invocation.stages[stage][0] += seconds
        stage = ""
    yield from life.spend(stage, seconds)


def check_first_round(life: WorkerInvocation, way: StoreConnection) -> SimProcess:
    """Simulate the request by which an invocation checks whether its first round is already done."""
    if life.computed == 0 and "asked" not in life.invocation.notes:
        life.invocation.notes["asked"] = True
        yield from way.exists()


def update_parameters(life: WorkerInvocation) -> SimProcess:
    """Simulate the optimizer's step, by the vectors that it reads and writes."""
    kept = optimizer_vectors(life.world)
    yield from arithmetic(life, "update", (3 + 2 * kept) * life.world.workload.vector_bytes)


def finish(life: WorkerInvocation, way: StoreConnection) -> SimProcess:
    """Simulate the end of a round: update the model, delete old keys, and drop old gates."""
    world, standing = life.world, life.standing
    yield from life.read_history()
    yield from update_parameters(life)
    yield from way.delete()
    old = standing.round - 2
    for what in ("average", "merged", "chunks", "verdict", "average 1", "merged 1"):
        world.forget(what, old)


def models(exchange: Callable[[WorkerInvocation], SimProcess]) -> dict[str, Model]:
    """Return the models of LambdaML's steps. `exchange`: simulates one round of a worker."""

    def train(world: World, place: WhereInRun, invocation: SimulatedInvocation) -> SimProcess:
        standing = world.state.setdefault(("standing", place.worker), WorkerProgress())
        life = WorkerInvocation(world, place, invocation, standing, partial(checkpoint_bytes, world))
        yield from run_invocation(life, exchange)
        invocation.notes.pop("asked", None)

    def collect(world: World, place: WhereInRun) -> Script:
        return build_last_step(world, checkpoint_bytes(world, world.days.rounds), members=world.workers, bus=False)

    return {
        "initialise": Model(script=first_checkpoints, changes=begin_run),
        "train": Model(living=train),
        "collect": Model(script=collect),
    }


def first_checkpoints(world: World, place: WhereInRun) -> Script:
    """Return the script of the first step: it looks for checkpoints of an earlier attempt, then stores the seeded model as every worker's
    first one.
    """
    return build_first_step(world, looks=world.workers)


def build_first_step(world: World, *, looks: int, supervised: bool = False) -> Script:
    """Return the script of a first step. `looks`: members whose checkpoints are looked for; `supervised`: a supervisor gets a first
    checkpoint too.
    """
    one = world.workload.vector_bytes + VECTOR_HEADER_BYTES
    puts, out = world.workers + supervised, world.workers * one
    tally = Tally().count("objects", "put", 1 + puts, out=out)  # the attempt's marker too
    tally.count("objects", "list", 2 + looks).count("objects", "exists", 3)
    objects = world.objects("initialise")
    request_s = objects.write.seconds(out, 1 + puts) + (5 + looks) * objects.read.latency_s
    return Script((Phase("set up", request_s=request_s),), tally)
