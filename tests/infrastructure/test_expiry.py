"""The expiry's machine, run by the stand-in's Step Functions against its CloudFormation, S3 and SSM: what it ends, and what it leaves."""

import json
import time
from collections.abc import Iterator, Mapping
from uuid import uuid4

import pytest

from cdk import expiry, expiry_machine
from crossover.cli.aws import standing
from crossover.keys import DEADLINE
from crossover.local.cloud import LocalCloud

SOON, LATER, NOON = "2026-03-01T11:00:00Z", "2026-03-01T13:00:00Z", "2026-03-01T12:00:00Z"
A, B, NET, MQ = "crossover-a", "crossover-b", "crossover-network", "crossover-broker"
ROLE = "arn:aws:iam::123456789012:role/any"
FOREIGN = {  # names that begin as ours do, and tags that say otherwise
    "foreign": {"project": "another-project", "stack-kind": "experiment"},
    "crossover-another": {"project": "crossover-two", "stack-kind": "experiment"},
    "crossover-untagged": {},
}
WAITING = {"StartAt": "Wait", "States": {"Wait": {"Type": "Wait", "Seconds": 3_600, "End": True}}}
TAGS = {"alone": {"stack-kind": "experiment", "stands": "alone"}}
Stacks = Mapping[str, tuple[str, str]]  # name -> (kind, expires-at)


