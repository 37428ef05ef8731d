"""Search for the Pareto front among all candidates, and selection of the shortlist."""

import heapq
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import inf, log
from statistics import fmean
from typing import Any

from crossover.advice.candidates import OWN, Candidate
from crossover.advice.evaluation import Estimate, Profile, Question
from crossover.advice.question import Constraints
from crossover.pools import start_pool
from crossover.reports import display
from crossover.reports.display import Band, band_of
from crossover.simulation import repetitions, start_up
from crossover.simulation.repetitions import Outcome, keep_feasible
from crossover.simulation.start_up import StartUpPart

# --- finalists --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finalist:
    """A shortlisted candidate with its repeated simulations. `figures`: its single estimate; `outcomes`: results of the repetitions;
    `before_s`: median seconds of start-up before the run, the sum of `start_up`; `start_up`: the parts of the start-up, with their ranges.
    """

    candidate: Candidate
    figures: Estimate
    outcomes: tuple[Outcome, ...]
    before_s: float  # until the run begins to work, in the middle
    start_up: tuple[StartUpPart, ...] = ()  # of which `before_s` is the sum, with their bands

    @cached_property
    def seconds(self) -> Band:
        """Percentiles of the seconds from `deploy` until the model is ready. The median is the sum of those of run and start-up; for the
        5th and 95th percentile, each repetition gets a random start-up.
        """
        return start_up.band_until_ready([each.seconds for each in self._ran], self.before_s, self.start_up)

    @cached_property
    def running(self) -> Band:
        """Percentiles of the seconds of the run alone, without start-up."""
        return band_of([each.seconds for each in self._ran])

    @cached_property
    def usd(self) -> Band:
        """Percentiles of the dollars of the whole run."""
        return band_of([each.usd for each in self._ran])

    def values_by_draw(self, figure: str) -> list[float]:
        """Return the candidate's seconds or dollars in each repetition, infinite if AWS would not run it. `figure`: "seconds" (of the run),
        "ready" (these and the median start-up) or "usd". All candidates of a question have the same random conditions, so that values at
        the same position can be compared.
        """
        if figure == "ready":
            return [seconds + self.before_s for seconds in repetitions.list_values(self.outcomes, "seconds")]
        return repetitions.list_values(self.outcomes, figure)

    @property
    def _ran(self) -> Sequence[Outcome]:
        """The results of those repetitions that AWS would run, or of all if it would run none."""
        return keep_feasible(self.outcomes) or self.outcomes

    @property
    def interruptions(self) -> float:
        """Mean number of spot interruptions in a run of the candidate."""
        return fmean(each.interruptions for each in self._ran)

    @property
    def would_run(self) -> bool:
        """True if AWS would run the candidate in at least 19 of 20 repetitions."""
        return len(keep_feasible(self.outcomes)) >= display.SURE * len(self.outcomes)

    @property
    def words(self) -> str:
        """The candidate's time, start-up and dollars, such as `31 min 05 s after 2 min 00 s of start-up, $0.29 ($0.24 to $0.36)`."""
        time = f"{display.seconds(self.running.p50)} after {display.seconds(self.before_s)} of start-up"
        return f"{time}, {display.band(display.usd, *self.usd)}"

    @property
    def kind(self) -> str:
        """Kind of resource that the candidate's workers use: `lambda`, `ec2` or `gpu`."""
        return self.candidate.kind


@dataclass(frozen=True)
class Card:
    """A shortlisted candidate that is recommended by a name. `names`: one or several of cheapest, balanced and soonest; `finalist`: the
    candidate with its simulated figures; `on_demand`: the same candidate at the on-demand price if it uses spot instances, otherwise None.
    """

    names: tuple[str, ...]
    finalist: Finalist
    on_demand: Finalist | None = None


HERE_BAND = (0.8, 1.0, 3.0)  # assumed: a machine on which three programs compute side by side takes three times as long


