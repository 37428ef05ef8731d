"""The advice as rows of text, for the terminal and the page."""

from collections.abc import Sequence

from crossover.advice.advice import Advice
from crossover.advice.finalists import RULES, Finalist
from crossover.advice.needs import quota
from crossover.reports import display
from crossover.simulation.repetitions import LIMITS

FRONT_HEAD = ["how", "time", "p5 to p95", "start-up", "dollars", "p5 to p95", "minibatch", "an update", "threads"]
REJECTED_HEAD = ["architecture", "at its cheapest", "time", "dollars", "what weighs most against it"]


def front(found: Sequence[Finalist]) -> list[list[str]]:
    """One row for each, the cheapest first."""
    return [
        [
            each.candidate.words,
            display.seconds(each.running.p50),
            f"{display.seconds(each.running.p5)} to {display.seconds(each.running.p95)}",
            display.seconds(each.before_s),
            display.usd(each.usd.p50),
            f"{display.usd(each.usd.p5)} to {display.usd(each.usd.p95)}",
            f"{each.candidate.batch_size:,}",
            of_an_update(each),
            str(each.candidate.threads),
        ]
        for each in found
    ]


CARDS_HEAD = ["", "how", "time", "start-up", "dollars", "p5 to p95", "file"]


def cards(found: Advice) -> list[list[str]]:
    """The named ones, one row for each and one for what spot instances are on demand."""
    rows = []
    for card in found.cards:
        names = ", ".join(card.names)
        for name, each in ((names, card.finalist), (f"{names}, on demand", card.on_demand)):
            if each is not None:
                time, before, *dollars = (*front([each])[0][1:2], *front([each])[0][3:6])
                number = [told.candidate for told in found.told].index(each.candidate) + 1
                file = f"{number}-{each.candidate.architecture.replace('_', '-')}.yaml"
                rows.append([name, each.candidate.words, time, before, *dollars, file])
    if found.here:
        process = f"one process of {found.here.threads} threads" if found.here.threads > 1 else "one process"
        rows.append(["this machine", process, display.seconds(found.here.seconds), *[display.DASH] * 4])
    return rows


def of_an_update(each: Finalist) -> str:
    """How many minibatches of how many workers make one update, or one average of models."""
    every = each.candidate.every
    count = "all" if every == "epoch" else str(every)
    what = {"model": "an average of models after ", "delta": "an outer step after "}.get(each.candidate.what, "")
    return f"{what}{each.candidate.workers} x {count}"


def rejected(found: Advice) -> list[list[str]]:
    """One row for each architecture that is not the answer."""
    return [
        [
            each.architecture,
            each.best.candidate.words if each.best else display.DASH,
            display.seconds(each.best.running.p50) if each.best else display.DASH,
            display.usd(each.best.usd.p50) if each.best else display.DASH,
            each.reason,
        ]
        for each in found.rejected
    ]


def notes(found: Advice) -> list[str]:
    """What a reader must know before believing the figures."""
    searched, base = found.searched, found.question.base
    kinds = "".join(f", {count:,} for {kind}" for kind, count in sorted(found.excluded.items()))
    refused = f", {len(searched.impossible):,} that AWS would not run" if searched.impossible else ""
    updates = (
        "the experiment's own updates"
        if found.wishes.target is None
        else "the updates of the runs that are its evidence"
    )
    lines = [
        f"understood: {base.training.model} on {base.data.dataset}, {base.training.epochs} epochs, {found.wishes.words}",
        f"{found.candidates:,} ways to train it: {len(searched.simulated):,} simulated, {len(searched.bounded):,} excluded by what they "
        f"take at least{kinds}{refused}",
        f"they make {updates}, each of as many samples; BatchNorm sees a worker's minibatch, which may be another size. "
        "Others, which average models, filter or compress updates, stand apart: accuracy unknown",
        "time is the run's, as `project` and `breakeven` count it; start-up is from `deploy` until everything stands (assumed; where a "
        "broker is needed, about 20 minutes for a project's first experiment), and a deadline holds with both; "
        f"dollars are of the run; {len(found.winner.outcomes)} repetitions; {LIMITS}",
    ]
    if word := quota(found.winner.candidate):
        lines.append(word)
    outside = {limit for outcome in found.winner.outcomes for limit in outcome.outside}
    rules = "; ".join(f"{name}: {rule}" for name, rule in RULES.items())
    lines.append(f"of those that keep to what was wished (of all, where none does) {rules}")
    return [*lines, *(f"outside what was measured: {limit}" for limit in sorted(outside))]
