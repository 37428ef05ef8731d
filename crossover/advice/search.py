"""Which of many candidates are worth a simulation: best first, everything else excluded by what it takes at least."""

import heapq
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import inf, log
from typing import Any

from crossover.advice.candidates import OWN, Candidate
from crossover.advice.evaluation import Estimate, Profile, Question
from crossover.runtime.process_pools import pool

AT_ONCE = 24  # candidates that are looked at before the front is drawn anew; the same on any number of cores
OF_EACH = 4  # of a form, before its cheapest is looked for anew
SLACK = 0.01  # a candidate that could be better by less than this is not looked at
ANY = Estimate(inf, inf)
Job = tuple[Candidate, bool]  # whether it is to be simulated; else the profile of a shape


@dataclass
class Searched:
    """What came of the search. `excluded`: of those that were not simulated, by what kind of reason, and how many."""

    simulated: dict[Candidate, Estimate] = field(default_factory=dict)
    impossible: dict[Candidate, str] = field(default_factory=dict)  # what the simulation or the YAML's checks refused
    bounded: dict[Candidate, Estimate] = field(default_factory=dict)  # excluded by what they take at least
    near: dict[Candidate, Estimate] = field(default_factory=dict)  # simulated besides, for what was wished
    looks: int = 0  # at a run without stragglers


def search(
    question: Question,
    candidates: Sequence[Candidate],
    *,
    processes: int | None = None,
    working: Executor | None = None,
    seconds: float = inf,
    usd: float = inf,
) -> Searched:
    """Every candidate simulated or excluded. The front, and the cheapest of each architecture's forms that makes the experiment's own
    updates, are those of simulating all of them, within SLACK; so are `near`, of those within `seconds` and `usd`. `working`: processes
    that `on_cores` began for this question; else so many `processes` are.
    """
    with on_cores(question, processes) if working is None else nullcontext(working) as each:
        looking = _Search(question, candidates, partial(_looks, question, each))
        looking.cheapest()
        looking.front()
        found = looking.found
        before = set(found.simulated)
        looking.cheapest(Estimate(seconds, usd))
    found.near = {each: found.simulated.pop(each) for each in set(found.simulated) - before}
    found.bounded |= {candidates[number]: bound for number, bound in looking.bounds.items()}
    return found


