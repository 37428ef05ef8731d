"""Stores, the bus and networks as measured: latency, a connection's rate by direction, a client's processor, a token bucket.

A `Service` is what a store is by itself; `at` gives it as one client sees it, with that client's share of a vCPU and network.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf

from crossover.simulation import figures

VCPU_MB = 1_769  # of a function's memory: one vCPU (AWS Lambda, "Configuring memory")


@cache
def vcpus(memory_mb: float) -> float:
    """What a function of that memory may use: its credits, of the vCPUs that it sees."""
    seen = next((count for most_mb, count in figures.function_vcpus() if memory_mb <= most_mb), inf)
    return min(seen, memory_mb / VCPU_MB)


@dataclass(frozen=True, kw_only=True)
class TokenBucket:
    """A token bucket, each direction its own: `burst_bytes` at once, then `floor_bytes_s`.

    `by_memory`: floors of a rule that grows with a function's memory (MB, bytes per second), in straight lines between.
    """

    burst_bytes: float
    floor_bytes_s: float
    by_memory: Sequence[tuple[float, float]] = ()

    def floor_at(self, memory_mb: float) -> float:
        """What flows for ever, of a function of that memory."""
        if not self.by_memory:
            return self.floor_bytes_s
        below, *above = self.by_memory
        for known in above:
            if memory_mb <= known[0]:
                share = max(0.0, memory_mb - below[0]) / (known[0] - below[0])
                return below[1] + share * (known[1] - below[1])
            below = known
        return below[1]


@dataclass(frozen=True, slots=True)
class Direction:
    """Requests of one kind, as one client sees them."""

    latency_s: float
    bytes_s: float = inf  # the slowest of connection, processor and host
    burst_bytes: float = inf
    floor_bytes_s: float = inf

    def seconds(self, bytes_: float, requests: int = 1) -> float:
        """Of `requests` one after another that move `bytes_` in all, from a full bucket, without anybody else."""
        seconds = bytes_ / self.bytes_s
        if bytes_ > self.burst_bytes:
            seconds = max(seconds, (bytes_ - self.burst_bytes) / self.floor_bytes_s)
        return requests * self.latency_s + seconds


@dataclass(frozen=True, slots=True)
class ServiceClient:
    """A service as one client sees it."""

    read: Direction
    write: Direction


@dataclass(frozen=True, kw_only=True)
class Service:
    """A store or the bus. A request takes `latency_s` and its bytes over the slowest of the client's way, its processor and the host's.

    What is said of reading holds for writing, too, unless `write_` says otherwise.
    """

    latency_s: float  # mean of a request without a body
    client_bytes_s: float = inf  # one connection's way to it
    host_bytes_s: float = inf  # what all clients of one host share, in each direction
    latency_sigma: float = 0.0  # of a request's logarithm
    cpu_s_byte: float = 0.0  # the client's processor, in seconds of a whole vCPU
    slowdown: float = 1.0  # of transfers: what measured readers needed beyond connection and network
    write_latency_s: float | None = None
    write_latency_sigma: float | None = None
    write_client_bytes_s: float | None = None
    write_cpu_s_byte: float | None = None

    def slowed(self, factor: float) -> "Service":
        """In a session whose requests take `factor` times as long. What the client's processor and the host's link allow stays."""
        writes = self.write_latency_s
        return replace(
            self,
            latency_s=factor * self.latency_s,
            write_latency_s=None if writes is None else factor * writes,
            slowdown=factor * self.slowdown,
        )

    def at(self, *, vcpus: float = 1.0, burst_bytes: float = inf, floor_bytes_s: float = inf) -> ServiceClient:
        """As a client sees it whose one thread has so much of a vCPU, behind a network of that bucket."""

        def direction(latency_s: float, client_bytes_s: float, cpu_s_byte: float) -> Direction:
            processor = min(vcpus, 1.0) / cpu_s_byte if cpu_s_byte else inf
            rate = min(client_bytes_s / self.slowdown, self.host_bytes_s, processor)
            floor = floor_bytes_s / self.slowdown
            return (
                Direction(latency_s, rate, burst_bytes, floor)
                if burst_bytes
                else Direction(latency_s, min(rate, floor))
            )

        return ServiceClient(
            direction(self.latency_s, self.client_bytes_s, self.cpu_s_byte),
            direction(
                _or(self.write_latency_s, self.latency_s),
                _or(self.write_client_bytes_s, self.client_bytes_s),
                _or(self.write_cpu_s_byte, self.cpu_s_byte),
            ),
        )


def _or(own: float | None, reading: float) -> float:
    return reading if own is None else own
