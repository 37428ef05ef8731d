"""What Lambda itself says of each invocation: `platform.report` records in the functions' log groups, joined by request id.

A function cannot know its billed time, INIT or peak memory. The records reach the logs seconds to minutes after an invocation. Source of
the format: https://docs.aws.amazon.com/lambda/latest/dg/telemetry-schema-reference.html
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crossover import runtime
from crossover.clients import aws_calls
from crossover.costs.invocations import Record, on_instance
from crossover.runtime.pauses import Pauses

GROUPS = "/aws/lambda/"
WAIT_S, LOOK_EVERY_S = 180.0, 5.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """One invocation's. `init_ms` None: the environment was warm. `logged_at`: unix seconds, when it reached the log."""

    request_id: str
    logged_at: float
    function: str
    duration_ms: float
    billed_ms: int
    memory_mb: int
    max_memory_mb: int
    init_ms: float | None


def read(session: Any, stack: str, *, since_s: float) -> dict[str, Report]:
    """By request id, of all functions named after the stack, since the moment `since_s` (unix seconds)."""
    found = dict[str, Report]()
    wanted = {"startTime": int(since_s * 1_000), "filterPattern": '{ $.type = "platform.report" }'}
    for each in aws_calls.entries(
        session, "logs", "describe_log_groups", "logGroups", logGroupNamePrefix=f"{GROUPS}{stack}-"
    ):
        group = each["logGroupName"]
        for event in aws_calls.entries(session, "logs", "filter_log_events", "events", logGroupName=group, **wanted):
            if report := _report(group.removeprefix(GROUPS), event):
                found[report.request_id] = report
    return found


def _report(function: str, event: Mapping[str, Any]) -> Report | None:
    try:
        record = json.loads(event["message"])
    except ValueError:  # what a function printed
        return None
    if not isinstance(record, dict) or record.get("type") != "platform.report":
        return None
    metrics = record["record"]["metrics"]
    return Report(
        request_id=record["record"]["requestId"],
        logged_at=event["timestamp"] / 1_000,
        function=function,
        duration_ms=metrics["durationMs"],
        billed_ms=int(metrics["billedDurationMs"]),
        memory_mb=int(metrics["memorySizeMB"]),
        max_memory_mb=int(metrics["maxMemoryUsedMB"]),
        init_ms=metrics.get("initDurationMs"),
    )


def wait_for(
    session: Any, stack: str, records: Sequence[Record], *, wait_s: float = WAIT_S, every_s: float = LOOK_EVERY_S
) -> dict[str, Report]:
    """All reports of the stack's functions since the first of `records`: looked for until theirs are there or `wait_s` have passed."""
    wanted = {each["request_id"] for each in records if each.get("request_id") and not on_instance(each)}
    since_s = min((float(each["started_at"]) for each in records), default=runtime.time()) - 60
    pause = Pauses(every_s, within_s=wait_s)
    while True:
        found = read(session, stack, since_s=since_s)
        if wanted <= found.keys() or not pause():
            return found


def joined(records: Iterable[Record], reports: Mapping[str, Report]) -> list[dict[str, Any]]:
    """The records with `billed_ms`, `init_s` and `max_rss_mb` as the platform gives them, where it does."""
    return [
        {**record, **(_figures(report) if (report := reports.get(str(record.get("request_id")))) else {})}
        for record in records
    ]


def unrecorded(
    records: Iterable[Record], reports: Mapping[str, Report], *, functions: Iterable[str], since_s: float
) -> list[Report]:
    """Of invocations of `functions` that left no record: killed before they could write one, by a time-out or their memory's end."""
    left, names = {each.get("request_id") for each in records}, set(functions)
    return [
        report
        for report in reports.values()
        if report.request_id not in left and report.function in names and report.logged_at >= since_s
    ]


def _figures(report: Report) -> dict[str, Any]:
    figures: dict[str, Any] = {"billed_ms": report.billed_ms, "max_rss_mb": float(report.max_memory_mb)}
    if report.init_ms is not None:
        figures |= {"cold": True, "init_s": report.init_ms / 1_000}
    return figures
