"""Whether a data set can be staged and trained on as the experiment says, told before anything starts.

What a loader of the user's own returned wrongly is told as theirs, with the file and line of the loader.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from crossover.errors import ConfigError, DataError
from crossover.experiment import Experiment
from crossover.learning import batch, sizes
from crossover.learning.affine import is_measured
from crossover.learning.models import registry
from crossover.learning.samples import NO_CLASS, Dataset, Samples
from crossover.own_code import faults

FIELD = "data.dataset"


def check(samples: Samples, experiment: Experiment, *, loader: Callable[..., object] | None) -> None:
    """Raises OwnCodeError or DataError for samples that are none, ConfigError for settings that they do not take."""
    name = experiment.data.dataset
    if problem := _malformed(samples) or _unfit(samples, experiment):
        if loader is None:
            raise DataError(f"{FIELD}: {name}: {problem}")
        raise faults.told(FIELD, name, problem, place=faults.of_definition(loader))
    if problem := _impossible(samples, experiment):
        raise ConfigError(problem)


def description(dataset: Dataset, *, preprocess: str) -> str:
    """Samples, their shapes and dtypes, and what becomes of them on their way to the model."""
    inputs, labels = dataset.train_inputs, dataset.train_labels
    measured = f"{preprocess} by channel" if preprocess != "none" else "as they are"
    fate = measured if is_measured(inputs) else "as they are: whole numbers, so names"
    classes = f", {dataset.classes} classes" if dataset.classes else ""
    counts = f"{len(labels):,} samples to train on, {len(dataset.validation_labels):,} to validate"
    return f"{counts}; inputs: {_rows(inputs)}, {fate}; labels: {_rows(labels)}{classes}"


def _malformed(samples: Any) -> str:
    """What is wrong with the samples themselves; empty: nothing."""
    if not isinstance(samples, Samples):
        return f"returned a {type(samples).__name__}; a crossover.learning.datasets.Samples is expected"
    if (samples.test_inputs is None) != (samples.test_labels is None):
        return "of test_inputs and test_labels one is None; both or neither are expected"
    parts = {"inputs": samples.inputs, "labels": samples.labels}
    if samples.test_inputs is not None:
        parts |= {"test_inputs": samples.test_inputs, "test_labels": samples.test_labels}  # type: ignore[dict-item]
    for name, part in parts.items():
        if problem := _no_tensor(name, part) or _not_finite(name, part):
            return problem
    if problem := batch.problem(samples.inputs, samples.labels):
        return problem
    if samples.test_inputs is not None and samples.test_labels is not None:
        if problem := batch.problem(samples.test_inputs, samples.test_labels):
            return f"of the test split, {problem}"
        pairs = (("inputs", samples.inputs, samples.test_inputs), ("labels", samples.labels, samples.test_labels))
        for name, part, test in pairs:
            if (part.shape[1:], part.dtype) != (test.shape[1:], test.dtype):
                return f"{name} are {_rows(part)}, test_{name} {_rows(test)}; rows of one shape and dtype are expected"
    return ""


def _no_tensor(name: str, part: Any) -> str:
    if isinstance(part, Tensor):
        return "" if part.ndim and len(part) else f"{name} are empty: a tensor of the shape {tuple(part.shape)}"
    if isinstance(part, Sequence) and len({_length(row) for row in part}) > 1:
        shortest, longest = min(map(_length, part)), max(map(_length, part))
        return f"{name} are a list whose rows have {shortest} to {longest} values; tensors of torch.int64 are expected, or one length"
    return f"{name} are a {type(part).__name__}; a torch tensor is expected, such as torch.as_tensor makes of it"


def _length(row: Any) -> int:
    return len(row) if hasattr(row, "__len__") and getattr(row, "ndim", True) else 1


def _not_finite(name: str, part: Tensor) -> str:
    if not part.is_floating_point():
        return ""
    wrong = ~part.isfinite().reshape(len(part), -1).all(1)
    if not bool(wrong.any()):
        return ""
    rows = f"{int(wrong.sum())} of {len(part)} rows, the first is {int(wrong.nonzero()[0])}"
    return f"{name} hold NaN or infinity in {rows}; fill them in or leave them out"


def _unfit(samples: Samples, experiment: Experiment) -> str:
    """Why the loss cannot take the labels; empty where it can. A loss of one's own is tried out instead."""
    labels = [part for part in (samples.labels, samples.test_labels) if part is not None]
    found, loss = f"labels are {_rows(labels[0])}", experiment.training.loss
    if loss == "cross_entropy" and labels[0].dtype != torch.int64:
        return f"{found}; cross_entropy takes classes, torch.int64 (training.loss: mse takes numbers)"
    if loss in ("mse", "bce_with_logits") and labels[0].dtype != torch.float32:
        return f"{found}; training.loss: {loss} takes torch.float32, such as labels.float()"
    if loss == "bce_with_logits" and any(bool(((part < 0) | (part > 1)).any()) for part in labels):
        return "labels lie beyond 0 and 1, which are all that training.loss: bce_with_logits takes"
    classes = samples.classes
    if classes is None:
        return "classes is None; cross_entropy needs the number of classes" if loss == "cross_entropy" else ""
    if not isinstance(classes, int) or classes < 1:
        return f"classes is {classes!r}; the number of classes is expected, None for labels that are numbers"
    for part in labels:
        known = part[part != NO_CLASS]
        if known.numel() and not 0 <= int(known.min()) <= int(known.max()) < classes:
            return f"labels {known.min()} to {known.max()} for {classes} classes; 0 to {classes - 1} are expected"
    return ""


def _impossible(samples: Samples, experiment: Experiment) -> str:
    """Which setting these samples do not take; empty: none."""
    name, rows, training = experiment.data.dataset, _rows(samples.inputs), experiment.training
    images = samples.inputs.ndim == 4 and (samples.inputs.is_floating_point() or samples.inputs.dtype == torch.uint8)
    augment, begin = experiment.data.augment, training.image_size.begin
    if augment != "none" and not images:
        return f"data.augment: {augment} shifts and mirrors images (C, H, W); {name} has {rows}; expected none"
    if begin is not None and not images:
        return f"training.image_size.begin: {begin} pixels are for images (C, H, W); {name} has {rows}; leave it out"
    if begin is not None and begin >= samples.inputs.shape[2]:
        return sizes.not_smaller(begin, name, samples.inputs.shape[2])
    if experiment.faults.attack == "label_flip" and samples.classes is None:
        return f"faults.attack: label_flip exchanges classes, and {name} has none; expected sign_flip or gaussian"
    if training.model in registry.MODELS and not (images and samples.classes):
        return (
            f"training.model: {training.model} tells classes of images (C, H, W) apart; {name} has {rows}"
            f"{'' if samples.classes else ' and no classes'}; expected package.module:factory, a model of your own"
        )
    return ""


def _rows(part: Tensor) -> str:
    shape = ", ".join(str(side) for side in part.shape[1:])
    return f"rows of the shape ({shape}) {part.dtype}" if shape else f"single values {part.dtype}"
