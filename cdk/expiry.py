"""The end of every stack: a schedule that ends runs and deletes the stacks of a project that have expired.

A check that finds a stack an hour past its end fails, and notifies the topic in the stack's tag `notify` (`lifetime.notify`). A check that
the scheduler cannot start goes to a dead-letter queue, which each experiment with a topic watches by an alarm of its own: the shared
stack is the same whoever deploys it.

A stack's tag `expires-at` says when it ends. CDK writes the tag into the assembly's manifest, not into the template; CloudFormation puts it
on the stack and on every resource at each deployment. So the template of the same YAML is always the same, and deploying again prolongs the
lifetime.

The machine below checks four times an hour. It deletes experiments that have expired; only when none is left it deletes the broker, and one
check later the network, which holds the machine itself. Its role may do little else: CloudFormation deletes with the role that deployed.

Before that, and as soon as the deadline has passed that the current run has put into its bucket (`Keys.deadline`: what is left of the
budget at the highest rate, `maximum_run_hours`), it stops the executions of the experiment's machines and empties its fleets, so no
command has to be alive for that. The stack's own list of resources says which machines and fleets those are, never a name.
"""

import json
from collections.abc import Sequence

from aws_cdk import Aws, Duration, RemovalPolicy
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_scheduler as scheduler
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct, IConstruct

from cdk import grants
from cdk.expiry_machine import PROJECT, definition
from cdk.nag import acknowledge
from cdk.names import arn, bucket_prefix, parameter_path, stack_name
from crossover.stores.keys import CURRENT_DEADLINE
from crossover.workflow.state_machines import PLACEHOLDER, integration_arn

LOOK_EVERY_MINUTES = 15
DEADLINES = "runs/*/deadline/*"  # as Keys.deadline names them
INPUT = {"now": "<aws.scheduler.scheduled-time>"}  # the scheduler puts the moment there


def _grants_to_end_runs(project: str, only: str) -> list[grants.Grant]:
    """Return the permissions to find and stop the runs of the project's stacks: read the runs' deadlines, list and stop executions, set
    the capacity of fleets. Names and tags restrict them to this project, whose stacks may be deployed later than this role.

    `only`: name of the only stack whose runs are stopped, '' for all of the project. A single stack has no fleet, and gets no permission
    for fleets.
    """
    names, own = f"{only}-*" if only else f"{project}-*", {PROJECT: project}
    tagged = {"StringEquals": {f"aws:ResourceTag/{key}": value for key, value in own.items()}}
    why = "Which machines and fleets there will be is not known beforehand"
    part = only.removeprefix(f"{project}-") or "*"
    fleets = grants.Grant(
        actions=["autoscaling:SetDesiredCapacity"],
        resources=[arn("autoscaling", f"autoScalingGroup:*:autoScalingGroupName/{names}")],
        conditions=tagged,
        why=f"{why}; name and tag keep it to this project's.",
    )
    return [
        grants.Grant(
            actions=["ssm:GetParameter"],
            resources=[arn("ssm", f"parameter{parameter_path(project, part, 'bucket')}")],
            why="Each experiment publishes the name of its bucket.",
        ),
        grants.Grant(
            actions=["s3:GetObject"],
            resources=[
                f"arn:{Aws.PARTITION}:s3:::{bucket_prefix(only or project)}*/{key}"
                for key in (CURRENT_DEADLINE, DEADLINES)
            ],
            conditions={"StringEquals": {"aws:ResourceAccount": Aws.ACCOUNT_ID}},
            why="Which run is under way and when it ends; the bucket's name CloudFormation makes.",
        ),
        grants.Grant(
            actions=["states:ListExecutions"],
            resources=[arn("states", f"stateMachine:{names}")],
            conditions=tagged,
            why=f"{why}; name and tag keep it to this project's.",
        ),
        grants.Grant(
            actions=["states:StopExecution"],
            resources=[arn("states", f"execution:{names}:*")],
            why=f"{why}; executions have no tags to go by.",
        ),
        *([] if only else [fleets]),  # a fleet needs the network, and never stands alone
    ]


TELLING = grants.Grant(
    actions=["sns:Publish"],
    resources=[arn("sns", "*")],
    why="Which topic learns of a failure, lifetime.notify of each experiment says.",
)
LISTING = grants.Grant(
    actions=["cloudformation:ListStacks"], resources=["*"], why="A listing has no resources to name."
)


def _grants_to_delete_stacks(project: str, only: str) -> list[grants.Grant]:
    """Return the permissions to describe and delete the project's stacks. `only`: name of the only stack to delete, '' for all of the
    project.
    """
    stacks = arn("cloudformation", f"stack/{only or project + '-*'}/*")
    unknown = (
        "The id in a stack's ARN is made by CloudFormation"
        if only
        else "Which experiments there will be is not known beforehand"
    )
    return [
        grants.Grant(
            actions=["cloudformation:DeleteStack"],
            resources=[stacks],
            conditions={"StringEquals": {f"aws:ResourceTag/{PROJECT}": project}},
            why=f"{unknown}; name and tag keep it to this project's.",
        ),
        grants.Grant(
            actions=["cloudformation:DescribeStacks", "cloudformation:ListStackResources"],
            resources=[stacks],
            why=f"{unknown}.",
        ),
    ]


