"""The message broker that all experiments of a project share: its creation takes a quarter of an hour, so experiments do not repeat it."""

from typing import Any

from aws_cdk import Fn, RemovalPolicy, Stack
from aws_cdk import aws_amazonmq as amazonmq
from aws_cdk import aws_secretsmanager as secretsmanager
from constructs import Construct

from cdk import organisation
from cdk.broker import PART
from cdk.nag import acknowledge
from cdk.names import stack_name
from cdk.network import PART as NETWORK
from cdk.parameters import import_shared_words, look_up, prevent_deletion_while_used, publish
from crossover.experiment import BROKER_VERSION, Experiment

USERNAME = "crossover"  # "guest" is refused


class BrokerStack(Stack):
    """The message broker that a project's experiments share: one private RabbitMQ 4.2 instance of Amazon MQ in the functions' subnet.

    It has no configuration object, because Amazon MQ cannot delete one, and exports no logs, because their groups would outlive the stack.
    Messages above the engine's default limit go through the object store. It has no KMS key of its own, because AWS takes none for
    RabbitMQ.
    """

    def __init__(self, scope: Construct, id: str, *, experiment: Experiment, **stack: Any) -> None:
        """Build the broker and the secret with its login, and publish its address and the secret's ARN as SSM parameters."""
        super().__init__(scope, id, **stack)
        project = experiment.project
        secret = secretsmanager.Secret(
            self,
            "Login",
            description="The broker's only user",
            encryption_key=organisation.import_kms_key(self),
            generate_secret_string=secretsmanager.SecretStringGenerator(
                secret_string_template=f'{{"username":"{USERNAME}"}}',
                generate_string_key="password",
                password_length=32,
                exclude_punctuation=True,  # Amazon MQ refuses , : = in a password
            ),
            removal_policy=RemovalPolicy.DESTROY,
        )
        acknowledge(secret, {"AwsSolutions-SMG4": "Lives for hours; rotating it would need a function in the VPC."})
        broker = amazonmq.CfnBroker(
            self,
            "Broker",
            broker_name=stack_name(project, PART),
            engine_type="RABBITMQ",
            engine_version=BROKER_VERSION,
            host_instance_type=experiment.network.broker_instance_type,
            deployment_mode="SINGLE_INSTANCE",
            publicly_accessible=False,
            auto_minor_version_upgrade=True,
            subnet_ids=[look_up(self, project, NETWORK, "functions_subnet")],
            security_groups=[look_up(self, project, NETWORK, "broker_group")],
            users=[
                amazonmq.CfnBroker.UserProperty(
                    username=USERNAME,
                    password=secret.secret_value_from_json("password").unsafe_unwrap(),  # a reference, not the value
                )
            ],
        )
        prevent_deletion_while_used(self, project, PART)
        facts = {"endpoint": Fn.select(0, broker.attr_amqp_endpoints), "secret": secret.secret_arn}
        publish(self, project, PART, facts | import_shared_words(project, [NETWORK]))


STACK = BrokerStack
