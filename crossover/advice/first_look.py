"""A first estimate, before the search: one function, one machine and one GPU, simulated once each."""

from dataclasses import replace

from crossover.advice import candidates, needs
from crossover.advice.candidates import Candidate
from crossover.advice.evaluation import Estimate, Question
from crossover.advice.needs import NEW_ACCOUNT_MB, Sizes
from crossover.advice.wishes import Wishes
from crossover.costs import prices
from crossover.errors import NoProjection
from crossover.experiment import Experiment
from crossover.learning import sizes as data_sizes
from crossover.reports import display
from crossover.reports.bands import Band
from crossover.simulation.calibration import AWS
from crossover.simulation.workload import Workload

TRIED = 3  # of each kind, until one of them is possible


def of_known(experiment: Experiment, wishes: Wishes) -> str:
    """By the sizes of models and data sets that come with the project, without torch; empty for others. Raises ConfigError."""
    try:
        workload = replace(Workload.of(experiment), samples=(1,))
    except NoProjection:
        return ""
    training, _ = data_sizes.split(experiment) or (0, 0)
    question = Question(
        replace(experiment, baseline="none"), workload, training, AWS.unsure_of(workload.model), prices.load()
    )
    return words(question, Sizes(vector_bytes=workload.vector_bytes, kept_bytes=0.0, evaluation_bytes=0), wishes)


def words(question: Question, sizes: Sizes, wishes: Wishes) -> str:
    """Which of the three keeps to the wishes for the fewest dollars, or comes nearest; empty where none of them is possible. Of functions
    those of NEW_ACCOUNT_MB and more, which hold most minibatches.
    """
    alone = candidates.of(
        question.base, samples=question.samples, prices=question.prices, least_mb=sizes.least_mb, alone=True
    )
    by_kind = dict[str, list[tuple[float, str, Candidate]]]()
    for each in alone:
        if not 0 < each.memory_mb < NEW_ACCOUNT_MB and not needs.problem(each, sizes, wishes.on_hand)[1]:
            by_kind.setdefault(each.on, []).append((question.least(each).usd, str(each), each))
    found = [first for least in by_kind.values() if (first := _first(question, least))]
    if not found:
        return ""
    candidate, figures = min(found, key=lambda each: (max(1.0, _short(wishes, each[1])), each[1].usd))
    seconds = display.seconds(figures.seconds)
    return f"{candidate.words}: about {seconds}, start-up among them, and {display.usd(figures.usd)}"


def _first(question: Question, least: list[tuple[float, str, Candidate]]) -> tuple[Candidate, Estimate] | None:
    looked = ((each, question.simulated(each)[0]) for _, _, each in sorted(least)[:TRIED])
    return next(((each, figures) for each, figures in looked if not figures.problem), None)


def _short(wishes: Wishes, figures: Estimate) -> float:
    return wishes.short_by(Band(*[figures.seconds] * 3), Band(*[figures.usd] * 3))
