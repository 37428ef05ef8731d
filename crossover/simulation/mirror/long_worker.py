"""What simulated long workers share: restoring, computing, checkpoints, agreement, and leaving before the time limit.

In the order of crossover/training/long_worker/invocation.py. A protocol's own part of a round is handed in.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from math import log, log1p
from typing import Any

import simpy

from crossover.simulation.kernel import Gate, Phase, SimProcess
from crossover.simulation.mirror.spirt import moved_on
from crossover.simulation.services import ServiceClient
from crossover.simulation.usage import Tally, WhereInRun
from crossover.simulation.workload import VECTOR_HEADER_BYTES
from crossover.simulation.world import Script, SimulatedInvocation, World
from crossover.training.long_worker.waits import POLLING, reserve_s


class Leave(Exception):
    """The invocation is near its deadline, or has done its share."""


@dataclass
class Standing:
    """Where a worker stands between two invocations."""

    round: int = 0
    minibatch: int = 0
    saved: set[tuple[int, int]] = field(default_factory=lambda: {(0, 0)})
    published: dict[str, int] = field(default_factory=dict)  # by what: the last round it was shown for
    checkpoint_bytes: int = 0  # of the last one saved; 0: the seeded model alone


@dataclass
class Life:
    """One invocation of one worker."""

    world: World
    place: WhereInRun
    invocation: SimulatedInvocation
    standing: Standing
    kept_bytes: Callable[[int], int]  # in a checkpoint of that round, without the sum of a round under way
    step: str = "train"
    adds: bool = True  # whether it sums gradients up within a round
    computed: int = 0
    slowest_s: float = 0.0
    evaluation_s: float = 0.0
    finished: bool = False
    _deadline: simpy.Event | None = None
    _entered: tuple[int, int] = (0, 0)
    _known: int = 0  # the last epoch whose decision this invocation has read

    @property
    def objects(self) -> ServiceClient:
        return self.world.objects(self.step)

    @property
    def memory_mb(self) -> int:
        return self.world.memory_of(self.step)

    @property
    def tally(self) -> Tally:
        return self.invocation.tally

    def mark(self) -> None:
        """As an invocation says what it has used so far."""
        if self.world.usage.keep_records:
            now, stored = self.world.env.now, self.tally.as_traffic()["object_store"]
            mark = {"at": now, "wall_s": now - self.invocation.started_at, "traffic": {"object_store": stored}}
            self.invocation.notes.setdefault("marks", []).append(mark)

    def remaining_s(self) -> float:
        return self.invocation.deadline_s - self.world.env.now - reserve_s(self.world.experiment)

    def spend(self, stage: str, seconds: float) -> SimProcess:
        if stage:
            self.invocation.spent(stage, seconds)
        if seconds > 0:
            yield self.world.env.timeout(seconds)
        self._in_time()

    def _in_time(self) -> None:
        """A wait is left in time; computing and transfers are not, and would be tried in vain again."""
        spent_s = self.world.env.now - self.invocation.started_at
        if self.world.env.now > self.invocation.deadline_s:
            limit_s = self.world.experiment.functions.timeout_s
            self.world.doom(
                f"{self.step} is in the middle of its work after {spent_s:,.0f} s; functions.timeout_s is {limit_s}"
            )

    def until(self, gate: Gate) -> Generator[simpy.Event, Any, float]:
        """Wait for the gate, in time to leave; the seconds waited. Raises Leave."""
        env = self.world.env
        if gate.open:
            return 0.0
        began, left = env.now, self.remaining_s()
        if left <= 0:
            raise Leave
        if self._deadline is None:
            self._deadline = env.timeout(left)
        yield gate.event | self._deadline
        if gate.opened_s < 0:
            raise Leave
        return float(env.now - began)

    def in_order(
        self, gate: Gate, stage: str, *, each_s: float, count: int, before: Callable[[int], int]
    ) -> Generator[simpy.Event, Any, float]:
        """`count` fetches one after another of what the gate's members publish, beginning now; the seconds waited among them.

        The last one to publish holds up its own fetch and those behind it; `before(member)`: how many fetches come before its.
        """
        env, began = self.world.env, self.world.env.now
        waited = yield from self.until(gate)
        end = began + count * each_s
        if waited:
            end = max(end, env.now + (count - before(gate.last)) * each_s)
        if end > env.now:
            yield env.timeout(end - env.now)
        self._in_time()
        self.invocation.spent(stage, end - began)
        return max(0.0, end - began - count * each_s)

    def looks(self, waited_s: float, channel: str) -> int:
        """How often a store is asked in vain in so long a wait."""
        if waited_s <= 0:
            return 0
        polling = POLLING["s3" if channel == "objects" else "redis"]
        even_s, knee_s = (
            polling.first_s / polling.share,
            polling.last_s / polling.share,
        )  # equal pauses, growing ones, equal ones again
        if waited_s <= even_s:
            return 1 + int(waited_s / polling.first_s)
        growing = log(min(waited_s, knee_s) / even_s) / log1p(polling.share)
        return 1 + int(1 / polling.share + growing + max(0.0, waited_s - knee_s) / polling.last_s)

    def save(self) -> SimProcess:
        """The position's checkpoint, once; those that nobody will ask for go. Was the run resumed or concluded meanwhile?"""
        standing, position = self.standing, (self.standing.round, self.standing.minibatch)
        self.tally.count("objects", "exists", 2)
        seconds = 2 * self.objects.read.latency_s
        if position not in standing.saved:
            bytes_ = self.kept_bytes(standing.round)
            if self.adds and self._within():
                bytes_ += self.world.workload.vector_bytes + VECTOR_HEADER_BYTES
            standing.checkpoint_bytes = bytes_
            self.tally.count("objects", "put", out=bytes_)
            seconds += self.objects.write.seconds(bytes_) + self._forget_checkpoints(position)
        yield from self.spend("checkpoint", seconds)

    def _within(self) -> bool:
        """Whether a checkpoint has a vector of the round under way: the sum so far, or with deltas where the round began."""
        done = self.standing.minibatch
        match self.world.experiment.exchange.what:
            case "gradients":
                return 0 < done < self.world.days.minibatches_in(self.standing.round)
            case what:
                return what == "delta" and done > 0

    def _forget_checkpoints(self, position: tuple[int, int]) -> float:
        """As `training.checkpoints.Journal.save`: seconds of deleting what is neither one of the newest two multiples nor this
        invocation's own.
        """
        kept, every = {*self.standing.saved, position}, self.world.experiment.functions.checkpoint_every
        multiples = sorted((each for each in kept if each[1] == 0 and each[0] % every == 0), reverse=True)
        needed = {position, *multiples[:2], *(each for each in kept if each >= self._entered)}
        self.standing.saved = needed
        if needed == kept:
            return 0.0
        self.tally.count("objects", "delete")
        return self.objects.read.latency_s

    def restore(self) -> SimProcess:
        """The first checkpoint holds the seeded model alone."""
        self._entered = (self.standing.round, self.standing.minibatch)
        first = self.adds * (self.world.workload.vector_bytes + VECTOR_HEADER_BYTES)
        bytes_ = self.standing.checkpoint_bytes or first
        self.tally.count("objects", "exists").count("objects", "get", into=bytes_)
        yield from self.spend("", self.objects.read.seconds(bytes_, 2))

    def compute(self) -> SimProcess:
        """The position's next minibatch. Raises Leave."""
        world, standing = self.world, self.standing
        limit = world.experiment.exchange.minibatches_per_invocation
        if isinstance(limit, int) and self.computed >= limit:
            raise Leave
        if self.remaining_s() < 2 * self.slowest_s:
            raise Leave
        _, number = world.days.place(standing.round, standing.minibatch)
        samples = world.workload.samples[number]
        batch, luck = world.workload.batch_bytes(samples), world.luck[self.place.worker]
        self.tally.count("objects", "get", into=batch)
        fetch_s = self.objects.read.seconds(batch) * luck.request()
        compute_s = (
            world.calibration.in_function(world.experiment, world.workload, samples, memory_mb=self.memory_mb)
            * luck.compute()
            * luck.hosts(self.step)[0]
        )
        yield from self.spend("fetch", fetch_s)
        yield from self.spend("compute", compute_s)
        self.computed += 1
        self.slowest_s = max(self.slowest_s, fetch_s + compute_s)
        standing.minibatch += 1

    def history(self) -> SimProcess:
        """What the epochs before came to, which the learning rate may hang on: read once by an invocation that has not seen it agreed."""
        before = self.world.days.decisions_before(self.standing.round)
        if before > self._known:
            self._known = before
            self.tally.count("objects", "get")
            yield from self.spend("", self.objects.read.latency_s)

    def accumulate(self) -> SimProcess:
        while self.standing.minibatch < self.world.days.minibatches_in(self.standing.round):
            yield from self.compute()

    def agree(self, epoch: int) -> SimProcess:
        """One evaluates, the others wait for its decision. Raises Leave."""
        world, objects = self.world, self.objects
        decided, taken = world.gate("decision", epoch, needed=1), ("evaluating", epoch)
        number = world.days.decision(epoch)
        self.tally.count("objects", "exists")
        yield from self.spend("", objects.read.latency_s)
        if not decided.open:
            self.tally.count("objects", "put")
            evaluator = world.state.setdefault(taken, self.place.worker)
            yield from self.spend("", objects.write.latency_s)
            if evaluator == self.place.worker:
                yield from self._evaluate(epoch)
                if not decided.open:
                    decided.arrive(world.env)
                    world.epoch_ended(epoch)
            else:  # whose claim there is, then its decision
                self.tally.count("objects", "get")
                yield from self.spend("", objects.read.latency_s)
                waited = yield from self.until(decided)
                self.invocation.spent("synchronise", waited)
                self.tally.count("objects", "get", self.looks(waited, "objects") + 1)
        self.tally.count("objects", "get")
        yield from self.spend("", objects.read.latency_s)
        self._known = number

    def _evaluate(self, epoch: int) -> SimProcess:
        world, workload, objects = self.world, self.world.workload, self.objects
        if self.remaining_s() < 2 * self.evaluation_s:
            raise Leave
        chunks = workload.validation_chunks
        self.tally.count("objects", "get", chunks, into=workload.validation_bytes)
        if world.days.decision(epoch) > 1:
            self.tally.count("objects", "get")
        self.tally.count("objects", "put")
        seconds = objects.read.seconds(workload.validation_bytes, chunks + 1) + objects.write.latency_s
        seconds += world.evaluate_s(memory_mb=self.memory_mb)
        self.evaluation_s = seconds
        yield from self.spend("evaluate", seconds)


