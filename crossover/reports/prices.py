"""Prices as dated data: `config/pricing.yaml`. An item without a price is refused."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from crossover.errors import ConfigError

PRICING = Path(__file__).parents[2] / "config" / "pricing.yaml"
DEFAULT_STALE_AFTER = 180  # days; config/pricing.yaml says its own


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of one item: `usd` dollars for one `unit` at the date `as_of`, a month or a day. `item`: key in the price list; `source`:
    where the price was read; `verified`: whether it was checked there; `confirmed`: a second source, or ""; `note`: a remark on the price,
    or "".
    """

    item: str
    usd: float
    unit: str
    as_of: str
    source: str
    verified: bool = True
    confirmed: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Prices:
    """The price list of one AWS region. `as_of`: date of the list, which prices without a date of their own have; `hours_per_month`: length
    of a month in the list; `items`: prices by key; `stale_after`: age in days, from the end of a price's month or day, beyond which it
    counts as old.
    """

    region: str
    as_of: str
    hours_per_month: float
    items: Mapping[str, Price]
    stale_after: int = DEFAULT_STALE_AFTER  # days from the end of a price's month or day

    @property
    def basis(self) -> str:
        """The region and date of the prices as text: `prices of us-east-1, 2026-11`."""
        return f"prices of {self.region}, {self.as_of}"

    def stale(self, items: Iterable[str], today: date) -> str:
        """Return a sentence that names the dates of those prices of `items` that are more than `stale_after` days old on the date `today`;
        "" if none is. Raises ConfigError if the list lacks an item.
        """
        old = sorted(
            {self.of(item).as_of for item in items if (today - _last_day(self.of(item).as_of)).days > self.stale_after}
        )
        if not old:
            return ""
        dates = " and ".join(old)
        return f"Prices of {dates} are more than {self.stale_after} days old: `crossover prices refresh` gets today's."

    def of(self, item: str) -> Price:
        """Return the price of `item`, a key such as "ec2.t4g.medium". Raises ConfigError, which names similar items, if the list has none:
        a cost is never guessed.
        """
        if item in self.items:
            return self.items[item]
        family = item.split(".")[0]
        near = difflib.get_close_matches(item, self.items, n=3) or [i for i in self.items if i.split(".")[0] == family]
        known = f"; known: {', '.join(sorted(near))}" if near else ""
        raise ConfigError(f"pricing: {item!r} has no price in {self.region}{known}. Add it to config/pricing.yaml")


def load(path: Path = PRICING) -> Prices:
    """Return the price list in the YAML file `path`, by default config/pricing.yaml, read at every call. Raises ConfigError, which names
    the item and the field, if the file is not a valid list.
    """
    import yaml  # functions, which have none, get their prices in the run's facts

    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast; wheels bring it
        plain = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - both are safe
        as_of, region, hours = str(plain["as_of"]), str(plain["region"]), float(plain["hours_per_month"])
        stale_after = plain.get("stale_after", DEFAULT_STALE_AFTER)
        _last_day(as_of)
        listed: Mapping[str, Mapping[str, Any]] = dict(plain["prices"])
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as problem:
        raise ConfigError(f"{path.name}: not a price list: {problem}") from problem
    if plain.get("currency") != "USD":
        raise ConfigError(f"{path.name}: currency: {plain.get('currency')!r} is not allowed; costs are computed in USD")
    if isinstance(stale_after, bool) or not isinstance(stale_after, int) or stale_after < 1:
        raise ConfigError(
            f"{path.name}: stale_after: {stale_after!r} is not allowed; expected a whole number of days, 1 or more"
        )
    items = {item: _price(item, entry, as_of=as_of, where=path.name) for item, entry in listed.items()}
    return Prices(region=region, as_of=as_of, hours_per_month=hours, items=items, stale_after=stale_after)


FIELDS = {"usd", "per", "unit", "as_of", "source", "verified", "confirmed", "note"}


def _last_day(as_of: str) -> date:
    """Return the last day of the month for a text such as `2026-11`, or the day for one such as `2026-11-26`. Raises ValueError for other
    text.
    """
    if len(as_of) == len("2026-11"):
        return (date.fromisoformat(f"{as_of}-01") + timedelta(days=31)).replace(day=1) - timedelta(days=1)
    return date.fromisoformat(as_of)


def _price(item: str, entry: Mapping[str, Any], *, as_of: str, where: str) -> Price:
    """Return the price of one item after checking its entry in the price file: the dollars of one unit, `usd` divided by `per`. `entry`:
    the item's mapping there; `as_of`: date of the list, for entries without a date; `where`: file name for errors. Raises ConfigError if
    the entry is not valid.
    """
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
    dated = str(entry.get("as_of", as_of))
    try:
        _last_day(dated)
    except ValueError:
        raise ConfigError(
            f"{where}: prices.{item}.as_of: {dated!r} is not allowed; expected a month (2026-11) or a day (2026-11-26)"
        ) from None
    return Price(
        item=item,
        usd=usd / per,
        unit=str(entry["unit"]),
        as_of=dated,
        source=str(entry["source"]),
        verified=bool(entry.get("verified", True)),
        confirmed=str(entry.get("confirmed", "")),
        note=str(entry.get("note", "")),
    )
