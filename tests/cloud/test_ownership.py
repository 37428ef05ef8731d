"""Whose things `destroy` takes away, and what `deploy`, `run` and `status` work on: only what a stack with our tags names."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from botocore.client import BaseClient
from botocore.exceptions import ClientError

from crossover import validation
from crossover.experiment import Experiment
from crossover.local.cloud import LocalCloud
from crossover.reports import prices
from crossover.running import account, removal
from crossover.running.account import Owner, Ownership
from tests.aws import driver
from tests.cloud import made
from tests.cloud.conftest import Command
from tests.cloud.made import ours, stack


def buckets(session: Any) -> set[str]:
    """Return the names of all buckets."""
    return {each["Name"] for each in session.client("s3").list_buckets()["Buckets"]}


# --- the reproductions of the review ---


@pytest.mark.slow
def test_another_regions_bucket_of_the_same_experiment_stays(session: Any, crossover: Command) -> None:
    """Check that destroy lists and keeps buckets of another region whose names begin like the experiment's."""
    far = session.client("s3", region_name="eu-west-1")
    names = {"crossover-tiny-storageruns1a2b-eu", "crossover-tiny-photos"}
    for name in names:
        far.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        far.put_object(Bucket=name, Key="results", Body=b"of a year")
    try:
        said = crossover("destroy", "--yes", "--verify")
        assert names <= buckets(session)
        assert all(name in said for name in names)
    finally:
        for name in names & buckets(session):
            far.delete_object(Bucket=name, Key="results")
            far.delete_bucket(Bucket=name)


@pytest.mark.slow
def test_a_project_of_two_letters_takes_nothing_that_begins_with_them(session: Any, crossover: Command) -> None:
    """Check that destroy keeps resources that only begin with the project's short name."""
    s3, logs = session.client("s3"), session.client("logs")
    s3.create_bucket(Bucket="ml-payroll")
    logs.create_log_group(logGroupName="/aws/lambda/ml-billing-prod")
    try:
        crossover("destroy", "--yes", "--shared", project="ml")
        assert "ml-payroll" in buckets(session)
        assert logs.describe_log_groups(logGroupNamePrefix="/aws/lambda/ml-billing-prod")["logGroups"]
    finally:
        s3.delete_bucket(Bucket="ml-payroll")
        logs.delete_log_group(logGroupName="/aws/lambda/ml-billing-prod")


@pytest.mark.slow
@pytest.mark.parametrize("command", [("destroy", "--yes"), ("deploy", "--yes"), ("run", "--on", "aws"), ("status",)])
def test_a_stack_of_the_same_name_and_another_project(
    command: tuple[str, ...], cloud: LocalCloud, session: Any, crossover: Command
) -> None:
    """Check that a command refuses a stack of the right name whose tags name another project."""
    ours(session, "team-prod", "api")
    said = crossover(*command, status=2, project="team", name="prod-api")
    assert made.stacks(cloud) == {"team-prod-api"}
    assert "team-prod-api" in said and "project 'team-prod'" in said and "nothing was touched" in said


@pytest.mark.slow
@pytest.mark.parametrize("command", [("destroy", "--yes"), ("deploy", "--yes"), ("run", "--on", "aws"), ("status",)])
def test_a_stack_without_tags_is_foreign(
    command: tuple[str, ...], cloud: LocalCloud, session: Any, crossover: Command
) -> None:
    """Check that a command refuses a stack without tags, and says which tags would make it ours."""
    stack(session, "crossover-tiny")
    said = crossover(*command, status=2)
    assert made.stacks(cloud) == {"crossover-tiny"}
    assert "has no tags" in said and "stack-kind=experiment" in said  # how to give ours its tags back


# --- what a deleted stack of ours left ---

