"""The advice: the cheapest, balanced and soonest candidates, and what drives their time and cost."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf
from typing import NamedTuple

from crossover.advice import candidates as ways
from crossover.advice import question as question_
from crossover.advice.candidates import OWN, UNKNOWN, Candidate
from crossover.advice.evaluation import Estimate, Question, best
from crossover.advice.question import Constraints, Sizes
from crossover.advice.search import (
    Card,
    Finalist,
    SearchResult,
    ThisMachine,
    choose_finalist,
    pair_draws,
    pick_cards,
    search,
    start_evaluators,
)
from crossover.algorithms.schedule import Calendar
from crossover.errors import NoProjection
from crossover.learning.sizes import GPU_VECTORS, HELD_VECTORS
from crossover.reports import bill, display
from crossover.reports.display import Band
from crossover.simulation.calibration import MEASURED_THREADS, MOVING, STARTING, Calibration
from crossover.simulation.figures import load_instances, load_spot_markets
from crossover.simulation.gpu_steps import card_of
from crossover.simulation.long_epochs import simulate_run
from crossover.simulation.repetitions import REPETITIONS, Outcome, list_draws, run_repetitions
from crossover.simulation.simulate import Simulated

# --- drivers ----------------------------------------------------------------------------------------------------------

COMPUTING, MOVED, STARTED, BEFORE = (
    "computing gradients",
    "moving data, averaging and updating",
    "starting functions and state transitions (Step Functions)",
    "start-up",
)
WAITS = ("synchronise", "receive", "aggregate")
MIN_NAMED_SHARE = 0.05  # a share that is smaller drives nothing


@dataclass(frozen=True)
class Drivers:
    """Parts of a candidate's time and dollars, simulated without random stragglers under median AWS conditions. `seconds`: by purpose,
    such as computing gradients, start-up included; `usd`: by component, such as database hosts; `exchanges`: number of times that
    workers exchange a vector in the run; `vector_bytes`: size of the vector.
    """

    seconds: Mapping[str, float]
    usd: Mapping[str, float]
    exchanges: int
    vector_bytes: int

    @property
    def words(self) -> str:
        """Part of a sentence: the largest share of the time without start-up and of the dollars, and the second largest of each if it is at
        least 5 %.
        """
        return f"{_describe_largest(self.of_the_run, 'running time is')}; {_describe_largest(self.usd, 'dollars are')}"

    @property
    def of_the_run(self) -> Mapping[str, float]:
        """Seconds by purpose without those of start-up."""
        return {name: value for name, value in self.seconds.items() if name != BEFORE}

    @property
    def exchanged(self) -> str:
        """Part of a sentence: the size and number of exchanged vectors, and the share of the run's time that moving data takes."""
        moved = self.of_the_run[MOVED] / max(1e-12, sum(self.of_the_run.values()))
        vector = display.bytes_(self.vector_bytes)
        return f"a vector of {vector} is exchanged {self.exchanges:,} times; moving data takes {moved:.0%} of the time"


def _describe_largest(parts: Mapping[str, float], what: str) -> str:
    """Return a text such as `80% of its running time is computing gradients, 15% moving data`: the largest part, and the second largest if
    it is at least 5 %. `parts`: at least one figure, by name; `what`: figure and verb, such as `running time is`.
    """
    whole = max(1e-12, sum(parts.values()))
    (first, name), *others = sorted(((value / whole, name) for name, value in parts.items()), reverse=True)[:2]
    return f"{first:.0%} of its {what} {name}" + "".join(
        f", {share:.0%} {other}" for share, other in others if share >= MIN_NAMED_SHARE
    )


def drivers_of(question: Question, candidate: Candidate) -> Drivers:
    """Return the Drivers of the candidate's whole run, extrapolated from simulations of a few epochs, which each call makes anew. `seconds`
    has the keys of `seconds_by_purpose`, `usd` those of `dollars_by_component`.
    """
    minibatches = len(question.workload_of(candidate).samples)
    every = minibatches if candidate.every == "epoch" else candidate.every
    return Drivers(
        seconds=seconds_by_purpose(question, candidate),
        usd=dollars_by_component(replace(question, calibration=question.calm), candidate),
        exchanges=Calendar(minibatches, every, question.base.training.epochs).rounds,
        vector_bytes=question.workload.vector_bytes,
    )


def seconds_by_purpose(question: Question, candidate: Candidate) -> dict[str, float]:
    """Return {purpose: seconds} for the candidate's time from `deploy` on, with the keys COMPUTING, MOVED (moving data), STARTED (starting
    functions) and BEFORE (start-up before the run), in this order. The seconds of moving data are those that a simulated run saves if data
    moves in no time; those of starting functions are what it then saves if they start in no time. The rest is COMPUTING. No value is below
    0.
    """
    calm = question.calm
    unmoved = replace(calm.without_sharing(), **MOVING)
    clouds = (calm, unmoved, replace(unmoved, **STARTING))
    whole, still, pure = (
        extrapolate(replace(question, calibration=cloud), candidate, lambda run: {"": run.seconds})[""]
        for cloud in clouds
    )
    return {
        COMPUTING: pure,
        MOVED: max(0.0, whole - still),
        STARTED: max(0.0, still - pure),
        BEFORE: question.before_s(candidate),
    }


def dollars_by_component(question: Question, candidate: Candidate) -> dict[str, float]:
    """Return {component: dollars} of the whole run, with the components of `_dollars_by_component`, such as "database hosts", under the
    question's calibration.
    """
    return extrapolate(question, candidate, partial(_dollars_by_component, alone=candidate.workers == 1))


