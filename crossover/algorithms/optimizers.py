"""Optimizers by name, SGD and Adam, and one update as every store takes it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from crossover.experiment import Training

if TYPE_CHECKING:
    from torch import Tensor


# --- update -----------------------------------------------------------------------------------------------------------

STATISTICS_MOMENTUM = 0.1  # of BatchNorm's running statistics, torch's default


def statistics_momentum(sync_every: int) -> float:
    """Return the momentum of BatchNorm's running statistics: torch's default 0.1 if each step follows a single minibatch, otherwise
    1. `sync_every`: minibatches per step.
    """
    return STATISTICS_MOMENTUM if sync_every == 1 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Settings of one optimizer step; `number` counts steps from 0. `optimizer`: a key of OPTIMIZERS; `learning_rate` to `weight_decay` and
    `beta1` to `epsilon`: its usual hyperparameters, of which each optimizer reads its own. `undecayed`: (begin, end) element ranges without
    weight decay, in ascending order; `clip`: L2 norm to which a longer gradient is scaled down, None for no clipping.

    The last `buffers` elements of the model are BatchNorm statistics, which the step moves by `statistics_momentum` (1: all the way)
    towards those at the end of the gradient.
    """

    optimizer: str = "sgd"
    number: int = 0
    learning_rate: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    undecayed: tuple[tuple[int, int], ...] = ()
    clip: float | None = None
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    buffers: int = 0
    statistics_momentum: float = 1.0

    @classmethod
    def from_training(
        cls,
        training: Training,
        *,
        number: int,
        rate: float,
        buffers: int,
        sync_every: int,
        undecayed: Iterable[Sequence[int]] = (),
    ) -> "Update":
        """Return the settings of step `number` of a run, from its `training` section. `rate`: learning rate. `buffers`: number of
        the model's elements that are BatchNorm statistics. `sync_every`: minibatches per step. `undecayed`: (begin, end) element
        ranges without weight decay.
        """
        return cls(
            optimizer=training.optimizer,
            number=number,
            learning_rate=rate,
            momentum=training.momentum,
            nesterov=training.nesterov,
            weight_decay=training.weight_decay,
            undecayed=tuple((first, end) for first, end in undecayed),
            clip=training.clip.norm,
            beta1=training.betas[0],
            beta2=training.betas[1],
            buffers=buffers,
            statistics_momentum=statistics_momentum(sync_every),
        )

    def list_decayed_slices(self, elements: int) -> list[slice]:
        """Return the slices of a vector of `elements` parameters to which weight decay applies; an empty list if weight decay is 0."""
        if not self.weight_decay:
            return []
        ends = [0, *(end for _, end in self.undecayed)]
        begins = [*(first for first, _ in self.undecayed), elements]
        return [slice(first, end) for first, end in zip(ends, begins, strict=True) if first < end]

    @property
    def is_first(self) -> bool:
        """True if this is the run's first step (`number` 0), before which the optimizer has no vectors."""
        return self.number == 0


# --- optimizer --------------------------------------------------------------------------------------------------------
# The definition of each optimizer, for steps in a function and in the database. Functions without torch import it, too.

Move = Callable[["Tensor", "Tensor", Sequence["Tensor"], Update, "Tensor"], Sequence["Tensor"]]


