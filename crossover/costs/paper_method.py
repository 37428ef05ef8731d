"""The papers' cost of a run, from its records: which of their formulas applies, and what it gives."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from crossover.costs import paper_cost
from crossover.costs.infrastructure import Infrastructure
from crossover.costs.invocations import Record, on_instance
from crossover.costs.prices import Prices
from crossover.experiment import Experiment

FORMULA_2025 = "2025 paper: seconds x GB (1,000 MB) x x86 price, functions only"
FORMULA_2025_GPU = "2025 paper: instances x training time x hourly price"
FORMULA_2023 = "2023 paper: (Lambda USD/s x batches + EC2 USD/s) x computation time, per peer and epoch"

BY_THE_HOUR = ("GPU worker", "machine")  # purposes of fleets
COMPUTING = ("compute gradients", "compute")  # a peer's stage: the 2023 paper's name


@dataclass(frozen=True)
class Memory:
    """MB by record: its own where the platform gave one, else what the experiment would deploy (a run in one process has none)."""

    experiment: Experiment
    infrastructure: Infrastructure

    def of(self, record: Record) -> int:
        known: Mapping[str, int] = self.infrastructure.memory_mb
        deployed = known.get(record["step"]) or self.experiment.functions.memory_of(record["step"], torch=True)
        return int(record.get("memory_mb") or deployed)


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
    memory = Memory(experiment, infrastructure)
    if machines := next((fleets[purpose] for purpose in BY_THE_HOUR if purpose in fleets), None):
        paper_type = machines.instance_type == "g4dn.xlarge"
        hourly = paper_cost.GPU_USD_PER_HOUR if paper_type else prices.of(f"ec2.{machines.instance_type}").usd
        return FORMULA_2025_GPU, paper_cost.gpu_usd(duration_s, instances=machines.count, usd_per_hour=hourly)
    if peers := fleets.get("peer"):
        known = paper_cost.PEER_USD_PER_S.get(peers.instance_type)
        ec2 = known or prices.of(f"ec2.{peers.instance_type}").usd / 3_600
        return FORMULA_2023, _peers_usd(records, memory, ec2_usd_per_s=ec2)
    functions = (r for r in records if not on_instance(r))
    return FORMULA_2025, sum(paper_cost.lambda_usd(float(r["wall_s"]), memory_mb=memory.of(r)) for r in functions)


def _peers_usd(records: Iterable[Record], memory: Memory, *, ec2_usd_per_s: float) -> float:
    """Equations 1 and 2.

    Computation time is the peer's stage of that name; batches are the functions' invocations of that peer and epoch.
    """
    seconds: dict[tuple[int, int], float] = defaultdict(float)
    batches: dict[tuple[int, int], list[float]] = defaultdict(list)
    for record in records:
        peer = (record["worker"], record["epoch"])
        if on_instance(record):
            seconds[peer] += sum(stage["wall_s"] for stage in record["stages"] if stage["stage"] in COMPUTING)
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
