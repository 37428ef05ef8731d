"""The expiry's machine, run by the stand-in's Step Functions against its CloudFormation, S3 and SSM: what it ends, and what it leaves."""

import json
from collections.abc import Iterator
from uuid import uuid4

import pytest
from moto.cloudformation.exceptions import ValidationError
from moto.cloudformation.models import CloudFormationBackend

from cdk import expiry
from crossover.running import running_costs
from tests.infrastructure.expiring import FOREIGN, LATER, MQ, NET, SOON, A, Account, B, Stacks, create_stacks
from tests.moto_patches import AccountCloud


@pytest.fixture(scope="module")
def whole(account_cloud: AccountCloud) -> Account:
    """Return the account that the expiry machine's tests share."""
    return Account(account_cloud.session().client)


@pytest.fixture
def account(whole: Account) -> Iterator[Account]:
    """Yield an account with foreign stacks, assert that these exist and run afterwards as before, and delete everything."""
    foreign = [whole.create(name, {**tags, "expires-at": SOON} if tags else {}) for name, tags in FOREIGN.items()]
    yield whole
    assert whole.present() >= FOREIGN.keys() and all(whole.running(arn) for arn in foreign)
    for name in whole.present():
        whole.stacks.delete_stack(StackName=name)
    for parameter in whole.ssm.describe_parameters()["Parameters"]:
        if parameter["Name"].startswith("/crossover/"):
            whole.ssm.delete_parameter(Name=parameter["Name"])


@pytest.mark.slow
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
    """Run the expiry machine on various stacks, and check which it deletes and which executions it stops."""
    running = create_stacks(account, stacks)
    account.look()
    assert sorted(stacks.keys() - account.present()) == expected
    for name, (kind, _) in stacks.items():
        if kind in ("experiment", "alone"):
            assert account.running(running[name]) == (name not in expected)


@pytest.mark.slow
def test_a_stack_that_stands_alone_ends_alone(account: Account) -> None:
    """Check that the expiry machine of a single stack deletes this stack and no other, and that it can run again afterwards."""
    create_stacks(account, {A: ("experiment", SOON), B: ("experiment", SOON)})
    account.look(only=B)
    assert account.present() - FOREIGN.keys() == {A}
    account.look(only=B)  # gone by then


def test_what_a_look_costs_is_what_the_plan_says(account: Account) -> None:
    """Check that a run of the expiry machine has as many state transitions as the cost calculation assumes."""
    create_stacks(account, {A: ("alone", LATER)})
    account.deadline("a", LATER)
    events = account.states.get_execution_history(executionArn=account.look(only=A), maxResults=1_000)["events"]
    assert sum(event["type"].endswith("StateEntered") for event in events) == running_costs.STATES_A_POLL
    assert running_costs.POLLS_AN_HOUR * expiry.LOOK_EVERY_MINUTES == 60


def test_a_run_ends_when_its_deadline_has_passed(account: Account) -> None:
    """Check that the expiry machine stops the run whose deadline has passed, and keeps all stacks."""
    running = create_stacks(account, {A: ("experiment", LATER), B: ("experiment", LATER), NET: ("network", LATER)})
    account.deadline("a", SOON)
    account.deadline("b", LATER)
    account.look()
    assert not account.running(running[A]) and account.running(running[B])
    assert account.present() >= {A, B, NET}


def test_a_deadline_that_is_no_moment_ends_nothing(account: Account) -> None:
    """Check that a deadline without a valid time does not stop a run."""
    running = create_stacks(account, {A: ("experiment", LATER)})
    account.deadline("a", "")
    account.look()
    assert account.running(running[A])


def test_foreign_deadlines_end_nothing(account: Account) -> None:
    """Check that deadlines of stacks of others stop nothing."""
    account.deadline("another", SOON)
    account.deadline("untagged", SOON)
    account.look()


HOURS_AGO = "2026-03-01T09:00:00Z"


