"""verify-aws: the list and its checks belong together, each check can say proven and refuted, and what was deployed always goes."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from crossover.account.proofs import fact_checks, unproven
from crossover.account.proofs import facts_of_steps as of_steps
from crossover.account.proofs.evidence import Evidence, Made, Redriven, is_aws
from crossover.account.proofs.observed import Check, Observed, judged
from crossover.cli import verification
from crossover.cli.main import main
from crossover.costs.platform_reports import Report
from crossover.errors import CrossoverError
from crossover.reports.folder import RunFolder
from crossover.validation import load

NOW = datetime(2027, 1, 1, tzinfo=UTC)
PROOF = load(verification.PROOF)


# --- the list ---


def test_every_fact_of_the_document_has_a_check_or_a_reason_why_not() -> None:
    listed = [fact.id for fact in unproven.read()]
    assert len(set(listed)) == len(listed) > 15
    checked = [
        *fact_checks.STANDING,
        *fact_checks.UPDATED,
        *fact_checks.REDRIVEN,
        *fact_checks.AFTERWARDS,
        *fact_checks.NOT_COVERED,
    ]
    assert sorted(checked) == sorted(listed)


def test_a_document_without_the_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "aws.md"
    path.write_text("## Unproven\n\nnothing\n")
    with pytest.raises(CrossoverError, match="no table of unproven facts"):
        unproven.read(path)


# --- the checks ---


def seen(*, on_aws: bool = True, of: Mapping[str, str] | None = None, **known: Any) -> Evidence:
    """Evidence of which `known` is there; cached properties are set, not asked for. `of`: settings unlike the proof's."""
    fields = {name: known.pop(name) for name in list(known) if name in Evidence.__dataclass_fields__}
    evidence = Evidence(
        session=known.pop("aws", None),
        experiment=load(verification.PROOF, [f"{name}={value}" for name, value in (of or {}).items()]) if of else PROOF,
        on_aws=on_aws,
        **fields,
    )
    evidence.__dict__.update(known)
    return evidence


def made(kind: str, minutes: float) -> Made:
    return Made(stack="s", kind=kind, logical_id="l", began=NOW, ended=NOW + timedelta(minutes=minutes))


def run(**result: Any) -> RunFolder:
    counted = {"tensor_store": {"requests": 7}, "bus": {"requests": 3}}
    whole = {"outcome": "finished", "label": "measured-aws", "traffic": counted, **result}
    return RunFolder(path=Path(), result=whole, records=result.pop("records", []))


def report(function: str, init_ms: float | None) -> Report:
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
    """One record per minibatch of one worker and round: (started at, seconds)."""
    common = {"step": "compute_gradients", "worker": 0, "round": 0}
    return [
        {**common, "minibatch": n, "started_at": begin, "wall_s": wall_s, "request_id": str(n)}
        for n, (begin, wall_s) in enumerate(spans)
    ]


def redriven(status: str, error: str = "", *, adopted: bool = True) -> Redriven:
    return Redriven(status=status, error=error, adopted=adopted)


