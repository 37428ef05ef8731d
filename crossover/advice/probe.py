"""Measurement of the user's model and data on this machine for a minute. Only the ratio to MobileNet's step, measured alternately
in the same way, is carried over to AWS, because this machine's speed says nothing of a function there.
"""

import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from crossover.advice.own_speed import KNOWN, Probe
from crossover.experiment import Data, Experiment, ImageSize, Training
from crossover.learning.batches import Batch
from crossover.learning.datasets import Dataset, load
from crossover.learning.learner import Learner, adapt_to_processor, learner_for
from crossover.learning.memory import find_free_bytes, release_freed_memory
from crossover.learning.staging import take_first_samples

IMAGE = (3, 32, 32)
KNOWN_BATCH = 32
LEAST_PAIRS = 3
MOST_SORTED = 4_000_000  # elements of a gradient: of a larger one only as many are looked at, evenly spread; sorting takes 16 bytes each
MOST_S = 8.0  # after which a turn is the last, even if there were fewer than LEAST_PAIRS
QUICK_S = 1.0  # of a minibatch: a minute holds a few of them in turn
FEWEST, GROWING = 2, 4  # samples of the first minibatch that is tried, and how many times as many the next one has
MOST_OF_FREE = 0.5  # of the memory that is free, which a minibatch may take
QUIET = 1.4  # times as quick with two threads MobileNet is where both have a core; 1.87 were measured
LEAST_SHARE = 0.1  # of a minibatch that its samples take: less is noise


def probe(experiment: Experiment, *, least_s: float) -> Probe:
    """Measure the processor time of gradients on this machine for at least `least_s` seconds of this thread's processor time, and return
    the result. In each turn the user's model (with two sizes of minibatch, and with two threads) and MobileNet compute alternately. There
    are at least LEAST_PAIRS turns, unless these take longer than MOST_S. Leaves PyTorch with one thread in this process. Raises the errors
    of loading data and model.
    """
    # Images as they are: what smaller ones save of a run is the workload's training_share.
    own, known = (
        replace(experiment, training=replace(experiment.training, threads=1, image_size=ImageSize())),
        _make_known_learner(),
    )
    dataset = load(own)
    start_s = time.process_time()
    release_freed_memory()
    learner = learner_for(adapt_to_processor(own), dataset)
    learner.initialise_model()
    most = min(experiment.training.batch_size, len(dataset.train_labels))
    small, large, sample_bytes = _choose_batches(learner, dataset, most)
    _time_gradient_s(known, _draw_images(), 0)
    began, turns, known_twice = time.thread_time(), list[tuple[float, float, float, float]](), list[float]()
    while not turns or time.thread_time() - began < (least_s if len(turns) >= LEAST_PAIRS else max(least_s, MOST_S)):
        n = len(turns)
        alone = _time_gradient_s(learner, large, n)
        torch.set_num_threads(2)
        with_two, known_with_two = _time_gradient_s(learner, large, n), _time_gradient_s(known, _draw_images(), n)
        torch.set_num_threads(1)
        again = _time_gradient_s(learner, small, n) if small is not large else alone
        turns.append((alone, again, with_two, _time_gradient_s(known, _draw_images(), n) / KNOWN_BATCH))
        known_twice.append(turns[-1][-1] * KNOWN_BATCH / known_with_two)
    more = len(large.labels) - len(small.labels)
    samples_s = [(a - b) / more if more else a / len(large.labels) for a, b, _, _ in turns]
    ratios = [sample_s / known_s for sample_s, (*_, known_s) in zip(samples_s, turns, strict=True)]
    middle = statistics.median(
        a / len(large.labels) / known_s for a, _, _, known_s in turns
    )  # never below what all of it takes
    ratio = min(middle, max(statistics.median(ratios), LEAST_SHARE * middle))
    return Probe(
        ratio=ratio,
        spread=statistics.pstdev(ratios) / ratio,
        pairs=len(turns),
        batch_size=len(large.labels),
        seconds=statistics.median(a for a, *_ in turns),
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024,
        batch_ratio=(middle - ratio) * len(large.labels),
        two_threads=statistics.median(a / two for a, _, two, _ in turns)
        if statistics.median(known_twice) >= QUIET
        else None,
        sample_bytes=sample_bytes,
        largest=_largest_elements_share(learner),
        of_samples=experiment.training.batch_size if len(large.labels) < most else 0,
        start_s=start_s,
    )


