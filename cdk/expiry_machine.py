"""The expiry's state machine in Amazon States Language: pure functions, tested without AWS.

CloudFormation says which stacks exist and whose they are: the tagging API goes on listing stacks that are gone. The expressions are
JSONata: in a path, a filter's single match is a list to some interpreters and a value to others.
"""

import json
from typing import Any

from crossover.stores.keys import CURRENT_DEADLINE

EXPIRES_AT, KIND, PROJECT = "expires-at", "stack-kind", "project"
EXPERIMENT, BROKER, NETWORK = "experiment", "broker", "network"  # values of KIND
NOTIFY = "notify"  # a tag: the SNS topic that learns of a clean-up that fails
LATE_S = 3_600  # past its end by so much, a stack that still stands is a fault
STANDS, ALONE = "stands", "alone"  # a tag of experiments that need no shared stack: they keep none alive
ENDS = ("IN_PROGRESS", "FAILED", "COMPLETE")
VERBS = ("CREATE", "ROLLBACK", "DELETE", "UPDATE", "UPDATE_ROLLBACK", "IMPORT", "IMPORT_ROLLBACK")
# Every status of a stack that is there. Those that are gone are listed for 90 days.
STANDING = sorted(
    {f"{verb}_{end}" for verb in VERBS for end in ENDS} - {"DELETE_COMPLETE", "IMPORT_FAILED"}
    | {"REVIEW_IN_PROGRESS", "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", "UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS"}
)
MOMENT = r"/^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$/"  # such text sorts by time
RETRY = [{"ErrorEquals": ["States.ALL"], "IntervalSeconds": 2, "BackoffRate": 2, "MaxAttempts": 3}]


ExpiryState = dict[str, Any]
WITHOUT_DEADLINE: list[ExpiryState] = [
    {"ErrorEquals": ["States.ALL"], "Output": "{% $states.input %}", "Next": "Looked"}
]  # no run has begun yet


def definition(project: str, *, only: str = "") -> ExpiryState:
    """Return the definition, in Amazon States Language, of the state machine that stops the runs of expired stacks and of runs past their
    deadline, and then deletes expired stacks. Its input is `{"now": <moment>}`, in the form 2026-01-31T12:00:00Z.

    The resources of AWS calls are placeholders such as `${call_sns_publish}`, which the stack must replace. `only`: name of the only stack
    to check; '' for all of the project.
    """
    states = {
        "Begin": {
            "Type": "Pass",
            "Assign": {"moment": "{% $states.input.now %}", "names": [only] if only else [], "page": "{% '' %}"},
            "Next": "Look at each stack" if only else "List stacks",
        },
        **({} if only else _list_stacks_states(project, then="Look at each stack")),
        "Look at each stack": _describe_stacks_state(project, then="End the runs of each stack"),
        "End the runs of each stack": _end_runs_state(then="Delete each stack"),
        "Delete each stack": _call_for_each_state(
            "Delete",
            "cloudformation_deleteStack",
            "{% $over %}",
            {"StackName": "{% $states.input %}"},
            then="All well?",
        )
        | {"Assign": {"faults": "{% [$append($faults, $states.result.Cause)] %}"}},
        **_end_check_states(),
    }
    return {
        "Comment": "Ends the runs and deletes the stacks whose time is over",
        "QueryLanguage": "JSONata",
        "StartAt": "Begin",
        "States": states,
    }


