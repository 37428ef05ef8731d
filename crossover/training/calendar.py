"""The calendar of a run, by its experiment and the data that it has staged; crossover/algorithms/calendar.py says what one is."""

from collections.abc import Mapping
from typing import Any

from crossover.algorithms.calendar import Calendar
from crossover.algorithms.weights import weights
from crossover.clients.protocol import Event
from crossover.context import Context
from crossover.context.run_facts import RunFacts
from crossover.experiment import Experiment


def calendar(facts: RunFacts) -> Calendar:
    return calendar_of(facts.experiment, facts.manifest)


def calendar_of(experiment: Experiment, manifest: Mapping[str, Any]) -> Calendar:
    every, minibatches = experiment.exchange.every, manifest["minibatches"]
    assert every is not None, "the runner resolves exchange.every before a run starts"
    local = experiment.exchange.what != "gradients"
    training = experiment.training
    return Calendar(minibatches, minibatches if every == "epoch" else every, training.epochs, local, training.steps)


def at(ctx: Context, event: Event, round: int) -> Event:
    """The changes that move an event to the start of `round`."""
    days = calendar(ctx.facts)
    return {
        "epoch": days.epoch(round),
        "round": round,
        "minibatches": days.side_by_side(round),
        "minibatch": 0,
        "synchronised": False,
    }


def ends_epoch(ctx: Context, event: Event) -> bool:
    return calendar(ctx.facts).ends_epoch(event["round"])


def answers(facts: RunFacts, round: int, *, worker: int) -> list[int]:
    """How many answers the worker's minibatches of the round have: where each sample has one, how many samples."""
    counts: list[int] = facts.manifest["counts"][worker]
    return [counts[number] for number in calendar(facts).numbers(round)]


def minibatch_samples(facts: RunFacts, round: int, *, worker: int) -> list[int]:
    """What the worker's minibatches of the round weigh in its mean."""
    return weights(answers(facts, round, worker=worker))


def round_samples(facts: RunFacts, round: int) -> list[int]:
    """What the contribution of each worker weighs in the round's mean, by rank."""
    return weights([sum(answers(facts, round, worker=worker)) for worker in range(len(facts.manifest["counts"]))])
