"""A record as it would read had the run been stopped at a moment: what a bill until then is made of.

A long invocation leaves marks (`marks` in its record): seconds, requests and bytes until then. Between two of them, and from its start to
the first, use grows straight.
"""

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from crossover.costs.invocations import Record, billed_ms, end, init_s


def begin(record: Record) -> float:
    """When it began to be billed, INIT included: unix seconds."""
    return float(record["started_at"]) - init_s(record)


def under_way(mark: Record, now: float) -> Record:
    """The record of an invocation that has not ended, from its latest mark: it has computed or waited ever since."""
    return {**mark, "wall_s": float(mark["wall_s"]) + max(0.0, now - end(mark))}


def stopped_at(record: Record, moment: float) -> Record | None:
    """None: it had not begun by then. No figure ever falls as `moment` rises."""
    if end(record) <= moment:
        return record
    if moment < begin(record):
        return None
    start: Record = {"at": float(record["started_at"]), "wall_s": 0.0, "traffic": {}}
    knots = [start, *record.get("marks", ()), {**record, "at": end(record)}]
    ascending = [
        max(float(knot["at"]) for knot in knots[: n + 1]) for n in range(len(knots))
    ]  # clocks are set back at times
    n = bisect_right(ascending, moment)
    if n == 0:  # in its INIT
        return _part(record, {**start, "init_s": moment - begin(record)})
    before, after = knots[n - 1], knots[n]
    share = (moment - ascending[n - 1]) / (ascending[n] - ascending[n - 1])
    wall_s = float(before["wall_s"]) + share * (float(after["wall_s"]) - float(before["wall_s"]))
    traffic = _between(before.get("traffic", {}), after.get("traffic", {}), share)
    return _part(record, {"wall_s": wall_s, "traffic": traffic})


def _part(record: Record, until: Mapping[str, Any]) -> Record:
    part = {**record, **until, "slot_wait_s": 0.0, "marks": ()}
    wall_s, billed = float(record["wall_s"]), record.get("billed_ms")
    share = float(part["wall_s"]) / wall_s if wall_s else 0.0
    if billed is not None:  # the platform's figure of the whole
        own = {**record, "billed_ms": None}
        part["billed_ms"] = int(billed * billed_ms({**part, "billed_ms": None}) / billed_ms(own))
    part["stages"] = [{**stage, "wall_s": share * stage["wall_s"]} for stage in record.get("stages", ())]
    return part


def _between(before: Any, after: Any, share: float) -> Any:
    """Counts, however deep they lie; a mark counts the channel that is billed, the others go with the time."""
    if isinstance(after, Mapping):
        return {name: _between(before.get(name) if before else None, value, share) for name, value in after.items()}
    return int((before or 0) + share * (after - (before or 0)))
