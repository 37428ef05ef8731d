"""RabbitMQ 4 with what Amazon MQ's 4.2 sets otherwise: the message bus, and the architectures that talk over it, as on this machine's."""

import pytest

from crossover.local.servers import CHOSEN_BY, RABBITMQ
from tests.witnesses.environments import environment
from tests.witnesses.suites import BUS, RUNS, hold


@pytest.mark.parametrize("suites", [BUS, pytest.param(RUNS, marks=pytest.mark.slow)])
def test_the_suites_hold(suites: tuple[str, ...]) -> None:
    """Check that the tests which use RabbitMQ pass with RabbitMQ 4."""
    server = environment("rabbitmq_4") / "rabbitmq-server"
    hold(suites, with_server=server, chosen_by=CHOSEN_BY[RABBITMQ])
