"""ScatterReduce: every worker averages one chunk of what all workers publish.

Jiang et al., "Towards Demystifying Serverless Machine Learning Training" (SIGMOD 2021), and Table 1 of "Cost-Performance Analysis" (2025):
every worker splits its gradient into one chunk per worker, keeps its own and stores the others; aggregates the chunk it is responsible for,
stores it, fetches all other chunks and concatenates them; each updates its own model.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from crossover.algorithms.codecs import CODECS
from crossover.algorithms.rules import RULES
from crossover.algorithms.schedule import chunk_slice
from crossover.experiment import Experiment
from crossover.stores.clients import Event
from crossover.stores.keys import Keys
from crossover.training import long_worker, synchronous
from crossover.workflow import step
from crossover.workflow.architecture import EXCHANGES, Architecture
from crossover.workflow.context import Context

if TYPE_CHECKING:
    from torch import Tensor

    from crossover.training.group import Group


class ScatterReduce:
    """ScatterReduce's way to exchange contributions, Table 1, Synchronisation: each of W workers aggregates one chunk of the vector.

    Per round and worker, D elements are sent in W puts, and 2 (W - 1) / W D elements are received by 2 (W - 1) gets.
    """

    def __init__(self) -> None:
        """Start without a receive buffer; it is allocated in the first round and then reused."""
        self._fetched: Tensor | None = None  # memory that rounds share: fresh pages would cost as much as the transfer

    def is_combined(self, group: "Group") -> bool:
        """Return whether the chunk that this worker aggregates is already stored for the group's round. Raises Unavailable if the store
        does not answer for 60 s, or the deadline is near.
        """
        return group.is_published(group.keys.combination(group.round, group.rank))

    def split(self, elements: int, count: int, unit: int) -> list[slice]:
        """Return the slice of a vector of `elements` elements that each of `count` workers aggregates, by rank. Each begins at a multiple
        of `unit`.
        """
        return [chunk_slice(elements, count, worker=worker, unit=unit) for worker in range(count)]

    def exchange(self, group: "Group", own: "Tensor", out: "Tensor") -> None:
        """Store the chunks of `own`, this worker's contribution, for the other workers; aggregate and store the chunk of this worker; then
        fetch the other aggregated chunks. `out` receives the whole result. Keys that exist stay as they are. Raises ResultExists if another
        attempt of this worker aggregates its chunk meanwhile, what waiting raises (NearDeadline, StaleAttempt, RunFailed, WaitTimeout), and
        Corrupt or Refused if a chunk cannot be used.
        """
        with group.stage("store"):
            for part in _other_ranks(group.rank, group.count):
                key = group.keys.chunk(group.round, group.rank, part)
                group.contribute(key, own, self._slice(group, own, part))
        with group.stage("aggregate"):
            mine = self._slice(group, own, group.rank)
            names = [group.keys.chunk(group.round, rank, group.rank) for rank in range(group.count)]
            group.combine(
                self._chunks(group, own[mine], mine.start),
                out[mine],
                names=names,
                agree=lambda bad: _agree_on_dropping(group, own, bad),
            )
            group.publish_combined(group.keys.combination(group.round, group.rank), out, mine)
        self._fetch(group, out, _other_ranks(group.rank, group.count))

    def _chunks(self, group: "Group", own: "Tensor", first: int) -> "Iterator[Tensor]":
        """Yield, by rank, the chunk that this worker aggregates, of every worker's contribution. Each is fetched into the same buffer,
        except this worker's own.

        `own`: the chunk of this worker's contribution; `first`: number of the element at which the chunk begins. Waits for each that is not
        stored yet. Raises ResultExists if another attempt of this worker has aggregated the chunk, and what waiting raises.
        """
        merged = group.keys.combination(group.round, group.rank)
        fetched = self._fetched = own.new_empty(own.numel()) if self._fetched is None else self._fetched
        for rank in range(group.count):
            key = group.keys.chunk(group.round, rank, group.rank)
            yield (
                own
                if rank == group.rank
                else group.fetch_contribution(key, fetched, sender=rank, first=first, unless=merged)
            )

    def collect(self, group: "Group", out: "Tensor") -> None:
        """Wait for the aggregated chunks of all workers, this one's too, and write them into `out`. Raises what waiting raises
        (NearDeadline, StaleAttempt, RunFailed, WaitTimeout), and Corrupt if a chunk is wrong.
        """
        self._fetch(group, out, list(range(group.count)))

    def _fetch(self, group: "Group", out: "Tensor", parts: list[int]) -> None:
        """Wait for the aggregated chunks of the workers in `parts`, and write them into their slices of `out`. Raises what
        `Group.fetch_result` raises, such as NearDeadline and Corrupt.
        """
        with group.stage("synchronise"):
            for part in parts:
                group.fetch_result(
                    group.keys.combination(group.round, part), out[self._slice(group, out, part)], sender=part
                )

    def _slice(self, group: "Group", vector: "Tensor", part: int) -> slice:
        """Return the slice of `vector` that the worker of rank `part` aggregates."""
        return chunk_slice(vector.numel(), group.count, worker=part, unit=group.unit)

    def list_used_keys(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        """Return the keys that worker `rank`, one of `count`, has stored for the others in `round`: its chunks, and its list of whom it
        would leave out.
        """
        return [*(keys.chunk(round, rank, part) for part in _other_ranks(rank, count)), keys.verdict(round, rank)]

    def list_result_keys(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        """Return the key of the chunk of `round` that worker `rank` has aggregated, in a list. `count` is not used."""
        return [keys.combination(round, rank)]


def _agree_on_dropping(group: "Group", own: "Tensor", bad: list[int]) -> list[int]:
    """Return the ranks whose contributions all workers leave out of this round: each one that any worker would leave out.

    Each worker sees only one chunk of every contribution, so all exchange their lists before anybody aggregates. `own`: any vector of the
    device and type to use; `bad`: ranks that this worker would leave out. Raises ResultExists if this worker's chunk is aggregated already.
    """
    flags = own.new_zeros(group.count)
    flags[bad] = 1.0
    group.publish(group.keys.verdict(group.round, group.rank), flags, samples=group.samples[group.rank])
    merged, found = group.keys.combination(group.round, group.rank), flags.new_empty(group.count)
    for rank in _other_ranks(group.rank, group.count):
        key = group.keys.verdict(group.round, rank)
        flags += group.fetch(key, found, sender=rank, samples=group.samples[rank], unless=merged)
    return group.agree(flags.nonzero().flatten().tolist())


def _other_ranks(rank: int, count: int) -> list[int]:
    """Return all ranks from 0 to `count` - 1 except `rank`, starting with the next one, so that the workers do not all fetch the same chunk
    first.
    """
    return [(rank + step) % count for step in range(1, count)]


@step(torch=True, uses={"tensors"})
def initialise(ctx: Context, event: Event) -> Event:
    """Create every worker's first checkpoint, with the same seeded model. If the run is resumed, copy the checkpoints of the newest round
    that all workers have. Returns the changes of the event for the round to start at, such as `epoch`, `round` and `minibatches`. Raises
    StaleAttempt if a higher attempt has begun or the run has been concluded, Missing or Corrupt if the run has decisions but no usable
    checkpoint.
    """
    return long_worker.start(ctx, event, ScatterReduce())


@step(torch=True, uses={"tensors"}, waits=True)
def train(ctx: Context, event: Event) -> Event:
    """Run a worker's rounds in one long invocation, until training ends or the deadline is near. A round has the four stages of LambdaML's
    Table 1: gradients, exchange of chunks, mean, update. Return the changes of the event for the worker's next invocation, `finished` among
    them.
    """
    return synchronous.train(ctx, event, ScatterReduce())


@step(uses={"tensors"})
def collect(ctx: Context, event: Event) -> None:
    """Store the trained model and the run's outcome in the bucket, and delete every key and checkpoint of the run. Raises StaleAttempt if a
    higher attempt has begun, Missing or Corrupt if the outcome must be stored and the last round's checkpoint is gone or damaged.
    """
    long_worker.collect(ctx, event, ScatterReduce())


def checks(e: Experiment) -> Iterator[str]:
    """Yield an error message if ScatterReduce does not support the experiment's aggregation rule, because the rule measures distances
    between whole gradients; otherwise nothing.
    """
    if not RULES[e.aggregation.rule].by_coordinate:
        yield (
            f"aggregation.rule: {e.aggregation.rule} measures distances between whole gradients, but ScatterReduce aggregates chunks; "
            "expected mean, median or trimmed_mean, or another architecture"
        )


COMPRESSIONS = tuple(name for name, codec in CODECS.items() if codec.exchanges == 1)
ARCHITECTURE = Architecture(
    "scatter_reduce",
    run=long_worker.tree(initialise, train, collect),
    tensor_hosts="shared",
    exchanges={**EXCHANGES, "gradients": COMPRESSIONS, "delta": COMPRESSIONS},
    why_not="cut into chunks, powersgd's factors, a few percent of a gradient, would save nothing and take twice the requests",
    checks=checks,
    claims={"equals_reference", "same_calls", "survives_kills", "resumes", "stops"},
)
