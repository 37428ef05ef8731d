"""Local SGD with an outer step: between two exchanges workers go their own ways; what their mean has moved by is a gradient for all.

Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models" (2023).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Gt

from crossover.experiment import Fraction
from crossover.stores.clients import Event
from crossover.training import long_worker, synchronous
from crossover.workflow import step
from crossover.workflow.architecture import Architecture
from crossover.workflow.context import Context
from functions.scatter_reduce import ScatterReduce

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from crossover.training.group import GroupExchange
    from crossover.training.long_worker import Invocation


@dataclass(frozen=True, kw_only=True)
class LocalSGD:
    """The settings of the outer step, which is SGD with Nesterov's momentum."""

    outer_learning_rate: Annotated[float, Gt(0)] = 0.7
    outer_momentum: Fraction = 0.5


class OuterSteps(synchronous.LocalSteps):
    """A worker that begins every round at the shared model, takes local steps, and applies their mean as an outer gradient."""

    def __init__(self, invocation: "Invocation", exchange: "GroupExchange") -> None:
        """Begin with the worker's model as the shared one and no velocity."""
        super().__init__(invocation, exchange)
        self._outer = self.ctx.experiment.settings(LocalSGD)
        self._begun = self.model.clone()  # the model of all when the round began
        self._velocity = self.model.new_zeros(self.ctx.facts.parameters)

    def extra_state(self) -> "Mapping[str, Tensor]":
        """Return the vectors that a checkpoint keeps besides the model and the optimizer's."""
        return {"begun": self._begun, "velocity": self._velocity}

    def compute(self) -> None:
        """Take a local step; before the first one of a round, remember the model."""
        if not self.invocation.position.minibatch:
            self._begun.copy_(self.model)
        super().compute()

    def apply(self, combined: "Tensor") -> None:
        """Take the outer step towards `combined`, the mean of all models. BatchNorm's buffers, which follow the parameters, become those of
        the mean.
        """
        rate, momentum, end = self._outer.outer_learning_rate, self._outer.outer_momentum, self.ctx.facts.parameters
        moved = self._begun[:end] - combined[:end]
        self._velocity.mul_(momentum).add_(moved)
        self.model.copy_(combined)
        self.model[:end] = self._begun[:end] - rate * (moved + momentum * self._velocity)


@step(torch=True, uses={"tensors"})
def initialise(ctx: Context, event: Event) -> Event:
    """Begin an attempt with the same seeded model as every worker's first checkpoint, and return the event for the next step."""
    return long_worker.start(ctx, event, ScatterReduce())


@step(torch=True, uses={"tensors"}, waits=True)
def train(ctx: Context, event: Event) -> Event:
    """Take local steps, exchange models and take outer steps, for as long as the invocation lasts; return the event for the next
    invocation.
    """
    return synchronous.train(ctx, event, ScatterReduce(), OuterSteps)


@step(uses={"tensors"})
def collect(ctx: Context, event: Event) -> None:
    """Store the trained model in the bucket; delete every key of the run."""
    long_worker.collect(ctx, event, ScatterReduce())


ARCHITECTURE = Architecture(
    "local_sgd",
    run=long_worker.tree(initialise, train, collect),
    tensor_hosts="shared",
    sync_every=2,
    settings=LocalSGD,
    simulation="scatter_reduce",  # what it asks of the store is the same
    claims={"same_calls", "survives_kills", "resumes", "stops"},
)
