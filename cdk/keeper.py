"""A function that never runs: it keeps Lambda's network interface in the functions' subnet as long as the network exists.

Functions of the same subnet and groups share an interface. Lambda makes it with the first of them, which takes a minute or more, and
deletes it after the last, up to 20 minutes later and with a role that must still exist. With the keeper neither wait belongs to an
experiment: experiments use an interface that exists already, and only the deletion of the network has to wait for it, together with the
keeper's role. It costs nothing. AWS documents that functions share the interface; that a keeper holds it is unproven (docs/aws.md).
"""

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from cdk import grants
from cdk.nag import acknowledge
from cdk.names import stack_name

CODE = "exports.handler = async () => ({});"


class Keeper(Construct):
    """A Lambda function that never runs, in the subnet and security group of the experiments' functions, so that Lambda keeps their shared
    network interface.
    """

    def __init__(
        self, scope: Construct, id: str, *, project: str, vpc: ec2.IVpc, subnet: ec2.ISubnet, group: ec2.ISecurityGroup
    ) -> None:
        """Build the function, its log group and its role. `subnet`, `group`: those of the experiments' functions. `project`: gives the
        function's name.
        """
        super().__init__(scope, id)
        name = stack_name(project, "network-keeper")
        log = logs.LogGroup(
            self,
            "Log",
            log_group_name=f"/aws/lambda/{name}",
            retention=logs.RetentionDays.TWO_WEEKS,
            removal_policy=RemovalPolicy.DESTROY,
        )
        may = [grants.logs(f"/aws/lambda/{name}"), *grants.network_interfaces(name)]
        role = grants.role(self, "Role", service="lambda", grants=may)
        function = lambda_.Function(
            self,
            "Function",
            function_name=name,
            description="Never runs: keeps the network interface that the experiments' functions share",
            runtime=lambda_.Runtime.NODEJS_22_X,
            architecture=lambda_.Architecture.ARM_64,
            handler="index.handler",
            code=lambda_.Code.from_inline(CODE),
            timeout=Duration.seconds(3),
            role=role,
            log_group=log,
            vpc=vpc,
            vpc_subnets=ec2.SubnetSelection(subnets=[subnet]),
            security_groups=[group],
        )
        grants.depend_by_reference(function, role)
        acknowledge(function, {"AwsSolutions-L1": "It never runs, whatever its runtime is."})
