"""The list of what is unproven: the list and its checks belong together, and each check can say proven and refuted."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from crossover.errors import CrossoverError
from crossover.reports.folder import RunFolder
from crossover.reports.usage import Report
from crossover.running import preflight
from crossover.running.account import FLEET, Owner
from crossover.stores.deployed_clients import is_aws
from crossover.validation import load
from tests.aws import afterwards, driver, fact_checks, unproven
from tests.aws.evidence import Evidence, Redriven
from tests.aws.observed import Check

PROOF = load(driver.PROOF)


# --- the list ---


def test_every_fact_of_the_document_has_a_check_or_a_reason_why_not() -> None:
    """Check that the unproven facts of docs/aws.md are exactly those with a check or with a reason for having none."""
    text, listed = unproven.DOCUMENT.read_text("utf-8"), unproven.read()
    assert len(listed) > 15 and all(text.count(f"\n| `{id}` |") == 1 for id in listed)
    checked = [*fact_checks.STANDING, *afterwards.AFTERWARDS, *fact_checks.NOT_COVERED]
    assert sorted(checked) == sorted(listed)


def test_a_document_without_the_table_is_refused(tmp_path: Path) -> None:
    """Check that a document without the table of unproven facts is refused."""
    path = tmp_path / "aws.md"
    path.write_text("## Unproven\n\nnothing\n")
    with pytest.raises(CrossoverError, match="no table of unproven facts"):
        unproven.read(path)


# --- the checks ---


def seen(*, on_aws: bool = True, of: Mapping[str, str] | None = None, **known: Any) -> Evidence:
    """Return evidence that has only what `known` gives; its cached properties are set, so that nothing is asked of AWS. `of`: settings
    that differ from the proof's; `aws` among `known`: its session.
    """
    fields = {name: known.pop(name) for name in list(known) if name in Evidence.__dataclass_fields__}
    evidence = Evidence(
        session=known.pop("aws", None),
        experiment=load(driver.PROOF, [f"{name}={value}" for name, value in (of or {}).items()]) if of else PROOF,
        on_aws=on_aws,
        **fields,
    )
    evidence.__dict__.update(known)
    return evidence


def run(**result: Any) -> RunFolder:
    """Return a finished run with `result` in its result.json."""
    counted = {"tensor_store": {"requests": 7}, "bus": {"requests": 3}}
    whole = {"outcome": "finished", "label": "measured-aws", "traffic": counted, **result}
    return RunFolder(path=Path(), result=whole, records=result.pop("records", []))


def report(function: str, init_ms: float | None) -> Report:
    """Return a Lambda report of a function. `init_ms`: milliseconds of INIT, None for a warm start."""
    return Report(
        logged_at=0.0,
        request_id="r",
        function=function,
        duration_ms=1.0,
        billed_ms=2,
        memory_mb=1,
        max_memory_mb=1,
        init_ms=init_ms,
    )


def records(*spans: tuple[float, float]) -> list[dict[str, Any]]:
    """Return the records of one worker's minibatches in one round. `spans`: (started at, seconds) of each."""
    common = {"step": "compute_gradients", "worker": 0, "round": 0}
    return [
        {**common, "minibatch": n, "started_at": begin, "wall_s": wall_s, "request_id": str(n)}
        for n, (begin, wall_s) in enumerate(spans)
    ]


def redriven(status: str, error: str = "", *, adopted: bool = True) -> Redriven:
    """Return the end of a redriven run."""
    return Redriven(status=status, error=error, adopted=adopted)


def aws(client: Any) -> Any:
    """Return a boto3 session whose clients are all `client`."""
    return SimpleNamespace(client=lambda service, **arguments: client)


class Answers:
    """A boto3 client whose calls each return, or raise, what was given for them."""

    def __init__(self, **answers: Any) -> None:
        """Remember the answers by name of the call."""
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        """Return a call of that name, which takes any keyword arguments."""

        def call(**arguments: Any) -> Any:
            """Return the answer given for this call, or raise it if it is an exception."""
            if isinstance(self.answers[name], Exception):
                raise self.answers[name]
            return self.answers[name]

        return call


