"""What a verification showed, for people and for projections: verified-aws.json and a table."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from crossover.account.proofs import unproven
from crossover.account.proofs.evidence import Evidence
from crossover.account.proofs.observed import Observed

FILE = "verified-aws.json"
STYLES = {"proven": "green", "refuted": "bold red", "not covered": "dim"}


def write(
    out: Path,
    seen: Evidence,
    facts: tuple[unproven.Fact, ...],
    found: Mapping[str, Observed],
    *,
    failure: BaseException | None,
) -> Path:
    """verified-aws.json, whole or not at all. `label`: measured-aws only where a real account answered."""
    from crossover.reports.folder import write_atomically

    document = {
        "label": seen.label,
        "verified_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "region": seen.client("sts").meta.region_name,
        "experiment": seen.experiment.resolved(),
        "failure": None if failure is None else str(failure) or type(failure).__name__,
        "minutes": {phase: round(minutes, 2) for phase, minutes in seen.minutes.items()},
        "records": "metrics.jsonl" if seen.run else None,  # beside this file: what projections are calibrated with
        "facts": [
            {
                "id": fact.id,
                "what": fact.what,
                "label": seen.label,
                "verdict": found[fact.id].verdict,
                "seen": found[fact.id].seen,
                "value": found[fact.id].value,
                "unit": found[fact.id].unit,
            }
            for fact in facts
        ],
    }
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / FILE, json.dumps(document, indent=1).encode() + b"\n")
    return out / FILE


def table(seen: Evidence, found: Mapping[str, Observed]) -> Table:
    shown = Table("verdict", "fact of docs/aws.md", "seen", title=f"What was shown  [{seen.label}]".replace("[", "\\["))
    for id, each in found.items():
        shown.add_row(each.verdict, id, each.seen, style=STYLES[each.verdict])
    return shown


def summary(found: Mapping[str, Observed]) -> str:
    counts = {verdict: sum(1 for each in found.values() if each.verdict == verdict) for verdict in STYLES}
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