def extrapolate(
    question: Question, candidate: Candidate, of: Callable[[Simulated], Mapping[str, float]]
) -> dict[str, float]:
    """Return {name: value} for figures of the candidate's whole run, extrapolated linearly from two short simulations, of `question.span`
    epochs and of twice as many, because all epochs after the first are alike; values are at least 0. `of`: takes a simulation and returns
    the figures by name. Only the first is made if the run has no more than its epochs.
    """
    epochs, span = question.base.training.epochs, question.span(candidate)
    one = of(simulate_epochs(question, candidate, span))
    if epochs == span:
        return dict(one)
    two, more = of(simulate_epochs(question, candidate, 2 * span)), epochs / span - 1
    return {name: max(0.0, one.get(name, 0.0) + more * (value - one.get(name, 0.0))) for name, value in two.items()}


def simulate_epochs(question: Question, candidate: Candidate, epochs: int) -> Simulated:
    """Return a simulation of `epochs` epochs of the candidate's run with the question's calibration, without repetitions. `epochs`: a
    multiple of `question.span`. Raises as `simulate_run` does.
    """
    task = question.task(candidate, quick=True)
    experiment = replace(task.experiment, training=replace(task.experiment.training, epochs=epochs))
    return simulate_run(
        experiment, question.calibration, workload=task.workload, price_list=question.prices, quick=task.quick
    )


COMPONENTS: Mapping[bill.LineKind, str] = {
    "functions": "functions",
    "transitions": "Step Functions",
    "objects": "object requests and storage",
    "logs": "logs and requests",
    "secrets": "secrets",
    "endpoints": "the private endpoint for secrets",
    "broker": "the broker",
    "databases": "database hosts",
    "instances": "instances",
}


def _dollars_by_component(run: Simulated, *, alone: bool) -> dict[str, float]:
    """Return {component: dollars} of a simulated run; components are the values of COMPONENTS that the bill has. The dollars of Lambda
    functions are divided into "functions that compute", "functions that wait for others" and "functions that transfer", in proportion to
    their seconds times memory; a part without any is left out. `alone`: whether there is one worker, which has nobody to wait for.
    """
    found: defaultdict[str, float] = defaultdict(float)
    for line in run.lines:
        found[COMPONENTS[line.kind]] += line.usd
    spent: defaultdict[str, float] = defaultdict(float)
    for use in run.steps.values():
        for stage, (seconds, _) in use.stages.items():
            waits = stage in WAITS and not alone
            what = "compute" if stage in ("compute", "evaluate") else "wait for others" if waits else "transfer"
            spent[f"functions that {what}"] += seconds * use.memory_mb
    whole, functions_usd = sum(spent.values()), found.pop("functions", 0.0)
    for name, gb_s in spent.items():
        if gb_s:
            found[name] += functions_usd * gb_s / whole
    return dict(found)


# --- advice -----------------------------------------------------------------------------------------------------------
# The advice: of the simulated candidates the one that keeps to the constraints, those that are named, two others, and the reason against
# each architecture.

CONSTRAINT_SHARE = 0.8  # of a wish
AS_GOOD_AS_NONE = 0.1  # interruptions of a run
MOST_TRIED = (
    8  # candidates of one architecture and platform, the cheapest first, of which the first that AWS would run is shown
)
FEW_REPETITIONS = (
    10  # of a candidate that another one beats each time; one that wins every second time is stopped by chance in 0.1 %
)
MIN_FRONT_GAIN = 0.02  # a candidate of the front that is quicker by less than this than a cheaper one is left out


@dataclass(frozen=True)
class Rejected:
    """An architecture, on one of its platforms, whose cheapest candidate is not the advice. `architecture`: both in words, such as "single,
    gpu"; `best`: its cheapest simulated candidate with the experiment's own updates, None if there is none; `reason`: what speaks most
    against it, in words.
    """

    architecture: str
    best: Finalist | None
    reason: str


class Sooner(NamedTuple):
    """A candidate that is ready much sooner than the winner for little more. `more_usd`: dollars more than the winner, a month if the model
    is trained again and again, otherwise a run; below 0 if it costs less.
    """

    finalist: Finalist
    more_usd: float


@dataclass(frozen=True)
class Advice:
    """The result of `crossover advise`. `question`, `constraints`: what was asked; `winner`: the candidate to use; `cards`: the cheapest,
    the balanced and the soonest candidate; `alternatives`: the two best others; `met`: whether the winner keeps to the constraints at the
    95th percentile; `front`: Pareto front of time and dollars, the cheapest first; `unknown`: candidates that would be on the front if
    their accuracy were known; `rejected`: the other architectures; `searched`: result of the search; `candidates`: number of all
    candidates; `excluded`: number of candidates that were not searched, by kind of reason; `on_demand`: the winner at the on-demand price,
    if it uses spot instances; `here`: estimate for this machine, if it was measured; `month_usd`, `month_runs`: dollars a month on the
    winner, all included, and number of runs a month; None unless the model is trained again and again; `stays`: whether the winner's stack
    then stays deployed between runs; `sooner`: a candidate that is much sooner for little more, if there is one.
    """

    question: Question
    constraints: Constraints
    winner: Finalist
    cards: tuple[Card, ...]
    alternatives: tuple[Finalist, ...]
    met: bool
    front: tuple[Finalist, ...]
    unknown: tuple[Finalist, ...]
    rejected: tuple[Rejected, ...]
    searched: SearchResult
    candidates: int
    excluded: Mapping[str, int]  # what kind of reason, and how many
    on_demand: Finalist | None = None
    here: ThisMachine | None = None  # outside front and winner, where a probe has measured it
    month_usd: float | None = None
    month_runs: float | None = None
    stays: bool = False
    sooner: Sooner | None = None

    @property
    def told(self) -> tuple[Finalist, ...]:
        """The candidates that are written as YAML files, each once: the winner and the cards, with their on-demand variants, then the
        alternatives.
        """
        named = [each for card in self.cards for each in (card.finalist, card.on_demand) if each]
        each = (self.winner, *([self.on_demand] if self.on_demand else []), *named, *self.alternatives)
        return tuple({one.candidate: one for one in each}.values())

    @cached_property
    def drives(self) -> Mapping[Candidate, Drivers]:
        """The drivers of time and dollars by candidate: for the winner, the alternatives, and the candidate of `shared`. Simulated at the
        first access, then kept.
        """
        told = (self.winner, *self.alternatives, *([self.shared] if self.shared else []))
        return {each.candidate: drivers_of(self.question, each.candidate) for each in told}

    @property
    def shared(self) -> Finalist | None:
        """A candidate with several workers: the winner if it has several, otherwise the cheapest shortlisted one that trains with the
        experiment's own updates; None if there is none.
        """
        if self.winner.candidate.workers > 1:
            return self.winner
        several = [f for f in self.finalists if f.candidate.workers > 1 and f.candidate.updates == OWN]
        return min(several, key=lambda each: each.usd.p50, default=None)

    def needs_quota(self, each: Finalist) -> bool:
        """Return whether the account must ask AWS for a quota before it can start the candidate."""
        return bool(question_.describe_needed_quota(each.candidate, self.constraints.gpu_quota))

    @property
    def startable(self) -> Finalist | None:
        """The best shortlisted candidate (by `choose_finalist`) that the account can start today without asking AWS for a quota; None if
        there is none. Only candidates with the experiment's own updates count.
        """
        own = [each for each in self.finalists if each.candidate.updates == OWN]
        today = [each for each in own if not self.needs_quota(each)]
        return choose_finalist(today, self.constraints) if today else None

    @property
    def banded(self) -> tuple[Finalist, ...]:
        """The candidates whose percentiles are printed: those of `told`, both fronts (`front`, `unknown`), `startable` and `shared`. A
        candidate that is in several of these is repeated. Of all others only medians are printed.
        """
        others = (each for each in (self.startable, self.shared) if each)
        return (*self.told, *self.front, *self.unknown, *others)

    @property
    def finalists(self) -> tuple[Finalist, ...]:
        """All shortlisted candidates, each once: the winner, the alternatives, both fronts, and the best of each other architecture."""
        found = (*self.front, *self.unknown, *(each.best for each in self.rejected if each.best))
        return tuple({f.candidate: f for f in (self.winner, *self.alternatives, *found)}.values())


