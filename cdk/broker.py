"""The shared broker, as an experiment's stack sees it: facts that `stacks/broker.py` published."""

from constructs import Construct

from cdk.grants import Grant, secret
from cdk.parameters import look_up

PART = "broker"


class Broker:
    """Facts, resolved at deployment; a template names them only where somebody talks."""

    def __init__(self, scope: Construct, project: str) -> None:
        self._scope, self._project = scope, project

    def _fact(self, name: str) -> str:
        return look_up(self._scope, self._project, PART, name)

    @property
    def environment(self) -> dict[str, str]:
        """Of who talks: amqps://host:5671, and the ARN of a secret, JSON with username and password."""
        return {"BROKER": self._fact("endpoint"), "BROKER_SECRET": self._fact("secret")}

    @property
    def grants(self) -> list[Grant]:
        """What who talks may do."""
        return [secret(self._fact("secret"))]
