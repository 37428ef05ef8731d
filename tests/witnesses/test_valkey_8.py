"""Valkey 8, which many distributions have instead of Redis: the tensor module, the tensor store and the client."""

import pytest

from crossover.local.servers import CHOSEN_BY, REDIS
from tests.witnesses.environments import environment
from tests.witnesses.suites import STORE, TENSORS, hold


@pytest.mark.slow
@pytest.mark.parametrize("suites", [TENSORS, STORE])
def test_the_suites_hold(suites: tuple[str, ...]) -> None:
    """Check that the tests which use Redis pass with Valkey 8."""
    server = environment("valkey_8") / "valkey-server"
    hold(suites, with_server=server, chosen_by=CHOSEN_BY[REDIS])