GPU = {"architecture": "gpu", "gpu.instances": "2"}
TORCH = "crossover-verify-proof-compute-gradients"
WAIT, BROKER = "AWS::CloudFormation::WaitCondition", "AWS::AmazonMQ::Broker"
CASES = [
    (fact_checks.redis_host_boots, seen(made=[made(WAIT, 6)]), "proven"),
    (fact_checks.redis_host_boots, seen(made=[made(WAIT, 26)]), "refuted"),
    (fact_checks.redis_host_boots, seen(made=[]), "not covered"),
    (fact_checks.broker_minutes, seen(made=[made(BROKER, 20)]), "proven"),
    (fact_checks.broker_minutes, seen(made=[made(BROKER, 40)]), "refuted"),
    (fact_checks.cold_import, seen(reports={"a": report(TORCH, 4_000)}, torch_functions={TORCH}), "proven"),
    (fact_checks.cold_import, seen(reports={"a": report(TORCH, 11_000)}, torch_functions={TORCH}), "refuted"),
    (fact_checks.cold_import, seen(reports={"a": report("x", 400), "b": report(TORCH, None)}, torch_functions={TORCH}), "not covered"),
    (fact_checks.redis_certificates, seen(run=run()), "proven"),
    (fact_checks.redis_certificates, seen(run=run(outcome="failed")), "refuted"),
    (fact_checks.redis_certificates, seen(run=run(), on_aws=False), "not covered"),
    (fact_checks.distributed_maps, seen(run=run(records=records(*[(0, 5)] * 41))), "proven"),
    (fact_checks.distributed_maps, seen(run=run(records=records(*[(0, 5)] * 40, (5, 5)))), "refuted"),
    (fact_checks.distributed_maps, seen(run=run(records=records(*[(0, 5)] * 40))), "not covered"),
    (fact_checks.reports_joined, seen(run=run(records=records((0, 1))), reports={"0": report("x", None)}), "proven"),
    (fact_checks.reports_joined, seen(run=run(records=records((0, 1), (0, 1))), reports={"0": report("x", None)}), "refuted"),
    (fact_checks.experiment_goes_quickly, seen(minutes={"experiment deleted": 2.0}), "proven"),
    (fact_checks.experiment_goes_quickly, seen(minutes={"experiment deleted": 25.0}), "refuted"),
    (fact_checks.experiment_goes_quickly, seen(), "not covered"),
    (of_steps.resource_tag_on_delete, seen(expiry_state=""), "proven"),
    (of_steps.resource_tag_on_delete, seen(expiry_state="DELETE_FAILED"), "refuted"),
    (of_steps.resource_tag_on_delete, seen(expiry_state="", on_aws=False), "not covered"),
    (of_steps.resource_tag_on_delete, seen(alone=True), "not covered"),
    (of_steps.schedule_fires, seen(fired=True), "proven"),
    (of_steps.schedule_fires, seen(fired=False), "refuted"),
    (of_steps.schedule_fires, seen(), "not covered"),
    (of_steps.interfaces_after_role, seen(interfaces_left=3, network_deleted=True, minutes={"network deleted": 2}), "proven"),
    (of_steps.interfaces_after_role, seen(interfaces_left=3, minutes={"network deleted": 30}), "refuted"),
    (of_steps.interfaces_after_role, seen(interfaces_left=0, network_deleted=True, minutes={"network deleted": 2}), "not covered"),
    (of_steps.redis_update_completes, seen(updated=run(experiment={"workers": 3})), "proven"),
    (of_steps.redis_update_completes, seen(updated=run(experiment={"workers": 3}, outcome="failed")), "refuted"),
    (of_steps.redis_update_completes, seen(), "not covered"),
    (of_steps.failed_child_adopted, seen(redriven_alone=redriven("FAILED", "ChildFailed")), "proven"),
    (of_steps.failed_child_adopted, seen(redriven_alone=redriven("FAILED", "StepFailed")), "refuted"),
    (of_steps.failed_child_adopted, seen(redriven_alone=redriven("FAILED", "ChildFailed", adopted=False)), "refuted"),
    (of_steps.failed_child_adopted, seen(), "not covered"),
    (of_steps.redriven_child_adopted, seen(redriven=redriven("SUCCEEDED")), "proven"),
    (of_steps.redriven_child_adopted, seen(redriven=redriven("FAILED", "ChildFailed")), "refuted"),
    (of_steps.redriven_child_adopted, seen(), "not covered"),
    (of_steps.definitions_accepted, seen(state_machines={"crossover-verify-proof-run": "a", "other-run": "b"}), "proven"),
    (of_steps.definitions_accepted, seen(state_machines={"other-run": "b"}), "not covered"),
    (of_steps.first_zone, seen(zones={"us-east-1b"}), "proven"),
    (of_steps.first_zone, seen(zones={"us-east-1a", "us-east-1b"}), "refuted"),
    (of_steps.first_zone, seen(zones=set()), "not covered"),
    (of_steps.packages_at_boot, seen(made=[made(WAIT, 6)]), "proven"),
    (of_steps.packages_at_boot, seen(made=[]), "not covered"),
    (fact_checks.interfaces_linger, seen(interfaces_left=3, network_deleted=True, minutes={"network deleted": 28.0}), "proven"),
    (fact_checks.interfaces_linger, seen(interfaces_left=0, network_deleted=True, minutes={"network deleted": 2.0}), "refuted"),
    (fact_checks.interfaces_linger, seen(interfaces_left=3), "not covered"),
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
    (fact_checks.layer_size, seen(functions=[{"FunctionName": "a", "Layers": [1, 2], "State": "Active"}]), "proven"),
    (fact_checks.layer_size, seen(functions=[{"FunctionName": "a", "Layers": [1, 2], "State": "Failed"}]), "refuted"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "evidence", "verdict"), CASES)
