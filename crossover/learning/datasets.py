"""Data sets by name: loaded, split and fingerprinted on the machine that stages them.

digits (scikit-learn's 8x8 digits), mnist, cifar10, or `package.module:loader`. This module may use numpy through scikit-learn; no step
imports it.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict

import torch
from torch import Tensor

from crossover import own_code
from crossover.algorithms import buffers
from crossover.algorithms.seeds import permutation, seed
from crossover.errors import ConfigError, DataError
from crossover.experiment import Experiment
from crossover.learning import cifar10, fitness, mnist, sizes
from crossover.learning.samples import Dataset, Samples, padded

__all__ = ["Dataset", "Samples", "load", "training_samples"]

_STAGING_FORMAT = 1  # raise it when the staged bytes change, so that old ones are not taken for new ones


def training_samples(experiment: Experiment) -> int:
    """How many the experiment trains on; loaded where only that tells. Raises as `load`."""
    known = sizes.split(experiment)
    return known[0] if known else len(load(experiment).train_labels)


def load(experiment: Experiment) -> Dataset:
    """The experiment's data set. Raises DataError (missing, damaged, unfit) or ConfigError (unknown name, a split that is not there)."""
    samples, loader = _samples(experiment)
    fitness.check(samples, experiment, loader=loader)
    training, validation = _split(samples, experiment)
    return Dataset(
        *training,
        *validation,
        samples.classes,
        experiment.data.dataset,
        _fingerprint(experiment, *training, *validation),
    )


def _samples(experiment: Experiment) -> tuple[Samples, Callable[..., object] | None]:
    """What the experiment's loader returned, and the loader where it is the user's own."""
    name = experiment.data.dataset
    match name:
        case "digits":
            return _digits(), None
        case "mnist":
            images, labels, test_images, test_labels = mnist.read(experiment.data.directory)
            return Samples(images, labels, 10, test_images, test_labels), None
        case "cifar10":
            images, labels, test_images, test_labels = cifar10.read(experiment.data.directory)
            return Samples(images, labels, 10, test_images, test_labels), None
    if ":" not in name:
        raise ConfigError(f"data.dataset: {name!r} is unknown; one of digits, mnist, cifar10, or package.module:loader")
    loader = own_code.load(name, field="data.dataset")
    with own_code.blame("data.dataset", name, what=loader):
        samples: Samples = loader(experiment)
    return padded(samples), loader


def _digits() -> Samples:
    """1,797 images of 8x8 pixels, 0 to 16 (UCI optical recognition of handwritten digits, test part), shipped with scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError("digits: scikit-learn is not installed; pip install scikit-learn") from error
    bunch = load_digits()
    images = torch.tensor(bunch.images.tolist(), dtype=torch.uint8).unsqueeze(1)
    return Samples(images, torch.tensor(bunch.target.tolist(), dtype=torch.int64), 10)


Split = tuple[Tensor, Tensor]


def _split(samples: Samples, experiment: Experiment) -> tuple[Split, Split]:
    """The training and the validation part: the published test split, or a seeded share of the training samples."""
    share, count = experiment.data.validation, len(samples.labels)
    ids = permutation(count, seed=seed("split", experiment.seed))
    if share == "test":
        if samples.test_inputs is None or samples.test_labels is None:
            raise ConfigError(f"data.validation: {experiment.data.dataset} has no test split; give a share such as 0.2")
        validation, kept = (samples.test_inputs, samples.test_labels), ids
    else:
        held = sizes.held_out(count, share)
        chosen = torch.tensor(ids[:held], dtype=torch.int64)
        validation, kept = (samples.inputs[chosen], samples.labels[chosen]), ids[held:]
    rest = torch.tensor(sorted(kept[: experiment.data.limit]), dtype=torch.int64)
    return (samples.inputs[rest].contiguous(), samples.labels[rest].contiguous()), validation


def _fingerprint(experiment: Experiment, *tensors: Tensor) -> str:
    """A hash of everything that decides what is staged: the samples themselves and each setting that cuts or changes them."""
    flips = asdict(experiment.faults) if experiment.faults.attack == "label_flip" else {}
    settings = asdict(experiment.data) | {"directory": None, "augment": None}
    settings |= {"workers": experiment.workers, "batch_size": experiment.training.batch_size, "seed": experiment.seed}
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([_STAGING_FORMAT, settings, flips], sort_keys=True).encode())
    for tensor in tensors:
        digest.update(json.dumps([str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(buffers.view(tensor.contiguous()))
    return digest.hexdigest()
