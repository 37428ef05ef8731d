"""LambdaML, which AllReduce and ScatterReduce are of: a long worker's way to the shared store, and what begins and ends its round."""

from collections.abc import Callable

from crossover.simulation.kernel import Phase, Process
from crossover.simulation.long_worker import CHECKPOINT_FACTS_BYTES, Life, Standing, collected, lives
from crossover.simulation.spirt import begun, optimizer_vectors
from crossover.simulation.usage import Place, Tally
from crossover.simulation.workload import VECTOR_HEADER_BYTES
from crossover.simulation.world import Invocation, Model, Script, World


def checkpoint_bytes(world: World) -> int:
    """Model and optimizer, each behind a header."""
    kept = optimizer_vectors(world)
    return world.workload.vector_bytes + kept * 4 * world.workload.parameters + (1 + kept) * VECTOR_HEADER_BYTES


class Way:
    """One worker's way to the shared store: Redis, or S3."""

    def __init__(self, life: Life) -> None:
        world = life.world
        self.life, self.world = life, world
        self.channel = "objects" if world.through_objects else "tensors"
        self.service = world.objects(life.step) if world.through_objects else world.tensors(life.step)
        self.host = world.host(life.place.worker)
        self.luck = world.luck[life.place.worker]

    def put(self, stage: str, bytes_: float, requests: int = 1) -> Process:
        """Requests one after another, sharing the host's link with whoever else sends."""
        env = self.world.env
        self.life.tally.count(
            self.channel, "create" if self.channel == "tensors" else "put", requests, out=round(bytes_)
        )
        start = self.host.ingress.reserve(env.now, bytes_) if self.host else env.now
        seconds = self.service.write.seconds(bytes_, requests) * self.luck.request()
        yield from self.life.spend(stage, start - env.now + seconds)

    def get(self, stage: str, bytes_: float, requests: int = 1) -> Process:
        env = self.world.env
        self.life.tally.count(self.channel, "get", requests, into=round(bytes_))
        start = self.host.egress.reserve(env.now, bytes_) if self.host else env.now
        seconds = self.service.read.seconds(bytes_, requests) * self.luck.request()
        yield from self.life.spend(stage, start - env.now + seconds)

    def gather(self, stage: str, what: str, bytes_: float, count: int, before: Callable[[int], int]) -> Process:
        """`count` vectors of `bytes_`, each as soon as its sender has published `what`; `before(rank)`: how many come before its."""
        if not count:
            return
        life, env = self.life, self.world.env
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

    def exists(self) -> Process:
        self.life.tally.count(self.channel, "exists")
        yield from self.life.spend("", self.service.read.latency_s)

    def delete(self) -> Process:
        self.life.tally.count(self.channel, "delete")
        yield from self.life.spend("", self.service.read.latency_s)


def arithmetic(life: Life, stage: str, bytes_: float) -> Process:
    """Vector arithmetic in the function, by bytes read and written; its stage has begun already where it is the same."""
    seconds = life.world.arithmetic_s(bytes_, life.step)
    if stage in life.invocation.stages and stage != "update":
        life.invocation.stages[stage][0] += seconds
        stage = ""
    yield from life.spend(stage, seconds)


def once(life: Life, way: Way) -> Process:
    """An invocation looks whether its first round is done already."""
    if life.computed == 0 and "asked" not in life.invocation.notes:
        life.invocation.notes["asked"] = True
        yield from way.exists()


def finish(life: Life, way: Way) -> Process:
    world, standing = life.world, life.standing
    kept = optimizer_vectors(world)
    yield from arithmetic(life, "update", (3 + 2 * kept) * world.workload.vector_bytes)
    yield from way.delete()
    old = standing.round - 2
    for what in ("average", "merged", "chunks", "verdict"):
        world.forget(what, old)


def models(exchange: Callable[[Life], Process]) -> dict[str, Model]:
    """The steps of LambdaML with this exchange."""

    def train(world: World, place: Place, invocation: Invocation) -> Process:
        standing = world.state.setdefault(("standing", place.worker), Standing())
        life = Life(world, place, invocation, standing, checkpoint_bytes(world))
        yield from lives(life, exchange)
        invocation.notes.pop("asked", None)

    def collect(world: World, place: Place) -> Script:
        return collected(world, checkpoint_bytes(world), members=world.workers, bus=False)

    return {
        "initialise": Model(script=first_checkpoints, changes=begun),
        "train": Model(living=train),
        "collect": Model(script=collect),
    }


def first_checkpoints(world: World, place: Place) -> Script:
    """The seeded model as every worker's first checkpoint."""
    one = world.workload.vector_bytes + VECTOR_HEADER_BYTES + CHECKPOINT_FACTS_BYTES
    tally = Tally().count("objects", "put", world.workers, out=world.workers * one)
    request_s = world.objects("initialise").write.seconds(world.workers * one, world.workers)
    return Script((Phase("set up", request_s=request_s),), tally)
