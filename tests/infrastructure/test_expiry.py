"""The expiry's machine, run by the stand-in's Step Functions against its CloudFormation, S3 and SSM: what it ends, and what it leaves."""

from collections.abc import Iterator

import pytest

from cdk import expiry
from crossover.account import standing
from crossover.local.cloud import LocalCloud
from tests.infrastructure.expiring import FOREIGN, LATER, MQ, NET, SOON, A, Account, B, Stacks, create_stacks


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    with LocalCloud(tmp_path_factory.mktemp("cloud")) as cloud:
        yield Account(cloud.session().client)


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
    running = create_stacks(account, stacks)
    account.look()
    assert sorted(stacks.keys() - account.present()) == expected
    for name, (kind, _) in stacks.items():
        if kind in ("experiment", "alone"):
            assert account.running(running[name]) == (name not in expected)


@pytest.mark.slow
def test_a_stack_that_stands_alone_ends_alone(account: Account) -> None:
    create_stacks(account, {A: ("experiment", SOON), B: ("experiment", SOON)})
    account.look(only=B)
    assert account.present() - FOREIGN.keys() == {A}
    account.look(only=B)  # gone by then


def test_what_a_look_costs_is_what_the_plan_says(account: Account) -> None:
    create_stacks(account, {A: ("alone", LATER)})
    account.deadline("a", LATER)
    events = account.states.get_execution_history(executionArn=account.look(only=A), maxResults=1_000)["events"]
    assert sum(event["type"].endswith("StateEntered") for event in events) == standing.STATES_A_LOOK
    assert standing.LOOKS_AN_HOUR * expiry.LOOK_EVERY_MINUTES == 60


def test_a_run_ends_when_its_deadline_has_passed(account: Account) -> None:
    running = create_stacks(account, {A: ("experiment", LATER), B: ("experiment", LATER), NET: ("network", LATER)})
    account.deadline("a", SOON)
    account.deadline("b", LATER)
    account.look()
    assert not account.running(running[A]) and account.running(running[B])
    assert account.present() >= {A, B, NET}


def test_a_deadline_that_is_no_moment_ends_nothing(account: Account) -> None:
    running = create_stacks(account, {A: ("experiment", LATER)})
    account.deadline("a", "")
    account.look()
    assert account.running(running[A])


def test_foreign_deadlines_end_nothing(account: Account) -> None:
    account.deadline("another", SOON)
    account.deadline("untagged", SOON)
    account.look()
