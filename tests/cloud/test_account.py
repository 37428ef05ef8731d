"""What the command line asks an account before anything costs money, and how it finds what is left; against the cloud on one machine."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from cdk import expiry_machine
from crossover.errors import UserError
from crossover.experiment import Experiment, Gpu, Lifetime, Network, Training
from crossover.reports import prices
from crossover.running import account as listings
from crossover.running import account as stacks
from crossover.running import organisation, preflight, running_costs
from crossover.running.account import Owner
from crossover.workflow import state_machines as asl
from crossover.workflow.architecture import load
from tests.cloud import made
from tests.moto_patches import AccountCloud
from tests.moto_patches.account import ZONES

NOW = datetime.now(UTC)
SPIRT = Experiment(name="spirt", architecture="spirt")


# --- whose a resource is ---


def test_a_longer_name_resembles_the_longer_stack() -> None:
    """Check that a name which begins like several stacks' names resembles the longest of them only."""
    owner = Owner(project="crossover", experiment="spirt", others=("crossover-network", "crossover-spirt-cifar10"))
    assert owner.has_similar_name("crossover-spirt-run") and owner.has_similar_name("crossover-spirt")
    assert not owner.has_similar_name("crossover-spirt-cifar10-run") and not owner.has_similar_name("crossover-spirtx")
    longer = Owner(project="crossover", experiment="spirt-cifar10", others=("crossover-spirt",))
    assert longer.has_similar_name("Crossover-spirt-cifar10-run")
    assert Owner(project="crossover").has_similar_name("crossover-spirt-run")
    assert not Owner(project="cross").has_similar_name("crossover-spirt")


def test_tags_in_every_spelling_of_aws() -> None:
    """Check that tags are matched however AWS spells their `key` and `value`."""
    owner = Owner(project="crossover", experiment="spirt")
    tags = [{"Key": "project", "Value": "crossover"}, {"key": "experiment", "value": "spirt"}]
    assert owner.matches_tags(listings.tags_to_dict(tags))
    assert not owner.matches_tags({"project": "crossover", "experiment": "other"}) and not owner.matches_tags({})
    assert Owner(project="crossover").matches_tags({"project": "crossover"})


# --- doctor ---


def findings(session: Any, experiment: Experiment) -> dict[str, preflight.Finding]:
    """Return the findings of the account's examination, by name."""
    return {each.name: each for each in preflight.examine(session, experiment)}


@pytest.mark.slow
def test_a_ready_account_lacks_nothing(session: Any) -> None:
    """Check that every finding about a ready account holds."""
    found = findings(session, SPIRT)
    assert all(each.holds for each in found.values()), found
    assert {"credentials", "bootstrap", "Lambda concurrency", "m7g.large", "availability zone", "vCPU quota"} <= set(
        found
    )


