"""A Child: starting an execution of another machine, or taking up the one that an earlier attempt started under the same name."""

from crossover.asl.events import START_RETRY, fields
from crossover.asl.limits import look_every_s
from crossover.asl.states import States
from crossover.workflow import Child

# A read that can be repeated, whatever it was refused for: `Sfn.SfnException` is all that a throttled call says.
DESCRIBE_RETRY = [{**START_RETRY[0], "ErrorEquals": ["States.TaskFailed"]}]


def start(block: States, node: Child, then: str | None, *, timeout_s: int | None, limit_s: int) -> str:
    """Add the states of a Child to the block; the name of the first. No execution lasts longer than `limit_s`."""
    name = f"States.Format('{{}}-{node.name}-w{{}}-e{{}}-r{{}}-a{{}}', $.run, $.worker, $.epoch, $.round, $.attempt)"
    taken = {
        "ErrorEquals": ["StepFunctions.ExecutionAlreadyExistsException"],
        "ResultPath": None,
        "Next": _adopt(block, node, name, then, limit_s=limit_s),
    }
    return block.add(
        node.name,
        {
            "Type": "Task",
            "Resource": "arn:aws:states:::states:startExecution.sync:2",
            "Parameters": {
                "StateMachineArn": f"${{machine_{node.name}}}",
                "Name.$": name,
                "Input": {**fields(), "AWS_STEP_FUNCTIONS_STARTED_BY_EXECUTION_ID.$": "$$.Execution.Id"},
            },
            "OutputPath": "$.Output",
            **({"TimeoutSeconds": min(timeout_s, limit_s)} if timeout_s else {}),
            "Retry": START_RETRY,
            "Catch": [taken, *block.failing(node.name)],
        },
        then,
    )


def _adopt(block: States, node: Child, name: str, then: str | None, *, limit_s: int) -> str:
    """A name is reserved for 90 days: an execution that exists already is this one, started before a redrive. Wait for its end and read its
    result. Only an execution that succeeded has an Output: it is read behind the Choice.
    """
    describe, wait = block.reserve(f"adopt {node.name}"), block.reserve(f"wait for {node.name}")
    succeeded = {"event.$": "States.StringToJson($.adopted.Output)"}
    result = block.add(
        f"result of {node.name}", {"Type": "Pass", "Parameters": succeeded, "OutputPath": "$.event"}, then
    )
    lost = block.ending(
        f"{node.name} ended before",
        {
            "Error": "ChildFailed",
            "CausePath": f"States.Format('an earlier execution of {node.name} ended as {{}}, worker {{}}, epoch {{}}, round {{}}: "
            "resume the run, which starts it under a new name', $.adopted.Status, $.worker, $.epoch, $.round)",
        },
        cause="$.adopted.Cause",
    )
    status = "$.adopted.Status"
    how = block.reserve(f"adopt {node.name}?")
    block.states[how] = {
        "Type": "Choice",
        "Choices": [
            {"Variable": status, "StringEquals": "SUCCEEDED", "Next": result},
            {"Variable": status, "StringEquals": "RUNNING", "Next": wait},
        ],
        "Default": lost,
    }
    execution = name.replace("States.Format('", f"States.Format('${{executions_{node.name}}}:", 1)
    block.states[describe] = {
        "Type": "Task",
        "Resource": "arn:aws:states:::aws-sdk:sfn:describeExecution",
        "Parameters": {"ExecutionArn.$": execution},
        "ResultPath": "$.adopted",
        "Retry": DESCRIBE_RETRY,
        "Catch": block.failing(f"adopt {node.name}"),
        "Next": how,
    }
    block.states[wait] = {
        "Type": "Wait",
        "Seconds": look_every_s(limit_s, times=block.times),
        "Next": describe,
    }
    return describe
