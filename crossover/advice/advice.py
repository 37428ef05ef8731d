"""The advice: of the simulated candidates the one that holds the wishes, those that are named, two others, and what speaks against each
architecture.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from crossover.advice import candidates as ways
from crossover.advice import drivers, needs
from crossover.advice.candidates import OWN, UNKNOWN, Candidate
from crossover.advice.drivers import Drivers, parts, run_of
from crossover.advice.evaluation import Estimate, Question, best
from crossover.advice.finalists import Card, Finalist, ThisMachine, cards, chosen
from crossover.advice.needs import Sizes
from crossover.advice.search import Searched, on_cores, search
from crossover.advice.wishes import Wishes
from crossover.errors import NoProjection
from crossover.reports import bands, display
from crossover.simulation.repetitions import REPETITIONS, draws, repeated

ROOM = 0.8  # of a wish
THIN = 0.02  # a candidate of the front that is quicker by less than this than a cheaper one is left out


@dataclass(frozen=True)
class Rejected:
    """An architecture, in one of its forms, that is not the answer: its cheapest candidate, if it has one; what weighs most against it."""

    architecture: str
    best: Finalist | None
    reason: str


@dataclass(frozen=True)
class Advice:
    """`front` and `unknown`: Pareto fronts of time against dollars, the cheapest first; `met`: whether the wishes hold at p95; `on_demand`:
    of the winner on spot instances the same at the price that AWS holds.
    """

    question: Question
    wishes: Wishes
    winner: Finalist
    cards: tuple[Card, ...]
    alternatives: tuple[Finalist, ...]
    met: bool
    front: tuple[Finalist, ...]
    unknown: tuple[Finalist, ...]
    rejected: tuple[Rejected, ...]
    searched: Searched
    candidates: int
    excluded: Mapping[str, int]  # what kind of reason, and how many
    on_demand: Finalist | None = None
    here: ThisMachine | None = None  # outside front and winner, where a probe has measured it

    @property
    def told(self) -> tuple[Finalist, ...]:
        """Those that become files, each once: the winner, the named ones with what spot is on demand, and the alternatives."""
        named = [each for card in self.cards for each in (card.finalist, card.on_demand) if each]
        each = (self.winner, *([self.on_demand] if self.on_demand else []), *named, *self.alternatives)
        return tuple({one.candidate: one for one in each}.values())

    @cached_property
    def drives(self) -> Mapping[Candidate, Drivers]:
        """Of what the time and the dollars consist: the winner's, the alternatives', and those of whoever shares the work."""
        told = (self.winner, *self.alternatives, *([self.shared] if self.shared else []))
        return {each.candidate: drivers.of(self.question, each.candidate) for each in told}

    @property
    def shared(self) -> Finalist | None:
        """The winner, or the cheapest that is several workers; None where nobody else makes the experiment's own updates."""
        if self.winner.candidate.workers > 1:
            return self.winner
        several = [f for f in self.finalists if f.candidate.workers > 1 and f.candidate.updates == OWN]
        return min(several, key=lambda each: each.usd.p50, default=None)

    @property
    def finalists(self) -> tuple[Finalist, ...]:
        """Each once: winner, alternatives, the fronts, the best of each architecture."""
        found = (*self.front, *self.unknown, *(each.best for each in self.rejected if each.best))
        return tuple({f.candidate: f for f in (self.winner, *self.alternatives, *found)}.values())


def advise(
    question: Question, wishes: Wishes, sizes: Sizes, *, processes: int | None = None, repetitions: int = REPETITIONS
) -> Advice:
    """The same question, wishes and sizes give the same advice. Raises NoProjection where no candidate can be."""
    with on_cores(question, processes) as working:
        return _advised(question, wishes, sizes, _Judge(question, working, repetitions), working)


