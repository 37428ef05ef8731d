"""Why: tables of candidates, assumptions, sensitivity, and first estimates."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from crossover import runtime
from crossover.advice import candidates
from crossover.advice import question as needs
from crossover.advice.advice import Advice, describe_sharing, extrapolate, list_missed_constraints, simulate_epochs
from crossover.advice.candidates import Candidate
from crossover.advice.evaluation import Estimate, Question
from crossover.advice.question import NEW_ACCOUNT_MB, Constraints, Sizes, describe_needed_quota
from crossover.advice.search import RULES, Finalist, ThisMachine, choose_finalist
from crossover.errors import NoProjection
from crossover.experiment import Experiment
from crossover.learning import sizes as data_sizes
from crossover.reports import display, prices
from crossover.reports.display import Band
from crossover.reports.prices import Prices
from crossover.simulation import calibration, start_up
from crossover.simulation.calibration import AWS, AnswerOf, Calibration
from crossover.simulation.repetitions import LEVELS, LIMITS, Draw, apply_session, simulate_draw
from crossover.simulation.workload import Workload

if TYPE_CHECKING:
    from crossover.advice.own_speed import Probe

# --- tables -----------------------------------------------------------------------------------------------------------

FRONT_HEAD = ["how", "update after", "ready in", "p5 to p95", "of it start-up", "dollars", "p5 to p95", "minibatch"]
FRONT_WORDS = 2  # leading columns of words
REJECTED_HEAD = ["architecture", "at its cheapest", "ready in", "dollars", "main drawback"]


def front_rows(found: Sequence[Finalist]) -> list[list[str]]:
    """Return one table row for each of the shortlisted candidates, in the given order, with the columns of FRONT_HEAD: candidate in words,
    when the model is updated, median and range (p5 to p95) of the time with start-up, its part that is start-up, median and range of the
    dollars, and size of the minibatch. All cells are texts.
    """
    return [
        [
            each.candidate.words,
            describe_update(each),
            display.seconds(each.seconds.p50),
            f"{display.seconds(each.seconds.p5)} to {display.seconds(each.seconds.p95)}",
            display.seconds(each.before_s),
            display.usd(each.usd.p50),
            f"{display.usd(each.usd.p5)} to {display.usd(each.usd.p95)}",
            f"{each.candidate.batch_size:,}",
        ]
        for each in found
    ]


CARDS_HEAD = ["", "how", "ready in", "dollars", "p5 to p95", "file"]


def card_rows(found: Advice, files: Sequence[Path] = ()) -> list[list[str]]:
    """Return a table row for each card (cheapest, balanced, soonest), one for its on-demand variant if it uses spot instances, and one for
    this machine if it was measured, with the columns of CARDS_HEAD. Time and dollars are medians. `files`: YAML files of the candidates
    `found.told`, in their order; empty if none was written, and the last cell is then a dash.
    """
    rows = []
    for card in found.cards:
        for name, each in ((", ".join(card.names), card.finalist), ("the same on demand", card.on_demand)):
            if each is not None:
                rows.append(card_row(name, each, found, files))
    if found.here:
        process = f"one process of {found.here.threads} threads" if found.here.threads > 1 else "one process"
        time = display.seconds(found.here.seconds)
        rows.append(["this machine", process, time, display.usd(0.0), display.DASH, display.DASH])
    return rows


def card_row(name: str, each: Finalist, found: Advice, files: Sequence[Path]) -> list[str]:
    """Return a table row of one candidate with the columns of CARDS_HEAD, the last of them the path of its YAML file, a dash if it has
    none. `name`: first cell, such as cheapest; `files`: as for `card_rows`.
    """
    how, _, time, _, _, usd, usd_band, _ = front_rows([each])[0]
    told = [one.candidate for one in found.told]
    file = str(files[told.index(each.candidate)]) if files and each.candidate in told else display.DASH
    return [name, how, time, usd, usd_band, file]


def describe_update(each: Finalist) -> str:
    """Return in words after how many minibatches the model is updated, such as `2 minibatches per worker`, or after how many the workers'
    models are averaged (local SGD), or their changes (DiLoCo's outer step).
    """
    every = each.candidate.every
    count = "an epoch" if every == "epoch" else f"{every} minibatch{'es' if every > 1 else ''}"
    what = {"model": ", by averaging models", "delta": ", by an outer step (DiLoCo)"}.get(each.candidate.what, "")
    return f"{count}{' per worker' if each.candidate.workers > 1 and every != 'epoch' else ''}{what}"


def rejected_rows(found: Advice) -> list[list[str]]:
    """Return one table row for each of `found.rejected`, in its order, with the columns of REJECTED_HEAD: the architecture, its cheapest
    candidate with the medians of time and dollars (dashes if it has none), and the reason against it. All cells are texts.
    """
    return [
        [
            each.architecture,
            each.best.candidate.words if each.best else display.DASH,
            display.seconds(each.best.seconds.p50) if each.best else display.DASH,
            display.usd(each.best.usd.p50) if each.best else display.DASH,
            each.reason,
        ]
        for each in found.rejected
    ]


def list_notes(found: Advice) -> list[str]:
    """Return the counts and assumptions that a reader must know to judge the advice, one sentence each."""
    searched, base = found.searched, found.question.base
    kinds = "".join(f", {count:,} for {kind}" for kind, count in sorted(found.excluded.items()))
    refused = f", {len(searched.impossible):,} that AWS would not run" if searched.impossible else ""
    updates = "the experiment" if found.constraints.target is None else "the runs that are the evidence"
    lines = [
        f"the question: {base.training.model} on {base.data.dataset}, {base.training.epochs} epochs, {found.constraints.words}",
        f"{found.candidates:,} ways to train it: {len(searched.simulated):,} simulated, {len(searched.bounded):,} excluded because their "
        f"lower bounds of time and dollars are worse than a simulated one{kinds}{refused}",
        f"each update uses as many samples as those of {updates}; only BatchNorm may see minibatches of another size. Ways that average "
        "models, or filter or compress updates, are in a table of their own: their accuracy is unknown",
        "`ready in` counts from `deploy` and includes start-up, and the deadline is checked against it (`project` shows the run "
        f"without start-up); dollars are of the run; {len(found.winner.outcomes)} simulations of each; {LIMITS}",
    ]
    lines += describe_sharing(found)
    lines.append(start_up.describe(found.question.start_up(found.winner.candidate)))
    if word := describe_needed_quota(found.winner.candidate, found.constraints.gpu_quota):
        lines.append(word)
    lines += price_notes(found)
    outside = {limit for outcome in found.winner.outcomes for limit in outcome.outside}
    rules = "; ".join(f"{name}: {rule}" for name, rule in RULES.items())
    lines.append(f"among the candidates that keep to deadline and budget (all, if none does): {rules}")
    return [*lines, *(f"beyond the measured range: {limit}" for limit in sorted(outside))]


def price_notes(found: Advice) -> list[str]:
    """Return a line for each instance price of the written candidates that no second source confirms, and one if prices are old."""
    listed = found.question.prices
    answers = [each.candidate for each in found.told if each.candidate.instance]
    items = sorted({f"ec2.{each.instance}{'.spot' if each.spot else ''}" for each in answers})
    single = [listed.of(item) for item in items if not listed.of(item).confirmed]
    lines = [
        f"price of {each.item.removeprefix('ec2.')}: {display.usd(each.usd)} an hour in {listed.region}, {each.as_of}, from {each.source}; "
        f"no second source confirms it{f'; {each.note}' if each.note else ''}"
        for each in single
    ]
    today = datetime.fromtimestamp(runtime.time(), UTC).date()
    return [*lines, *([old] if (old := listed.stale(listed.items, today)) else [])]


# --- resting ----------------------------------------------------------------------------------------------------------
# What advice rests on: the winner held against the others that are told, where computing is quicker or slower than is assumed.


def caveats_of(found: Advice) -> str:
    """Return one line on how the advice would change if computing were slower or faster than assumed."""
    gpus = any(each.candidate.gpu for each in (found.winner, *found.alternatives))
    return calibration.describe_assumptions(answer_by_calibration(found), found.question.calibration, gpus=gpus)


def answer_by_calibration(found: Advice) -> AnswerOf:
    """Return a function that takes a calibration (speeds of AWS) and returns, in words, which of the winner and the alternatives would be
    chosen with it. Each call of that function may simulate a few epochs of each candidate; so does this one, with the question's own
    calibration.
    """
    told = (found.winner, *found.alternatives)
    known = dict[Candidate, list[tuple[Calibration, dict[str, float]]]]()

    def took(each: Finalist, cloud: Calibration) -> dict[str, float]:
        """Return {"seconds", "usd"} of one candidate's whole run under the calibration `cloud`. Simulated at the first call for equal ones;
        later calls return the same dictionary. For a candidate without GPUs, calibrations that differ only in `gpu_pace` are equal.
        """
        if not each.candidate.gpu:  # how fast GPUs are makes no difference
            cloud = replace(cloud, gpu_pace=found.question.calibration.gpu_pace)
        before = known.setdefault(each.candidate, [])
        if (figures := next((figures for asked, figures in before if asked == cloud), None)) is None:
            question = replace(found.question, calibration=cloud)
            figures = extrapolate(question, each.candidate, lambda run: {"seconds": run.seconds, "usd": run.usd})
            before.append((cloud, figures))
        return figures

    assumed = [took(each, found.question.calibration) for each in told]

    def at(cloud: Calibration) -> str:
        """Return the name of the candidate that would be chosen under the calibration `cloud`: the repeated simulations are scaled by the
        ratio of its figures to the assumed ones.
        """
        changed = []
        for each, before in zip(told, assumed, strict=True):
            times = {name: value / max(1e-12, before[name]) for name, value in took(each, cloud).items()}
            outcomes = (
                replace(one, seconds=one.seconds * times["seconds"], usd=one.usd * times["usd"])
                for one in each.outcomes
            )
            changed.append(replace(each, outcomes=tuple(outcomes)))
        return choose_finalist(changed, found.constraints).candidate.words

    return at


LARGER_MINIBATCH = 8  # times the assumed one, with which the winner is simulated too


def describe_larger_minibatch(found: Advice, sizes: Sizes) -> str:
    """Return a part of a sentence on when the winner would be ready with minibatches LARGER_MINIBATCH times as large, and for how much, by
    simulations of a few epochs; "" if these would be more than half the data, or if AWS would not run it. `sizes`: sizes of the model.
    """
    question, winner = found.question, found.winner
    training, size = question.base.training, LARGER_MINIBATCH * question.base.training.batch_size
    base = replace(question.base, training=replace(training, batch_size=size))
    candidate = winner.candidate._replace(batch_size=LARGER_MINIBATCH * winner.candidate.batch_size)
    held = not needs.find_problem(candidate, sizes, needs.ON_HAND, precision=training.precision)[1]
    if not held or 2 * size * base.workers > question.samples:
        return ""
    larger = replace(question, base=base)
    if larger.simulated(candidate)[0].problem:
        return ""
    asked, other = (
        extrapolate(one, each, lambda run: {"seconds": run.seconds, "usd": run.usd})
        for one, each in ((question, winner.candidate), (larger, candidate))
    )
    ready_s = winner.before_s + winner.running.p50 * other["seconds"] / max(1e-12, asked["seconds"])
    usd = winner.usd.p50 * other["usd"] / max(1e-12, asked["usd"])
    return (
        f"with {size:,}, {winner.candidate.words} would be ready in {display.rough_seconds(ready_s)}, for about "
        f"{display.rough_usd(usd)}, after fewer updates, and another answer may be better (--set training.batch_size={size})"
    )


# --- sensitivity ------------------------------------------------------------------------------------------------------
# What would change the answer: prices, speed, sessions and epochs, each made smaller and larger by what is plausible.


@dataclass(frozen=True)
class Swing:
    """The influence of one assumption on the advice. `what`: the assumption and its range, in words; `smaller`, `larger`: the dollars (or
    the time) of the advice's rival divided by those of the advice, if the assumed quantity is made smaller, and if it is made larger. Below
    1 the rival is better.
    """

    what: str
    smaller: float
    larger: float

    @property
    def width(self) -> float:
        """The larger of both ratios divided by the smaller one; 1 if the assumption has no influence."""
        return max(self.smaller, self.larger) / max(1e-12, min(self.smaller, self.larger))


def list_swings(question: Question, winner: Candidate, rival: Candidate) -> list[Swing]:
    """Return how the ratio of the rival's dollars to the winner's depends on each assumption (speeds, prices, number of epochs), the most
    influential first. Simulates both candidates twice for each assumption.
    """

    def ratio(changed: Question) -> float:
        """Return the dollars of the whole run on `rival` divided by those on `winner` (the candidates of the outer call), both simulated
        with the assumptions of `changed`.
        """
        mine, its = (_simulate_usd(changed, candidate) for candidate in (winner, rival))
        return its / mine

    span = max(question.span(each) for each in (winner, rival))
    found = [Swing(what, ratio(smaller), ratio(larger)) for what, smaller, larger in _vary_assumptions(question, span)]
    return sorted(found, key=lambda each: -each.width)


def list_time_swings(question: Question, here: ThisMachine) -> list[Swing]:
    """Return how the time of the soonest candidate on AWS, start-up included, divided by this machine's depends on each assumption, the
    most influential first. Simulates the candidate twice for each assumption. `here`: estimate for this machine.
    """
    sooner, epochs, span = here.sooner.candidate, question.base.training.epochs, question.span(here.sooner.candidate)

    def ratio(changed: Question, speed: float = 1.0) -> float:
        """Return the time of the soonest candidate on AWS (start-up included) divided by that on this machine, with the assumptions and
        epochs of `changed`, and if this machine trained `speed` times as fast.
        """
        ready_s = here.sooner.before_s + extrapolate(changed, sooner, lambda run: {"": run.seconds})[""]
        training_s = (here.seconds - here.before_s) * changed.base.training.epochs / epochs
        return ready_s / (here.before_s + training_s / speed)

    found = [Swing(what, ratio(less), ratio(more)) for what, less, more in _vary_assumptions(question, span)]
    found.append(Swing("this machine's speed, half to twice", ratio(question, 0.5), ratio(question, 2.0)))
    return sorted(found, key=lambda each: -each.width)


def _simulate_usd(question: Question, candidate: Candidate) -> float:
    """Return the dollars of the candidate's whole run, by simulation of a few epochs."""
    return extrapolate(question, candidate, lambda run: {"": run.usd})[""]


def _vary_assumptions(question: Question, span: int) -> Iterator[tuple[str, Question, Question]]:
    """Yield (assumption in words, question with less of it, question with more of it) for each assumption: speeds, epochs, AWS conditions
    and prices. `span`: smallest number of epochs to try.
    """
    cloud, epochs = question.calibration, question.base.training.epochs

    def with_calibration(**factors: float) -> Question:
        """Return the question with the fields of its calibration that are named in `factors` multiplied by the given factors: more of a
        field named `_s` or `pace` is less speed.
        """
        values = {name: getattr(cloud, name) * factor for name, factor in factors.items()}
        return replace(question, calibration=replace(cloud, **values))

    def with_epochs(count: int) -> Question:
        """Return a copy of the outer call's question with `count` epochs in its experiment."""
        return replace(question, base=replace(question.base, training=replace(question.base.training, epochs=count)))

    yield (
        "functions' speed, half to twice",
        with_calibration(function_speed=0.5, function_batch_s=2.0),
        with_calibration(function_speed=2.0, function_batch_s=0.5),
    )
    yield "GPUs' speed, half to twice", with_calibration(gpu_pace=2.0), with_calibration(gpu_pace=0.5)
    yield (
        "instances' speed, half to twice",
        with_calibration(instance_speed=0.5, instance_batch_s=2.0),
        with_calibration(instance_speed=2.0, instance_batch_s=0.5),
    )
    yield "epochs, a fifth to five times", with_epochs(max(span, epochs // 5)), with_epochs(5 * epochs)
    quick, slow = (replace(question, calibration=apply_session(cloud, sigmas)) for sigmas in (-1.64, 1.64))
    yield "AWS's speed of the day, p5 to p95", slow, quick
    for what, begins in (
        ("Lambda's price", "lambda."),
        ("instances' price", ("ec2.", "cpu_credits.")),
        ("Step Functions' price", "stepfunctions."),
    ):
        less, more = (replace(question, prices=scale_prices(question.prices, begins, factor)) for factor in (0.7, 1.3))
        yield f"{what}, 30 % down to up", less, more


def scale_prices(prices: Prices, begins: str | tuple[str, ...], factor: float) -> Prices:
    """Return a copy of the price list with the prices of some items multiplied by `factor`. `begins`: prefix, or prefixes, of the items'
    names.
    """
    items = {
        name: replace(price, usd=price.usd * factor) if name.startswith(begins) else price
        for name, price in prices.items.items()
    }
    return replace(prices, items=items)


# --- first look -------------------------------------------------------------------------------------------------------
# A first estimate, before the search: one function, one machine and one GPU, simulated once each.

TRIED = 3  # of each kind, until one of them is possible


@dataclass(frozen=True)
class FirstEstimate:
    """The answer before the search. `candidate`: the candidate that it names; `figures`: its single estimate; `words`: its name, time
    and cost; `least_mb`: memory of the smallest functions that were tried.
    """

    candidate: Candidate
    figures: Estimate
    words: str
    least_mb: int = NEW_ACCOUNT_MB


def estimate_of_known(experiment: Experiment, constraints: Constraints) -> FirstEstimate | None:
    """Return a first estimate, without loading torch, if model and data set come with the project and some candidate is possible; otherwise
    None. Raises ConfigError if the price list is not valid or lacks a price.
    """
    try:
        workload = replace(Workload.from_experiment(experiment), samples=(1,))
    except NoProjection:
        return None
    training, _ = data_sizes.count_split(experiment) or (0, 0)
    question = Question(
        replace(experiment, baseline="none"), workload, training, AWS.with_uncertainty_of(workload.model), prices.load()
    )
    return first_estimate(
        question, Sizes(vector_bytes=workload.vector_bytes, kept_bytes=0.0, evaluation_bytes=0), constraints
    )


def first_estimate(question: Question, sizes: Sizes, constraints: Constraints) -> FirstEstimate | None:
    """Return the cheapest candidate with one worker (a function, a machine or a GPU) that keeps to the constraints, or the one nearest to
    them, with its time and cost and their bands, whose 95th percentiles are compared with the constraints; None if none is possible.
    Functions with less than NEW_ACCOUNT_MB are not tried. `sizes`: sizes of the model.
    """
    alone = candidates.list_candidates(
        question.base, samples=question.samples, prices=question.prices, least_mb=sizes.least_mb, alone=True
    )
    by_kind = dict[str, list[tuple[float, str, Candidate]]]()
    precision = question.base.training.precision
    for each in alone:
        refused = needs.find_problem(each, sizes, constraints.on_hand, precision=precision)[1]
        if not refused and not 0 < each.memory_mb < NEW_ACCOUNT_MB:
            by_kind.setdefault(each.on, []).append((question.bound_by_computing(each).usd, str(each), each))
    found = list[tuple[Candidate, Estimate, Band, Band]]()

    def rank(each: tuple[Candidate, Estimate, Band, Band]) -> tuple[float, float]:
        """Return the sort key of a candidate with its estimate and the bands of its seconds and dollars: (factor by which these miss the
        constraints, 1 if it keeps to them; its dollars).
        """
        return max(1.0, constraints.short_by(*each[2:])), each[1].usd

    for least in sorted(by_kind.values(), key=min):
        short, usd = min(map(rank, found), default=(inf, inf))
        if short <= 1 and usd < min(least)[0]:
            continue  # one that keeps to the constraints is cheaper than any of this kind can be
        if first := _find_first_possible(question, least):
            found.append((*first, *_estimate_bands(question, *first)))
    if not found:
        return None
    candidate, figures, seconds_band, usd_band = min(found, key=rank)
    return FirstEstimate(
        candidate,
        figures,
        f"{candidate.words}: about {display.band(display.seconds, *seconds_band)}, start-up among them, and "
        f"{display.band(display.usd, *usd_band)}",
    )


def explain_change(found: Advice, first: FirstEstimate | None) -> str:
    """Return a sentence on why the advice is not the candidate of the first estimate; "" if it is, or if there was no first estimate. Both
    are compared by figures of the advice's own question: a measurement that followed the first estimate would count on one side alone.
    """
    winner = found.winner
    if first is None or first.candidate == winner.candidate:
        return ""
    was = f"The first estimate was {first.candidate.words}"
    answer = winner.candidate.words if winner.candidate.words != first.candidate.words else "the answer above"
    repeated = next((each for each in found.finalists if each.candidate == first.candidate), None)
    missed = list_missed_constraints(found, repeated) if repeated else {}
    if missed and found.met:
        return f"{was}; with interruptions and other bad luck (p95) it needs {' and '.join(missed.values())}."
    ratio = repeated.usd.p50 / winner.usd.p50 if repeated else _simulated_ratio(found, first.candidate)
    if ratio > display.LEVEL:
        return f"{was}, which costs {display.times(ratio)} the dollars of {answer}."
    if found.here is not None:
        return f"{was}; the model's speed was measured on this machine after it."
    return f"{was}; in repeated simulations the answer above is better."


def _simulated_ratio(found: Advice, candidate: Candidate) -> float:
    """Return the candidate's dollars divided by the winner's, in one simulation of each; 0 if AWS would not run the candidate."""
    figures = found.question.simulated(candidate)[0]
    return 0.0 if figures.problem else figures.usd / max(1e-12, found.winner.figures.usd)


def _estimate_bands(question: Question, candidate: Candidate, figures: Estimate) -> tuple[Band, Band]:
    """Return (seconds, dollars): bands around a candidate's simulated `figures`. All that is uncertain is at its p5 and start-up at its
    least, or all is at its p95 and its most, so that the bands are wider than those of repetitions.
    """
    task, parts = question.task(candidate, quick=True), question.start_up(candidate)
    low, high = (simulate_draw(task, Draw(question.base.seed, level, level)) for level in (LEVELS[0], LEVELS[-1]))
    low_s, high_s = low.seconds + sum(each.least_s for each in parts), high.seconds + sum(each.most_s for each in parts)
    return (
        Band(min(low_s, figures.seconds), figures.seconds, max(high_s, figures.seconds)),
        Band(min(low.usd, figures.usd), figures.usd, max(high.usd, figures.usd)),
    )


def _find_first_possible(
    question: Question, least: list[tuple[float, str, Candidate]]
) -> tuple[Candidate, Estimate] | None:
    """Return the candidate with the smallest lower bound in dollars that AWS would run, with its simulated estimate; None if it would run
    none of those that are tried, the TRIED ones with the smallest bounds. `least`: (lower bound in dollars, text for sorting, candidate) of
    each.
    """
    looked = ((each, question.simulated(each)[0]) for _, _, each in sorted(least)[:TRIED])
    return next(((each, figures) for each, figures in looked if not figures.problem), None)


# --- here -------------------------------------------------------------------------------------------------------------
# This machine, beside the ways on AWS and outside their front: how long it would take by what a probe measured here.


REPORT_S = 5.0  # of a run in this process, beside training: trying the model, and drawing the report; measured
UPDATE_S = 0.003  # of an update, beside its gradient; measured


def local_estimate_of(found: Advice, measured: "Probe") -> ThisMachine:
    """Return how long training takes on this machine, by the measurement `measured`, from the start of the command to its report, and
    from which multiple of the epochs on the soonest candidate on AWS would be quicker. One or two threads are assumed, as cores and
    measurement allow.
    """
    question = found.question
    threads = 2 if (os.cpu_count() or 1) > 1 and measured.two_threads else 1
    quicker = max(1.0, measured.two_threads or 1.0) if threads == 2 else 1.0
    evaluated = question.calibration.evaluate_share * question.workload.validation_samples
    epoch_s = (question.samples + evaluated) * measured.seconds / measured.batch_size / quicker
    epoch_s += UPDATE_S * question.samples / question.base.training.batch_size
    before_s = measured.start_s + REPORT_S
    sooner = next(card.finalist for card in found.cards if "soonest" in card.names)
    epochs = question.base.training.epochs
    fixed_s, each_s = _fit_time_line(question, sooner)
    times = max(0.0, fixed_s - before_s) / (epochs * (epoch_s - each_s)) if epoch_s > each_s else None
    return ThisMachine(before_s + epochs * epoch_s, threads, sooner, times, before_s)


def _fit_time_line(question: Question, finalist: Finalist) -> tuple[float, float]:
    """Return (fixed seconds, seconds per epoch) of a candidate's time from `deploy` on, by a line through two simulations without random
    spread, of one and of two times `question.span` epochs. The fixed seconds include the start-up. Raises as `simulate_run` does.
    """
    span = question.span(finalist.candidate)
    one, two = (simulate_epochs(question, finalist.candidate, times * span).seconds for times in (1, 2))
    each_s = (two - one) / span
    return finalist.before_s + one - span * each_s, each_s
