"""Local steps: what a worker hands over after some of its own, and the outer optimizer's step with the mean of all.

Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models" (arXiv 2311.08105, 2023), algorithm 1, here with the
inner optimizer of the YAML; without an outer optimizer, McMahan et al., "Communication-Efficient Learning of Deep Networks from
Decentralized Data" (2017), elsewhere called local SGD or model averaging.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from crossover.algorithms.optimizers import Update
from crossover.experiment import Outer

if TYPE_CHECKING:
    from torch import Tensor

OUTER = "sgd"  # the optimizer that takes the outer step
Ended = tuple["Tensor", tuple["Tensor", ...]]  # the model of all, and the outer optimizer's vectors


def compute_delta(begun: "Tensor", model: "Tensor", *, buffers: int) -> "Tensor":
    """Return `begun - model`, (P + B,) float32, the negative change by a worker's local steps, which serves as a gradient. Its last
    B elements (`buffers`) are not a difference, but those of `model`: BatchNorm statistics.
    """
    out = begun - model
    if buffers:
        out[-buffers:] = model[-buffers:]
    return out


def build_outer_update(outer: Outer, *, number: int, buffers: int) -> Update:
    """Return the settings of the outer optimizer's step after round `number` (from 0). `buffers`: number of the model's elements
    that are BatchNorm statistics.
    """
    return Update(
        optimizer=OUTER,
        number=number,
        learning_rate=outer.learning_rate,
        momentum=outer.momentum,
        nesterov=outer.nesterov,
        buffers=buffers,
    )


def take_outer_step(
    begun: "Tensor", mean: "Tensor", vectors: "Sequence[Tensor]", outer: Outer, *, number: int, buffers: int
) -> Ended:
    """Return (new model, new vectors of the outer optimizer) after its step of round `number` (from 0), from `begun`, the model at the
    round's start, along `mean`, the workers' mean of `compute_delta`. The arguments are not changed.

    `vectors`: the outer optimizer's before the step, empty at the first; `outer`: its settings; `buffers`: number of elements at the end
    that are BatchNorm statistics.
    """
    from crossover.algorithms.updates import step

    return step(begun, mean, vectors, build_outer_update(outer, number=number, buffers=buffers))