def refused(code: str) -> ClientError:
    """Return the exception of an AWS call with that error code."""
    return ClientError({"Error": {"Code": code, "Message": ""}}, "Get")


def tagged(answer: Any) -> Evidence:
    """Return the evidence of an experiment whose bucket's tags are `answer`."""
    return seen(
        aws=aws(Answers(get_bucket_tagging=answer)), owner=Owner(project="p", held={"AWS::S3::Bucket": frozenset("b")})
    )


def quota(answer: Any) -> Evidence:
    """Return evidence from an account that answers `answer` for every quota."""
    return seen(aws=aws(Answers(get_service_quota=answer)))


def over_the_broker(outcome: str) -> Evidence:
    """Return evidence from an account with a broker and a run with that outcome."""
    listed = {"BrokerSummaries": [{"BrokerName": "crossover-verify-broker", "BrokerId": "b"}]}
    described = {"EngineVersion": "4.2.0", "HostInstanceType": "mq.m7g.medium"}
    return seen(aws=aws(Answers(list_brokers=listed, describe_broker=described)), run=run(outcome=outcome))


def account(limit: int, *, takes_more: Any) -> Evidence:
    """Return the evidence of an account with this many concurrent executions. `takes_more`: its answer when a function is to have more
    memory.
    """
    settings = {"AccountLimit": {"ConcurrentExecutions": limit}}
    answers = Answers(get_account_settings=settings, update_function_configuration=takes_more)
    return seen(aws=aws(answers), functions=[{"FunctionName": "crossover-verify-proof-collect"}])


GPU = {"architecture": "gpu", "gpu.instances": "2"}


def booted(minutes: float) -> Evidence:
    """Return the evidence of a GPU run whose first step began this many minutes after the instance's launch."""
    launch = {"Activities": [{"StartTime": datetime(2026, 11, 1, tzinfo=UTC)}]}
    begun = launch["Activities"][0]["StartTime"].timestamp() + 60 * minutes
    trained = run(records=[{"worker": 0, "instance_type": "g4dn.xlarge", "started_at": begun}])
    owner = Owner(project="p", held={FLEET: frozenset("g")})
    return seen(aws=aws(Answers(describe_scaling_activities=launch)), owner=owner, run=trained, of=GPU)


