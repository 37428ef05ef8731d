"""The shared broker, as an experiment's stack sees it: the values that `stacks/broker.py` published."""

from constructs import Construct

from cdk.grants import Grant, secret
from cdk.parameters import look_up

PART = "broker"


class Broker:
    """The project's shared message broker, as an experiment's stack uses it: its address and secret, resolved at deployment. A template
    refers to it only if a function or program uses it.
    """

    def __init__(self, scope: Construct, project: str) -> None:
        """Remember the project; values are looked up when they are used."""
        self._scope, self._project = scope, project

    def _look_up(self, name: str) -> str:
        """Return the value `name` that the broker's stack published."""
        return look_up(self._scope, self._project, PART, name)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables for a user of the broker, without the prefix CROSSOVER_ of their names: BROKER, its address
        amqps://host:5671, and BROKER_SECRET, the ARN of a secret that holds JSON with username and password.
        """
        return {"BROKER": self._look_up("endpoint"), "BROKER_SECRET": self._look_up("secret")}

    @property
    def grants(self) -> list[Grant]:
        """The only permission that a function or program needs to use the broker: to read the secret with its login."""
        return [secret(self._look_up("secret"))]