def _advised(question: Question, wishes: Wishes, sizes: Sizes, judges: "_Judge", working: Executor | None) -> Advice:
    everything = list(ways.of(question.base, samples=question.samples, prices=question.prices, least_mb=sizes.least_mb))
    refused = {each: needs.problem(each, sizes, wishes.on_hand) for each in everything}
    left = [each for each in everything if not refused[each][1]]
    seconds, usd = (wishes.deadline_s or inf) * ROOM, (wishes.budget_usd or inf) * ROOM
    searched = search(question, left, processes=1, working=working, seconds=seconds, usd=usd)
    own = {each: figures for each, figures in searched.simulated.items() if each.updates == OWN}
    if not own:
        raise NoProjection(_none(refused, searched))
    front = judges.of(thinned(best(list(own.items()))))
    forms = sorted({form_of(each) for each in own})
    bests = judges.of(
        [min((each for each in own.items() if form_of(each[0]) == form), key=_cheapest) for form in forms]
    )
    runnable = [each for each in {f.candidate: f for f in (*front, *bests)}.values() if each.would_run] or list(front)
    winner = chosen(runnable, wishes)
    twins = judges.on_demand((winner, *(card.finalist for card in cards(runnable, wishes, {}))))
    near = [each for each in judges.of(_near({**own, **searched.near}, seconds, usd)) if each.would_run]
    unknown = {each: f for each, f in searched.simulated.items() if each.updates == UNKNOWN}
    second = [each for each in thinned(best([*own.items(), *unknown.items()])) if each[0].updates == UNKNOWN]
    rejected = _rejected(question, winner, bests, refused, searched)
    return Advice(
        question=question,
        wishes=wishes,
        winner=winner,
        cards=cards(runnable, wishes, twins),
        alternatives=_alternatives(winner, list({f.candidate: f for f in (*runnable, *near)}.values()), wishes),
        met=wishes.short_by(winner.seconds, winner.usd) <= 1,
        front=front,
        unknown=judges.of(second),
        rejected=rejected,
        searched=searched,
        candidates=len(everything),
        excluded=Counter(kind for kind, words in refused.values() if words),
        on_demand=twins.get(winner.candidate),
    )


def standing(found: Advice) -> tuple[float, float, float]:
    """Of several answers to the same wishes the smallest is the best."""
    short, wished = found.wishes.short_by(found.winner.seconds, found.winner.usd), found.wishes
    quick = wished.budget_usd is not None and wished.deadline_s is None
    order = (found.winner.seconds.p50, found.winner.usd.p50)
    return (0.0, *(order if quick else order[::-1])) if short <= 1 else (short, *order)


def thinned(front: Sequence[tuple[Candidate, Estimate]]) -> list[tuple[Candidate, Estimate]]:
    """Without those that are hardly quicker than a cheaper one."""
    kept: list[tuple[Candidate, Estimate]] = []
    for each in front:
        if not kept or each[1].seconds < kept[-1][1].seconds * (1 - THIN):
            kept.append(each)
    return kept


class _Judge:
    """Repetitions of candidates, each made once."""

    def __init__(self, question: Question, working: Executor | None, repetitions: int) -> None:
        self._question, self._working = question, working
        self._draws = draws(question.base.seed, repetitions)
        self._known: dict[Candidate, Finalist] = {}

    def of(self, found: Sequence[tuple[Candidate, Estimate]]) -> tuple[Finalist, ...]:
        new = [(candidate, figures) for candidate, figures in found if candidate not in self._known]
        tasks = [self._question.task(candidate) for candidate, _ in new]
        done = repeated(tasks, self._draws, processes=1, working=self._working) if tasks else []
        for (candidate, figures), outcomes in zip(new, done, strict=True):
            before_s = self._question.before_s(candidate)
            self._known[candidate] = Finalist(candidate, figures, outcomes, before_s)
        return tuple(self._known[candidate] for candidate, _ in found)

    def on_demand(self, finalists: Sequence[Finalist]) -> dict[Candidate, Finalist]:
        """Of each on spot instances the same ones on demand."""
        spot = {each.candidate: replace(each.candidate, spot=False) for each in finalists if each.candidate.spot}
        found = self.of([(twin, self._question.simulated(twin)[0]) for twin in spot.values()])
        return dict(zip(spot, found, strict=True))


