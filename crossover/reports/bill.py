"""Bills from quantities, by AWS's rules and by the papers' formulas, with the infrastructure around the functions; and what a run
would have cost if it had been stopped earlier.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from math import ceil
from typing import Any, Literal

from crossover.experiment import Experiment
from crossover.reports.prices import Prices
from crossover.reports.usage import (
    Record,
    Unrecorded,
    billed_ms,
    get_end_s,
    init_s,
    is_on_instance,
    object_requests,
    traffic,
)
from crossover.workflow import architecture
from crossover.workflow import architecture as instances
from crossover.workflow.architecture import Architecture, architecture_of, steps
from crossover.workflow.infrastructure import NETWORK, database_hosts, shared_stacks, uses_bus

# --- infrastructure ---------------------------------------------------------------------------------------------------

BOOT_S = 60.0  # until a program on a fresh instance starts: assumed, billed and not seen in its records
DATABASE = "tensor database"  # the purpose of Redis hosts
GPU_BOOT_S = 300.0  # likewise with the larger image, whose volume is read from its snapshot as it is touched


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """A group of EC2 instances of one type that is billed from its start. `purpose`: what the instances are for, in words; `count`: number
    of instances; `busy`: number of vCPUs of an instance that compute all the time; `volume_gb`: size of each disk; `boot_s`: seconds from
    its start until the program works; `spot`: whether spot prices apply; `gpu`: whether the instances have GPUs; `setting`: the YAML field
    that holds the type.
    """

    purpose: str
    instance_type: str
    count: int
    busy: float = 0.0
    volume_gb: int = instances.DATABASE_GB
    boot_s: float = 0.0
    spot: bool = False
    gpu: bool = False
    setting: str = "database.instance_type"


@dataclass(frozen=True, kw_only=True)
class Infrastructure:
    """Infrastructure that a run needs beside its functions' invocations and requests, and that AWS bills by the hour: instances, broker,
    endpoints and secrets. `fleets`: groups of instances; `broker_instance_type`: None without a broker; `interface_endpoints`, `secrets`:
    their numbers; `memory_mb`: memory size in MB by step of its function, which is not billed by the hour.
    """

    fleets: tuple[Fleet, ...] = ()
    broker_instance_type: str | None = None
    interface_endpoints: int = 0
    secrets: int = 0
    memory_mb: Mapping[str, int] = field(default_factory=dict)


def infrastructure_of(experiment: Experiment, architecture: Architecture | None = None) -> Infrastructure:
    """Return the infrastructure that an experiment deploys: instances, broker, endpoints, secrets, and the functions' memory sizes. AWS is
    not asked. `architecture`: by default the experiment's. Raises ConfigError for an architecture that does not exist.
    """
    architecture = architecture or architecture_of(experiment)
    found = steps(architecture)
    bus, hosts = uses_bus(architecture), database_hosts(experiment, architecture)
    databases = Fleet(purpose=DATABASE, instance_type=experiment.database.instance_type, count=hosts)
    return Infrastructure(
        fleets=(*([databases] if hosts else []), *list_program_fleets(experiment, architecture)),
        broker_instance_type=experiment.network.broker_instance_type if bus else None,
        interface_endpoints=int(
            NETWORK in shared_stacks(experiment, architecture)
        ),  # billed even if no function uses it
        secrets=int(hosts > 0) + int(bus),
        memory_mb={
            step.name: experiment.functions.memory_of(step.name, torch=step.needs_torch(experiment)) for step in found
        },
    )


def list_program_fleets(experiment: Experiment, architecture: Architecture) -> list[Fleet]:
    """Return the group of EC2 instances on which the architecture's programs run, in a list; an empty list if it has no programs."""
    if architecture.program is None:
        return []
    asked = architecture.program.instances(experiment)
    return [
        Fleet(
            purpose=asked.purpose,
            instance_type=asked.instance_type,
            count=asked.count,
            busy=asked.busy,
            volume_gb=asked.volume_gb,
            boot_s=GPU_BOOT_S if asked.gpu else BOOT_S,
            spot=asked.spot,
            gpu=asked.gpu,
            setting=asked.setting,
        )
    ]


