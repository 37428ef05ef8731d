"""What is minimised and what the model is judged by: `training.loss` and `training.metric`.

Labels are classes (int64), for which outputs have one value per class in dimension 1, as torch's cross entropy takes them:
(N, classes) for labels (N,), (N, classes, T) for labels (N, T). Or they are numbers of the outputs' shape. A class of -100
is not there, for training and metric alike.
"""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

from crossover.experiment import Training

NO_CLASS = -100  # torch's cross entropy ignores it
Loss = Callable[[Tensor, Tensor], Tensor]


class Objective:
    """The loss and the metric of one run, on outputs that autocast may have left in half precision."""

    def __init__(self, training: Training) -> None:
        self._smoothing = training.label_smoothing

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The mean over the minibatch, a scalar to differentiate."""
        return F.cross_entropy(outputs.float(), labels, label_smoothing=self._smoothing)

    def judged(self, outputs: Tensor, labels: Tensor) -> tuple[float, float]:
        """Loss, of cross entropy without label smoothing, and metric: each its mean times the number of samples."""
        outputs, samples = outputs.float(), labels.shape[0]
        right, answers = accuracy(outputs, labels)
        return float(F.cross_entropy(outputs, labels)) * samples, right * samples / max(1, answers)


def accuracy(outputs: Tensor, labels: Tensor) -> tuple[int, int]:
    """(right answers, answers); an answer is the class of the largest output. Whole numbers, so that a share is exact."""
    counted = labels != NO_CLASS
    return int(((outputs.argmax(1) == labels) & counted).sum()), int(counted.sum())
