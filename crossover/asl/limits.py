"""What Step Functions allows one execution, and what a tree asks of it.

Source: AWS Step Functions Developer Guide, "Service quotas", "Intrinsic functions", "Map state" and the list of history events.
"""

from collections.abc import Mapping

from crossover.workflow import Child, ForEach, Node, Parallel, Repeat, Sequence, Step

NAME_LIMIT = 80  # characters of a state's name
INLINE_MAP_LIMIT = 40  # concurrent iterations of an inline Map; more never start, so a barrier would never open
HISTORY_LIMIT = 25_000  # events of one execution
ARRAY_LIMIT = 1_000  # items that States.ArrayRange lists for a Map
LOOKS_LIMIT = 8_000  # of them, those that waiting for earlier children may cost
EVENTS_PER_LOOK = 9  # a Task of DescribeExecution 5, a Choice 2, a Wait 2


def inline(items: int | None) -> bool:
    """Whether a Map is, by the most items that it ever has; None: nobody knows. The mode is the machine's, whatever a run asks of it."""
    return items is not None and items <= INLINE_MAP_LIMIT


def look_every_s(limit_s: int, *, times: int) -> int:
    """Seconds between two looks at a child, such that `times` iterations that wait for theirs as long as the machine may last find room in
    its history.
    """
    return max(5, -(-limit_s * EVENTS_PER_LOOK * times // LOOKS_LIMIT))


def check_history(machine: str, node: Node, counts: Mapping[str, int | None]) -> None:
    """AssertionError where waits cannot last until their time-outs: the history would be full before."""
    needed = events(node, counts)
    assert needed <= HISTORY_LIMIT, (
        f"machine {machine}: {needed:,} events where its waits last until their time-outs; an execution has {HISTORY_LIMIT:,}: "
        "look less often, shorten the time-out, or make it a Child"
    )


def events(node: Node, counts: Mapping[str, int | None]) -> int:
    """Events that running `node` once leaves in the history: polls last until their time-out, other loops turn once, nothing is tried
    again.
    """
    match node:
        case Step():
            return 5  # entered, scheduled, started, succeeded, exited
        case Child():
            return 6  # and submitted
        case Sequence(nodes=nodes):
            return sum(events(each, counts) for each in nodes)
        case Parallel(branches=branches):
            return 4 + sum(2 + events(branch, counts) for branch in branches)
        case ForEach(count=count, body=body):
            items = counts[count]
            return 8 + ((items or 0) * (4 + events(body, counts)) if inline(items) else 0)
        case Repeat(body=body, timeout_s=timeout_s, every_s=every_s):
            return 4 + (-(-timeout_s // every_s) if every_s else 1) * (events(body, counts) + 4)  # and a Choice, a Wait
    raise TypeError(f"not a node: {node!r}")
