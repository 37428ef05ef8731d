"""The shared network, as an experiment's stack sees it: ids that `stacks/network.py` published."""

from typing import Literal

from constructs import Construct

from cdk.parameters import look_up

PART = "network"


class SharedNetwork:
    """Ids, resolved at deployment; a template names only those that are asked for.

    `hosts_subnet` is public, for hosts and programs: they install their packages themselves, and there is no NAT. `functions_subnet` is
    private, with routes to S3 and Secrets Manager alone. Into `hosts_group` Redis from the functions comes, into the others nothing.
    """

    def __init__(self, scope: Construct, project: str) -> None:
        self.project, self._scope = project, scope

    def id_of(
        self,
        what: Literal["vpc", "hosts_subnet", "hosts_group", "programs_group", "functions_subnet", "functions_group"],
    ) -> str:
        return look_up(self._scope, self.project, PART, what)
