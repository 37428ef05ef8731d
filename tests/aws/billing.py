"""What AWS billed for a walk, a day later, beside what was predicted."""

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3

from crossover.errors import UserError
from crossover.reports.folder import write_atomically


def add_billed(path: Path) -> str:
    """Write the billed dollars into an earlier walk's verified-aws.json and return them beside the predicted ones.

    They are those of everything with the project's tag, from the day the walk began to the day after it ended. Raises UserError if
    there is no such walk on an account, or no bill yet.
    """
    if not path.exists():
        raise UserError(f"{path}: does not exist; make test-aws writes it, and the bill follows a day later")
    document = json.loads(path.read_text("utf-8"))
    if document["label"] != "measured-aws":
        raise UserError(f"{path}: was written by the cloud on this machine, which bills nothing")
    project = document["experiment"]["project"]
    first = date.fromisoformat(document["started_at"][:10])
    end = min(date.fromisoformat(document["verified_at"][:10]), datetime.now(UTC).date()) + timedelta(days=2)
    billed = _billed(project, first, end)
    if not billed:
        raise UserError(
            f"AWS has billed nothing with the tag project={project} since {first} yet: wait a day, and see that the tag is "
            "activated under Billing, Cost allocation tags"
        )
    usd = document["usd"] | {"billed": round(billed, 4)}
    write_atomically(path, json.dumps(document | {"usd": usd}, indent=1).encode() + b"\n")
    return f"predicted ${usd['predicted']:.2f}, ${usd['by_minutes']:.2f} by the minutes, billed ${billed:.2f} (everything of {project})"


def _billed(project: str, first: date, end: date) -> float:
    """Return the dollars from `first` to the day before `end`."""
    asked: dict[str, Any] = {
        "TimePeriod": {"Start": str(first), "End": str(end)},
        "Granularity": "DAILY",
        "Metrics": ["UnblendedCost"],
        "Filter": {"Tags": {"Key": "project", "Values": [project]}},
    }
    days = boto3.client("ce", region_name="us-east-1").get_cost_and_usage(**asked)["ResultsByTime"]
    return sum(float(day["Total"]["UnblendedCost"]["Amount"]) for day in days)
