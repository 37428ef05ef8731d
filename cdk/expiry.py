"""Everything has an end: a schedule that deletes the stacks of a project whose time is over.

When a stack ends stands in its tag `expires-at`. CDK writes it into the assembly's manifest, not into the template; CloudFormation puts it
on the stack and on every resource at each deployment. So the template of the same YAML is always the same, and deploying again prolongs.

The machine below looks four times an hour. It deletes experiments that are over; only when none is left it deletes the broker, and one look
later the network, which holds the machine itself. Its role may do nothing else: CloudFormation deletes with the role that deployed.

Which stacks there are, and whose, CloudFormation says: the tagging API goes on listing stacks that are gone. The expressions are JSONata:
in a path, a filter's single match is a list to some interpreters and a value to others.
"""

import json
from typing import Any

from aws_cdk import Aws, RemovalPolicy
from aws_cdk import aws_scheduler as scheduler
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct, IConstruct

from cdk import grants
from cdk.nag import acknowledge
from cdk.names import arn, stack_name

EXPIRES_AT, KIND, PROJECT = "expires-at", "stack-kind", "project"
EXPERIMENT, BROKER, NETWORK = "experiment", "broker", "network"  # values of KIND
LOOK_EVERY_MINUTES = 15
INPUT = {"now": "<aws.scheduler.scheduled-time>"}  # the scheduler puts the moment there

ENDS = ("IN_PROGRESS", "FAILED", "COMPLETE")
VERBS = ("CREATE", "ROLLBACK", "DELETE", "UPDATE", "UPDATE_ROLLBACK", "IMPORT", "IMPORT_ROLLBACK")
# Every status of a stack that is there. Those that are gone are listed for 90 days.
STANDING = sorted(
    {f"{verb}_{end}" for verb in VERBS for end in ENDS} - {"DELETE_COMPLETE", "IMPORT_FAILED"}
    | {"REVIEW_IN_PROGRESS", "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", "UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS"}
)
MOMENT = r"/^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$/"  # such text sorts by time
RETRY = [{"ErrorEquals": ["States.ALL"], "IntervalSeconds": 2, "BackoffRate": 2, "MaxAttempts": 3}]

State = dict[str, Any]


def definition(project: str, *, only: str = "") -> State:
    """The machine, which is started with `{"now": <moment>}`: a pure function, so that it is tested without AWS.

    `only`: the one stack that it looks at. State names are keys of one dictionary each and no two blocks share a subject: Step Functions
    wants them unique in the whole machine.
    """
    states = {
        "Begin": {
            "Type": "Pass",
            "Assign": {"moment": "{% $states.input.now %}", "names": [only] if only else [], "page": "{% '' %}"},
            "Next": "Look at each stack" if only else "List stacks",
        },
        **({} if only else _list(project, then="Look at each stack")),
        "Look at each stack": _look(project, then="Delete each stack"),
        "Delete each stack": _delete(then="Done"),
        "Done": {"Type": "Succeed"},
    }
    return {
        "Comment": "Deletes the stacks whose time is over",
        "QueryLanguage": "JSONata",
        "StartAt": "Begin",
        "States": states,
    }


def _list(project: str, *, then: str) -> dict[str, State]:
    """The ids of all stacks whose names begin as ours do, page by page."""
    ours = f"$states.result.StackSummaries[$substring(StackName, 0, {len(project) + 1}) = '{project}-'].StackId"
    return {
        "List stacks": {
            "Type": "Task",
            "Resource": "arn:aws:states:::aws-sdk:cloudformation:listStacks",
            "Arguments": "{% $merge([{'StackStatusFilter': "
            + json.dumps(STANDING)
            + "}, $page = '' ? {} : {'NextToken': $page}]) %}",
            "Retry": RETRY,
            "Assign": {
                "names": f"{{% [$append($names, {ours})] %}}",
                "page": "{% $exists($states.result.NextToken) ? $states.result.NextToken : '' %}",
            },
            "Output": {},
            "Next": "More stacks?",
        },
        "More stacks?": {
            "Type": "Choice",
            "Choices": [{"Condition": "{% $page != '' %}", "Next": "List stacks"}],
            "Default": then,
        },
    }


