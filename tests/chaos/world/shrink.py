"""A schedule that breaks a promise, made as small as it can be while it still breaks one.

Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (2002): leave out ever smaller parts, keep what still fails.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tests.chaos.world.schedule import Fault

FaultList = tuple[Fault, ...]
ROUND_S = (0.1, 1.0, 10.0, 100.0, 1_000.0)  # what a duration is tried as


def shrink_schedule(faults: FaultList, fails: Callable[[FaultList], bool], *, tries: int = 400) -> FaultList:
    """Return a part of `faults`, each as simple as possible, for which `fails` still returns True, as it does for `faults`. Calls `fails`
    at most `tries` times.
    """
    asked: dict[FaultList, bool] = {}

    def still(candidate: FaultList) -> bool:
        """Return whether the candidate still fails; each is tried once, and none after the last allowed try."""
        if candidate not in asked:
            if len(asked) >= tries:
                return False
            asked[candidate] = fails(candidate)
        return asked[candidate]

    found = _fewest(faults, still)
    while (plainer := next((each for each in _plainer(found) if still(each)), None)) is not None:
        found = plainer
    return found


def _fewest(faults: FaultList, still: Callable[[FaultList], bool]) -> FaultList:
    """Return the faults without those that are not needed for the failure, found by delta debugging."""
    parts = 2
    while len(faults) > 1:
        smaller = next((rest for rest in _without_one_part(faults, parts) if still(rest)), None)
        if smaller is not None:
            faults, parts = smaller, max(2, parts - 1)
        elif parts >= len(faults):
            break
        else:
            parts = min(len(faults), 2 * parts)
    return () if len(faults) == 1 and still(()) else faults


def _without_one_part(faults: FaultList, parts: int) -> Iterator[FaultList]:
    """Yield the faults without one part of them, for each of `parts` parts of about equal size."""
    size = -(-len(faults) // parts)
    for start in range(0, len(faults), size):
        yield faults[:start] + faults[start + size :]


def _plainer(faults: FaultList) -> Iterator[FaultList]:
    """Yield the faults with one of them simpler: a rounder duration, or a broken connection instead of silence."""
    for number, fault in enumerate(faults):
        for simpler in _simpler(fault):
            yield (*faults[:number], simpler, *faults[number + 1 :])


def _simpler(fault: Fault) -> Sequence[Fault]:
    """Return simpler variants of the fault: shorter, rounded, or not silent; none of a limit, whose values are given."""
    if fault.kind == "limit":
        return []
    found = [
        replace(fault, seconds=each) for each in ROUND_S if 0.0 < each < fault.seconds and fault.seconds not in ROUND_S
    ]
    if fault.silent:
        found.append(replace(fault, silent=False))
    if fault.at_s != round(fault.at_s):
        found.append(replace(fault, at_s=float(round(fault.at_s))))
    return found
