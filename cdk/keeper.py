"""A function that never runs: it keeps Lambda's network interface in the functions' subnet for as long as the network stands.

Functions of the same subnet and groups share an interface. Lambda makes it with the first of them, which takes a minute or more, and takes
it away after the last, up to 20 minutes later and with a role that must still be there. With the keeper neither belongs to an experiment:
those come and go on an interface that is there, and the network, which has to wait for it, takes it away with the keeper's role. It costs
nothing. That Lambda shares the interface so is documented; that a keeper holds it is unproven (docs/aws.md).
"""

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from cdk import grants
from cdk.nag import acknowledge
from cdk.names import stack_name

CODE = "exports.handler = async () => ({});"


class Keeper(Construct):
    """In the subnet and group in which the experiments' functions are."""

    def __init__(self, scope: Construct, id: str, *, project: str, subnet: str, group: str) -> None:
        super().__init__(scope, id)
        name = stack_name(project, "network-keeper")
        log = logs.LogGroup(
            self,
            "Log",
            log_group_name=f"/aws/lambda/{name}",
            retention=logs.RetentionDays.TWO_WEEKS,
            removal_policy=RemovalPolicy.DESTROY,
        )
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
            role=grants.role(
                self,
                "Role",
                service="lambda",
                grants=[grants.logs(f"/aws/lambda/{name}"), *grants.network_interfaces(name)],
            ),
            log_group=log,
        )
        resource = function.node.default_child
        assert isinstance(resource, lambda_.CfnFunction)
        resource.vpc_config = lambda_.CfnFunction.VpcConfigProperty(subnet_ids=[subnet], security_group_ids=[group])
        acknowledge(function, {"AwsSolutions-L1": "It never runs, whatever its runtime is."})
