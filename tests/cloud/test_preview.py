"""What a deployment would change is told before it does, by AWS's own rules; a run that is under way keeps what it works on."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from crossover.errors import UserError
from crossover.experiment import Experiment
from crossover.local.cloud import LocalCloud
from crossover.running import deploying
from tests.cloud.made import clear

TINY = Experiment(name="tiny", architecture="all_reduce")
STACK, NETWORK = "crossover-tiny", "crossover-network"
Resources = dict[str, dict[str, Any]]

HOST = {"Type": "AWS::EC2::Instance", "Properties": {"ImageId": "ami-12c6146b", "InstanceType": "m7g.large"}}
TOPIC = {"Type": "AWS::SNS::Topic", "Properties": {"DisplayName": "a"}}
BEFORE: Resources = {"Host": HOST, "Topic": TOPIC}
OTHER_TOPIC: Resources = {"Host": HOST, "Topic": {**TOPIC, "Properties": {"DisplayName": "b"}}}
OTHER_IMAGE: Resources = {
    "Host": {**HOST, "Properties": {**HOST["Properties"], "ImageId": "ami-03cf127a"}},  # type: ignore[dict-item]
    "Topic": TOPIC,
}


@pytest.fixture
def session(cloud: LocalCloud) -> Iterator[Any]:
    """Yield a session of the cloud; its stacks are removed afterwards."""
    yield cloud.session()
    clear(cloud)


def deploy(session: Any, name: str, resources: Resources) -> None:
    """Create a stack of these resources."""
    session.client("cloudformation").create_stack(StackName=name, TemplateBody=json.dumps({"Resources": resources}))


def assembly(folder: Path, **stacks: Resources) -> Path:
    """Write an assembly of the given stacks into the folder and return it; every stack but `network` depends on the network's."""
    artifacts: dict[str, Any] = {}
    for name, resources in stacks.items():
        full, file = f"crossover-{name}", f"{name}.json"
        (folder / file).write_text(json.dumps({"Resources": resources}))
        artifacts[full] = {
            "type": "aws:cloudformation:stack",
            "properties": {"templateFile": file},
            "dependencies": [] if name == "network" else [NETWORK],
        }
    (folder / "manifest.json").write_text(json.dumps({"artifacts": artifacts}))
    return folder


def shown(session: Any, made: Path, differ: deploying.Differ) -> list[str]:
    """Return the lines that the preview of a deployment prints. `differ`: program that compares templates."""
    told: list[str] = []
    deploying.show_changes(session, TINY, made, differ=differ, tell=told.append)
    return told


@pytest.fixture(scope="module")
def differ(tmp_path_factory: pytest.TempPathFactory) -> deploying.Differ:
    """Return the real program that compares templates. Skips the test if its package is not installed (`make node_modules`)."""
    real = partial(deploying._run_diff_program, tmp_path_factory.mktemp("node"))
    if real("[]") is None:
        pytest.skip(f"{deploying.DIFF_PACKAGE} cannot be had here")
    return real


def nobody(pairs: str) -> str | None:
    """Fail: no program may be asked for differences."""
    raise AssertionError("a program was asked where no template differs")


def offline(pairs: str) -> str | None:
    """Return None, as if no program could compare the templates."""
    return None


@pytest.mark.slow
def test_a_first_deployment_is_summed_up(session: Any, tmp_path: Path) -> None:
    """Check that the preview of a new stack counts its resources without comparing templates."""
    told = shown(session, assembly(tmp_path, tiny=BEFORE, network={"Topic": TOPIC}), nobody)
    assert told == [
        "crossover-network: new, 1 resources (1 SNS::Topic, ...)",
        "crossover-tiny: new, 2 resources (1 EC2::Instance, 1 SNS::Topic, ...)",
    ]


def test_no_change_says_so(session: Any, tmp_path: Path) -> None:
    """Check that the preview of an unchanged stack says so."""
    deploy(session, STACK, BEFORE)
    assert shown(session, assembly(tmp_path, tiny=BEFORE), nobody) == ["crossover-tiny: no change but its time to live"]