def advise(
    question: Question,
    constraints: Constraints,
    sizes: Sizes,
    *,
    processes: int | None = None,
    repetitions: int = REPETITIONS,
) -> Advice:
    """Search all ways to train the question's experiment, and return the advice. `constraints`: deadline, budget and resources on hand; if
    no candidate keeps to them, the advice is the nearest one and `met` is False. `sizes`: sizes of the model, from which its memory needs
    follow; `processes`: number of processes, by default one per core, which does not affect the result; `repetitions`: number of
    simulations of each shortlisted candidate. Raises NoProjection if no candidate is possible.
    """
    with start_evaluators(question, processes) as working:
        return _find_advice(question, constraints, sizes, _Repeater(question, working, repetitions), working)


def _find_advice(
    question: Question, constraints: Constraints, sizes: Sizes, judges: "_Repeater", working: Executor | None
) -> Advice:
    """Search all candidates and return the advice, as `advise` does. `judges`: simulates shortlisted candidates repeatedly; `working`: pool
    of processes, None to use this process alone. Raises NoProjection if no candidate is possible.
    """
    everything = list(
        ways.list_candidates(question.base, samples=question.samples, prices=question.prices, least_mb=sizes.least_mb)
    )
    precision = question.base.training.precision
    refused = {
        each: question_.find_problem(each, sizes, constraints.on_hand, precision=precision) for each in everything
    }
    left = [each for each in everything if not refused[each][1]]
    seconds, usd = (
        (constraints.deadline_s or inf) * CONSTRAINT_SHARE,
        (constraints.budget_usd or inf) * CONSTRAINT_SHARE,
    )
    searched = search(question, left, processes=1, working=working, seconds=seconds, usd=usd)
    own = {each: figures for each, figures in searched.simulated.items() if each.updates == OWN}
    if not own:
        raise NoProjection(_explain_no_candidate(refused, searched, sizes))
    forms = sorted({form_of(each) for each in own})
    by_form = [sorted((each for each in own.items() if form_of(each[0]) == form), key=_cost_sort_key) for form in forms]
    unknown = {each: f for each, f in searched.simulated.items() if each.updates == UNKNOWN}
    second = [each for each in thin_front(best([*own.items(), *unknown.items()])) if each[0].updates == UNKNOWN]
    near = _find_cheapest_within({**own, **searched.near}, seconds, usd)
    front = thin_front(best(list(own.items())))
    shortlisted = dict([*front, *(each[0] for each in by_form), *near, *second])
    judges.repeat(list(shortlisted.items()), FEW_REPETITIONS)  # at once, so that no process waits for the last of a few

    def choose() -> Advice:
        """Return the advice that follows from the repetitions so far, still without the reasons against other architectures. Runs those
        repetitions that `judges` still lacks.
        """
        quick = judges.repeat(front)
        bests = judges.race([judges.pick_first_to_run(each) for each in by_form], quick)
        once = {f.candidate: f for f in (*quick, *bests)}.values()
        runnable = [each for each in once if each.would_run] or list(quick)
        twins = judges.race_on_demand(runnable, quick)
        runnable += [each for each in twins.values() if each.would_run and each not in runnable]
        winner = choose_finalist(runnable, constraints)
        beside = judges.race(near, quick)
        several = list({f.candidate: f for f in (*runnable, *(each for each in beside if each.would_run))}.values())
        others = judges.repeat(second)
        return Advice(
            question=question,
            constraints=constraints,
            winner=winner,
            cards=pick_cards(runnable, constraints, twins),
            alternatives=_choose_alternatives(winner, several, constraints),
            met=constraints.short_by(winner.seconds, winner.usd) <= 1,
            front=pareto_front(several),
            unknown=tuple(each for each in pareto_front([*several, *others]) if each in others),
            rejected=tuple(
                Rejected(form_of(each.candidate), each, "") for each in bests if each.candidate != winner.candidate
            ),
            searched=searched,
            candidates=len(everything),
            excluded=Counter(kind for kind, words in refused.values() if words),
            on_demand=twins.get(winner.candidate),
        )

    found = choose()
    while judges.complete(found.banded):
        found = choose()
    bests = judges.repeat([judges.pick_first_to_run(each) for each in by_form], FEW_REPETITIONS)
    return replace(found, rejected=_reject_forms(question, found.winner, bests, refused, searched))


