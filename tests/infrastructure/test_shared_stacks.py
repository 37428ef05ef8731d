"""Network and broker are shared by parameters, deleted only when nobody leans on them, and the broker is as Amazon MQ wants it."""

import json
import re

import pytest

from crossover.workflow.infrastructure import shared_stacks
from tests.infrastructure.assemblies import Assembly, actions_of, flat, only, resources
from tests.infrastructure.cases import CASES, Case
from tests.infrastructure.conftest import Assembled


def test_an_experiment_brings_network_and_broker_along(assembly: Assembly) -> None:
    """Check the stacks in an experiment's assembly and their dependencies."""
    artifacts = assembly.manifest["artifacts"]
    stacks = {name for name, a in artifacts.items() if a["type"] == "aws:cloudformation:stack"}
    assert stacks == {"crossover-network", "crossover-broker", "crossover-spirt"}
    assert {"crossover-network", "crossover-broker"} <= set(artifacts["crossover-spirt"]["dependencies"])
    assert "crossover-network" in artifacts["crossover-broker"]["dependencies"]
    assert not {"crossover-spirt", "crossover-broker"} & set(artifacts["crossover-network"].get("dependencies", []))


@pytest.mark.parametrize("name", ["all-reduce over s3", "scatter-reduce over s3"])
def test_what_exchanges_through_the_bucket_stands_alone(name: str, assembled: Assembled) -> None:
    """Check that an experiment over S3 has one stack, without anything billed by the hour or looked up in another stack."""
    made, config = assembled(name), Case.of(name).config
    assert set(made.templates) == {f"crossover-{config}"}
    found = made.experiment["Resources"].values()
    services = {each["Type"].split("::")[1] for each in found if each["Type"].startswith("AWS::")}
    assert services <= {"CDK", "IAM", "Lambda", "Logs", "S3", "SQS", "SSM", "Scheduler", "StepFunctions"}
    assert not any("VpcConfig" in each.get("Properties", {}) for each in found)
    assert "/crossover/crossover/network/" not in json.dumps(made.experiment)
    for step in made.steps():
        assert "ec2:CreateNetworkInterface" not in actions_of(made.experiment, made.function(step)["Role"])


def test_every_other_needs_the_network_and_who_sends_messages_the_broker() -> None:
    """Check which cases need no shared stack, which the network alone, and so which also the broker."""
    found = {name: shared_stacks(Case.of(name).experiment) for name in CASES}
    alone = {name for name, shared in found.items() if not shared}
    assert alone == {"all-reduce over s3", "scatter-reduce over s3", "single"}
    without_broker = {name for name, shared in found.items() if shared == ("network",)}
    fleets = {"gpu", "gpu on spot", "gpu distributed", "single on an instance", "single on a gpu"}
    assert without_broker == {"all-reduce", "scatter-reduce"} | fleets


def test_what_is_exported_is_one_word_of_each_shared_stack_that_never_changes(assembly: Assembly) -> None:
    """Check that each shared stack exports one constant, which the stacks that use it import.

    Any other export would be dropped by the deployment of a second architecture while the first imports it.
    """
    exported = {
        output["Export"]["Name"]: output["Value"]
        for template in assembly.templates.values()
        for output in template.get("Outputs", {}).values()
        if "Export" in output
    }
    assert exported == {"crossover-network": "network", "crossover-broker": "broker"}
    imports = {
        name: set(re.findall(r'"Fn::ImportValue": "([^"]+)"', json.dumps(t))) for name, t in assembly.templates.items()
    }
    assert imports.pop("crossover-network") == set()
    assert imports == {
        "crossover-broker": {"crossover-network"},
        "crossover-spirt": {"crossover-network", "crossover-broker"},
    }


def test_two_experiments_mean_the_same_shared_stacks(assembly: Assembly, fetching: Assembly, large: Assembly) -> None:
    """Check that different experiments give the same templates of network and broker."""
    for other in (fetching, large):
        assert other.network == assembly.network
        assert other.broker == assembly.broker


def test_what_is_looked_up_is_published_earlier(assembly: Assembly) -> None:
    """Check that each parameter that a stack reads is written by a stack deployed before it, and that none is written twice."""
    published: dict[str, str] = {}
    for stack in ("crossover-network", "crossover-broker", "crossover-spirt"):
        template = assembly.templates[stack]
        for parameter in template["Parameters"].values():
            path = parameter.get("Default", "")
            if path.startswith("/crossover/"):
                assert parameter["Type"] == "AWS::SSM::Parameter::Value<String>"
                assert path in published, f"{stack} reads {path}, which nobody before it writes"
        for written in resources(template, "AWS::SSM::Parameter").values():
            assert written["Name"] not in published
            published[written["Name"]] = stack


def test_the_runner_finds_the_experiment_by_name_alone(assembly: Assembly) -> None:
    """Check the parameters that an experiment's stack publishes for the runner, and its outputs."""
    parameters = resources(assembly.experiment, "AWS::SSM::Parameter").values()
    facts = {p["Name"].removeprefix("/crossover/crossover/spirt/"): flat(p["Value"]) for p in parameters}
    assert {"bucket", "run_machine", "redis", "redis_secret", "functions", "version", "shape", "machines"} <= set(facts)
    assert facts["run_machine"].endswith(":stateMachine:crossover-spirt-run")
    assert facts["redis"].count("rediss://") == 4
    assert all(p["Type"] == "String" for p in parameters)
    assert json.loads(facts["shape"])["workers"] == 4
    outputs = {name: flat(each["Value"]) for name, each in assembly.experiment["Outputs"].items()}
    told = {"Bucket": "bucket", "RunMachine": "run_machine", "RedisHosts": "redis_hosts"}
    assert outputs == {output: facts[fact] for output, fact in told.items()}  # the same, for people


def test_the_broker(assembly: Assembly) -> None:
    """Check the broker: engine, version, type, private, without configuration object and logs."""
    broker = only(assembly.broker, "AWS::AmazonMQ::Broker")
    assert broker["EngineType"] == "RABBITMQ"
    assert broker["EngineVersion"] == "4.2"
    assert broker["HostInstanceType"] == "mq.m7g.medium"
    assert broker["DeploymentMode"] == "SINGLE_INSTANCE"
    assert broker["PubliclyAccessible"] is False
    assert len(broker["SubnetIds"]) == len(broker["SecurityGroups"]) == 1
    assert "Configuration" not in broker  # MQ configurations cannot be deleted
    assert "AWS::AmazonMQ::Configuration" not in {r["Type"] for r in assembly.broker["Resources"].values()}
    assert "Logs" not in broker  # log groups of a broker outlive it


def test_the_brokers_login(assembly: Assembly) -> None:
    """Check that the broker's login is generated by Secrets Manager in a form that Amazon MQ accepts."""
    broker, secret = (
        only(assembly.broker, "AWS::AmazonMQ::Broker"),
        only(assembly.broker, "AWS::SecretsManager::Secret"),
    )
    (user,) = broker["Users"]
    assert user["Username"] != "guest"
    assert "{{resolve:secretsmanager:" in flat(user["Password"])
    generate = secret["GenerateSecretString"]
    assert generate["ExcludePunctuation"] is True  # Amazon MQ refuses , : =
    assert json.loads(generate["SecretStringTemplate"]) == {"username": user["Username"]}
    assert generate["GenerateStringKey"] == "password"
    assert generate["PasswordLength"] >= 12