def _choose_batches(learner: Learner, dataset: Dataset, most: int) -> tuple[Batch, Batch, float]:
    """Return (small minibatch, large minibatch, bytes): two minibatches of the user's data, as large as `most` samples, QUICK_S and free
    memory allow, and the memory that each further sample needs. If only FEWEST samples are possible, both minibatches are the same and the
    bytes are 0. Computes gradients to find out.
    """

    def of(count: int) -> Batch:
        """Return a minibatch of the first `count` samples, of which the training set must have so many."""
        return Batch(dataset.train_inputs[:count], dataset.train_labels[:count], torch.arange(count))

    if most <= FEWEST:
        return (two := take_first_samples(dataset)), two, 0.0
    spent_s = list[float]()

    def compute(batch: Batch) -> None:
        """Compute a gradient of the minibatch and note its processor seconds."""
        spent_s.append(_time_gradient_s(learner, batch, 0))

    compute(of(FEWEST))  # torch prepares much once, which would pass for a slow model
    count = FEWEST  # a large model's step takes seconds and gigabytes for each sample
    while count < most:
        peak = _measure_peak_bytes(partial(compute, of(count)))
        if spent_s[-1] >= QUICK_S / GROWING or GROWING * peak > MOST_OF_FREE * find_free_bytes():
            break
        count = min(most, GROWING * count)
    if count == FEWEST:
        return (few := of(FEWEST)), few, 0.0
    small, large = of(max(2, count // 8)), of(count)
    peaks = [_measure_peak_bytes(partial(_time_gradient_s, learner, each, 0)) for each in (small, large)]
    return small, large, max(0.0, (peaks[1] - peaks[0]) / max(1, count - len(small.labels)))


def _measure_peak_bytes(work: Callable[[], object]) -> int:
    """Call `work` and return the process's peak memory in bytes during the call; 0 if the platform does not report it, in which case `work`
    may not have been called.
    """
    release_freed_memory()  # what an earlier step freed and the process keeps would hide this one's
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # Linux: the peak begins anew
        work()
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return 1_024 * next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def _largest_elements_share(learner: Learner) -> float:
    """Return the share, from 0 to 1, of the squared norm of the learner's last gradient that the largest hundredth of its elements (at
    least one) holds; 0 for a gradient of zeros. It tells how well the gradient can be compressed. Of a gradient with twice MOST_SORTED
    elements or more, only evenly spread ones are used.
    """
    squares = torch.frombuffer(learner.gradient, dtype=torch.float32)[
        : learner.parameters : max(1, learner.parameters // MOST_SORTED)
    ].square()
    count = max(1, len(squares) // 100)
    return float(squares.topk(count).values.sum() / squares.sum().clamp_min(1e-30))


def _time_gradient_s(learner: Learner, batch: Batch, round: int) -> float:
    """Compute one gradient of the minibatch with the learner, and return the processor seconds of this thread. `round`: number of the
    training round, which the learner takes.
    """
    began = time.thread_time()
    learner.compute_gradient(batch, epoch=1, round=round, worker=0, minibatch=0)
    return time.thread_time() - began


def _make_known_learner() -> Learner:
    """Return a learner for MobileNet on images of CIFAR-10's shape, with initial weights, with which the user's model is compared."""
    setting = Experiment(
        name="probe",
        architecture="single",
        training=Training(model=KNOWN, batch_size=KNOWN_BATCH),
        data=Data(dataset="cifar10"),
    )
    ones, zeros = [1.0] * IMAGE[0], [0.0] * IMAGE[0]
    learner = Learner(setting, classes=10, input_shape=IMAGE, affine={"scale": ones, "shift": zeros})
    learner.initialise_model()
    return learner


def _draw_images() -> Batch:
    """Return a minibatch of KNOWN_BATCH random images of CIFAR-10's shape, always the same ones."""
    ids = torch.arange(KNOWN_BATCH)
    return Batch(
        torch.randint(0, 255, (KNOWN_BATCH, *IMAGE), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)),
        ids % 10,
        ids,
    )
