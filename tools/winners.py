"""The answers of `advise` and `breakeven` that differ with the services' clocks from those without: `python -m tools.winners` (minutes).

docs/calibration.md has the finding.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf

from crossover.advice import question as subject
from crossover.advice.advice import Advice, advise
from crossover.advice.question import Constraints
from crossover.advice.search import Finalist
from crossover.reports.display import band, seconds, usd
from crossover.simulation.breakeven import LEADS, Breakeven, Point, breakeven
from crossover.simulation.calibration import AWS, Calibration
from crossover.validation import load
from tools import refuse_arguments
from tools.clocks import CONFIG, PRICES, format_table

# Assumed, until strangers' measurements came in their place.
BEFORE = replace(
    AWS,
    name="before",
    task_s=0.045,
    payload_s_byte=0.0,
    branch_s=0.0,
    distributed_s=0.0,
    sandbox_s=0.0,
    init_s=0.9,
    init_torch_s=4.5,
    ramp_at_once=inf,
    ramp_per_s=inf,
    tensors=replace(AWS.tensors, latency_s=0.001),
    host_sigma=0.0,
    task_sigma=0.0,
    cold_sigma=0.0,
)
TRAININGS = {"digits": "", "MobileNet": "-cifar10"}
ARCHITECTURES = ("spirt", "mlless", "all-reduce", "scatter-reduce", "p2p-instance", "p2p-serverless")
FIGURES: dict[str, Callable[[Finalist], float]] = {
    "cheapest": lambda each: each.usd.p50,
    "soonest": lambda each: each.seconds.p50,
}
HEAD = ["question", "by the clocks before", "by the clocks now", "another winner"]


def list_rows() -> Iterator[list[str]]:
    """Yield the rows of the table: question, answer with the earlier assumptions (BEFORE), answer with the present calibration, "yes" or
    "no": whether the winner differs.
    """
    for training, file in TRAININGS.items():
        before, now = (_advise(file, calibration) for calibration in (BEFORE, AWS))
        for figure, of in FIGURES.items():
            yield _compare_winners(
                f"`advise`, {training}, {figure}", *(min(each.front, key=of) for each in (before, now))
            )
    for training, file in TRAININGS.items():
        before_, now_ = (_find_break_even(file, calibration) for calibration in (BEFORE, AWS))
        for figure in LEADS:
            pairs = [_find_best(found, figure) for found in (before_, now_)]
            yield [
                f"`breakeven`, {training}, as the files say, {figure}",
                *(f"{point.name}: {_format_point(point, figure)}" for point in pairs),
                "yes" if pairs[0].name != pairs[1].name else "no",
            ]


def _advise(file: str, calibration: Calibration) -> Advice:
    """Return the advice for a training with a calibration, without deadline and budget. `file`: ending of the example's file name, such as
    `-cifar10`.
    """
    question, sizes, _ = subject.build_question(load(CONFIG / f"all-reduce{file}.yaml", []), calibration)
    return advise(question, Constraints(), sizes)


def _find_break_even(file: str, calibration: Calibration) -> Breakeven:
    """Return the break-even of all architectures for a training. `file`: ending of the examples' file names, such as `-cifar10`."""
    experiments = [load(CONFIG / f"{name}{file}.yaml", []) for name in ARCHITECTURES]
    return breakeven(experiments, calibration, PRICES)


def _find_best(found: Breakeven, figure: str) -> Point:
    """Return the run with the lowest median of `figure` (a key of LEADS) at the settings of the example files, among those that AWS
    would run.
    """
    return min((point for point in found.here if point.would_run), key=lambda point: point.band(figure).p50)


def _format_point(point: Point, figure: str) -> str:
    """Return the dollars or seconds of a point as text with p5 to p95. `figure`: a key of LEADS."""
    return band(usd if figure == "dollars" else seconds, *point.band(figure))


def _compare_winners(question: str, before: Finalist, now: Finalist) -> list[str]:
    """Return a row of the table for a question to `advise`: the question, the winners `before` and `now` in words, "yes" or "no": whether
    they differ.
    """
    said = [f"{each.candidate.words}: {each.words}" for each in (before, now)]
    return [question, *said, "yes" if before.candidate != now.candidate else "no"]


if __name__ == "__main__":
    refuse_arguments(__doc__)
    print(format_table(HEAD, list_rows()))