def advice_sort_key(found: Advice) -> tuple[float, float, float]:
    """Return a sort key for advice with the same constraints, but for different settings of the experiment. The smallest key belongs to the
    best advice: the factor by which the winner misses the constraints at the 95th percentile (1 if it keeps to them), then its dollars and
    seconds, or its seconds and dollars if only a budget is given.
    """
    winner, wished = found.winner, found.constraints
    order = (winner.seconds.p50, winner.usd.p50)
    return (max(1.0, wished.short_by(winner.seconds, winner.usd)), *(order if wished.ask_for_soonest else order[::-1]))


def pareto_front(finalists: Sequence[Finalist]) -> tuple[Finalist, ...]:
    """Return the Pareto front of the shortlisted candidates, each once, the cheapest first: those that no other beats, which would have
    less of one of dollars and seconds (with start-up) and not more of the other. The medians of the repetitions are compared, both
    exactly and as they are printed.
    """
    once = {each.candidate: each for each in finalists}.values()
    found = [each for each in once if not any(_dominates(other, each) for other in once)]
    return tuple(sorted(found, key=lambda each: (each.usd.p50, each.seconds.p50, str(each.candidate))))


def _dominates(one: Finalist, other: Finalist) -> bool:
    """Return whether `one` is less than `other` in dollars or seconds, and not more in the other figure. Both the exact medians and the
    medians as they are printed are compared; it suffices if it is so of one of them.
    """
    exact = ((each.usd.p50, each.seconds.p50) for each in (one, other))
    shown = (
        (display.rounded_usd(each.usd.p50), sum(map(display.rounded_seconds, (each.running.p50, each.before_s))))
        for each in (one, other)
    )
    return any(mine != its and all(a <= b for a, b in zip(mine, its, strict=True)) for mine, its in (exact, shown))


def thin_front(front: Sequence[tuple[Candidate, Estimate]]) -> list[tuple[Candidate, Estimate]]:
    """Return the front without candidates that are less than 2 % quicker than the last cheaper one that is kept. `front`: candidates with
    their estimates, the cheapest first.
    """
    kept: list[tuple[Candidate, Estimate]] = []
    for each in front:
        if not kept or each[1].seconds < kept[-1][1].seconds * (1 - MIN_FRONT_GAIN):
            kept.append(each)
    return kept


class _Repeater:
    """An object that runs the repeated simulations of shortlisted candidates, and keeps the results, so that each candidate is simulated
    only once.
    """

    def __init__(self, question: Question, working: Executor | None, repetitions: int) -> None:
        """Draw the random conditions of `repetitions` simulations, which all candidates share. `working`: pool of processes, None to use
        this process alone.
        """
        self._question, self._working = question, working
        self._draws = list_draws(question.base.seed, repetitions)
        self._known: dict[Candidate, Finalist] = {}

    def repeat(self, found: Sequence[tuple[Candidate, Estimate]], count: int | None = None) -> tuple[Finalist, ...]:
        """Return the given candidates with the results of at least `count` repetitions (by default all) in their order, simulating those
        that are missing. `found`: candidates with their single estimates, each candidate once.
        """
        drawn = self._draws[:count]
        for begun in (0, FEW_REPETITIONS):
            new = [each for each in found if len(self._known_outcomes(each[0])) == begun < len(drawn)]
            tasks = [self._question.task(candidate) for candidate, _ in new]
            done = run_repetitions(tasks, drawn[begun:], processes=1, executor=self._working) if tasks else []
            for (candidate, figures), outcomes in zip(new, done, strict=True):
                before_s, parts = self._question.before_s(candidate), tuple(self._question.start_up(candidate))
                every = (*self._known_outcomes(candidate), *outcomes)
                self._known[candidate] = Finalist(candidate, figures, every, before_s, parts)
        return tuple(self._known[candidate] for candidate, _ in found)

    def _known_outcomes(self, candidate: Candidate) -> tuple[Outcome, ...]:
        """Return the results of the candidate's repetitions so far; () if there are none."""
        return self._known[candidate].outcomes if candidate in self._known else ()

    def race(self, found: Sequence[tuple[Candidate, Estimate]], leaders: Sequence[Finalist]) -> tuple[Finalist, ...]:
        """Return the given candidates with the results of FEW_REPETITIONS repetitions, and of all for those that one of the `leaders` does
        not beat in both seconds and dollars each time. `found`: candidates with their single estimates.
        """
        few = self.repeat(found, FEW_REPETITIONS)
        self.complete([each for each in few if not any(_always_beats(one, each) for one in leaders)])
        return self.repeat(found, FEW_REPETITIONS)

    def pick_first_to_run(self, found: Sequence[tuple[Candidate, Estimate]]) -> tuple[Candidate, Estimate]:
        """Return the first of the given candidates that AWS would run, by its repetitions so far, with its estimate; the first of all if
        there is none among MOST_TRIED. `found`: candidates with their single estimates, at least one. The cheapest candidate of a kind is
        often the one nearest to a limit of AWS.
        """
        tried = found[:MOST_TRIED]
        return next((each for each in tried if self.repeat([each], FEW_REPETITIONS)[0].would_run), found[0])

    def complete(self, finalists: Sequence[Finalist]) -> bool:
        """Simulate the missing repetitions of the candidates `finalists`, whose results `repeat` then returns without simulating; return
        whether any was missing.
        """
        missing = {each.candidate: each.figures for each in finalists if len(each.outcomes) < len(self._draws)}
        self.repeat(list(missing.items()))
        return bool(missing)

    def race_on_demand(self, finalists: Sequence[Finalist], leaders: Sequence[Finalist]) -> dict[Candidate, Finalist]:
        """Return {spot candidate: its on-demand variant} for each of the `finalists` that uses spot instances. The on-demand variants are
        simulated repeatedly, too, as by `race`. `leaders`: as for `race`.
        """
        spot = {each.candidate: each.candidate._replace(spot=False) for each in finalists if each.candidate.spot}
        found = self.race([(twin, self._estimate(twin)) for twin in spot.values()], leaders)
        return dict(zip(spot, found, strict=True))

    def _estimate(self, candidate: Candidate) -> Estimate:
        """Return the candidate's single estimate: the one kept with its repetitions if it has been repeated, otherwise simulated in this
        call.
        """
        known = self._known.get(candidate)
        return known.figures if known else self._question.simulated(candidate)[0]


