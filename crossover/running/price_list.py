"""Current prices of AWS: from the Price List API, and for spot instances from the market's history.

PRODUCTS says which product of the list an item of config/pricing.yaml is: the service's code, the usage type without its region's prefix,
and attributes that narrow it down. Of tiered prices the first one that is not free applies, because a run is small. Source: AWS Price List
Query API, GetProducts; EC2 DescribeSpotPriceHistory.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from crossover.errors import CrossoverError
from crossover.workflow.architecture import BURSTABLE

API_REGION = "us-east-1"  # the API answers for every region from here
INSTANCE_ATTRIBUTES = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
}
PRICE_LINE = re.compile(r"^(  (?P<item>[a-z][\w.]*): \{usd: )(?P<usd>[\d.]+)(?P<rest>.*)\}\s*$")


@dataclass(frozen=True, kw_only=True)
class Product:
    """A product of AWS's price list. `service`: the service's code; `usage`: regular expression for the whole usage type, without the
    prefix (such as `EUC1-`) that names the region; `attributes`: further attributes that the entry must have.
    """

    service: str
    usage: str
    attributes: Mapping[str, str] = field(default_factory=dict)


PRODUCTS: Mapping[str, Product] = {
    "lambda.x86.gb_second": Product(service="AWSLambda", usage="Lambda-GB-Second"),
    "lambda.arm64.gb_second": Product(service="AWSLambda", usage="Lambda-GB-Second-ARM"),
    "lambda.request": Product(service="AWSLambda", usage="Request-ARM"),
    "stepfunctions.transition": Product(service="AmazonStates", usage="StateTransition"),
    "s3.write": Product(service="AmazonS3", usage="Requests-Tier1"),
    "s3.read": Product(service="AmazonS3", usage="Requests-Tier2"),
    "s3.gb_month": Product(
        service="AmazonS3", usage="TimedStorage-ByteHrs", attributes={"storageClass": "General Purpose"}
    ),
    "ebs.gp3.gb_month": Product(service="AmazonEC2", usage=r"EBS:VolumeUsage\.gp3"),
    "vpc.public_ipv4": Product(service="AmazonVPC", usage="PublicIPv4:InUseAddress"),
    "vpc.interface_endpoint": Product(service="AmazonVPC", usage="VpcEndpoint-Hours"),
    "vpc.interface_endpoint.gb": Product(service="AmazonVPC", usage="VpcEndpoint-Bytes"),
    "transfer.internet.gb": Product(service="AWSDataTransfer", usage="DataTransfer-Out-Bytes"),
    "secretsmanager.secret": Product(service="AWSSecretsManager", usage="AWSSecretsManager-Secrets"),
    "secretsmanager.call": Product(service="AWSSecretsManager", usage="AWSSecretsManagerAPIRequest"),
    "logs.ingested_gb": Product(service="AmazonCloudWatch", usage="DataProcessing-Bytes"),
    **{
        f"cpu_credits.{family}": Product(
            service="AmazonEC2", usage=f"CPUCredits:{family}", attributes={"operatingSystem": "Linux"}
        )
        for family in BURSTABLE
    },
}


def find_product(item: str) -> Product | None:
    """Return the product of the price list for `item`, a key of the price file such as `ec2.c7g.large`: from PRODUCTS, or made from the
    instance type. None if the list does not sell it (spot instances) or PRODUCTS lacks it.
    """
    if item.startswith("ec2.") and not item.endswith(".spot"):
        kind = item.removeprefix("ec2.")
        return Product(
            service="AmazonEC2",
            usage=rf"BoxUsage:{re.escape(kind)}",
            attributes=INSTANCE_ATTRIBUTES | {"instanceType": kind},
        )
    if item.startswith("mq."):
        engine = {"brokerEngine": "RabbitMQ", "deploymentOption": "Single-AZ"}
        return Product(service="AmazonMQ", usage=".*", attributes=engine | {"instanceType": item})
    return PRODUCTS.get(item)


def refresh_prices(text: str, session: Any, *, region: str, now: datetime) -> tuple[str, list[str], list[str]]:
    """Return a triple: the price file `text` with the prices of `region` at the time `now`, a line for each price that changed, and the
    reason for each item that kept its old price.

    `session`: asks AWS's price list. An item that keeps the price of another region is marked `verified: false`.
    """
    moved = f"region: {region}" not in text.splitlines()
    lines, changes, kept = [], list[str](), list[str]()
    for line in text.splitlines():
        match = PRICE_LINE.match(line)
        if match is None:
            lines.append(re.sub(r"^region: .*", f"region: {region}", line))
            continue
        item, old, per = match["item"], float(match["usd"]), _read_unit_count(match["rest"])
        try:
            usd = float(f"{fetch_price(session, item, region=region, now=now) * per:.10g}")
        except CrossoverError as problem:
            kept.append(str(problem))
            doubtful = moved and "verified: false" not in line
            lines.append(line.rstrip().removesuffix("}") + ", verified: false}" if doubtful else line)
            continue
        rest = re.sub(r', (as_of: "[^"]*"|verified: false)', "", match["rest"])
        lines.append(f'{match[1]}{_format_plain(usd)}, as_of: "{now:%Y-%m-%d}"{rest}}}')
        if usd != old:
            changes.append(
                f"{item}: {_format_plain(old)} -> {_format_plain(usd)} USD" + (f" for {per:,}" if per > 1 else "")
            )
    return "\n".join(lines) + "\n", changes, kept


def _read_unit_count(rest: str) -> int:
    """Return the number of units that a price is for, from `rest`, the end of a line of the price file: `, per: 1000`. 1 if
    there is none.
    """
    found = re.search(r", per: (\d+)", rest)
    return int(found[1]) if found else 1


def _format_plain(usd: float) -> str:
    """Return a price as a decimal number without an exponent, which other readers of the price file might not accept."""
    return f"{usd:.12f}".rstrip("0").rstrip(".")


def fetch_price(session: Any, item: str, *, region: str, now: datetime | None = None) -> float:
    """Return today's price of one unit of `item` in `region`, in dollars. `item`: a key of the price file.

    `session`: asks AWS's price list; `now`: the time for a spot price, by default the present. Raises CrossoverError if the list has no
    price, or several that differ.
    """
    if item.startswith("ec2.") and item.endswith(".spot"):
        kind = item.removeprefix("ec2.").removesuffix(".spot")
        return _fetch_spot_price(session, kind, region=region, now=now or datetime.now(UTC))
    product = find_product(item)
    if product is None:
        raise CrossoverError(f"{item}: it has no product of the price list; add it to PRODUCTS")
    usage = re.compile(rf"([A-Z][A-Z0-9]*-)?{product.usage}")
    found = {
        usd
        for each in _list_products(session, product, region=region)
        if usage.fullmatch(str(each["product"]["attributes"].get("usagetype", "")))
        and (usd := _find_first_paid_tier(each)) is not None
    }
    if len(found) != 1:
        raise CrossoverError(f"{item}: the Price List API has {len(found)} prices in {region}, expected one")
    return found.pop()


def _list_products(session: Any, product: Product, *, region: str) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of AWS's price list for the product in `region`. For data transfer, `region` is the one that the data leaves."""
    where = "fromRegionCode" if product.service == "AWSDataTransfer" else "regionCode"
    wanted = {where: region, **product.attributes}
    filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()]
    products = session.client("pricing", region_name=API_REGION).get_paginator("get_products")
    for page in products.paginate(ServiceCode=product.service, Filters=filters):
        yield from map(json.loads, page["PriceList"])