TORCH = "crossover-verify-proof-compute-gradients"
WAIT, BROKER = preflight.HOST_TYPE, fact_checks.BROKER
CASES = [
    (fact_checks.redis_host_boots, seen(made={WAIT: [6]}), "proven"),
    (fact_checks.redis_host_boots, seen(made={WAIT: [26]}), "refuted"),
    (fact_checks.redis_host_boots, seen(made={}), "not covered"),
    (fact_checks.broker_minutes, seen(made={BROKER: [11]}), "proven"),
    (fact_checks.broker_minutes, seen(made={BROKER: [40]}), "refuted"),
    (fact_checks.cold_import, seen(reports={"a": report(TORCH, 4_000)}, torch_functions={TORCH}), "proven"),
    (fact_checks.cold_import, seen(reports={"a": report(TORCH, 11_000)}, torch_functions={TORCH}), "refuted"),
    (fact_checks.cold_import, seen(reports={"a": report("x", 400), "b": report(TORCH, None)}, torch_functions={TORCH}), "not covered"),
    (fact_checks.distributed_maps, seen(run=run(records=records(*[(0, 5)] * 41))), "proven"),
    (fact_checks.distributed_maps, seen(run=run(records=records(*[(0, 5)] * 40, (5, 5)))), "refuted"),
    (fact_checks.distributed_maps, seen(run=run(records=records(*[(0, 5)] * 40))), "not covered"),
    (fact_checks.reports_joined, seen(run=run(records=records((0, 1))), reports={"0": report("x", None)}), "proven"),
    (fact_checks.reports_joined, seen(run=run(records=records((0, 1), (0, 1))), reports={"0": report("x", None)}), "refuted"),
    (afterwards.experiment_goes_quickly, seen(minutes={"experiment deleted": 2.0}), "proven"),
    (afterwards.experiment_goes_quickly, seen(minutes={"experiment deleted": 25.0}), "refuted"),
    (afterwards.experiment_goes_quickly, seen(), "not covered"),
    (afterwards.resource_tag_on_delete, seen(expiry_state=""), "proven"),
    (afterwards.resource_tag_on_delete, seen(expiry_state="DELETE_FAILED"), "refuted"),
    (afterwards.resource_tag_on_delete, seen(expiry_state="", on_aws=False), "not covered"),
    (afterwards.resource_tag_on_delete, seen(alone=True), "not covered"),
    (afterwards.schedule_fires, seen(fired=True), "proven"),
    (afterwards.schedule_fires, seen(fired=False), "refuted"),
    (afterwards.schedule_fires, seen(), "not covered"),
    (afterwards.interfaces_after_role, seen(interfaces_left=3, network_deleted=True, minutes={"network deleted": 2}), "proven"),
    (afterwards.interfaces_after_role, seen(interfaces_left=3, minutes={"network deleted": 30}), "refuted"),
    (afterwards.interfaces_after_role, seen(interfaces_left=0, network_deleted=True, minutes={"network deleted": 2}), "not covered"),
    (afterwards.redis_update_completes, seen(updated=run(experiment={"workers": 3})), "proven"),
    (afterwards.redis_update_completes, seen(updated=run(experiment={"workers": 3}, outcome="failed")), "refuted"),
    (afterwards.redis_update_completes, seen(), "not covered"),
    (afterwards.failed_child_adopted, seen(redriven_alone=redriven("FAILED", "ChildFailed")), "proven"),
    (afterwards.failed_child_adopted, seen(redriven_alone=redriven("FAILED", "StepFailed")), "refuted"),
    (afterwards.failed_child_adopted, seen(redriven_alone=redriven("FAILED", "ChildFailed", adopted=False)), "refuted"),
    (afterwards.failed_child_adopted, seen(), "not covered"),
    (afterwards.redriven_child_adopted, seen(redriven=redriven("SUCCEEDED")), "proven"),
    (afterwards.redriven_child_adopted, seen(redriven=redriven("SUCCEEDED", adopted=False)), "proven"),
    (afterwards.redriven_child_adopted, seen(redriven=redriven("FAILED", "ChildFailed")), "refuted"),
    (afterwards.redriven_child_adopted, seen(), "not covered"),
    (fact_checks.definitions_accepted, seen(state_machines={"crossover-verify-proof-run": "a", "other-run": "b"}), "proven"),
    (fact_checks.definitions_accepted, seen(state_machines={"other-run": "b"}), "not covered"),
    (fact_checks.first_zone, seen(zones={"us-east-1b"}), "proven"),
    (fact_checks.first_zone, seen(zones={"us-east-1a", "us-east-1b"}), "refuted"),
    (fact_checks.first_zone, seen(zones=set()), "not covered"),
    (fact_checks.packages_at_boot, seen(made={WAIT: [6]}), "proven"),
    (fact_checks.packages_at_boot, seen(made={}), "not covered"),
    (afterwards.interfaces_linger, seen(interfaces_left=3, network_deleted=True, minutes={"network deleted": 28.0}), "proven"),
    (afterwards.interfaces_linger, seen(interfaces_left=0, network_deleted=True, minutes={"network deleted": 2.0}), "refuted"),
    (afterwards.interfaces_linger, seen(interfaces_left=3), "not covered"),
    (fact_checks.interfaces_denied_to_code, seen(functions=[{"VpcConfig": {"VpcId": "v"}}]), "proven"),
    (fact_checks.interfaces_denied_to_code, seen(functions=[{"VpcConfig": {"VpcId": "v"}, "State": "Failed"}]), "refuted"),
    (fact_checks.interfaces_denied_to_code, seen(functions=[{"VpcConfig": {"VpcId": ""}}]), "not covered"),
    (fact_checks.interfaces_denied_to_code, seen(functions=[{"VpcConfig": {"VpcId": "v"}}], on_aws=False), "not covered"),
    (fact_checks.image_packaging, seen(run=run(), of={"functions.packaging": "image"}), "proven"),
    (fact_checks.image_packaging, seen(run=run(outcome="failed"), of={"functions.packaging": "image"}), "refuted"),
    (fact_checks.image_packaging, seen(of={"functions.packaging": "image"}), "not covered"),
    (fact_checks.image_packaging, seen(run=run()), "not covered"),
    (fact_checks.gpu_image, seen(run=run(records=[{"worker": 1, "instance_type": "g4dn.xlarge"}]), of=GPU), "proven"),
    (fact_checks.gpu_image, seen(run=run(records=[]), of=GPU), "not covered"),
    (fact_checks.gpu_image, seen(run=run(records=[{"worker": 1, "instance_type": "t2.small"}])), "not covered"),
    (fact_checks.gpu_boots, booted(fact_checks.GPU_BOOT_LIMIT_MIN), "proven"),
    (fact_checks.gpu_boots, booted(fact_checks.GPU_BOOT_LIMIT_MIN + 1), "refuted"),
    (fact_checks.gpu_boots, booted(-1), "not covered"),
    (fact_checks.layer_size, seen(functions=[{"FunctionName": "a", "Layers": [1, 2], "State": "Active"}]), "proven"),
    (fact_checks.layer_size, seen(functions=[{"FunctionName": "a", "Layers": [1, 2], "State": "Failed"}]), "refuted"),
    (fact_checks.bucket_shows_stack, tagged({"TagSet": [{"Key": "aws:cloudformation:stack-id", "Value": "arn"}]}), "proven"),
    (fact_checks.bucket_shows_stack, tagged({"TagSet": [{"Key": "project", "Value": "crossover"}]}), "refuted"),
    (fact_checks.bucket_shows_stack, tagged(refused("AccessDenied")), "refuted"),
    (fact_checks.standard_vcpus, quota({"Quota": {"Value": 5.0}}), "proven"),
    (fact_checks.standard_vcpus, quota(refused("AccessDenied")), "refuted"),
    (fact_checks.classic_queues, over_the_broker("finished"), "proven"),
    (fact_checks.classic_queues, over_the_broker("failed"), "refuted"),
    (fact_checks.new_account_memory, account(10, takes_more=refused("InvalidParameterValueException")), "proven"),
    (fact_checks.new_account_memory, account(10, takes_more={}), "refuted"),
    (fact_checks.new_account_memory, account(1_000, takes_more={}), "not covered"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "evidence", "verdict"), CASES)