def held(account: Account, name: str, kind: str, ends: str, **more: str) -> str:
    """Create a stack that CloudFormation cannot delete, because another one imports its export, and return the URL of the user's queue,
    which is subscribed to the topic that the stack's tag names.
    """
    own = f"told-{uuid4()}"
    topic = account.topics.create_topic(Name=own)["TopicArn"]
    queue = account.queues.create_queue(QueueName=own)["QueueUrl"]
    arn = account.queues.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]["QueueArn"]
    account.topics.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
    for made, output in (
        (name, {"Export": {"Name": "held"}, "Value": "x"}),
        ("importer", {"Value": {"Fn::ImportValue": "held"}}),
    ):
        tags = (
            {"project": "crossover", "stack-kind": kind, "expires-at": ends, "notify": topic} | more
            if made == name
            else {}
        )
        body = {"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}, "Outputs": {"Word": output}}
        pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
        account.stacks.create_stack(StackName=made, TemplateBody=json.dumps(body), Tags=pairs)
    return str(queue)


def told(account: Account, queue: str) -> list[str]:
    """Receive from the queue once and return the notices' texts: one at most, and none if the queue is empty."""
    return [
        json.loads(each["Body"])["Message"]
        for each in account.queues.receive_message(QueueUrl=queue).get("Messages", [])
    ]


def test_a_clean_up_that_cannot_delete_fails_and_tells(account: Account) -> None:
    """Check that the clean-up fails and notifies the topic if a stack still exists hours after its end, and recovers once it can be
    deleted.
    """
    queue = held(account, A, "experiment", HOURS_AGO)
    failed = account.states.describe_execution(executionArn=account.look(status="FAILED"))
    assert f"{A} (CREATE_COMPLETE, ended {HOURS_AGO})" in failed["cause"] and failed["error"] == "NotDeleted"
    assert told(account, queue) == [failed["cause"]]
    account.stacks.delete_stack(StackName="importer")
    account.look(status="FAILED")  # it was there an hour too long, and goes
    account.look()


def test_within_the_first_hour_it_is_tried_again(account: Account) -> None:
    """Check that a deletion which fails within the first hour causes no notification and is repeated."""
    queue = held(account, A, "experiment", SOON)
    account.look()
    assert told(account, queue) == [] and A in account.present()
    account.stacks.delete_stack(StackName="importer")
    account.look()
    assert A not in account.present()


def test_a_shared_stack_that_waited_for_the_last_experiment_is_not_late(account: Account) -> None:
    """Check that the clean-up succeeds if an expired network is still needed by an experiment."""
    create_stacks(account, {NET: ("network", HOURS_AGO), B: ("experiment", LATER)})
    account.look()


def test_a_shared_stack_that_cloudformation_keeps_is_told(account: Account) -> None:
    """Check that the expiry fails and notifies with the reason if another stack, here a stranger's, imports a shared stack's export."""
    queue = held(account, NET, "network", HOURS_AGO)
    account.look()  # nothing is known of it before
    failed = account.states.describe_execution(executionArn=account.look(status="FAILED"))
    assert NET in failed["cause"] and "in use by" in failed["cause"] and failed["cause"] in told(account, queue)
    account.stacks.delete_stack(StackName="importer")


def test_a_deletion_that_is_refused_fails_the_look(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the clean-up fails with CloudFormation's reason if it refuses a deletion."""
    create_stacks(account, {A: ("experiment", SOON)})

    def refuse(self: CloudFormationBackend, name_or_stack_id: str) -> None:
        """Raise the error of a stack that is protected from deletion."""
        raise ValidationError(message="Stack cannot be deleted while TerminationProtection is enabled")

    with monkeypatch.context() as changed:
        changed.setattr(CloudFormationBackend, "delete_stack", refuse)
        failed = account.states.describe_execution(executionArn=account.look(status="FAILED"))
    assert "TerminationProtection" in failed["cause"] and A in account.present()
