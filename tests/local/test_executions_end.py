"""Executions that still run when their cloud ends: stopped, and nothing of them reaches the terminal or another cloud."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from moto.stepfunctions.parser.utils import TMP_THREADS

from crossover.local.cloud import LocalCloud
from tests.local.parts import HANDLERS, ROLE, zipped

# After a failure it would try again, for minutes.
MACHINE = {
    "StartAt": "each",
    "States": {
        "each": {
            "Type": "Map",
            "End": True,
            "ItemProcessor": {
                "StartAt": "work",
                "States": {
                    "work": {
                        "Type": "Task",
                        "End": True,
                        "Resource": "",
                        "Retry": [{"ErrorEquals": ["States.ALL"], "IntervalSeconds": 1, "MaxAttempts": 9}],
                    }
                },
            },
        }
    },
}


def start_execution(cloud: LocalCloud, file: Path, *, items: int) -> str:
    """Start an execution with `items` parallel branches, and return its ARN once all branches are at work."""
    session = cloud.session()
    session.client("iam").create_role(RoleName="local", AssumeRolePolicyDocument="{}")
    function = session.client("lambda").create_function(
        FunctionName="sleep",
        Runtime="python3.11",
        Role=ROLE,
        Handler="handlers.sleep",
        Code={"ZipFile": zipped(handlers=HANDLERS)},
        Timeout=60,
    )
    definition: Any = json.loads(json.dumps(MACHINE))
    definition["States"]["each"]["ItemProcessor"]["States"]["work"]["Resource"] = function["FunctionArn"]
    states = session.client("stepfunctions")
    machine = states.create_state_machine(name="sleepers", definition=json.dumps(definition), roleArn=ROLE)
    event = json.dumps([{"file": str(file)}] * items)
    arn: str = states.start_execution(stateMachineArn=machine["stateMachineArn"], input=event)["executionArn"]
    deadline = time.monotonic() + 60
    while not file.exists() or len(file.read_text().split()) < items:
        assert time.monotonic() < deadline, "the branches did not start"
        time.sleep(0.02)
    return arn


@pytest.mark.slow
def test_branches_that_run_when_the_cloud_ends(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """End the cloud while three branches run: their threads end without a retry, and nothing is printed."""
    others = set(TMP_THREADS)  # of executions that other tests of this process have left to moto
    with LocalCloud(tmp_path / "cloud", cores=2) as cloud:
        start_execution(cloud, tmp_path / "started", items=3)
    own = [thread for thread in TMP_THREADS if thread not in others]
    for thread in own:
        thread.join(30)  # not a measure of speed: a branch may still sleep before its retry
    assert not [thread for thread in own if thread.is_alive()]
    assert len((tmp_path / "started").read_text().split()) == 3  # nothing tried again
    assert capfd.readouterr().err == ""


def test_an_execution_whose_machine_is_gone_ends_with_the_cloud(tmp_path: Path) -> None:
    """Delete the machine of a waiting execution, then end the cloud: the execution's thread ends."""
    others = set(TMP_THREADS)
    waits = {"StartAt": "wait", "States": {"wait": {"Type": "Wait", "Seconds": 3600, "End": True}}}
    with LocalCloud(tmp_path / "cloud", cores=2) as cloud:
        cloud.session().client("iam").create_role(RoleName="local", AssumeRolePolicyDocument="{}")
        states = cloud.session().client("stepfunctions")
        arn = states.create_state_machine(name="waits", definition=json.dumps(waits), roleArn=ROLE)["stateMachineArn"]
        states.start_execution(stateMachineArn=arn)
        states.delete_state_machine(stateMachineArn=arn)
        begun = [thread for thread in TMP_THREADS if thread not in others]
    assert begun
    for thread in begun:
        thread.join(30)
    assert not [thread for thread in begun if thread.is_alive()]