# --- billing ----------------------------------------------------------------------------------------------------------
# AWS's billing rules, one small function per item: each gives a cost line with quantity, unit, dollars and the price's date.
#
# Without free tier, discounts and volume tiers. Sources: the pricing pages named in `config/pricing.yaml`.

MINIMUM_INSTANCE_S = 60.0  # EC2, Linux: per second, at least one minute
GB = 10**9


LineKind = Literal[
    "functions", "transitions", "objects", "logs", "secrets", "endpoints", "broker", "databases", "instances"
]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of an AWS bill: an `item` in words, its `quantity`, `unit` and dollars (`usd`), the date of the price (`as_of`), and the
    `kind` of resource that it pays for.
    """

    item: str
    quantity: float
    unit: str
    usd: float
    as_of: str
    kind: LineKind

    def as_json(self) -> dict[str, Any]:
        """Return this line of the bill as an entry of result.json, which has no kinds: {"item", "quantity", "unit", "usd", "as_of"}."""
        plain = asdict(self)
        del plain["kind"]
        return plain


def line(prices: Prices, price_item: str, quantity: float, *, item: str, kind: LineKind) -> Line:
    """Return the line of an AWS bill for `quantity` units of `price_item`, a key of the price list. `item`: name of the line for people; it
    is marked if the price is not verified; `kind`: kind of resource. Raises ConfigError if there is no price.
    """
    price = prices.of(price_item)
    name = item if price.verified else f"{item} (price not verified)"
    return Line(item=name, quantity=quantity, unit=price.unit, usd=quantity * price.usd, as_of=price.as_of, kind=kind)


def gb_seconds(billed_ms: int, *, memory_mb: int) -> float:
    """Return the GB-seconds that AWS bills for `billed_ms` milliseconds of a Lambda function with `memory_mb` MB. A GB is 1,024 MB here."""
    return billed_ms / 1_000 * memory_mb / 1_024


def lambda_duration(prices: Prices, total_gb_seconds: float) -> Line:
    """Return the line of the bill for the duration of Lambda functions on ARM, in GB-seconds. Raises ConfigError if its price is
    missing.
    """
    return line(prices, "lambda.arm64.gb_second", total_gb_seconds, item="Lambda duration, arm64", kind="functions")


def lambda_requests(prices: Prices, invocations: int) -> Line:
    """Return the line of the bill for the requests to Lambda functions, one for each invocation. Raises ConfigError if the price is
    missing.
    """
    return line(prices, "lambda.request", invocations, item="Lambda requests", kind="logs")


def transitions_line(prices: Prices, count: int, *, counted: bool) -> Line:
    """Return the line of the bill for Step Functions state transitions. `count`: number of transitions; `counted`: False if that is only a
    lower bound, which the line then says. Raises ConfigError if the price is missing.
    """
    item = "Step Functions transitions" if counted else "Step Functions transitions, at least"
    return line(prices, "stepfunctions.transition", count, item=item, kind="transitions")


def object_request_lines(prices: Prices, *, writes: int, reads: int) -> list[Line]:
    """Return the two lines of the bill for S3 requests. `writes`: number of requests at the price of PUT, such as PUT and LIST; `reads`:
    number of requests at the price of GET. Raises ConfigError if a price is missing.
    """
    return [
        line(prices, "s3.write", writes, item="S3 requests, PUT and LIST", kind="objects"),
        line(prices, "s3.read", reads, item="S3 requests, GET", kind="objects"),
    ]


def object_storage_line(prices: Prices, bytes_: int, *, seconds: float) -> Line:
    """Return the line of the bill for S3 storage of `bytes_` bytes for `seconds` seconds, as a share of a month. Raises ConfigError if the
    price is missing.
    """
    return line(prices, "s3.gb_month", bytes_ / GB * _months(prices, seconds), item="S3 storage", kind="objects")


def fleet_lines(prices: Prices, of: Fleet, *, seconds: float) -> list[Line]:
    """Return the lines of the bill for a group of EC2 instances: the instances, their public addresses, their disks, and, for a burstable
    type that computes more than its baseline, the CPU credits. The credits are an upper bound, as if the instances never waited. `of`: the
    instances; `seconds`: time from their start, boot included, at least a minute of which is billed. Raises ConfigError if a price is
    missing.
    """
    hours = instance_hours(count=of.count, seconds=seconds)
    price_item = f"ec2.{of.instance_type}.spot" if of.spot else f"ec2.{of.instance_type}"
    kind, of_what = f"{of.instance_type} spot" if of.spot else of.instance_type, f"x {of.count}, {of.purpose}"
    gb_months = of.volume_gb * hours / prices.hours_per_month
    beyond, family = architecture.count_vcpus_above_baseline(of.instance_type, of.busy), of.instance_type.split(".")[0]
    items = [
        (price_item, hours, f"EC2 {kind} {of_what}"),
        ("vpc.public_ipv4", hours, f"Public IPv4 {of_what}"),
        ("ebs.gp3.gb_month", gb_months, f"EBS gp3 {of.volume_gb} GB {of_what}"),
    ]
    if beyond:
        items.append((f"cpu_credits.{family}", hours * beyond, f"CPU credits {kind} {of_what}, at most"))
    pays_for: LineKind = "databases" if of.purpose == DATABASE else "instances"
    return [line(prices, priced, quantity, item=item, kind=pays_for) for priced, quantity, item in items]


def instance_hours(*, count: int, seconds: float, boot_s: float = 0.0) -> float:
    """Return the hours for which `count` EC2 instances are billed in all. `seconds`: time in which each of them works; `boot_s`: seconds of
    booting before that, which are billed too. Each is billed for at least one minute.
    """
    return count * max(MINIMUM_INSTANCE_S, seconds + boot_s) / 3_600


def broker_line(prices: Prices, instance_type: str, *, seconds: float) -> Line:
    """Return the line of the bill for an Amazon MQ broker of type `instance_type` that runs for `seconds` seconds. Raises ConfigError if
    the price is missing.
    """
    return line(prices, instance_type, seconds / 3_600, item=f"Amazon MQ broker, {instance_type}", kind="broker")


def endpoints_line(prices: Prices, count: int, *, seconds: float) -> Line:
    """Return the line of the bill for `count` interface endpoints that exist for `seconds` seconds. AWS bills each started hour. Raises
    ConfigError if the price is missing.
    """
    return line(
        prices,
        "vpc.interface_endpoint",
        count * ceil(seconds / 3_600),
        item="Interface endpoint, Secrets Manager",
        kind="endpoints",
    )


def secrets_lines(prices: Prices, count: int, *, seconds: float, calls: int) -> list[Line]:
    """Return two lines of the bill: for `count` secrets that exist for `seconds` seconds (a share of a month), and for `calls` calls that
    read one of them. Raises ConfigError if a price is missing.
    """
    return [
        line(prices, "secretsmanager.secret", count * _months(prices, seconds), item="Secrets", kind="secrets"),
        line(prices, "secretsmanager.call", calls, item="Secrets Manager calls", kind="secrets"),
    ]


def logs_line(prices: Prices, invocations: int, *, bytes_each: int) -> Line:
    """Return the line of the bill for CloudWatch Logs: `invocations` invocations that write `bytes_each` bytes each. Raises ConfigError if
    the price is missing.
    """
    return line(
        prices,
        "logs.ingested_gb",
        invocations * bytes_each / GB,
        item=f"CloudWatch Logs, about {bytes_each:,} bytes per invocation",
        kind="logs",
    )


def _months(prices: Prices, seconds: float) -> float:
    """Return `seconds` in months, whose length in hours the price list defines."""
    return seconds / 3_600 / prices.hours_per_month


# --- paper cost -------------------------------------------------------------------------------------------------------
# The papers' cost formulas, with the prices they used. They stay as printed when AWS changes its prices.
#
# 2025: "Cost-Performance Analysis", section 4.1. 2023: "Exploring the Impact of Serverless Computing on Peer To Peer Training Machine
# Learning", section V-B2.

X86_USD_PER_GB_S = 0.0000166667  # 2025, section 4.1
ARM64_USD_PER_GB_S = 0.0000133334  # 2023, Table II: Lambda on ARM
GPU_USD_PER_HOUR = 0.526  # 2025, section 4.1: g4dn.xlarge
PEER_USD_PER_S = {"t2.small": 0.00000639, "t2.large": 0.00002578}  # 2023, Tables II and III


def lambda_usd(seconds: float, *, memory_mb: float, usd_per_gb_s: float = X86_USD_PER_GB_S) -> float:
    """Return the dollars of one Lambda invocation by the 2025 paper's formula: seconds x GB x price, with 1,000 MB to a GB. AWS itself
    counts 1,024, see `gb_seconds`. `memory_mb`: the function's memory; `usd_per_gb_s`: price, by default the paper's for x86.
    """
    return seconds * memory_mb / 1_000 * usd_per_gb_s


def gpu_usd(seconds: float, *, instances: int = 1, usd_per_hour: float = GPU_USD_PER_HOUR) -> float:
    """Return the dollars of `instances` GPU instances by the 2025 paper's formula: `seconds` of training at `usd_per_hour`."""
    return seconds / 3_600 * instances * usd_per_hour


