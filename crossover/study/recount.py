"""A second count of a trial's figures from its records, compared with its result.json."""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from crossover.errors import Corrupt
from crossover.experiment import Experiment
from crossover.reports import bill as infrastructure
from crossover.reports import prices
from crossover.reports.bill import BilledRun
from crossover.reports.folder import sum_records
from crossover.reports.usage import FIGURES, RECORD, Record, Unrecorded, latest_end, state_transitions
from crossover.stores import encoding
from crossover.workflow.architecture import architecture_of

MAX_RECORD_BYTES = 2**20  # bytes of one record
RELATIVE_TOLERANCE = 1e-9  # records are added up in another order
CLOCK_TOLERANCE_S = 2e-3  # result.json says when a run began in whole milliseconds
MAX_NAMES = 64  # channels of a record, or operations of a channel
MAX_FIGURE = 1e15  # of seconds, bytes, dollars and other figures
_FIGURES = (
    *("started_at", "wall_s", "cpu_s", "init_s", "slot_wait_s", "billed_ms", "memory_mb", "max_rss_mb"),
    *("staleness", "max_staleness", "gradients"),
)
_COUNTED_FIELDS = (
    *(
        "step",
        "outcome",
        "worker",
        "epoch",
        "round",
        "minibatch",
        "cold",
        "instance_type",
        "stages",
        "traffic",
        "marks",
    ),
    *("run", "attempt", "until", *_FIGURES),
)
# What `recount` relies on. Fields that not every record has may be null.
_RECORD = {
    **RECORD,
    **{f"{name}?": (float, None) for name in _FIGURES if name not in RECORD},
    **{f"{name}?": kind for name, kind in (("run", str), ("attempt", int), ("until", [int]), ("cold", (bool, None)))},
    "instance_type?": (str, None),
    "stages": [{"stage": str, "count?": int, "wall_s": float, "cpu_s": float, "max_rss_mb?": (float, None)}],
    "marks?": [{"at": float, "wall_s": float, "traffic?": {str: {}}}],
}


@dataclass(frozen=True, kw_only=True)
class Recount:
    """The result of counting a run's figures again. `result`: content of result.json with each differing figure replaced by the one that
    the records give; `differing`: one sentence per figure that differs; `unchecked`: why the dollars could not be compared, "" if they
    were.
    """

    result: Mapping[str, Any]
    differing: Sequence[str]
    unchecked: str = ""


def read_records(lines: Iterable[bytes], *, name: str) -> list[Record]:
    """Return the records of a metrics.jsonl file, in its order, reduced to the fields that `recount` needs. Raises Corrupt, naming the
    line, if a record is malformed, longer than MAX_RECORD_BYTES, or a second one of the same invocation. `lines`: the file's lines; `name`:
    name of the file, for errors.
    """
    found, seen = list[Record](), set[str]()
    for number, line in enumerate(lines, start=1):
        key = f"{name}, line {number}"
        if len(line) > MAX_RECORD_BYTES:
            raise Corrupt(f"{key}: longer than {MAX_RECORD_BYTES:,} bytes, the most for a record")
        record = encoding.read_plain(line, _RECORD, key=key)
        if record["request_id"] in seen:
            raise Corrupt(f"{key}: invocation {record['request_id']!r} has two records; expected one per invocation")
        seen.add(record["request_id"])
        found.append(_reduce_record(record, key=key))
    return found


def _reduce_record(record: Mapping[str, Any], *, key: str) -> Record:
    """Return a copy of a record with only the fields that `recount` needs. Raises Corrupt if a figure is not from 0 to MAX_FIGURE, or if
    its traffic has too many names. `key`: name of the record in errors.
    """
    for part in (record, *record["stages"], *record.get("marks", ())):
        _check_figures({name: part[name] for name in (*_FIGURES, "count", "at") if name in part}, key=key)
    used = {name: _intern(record[name]) for name in _COUNTED_FIELDS if name in record}
    used["traffic"] = _reduce_traffic(record["traffic"], key=key)
    used["stages"] = [
        {name: _intern(stage[name]) for name in ("stage", "count", "wall_s", "cpu_s", "max_rss_mb") if name in stage}
        for stage in record["stages"]
    ]
    if "marks" in record:
        used["marks"] = [
            {"at": mark["at"], "wall_s": mark["wall_s"], "traffic": _reduce_traffic(mark.get("traffic", {}), key=key)}
            for mark in record["marks"]
        ]
    return used


def _check_figures(figures: Mapping[str, float | None], *, key: str) -> None:
    """Raise Corrupt if a figure of a record is negative, not finite, or not below MAX_FIGURE. `key`: name of the record in errors."""
    for name, value in figures.items():
        if value is not None and not 0 <= value < MAX_FIGURE:
            raise Corrupt(f"{key}: {name}: {str(value)[:20]} is not a figure from 0 to {MAX_FIGURE:g}")


