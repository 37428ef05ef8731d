"""What MLLess's supervisor must decide by the reports that it had, and the reports by a model of their own."""

from collections import defaultdict
from collections.abc import Mapping
from math import isclose
from statistics import fmean

from crossover.algorithms.schedule import SPAN
from functions.mlless.words import StepReport, Word
from tests.chaos.world.yardstick import Yardstick

Place = tuple[int, int]  # an attempt, and a step or round of it
Reports = Mapping[int, StepReport]  # by worker


def judge_words(words: Mapping[Place, tuple[Word, Reports]]) -> list[str]:
    """Return a sentence for each word whose senders or loss do not follow from the reports that existed when it was created, or that takes
    a worker back that an earlier word dropped or sent away.
    """
    found = list[str]()
    for (attempt, step), (word, reports) in sorted(words.items()):
        where = f"attempt {attempt}, step {step}: the supervisor"
        counted = {worker: reports[worker] for worker in sorted(reports) if worker not in word.dropped}
        senders = tuple(worker for worker, report in counted.items() if report.update)
        if word.senders != senders:
            found.append(f"{where} names the senders {word.senders}; {senders} have sent")
        if not _equals(word.loss, loss := _weigh(counted)):
            found.append(f"{where} says that the loss is {word.loss}; the reports say {loss}")
        before = words[attempt, step - 1][0] if (attempt, step - 1) in words else word
        if not {*before.dropped, *before.leaves} <= {*word.dropped, *word.leaves}:
            found.append(f"{where} takes workers back: {before.dropped}, {before.leaves} had to go before")
    return found


def _weigh(reports: Reports) -> float | None:
    """Return the mean of the losses in `reports`, weighted by samples; None if nobody computed."""
    told = [(report.loss, report.samples) for report in reports.values() if report.loss is not None]
    samples = sum(count for _, count in told)
    return sum(loss * count for loss, count in told) / samples if samples else None


def _equals(one: float | None, other: float | None) -> bool:
    """Return whether two losses are equal within rounding."""
    return one == other if one is None or other is None else isclose(one, other, abs_tol=1e-9)


def judge_fewest(words: Mapping[Place, tuple[Word, Reports]], workers: int, fewest: int) -> list[str]:
    """Return a sentence for each word that sends a worker away although fewer than `fewest` workers then stay."""
    found = list[str]()
    for (attempt, step), (word, _) in sorted(words.items()):
        before = words[attempt, step - 1][0].leaves if (attempt, step - 1) in words else {}
        staying = word.list_staying(workers)
        if len(staying) < fewest and not set(word.leaves) <= set(before):
            found.append(f"attempt {attempt}, step {step}: only workers {staying} stay; at least {fewest} must")
    return found


def judge_removals(words: Mapping[Place, tuple[Word, Reports]], workers: int) -> list[str]:
    """Return a sentence for each word of the first attempt that sends away another worker than the slowest, by the mean duration of each
    worker's latest reports. `words`: of one process, since a supervisor that is started again has forgotten some durations.
    """
    latest, found, before = defaultdict[int, list[float]](list), list[str](), set[int]()
    for (attempt, step), (word, reports) in sorted(words.items()):
        if attempt:
            break
        for worker in (each for each in reports if each not in word.dropped):
            latest[worker] = [*latest[worker], reports[worker].seconds][-SPAN:]
        told = set(word.leaves) - before
        here = {worker: fmean(latest[worker]) for worker in [*word.list_staying(workers), *told] if latest[worker]}
        if told and max(here, key=lambda worker: (here[worker], worker)) not in told:
            found.append(f"step {step}: {sorted(told)} must leave, and the mean durations are {here}")
        before |= told
    return found


def judge_reports(words: Mapping[Place, tuple[Word, Reports]], epochs: Yardstick) -> list[str]:
    """Return a sentence for each report whose loss or samples differ from those that `epochs` expects."""
    expected = {place: right for epoch in epochs.values() for place, right in epoch.reports.items()}
    return [
        f"attempt {attempt}, step {step}: worker {worker} reports {report.loss} for {report.samples} samples; expected {right}"
        for (attempt, step), (_, reports) in sorted(words.items())
        for worker, report in sorted(reports.items())
        if (right := expected.get((step, worker)))
        and not (_equals(report.loss, right[0]) and report.samples == right[1])
    ]


def judge_resumptions(dropped: Mapping[Place, frozenset[int]]) -> list[str]:
    """Return a sentence for each attempt that begins with a worker that had been dropped when the round was saved. `dropped`: workers that
    the supervisor's checkpoints name as dropped.
    """
    found = list[str]()
    for attempt in {each for each, _ in dropped}:
        first = min(round for each, round in dropped if each == attempt)
        earlier = [gone for (each, round), gone in dropped.items() if each < attempt and round == first]
        back = frozenset.intersection(*earlier) - dropped[attempt, first] if earlier else ()
        if back:
            found.append(
                f"attempt {attempt} begins at round {first} with workers {sorted(back)}, which had been dropped"
            )
    return found


def judge_dropped(dropped: Mapping[Place, frozenset[int]], reports: Mapping[Place, Reports]) -> list[str]:
    """Return a sentence for each worker that reports in an attempt although it had been dropped when the attempt began. `dropped`: workers
    that the supervisor's checkpoints name as dropped; `reports`: all reports of each step.
    """
    begins = dict[int, int]()
    for attempt, round in sorted(dropped):
        begins.setdefault(attempt, round)
    found = {
        (each, worker) for each, _ in reports for worker in (dropped[each, begins[each]] if each in begins else ())
    }
    return [
        f"attempt {attempt}: worker {worker} reports, and had been dropped before the attempt began"
        for attempt, worker in sorted(found)
        if any(worker in said for (each, _), said in reports.items() if each == attempt)
    ]