@dataclass(frozen=True)
class ThisMachine:
    """The estimate for training on this machine. `seconds`: from the start of the command until the model is ready, in one process of
    `threads` threads; `sooner`: the soonest candidate on AWS; `times`: multiple of the experiment's epochs from which that candidate is
    quicker, start-up included: 1 or less if it already is, None if it never is; `before_s`: the part of `seconds` before and after
    training: the start of the command, reading the data, and the report.
    """

    seconds: float
    threads: int
    sooner: Finalist
    times: float | None
    before_s: float = 0.0

    @property
    def band(self) -> Band:
        """The seconds with assumed limits: less if the machine is quieter than when it was measured, more if other programs use it."""
        return Band(*(factor * self.seconds for factor in HERE_BAND))

    @property
    def words(self) -> str:
        """A sentence such as `Your machine does it in 40 s (32 s to 2 min) for nothing (its own price is not counted); with 30 times the
        epochs or more, one g4dn.xlarge is sooner.`
        """
        does = f"Your machine does it in {display.band(display.seconds, *self.band)} for nothing (its own price is not counted)"
        if self.times is None:
            return f"{does}; {self.sooner.candidate.words} is never sooner, however many the epochs."
        if self.times <= 1:
            return f"{does}; the soonest on AWS is {self.sooner.candidate.words}."
        return f"{does}; with {self.times:,.3g} times the epochs or more, {self.sooner.candidate.words} is sooner."


# How each card is picked, in words.
RULES = {
    "cheapest": "the fewest dollars; of those that are too close to call the soonest",
    "balanced": "the least product of dollars and seconds, start-up among them",
    "soonest": "the fewest seconds, start-up among them; of those that take less than 1 % longer the cheapest",
}


def choose_finalist(finalists: Sequence[Finalist], constraints: Constraints) -> Finalist:
    """Return the best of at least one shortlisted candidate: of those that keep to all constraints at the 95th percentile, or that miss
    them least if none does (1 % more is as near), the soonest if only a budget is given, otherwise the cheapest, both by RULES.
    """
    misses = {each.candidate: constraints.short_by(each.seconds, each.usd) for each in finalists}
    least = min(misses.values())
    nearest = [each for each in finalists if misses[each.candidate] <= (display.LEVEL * least if least > 1 else 1)]
    return min(nearest, key=(_soonest if constraints.ask_for_soonest else _cheapest)(finalists))


def pick_cards(
    finalists: Sequence[Finalist], constraints: Constraints, twins: Mapping[Candidate, Finalist]
) -> tuple[Card, ...]:
    """Return the cheapest, the balanced and the soonest of the candidates, by RULES, as cards. Only candidates that keep to the constraints
    are considered, unless none does. A candidate that is several of these gets one card. `twins`: on-demand variants by the spot candidate.
    """
    holding = _within_constraints(finalists, constraints) or finalists
    orders = (_cheapest(finalists), lambda each: each.usd.p50 * each.seconds.p50, _soonest(finalists))
    names = dict[Candidate, tuple[str, ...]]()
    picked = [min(holding, key=order) for order in orders]
    for name, each in zip(RULES, picked, strict=True):
        names[each.candidate] = (*names.get(each.candidate, ()), name)
    found = {each.candidate: each for each in picked}
    return tuple(Card(names[each], finalist, twins.get(each)) for each, finalist in found.items())


def _within_constraints(finalists: Sequence[Finalist], constraints: Constraints) -> list[Finalist]:
    """Return those of the candidates that keep to deadline and budget at the 95th percentile."""
    return [each for each in finalists if constraints.short_by(each.seconds, each.usd) <= 1]


Order = Callable[[Finalist], tuple[float, ...]]


def _cheapest(finalists: Iterable[Finalist]) -> Order:
    """Return a sort key function for the candidates: fewest dollars first; candidates whose dollars do not differ significantly are ordered
    by time. That function takes one of `finalists`, and raises KeyError for any other.
    """
    ranks = _ranks(finalists, "usd", _cost_is_too_close)
    return lambda each: (ranks[each.candidate], each.seconds.p50, each.usd.p50)


