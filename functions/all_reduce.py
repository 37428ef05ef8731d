"""AllReduce: one worker, the master, averages what all workers publish.

Jiang et al., "Towards Demystifying Serverless Machine Learning Training" (SIGMOD 2021), and Table 1 of "Cost-Performance Analysis" (2025):
every worker stores its gradient; the master fetches all of them, aggregates and stores the result; the others fetch it; each updates its
own model.
"""

from typing import TYPE_CHECKING

from crossover.stores.clients import Event
from crossover.stores.keys import Keys
from crossover.training import long_worker, synchronous
from crossover.workflow import step
from crossover.workflow.architecture import EXCHANGES, Architecture
from crossover.workflow.context import Context

if TYPE_CHECKING:
    from torch import Tensor

    from crossover.training.group import Group

MASTER = 0


class AllReduce:
    """AllReduce's way to exchange contributions, Table 1, Synchronisation: the worker of rank 0, the master, aggregates all of them.

    Per round, each of W workers sends D elements and receives D; the master sends 2 D and receives (W - 1) D.
    """

    def __init__(self) -> None:
        """Start without receive buffers; they are allocated in the first round and then reused."""
        self._fetched: dict[
            int, Tensor
        ] = {}  # by length, memory that rounds share: fresh pages would cost as much as the transfer

    def is_combined(self, group: "Group") -> bool:
        """Return whether the aggregate of the group's round is already stored. Raises Unavailable if the store does not answer for 60 s, or
        the deadline is near.
        """
        return group.is_published(group.keys.combination(group.round))

    def split(self, elements: int, count: int, unit: int) -> list[slice]:
        """Return one slice over all `elements`: a contribution is sent whole, whatever `count` and `unit` are."""
        return [slice(0, elements)]

    def exchange(self, group: "Group", own: "Tensor", out: "Tensor") -> None:
        """Store `own`, this worker's contribution, and write the aggregate of all contributions into `out`: the master computes and stores
        it, the others fetch it.

        The master stores its contribution, too, so that a retry of the master finds it there. Raises what waiting raises (NearDeadline,
        StaleAttempt, RunFailed, WaitTimeout), Corrupt or Refused if a vector cannot be used, and, in the master, ResultExists if another
        attempt of it stores the aggregate meanwhile.
        """
        with group.stage("store"):
            group.contribute(group.keys.average(group.round, group.rank), own)
        if group.rank != MASTER:
            self.collect(group, out)
            return
        with group.stage("aggregate"):
            if (fetched := self._fetched.get(own.numel())) is None:
                fetched = self._fetched[own.numel()] = own.new_empty(own.numel())
            parts = (
                own if rank == MASTER else self._fetch_contribution(group, rank, fetched) for rank in range(group.count)
            )
            group.combine(parts, out, names=[group.keys.average(group.round, rank) for rank in range(group.count)])
            group.publish_combined(group.keys.combination(group.round), out)

    def _fetch_contribution(self, group: "Group", rank: int, out: "Tensor") -> "Tensor":
        """Wait for the contribution of the worker `rank`, write it into `out` and return `out`. Raises ResultExists if the aggregate is
        stored already.
        """
        key, merged = group.keys.average(group.round, rank), group.keys.combination(group.round)
        return group.fetch_contribution(key, out, sender=rank, unless=merged)

    def collect(self, group: "Group", out: "Tensor") -> None:
        """Wait for the aggregate that the master stores, and write it into `out`. Raises what waiting raises (NearDeadline, StaleAttempt,
        RunFailed, WaitTimeout), and Corrupt if the aggregate is wrong.
        """
        with group.stage("synchronise"):
            group.fetch_result(group.keys.combination(group.round), out, sender=MASTER)

    def list_used_keys(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        """Return the key of the contribution of worker `rank` to `round`, in a list. `count` is not used."""
        return [keys.average(round, rank)]

    def list_result_keys(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        """Return the key of the aggregate of `round`, in a list, if `rank` is the master's, else an empty list. `count` is not used."""
        return [keys.combination(round)] if rank == MASTER else []


@step(torch=True, uses={"tensors"})
def initialise(ctx: Context, event: Event) -> Event:
    """Create every worker's first checkpoint, with the same seeded model. If the run is resumed, copy the checkpoints of the newest round
    that all workers have. Returns the changes of the event for the round to start at, such as `epoch`, `round` and `minibatches`. Raises
    StaleAttempt if a higher attempt has begun or the run has been concluded, Missing or Corrupt if the run has decisions but no usable
    checkpoint.
    """
    return long_worker.start(ctx, event, AllReduce())


@step(torch=True, uses={"tensors"}, waits=True)
def train(ctx: Context, event: Event) -> Event:
    """Run a worker's rounds in one long invocation, until training ends or the deadline is near. A round has the four stages of LambdaML's
    Table 1. Return the changes of the event for the worker's next invocation, `finished` among them.
    """
    return synchronous.train(ctx, event, AllReduce())


@step(uses={"tensors"})
def collect(ctx: Context, event: Event) -> None:
    """Store the trained model and the run's outcome in the bucket, and delete every key and checkpoint of the run. Raises StaleAttempt if a
    higher attempt has begun, Missing or Corrupt if the outcome must be stored and the last round's checkpoint is gone or damaged.
    """
    long_worker.collect(ctx, event, AllReduce())


ARCHITECTURE = Architecture(
    "all_reduce",
    run=long_worker.tree(initialise, train, collect),
    tensor_hosts="shared",
    exchanges=EXCHANGES,
    claims={"equals_reference", "same_calls", "survives_kills", "resumes", "stops"},
)