def _find_first_paid_tier(listed: Mapping[str, Any]) -> float | None:
    """Return the on-demand price in dollars of the lowest tier that is not free, None if all tiers are free. `listed`: an entry of the
    price list.
    """
    tiers = sorted(
        (float(dimension.get("beginRange", 0)), float(dimension["pricePerUnit"]["USD"]))
        for term in listed.get("terms", {}).get("OnDemand", {}).values()
        for dimension in term["priceDimensions"].values()
        if "USD" in dimension["pricePerUnit"]
    )
    return next((usd for _, usd in tiers if usd > 0), None)


def _fetch_spot_price(session: Any, instance_type: str, *, region: str, now: datetime) -> float:
    """Return the current spot price of the instance type in dollars per hour: the highest of the region's availability zones, since the
    zone of a fleet is not known beforehand. Raises CrossoverError if there is none.
    """
    history = session.client("ec2", region_name=region).describe_spot_price_history(
        InstanceTypes=[instance_type],
        ProductDescriptions=["Linux/UNIX"],
        StartTime=now.astimezone(UTC) - timedelta(seconds=1),
    )["SpotPriceHistory"]
    if not history:
        raise CrossoverError(f"ec2.{instance_type}.spot: no spot price in {region}")
    return max(float(each["SpotPrice"]) for each in history)
