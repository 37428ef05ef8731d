"""Simulated time, random factors by seed, and the usage that a simulated run adds up."""

import random
from collections import Counter, deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil, exp, inf
from typing import Any

import simpy
from simpy.events import NORMAL

# --- kernel -----------------------------------------------------------------------------------------------------------

SimProcess = Generator[simpy.Event, Any, None]


class Clock(simpy.Environment):
    """A simpy environment that holds the simulated time and its events. Instead of yielding a timeout, a process may call `skip`, which
    moves the time on at once if nothing else would happen meanwhile, and otherwise returns False; this saves an event and does not change
    the order of the others.
    """

    _resumes_one = False  # whether the event that happens now resumes a single process

    def run_until(self, end: simpy.Event) -> None:
        """Let events happen in the order of time until `end` has happened; do nothing if it has. Raises the error of a process that failed,
        and RuntimeError if no event is left before `end` has happened.
        """
        queue = self._queue
        while end.callbacks is not None and queue:
            self._now, _, _, event = heappop(queue)
            callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]  # as simpy marks what has happened
            self._resumes_one = len(callbacks) == 1
            for callback in callbacks:
                callback(event)
            if not event._ok and not hasattr(event, "_defused"):
                raise event._value
        if end.callbacks is not None:
            raise RuntimeError("a simulated run waits for an event that nothing brings about")

    def skip(self, seconds: float) -> bool:
        """Move the time on by `seconds` and return True, if no other event is due until then and the present event resumes only one
        process. Otherwise return False without moving the time, and the caller must yield a timeout.
        """
        return self._skip_to(self._now + seconds)

    def _skip_to(self, at: float) -> bool:
        """Move the time on to `at` under the conditions of `skip`, and return whether they held."""
        if not self._resumes_one or (self._queue and self._queue[0][0] <= at):
            return False
        self._now = at
        return True

    def wait_until(self, at: float) -> SimProcess:
        """Wait, as a simpy process, until the simulated time is `at`; return at once if it is that already. The time is then exactly `at`,
        which a timeout of the difference might miss by a rounding error.
        """
        if at <= self._now or self._skip_to(at):
            return
        due = simpy.Event(self)
        due._ok, due._value = True, None
        heappush(self._queue, (at, NORMAL, next(self._eid), due))
        yield due


class Link:
    """One direction of a host's network link in a simulation. It carries one transfer at a time, in the order of requests, with all its
    bandwidth `bytes_s`; `free_s`: simulated time from which it is free. The two directions of a host are independent.
    """

    __slots__ = ("bytes_s", "free_s")

    def __init__(self, bytes_s: float) -> None:
        """Create a free link. `bytes_s`: bandwidth in bytes per second."""
        self.bytes_s, self.free_s = bytes_s, 0.0

    def reserve(self, at: float, bytes_: float) -> float:
        """Return the time at which a transfer of `bytes_` bytes, requested at the time `at`, begins (`at`, or later if the link is busy),
        and reserve the link until the transfer ends. Calls must come in the order of time.
        """
        start = at if at > self.free_s else self.free_s
        self.free_s = start + bytes_ / self.bytes_s
        return start