def _always_beats(one: Finalist, other: Finalist) -> bool:
    """Return whether `one` takes fewer dollars and fewer seconds (with start-up) than `other` in all repetitions that both have."""
    return all(
        mine < its
        for figure in ("usd", "ready")
        for mine, its in zip(one.values_by_draw(figure), other.values_by_draw(figure), strict=False)
    )


def _cost_sort_key(each: tuple[Candidate, Estimate]) -> tuple[float, float]:
    """Return a sort key for a candidate with its estimate, by which the cheapest is the first: (dollars, seconds)."""
    return each[1].usd, each[1].seconds


def form_of(candidate: Candidate) -> str:
    """Return the candidate's architecture for people, with its platform if the architecture runs on several: `single, gpu`."""
    return f"{candidate.architecture.replace('_', '-')}{f', {candidate.on}' if candidate.on else ''}"


def _find_cheapest_within(
    own: Mapping[Candidate, Estimate], seconds: float, usd: float
) -> list[tuple[Candidate, Estimate]]:
    """Return the cheapest candidate, with its estimate, of each architecture and platform that has one within the limits `seconds` and
    `usd`. `own`: candidates with their estimates. They appear beside the advice but cannot win: the winner comes from a list that does not
    depend on the constraints, so that a larger budget never gives a worse answer.
    """
    within = [each for each in own.items() if each[1].seconds <= seconds and each[1].usd <= usd]
    return [
        min((each for each in within if form_of(each[0]) == form), key=_cost_sort_key)
        for form in sorted({form_of(candidate) for candidate, _ in within})
    ]


def _choose_alternatives(
    winner: Finalist, finalists: Sequence[Finalist], constraints: Constraints
) -> tuple[Finalist, ...]:
    """Return the two best shortlisted candidates besides the winner, fewer if there are no more: preferably of other kinds of resources,
    else of other architectures, else any.
    """
    picked = [winner]
    traits: tuple[Callable[[Finalist], object], ...] = (
        lambda each: each.kind,
        lambda each: each.candidate.architecture,
        lambda each: each.candidate,
    )
    for trait in traits:
        while len(picked) < 3:
            rest = [each for each in finalists if trait(each) not in map(trait, picked)]
            if not rest:
                break
            picked.append(choose_finalist(rest, constraints))
    return tuple(picked[1:])


# --- what weighs against the others -----------------------------------------------------------------------------------


def _reject_forms(
    question: Question,
    winner: Finalist,
    bests: Sequence[Finalist],
    refused: Mapping[Candidate, tuple[str, str]],
    searched: SearchResult,
) -> tuple[Rejected, ...]:
    """Return, sorted by name, each architecture on each of its platforms whose cheapest candidate is not the winner, with the reason
    against it. So the winner's own is among them if a cheaper candidate of it lost. `bests`: the cheapest candidate of each; `refused`:
    (kind, sentence) on why a candidate was not searched, two empty texts if it was; `searched`: result of the search.
    """
    found, against = {form_of(each.candidate): each for each in bests}, []
    its = dollars_by_component(question, winner.candidate)
    for form in sorted({form_of(each) for each in refused}):
        if form in found:
            if found[form].candidate != winner.candidate:
                against.append(Rejected(form, found[form], compare_with_winner(question, found[form], winner, its)))
            continue
        words = Counter(
            [w for c, (_, w) in refused.items() if form_of(c) == form and w]
            + [w for c, w in searched.impossible.items() if form_of(c) == form]
        )
        other = any(form_of(c) == form and c.updates == UNKNOWN for c in (*searched.simulated, *searched.bounded))
        most = words.most_common(1)[0][0] if words else "no projection"
        against.append(Rejected(form, None, "makes other updates: accuracy unknown" if other else most))
    return tuple(against)


def compare_with_winner(question: Question, finalist: Finalist, winner: Finalist, its: Mapping[str, float]) -> str:
    """Return how a candidate compares with the winner in words, such as `3.4x the dollars, 2x the time; most for database hosts (61%)`. The
    named component is the one whose dollars exceed the winner's most; its share is that of the candidate's dollars. Simulates
    the candidate anew. `its`: dollars of the winner's components.
    """
    mine = dollars_by_component(question, finalist.candidate)
    excess = {name: usd - its.get(name, 0.0) for name, usd in mine.items()}
    name = max(excess, key=lambda each: (excess[each], each))
    share = mine[name] / max(1e-12, sum(mine.values()))
    dollars, time = (times_of(winner, finalist, figure) for figure in ("usd", "ready"))
    return f"{dollars} the dollars, {time} the time; most for {name} ({share:.0%})"


def times_of(winner: Finalist, other: Finalist, figure: str) -> str:
    """Return the ratio of the other candidate's median to the winner's as text: `1.52x`, or `1.02x (too close to call)` if the simulations
    do not show which is smaller. `figure`: `usd`, `seconds` (of the run, without start-up), or `ready` (seconds with start-up).
    """
    medians = {
        "usd": lambda each: each.usd.p50,
        "seconds": lambda each: each.running.p50,
        "ready": lambda each: each.seconds.p50,
    }
    ratio = medians[figure](other) / medians[figure](winner)
    led = display.lead(pair_draws(winner, other, figure))
    return f"{display.times(ratio)}{'' if led is None or led.is_sure else f' ({display.OPEN})'}"


