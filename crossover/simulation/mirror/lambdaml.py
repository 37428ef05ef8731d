"""LambdaML, which AllReduce and ScatterReduce are of: a long worker's way to the shared store, and what begins and ends its round."""

from collections.abc import Callable, Sequence
from functools import partial

from crossover.algorithms import codecs
from crossover.errors import NoProjection
from crossover.learning.sizes import DATA
from crossover.simulation.kernel import Phase, SimProcess
from crossover.simulation.mirror.long_worker import Life, Standing, collected, lives
from crossover.simulation.mirror.spirt import begun, optimizer_vectors, outer_vectors
from crossover.simulation.usage import Tally, WhereInRun
from crossover.simulation.workload import MODELS as SIZES
from crossover.simulation.workload import VECTOR_HEADER_BYTES
from crossover.simulation.world import Model, Script, SimulatedInvocation, World


def checkpoint_bytes(world: World, round: int) -> int:
    """Model and optimizer, each behind a header; an optimizer has no state before its first step, the outer one a place for it."""
    stepped = round > 0 or world.experiment.exchange.what != "gradients"
    kept = (optimizer_vectors(world) if stepped else 0) + outer_vectors(world)
    fed_back = left_out(world) if round else 0
    return (
        world.workload.vector_bytes + kept * 4 * world.workload.parameters + (1 + kept) * VECTOR_HEADER_BYTES + fed_back
    )


def left_out(world: World) -> int:
    """Bytes of what a codec keeps from round to round: the residual, and what travels in a second exchange."""
    asked = world.experiment.exchange
    residual = 4 * world.workload.parameters + VECTOR_HEADER_BYTES if codecs.feeds_back(asked) else 0
    return residual + sum(up + VECTOR_HEADER_BYTES for up, _ in travels(world)[1:])


def travels(world: World) -> list[tuple[int, int]]:
    """As the codec's own: for each of a round's exchanges, the bytes of a worker's contribution and of the result that comes back.

    Raises NoProjection where they follow from the shapes of a model of which only the number of parameters is known.
    """
    workload, asked = world.workload, world.experiment.exchange

    def shapes() -> Sequence[Sequence[int]]:
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


def compressing(life: Life) -> SimProcess:
    if life.world.experiment.exchange.compression != "none":
        yield from arithmetic(life, "compress", CODEC_PASSES * life.world.workload.vector_bytes)


class Way:
    """One worker's way to the shared store: Redis, or S3."""

    def __init__(self, life: Life) -> None:
        world = life.world
        self.life, self.world = life, world
        self.channel = "objects" if world.through_objects else "tensors"
        self.service = world.objects(life.step) if world.through_objects else world.tensors(life.step)
        self.host = world.host(life.place.worker)
        self.luck = world.luck[life.place.worker]
        self.header_bytes = VECTOR_HEADER_BYTES if world.through_objects else 0  # of a vector as an object

    def put(self, stage: str, bytes_: float, requests: int = 1) -> SimProcess:
        """Requests one after another, sharing the host's link with whoever else sends."""
        env = self.world.env
        bytes_ += requests * self.header_bytes
        self.life.tally.count(
            self.channel, "create" if self.channel == "tensors" else "put", requests, out=round(bytes_)
        )
        start = self.host.ingress.reserve(env.now, bytes_) if self.host else env.now
        seconds = self.service.write.seconds(bytes_, requests) * self.luck.request()
        yield from self.life.spend(stage, start - env.now + seconds)

    def get(self, stage: str, bytes_: float, requests: int = 1) -> SimProcess:
        env = self.world.env
        bytes_ += requests * self.header_bytes
        self.life.tally.count(self.channel, "get", requests, into=round(bytes_))
        start = self.host.egress.reserve(env.now, bytes_) if self.host else env.now
        seconds = self.service.read.seconds(bytes_, requests) * self.luck.request()
        yield from self.life.spend(stage, start - env.now + seconds)

    def gather(self, stage: str, what: str, bytes_: float, count: int, before: Callable[[int], int]) -> SimProcess:
        """`count` vectors of `bytes_`, each as soon as its sender has published `what`; `before(rank)`: how many come before its."""
        if not count:
            return
        life, env = self.life, self.world.env
        bytes_ += self.header_bytes
        gate = self.world.gate(what, life.standing.round)
        start = self.host.egress.reserve(env.now, count * bytes_) if self.host else env.now
        life.tally.count(self.channel, "get", count, into=round(count * bytes_))
        yield from life.spend("", start - env.now)
        each_s = self.service.read.seconds(bytes_) * self.luck.request()
        waited = yield from life.in_order(gate, stage, each_s=each_s, count=count, before=before)
        life.tally.count(self.channel, "get", life.looks(waited, self.channel))

    def publish(self, what: str) -> None:
        """This worker's `what` of the round is there; another invocation may have said so already."""
        standing = self.life.standing
        if standing.published.get(what, -1) < standing.round:
            standing.published[what] = standing.round
            self.world.gate(what, standing.round).arrive(self.world.env, self.life.place.worker)

    def exists(self) -> SimProcess:
        self.life.tally.count(self.channel, "exists")
        yield from self.life.spend("", self.service.read.latency_s)

    def delete(self) -> SimProcess:
        self.life.tally.count(self.channel, "delete")
        yield from self.life.spend("", self.service.read.latency_s)


