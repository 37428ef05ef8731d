"""Parts that simulated long workers share: restoring, computing, checkpoints, agreement, and leaving before the time limit.

The order is that of crossover/training/long_worker.py. Each protocol supplies its own part of a round.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from math import inf, log, log1p
from typing import Any

import simpy

from crossover.simulation.calibration import ServiceClient
from crossover.simulation.kernel import Gate, Phase, SimProcess, Tally, WhereInRun
from crossover.simulation.mirror.spirt import move_to_round
from crossover.simulation.workload import VECTOR_HEADER_BYTES
from crossover.simulation.world import Script, SimulatedInvocation, World
from crossover.training.waits import POLLING, reserve_s


class Leave(Exception):
    """Signal that a simulated worker must end its invocation, because its deadline is near or because it has computed as many minibatches
    as one invocation may. `run_invocation` catches it, and simulates the last checkpoint.
    """


@dataclass
class WorkerProgress:
    """Progress of one simulated worker, which lasts from one invocation to the next. `round`, `minibatch`: what comes next; `saved`:
    positions (round, minibatch) of its checkpoints; `published`: by name, the last round for which it published a vector;
    `checkpoint_bytes`: size of the last checkpoint, 0 if there is only the initial model.
    """

    round: int = 0
    minibatch: int = 0
    saved: set[tuple[int, int]] = field(default_factory=lambda: {(0, 0)})
    published: dict[str, int] = field(default_factory=dict)  # by what: the last round it was shown for
    checkpoint_bytes: int = 0  # of the last one saved; 0: the seeded model alone


@dataclass
class WorkerInvocation:
    """One simulated invocation of a long worker (a function that trains many rounds in one invocation), with methods that simulate what it
    does. `world`: the simulated run; `invocation`: receives stages and requests; `place`: position in the run; `progress`: the worker's
    progress through all its invocations; `kept_bytes`: function that returns the size of a checkpoint in a given round; `step`: name of its
    step; `adds`: whether the worker sums gradients up within a round; `computed`: minibatches computed by this invocation; `slowest_s`,
    `evaluation_s`: seconds of its slowest minibatch and of its evaluation; `finished`: whether training has ended.

    What an invocation does alone only moves its own time, `now`, ahead of the simulation's, which saves an event each time. `catch_up`
    lets the simulation's time follow, and comes before all that other workers notice: an open gate, a decision, a transfer on a shared
    link.
    """

    world: World
    place: WhereInRun
    invocation: SimulatedInvocation
    progress: WorkerProgress
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
    _ahead_at: float = 0.0  # the invocation's own time, if it is ahead of the simulation's

    @property
    def objects(self) -> ServiceClient:
        """Speed of the object store as this step's functions see it."""
        return self.world.objects(self.step)

    @property
    def memory_mb(self) -> int:
        """Memory of the worker's function in MB."""
        return self.world.memory_of(self.step)

    @property
    def tally(self) -> Tally:
        """Requests that this invocation has made so far."""
        return self.invocation.tally

    @property
    def now(self) -> float:
        """Simulated time of this invocation, which may be ahead of the simulation's."""
        now: float = self.world.env.now
        return self._ahead_at if self._ahead_at > now else now

    def catch_up(self) -> SimProcess:
        """Wait, as a simpy process, until the simulation's time is that of this invocation."""
        yield from self.world.env.wait_until(self._ahead_at)

    def note_usage(self) -> None:
        """Append a snapshot of this invocation's usage so far (time, seconds, object store traffic) to the notes for its record. Does
        nothing if the simulation keeps no records.
        """
        if self.world.usage.keep_records:
            now, stored = self.now, self.tally.as_traffic()["object_store"]
            usage = {"at": now, "wall_s": now - self.invocation.started_at, "traffic": {"object_store": stored}}
            self.invocation.notes.setdefault("marks", []).append(usage)

    def remaining_s(self) -> float:
        """Return the seconds until this invocation must stop its work: the time until its deadline, minus the reserve for a last
        checkpoint. 0 or less if it must stop now.
        """
        return self.invocation.deadline_s - self.now - reserve_s(self.world.experiment)

    def spend(self, stage: str, seconds: float) -> SimProcess:
        """Move this invocation's own time on by `seconds`, as a simpy process; the simulation's time does not follow before `catch_up`.
        `stage`: stage to which they are added, "" for none. If the invocation's deadline has passed afterwards, the whole simulation ends.
        """
        if stage:
            self.invocation.add_seconds(stage, seconds)
        self._ahead_at = self.now + seconds
        if self._ahead_at > self.invocation.deadline_s:
            yield from self._end_at_deadline()

    def _end_at_deadline(self) -> SimProcess:
        """End the whole simulation, as a simpy process, because the invocation's deadline has passed; this process itself never ends. Waits
        stop before the deadline, but computing and transfers do not, and a retry would fail again.
        """
        yield from self.catch_up()
        spent_s = self.world.env.now - self.invocation.started_at
        limit_s = self.world.experiment.functions.timeout_s
        self.world.end_simulation(
            f"{self.step} is in the middle of its work after {spent_s:,.0f} s; functions.timeout_s is {limit_s}"
        )
        yield self.world.env.event()  # nothing follows

    def wait_for(self, gate: Gate) -> Generator[simpy.Event, Any, float]:
        """Wait, as a simpy process, until the gate is open, and return the seconds waited, 0 if it was open. Raises Leave if this
        invocation must end before that.
        """
        env = self.world.env
        yield from self.catch_up()
        if gate.is_open:
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
        """Simulate, as a simpy process, `count` reads, one after another, of vectors that the members of the gate publish; they end at the
        earliest when the last member has published. Returns the seconds lost by waiting for members, 0 if all had published.

        The last member to publish delays its own vector and all that are read after it. `stage`: stage to which the seconds are added;
        `each_s`: seconds of one read; `before`: function that returns how many vectors are read before that of a given member. Raises Leave
        while it waits, if this invocation must end before the last member has published. If the invocation's deadline passes while it
        reads, the simulated run ends unfinished (see `spend`).
        """
        began = self.now
        waited = yield from self.wait_for(gate)
        end = began + count * each_s
        if waited:
            end = max(end, self.now + (count - before(gate.last)) * each_s)
        yield from self.spend("", max(0.0, end - self.now))
        self.invocation.add_seconds(stage, end - began)
        return max(0.0, end - began - count * each_s)

    def count_polls(self, waited_s: float, channel: str) -> int:
        """Return how many polls of a store are in vain while a worker waits for `waited_s` seconds; 0 if it does not wait. `channel`:
        "objects" for S3; any other means Redis, which is polled more often.
        """
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
        """Simulate, as a simpy process, the requests of a checkpoint: check whether the run was resumed or has ended, write a checkpoint of
        the current position unless there is one, and delete old ones.
        """
        progress, position = self.progress, (self.progress.round, self.progress.minibatch)
        self.tally.count("objects", "exists", 2)
        seconds = 2 * self.objects.read.latency_s
        if position not in progress.saved:
            bytes_ = self.kept_bytes(progress.round)
            if self.adds and self._holds_partial_round():
                bytes_ += self.world.workload.vector_bytes + VECTOR_HEADER_BYTES
            progress.checkpoint_bytes = bytes_
            self.tally.count("objects", "put", out=bytes_)
            seconds += self.objects.write.seconds(bytes_) + self._delete_old_checkpoints(position)
        yield from self.spend("checkpoint", seconds)

    def _holds_partial_round(self) -> bool:
        """Return True if a checkpoint of the present position includes one vector more: the sum of the round's gradients so far, or with
        deltas the model at the start of the round.
        """
        done = self.progress.minibatch
        match self.world.experiment.exchange.what:
            case "gradients":
                return 0 < done < self.world.days.minibatches_in(self.progress.round)
            case what:
                return what == "delta" and done > 0

    def _delete_old_checkpoints(self, position: tuple[int, int]) -> float:
        """Forget the worker's checkpoints that are no longer needed, count the delete request, and return its seconds (0 if there is
        nothing to delete). `position`: (round, minibatch) of the newest checkpoint. Kept are `position`, the two newest whose round is a
        multiple of `checkpoint_every`, and all since the start of this invocation.
        """
        kept, every = {*self.progress.saved, position}, self.world.experiment.functions.checkpoint_every
        multiples = sorted((each for each in kept if each[1] == 0 and each[0] % every == 0), reverse=True)
        needed = {position, *multiples[:2], *(each for each in kept if each >= self._entered)}
        self.progress.saved = needed
        if needed == kept:
            return 0.0
        self.tally.count("objects", "delete")
        return self.objects.read.latency_s

    def restore(self) -> SimProcess:
        """Simulate, as a simpy process, reading the worker's latest checkpoint at the start of an invocation, and note the position at
        which it starts. The first one of a run contains only the initial model.
        """
        self._entered = (self.progress.round, self.progress.minibatch)
        first = self.adds * (self.world.workload.vector_bytes + VECTOR_HEADER_BYTES)
        bytes_ = self.progress.checkpoint_bytes or first
        self.tally.count("objects", "exists").count("objects", "get", into=bytes_)
        yield from self.spend("", self.objects.read.seconds(bytes_, 2))

    def read_history(self) -> SimProcess:
        """Simulate, as a simpy process, reading the results of earlier epochs, on which the learning rate may depend; nothing if this
        invocation has already read the latest results.
        """
        before = self.world.days.decisions_before(self.progress.round)
        if before > self._known:
            self._known = before
            self.tally.count("objects", "get")
            yield from self.spend("", self.objects.read.latency_s)

    def accumulate(self) -> SimProcess:
        """Simulate, as a simpy process, all remaining minibatches of the worker's round: fetch each, compute its gradient, and advance the
        worker's progress by one minibatch. Raises Leave if this invocation has computed as many minibatches as it may, or if less time is
        left than its slowest minibatch took twice. If the invocation's deadline passes meanwhile, the whole simulation ends.
        """
        world, progress, invocation = self.world, self.progress, self.invocation
        asked, factors = world.experiment.exchange.minibatches_per_invocation, world.factors[self.place.worker]
        limit = asked if isinstance(asked, int) else inf
        host = factors.list_host_factors(self.step)[0]
        for number in world.days.list_minibatches(progress.round)[progress.minibatch :]:
            if self.computed >= limit or self.remaining_s() < 2 * self.slowest_s:
                raise Leave
            batch, read_s, gradient_s = self._minibatch_costs(world.workload.samples[number])
            self.tally.count("objects", "get", into=batch)
            fetch_s = read_s * factors.draw_request_factor()
            compute_s = gradient_s * factors.draw_compute_factor() * host
            # As `spend`, which would take a generator for each.
            invocation.add_seconds("fetch", fetch_s)
            invocation.add_seconds("compute", compute_s)
            self._ahead_at = self.now + fetch_s + compute_s
            if self._ahead_at > invocation.deadline_s:
                yield from self._end_at_deadline()
            self.computed += 1
            self.slowest_s = max(self.slowest_s, fetch_s + compute_s)
            progress.minibatch += 1

    def _minibatch_costs(self, samples: int) -> tuple[int, float, float]:
        """Return (bytes, seconds of reading, seconds of computing) of a minibatch of `samples` samples, without random factors. Cached,
        since many thousand are alike.
        """
        world = self.world
        known: dict[int, tuple[int, float, float]] = world.state.setdefault(("minibatch", self.step), {})
        if samples not in known:
            batch = world.workload.batch_bytes(samples)
            gradient_s = world.calibration.function_gradient_s(
                world.experiment, world.workload, samples, memory_mb=self.memory_mb
            )
            known[samples] = batch, self.objects.read.seconds(batch), gradient_s
        return known[samples]

    def agree(self, epoch: int) -> SimProcess:
        """Simulate, as a simpy process, the decision after `epoch` (its evaluation, and whether training continues): the first worker to
        arrive evaluates the model and opens the decision's gate, the others wait for the decision and read it. Raises Leave if this
        invocation must end first; the same worker then evaluates in its next one.
        """
        world, objects = self.world, self.objects
        decided, taken = world.gate("decision", epoch, needed=1), ("evaluating", epoch)
        number = world.days.decision_of_epoch(epoch)
        self.tally.count("objects", "exists")
        yield from self.spend("", objects.read.latency_s)
        yield from self.catch_up()
        if not decided.is_open:
            self.tally.count("objects", "put")
            evaluator = world.state.setdefault(taken, self.place.worker)
            yield from self.spend("", objects.write.latency_s)
            if evaluator == self.place.worker:
                yield from self._evaluate(epoch)
                yield from self.catch_up()
                if not decided.is_open:
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
        """Simulate, as a simpy process, the evaluation on the validation set after `epoch`, and storing its decision. Raises Leave if less
        time is left than twice this invocation's last evaluation took.
        """
        world, workload, objects = self.world, self.world.workload, self.objects
        if self.remaining_s() < 2 * self.evaluation_s:
            raise Leave
        chunks = workload.validation_chunks
        self.tally.count("objects", "get", chunks, into=workload.validation_bytes)
        if world.days.decision_of_epoch(epoch) > 1:
            self.tally.count("objects", "get")
        self.tally.count("objects", "put")
        seconds = objects.read.seconds(workload.validation_bytes, chunks + 1) + objects.write.latency_s
        seconds += world.evaluate_s(memory_mb=self.memory_mb)
        self.evaluation_s = seconds
        yield from self.spend("evaluate", seconds)


