"""Everything has an end: a schedule that deletes the stacks of a project whose time is over.

When a stack ends stands in its tag `expires-at`. CDK writes it into the assembly's manifest, not into the template; CloudFormation puts it
on the stack and on every resource at each deployment. So the template of the same YAML is always the same, and deploying again prolongs.

The machine below looks four times an hour. It deletes experiments that are over; only when none is left it deletes the broker, and one look
later the network, which holds the machine itself. Its role may do nothing else: CloudFormation deletes with the role that deployed.
"""

import json
from typing import Any

from aws_cdk import Aws, RemovalPolicy
from aws_cdk import aws_scheduler as scheduler
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from cdk import grants
from cdk.nag import acknowledge
from cdk.names import arn, stack_name

EXPIRES_AT, KIND, PROJECT = "expires-at", "stack-kind", "project"
EXPERIMENT, BROKER, NETWORK = "experiment", "broker", "network"  # values of KIND
LOOK_EVERY_MINUTES = 15
INPUT = {"now": "<aws.scheduler.scheduled-time>"}  # the scheduler puts the moment there


def definition(project: str) -> dict[str, Any]:
    """The machine, which is started with `{"now": <moment>}`: a pure function, so that it is tested without AWS."""
    states = {
        "List experiments": _list(project, EXPERIMENT, then="Each experiment"),
        "Each experiment": _each(then="Experiments left?"),
        "Experiments left?": _any(then="Done", otherwise="List broker"),
        "List broker": _list(project, BROKER, then="Broker left?"),
        "Broker left?": _any(then="Each broker", otherwise="List network"),
        "Each broker": _each(then="Done"),
        "List network": _list(project, NETWORK, then="Each network"),
        "Each network": _each(then="Done"),
        "Done": {"Type": "Succeed"},
    }
    return {"Comment": "Deletes the stacks whose time is over", "StartAt": "List experiments", "States": states}


def _list(project: str, kind: str, *, then: str) -> dict[str, Any]:
    return {
        "Type": "Task",
        "Resource": "arn:aws:states:::aws-sdk:resourcegroupstaggingapi:getResources",
        "Parameters": {
            "ResourceTypeFilters": ["cloudformation:stack"],
            "TagFilters": [
                {"Key": PROJECT, "Values": [project]},
                {"Key": KIND, "Values": [kind]},
                {"Key": EXPIRES_AT},
            ],
        },
        "ResultSelector": {"stacks.$": "$.ResourceTagMappingList"},
        "ResultPath": "$.found",
        "Next": then,
    }


def _any(*, then: str, otherwise: str) -> dict[str, Any]:
    choice = {"Variable": "$.found.stacks[0]", "IsPresent": True, "Next": then}
    return {"Type": "Choice", "Choices": [choice], "Default": otherwise}


def _each(*, then: str) -> dict[str, Any]:
    """Each stack that was found: delete it once its tag's moment has passed. Deleting one that is being deleted already does nothing."""
    states = {
        "Read the tag": {
            "Type": "Pass",
            "Parameters": {
                "stack.$": "$.stack.ResourceARN",
                "ends.$": f"States.ArrayGetItem($.stack.Tags[?(@.Key == '{EXPIRES_AT}')].Value, 0)",
                "now.$": "$.now",
            },
            "Next": "Over?",
        },
        "Over?": {
            "Type": "Choice",
            "Choices": [{"Variable": "$.ends", "TimestampLessThanEqualsPath": "$.now", "Next": "Delete"}],
            "Default": "Keep",
        },
        "Delete": {
            "Type": "Task",
            "Resource": "arn:aws:states:::aws-sdk:cloudformation:deleteStack",
            "Parameters": {"StackName.$": "$.stack"},
            "Catch": [{"ErrorEquals": ["States.ALL"], "Next": "Keep"}],  # the next look tries again
            "End": True,
        },
        "Keep": {"Type": "Pass", "End": True},
    }
    return {
        "Type": "Map",
        "ItemsPath": "$.found.stacks",
        "ItemSelector": {"stack.$": "$$.Map.Item.Value", "now.$": "$.now"},
        "ItemProcessor": {"ProcessorConfig": {"Mode": "INLINE"}, "StartAt": "Read the tag", "States": states},
        "ResultPath": None,
        "Next": then,
    }


class Expiry(Construct):
    """The machine, its schedule, and a role for each."""

    def __init__(self, scope: Construct, id: str, *, project: str) -> None:
        super().__init__(scope, id)
        name = stack_name(project, "expiry")
        role = grants.role(
            self,
            "Role",
            service="states",
            grants=[
                grants.Grant(
                    actions=["cloudformation:DeleteStack"],
                    resources=[arn("cloudformation", f"stack/{project}-*/*")],
                    conditions={"StringEquals": {f"aws:ResourceTag/{PROJECT}": project}},
                    why="Which experiments there will be is not known beforehand; name and tag keep it to this project's.",
                ),
                grants.Grant(
                    actions=["tag:GetResources"], resources=["*"], why="A listing by tag has no resources to name."
                ),
            ],
        )
        machine = sfn.StateMachine(
            self,
            "Machine",
            state_machine_name=name,
            definition_body=sfn.DefinitionBody.from_string(json.dumps(definition(project), indent=1)),
            role=role,
            removal_policy=RemovalPolicy.DESTROY,
        )
        acknowledge(
            machine,
            {
                "AwsSolutions-SF1": "Its execution history says what it deleted.",
                "AwsSolutions-SF2": "There is nothing to trace in a machine of three calls.",
            },
        )
        starter = grants.role(
            self,
            "Starter",
            service="scheduler",
            conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
            grants=[
                grants.Grant(actions=["states:StartExecution"], resources=[arn("states", f"stateMachine:{name}")]),
            ],
        )
        scheduler.CfnSchedule(
            self,
            "Schedule",
            description="Looks for stacks whose time is over",
            schedule_expression=f"rate({LOOK_EVERY_MINUTES} minutes)",
            flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(mode="OFF"),
            target=scheduler.CfnSchedule.TargetProperty(
                arn=machine.state_machine_arn, role_arn=starter.role_arn, input=json.dumps(INPUT)
            ),
        )