@pytest.mark.slow
def test_what_is_replaced_comes_first(session: Any, tmp_path: Path, differ: deploying.Differ) -> None:
    """Check that the preview lists replacements before other changes."""
    deploy(session, STACK, BEFORE)
    wanted = {**OTHER_IMAGE, "Topic": OTHER_TOPIC["Topic"], "Queue": {"Type": "AWS::SQS::Queue", "Properties": {}}}
    told = shown(session, assembly(tmp_path, tiny=wanted), differ)
    assert told[:2] == ["crossover-tiny: 3 changes", "  replace AWS::EC2::Instance Host (ImageId)"]
    assert sorted(told[2:]) == ["  add AWS::SQS::Queue Queue", "  change AWS::SNS::Topic Topic (DisplayName)"]


@pytest.fixture
def run(session: Any, cloud: LocalCloud) -> Iterator[str]:
    """Start a run of the experiment `tiny`, and yield its id while it is under way."""
    states, ssm, path = session.client("stepfunctions"), session.client("ssm"), "/crossover/crossover/tiny"
    waiting = {"StartAt": "Wait", "States": {"Wait": {"Type": "Wait", "Seconds": 3_600, "End": True}}}
    role = "arn:aws:iam::123456789012:role/any"
    arn = states.create_state_machine(name=f"{STACK}-run", definition=json.dumps(waiting), roleArn=role)[
        "stateMachineArn"
    ]
    facts = {"bucket": "b", "shape": "{}", "run_machine": arn}
    for name, value in facts.items():
        ssm.put_parameter(Name=f"{path}/{name}", Value=value, Type="String")
    execution = states.start_execution(stateMachineArn=arn, name="r1-0")["executionArn"]
    yield "r1"
    states.stop_execution(executionArn=execution)
    states.delete_state_machine(stateMachineArn=arn)
    ssm.delete_parameters(Names=[f"{path}/{name}" for name in facts])


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [OTHER_IMAGE, {"Topic": TOPIC}], ids=["replaced", "removed"])
def test_a_run_under_way_keeps_its_hosts(
    wanted: Resources, session: Any, tmp_path: Path, differ: deploying.Differ, run: str
) -> None:
    """Check that a deployment which would replace or remove a host is refused during a run of that experiment."""
    assert deploying.find_runs_under_way(session, "crossover") == {STACK: run}
    deploy(session, STACK, BEFORE)
    words = r"crossover-tiny: run r1 of crossover-tiny is under way, and this deployment would (replace|remove) AWS::EC2::Instance Host"
    with pytest.raises(UserError, match=words):
        shown(session, assembly(tmp_path, tiny=wanted), differ)


@pytest.mark.slow
def test_a_run_under_way_keeps_the_shared_stacks(
    session: Any, tmp_path: Path, differ: deploying.Differ, run: str
) -> None:
    """Check that the deployment of another experiment is refused if it would replace a shared host during a run."""
    deploy(session, NETWORK, BEFORE)
    with pytest.raises(
        UserError, match=r"crossover-network: run r1 of crossover-tiny is under way.* replace AWS::EC2::Instance Host"
    ):
        shown(session, assembly(tmp_path, network=OTHER_IMAGE), differ)
    deploy(session, "crossover-other", BEFORE)  # which no run works on
    assert len(shown(session, assembly(tmp_path, other=OTHER_IMAGE), differ)) == 2


@pytest.mark.slow
def test_a_run_under_way_does_not_mind_other_changes(
    session: Any, tmp_path: Path, differ: deploying.Differ, run: str
) -> None:
    """Check that a deployment which only changes a topic is allowed during a run."""
    deploy(session, STACK, BEFORE)
    assert len(shown(session, assembly(tmp_path, tiny=OTHER_TOPIC), differ)) == 2


def test_without_its_package_it_says_so_and_spares_a_run(session: Any, tmp_path: Path) -> None:
    """Check that the preview without its package says that it cannot show what is replaced."""
    deploy(session, STACK, BEFORE)
    (told,) = shown(session, assembly(tmp_path, tiny=OTHER_TOPIC), offline)
    assert "the preview cannot show what they replace, because @aws-cdk/cloudformation-diff is not installed" in told


@pytest.mark.slow
def test_without_its_package_nothing_is_deployed_under_a_run(session: Any, tmp_path: Path, run: str) -> None:
    """Check that a deployment with changes is refused during a run if the preview's package is missing."""
    deploy(session, STACK, BEFORE)
    with pytest.raises(
        UserError, match="run r1 of crossover-tiny is under way, and this deployment would change resources"
    ):
        shown(session, assembly(tmp_path, tiny=OTHER_TOPIC), offline)
    assert shown(session, assembly(tmp_path, tiny=BEFORE), offline) == [
        "crossover-tiny: no change but its time to live"
    ]