def _cheapest(each: tuple[Candidate, Estimate]) -> tuple[float, float]:
    return each[1].usd, each[1].seconds


def form_of(candidate: Candidate) -> str:
    """Its architecture as people write it, and what that is on where it has a choice."""
    return f"{candidate.architecture.replace('_', '-')}{f', {candidate.on}' if candidate.on else ''}"


def _near(own: Mapping[Candidate, Estimate], seconds: float, usd: float) -> list[tuple[Candidate, Estimate]]:
    """Of each form the cheapest that keeps to the wishes, `seconds` and `usd`, with some room for bad luck. Others are compared with these;
    the advice itself is one of a list that wishes do not change, so that a larger one never gets less.
    """
    within = [each for each in own.items() if each[1].seconds <= seconds and each[1].usd <= usd]
    return [
        min((each for each in within if form_of(each[0]) == form), key=_cheapest)
        for form in sorted({form_of(candidate) for candidate, _ in within})
    ]


def _alternatives(winner: Finalist, finalists: Sequence[Finalist], wishes: Wishes) -> tuple[Finalist, ...]:
    """The best elsewhere: of other kinds of machines first, then of other architectures."""
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
            picked.append(chosen(rest, wishes))
    return tuple(picked[1:])


# --- what weighs against the others -----------------------------------------------------------------------------------


def _rejected(
    question: Question,
    winner: Finalist,
    bests: Sequence[Finalist],
    refused: Mapping[Candidate, tuple[str, str]],
    searched: Searched,
) -> tuple[Rejected, ...]:
    found = {form_of(each.candidate): each for each in bests}
    against = []
    for form in sorted({form_of(each) for each in refused}):
        if form in found:
            if found[form].candidate != winner.candidate:
                against.append(Rejected(form, found[form], against_it(question, found[form], winner)))
            continue
        words = Counter(
            [w for c, (_, w) in refused.items() if form_of(c) == form and w]
            + [w for c, w in searched.impossible.items() if form_of(c) == form]
        )
        other = any(form_of(c) == form and c.updates == UNKNOWN for c in (*searched.simulated, *searched.bounded))
        most = words.most_common(1)[0][0] if words else "no projection"
        against.append(Rejected(form, None, "makes other updates: accuracy unknown" if other else most))
    return tuple(against)


def against_it(question: Question, finalist: Finalist, winner: Finalist) -> str:
    """Which part of its dollars is most above the winner's, in words."""
    mine, its = parts(question, finalist.candidate), parts(question, winner.candidate)
    excess = {name: usd - its.get(name, 0.0) for name, usd in mine.items()}
    name = max(excess, key=lambda each: (excess[each], each))
    share = mine[name] / max(1e-12, sum(mine.values()))
    dollars, time = (times_of(winner, finalist, figure) for figure in ("usd", "seconds"))
    return f"{dollars} the dollars, {time} the time; most for {name} ({share:.0%})"


def times_of(winner: Finalist, other: Finalist, figure: str) -> str:
    """`1.52x`, `1.02x (too close to call)`: how many times the winner's, in the middle, start-up apart; and whether paired draws tell."""
    ratio = other.running.p50 / winner.running.p50 if figure == "seconds" else other.usd.p50 / winner.usd.p50
    led = bands.lead({"": winner.by_draw(figure), "other": other.by_draw(figure)})
    return f"{display.times(ratio)}{'' if led is None or led.is_sure else f' ({bands.OPEN})'}"


def _none(refused: Mapping[Candidate, tuple[str, str]], searched: Searched) -> str:
    """Why nothing is left, the most frequent reasons first: of those that came furthest; of the others, of whatever lacked least."""
    reasons = [words for words, _ in Counter(searched.impossible.values()).most_common(2)]
    if not reasons:
        nearest = dict[str, Candidate]()
        kinds = Counter(kind for kind, words in refused.values() if words)
        for each, (kind, _) in refused.items():
            nearest[kind] = min(nearest.get(kind, each), each, key=lambda one: (one.batch_size, -one.memory_mb))
        reasons = [refused[nearest[kind]][1] for kind, _ in kinds.most_common(2)]
    return (
        f"none of {len(refused):,} ways to train it can be: {'; '.join(reasons) or 'the workers cannot share the data'}"
    )


