"""The shared network, as an experiment's stack sees it: the ids that `stacks/network.py` published."""

from typing import Literal

from aws_cdk import Fn
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from cdk.parameters import look_up

PART = "network"


class SharedNetwork:
    """The project's shared network, as an experiment's stack uses it: ids that are resolved at deployment. A template contains only those
    that are used.

    `hosts_subnet` is public, for hosts and programs: they install their packages themselves, and there is no NAT. `functions_subnet` is
    private, with routes only to S3 and Secrets Manager. `hosts_group` admits Redis connections from the functions; the other groups admit
    nothing.
    """

    def __init__(self, scope: Construct, project: str) -> None:
        """Remember the project; ids are looked up when they are used."""
        self.project, self._scope = project, scope

    def id_of(
        self,
        what: Literal[
            "vpc", "hosts_subnet", "hosts_group", "programs_group", "functions_subnet", "functions_group", "undelivered"
        ],
    ) -> str:
        """Return the id of the network's resource `what`, as a token that is resolved at deployment. "undelivered" is the queue of starts
        of the clean-up that the scheduler gave up.
        """
        return look_up(self._scope, self.project, PART, what)

    def import_vpc(self) -> ec2.IVpc:
        """Return a CDK object that refers to the existing VPC, with the region's first zone and no subnets. A scope can call this only
        once.
        """
        zones = [Fn.select(0, Fn.get_azs())]  # no template names them
        return ec2.Vpc.from_vpc_attributes(self._scope, "SharedVpc", vpc_id=self.id_of("vpc"), availability_zones=zones)