def _soonest(finalists: Iterable[Finalist]) -> Order:
    """Return a sort key function for the candidates: shortest time first; candidates whose median times differ by less than 1 % are ordered
    by dollars. Repetitions are not compared in pairs: a spot machine would pass for as soon as the same one on demand if it is interrupted
    in some only. That function takes one of `finalists`, and raises KeyError for any other.
    """
    ranks = _ranks(finalists, "seconds", lambda first, each: each.seconds.p50 < display.LEVEL * first.seconds.p50)
    return lambda each: (ranks[each.candidate], each.usd.p50, each.seconds.p50)


def _ranks(
    finalists: Iterable[Finalist], figure: str, is_tied: Callable[[Finalist, Finalist], bool]
) -> dict[Candidate, int]:
    """Return the rank of each candidate by the median of `figure` (`seconds` or `usd`), from 0. Candidates that are tied with the first of
    a rank share that rank. `is_tied`: takes the first of a rank and another candidate.
    """
    found, first, rank = dict[Candidate, int](), None, -1
    for each in sorted(finalists, key=lambda each: (getattr(each, figure).p50, each.figures.usd, str(each.candidate))):
        if first is None or not is_tied(first, each):
            first, rank = each, rank + 1
        found[each.candidate] = rank
    return found


def _cost_is_too_close(one: Finalist, other: Finalist) -> bool:
    """Return whether the paired repetitions leave open which of the two candidates costs less."""
    led = display.lead(pair_draws(one, other, "usd"))
    return led is None or not led.is_sure


def pair_draws(one: Finalist, other: Finalist, figure: str) -> dict[str, list[float]]:
    """Return {"one": values, "other": values} of a figure of two candidates in those repetitions that both have. `figure`: as for
    `Finalist.values_by_draw`.
    """
    mine, its = one.values_by_draw(figure), other.values_by_draw(figure)
    count = min(len(mine), len(its))
    return {"one": mine[:count], "other": its[:count]}


# --- search -----------------------------------------------------------------------------------------------------------
# Which of many candidates are worth a simulation: best first, everything else excluded by what it takes at least.

CANDIDATES_AT_ONCE = 24  # candidates that are looked at before the front is drawn anew; the same on any number of cores
KINDS_ANSWERED = 3  # the advice and its two alternatives, which are of other kinds if there are any
CANDIDATES_PER_FORM = 4  # of a form, before its cheapest is looked for anew
SLACK = 0.01  # a candidate that could be better than the front by less than this is not looked at
GROUP_SLACK = 0.05  # nor one that could be cheaper than the cheapest of its group by less than this
ANY = Estimate(inf, inf)
Job = tuple[Candidate, bool]  # whether it is to be simulated; else the profile of a shape


@dataclass(frozen=True)
class _Evaluation:
    """A closer evaluation of some candidates, under way. `fully`: indices of those that are simulated themselves; `closer`: shape whose
    simulation gives the bound of the candidate with that index; `new`: those shapes that are simulated for it; `jobs`: the simulations,
    those of `fully` first, then those of `new`.
    """

    fully: Sequence[int]
    closer: Mapping[int, Candidate]
    new: Sequence[Candidate]
    jobs: "Sequence[Future[Any]]"


@dataclass
class SearchResult:
    """The result of a search. `simulated`: candidates with their simulated estimates; `impossible`: candidates with the reason why they
    cannot run; `bounded`: candidates that were excluded, with their lower bounds; `near`: further simulated candidates, which keep to
    deadline and budget; `looks`: number of simulations made for lower bounds.
    """

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
) -> SearchResult:
    """Simulate every candidate or exclude it by a lower bound, and return the result. The Pareto front is the same as if all were
    simulated, within SLACK; the cheapest candidate of each architecture and platform, within GROUP_SLACK.

    `seconds`, `usd`: limits for `near`, which gets the cheapest candidates within them. `processes`: number of processes, by default one
    per core; `working`: a pool that `start_evaluators` started for this question, to be used in place of a new one.
    """
    with start_evaluators(question, processes) if working is None else nullcontext(working) as each:
        state = _Search(question, candidates, partial(_submit_job, question, each))
        state.find_cheapest()
        state.find_front()
        found = state.found
        before = set(found.simulated)
        kinds = {each.kind for each in candidates}
        state.find_cheapest(Estimate(seconds, usd), group=_kind if len(kinds) >= KINDS_ANSWERED else _form)
    found.near = {each: found.simulated.pop(each) for each in [*found.simulated] if each not in before}
    found.bounded |= {candidates[number]: bound for number, bound in state.bounds.items()}
    return found


