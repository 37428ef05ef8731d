"""The network that all experiments of a project share.

Deleting it is slow: the network interfaces of functions block the deletion of their subnet and security group for 20 to 40 minutes. So
those live here and not in the experiments' stacks, which come and go.
"""

from typing import Any

from aws_cdk import Aws, RemovalPolicy, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from cdk import organisation
from cdk.expiry import Expiry
from cdk.keeper import Keeper
from cdk.nag import acknowledge
from cdk.names import arn, boot_log, bucket_prefix
from cdk.network import PART
from cdk.parameters import prevent_deletion_while_used, publish
from cdk.zone import pin_zone
from crossover.experiment import Experiment

REDIS_PORT, AMQPS_PORT, HTTPS_PORT = 6379, 5671, 443


THROUGH_S3 = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"]  # all that a function's role may do


def _within_the_account(actions: list[str], resources: list[str]) -> iam.PolicyStatement:
    """Return a policy statement for a VPC endpoint that admits only identities and resources of this account. So a broken function cannot
    send data elsewhere, whatever credentials it has.
    """
    mine = {"aws:ResourceAccount": Aws.ACCOUNT_ID, "aws:PrincipalAccount": Aws.ACCOUNT_ID}
    return iam.PolicyStatement(
        principals=[iam.AnyPrincipal()], actions=actions, resources=resources, conditions={"StringEquals": mine}
    )


class NetworkStack(Stack):
    """The network that a project's experiments share: a VPC in one availability zone without NAT, with a public subnet for hosts, a private
    one for functions, and security groups. If the organisation has a VPC, no other VPC and no endpoints are built.
    """

    def __init__(self, scope: Construct, id: str, *, experiment: Experiment, **stack: Any) -> None:
        """Build VPC and endpoints (unless the organisation has a VPC), security groups, log group, keeper and expiry, and publish their ids
        as SSM parameters for other stacks.
        """
        super().__init__(scope, id, **stack)
        zone = pin_zone(self, asked=experiment.network.availability_zone)
        own = organisation.account_of(self).network
        vpc = self._vpc(zone) if own.vpc is None else None
        made = vpc or ec2.Vpc.from_vpc_attributes(self, "Vpc", vpc_id=str(own.vpc), availability_zones=[zone])
        groups = self._groups(made)
        if vpc:
            self._endpoints(vpc, groups["endpoints"], bucket_prefix(experiment.project))
        functions_subnet = (
            vpc.isolated_subnets[0]
            if vpc
            else ec2.Subnet.from_subnet_id(self, "FunctionsSubnet", str(own.functions_subnet))
        )
        logs.LogGroup(
            self,
            "BootLog",
            log_group_name=boot_log(experiment.project),
            retention=logs.RetentionDays.TWO_WEEKS,
            removal_policy=RemovalPolicy.DESTROY,
        )
        Keeper(
            self,
            "Keeper",
            project=experiment.project,
            vpc=made,
            subnet=functions_subnet,
            group=groups["functions"],
        )
        expiry = Expiry(self, "Expiry", project=experiment.project)
        prevent_deletion_while_used(self, experiment.project, PART)
        publish(
            self,
            experiment.project,
            PART,
            {
                "zone": zone,
                "vpc": made.vpc_id,
                "hosts_subnet": vpc.public_subnets[0].subnet_id if vpc else str(own.hosts_subnet),
                "functions_subnet": functions_subnet.subnet_id,
                "undelivered": expiry.undelivered.queue_name,
                **{
                    f"{name}_group": groups[name].security_group_id
                    for name in ("functions", "hosts", "programs", "broker")
                },
            },
        )
        # Functions' interfaces may hold the subnet for a while: the deletion is then tried again, and told, by what still stands.
        expiry.delete_after(self.node.children)

    def _vpc(self, zone: str) -> ec2.Vpc:
        """Build the VPC in the availability zone `zone`, with a public and an isolated subnet and without NAT."""
        vpc = ec2.Vpc(
            self,
            "Vpc",
            availability_zones=[zone],
            nat_gateways=0,
            restrict_default_security_group=False,  # nobody uses it, and closing it takes a custom resource
            subnet_configuration=[
                ec2.SubnetConfiguration(name="Hosts", subnet_type=ec2.SubnetType.PUBLIC, cidr_mask=20),
                ec2.SubnetConfiguration(name="Functions", subnet_type=ec2.SubnetType.PRIVATE_ISOLATED, cidr_mask=20),
            ],
        )
        acknowledge(
            vpc, {"AwsSolutions-VPC7": "Flow logs cost more than they tell about a network that lives for hours."}
        )
        return vpc

    def _endpoints(self, vpc: ec2.Vpc, group: ec2.SecurityGroup, prefix: str) -> None:
        """Build the VPC endpoints for S3 and Secrets Manager. `group`: security group of the interface endpoint; `prefix`: beginning of the
        project's bucket names, to which S3 access is restricted.
        """
        private = ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_ISOLATED)
        objects = vpc.add_gateway_endpoint("S3", service=ec2.GatewayVpcEndpointAwsService.S3, subnets=[private])
        secrets = vpc.add_interface_endpoint(
            "SecretsManager",
            service=ec2.InterfaceVpcEndpointAwsService.SECRETS_MANAGER,
            subnets=private,
            security_groups=[group],
            open=False,
        )
        buckets = f"arn:{Aws.PARTITION}:s3:::{prefix}*"
        objects.add_to_policy(_within_the_account(THROUGH_S3, [buckets, f"{buckets}/*"]))
        secrets.add_to_policy(
            _within_the_account(["secretsmanager:GetSecretValue"], [arn("secretsmanager", "secret:*")])
        )

    def _groups(self, vpc: ec2.IVpc) -> dict[str, ec2.SecurityGroup]:
        """Build the security groups and return them by name. Connections that no rule allows are closed. If `vpc` is the organisation's
        own, there is no group for endpoints.
        """
        groups = {
            name: ec2.SecurityGroup(
                self, f"{name.capitalize()}Group", vpc=vpc, description=purpose, allow_all_outbound=False
            )
            for name, purpose in {
                "functions": "Functions: nothing comes in; Redis, broker and HTTPS go out",
                "hosts": "Redis hosts: Redis from the functions comes in",
                "programs": "Peers and GPU workers: nothing comes in",
                "broker": "RabbitMQ: AMQPS from functions and programs comes in",
                "endpoints": "Interface endpoints: HTTPS from functions, hosts and programs comes in",
            }.items()
            if name != "endpoints" or isinstance(vpc, ec2.Vpc)
        }
        functions, hosts, programs, broker = (groups[name] for name in ("functions", "hosts", "programs", "broker"))
        hosts.connections.allow_from(functions, ec2.Port.tcp(REDIS_PORT))
        broker.connections.allow_from(functions, ec2.Port.tcp(AMQPS_PORT))
        broker.connections.allow_from(programs, ec2.Port.tcp(AMQPS_PORT))
        # The endpoint's private DNS name holds for the whole VPC: hosts and programs reach Secrets Manager through it too.
        for group in (functions, hosts, programs):
            if endpoints := groups.get("endpoints"):
                endpoints.connections.allow_from(group, ec2.Port.tcp(HTTPS_PORT))
            # S3's addresses are a prefix list whose id differs by region; where HTTPS can lead to is decided by the routes.
            group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(HTTPS_PORT), "HTTPS, as far as the routes lead")
        for group in (hosts, programs):
            group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(80), "Package archives at boot")
        return groups


STACK = NetworkStack