def arithmetic(life: Life, stage: str, bytes_: float) -> SimProcess:
    """Vector arithmetic in the function, by bytes read and written; its stage has begun already where it is the same."""
    seconds = life.world.arithmetic_s(bytes_, life.step)
    if stage in life.invocation.stages and stage != "update":
        life.invocation.stages[stage][0] += seconds
        stage = ""
    yield from life.spend(stage, seconds)


def once(life: Life, way: Way) -> SimProcess:
    """An invocation looks whether its first round is done already."""
    if life.computed == 0 and "asked" not in life.invocation.notes:
        life.invocation.notes["asked"] = True
        yield from way.exists()


def updated(life: Life) -> SimProcess:
    """The optimizer's step, by the vectors that it reads and writes."""
    kept = optimizer_vectors(life.world)
    yield from arithmetic(life, "update", (3 + 2 * kept) * life.world.workload.vector_bytes)


def finish(life: Life, way: Way) -> SimProcess:
    world, standing = life.world, life.standing
    yield from life.history()
    yield from updated(life)
    yield from way.delete()
    old = standing.round - 2
    for what in ("average", "merged", "chunks", "verdict", "average 1", "merged 1"):
        world.forget(what, old)


def models(exchange: Callable[[Life], SimProcess]) -> dict[str, Model]:
    """The steps of LambdaML with this exchange."""

    def train(world: World, place: WhereInRun, invocation: SimulatedInvocation) -> SimProcess:
        standing = world.state.setdefault(("standing", place.worker), Standing())
        life = Life(world, place, invocation, standing, partial(checkpoint_bytes, world))
        yield from lives(life, exchange)
        invocation.notes.pop("asked", None)

    def collect(world: World, place: WhereInRun) -> Script:
        return collected(world, checkpoint_bytes(world, world.days.rounds), members=world.workers, bus=False)

    return {
        "initialise": Model(script=first_checkpoints, changes=begun),
        "train": Model(living=train),
        "collect": Model(script=collect),
    }


def first_checkpoints(world: World, place: WhereInRun) -> Script:
    """The seeded model as every worker's first checkpoint, after looking for what an attempt before this one left with each."""
    return beginning(world, looks=world.workers)


def beginning(world: World, *, looks: int, supervised: bool = False) -> Script:
    """`looks`: members whose checkpoints are looked for; `supervised`: a supervisor has a first checkpoint, too."""
    one = world.workload.vector_bytes + VECTOR_HEADER_BYTES
    puts, out = world.workers + supervised, world.workers * one
    tally = Tally().count("objects", "put", 1 + puts, out=out)  # the attempt's marker too
    tally.count("objects", "list", 2 + looks).count("objects", "exists", 3)
    objects = world.objects("initialise")
    request_s = objects.write.seconds(out, 1 + puts) + (5 + looks) * objects.read.latency_s
    return Script((Phase("set up", request_s=request_s),), tally)
