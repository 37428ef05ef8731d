"""Prices of instances as AWS lists them today: the Price List API for on demand, the market's history for spot.

Other items of config/pricing.yaml keep their figure and date: the API names them by codes that differ by service, and they seldom change.
Source: AWS Price List Query API, GetProducts; EC2 DescribeSpotPriceHistory.
"""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from crossover.errors import CrossoverError

API_REGION = "us-east-1"  # the API answers for every region from here
SOLD = {"operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"}
ENTRY = re.compile(r"^(  (?P<item>ec2\.[\w.]+): \{usd: )(?P<usd>[\d.]+)(?P<rest>.*)\}\s*$")


def refreshed(text: str, session: Any, *, region: str, now: datetime) -> tuple[str, list[str]]:
    """The price file with today's prices of EC2 instances, and one line per price that changed. Raises CrossoverError."""
    lines, changes = [], []
    for line in text.splitlines():
        match = ENTRY.match(line)
        if match is None:
            lines.append(line)
            continue
        item, old = match["item"], float(match["usd"])
        kind = item.removeprefix("ec2.").removesuffix(".spot")
        spot = item.endswith(".spot")
        usd = _spot(session, kind, region=region, now=now) if spot else _on_demand(session, kind, region=region)
        rest = re.sub(r', (as_of: "[^"]*"|verified: false)', "", match["rest"])
        lines.append(f'{match[1]}{usd:.10g}, as_of: "{now:%Y-%m-%d}"{rest}}}')
        if usd != old:
            changes.append(f"{item}: {old:g} -> {usd:g} USD an hour")
    return "\n".join(lines) + "\n", changes


def _on_demand(session: Any, instance_type: str, *, region: str) -> float:
    client = session.client("pricing", region_name=API_REGION)
    wanted = SOLD | {"instanceType": instance_type, "regionCode": region}
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    products = client.get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
    prices = {
        float(dimension["pricePerUnit"]["USD"])
        for product in map(json.loads, products)
        for term in product["terms"].get("OnDemand", {}).values()
        for dimension in term["priceDimensions"].values()
    } - {0.0}
    if len(prices) != 1:
        raise CrossoverError(
            f"{instance_type}: the Price List API has {len(prices)} prices in {region}, expected one; config/pricing.yaml stays"
        )
    return prices.pop()


def _spot(session: Any, instance_type: str, *, region: str, now: datetime) -> float:
    """The highest of the zones' current prices: which zone a fleet lands in is not known beforehand."""
    history = session.client("ec2", region_name=region).describe_spot_price_history(
        InstanceTypes=[instance_type],
        ProductDescriptions=["Linux/UNIX"],
        StartTime=now.astimezone(UTC) - timedelta(seconds=1),
    )["SpotPriceHistory"]
    if not history:
        raise CrossoverError(f"{instance_type}: no spot price in {region}; config/pricing.yaml stays")
    return max(float(each["SpotPrice"]) for each in history)
