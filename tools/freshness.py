"""List dated figures that have become old: `python -m tools.freshness`, which `make freshness` and `make lint` run.

Prices and documented limits of AWS carry `as_of`, a month or a day. They are old `stale_after` days later (the file's own, else
STALE_AFTER). Old figures are a warning, never a failure: nothing of the project breaks on the day on which a price becomes old.
"""

from calendar import monthrange
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import yaml

from tools import refuse_arguments

CONFIG = Path(__file__).parents[1] / "config"
FILES = ("pricing.yaml", "calibration/documented.yaml", "calibration/fitted.yaml", "calibration/gpus.yaml")
STALE_AFTER = 365  # days, for a file that has no `stale_after`


def last_day(as_of: str) -> date:
    """Return the last day of the month for a month such as 2026-11, or the day itself for a day such as 2026-11-26."""
    year, month, *day = map(int, as_of.split("-"))
    return date(year, month, day[0] if day else monthrange(year, month)[1])


def find_dates(plain: Any) -> Iterator[str]:
    """Yield the value of each `as_of` in a file's content (`plain`), at any depth."""
    if isinstance(plain, dict):
        if "as_of" in plain:
            yield str(plain["as_of"])
        plain = list(plain.values())
    if isinstance(plain, list):
        for each in plain:
            yield from find_dates(each)


def list_old(folder: Path, *, today: date) -> Iterator[str]:
    """Yield one warning for each file of FILES and `as_of` date in it that is more than the file's `stale_after` days old on the day
    `today`. `folder`: the folder that holds FILES.
    """
    for name in FILES:
        plain = yaml.safe_load((folder / name).read_text(encoding="utf-8"))
        limit = int(plain.get("stale_after", STALE_AFTER))
        for as_of, count in sorted(Counter(find_dates(plain)).items()):
            if (age := (today - last_day(as_of)).days) > limit:
                yield f"config/{name}: {count} dated {as_of} are {age} days old, limit {limit}: look them up again"


if __name__ == "__main__":
    refuse_arguments(__doc__)
    old = list(list_old(CONFIG, today=datetime.now(UTC).date()))
    print(*(f"warning: {line}" for line in old), sep="\n", end="\n" if old else "")
    print(f"freshness: {len(old)} old dates in {len(FILES)} files")