def test_a_check_says_what_the_evidence_says(check: Check, evidence: Evidence, verdict: str) -> None:
    assert check(evidence).verdict == verdict


class Functions:
    def __init__(self, limit: int, *, accepts: bool) -> None:
        self.limit, self.accepts = limit, accepts

    def get_account_settings(self) -> Any:
        return {"AccountLimit": {"ConcurrentExecutions": self.limit}}

    def update_function_configuration(self, FunctionName: str, MemorySize: int) -> None:
        if not self.accepts:
            raise ClientError({"Error": {"Code": "InvalidParameterValueException", "Message": "<= 3008"}}, "Update")


def aws(client: Any) -> Any:
    return SimpleNamespace(client=lambda service, **arguments: client)


class Answers:
    """A client of which each call answers what is given for it, or raises it."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        def call(**arguments: Any) -> Any:
            if isinstance(self.answers[name], Exception):
                raise self.answers[name]
            return self.answers[name]

        return call


DENIED = ClientError({"Error": {"Code": "AccessDenied", "Message": ""}}, "Get")


@pytest.mark.parametrize(
    ("tags", "verdict"),
    [
        ({"TagSet": [{"Key": "aws:cloudformation:stack-id", "Value": "arn"}]}, "proven"),
        ({"TagSet": [{"Key": "project", "Value": "crossover"}]}, "refuted"),
        (DENIED, "refuted"),
    ],
)
def test_a_buckets_tags_are_looked_at(tags: Any, verdict: str) -> None:
    evidence = seen(aws=aws(Answers(get_bucket_tagging=tags)), bucket="b")
    assert of_steps.bucket_shows_stack(evidence).verdict == verdict


@pytest.mark.parametrize(("answer", "verdict"), [({"Quota": {"Value": 5.0}}, "proven"), (DENIED, "refuted")])
def test_the_quota_of_standard_instances_is_read(answer: Any, verdict: str) -> None:
    assert of_steps.standard_vcpus(seen(aws=aws(Answers(get_service_quota=answer)))).verdict == verdict


@pytest.mark.parametrize(("outcome", "verdict"), [("finished", "proven"), ("failed", "refuted")])
def test_queues_are_judged_by_a_run_over_the_broker(outcome: str, verdict: str) -> None:
    broker = Answers(
        list_brokers={"BrokerSummaries": [{"BrokerName": "crossover-verify-broker", "BrokerId": "b"}]},
        describe_broker={"EngineVersion": "4.2.0", "HostInstanceType": "mq.m7g.medium"},
    )
    assert of_steps.classic_queues(seen(aws=aws(broker), run=run(outcome=outcome))).verdict == verdict


@pytest.mark.parametrize(
    ("limit", "accepts", "verdict"), [(10, False, "proven"), (10, True, "refuted"), (1_000, True, "not covered")]
)
def test_a_new_accounts_memory_is_tried(limit: int, accepts: bool, verdict: str) -> None:
    functions = [{"FunctionName": "crossover-verify-proof-collect"}]
    evidence = seen(aws=aws(Functions(limit, accepts=accepts)), functions=functions)
    assert fact_checks.new_account_memory(evidence).verdict == verdict


@pytest.mark.parametrize(("change", "verdict"), [(0.0, "proven"), (0.01, "refuted")])
def test_prices_that_nobody_verified_are_looked_up(
    change: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = fact_checks.prices.load()
    monkeypatch.setattr(fact_checks.price_list, "current", lambda session, item, region: listed.of(item).usd + change)
    assert fact_checks.unverified_prices(seen()).verdict == verdict


# --- the label ---


def test_only_a_real_account_measures_aws() -> None:
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
    session = aws(SimpleNamespace(meta=SimpleNamespace(endpoint_url=url)))
    assert is_aws(session) is real


# --- the order of things ---


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the command does, without doing it."""
    steps: list[str] = []
    monkeypatch.setattr(verification, "refuse", lambda *arguments: steps.append("refuse"))
    monkeypatch.setattr(verification, "deploy_and_look", lambda *arguments: steps.append("deploy"))
    monkeypatch.setattr(verification, "destroy_and_look", lambda *arguments: steps.append("destroy"))
    return steps


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["verify-aws", *arguments])
    return caught.value.code if isinstance(caught.value.code, int) else 0


