"""What a step, machine or host may do, as data. A resource with a wildcard says why it has one; cdk-nag reads the reasons.

Policies are inline: whoever refers to a role waits for its permissions, without a dependency of its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from constructs import Construct, IConstruct

from cdk import organisation
from cdk.nag import acknowledge, finding_of
from cdk.names import arn
from crossover.workflow import Uses

# Reached from inside the VPC alone; S3 and Step Functions are not.
VPC_SERVICES: frozenset[Uses] = frozenset({"tensors", "bus"})


@dataclass(frozen=True, kw_only=True)
class Grant:
    """`why`: the reason for the wildcards in `resources`. `denied`: takes away what another grant gives."""

    actions: Sequence[str]
    resources: Sequence[str]
    why: str = ""
    conditions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    denied: bool = False


def role(
    scope: Construct, id: str, *, service: str, grants: Iterable[Grant], conditions: Mapping[str, object] | None = None
) -> iam.Role:
    """A role for an AWS service that may do exactly `grants`, and use the organisation's key for it."""
    grants = list(grants)
    grants += _key(scope, grants)
    statements = [
        iam.PolicyStatement(
            effect=iam.Effect.DENY if g.denied else iam.Effect.ALLOW,
            actions=list(g.actions),
            resources=list(g.resources),
            conditions=dict(g.conditions),
        )
        for g in grants
    ]
    made = iam.Role(
        scope,
        id,
        assumed_by=iam.ServicePrincipal(f"{service}.amazonaws.com", conditions=conditions),
        inline_policies={"Grants": iam.PolicyDocument(statements=statements)},
    )
    for grant in grants:
        if not grant.denied:
            explain(made, grant)
    return made


# What reaches something that the organisation's key has encrypted.
_ENCRYPTED = {"s3:GetObject", "s3:PutObject", "secretsmanager:GetSecretValue", "sns:Publish"}


def _key(scope: Construct, grants: Sequence[Grant]) -> list[Grant]:
    key = organisation.of(scope).kms_key
    reaches = any(_ENCRYPTED.intersection(grant.actions) for grant in grants)
    return [Grant(actions=["kms:Decrypt", "kms:GenerateDataKey"], resources=[key])] if key and reaches else []


def explain(holder: IConstruct, grant: Grant) -> None:
    """Write down why the wildcards of `grant` stand, where cdk-nag looks for it."""
    for resource in grant.resources:
        plain = finding_of(Stack.of(holder).resolve(resource))
        if "*" in plain:
            assert grant.why, f"{plain}: a wildcard without a reason"
            acknowledge(holder, {f"AwsSolutions-IAM5[Resource::{plain}]": grant.why})


def objects(bucket: s3.IBucket, data: Iterable[s3.IBucket]) -> list[Grant]:
    """Read, write and delete in runs (checkpoints go when newer ones stand), read data and the base of a model, which lies in the bucket of
    runs. ListBucket: without it a missing key answers 403 instead of 404, and steps ask for such keys.
    """
    buckets = list(data)
    holding = buckets if bucket in buckets else [bucket, *buckets]
    why = "Keys are made as the run goes on."
    return [
        Grant(
            actions=["s3:GetObject", "s3:PutObject", "s3:DeleteObject"],
            resources=[bucket.arn_for_objects("runs/*")],
            why=why,
        ),
        Grant(actions=["s3:GetObject"], resources=[each.arn_for_objects("data/*") for each in holding], why=why),
        Grant(actions=["s3:ListBucket"], resources=list(dict.fromkeys(b.bucket_arn for b in [bucket, *buckets]))),
    ]


def secret(secret_arn: str) -> Grant:
    return Grant(actions=["secretsmanager:GetSecretValue"], resources=[secret_arn])


def certificates(bucket: s3.IBucket) -> Grant:
    """Read the Redis hosts' certificates."""
    return Grant(
        actions=["s3:GetObject"], resources=[bucket.arn_for_objects("hosts/redis/*")], why="One certificate per host."
    )


def logs(group_name: str, *, why: str = "Streams of its own log group.") -> Grant:
    """Write to one log group. Not CreateLogGroup: a late line would bring a deleted group back."""
    return Grant(
        actions=["logs:CreateLogStream", "logs:PutLogEvents"],
        resources=[arn("logs", f"log-group:{group_name}:*")],
        why=why,
    )


NETWORK_INTERFACES = (
    "ec2:CreateNetworkInterface",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSubnets",
    "ec2:DeleteNetworkInterface",
    "ec2:AssignPrivateIpAddresses",
    "ec2:UnassignPrivateIpAddresses",
)


def network_interfaces(function: str) -> list[Grant]:
    """What Lambda needs to put a function into a VPC, and not for the function's own code to use.

    Source: docs.aws.amazon.com/lambda/latest/dg/configuration-vpc.html; the condition's key stands in the calls of the code alone.
    """
    return [
        Grant(
            actions=NETWORK_INTERFACES,
            resources=["*"],
            why="Lambda demands these actions on every resource before it accepts a VPC.",
        ),
        Grant(
            actions=NETWORK_INTERFACES,
            resources=["*"],
            conditions={"ArnEquals": {"lambda:SourceFunctionArn": arn("lambda", f"function:{function}")}},
            denied=True,
        ),
    ]


def start_machines(names: Iterable[str]) -> list[Grant]:
    """Start machines by name, follow and stop their executions; `sync:2` learns of their end through a rule that Step Functions owns."""
    names = list(names)
    return [
        Grant(actions=["states:StartExecution"], resources=[arn("states", f"stateMachine:{name}") for name in names]),
        Grant(
            actions=["states:DescribeExecution", "states:StopExecution"],
            resources=[arn("states", f"execution:{name}:*") for name in names],
            why="Executions of these machines, whose names carry run, worker and round.",
        ),
        Grant(
            actions=["events:PutTargets", "events:PutRule", "events:DescribeRule"],
            resources=[arn("events", "rule/StepFunctionsGetEventsForStepFunctionsExecutionRule")],
        ),
    ]


def run_distributed_maps(name: str) -> list[Grant]:
    """A distributed Map starts its iterations as executions of its own machine."""
    why = "Iterations of this machine's own Maps, whose names Step Functions makes."
    own = [arn("states", f"execution:{name}:*"), arn("states", f"execution:{name}/*:*")]
    return [
        Grant(actions=["states:StartExecution"], resources=[arn("states", f"stateMachine:{name}")]),
        Grant(actions=["states:DescribeExecution", "states:StopExecution"], resources=own, why=why),
        Grant(actions=["states:RedriveExecution"], resources=own[1:], why=why),
    ]


def session_manager() -> Grant:
    """A shell on a host without SSH."""
    return Grant(
        actions=[
            "ssm:UpdateInstanceInformation",
            "ssmmessages:CreateControlChannel",
            "ssmmessages:CreateDataChannel",
            "ssmmessages:OpenControlChannel",
            "ssmmessages:OpenDataChannel",
        ],
        resources=["*"],
        why="These actions of the session manager's agent know no resources.",
    )
