"""Local steps: what a worker hands over after some of its own, and the outer optimizer's step with the mean of all.

Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models" (arXiv 2311.08105, 2023), algorithm 1, here with the
inner optimizer of the YAML; without an outer optimizer, McMahan et al., "Communication-Efficient Learning of Deep Networks from
Decentralized Data" (2017), elsewhere called local SGD or model averaging.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from crossover.algorithms.update import Update
from crossover.experiment import Outer

if TYPE_CHECKING:
    from torch import Tensor

OUTER = "sgd"  # the optimizer that takes the outer step
Ended = tuple["Tensor", tuple["Tensor", ...]]  # the model of all, and the outer optimizer's vectors


def moved(begun: "Tensor", model: "Tensor", *, buffers: int) -> "Tensor":
    """What would have been the gradient of a single step at rate 1: `begun - model`, both (P + B,) float32; behind it, where a gradient has
    its statistics, the model's B buffers as they are.
    """
    out = begun - model
    if buffers:
        out[-buffers:] = model[-buffers:]
    return out


def outer_update(outer: Outer, *, number: int, buffers: int) -> Update:
    """The outer step after round `number`, for whatever takes an optimizer's step; buffers are the mean's."""
    return Update(
        optimizer=OUTER,
        number=number,
        learning_rate=outer.learning_rate,
        momentum=outer.momentum,
        nesterov=outer.nesterov,
        buffers=buffers,
    )


def step_outside(
    begun: "Tensor", mean: "Tensor", vectors: "Sequence[Tensor]", outer: Outer, *, number: int, buffers: int
) -> Ended:
    """After round `number`: from `begun`, against the mean of what the workers `moved`."""
    from crossover.algorithms.optimizers.step import step

    return step(begun, mean, vectors, outer_update(outer, number=number, buffers=buffers))
