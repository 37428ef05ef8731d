"""A child that an earlier attempt started is taken up by its name, however it stands: the generated machine, on the local cloud."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossover.experiment import Experiment
from crossover.local.cloud import LocalCloud
from crossover.workflow import Child, ForEach, Step, first_event, state_machines
from crossover.workflow.architecture import Architecture
from tests.local.parts import HANDLERS, ROLE, eventually, zipped

UNDER_WAY = replace(Step("work", "functions.x", lambda ctx, event: None), waits=True)
TREE = Architecture("x", run=Child("child", UNDER_WAY))
TOLERANT = Architecture("x", run=ForEach("worker", "workers", Child("child", UNDER_WAY), tolerant=True))
ARN = "arn:aws:states:us-east-1:123456789012:"
EVENT = first_event("run1", workers=1)
NAME = "run1-child-w0-e0-r0-a0"

FAIL = {"Type": "Fail", "Error": "Broken", "Cause": "for a reason"}
FOR_EVER = {"Type": "Wait", "Seconds": 3_600, "End": True}


class Machines:
    """The Step Functions machines of one test: the generated run machine and, in the place of its child, one that ends as the test wants.
    `number`: ending of their names.
    """

    def __init__(self, cloud: LocalCloud, number: int) -> None:
        """Prepare the client; no state machine is created yet."""
        self.states, self._end = cloud.session().client("stepfunctions"), f"-{number}"

    def start_child(self, state: dict[str, Any], **machine: Any) -> str:
        """Create a machine with this one state, start an execution of it under the name that the run machine gives to its child, and return
        the execution's ARN. `machine`: further fields of its definition.
        """
        definition = {"StartAt": "only", "States": {"only": state}, **machine}
        arn = self._create("child", definition)
        started = self.states.start_execution(stateMachineArn=arn, name=NAME, input=json.dumps(EVENT))
        return str(started["executionArn"])

    def start_run(self, tree: Architecture = TREE) -> str:
        """Start an execution of the tree's run machine, which waits for its child one second at a time, and return the execution's ARN."""
        text = json.dumps(
            state_machines.build_definitions(tree, Experiment(name="x", architecture="x", workers=1))["run"]
        )
        for target in (state_machines.START_EXECUTION, state_machines.DESCRIBE_EXECUTION):
            text = text.replace(f"${{call_{target}}}", state_machines.integration_arn(target, partition="aws"))
        for kind, service in (("machine", "stateMachine"), ("executions", "execution")):
            text = text.replace(f"${{{kind}_child}}", f"{ARN}{service}:child{self._end}")
        definition = json.loads(text)
        if "wait for child" in definition["States"]:
            definition["States"]["wait for child"]["Seconds"] = 1
        arn = self._create("run", definition)
        return str(self.states.start_execution(stateMachineArn=arn, input=json.dumps(EVENT))["executionArn"])

    def wait_for_end(self, execution: str) -> dict[str, Any]:
        """Wait until the execution has ended and return its description."""
        eventually(lambda: self._status(execution) != "RUNNING", what="the execution ended", timeout_s=120)
        return dict(self.states.describe_execution(executionArn=execution))

    def list_entered_states(self, execution: str) -> list[str]:
        """Return the names of the states that the execution entered, in order."""
        history = self.states.get_execution_history(executionArn=execution, maxResults=1_000)["events"]
        return [event["stateEnteredEventDetails"]["name"] for event in history if "stateEnteredEventDetails" in event]

    def _create(self, name: str, definition: dict[str, Any]) -> str:
        """Create a state machine under this test's name and return its ARN."""
        text = json.dumps(definition)
        made = self.states.create_state_machine(name=f"{name}{self._end}", definition=text, roleArn=ROLE)
        return str(made["stateMachineArn"])

    def _status(self, execution: str) -> str:
        """Return the execution's status, such as RUNNING."""
        return str(self.states.describe_execution(executionArn=execution)["status"])


_number = iter(range(1_000))


@pytest.fixture
def machines(cloud: LocalCloud) -> Machines:
    """Return state machines of this test's own."""
    return Machines(cloud, next(_number))