class Host:
    """A simulated database host or broker with its two network links.

    `tour`: one link that represents all hosts, for steps in which every client visits all of them in the same order. Equal transfers then
    queue only at the first host and stay spaced afterwards, so a tour of any length is one request to the first host's link. That a client
    leaves out its own host is neglected.
    """

    __slots__ = ("egress", "ingress", "tour")

    def __init__(self, bytes_s: float, tour: Link | None = None) -> None:
        """Create a host with two free links of `bytes_s` bytes per second. `tour`: link shared by all hosts, by default one of its own."""
        self.egress, self.ingress = Link(bytes_s), Link(bytes_s)
        self.tour = tour or Link(bytes_s)

    def link(self, name: str) -> Link:
        """Return the link of that name: "egress", "ingress" or "tour"."""
        return self.egress if name == "egress" else self.ingress if name == "ingress" else self.tour


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a simulated step: requests and their transfers, or computing. `stage`: name of the stage to which its seconds count;
    `request_s`: seconds of latencies and transfers as if there were no other clients; `compute_s`: seconds of computing; `link`: the host's
    link that it uses, "egress", "ingress" or "tour", "" for none; `bytes_`: bytes with which it occupies that link.
    """

    stage: str
    request_s: float = 0.0  # latencies and transfers, without other clients
    compute_s: float = 0.0
    link: str = ""  # "egress", "ingress" or "tour" of the host, "" for none
    bytes_: float = 0.0  # that the link is busy with

    def end(self, at: float, host: Host | None, request: float, compute: float) -> float:
        """Return the simulated time at which this phase ends if it begins at the time `at`. If it uses a link of `host`, reserve the link
        and include the wait for it; without a host there is no such wait. `request`, `compute`: random factors on the seconds of requests
        and of computing.
        """
        if self.link and host is not None:
            at = host.link(self.link).reserve(at, self.bytes_)
        return at + self.request_s * request + self.compute_s * compute


class Gate:
    """A barrier in simulated time, which opens when `needed` members have arrived, and stays open. `arrived`: arrivals so far; `event`:
    happens when it opens; `opened_s`: time at which it opened, -1 before; `last`: number of the member that arrived last, -1 before any.
    """

    __slots__ = ("arrived", "event", "last", "needed", "opened_s")

    def __init__(self, env: simpy.Environment, needed: int) -> None:
        """Create a closed gate. `needed`: number of arrivals that open it, at least 1; with 0 it never opens."""
        self.event, self.needed, self.arrived, self.last = env.event(), needed, 0, -1
        self.opened_s = -1.0

    @property
    def is_open(self) -> bool:
        """True if enough members have arrived at this gate."""
        return self.opened_s >= 0.0

    def arrive(self, env: simpy.Environment, member: int = -1) -> None:
        """Count one arrival, and open this gate if it is the last needed one. A member that arrives twice counts twice; arrivals at an open
        gate are counted too. `member`: number of the worker that arrived.
        """
        self.arrived += 1
        self.last = member
        if self.arrived == self.needed:
            self.opened_s = env.now
            self.event.succeed()

    def wait(self) -> SimProcess:
        """Wait, as a simpy process, until this gate is open; return at once if it is."""
        if not self.is_open:
            yield self.event


class Slots:
    """The account's quota of concurrent function executions, given out in order of request. On AWS the state machine would retry a
    throttled invocation; here the invocation waits. `busy`: executions in use; `most`: highest number in use so far; `throttled`: number of
    invocations that had to wait; `longest_wait_s`: seconds of the longest wait.
    """

    def __init__(self, env: simpy.Environment, limit: int | None) -> None:
        """Create free slots. `limit`: the account's quota, None for no limit."""
        self._env, self.limit = env, limit
        self._waiting: deque[simpy.Event] = deque()
        self.busy = self.most = 0
        self.throttled, self.longest_wait_s = 0, 0.0

    def take(self) -> SimProcess:
        """Take one execution slot, as a simpy process; if none is free, wait in simulated time until one is given back, and count the wait
        in `throttled` and `longest_wait_s`.
        """
        if self.limit is not None and self.busy >= self.limit:
            self.throttled += 1
            asked, mine = self._env.now, self._env.event()
            self._waiting.append(mine)
            yield mine  # a process that gives its slot back hands it on
            self.longest_wait_s = max(self.longest_wait_s, self._env.now - asked)
            return
        self.take_at_once(1)

    def take_at_once(self, count: int) -> None:
        """Take `count` execution slots without waiting, even beyond the account's limit."""
        self.busy += count
        self.most = max(self.most, self.busy)

    def give_back(self, count: int = 1) -> None:
        """Give `count` execution slots back. Invocations that wait get them first."""
        for _ in range(count):
            if self._waiting:
                self._waiting.popleft().succeed()
            else:
                self.busy -= 1


class Environments:
    """The warm execution environments of one Lambda function. `keep_s`: seconds for which idle environments stay warm; `at_once`, `per_s`:
    limit of new environments, as a token bucket: `at_once` immediately, then `per_s` more each second; `longest_wait_s`: longest wait for a
    new one.
    """

    __slots__ = ("_due_s", "_idle", "_since_s", "at_once", "keep_s", "longest_wait_s", "per_s")

    def __init__(self, keep_s: float, *, at_once: float = inf, per_s: float = inf) -> None:
        """Create a function without environments. The parameters are explained at the class."""
        self._idle, self._since_s, self.keep_s = 0, 0.0, keep_s
        self.at_once, self.per_s = at_once, per_s
        self._due_s = self.longest_wait_s = 0.0

    def enter(self, now: float, count: int = 1) -> int:
        """Take environments for `count` invocations that start at the simulated time `now`: idle warm ones first. Return how many of the
        invocations start cold. All idle ones are gone if none was given back in the last `keep_s` seconds.
        """
        if now - self._since_s > self.keep_s:
            self._idle = 0
        warm = min(self._idle, count)
        self._idle -= warm
        return count - warm

    def reserve_new(self, now: float) -> float:
        """Count one new environment, requested at the time `now`, against the limit of new environments (a token bucket). Return the
        seconds until it may start, 0 without a limit, and keep the longest in `longest_wait_s`.
        """
        self._due_s = max(self._due_s, now) + 1 / self.per_s
        wait_s = max(0.0, self._due_s - now - self.at_once / self.per_s) if self.per_s < inf else 0.0
        self.longest_wait_s = max(self.longest_wait_s, wait_s)
        return wait_s

    def leave(self, now: float, count: int = 1) -> None:
        """Give `count` environments back. They are idle from the time `now` on."""
        self._idle += count
        self._since_s = now


