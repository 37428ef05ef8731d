"""The shared network, as an experiment's stack sees it: the ids that `stacks/network.py` published."""

from typing import Literal

from constructs import Construct

from cdk.parameters import look_up

PART = "network"


class SharedNetwork:
    """The ids of the shared network, resolved at deployment. A template names only those that are used.

    `hosts_subnet` is public, for hosts and programs: they install their packages themselves, and there is no NAT. `functions_subnet` is
    private, with routes to S3 and Secrets Manager alone. `hosts_group` admits Redis connections from the functions; the other groups
    admit nothing.
    """

    def __init__(self, scope: Construct, project: str) -> None:
        self.project, self._scope = project, scope

    def id_of(
        self,
        what: Literal["vpc", "hosts_subnet", "hosts_group", "programs_group", "functions_subnet", "functions_group"],
    ) -> str:
        """Return the id of one resource of the network."""
        return look_up(self._scope, self.project, PART, what)
