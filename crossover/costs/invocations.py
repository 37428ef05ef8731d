"""Reading records: what one invocation's record says about time, place and position.

Records are plain JSON as `metering.py` writes them.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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
    """Functions' invocations that were killed before they could leave a record, and are billed all the same."""

    count: int
    gb_s: float


def cell(record: Record) -> StepPosition:
    """Which piece of work the invocation was for. A poll or a retry comes back to the same cell."""
    return (record["step"], record["worker"], record["epoch"], record["round"], record["minibatch"])


def on_instance(record: Record) -> bool:
    """Whether the record is of a program on an EC2 instance (it notes `instance_type`); else it is a function's invocation."""
    return bool(record.get("instance_type"))


def busy_s(record: Record) -> float:
    """Seconds from the handler's start to its end, waits for a local compute slot included: what a clock on the wall saw."""
    return float(record["wall_s"]) + float(record.get("slot_wait_s") or 0.0)


def end(record: Record) -> float:
    """When it ended, unix seconds."""
    return float(record["started_at"]) + busy_s(record)


def init_s(record: Record) -> float:
    """Seconds of INIT that a cold start spent before the handler; 0 for a warm one."""
    return float(record.get("init_s") or 0.0) if record.get("cold") else 0.0


def billed_ms(record: Record) -> int:
    """What AWS bills: the platform's own figure where it was joined (`billed_ms`), else handler and INIT, rounded up to a millisecond."""
    if record.get("billed_ms") is not None:
        return int(record["billed_ms"])
    # Rounded first: 0.123 s must not become 124 ms because a binary fraction lies a hair above.
    return max(1, math.ceil(round((float(record["wall_s"]) + init_s(record)) * 1_000, 6)))


def latest(records: Iterable[Record]) -> float | None:
    """The last end; None without records."""
    return max((end(record) for record in records), default=None)


def traffic(records: Iterable[Record]) -> dict[str, dict[str, int]]:
    """Bytes and requests by channel, summed. `bytes_in` were received by steps, `bytes_out` sent by them."""
    total = {channel: dict.fromkeys(FIGURES, 0) for channel in CHANNELS}
    for record in records:
        for channel, counted in record.get("traffic", {}).items():
            into = total.setdefault(channel, dict.fromkeys(FIGURES, 0))
            for figure in FIGURES:
                into[figure] += counted.get(figure, 0)
    return total


WRITES = ("put", "create", "list", "copy")  # S3 charges these like PUT


def object_requests(record: Record) -> tuple[int, int]:
    """(writes, reads) of the object store.

    Where a record does not split its requests all count as writes: the dearer kind.
    """
    counted = record.get("traffic", {}).get("object_store", {})
    operations = counted.get("operations")
    if operations is None:
        return int(counted.get("requests", 0)), 0
    writes = sum(operations.get(name, 0) for name in WRITES)
    return writes, sum(operations.values()) - writes
