"""Redis 8, as Debian 13 and so the hosts on EC2 have it: the tensor module, the tensor store and the client, as on this machine's Redis."""

import pytest

from crossover.local.servers import CHOSEN_BY, REDIS
from tests.witnesses.environments import environment
from tests.witnesses.suites import STORE, TENSORS, hold


@pytest.mark.parametrize("suites", [TENSORS, STORE])
def test_the_suites_hold(suites: tuple[str, ...]) -> None:
    """Check that the tests which use Redis pass with Redis 8."""
    server = environment("redis_8") / "redis-server"
    hold(suites, with_server=server, chosen_by=CHOSEN_BY[REDIS])
