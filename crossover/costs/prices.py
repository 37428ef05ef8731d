"""Prices as dated data: `config/pricing.yaml`, read once, every unknown item refused."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossover.errors import ConfigError

PRICING = Path(__file__).parents[2] / "config" / "pricing.yaml"


@dataclass(frozen=True, kw_only=True)
class Price:
    """One item of AWS's price list: `usd` for one `unit`, as it stood at `as_of`."""

    item: str
    usd: float
    unit: str
    as_of: str
    source: str
    verified: bool = True
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Prices:
    """A dated snapshot of one region's prices."""

    region: str
    as_of: str
    hours_per_month: float
    items: Mapping[str, Price]

    def of(self, item: str) -> Price:
        """The price of `item`. Raises ConfigError naming near misses: a cost is never guessed."""
        if item in self.items:
            return self.items[item]
        family = item.split(".")[0]
        near = difflib.get_close_matches(item, self.items, n=3) or [i for i in self.items if i.split(".")[0] == family]
        known = f"; known: {', '.join(sorted(near))}" if near else ""
        raise ConfigError(f"pricing: {item!r} has no price in {self.region}{known}. Add it to config/pricing.yaml")


def load(path: Path = PRICING) -> Prices:
    """The snapshot in `path`. Raises ConfigError naming the item and the field that do not fit."""
    import yaml  # functions, which have none, get their prices in the run's facts

    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast; wheels bring it
        plain = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - both are safe
        as_of, region, hours = str(plain["as_of"]), str(plain["region"]), float(plain["hours_per_month"])
        listed: Mapping[str, Mapping[str, Any]] = dict(plain["prices"])
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as problem:
        raise ConfigError(f"{path.name}: not a price list: {problem}") from problem
    if plain.get("currency") != "USD":
        raise ConfigError(f"{path.name}: currency: {plain.get('currency')!r} is not allowed; costs are computed in USD")
    items = {item: _price(item, entry, as_of=as_of, where=path.name) for item, entry in listed.items()}
    return Prices(region=region, as_of=as_of, hours_per_month=hours, items=items)


FIELDS = {"usd", "per", "unit", "as_of", "source", "verified", "note"}


def _price(item: str, entry: Mapping[str, Any], *, as_of: str, where: str) -> Price:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where}: prices.{item}: expected a mapping with usd, unit and source")
    unknown = entry.keys() - FIELDS
    missing = {"usd", "unit", "source"} - entry.keys()
    if unknown or missing:
        problem = f"{sorted(unknown)[0]!r} is unknown" if unknown else f"{sorted(missing)[0]!r} is missing"
        raise ConfigError(f"{where}: prices.{item}: {problem}; fields are {', '.join(sorted(FIELDS))}")
    usd, per = entry["usd"], entry.get("per", 1)
    for name, value in (("usd", usd), ("per", per)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise ConfigError(f"{where}: prices.{item}.{name}: {value!r} is not allowed; expected a number above 0")
    return Price(
        item=item,
        usd=usd / per,
        unit=str(entry["unit"]),
        as_of=str(entry.get("as_of", as_of)),
        source=str(entry["source"]),
        verified=bool(entry.get("verified", True)),
        note=str(entry.get("note", "")),
    )
