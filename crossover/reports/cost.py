"""A run's cost from its own records, both ways: by the papers' formulas, and as AWS would bill it, line by line.

Seconds of a local run are not AWS's seconds: its cost is labelled `projected`, whoever prints it.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from crossover.experiment import Experiment
from crossover.reports import billing
from crossover.reports.billing import Line
from crossover.reports.infrastructure import Infrastructure
from crossover.reports.invocations import Record, Unrecorded, billed_ms, end, object_requests, on_instance, traffic
from crossover.reports.paper_cost import lambda_usd
from crossover.reports.paper_method import FORMULA_2025, Memory, paper_method
from crossover.reports.prices import Prices

__all__ = ["Cost", "Quantities", "bill", "lambda_usd", "of_run"]

LOG_BYTES = 1_000  # platform.start, platform.report and what a step writes itself: assumed
PROJECTED = "projected from local seconds"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Dollars of one run.

    `spent` says what had been paid by invocations that ended until a moment; the rest accrues with time.
    """

    paper_method: str
    paper_method_usd: float
    lines: tuple[Line, ...]
    ends: tuple[float, ...]  # of the functions' invocations, ascending, unix seconds
    paper_spent: tuple[float, ...]  # cumulative, by the paper's formula, up to each end
    full_spent: tuple[float, ...]  # cumulative duration, requests, S3 requests up to each end

    @property
    def full_usd(self) -> float:
        return sum(line.usd for line in self.lines)

    def until(self, moment: float, *, share: float) -> tuple[float, float]:
        """(paper's method, full) dollars at `moment`; `share` of the run's time had passed, and with it of what is
        billed by time.
        """
        n = bisect_right(self.ends, moment)
        paper, full = (self.paper_spent[n - 1], self.full_spent[n - 1]) if n else (0.0, 0.0)
        paper_rest = self.paper_method_usd - (self.paper_spent[-1] if self.paper_spent else 0.0)
        full_rest = self.full_usd - (self.full_spent[-1] if self.full_spent else 0.0)
        return paper + share * max(0.0, paper_rest), full + share * max(0.0, full_rest)

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


def of_run(
    experiment: Experiment,
    records: Sequence[Record],
    *,
    infrastructure: Infrastructure,
    prices: Prices,
    duration_s: float,
    transitions: int | None = None,
    unrecorded: Unrecorded | None = None,
) -> Cost:
    """Cost of the run that left `records`. Every attempt counts, failed and stale ones too: AWS bills them. What was killed before it
    could leave a record is in the bill where it is known (`unrecorded`), never in the paper's formula.

    Raises ConfigError (no price).
    """
    functions = sorted((r for r in records if not on_instance(r)), key=end)
    memory = Memory(experiment, infrastructure)
    formula, usd = paper_method(
        experiment, records, infrastructure=infrastructure, prices=prices, duration_s=duration_s
    )
    by_function = formula == FORMULA_2025
    paper = [lambda_usd(float(r["wall_s"]), memory_mb=memory.of(r)) if by_function else 0.0 for r in functions]
    gb_s = [billing.gb_seconds(billed_ms(r), memory_mb=memory.of(r)) for r in functions]
    quantities = Quantities.of(records, functions, sum(gb_s))
    if unrecorded:
        quantities = replace(
            quantities, gb_s=quantities.gb_s + unrecorded.gb_s, invocations=quantities.invocations + unrecorded.count
        )
    lines = bill(quantities, infrastructure, prices, duration_s=duration_s, transitions=transitions)
    return Cost(
        paper_method=formula,
        paper_method_usd=usd,
        lines=tuple(line for line in lines if line.quantity > 0),
        ends=tuple(end(r) for r in functions),
        paper_spent=tuple(accumulate(paper)),
        full_spent=tuple(accumulate(_invocations_usd(functions, gb_s, prices))),
    )


@dataclass(frozen=True, kw_only=True)
class Quantities:
    """What a run used that is billed by use, summed over its records (or over invocations that left none)."""

    gb_s: float
    invocations: int  # of functions
    cold_starts: int
    writes: int  # of the object store
    reads: int
    stored_bytes: int

    @classmethod
    def of(cls, records: Sequence[Record], functions: Sequence[Record], gb_s: float) -> "Quantities":
        requests = [object_requests(record) for record in records]
        return cls(
            gb_s=gb_s,
            invocations=len(functions),
            cold_starts=sum(bool(r.get("cold")) for r in functions),
            writes=sum(w for w, _ in requests),
            reads=sum(r for _, r in requests),
            stored_bytes=traffic(records)["object_store"]["bytes_out"],
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
        lines += billing.fleet(
            prices,
            purpose=fleet.purpose,
            instance_type=fleet.instance_type,
            count=fleet.count,
            seconds=duration_s,
            boot_s=fleet.boot_s,
            volume_gb=fleet.volume_gb,
            spot=fleet.spot,
        )
    return lines


def _invocations_usd(functions: Sequence[Record], gb_s: Sequence[float], prices: Prices) -> Iterator[float]:
    """What each invocation adds: duration, request, S3 requests."""
    duration, request = prices.of("lambda.arm64.gb_second").usd, prices.of("lambda.request").usd
    write, read = prices.of("s3.write").usd, prices.of("s3.read").usd
    for record, spent in zip(functions, gb_s, strict=True):
        writes, reads = object_requests(record)
        yield spent * duration + request + writes * write + reads * read
