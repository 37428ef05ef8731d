"""What a verification showed, for people and for projections: verified-aws.json and a table."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from crossover.reports.folder import write_atomically
from tests.aws.observed import Observed
from tests.aws.steps import ProofWalk

FILE = "verified-aws.json"
STYLES = {"proven": "green", "refuted": "bold red", "not covered": "dim"}


def write(
    walk: ProofWalk,
    facts: Mapping[str, str],
    found: Mapping[str, Observed],
    *,
    usd: Mapping[str, float | None],
    failure: BaseException | None,
) -> Path:
    """Write verified-aws.json, whole or not at all. `label`: measured-aws only if a real account answered.

    `usd`: dollars predicted, by the minutes that the steps lasted, and billed.
    """
    document = {
        "label": walk.label,
        "started_at": walk.started.isoformat(timespec="seconds"),
        "verified_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "region": walk.client("sts").meta.region_name,
        "experiment": walk.experiment.to_plain(),
        "failure": None if failure is None else str(failure) or type(failure).__name__,
        "minutes": {phase: round(minutes, 2) for phase, minutes in walk.minutes.items()},
        "usd": dict(usd),
        "records": "metrics.jsonl" if walk.run else None,  # beside this file: what projections are calibrated with
        "facts": [{"id": id, "what": facts[id], "label": walk.label, **asdict(each)} for id, each in found.items()],
    }
    walk.out.mkdir(parents=True, exist_ok=True)
    write_atomically(walk.out / FILE, json.dumps(document, indent=1).encode() + b"\n")
    return walk.out / FILE


def table(walk: ProofWalk, found: Mapping[str, Observed]) -> Table:
    """Return a table of the verdicts for the terminal."""
    shown = Table("verdict", "fact of docs/aws.md", "seen", title=f"What was shown  [{walk.label}]".replace("[", "\\["))
    for id, each in found.items():
        shown.add_row(each.verdict, id, each.seen, style=STYLES[each.verdict])
    return shown


def summary(found: Mapping[str, Observed]) -> str:
    """Return how many facts have each verdict, in words."""
    return ", ".join(f"{sum(each.verdict == verdict for each in found.values())} {verdict}" for verdict in STYLES)