def _explain_no_candidate(refused: Mapping[Candidate, tuple[str, str]], searched: SearchResult, sizes: Sizes) -> str:
    """Return a sentence, without a full stop, on why no candidate is possible, with the two most frequent reasons. These are reasons of
    the search; if it has none, those against searching, each as it applies to the candidate with the smallest minibatch and the most
    memory. If memory is one of these, the sentence says how much is needed. `refused`: (kind, sentence) for each candidate that was not
    searched; `searched`: result of the search; `sizes`: sizes of the model.
    """
    reasons = [words for words, _ in Counter(searched.impossible.values()).most_common(2)]
    if not reasons:
        nearest = dict[str, Candidate]()
        kinds = Counter(kind for kind, words in refused.values() if words)
        for each, (kind, _) in refused.items():
            nearest[kind] = min(nearest.get(kind, each), each, key=lambda one: (one.batch_size, -one.memory_mb))
        reasons = [refused[nearest[kind]][1] for kind, _ in kinds.most_common(2)]
    lacking = any(kind == "memory" for kind, _ in refused.values())
    wanted = (
        f". {describe_needed_memory(sizes, min(each.batch_size for each in refused))}"
        if lacking and not searched.impossible
        else ""
    )
    return f"none of {len(refused):,} ways to train it is possible: {'; '.join(reasons) or 'the workers cannot share the data'}{wanted}"


def describe_needed_memory(sizes: Sizes, batch_size: int) -> str:
    """Return a sentence on how much memory the model needs for minibatches of `batch_size` samples, and on the smallest machines, one with
    and one without a GPU, that have enough; or on the largest, if none has. `sizes`: sizes of the model.
    """
    needed, needed_on_gpu = (sizes.step_mb(batch_size, vectors=vectors) for vectors in (HELD_VECTORS, GPU_VECTORS))
    known = load_instances()
    machines = {
        "without a GPU": {
            name: 1_024 * each.memory_gb for name, each in known.items() if each.memory_gb and not each.gpu_gb
        },
        "with one": {name: 1_024 * each.gpu_gb for name, each in known.items() if each.gpu_gb},
    }
    found = []
    for kind, given in machines.items():
        least = needed_on_gpu if kind == "with one" else needed
        enough = [(mb, known[name].vcpus, name) for name, mb in given.items() if mb >= least]
        mb, _, name = min(enough) if enough else max((mb, 0, name) for name, mb in given.items())
        found.append(f"{kind} {name} ({mb:,.0f} MB) {'would do' if enough else 'has most, and too little'}")
    return f"With minibatches of {batch_size:,} it needs {needed:,.0f} MB: {', '.join(found)}"


# --- in one sentence --------------------------------------------------------------------------------------------------


def headline(found: Advice) -> str:
    """Return the advice in one line, without a full stop: where to train, for how many dollars, and when the model is ready; or that no
    candidate keeps to deadline and budget, and which is nearest.

    The line says to train on this machine, and names the winner on AWS as the other choice, if `is_this_machine_best`: a candidate keeps to
    the constraints, this machine was measured, and it is ready no later than the winner; or, unless just a budget is given, it takes at
    most NEARLY_AS_SOON times as long and its 95th percentile keeps to the deadline.
    """
    winner, here = found.winner, found.here
    on_aws = f"{winner.candidate.words}: {_describe_roughly(winner, found)}"
    if not found.met:
        return f"No candidate keeps to deadline and budget in 19 of 20 repetitions; the nearest is {on_aws}"
    if here is None or not is_this_machine_best(found):
        return f"Train it on {on_aws}"
    free = "" if found.month_usd is None else ", $0 a month (its own price is not counted)"
    ready = _describe_ready(here.band, here.before_s, "starting the command, reading the data and the report")
    return f"Train it on this machine: {ready}{free}; AWS would cost more than it saves. If it must be AWS: {on_aws}"


def _describe_ready(seconds: Band, before_s: float, what: str) -> str:
    """Return in words when the model is ready, with the percentiles, and how much of the median is `before_s`, named `what`, if it is not
    0. The 5th percentile may be below `before_s`, because its start-up is shorter too.
    """
    low, middle, high = map(display.rough_seconds, seconds)
    part = f"; {display.rough_seconds(before_s)} of the {middle} for {what}" if before_s else ""
    return f"ready in {middle} ({low} to {high}{part})"


def is_this_machine_best(found: Advice) -> bool:
    """Return whether the advice is to train on this machine: it was measured, and either is ready before the winner on AWS, which keeps to
    the deadline and the budget, or takes at most NEARLY_AS_SOON times as long, for nothing. The second counts only if it keeps to the
    deadline even if this machine is busy, and not if just a budget is given, which asks for the soonest way.
    """
    here, wished, ready_s = found.here, found.constraints, found.winner.seconds.p50
    if not found.met or here is None:
        return False
    if wished.ask_for_soonest:
        return here.seconds <= ready_s
    in_time = here.band.p95 <= (wished.deadline_s or inf)
    return here.seconds <= ready_s or (in_time and here.seconds <= NEARLY_AS_SOON * ready_s)


def _describe_roughly(winner: Finalist, found: Advice) -> str:
    """Return the winner's dollars, its time with start-up and their percentiles, and its expected spot interruptions in words, rounded to
    two significant digits. If the model is trained again and again, the dollars of a run are a month's, divided by its number of runs.
    """
    often = f"; expect {_interruption_text(winner)} interruptions" if winner.candidate.spot else ""
    dollars = f"about {display.rough_usd(winner.usd.p50)}"
    if found.month_usd is not None and found.month_runs is not None:
        a_run = display.rough_usd(found.month_usd / found.month_runs)
        dollars = f"about {a_run} a run with start-up and network, about {display.rough_usd(found.month_usd)} a month"
    return f"{dollars}, {_describe_ready(winner.seconds, winner.before_s, 'start-up')}{often}"