def test_a_check_says_what_the_evidence_says(check: Check, evidence: Evidence, verdict: str) -> None:
    """Check the verdict of each check on made-up evidence."""
    assert check(evidence).verdict == verdict


@pytest.mark.parametrize(("change", "verdict"), [(0.0, "proven"), (0.01, "refuted")])
def test_prices_that_nobody_verified_are_looked_up(
    change: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the verdict on unverified prices: proven if the Price List equals them, refuted otherwise."""
    listed = fact_checks.prices.load()
    monkeypatch.setattr(
        fact_checks.price_list, "fetch_price", lambda session, item, region: listed.of(item).usd + change
    )
    assert fact_checks.unverified_prices(seen()).verdict == verdict


# --- the label ---


def test_only_a_real_account_measures_aws() -> None:
    """Check that evidence has the label measured-aws only if a real account answered and the run says so."""
    assert seen(run=run()).label == "measured-aws"
    assert seen(run=run(), on_aws=False).label == "measured-local"
    assert seen(run=run(label="measured-local")).label == "measured-local"


@pytest.mark.parametrize(
    ("url", "real"),
    [
        ("https://lambda.us-east-1.amazonaws.com", True),
        ("https://sts.cn-north-1.amazonaws.com.cn", True),
        ("http://127.0.0.1:4566", False),
        ("https://amazonaws.com.example.org", False),
    ],
)
def test_what_answers_is_told_by_its_address(url: str, real: bool) -> None:
    """Check that `is_aws` tells AWS from the local cloud by the endpoint's address."""
    session = aws(SimpleNamespace(meta=SimpleNamespace(endpoint_url=url)))
    assert is_aws(session) is real
