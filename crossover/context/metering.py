"""One record per invocation: what every figure of a report comes from.

A record lies under `runs/<id>/records/<step>/`, because a function cannot know its own billed time, INIT or peak memory on AWS: the
platform's log records are joined to it later, by request id. Locally the record's own seconds stand, less the wait for a compute slot.
"""

import json
from contextlib import suppress
from types import TracebackType
from typing import Any

from crossover import runtime
from crossover.clients.protocol import Event
from crossover.context import Context
from crossover.dataplane.documents import sealed
from crossover.errors import CrossoverError, StaleAttempt


def _restored() -> bool:
    """Whether this process came from a SnapStart snapshot: it began long before anybody called, and cannot know what the restore took."""
    return runtime.environment().get("AWS_LAMBDA_INITIALIZATION_TYPE") == "snap-start"


class Meter:
    """Context manager around one invocation of `step`; writes its record also when the body raises."""

    def __init__(self, step: str, ctx: Context, event: Event) -> None:
        self._step, self._ctx, self._event = step, ctx, event
        seen: set[str] = runtime.kept("steps seen", set)  # the first one was a cold start
        self._cold = not seen and ctx.memory_mb > 0  # a tree in this process has no environment that starts
        seen.add(step)

    def __enter__(self) -> "Meter":
        self._started_at = runtime.time()
        self._wall_s, self._cpu_s = runtime.perf_counter(), runtime.processor_s()
        self._marks: list[dict[str, Any]] = []
        self._ctx.mark = self.mark
        return self

    def mark(self) -> None:
        """What a long invocation has used until now, where whoever follows the run finds it: seconds, requests, bytes. One that cannot be
        written is not worth the invocation.
        """
        stored = self._ctx.traffic["object_store"]  # the other channels are paid by the hour
        traffic = {"object_store": {**stored.as_record(), "operations": dict(stored.operations)}}
        self._marks.append({"at": runtime.time(), "wall_s": round(self._spent_s(), 6), "traffic": traffic})
        with suppress(CrossoverError):
            self._ctx.write_mark(json.dumps(self._record("under way")).encode())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ctx.mark = lambda: None
        outcome = "ok" if error is None else "stale" if isinstance(error, StaleAttempt) else "error"
        record = self._record(outcome, error="" if error is None else f"{type(error).__name__}: {error}"[:1_000])
        try:
            self._ctx.write_record(self._step, sealed(record))
        except CrossoverError:
            if error is None:  # a record that is lost is found missing by the report; a failure in hand is worth more
                raise
        if self._marks:  # the record says it all
            with suppress(CrossoverError):
                self._ctx.forget_mark()

    def _spent_s(self) -> float:
        return runtime.perf_counter() - self._wall_s - self._ctx.slot_wait_s

    def _record(self, outcome: str, *, error: str = "") -> dict[str, Any]:
        ctx, event = self._ctx, self._event
        return {
            "run": event["run"],
            "step": self._step,
            "architecture": ctx.architecture,
            **{name: event[name] for name in ("worker", "epoch", "round", "minibatch")},
            "request_id": ctx.request_id,
            "started_at": self._started_at,
            "wall_s": round(self._spent_s(), 6),
            "cpu_s": round(runtime.processor_s() - self._cpu_s, 6),
            "slot_wait_s": round(ctx.slot_wait_s, 6),
            "max_rss_mb": round(runtime.peak_memory_mb(), 1),
            "memory_mb": ctx.memory_mb,
            "cold": self._cold,
            "init_s": round(self._started_at - runtime.started_at(), 6) if self._cold and not _restored() else 0.0,
            "outcome": outcome,
            "error": error,
            "stages": ctx.stages,
            "traffic": {
                name: {**counter.as_record(), "operations": counter.operations} for name, counter in ctx.traffic.items()
            },
            **({"marks": self._marks} if self._marks else {}),
            **ctx.notes,
        }


def gather_stages(ctx: "Context") -> None:
    """A long invocation's stages added up by name, with their `count`: its record must not grow with every round."""
    table: dict[str, dict[str, Any]] = {}
    for stage in ctx.stages:
        row = table.setdefault(stage["stage"], {"stage": stage["stage"], "count": 0, "wall_s": 0.0, "cpu_s": 0.0})
        row["count"] += stage.get("count", 1)
        for figure in ("wall_s", "cpu_s"):
            row[figure] = round(row[figure] + stage[figure], 6)
        if "max_rss_mb" in stage:
            row["max_rss_mb"] = max(row.get("max_rss_mb", 0.0), stage["max_rss_mb"])
    ctx.stages[:] = table.values()
