"""Today's prices from AWS's answers, written where the old ones stood. The answers have the shape of GetProducts'."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crossover.errors import CrossoverError
from crossover.reports import prices
from crossover.running import price_list
from crossover.running.price_list import PRODUCTS, fetch_price, refresh_prices

NOW = datetime(2027, 1, 2, tzinfo=UTC)
TEXT = prices.PRICING.read_text("utf-8")


def product(usage: str, *tiers: tuple[str, str], **attributes: str) -> str:
    """Return one entry of GetProducts as the API answers: a JSON document in a string. `tiers`: (begin of range, USD)."""
    dimensions = {
        f"sku.term.{n}": {"unit": "Hrs", "beginRange": begin, "endRange": "Inf", "pricePerUnit": {"USD": usd}}
        for n, (begin, usd) in enumerate(tiers)
    }
    listed = {"product": {"sku": "sku", "attributes": {"usagetype": usage, **attributes}}}
    return json.dumps({**listed, "terms": {"OnDemand": {"sku.term": {"priceDimensions": dimensions}}}})


# One answer per service, as it lists them: other usage types beside the one wanted, free tiers, prefixes of regions.
LISTED: Mapping[str, list[str]] = {
    "AWSLambda": [
        product("Lambda-GB-Second", ("0", "0.0000160000"), ("6000000000", "0.0000150000")),
        product("Lambda-GB-Second-ARM", ("7500000000", "0.0000120001"), ("0", "0.0000130000")),
        product("Lambda-Provisioned-GB-Second", ("0", "0.0000097222")),
        product("Request", ("0", "0.0000002100")),
        product("Request-ARM", ("0", "0.0000002200")),
        product("Global-Request", ("0", "0.0000000000")),
    ],
    "AmazonStates": [
        product("USE1-StateTransition", ("0", "0.0000000000"), ("4000", "0.0000260000")),
        product("USE1-StepFunctions-Request", ("0", "0.0000010000")),
    ],
    "AmazonS3": [
        product("Requests-Tier1", ("0", "0.0000060000")),
        product("Requests-Tier2", ("0", "0.0000005000")),
        product("TimedStorage-ByteHrs", ("0", "0.0240000000"), ("51200", "0.0220000000")),
    ],
    "AmazonVPC": [
        product("PublicIPv4:InUseAddress", ("0", "0.0060000000")),
        product("PublicIPv4:IdleAddress", ("0", "0.0050000000")),
        product("USE1-VpcEndpoint-Hours", ("0", "0.0110000000")),
        product("VpcEndpoint-Bytes", ("0", "0.0120000000"), ("1048576", "0.0060000000")),
        product("NatGateway-Hours", ("0", "0.0450000000")),
    ],
    "AWSDataTransfer": [
        product("DataTransfer-Out-Bytes", ("0", "0.0000000000"), ("100", "0.0950000000"), ("10240", "0.0850000000")),
        product("USE1-EUC1-AWS-Out-Bytes", ("0", "0.0200000000")),
    ],
    "AWSSecretsManager": [
        product("USE1-AWSSecretsManager-Secrets", ("0", "0.4500000000")),
        product("USE1-AWSSecretsManagerAPIRequest", ("0", "0.0000060000")),
    ],
    "AmazonCloudWatch": [
        product("DataProcessing-Bytes", ("0", "0.5500000000")),
        product("USE1-CW:Requests", ("0", "0.0000100000")),
    ],
}
EXPECTED = {  # dollars for `per` units, as the file has them
    "lambda.x86.gb_second": 0.000016,
    "lambda.arm64.gb_second": 0.000013,
    "lambda.request": 0.22,
    "stepfunctions.transition": 0.026,
    "s3.write": 0.006,
    "s3.read": 0.0005,
    "s3.gb_month": 0.024,
    "ebs.gp3.gb_month": 0.09,
    "vpc.public_ipv4": 0.006,
    "vpc.interface_endpoint": 0.011,
    "vpc.interface_endpoint.gb": 0.012,
    "transfer.internet.gb": 0.095,
    "secretsmanager.secret": 0.45,
    "secretsmanager.call": 0.06,
    "logs.ingested_gb": 0.55,
    **{f"cpu_credits.{family}": 0.051 for family in ("t2", "t3", "t3a", "t4g")},
}


class Session:
    """A boto3 session that answers as `pricing`, two products a page, and as `ec2`. `listed`: products by service; `spot`: spot prices;
    `asked`: requests for products so far.
    """

    def __init__(
        self, listed: Mapping[str, list[str]] = LISTED, spot: tuple[str, ...] = ("0.21", "0.22", "0.19")
    ) -> None:
        """Answer with these products and spot prices."""
        self.listed, self.spot, self.asked = listed, spot, list[dict[str, Any]]()

    def client(self, service: str, region_name: str) -> Any:
        """Return a client with both services' operations; each request for products is noted in `asked`."""

        def products(*, ServiceCode: str, Filters: list[dict[str, str]]) -> Any:
            """Return the pages, two products each, that match the filters; note the request."""
            asked = {each["Field"]: each["Value"] for each in Filters}
            self.asked.append({"service": ServiceCode, **asked})
            found = self._matching(ServiceCode, asked)
            return [{"FormatVersion": "aws_v1", "PriceList": found[at : at + 2]} for at in range(0, len(found), 2)]

        def describe_spot_price_history(**arguments: Any) -> Any:
            """Return the spot prices on one page."""
            return {"SpotPriceHistory": [{"SpotPrice": each} for each in self.spot]}

        listing = SimpleNamespace(paginate=products)
        return SimpleNamespace(
            get_paginator={"get_products": listing}.__getitem__, describe_spot_price_history=describe_spot_price_history
        )

    def _matching(self, service: str, asked: Mapping[str, str]) -> list[str]:
        """Return the products that match a request: those listed for the service, else made-up ones for Amazon MQ and EC2, else none."""
        if service == "AmazonMQ" and service not in self.listed:
            return [product(f"USE1-{asked['instanceType']}-RabbitMQ", ("0", "0.1110000000"))]
        if service == "AmazonEC2" and service not in self.listed:
            box = (
                [product(f"BoxUsage:{asked['instanceType']}", ("0", "0.1234000000"))] if "instanceType" in asked else []
            )
            credits = [
                product(f"USE1-CPUCredits:{family}", ("0", "0.0510000000")) for family in ("t2", "t3", "t3a", "t4g")
            ]
            return [
                *credits,
                product("EBS:VolumeUsage.gp2", ("0", "0.1")),
                product("EBS:VolumeUsage.gp3", ("0", "0.09")),
                *box,
            ]
        return self.listed.get(service, [])