def lambda_usd_per_s(memory_mb: float, *, usd_per_gb_s: float = ARM64_USD_PER_GB_S) -> float:
    """Return the dollars of one second of a Lambda function with `memory_mb` MB by the 2023 paper, Table II, with 1,024 MB to a GB.
    `usd_per_gb_s`: price, by default the paper's for ARM.
    """
    return memory_mb / 1_024 * usd_per_gb_s


def peer_serverless_usd(seconds: float, *, batches: int, lambda_usd_per_s: float, ec2_usd_per_s: float) -> float:
    """Return the dollars of one peer that computes with functions, by equation 1 of the 2023 paper: a function for each batch, and the
    peer's instance, are charged for its whole computation time of `seconds`. `batches`: number of batches; `lambda_usd_per_s`,
    `ec2_usd_per_s`: price of a function and of the instance.
    """
    return (lambda_usd_per_s * batches + ec2_usd_per_s) * seconds


def peer_instance_usd(seconds: float, *, ec2_usd_per_s: float) -> float:
    """Return the dollars of one peer that computes on its instance, by equation 2 of the 2023 paper: `seconds` of computation time at
    `ec2_usd_per_s`.
    """
    return ec2_usd_per_s * seconds


# --- paper method -----------------------------------------------------------------------------------------------------
# The papers' cost of a run, from its records: which of their formulas applies, and what it gives.

