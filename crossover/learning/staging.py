"""Staging: the training set cut into one object per minibatch, the validation set into chunks, and a manifest that says what is there.

`plan` is arithmetic on counts alone; only `stage` needs torch, which it imports when it is called.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from crossover.errors import ConfigError, DataError
from crossover.experiment import Experiment
from crossover.stores import keys

if TYPE_CHECKING:  # torch is heavy, and a plan is made in places that lack it
    from crossover.learning.batches import Batch
    from crossover.learning.samples import Dataset

VALIDATION_CHUNK = 1024  # samples


class Store(Protocol):
    """Protocol of the part of an object store that staging needs. Its methods raise Refused for a request that is not allowed and
    Unavailable if the store does not answer.
    """

    def exists(self, key: str) -> bool:
        """Return whether the key exists."""

    def put(self, key: str, data: bytes) -> None:
        """Store `data` under `key`, replacing an older object."""


@dataclass(frozen=True, slots=True)
class StagingPlan:
    """Assignment of training samples to minibatches. `partitions[worker][minibatch]` is a range of positions in the seeded
    permutation of the samples.
    """

    partitions: tuple[tuple[range, ...], ...]

    @property
    def minibatches(self) -> int:
        """Minibatches per worker and epoch, equal for every worker."""
        return len(self.partitions[0])

    @property
    def counts(self) -> list[list[int]]:
        """Number of samples of each minibatch, as a list per worker."""
        return [[len(part) for part in partition] for partition in self.partitions]


def plan_staging(experiment: Experiment, n_train: int) -> StagingPlan:
    """Return the plan that cuts the samples into one contiguous partition per worker, which differ by at most one sample, and each
    partition into minibatches. The last minibatch may be smaller, unless `data.drop_last` leaves it out.

    `n_train`: number of training samples. Raises ConfigError, with values that would work, if workers would have different numbers
    of minibatches, or none, or if `check_rounds` raises it.
    """
    workers, batch_size, drop_last = experiment.workers, experiment.training.batch_size, experiment.data.drop_last
    largest = _list_partition_sizes(n_train, workers)[0]
    if 0 < largest < batch_size:
        raise ConfigError(
            f"training.batch_size: {batch_size} is larger than a worker's partition of {largest} samples"
            f" ({n_train} among {workers} workers); at most {largest} is expected, or fewer workers"
        )
    minibatches = count_minibatches(n_train, workers, batch_size, drop_last=drop_last)
    if minibatches is None:
        raise ConfigError(_suggest_sizes(n_train, workers, batch_size, drop_last=drop_last))
    check_rounds(experiment, minibatches)
    partitions, start = [], 0
    for size in _list_partition_sizes(n_train, workers):
        ends = range(start, start + size - (size % batch_size if drop_last else 0), batch_size)
        partitions.append(tuple(range(first, min(first + batch_size, start + size)) for first in ends))
        start += size
    return StagingPlan(tuple(partitions))


def check_rounds(experiment: Experiment, minibatches: int) -> None:
    """Raise ConfigError if `exchange.every` or `training.steps` does not fit an epoch of `minibatches` minibatches per worker.

    `exchange.every` may exceed an epoch only if models or deltas are exchanged, and only as a number of whole epochs within the
    run; `training.steps` must end in the last epoch.
    """
    _check_every(experiment, minibatches)
    steps, epochs, every = experiment.training.steps, experiment.training.epochs, experiment.exchange.every
    if steps is None or every is None:
        return
    rounds = 1 if every == "epoch" else -(-minibatches // every)
    needed = -(-steps // rounds)
    if needed != epochs:
        raise ConfigError(
            f"training.steps: {steps} end in epoch {needed}, since an epoch has {rounds}, and training.epochs is {epochs}; expected "
            f"training.epochs={needed}, or {(epochs - 1) * rounds + 1} to {epochs * rounds} steps"
        )


def _check_every(experiment: Experiment, minibatches: int) -> None:
    """Raise ConfigError if `exchange.every` is more than an epoch's `minibatches`, unless models or deltas are exchanged and it is
    a number of whole epochs within the run.
    """
    every, what, epochs = experiment.exchange.every, experiment.exchange.what, experiment.training.epochs
    if not isinstance(every, int) or every <= minibatches:
        return
    said = f"exchange.every: {every} is more than the {minibatches} minibatches that each worker has in an epoch"
    if what == "gradients":
        raise ConfigError(
            f"{said}; at most {minibatches} is expected, or epoch, which is all of them; only local steps, exchange.what: model or delta "
            "where an architecture has them, go on beyond an epoch's end"
        )
    if every % minibatches or every > minibatches * epochs:
        below = min(every // minibatches, epochs) * minibatches
        above = [below + minibatches] if below < every and below < minibatches * epochs else []
        raise ConfigError(
            f"{said}, and not a number of whole epochs within the {epochs} of the run (training.epochs); "
            f"{' or '.join(map(str, [below, *above]))} is expected"
        )


def _list_partition_sizes(n_train: int, workers: int) -> list[int]:
    """Return the number of training samples of each worker, by rank; they differ by at most one."""
    return [n_train // workers + (worker < n_train % workers) for worker in range(workers)]


def count_minibatches(n_train: int, workers: int, batch_size: int, *, drop_last: bool) -> int | None:
    """Return the number of minibatches per worker and epoch. Returns None if workers would have different numbers, if it would be
    0, or if `batch_size` is larger than the largest partition.

    `n_train`: number of training samples; `drop_last`: whether a last, smaller minibatch is left out.
    """
    if batch_size > _list_partition_sizes(n_train, workers)[0]:
        return None
    numbers = {
        size // batch_size if drop_last else -(-size // batch_size)
        for size in set(_list_partition_sizes(n_train, workers))
    }
    return numbers.pop() or None if len(numbers) == 1 else None


def _suggest_sizes(n_train: int, workers: int, batch_size: int, *, drop_last: bool) -> str:
    """Return the error text for a batch size and number of workers that do not work together, with the nearest values of each that do.
    `drop_last`: value of `data.drop_last`.
    """

    def is_possible(workers: int, batch_size: int) -> bool:
        """Return whether every worker would get the same number of minibatches of the `n_train` samples, at least one. False also if
        `batch_size` is larger than the largest partition, which `plan_staging` refuses by another ConfigError.
        """
        return count_minibatches(n_train, workers, batch_size, drop_last=drop_last) is not None

    batch_sizes = _find_nearest(batch_size, range(1, n_train + 1), lambda value: is_possible(workers, value))
    worker_counts = _find_nearest(workers, range(1, min(64, n_train) + 1), lambda value: is_possible(value, batch_size))
    choices = [
        f"{name} {' or '.join(map(str, values))}"
        for name, values in (("training.batch_size", batch_sizes), ("workers", worker_counts))
        if values
    ]
    return (
        f"training.batch_size: {batch_size} does not give each of {workers} workers the same number of minibatches, at least one, of"
        f" {n_train} training samples{' with data.drop_last' if drop_last else ''}; {', or '.join(choices) or 'more samples'} would do"
    )


def _find_nearest(value: int, candidates: range, is_possible: Callable[[int], bool]) -> list[int]:
    """Return the nearest candidates below and above `value` for which `is_possible` is true: two numbers in this order, one or none.
    `value` itself is not tried. `candidates`: must ascend; `is_possible`: takes a candidate.
    """
    below = next((c for c in reversed(candidates) if c < value and is_possible(c)), None)
    above = next((c for c in candidates if c > value and is_possible(c)), None)
    return [c for c in (below, above) if c is not None]


def stage(
    experiment: Experiment,
    dataset: "Dataset",
    stores: Sequence[Store],
    *,
    answers: "Callable[[Batch], int] | None" = None,
) -> dict[str, Any]:
    """Write to the stores the minibatches, the validation chunks and, last, the manifest of `dataset`, and return the manifest: name,
    classes, shape, scaling, and the numbers of minibatches, chunks, samples and counted labels. Objects that exist are not written again; a
    store that has the manifest is skipped. The returned manifest is computed anew in any case.

    The experiment decides how samples are cut into minibatches. `stores`: one for all workers, or one per worker by rank. `answers`: counts
    the labels of a minibatch that a user's loss counts. Raises DataError if no label of the training samples counts, ConfigError as
    `plan_staging` does.
    """
    from crossover.learning import samples, scaling

    plan_ = plan_staging(experiment, len(dataset.train_labels))
    chunks = range(0, len(dataset.validation_labels), VALIDATION_CHUNK)
    minibatches = Minibatches(experiment, dataset, plan_)
    counts = minibatches.count_answers(answers)
    if not any(map(any, counts)):
        raise DataError(f"data.dataset: {dataset.name}: no label of the training samples asks for an answer")
    manifest = {
        "dataset": dataset.name,
        "classes": dataset.classes,
        "input_shape": list(dataset.train_inputs.shape[1:]),
        "affine": {**samples.get_affine_map(dataset, experiment.data.preprocess), **scaling.to_manifest(dataset.scale)},
        "minibatches": plan_.minibatches,
        "counts": counts,
        "validation_chunks": len(chunks),
        "train_samples": sum(map(sum, plan_.counts)),
        "validation_samples": len(dataset.validation_labels),
    }
    for rank, store in enumerate(stores):
        if store.exists(keys.data_manifest(dataset.fingerprint)):
            continue
        for worker in range(experiment.workers) if len(stores) == 1 else (rank,):
            for number in range(plan_.minibatches):
                key = keys.minibatch(dataset.fingerprint, worker, number)
                _store_batch(store, key, lambda w=worker, m=number: minibatches.build_minibatch(w, m))  # type: ignore[misc]
        for number in range(len(chunks)):
            key = keys.validation_chunk(dataset.fingerprint, number)
            _store_batch(store, key, lambda c=number: minibatches.build_validation_chunk(c))  # type: ignore[misc]
        store.put(keys.data_manifest(dataset.fingerprint), json.dumps(manifest).encode())
    return manifest


class Minibatches:
    """Minibatches of a data set as a staging plan cuts them; each is built when it is asked for."""

    def __init__(self, experiment: Experiment, dataset: "Dataset", plan: StagingPlan) -> None:
        """Draw the order of the training samples of `dataset` from the experiment's seed; `plan` cuts that order."""
        import torch

        from crossover.algorithms.schedule import derive_seed, permute

        self._experiment, self._dataset, self._plan = experiment, dataset, plan
        order = permute(len(dataset.train_labels), seed=derive_seed("staging", experiment.seed))
        self._order = torch.tensor(order, dtype=torch.int64)

    def count_answers(self, of: "Callable[[Batch], int] | None" = None) -> list[list[int]]:
        """Return the number of labels that the loss counts in each minibatch, as a list per worker; the minibatch weighs so much in a mean.
        `of`: counts them for one minibatch, for a user's loss. Without it, labels other than -100 are counted for cross entropy, and
        samples for another loss.
        """
        from crossover.learning.learner import mask_answered

        if of is not None:
            minibatches = range(self._plan.minibatches)
            return [
                [of(self.build_minibatch(worker, m)) for m in minibatches]
                for worker in range(len(self._plan.partitions))
            ]
        if self._experiment.training.loss != "cross_entropy":
            return self._plan.counts
        each = mask_answered(self._dataset.train_labels).reshape(len(self._order), -1).sum(1)[self._order].tolist()
        return [[sum(each[part.start : part.stop]) for part in partition] for partition in self._plan.partitions]

    def build_minibatch(self, worker: int, minibatch: int) -> "Batch":
        """Return one training minibatch of `worker`, both numbered from 0, without `answers`. Padding is cut to its longest sequence. If
        the experiment simulates that worker as faulty by `label_flip`, its labels are flipped.
        """
        from crossover.algorithms.robust import flip_labels
        from crossover.learning.batches import Batch
        from crossover.learning.samples import trim_padding

        part = self._plan.partitions[worker][minibatch]
        ids = self._order[part.start : part.stop]
        labels = self._dataset.train_labels[ids]
        faults = self._experiment.faults
        if faults.attack == "label_flip" and worker in faults.workers and self._dataset.classes is not None:
            labels = flip_labels(labels, classes=self._dataset.classes)
        return Batch(*trim_padding(self._dataset.train_inputs[ids], labels), ids)

    def build_validation_chunk(self, chunk: int) -> "Batch":
        """Return the validation chunk number `chunk` (from 0), of up to 1,024 samples in the data set's order."""
        import torch

        from crossover.learning.batches import Batch
        from crossover.learning.samples import trim_padding

        part = slice(chunk * VALIDATION_CHUNK, (chunk + 1) * VALIDATION_CHUNK)
        labels = self._dataset.validation_labels[part]
        ids = torch.arange(len(labels)) + part.start
        return Batch(*trim_padding(self._dataset.validation_inputs[part], labels), ids)


def take_first_samples(dataset: "Dataset") -> "Batch":
    """Return a batch of the first two training samples, with which to try a model; of padded sequences, the shortest and the longest."""
    import torch

    from crossover.learning.batches import Batch
    from crossover.learning.samples import PADDING, has_padding

    ids = torch.arange(len(dataset.train_labels[:2]))
    if has_padding(dataset.train_inputs):
        lengths = (dataset.train_inputs != PADDING).sum(1)
        ids = torch.stack([lengths.argmin(), lengths.argmax()])
    return Batch(dataset.train_inputs[ids], dataset.train_labels[ids], ids)


def _store_batch(store: Store, key: str, batch: Callable[[], "Batch"]) -> None:
    """Build a minibatch by calling `batch` and store it under `key`; do nothing if the key exists."""
    from crossover.learning.batches import encode_batch

    if not store.exists(key):
        store.put(key, encode_batch(batch()))