class Account:
    """Stacks with one machine each, whose execution waits for an hour."""

    def __init__(self, cloud: LocalCloud) -> None:
        session = cloud.session()
        self.states, self.stacks, self.s3, self.ssm = (
            session.client(name) for name in ("stepfunctions", "cloudformation", "s3", "ssm")
        )

    def create(self, name: str, tags: Mapping[str, str]) -> str:
        """The stack; the ARN of its execution."""
        machine = {"StateMachineName": f"{name}-run", "DefinitionString": json.dumps(WAITING), "RoleArn": ROLE}
        body = {"Resources": {"Run": {"Type": "AWS::StepFunctions::StateMachine", "Properties": machine}}}
        pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
        self.stacks.create_stack(StackName=name, TemplateBody=json.dumps(body), Tags=pairs)
        arn = f"arn:aws:states:us-east-1:123456789012:stateMachine:{name}-run"
        return str(self.states.start_execution(stateMachineArn=arn)["executionArn"])

    def deadline(self, experiment: str, moment: str) -> None:
        bucket = f"crossover-{experiment}-{uuid4().hex[:8]}"
        self.s3.create_bucket(Bucket=bucket)
        self.s3.put_object(Bucket=bucket, Key=DEADLINE, Body=moment.encode())
        name = f"/crossover/crossover/{experiment}/bucket"
        self.ssm.put_parameter(Name=name, Value=bucket, Type="String", Overwrite=True)

    def running(self, arn: str) -> bool:
        try:
            return bool(self.states.describe_execution(executionArn=arn)["status"] == "RUNNING")
        except self.states.exceptions.ExecutionDoesNotExist:  # it went with its machine
            return False

    def look(self, *, only: str = "") -> str:
        """The ARN of the look."""
        machine = self.states.create_state_machine(
            name=f"expiry-{uuid4().hex}",
            definition=json.dumps(expiry_machine.definition("crossover", only=only)),
            roleArn=ROLE,
        )["stateMachineArn"]
        started = self.states.start_execution(stateMachineArn=machine, input=json.dumps({"now": NOON}))
        while (found := self.states.describe_execution(executionArn=started["executionArn"]))["status"] == "RUNNING":
            time.sleep(0.01)
        assert found["status"] == "SUCCEEDED", found
        return str(started["executionArn"])

    def present(self) -> set[str]:
        return {stack["StackName"] for stack in self.stacks.describe_stacks()["Stacks"]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    with LocalCloud(tmp_path_factory.mktemp("cloud")) as cloud:
        yield Account(cloud)


@pytest.fixture
def account(whole: Account) -> Iterator[Account]:
    """With foreign stacks, which stand and run afterwards as before."""
    foreign = [whole.create(name, {**tags, "expires-at": SOON} if tags else {}) for name, tags in FOREIGN.items()]
    yield whole
    assert whole.present() >= FOREIGN.keys() and all(whole.running(arn) for arn in foreign)
    for name in whole.present():
        whole.stacks.delete_stack(StackName=name)
    for parameter in whole.ssm.describe_parameters()["Parameters"]:
        if parameter["Name"].startswith("/crossover/"):
            whole.ssm.delete_parameter(Name=parameter["Name"])


def created(account: Account, stacks: Stacks) -> dict[str, str]:
    return {
        name: account.create(name, {"project": "crossover", "expires-at": ends, **TAGS.get(kind, {"stack-kind": kind})})
        for name, (kind, ends) in stacks.items()
    }


@pytest.mark.parametrize(
    ("stacks", "expected"),
    [
        (
            {A: ("experiment", SOON), B: ("experiment", LATER), NET: ("network", SOON), MQ: ("broker", SOON)},
            [A],
        ),
        ({A: ("experiment", SOON), NET: ("network", SOON), MQ: ("broker", SOON)}, [A]),
        ({A: ("experiment", SOON), B: ("experiment", SOON)}, [A, B]),
        ({NET: ("network", SOON), MQ: ("broker", SOON)}, [MQ]),
        ({NET: ("network", SOON)}, [NET]),
        ({NET: ("network", LATER), MQ: ("broker", LATER)}, []),
        ({NET: ("network", SOON), MQ: ("broker", LATER)}, []),
        ({B: ("experiment", LATER), NET: ("network", SOON), MQ: ("broker", SOON)}, []),
        ({A: ("experiment", "when I say so"), B: ("experiment", SOON), NET: ("network", SOON)}, [B]),  # changed by hand
        ({A: ("mine", SOON), NET: ("network", SOON)}, []),
        ({A: ("alone", LATER), NET: ("network", SOON), MQ: ("broker", SOON)}, [MQ]),  # it needs neither
        ({A: ("alone", SOON), NET: ("network", LATER)}, [A]),
        ({}, []),
    ],
)
def test_experiments_go_first_and_shared_stacks_when_none_is_left(
    account: Account, stacks: Stacks, expected: list[str]
) -> None:
    running = created(account, stacks)
    account.look()
    assert sorted(stacks.keys() - account.present()) == expected
    for name, (kind, _) in stacks.items():
        if kind in ("experiment", "alone"):
            assert account.running(running[name]) == (name not in expected)


def test_a_stack_that_stands_alone_ends_alone(account: Account) -> None:
    created(account, {A: ("experiment", SOON), B: ("experiment", SOON)})
    account.look(only=B)
    assert account.present() - FOREIGN.keys() == {A}
    account.look(only=B)  # gone by then


def test_what_a_look_costs_is_what_the_plan_says(account: Account) -> None:
    created(account, {A: ("alone", LATER)})
    account.deadline("a", LATER)
    events = account.states.get_execution_history(executionArn=account.look(only=A), maxResults=1_000)["events"]
    assert sum(event["type"].endswith("StateEntered") for event in events) == standing.STATES_A_LOOK
    assert standing.LOOKS_AN_HOUR * expiry.LOOK_EVERY_MINUTES == 60


def test_a_run_ends_when_its_deadline_has_passed(account: Account) -> None:
    running = created(account, {A: ("experiment", LATER), B: ("experiment", LATER), NET: ("network", LATER)})
    account.deadline("a", SOON)
    account.deadline("b", LATER)
    account.look()
    assert not account.running(running[A]) and account.running(running[B])
    assert account.present() >= {A, B, NET}


def test_a_deadline_that_is_no_moment_ends_nothing(account: Account) -> None:
    running = created(account, {A: ("experiment", LATER)})
    account.deadline("a", "")
    account.look()
    assert account.running(running[A])


def test_foreign_deadlines_end_nothing(account: Account) -> None:
    account.deadline("another", SOON)
    account.deadline("untagged", SOON)
    account.look()