# --- in one sentence --------------------------------------------------------------------------------------------------


def sentence(found: Advice) -> str:
    """The advice, by how much other kinds of machines are dearer, and what to know before it is followed."""
    winner = found.winner
    begins = "Train it on" if found.met else "Nothing holds that at p95; nearest is"
    text = f"{begins} {winner.candidate.words}: {winner.words}."
    if not found.met:
        needs = []
        if found.wishes.deadline_s is not None and winner.seconds.p95 > found.wishes.deadline_s:
            needs.append(f"a deadline of {display.seconds(winner.seconds.p95)}")
        if found.wishes.budget_usd is not None and winner.usd.p95 > found.wishes.budget_usd:
            needs.append(f"a budget of {display.usd(winner.usd.p95)}")
        text += f" It would take {' and '.join(needs)}."
    if found.on_demand:
        text += f" On demand: {display.band(display.usd, *found.on_demand.usd)}"
        text += ", more than was wished." if found.met and not _holds(found, found.on_demand) else "."
    for rival in rivals_of(found):
        dollars, time = (times_of(winner, rival, figure) for figure in ("usd", "seconds"))
        text += f" {KINDS[rival.kind]} costs {dollars} and takes {time}: {rival.candidate.words}"
        if found.met and not _holds(found, rival):
            text += ", more than was wished"
        turn = turning_point(found.question, winner.candidate, rival.candidate)
        if turn is not None and turn >= 2 and bands.OPEN not in dollars and winner.usd.p50 < rival.usd.p50:
            text += f"; for fewer than {turn:.1f} epochs it would be the cheaper one"
        text += "."
    return text + "".join(f" {each}" for each in cautions(winner.candidate))


def _holds(found: Advice, each: Finalist) -> bool:
    return found.wishes.short_by(each.seconds, each.usd) <= 1


def line(found: Advice) -> str:
    """What drives the answer, and what sharing the work out would."""
    winner, shared = found.winner, found.shared
    text = f"What drives it: {found.drives[winner.candidate].words}."
    if shared is None:
        return text
    exchanged = found.drives[shared.candidate].exchanged
    if shared is winner:
        return f"{text} Between its {winner.candidate.workers} workers {exchanged}."
    dollars, time = (times_of(winner, shared, figure) for figure in ("usd", "seconds"))
    return (
        f"{text} Shared out, at its cheapest ({shared.candidate.words}), it takes {time} the time and costs "
        f"{dollars} the dollars: {exchanged}."
    )


def cautions(candidate: Candidate) -> list[str]:
    """What whoever decides for it must know beside time and dollars."""
    found = []
    if candidate.gpu:
        found.append("How quick the GPU is, is assumed, not measured.")
        found.append(f"A new account may start no {candidate.instance}: ask for a quota first.")
    if candidate.spot:
        found.append("Spot instances may be taken away, and the market sets their price.")
    return found


KINDS = {"lambda": "Serverless", "gpu": "A GPU", "ec2": "EC2 without a GPU"}


def rivals_of(found: Advice) -> list[Finalist]:
    """The best of each other kind: functions, instances, GPUs."""
    kinds = {each.kind: each for each in reversed(found.alternatives) if each.kind != found.winner.kind}
    return list(kinds.values())[::-1]


def turning_point(question: Question, winner: Candidate, rival: Candidate) -> float | None:
    """Below how many epochs the rival is cheaper; None where it never is. Dollars are taken for linear in epochs."""

    lines = []
    for candidate in (winner, rival):
        span = question.span(candidate)
        one, three = (run_of(question, candidate, times * span).usd for times in (1, 3))
        lines.append((one - (three - one) / 2, (three - one) / 2 / span))
    (fixed, each), (fixed_, each_) = lines
    if fixed_ >= fixed or each_ <= each:
        return None
    return (fixed - fixed_) / (each_ - each)