@pytest.mark.slow
def test_a_child_that_succeeded_gives_its_result(machines: Machines) -> None:
    """Start the run after its child has succeeded: the run takes the child's result without starting it again."""
    result = {**EVENT, "epoch": 7}
    machines.wait_for_end(machines.start_child({"Type": "Pass", "Result": result, "End": True}))
    execution = machines.start_run()
    assert json.loads(machines.wait_for_end(execution)["output"]) == result
    assert machines.list_entered_states(execution) == ["child", "adopt child", "adopt child?", "result of child"]


@pytest.mark.slow
def test_a_child_that_runs_is_waited_for(cloud: LocalCloud, machines: Machines, tmp_path: Path) -> None:
    """Start the run while its child works: the run polls until the child ends, then takes its result."""
    client = cloud.session().client("lambda")
    handlers = HANDLERS + GATE
    gate = client.create_function(
        FunctionName="gate",
        Runtime="python3.13",
        Role=ROLE,
        Handler="handlers.gate",
        Code={"ZipFile": zipped(handlers=handlers)},
        Timeout=300,
    )["FunctionArn"]
    opened = tmp_path / "opened"
    machines.start_child({"Type": "Task", "Resource": gate, "Parameters": {"file": str(opened), **EVENT}, "End": True})
    execution = machines.start_run()
    eventually(lambda: "wait for child" in machines.list_entered_states(execution), what="it waits", timeout_s=120)
    opened.touch()
    assert json.loads(machines.wait_for_end(execution)["output"])["run"] == "run1"
    looks = machines.list_entered_states(execution)
    assert looks[0] == "child" and looks[-1] == "result of child"
    assert set(looks) == {"child", "adopt child", "adopt child?", "wait for child", "result of child"}


GATE = """
def gate(event, context):
    while not os.path.exists(event["file"]):
        time.sleep(0.02)
    return event
"""


def stop_execution(machines: Machines, execution: str) -> None:
    """Stop the execution as a user would."""
    machines.states.stop_execution(executionArn=execution, error="Stopped", cause="by the user")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "state", "machine", "then"),
    [
        ("FAILED", FAIL, {}, None),
        ("TIMED_OUT", FOR_EVER, {"TimeoutSeconds": 1}, None),
        ("ABORTED", FOR_EVER, {}, stop_execution),
    ],
)
def test_one_that_did_not_succeed_ends_the_run_with_a_message(
    machines: Machines,
    status: str,
    state: dict[str, Any],
    machine: dict[str, Any],
    then: Callable[[Machines, str], None] | None,
) -> None:
    """Start the run after its child has ended as `status`: the run fails, and its message names that status. `state`, `machine`: of the
    child; `then`: brings its end about.
    """
    child = machines.start_child(state, **machine)
    if then:
        then(machines, child)
    assert machines.wait_for_end(child)["status"] == status
    execution = machines.start_run()
    ended = machines.wait_for_end(execution)
    assert (ended["status"], ended["error"]) == ("FAILED", "ChildFailed")
    assert ended["cause"].startswith(
        f"an earlier execution of child ended as {status}, worker 0, epoch 0, round 0: resume"
    )
    assert machines.list_entered_states(execution) == ["child", "adopt child", "adopt child?", "child ended before"]


@pytest.mark.slow
@pytest.mark.parametrize(("error", "status"), [("RunFailed", "SUCCEEDED"), ("StaleAttempt", "FAILED")])
@pytest.mark.parametrize("adopted", [False, True], ids=["started", "adopted"])
def test_a_superseded_worker_is_not_tolerated_as_a_failed_one_is(
    machines: Machines, error: str, status: str, adopted: bool
) -> None:
    """Let a tolerated worker fail with `error`: the run continues (SUCCEEDED) after a failure, and fails if the worker's attempt was
    superseded. `adopted`: whether the worker's execution existed before the run.
    """
    cause = f'work failed, worker 0, epoch 1, round 2: {error}: {{"errorMessage": "worker 0: the run was resumed"}}'
    fail = {"Type": "Fail", "Error": "StepFailed", "Cause": cause}
    if adopted:
        machines.wait_for_end(machines.start_child(fail))
    else:
        machines._create("child", {"StartAt": "only", "States": {"only": fail}})
    assert machines.wait_for_end(machines.start_run(TOLERANT))["status"] == status
