"""What is minimised and what the model is judged by: `training.loss` and `training.metric`, ours by name or the user's own.

Labels are classes (int64), for which outputs have one value per class in dimension 1, as torch's cross entropy takes them: (N, classes) for
labels (N,), (N, classes, T) for labels (N, T). Or they are numbers of the outputs' shape. A class of -100 is not there, for cross entropy
and accuracy alike. One's own loss and metric are called with (outputs, labels).
"""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from crossover import own_code
from crossover.experiment import Training
from crossover.own_code import faults

NO_CLASS = -100  # torch's cross entropy ignores it
_OF_NUMBERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": F.mse_loss,
    "bce_with_logits": F.binary_cross_entropy_with_logits,
}
_LOSS, _METRIC = "training.loss", "training.metric.name"


class Objective:
    """The loss and the metric of one run, on outputs that autocast may have left in half precision. What own code raises is an
    OwnCodeError, as is a value that is no scalar.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._own_loss, self._own_metric = (
            cast(Callable[..., Any], own_code.load(name, field=field)) if ":" in name else None
            for name, field in ((training.loss, _LOSS), (training.metric.name, _METRIC))
        )

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The mean over the minibatch, a scalar to differentiate."""
        return self._loss(_wide(outputs), labels, smoothing=self._training.label_smoothing)

    def judged(self, outputs: Tensor, labels: Tensor) -> tuple[float, float]:
        """Loss, of cross entropy without label smoothing, and metric: each its mean times the number of samples."""
        outputs, samples = _wide(outputs), len(labels)
        return float(self._loss(outputs, labels, smoothing=0.0)) * samples, self._metric(outputs, labels)

    def problem(self, outputs: object, labels: Tensor, *, classes: int | None) -> str:
        """Why our loss or our metric cannot take what the model returned, in words; empty where they can."""
        loss, metric = self._training.loss, self._training.metric.name
        by_class = [name for name in (loss, metric) if name in ("cross_entropy", "accuracy") and not _numbers(labels)]
        by_number = [name for name in (loss, metric) if ":" not in name and name not in by_class]
        if not by_class and not by_number:
            return ""
        if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
            found = f"{outputs.dtype}" if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
            return f"returned {found}; {' and '.join([*by_class, *by_number])} need one tensor of float"
        found = f"returned {tuple(outputs.shape)} for labels {tuple(labels.shape)}"
        wanted = (len(labels), classes or outputs.shape[min(1, outputs.ndim - 1)], *labels.shape[1:])
        if by_class and tuple(outputs.shape) != wanted:
            transposed = labels.ndim > 1 and outputs.transpose(1, -1).shape == wanted
            mend = "; outputs.transpose(1, -1) has it" if transposed else ""
            return f"{found}; {by_class[0]} needs {wanted}, the classes in dimension 1{mend}"
        if by_number and outputs.shape != labels.shape:
            return f"{found}; {by_number[0]} needs the same shape, such as outputs.reshape(labels.shape)"
        return ""

    def _loss(self, outputs: Tensor, labels: Tensor, *, smoothing: float) -> Tensor:
        name = self._training.loss
        if name == "cross_entropy":
            return F.cross_entropy(outputs, labels, label_smoothing=smoothing)
        if self._own_loss is None:
            return _OF_NUMBERS[name](outputs, labels)
        value = self._called(self._own_loss, _LOSS, name, outputs, labels)
        if not isinstance(value, Tensor) or (torch.is_grad_enabled() and not value.requires_grad):
            problem = f"returned {value!r:.60}; the mean over the minibatch is expected, made of the outputs by torch"
            raise faults.told(_LOSS, name, problem, place=faults.of_definition(self._own_loss))
        return value.reshape(())

    def _metric(self, outputs: Tensor, labels: Tensor) -> float:
        """Its mean over the samples, times their number."""
        name = self._training.metric.name
        if name == "accuracy":
            right, answers = accuracy(outputs, labels)
            return right * len(labels) / max(1, answers)
        if self._own_metric is None:
            return float((outputs - labels).abs().mean()) * len(labels)
        value = float(self._called(self._own_metric, _METRIC, name, outputs, labels))
        if not math.isfinite(value):
            problem = f"returned {value} for {len(labels)} samples; a finite number is expected, the mean over them"
            raise faults.told(_METRIC, name, problem, place=faults.of_definition(self._own_metric))
        return value * len(labels)

    def _called(self, own: Callable[..., Any], field: str, name: str, outputs: Tensor, labels: Tensor) -> Any:
        with own_code.blame(field, name, what=own):
            value = own(outputs, labels.clone())  # over memory that nobody may write to
        if isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1):
            return value
        found = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        problem = f"returned {found}; one number is expected, the mean over the samples"
        raise faults.told(field, name, problem, place=faults.of_definition(own))


def accuracy(outputs: Tensor, labels: Tensor) -> tuple[int, int]:
    """(right answers, answers), whole numbers, so that a share is exact. An answer is the class of the largest output or, to labels that
    are numbers, yes where the output, a logit, is above 0.
    """
    if _numbers(labels):
        return int(((outputs > 0) == (labels > 0.5)).sum()), labels.numel()
    counted = labels != NO_CLASS
    return int(((outputs.argmax(1) == labels) & counted).sum()), int(counted.sum())


def _numbers(labels: Tensor) -> bool:
    return labels.is_floating_point()


def _wide(outputs: Any) -> Any:
    return outputs.float() if isinstance(outputs, Tensor) and outputs.is_floating_point() else outputs
