"""The learning rate of a round and the size of an epoch's images, as pure functions of the settings and of what came before."""

import math

from crossover.algorithms.convergence import History, plateau_reductions
from crossover.experiment import Training

# one_cycle's ends relative to the peak, as in torch's OneCycleLR
_START = 1 / 25
_END = _START / 10_000


def learning_rate(training: Training, *, round: int, rounds: int, history: History = ()) -> float:
    """The rate of `round` (from 0) out of `rounds` of the whole run; `training.learning_rate` is the constant, the first or the peak rate.

    - constant
    - one_cycle: cosine from 1/25 of the peak up to the peak over the first `warm_up` share of the rounds, then cosine down to 1/250,000
    - cosine: in equal steps up to the peak over the first `warm_up` share of the rounds, then along half a cosine towards `floor` times it
    - plateau: times `plateau_factor` for each reduction that the validation history asks for
    """
    peak = training.learning_rate
    match training.schedule:
        case "constant":
            return peak
        case "plateau":
            return peak * training.plateau_factor ** plateau_reductions(history, patience=training.plateau_patience)
        case "cosine":
            rising = math.floor(0.5 + training.warm_up * rounds)
            if round < rising:
                return peak * (round + 1) / rising
            return peak * _cosine(1.0, training.floor, (round - rising) / max(1, rounds - rising))
        case "one_cycle":
            top = training.warm_up * rounds - 1  # the round of the peak
            last = rounds - 1
            if round <= top:
                return peak * _cosine(_START, 1.0, round / top if top > 0 else 1.0)
            rest = last - max(top, 0.0)
            return peak * _cosine(1.0, _END, min(1.0, (round - max(top, 0.0)) / rest) if rest > 0 else 0.0)
    raise ValueError(f"training.schedule: {training.schedule!r}; one of constant, one_cycle, cosine, plateau")


def _cosine(start: float, end: float, share: float) -> float:
    """From `start` at share 0 to `end` at share 1 along half a cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def image_side(training: Training, side: int, *, epoch: int) -> int:
    """Pixels of the side of the images that `epoch` (from 1) trains on, where theirs has `side`: `begin`, and `step` more each time, every
    size for an equal part of the epochs before `full_from`; then, and in the last epoch always, `side`. Evaluations see images as they are.
    """
    asked = training.image_size
    if asked.begin is None or asked.begin >= side or epoch >= training.epochs:
        return side
    sizes = range(asked.begin, side, asked.step)
    grown = int(len(sizes) * (epoch - 1) / (asked.full_from * training.epochs))
    return sizes[grown] if grown < len(sizes) else side
