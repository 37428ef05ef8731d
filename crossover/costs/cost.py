"""A run's cost from its own records, both ways: by the papers' formulas, and as AWS would bill it, line by line.

Seconds of a local run are not AWS's seconds: its cost is labelled `projected`, whoever prints it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from crossover.costs import billing
from crossover.costs.billing import Line
from crossover.costs.infrastructure import Infrastructure
from crossover.costs.invocations import Record, Unrecorded, billed_ms, end, object_requests, on_instance, traffic
from crossover.costs.paper_cost import lambda_usd
from crossover.costs.paper_method import FORMULA_2025, Memory, paper_method
from crossover.costs.prices import Prices
from crossover.costs.stopped import begin, stopped_at
from crossover.experiment import Experiment

__all__ = ["BilledRun", "Cost", "Quantities", "bill", "lambda_usd"]

LOG_BYTES = 1_000  # platform.start, platform.report and what a step writes itself: assumed
PROJECTED = "projected from local seconds"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Dollars of one run, or of its part until a moment."""

    paper_method: str
    paper_method_usd: float
    lines: tuple[Line, ...]

    @property
    def full_usd(self) -> float:
        return sum(line.usd for line in self.lines)

    def as_json(self, *, where: str) -> dict[str, Any]:
        """The cost block of result.json."""
        measured = where == "aws"
        return {
            "label": "measured-aws" if measured else "projected",
            "basis": "billed seconds on AWS" if measured else PROJECTED,
            "paper_method": self.paper_method,
            "paper_method_usd": self.paper_method_usd,
            "full_usd": self.full_usd,
            "lines": [line.as_json() for line in self.lines],
        }


@dataclass(kw_only=True)
class BilledRun:
    """What is billed of a run. Every attempt counts, failed and stale ones too: AWS bills them. What was killed before it could leave a
    record is in the bill where it is known (`unrecorded`), never in the papers' formulas.

    `started_at`: unix seconds; `duration_s`: from then to the end, or, of a run that goes on, to now. `transitions`: of the whole; None:
    nobody counted, so at least one per invocation.
    """

    experiment: Experiment
    records: Sequence[Record]
    infrastructure: Infrastructure
    prices: Prices
    started_at: float
    duration_s: float
    transitions: int | None = None
    unrecorded: Unrecorded | None = None

    def __post_init__(self) -> None:
        self._by_end = sorted(self.records, key=end)
        self._ends = [end(record) for record in self._by_end]
        self._sums = list(accumulate(map(self._used, self._by_end), initial=Quantities()))
        self._formula, _ = self._by_paper((), duration_s=0.0)

    def cost(self) -> Cost:
        """Of all of it. Raises ConfigError (no price)."""
        return self.until(self.started_at + self.duration_s)

    def until(self, moment: float) -> Cost:
        """What would be on the bill had the run been stopped at `moment`: it never falls with time, nor with a further record, and at the
        run's end is the whole. Raises ConfigError (no price).
        """
        elapsed_s = min(max(0.0, moment - self.started_at), self.duration_s)
        over = elapsed_s >= self.duration_s
        ended = len(self._ends) if over else bisect_right(self._ends, moment)
        going_on = [part for r in self._by_end[ended:] if begin(r) <= moment and (part := stopped_at(r, moment))]
        used = sum((self._used(record) for record in going_on), self._sums[ended])
        invocations = used.invocations
        if self.unrecorded:  # nobody knows when
            share = 1.0 if over else elapsed_s / self.duration_s
            used += Quantities(gb_s=share * self.unrecorded.gb_s, invocations=int(share * self.unrecorded.count))
        transitions = None
        if self.transitions is not None:
            whole = self._sums[-1].invocations
            transitions = self.transitions if over else self.transitions * invocations // max(1, whole)
        if self._formula == FORMULA_2025:  # linear in seconds times memory, which are added up already
            usd = lambda_usd(used.mb_s, memory_mb=1)
        else:
            _, usd = self._by_paper([*self._by_end[:ended], *going_on], duration_s=elapsed_s)
        lines = bill(used, self.infrastructure, self.prices, duration_s=elapsed_s, transitions=transitions)
        return Cost(
            paper_method=self._formula,
            paper_method_usd=usd,
            lines=tuple(line for line in lines if line.quantity > 0),
        )

    def _used(self, record: Record) -> "Quantities":
        return Quantities.of(record, memory_mb=Memory(self.experiment, self.infrastructure).of(record))

    def _by_paper(self, records: Sequence[Record], *, duration_s: float) -> tuple[str, float]:
        return paper_method(
            self.experiment,
            records,
            infrastructure=self.infrastructure,
            prices=self.prices,
            duration_s=duration_s,
        )


@dataclass(frozen=True, kw_only=True)
class Quantities:
    """What is billed by use: of an invocation, of all of a run, or of those that left no record."""

    gb_s: float = 0.0
    mb_s: float = 0.0  # seconds times memory without INIT: what the 2025 paper's formula takes
    invocations: int = 0  # of functions
    cold_starts: int = 0
    writes: int = 0  # of the object store
    reads: int = 0
    stored_bytes: int = 0

    @classmethod
    def of(cls, record: Record, *, memory_mb: int) -> "Quantities":
        """A program's seconds are its instance's, which is billed by the hour."""
        writes, reads = object_requests(record)
        stored = traffic([record])["object_store"]["bytes_out"]
        if on_instance(record):
            return cls(writes=writes, reads=reads, stored_bytes=stored)
        return cls(
            gb_s=billing.gb_seconds(billed_ms(record), memory_mb=memory_mb),
            mb_s=float(record["wall_s"]) * memory_mb,
            invocations=1,
            cold_starts=int(bool(record.get("cold"))),
            writes=writes,
            reads=reads,
            stored_bytes=stored,
        )

    def __add__(self, other: "Quantities") -> "Quantities":
        return Quantities(
            gb_s=self.gb_s + other.gb_s,
            mb_s=self.mb_s + other.mb_s,
            invocations=self.invocations + other.invocations,
            cold_starts=self.cold_starts + other.cold_starts,
            writes=self.writes + other.writes,
            reads=self.reads + other.reads,
            stored_bytes=self.stored_bytes + other.stored_bytes,
        )


def bill(
    used: Quantities,
    infrastructure: Infrastructure,
    prices: Prices,
    *,
    duration_s: float,
    transitions: int | None,
) -> list[Line]:
    """Every line of the bill, those of nothing too. Raises ConfigError (no price)."""
    lines = [
        billing.lambda_duration(prices, used.gb_s),
        billing.lambda_requests(prices, used.invocations),
        billing.transitions(
            prices, used.invocations if transitions is None else transitions, counted=transitions is not None
        ),
        *billing.object_requests(prices, writes=used.writes, reads=used.reads),
        billing.object_storage(prices, used.stored_bytes, seconds=duration_s),
        billing.logs(prices, used.invocations, bytes_each=LOG_BYTES),
        *billing.secrets(
            prices, infrastructure.secrets, seconds=duration_s, calls=used.cold_starts * infrastructure.secrets
        ),
        billing.interface_endpoints(prices, infrastructure.interface_endpoints, seconds=duration_s),
    ]
    if infrastructure.broker_instance_type:
        lines.append(billing.broker(prices, infrastructure.broker_instance_type, seconds=duration_s))
    for fleet in infrastructure.fleets:
        lines += billing.fleet(prices, fleet, seconds=duration_s + fleet.boot_s)
    return lines
