"""MLLess: workers tell one another only what is significant; a supervisor says what everybody applies, and who may
go.

Gimeno Sarroca and Sanchez-Artigas, "MLLess: Achieving Cost Efficiency in Serverless Machine Learning Training"
(2022), and Table 1 of "Cost-Performance Analysis" (2025): one minibatch; its gradient kept back unless significant;
significant updates to a shared Redis, their keys to the peers through a fanout exchange; wait for the supervisor's
word; fetch and aggregate; update on the worker.
"""

from typing import Any

from crossover.context import Context
from crossover.long_workers import life, supervisor
from crossover.workflow import DAY_S, Architecture, Parallel, Repeat, Sequence, step

Event = dict[str, Any]


@step(torch=True, uses={"tensors", "bus"})
def initialise(ctx: Context, event: Event) -> Event:
    """Once per run: the exchange, and the same seeded model for every worker. A resumed run goes on where all can."""
    return life.start_supervised(ctx, event)


@step(torch=True, uses={"tensors", "bus"}, waits=True)
def train(ctx: Context, event: Event) -> Event:
    """Table 1, all four stages of a worker: one long invocation."""
    from crossover.long_workers import filtering  # brings torch, which the supervisor does without

    return filtering.train(ctx, event)


@step(uses={"tensors", "bus"}, waits=True)
def supervise(ctx: Context, event: Event) -> Event:
    """Table 1, Synchronisation: which updates to expect, who is too slow, when to end."""
    return supervisor.supervise(ctx, event)


@step(uses={"tensors", "bus"})
def collect(ctx: Context, event: Event) -> None:
    """The trained model to the bucket; every key and queue of the run deleted."""
    life.collect_supervised(ctx, event)


ARCHITECTURE = Architecture(
    "mlless",
    run=Sequence(
        initialise,
        Parallel(
            Repeat(supervise, until="finished", timeout_s=DAY_S),
            life.worker_tree(train, tolerant=True),
        ),
        collect,
    ),
    tensor_hosts="shared",
)
