"""What the double of an account knows of stacks: updates by CloudFormation's rules, deletions that come while a stack is made."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from crossover.local import cloud
from tests.moto_patches import AccountCloud


@pytest.mark.slow
def test_a_stack_that_is_deleted_while_it_is_made_leaves_nothing(
    account_cloud: AccountCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a stack deleted during its creation leaves no broker, as after Ctrl-C, whose request is still being answered."""
    starts, deleted, stopped = threading.Event(), threading.Event(), list[str]()

    class Broker:
        """A broker whose start lasts until the deletion of its stack was answered, two seconds at most."""

        url = "amqp://127.0.0.1:1"

        def __init__(self, folder: Path, **login: str) -> None:
            """Wait until the deletion was answered, two seconds at most."""
            starts.set()
            deleted.wait(2.0)  # where the deletion does not wait for us, it is through by then

        def stop(self) -> None:
            """Record that the broker was stopped."""
            stopped.append(self.url)

    monkeypatch.setattr(cloud, "RabbitServer", Broker)
    user = {"Username": "ada", "Password": "correct-horse-battery"}
    broker = {
        "BrokerName": "half-made",
        "DeploymentMode": "SINGLE_INSTANCE",
        "EngineType": "RABBITMQ",
        "HostInstanceType": "mq.m7g.medium",
        "Users": [user],
    }
    template = {"Resources": {"Broker": {"Type": "AWS::AmazonMQ::Broker", "Properties": broker}}}
    session = account_cloud.session()
    stacks, brokers = session.client("cloudformation"), session.client("mq")
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(stacks.create_stack, StackName="half-made", TemplateBody=json.dumps(template))
        assert starts.wait(60)
        session.client("cloudformation").delete_stack(StackName="half-made")
        deleted.set()
        made.result(60)
    assert brokers.list_brokers()["BrokerSummaries"] == []
    assert stopped == [Broker.url]


@pytest.mark.parametrize(
    "question", ["list_stack_resources", "describe_stack_resources", "describe_stacks", "describe_stack_events"]
)
def test_who_asks_for_a_stack_that_is_made_makes_nothing_twice(
    question: str, account_cloud: AccountCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a question about a stack during its creation creates no second broker, as moto would."""
    starts, asked, made = threading.Event(), threading.Event(), list[str]()

    class Broker:
        """A broker whose first start lasts until the stack is asked for again."""

        url = "amqp://127.0.0.1:1"

        def __init__(self, folder: Path, **login: str) -> None:
            """Note the broker; wait in the first one until the stack is asked for."""
            made.append(folder.name)
            if len(made) == 1:
                starts.set()
                assert asked.wait(60)

        def stop(self) -> None:
            """Do nothing: no process was started."""

    monkeypatch.setattr("crossover.local.cloud.RabbitServer", Broker)
    broker = {
        "BrokerName": "asked-for",
        "DeploymentMode": "SINGLE_INSTANCE",
        "EngineType": "RABBITMQ",
        "HostInstanceType": "mq.m7g.medium",
        "Users": [{"Username": "ada", "Password": "correct-horse-battery"}],
    }
    template = {
        "Resources": {"Broker": {"Type": "AWS::AmazonMQ::Broker", "Properties": broker}},
        "Outputs": {"Id": {"Value": {"Ref": "Broker"}}},
    }
    session = account_cloud.session()
    stacks, asking, brokers = (session.client(name) for name in ("cloudformation", "cloudformation", "mq"))
    with ThreadPoolExecutor(2) as pool:
        creation = pool.submit(stacks.create_stack, StackName="asked-for", TemplateBody=json.dumps(template))
        assert starts.wait(60)
        try:
            answer = pool.submit(getattr(asking, question), StackName="asked-for")
            answer.result(20)
        finally:
            asked.set()
        creation.result(60)
    assert made == ["asked-for"]
    assert len(brokers.list_brokers()["BrokerSummaries"]) == 1
    stacks.delete_stack(StackName="asked-for")
    assert brokers.list_brokers()["BrokerSummaries"] == []


def test_an_update_keeps_the_values_that_stood_defaults_too(account_cloud: AccountCloud) -> None:
    """Check that UsePreviousValue keeps a parameter's value in an update, given or by default."""
    client = account_cloud.session().client("cloudformation")
    template: dict[str, Any] = {
        "Parameters": {name: {"Type": "String", "Default": "default"} for name in ("Given", "Left")},
        "Resources": {
            "Told": {
                "Type": "AWS::SSM::Parameter",
                "Properties": {"Type": "String", "Value": {"Fn::Sub": "${Given} ${Left} first"}},
            }
        },
        "Outputs": {"Told": {"Value": {"Ref": "Told"}}},
    }
    name = "told"
    given = [{"ParameterKey": "Given", "ParameterValue": "given"}]
    client.create_stack(StackName=name, TemplateBody=json.dumps(template), Parameters=given)
    template["Resources"]["Told"]["Properties"]["Value"]["Fn::Sub"] = "${Given} ${Left} second"
    previous = [{"ParameterKey": key, "UsePreviousValue": True} for key in ("Given", "Left")]
    client.update_stack(StackName=name, TemplateBody=json.dumps(template), Parameters=previous)
    [told] = client.describe_stacks(StackName=name)["Stacks"][0]["Outputs"]
    stored = account_cloud.session().client("ssm").get_parameter(Name=told["OutputValue"])["Parameter"]["Value"]
    assert stored == "given default second"
    client.delete_stack(StackName=name)