def _reduce_traffic(traffic: Mapping[str, Any], *, key: str) -> dict[str, Any]:
    """Return traffic by channel with only the figures that `recount` needs. Raises Corrupt if a record has more than MAX_NAMES channels or
    operations. `key`: name of the record in errors.
    """
    counted = {}
    for channel, figures in traffic.items():
        operations = figures.get("operations")
        if len(traffic) > MAX_NAMES or len(operations or ()) > MAX_NAMES:
            raise Corrupt(f"{key}: traffic: more than {MAX_NAMES} names, the most for a record")
        slim: dict[str, Any] = {sys.intern(name): int(figures[name]) for name in FIGURES if name in figures}
        if operations is not None:
            slim["operations"] = {sys.intern(name): int(count) for name, count in operations.items()}
        _check_figures({**slim.get("operations", {}), **{k: v for k, v in slim.items() if k != "operations"}}, key=key)
        if slim:
            counted[sys.intern(channel)] = slim
    return counted


def _intern(value: Any) -> Any:
    """Return the value; a string is interned, so that equal strings of many records share memory."""
    return sys.intern(value) if isinstance(value, str) else value


def recount(
    result: Mapping[str, Any],
    experiment: Experiment,
    records: Sequence[Record],
) -> Recount:
    """Compute seconds, bytes, dollars and invocations of a run again from its records, and compare them with its result.json. Return the
    comparison; differences are no error.

    Figures that the records do not contain (accuracies, losses, and the times of decisions) stay unchanged. Dollars are compared only if
    this installation has the same prices and the architecture is Crossover's own. `result`: content of result.json; `experiment`: the run's
    experiment.
    """
    began, ended = _find_span(result, records)
    counted: dict[str, Any] = {**sum_records(records), "duration_s": ended - began}
    differing = list(_find_late_start(result, records, began))
    faults = {
        name: list(
            _compare(counted[name], result.get(name), name, within=CLOCK_TOLERANCE_S if name == "duration_s" else 0.0)
        )
        for name in counted
    }
    if not (unchecked := _explain_unchecked_dollars(result, experiment)):
        bill = _build_bill(result, experiment, records, began=began, duration_s=ended - began)
        counted["cost"] = {**result["cost"], **bill.cost().as_json(where=result["where"])}
        faults["cost"] = list(_compare_cost(counted["cost"], result["cost"], bill))
        counted["epochs"], faults["epochs"] = _recount_epochs(result["epochs"], bill)
    # A figure that agrees is kept unchanged: another order of addition changes its last bits.
    changed = {name: counted[name] for name in counted if faults[name]}
    differing += [sentence for name in counted for sentence in faults[name]]
    return Recount(result={**result, **changed}, differing=differing, unchecked=unchecked)


def _find_late_start(result: Mapping[str, Any], records: Sequence[Record], began: float) -> Iterator[str]:
    """Yield a sentence if the run's first record is more than CLOCK_TOLERANCE_S older than the start of the run in result.json. `began`:
    that start in unix seconds.
    """
    earliest = min((float(record["started_at"]) for record in records), default=began)
    if began > earliest + CLOCK_TOLERANCE_S:
        yield f"started_at: {result['started_at']} in result.json; its first record is {began - earliest:.3g} s older"


def _find_span(result: Mapping[str, Any], records: Sequence[Record]) -> tuple[float, float]:
    """Return (start, end) of the run in unix seconds. The start is that of result.json, made more exact by the records if they agree within
    CLOCK_TOLERANCE_S; the end is that of the last record, or of the last epoch's decision if that is later.
    """
    said = datetime.fromisoformat(result["started_at"]).timestamp()
    last = latest_end(records)
    exact = [float(record["started_at"]) for record in records]
    if last is not None:
        exact.append(last - float(result["duration_s"]))
    began = min(
        (each for each in exact if abs(each - said) <= CLOCK_TOLERANCE_S),
        key=lambda each: abs(each - said),
        default=said,
    )
    agreed = max((float(epoch["elapsed_s"]) for epoch in result["epochs"]), default=0.0)
    return began, max(last or began, began + agreed)


def _explain_unchecked_dollars(result: Mapping[str, Any], experiment: Experiment) -> str:
    """Return why this installation cannot compute the dollars of a run again (an architecture of the user's own, or prices of another date
    or region); "" if it can.
    """
    if experiment.outside:
        return (
            f"architecture {experiment.architecture!r} is not part of Crossover, and is not imported to count dollars"
        )
    here, cost = prices.load(), result["cost"]
    then = (cost.get("prices_as_of"), cost.get("region"))
    if then != (here.as_of, here.region):
        return (
            f"the trial used prices of {then[0]} in {then[1]}; this version has prices of {here.as_of} in {here.region}"
        )
    return ""


