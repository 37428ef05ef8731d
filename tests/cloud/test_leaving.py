"""Lambda's network interfaces when stacks are deleted: functions leave the network first, while their roles are there.

The cloud on one machine has the worse of AWS's two ways here: CloudFormation may not describe interfaces, and deletes roles at once.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crossover.errors import UserError
from crossover.experiment import Experiment
from crossover.local import cloud as assemblies
from crossover.running import deploying, removal
from stacks.synthesis import synthesize
from tests.cloud import made
from tests.moto_patches import AccountCloud

NETWORK, STACK = "crossover-network", "crossover-tiny"
PEERS = Experiment(name="tiny", architecture="p2p_instance")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> assemblies.Stack:
    """Return the shared network's stack from the assembly of the peers' experiment."""
    found, _ = assemblies.read_assembly(synthesize(PEERS, tmp_path_factory.mktemp("assembly")))
    return next(each for each in found if each.name == NETWORK)


@pytest.fixture(scope="module")
def cloud(cloud: AccountCloud) -> AccountCloud:
    """Return the cloud without the permission to describe network interfaces, so that CloudFormation does not wait for them."""
    cloud.account.interfaces_are_awaited = False
    return cloud


@pytest.fixture
def session(cloud: AccountCloud, network: assemblies.Stack) -> Iterator[Any]:
    """Yield a session with an account that has the network's stack and an experiment's stack of one function in that network."""
    cloud._create(network)
    session = cloud.session()
    function = {
        "Code": {"ZipFile": "def handler(event, context): pass"},
        "FunctionName": f"{STACK}-step",
        "Handler": "index.handler",
        "Role": {"Fn::GetAtt": ["Role", "Arn"]},
        "Runtime": "python3.13",
        "VpcConfig": {
            "SubnetIds": [published(session, "functions_subnet")],
            "SecurityGroupIds": [published(session, "functions_group")],
        },
    }
    resources = {
        "Role": {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": {}}},
        "Function": {"Type": "AWS::Lambda::Function", "Properties": function},
    }
    made.ours(session, "crossover", "tiny", resources)
    yield session
    for each in interfaces(session):
        session.client("ec2").delete_network_interface(NetworkInterfaceId=each)
    made.clear(cloud)


def published(session: Any, name: str) -> str:
    """Return a value that the shared network's stack published in a parameter."""
    path = f"/crossover/crossover/network/{name}"
    return str(session.client("ssm").get_parameter(Name=path)["Parameter"]["Value"])


def interfaces(session: Any) -> list[str]:
    """Return the ids of the network interfaces that functions hold in the shared network."""
    listed = session.client("ec2").describe_network_interfaces()["NetworkInterfaces"]
    return [
        each["NetworkInterfaceId"]
        for each in listed
        if each["Description"] == f"{removal.INTERFACE_DESCRIPTION}-shared"
    ]


def delete(session: Any, name: str) -> str:
    """Delete the stack and return its state afterwards, "" if it is gone."""
    client = session.client("cloudformation")
    client.delete_stack(StackName=name)
    return {each["StackName"]: each["StackStatus"] for each in client.describe_stacks()["Stacks"]}.get(name, "")


@pytest.mark.slow
def test_an_interface_outlives_the_role_of_the_last_function_that_had_it(session: Any) -> None:
    """Check that plain deletions leave an interface and a network that cannot be deleted, which the command has to prevent."""
    assert delete(session, STACK) == ""
    assert delete(session, NETWORK) == "DELETE_FAILED" and len(interfaces(session)) == 1


def test_the_keeper_has_the_interface_when_an_experiment_goes(session: Any) -> None:
    """Check that an experiment's interface stays until the functions of the network's own stack are taken out of the network."""
    (before,) = interfaces(session)
    assert delete(session, STACK) == ""
    assert interfaces(session) == [before]
    removal.release_functions(session, NETWORK, lambda line: None)
    assert interfaces(session) == []


@pytest.mark.slow
def test_functions_leave_before_their_stack_is_deleted(session: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that the functions are taken out of the network before their stack is deleted, so that no interface stays."""
    removal.delete_experiment(session, PEERS)
    removal.delete_shared(session, PEERS)
    said = capsys.readouterr().out
    for function, stack in ((f"{STACK}-step", STACK), (f"{NETWORK}-keeper", NETWORK)):
        assert said.index(f"taking function {function} out") < said.index(f"deleting stack {stack}")
    assert interfaces(session) == []


@pytest.mark.slow
def test_functions_that_an_interrupted_deletion_took_out_come_back(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that functions which an interrupted deletion took out of the network are noticed, and put back by a deployment.

    CloudFormation changes nothing where the template is the same, and every run would wait for databases out of its reach.
    """
    client, function = session.client("lambda"), f"{STACK}-step"
    before = client.get_function_configuration(FunctionName=function)["VpcConfig"]
    removal.release_functions(session, STACK, lambda line: None)
    assert removal.find_functions_outside(session, STACK) == [function]
    for part in ("_compare_functions", "_compare_instances", "_compare_broker", "_compare_parameters"):
        monkeypatch.setattr(deploying, part, lambda *_: [])
    with pytest.raises(UserError, match=rf"function {function}: not in the network; crossover deploy x.yaml brings"):
        deploying.check_unchanged(session, PEERS, config=Path("x.yaml"))
    told: list[str] = []
    removal.return_functions(session, STACK, "crossover", told.append)
    assert told == [f"putting function {function} back into the network, where an interrupted deletion took it out"]
    after = client.get_function_configuration(FunctionName=function)["VpcConfig"]
    assert (after["SubnetIds"], after["SecurityGroupIds"]) == (before["SubnetIds"], before["SecurityGroupIds"])
    deploying.check_unchanged(session, PEERS, config=Path("x.yaml"))
    removal.return_functions(session, STACK, "crossover", told.append)
    removal.return_functions(session, "crossover-gone", "crossover", told.append)
    assert len(told) == 1


@pytest.mark.slow
def test_only_functions_of_the_stack_leave(session: Any) -> None:
    """Check that only the stack's functions are taken out of the network, not others with similar names."""
    client = session.client("lambda")
    there = client.get_function_configuration(FunctionName=f"{STACK}-step")
    inside = {key: there["VpcConfig"][key] for key in ("SubnetIds", "SecurityGroupIds")}
    code = {"ZipFile": b""}
    client.create_function(
        FunctionName=f"{STACK}-foreign",
        Runtime="python3.13",
        Role=there["Role"],
        Handler="index.handler",
        Code=code,
        VpcConfig=inside,
    )
    told: list[str] = []
    removal.release_functions(session, STACK, told.append)
    assert told == [f"taking function {STACK}-step out of the network"]
    foreign = client.get_function_configuration(FunctionName=f"{STACK}-foreign")["VpcConfig"]
    assert foreign["SubnetIds"] == inside["SubnetIds"]
    client.delete_function(FunctionName=f"{STACK}-foreign")
    removal.release_functions(session, "crossover-gone", told.append)
    assert len(told) == 1