class _Search:
    """`bounds`: of candidates, by number, that are neither simulated nor impossible."""

    def __init__(
        self,
        question: Question,
        candidates: Sequence[Candidate],
        evaluated: Callable[[Sequence[Job]], list[Any]],
    ) -> None:
        self.found, self._question, self._candidates, self._evaluated = Searched(), question, candidates, evaluated
        self.bounds = {number: question.least(each) for number, each in enumerate(candidates)}
        self._looked = set[int]()
        self._profiles = dict[Candidate, Profile]()
        self._done = dict[Any, list[Estimate]]()  # of the simulated, by form
        self._fronts = dict[str, list[Estimate]]()  # of the simulated, by what updates they make

    def cheapest(self, within: Estimate = ANY) -> None:
        """Of each form with the experiment's own updates the one with the fewest dollars, of those within."""
        forms = dict[Any, list[tuple[float, int]]]()
        for number, bound in self.bounds.items():
            if self._candidates[number].updates == OWN:
                forms.setdefault(_form(self._candidates[number]), []).append((bound.usd, number))
        for each in forms.values():
            heapq.heapify(each)
        while taken := [number for form, heap in forms.items() for number in self._next(form, heap, within)]:
            for number in self._closer(taken):
                heapq.heappush(forms[_form(self._candidates[number])], (self.bounds[number].usd, number))

    def _next(self, form: Any, heap: list[tuple[float, int]], within: Estimate) -> Iterator[int]:
        """A few that could be cheaper than any that is simulated."""
        least = min((each.usd for each in self._done.get(form, ()) if each.below(within)), default=inf)
        count = 0
        while heap and heap[0][0] * (1 + SLACK) < least and count < OF_EACH:
            number = heapq.heappop(heap)[1]
            if number in self.bounds and self.bounds[number].below(within):
                yield number
                count += 1

    def front(self) -> None:
        """Whatever no simulated one is sure to be as good as in both figures, best first; the others are excluded."""
        waiting = [(_rank(bound), number) for number, bound in self.bounds.items()]
        heapq.heapify(waiting)
        while waiting:
            taken = list[int]()
            while waiting and len(taken) < AT_ONCE:
                number = heapq.heappop(waiting)[1]
                if not self._beaten(number):
                    taken.append(number)
            for number in self._closer(taken):
                heapq.heappush(waiting, (_rank(self.bounds[number]), number))

    def _beaten(self, number: int) -> bool:
        """Whether a simulated one is at least as good whatever the candidate comes to."""
        updates = {OWN, self._candidates[number].updates}
        rivals = (each for kind in updates for each in self._fronts.get(kind, ()))
        return any(each.below(self.bounds[number], slack=SLACK) for each in rivals)

    def _closer(self, numbers: Sequence[int]) -> list[int]:
        """Each looked at once more: by the profile of its shape, or simulated. Those that are still but bounded, by a higher bound now."""
        fully = [number for number in numbers if number in self._looked]
        shapes = {
            number: self._question.shape(self._candidates[number]) for number in numbers if number not in self._looked
        }
        new = [shape for shape in dict.fromkeys(shapes.values()) if shape not in self._profiles]
        done = self._evaluated(
            [*((self._candidates[number], True) for number in fully), *((shape, False) for shape in new)]
        )
        for number, figures in zip(fully, done, strict=False):
            self._simulated(number, figures)
        self.found.looks += len(new)
        self._profiles |= zip(new, done[len(fully) :], strict=True)
        for number, shape in shapes.items():
            self._bounded(number, self._profiles[shape])
        return [number for number in shapes if number in self.bounds]

    def _simulated(self, number: int, figures: Estimate) -> None:
        candidate = self._candidates[number]
        del self.bounds[number]
        if figures.problem:
            self.found.impossible[candidate] = figures.problem
            return
        self.found.simulated[candidate] = figures
        self._done.setdefault(_form(candidate), []).append(figures)
        front = self._fronts.setdefault(candidate.updates, [])
        if not any(each.below(figures) for each in front):
            front[:] = [*(each for each in front if not figures.below(each)), figures]

    def _bounded(self, number: int, profile: Profile) -> None:
        self._looked.add(number)
        if profile.problem:
            self.found.impossible[self._candidates[number]] = profile.problem
            del self.bounds[number]
        else:
            self.bounds[number] = self._question.about(self._candidates[number], profile)


def _form(candidate: Candidate) -> tuple[str, str, str]:
    return candidate.architecture, candidate.on, candidate.updates


def _rank(figures: Estimate) -> float:
    return log(max(figures.seconds, 1e-9)) + log(max(figures.usd, 1e-9))


# --- on all cores ----------------------------------------------------------------------------------------------------

_QUESTION: list[Question] = []  # of a process that only evaluates


def look(question: Question, job: Job) -> Any:
    """Figures as the simulation says, or the profile of a shape."""
    candidate, fully = job
    return question.simulated(candidate)[0] if fully else question.profile(candidate)


def on_cores(question: Question, processes: int | None) -> AbstractContextManager[Executor | None]:
    """Processes that look at candidates of the question, one for each core unless told otherwise; None of them where that is one."""
    count = processes or os.cpu_count() or 1
    return nullcontext() if count == 1 else pool(count, _begin, question)


def _looks(question: Question, working: Executor | None, jobs: Sequence[Job]) -> list[Any]:
    return [look(question, job) for job in jobs] if working is None else list(working.map(_look, jobs))


def _begin(question: Question) -> None:
    _QUESTION.append(question)


def _look(job: Job) -> Any:
    return look(_QUESTION[0], job)