@mock_aws
def test_the_cost_is_said_and_nothing_done_unasked(
    done: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False))
    assert call() == 2
    shown = capsys.readouterr()
    assert "an hour), projected" in shown.out and "add --yes" in shown.err
    assert done == []


@mock_aws
@pytest.mark.parametrize(
    ("failure", "status", "word"),
    [(None, 0, None), (CrossoverError("no space"), 1, "no space"), (KeyboardInterrupt(), 130, "KeyboardInterrupt")],
)
def test_what_was_deployed_is_destroyed_and_written_down(
    failure: BaseException | None,
    status: int,
    word: str | None,
    done: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def deploy(evidence: Evidence, config: Path, out: Path, observed: dict[str, Observed]) -> None:
        done.append("deploy")
        observed["root-volume"] = judged(True, "as expected")
        if failure:
            raise failure

    monkeypatch.setattr(verification, "deploy_and_look", deploy)
    assert call("--yes", "--out", str(tmp_path)) == status
    assert done == ["refuse", "deploy", "destroy"]
    written = json.loads((tmp_path / "verified-aws.json").read_text())
    assert (written["failure"], len(written["facts"])) == (word, len(unproven.read()))
    verdicts = {fact["id"]: fact["verdict"] for fact in written["facts"]}
    assert verdicts["root-volume"] == "proven" and verdicts["cold-import"] == "not covered"
    assert {fact["label"] for fact in written["facts"]} == {written["label"]}


@mock_aws
def test_an_interrupted_destruction_says_how_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("crossover.account.removal.destroying.delete_experiment", interrupted)
    with pytest.raises(CrossoverError, match=r"crossover destroy c\.yaml --shared --verify goes on"):
        verification.destroy_and_look(seen(), Path("c.yaml"), {})


@mock_aws
def test_an_experiment_that_stands_is_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3

    template = json.dumps({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}})
    tags = [{"Key": "project", "Value": PROOF.project}]
    boto3.client("cloudformation").create_stack(StackName="crossover-verify-proof", TemplateBody=template, Tags=tags)
    with pytest.raises(
        CrossoverError, match=r"stands already, and verify-aws destroys what it looks at; crossover destroy mine"
    ):
        verification.refuse(boto3.Session(), Path("mine.yaml"), PROOF)
    monkeypatch.setattr(
        "crossover.account.deployment.deploying.refuse_what_cannot_work", lambda *arguments, **named: None
    )
    verification.refuse(boto3.Session(), verification.PROOF, PROOF)  # what an interrupted verification left is taken up
