"""The clients of a deployed function: variables that the stack did not set are named."""

import pytest

from crossover.errors import ConfigError
from crossover.stores.deployed_clients import DeployedClients
from crossover.stores.protocols import Traffic


def test_a_broker_without_its_secret_is_refused_by_the_variables_name() -> None:
    """`bus` raises ConfigError with the missing variable's name if the environment has a broker's address, but no secret."""
    clients = DeployedClients({"CROSSOVER_BROKER": "amqps://broker:5671"})
    with pytest.raises(ConfigError, match="CROSSOVER_BROKER_SECRET: not in the environment"):
        clients.bus(Traffic())