FORMULA_2025 = "2025 paper: seconds x GB (1,000 MB) x x86 price, functions only"
FORMULA_2025_GPU = "2025 paper: instances x training time x hourly price"
FORMULA_2023 = "2023 paper: (Lambda USD/s x batches + EC2 USD/s) x computation time, per peer and epoch"

BY_THE_HOUR = ("GPU worker", "machine")  # purposes of fleets
COMPUTING = ("compute gradients", "compute")  # a peer's stage: the 2023 paper's name


@dataclass(frozen=True)
class Memory:
    """The memory sizes of the functions of a run, found by record. `experiment`: the run's; `infrastructure`: what was deployed for it."""

    experiment: Experiment
    infrastructure: Infrastructure

    def of(self, record: Record) -> int:
        """Return the memory size in MB of the function that wrote the record: as the platform reported it, else as it was deployed, else as
        the experiment would deploy it with torch.
        """
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
    """Return (name of the formula, dollars): the papers' cost formula that applies to this run, and its result. The name is FORMULA_2023
    for peers, FORMULA_2025 for functions and FORMULA_2025_GPU for other programs on instances. `records`: records of the run, failed
    attempts included; `infrastructure`: deployed memory sizes and instances; `prices`: today's prices, for instance types that the papers
    do not have; `duration_s`: seconds of the run. Raises ConfigError if such a type has no price.
    """
    fleets = {fleet.purpose: fleet for fleet in infrastructure.fleets}
    memory = Memory(experiment, infrastructure)
    if machines := next((fleets[purpose] for purpose in BY_THE_HOUR if purpose in fleets), None):
        paper_type = machines.instance_type == "g4dn.xlarge"
        hourly = GPU_USD_PER_HOUR if paper_type else prices.of(f"ec2.{machines.instance_type}").usd
        return FORMULA_2025_GPU, gpu_usd(duration_s, instances=machines.count, usd_per_hour=hourly)
    if peers := fleets.get("peer"):
        known = PEER_USD_PER_S.get(peers.instance_type)
        ec2 = known or prices.of(f"ec2.{peers.instance_type}").usd / 3_600
        return FORMULA_2023, _peers_usd(records, memory, ec2_usd_per_s=ec2)
    functions = (r for r in records if not is_on_instance(r))
    return FORMULA_2025, sum(lambda_usd(float(r["wall_s"]), memory_mb=memory.of(r)) for r in functions)