class Expiry(Construct):
    """The state machine that stops the runs of expired stacks and deletes these stacks, its schedule (every 15 minutes), and a role for
    each.

    `only`: name of the stack that this construct is part of, if the stack needs no shared network and so must delete itself; '' for the
    network's expiry, which covers the whole project. `undelivered`: queue of the starts that the scheduler gave up, each with the reason;
    CleanUpAlarm watches it.
    """

    def __init__(self, scope: Construct, id: str, *, project: str, only: str = "") -> None:
        """Build machine, queue, schedule and roles. `only`: name of the only stack to end, '' for all of the project."""
        super().__init__(scope, id)
        name = f"{only}-expiry" if only else stack_name(project, "expiry")
        role = grants.role(
            self,
            "Role",
            service="states",
            grants=[
                *_grants_to_delete_stacks(project, only),
                *_grants_to_end_runs(project, only),
                TELLING,
                *([] if only else [LISTING]),
            ],
        )
        text = json.dumps(definition(project, only=only), indent=1)
        machine = sfn.StateMachine(
            self,
            "Machine",
            state_machine_name=name,
            definition_body=sfn.DefinitionBody.from_string(text),
            definition_substitutions={
                whole: integration_arn(target, partition=Aws.PARTITION)
                for whole, _, target in PLACEHOLDER.findall(text)
            },
            role=role,
            removal_policy=RemovalPolicy.DESTROY,
        )
        grants.depend_by_reference(machine, role)
        acknowledge(
            machine,
            {
                "AwsSolutions-SF1": "Its execution history says what it deleted.",
                "AwsSolutions-SF2": "There is nothing to trace in a machine of a few calls.",
            },
        )
        self.undelivered = sqs.Queue(
            self,
            "Undelivered",
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            retention_period=Duration.days(14),
            removal_policy=RemovalPolicy.DESTROY,
        )
        acknowledge(self.undelivered, {"AwsSolutions-SQS3": "It is a dead-letter queue itself, the schedule's."})
        starter = grants.role(
            self,
            "Starter",
            service="scheduler",
            conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
            grants=[
                grants.Grant(actions=["states:StartExecution"], resources=[arn("states", f"stateMachine:{name}")]),
                grants.Grant(actions=["sqs:SendMessage"], resources=[self.undelivered.queue_arn]),
            ],
        )
        # L1: by another logical id it would be replaced where it stands.
        self._schedule = scheduler.CfnSchedule(
            self,
            "Schedule",
            description="Looks for stacks whose time is over",
            schedule_expression=f"rate({LOOK_EVERY_MINUTES} minutes)",
            flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(mode="OFF"),
            target=scheduler.CfnSchedule.TargetProperty(
                arn=machine.state_machine_arn,
                role_arn=starter.role_arn,
                input=json.dumps(INPUT),
                dead_letter_config=scheduler.CfnSchedule.DeadLetterConfigProperty(arn=self.undelivered.queue_arn),
                # The default is a day, in which the next checks come anyway.
                retry_policy=scheduler.CfnSchedule.RetryPolicyProperty(
                    maximum_event_age_in_seconds=60 * LOOK_EVERY_MINUTES
                ),
            ),
        )

    def delete_after(self, others: Sequence[IConstruct]) -> None:
        """Make CloudFormation delete the constructs `others` before the schedule, so that the schedule still tries a failed deletion again.
        This construct itself, if it is among `others`, is skipped.
        """
        for other in others:
            if other.node.path != self.node.path:
                other.node.add_dependency(self._schedule)


class CleanUpAlarm(Construct):
    """An alarm that notifies `topic` if the clean-up cannot be started: `queue`, the name of the queue of undelivered starts, is not empty.
    A clean-up that starts and then fails notifies the topic itself.
    """

    def __init__(self, scope: Construct, id: str, *, queue: str, topic: str) -> None:
        """Build the alarm. It fires if, at any time within a period of 5 minutes, at least one message waited in the queue, and notifies
        `topic`; a queue without data does not fire it. `queue`: name of an SQS queue; `topic`: ARN of an SNS topic.
        """
        super().__init__(scope, id)
        waiting = cloudwatch.Metric(
            namespace="AWS/SQS",
            metric_name="ApproximateNumberOfMessagesVisible",
            dimensions_map={"QueueName": queue},
            statistic="Maximum",
            period=Duration.minutes(5),
        )
        alarm = cloudwatch.Alarm(
            self,
            "Alarm",
            alarm_description="Crossover's clean-up does not start: expired stacks stay. Its queue says why.",
            metric=waiting,
            threshold=1,
            evaluation_periods=1,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,  # a queue that nothing was sent to has no data
        )
        alarm.add_alarm_action(actions.SnsAction(sns.Topic.from_topic_arn(self, "Topic", topic)))
