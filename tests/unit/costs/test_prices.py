"""Prices: dated, sourced, and never guessed."""

from pathlib import Path

import pytest

from crossover.costs import prices
from crossover.errors import ConfigError


def test_every_price_has_unit_date_and_source() -> None:
    listed = prices.load()
    assert listed.region == "us-east-1"
    for item, price in listed.items.items():
        assert price.unit and price.as_of and price.source.startswith("https://aws.amazon.com/"), item
        assert price.usd > 0, item


def test_an_unknown_item_is_refused_with_what_is_near() -> None:
    with pytest.raises(ConfigError, match=r"'ec2.m7g.largo' has no price in us-east-1; known: .*ec2.m7g.large"):
        prices.load().of("ec2.m7g.largo")
    with pytest.raises(ConfigError, match=r"config/pricing.yaml"):
        prices.load().of("braket.qubit")


HEAD = 'region: us-east-1\ncurrency: USD\nas_of: "2026-11"\nhours_per_month: 730\nprices:\n'


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("  a.b: {usd: -1, unit: x, source: s}", r"prices\.a\.b\.usd: -1 is not allowed"),
        ("  a.b: {usd: true, unit: x, source: s}", r"prices\.a\.b\.usd: True is not allowed"),
        ("  a.b: {usd: .nan, unit: x, source: s}", r"prices\.a\.b\.usd: nan is not allowed"),
        ("  a.b: {usd: 1, per: 0, unit: x, source: s}", r"prices\.a\.b\.per: 0 is not allowed"),
        ("  a.b: {usd: 1, source: s}", r"prices\.a\.b: 'unit' is missing"),
        ("  a.b: {usd: 1, unit: x, source: s, prise: 2}", r"prices\.a\.b: 'prise' is unknown"),
        ("  a.b: 3", r"prices\.a\.b: expected a mapping"),
    ],
)
def test_a_bad_entry_is_named(tmp_path: Path, entry: str, complaint: str) -> None:
    path = tmp_path / "pricing.yaml"
    path.write_text(HEAD + entry)
    with pytest.raises(ConfigError, match=complaint):
        prices.load(path)


def test_a_file_that_is_no_price_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pricing.yaml"
    for text in ("", "- 1", "region: x", HEAD.replace("USD", "EUR") + "  a: {usd: 1, unit: x, source: s}"):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"pricing\.yaml"):
            prices.load(path)
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        prices.load(tmp_path / "absent.yaml")
