"""Lambda's platform.report records: what was billed and what it occupied, joined to a step's own record by the request id.

Source of the format: https://docs.aws.amazon.com/lambda/latest/dg/telemetry-schema-reference.html
"""

import json
import math
from datetime import UTC, datetime
from typing import Any

from crossover.local.lambda_runtime.environment import InvocationOutcome
from crossover.local.lambda_runtime.function import Function


def report(function: Function, request_id: str, outcome: InvocationOutcome) -> dict[str, Any]:
    """One record. Lambda bills initialisation too (since August 2025), rounded up to the millisecond together."""
    metrics: dict[str, Any] = {
        "durationMs": round(outcome.duration_ms, 3),
        "billedDurationMs": math.ceil(outcome.duration_ms + (outcome.init_ms or 0.0)),
        "memorySizeMB": function.memory_mb,
        "maxMemoryUsedMB": outcome.max_memory_mb,
    }
    if outcome.init_ms is not None:
        metrics["initDurationMs"] = round(outcome.init_ms, 3)
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "type": "platform.report",
        "record": {"requestId": request_id, "status": outcome.status, "metrics": metrics},
    }


def lines(record: dict[str, Any], printed: bytes) -> list[str]:
    """What goes to the function's log group: what it printed, line by line, then the record."""
    text = printed.decode(errors="replace").replace("\r", "\n")
    return [*(line for line in text.splitlines() if line.strip()), json.dumps(record)]
