"""The shared network, as an experiment's stack sees it: ids that `stacks/network.py` published."""

from constructs import Construct

from cdk.parameters import look_up

PART = "network"


class Network:
    """Ids, resolved at deployment; a template names only those that are asked for."""

    def __init__(self, scope: Construct, project: str) -> None:
        self._scope, self._project = scope, project

    def _id(self, name: str) -> str:
        return look_up(self._scope, self._project, PART, name)

    @property
    def vpc(self) -> str:
        return self._id("vpc")

    @property
    def hosts_subnet(self) -> str:
        """Public, for hosts and programs: they install their packages themselves, and there is no NAT."""
        return self._id("hosts_subnet")

    @property
    def hosts_group(self) -> str:
        """Redis from the functions comes in, nothing else."""
        return self._id("hosts_group")

    @property
    def programs_group(self) -> str:
        """Nothing comes in."""
        return self._id("programs_group")

    @property
    def functions_subnet(self) -> str:
        """Private, with routes to S3 and Secrets Manager alone."""
        return self._id("functions_subnet")

    @property
    def functions_group(self) -> str:
        """Nothing comes in."""
        return self._id("functions_group")
