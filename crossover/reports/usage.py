"""Usage of a run: fields of one record, the platform's reports, and how often each step of a tree is executed."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crossover import runtime
from crossover.algorithms.schedule import Calendar
from crossover.runtime import Pauses
from crossover.stores import deployed_clients
from crossover.workflow import Child, ForEach, Node, Parallel, Repeat, Step, walk
from crossover.workflow import Sequence as InOrder
from crossover.workflow.architecture import Architecture

# --- invocations ------------------------------------------------------------------------------------------------------

Record = Mapping[str, Any]
StepPosition = tuple[str, int, int, int, int]  # step, worker, epoch, round, minibatch

RECORD = {
    **dict.fromkeys(("step", "request_id", "outcome"), str),
    **dict.fromkeys(("worker", "epoch", "round", "minibatch"), int),
    **dict.fromkeys(("started_at", "wall_s", "cpu_s"), float),
    "stages": [{"stage": str, "wall_s": float, "cpu_s": float}],
    "traffic": {str: {}},
}

CHANNELS = ("object_store", "tensor_store", "bus")
FIGURES = ("bytes_in", "bytes_out", "requests")


@dataclass(frozen=True, kw_only=True)
class Unrecorded:
    """The invocations of functions that were billed but killed before they wrote a record. `count`: their number; `gb_s`:
    their GB-seconds.
    """

    count: int
    gb_s: float


def cell_of(record: Record) -> StepPosition:
    """Return (step, worker, epoch, round, minibatch): the piece of work that the invocation of a record did. A retry has the same as the
    attempt that it repeats.
    """
    return (record["step"], record["worker"], record["epoch"], record["round"], record["minibatch"])


def is_on_instance(record: Record) -> bool:
    """Return whether the record is of a program on an EC2 instance, not of a Lambda function."""
    return bool(record.get("instance_type"))


def busy_s(record: Record) -> float:
    """Return the wall seconds from the start of an invocation's handler to its end, including waits for a free core of the
    local machine.
    """
    return float(record["wall_s"]) + float(record.get("slot_wait_s") or 0.0)


def get_end_s(record: Record) -> float:
    """Return the unix time in seconds at which the invocation of a record ended."""
    return float(record["started_at"]) + busy_s(record)


def init_s(record: Record) -> float:
    """Return the seconds of a record's INIT, Lambda's start of a new environment, which come before its handler; 0 if it was no cold start
    or is not known.
    """
    return float(record.get("init_s") or 0.0) if record.get("cold") else 0.0


def billed_ms(record: Record) -> int:
    """Return the milliseconds that Lambda bills for a function's record: the platform's own figure if the record has it, otherwise its
    handler and INIT, rounded up to a millisecond, at least 1. Ask `is_on_instance` first: programs on instances are not billed so.
    """
    if record.get("billed_ms") is not None:
        return int(record["billed_ms"])
    # Rounded first: 0.123 s must not become 124 ms because a binary fraction lies a hair above.
    return max(1, math.ceil(round((float(record["wall_s"]) + init_s(record)) * 1_000, 6)))


def latest_end(records: Iterable[Record]) -> float | None:
    """Return the unix time in seconds at which the last invocation ended, None if there are no records."""
    return max((get_end_s(record) for record in records), default=None)


def traffic(records: Iterable[Record]) -> dict[str, dict[str, int]]:
    """Return {channel: {"bytes_in", "bytes_out", "requests"}}, summed over all records. The channels object_store, tensor_store and bus
    (messages) are always there; `bytes_in` were received by steps, `bytes_out` sent by them.
    """
    total = {channel: dict.fromkeys(FIGURES, 0) for channel in CHANNELS}
    for record in records:
        for channel, counted in record.get("traffic", {}).items():
            into = total.setdefault(channel, dict.fromkeys(FIGURES, 0))
            for figure in FIGURES:
                into[figure] += counted.get(figure, 0)
    return total


WRITES = ("put", "create", "list", "copy")  # S3 charges these like PUT


def object_requests(record: Record) -> tuple[int, int]:
    """Return (writes, reads): a record's numbers of requests to the object store. Writes are put, create, list and copy, which S3 prices
    alike; all others count as reads, deletes among them, although S3 does not charge those. If a record does not split its requests, all
    count as writes, which cost more; without traffic both are 0.
    """
    counted = record.get("traffic", {}).get("object_store", {})
    operations = counted.get("operations")
    if operations is None:
        return int(counted.get("requests", 0)), 0
    writes = sum(operations.get(name, 0) for name in WRITES)
    return writes, sum(operations.values()) - writes


# --- platform reports -------------------------------------------------------------------------------------------------
# What Lambda itself says of each invocation: `platform.report` records in the functions' log groups, joined by request id.
#
# A function cannot know its billed time, INIT or peak memory. The records reach the logs seconds to minutes after an invocation. Source of
# the format: https://docs.aws.amazon.com/lambda/latest/dg/telemetry-schema-reference.html

GROUPS = "/aws/lambda/"
WAIT_S, LOOK_EVERY_S = 180.0, 5.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """Lambda's own report of one invocation, from its log. `request_id`: id of the invocation; `duration_ms`, `billed_ms`: its duration as
    measured and as billed; `logged_at`: unix seconds when it was logged; `function`: the function's name; `init_ms`: duration of INIT, None
    if the environment was warm; `memory_mb`, `max_memory_mb`: configured memory, and peak of the memory that was used, in MB.
    """

    request_id: str
    logged_at: float
    function: str
    duration_ms: float
    billed_ms: int
    memory_mb: int
    max_memory_mb: int
    init_ms: float | None


def read_reports(session: Any, stack: str, *, since_s: float) -> dict[str, Report]:
    """Read Lambda's reports of all functions of a stack from CloudWatch Logs, and return them by request id; empty if nothing was logged.
    `session`: boto3 session; `stack`: the stack's name, with which the functions' names begin; `since_s`: unix seconds from which logs are
    read.
    """
    found = dict[str, Report]()
    wanted = {"startTime": int(since_s * 1_000), "filterPattern": '{ $.type = "platform.report" }'}
    for each in deployed_clients.list_items(
        session, "logs", "describe_log_groups", "logGroups", logGroupNamePrefix=f"{GROUPS}{stack}-"
    ):
        group = each["logGroupName"]
        for event in deployed_clients.list_items(
            session, "logs", "filter_log_events", "events", logGroupName=group, **wanted
        ):
            if report := _parse_report(group.removeprefix(GROUPS), event):
                found[report.request_id] = report
    return found


def _parse_report(function: str, event: Mapping[str, Any]) -> Report | None:
    """Return Lambda's report in a log event, None if the event is something else. `function`: name of the function that wrote the log.
    Raises KeyError if the report lacks a figure.
    """
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


def wait_for_reports(
    session: Any, stack: str, records: Sequence[Record], *, wait_s: float = WAIT_S, every_s: float = LOOK_EVERY_S
) -> dict[str, Report]:
    """Read the logs repeatedly until they contain Lambda's report on every record of a function, or until `wait_s` seconds have passed, and
    return the reports by request id, including those of invocations without a record. They are read from a minute before the first record.
    Reports that are missing at the end are no error.

    `session`: boto3 session; `stack`: name of the stack; `records`: records of the run, of which those of programs are ignored; `every_s`:
    seconds between two attempts.
    """
    wanted = {each["request_id"] for each in records if each.get("request_id") and not is_on_instance(each)}
    since_s = min((float(each["started_at"]) for each in records), default=runtime.time()) - 60
    pause = Pauses(every_s, within_s=wait_s)
    while True:
        found = read_reports(session, stack, since_s=since_s)
        if wanted <= found.keys() or not pause():
            return found


def add_reports(records: Iterable[Record], reports: Mapping[str, Report]) -> list[dict[str, Any]]:
    """Return copies of the records in which `billed_ms`, `max_rss_mb` and, for cold starts, `cold` and `init_s` are Lambda's own figures,
    if there is a report with the record's request id. `reports`: reports by request id.
    """
    return [
        {**record, **(_fields_of_report(report) if (report := reports.get(str(record.get("request_id")))) else {})}
        for record in records
    ]


def find_unrecorded(
    records: Iterable[Record], reports: Mapping[str, Report], *, functions: Iterable[str], since_s: float
) -> list[Report]:
    """Return Lambda's reports of those invocations that wrote no record, because a timeout or lack of memory killed them. `records`: all
    records of the run; `reports`: reports by request id; `functions`: names of the run's functions; `since_s`: unix seconds; earlier
    reports are ignored.
    """
    left, names = {each.get("request_id") for each in records}, set(functions)
    return [
        report
        for report in reports.values()
        if report.request_id not in left and report.function in names and report.logged_at >= since_s
    ]


def _fields_of_report(report: Report) -> dict[str, Any]:
    """Return the fields of a record that Lambda's report replaces, with their new values: `billed_ms`, `max_rss_mb`, and for a cold start
    `cold` (True) and `init_s`.
    """
    figures: dict[str, Any] = {"billed_ms": report.billed_ms, "max_rss_mb": float(report.max_memory_mb)}
    if report.init_ms is not None:
        figures |= {"cold": True, "init_s": report.init_ms / 1_000}
    return figures


# --- expectations -----------------------------------------------------------------------------------------------------
# What a run must have executed, by its tree and the epochs it decided: a lost record shows, every transition is billed.


def expected_records(architecture: Architecture, *, workers: int, days: Calendar, epochs: int) -> Counter[str]:
    """Return the least number of successful records by step that a run must have written after `epochs` epochs. Steps that wait for others
    count once per round, and a worker that trains through several invocations once, because how often they run is not known beforehand.
    `workers`: number of workers; `days`: calendar of the run's epochs and rounds.
    """
    counts: Counter[str] = Counter()
    rounds = days.rounds_until(days.epoch_of_decision(epochs))
    minibatches = sum(map(days.minibatches_in, range(rounds)))

    def visit(node: Node, workers_: int, turns: int) -> None:
        """Add the executions of the steps at and below a node of the workflow to `counts`. `workers_`: product of the loops over workers
        around the node; `turns`: number of executions of an ordinary step there.
        """
        match node:
            case Step(name=name):
                # A long worker's step goes on for as many rounds as its time limit allows.
                counts[name] += workers_ if node.waits and node.torch else turns
            case InOrder(nodes=children) | Parallel(branches=children):
                for child in children:
                    visit(child, workers_, turns)
            case ForEach(count="workers", body=body):
                visit(body, workers_ * workers, turns * workers)
            case ForEach(body=body):  # over the minibatches of a round
                visit(body, workers_, turns if days.local else turns // max(1, rounds) * minibatches)
            case Repeat(until="finished", body=Child() as body):
                visit(body, workers_, turns * rounds)
            case Repeat(body=body) | Child(body=body):
                visit(body, workers_, turns)

    if architecture.run:
        visit(architecture.run, 1, 1)
    for optional, machine in enumerate(architecture.machines.values()):  # the first one runs once per worker and round
        visit(machine, 0, 0 if optional else workers * rounds)
    if architecture.program:
        counts[architecture.program.step] += workers * epochs
    return counts


def state_transitions(
    architecture: Architecture, records: Iterable[Mapping[str, Any]], *, workers: int, epochs: int
) -> int:
    """Return the number of states that all state machines of a run entered, retries included, which AWS bills. `records`: all records of
    the run, from which the number of turns of each loop follows; each one of a function that did not end well is a retry. `workers`,
    `epochs`: number of workers and of decided epochs. States are counted as `crossover/workflow/state_machines.py` lays the workflow out;
    those of an unfinished run that are still to come are counted, too.
    """
    records = [record for record in records if not is_on_instance(record)]  # no state machine starts these
    done = Counter(record["step"] for record in records if record["outcome"] == "ok")
    retried = sum(1 for record in records if record["outcome"] != "ok")

    def count_entered(node: Node, times: int, last: bool) -> int:
        """Return the number of states entered at and below a node of the workflow that is entered `times` times. `last`: whether the node
        is the last of its state machine.
        """
        match node:
            case Step():
                return times
            case InOrder(nodes=children):
                return sum(count_entered(child, times, last and child is children[-1]) for child in children)
            case Parallel(branches=branches):
                return times * (1 + len(branches)) + sum(count_entered(branch, times, False) for branch in branches)
            case ForEach(count=count, body=body):
                step = _first_step(body)
                items = times * workers if count == "workers" else done[step.name] if step else times
                return 2 * times + items + count_entered(body, items, False)
            case Repeat(body=body, every_s=every_s):
                step = _first_step(body)
                turns = max(times, done[step.name] if step else min(times * epochs, begun(body)))
                waits = turns - times if every_s else 0
                return times + turns + waits + (times if last else 0) + count_entered(body, turns, False)
            case Child(body=body):
                return times + count_entered(body, times, True)
        raise TypeError(f"not a node: {node!r}")

    def begun(body: Node) -> int:
        """Return the number of pairs of worker and epoch in which the first step of the loop `body` was invoked: a lower bound of the
        loop's turns, since one invocation may go on through several epochs.
        """
        first = next(node.name for node in walk(body) if isinstance(node, Step))
        return len({(record["worker"], record["epoch"]) for record in records if record["step"] == first})

    def executions(machine: Node) -> int:
        """Return how often programs started the state machine `machine`: the number of pairs of worker and round in which one of its steps
        has a record.
        """
        names = {node.name for node in walk(machine) if isinstance(node, Step)}
        return len({(record["worker"], record["round"]) for record in records if record["step"] in names})

    started = sum(count_entered(machine, executions(machine), True) for machine in architecture.machines.values())
    return retried + started + (count_entered(architecture.run, 1, True) if architecture.run else 0)


def _first_step(node: Node) -> Step | None:
    """Return the first step below a node of the workflow that runs exactly once in each turn of the loop around the node; None if there is
    none.
    """
    match node:
        case Step():
            return node
        case InOrder(nodes=children):
            return next((step for child in children if (step := _first_step(child))), None)
        case Child(body=body):
            return _first_step(body)
    return None
