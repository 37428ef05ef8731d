"""What people get wrong before and after a deployment: refused before money is spent, each with the command that mends it.

The commands run in this process against the cloud on one machine; a function in its place shows that the CDK was never called.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from crossover import validation
from crossover.local.cloud import BOOTSTRAP_PARAMETER
from crossover.running import account, removal
from crossover.running.account import explain_aws_errors
from stacks.synthesis import synthesize
from tests.cloud import made, neighbours
from tests.cloud.conftest import Command, written
from tests.moto_patches import AccountCloud

DEPLOY = ("deploy", "--yes")
RUN = ("run", "--on", "aws")


# --- the account ---


@pytest.mark.slow
def test_a_region_that_is_not_bootstrapped(session: Any, refused: Command) -> None:
    """Check that deploy refuses a region without the CDK's bootstrap stack, and names the command that creates it."""
    ssm = session.client("ssm")
    ssm.delete_parameter(Name=BOOTSTRAP_PARAMETER)
    try:
        assert ".venv/bin/cdk bootstrap, once" in refused(*DEPLOY)
    finally:
        ssm.put_parameter(Name=BOOTSTRAP_PARAMETER, Value="30", Type="String")


def test_a_region_where_the_experiment_does_not_stand(session: Any, refused: Command) -> None:
    """Check that run refuses an experiment that is not deployed in the region."""
    said = refused(*RUN)
    assert "crossover-tiny: not deployed in account 123456789012, us-east-1" in said and "AWS_DEFAULT_REGION" in said


def test_a_region_that_does_not_exist(monkeypatch: pytest.MonkeyPatch, refused: Command) -> None:
    """Check that deploy refuses a misspelt region with a suggestion."""

    def unreachable() -> None:
        """Fail as if AWS's endpoint could not be reached."""
        with explain_aws_errors():
            raise EndpointConnectionError(endpoint_url="https://sts.us-esat-1.amazonaws.com/")

    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-esat-1")
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setattr("crossover.cli.deployment.check_credentials", unreachable)
    assert "AWS has no region 'us-esat-1'; did you mean us-" in refused(*DEPLOY)


