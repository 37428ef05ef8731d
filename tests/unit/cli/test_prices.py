"""Prices of instances from AWS's answers, written where the old ones stood."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from crossover.cli.aws.price_list import refreshed
from crossover.errors import CrossoverError
from crossover.reports import prices

NOW = datetime(2027, 1, 2, tzinfo=UTC)
TEXT = prices.PRICING.read_text("utf-8")


def product(*usd: str) -> str:
    """One entry of GetProducts, as the API answers: a JSON document in a string."""
    dimensions = {f"sku.{n}": {"unit": "Hrs", "pricePerUnit": {"USD": each}} for n, each in enumerate(usd)}
    return json.dumps({"product": {"sku": "sku"}, "terms": {"OnDemand": {"sku.term": {"priceDimensions": dimensions}}}})


class Session:
    """Answers like `pricing` and `ec2`, and keeps what was asked."""

    def __init__(self, listed: list[str], spot: list[str]) -> None:
        self.listed, self.spot, self.asked = listed, spot, list[dict[str, Any]]()

    def client(self, service: str, region_name: str) -> Any:
        def get_products(**arguments: Any) -> Any:
            self.asked.append({each["Field"]: each["Value"] for each in arguments["Filters"]})
            return {"PriceList": self.listed}

        def describe_spot_price_history(**arguments: Any) -> Any:
            return {"SpotPriceHistory": [{"SpotPrice": each} for each in self.spot]}

        return SimpleNamespace(get_products=get_products, describe_spot_price_history=describe_spot_price_history)


def test_every_instance_gets_todays_price_and_date_and_nothing_else_changes(tmp_path: Any) -> None:
    session = Session([product("0.1234000000"), product("0.0000000000")], ["0.21", "0.22", "0.19"])
    text, changes = refreshed(TEXT, session, region="us-east-1", now=NOW)
    path = tmp_path / "pricing.yaml"
    path.write_text(text)
    before, after = prices.load().items, prices.load(path).items
    assert before.keys() == after.keys()
    for item, price in after.items():
        if item.startswith("ec2."):
            assert (price.usd, price.as_of) == (0.22 if item.endswith(".spot") else 0.1234, "2027-01-02")
            assert price.verified and price.source == before[item].source and price.note == before[item].note
        else:
            assert price == before[item]
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        line for line in TEXT.splitlines() if line.startswith("#")
    ]
    assert "ec2.m7g.large: 0.0816 -> 0.1234 USD an hour" in changes
    assert session.asked[0]["regionCode"] == "us-east-1" and session.asked[0]["tenancy"] == "Shared"


def test_a_second_refresh_changes_nothing() -> None:
    session = Session([product("0.1234")], ["0.2"])
    text, _ = refreshed(TEXT, session, region="us-east-1", now=NOW)
    assert refreshed(text, session, region="us-east-1", now=NOW) == (text, [])


@pytest.mark.parametrize("listed", [[], [product("0.1"), product("0.2")]])
def test_no_price_or_several_are_refused(listed: list[str]) -> None:
    with pytest.raises(CrossoverError, match=r"prices in us-east-1, expected one; config/pricing\.yaml stays"):
        refreshed(TEXT, Session(listed, ["0.2"]), region="us-east-1", now=NOW)


def test_no_spot_price_is_refused() -> None:
    with pytest.raises(CrossoverError, match="no spot price in us-east-1"):
        refreshed(TEXT, Session([product("0.1")], []), region="us-east-1", now=NOW)
