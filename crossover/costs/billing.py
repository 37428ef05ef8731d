"""AWS's billing rules, one small function per item: each gives a cost line with quantity, unit, dollars and the price's date.

Without free tier, discounts and volume tiers. Sources: the pricing pages named in `config/pricing.yaml`.
"""

from dataclasses import asdict, dataclass
from typing import Any

from crossover.architecture import instances
from crossover.costs.infrastructure import Fleet
from crossover.costs.prices import Prices

MINIMUM_INSTANCE_S = 60.0  # EC2, Linux: per second, at least one minute
GB = 10**9


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a bill."""

    item: str
    quantity: float
    unit: str
    usd: float
    as_of: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def line(prices: Prices, price_item: str, quantity: float, *, item: str) -> Line:
    """`quantity` units of `price_item`, named `item` for people; a price that could not be verified says so.

    Raises ConfigError.
    """
    price = prices.of(price_item)
    name = item if price.verified else f"{item} (price not verified)"
    return Line(item=name, quantity=quantity, unit=price.unit, usd=quantity * price.usd, as_of=price.as_of)


def gb_seconds(billed_ms: int, *, memory_mb: int) -> float:
    """Lambda's unit: a GB is 1,024 MB here; INIT is billed with the handler since August 2025."""
    return billed_ms / 1_000 * memory_mb / 1_024


def lambda_duration(prices: Prices, total_gb_seconds: float) -> Line:
    return line(prices, "lambda.arm64.gb_second", total_gb_seconds, item="Lambda duration, arm64")


def lambda_requests(prices: Prices, invocations: int) -> Line:
    return line(prices, "lambda.request", invocations, item="Lambda requests")


def transitions(prices: Prices, count: int, *, counted: bool) -> Line:
    """`counted`: from the executions' histories; otherwise a lower bound, one per invocation."""
    item = "Step Functions transitions" if counted else "Step Functions transitions, at least"
    return line(prices, "stepfunctions.transition", count, item=item)


def object_requests(prices: Prices, *, writes: int, reads: int) -> list[Line]:
    return [
        line(prices, "s3.write", writes, item="S3 requests, PUT and LIST"),
        line(prices, "s3.read", reads, item="S3 requests, GET"),
    ]


def object_storage(prices: Prices, bytes_: int, *, seconds: float) -> Line:
    """What the run wrote, kept for as long as it lasted."""
    return line(prices, "s3.gb_month", bytes_ / GB * _months(prices, seconds), item="S3 storage")


def fleet(prices: Prices, of: Fleet, *, seconds: float) -> list[Line]:
    """EC2 instances with their public address, root volume, and what computing takes beyond a burstable type's baseline (at most: as if it
    never waited; those of T2 earn nothing at their start in unlimited mode). `seconds`: from their start, boot included.
    """
    hours = instance_hours(count=of.count, seconds=seconds)
    price_item = f"ec2.{of.instance_type}.spot" if of.spot else f"ec2.{of.instance_type}"
    kind, of_what = f"{of.instance_type} spot" if of.spot else of.instance_type, f"x {of.count}, {of.purpose}"
    gb_months = of.volume_gb * hours / prices.hours_per_month
    beyond, family = instances.vcpus_beyond_the_baseline(of.instance_type, of.busy), of.instance_type.split(".")[0]
    found = [
        line(prices, price_item, hours, item=f"EC2 {kind} {of_what}"),
        line(prices, "vpc.public_ipv4", hours, item=f"Public IPv4 {of_what}"),
        line(prices, "ebs.gp3.gb_month", gb_months, item=f"EBS gp3 {of.volume_gb} GB {of_what}"),
    ]
    if beyond:
        found.append(
            line(prices, f"cpu_credits.{family}", hours * beyond, item=f"CPU credits {kind} {of_what}, at most")
        )
    return found


def instance_hours(*, count: int, seconds: float, boot_s: float = 0.0) -> float:
    """Billed instance-hours: every instance from its start, boot included, at least a minute."""
    return count * max(MINIMUM_INSTANCE_S, seconds + boot_s) / 3_600


def broker(prices: Prices, instance_type: str, *, seconds: float) -> Line:
    return line(prices, instance_type, seconds / 3_600, item=f"Amazon MQ broker, {instance_type}")


def interface_endpoints(prices: Prices, count: int, *, seconds: float) -> Line:
    return line(prices, "vpc.interface_endpoint", count * seconds / 3_600, item="Interface endpoint, Secrets Manager")


def secrets(prices: Prices, count: int, *, seconds: float, calls: int) -> list[Line]:
    """A secret by the hour of its month, and one call per secret and cold start."""
    return [
        line(prices, "secretsmanager.secret", count * _months(prices, seconds), item="Secrets"),
        line(prices, "secretsmanager.call", calls, item="Secrets Manager calls"),
    ]


def logs(prices: Prices, invocations: int, *, bytes_each: int) -> Line:
    return line(
        prices,
        "logs.ingested_gb",
        invocations * bytes_each / GB,
        item=f"CloudWatch Logs, about {bytes_each:,} bytes per invocation",
    )


def _months(prices: Prices, seconds: float) -> float:
    return seconds / 3_600 / prices.hours_per_month
