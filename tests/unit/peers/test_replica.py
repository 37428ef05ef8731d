"""Checkpoints of a peer: what is saved, what goes, and by whom."""

from collections.abc import Iterator

import pytest

from crossover.errors import StaleAttempt
from crossover.training.peer import Replica
from crossover.workflow.context import Context, Resources
from tests.architectures.harness import Job, small


@pytest.fixture
def ctx() -> Iterator[Context]:
    """Yield the context of a program in a prepared GPU run."""
    job = Job(small("gpu"))
    with Context(Resources(job.clients), run=job.prepared.run) as found:
        yield found


def saved(ctx: Context) -> list[str]:
    """Return the keys of worker 0's checkpoints."""
    return ctx.objects.list(ctx.keys.checkpoints_of(0))


def train(replica: Replica, value: float) -> None:
    """Advance the replica by one round, as if its device had computed the model `value`, and save it."""
    replica.model.fill_(value)
    replica.round += 1
    replica.save()


@pytest.mark.parametrize("start", [0, 1])
def test_rounds_that_are_trained_again_are_saved_again(start: int, ctx: Context) -> None:
    """Rounds that a peer trains again after `start` replace the checkpoints of the first time."""
    replica = Replica(ctx, 0)
    replica.restore()
    for value in (1.0, 2.0):
        train(replica, value)
    replica = Replica(ctx, 0)
    replica.restore(at=start)
    assert saved(ctx) == [ctx.keys.checkpoint(0, 1)][:start]
    for _ in range(start, 2):
        train(replica, 3.0)
    replica = Replica(ctx, 0)
    replica.restore()
    assert replica.round == 2
    assert replica.model.unique().tolist() == [3.0]


def test_an_overtaken_attempt_neither_saves_nor_takes_away(ctx: Context) -> None:
    """A peer of an attempt that another superseded raises StaleAttempt, and neither adds nor removes checkpoints."""
    newer = Replica(ctx, 0)
    newer.restore()
    for value in (1.0, 2.0):
        train(newer, value)
    before = saved(ctx)

    def overtaken() -> None:
        """Raise StaleAttempt, as the confirmation of a superseded attempt does."""
        raise StaleAttempt("attempt 0 was superseded by attempt 1")

    older = Replica(ctx, 0, confirm=overtaken)
    older.restore()
    with pytest.raises(StaleAttempt):
        train(older, 3.0)
    with pytest.raises(StaleAttempt):
        older.restore(at=1)
    assert saved(ctx) == before