class _Search:
    """The state of a search. `bounds`: lower bounds, of seconds and dollars, of the candidates that are neither simulated nor impossible
    yet, by the candidate's index; `found`: the result so far, in which `search` itself fills `bounded` and `near`.
    """

    def __init__(
        self,
        question: Question,
        candidates: Sequence[Candidate],
        submit: "Callable[[Job], Future[Any]]",
    ) -> None:
        """Compute a first lower bound for every candidate. `submit`: function that begins a job and returns the future of its result."""
        self.found, self._question, self._candidates, self._submit = SearchResult(), question, candidates, submit
        self.bounds = {number: question.bound_by_computing(each) for number, each in enumerate(candidates)}
        self._bounded_by = dict[int, Candidate]()  # by the number of the candidate: whose profile its bound is from
        families = dict[Candidate, list[Candidate]]()
        for shape in {question.shape(each) for each in candidates}:
            families.setdefault(question.family(shape), []).append(shape)
        lightest = [(max(shapes, key=self._order), shapes) for shapes in families.values()]
        self._lightest = {shape: first for first, shapes in lightest for shape in shapes}  # of its family, by shape
        self._profiles = dict[Candidate, Profile]()
        self._fronts = dict[str, list[Estimate]]()  # of the simulated, by what updates they make

    def _order(self, shape: Candidate) -> tuple[Any, ...]:
        """Return a sort key for the shapes of one family (`Question.family`) by which the one with the least to exchange is the last: the
        numbers of `Question.lightness`, then the shape's text, so that no two are equal.
        """
        return *self._question.lightness(shape), str(shape)

    def find_cheapest(
        self, within: Estimate = ANY, *, group: "Callable[[Candidate], tuple[str, ...]] | None" = None
    ) -> None:
        """Find the cheapest candidate, within GROUP_SLACK, of each group among those with the experiment's own updates and with seconds and
        dollars below `within`, simulating as few as possible; estimates and refusals go to `found`. `group`: returns a candidate's group,
        by default architecture and platform.
        """
        group = group or _form
        groups, least = dict[Any, list[tuple[float, int]]](), dict[Any, float]()
        for number, bound in self.bounds.items():
            if self._candidates[number].updates == OWN:
                groups.setdefault(group(self._candidates[number]), []).append((bound.usd, number))
        for each in groups.values():
            heapq.heapify(each)

        def note(candidates: Iterable[Candidate]) -> None:
            """Lower `least`, the dollars of the cheapest of each group, to those of the simulated ones of the candidates."""
            for each in candidates:
                figures = self.found.simulated.get(each)
                if figures is not None and each.updates == OWN and figures.is_within(within):
                    least[group(each)] = min(figures.usd, least.get(group(each), inf))

        note(self.found.simulated)
        under_way, ready = dict[Any, _Evaluation](), list(groups)  # groups do not wait for one another
        while ready or under_way:
            for name in ready:
                if taken := [*self._take_cheapest(groups[name], within, least.get(name, inf))]:
                    under_way[name] = self._begin_evaluation(taken)
            wait(
                [job for each in under_way.values() for job in each.jobs if not job.done()], return_when=FIRST_COMPLETED
            )
            ready = [name for name, each in under_way.items() if all(job.done() for job in each.jobs)]
            for name in ready:
                done = under_way.pop(name)
                for number in self._finish_evaluation(done):
                    heapq.heappush(groups[name], (self.bounds[number].usd, number))
                note(self._candidates[number] for number in done.fully)

    def _take_cheapest(self, heap: list[tuple[float, int]], within: Estimate, least: float) -> Iterator[int]:
        """Remove from `heap`, and yield, the indices of up to CANDIDATES_PER_FORM candidates whose lower bounds are below `least` dollars
        and need a simulation to become closer, the lowest first. `heap`: (lower bound in dollars, index) of one group's candidates;
        candidates that have no bound any more, or one that exceeds `within`, are removed but not yielded.
        """
        count = 0
        while heap and heap[0][0] * (1 + GROUP_SLACK) < least and count < CANDIDATES_PER_FORM:
            number = heapq.heappop(heap)[1]
            if number not in self.bounds or not self.bounds[number].is_within(within):
                continue
            if self._tighten_by_known(number):
                if number in self.bounds:
                    heapq.heappush(heap, (self.bounds[number].usd, number))
                continue
            yield number
            count += 1

    def find_front(self) -> None:
        """Find the Pareto front: simulate, the most promising first, every candidate that no simulated one beats in both seconds and
        dollars, even at its lower bound. All others are thereby excluded. Estimates and refusals go to `found`; the excluded ones keep
        their `bounds`.
        """
        waiting = [(_rank(bound), number) for number, bound in self.bounds.items()]
        heapq.heapify(waiting)
        while waiting:
            taken = list[int]()
            while waiting and len(taken) < CANDIDATES_AT_ONCE:
                number = heapq.heappop(waiting)[1]
                if self._is_beaten(number):
                    continue
                if not self._tighten_by_known(number):
                    taken.append(number)
                elif number in self.bounds:
                    heapq.heappush(waiting, (_rank(self.bounds[number]), number))
            for number in self._finish_evaluation(self._begin_evaluation(taken)):
                heapq.heappush(waiting, (_rank(self.bounds[number]), number))

    def _is_beaten(self, number: int) -> bool:
        """Return whether a simulated candidate is at least as good, within SLACK, as the lower bound of the candidate with the index
        `number`. A candidate of unknown accuracy cannot beat one with the experiment's own updates.
        """
        updates = {OWN, self._candidates[number].updates}
        rivals = (each for kind in updates for each in self._fronts.get(kind, ()))
        return any(each.is_within(self.bounds[number], slack=SLACK) for each in rivals)

    def _begin_evaluation(self, numbers: Sequence[int]) -> "_Evaluation":
        """Begin one closer evaluation of each candidate: from a bound by arithmetic to one by a simulation of the lightest shape of its
        family, to one by a simulation of its own shape, to its own simulation. `numbers`: indices of the candidates.
        """
        shapes = {number: self._choose_shape(number) for number in numbers}
        fully = [number for number, shape in shapes.items() if shape is None]
        closer = {number: shape for number, shape in shapes.items() if shape is not None}
        new = [shape for shape in dict.fromkeys(closer.values()) if shape not in self._profiles]
        jobs = [*((self._candidates[number], True) for number in fully), *((shape, False) for shape in new)]
        return _Evaluation(fully, closer, new, [self._submit(job) for job in jobs])

    def _finish_evaluation(self, begun: "_Evaluation") -> list[int]:
        """Wait for the simulations of an evaluation, and record them and the bounds that follow. Returns the indices of those of its
        candidates that have only a bound still.
        """
        done = [job.result() for job in begun.jobs]
        for number, figures in zip(begun.fully, done, strict=False):
            self._record_simulation(number, figures)
        self.found.looks += len(begun.new)
        self._profiles |= zip(begun.new, done[len(begun.fully) :], strict=True)
        for number, shape in begun.closer.items():
            self._tighten_bound(number, shape)
        return [number for number in begun.closer if number in self.bounds]

    def _tighten_by_known(self, number: int) -> bool:
        """Make the next closer evaluation of the candidate with the index `number`, and return True, if the simulation that it needs was
        made before; otherwise return False.
        """
        shape = self._choose_shape(number)
        if shape is None or shape not in self._profiles:
            return False
        self._tighten_bound(number, shape)
        return True

    def _choose_shape(self, number: int) -> Candidate | None:
        """Return the shape whose simulation gives the next lower bound of the candidate with the index `number`; None if the candidate
        itself is to be simulated.
        """
        own = self._question.shape(self._candidates[number])
        if number not in self._bounded_by and own not in self._profiles:
            return self._lightest[own]
        return None if self._bounded_by.get(number) == own else own

    def _record_simulation(self, number: int, figures: Estimate) -> None:
        """Record `figures`, the simulated estimate of the candidate with the index `number`, or the reason why it cannot run; remove its
        bound, and update the front.
        """
        candidate = self._candidates[number]
        del self.bounds[number]
        if figures.problem:
            self.found.impossible[candidate] = figures.problem
            return
        self.found.simulated[candidate] = figures
        front = self._fronts.setdefault(candidate.updates, [])
        if not any(each.is_within(figures) for each in front):
            front[:] = [*(each for each in front if not figures.is_within(each)), figures]

    def _tighten_bound(self, number: int, shape: Candidate) -> None:
        """Raise the lower bound of the candidate with the index `number` to the one that the simulation of `shape` gives, if that is
        higher. If AWS would not run the candidate's own shape, record it as impossible.
        """
        candidate, profile = self._candidates[number], self._profiles[shape]
        self._bounded_by[number] = shape
        if not profile.problem:
            closer, known = self._question.bound_by_profile(candidate, profile, shape), self.bounds[number]
            self.bounds[number] = Estimate(max(closer.seconds, known.seconds), max(closer.usd, known.usd))
        elif shape == self._question.shape(candidate):
            self.found.impossible[candidate] = profile.problem
            del self.bounds[number]


