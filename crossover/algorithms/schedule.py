"""Decide when and in which order: seeds, learning rates, image sizes, the calendar of rounds, chunks of a vector, and
when to stop.
"""

import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log

from crossover.experiment import Training

# --- seeds ------------------------------------------------------------------------------------------------------------


def derive_seed(purpose: str, *key: int) -> int:
    """Return a 64-bit seed for `purpose` at `key`, e.g. derive_seed("dropout", experiment.seed, round, worker,
    minibatch).

    Distinct purposes or keys give independent seeds; equal ones give an equal seed on every machine and Python version.
    """
    text = "/".join((purpose, *map(str, key)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def permute(count: int, *, seed: int) -> list[int]:
    """Return the numbers 0..count-1 in a random order that depends on `seed` alone and is equal on every machine: sorted by each
    number's hash.
    """
    return sorted(range(count), key=lambda i: _mix_bits(seed + i * 0x9E3779B97F4A7C15))  # equal hashes stay in order


def _mix_bits(value: int) -> int:
    """Return a 64-bit hash of `value`: the finalizer of splitmix64 (Steele, Lea, Flood 2014), in which every input bit affects
    every output bit.
    """
    mask = (1 << 64) - 1
    value &= mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)


# --- weights ----------------------------------------------------------------------------------------------------------
# What contributions weigh in a mean. Nothing here needs torch.


def weigh_contributions(answers: Sequence[int]) -> list[int]:
    """Return the weight of each contribution in a mean: its number of `answers` (labels that count in its loss). If all are 0, the
    weights are all 1: the gradients are 0 then, but BatchNorm's statistics still count.
    """
    return list(answers) if any(answers) else [1] * len(answers)


# --- convergence ------------------------------------------------------------------------------------------------------
# When to stop, and when to learn slower: pure functions of the validation history, so that every worker comes to the same answer.
#
# A history is the (validation loss, validation metric) of the evaluations so far, in order: one after each epoch, or after each round
# where that goes through several. Patience counts evaluations. Free of torch: light steps ask it too.

History = Sequence[tuple[float, float]]


def find_stop_reason(training: Training, history: History, *, epochs: int | None = None) -> str:
    """Return in words why training ends after `epochs` epochs; "" if it continues. Reasons are, in this order, the target, early stopping,
    and the last epoch.

    `history`: (validation loss, metric) of each evaluation so far. `epochs`: None if there was one evaluation per epoch.
    """
    epochs = len(history) if epochs is None else epochs
    if training.target is not None and history and training.metric.reaches(history[-1][1], training.target):
        return f"target: validation {training.metric.words} {history[-1][1]:.4f} reached {training.target}"
    waited = count_evaluations_without_improvement(history)
    if training.early_stopping and waited >= training.early_stopping:
        what = "epochs" if epochs == len(history) else "evaluations"
        return f"early stopping: {waited} {what} without a better validation loss"
    if epochs >= training.epochs:
        return f"epochs: all {training.epochs} done" if training.steps is None else f"steps: all {training.steps} done"
    return ""


def count_evaluations_without_improvement(history: History) -> int:
    """Return the number of evaluations since the one with the lowest validation loss. A loss of NaN is no improvement."""
    best, since = float("inf"), 0
    for loss, _ in history:
        best, since = (loss, 0) if loss < best else (best, since + 1)
    return since


def count_plateau_reductions(history: History, *, patience: int, threshold: float = 1e-4) -> int:
    """Return how often torch's ReduceLROnPlateau (mode min, relative threshold, no cooldown) would have reduced the learning rate
    after the evaluations of `history`, (validation loss, metric) each.

    It does so when more than `patience` evaluations in a row had no loss below best * (1 - threshold), then counts anew.
    """
    best, bad, reductions = float("inf"), 0, 0
    for loss, _ in history:
        best, bad = (loss, 0) if loss < best * (1 - threshold) else (best, bad + 1)
        if bad > patience:
            reductions, bad = reductions + 1, 0
    return reductions


# --- schedule ---------------------------------------------------------------------------------------------------------
# The learning rate of a round and the size of an epoch's images, as pure functions of the settings and of what came before.

# one_cycle's ends relative to the peak, as in torch's OneCycleLR
_START = 1 / 25
_END = _START / 10_000


def learning_rate(training: Training, *, round: int, rounds: int, history: History = ()) -> float:
    """Return the learning rate of `round` (from 0) out of `rounds` of the run. `training.learning_rate` is the constant, the first or the
    peak rate; `history`: (validation loss, metric) of each evaluation so far. Raises ValueError for an unknown schedule. Schedules that
    depend on the number of epochs are listed in advice/evidence.py, too.

    - constant: always that rate

    - one_cycle: cosine from 1/25 of the peak up to the peak over the fraction `warm_up` of the rounds, then cosine down to
    1/250,000

    - cosine: in equal steps up to the peak over the fraction `warm_up` of the rounds, then along half a cosine towards `floor`
    times it

    - plateau: times `plateau_factor` for each reduction that `count_plateau_reductions` counts
    """
    peak = training.learning_rate
    match training.schedule:
        case "constant":
            return peak
        case "plateau":
            return peak * training.plateau_factor ** count_plateau_reductions(
                history, patience=training.plateau_patience
            )
        case "cosine":
            rising = math.floor(0.5 + training.warm_up * rounds)
            if round < rising:
                return peak * (round + 1) / rising
            return peak * _interpolate_cosine(1.0, training.floor, (round - rising) / max(1, rounds - rising))
        case "one_cycle":
            top = training.warm_up * rounds - 1  # the round of the peak
            last = rounds - 1
            if round <= top:
                return peak * _interpolate_cosine(_START, 1.0, round / top if top > 0 else 1.0)
            rest = last - max(top, 0.0)
            return peak * _interpolate_cosine(1.0, _END, min(1.0, (round - max(top, 0.0)) / rest) if rest > 0 else 0.0)
    raise ValueError(f"training.schedule: {training.schedule!r}; one of constant, one_cycle, cosine, plateau")


def _interpolate_cosine(start: float, end: float, share: float) -> float:
    """Return the value of half a cosine that goes from `start` (at `share` 0) to `end` (at `share` 1)."""
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def compute_image_side(training: Training, side: int, *, epoch: int) -> int:
    """Return the height, in pixels, to which `epoch` (from 1) resizes its training images, as `training.image_size` sets it.
    `side`: height of the data set's images.

    It grows from `image_size.begin` by `step`, each size for an equal part of the epochs before the fraction `full_from`; after that, in
    the last epoch, and if `image_size.begin` is not set or not below `side`, it is `side`. Evaluations always use `side`.
    """
    asked = training.image_size
    if asked.begin is None or asked.begin >= side or epoch >= training.epochs:
        return side
    sizes = range(asked.begin, side, asked.step)
    grown = int(len(sizes) * (epoch - 1) / (asked.full_from * training.epochs))
    return sizes[grown] if grown < len(sizes) else side


# --- calendar ---------------------------------------------------------------------------------------------------------
# Which epoch, round and minibatch come when.
#
# An epoch is a pass over a worker's minibatches; a round ends with a synchronisation, after `exchange.every` minibatches. Epochs count
# from 1 (epoch 0 is the untrained model), rounds from 0 through the whole run, which may end within its last epoch. Where local steps go
# on beyond an epoch's end, a round is several whole epochs, and bears the number of its last one: the one after which all hold one model,
# which is evaluated and decided upon.


@dataclass(frozen=True, slots=True)
class Calendar:
    """Arithmetic of a run's epochs, rounds and minibatches, for one worker. A round ends with a synchronisation. A "decision" is the point
    after an epoch (or after a round of several epochs) at which the model is evaluated and training may stop.

    `minibatches`: of one worker in an epoch; `sync_every`: minibatches of one worker in a round; `epochs`: of the run; `local`: whether
    workers take steps on their own models within a round; `steps`: number of rounds after which the run ends, None for all epochs.
    Computed: `span`, epochs between two decisions (above 1 if a round covers several); `rounds_per_epoch`, rounds between two decisions;
    `decisions` and `rounds`, their numbers in the run.
    """

    minibatches: int
    sync_every: int
    epochs: int
    local: bool = False
    steps: int | None = None

    # Counted once, since a simulation asks for them at every step.
    span: int = field(init=False)
    rounds_per_epoch: int = field(init=False)
    decisions: int = field(init=False)
    rounds: int = field(init=False)

    def __post_init__(self) -> None:
        """Compute the counts that follow from the fields: `span`, `rounds_per_epoch`, `decisions` and `rounds`."""
        object.__setattr__(self, "span", max(1, self.sync_every // self.minibatches))
        object.__setattr__(self, "rounds_per_epoch", -(-self.minibatches // self.sync_every))
        object.__setattr__(self, "decisions", self.decision_of_epoch(self.epochs))
        object.__setattr__(self, "rounds", self.rounds_until(self.epochs))

    def epoch_of_decision(self, number: int) -> int:
        """Return the epoch after which decision `number` (from 1) is made, and 0 for 0; the last decision follows the last epoch."""
        return min(number * self.span, self.epochs)

    def decision_of_epoch(self, epoch: int) -> int:
        """Return the number (from 1) of the decision made after `epoch`, or, within a round of several epochs, of the next one; 0 for epoch
        0.
        """
        return -(-epoch // self.span)

    def rounds_until(self, epoch: int) -> int:
        """Return the number of rounds from the start of the run to the decision after `epoch`; at most `steps`."""
        whole = self.decision_of_epoch(epoch) * self.rounds_per_epoch
        return whole if self.steps is None else min(whole, self.steps)

    def decisions_before(self, round: int) -> int:
        """Return the number of decisions made before `round` (from 0) begins; all of them if the run has no such round."""
        return self.decisions if round >= self.rounds else round // self.rounds_per_epoch

    def epochs_before(self, round: int) -> int:
        """Return the number of epochs completed at the last decision before `round`; 0 before the first decision. After the last decision
        it exceeds the run's `epochs` if these are no multiple of `span`.
        """
        return self.decisions_before(round) * self.span

    def epoch(self, round: int) -> int:
        """Return the epoch (from 1) that `round` belongs to; if it spans several, the last of them."""
        before = self.epochs_before(round)
        return max(before + 1, min(before + self.span, self.epochs))

    def first_minibatch(self, round: int) -> int:
        """Return the index of the round's first minibatch within its epoch."""
        return round % self.rounds_per_epoch * self.sync_every

    def minibatches_before(self, round: int) -> int:
        """Return the number of minibatches that one worker has computed in the run, over all epochs, before `round` (from 0) begins; rounds
        that were shorter count only what they had.
        """
        return self.epochs_before(round) * self.minibatches + self.first_minibatch(round)

    def minibatches_in(self, round: int) -> int:
        """Return the number of minibatches that a worker computes in `round`; the last round before a decision may have fewer than
        the others.
        """
        until = (self.epoch(round) - self.epochs_before(round)) * self.minibatches
        return min(self.sync_every, until - self.first_minibatch(round))

    def locate_minibatch(self, round: int, minibatch: int) -> tuple[int, int]:
        """Return (epoch from 1, index in that epoch from 0) of a minibatch. `minibatch`: its index within `round`."""
        epochs, number = divmod(self.minibatches_before(round) + minibatch, self.minibatches)
        return epochs + 1, number

    def list_minibatches(self, round: int) -> list[int]:
        """Return the indices, within their epoch, of the minibatches of `round`, in order; a round of several epochs repeats them."""
        first = self.first_minibatch(round)
        return [number % self.minibatches for number in range(first, first + self.minibatches_in(round))]

    def count_parallel(self, round: int) -> int:
        """Return how many functions may compute minibatches of one worker's round at the same time: 1 if workers take local steps,
        otherwise the number of minibatches.
        """
        return 1 if self.local else self.minibatches_in(round)

    def ends_epoch(self, round: int) -> bool:
        """Return whether an evaluation and decision follow `round`."""
        return (round + 1) % self.rounds_per_epoch == 0 or round + 1 == self.rounds


# --- chunking ---------------------------------------------------------------------------------------------------------
# A flat vector of D elements cut into consecutive parts: ScatterReduce's chunks, one per worker, and what P2P's functions average.

PART_BYTES = 64 * 2**20  # of a gradient, for one averaging function: it reads so much of every batch's


def list_chunk_sizes(elements: int, workers: int) -> list[int]:
    """Return the sizes of the chunks into which a vector of `elements` is cut, one per worker: elements // workers each, and one more for
    the first elements % workers. Raises ValueError if there is no worker.
    """
    if workers < 1 or elements < 0:
        raise ValueError(f"chunks: {elements} elements for {workers} workers; at least 0 and 1 are needed")
    return [elements // workers + (worker < elements % workers) for worker in range(workers)]


def chunk_slice(elements: int, workers: int, *, worker: int, unit: int = 1) -> slice:
    """Return the slice of a vector of `elements` that belongs to `worker` (from 0) out of `workers`: consecutive chunks of nearly equal
    size, of which later ones may be shorter or empty. Raises ValueError if there is no such worker.

    `unit`: number of elements that are never separated, such as a quantizer's bucket.
    """
    if not 0 <= worker < workers:
        raise ValueError(f"worker: {worker}; 0 to {workers - 1} is expected")
    sizes = list_chunk_sizes(-(-elements // unit), workers)
    start = unit * sum(sizes[:worker])
    return slice(min(start, elements), min(start + unit * sizes[worker], elements))


def split_into_parts(elements: int, *, most: int) -> list[slice]:
    """Return the consecutive slices, together the whole of a vector of `elements` float32, that functions average in parallel: as few as
    keep each at 64 MiB or less, but at most `most`, and at least one. Their lengths differ by one at most.

    Each function sums its slice over all minibatches in order, so the result has the bits of one long mean.
    """
    count = max(1, min(most, -(-4 * elements // PART_BYTES)))
    bounds = [elements * each // count for each in range(count + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(bounds)]


# --- knee -------------------------------------------------------------------------------------------------------------
# When the loss has stopped falling fast: the knee of its curve, and what the next seconds can still be expected to bring.
#
# MLLess's scale-in auto-tuner removes a worker once the loss is past its knee and fewer workers would lose little. Plain numbers, no
# torch: the supervisor that decides is a small function.

SPAN = 20  # of the smoothing, in steps


def smooth(losses: Sequence[float], *, span: int = SPAN) -> list[float]:
    """Return for each of `losses` the exponentially weighted moving average up to it, with alpha = 2 / (span + 1). The weights are
    normalised, so the average is not biased towards 0 at the start. Raises ValueError if `span` is below 1.
    """
    if span < 1:
        raise ValueError(f"span: {span}; at least 1 is expected")
    keep = 1 - 2 / (span + 1)
    total, weight, result = 0.0, 0.0, []
    for loss in losses:
        total, weight = keep * total + loss, keep * weight + 1
        result.append(total / weight)
    return result


def find_knee(losses: Sequence[float], *, sensitivity: float = 0.1) -> int | None:
    """Return the index of the knee of a falling loss curve, its point furthest below the line between its ends; None if it has no
    knee.

    Both axes are scaled to 0..1 (Satopaa et al., "Finding a 'Kneedle' in a Haystack", 2011). The knee counts only if it is at least
    `sensitivity` below the line. A curve that does not fall, or has fewer than 3 values, has none.
    """
    last = len(losses) - 1
    if last < 2:
        return None
    fall = losses[0] - losses[last]
    if not fall > 0:
        return None
    below = [(1 - i / last) - (loss - losses[last]) / fall for i, loss in enumerate(losses)]
    deepest = max(range(last + 1), key=below.__getitem__)
    return deepest if 0 < deepest < last and below[deepest] >= sensitivity else None


def predict_reduction(times_s: Sequence[float], losses: Sequence[float], *, ahead_s: float) -> float:
    """Return the fraction of the present loss that the next `ahead_s` seconds are expected to remove (0.1: ten percent), at least
    0. `times_s`: time in seconds at which each of `losses` was measured; ValueError if their numbers differ.

    A straight line is fitted to log(loss) over time by least squares, so the loss shrinks by an equal fraction in equal times.
    Returns 1.0 if there are fewer than 2 different times or a loss is not positive, so that no worker is removed without evidence.
    """
    if len(times_s) != len(losses):
        raise ValueError(f"times: {len(times_s)} for {len(losses)} losses; one each is needed")
    if len(losses) < 2 or min(losses) <= 0:
        return 1.0
    middle_s = sum(times_s) / len(times_s)
    spread = sum((t - middle_s) ** 2 for t in times_s)
    if spread <= 0:
        return 1.0
    slope = sum((t - middle_s) * log(loss) for t, loss in zip(times_s, losses, strict=True)) / spread
    return max(0.0, 1 - exp(slope * ahead_s))
