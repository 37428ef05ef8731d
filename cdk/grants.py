"""Permissions of steps, machines and hosts, as data. A resource with a wildcard has a reason, which cdk-nag reads.

Policies are inline: whoever refers to a role waits for its permissions, without a dependency of its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import jsii
from aws_cdk import CfnResource, IStableAnyProducer, Lazy, Stack
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
    """One permission, a statement of an IAM policy: `actions` on `resources` (ARNs). `why`: the reason for wildcards in `resources`;
    `conditions`: IAM's condition block; `denied`: the actions are forbidden, not allowed.

    The class checks nothing: `role` raises AssertionError if a grant that is not `denied` has wildcards and no `why`.
    """

    actions: Sequence[str]
    resources: Sequence[str]
    why: str = ""
    conditions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    denied: bool = False


def role(
    scope: Construct, id: str, *, service: str, grants: Iterable[Grant], conditions: Mapping[str, object] | None = None
) -> iam.Role:
    """Build a role with the id `id` in `scope` that the AWS service `service` (such as "lambda") may assume, with exactly the permissions
    `grants`, plus the use of the account's KMS key if they reach encrypted data. Wildcards are acknowledged for cdk-nag.

    `conditions`: conditions of the trust policy. Raises AssertionError if a wildcard in a permission that is not denied has no reason.
    """
    grants = list(grants)
    grants += _key_grants(scope, grants)
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
            acknowledge_wildcards(made, grant)
    return made


def depend_by_reference(user: IConstruct, role: iam.Role) -> None:
    """Remove `role` from the DependsOn list of `user`, a function or state machine: CDK lists it there although the resource refers to it
    anyway.
    """
    resource, entry = user.node.default_child, role.node.default_child
    assert isinstance(resource, CfnResource) and isinstance(entry, CfnResource)
    resource.add_override("DependsOn", Lazy.any(_Dependencies(resource, besides=entry)))


@jsii.implements(IStableAnyProducer)
class _Dependencies:
    """A value that is resolved when the template is written: the logical ids of all resources that `resource` depends on, except
    `besides`.
    """

    def __init__(self, resource: CfnResource, *, besides: CfnResource) -> None:
        """Remember both resources; ids are resolved later."""
        self._resource, self._besides = resource, besides.node.path

    def produce(self) -> list[str] | None:
        """Return the logical ids for DependsOn, or None if there are none. CDK calls this when it writes the template."""
        found = [each for each in self._resource.obtain_dependencies() if isinstance(each, CfnResource)]
        return [each.logical_id for each in found if each.node.path != self._besides] or None


# What reaches something that the organisation's key has encrypted.
_ENCRYPTED = {"s3:GetObject", "s3:PutObject", "secretsmanager:GetSecretValue", "sns:Publish"}


def _key_grants(scope: Construct, grants: Sequence[Grant]) -> list[Grant]:
    """Return the permission to use the account's KMS key, as a list of one, if there is such a key and `grants` reach data that it
    encrypts; otherwise [].
    """
    key = organisation.account_of(scope).kms_key
    reaches = any(_ENCRYPTED.intersection(grant.actions) for grant in grants)
    return [Grant(actions=["kms:Decrypt", "kms:GenerateDataKey"], resources=[key])] if key and reaches else []


def acknowledge_wildcards(holder: IConstruct, grant: Grant) -> None:
    """Acknowledge for cdk-nag the wildcards of `grant`, a permission of the role `holder`, with their reason. Raises AssertionError if
    there is no reason.
    """
    for resource in grant.resources:
        plain = finding_of(Stack.of(holder).resolve(resource))
        if "*" in plain:
            assert grant.why, f"{plain}: a wildcard without a reason"
            acknowledge(holder, {f"AwsSolutions-IAM5[Resource::{plain}]": grant.why})


def objects(bucket: s3.IBucket, data: Iterable[s3.IBucket]) -> list[Grant]:
    """Return the permissions for an experiment's buckets: read, write and delete below `runs/` of `bucket`; read below `data/` of `bucket`
    and of each bucket in `data`.

    They include ListBucket: without it, reading a missing key answers 403 instead of 404, and steps read keys that may be missing.
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
    """Return the permission to read the secret with the ARN `secret_arn`."""
    return Grant(actions=["secretsmanager:GetSecretValue"], resources=[secret_arn])


def certificates(bucket: s3.IBucket) -> Grant:
    """Return the permission to read the certificates that the Redis hosts store in `bucket`."""
    return Grant(
        actions=["s3:GetObject"], resources=[bucket.arn_for_objects("hosts/redis/*")], why="One certificate per host."
    )


def logs(group_name: str, *, why: str = "Streams of its own log group.") -> Grant:
    """Return the permission to write to the log group `group_name`, but not to create it: a late line would bring a deleted group back.
    `why`: the reason for the wildcard.
    """
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
    """Return the permissions that Lambda needs to put the function named `function` into a VPC, and a denial of them for the function's own
    code.

    Source: docs.aws.amazon.com/lambda/latest/dg/configuration-vpc.html; only the code's own calls carry the condition's key.
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
    """Return the permissions to start the state machines `names`, and to follow and stop their executions. With `sync:2`, Step Functions
    learns of an execution's end through an event rule of its own, which needs permissions too.
    """
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
    """Return the permissions for the state machine `name` to run distributed Maps, whose iterations are executions of that machine."""
    why = "Iterations of this machine's own Maps, whose names Step Functions makes."
    own = [arn("states", f"execution:{name}:*"), arn("states", f"execution:{name}/*:*")]
    return [
        Grant(actions=["states:StartExecution"], resources=[arn("states", f"stateMachine:{name}")]),
        Grant(actions=["states:DescribeExecution", "states:StopExecution"], resources=own, why=why),
        Grant(actions=["states:RedriveExecution"], resources=own[1:], why=why),
    ]


def session_manager() -> Grant:
    """Return the permission for AWS's session manager, which gives a shell on a host without SSH."""
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