def _look(project: str, *, then: str) -> State:
    """What each stack says of itself: what is not tagged as this project's is foreign, whatever its name. `over`: the ids to delete."""
    states = {
        "Describe": {
            "Type": "Task",
            "Resource": "arn:aws:states:::aws-sdk:cloudformation:describeStacks",
            "Arguments": {"StackName": "{% $states.input %}"},
            "Retry": RETRY,
            "Output": "{% ($stack := $states.result.Stacks[0]; {'id': $stack.StackId, "
            f"'project': $stack.Tags[Key = '{PROJECT}'].Value, 'kind': $stack.Tags[Key = '{KIND}'].Value, "
            f"'ends': $stack.Tags[Key = '{EXPIRES_AT}'].Value}}) %}}",
            # Gone meanwhile, or not to be learned now: until the next look it counts as an experiment that is not over.
            "Catch": [{"ErrorEquals": ["States.ALL"], "Output": {"project": project}, "Next": "Unknown"}],
            "End": True,
        },
        "Unknown": {"Type": "Pass", "End": True},
    }
    over = f"$exists(ends) and $contains(ends, {MOMENT}) and ends <= $moment"
    shared = f"['{BROKER}', '{NETWORK}']"
    return {
        "Type": "Map",
        "Items": "{% $names %}",
        "ItemProcessor": {"ProcessorConfig": {"Mode": "INLINE"}, "StartAt": "Describe", "States": states},
        "Assign": {
            "over": f"{{% ($ours := $states.result[project = '{project}']; "
            f"$shared := $exists($ours[$not(kind in {shared})]) ? [] : $exists($ours[kind = '{BROKER}']) ? ['{BROKER}'] : ['{NETWORK}']; "
            f"[$ours[kind = '{EXPERIMENT}' or kind in $shared][{over}].id]) %}}"
        },
        "Output": {},
        "Next": then,
    }


def _delete(*, then: str) -> State:
    """Deleting a stack that is being deleted already does nothing."""
    states = {
        "Delete": {
            "Type": "Task",
            "Resource": "arn:aws:states:::aws-sdk:cloudformation:deleteStack",
            "Arguments": {"StackName": "{% $states.input %}"},
            "Catch": [{"ErrorEquals": ["States.ALL"], "Next": "Kept"}],  # the next look tries again
            "End": True,
        },
        "Kept": {"Type": "Pass", "End": True},
    }
    return {
        "Type": "Map",
        "Items": "{% $over %}",
        "ItemProcessor": {"ProcessorConfig": {"Mode": "INLINE"}, "StartAt": "Delete", "States": states},
        "Next": then,
    }


class Expiry(Construct):
    """The machine, its schedule, and a role for each.

    `only`: the stack that this stands in, which has no network's expiry to end it; it then deletes that stack alone. What must not
    outlive it is told so by `outlives`.
    """

    def __init__(self, scope: Construct, id: str, *, project: str, only: str = "") -> None:
        super().__init__(scope, id)
        name = f"{only}-expiry" if only else stack_name(project, "expiry")
        stacks = arn("cloudformation", f"stack/{only or project + '-*'}/*")
        unknown = (
            "The id in a stack's ARN is made by CloudFormation"
            if only
            else "Which experiments there will be is not known beforehand"
        )
        listing = grants.Grant(
            actions=["cloudformation:ListStacks"], resources=["*"], why="A listing has no resources to name."
        )
        role = grants.role(
            self,
            "Role",
            service="states",
            grants=[
                grants.Grant(
                    actions=["cloudformation:DeleteStack"],
                    resources=[stacks],
                    conditions={"StringEquals": {f"aws:ResourceTag/{PROJECT}": project}},
                    why=f"{unknown}; name and tag keep it to this project's.",
                ),
                grants.Grant(actions=["cloudformation:DescribeStacks"], resources=[stacks], why=f"{unknown}."),
                *([] if only else [listing]),
            ],
        )
        machine = sfn.StateMachine(
            self,
            "Machine",
            state_machine_name=name,
            definition_body=sfn.DefinitionBody.from_string(json.dumps(definition(project, only=only), indent=1)),
            role=role,
            removal_policy=RemovalPolicy.DESTROY,
        )
        acknowledge(
            machine,
            {
                "AwsSolutions-SF1": "Its execution history says what it deleted.",
                "AwsSolutions-SF2": "There is nothing to trace in a machine of a few calls.",
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
        self._schedule = scheduler.CfnSchedule(
            self,
            "Schedule",
            description="Looks for stacks whose time is over",
            schedule_expression=f"rate({LOOK_EVERY_MINUTES} minutes)",
            flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(mode="OFF"),
            target=scheduler.CfnSchedule.TargetProperty(
                arn=machine.state_machine_arn, role_arn=starter.role_arn, input=json.dumps(INPUT)
            ),
        )

    def outlives(self, *others: IConstruct) -> None:
        """The others are deleted first, so that a deletion that fails is tried again at the next look."""
        for other in others:
            other.node.add_dependency(self._schedule)
