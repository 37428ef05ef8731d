"""A program's records: one per epoch, with the papers' stages, processor time and peak memory of each."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crossover import runtime
from crossover.context import Context
from crossover.context.metering import Meter, gather_stages


@contextmanager
def recorded(ctx: Context, step: str, event: Mapping[str, Any], *, instance_type: str) -> Iterator[None]:
    """One record for what the block does; `instance_type` marks it as paid by the instance's hour."""
    ctx.stages.clear()
    ctx.notes.clear()
    ctx.slot_wait_s, ctx.request_id = 0.0, runtime.identifier()
    for counter in ctx.traffic.values():
        counter.reset()
    ctx.note(instance_type=instance_type)
    with Meter(step, ctx, dict(event)):
        try:
            yield
        finally:
            gather_stages(ctx)


@contextmanager
def stage(ctx: Context, name: str) -> Iterator[None]:
    """A stage with the whole process's processor time and peak memory; many peers in one process know their own thread's only."""
    cpu_s = runtime.process_s()
    alone = cpu_s is not None
    _forget_peak(alone)
    try:
        with ctx.stage(name):
            yield
    finally:
        figures = ctx.stages[-1]
        figures["max_rss_mb"] = _peak_mb(alone)
        if cpu_s is not None and (until_s := runtime.process_s()) is not None:
            figures["cpu_s"] = round(until_s - cpu_s, 6)


_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _forget_peak(alone: bool) -> None:
    """Linux then measures the peak of what follows (proc(5), clear_refs: 5)."""
    if alone:
        try:
            _CLEAR.write_text("5", encoding="utf-8")
        except OSError:
            return  # the peak since the process began will do


def _peak_mb(alone: bool) -> float:
    if alone:
        try:
            line = next(each for each in _STATUS.read_text(encoding="utf-8").splitlines() if each.startswith("VmHWM"))
            return round(int(line.split()[1]) / 1024, 1)
        except (OSError, StopIteration):
            pass
    return round(runtime.peak_memory_mb(), 1)
