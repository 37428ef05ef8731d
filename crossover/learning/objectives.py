"""What is minimised and what the model is judged by: `training.loss` and `training.metric`, ours by name or the user's own.

Labels are classes (int64), for which outputs have one value per class in dimension 1, as torch's cross entropy takes them: (N, classes) for
labels (N,), (N, classes, T) for labels (N, T). Or they are numbers of the outputs' shape. A class of -100 asks for no answer, of cross
entropy, accuracy and perplexity alike. One's own loss and metric are called with (outputs, labels), and return their mean over the samples,
or (sum, count): over whatever answers they count.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from crossover import own_code
from crossover.errors import Refused
from crossover.experiment import Training
from crossover.learning.samples import NO_CLASS
from crossover.own_code import faults

_OF_NUMBERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": F.mse_loss,
    "bce_with_logits": F.binary_cross_entropy_with_logits,
}
_LOSS, _METRIC = "training.loss", "training.metric.name"
PERPLEXITY = "perplexity"
_LARGEST_EXPONENT = 709.0  # of a float
BatchScores = tuple[float, int, float, int]  # a loss summed, over how many answers; a metric summed, over how many


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Mean loss, of cross entropy without label smoothing, and the metric of `training.metric`, over all answers of `samples`."""

    loss: float
    metric: float
    samples: int


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

    def loss(self, outputs: Tensor, labels: Tensor, *, answers: int | None = None) -> Tensor:
        """The mean over the minibatch's answers, a scalar to differentiate; without any, 0. Raises OwnCodeError where it is of others than
        the `answers` that the run weighs it by.
        """
        mean, count = self._loss(_wide(outputs), labels, smoothing=self._training.label_smoothing)
        if answers not in (None, count):
            problem = f"counts {count} answers where it counted {answers} before the run; labels alone must decide how many they are"
            raise faults.told(_LOSS, self._training.loss, problem, place=faults.of_definition(self._own_loss))
        return mean

    def answers(self, outputs: Tensor, labels: Tensor) -> int:
        """How many the loss counts; `outputs`: of the right shape, whatever their values."""
        with torch.no_grad():
            return self._loss(_wide(outputs), labels, smoothing=0.0)[1]

    def judged(self, outputs: Tensor, labels: Tensor) -> BatchScores:
        """Loss, of cross entropy without label smoothing, and metric."""
        outputs = _wide(outputs)
        mean, answers = self._loss(outputs, labels, smoothing=0.0)
        loss = float(mean) * answers
        return (
            loss,
            answers,
            *((loss, answers) if self._training.metric.name == PERPLEXITY else self._metric(outputs, labels)),
        )

    def evaluation(self, judged: Sequence[BatchScores], samples: int) -> Evaluation:
        """All that was judged, as means over all answers. Raises ValueError without samples, Refused without an answer."""
        loss, answers, metric, counted = (
            (sum(column) for column in zip(*judged, strict=True)) if judged else (0, 0, 0, 0)
        )
        if not samples:
            raise ValueError("batches: none given; an evaluation needs at least one sample")
        if not answers or not counted:
            raise Refused(f"data.validation: none of the {samples} samples that validate asks for an answer")
        value = metric / counted
        if self._training.metric.name == PERPLEXITY:
            value = math.exp(value) if value < _LARGEST_EXPONENT else math.inf
        return Evaluation(loss / answers, value, samples)

    def problem(self, outputs: object, labels: Tensor, *, classes: int | None) -> str:
        """Why our loss or our metric cannot take what the model returned, in words; empty where they can."""
        loss, metric = self._training.loss, self._training.metric.name
        counted = ("cross_entropy", "accuracy", PERPLEXITY)
        by_class = [name for name in (loss, metric) if name in counted and not _numbers(labels)]
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

    def _loss(self, outputs: Tensor, labels: Tensor, *, smoothing: float) -> tuple[Tensor, int]:
        """(the mean, of how many answers)."""
        name = self._training.loss
        if name == "cross_entropy":
            count = int(answered(labels).sum())
            # A mean of no answers would be 0 / 0.
            reduction = "mean" if count else "sum"
            return F.cross_entropy(outputs, labels, label_smoothing=smoothing, reduction=reduction), count
        if self._own_loss is None:
            return _OF_NUMBERS[name](outputs, labels), len(labels)
        value, count = self._called(self._own_loss, _LOSS, name, outputs, labels)
        if not isinstance(value, Tensor) or (torch.is_grad_enabled() and not value.requires_grad):
            problem = f"returned {value!r:.60}; the mean over the minibatch is expected, made of the outputs by torch"
            raise faults.told(_LOSS, name, problem, place=faults.of_definition(self._own_loss))
        return value.reshape(()), count

    def _metric(self, outputs: Tensor, labels: Tensor) -> tuple[float, int]:
        """(its sum, over how many answers)."""
        name = self._training.metric.name
        if name == "accuracy":
            return accuracy(outputs, labels)
        if self._own_metric is None:
            return float((outputs - labels).abs().mean()) * len(labels), len(labels)
        mean, count = self._called(self._own_metric, _METRIC, name, outputs, labels)
        value = float(mean)
        if not math.isfinite(value):
            problem = f"returned {value} for {len(labels)} samples; a finite number is expected, the mean over them"
            raise faults.told(_METRIC, name, problem, place=faults.of_definition(self._own_metric))
        return value * count, count

    def _called(
        self, own: Callable[..., Any], field: str, name: str, outputs: Tensor, labels: Tensor
    ) -> tuple[Any, int]:
        """(the mean, of how many answers) by a function that returns its mean over the samples, or (sum, count)."""
        with own_code.blame(field, name, what=own):
            value = own(outputs, labels.clone())  # over memory that nobody may write to
        if isinstance(value, tuple) and len(value) == 2 and all(map(_single, value)):
            count = int(value[1])
            if count == value[1] and count >= 0:
                return value[0] / max(1, count), count
        if _single(value):
            return value, len(labels)
        found = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        problem = f"returned {found}; one number is expected, the mean over the samples, or two, their sum and how many it counts"
        raise faults.told(field, name, problem, place=faults.of_definition(own))


def accuracy(outputs: Tensor, labels: Tensor) -> tuple[int, int]:
    """(right answers, answers), whole numbers, so that a share is exact. An answer is the class of the largest output or, to labels that
    are numbers, yes where the output, a logit, is above 0.
    """
    if _numbers(labels):
        return int(((outputs > 0) == (labels > 0.5)).sum()), labels.numel()
    counted = answered(labels)
    return int(((outputs.argmax(1) == labels) & counted).sum()), int(counted.sum())


def answered(labels: Tensor) -> Tensor:
    """Where classes ask for an answer, (N, ...) bool."""
    return labels != NO_CLASS


def _single(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)


def _numbers(labels: Tensor) -> bool:
    return labels.is_floating_point()


def _wide(outputs: Any) -> Any:
    return outputs.float() if isinstance(outputs, Tensor) and outputs.is_floating_point() else outputs