def _peers_usd(records: Iterable[Record], memory: Memory, *, ec2_usd_per_s: float) -> float:
    """Return the dollars of all peers of a run by equations 1 and 2 of the 2023 paper. A peer's computation time in an epoch is that of its
    stage for gradients; its batches are the successful invocations of functions for the same peer and epoch. `memory`: memory sizes of the
    functions; `ec2_usd_per_s`: price of a peer's instance.
    """
    seconds: dict[tuple[int, int], float] = defaultdict(float)
    batches: dict[tuple[int, int], list[float]] = defaultdict(list)
    for record in records:
        peer = (record["worker"], record["epoch"])
        if is_on_instance(record):
            seconds[peer] += sum(stage["wall_s"] for stage in record["stages"] if stage["stage"] in COMPUTING)
        elif record["outcome"] == "ok":
            batches[peer].append(lambda_usd_per_s(memory.of(record)))
    return sum(
        peer_serverless_usd(
            spent,
            batches=len(batches[peer]),
            lambda_usd_per_s=sum(batches[peer]) / max(1, len(batches[peer])),
            ec2_usd_per_s=ec2_usd_per_s,
        )
        for peer, spent in seconds.items()
    )


# --- stopped ----------------------------------------------------------------------------------------------------------
# A record as it would read had the run been stopped at a moment: what a bill until then is made of.
#
# A long invocation leaves marks (`marks` in its record): seconds, requests and bytes until then. Between two of them, and from its start
# to the first, use grows straight.


def get_begin_s(record: Record) -> float:
    """Return the unix time in seconds from which the invocation of a record is billed: its start, or that of its INIT, Lambda's start of a
    new environment, if it had one.
    """
    return float(record["started_at"]) - init_s(record)


def make_interim_record(mark: Record, now: float) -> Record:
    """Return a record for an invocation that has not ended. It is made from the invocation's latest usage snapshot `mark`, as if the
    invocation had been working from then until `now` (unix seconds) without further requests.
    """
    return {**mark, "wall_s": float(mark["wall_s"]) + max(0.0, now - get_end_s(mark))}


def record_until(record: Record, moment: float) -> Record | None:
    """Return the record as it would be if its invocation had been stopped at `moment` (unix seconds): seconds, requests and bytes are
    interpolated between its usage snapshots. Returns the record itself if it had ended by then, None if it had not begun. No figure falls
    as `moment` rises.
    """
    if get_end_s(record) <= moment:
        return record
    if moment < get_begin_s(record):
        return None
    start: Record = {"at": float(record["started_at"]), "wall_s": 0.0, "traffic": {}}
    knots = [start, *record.get("marks", ()), {**record, "at": get_end_s(record)}]
    ascending = [
        max(float(knot["at"]) for knot in knots[: n + 1]) for n in range(len(knots))
    ]  # clocks are set back at times
    n = bisect_right(ascending, moment)
    if n == 0:  # in its INIT
        return _reduce_record(record, {**start, "init_s": moment - get_begin_s(record)})
    before, after = knots[n - 1], knots[n]
    share = (moment - ascending[n - 1]) / (ascending[n] - ascending[n - 1])
    wall_s = float(before["wall_s"]) + share * (float(after["wall_s"]) - float(before["wall_s"]))
    traffic = _interpolate_counts(before.get("traffic", {}), after.get("traffic", {}), share)
    return _reduce_record(record, {"wall_s": wall_s, "traffic": traffic})


