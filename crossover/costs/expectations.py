"""What a run must have executed, by its tree and the epochs it decided: a lost record shows, every transition is billed."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from crossover.algorithms.calendar import Calendar
from crossover.architecture import Architecture
from crossover.workflow import Child, ForEach, Node, Parallel, Repeat, Sequence, Step, walk


def expected_records(architecture: Architecture, *, workers: int, days: Calendar, epochs: int) -> Counter[str]:
    """How many records each step must at least have left after `epochs`. A poll, and a long worker's step, count as often as they must have
    run: once per round, once per worker.
    """
    counts: Counter[str] = Counter()
    rounds = days.rounds_until(days.decided(epochs))
    minibatches = sum(map(days.minibatches_in, range(rounds)))

    def visit(node: Node, workers_: int, turns: int) -> None:
        """`workers_`: iterations over the workers around the node; `turns`: how often a step that ends with its round runs."""
        match node:
            case Step(name=name):
                # A long worker's step goes on for as many rounds as its time limit allows.
                counts[name] += workers_ if node.waits and node.torch else turns
            case Sequence(nodes=children) | Parallel(branches=children):
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
    """States entered by all executions of a run: what Standard workflows are billed by, retries included.

    Counted as `crossover/asl` lays the tree out; how often a loop turned is what its steps' records say.
    """
    records = list(records)
    done = Counter(record["step"] for record in records if record["outcome"] == "ok")
    retried = sum(1 for record in records if record["outcome"] != "ok")

    def entered(node: Node, times: int, last: bool) -> int:
        match node:
            case Step():
                return times
            case Sequence(nodes=children):
                return sum(entered(child, times, last and child is children[-1]) for child in children)
            case Parallel(branches=branches):
                return times * (1 + len(branches)) + sum(entered(branch, times, False) for branch in branches)
            case ForEach(count=count, body=body):
                step = _first_step(body)
                items = times * workers if count == "workers" else done[step.name] if step else times
                return 2 * times + items + entered(body, items, False)
            case Repeat(body=body, every_s=every_s):
                step = _first_step(body)
                turns = max(times, done[step.name] if step else min(times * epochs, begun(body)))
                waits = turns - times if every_s else 0
                return times + turns + waits + (times if last else 0) + entered(body, turns, False)
            case Child(body=body):
                return times + entered(body, times, True)
        raise TypeError(f"not a node: {node!r}")

    def begun(body: Node) -> int:
        """Epochs that began with an invocation, over all workers: a long one goes on through several in one execution."""
        first = next(node.name for node in walk(body) if isinstance(node, Step))
        return len({(record["worker"], record["epoch"]) for record in records if record["step"] == first})

    def executions(machine: Node) -> int:
        """Of a machine that programs start, once per worker and round."""
        names = {node.name for node in walk(machine) if isinstance(node, Step)}
        return len({(record["worker"], record["round"]) for record in records if record["step"] in names})

    started = sum(entered(machine, executions(machine), True) for machine in architecture.machines.values())
    return retried + started + (entered(architecture.run, 1, True) if architecture.run else 0)


def _first_step(node: Node) -> Step | None:
    """The first step that runs once per turn of `node`: not one inside a further loop."""
    match node:
        case Step():
            return node
        case Sequence(nodes=children):
            return next((step for child in children if (step := _first_step(child))), None)
        case Child(body=body):
            return _first_step(body)
    return None
