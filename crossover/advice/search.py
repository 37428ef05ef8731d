"""Which of many candidates are worth a simulation: best first, everything else excluded by what it takes at least."""

import heapq
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import log
from typing import Any

from crossover.advice.candidates import OWN, Candidate
from crossover.advice.evaluation import Estimate, Profile, Question
from crossover.runtime.process_pools import pool

AT_ONCE = 24  # candidates that are looked at before the front is drawn anew; the same on any number of cores
SLACK = 0.01  # a candidate that could be better by less than this is not looked at


@dataclass
class Searched:
    """What came of the search. `excluded`: of those that were not simulated, by what kind of reason, and how many."""

    simulated: dict[Candidate, Estimate] = field(default_factory=dict)
    impossible: dict[Candidate, str] = field(default_factory=dict)  # what the simulation or the YAML's checks refused
    bounded: dict[Candidate, Estimate] = field(default_factory=dict)  # excluded by what they take at least
    looks: int = 0  # at a run without stragglers

    @property
    def count(self) -> int:
        return len(self.simulated) + len(self.impossible) + len(self.bounded)

    def of(self, architecture: str) -> dict[Candidate, Estimate]:
        return {each: figures for each, figures in self.simulated.items() if each.architecture == architecture}


def search(question: Question, candidates: Sequence[Candidate], *, processes: int | None = None) -> Searched:
    """Every candidate simulated or excluded. The front, and the cheapest of each architecture, are those of simulating all of them, within
    SLACK.
    """
    found, profiles = Searched(), dict[Candidate, Profile]()
    waiting = [
        (_rank(least), number, False, least)
        for number, each in enumerate(candidates)
        if (least := question.least(each))
    ]
    heapq.heapify(waiting)
    with _evaluating(question, processes) as evaluated:
        while waiting:
            taken = dict[int, Candidate]()
            shapes = dict[int, Candidate]()
            while waiting and len(taken) + len(set(shapes.values())) < AT_ONCE:
                _, number, looked, bound = heapq.heappop(waiting)
                candidate = candidates[number]
                if _beaten(candidate, bound, found):
                    found.bounded[candidate] = bound
                elif looked:
                    taken[number] = candidate
                elif (shape := question.shape(candidate)) in profiles:
                    _come_closer(question, number, candidate, profiles[shape], found, waiting)
                else:
                    shapes[number] = shape
            new = list(dict.fromkeys(shapes.values()))
            done = evaluated([*((each, True) for each in taken.values()), *((each, False) for each in new)])
            for candidate, figures in zip(taken.values(), done, strict=False):
                assert isinstance(figures, Estimate)
                if figures.problem:
                    found.impossible[candidate] = figures.problem
                else:
                    found.simulated[candidate] = figures
            found.looks += len(new)
            profiles |= zip(new, done[len(taken) :], strict=True)
            for number, shape in shapes.items():
                _come_closer(question, number, candidates[number], profiles[shape], found, waiting)
    return found


QueueEntry = tuple[float, int, bool, Estimate]


def _come_closer(
    question: Question, number: int, candidate: Candidate, profile: Profile, found: Searched, waiting: list[QueueEntry]
) -> None:
    """The candidate again in the queue, by what its shape takes; out of it where AWS would not run even that."""
    if profile.problem:
        found.impossible[candidate] = profile.problem
        return
    bound = question.about(candidate, profile)
    heapq.heappush(waiting, (_rank(bound), number, True, bound))


def _rank(figures: Estimate) -> float:
    return log(max(figures.seconds, 1e-9)) + log(max(figures.usd, 1e-9))


def _beaten(candidate: Candidate, bound: Estimate, found: Searched) -> bool:
    """Whether a simulated one is at least as good whatever the candidate comes to, and it is not its architecture's cheapest either."""
    cheapest = True
    beaten = False
    for other, figures in found.simulated.items():
        if other.updates != candidate.updates and other.updates != OWN:
            continue
        same = (other.architecture, other.on, other.updates) == (
            candidate.architecture,
            candidate.on,
            candidate.updates,
        )
        if figures.below(bound, slack=SLACK):
            if same:
                return True
            beaten = True
        cheapest = cheapest and not (same and figures.usd <= bound.usd * (1 + SLACK))
    return beaten and not cheapest


# --- on all cores ----------------------------------------------------------------------------------------------------

Job = tuple[Candidate, bool]
_QUESTION: list[Question] = []  # of a process that only evaluates


def look(question: Question, job: Job) -> Any:
    """Figures as the simulation says, or the profile of a shape."""
    candidate, fully = job
    return question.simulated(candidate)[0] if fully else question.profile(candidate)


@contextmanager
def _evaluating(question: Question, processes: int | None) -> Iterator[Callable[[Sequence[Job]], list[Any]]]:
    count = processes or os.cpu_count() or 1
    if count == 1:
        yield lambda jobs: [look(question, job) for job in jobs]
        return
    with pool(count, _begin, question) as working:
        yield lambda jobs: list(working.map(_look, jobs))


def _begin(question: Question) -> None:
    _QUESTION.append(question)


def _look(job: Job) -> Any:
    return look(_QUESTION[0], job)
