"""Prices: dated, sourced, and never guessed."""

from datetime import date
from pathlib import Path

import pytest

from crossover.errors import ConfigError
from crossover.reports import prices
from crossover.simulation import figures


def test_every_price_has_unit_date_and_source() -> None:
    """Each price in config/pricing.yaml is above 0 and has a unit, a date and a source at AWS or GitHub."""
    listed = prices.load()
    assert listed.region == "us-east-1"
    for item, price in listed.items.items():
        assert (
            price.unit and price.as_of and price.source.startswith(("https://aws.amazon.com/", "https://github.com/"))
        ), item
        assert price.usd > 0, item


def test_an_unknown_item_is_refused_with_what_is_near() -> None:
    """An item without a price raises ConfigError, which names similar items or the price file."""
    with pytest.raises(ConfigError, match=r"'ec2.m7g.largo' has no price in us-east-1; known: .*ec2.m7g.large"):
        prices.load().of("ec2.m7g.largo")
    with pytest.raises(ConfigError, match=r"config/pricing.yaml"):
        prices.load().of("braket.qubit")


SIZES = ("large", "xlarge", "2xlarge", "4xlarge", "8xlarge", "16xlarge")
GPUS = (
    "g4dn.xlarge",
    "g4dn.2xlarge",
    "g4dn.4xlarge",
    "g5.xlarge",
    "g5.2xlarge",
    "g6.xlarge",
    "g6.2xlarge",
    "g6e.xlarge",
)
GPUS += ("g6e.2xlarge", "g6f.large", "g6f.xlarge", "g6f.2xlarge", "g6f.4xlarge")


def test_every_instance_type_that_people_would_choose_has_a_price_and_a_size() -> None:
    """Each common CPU and GPU instance type has a price and a known memory, and only GPU types have GPU memory."""
    listed, known = prices.load(), figures.load_instances()
    for name in (*(f"{family}.{size}" for family in ("c7g", "c8g", "m7g") for size in SIZES), *GPUS):
        assert listed.of(f"ec2.{name}").usd > 0 and known[name].memory_gb, name
        assert bool(known[name].gpu_gb) is name.startswith("g")


@pytest.mark.parametrize(
    ("today", "old"), [(date(2026, 11, 30), False), (date(2026, 12, 10), False), (date(2026, 12, 11), True)]
)
def test_an_old_date_is_said_once_it_is_older_than_the_file_allows(tmp_path: Path, today: date, old: bool) -> None:
    """Prices older than the file's `stale_after` days on `today` are named in one sentence."""
    path = tmp_path / "pricing.yaml"
    path.write_text(
        "stale_after: 10\n"
        + HEAD
        + '  a.b: {usd: 1, unit: x, source: s}\n  c: {usd: 1, unit: x, source: s, as_of: "2027-01-02"}'
    )
    said = prices.load(path).stale(("a.b", "c"), today)
    assert said == (
        "Prices of 2026-11 are more than 10 days old: `crossover prices refresh` gets today's." if old else ""
    )


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
        (
            "  a.b: {usd: 1, unit: x, source: s, as_of: soon}",
            r"prices\.a\.b\.as_of: 'soon' is not allowed; expected a month",
        ),
        ("  a.b: 3", r"prices\.a\.b: expected a mapping"),
    ],
)
def test_a_bad_entry_is_named(tmp_path: Path, entry: str, complaint: str) -> None:
    """A price entry that is not valid raises ConfigError with `complaint`."""
    path = tmp_path / "pricing.yaml"
    path.write_text(HEAD + entry)
    with pytest.raises(ConfigError, match=complaint):
        prices.load(path)


def test_a_file_that_is_no_price_list_is_refused(tmp_path: Path) -> None:
    """`prices.load` raises ConfigError with the file's name if it is missing or not a valid price list."""
    path = tmp_path / "pricing.yaml"
    for text in (
        "stale_after: 0\n" + HEAD + "  a: {usd: 1, unit: x, source: s}",
        "",
        "- 1",
        "region: x",
        HEAD.replace("USD", "EUR") + "  a: {usd: 1, unit: x, source: s}",
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"pricing\.yaml"):
            prices.load(path)
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        prices.load(tmp_path / "absent.yaml")