class RandomFactors:
    """Random factors on the seconds of one worker, which make it a straggler at times. The same seed and worker number give the same
    factors.

    All are lognormal. Factors of computing, requests and hosts have mean 1; those of task starts and cold starts have median 1. A sigma of
    0 gives factors of 1.
    """

    __slots__ = ("_clock", "_cold", "_compute", "_gauss", "_host", "_hosts", "_request", "_task")

    def __init__(
        self,
        seed: int,
        worker: int,
        *,
        compute_sigma: float,
        request_sigma: float,
        task_sigma: float = 0.0,
        cold_sigma: float = 0.0,
        host_sigma: float = 0.0,
    ) -> None:
        """Seed the factors of one worker. `compute_sigma` to `host_sigma`: spread of each kind of factor, as a sigma of its logarithm."""
        self._gauss = random.Random(f"simulation {seed} {worker}").gauss
        self._compute, self._request = compute_sigma, request_sigma
        self._clock = random.Random(f"clocks {seed} {worker}").gauss
        self._task, self._cold, self._host = task_sigma, cold_sigma, host_sigma
        self._hosts: dict[str, list[float]] = {}

    def draw_task_factor(self) -> float:
        """Draw a random factor on the time from the end of one state machine task to the start of the next. The caller uses one factor for
        all branches of a Map.
        """
        return exp(self._clock(0.0, self._task)) if self._task else 1.0

    def draw_cold_factor(self) -> float:
        """Draw a random factor, with median 1, on the seconds of one cold start (sandbox and INIT)."""
        return exp(self._clock(0.0, self._cold)) if self._cold else 1.0

    def list_host_factors(self, step: str, count: int = 1) -> list[float]:
        """Return a list of at least `count` random factors on the computing time of this worker's environments of the step named `step`,
        one per environment. It is one list per step, to which later calls append; drawn factors stay the same through the run.
        """
        drawn, sigma = self._hosts.setdefault(step, []), self._host
        while len(drawn) < count:
            drawn.append(exp(self._clock(-sigma * sigma / 2, sigma)) if sigma else 1.0)
        return drawn

    def draw_compute_factor(self) -> float:
        """Draw a random factor, with mean 1, on the computing time of one invocation."""
        sigma = self._compute
        return exp(self._gauss(-sigma * sigma / 2, sigma)) if sigma else 1.0

    def draw_request_factor(self) -> float:
        """Draw a random factor, with mean 1, on the time of all requests of one invocation."""
        sigma = self._request
        return exp(self._gauss(-sigma * sigma / 2, sigma)) if sigma else 1.0


# --- usage ------------------------------------------------------------------------------------------------------------
# What simulated invocations use: sums by step, and on demand one record per invocation as a step would write it.

CHANNELS = {"objects": "object_store", "tensors": "tensor_store", "bus": "bus"}


@dataclass(slots=True)
class WhereInRun:
    """Position of a simulated invocation in the run (numbers of worker, epoch, round and minibatch), and the flags that steps pass on
    (`synchronised`, `epoch_finished`, `finished`).

    `minibatches`: number of minibatches in the round; `debt_s`: delays by state transitions that the next task still has to wait;
    `started`: random factor on the start of the next task if branches share it, 0 if it is drawn anew.
    """

    worker: int = 0
    epoch: int = 0
    round: int = 0
    minibatch: int = 0
    minibatches: int = 0
    synchronised: bool = False
    epoch_finished: bool = False
    finished: bool = False
    debt_s: float = 0.0
    started: float = 0.0

    def copy(self, **changes: Any) -> "WhereInRun":
        """Return a copy of this position with the fields named in `changes` replaced. A change of the copy does not change the original."""
        twin = WhereInRun(
            self.worker,
            self.epoch,
            self.round,
            self.minibatch,
            self.minibatches,
            self.synchronised,
            self.epoch_finished,
            self.finished,
            self.debt_s,
            self.started,
        )
        for name, value in changes.items():
            setattr(twin, name, value)
        return twin