def _interruption_text(winner: Finalist) -> str:
    """Return the expected number of spot interruptions of the winner's run as text with one decimal, such as `0.3`, or `under 0.1` if it is
    less than that. Whether the winner is a spot machine is not checked.
    """
    return f"{winner.interruptions:.1f}" if winner.interruptions >= AS_GOOD_AS_NONE else f"under {AS_GOOD_AS_NONE}"


NEARLY_AS_SOON = 2.0  # times the winner's time: who waits no longer than that saves the dollars and the deployment


def verdict(found: Advice) -> list[str]:
    """Return the advice as lines: the headline, at most four alternatives with what speaks against each, and exact figures
    with caveats.
    """
    return [f"{headline(found)}.", *alternatives(found), figures_and_caveats(found)]


def alternatives(found: Advice) -> list[str]:
    """Return a line for each alternative to the winner, at most four: its dollars and time compared with the winner's,
    whether it misses the deadline or the budget, and for how few epochs it would be cheaper, if so. One that is much sooner for little more
    comes first, then the winner's on-demand variant, if it uses spot instances, then the best of each other kind of machine.
    """
    winner, lines = found.winner, _describe_sooner(found)

    others = [("The same on demand", found.on_demand)] if found.on_demand else []
    others += [(f"{KINDS[rival.kind]} ({rival.candidate.words})", rival) for rival in rivals_of(found)]
    for name, rival in others:
        if found.sooner is not None and rival.candidate == found.sooner.finalist.candidate:
            continue
        dollars, time = (times_of(winner, rival, figure) for figure in ("usd", "ready"))
        text = (
            f"{name}: about {display.rough_usd(rival.usd.p50)}, ready in {display.rough_seconds(rival.seconds.p50)}: "
        )
        text += (
            _format_comparison(dollars, "dollars")
            if rival is found.on_demand
            else f"{_format_comparison(dollars, 'dollars')}, {_format_comparison(time, 'time')}"
        )
        if found.met and list_missed_constraints(found, rival):
            text += ", more than was asked for"
        if found.needs_quota(rival) and not found.needs_quota(winner):
            text += "; the account must ask AWS for a quota first"
        turn = turning_point(found.question, winner.candidate, rival.candidate)
        if turn is not None and turn >= 2 and display.OPEN not in dollars and winner.usd.p50 < rival.usd.p50:
            text += f"; for fewer than {turn:.1f} epochs it would be cheaper"
        lines.append(" ".join((f"{text}.", *time_limit_words(found, rival))))
    return lines


def _describe_sooner(found: Advice) -> list[str]:
    """Return a line, in a list, on the candidate that is much sooner than the winner for little more; an empty list if there is none."""
    if found.sooner is None:
        return []
    each, usd = found.sooner
    money = f"{display.rough_usd(abs(usd))} {'more' if usd > 0 else 'less'} a {'run' if found.month_usd is None else 'month'}"
    ready = f"ready in {display.rough_seconds(each.seconds.p50)}, not {display.rough_seconds(found.winner.seconds.p50)}"
    return [
        " ".join((f"For {money} the model would be {ready}: {each.candidate.words}.", *time_limit_words(found, each)))
    ]


def _format_comparison(times: str, figure: str) -> str:
    """Return a comparison in words, such as `2.8x the dollars`, or `dollars too close to call`. `times`: result of `times_of`; `figure`:
    `dollars` or `time`.
    """
    return f"{figure} {display.OPEN}" if display.OPEN in times else f"{times} the {figure}"


def figures_and_caveats(found: Advice) -> str:
    """Return a text with the winner's exact figures and percentiles, the deadline or budget that it would need if it misses the given one,
    and caveats: assumed speeds, spot instances, waits for a free GPU.
    """
    winner = found.winner
    text = f"In figures: {winner.words}."
    if not found.met:
        text += f" It would take {' and '.join(list_missed_constraints(found, winner).values())}."
    return text + "".join(
        f" {each}"
        for each in (
            *time_limit_words(found, winner),
            *cautions(winner.candidate, found.question.calibration),
            *spot_words(winner),
            *gpu_wait_words(found),
        )
    )


def list_missed_constraints(found: Advice, each: Finalist) -> dict[str, str]:
    """Return what the candidate misses at the 95th percentile, `the deadline` and `the budget`, each with what it would need in words; {}
    if it keeps to both.
    """
    wished, missed = found.constraints, dict[str, str]()
    if wished.deadline_s is not None and each.seconds.p95 > wished.deadline_s:
        missed["the deadline"] = f"a deadline of {display.seconds(each.seconds.p95)}"
    if wished.budget_usd is not None and each.usd.p95 > wished.budget_usd:
        missed["the budget"] = f"a budget of {display.usd(each.usd.p95)}"
    return missed


def quota_line(found: Advice) -> str:
    """Return sentences on the AWS quota that the account must ask for before it can start the winner, on the best candidate that it can
    start today, and on what the quota would change, if there is one; "" if it can start the winner.
    """
    quota, word = question_.find_needed_quota(found.winner.candidate, found.constraints.gpu_quota)
    if not word:
        return ""
    if (today := found.startable) is None:
        return f"Not today: {word}."
    missed = list_missed_constraints(found, today)
    held = f", which misses {' and '.join(missed)}" if missed else ""
    answer = f"{today.candidate.words}: {today.words}{held}."
    gain = f"With {quota} (crossover doctor names it) it {_describe_gain(found.winner, today)}."
    has = f"{question_.NEW_ACCOUNT_VCPUS} vCPUs, functions of at most {question_.NEW_ACCOUNT_MB:,} MB"
    return (
        "Until AWS grants the quota that the first line needs, hours to days after you ask, the best that a new account "
        f"({has}) may start is {answer} {gain}"
    )


