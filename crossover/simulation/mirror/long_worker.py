"""Parts that simulated long workers share: restoring, computing, checkpoints, agreement, and leaving before the time limit.

The order is that of crossover/training/long_worker.py. Each protocol supplies its own part of a round.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from math import log, log1p
from typing import Any

import simpy

from crossover.simulation.calibration import ServiceClient
from crossover.simulation.kernel import Gate, Phase, SimProcess, Tally, WhereInRun
from crossover.simulation.mirror.spirt import move_to_round
from crossover.simulation.workload import VECTOR_HEADER_BYTES
from crossover.simulation.world import Script, SimulatedInvocation, World
from crossover.training.waits import POLLING, reserve_s


class Leave(Exception):
    """Exception: the invocation is near its deadline, or has done its share, and must end."""


@dataclass
class WorkerProgress:
    """Progress of a worker, which it keeps from one invocation to the next."""

    round: int = 0
    minibatch: int = 0
    saved: set[tuple[int, int]] = field(default_factory=lambda: {(0, 0)})
    published: dict[str, int] = field(default_factory=dict)  # by what: the last round it was shown for
    checkpoint_bytes: int = 0  # of the last one saved; 0: the seeded model alone


@dataclass
class WorkerInvocation:
    """One invocation of one worker."""

    world: World
    place: WhereInRun
    invocation: SimulatedInvocation
    standing: WorkerProgress
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
        """The object store as this step's functions see it."""
        return self.world.objects(self.step)

    @property
    def memory_mb(self) -> int:
        """Memory of the function in MB."""
        return self.world.memory_of(self.step)

    @property
    def tally(self) -> Tally:
        """Requests of this invocation so far."""
        return self.invocation.tally

    def mark(self) -> None:
        """Note the usage so far, as an invocation reports it; only if records are kept."""
        if self.world.usage.keep_records:
            now, stored = self.world.env.now, self.tally.as_traffic()["object_store"]
            mark = {"at": now, "wall_s": now - self.invocation.started_at, "traffic": {"object_store": stored}}
            self.invocation.notes.setdefault("marks", []).append(mark)

    def remaining_s(self) -> float:
        """Return the seconds until the invocation must begin to leave."""
        return self.invocation.deadline_s - self.world.env.now - reserve_s(self.world.experiment)

    def spend(self, stage: str, seconds: float) -> SimProcess:
        """Spend seconds in a stage; "" stands for no stage. Ends the simulation if the invocation's deadline has passed."""
        if stage:
            self.invocation.add_seconds(stage, seconds)
        if seconds > 0:
            yield self.world.env.timeout(seconds)
        self._in_time()

    def _in_time(self) -> None:
        """End the simulation if the deadline has passed. Waits end in time, but computing and transfers do not, and a retry would fail
        again.
        """
        spent_s = self.world.env.now - self.invocation.started_at
        if self.world.env.now > self.invocation.deadline_s:
            limit_s = self.world.experiment.functions.timeout_s
            self.world.end_simulation(
                f"{self.step} is in the middle of its work after {spent_s:,.0f} s; functions.timeout_s is {limit_s}"
            )

    def wait_for(self, gate: Gate) -> Generator[simpy.Event, Any, float]:
        """Wait for the gate and return the seconds waited. Raises Leave if the invocation must leave before it opens."""
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

    def read_in_order(
        self, gate: Gate, stage: str, *, each_s: float, count: int, before: Callable[[int], int]
    ) -> Generator[simpy.Event, Any, float]:
        """Simulate `count` reads, one after another, of vectors that the gate's members publish; return the seconds waited for them.

        The last member to publish delays its own read and those behind it. `each_s`: seconds of one read; `before`: returns how many reads
        come before a given member's. Raises Leave.
        """
        env, began = self.world.env, self.world.env.now
        waited = yield from self.wait_for(gate)
        end = began + count * each_s
        if waited:
            end = max(end, env.now + (count - before(gate.last)) * each_s)
        if end > env.now:
            yield env.timeout(end - env.now)
        self._in_time()
        self.invocation.add_seconds(stage, end - began)
        return max(0.0, end - began - count * each_s)

    def count_polls(self, waited_s: float, channel: str) -> int:
        """Return how many polls of a store fail during a wait of `waited_s` seconds."""
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
        """Simulate the checkpoint of this position, unless it is saved already, and the deletion of old ones. Two requests ask whether the
        run was resumed or concluded meanwhile.
        """
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
        """Return whether a checkpoint holds a vector of the current round: the sum so far, or with deltas the model at its start."""
        done = self.standing.minibatch
        match self.world.experiment.exchange.what:
            case "gradients":
                return 0 < done < self.world.days.minibatches_in(self.standing.round)
            case what:
                return what == "delta" and done > 0

    def _forget_checkpoints(self, position: tuple[int, int]) -> float:
        """Delete old checkpoints, as `training.checkpoints.Journal.save` does, and return the seconds. The position, the two newest
        multiples of `checkpoint_every` and this invocation's own are kept.
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
        """Simulate reading the checkpoint. The first one holds the seeded model alone."""
        self._entered = (self.standing.round, self.standing.minibatch)
        first = self.adds * (self.world.workload.vector_bytes + VECTOR_HEADER_BYTES)
        bytes_ = self.standing.checkpoint_bytes or first
        self.tally.count("objects", "exists").count("objects", "get", into=bytes_)
        yield from self.spend("", self.objects.read.seconds(bytes_, 2))

    def compute(self) -> SimProcess:
        """Simulate the position's next minibatch. Raises Leave if the invocation has done its share, or if the time might not suffice."""
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

    def read_history(self) -> SimProcess:
        """Simulate reading the results of earlier epochs, on which the learning rate may depend. An invocation reads them only if it has
        not seen the latest decision.
        """
        before = self.world.days.decisions_before(self.standing.round)
        if before > self._known:
            self._known = before
            self.tally.count("objects", "get")
            yield from self.spend("", self.objects.read.latency_s)

    def accumulate(self) -> SimProcess:
        """Simulate the rest of the round's minibatches. Raises Leave."""
        while self.standing.minibatch < self.world.days.minibatches_in(self.standing.round):
            yield from self.compute()

    def agree(self, epoch: int) -> SimProcess:
        """Simulate an epoch's decision: one worker evaluates, the others wait for it. Raises Leave."""
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
                    world.note_epoch_end(epoch)
            else:  # whose claim there is, then its decision
                self.tally.count("objects", "get")
                yield from self.spend("", objects.read.latency_s)
                waited = yield from self.wait_for(decided)
                self.invocation.add_seconds("synchronise", waited)
                self.tally.count("objects", "get", self.count_polls(waited, "objects") + 1)
        self.tally.count("objects", "get")
        yield from self.spend("", objects.read.latency_s)
        self._known = number

    def _evaluate(self, epoch: int) -> SimProcess:
        """Simulate the evaluation. Raises Leave if the time might not suffice."""
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


def run_invocation(life: WorkerInvocation, exchange: Callable[[WorkerInvocation], SimProcess]) -> SimProcess:
    """Simulate rounds until training ends or the invocation must leave, then change the event's fields. `exchange`: simulates one round."""
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
    move_to_round(world, place, standing.round)
    place.minibatch = minibatch
    place.finished = life.finished
    place.epoch_finished = life.finished or place.epoch > entered


def build_last_step(world: World, checkpoint_bytes: int, *, members: int, bus: bool) -> Script:
    """Return the script of the last step of a run of long workers. `members`: workers and supervisor; `bus`: whether there is an exchange
    to remove.
    """
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
