"""The run under way as `crossover status` tells of it: by what the experiment's own stack holds, in the dollars of the run's own lines."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import boto3
import pytest
from moto import mock_aws

from crossover.cli import deployment
from crossover.reports import display
from crossover.running.account import Owner
from crossover.running.preparing import prepare
from crossover.running.results import bill_so_far
from crossover.stores.documents import seal
from crossover.stores.keys import Keys
from crossover.stores.protocols import Traffic
from crossover.stores.s3 import S3ObjectStore
from tests.architectures.harness import small
from tests.decisions import decision
from tests.unit.reports.example_run import spirt

MINE = small("spirt")
MACHINE = "AWS::StepFunctions::StateMachine"


@pytest.fixture(autouse=True)
def account() -> Iterator[None]:
    """Answer for AWS in memory; executions of state machines are not carried out."""
    with mock_aws(
        config={"stepfunctions": {"execute_state_machine": False}}
    ):  # whatever another test of this process left
        yield


def machine(name: str) -> str:
    """Create a state machine with this name and return its ARN."""
    client, role = boto3.client("stepfunctions"), "arn:aws:iam::123456789012:role/any"
    definition = json.dumps({"StartAt": "A", "States": {"A": {"Type": "Pass", "End": True}}})
    return str(client.create_state_machine(name=name, definition=definition, roleArn=role)["stateMachineArn"])


def publish(machine: str) -> None:
    """Publish the parameters of a deployed experiment whose run machine is `machine`."""
    for name, value in (("bucket", "storage"), ("run_machine", machine), ("shape", "{}")):
        path = f"/crossover/{MINE.project}/{MINE.name}/{name}"
        boto3.client("ssm").put_parameter(Name=path, Value=value, Type="String")


def lines(owner: Owner, *, now: float) -> list[str]:
    """Return the lines of the deployed run's description at a moment (seconds since 1970)."""
    return list(deployment.describe_run(boto3.Session(), MINE, owner, now=datetime.fromtimestamp(now, UTC)))


def owner(*machines: str) -> Owner:
    """Return the deployed experiment as the owner of these state machines."""
    return Owner(project=MINE.project, experiment=MINE.name, held={MACHINE: frozenset(machines)})


@pytest.mark.slow
def test_dollars_of_the_run_under_way_are_those_of_its_own_lines() -> None:
    """`status` prints the cost so far of the running run as its records give it, and how many epochs are done."""
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket="storage")
    objects = S3ObjectStore("storage", Traffic(), client=s3)
    prepared = prepare(MINE, objects=objects, data=[objects])
    record = {**spirt().records[0], "started_at": prepared.facts["created_at"]}
    objects.put(Keys(prepared.run).record("train", "a"), seal(record))
    objects.put(
        Keys(prepared.run).decision(1),
        seal(decision()),
    )
    arn = machine("a-name-that-says-nothing")
    boto3.client("stepfunctions").start_execution(stateMachineArn=arn, name=f"{prepared.run}-0", input="{}")
    publish(arn)
    prepared.records["only"] = record
    prepared.decisions.append({"epoch": 1})
    now = prepared.facts["created_at"] + 100.0
    cost = bill_so_far(prepared, now=now).cost_until(now)
    (said,) = lines(owner(arn), now=now)
    assert said.startswith(f"run {prepared.run}: started ") and f", 1 of {MINE.training.epochs} epochs done; " in said
    assert (
        f"so far {display.usd(cost.full_usd)} (total AWS bill), {display.usd(cost.paper_method_usd)} by the papers"
        in said
    )
    assert cost.full_usd > cost.paper_method_usd > 0


def test_a_machine_that_only_has_our_name_is_not_ours() -> None:
    """`status` prints nothing about executions of a state machine that the experiment's stack does not contain."""
    arn = machine(f"{MINE.project}-{MINE.name}-run")
    boto3.client("stepfunctions").start_execution(stateMachineArn=arn, name="theirs-0", input="{}")
    boto3.client("s3").create_bucket(Bucket="storage")
    publish(arn)
    assert lines(owner(), now=0.0) == []
    assert lines(owner("another"), now=0.0) == []