def _list_stacks_states(project: str, *, then: str) -> dict[str, ExpiryState]:
    """Build the states, by name, that list, page by page, the ids of all existing stacks whose names begin with `project` and a hyphen.
    They assign the ids to `names`. `then`: name of the next state.
    """
    ours = f"$states.result.StackSummaries[$substring(StackName, 0, {len(project) + 1}) = '{project}-'].StackId"
    return {
        "List stacks": {
            "Type": "Task",
            "Resource": "${call_cloudformation_listStacks}",
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


def _describe_stacks_state(project: str, *, then: str) -> ExpiryState:
    """Build the Map state that describes the stacks in `names`. It assigns `over` (ids of the stacks to delete), `ended` (ids of the
    stacks whose runs must be stopped), `faults` (texts about stacks over an hour late, or not describable) and `topics` (where to report
    faults).

    Stacks without this project's tag are ignored, whatever their names. The broker is in `over` only if no experiment exists that uses
    shared stacks, the network only if no broker exists either. `then`: name of the next state.
    """
    ours = f"$ours := $states.result[project = '{project}']"
    leans = f"$not(kind in ['{BROKER}', '{NETWORK}']) and $not(stands = '{ALONE}')"  # on what is shared
    processor = {"ProcessorConfig": {"Mode": "INLINE"}, "StartAt": "Describe", "States": _describe_one_stack(project)}
    return {
        "Type": "Map",
        "Items": "{% $names %}",
        "ItemProcessor": processor,
        "Assign": {
            "over": f"{{% ({ours}; "
            f"$shared := $exists($ours[{leans}]) ? [] : $exists($ours[kind = '{BROKER}']) ? ['{BROKER}'] : ['{NETWORK}']; "
            f"[$ours[(kind = '{EXPERIMENT}' or kind in $shared) and {_past('ends')}].id]) %}}",
            "faults": f"{{% ({ours}; $hour := $substring($fromMillis($toMillis($moment) - {LATE_S}000), 0, 19) & 'Z'; "
            # A shared stack may have waited for the last experiment: that it is late, a deletion that failed shows, or one that
            # CloudFormation took and refused, of which the reason alone is left (aws-cdk#604).
            f"$late := $ours[(kind = '{EXPERIMENT}' or status = 'DELETE_FAILED' or ($exists(reason) and $contains(reason, 'in use by'))) "
            f"and {_past('ends', by='$hour')}]; "
            "[$append($late, $ours[$exists(unknown)]).(name & ' (' & status & ', ended ' & ends & ') ' & reason)]) %}",
            "topics": f"{{% ({ours}; [$distinct($ours.notify)]) %}}",
            "ended": f"{{% ({ours}; [$ours[kind = '{EXPERIMENT}' and ({_past('ends')} or {_past('deadline')})].id]) %}}",
        },
        "Output": {},
        "Next": then,
    }


def _describe_one_stack(project: str) -> dict[str, ExpiryState]:
    """Build the states, by name, that describe one stack. Their output is an object with its id, name, status and tags and, for an
    experiment of the project with a run, `deadline`, the moment at which that run must be stopped.

    A stack that does not exist any more, or that cannot be described (`unknown`), gives an object without a kind, so that it is not
    deleted.
    """
    named = f"'/crossover/{project}/' & $substring($states.input.name, {len(project) + 1}) & '/bucket'"
    unknown = (
        f"$contains($states.errorOutput.Cause, 'does not exist') ? {{'project': '{project}'}} : {{'project': '{project}', "
        "'unknown': true, 'name': $states.input, 'status': 'unknown', 'ends': 'unknown', 'reason': $states.errorOutput.Cause}"
    )
    return {
        "Describe": {
            "Type": "Task",
            "Resource": "${call_cloudformation_describeStacks}",
            "Arguments": {"StackName": "{% $states.input %}"},
            "Retry": RETRY,
            "Output": "{% ($stack := $states.result.Stacks[0]; {'id': $stack.StackId, 'name': $stack.StackName, "
            f"'project': $stack.Tags[Key = '{PROJECT}'].Value, 'kind': $stack.Tags[Key = '{KIND}'].Value, "
            f"'stands': $stack.Tags[Key = '{STANDS}'].Value, "
            f"'notify': $stack.Tags[Key = '{NOTIFY}'].Value, "
            f"'ends': $stack.Tags[Key = '{EXPIRES_AT}'].Value, 'status': $stack.StackStatus, "
            "'reason': $stack.StackStatusReason}) %}",
            # Gone meanwhile, or not to be learned now: until the next look it counts as an experiment that is not over.
            "Catch": [{"ErrorEquals": ["States.ALL"], "Output": f"{{% {unknown} %}}", "Next": "Looked"}],
            "Next": "An experiment of ours?",
        },
        "An experiment of ours?": {
            "Type": "Choice",
            "Choices": [
                {
                    "Condition": f"{{% $states.input.project = '{project}' and $states.input.kind = '{EXPERIMENT}' %}}",
                    "Next": "Find its bucket",
                }
            ],
            "Default": "Looked",
        },
        "Find its bucket": {
            "Type": "Task",
            "Resource": "${call_ssm_getParameter}",
            "Arguments": {"Name": f"{{% {named} %}}"},
            "Output": "{% $merge([$states.input, {'bucket': $states.result.Parameter.Value}]) %}",
            "Catch": WITHOUT_DEADLINE,
            "Next": "Find its run",
        },
        "Find its run": {
            "Type": "Task",
            "Resource": "${call_s3_getObject}",
            "Arguments": {"Bucket": "{% $states.input.bucket %}", "Key": CURRENT_DEADLINE},
            "Output": "{% $merge([$states.input, {'key': $states.result.Body}]) %}",
            "Catch": WITHOUT_DEADLINE,
            "Next": "Read the deadline",
        },
        "Read the deadline": {
            "Type": "Task",
            "Resource": "${call_s3_getObject}",
            "Arguments": {"Bucket": "{% $states.input.bucket %}", "Key": "{% $states.input.key %}"},
            "Output": "{% $merge([$states.input, {'deadline': $states.result.Body}]) %}",
            "Catch": WITHOUT_DEADLINE,
            "Next": "Looked",
        },
        "Looked": {"Type": "Pass", "End": True},
    }


def _past(field: str, *, by: str = "$moment") -> str:
    """Return a JSONata condition: true if `field` holds a moment (text as 2026-01-31T12:00:00Z) that is not later than `by`, a JSONata
    variable; false if the field is missing or has another form.
    """
    return f"($exists({field}) and $contains({field}, {MOMENT}) and {field} <= {by})"


def _end_check_states() -> dict[str, ExpiryState]:
    """Build the states that end a check, by name. The check fails if a stack still exists an hour after its end, cannot be described, or
    could not be deleted.

    A failing check in the first quarter of an hour also notifies `topics`, those of the stacks' tags, so that they get one message an
    hour. An alarm would be billed by the hour.
    """
    words = "{% 'the clean-up cannot delete: ' & $join($faults, '; ') %}"
    tell = "{% $substring($moment, 14, 2) < '15' ? $topics : [] %}"
    message = {"TopicArn": "{% $states.input %}", "Subject": "Crossover: a clean-up fails", "Message": words}
    return {
        "All well?": {
            "Type": "Choice",
            "Choices": [{"Condition": "{% $count($faults) > 0 %}", "Next": "Say it"}],
            "Default": "Done",
        },
        "Say it": _call_for_each_state("Tell", "sns_publish", tell, message, then="Failed"),
        "Failed": {"Type": "Fail", "Error": "NotDeleted", "Cause": words},
        "Done": {"Type": "Succeed"},
    }


def _end_runs_state(*, then: str) -> ExpiryState:
    """Build the Map state that, for each stack in `ended`, stops the executions of its state machines (except this machine) and sets the
    capacity of its fleets to 0. Calls that fail are repeated by the next check. `then`: name of the next state.
    """
    of_type = "$states.result.StackResourceSummaries[ResourceType = '{}'{}].PhysicalResourceId"
    not_this = " and PhysicalResourceId != $states.context.StateMachine.Id"  # which may stand in the stack that it ends
    machines = of_type.format("AWS::StepFunctions::StateMachine", not_this)
    fleets = of_type.format("AWS::AutoScaling::AutoScalingGroup", "")
    states = {
        "Begin with its resources": {
            "Type": "Pass",
            "Assign": {"stack": "{% $states.input %}", "machines": [], "fleets": [], "further": "{% '' %}"},
            "Next": "List its resources",
        },
        "List its resources": {
            "Type": "Task",
            "Resource": "${call_cloudformation_listStackResources}",
            "Arguments": "{% $merge([{'StackName': $stack}, $further = '' ? {} : {'NextToken': $further}]) %}",
            "Retry": RETRY,
            "Assign": {
                "machines": f"{{% [$append($machines, {machines})] %}}",
                "fleets": f"{{% [$append($fleets, {fleets})] %}}",
                "further": "{% $exists($states.result.NextToken) ? $states.result.NextToken : '' %}",
            },
            "Output": {},
            "Catch": [{"ErrorEquals": ["States.ALL"], "Next": "Its runs are ended"}],
            "Next": "More resources?",
        },
        "More resources?": {
            "Type": "Choice",
            "Choices": [{"Condition": "{% $further != '' %}", "Next": "List its resources"}],
            "Default": "Stop each machine",
        },
        "Stop each machine": _stop_machines_state(then="Empty each fleet"),
        "Empty each fleet": _call_for_each_state(
            "Empty",
            "autoscaling_setDesiredCapacity",
            "{% $fleets %}",
            {"AutoScalingGroupName": "{% $states.input %}", "DesiredCapacity": 0},
            then="Its runs are ended",
        ),
        "Its runs are ended": {"Type": "Pass", "End": True},
    }
    return {
        "Type": "Map",
        "Items": "{% $ended %}",
        "ItemProcessor": {
            "ProcessorConfig": {"Mode": "INLINE"},
            "StartAt": "Begin with its resources",
            "States": states,
        },
        "Next": then,
    }


def _stop_machines_state(*, then: str) -> ExpiryState:
    """Build the Map state that stops the running executions of each state machine in `machines`, at most 200 per machine; the next check
    stops the others. Their child executions stop with them. `then`: name of the next state.
    """
    cause = "the experiment's time is over, or its run's: lifetime.ttl_hours, budget_usd, maximum_run_hours"
    states = {
        "List its executions": {
            "Type": "Task",
            "Resource": "${call_sfn_listExecutions}",
            # A state's data end at 256 KB. What more there is, the next look finds.
            "Arguments": {"StateMachineArn": "{% $states.input %}", "StatusFilter": "RUNNING", "MaxResults": 200},
            "Output": "{% [$states.result.Executions.ExecutionArn] %}",
            "Catch": [{"ErrorEquals": ["States.ALL"], "Next": "It is stopped"}],
            "Next": "Stop each execution",
        },
        "Stop each execution": _call_for_each_state(
            "Stop",
            "sfn_stopExecution",
            "{% $states.input %}",
            {"ExecutionArn": "{% $states.input %}", "Cause": cause},
            then="It is stopped",
        ),
        "It is stopped": {"Type": "Pass", "End": True},
    }
    return {
        "Type": "Map",
        "Items": "{% $machines %}",
        "ItemProcessor": {"ProcessorConfig": {"Mode": "INLINE"}, "StartAt": "List its executions", "States": states},
        "Next": then,
    }


def _call_for_each_state(verb: str, call: str, items: str, arguments: ExpiryState, *, then: str) -> ExpiryState:
    """Build the definition of a Map state that makes one AWS call for each item and drops the results. Failures are ignored: the next check
    repeats them, and deleting, stopping or emptying twice does no harm.

    `verb`: name of the inner state; `call`: service and action, joined by `_`, for the placeholder `${call_...}` in the definition;
    `items`: JSONata expression of the list; `arguments`: of the call; `then`: name of the next state.
    """
    states = {
        verb: {
            "Type": "Task",
            "Resource": f"${{call_{call}}}",
            "Arguments": arguments,
            "Output": {},
            "Catch": [{"ErrorEquals": ["States.ALL"], "Next": f"{verb} at the next look"}],
            "End": True,
        },
        f"{verb} at the next look": {"Type": "Pass", "End": True},
    }
    return {
        "Type": "Map",
        "Items": items,
        "ItemProcessor": {"ProcessorConfig": {"Mode": "INLINE"}, "StartAt": verb, "States": states},
        "Output": {},
        "Next": then,
    }
