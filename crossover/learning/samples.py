"""A data set in memory: as it was published, and split for an experiment."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

PADDING = torch.iinfo(
    torch.int64
).min  # behind a sequence's last token, where a model's mask says False; no token is called so
NO_CLASS = -100  # a label that asks for no answer, as torch's cross entropy has it


@dataclass(frozen=True, slots=True)
class Samples:
    """A data set as published, and what a `package.module:loader`, called with the experiment, returns.

    Inputs (N, ...) of any shape and dtype but complex ones: numbers, float or uint8 such as images (N, C, H, W), are preprocessed; other
    whole numbers, such as tokens (N, T) int64, reach the model as they are. Labels (N, ...): classes, int64 in 0..`classes`-1 (-100: no
    answer is asked for), or with `classes` None numbers, float32. Test inputs and labels None where there is no such split.

    A list of tensors (T,) int64, each as long as it likes, is as good as one tensor of tokens, and so is one of a label for each token.
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


def padded(samples: Samples) -> Samples:
    """With sequences of any length brought to the longest one's, by PADDING and labels by NO_CLASS; what else it has is left alone."""
    found: dict[str, Any] = {}
    for names, filling in ((("inputs", "test_inputs"), PADDING), (("labels", "test_labels"), NO_CLASS)):
        given: dict[str, Any] = {name: getattr(samples, name, None) for name in names}
        parts = {name: part for name, part in given.items() if _sequences(part)}
        longest = max((len(row) for part in parts.values() for row in part), default=0)
        for name, part in parts.items():
            found[name] = torch.full((len(part), longest), filling)
            for row, tokens in zip(found[name], part, strict=True):
                row[: len(tokens)] = tokens
    return replace(samples, **found) if found else samples


def has_padding(inputs: Tensor) -> bool:
    """Whether they are sequences of which some are shorter than others; no other dtype can hold PADDING."""
    return inputs.dtype == torch.int64 and inputs.ndim == 2 and bool((inputs == PADDING).any())


def trimmed(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """A minibatch's inputs and labels up to the end of its longest sequence, where there is padding."""
    if not has_padding(inputs):
        return inputs, labels
    width = int((inputs != PADDING).any(0).nonzero().max()) + 1
    return inputs[:, :width], labels[:, :width] if labels.shape == inputs.shape else labels


def _sequences(part: Any) -> bool:
    rows = part if isinstance(part, Sequence) and not isinstance(part, str) else ()
    whole = (isinstance(row, Tensor) and row.dtype == torch.int64 and row.ndim == 1 and len(row) for row in rows)
    return bool(rows) and all(whole)