def _build_bill(
    result: Mapping[str, Any], experiment: Experiment, records: Sequence[Record], *, began: float, duration_s: float
) -> BilledRun:
    """Return the run with all that it is billed for, from its records at this installation's prices. `began`: start in unix seconds;
    `duration_s`: seconds of the run.
    """
    killed = result.get("unrecorded")
    architecture = architecture_of(experiment)
    return BilledRun(
        experiment=experiment,
        records=records,
        infrastructure=infrastructure.infrastructure_of(experiment, architecture),
        prices=prices.load(),
        started_at=began,
        duration_s=duration_s,
        transitions=state_transitions(architecture, records, workers=experiment.workers, epochs=len(result["epochs"])),
        unrecorded=Unrecorded(count=killed["count"], gb_s=killed["gb_s"]) if killed else None,
    )


def _compare_cost(counted: Mapping[str, Any], said: Mapping[str, Any], bill: BilledRun) -> Iterator[str]:
    """Yield a sentence for each quantity and dollar amount that differs by more than the limited precision of result.json's clock explains,
    and for each line that only result.json has. `counted`, `said`: field `cost` as computed again and as in result.json; `bill`: what
    `counted` was computed from.
    """
    longer = replace(bill, duration_s=bill.duration_s + CLOCK_TOLERANCE_S).cost()
    most, there = {line.item: line for line in longer.lines}, {line["item"]: line for line in said["lines"]}
    for line in counted["lines"]:
        of = line["item"]
        for name in ("quantity", "usd"):
            within = abs(getattr(most[of], name) - line[name])
            yield from _compare(line[name], there.get(of, {}).get(name), f"cost.lines[{of}].{name}", within=within)
    for item in there.keys() - {line["item"] for line in counted["lines"]}:
        yield f"cost.lines[{ascii(item)[:60]}]: in result.json alone"
    for name in ("full_usd", "paper_method_usd"):
        within = abs(getattr(longer, name) - counted[name])
        yield from _compare(counted[name], said[name], f"cost.{name}", within=within)


def _recount_epochs(said: Sequence[Mapping[str, Any]], bill: BilledRun) -> tuple[list[dict[str, Any]], list[str]]:
    """Return (the epochs with each differing dollar amount replaced by what the records give until that epoch's decision, one sentence per
    replaced amount). `said`: epochs of result.json; `bill`: the run's records and prices.
    """
    counted, differing = [dict(epoch) for epoch in said], list[str]()
    for n, epoch in enumerate(counted):
        moment = bill.started_at + float(epoch["elapsed_s"])
        least, most = (
            bill.cost_until(moment - CLOCK_TOLERANCE_S),
            bill.cost_until(moment + CLOCK_TOLERANCE_S),
        )  # dollars never fall with time
        for name in ("full_usd", "paper_method_usd"):
            low, high, usd = getattr(least, name), getattr(most, name), epoch[name]
            if not low - RELATIVE_TOLERANCE * low <= usd <= high + RELATIVE_TOLERANCE * high:
                epoch[name] = getattr(bill.cost_until(moment), name)
                differing.append(_format_difference(f"epochs[{n}].{name}", epoch[name], usd))
    return counted, differing


def _compare(counted: Any, said: Any, at: str, *, within: float = 0.0) -> Iterator[str]:
    """Yield a sentence for each figure that differs, also in nested mappings and lists. `counted`, `said`: value computed again and value
    of result.json; `at`: name of the figure in the sentence; `within`: absolute tolerance, besides the relative one.
    """
    match counted:
        case dict() if isinstance(said, Mapping):
            for name in counted:
                yield from _compare(counted[name], said.get(name), f"{at}.{name}", within=within)
            for name in said.keys() - counted.keys():
                yield f"{at}.{name}: in result.json alone"
        case list() if isinstance(said, list) and len(said) == len(counted):
            for n, (one, other) in enumerate(zip(counted, said, strict=True)):
                name = next((one[key] for key in ("stage", "step", "item") if isinstance(one, dict) and key in one), n)
                yield from _compare(one, other, f"{at}[{name}]", within=within)
        case list() if isinstance(said, list):
            yield f"{at}: {len(counted)} by its records, {len(said)} in result.json"
        case _ if not _is_close(counted, said, within=within):
            yield _format_difference(at, counted, said)


def _format_difference(at: str, counted: Any, said: Any) -> str:
    """Return a sentence with a figure's name `at`, its value by the records and its value in result.json."""
    return f"{at}: {_format_value(counted)} by its records, {_format_value(said)} in result.json"


def _format_value(value: Any) -> str:
    """Return a figure as text for a sentence: a float with six digits, anything else as Python shows it, escaped and cut to 60 characters,
    because text comes from the bundle.
    """
    return f"{value:.6g}" if isinstance(value, float) else ascii(value)[:60]


def _is_close(one: Any, other: Any, *, within: float = 0.0) -> bool:
    """Return whether two values are equal. Numbers may differ by the relative RELATIVE_TOLERANCE, or absolutely by `within`."""
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=RELATIVE_TOLERANCE, abs_tol=max(within, 1e-12))
    return bool(one == other)
