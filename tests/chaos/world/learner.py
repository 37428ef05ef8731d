"""The exact learner: a gradient that is a keyed hash of its inputs, in values of which any sum is exact.

So a run's last bits depend on every bit of every model, on which samples were used by whom, when, and nothing else; not on the machine. One
gradient that is lost, doubled or stale changes all of what follows.
"""

import hashlib
import struct
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from crossover.algorithms import buffers
from crossover.experiment import Experiment
from crossover.learning.batches import Batch
from crossover.learning.learner import Evaluation
from crossover.learning.samples import NO_CLASS, Dataset
from crossover.learning.staging import Minibatches, plan_staging

PARAMETERS, BUFFERS = 10, 2
_STEPS = 64  # a gradient's values are multiples of 1/64 between -1 and 1: with a rate of 2**-k, sums of thousands are exact in float32


class ExactLearner:
    """A learner with the interface of `crossover.learning.learner.Learner` whose results are exact. `computes`: called with the number of
    samples and whether a gradient is computed, to let the computing time pass; `sizes`: number of parameters and of buffers; `own`: returns
    what the gradients of the calling process depend on beside their inputs.
    """

    def __init__(
        self,
        experiment: Experiment,
        *,
        slot: Callable[[], AbstractContextManager[object]] = nullcontext,
        computes: Callable[..., None] = lambda samples, *, gradient: None,
        sizes: tuple[int, int] = (PARAMETERS, BUFFERS),
        own: Callable[[], bytes] = bytes,
    ) -> None:
        """Create a learner whose model is all zeros until `initialise_model`. `slot`: returns the context manager in which it computes; the
        other arguments are explained at the class.
        """
        self.slot, self._seed, self._computes, self._own = slot, experiment.seed, computes, own
        self.parameters, self.buffers = sizes
        self.loss_scale = None  # it computes in float32
        rows = (self.parameters - 2) // 2
        self.shapes = ((rows, 2), (self.parameters - 2 * rows,))  # a matrix and a bias
        self._model, self._gradient = torch.zeros(sum(sizes)), torch.zeros(sum(sizes))
        self.model_vector, self.gradient_vector = self._model, self._gradient
        self.model, self.gradient = buffers.view(self._model), buffers.view(self._gradient)

    def initialise_model(self) -> memoryview:
        """Set the model to the initial one, which depends only on `experiment.seed`, and return it."""
        self._model.copy_(_hashed("model", self._seed, b"", len(self._model)))
        return self.model

    def compute_gradient(self, batch: Batch, *, epoch: int, round: int, worker: int, minibatch: int) -> float:
        """Compute a gradient that depends on the model, the samples and all arguments, and return its loss."""
        with self.slot():
            self._computes(batch.samples, gradient=True)
        said = struct.pack("<4q", epoch, round, worker, minibatch) + _samples(batch)
        inputs = said + self.model.tobytes() + self._own()
        self._gradient.copy_(_hashed("gradient", self._seed, inputs, len(self._model)))
        return _number("loss", said + self.model.tobytes())

    def evaluate(self, batches: Iterable[Batch]) -> Evaluation:
        """Return an evaluation that depends on the model and the samples."""
        samples, said = 0, self.model.tobytes()
        for batch in batches:
            with self.slot():
                self._computes(batch.samples, gradient=False)
            samples, said = samples + batch.samples, said + _samples(batch)
        return Evaluation(_number("loss", said), _number("metric", said), samples)

    def try_out(self, batch: Batch) -> None:
        """Do nothing, because there is no user code to try."""


def samples_of(
    experiment: Experiment, *, minibatches: int, size: int = 2, missing: int = 0, unlabelled: int = 0
) -> Dataset:
    """Return a data set of `minibatches` minibatches per worker, of `size` samples each; every sample is one value, derived from its
    number. `missing`: by how many samples there are fewer, if no minibatch becomes empty. `unlabelled`: number of workers whose first
    minibatch has no labels.
    """
    count = experiment.workers * minibatches * size - min(missing, experiment.workers * (size - 1))
    inputs = (torch.arange(count + 2) % 256).to(torch.uint8).view(-1, 1, 1, 1)
    labels = torch.zeros(count + 2, dtype=torch.int64)
    said = f"{count} {experiment.workers} {size} {experiment.seed}" + f" {unlabelled}" * bool(unlabelled)
    fingerprint = hashlib.sha256(said.encode()).hexdigest()
    made = Dataset(inputs[:count], labels[:count], inputs[count:], labels[count:], 2, "exact", fingerprint)
    cut = Minibatches(experiment, made, plan_staging(experiment, count))
    for worker in range(min(unlabelled, experiment.workers)):
        made.train_labels[cut.build_minibatch(worker, 0).sample_ids] = NO_CLASS
    return made


def _samples(batch: Batch) -> bytes:
    """Return the bytes that identify a batch: the ids of its samples, and their inputs."""
    return bytes(buffers.view(batch.sample_ids)) + bytes(buffers.view(batch.inputs))


def _hashed(what: str, seed: int, said: bytes, count: int) -> Tensor:
    """Return `count` values (at most 64) that are a hash of `said` under the key `what` and the seed."""
    digest = hashlib.blake2b(said, digest_size=64, key=f"{what} {seed}".encode()).digest()
    values = [(byte % (2 * _STEPS + 1) - _STEPS) / _STEPS for byte in digest[:count]]
    return torch.tensor(values)


def _number(what: str, said: bytes) -> float:
    """Return a number from 0 to just below 1, in steps of 1/256, that is a hash of `said` under the key `what`."""
    return hashlib.blake2b(said, digest_size=1, key=what.encode()).digest()[0] / 256