@dataclass(slots=True)
class Tally:
    """Counts of requests and bytes by channel ("objects", "tensors" or "bus"). `operations`: number of requests by channel and operation;
    `bytes_in`, `bytes_out`: bytes read and written.
    """

    bytes_in: dict[str, int] = field(default_factory=dict)
    bytes_out: dict[str, int] = field(default_factory=dict)
    operations: dict[str, Counter[str]] = field(default_factory=dict)

    def count(self, channel: str, operation: str, times: int = 1, *, into: int = 0, out: int = 0) -> "Tally":
        """Count `times` requests of one operation on one channel, and return this tally. `into`, `out`: bytes that all of them together
        read and wrote.
        """
        if times:
            if channel not in self.operations:
                self.operations[channel] = Counter()
            self.operations[channel][operation] += times
        if into:
            self.bytes_in[channel] = self.bytes_in.get(channel, 0) + into
        if out:
            self.bytes_out[channel] = self.bytes_out.get(channel, 0) + out
        return self

    def add(self, other: "Tally", times: int = 1) -> None:
        """Add the counts of `other` to this tally, `times` times."""
        for channel, operations in other.operations.items():
            mine = self.operations.setdefault(channel, Counter())
            for operation, count in operations.items():
                mine[operation] += times * count
        for channel, bytes_ in other.bytes_in.items():
            self.bytes_in[channel] = self.bytes_in.get(channel, 0) + times * bytes_
        for channel, bytes_ in other.bytes_out.items():
            self.bytes_out[channel] = self.bytes_out.get(channel, 0) + times * bytes_

    def as_traffic(self) -> dict[str, dict[str, Any]]:
        """Return the counts in the form of a record's `traffic`: for each channel, by the name it has in records, its `bytes_in`,
        `bytes_out`, `requests`, and the number of requests by operation.
        """
        return {
            name: {
                "bytes_in": self.bytes_in.get(channel, 0),
                "bytes_out": self.bytes_out.get(channel, 0),
                "requests": self.operations.get(channel, Counter()).total(),
                "operations": dict(self.operations.get(channel, {})),
            }
            for channel, name in CHANNELS.items()
        }


Stages = Sequence[tuple[str, float, int]]  # name, seconds, how often


@dataclass(slots=True)
class StepUse:
    """Usage of one step, summed over its invocations. `cold`: number of cold starts; `wall_s`, `init_s`: seconds of handlers and of INIT;
    `billed_ms`: milliseconds that Lambda bills; `longest_s`, `longest_compute_s`: seconds of the longest invocation, and of gradients in
    it; `memory_mb`: 0 for a program on an instance; `base_bytes`: bytes of base weights that a cold invocation reads; `stages`: [seconds,
    count] by name.
    """

    step: str
    memory_mb: int
    invocations: int = 0
    cold: int = 0
    wall_s: float = 0.0
    init_s: float = 0.0
    billed_ms: int = 0
    longest_s: float = 0.0
    longest_compute_s: float = 0.0  # of gradients, in the longest one
    base_bytes: int = 0
    stages: dict[str, list[float]] = field(default_factory=dict)  # name -> [seconds, count]

    @property
    def mean_s(self) -> float:
        """Mean seconds of one invocation of this step; 0 if there were none."""
        return self.wall_s / self.invocations if self.invocations else 0.0

    def stage_mean_s(self, stage: str) -> float:
        """Return the seconds that this step spends in the stage named `stage`, per invocation; 0 if it has no such stage."""
        return self.stages.get(stage, [0.0, 0])[0] / max(1, self.invocations)


