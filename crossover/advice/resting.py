"""What advice rests on: the winner held against the others that are told, where computing is quicker or slower than is assumed."""

from dataclasses import replace

from crossover.advice.advice import Advice
from crossover.advice.drivers import lengthened
from crossover.advice.finalists import Finalist, chosen
from crossover.simulation import assumptions
from crossover.simulation.assumptions import AnswerOf
from crossover.simulation.calibration import Calibration


def words(found: Advice) -> str:
    """One line, for the terminal, the page and advice.json."""
    gpus = any(each.candidate.gpu for each in (found.winner, *found.alternatives))
    return assumptions.words(answer(found), found.question.calibration, gpus=gpus)


def answer(found: Advice) -> AnswerOf:
    """Which of the winner and the alternatives would be chosen under another calibration, by its words."""
    told = (found.winner, *found.alternatives)

    def took(each: Finalist, cloud: Calibration) -> dict[str, float]:
        question = replace(found.question, calibration=cloud)
        return lengthened(question, each.candidate, lambda run: {"seconds": run.seconds, "usd": run.usd})

    assumed = [took(each, found.question.calibration) for each in told]

    def at(cloud: Calibration) -> str:
        changed = []
        for each, before in zip(told, assumed, strict=True):
            times = {name: value / before[name] for name, value in took(each, cloud).items()}
            outcomes = (
                replace(one, seconds=one.seconds * times["seconds"], usd=one.usd * times["usd"])
                for one in each.outcomes
            )
            changed.append(replace(each, outcomes=tuple(outcomes)))
        return chosen(changed, found.wishes).candidate.words

    return at