def test_a_new_accounts_limits_are_said_with_what_to_ask_for(
    cloud: AccountCloud, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the findings about a new account name its limits of Lambda and the quota to raise."""
    large = replace(SPIRT, workers=4, functions=replace(SPIRT.functions, memory_mb={"default": 4_400}))
    monkeypatch.setattr(cloud.account, "concurrency", 10)
    found = findings(session, large)
    assert not found["Lambda concurrency"].holds and "L-B99A9384" in found["Lambda concurrency"].detail
    assert found["Lambda concurrency"].detail.startswith(f"10 free, {preflight.compute_concurrency(large)} functions")
    assert not found["Lambda memory"].holds and "3008 MB" in found["Lambda memory"].detail


GPU = Experiment(name="gpu", architecture="gpu", gpu=Gpu(instances=2))
SAID = [
    ("describe_vpc_block_public_access_options", {"VpcBlockPublicAccessOptions": {"InternetGatewayBlockMode": "block-bidirectional"}},
     "VPC block public access", "block-bidirectional: the account keeps VPCs from the internet"),
    ("describe_vpc_block_public_access_options", {"VpcBlockPublicAccessOptions": {"InternetGatewayBlockMode": "block-ingress"}},
     "VPC block public access", "block-ingress: the account keeps VPCs from the internet"),
    ("get_allowed_images_settings", {"State": "enabled", "ImageCriteria": [{"ImageProviders": ["aws-marketplace"]}]},
     "allowed images", "allows images of aws-marketplace only, not of amazon"),
    ("get_ebs_default_kms_key_id", {"KmsKeyId": "arn:aws:kms:us-east-1:123456789012:key/1"},
     "default EBS key", "AWSServiceRoleForAutoScaling"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "answer", "name", "words"), SAID)
def test_what_an_accounts_owners_forbid_is_said_before_anything_costs(
    call: str,
    answer: dict[str, Any],
    name: str,
    words: str,
    cloud: AccountCloud,
    session: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that settings of the account which would stop a GPU's host are found before a deployment."""
    assert findings(session, GPU).get(name, preflight.Finding(name, True, "")).holds
    monkeypatch.setitem(cloud.account.settings, call, answer)
    found = findings(session, GPU)[name]
    assert not found.holds and words in found.detail


@pytest.mark.parametrize("code", ["L-F678F1CE", "L-A4707A72"])
def test_a_network_quota_of_zero_is_said(
    code: str, cloud: AccountCloud, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a quota which leaves no room for the network is found and named."""
    monkeypatch.setitem(cloud.account.quotas, ("vpc", code), 0.0)
    (found,) = [each for each in findings(session, GPU).values() if not each.holds]
    assert "of 0 in use, the network needs one more" in found.detail and f"--quota-code {code}" in found.detail


def test_vcpus_that_others_use_are_not_free(cloud: AccountCloud, session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that vCPUs of other instances count against the GPU quota."""
    ec2 = session.client("ec2")
    image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    (other,) = ec2.run_instances(ImageId=image, InstanceType="g4dn.xlarge", MinCount=1, MaxCount=1)["Instances"]
    try:
        monkeypatch.setitem(cloud.account.quotas, ("ec2", "L-DB2E81BA"), 8.0)
        found = findings(session, GPU)["GPU quota"]
    finally:
        ec2.terminate_instances(InstanceIds=[other["InstanceId"]])
    assert not found.holds and " in use, 2 x g4dn.xlarge need 8" in found.detail


def test_an_image_that_the_region_does_not_name(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the lack of a parameter with the image's id is a finding."""
    monkeypatch.setattr("crossover.running.organisation.image_parameter", lambda kind, *, gpu: "/nowhere/latest/x")
    found = findings(session, GPU)["image"]
    assert not found.holds and "has no parameter /nowhere/latest/x" in found.detail


@pytest.mark.parametrize(("state", "holds"), [("create-complete", True), ("delete-complete", False)])
def test_only_a_network_that_its_owners_exclude_is_not_blocked(
    state: str, holds: bool, cloud: AccountCloud, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a blocked account is found ready only if the state of the network's exclusion is one that lets it through."""
    arn = "arn:aws:ec2:us-east-1:123456789012:vpc/vpc-1"
    for call, answer in (
        ("options", {"VpcBlockPublicAccessOptions": {"InternetGatewayBlockMode": "block-ingress"}}),
        ("exclusions", {"VpcBlockPublicAccessExclusions": [{"ResourceArn": arn, "State": state}]}),
    ):
        monkeypatch.setitem(cloud.account.settings, f"describe_vpc_block_public_access_{call}", answer)
    parameter = {"Name": "/crossover/crossover/network/vpc", "Value": "vpc-1", "Type": "String"}
    session.client("ssm").put_parameter(**parameter)
    try:
        assert findings(session, GPU)["VPC block public access"].holds is holds
    finally:
        session.client("ssm").delete_parameter(Name=parameter["Name"])


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("UnauthorizedOperation", "denied"),
        ("NoSuchResourceException", "not answered"),
        ("NotImplemented", "not answered"),
    ],
)
def test_a_question_without_an_answer_is_not_asked_and_not_ok(
    code: str, how: str, cloud: AccountCloud, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a finding is "unasked" if AWS refused the question, and says how."""

    def deny(session: Any, experiment: Experiment, account: Any) -> Any:
        """Raise AWS's error `code` in the place of a check."""
        raise ClientError({"Error": {"Code": code}}, "GetAllowedImagesSettings")

    monkeypatch.setattr("crossover.running.organisation.check_allowed_images", deny)
    found = findings(session, GPU)["allowed images"]
    assert (found.word, found.detail) == (
        "unasked",
        f"could not be checked ({code}): GetAllowedImagesSettings was {how}",
    )


def test_a_life_shorter_than_the_deployment_is_refused(session: Any) -> None:
    """Check that a time to live which leaves too little after the expected deployment is refused."""
    short = replace(SPIRT, lifetime=Lifetime(ttl_hours=0.25, maximum_run_hours=0.25))
    found = findings(session, short)["time to live"]
    assert not found.holds and "0.25 h, of which the deployment is expected to take 20 minutes" in found.detail
    made.ours(session, "crossover", "broker")
    assert findings(session, short)["time to live"].holds  # 5 minutes are left


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("arn:aws:sns:eu-west-1:123456789012:told", "is not in us-east-1 of account 123456789012"),
        ("arn:aws:sns:us-east-1:999999999999:told", "is not in us-east-1 of account 123456789012"),
        ("arn:aws:sns:us-east-1:123456789012:none", "does not exist"),
    ],
)
def test_a_topic_that_nobody_would_hear(topic: str, words: str, session: Any) -> None:
    """Check that a topic which cannot notify anybody is refused with the reason."""
    found = findings(session, replace(SPIRT, lifetime=Lifetime(notify=topic)))["topic"]
    assert not found.holds and words in found.detail


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({}, "has no confirmed subscription"),
        ({"KmsMasterKeyId": "alias/own"}, "is encrypted by alias/own, which the clean-up may not use"),
    ],
)
def test_a_topic_that_is_there_and_tells_nobody(attributes: dict[str, str], words: str, session: Any) -> None:
    """Check that an existing topic which tells nobody gives a finding that is not certain."""
    topics = session.client("sns")
    topic = topics.create_topic(Name="silent", Attributes=attributes)["TopicArn"]
    try:
        found = findings(session, replace(SPIRT, lifetime=Lifetime(notify=topic)))["topic"]
    finally:
        topics.delete_topic(TopicArn=topic)
    assert (found.holds, found.certain) == (False, False) and words in found.detail