def run_invocation(worker_call: WorkerInvocation, exchange: Callable[[WorkerInvocation], SimProcess]) -> SimProcess:
    """Simulate one invocation of a long worker, as a simpy process: rounds until training ends or the invocation must end, with
    checkpoints, one of them at the end, and with decisions after epochs. Then set the worker's position in the run for the next invocation;
    `place.finished` is True if training has ended. `exchange`: function that simulates one whole round as a simpy process; it may raise
    Leave, which ends the invocation.
    """
    world, progress, place = worker_call.world, worker_call.progress, worker_call.place
    days, every, entered = world.days, world.experiment.functions.checkpoint_every, place.epoch
    yield from worker_call.restore()
    worker_call.note_usage()
    try:
        while True:
            if progress.minibatch == 0:
                if progress.round % every == 0:
                    yield from worker_call.save()
                if progress.round and days.ends_epoch(progress.round - 1):
                    yield from worker_call.agree(days.epoch(progress.round - 1))
                    worker_call.finished = days.epoch(progress.round - 1) >= days.epochs
                    worker_call.note_usage()
                if worker_call.finished:
                    break
            yield from exchange(worker_call)
            progress.round, progress.minibatch = progress.round + 1, 0
    except Leave:
        pass
    yield from worker_call.save()
    yield from worker_call.catch_up()
    worker_call.invocation.notes |= {"until": [progress.round, progress.minibatch], "attempt": 0}
    minibatch = progress.minibatch
    move_to_round(world, place, progress.round)
    place.minibatch = minibatch
    place.finished = worker_call.finished
    place.epoch_finished = worker_call.finished or place.epoch > entered


def build_last_step(world: World, checkpoint_bytes: int, *, members: int, bus: bool) -> Script:
    """Return the phases and requests of the last step of a run whose workers are long functions: read a checkpoint of `checkpoint_bytes`
    bytes, store the trained model, delete keys. `members`: number of workers and supervisors; `bus`: whether a message exchange is removed
    too.
    """
    size, objects = world.workload.vector_bytes, world.objects("collect")
    read = checkpoint_bytes
    tally = Tally().count("objects", "list", 4).count("objects", "exists", 4).count("objects", "delete", 2)
    tally.count("objects", "get", 2, into=read)
    tally.count("objects", "put", 3, out=size + VECTOR_HEADER_BYTES)
    stores = world.architecture.tensor_hosts != "none"  # else there is nothing to delete but checkpoints
    if stores:
        tally.count("objects" if world.uses_object_store else "tensors", "delete")
    if bus:
        tally.count("bus", "remove")
    seconds = objects.read.seconds(read, 12) + objects.write.seconds(size, 3)
    seconds += stores * members * world.tensors("collect").read.latency_s
    return Script((Phase("collect", request_s=seconds),), tally)