def _reduce_record(record: Record, until: Mapping[str, Any]) -> Record:
    """Return a copy of the record with the figures in `until` in place of its own, without wait for a core and snapshots; billed time and
    stages are reduced in proportion.
    """
    part = {**record, **until, "slot_wait_s": 0.0, "marks": ()}
    wall_s, billed = float(record["wall_s"]), record.get("billed_ms")
    share = float(part["wall_s"]) / wall_s if wall_s else 0.0
    if billed is not None:  # the platform's figure of the whole
        own = {**record, "billed_ms": None}
        part["billed_ms"] = int(billed * billed_ms({**part, "billed_ms": None}) / billed_ms(own))
    part["stages"] = [{**stage, "wall_s": share * stage["wall_s"]} for stage in record.get("stages", ())]
    return part


def _interpolate_counts(before: Any, after: Any, share: float) -> Any:
    """Return counts interpolated between two snapshots, in nested mappings of any depth, rounded down to whole numbers. The result has the
    keys of `after`. `before`, `after`: counts of both snapshots; a count that only `after` has starts at 0; `share`: position between them,
    0 to 1.
    """
    if isinstance(after, Mapping):
        return {
            name: _interpolate_counts(before.get(name) if before else None, value, share)
            for name, value in after.items()
        }
    return int((before or 0) + share * (after - (before or 0)))


# --- cost -------------------------------------------------------------------------------------------------------------
# A run's cost, computed from its records: by the papers' formulas, and as lines of the AWS bill.
#
# The cost of a local run is always labelled `projected`, because its seconds are not AWS's seconds.

LOG_BYTES = 1_000  # platform.start, platform.report and what a step writes itself: assumed
PROJECTED = "projected from local seconds"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The dollars of a run, or of the part of it until some moment. `paper_method`: name of the papers' formula that applies, one of
    FORMULA_2023, FORMULA_2025 and FORMULA_2025_GPU; `paper_method_usd`: its result; `lines`: lines of the AWS bill whose quantity is not 0.
    `full_usd` is their sum.
    """

    paper_method: str
    paper_method_usd: float
    lines: tuple[Line, ...]

    @property
    def full_usd(self) -> float:
        """The total AWS bill in dollars: the sum of all lines."""
        return sum(line.usd for line in self.lines)

    def as_json(self, *, where: str) -> dict[str, Any]:
        """Return the cost as it is written in result.json: {"label", "basis", "paper_method", "paper_method_usd", "full_usd", "lines"},
        labelled `measured-aws` or `projected`; `basis` says in words which seconds were priced. `where`: inline, local or aws; only the
        seconds of a run on AWS were billed.
        """
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
    """A run and all that it is billed for. Records of failed and superseded attempts count too, because AWS bills them. They are summed
    when the object is created, so fields must not be changed afterwards. Creating it raises ConfigError if the papers' formula lacks a
    price, which `prices` has to hold.

    `experiment`: the run's; `infrastructure`: what existed during the run; `started_at`: unix seconds; `duration_s`: seconds from then
    until the end, or until now. `transitions`: state transitions of the whole run, None if they were not counted (one per invocation is
    billed then, as a lower bound); `unrecorded`: invocations that were killed before they wrote a record; the papers' formulas ignore them.
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
        """Sort the records by their end, and compute the running sums of what they are billed for, which `cost_until` uses."""
        self._by_end = sorted(self.records, key=get_end_s)
        self._ends = [get_end_s(record) for record in self._by_end]
        self._sums = list(accumulate(map(self._quantities_of, self._by_end), initial=Quantities()))
        self._formula, _ = self._apply_paper_method((), duration_s=0.0)

    def cost(self) -> Cost:
        """Return the cost of the whole run. Raises ConfigError if a price is missing."""
        return self.cost_until(self.started_at + self.duration_s)

    def cost_until(self, moment: float) -> Cost:
        """Return the cost that the run would have had if it had been stopped at `moment` (unix seconds). The cost never falls with time;
        from the run's end on it is that of the whole run. Instances are billed for their boot, and for at least a minute, from the start
        on. Raises ConfigError if a price is missing.
        """
        elapsed_s = min(max(0.0, moment - self.started_at), self.duration_s)
        over = elapsed_s >= self.duration_s
        ended = len(self._ends) if over else bisect_right(self._ends, moment)
        going_on = [
            part for r in self._by_end[ended:] if get_begin_s(r) <= moment and (part := record_until(r, moment))
        ]
        used = sum((self._quantities_of(record) for record in going_on), self._sums[ended])
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
            _, usd = self._apply_paper_method([*self._by_end[:ended], *going_on], duration_s=elapsed_s)
        lines = bill(used, self.infrastructure, self.prices, duration_s=elapsed_s, transitions=transitions)
        return Cost(
            paper_method=self._formula,
            paper_method_usd=usd,
            lines=tuple(line for line in lines if line.quantity > 0),
        )

    def _quantities_of(self, record: Record) -> "Quantities":
        """Return the quantities that AWS bills for one record of the run."""
        return Quantities.of(record, memory_mb=Memory(self.experiment, self.infrastructure).of(record))

    def _apply_paper_method(self, records: Sequence[Record], *, duration_s: float) -> tuple[str, float]:
        """Return (name, dollars): the papers' cost formula that applies to this run, and its result for these records. `duration_s`:
        seconds of the run.
        """
        return paper_method(
            self.experiment,
            records,
            infrastructure=self.infrastructure,
            prices=self.prices,
            duration_s=duration_s,
        )