def add_weight_decay(gradient: "Tensor", parameters: "Tensor", update: Update) -> "Tensor":
    """Return gradient + weight decay * parameters, in the slices that decay; the gradient itself, not a copy, if nothing decays.
    `update`: gives the decay and the slices.
    """
    parts = update.list_decayed_slices(gradient.numel())
    found = gradient.clone() if parts else gradient
    for part in parts:
        found[part].add_(parameters[part], alpha=update.weight_decay)
    return found


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Definition of an optimizer. `name`: in `training.optimizer`. `move(parameters, gradient, vectors, update, out)` writes the new
    parameters to `out` and returns the optimizer's new vectors; all are (P,) float32, and nothing but `out` is changed. Its `vectors`: the
    optimizer's after the previous step, none at the first.

    Field `vectors`: returns the names of the vectors kept between steps, given `training.momentum`; `kind`: of these vectors. `command`:
    the tensor database's command TENSOR.<command> for a step, None if functions compute it; `places`: how many vectors the command takes;
    `options`: returns its own options, names and values in turn.
    """

    name: str
    vectors: Callable[[float], tuple[str, ...]]
    kind: Literal["velocity", "moment"] = "moment"
    move: Move
    command: str | None = None
    places: int = 0
    options: Callable[[Update], Sequence[str | int | float]] = lambda update: ()


# --- adam -------------------------------------------------------------------------------------------------------------
# Adam, bit for bit torch.optim.Adam, and AdamW, whose weight decay is decoupled from the gradient (Loshchilov and Hutter 2019).

_MOMENTS = ("first_moment", "second_moment")


def _move_by_adam(
    parameters: "Tensor",
    gradient: "Tensor",
    vectors: "Sequence[Tensor]",
    update: Update,
    out: "Tensor",
    *,
    decoupled: bool,
) -> "Sequence[Tensor]":
    """Take one Adam step: write the new parameters to `out` and return (first moment, second moment) as new tensors. `vectors`: both
    moments before the step, which are not changed; none at the first, which starts from zeros. `decoupled`: apply the weight decay to the
    parameters instead of the gradient (AdamW). Raises ValueError if the step's number is negative.
    """
    import torch

    import crossover.algorithms.first_calls  # noqa: F401  the square root below is exact in every thread

    step = update.number + 1
    if step < 1:
        raise ValueError(f"step: {step}; steps count from 1")
    out.copy_(parameters)
    if decoupled:
        for part in update.list_decayed_slices(out.numel()):
            out[part].mul_(1 - update.learning_rate * update.weight_decay)
    else:
        gradient = add_weight_decay(gradient, parameters, update)
    first, second = [each.clone() for each in vectors] or [torch.zeros_like(parameters) for _ in _MOMENTS]
    first.lerp_(gradient, 1 - update.beta1)
    second.mul_(update.beta2).addcmul_(gradient, gradient, value=1 - update.beta2)
    correction = float((1 - update.beta2**step) ** 0.5)
    denominator = (second.sqrt() / correction).add_(update.epsilon)
    out.addcdiv_(first, denominator, value=-(update.learning_rate / (1 - update.beta1**step)))
    return first, second


def _list_adam_options(update: Update) -> list[str | int | float]:
    """Return the options, names and values in turn, of the tensor database's command TENSOR.ADAM for the step `update`."""
    return ["BETA1", update.beta1, "BETA2", update.beta2, "EPS", update.epsilon, "STEP", update.number + 1]


ADAM = Optimizer(
    name="adam",
    vectors=lambda momentum: _MOMENTS,
    move=partial(_move_by_adam, decoupled=False),
    command="ADAM",
    places=2,
    options=_list_adam_options,
)
ADAMW = Optimizer(
    name="adamw",
    vectors=lambda momentum: _MOMENTS,
    move=partial(_move_by_adam, decoupled=True),
    command="ADAM",
    places=2,
    options=lambda update: [*_list_adam_options(update), "DECOUPLED"],
)


# --- sgd --------------------------------------------------------------------------------------------------------------
# Stochastic gradient descent with momentum, bit for bit torch.optim.SGD.


def _move_by_sgd(
    parameters: "Tensor", gradient: "Tensor", vectors: "Sequence[Tensor]", update: Update, out: "Tensor"
) -> "Sequence[Tensor]":
    """Take one SGD step: write the new parameters to `out` and return (velocity,), or () without momentum. `vectors`: the velocity
    before the step, if any; the first one is the gradient with its weight decay, as in torch. Raises ValueError for Nesterov
    without momentum.
    """
    import torch

    if update.nesterov and update.momentum == 0.0:
        raise ValueError("nesterov: needs a momentum above 0")
    step = add_weight_decay(gradient, parameters, update)
    if not update.momentum:
        torch.add(parameters, step, alpha=-update.learning_rate, out=out)
        return ()
    if update.is_first or not vectors:
        velocity = step.clone()
    else:
        velocity = vectors[0].mul(update.momentum).add_(step, alpha=1.0)
    step = step.add(velocity, alpha=update.momentum) if update.nesterov else velocity
    torch.add(parameters, step, alpha=-update.learning_rate, out=out)
    return (velocity,)


SGD = Optimizer(
    name="sgd",
    vectors=lambda momentum: ("velocity",) if momentum else (),
    kind="velocity",
    move=_move_by_sgd,
    command="SGD",
    places=1,
    options=lambda update: ["MOMENTUM", update.momentum, *(["NESTEROV"] if update.nesterov else [])],
)


# --- optimizers -------------------------------------------------------------------------------------------------------
# The optimizers that training.optimizer may name: every one above is found.

OPTIMIZERS = {each.name: each for each in tuple(vars().values()) if isinstance(each, Optimizer)}


def list_vectors(training: Training) -> tuple[str, ...]:
    """Return the names of the vectors that the optimizer of `training` keeps between steps, such as ("velocity",)."""
    return OPTIMIZERS[training.optimizer].vectors(training.momentum)
