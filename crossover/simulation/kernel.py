"""What simulated processes share: links, function environments, the account's concurrency, gates; and each worker's chance.

simpy keeps the clock. A link serves first come, first served: who arrives while it is busy starts when it is free, so a request needs one
event.
"""

import random
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from math import exp, inf
from typing import Any

import simpy

SimProcess = Generator[simpy.Event, Any, None]


class Link:
    """One direction of a host's network, `bytes_s` shared by all who use it. The two directions do not disturb one another."""

    __slots__ = ("bytes_s", "free_s")

    def __init__(self, bytes_s: float) -> None:
        self.bytes_s, self.free_s = bytes_s, 0.0

    def reserve(self, at: float, bytes_: float) -> float:
        """When a transfer that asks at `at` begins. Asked in the order of time."""
        start = at if at > self.free_s else self.free_s
        self.free_s = start + bytes_ / self.bytes_s
        return start


class Host:
    """A database host or broker. `tour`: what all hosts share when each client visits all of them in the same order.

    Equal transfers that visit equal hosts in one order queue at the first only: there they are spaced, and stay so. So a tour of any length
    is one request to the first host's link; that a client leaves out its own host is neglected.
    """

    __slots__ = ("egress", "ingress", "tour")

    def __init__(self, bytes_s: float, tour: Link | None = None) -> None:
        self.egress, self.ingress = Link(bytes_s), Link(bytes_s)
        self.tour = tour or Link(bytes_s)

    def link(self, name: str) -> Link:
        return self.egress if name == "egress" else self.ingress if name == "ingress" else self.tour


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a step: requests one after another with their transfers, or computing. `link`: which of the host's links it needs."""

    stage: str
    request_s: float = 0.0  # latencies and transfers, as if nobody else were there
    compute_s: float = 0.0
    link: str = ""  # "egress", "ingress" or "tour" of the host, "" for none
    bytes_: float = 0.0  # that the link is busy with

    def end(self, at: float, host: Host | None, request: float, compute: float) -> float:
        """When it is done; `request`, `compute`: this invocation's luck, as factors."""
        if self.link and host is not None:
            at = host.link(self.link).reserve(at, self.bytes_)
        return at + self.request_s * request + self.compute_s * compute


class Gate:
    """Opens when `needed` have arrived; remembers when, and who came last."""

    __slots__ = ("arrived", "event", "last", "needed", "opened_s")

    def __init__(self, env: simpy.Environment, needed: int) -> None:
        self.event, self.needed, self.arrived, self.last = env.event(), needed, 0, -1
        self.opened_s = -1.0

    @property
    def open(self) -> bool:
        return self.opened_s >= 0.0

    def arrive(self, env: simpy.Environment, member: int = -1) -> None:
        self.arrived += 1
        self.last = member
        if self.arrived == self.needed:
            self.opened_s = env.now
            self.event.succeed()

    def wait(self) -> SimProcess:
        if not self.open:
            yield self.event


class Slots:
    """The account's concurrent executions, first come, first served: on AWS a throttled invocation is asked for again by its state."""

    def __init__(self, env: simpy.Environment, limit: int | None) -> None:
        self._env, self.limit = env, limit
        self._waiting: deque[simpy.Event] = deque()
        self.busy = self.most = 0
        self.throttled, self.longest_wait_s = 0, 0.0

    def take(self) -> SimProcess:
        if self.limit is not None and self.busy >= self.limit:
            self.throttled += 1
            asked, mine = self._env.now, self._env.event()
            self._waiting.append(mine)
            yield mine  # whoever gives its slot back hands it on
            self.longest_wait_s = max(self.longest_wait_s, self._env.now - asked)
            return
        self.grow(1)

    def grow(self, count: int) -> None:
        self.busy += count
        self.most = max(self.most, self.busy)

    def give(self, count: int = 1) -> None:
        for _ in range(count):
            if self._waiting:
                self._waiting.popleft().succeed()
            else:
                self.busy -= 1


class Environments:
    """The warm environments of one function. New ones come `at_once`, and so many a second more: a token bucket."""

    __slots__ = ("_due_s", "_idle", "_since_s", "at_once", "keep_s", "longest_wait_s", "per_s")

    def __init__(self, keep_s: float, *, at_once: float = inf, per_s: float = inf) -> None:
        self._idle, self._since_s, self.keep_s = 0, 0.0, keep_s
        self.at_once, self.per_s = at_once, per_s
        self._due_s = self.longest_wait_s = 0.0

    def enter(self, now: float, count: int = 1) -> int:
        """How many of `count` invocations start cold."""
        if now - self._since_s > self.keep_s:
            self._idle = 0
        warm = min(self._idle, count)
        self._idle -= warm
        return count - warm

    def wait_s(self, now: float) -> float:
        """Until the next new one may come that is asked for at `now`."""
        self._due_s = max(self._due_s, now) + 1 / self.per_s
        wait_s = max(0.0, self._due_s - now - self.at_once / self.per_s) if self.per_s < inf else 0.0
        self.longest_wait_s = max(self.longest_wait_s, wait_s)
        return wait_s

    def leave(self, now: float, count: int = 1) -> None:
        self._idle += count
        self._since_s = now


class Luck:
    """One worker's stragglers, from the seed and the worker alone, whatever the others do: lognormal factors, of computing, requests and
    hosts with mean 1, of what the services' clocks take with median 1.
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
        self._gauss = random.Random(f"simulation {seed} {worker}").gauss
        self._compute, self._request = compute_sigma, request_sigma
        self._clock = random.Random(f"clocks {seed} {worker}").gauss
        self._task, self._cold, self._host = task_sigma, cold_sigma, host_sigma
        self._hosts: dict[str, list[float]] = {}

    def task(self) -> float:
        """Of a task's start after the one before; the branches of a Map share it."""
        return exp(self._clock(0.0, self._task)) if self._task else 1.0

    def cold(self) -> float:
        """Of a sandbox and its INIT."""
        return exp(self._clock(0.0, self._cold)) if self._cold else 1.0

    def hosts(self, step: str, count: int = 1) -> list[float]:
        """Of computing in the worker's environments of that step, at least so many, through the run."""
        drawn, sigma = self._hosts.setdefault(step, []), self._host
        while len(drawn) < count:
            drawn.append(exp(self._clock(-sigma * sigma / 2, sigma)) if sigma else 1.0)
        return drawn

    def compute(self) -> float:
        sigma = self._compute
        return exp(self._gauss(-sigma * sigma / 2, sigma)) if sigma else 1.0

    def request(self) -> float:
        sigma = self._request
        return exp(self._gauss(-sigma * sigma / 2, sigma)) if sigma else 1.0
