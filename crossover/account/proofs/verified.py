"""What a verification showed, for people and for projections: verified-aws.json and a table."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from crossover.account.proofs.observed import Observed
from crossover.account.proofs.steps import ProofWalk
from crossover.reports.folder import write_atomically

FILE = "verified-aws.json"
STYLES = {"proven": "green", "refuted": "bold red", "not covered": "dim"}


def write(
    walk: ProofWalk, facts: Mapping[str, str], found: Mapping[str, Observed], *, failure: BaseException | None
) -> Path:
    """verified-aws.json, whole or not at all. `label`: measured-aws only where a real account answered."""
    document = {
        "label": walk.label,
        "verified_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "region": walk.client("sts").meta.region_name,
        "experiment": walk.experiment.resolved(),
        "failure": None if failure is None else str(failure) or type(failure).__name__,
        "minutes": {phase: round(minutes, 2) for phase, minutes in walk.minutes.items()},
        "records": "metrics.jsonl" if walk.run else None,  # beside this file: what projections are calibrated with
        "facts": [{"id": id, "what": facts[id], "label": walk.label, **asdict(each)} for id, each in found.items()],
    }
    walk.out.mkdir(parents=True, exist_ok=True)
    write_atomically(walk.out / FILE, json.dumps(document, indent=1).encode() + b"\n")
    return walk.out / FILE


def table(walk: ProofWalk, found: Mapping[str, Observed]) -> Table:
    shown = Table("verdict", "fact of docs/aws.md", "seen", title=f"What was shown  [{walk.label}]".replace("[", "\\["))
    for id, each in found.items():
        shown.add_row(each.verdict, id, each.seen, style=STYLES[each.verdict])
    return shown


def summary(found: Mapping[str, Observed]) -> str:
    return ", ".join(f"{sum(each.verdict == verdict for each in found.values())} {verdict}" for verdict in STYLES)