@dataclass
class Usage:
    """Usage of all invocations of a simulated run. `architecture`: name for the records; `steps`: sums by name of the step; `records`: one
    record per invocation as a real step writes it, only if `keep_records` is set; `facts_bytes`: size of the run configuration, which each
    fresh environment reads once.
    """

    architecture: str
    keep_records: bool = False
    steps: dict[str, StepUse] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    facts_bytes: int = 2_600  # the run configuration, which each fresh environment reads once
    _tallies: dict[int, tuple[Tally, list[int]]] = field(default_factory=dict)

    def for_step(self, step: str, *, memory_mb: int, base_bytes: int = 0) -> StepUse:
        """Return the usage of the step with that name, to which invocations are added; create an empty one at the first call, which alone
        uses the other arguments. `memory_mb`: memory of its function, 0 for a program; `base_bytes`: bytes of base weights that a cold
        invocation reads.
        """
        found = self.steps.get(step)
        if found is None:
            found = self.steps[step] = StepUse(step, memory_mb, base_bytes=base_bytes)
        return found

    def add(
        self,
        use: StepUse,
        place: WhereInRun,
        *,
        started_at: float,
        wall_s: float,
        init_s: float,
        cold: bool,
        tally: Tally,
        stages: Stages,
        minibatch: int | None = None,
        notes: Mapping[str, Any] | None = None,
        times: int = 1,
    ) -> None:
        """Add one invocation of a step, or `times` equal ones, to the usage of the run.

        `use`: usage of the step, which is changed; `place`: position in the run; `started_at`: its start in simulated seconds; `wall_s`,
        `init_s`: seconds of the handler and of INIT; `cold`: whether it started cold; `tally`: its requests, kept by reference and summed
        only by `total`; `stages`: (name, seconds, count) of its stages; `minibatch`: number to record instead of the place's; `notes`:
        further fields of the record. With `times` above 1, at most one of them starts cold, `init_s` is added once, and no records may be
        kept.
        """
        use.invocations += times
        wall_s = round(wall_s, 6)
        init_s = round(init_s, 6)
        use.wall_s += times * wall_s
        use.init_s += init_s
        # As reports/usage.py bills a record.
        use.billed_ms += times * max(1, ceil(round((wall_s + init_s) * 1_000, 6)))
        if wall_s > use.longest_s:
            use.longest_s = wall_s
            use.longest_compute_s = sum(seconds for stage, seconds, _ in stages if stage == "compute")
        if cold:
            use.cold += 1
        for stage, seconds, count in stages:
            known = use.stages.get(stage)
            if known is None:
                known = use.stages[stage] = [0.0, 0]
            known[0] += times * seconds
            known[1] += times * count
        mine = self._tallies.get(id(tally))
        if mine is None:
            mine = self._tallies[id(tally)] = (tally, [0])
        mine[1][0] += times
        if self.keep_records:
            at = place.minibatch if minibatch is None else minibatch
            self._record(use, place, at, started_at, wall_s, init_s, cold, tally, stages, notes or {})

    def _record(
        self,
        use: StepUse,
        place: WhereInRun,
        minibatch: int,
        started_at: float,
        wall_s: float,
        init_s: float,
        cold: bool,
        tally: Tally,
        stages: Stages,
        notes: Mapping[str, Any],
    ) -> None:
        """Append the record of one invocation, with the fields that a real step writes. If it starts cold, its traffic includes the reads
        of the run configuration and of base weights, which `tally` does not hold.
        """
        traffic = tally.as_traffic()
        if cold and use.memory_mb:
            for bytes_ in filter(None, (self.facts_bytes, use.base_bytes)):
                _count_read(traffic, bytes_)
        self.records.append(
            {
                "run": "simulated",
                "step": use.step,
                "architecture": self.architecture,
                "worker": place.worker,
                "epoch": place.epoch,
                "round": place.round,
                "minibatch": minibatch,
                "request_id": f"simulated-{len(self.records)}",
                "started_at": started_at,
                "wall_s": wall_s,
                "cpu_s": wall_s,
                "slot_wait_s": 0.0,
                "max_rss_mb": 0.0,
                "memory_mb": use.memory_mb,
                "cold": cold,
                "init_s": init_s,
                "outcome": "ok",
                "error": "",
                "stages": [{"stage": s, "wall_s": t, "cpu_s": t, "count": n} for s, t, n in stages],
                "traffic": traffic,
                **notes,
            }
        )

    def total(self) -> Tally:
        """Return all requests and bytes of the simulated run in one tally, including those by which cold starts read the run configuration
        and base weights.
        """
        whole = Tally()
        for tally, times in self._tallies.values():
            whole.add(tally, times[0])
        for use in (each for each in self.steps.values() if each.memory_mb):
            into = use.cold * (self.facts_bytes + use.base_bytes)
            whole.count("objects", "get", use.cold * (1 + bool(use.base_bytes)), into=into)
        return whole


def _count_read(traffic: dict[str, dict[str, Any]], bytes_: int) -> None:
    """Add one read of an object of `bytes_` bytes to the object store's part of `traffic`, the traffic of one record."""
    objects = traffic["object_store"]
    objects["bytes_in"] += bytes_
    objects["requests"] += 1
    objects["operations"] = {**objects["operations"], "get": objects["operations"].get("get", 0) + 1}
