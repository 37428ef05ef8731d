"""The shared broker, as an experiment's stack sees it: facts that `stacks/broker.py` published."""

from constructs import Construct

from cdk.parameters import look_up

PART = "broker"


class Broker:
    """Facts, resolved at deployment; a template names only those that are asked for."""

    def __init__(self, scope: Construct, project: str) -> None:
        self._scope, self._project = scope, project

    @property
    def endpoint(self) -> str:
        """amqps://host:5671"""
        return look_up(self._scope, self._project, PART, "endpoint")

    @property
    def secret(self) -> str:
        """ARN of a secret: JSON with username and password."""
        return look_up(self._scope, self._project, PART, "secret")
