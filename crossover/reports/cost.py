"""A run's cost from its own records, both ways: by the papers' formulas, and as AWS would bill it, line by line.

Seconds of a local run are not AWS's seconds: its cost is labelled `projected`, whoever prints it.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from crossover.experiment import Experiment
from crossover.reports import billing, paper_cost
from crossover.reports.billing import Line
from crossover.reports.infrastructure import Infrastructure
from crossover.reports.invocations import Record, billed_ms, end, object_requests, on_instance, traffic
from crossover.reports.paper_cost import lambda_usd
from crossover.reports.prices import Prices

__all__ = ["Cost", "lambda_usd", "of_run", "paper_method"]

LOG_BYTES = 1_000  # platform.start, platform.report and what a step writes itself: assumed
FORMULA_2025 = "2025 paper: seconds x GB (1,000 MB) x x86 price, functions only"
FORMULA_2025_GPU = "2025 paper: instances x training time x hourly price"
FORMULA_2023 = "2023 paper: (Lambda USD/s x batches + EC2 USD/s) x computation time, per peer and epoch"
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
) -> Cost:
    """Cost of the run that left `records`. Every attempt counts, failed and stale ones too: AWS bills them.

    Raises ConfigError (no price).
    """
    functions = sorted((r for r in records if not on_instance(r)), key=end)
    memory = _Memory(experiment, infrastructure)
    formula, usd = paper_method(
        experiment, records, infrastructure=infrastructure, prices=prices, duration_s=duration_s
    )
    by_function = formula == FORMULA_2025
    paper = [lambda_usd(float(r["wall_s"]), memory_mb=memory.of(r)) if by_function else 0.0 for r in functions]
    full = [_invocation_usd(r, memory, prices) for r in functions]
    lines = _lines(records, functions, memory, infrastructure, prices, duration_s=duration_s, transitions=transitions)
    return Cost(
        paper_method=formula,
        paper_method_usd=usd,
        lines=tuple(line for line in lines if line.quantity > 0),
        ends=tuple(end(r) for r in functions),
        paper_spent=tuple(accumulate(paper)),
        full_spent=tuple(accumulate(full)),
    )


def paper_method(
    experiment: Experiment,
    records: Iterable[Record],
    *,
    infrastructure: Infrastructure,
    prices: Prices,
    duration_s: float,
) -> tuple[str, float]:
    """(which formula, dollars): the 2023 paper's for peers, the 2025 paper's for functions and for GPUs."""
    fleets = {fleet.purpose: fleet for fleet in infrastructure.fleets}
    memory = _Memory(experiment, infrastructure)
    if gpus := fleets.get("GPU worker"):
        paper_type = gpus.instance_type == "g4dn.xlarge"
        hourly = paper_cost.GPU_USD_PER_HOUR if paper_type else prices.of(f"ec2.{gpus.instance_type}").usd
        return FORMULA_2025_GPU, paper_cost.gpu_usd(duration_s, instances=gpus.count, usd_per_hour=hourly)
    if peers := fleets.get("peer"):
        known = paper_cost.PEER_USD_PER_S.get(peers.instance_type)
        ec2 = known or prices.of(f"ec2.{peers.instance_type}").usd / 3_600
        return FORMULA_2023, _peers_usd(records, memory, ec2_usd_per_s=ec2)
    functions = (r for r in records if not on_instance(r))
    return FORMULA_2025, sum(lambda_usd(float(r["wall_s"]), memory_mb=memory.of(r)) for r in functions)


def _peers_usd(records: Iterable[Record], memory: "_Memory", *, ec2_usd_per_s: float) -> float:
    """Equations 1 and 2.

    Computation time is the peer's `compute` stage; batches are the functions' invocations of that peer and epoch.
    """
    seconds: dict[tuple[int, int], float] = defaultdict(float)
    batches: dict[tuple[int, int], list[float]] = defaultdict(list)
    for record in records:
        peer = (record["worker"], record["epoch"])
        if on_instance(record):
            seconds[peer] += sum(stage["wall_s"] for stage in record["stages"] if stage["stage"] == "compute")
        elif record["outcome"] == "ok":
            batches[peer].append(paper_cost.lambda_usd_per_s(memory.of(record)))
    return sum(
        paper_cost.peer_serverless_usd(
            spent,
            batches=len(batches[peer]),
            lambda_usd_per_s=sum(batches[peer]) / max(1, len(batches[peer])),
            ec2_usd_per_s=ec2_usd_per_s,
        )
        for peer, spent in seconds.items()
    )


def _lines(
    records: Sequence[Record],
    functions: Sequence[Record],
    memory: "_Memory",
    infrastructure: Infrastructure,
    prices: Prices,
    *,
    duration_s: float,
    transitions: int | None,
) -> list[Line]:
    requests = [object_requests(record) for record in records]
    gb_s = sum(billing.gb_seconds(billed_ms(r), memory_mb=memory.of(r)) for r in functions)
    cold_starts = sum(bool(r.get("cold")) for r in functions)
    stored = traffic(records)["object_store"]["bytes_out"]
    lines = [
        billing.lambda_duration(prices, gb_s),
        billing.lambda_requests(prices, len(functions)),
        billing.transitions(
            prices, len(functions) if transitions is None else transitions, counted=transitions is not None
        ),
        *billing.object_requests(prices, writes=sum(w for w, _ in requests), reads=sum(r for _, r in requests)),
        billing.object_storage(prices, stored, seconds=duration_s),
        billing.logs(prices, len(functions), bytes_each=LOG_BYTES),
        *billing.secrets(
            prices, infrastructure.secrets, seconds=duration_s, calls=cold_starts * infrastructure.secrets
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


def _invocation_usd(record: Record, memory: "_Memory", prices: Prices) -> float:
    """What one invocation adds: duration, request, S3 requests."""
    gb_s = billing.gb_seconds(billed_ms(record), memory_mb=memory.of(record))
    writes, reads = object_requests(record)
    return (
        gb_s * prices.of("lambda.arm64.gb_second").usd
        + prices.of("lambda.request").usd
        + writes * prices.of("s3.write").usd
        + reads * prices.of("s3.read").usd
    )


@dataclass(frozen=True)
class _Memory:
    """MB by record: its own where the platform gave one, else what the experiment would deploy (a run in one process
    has none).
    """

    experiment: Experiment
    infrastructure: Infrastructure

    def of(self, record: Record) -> int:
        known: Mapping[str, int] = self.infrastructure.memory_mb
        deployed = known.get(record["step"]) or self.experiment.functions.memory_of(record["step"], torch=True)
        return int(record.get("memory_mb") or deployed)