def test_every_item_gets_todays_price_and_date(tmp_path: Path) -> None:
    """`refresh_prices` sets price, date and `verified` of every item, keeps units, sources, notes and comments, and lists the changes."""
    session = Session()
    text, changes, kept = refresh_prices(TEXT, session, region="us-east-1", now=NOW)
    path = tmp_path / "pricing.yaml"
    path.write_text(text)
    before, after = prices.load().items, prices.load(path).items
    assert kept == [] and before.keys() == after.keys()  # every item is a product or a spot instance
    assert set(EXPECTED) == set(PRODUCTS) <= before.keys()
    for item, price in after.items():
        per = price_list._read_unit_count(next(line for line in text.splitlines() if line.startswith(f"  {item}: ")))
        instance = 0.22 if item.endswith(".spot") else 0.1234 if item.startswith("ec2.") else 0.111
        assert price.usd * per == pytest.approx(EXPECTED.get(item, instance), rel=1e-9), item
        assert (price.as_of, price.verified) == ("2027-01-02", True)
        assert (price.source, price.note, price.unit) == (before[item].source, before[item].note, before[item].unit)
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        line for line in TEXT.splitlines() if line.startswith("#")
    ]
    assert "ec2.m7g.large: 0.0816 -> 0.1234 USD" in changes
    assert "lambda.request: 0.2 -> 0.22 USD for 1,000,000" in changes


def test_what_is_asked_names_region_and_product() -> None:
    """A price request filters by region, service and all attributes of the product."""
    session = Session()
    fetch_price(session, "ec2.m7g.large", region="eu-central-1")
    fetch_price(session, "transfer.internet.gb", region="eu-central-1")
    assert session.asked[0] == {
        "service": "AmazonEC2", "regionCode": "eu-central-1", "operatingSystem": "Linux", "tenancy": "Shared",
        "preInstalledSw": "NA", "capacitystatus": "Used", "instanceType": "m7g.large",
    }  # fmt: skip
    assert session.asked[-1] == {"service": "AWSDataTransfer", "fromRegionCode": "eu-central-1"}


def test_a_second_refresh_changes_nothing() -> None:
    """`refresh_prices` of its own result returns the same text and no changes."""
    text, _, _ = refresh_prices(TEXT, Session(), region="us-east-1", now=NOW)
    assert refresh_prices(text, Session(), region="us-east-1", now=NOW) == (text, [], [])


@pytest.mark.parametrize(
    ("listed", "count"),
    [
        ([], 0),
        ([product("BoxUsage:m7g.large", ("0", "0.0"))], 0),
        ([product("BoxUsage:m7g.large", ("0", "0.1")), product("BoxUsage:m7g.large", ("0", "0.2"))], 2),
        ([product("UnusedBox:m7g.large", ("0", "0.1"))], 0),
    ],
)
def test_no_price_or_several_leave_the_old_one(listed: list[str], count: int) -> None:
    """An item for which AWS lists `count` prices, not one, keeps its old price and is reported."""
    session = Session({**LISTED, "AmazonEC2": listed})
    text, _, kept = refresh_prices(TEXT, session, region="us-east-1", now=NOW)
    assert f"ec2.m7g.large: the Price List API has {count} prices in us-east-1, expected one" in kept
    old = next(line for line in TEXT.splitlines() if line.startswith("  ec2.m7g.large:"))
    assert old in text.splitlines()


def test_another_regions_prices_are_told_from_those_that_stay() -> None:
    """A refresh for another region marks prices that could not be fetched there as not verified, and reports them."""
    text, _, kept = refresh_prices(TEXT, Session(spot=()), region="eu-central-1", now=NOW)
    assert "region: eu-central-1" in text.splitlines() and "region: us-east-1" not in text.splitlines()
    spot = [item for item in prices.load().items if item.endswith(".spot")]
    assert kept == [f"{item}: no spot price in eu-central-1" for item in spot]
    doubtful = [line for line in text.splitlines() if ", verified: false" in line]
    assert [line.split(":")[0].strip() for line in doubtful] == spot


def test_an_item_that_nobody_described_is_said() -> None:
    """An item without a product description raises CrossoverError."""
    with pytest.raises(CrossoverError, match=r"coffee\.cup: it has no product"):
        fetch_price(Session(), "coffee.cup", region="us-east-1")