def lives(life: Life, exchange: Callable[[Life], SimProcess]) -> SimProcess:
    """Rounds until training is over or the invocation must end; then the changes of the event."""
    world, standing, place = life.world, life.standing, life.place
    days, every, entered = world.days, world.experiment.functions.checkpoint_every, place.epoch
    yield from life.restore()
    life.mark()
    try:
        while True:
            if standing.minibatch == 0:
                if standing.round % every == 0:
                    yield from life.save()
                if standing.round and days.ends_epoch(standing.round - 1):
                    yield from life.agree(days.epoch(standing.round - 1))
                    life.finished = days.epoch(standing.round - 1) >= days.epochs
                    life.mark()
                if life.finished:
                    break
            yield from exchange(life)
            standing.round, standing.minibatch = standing.round + 1, 0
    except Leave:
        pass
    yield from life.save()
    life.invocation.notes |= {"until": [standing.round, standing.minibatch], "attempt": 0}
    minibatch = standing.minibatch
    moved_on(world, place, standing.round)
    place.minibatch = minibatch
    place.finished = life.finished
    place.epoch_finished = life.finished or place.epoch > entered


def collected(world: World, checkpoint_bytes: int, *, members: int, bus: bool) -> Script:
    """The last step of a run of long workers."""
    size, objects = world.workload.vector_bytes, world.objects("collect")
    read = checkpoint_bytes
    tally = Tally().count("objects", "list", 4).count("objects", "exists", 4).count("objects", "delete", 2)
    tally.count("objects", "get", 2, into=read)
    tally.count("objects", "put", 3, out=size + VECTOR_HEADER_BYTES)
    stores = world.architecture.tensor_hosts != "none"  # else there is nothing to delete but checkpoints
    if stores:
        tally.count("objects" if world.through_objects else "tensors", "delete")
    if bus:
        tally.count("bus", "remove")
    seconds = objects.read.seconds(read, 12) + objects.write.seconds(size, 3)
    seconds += stores * members * world.tensors("collect").read.latency_s
    return Script((Phase("collect", request_s=seconds),), tally)