def _form(candidate: Candidate) -> tuple[str, str, str]:
    """Return (architecture, platform, updates) of the candidate: the group whose cheapest candidate the search finds."""
    return candidate.architecture, candidate.on, candidate.updates


def _kind(candidate: Candidate) -> tuple[str, ...]:
    """Return the kind of resource that the candidate's workers use, in a tuple."""
    return (candidate.kind,)


def _rank(figures: Estimate) -> float:
    """Return a sort key by which the most promising candidate is the first: the logarithm of seconds times dollars. `figures`: its lower
    bound.
    """
    return log(max(figures.seconds, 1e-9)) + log(max(figures.usd, 1e-9))


# --- on all cores ----------------------------------------------------------------------------------------------------

_QUESTION: list[Question] = []  # of a process that only evaluates


def evaluate_job(question: Question, job: Job) -> Any:
    """Return the result of one job (candidate, whether to simulate it): the candidate's simulated Estimate, or the Profile that gives lower
    bounds.
    """
    candidate, fully = job
    return question.simulated(candidate)[0] if fully else question.profile(candidate)


def start_evaluators(question: Question, processes: int | None) -> AbstractContextManager[Executor | None]:
    """Return a context manager that starts a pool of processes for evaluating candidates of the question, and stops it at the end.
    `processes`: their number, by default one per core; for one, no pool is started and the block gets None. The processes begin when this
    function is called, so that they import the simulation while this process still lists the candidates.
    """
    count = processes or os.cpu_count() or 1
    if count == 1:
        return nullcontext()
    pool = start_pool(count, _keep_question, question)
    for _ in range(count):
        pool.submit(os.getpid)
    return pool


def _submit_job(question: Question, working: Executor | None, job: Job) -> "Future[Any]":
    """Begin one job, and return the future of its result, which is that of `evaluate_job`. `working`: pool of processes to use, None for
    this process: the job is then done at the return.
    """
    if working is not None:
        return working.submit(_evaluate_in_pool, job)
    done = Future[Any]()
    done.set_result(evaluate_job(question, job))
    return done


def _keep_question(question: Question) -> None:
    """Store the question in a new process of the pool, for the jobs that this process will get."""
    _QUESTION.append(question)


def _evaluate_in_pool(job: Job) -> Any:
    """Return the result of one job for the question that this process of the pool has stored."""
    return evaluate_job(_QUESTION[0], job)
