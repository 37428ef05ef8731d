"""A data set in memory: as it was published, and split for an experiment."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Samples:
    """A data set as published, and what a `package.module:loader`, called with the experiment, returns.

    Inputs (N, ...) of any shape and dtype but complex ones: numbers, float or uint8 such as images (N, C, H, W), are preprocessed; other
    whole numbers, such as tokens (N, T) int64, reach the model as they are. Labels (N, ...): classes, int64 in 0..`classes`-1 (-100: no
    answer is asked for), or with `classes` None numbers, float32. Test inputs and labels None where there is no such split.
    """

    inputs: Tensor
    labels: Tensor
    classes: int | None = None
    test_inputs: Tensor | None = None
    test_labels: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set split for one experiment; `fingerprint` names its staged form."""

    train_inputs: Tensor
    train_labels: Tensor
    validation_inputs: Tensor
    validation_labels: Tensor
    classes: int | None
    name: str
    fingerprint: str