@dataclass(frozen=True, kw_only=True)
class Quantities:
    """Quantities of what AWS bills by use: those of one invocation, or sums over many. `gb_s`: billed GB-seconds of Lambda, INIT included;
    `mb_s`: wall seconds times memory in MB without INIT, for the 2025 paper's formula; `invocations`, `cold_starts`: of functions;
    `writes`, `reads`: requests to S3; `stored_bytes`: bytes written to S3.
    """

    gb_s: float = 0.0
    mb_s: float = 0.0  # seconds times memory without INIT: what the 2025 paper's formula takes
    invocations: int = 0  # of functions
    cold_starts: int = 0
    writes: int = 0  # of the object store
    reads: int = 0
    stored_bytes: int = 0

    @classmethod
    def of(cls, record: Record, *, memory_mb: int) -> "Quantities":
        """Return the quantities that one record is billed for. `memory_mb`: memory size of its function. For a record of a program on an
        instance, only its requests to S3 and bytes written there count, because the instance is billed by the hour.
        """
        writes, reads = object_requests(record)
        stored = traffic([record])["object_store"]["bytes_out"]
        if is_on_instance(record):
            return cls(writes=writes, reads=reads, stored_bytes=stored)
        return cls(
            gb_s=gb_seconds(billed_ms(record), memory_mb=memory_mb),
            mb_s=float(record["wall_s"]) * memory_mb,
            invocations=1,
            cold_starts=int(bool(record.get("cold"))),
            writes=writes,
            reads=reads,
            stored_bytes=stored,
        )

    def __add__(self, other: "Quantities") -> "Quantities":
        """Return the sum of both, field by field."""
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
    """Return the lines of the AWS bill of a run, including those with quantity zero; a broker and each group of instances have lines only
    if the run has them. `used`: quantities billed by use; `infrastructure`: what is billed by the hour; `duration_s`: seconds for which it
    is billed, to which each instance's boot is added. `transitions`: number of state transitions; if None, the number of invocations is
    billed in its place, and the line says "at least". Raises ConfigError if a price is missing.
    """
    lines = [
        lambda_duration(prices, used.gb_s),
        lambda_requests(prices, used.invocations),
        transitions_line(
            prices, used.invocations if transitions is None else transitions, counted=transitions is not None
        ),
        *object_request_lines(prices, writes=used.writes, reads=used.reads),
        object_storage_line(prices, used.stored_bytes, seconds=duration_s),
        logs_line(prices, used.invocations, bytes_each=LOG_BYTES),
        *secrets_lines(
            prices, infrastructure.secrets, seconds=duration_s, calls=used.cold_starts * infrastructure.secrets
        ),
        endpoints_line(prices, infrastructure.interface_endpoints, seconds=duration_s),
    ]
    if infrastructure.broker_instance_type:
        lines.append(broker_line(prices, infrastructure.broker_instance_type, seconds=duration_s))
    for fleet in infrastructure.fleets:
        lines += fleet_lines(prices, fleet, seconds=duration_s + fleet.boot_s)
    return lines