def test_a_budget_by_another_regions_prices_is_told_by_doctor_too(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a budget is refused if the stored prices are another region's, and that no budget needs no prices."""
    elsewhere = replace(prices.load(), region="eu-west-1")
    monkeypatch.setattr(prices, "load", lambda: elsewhere)
    found = findings(session, replace(SPIRT, lifetime=Lifetime(budget_usd=5.0)))["region"]
    assert not found.holds and "has the prices of eu-west-1" in found.detail
    assert findings(session, SPIRT)["region"].holds


def test_functions_at_once_are_the_trees_parallel_iterations() -> None:
    """Check that as many functions are counted as may run at once: with SPIRT every minibatch of every worker.

    1,797 digits, a fifth held out, 4 workers and 60 at a time make 6 minibatches each.
    """
    experiment = replace(SPIRT, workers=4, training=Training(batch_size=60))
    assert preflight.compute_concurrency(experiment) == 4 * 6
    assert preflight.compute_concurrency(Experiment(name="x", architecture="all_reduce", workers=7)) == 7


def test_a_machine_that_step_functions_would_refuse_is_named_with_the_place(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a state machine which Step Functions would refuse is a finding with the error and its place."""
    own = len(asl.build_definitions(load("spirt"), SPIRT, minibatches=6)) + 1  # and the expiry
    assert findings(session, SPIRT)["state machines"].detail == f"Step Functions accepts all {own}"
    inner = {"StartAt": "twice", "States": {"twice": {"Type": "Pass", "End": True}}}
    outer = {"Type": "Map", "ItemProcessor": {"ProcessorConfig": {"Mode": "INLINE"}, **inner}, "End": True}
    bad = {"StartAt": "twice", "States": {"twice": outer}}
    monkeypatch.setattr(expiry_machine, "definition", lambda project, *, only="": bad)
    found = findings(session, SPIRT)["state machines"]
    assert not found.holds and found.certain
    place = "/States/twice/ItemProcessor/States/twice"
    assert f"refuse expiry: DUPLICATE_STATE_NAME at {place}: " in found.detail


def test_credentials_that_may_not_ask_about_machines_are_told_so(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that state machines are reported as not checked if the credentials lack the permission."""

    def denied(*arguments: Any, **named: Any) -> None:
        """Raise AWS's error for a missing permission."""
        raise ClientError(
            {"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "ValidateStateMachineDefinition"
        )

    monkeypatch.setattr(session.client("stepfunctions"), "validate_state_machine_definition", denied)
    found = preflight.check_definitions(session, SPIRT)
    assert found.holds and found.detail == "not checked: the credentials lack states:ValidateStateMachineDefinition"


def test_processors_beside_gpus_have_a_quota_too(
    cloud: AccountCloud, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the quota of vCPUs without GPUs is examined: the experiment's hosts beside those of others."""
    with monkeypatch.context() as fewer:
        fewer.setitem(cloud.account.quotas, ("ec2", "L-1216C47A"), 5.0)
        found = {each: findings(session, Experiment(name="x", architecture=each)) for each in ("spirt", "p2p_instance")}
    spirt, peers = found["spirt"]["vCPU quota"], found["p2p_instance"]["vCPU quota"]
    assert not spirt.holds and "4 x m7g.large need 8; aws service-quotas" in spirt.detail
    assert (
        "request-service-quota-increase --service-code ec2 --quota-code L-1216C47A --desired-value 14" in spirt.detail
    )  # neighbours use 6
    assert not peers.holds and "need 8" in peers.detail
    assert findings(session, SPIRT)["vCPU quota"].holds


# --- a zone ---


@pytest.fixture
def lacking(cloud: AccountCloud) -> Iterator[set[tuple[str, str]]]:
    """Yield the account's set of (zone, what the zone does not offer), for the test to fill; it is cleared afterwards."""
    yield cloud.account.not_offered
    cloud.account.not_offered.clear()


def zone(session: Any, experiment: Experiment = SPIRT) -> preflight.Finding:
    """Return the finding about the availability zone."""
    return findings(session, experiment)["availability zone"]


def test_the_first_zone_that_offers_everything_is_chosen(session: Any, lacking: set[tuple[str, str]]) -> None:
    """Check that the first zone that offers everything is chosen, and that the finding says what the others lack."""
    assert organisation.choose_zone(session, SPIRT).zone == "us-east-1a"
    lacking |= {("us-east-1a", "m7g.large"), ("us-east-1b", "mq.m7g.medium"), ("us-east-1c", "secretsmanager")}
    assert organisation.choose_zone(session, SPIRT).zone == "us-east-1d"
    found = zone(session)
    assert found.holds
    assert found.detail.startswith(
        "us-east-1d offers m7g.large, mq.m7g.medium with RabbitMQ 4.2, an endpoint of secretsmanager; us-east-1a lacks m7g.large; "
        "us-east-1b lacks mq.m7g.medium with RabbitMQ 4.2; us-east-1c lacks an endpoint of secretsmanager"
    )


def test_a_zone_that_is_asked_for_and_lacks_something(session: Any, lacking: set[tuple[str, str]]) -> None:
    """Check that a configured zone that lacks something, or does not exist, is refused with the zones it may be."""
    lacking.add(("us-east-1b", "m7g.large"))
    found = zone(session, replace(SPIRT, network=Network(availability_zone="us-east-1b")))
    assert not found.holds
    assert found.detail.startswith(
        "network.availability_zone: us-east-1b lacks m7g.large; it may be us-east-1a, us-east-1c"
    )
    found = zone(session, replace(SPIRT, network=Network(availability_zone="us-east-1z")))
    assert not found.holds and "us-east-1z is no zone of this region; it may be us-east-1a" in found.detail


def test_the_zone_of_a_network_that_stands_is_fixed(session: Any, lacking: set[tuple[str, str]]) -> None:
    """Check that the zone is that of the existing network, and that `destroy --shared` is named to change it."""
    ssm, name = session.client("ssm"), "/crossover/crossover/network/zone"
    ssm.put_parameter(Name=name, Value="us-east-1b", Type="String")
    try:
        assert organisation.choose_zone(session, SPIRT).zone == "us-east-1b"
        other = zone(session, replace(SPIRT, network=Network(availability_zone="us-east-1c")))
        lacking.add(("us-east-1b", "m7g.large"))
        less = zone(session)
    finally:
        ssm.delete_parameter(Name=name)
    assert not other.holds
    assert "network.availability_zone: 'us-east-1c', but crossover-network is in us-east-1b" in other.detail
    assert not less.holds and "is in us-east-1b, which lacks m7g.large" in less.detail
    assert "crossover destroy CONFIG --shared" in other.detail and "--shared" in less.detail


def test_a_region_without_graviton(session: Any, lacking: set[tuple[str, str]]) -> None:
    """Check that a type of instance which no zone of the region offers is a finding."""
    lacking |= {(each, "m7g.large") for each in ZONES}
    found = findings(session, SPIRT)
    assert not found["m7g.large"].holds
    assert (
        "not offered in us-east-1: choose another database.instance_type, or another region"
        in found["m7g.large"].detail
    )
    assert not found["availability zone"].holds
    assert found["availability zone"].detail.startswith(
        "no zone of this region offers everything: us-east-1a lacks m7g.large"
    )


@pytest.mark.parametrize(
    ("offered", "missing", "words"),
    [
        ("broker_types", "mq.m7g.medium", "RabbitMQ 4.2 is offered on mq.m5.large, mq.m7g.large"),
        ("broker_versions", "4.2", "mq.m7g.medium has RabbitMQ 3.13"),
    ],
)
def test_a_broker_type_or_version_that_is_not_offered(
    offered: str, missing: str, words: str, cloud: AccountCloud, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a broker's type or version that Amazon MQ does not offer is a finding with what is offered."""
    left = [each for each in getattr(cloud.account, offered) if each != missing]
    monkeypatch.setattr(cloud.account, offered, left)
    found = findings(session, SPIRT)["mq.m7g.medium with RabbitMQ 4.2"]
    assert not found.holds and words in found.detail


# --- stacks and budgets ---


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("UPDATE_IN_PROGRESS", r"crossover deploy c\.yaml again, once that has ended"),
        ("DELETE_FAILED", r"crossover destroy c\.yaml clears it"),
    ],
)
def test_a_stack_half_way_is_refused_with_the_command_that_mends_it(
    state: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that neither `deploy` nor `run` takes an unfinished stack, and that each names the command that helps."""
    half = made.standing("crossover-c", state)
    monkeypatch.setattr(stacks, "find_stack", lambda session, name: half)
    with pytest.raises(UserError, match=words):
        stacks.check_deployable(None, "crossover-c", config=Path("c.yaml"))
    with pytest.raises(UserError, match=r"crossover deploy c.yaml completes it"):
        stacks.check_runnable(None, "crossover-c", project="crossover", config="c.yaml")


def test_a_budget_that_standing_there_has_used_up() -> None:
    """Check that the budget left is less by what the deployed resources have cost, and is refused once it is spent."""
    experiment = replace(SPIRT, lifetime=Lifetime(budget_usd=1.0))
    hourly = running_costs.sum_usd(running_costs.list_hourly_costs(experiment))
    since = NOW - timedelta(hours=1)
    standing_one = stacks.DeployedStack(name="crossover-spirt", state="UPDATE_COMPLETE", created=since, changed=NOW)
    config = Path("spirt.yaml")
    assert running_costs.find_budget_left(experiment, standing_one, now=NOW, config=config) == pytest.approx(
        1.0 - hourly
    )
    with pytest.raises(UserError, match=r"lifetime\.budget_usd: 1 is spent: .* crossover destroy spirt\.yaml"):
        running_costs.find_budget_left(experiment, standing_one, now=NOW + timedelta(hours=1 / hourly), config=config)


def test_an_hour_of_spirt_is_its_hosts_broker_endpoint_and_secrets() -> None:
    """Check the hourly cost of a deployed SPIRT, which is the same while a run is under way."""
    assert running_costs.sum_usd(running_costs.list_hourly_costs(SPIRT)) == pytest.approx(
        4 * (0.0816 + 0.005) + 0.10 + 0.010, abs=0.03
    )  # volumes and secrets are the rest
    assert running_costs.list_hourly_costs(SPIRT, running=True) == running_costs.list_hourly_costs(SPIRT)
