"""What a peer finds in its mailboxes when it starts again."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from crossover.algorithms import codecs
from crossover.algorithms.contributions import Contribution
from crossover.experiment import Exchange
from crossover.training.peer import Replica
from crossover.workflow.context import Context, Resources
from peers.p2p.mailboxes import SynchronousMailboxes
from tests.architectures.fleet import member
from tests.architectures.harness import Job, small

ROUND = 3


@pytest.fixture(params=["none", "powersgd"])
def job(request: pytest.FixtureRequest) -> Job:
    """Return a job of peers, once for each compression: their rounds have one exchange, or two."""
    return Job(replace(small("p2p_instance", batch_size=10), exchange=Exchange(compression=request.param, rank=2)))


@pytest.fixture
def ctx(job: Job) -> Iterator[Context]:
    """Yield the context of a peer in the prepared run."""
    with Context(Resources(job.clients), run=job.prepared.run) as found:
        yield found


def opened(job: Job, ctx: Context) -> tuple[SynchronousMailboxes, int | None]:
    """Return a new attempt's mailboxes, and the round that it has to send again."""
    replica = Replica(ctx, 0)
    replica.restore()
    replica.round = ROUND + 1
    mailboxes = SynchronousMailboxes(ctx, member(job))
    return mailboxes, mailboxes.open(replica)


@pytest.mark.parametrize("lost", [(), (0,), (1,), (0, 1)], ids=str)
def test_a_round_is_sent_again_if_the_message_of_any_of_its_exchanges_is_lost(
    lost: tuple[int, ...], job: Job, ctx: Context
) -> None:
    """A peer that starts again has to resend the last round if a message of any of its exchanges is lost, else none. `lost`: those
    exchanges.
    """
    sender, _ = opened(job, ctx)
    made = range(codecs.count_exchanges(job.experiment.exchange))
    replica = Replica(ctx, 0)
    replica.restore()
    for number in set(made) - set(lost):
        sender.send(Contribution(replica.model), ROUND, exchange=number)
    assert opened(job, ctx)[1] == (ROUND if set(made) & set(lost) else None)
