"""Labels that are numbers, scaled: the model learns (label - mean) / deviation, so that a learning rate works whatever their unit.
Metrics are converted back into it.
"""

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from crossover.experiment import Experiment
from crossover.learning.samples import LabelScale

# Labels are left as they are if their mean is at most this far from 0 and their deviation within these bounds: scaling would gain nothing.
NEAR_MEAN, NEAR_DEVIATION = 1.0, (0.1, 3.0)
FAR = 10.0  # deviations from scaled labels, of outputs that are in the labels' own unit
# By torch's names: functions whose values have a bound, and those that change no value.
BOUNDED = {
    *("relu", "elu", "hardtanh", "clamp", "clampmin", "abs", "sqrt", "exp", "tanh"),
    *("sigmoid", "hardsigmoid", "logsigmoid", "softplus", "softmax", "logsoftmax"),
}
SHAPING = {
    *("view", "unsafeview", "reshapealias", "squeeze", "unsqueeze", "expand", "t", "transpose", "permute"),
    *("clone", "alias", "tocopy", "select", "slice", "mean"),
}
MEAN, DEVIATION = "label_mean", "label_deviation"  # of the manifest, beside what inputs are scaled by


def compute_label_scale(labels: Tensor, experiment: Experiment, *, classes: int | None) -> LabelScale | None:
    """Return mean and standard deviation of the training labels, one per column (dimension 1), by which to scale them. None if
    labels are not to be scaled: they are classes; `data.scale_labels` is never; or it is auto, and the loss is not mse or
    scaling would gain nothing.

    `classes`: number of classes, None if labels are numbers. A column without spread gets the deviation 1.
    """
    wanted = experiment.data.scale_labels
    if classes is not None or wanted == "never" or (wanted == "auto" and experiment.training.loss != "mse"):
        return None
    values = labels.double().reshape(len(labels), 1) if labels.ndim < 2 else labels.double().transpose(1, -1)
    values = values.reshape(-1, values.shape[-1])
    mean = values.mean(0)
    spread = (values - mean).square().mean(0).sqrt()
    none = spread <= len(values) * torch.finfo(torch.float64).eps * mean.abs()  # rounding alone
    deviation = torch.where(none, 1.0, spread)
    least, most = NEAR_DEVIATION
    if wanted == "auto" and bool(((mean.abs() <= NEAR_MEAN) & (none | ((spread >= least) & (spread <= most)))).all()):
        return None
    return LabelScale(tuple(mean.tolist()), tuple(deviation.tolist()))


def scale_labels(labels: Tensor, scale: LabelScale | None) -> Tensor:
    """Return (labels - mean) / deviation, computed in float64 and rounded to float32; the labels unchanged if `scale` is None."""
    if scale is None:
        return labels
    mean, deviation = (_broadcast_columns(part, labels) for part in (scale.mean, scale.deviation))
    return ((labels.double() - mean) / deviation).float()


def unscale(values: Tensor, scale: LabelScale) -> Tensor:
    """Return values * deviation + mean: outputs or scaled labels in the labels' own unit, computed in float64 and rounded to float32."""
    mean, deviation = (_broadcast_columns(part, values) for part in (scale.mean, scale.deviation))
    return (values.double() * deviation + mean).float()


def compute_distance(outputs: Tensor, labels: Tensor, scale: LabelScale) -> Tensor:
    """Return outputs minus scaled labels, multiplied by the deviation of `scale` into the labels' own unit, in float64.

    The mean is never added, because it would swallow small differences.
    """
    return (outputs.detach().double() - labels.double()) * _broadcast_columns(scale.deviation, labels)


def find_scaling_problem(outputs: object, labels: Tensor, scale: LabelScale) -> str:
    """Return in words why a model cannot learn scaled labels; "" if it can, or if outputs and labels differ in shape. The model's
    `outputs` tell: they end in a bounded function, or are near the unscaled labels already.

    `labels`: scaled labels of the same samples; `scale`: by which they were scaled.
    """
    if not isinstance(outputs, Tensor) or outputs.shape != labels.shape:  # for a loss of one's own
        return ""
    if found := _find_bound(outputs):
        return (
            f"the model's outputs end in {found}, which cannot reach all labels once they are scaled to mean 0 and deviation 1; expected "
            "data.scale_labels: never, or a model that ends without it"
        )
    given, deviation = outputs.detach().double(), _broadcast_columns(scale.deviation, labels)
    far = float((given - labels).square().mean().sqrt())
    own = float(((given - _broadcast_columns(scale.mean, labels)) / deviation - labels).square().mean().sqrt())
    if far > FAR > FAR * own / far:
        return (
            f"the model's outputs are {far:.2g} deviations from labels that are scaled, and {own:.2g} from labels in their own unit; "
            "expected data.scale_labels: never"
        )
    return ""


def _find_bound(outputs: Tensor) -> str:
    """Return the name of the bounded function, such as "sigmoid", that the autograd graph of `outputs` ends in, apart from changes
    of shape or dtype; "" if there is none.
    """
    node = outputs.grad_fn
    while node is not None and (name := re.sub(r"Backward\d*$", "", node.name()).lower()) not in BOUNDED:
        if name not in SHAPING:
            return ""
        node = node.next_functions[0][0]
    return name if node is not None else ""


def to_manifest(scale: LabelScale | None) -> dict[str, list[float]]:
    """Return the scale as entries for the manifest's `affine` section; an empty dictionary if `scale` is None."""
    return {MEAN: list(scale.mean), DEVIATION: list(scale.deviation)} if scale else {}


def from_manifest(affine: Mapping[str, Sequence[float]]) -> LabelScale | None:
    """Return the label scale stored in the manifest's section `affine`, or None if there is none."""
    return LabelScale(tuple(affine[MEAN]), tuple(affine[DEVIATION])) if affine.get(MEAN) else None


def _broadcast_columns(part: Sequence[float], values: Tensor) -> Tensor:
    """Return `part`, one number per column (dimension 1), as a float64 tensor shaped to broadcast with `values`."""
    found = torch.tensor(list(part), dtype=torch.float64, device=values.device)
    return found if values.ndim < 2 else found.view(1, -1, *[1] * (values.ndim - 2))
