"""What simulated invocations use: sums by step, and on demand one record per invocation as `metering.py` would write it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

CHANNELS = {"objects": "object_store", "tensors": "tensor_store", "bus": "bus"}


@dataclass(slots=True)
class WhereInRun:
    """Where in the run an invocation stands: the event's fields that vary. `debt_s`: what states have taken since the last wait;
    `started`: the factor on the first task's start that branches share, 0 where a task has its own.
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
    """Requests by channel and operation, and the bytes they moved."""

    bytes_in: dict[str, int] = field(default_factory=dict)
    bytes_out: dict[str, int] = field(default_factory=dict)
    operations: dict[str, Counter[str]] = field(default_factory=dict)

    def count(self, channel: str, operation: str, times: int = 1, *, into: int = 0, out: int = 0) -> "Tally":
        """`into`, `out`: bytes of all of them."""
        if times:
            self.operations.setdefault(channel, Counter())[operation] += times
        if into:
            self.bytes_in[channel] = self.bytes_in.get(channel, 0) + into
        if out:
            self.bytes_out[channel] = self.bytes_out.get(channel, 0) + out
        return self

    def add(self, other: "Tally", times: int = 1) -> None:
        for channel, operations in other.operations.items():
            mine = self.operations.setdefault(channel, Counter())
            for operation, count in operations.items():
                mine[operation] += times * count
        for channel, bytes_ in other.bytes_in.items():
            self.bytes_in[channel] = self.bytes_in.get(channel, 0) + times * bytes_
        for channel, bytes_ in other.bytes_out.items():
            self.bytes_out[channel] = self.bytes_out.get(channel, 0) + times * bytes_

    def as_traffic(self) -> dict[str, dict[str, Any]]:
        """As a record carries it."""
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
    """One step's invocations, summed. `memory_mb` 0: a program on an instance. `base_bytes`: what a cold one reads besides the facts."""

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
        return self.wall_s / self.invocations if self.invocations else 0.0

    def stage_mean_s(self, stage: str) -> float:
        """Seconds of a stage in an invocation."""
        return self.stages.get(stage, [0.0, 0])[0] / max(1, self.invocations)


@dataclass
class Usage:
    """All invocations of a run. `records` stays empty unless they are kept."""

    architecture: str
    keep_records: bool = False
    steps: dict[str, StepUse] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    facts_bytes: int = 2_600  # the run's facts, which each fresh environment reads once
    _tallies: dict[int, tuple[Tally, list[int]]] = field(default_factory=dict)

    def of(self, step: str, *, memory_mb: int, base_bytes: int = 0) -> StepUse:
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
        """One invocation; `times`: as many equal ones, where no records are kept."""
        use.invocations += times
        wall_s = round(wall_s, 6)
        init_s = round(init_s, 6)
        use.wall_s += times * wall_s
        use.init_s += init_s
        # As costs/invocations.py bills a record.
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
        """All that was asked for and moved."""
        whole = Tally()
        for tally, times in self._tallies.values():
            whole.add(tally, times[0])
        for use in (each for each in self.steps.values() if each.memory_mb):
            into = use.cold * (self.facts_bytes + use.base_bytes)
            whole.count("objects", "get", use.cold * (1 + bool(use.base_bytes)), into=into)
        return whole


def _count_read(traffic: dict[str, dict[str, Any]], bytes_: int) -> None:
    objects = traffic["object_store"]
    objects["bytes_in"] += bytes_
    objects["requests"] += 1
    objects["operations"] = {**objects["operations"], "get": objects["operations"].get("get", 0) + 1}