def _describe_gain(winner: Finalist, today: Finalist) -> str:
    """Return in words how much sooner or later the winner is ready than the candidate `today`, and how much less or more it costs, such as
    `is ready 12 minutes sooner and costs 40 cents more`; or that the simulations leave it open.
    """
    later_s, dearer_usd = winner.seconds.p50 - today.seconds.p50, winner.usd.p50 - today.usd.p50
    time = f"is ready {display.rough_seconds(abs(later_s))} {'later' if later_s > 0 else 'sooner'}"
    dollars = f"costs {display.rough_usd(abs(dearer_usd))} {'more' if dearer_usd > 0 else 'less'}"
    if display.OPEN in times_of(winner, today, "ready"):
        time = "is ready at about the same time"
    if display.OPEN in times_of(winner, today, "usd"):
        dollars = "costs about the same"
    return f"{time} and {dollars}"


def describe_drivers(found: Advice) -> str:
    """Return a sentence on what the winner's time and dollars are spent on."""
    return f"What drives it: {found.drives[found.winner.candidate].words}."


def describe_sharing(found: Advice) -> list[str]:
    """Return a sentence, in a list, on what several workers exchange, and on what training with several would cost if the winner has one;
    an empty list if no shortlisted candidate has several.
    """
    winner, shared = found.winner, found.shared
    if shared is None:
        return []
    exchanged = found.drives[shared.candidate].exchanged
    if shared is winner:
        return [f"Between its {winner.candidate.workers} workers {exchanged}."]
    dollars, time = (times_of(winner, shared, figure) for figure in ("usd", "ready"))
    return [
        f"The cheapest way with several workers ({shared.candidate.words}): {_format_comparison(dollars, 'dollars')}, "
        f"{_format_comparison(time, 'time')}; {exchanged}."
    ]


def cautions(candidate: Candidate, cloud: Calibration) -> list[str]:
    """Return sentences on speeds behind the candidate's figures that are assumed or were measured elsewhere: of many threads, and of the
    GPU; an empty list if there are none. `cloud`: the calibration with these speeds.
    """
    found = []
    if candidate.instance and not candidate.gpu and candidate.threads > MEASURED_THREADS:
        found.append(f"What {candidate.threads} threads share of a step is assumed: {MEASURED_THREADS} were measured.")
    if candidate.gpu and (own := cloud.gpu_measured) is not None and own.card == card_of(candidate.instance).name:
        found.append(f"The GPU's speed was measured on {own.device} ({own.source}).")
    elif candidate.gpu:
        found.append(
            f"The GPU's speed is projected from steps that others measured ({card_of(candidate.instance).basis})."
        )
    return found


WAITED_S = (28 * 60.0, 58 * 60.0)  # the least and the most that a job waited for a GPU: only three were measured


def gpu_wait_words(found: Advice) -> list[str]:
    """Return a sentence, in a list, on how long a wait for a free GPU may take, whether it would break the deadline, and on what to use
    instead; an empty list if the winner uses no GPU.
    """
    if not found.winner.candidate.gpu:
        return []
    least, most = (f"{seconds / 60:.0f}" for seconds in WAITED_S)
    waited = f"the only three jobs measured waited {least} to {most} minutes"
    others = [each for each in found.alternatives if not each.candidate.gpu]
    functions = ", and functions wait for no GPU" if any(each.kind == "lambda" for each in others) else ""
    left_s = (found.constraints.deadline_s or inf) - found.winner.seconds.p95
    if not 0 <= left_s < WAITED_S[1]:
        instead = f"; if none is free, the next best is {others[0].candidate.words}" if others else ""
        return [f"Waiting for a free GPU may take longer: {waited}{instead}{functions}."]
    instead = ""
    if others:
        also = ", but misses the deadline too" if list_missed_constraints(found, others[0]).get("the deadline") else ""
        instead = f"; {others[0].candidate.words} needs none{also}"
    missed = "is" if left_s < WAITED_S[0] else "may be"
    return [f"If a GPU must be waited for, the deadline {missed} missed: {waited}{instead}{functions}."]


def time_limit_words(found: Advice, each: Finalist) -> list[str]:
    """Return a sentence, in a list, on how the candidate's functions train longer than one may run; an empty list if they do not."""
    limit_s = found.question.base.functions.timeout_s
    if not each.candidate.has_long_functions or each.running.p95 <= limit_s:
        return []
    return [f"A function ends after {display.rough_seconds(limit_s)}, and the next one continues from its checkpoint."]


def spot_words(winner: Finalist) -> list[str]:
    """Return a sentence, in a list, on the interruptions and prices of spot instances; an empty list if the winner uses none."""
    if not winner.candidate.spot:
        return []
    rates = [each.lost_per_hour for each in load_spot_markets()]
    return [
        f"Spot prices vary, and spot instances are taken away ({min(rates):g} to {max(rates):g} times an hour were observed); the time "
        "includes waiting for another."
    ]


KINDS = {"lambda": "Serverless", "gpu": "A GPU", "ec2": "EC2 without a GPU"}


def rivals_of(found: Advice) -> list[Finalist]:
    """Return the best alternative of each kind of resource (functions, instances without GPU, GPUs) other than that of the winner, the best
    first; at most two.
    """
    kinds = {each.kind: each for each in reversed(found.alternatives) if each.kind != found.winner.kind}
    return list(kinds.values())[::-1]


def turning_point(question: Question, winner: Candidate, rival: Candidate) -> float | None:
    """Return the number of epochs, a fraction too, below which `rival` is cheaper than `winner`, None if there is no such number. Both
    costs are taken as linear in epochs, from two short simulations each.
    """

    lines = []
    for candidate in (winner, rival):
        span = question.span(candidate)
        one, three = (simulate_epochs(question, candidate, times * span).usd for times in (1, 3))
        lines.append((one - (three - one) / 2, (three - one) / 2 / span))
    (fixed, each), (fixed_, each_) = lines
    if fixed_ >= fixed or each_ <= each:
        return None
    return (fixed - fixed_) / (each_ - each)