COLLECT = "/aws/lambda/crossover-tiny-collect"
LOG = {"Log": {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": COLLECT}}}


def groups(session: Any) -> set[str]:
    """Return the names of all log groups."""
    return {each["logGroupName"] for each in session.client("logs").describe_log_groups()["logGroups"]}


@pytest.mark.slow
def test_a_log_group_that_a_late_line_brought_back_goes(cloud: LocalCloud, session: Any, crossover: Command) -> None:
    """Check that destroy removes a log group that came back after its stack, but not one with a similar name that no stack of ours had."""
    logs, beside = session.client("logs"), f"{COLLECT}-thesis"
    ours(session, "crossover", "tiny", LOG)
    cloud.destroy("crossover-tiny")
    for name in (COLLECT, beside):
        logs.create_log_group(logGroupName=name)
    said = crossover("destroy", "--yes", "--verify")
    assert f"log group {COLLECT}, left by a deleted stack" in said
    assert f"left alone: log group {beside}: its name begins like ours, but no stack of ours names it" in said
    assert COLLECT not in groups(session) and beside in groups(session)
    assert "nothing is left of ours in account 123456789012, us-east-1" in said
    assert "checked: stack, instance," in said and "not checked: other regions" in said
    assert "stays: what deployments uploaded to the CDK's own bucket" in said and "cdk gc --unstable=gc" in said
    logs.delete_log_group(logGroupName=beside)


@pytest.mark.slow
def test_a_name_of_ours_that_another_stack_has_by_now_is_theirs(
    cloud: LocalCloud, session: Any, crossover: Command
) -> None:
    """Check that destroy keeps a resource of a deleted stack's name that another stack owns by now.

    Project `team-prod`, experiment `api`, and project `team`, experiment `prod-api`, give the same names.
    """
    group = {
        "Log": {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": "/aws/lambda/team-prod-api-collect"}}
    }
    ours(session, "team", "prod-api", group)
    cloud.destroy("team-prod-api")
    stack(session, "other", group)
    said = crossover("destroy", "--yes", project="team", name="prod-api")
    assert "/aws/lambda/team-prod-api-collect" in groups(session)
    assert "a stack of ours named it once, now other does" in said


@pytest.mark.slow
def test_a_parameter_of_our_name_that_somebody_made_since_is_theirs(
    cloud: LocalCloud, session: Any, crossover: Command
) -> None:
    """Check that destroy removes a parameter of a deleted stack's name only if it carries our tags."""
    ssm, name = session.client("ssm"), "/crossover/crossover/tiny/bucket"
    parameter = {"Type": "AWS::SSM::Parameter", "Properties": {"Name": name, "Type": "String", "Value": "x"}}
    ours(session, "crossover", "tiny", {"Bucket": parameter})
    cloud.destroy("crossover-tiny")
    ssm.put_parameter(Name=name, Type="String", Value="theirs")
    said = crossover("destroy", "--yes")
    assert "a deleted stack of ours named it, but it does not carry our tags" in said
    assert ssm.get_parameter(Name=name)["Parameter"]["Value"] == "theirs"
    tags = [{"Key": "project", "Value": "crossover"}, {"Key": "experiment", "Value": "tiny"}]
    ssm.add_tags_to_resource(ResourceType="Parameter", ResourceId=name, Tags=tags)
    crossover("destroy", "--yes")
    assert not ssm.get_parameters_by_path(Path="/crossover/crossover/tiny/")["Parameters"]


def test_an_interface_of_a_function_of_ours_in_a_network_of_ours(cloud: LocalCloud, session: Any) -> None:
    """Check that a network interface is ours if it is in our network and its function was ours, even if the function is gone."""
    ec2 = session.client("ec2")
    network = {
        "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.1.0.0/16"}},
        "Subnet": {"Type": "AWS::EC2::Subnet", "Properties": {"VpcId": {"Ref": "Vpc"}, "CidrBlock": "10.1.0.0/20"}},
    }
    made.ours(session, "crossover", "network", network)
    (subnet,) = ec2.describe_subnets(Filters=[{"Name": "cidr-block", "Values": ["10.1.0.0/20"]}])["Subnets"]

    def interface(function: str) -> str:
        """Create a network interface as Lambda does for the function, and return its id."""
        words = f"AWS Lambda VPC ENI-{function}-6a1b2c3d-0000-4000-8000-123456789abc"
        created = ec2.create_network_interface(SubnetId=subnet["SubnetId"], Description=words)
        return str(created["NetworkInterface"]["NetworkInterfaceId"])

    mine, other = interface("crossover-tiny-collect"), interface("crossover-tiny-collect-thesis")
    named = frozenset(["crossover-tiny-collect"])
    networks = account.load_owner(session, "crossover", "tiny").networks
    owner = Owner(project="crossover", experiment="tiny", left={"AWS::Lambda::Function": named}, networks=networks)
    found = {each.id: each.whose for each in account.find_resources(session, owner, ["network interface"])}
    assert (found[mine], found[other]) == (Ownership.LEFT, Ownership.UNPROVEN)
    for id in (mine, other):
        ec2.delete_network_interface(NetworkInterfaceId=id)


def test_every_kind_that_can_be_removed_is_listed() -> None:
    """Check that each kind of resource that can be removed is one that the account's listing covers."""
    assert set(removal.REMOVERS) <= set(account.KINDS)


# --- the command ---


def test_it_asks_once_having_shown_everything(
    cloud: LocalCloud, session: Any, crossover: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that destroy shows what it would delete, asks once, and deletes nothing without a yes."""
    ours(session, "crossover", "tiny", LOG)
    asked: list[str] = []
    monkeypatch.setattr(typer, "confirm", lambda words: bool(asked.append(words)))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    said = crossover("destroy", status=2)
    assert "stack crossover-tiny, 1 resources" in said and "nothing was deleted" in said and len(asked) == 1
    assert made.stacks(cloud) == {"crossover-tiny"}


@pytest.mark.slow
def test_the_shared_stacks_stay_while_another_experiment_needs_them(
    cloud: LocalCloud, session: Any, crossover: Command
) -> None:
    """Check that destroy --shared refuses while another experiment exists, and removes the shared stacks afterwards."""
    for part in ("network", "tiny", "other"):
        ours(session, "crossover", part)
    said = crossover("destroy", "--yes", "--shared", status=2)
    assert "crossover-other still exist" in said
    assert made.stacks(cloud) == {"crossover-network", "crossover-tiny", "crossover-other"}
    cloud.destroy("crossover-other")
    crossover("destroy", "--yes", "--shared", "--verify")
    assert made.stacks(cloud) == set()


@pytest.mark.slow
def test_who_stands_alone_keeps_no_shared_stack_and_loses_nothing_with_them(
    cloud: LocalCloud, session: Any, crossover: Command
) -> None:
    """Check that experiments which stand alone neither keep the shared stacks from deletion nor go with them."""
    for part in ("network", "broker"):
        ours(session, "crossover", part)
    bucket = {"Bucket": {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": "crossover-small-runs"}}}
    ours(session, "crossover", "small", bucket, stands="alone")
    ours(session, "crossover", "tiny", stands="alone")
    said = crossover("destroy", "--yes", "--shared", "--verify")
    assert "stack crossover-tiny, " in said and "crossover: nothing is left of ours" in said
    assert "crossover-small" not in said
    assert made.stacks(cloud) == {"crossover-small"} and "crossover-small-runs" in buckets(session)


@pytest.mark.slow
@pytest.mark.parametrize("versioned", [False, True])
def test_a_bucket_that_somebody_put_objects_into(
    versioned: bool, cloud: LocalCloud, session: Any, crossover: Command
) -> None:
    """Check that destroy empties and deletes a bucket whose first deletion fails because it contains objects."""
    s3 = session.client("s3")
    ours(session, "crossover", "tiny", {"Runs": {"Type": "AWS::S3::Bucket"}})
    (mine,) = (name for name in buckets(session) if name.startswith("crossover-tiny-runs"))
    if versioned:
        s3.put_bucket_versioning(Bucket=mine, VersioningConfiguration={"Status": "Enabled"})
    for body in (b"1", b"2"):
        s3.put_object(Bucket=mine, Key="photos", Body=body)
    said = crossover("destroy", "--yes", "--verify")
    assert "the deletion failed: Runs AWS::S3::Bucket" in said and "nothing is left" in said
    assert mine not in buckets(session) and made.stacks(cloud) == set()


@pytest.mark.slow
def test_a_resource_that_cannot_be_deleted_is_named_with_the_reason(
    cloud: LocalCloud, session: Any, crossover: Command
) -> None:
    """Check that destroy names a resource whose deletion fails, with the reason, and succeeds when it is repeated."""
    from moto.sns.models import Topic

    def refuse(self: Any, *rest: Any) -> None:
        """Fail as a resource that cannot be deleted."""
        raise RuntimeError("a subscription of somebody holds it")

    ours(session, "crossover", "tiny", {**made.TOPIC, **LOG})
    with pytest.MonkeyPatch.context() as held:
        held.setattr(Topic, "delete", refuse)
        said = crossover("destroy", "--yes", status=1)
    assert "crossover-tiny: is DELETE_FAILED" in said and "a subscription of somebody holds it" in said
    assert "Topic AWS::SNS::Topic (arn:aws:sns:" in said and "removed: nothing" in said
    assert made.stacks(cloud) == {"crossover-tiny"}
    crossover("destroy", "--yes", "--verify")


@contextmanager
def refused(*beginnings: str, code: str) -> Iterator[None]:
    """Let AWS refuse all calls whose operation begins with one of these texts, with that error code, while the block runs."""
    call = BaseClient._make_api_call

    def answer(self: Any, operation: str, arguments: Any) -> Any:
        """Refuse the call if its operation begins with one of the texts, else make it."""
        if operation.startswith(beginnings):
            raise ClientError({"Error": {"Code": code, "Message": "you may not"}}, operation)
        return call(self, operation, arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BaseClient, "_make_api_call", answer)
        yield


WRITES = ("Create", "Update", "Delete", "Put", "Stop", "Terminate")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("beginnings", "code", "words"),
    [
        (WRITES, "AccessDenied", "the credentials lack a permission"),  # read-only ones
        (("DeleteStack",), "ExpiredToken", "does not accept the credentials (ExpiredToken); sign in again"),
        (("GetCallerIdentity",), "InvalidClientTokenId", "does not accept the credentials (InvalidClientTokenId)"),
    ],
)
def test_credentials_that_do_not_suffice(
    beginnings: tuple[str, ...],
    code: str,
    words: str,
    cloud: LocalCloud,
    session: Any,
    crossover: Command,
) -> None:
    """Check that destroy without sufficient credentials says so and removes nothing."""
    ours(session, "crossover", "tiny", LOG)
    with refused(*beginnings, code=code):
        said = crossover("destroy", "--yes", status=2)
    assert words in said and ("removed: nothing" in said or code == "InvalidClientTokenId")
    assert made.stacks(cloud) == {"crossover-tiny"} and COLLECT in groups(session)


@pytest.mark.slow
@pytest.mark.parametrize(("code", "status"), [("AccessDenied", 1), ("ExpiredToken", 2)])
def test_credentials_that_fail_half_way(
    code: str, status: int, cloud: LocalCloud, session: Any, crossover: Command
) -> None:
    """Check that destroy says what was removed, and what was not, when the credentials fail in its middle."""
    ours(session, "crossover", "tiny", LOG)
    cloud.destroy("crossover-tiny")
    session.client("logs").create_log_group(logGroupName=COLLECT)
    ours(session, "crossover", "tiny")
    with refused("DeleteLogGroup", code=code):
        said = crossover("destroy", "--yes", status=status)
    assert "removed: stack crossover-tiny; repeat the command to continue" in said
    assert made.stacks(cloud) == set() and COLLECT in groups(session)
    assert f"not removed: log group {COLLECT}" in said
    session.client("logs").delete_log_group(logGroupName=COLLECT)


# --- two owners of one project ---


MEASURE = ("advise", "--tune", "memory", "--on", "aws", "--budget", "0.25")


@pytest.mark.parametrize("command", [("deploy", "--yes"), ("run", "--on", "aws"), ("destroy", "--yes"), MEASURE])
def test_another_owners_stack_is_refused_with_the_name_of_who_has_it(
    command: tuple[str, ...], session: Any, crossover: Command
) -> None:
    """Check that a command refuses another owner's stack, names the owner and says how to take it over."""
    made.ours(session, "crossover", "tiny", owner="ada@example.org")
    said = crossover(*command, status=2, owner="bob@example.org")
    assert "crossover-tiny in account 123456789012, us-east-1 belongs to ada@example.org" in said
    assert f"crossover {command[0]} " in said and "--take-over continues anyway" in said
    assert "ada@example.org" in made.stack_tags(session, "crossover-tiny").values()


def test_who_takes_over_sees_whose_it_is(session: Any, crossover: Command) -> None:
    """Check that destroy --take-over names the stack's owner and deletes the stack."""
    made.ours(session, "crossover", "tiny", owner="ada@example.org")
    said = crossover("destroy", "--yes", "--take-over", owner="bob@example.org")
    assert "stack crossover-tiny of ada@example.org" in said
    assert made.stack_tags(session, "crossover-tiny") == {}


@pytest.mark.parametrize("has", ["Ada@Example.org", "ada@example.org", Experiment.owner])
def test_an_owner_in_other_letter_case_is_the_same_and_the_default_is_nobody(
    has: str, session: Any, crossover: Command
) -> None:
    """Check that destroy does not ask for --take-over if the owners differ in letter case only or the stack has no owner of its own."""
    made.ours(session, "crossover", "tiny", owner=has)
    crossover("destroy", "--yes", owner="ada@example.org")
    assert made.stack_tags(session, "crossover-tiny") == {}


def test_a_proof_that_is_another_owners_is_refused_until_it_is_taken_over(
    session: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the AWS suite refuses another owner's stack, unless it is called with --take-over."""
    made.ours(session, "crossover-verify", "smallest", owner="ada@example.org", stands="alone")
    walked = list[bool]()
    monkeypatch.setattr(driver, "walk_through", lambda walk, steps: walked.append(walk.alone))
    monkeypatch.setattr(driver, "destroy_and_look", lambda walk: None)
    for more, status in (((), 2), (("--take-over",), 0)):
        ended: Any = 0
        try:
            driver.main(["--most-usd", "2", "--out", str(tmp_path / "out"), *more])
        except SystemExit as end:
            ended = end.code or 0
        said = "".join(capsys.readouterr())
        assert ended == status, said
        asked = "belongs to ada@example.org" in said and "python -m tests.aws --take-over continues anyway" in said
        assert asked == (status == 2), said
    assert walked == [True]


def test_what_stands_alone_leans_on_nothing_that_a_proof_would_take(session: Any) -> None:
    """Check that a stack which stands alone does not keep a proof from deleting the shared stacks, but another experiment does."""
    walk: Any = SimpleNamespace(
        session=session, experiment=validation.load(driver.PROOF), stack="crossover-verify-proof"
    )
    for part in ("network", "broker", "proof"):
        made.ours(session, "crossover-verify", part)
    made.ours(session, "crossover-verify", "smallest", stands="alone")
    assert not driver.others_stand(walk)
    made.ours(session, "crossover-verify", "another")
    assert driver.others_stand(walk)


def test_what_the_schedule_left_of_the_shared_stacks_goes_too(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the AWS suite removes what is left of the shared stacks once they have been deleted."""
    name = {"LogGroupName": "/crossover/crossover-verify/boot"}
    kept = {"Log": {"Type": "AWS::Logs::LogGroup", "DeletionPolicy": "Retain", "Properties": name}}
    stack = made.ours(session, "crossover-verify", "network", kept)
    session.client("cloudformation").delete_stack(StackName=stack)
    monkeypatch.setattr(driver, "AFTERWARDS", {})
    walk: Any = SimpleNamespace(
        session=session, experiment=validation.load(driver.PROOF), stack="crossover-verify-proof", whole=True, config=Path("c.yaml"),
        network_deleted=True, shared_stay=False, interfaces_left=0, observed={}, timed=lambda phase: nullcontext(),
    )  # fmt: skip
    driver.destroy_and_look(walk)
    assert (
        session.client("logs").describe_log_groups(logGroupNamePrefix="/crossover/crossover-verify/")["logGroups"] == []
    )


def test_a_budget_that_would_brake_at_another_regions_prices(
    session: Any, crossover: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that deploy and run refuse a budget if the stored prices are another region's."""
    elsewhere = replace(prices.load(), region="eu-central-1")
    monkeypatch.setattr(prices, "load", lambda: elsewhere)
    made.ours(session, "crossover", "tiny", owner="ada@example.org")
    for command in (("deploy", "--yes"), ("run", "--on", "aws")):
        said = crossover(*command, status=2, owner="ada@example.org", lifetime={"budget_usd": 5})
        assert "the prices of eu-central-1 (2026-11), and this is us-east-1" in said
        assert "crossover prices refresh --region us-east-1" in said
