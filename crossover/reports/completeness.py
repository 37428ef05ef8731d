"""Is every figure there? What the state machines executed, held against the records that arrived."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from crossover.costs.invocations import Record, cell


def attempts(records: Sequence[Record]) -> dict[str, int]:
    """Invocations by outcome, how many started cold, and how many cells needed more than one attempt because one failed."""
    outcomes = Counter(record["outcome"] for record in records)
    failed = {cell(record) for record in records if record["outcome"] == "error"}
    succeeded = {cell(record) for record in records if record["outcome"] == "ok"}
    return {
        "count": len(records),
        "ok": outcomes["ok"],
        "error": outcomes["error"],
        "stale": outcomes["stale"],
        "retried": len(failed & succeeded),
        "cold": sum(bool(record.get("cold")) for record in records),
    }


def missing(
    records: Sequence[Record],
    *,
    expected: Mapping[str, int] | None,
    epochs: Sequence[Mapping[str, Any]],
    span: int = 1,
    failed: bool = False,
    trains: bool = True,
) -> list[str]:
    """What is not there, one sentence each; empty: nothing that anybody counted.

    `expected`: how often the state machines executed each step successfully (in a failed run the execution that ended it may be counted as
    well). None: nobody counted, so lost records cannot show; result.json says so. `span`: epochs from one evaluation to the next.
    `trains`: whether there are epochs to be missed.
    """
    found = _steps(records, expected=expected, failed=failed) if expected is not None else []
    return found + _continuations(records) + (_epochs(epochs, span) if trains else [])


def _steps(records: Sequence[Record], *, expected: Mapping[str, int], failed: bool) -> list[str]:
    by_step: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_step[record["step"]].append(record)
    sentences = []
    for step, count in expected.items():
        present = sum(record["outcome"] == "ok" for record in by_step[step])
        if failed:  # the step that ended the run was executed, and left its record with another outcome
            done = {cell(record) for record in by_step[step] if record["outcome"] == "ok"}
            present += len({cell(record) for record in by_step[step]} - done)
        if present < count:
            where = _holes(by_step[step])
            sentences.append(f"{step}: {count - present} of {count} records missing{where}")
    unknown = sorted(
        step for step in by_step if step not in expected and any(r["outcome"] == "ok" for r in by_step[step])
    )
    sentences += [f"{step}: {len(by_step[step])} records of a step that was not executed" for step in unknown]
    return sentences


def _holes(records: Sequence[Record], *, shown: int = 3) -> str:
    """Which cells of the step's grid (round x worker x minibatch) have no record: a hint where to look, not a proof."""
    cells = {cell(record) for record in records if record["outcome"] == "ok"}
    rounds = sorted({(epoch, round) for _, _, epoch, round, _ in cells})
    workers = sorted({worker for _, worker, *_ in cells})
    minibatches: dict[tuple[int, int], set[int]] = defaultdict(set)
    for _, _, epoch, round, minibatch in cells:
        minibatches[epoch, round].add(minibatch)
    step = records[0]["step"] if records else ""
    holes = [
        f"worker {worker}, epoch {epoch}, round {round}, minibatch {minibatch}"
        for epoch, round in rounds
        for worker in workers
        for minibatch in sorted(minibatches[epoch, round])
        if (step, worker, epoch, round, minibatch) not in cells
    ]
    if not holes:
        return ""
    more = f" and {len(holes) - shown} more" if len(holes) > shown else ""
    return f" ({'; '.join(holes[:shown])}{more})"


def _continuations(records: Sequence[Record]) -> list[str]:
    """Long workers: an invocation's record says where it left (`until`: round, minibatch); the next must begin there. The first one begins
    at 0, or, in a resumed attempt of the run, anywhere.
    """
    lives: dict[tuple[str, int, int], list[Record]] = defaultdict(list)
    for record in records:
        if record["outcome"] == "ok" and "until" in record:
            lives[record["step"], record["worker"], record["attempt"]].append(record)
    sentences = []
    for (step, worker, attempt), life in sorted(lives.items()):
        begun = {(record["round"], record["minibatch"]) for record in life}
        reached = {tuple(record["until"]) for record in life} | {min(begun) if attempt else (0, 0)}
        sentences += [
            f"{step}, worker {worker}: the record before round {round}, minibatch {minibatch} is missing"
            for round, minibatch in sorted(begun - reached)
        ]
    return sentences


def _epochs(epochs: Sequence[Mapping[str, Any]], span: int) -> list[str]:
    numbers = sorted(int(epoch["epoch"]) for epoch in epochs)
    if not numbers:
        return ["no epoch was finished"]
    gaps = sorted(set(range(span, numbers[-1] + 1, span)) - set(numbers))
    return [f"epoch {', '.join(map(str, gaps))}: no evaluation was recorded"] if gaps else []
