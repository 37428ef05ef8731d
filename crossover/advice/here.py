"""This machine, beside the ways on AWS and outside their front: how long it would take by what a probe measured here."""

import os

from crossover.advice.advice import Advice
from crossover.advice.drivers import run_of
from crossover.advice.evaluation import Question
from crossover.advice.finalists import Finalist, ThisMachine
from crossover.advice.probe import Probe


def of(found: Advice, measured: Probe) -> ThisMachine:
    """Held against the soonest of the named ones."""
    question = found.question
    threads = 2 if (os.cpu_count() or 1) > 1 and measured.two_threads else 1
    quicker = max(1.0, measured.two_threads or 1.0) if threads == 2 else 1.0
    evaluated = question.calibration.evaluate_share * question.workload.validation_samples
    epoch_s = (question.samples + evaluated) * measured.seconds / measured.batch_size / quicker
    sooner = next(card.finalist for card in found.cards if "soonest" in card.names)
    epochs = question.base.training.epochs
    fixed_s, each_s = _line(question, sooner)
    times = fixed_s / (epochs * (epoch_s - each_s)) if epoch_s > each_s else None
    return ThisMachine(epochs * epoch_s, threads, sooner, times)


def _line(question: Question, finalist: Finalist) -> tuple[float, float]:
    """Seconds until it works and for what is done once, and of each epoch."""
    span = question.span(finalist.candidate)
    one, two = (run_of(question, finalist.candidate, times * span).seconds for times in (1, 2))
    each_s = (two - one) / span
    return finalist.before_s + one - span * each_s, each_s
