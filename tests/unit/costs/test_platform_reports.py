"""Lambda's own records joined to the steps': by request id, waited for, and never at the price of what a step knows itself."""

import json
from types import SimpleNamespace
from typing import Any

from crossover.reports.usage import Report, add_reports, billed_ms, find_unrecorded, read_reports, wait_for_reports


def event(request_id: str, *, init_ms: float | None = None, logged_at: float = 1_000.0) -> dict[str, Any]:
    """Return the log event of Lambda's report on one request. `init_ms`: initialisation of a cold start, None for a warm one;
    `logged_at`: seconds.
    """
    metrics: dict[str, Any] = {
        "durationMs": 100.4,
        "billedDurationMs": 1_601,
        "memorySizeMB": 1_769,
        "maxMemoryUsedMB": 402,
    }
    if init_ms is not None:
        metrics["initDurationMs"] = init_ms
    record = {"requestId": request_id, "status": "success", "metrics": metrics}
    told = {"time": "2027-01-01T00:00:00.000Z", "type": "platform.report", "record": record}
    return {"timestamp": int(logged_at * 1_000), "message": json.dumps(told)}


class Session:
    """A boto3 session that answers as CloudWatch Logs for two log groups. `looks`: the page of events that each further request for
    reports gets; `asked`: the requests so far.
    """

    def __init__(self, *looks: list[dict[str, Any]]) -> None:
        """Answer requests for reports with `looks`, one after another."""
        self.looks, self.asked = list(looks), list[dict[str, Any]]()

    def client(self, service: str) -> Any:
        """Return a client whose paginators answer for this session."""
        return SimpleNamespace(get_paginator=lambda name: SimpleNamespace(paginate=getattr(self, f"_{name}")))

    def _describe_log_groups(self, logGroupNamePrefix: str) -> Any:
        """Return a page for each of the two log groups whose name begins with the prefix."""
        names = ["/aws/lambda/crossover-spirt-collect", "/aws/lambda/crossover-spirt-compute-gradients"]
        return [{"logGroups": [{"logGroupName": name}]} for name in names if name.startswith(logGroupNamePrefix)]

    def _filter_log_events(self, **arguments: Any) -> Any:
        """Return the next page of reports, the last one again and again; for the group `collect`, lines that are no reports. Each request
        is noted in `asked`.
        """
        self.asked.append(arguments)
        if "collect" in arguments["logGroupName"]:
            return [
                {"events": [{"message": "what a function printed"}, {"message": "[1, 2]"}, {"message": '{"a": 1}'}]}
            ]
        return [{"events": self.looks[0] if len(self.looks) == 1 else self.looks.pop(0)}]


def record(request_id: str, **more: Any) -> dict[str, Any]:
    """Return the function's own record of one request. `more`: fields to replace or add."""
    return {"request_id": request_id, "started_at": 1_000.0, "wall_s": 0.1, "cold": False, "init_s": 0.0, **more}


def test_reports_are_found_among_what_functions_print() -> None:
    """Lambda's reports are read from log groups that also have other lines, with the start time and filter in the request."""
    session = Session([event("a", init_ms=1_500.2), event("b")])
    found = read_reports(session, "crossover-spirt", since_s=940.0)
    assert found["a"] == Report(
        request_id="a", logged_at=1_000.0, function="crossover-spirt-compute-gradients", duration_ms=100.4, billed_ms=1_601,
        memory_mb=1_769, max_memory_mb=402, init_ms=1_500.2,
    )  # fmt: skip
    assert found["b"].init_ms is None and len(found) == 2
    assert session.asked[0]["startTime"] == 940_000 and "platform.report" in session.asked[0]["filterPattern"]


def test_late_reports_are_waited_for() -> None:
    """The logs are read again until every function's record has its report; programs need none."""
    session = Session([event("a")], [event("a"), event("b")])
    records = [record("a"), record("b"), record("a program's own", instance_type="t2.small")]
    found = wait_for_reports(session, "crossover-spirt", records, every_s=0.0)
    assert found.keys() == {"a", "b"} and len(session.asked) == 2 * 2  # two looks at two groups, not until the end


def test_waiting_ends() -> None:
    """The wait for reports ends after `wait_s` with the reports found so far."""
    assert wait_for_reports(
        Session([event("b")]), "crossover-spirt", [record("a"), record("b")], wait_s=0.0
    ).keys() == {"b"}


def test_a_joined_record_is_billed_as_lambda_says() -> None:
    """A record with a report gets Lambda's billed time, INIT and memory; one without stays."""
    reports = read_reports(Session([event("a", init_ms=1_500.0)]), "crossover-spirt", since_s=0)
    first, second = add_reports([record("a"), record("b")], reports)
    assert billed_ms(first) == 1_601 and (first["cold"], first["init_s"], first["max_rss_mb"]) == (True, 1.5, 402.0)
    assert second == record("b") and billed_ms(second) == 100


def test_the_killed_are_those_of_this_run_that_left_no_record() -> None:
    """Unrecorded invocations are the reports of this run's functions, since its start, that no record matches."""
    looked = [event("a"), event("killed"), event("of the run before", logged_at=999.0)]
    reports = read_reports(Session(looked), "crossover-spirt", since_s=0)
    of_steps = {"crossover-spirt-compute-gradients"}
    found = find_unrecorded([record("a")], reports, functions=of_steps, since_s=1_000.0)
    assert [each.request_id for each in found] == ["killed"]
    assert (
        find_unrecorded([record("a")], reports, functions=set(), since_s=1_000.0) == []
    )  # the guard's function is no step