@pytest.mark.parametrize(
    "settings",
    [{"architecture": "gpu", "gpu": {"instances": 2}, "storage": {}}, {"baseline": "gpu", "gpu": {"instances": 2}}],
    ids=["the experiment's", "the baseline's beside it"],
)
def test_a_quota_of_zero(
    settings: dict[str, Any], cloud: AccountCloud, session: Any, refused: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that deploy refuses GPUs beyond the account's quota, and names the command that asks for more."""
    monkeypatch.setitem(cloud.account.quotas, ("ec2", "L-DB2E81BA"), 0.0)
    said = refused(*DEPLOY, **settings)
    assert "0 vCPUs allowed, 2 x g4dn.xlarge need 8" in said
    assert "request-service-quota-increase --service-code ec2 --quota-code L-DB2E81BA --desired-value 8" in said


def test_too_few_functions_at_once(
    cloud: AccountCloud, session: Any, refused: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that deploy refuses an experiment that needs more functions at once than the account allows."""
    monkeypatch.setattr(cloud.account, "concurrency", 10)
    said = refused(*DEPLOY, workers=12, training={"model": "small_cnn", "epochs": 1, "batch_size": 4})
    assert "Lambda concurrency: 10 free, 12 functions run at once" in said and "L-B99A9384" in said


# --- names ---


def test_a_name_that_somebody_else_has(session: Any, refused: Command) -> None:
    """Check that deploy refuses if another's log group has a name that the stack needs."""
    logs, name = session.client("logs"), "/aws/lambda/crossover-tiny-bucket-emptier"
    logs.create_log_group(logGroupName=name)
    said = refused(*DEPLOY)
    assert (
        f"names are taken although the stack does not exist: log group {name}; they are not ours: choose another"
        in said
    )
    logs.delete_log_group(logGroupName=name)


def test_a_name_that_an_earlier_deployment_left(cloud: AccountCloud, session: Any, refused: Command) -> None:
    """Check that deploy refuses if an earlier deployment's log group is left, and names the command that removes it."""
    name = "/aws/lambda/crossover-tiny-bucket-emptier"
    group = {"Log": {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": name}}}
    made.ours(session, "crossover", "tiny", group)
    cloud.destroy("crossover-tiny")
    session.client("logs").create_log_group(logGroupName=name)  # a late line
    said = refused(*DEPLOY)
    assert f"log group {name}; crossover destroy" in said and "removes what an earlier deployment left" in said
    session.client("logs").delete_log_group(logGroupName=name)


# --- stacks half way ---


@pytest.mark.slow
@pytest.mark.parametrize("state", ["ROLLBACK_FAILED", "DELETE_FAILED", "UPDATE_ROLLBACK_FAILED"])
def test_a_stack_half_way(state: str, session: Any, refused: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that deploy and run refuse an unfinished stack, and that each names the command that helps."""
    monkeypatch.setattr(account, "find_stack", lambda session, name: made.standing(name, state))
    said = refused(*DEPLOY)
    assert f"is {state}, half way; crossover destroy " in said and "then deploy again" in said
    assert f"is {state}; crossover deploy " in refused(*RUN)


def test_the_shell_of_a_change_set(session: Any, refused: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that deploy refuses the empty stack of an unexecuted change set, and names the command that deletes it."""
    monkeypatch.setattr(account, "find_stack", lambda session, name: made.standing(name, "REVIEW_IN_PROGRESS"))
    said = refused(*DEPLOY)
    assert "is REVIEW_IN_PROGRESS, the empty stack" in said and "delete-stack --stack-name crossover-" in said


def test_a_stack_under_way_is_waited_for(
    session: Any, refused: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that deploy waits for a stack that an interrupted deployment left in progress, and then looks at its state again."""
    waited = list[str]()

    def look(session: Any, name: str) -> account.DeployedStack | None:
        """Return the stack: failed once it has been waited for, in progress before."""
        state = "ROLLBACK_FAILED" if name in waited else "CREATE_IN_PROGRESS"
        return made.standing(name, state)

    monkeypatch.setattr(account, "find_stack", look)
    monkeypatch.setattr(removal, "wait_for_stack", lambda session, name: waited.append(name))
    assert "ROLLBACK_FAILED" in refused(*DEPLOY)
    assert waited == ["crossover-tiny"]


# --- time and money ---


def test_a_stack_whose_time_is_over(session: Any, refused: Command) -> None:
    """Check that run refuses a stack whose time to live is over."""
    over = (datetime.now(UTC) - timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    made.ours(session, "crossover", "tiny", expires_at=over)
    said = refused(*RUN)
    assert "it expired at" in said and "extends its time to live" in said


@pytest.mark.slow
@pytest.mark.parametrize("written", ["tomorrow", "2026-12-31", "2026-12-31T18:00:00+01:00"])
@pytest.mark.parametrize("command", [RUN, ("status",)])
def test_an_end_that_somebody_changed_to_what_is_no_moment(
    command: tuple[str, ...], written: str, session: Any, refused: Command
) -> None:
    """Check that a command refuses a stack whose `expires-at` tag is not a UTC time of the right form."""
    made.ours(session, "crossover", "tiny", expires_at=written)
    said = refused(*command)
    assert f"crossover-tiny: its tag expires-at is {written!r}, expected a time such as" in said
    assert "crossover deploy CONFIG writes it again" in said


def test_a_budget_that_is_spent(session: Any, refused: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that deploy refuses a budget that the deployed stack has already spent."""
    then = datetime.now(UTC) - timedelta(hours=100)
    monkeypatch.setattr(
        account, "find_stack", lambda session, name: made.standing(name, "CREATE_COMPLETE", created=then)
    )
    budget = {"owner": "me@example.org", "lifetime": {"budget_usd": 0.5}, "storage": {"channel": "redis"}}
    assert "lifetime.budget_usd: 0.5 is spent" in refused(*DEPLOY, **budget)


def test_a_budget_that_does_not_last_an_hour(session: Any, refused: Command) -> None:
    """Check that deploy refuses a budget that is less than the first hour's cost."""
    budget = {"owner": "me@example.org", "lifetime": {"budget_usd": 0.001}, "storage": {"channel": "redis"}}
    said = refused(*DEPLOY, **budget)
    assert "lifetime.budget_usd: 0.001 is less than the first hour costs, $0.10" in said and "crossover plan" in said


# --- a file that was changed ---


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"functions": {"memory_mb": {"default": 1_024}}}, "functions.memory_mb, compute: 1024, deployed 1769"),
    ({"functions": {"timeout_s": 60}}, "functions.timeout_s: 60, deployed 900"),
    ({"functions": {"packaging": "image"}}, "functions.packaging: image, deployed layer"),
    ({"storage": {"channel": "s3", "bucket_per_worker": True}}, "storage.bucket_per_worker: true, deployed false"),
    ({"lifetime": {"maximum_run_hours": 5}}, "lifetime.maximum_run_hours: 5, deployed 6"),
    ({"workers": 3}, "workers: 3, deployed for 2"),
    ({"storage": {"channel": "redis"}}, "channel: 'redis', deployed 's3'"),
    (
        {"training": {"model": "mytask:factory", "epochs": 1, "batch_size": 20}},
        "your code (mytask.py): its files differ from the deployed ones",
    ),
]
OWN = "from torch import nn\n\n\ndef factory(classes, shape):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"


@pytest.mark.slow
def test_a_file_that_was_changed_since_it_was_deployed(
    cloud: AccountCloud, session: Any, refused: Command, tmp_path: Path
) -> None:
    """Check that run refuses each difference between the file and the deployed stack, and starts nothing."""
    config = written(tmp_path, "all_reduce", name="tiny", storage={"channel": "s3"})
    cloud.deploy(synthesize(validation.load(config), tmp_path / "assembly"))
    (tmp_path / "mytask.py").write_text(OWN)
    steps = session.client("lambda").list_functions()["Functions"]
    torch = next(each["FunctionName"] for each in steps if each["MemorySize"] == 1_769).removeprefix("crossover-tiny-")
    for change, words in CHANGES:
        said = refused(*RUN, **change)
        assert words.replace("compute:", f"{torch.replace('-', '_')}:") in said, said
        assert "deploy" in said
    states = session.client("stepfunctions")
    for machine in states.list_state_machines()["stateMachines"]:
        if machine["name"] == neighbours.WORKING:
            continue
        assert states.list_executions(stateMachineArn=machine["stateMachineArn"])["executions"] == []
