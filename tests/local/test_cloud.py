"""The whole: a cloud assembly deployed with real servers behind it, run, destroyed, and nothing left of it, however it ends."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
import redis

from crossover.errors import ConfigError, RunFailed
from crossover.local import servers, watchdog
from crossover.local.cloud import LocalCloud
from tests.local.parts import BUCKET, HANDLERS, ROLE, eventually, function, write_assembly, zipped

LOGIN = {
    "SecretStringTemplate": '{"username": "crossover"}',
    "GenerateStringKey": "password",
    "ExcludeCharacters": ",:=",
}


def shared_stack() -> dict[str, Any]:
    """Return the template of a broker with a generated login, which publishes what the experiment's stack reads."""
    field = {"Fn::Sub": "{{resolve:secretsmanager:${Login}:SecretString:FIELD::}}"}
    user = {"Username": "crossover", "Password": {"Fn::Sub": field["Fn::Sub"].replace("FIELD", "password")}}
    broker = {
        "BrokerName": "test-broker",
        "DeploymentMode": "SINGLE_INSTANCE",
        "EngineType": "RABBITMQ",
        "EngineVersion": "4.2",
        "HostInstanceType": "mq.m7g.medium",
        "PubliclyAccessible": False,
        "Users": [user],
    }
    endpoint = {"Fn::Select": [0, {"Fn::GetAtt": ["Broker", "AmqpEndpoints"]}]}
    return {
        "Resources": {
            "Login": {"Type": "AWS::SecretsManager::Secret", "Properties": {"GenerateSecretString": LOGIN}},
            "Broker": {"Type": "AWS::AmazonMQ::Broker", "Properties": broker},
            "Endpoint": parameter("/shared/endpoint", endpoint),
            "LoginArn": parameter("/shared/login", {"Ref": "Login"}),
        }
    }


def parameter(name: str, value: Any) -> dict[str, Any]:
    """Return the template's resource for one SSM parameter."""
    return {"Type": "AWS::SSM::Parameter", "Properties": {"Name": name, "Type": "String", "Value": value}}


def experiment_stack() -> dict[str, Any]:
    """Return the template of a Redis host, a function that is told the host's address, a layer, and a state machine that invokes the
    function.
    """
    boot = {"Fn::Sub": "#!/bin/sh\nSECRET='${Password}'\nSIGNAL='${Ready}'\n"}
    host = {
        "ImageId": "ami-03cf127a",
        "InstanceType": "m7g.large",
        "Tags": [{"Key": "crossover:role", "Value": "redis"}, {"Key": "crossover:rank", "Value": "0"}],
        "UserData": {"Fn::Base64": boot},
    }
    variables = {
        "CROSSOVER_REDIS": {"Fn::Sub": "rediss://${Host.PrivateIp}:6379"},
        "CROSSOVER_BROKER": {"Ref": "Endpoint"},
        "CROSSOVER_REDIS_SECRET": {"Ref": "Password"},
    }
    machine = {"StartAt": "only", "States": {"only": {"Type": "Task", "Resource": "${step_environment}", "End": True}}}
    return {
        "Parameters": {
            "Endpoint": {"Type": "AWS::SSM::Parameter::Value<String>", "Default": "/shared/endpoint"},
            "BootstrapVersion": {
                "Type": "AWS::SSM::Parameter::Value<String>",
                "Default": "/cdk-bootstrap/hnb659fds/version",
            },
        },
        "Resources": {
            "Password": {
                "Type": "AWS::SecretsManager::Secret",
                "Properties": {"GenerateSecretString": {"PasswordLength": 30}},
            },
            "Ready": {"Type": "AWS::CloudFormation::WaitConditionHandle"},
            "Wait": {
                "Type": "AWS::CloudFormation::WaitCondition",
                "Properties": {"Handle": {"Ref": "Ready"}, "Timeout": "600"},
            },
            "Host": {"Type": "AWS::EC2::Instance", "Properties": host},
            "Layer": {
                "Type": "AWS::Lambda::LayerVersion",
                "Properties": {"LayerName": "torch", "Content": {"S3Bucket": BUCKET, "S3Key": "layer.zip"}},
            },
            "Function": function("environment", Environment={"Variables": variables}, Layers=[{"Ref": "Layer"}]),
            "Folder": function("echo", key="folder.zip"),
            "Run": {
                "Type": "AWS::StepFunctions::StateMachine",
                "Properties": {
                    "StateMachineName": "test-run",
                    "RoleArn": ROLE,
                    "DefinitionString": json.dumps(machine),
                    "DefinitionSubstitutions": {"step_environment": {"Fn::GetAtt": ["Function", "Arn"]}},
                },
            },
            "RunArn": parameter("/test/run", {"Ref": "Run"}),
        },
    }


@pytest.fixture(scope="module")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an assembly with a shared stack, an experiment's stack, and the code as a zip file and as a folder."""
    folder = tmp_path_factory.mktemp("assembly")
    code = folder / "code"
    code.mkdir()
    (code / "handlers.py").write_text(HANDLERS)
    files: dict[str, bytes | Path] = {
        "code.zip": zipped(handlers=HANDLERS),
        "folder.zip": Path("code"),
        "layer.zip": b"not even a zip",
    }
    return write_assembly(folder, {"shared": shared_stack(), "experiment": experiment_stack()}, files)


@pytest.fixture(scope="module")
def deployed(cloud: LocalCloud, assembly: Path) -> Iterator[LocalCloud]:
    """Yield the cloud with the assembly deployed, then destroy it and check that no server, function or stack is left. Skips if the
    servers' programs are missing.
    """
    if not (shutil.which("redis-server") and shutil.which("rabbitmq-server")):
        pytest.skip("redis-server and rabbitmq-server are needed")
    cloud.deploy(assembly)
    yield cloud
    cloud.destroy()
    assert not cloud.servers.redis
    assert not cloud.servers.brokers
    assert not [name for name in cloud.lambdas._idle if name.startswith("crossover-test-")]
    for service, operation, key in [
        ("cloudformation", "describe_stacks", "Stacks"),
        ("lambda", "list_functions", "Functions"),
        ("lambda", "list_layers", "Layers"),
        ("stepfunctions", "list_state_machines", "stateMachines"),
        ("secretsmanager", "list_secrets", "SecretList"),
    ]:
        assert getattr(cloud.session().client(service), operation)()[key] == []


def seen_by_the_function(cloud: LocalCloud) -> dict[str, str]:
    """Return the function's environment variables, which it answers with when the state machine invokes it."""
    states = cloud.session().client("stepfunctions")
    arn = cloud.session().client("ssm").get_parameter(Name="/test/run")["Parameter"]["Value"]
    execution = states.start_execution(stateMachineArn=arn, input="{}")["executionArn"]
    eventually(lambda: states.describe_execution(executionArn=execution)["status"] != "RUNNING", what="ended")
    answer: dict[str, str] = json.loads(states.describe_execution(executionArn=execution)["output"])
    return answer


@pytest.mark.slow
def test_the_function_reaches_redis_with_the_secrets_password(deployed: LocalCloud) -> None:
    """Connect to Redis with the address and the secret that the function sees: the tensor module answers, and a client without the password
    is refused.
    """
    seen = seen_by_the_function(deployed)
    secrets = deployed.session().client("secretsmanager")
    password = secrets.get_secret_value(SecretId=seen["CROSSOVER_REDIS_SECRET"])["SecretString"]
    client = redis.Redis.from_url(seen["CROSSOVER_REDIS"], password=password)
    assert seen["CROSSOVER_REDIS"].startswith("redis://127.0.0.1:")
    assert client.execute_command("TENSOR.STATS")  # type: ignore[no-untyped-call]
    client.close()
    stranger = redis.Redis.from_url(seen["CROSSOVER_REDIS"])
    with pytest.raises(redis.AuthenticationError):
        stranger.ping()
    stranger.close()


def test_the_function_reaches_the_broker_with_the_generated_login(deployed: LocalCloud) -> None:
    """Connect to the broker with the address that the function sees and the generated login: the connection opens."""
    seen = seen_by_the_function(deployed)
    arn = deployed.session().client("ssm").get_parameter(Name="/shared/login")["Parameter"]["Value"]
    login = json.loads(deployed.session().client("secretsmanager").get_secret_value(SecretId=arn)["SecretString"])
    parameters = pika.URLParameters(seen["CROSSOVER_BROKER"])
    parameters.credentials = pika.PlainCredentials(login["username"], login["password"])
    connection = pika.BlockingConnection(parameters)
    assert connection.is_open
    connection.close()


def test_a_folder_asset_is_zipped(deployed: LocalCloud) -> None:
    """Invoke the function whose code is a folder in the assembly: it answers."""
    answer = deployed.session().client("lambda").invoke(FunctionName="crossover-test-echo", Payload=b'{"x": 1}')
    assert json.loads(answer["Payload"].read())["x"] == 1


def test_deploying_again_changes_nothing(deployed: LocalCloud, assembly: Path) -> None:
    """Deploy the assembly a second time: the same Redis servers run."""
    before = dict(deployed.servers.redis)
    deployed.deploy(assembly)
    assert deployed.servers.redis == before


def test_addresses_are_replaced_whole(deployed: LocalCloud) -> None:
    """Replace addresses in a text: a host's URL is replaced with or without a port, a longer address that begins alike is not."""
    (address, url), *_ = deployed.servers._addresses.items()
    assert deployed.servers.replace_addresses(f"rediss://{address}:6379 redis://{address} x") == f"{url} {url} x"
    assert deployed.servers.replace_addresses(f"rediss://{address}0:6379") == f"rediss://{address}0:6379"


def test_a_second_cloud_is_refused(cloud: LocalCloud, tmp_path: Path) -> None:
    """Start a second local cloud in this process: RunFailed."""
    with pytest.raises(RunFailed, match="runs in this process already"), LocalCloud(tmp_path):
        pass


def test_what_is_no_assembly_is_refused(cloud: LocalCloud, tmp_path: Path) -> None:
    """Deploy a folder that is no assembly: ConfigError."""
    with pytest.raises(ConfigError, match=r"not a CDK cloud assembly"):
        cloud.deploy(tmp_path)


def test_an_unknown_type_is_refused_before_anything_is_made(cloud: LocalCloud, tmp_path: Path) -> None:
    """Deploy a stack with an unknown resource type: RunFailed names stack, resource and type, and no stack is created."""
    stacks = {"odd": {"Resources": {"Thing": {"Type": "AWS::Quantum::Computer"}}}}
    with pytest.raises(
        RunFailed, match=r"odd: Thing is an AWS::Quantum::Computer, which the local cloud does not know"
    ):
        cloud.deploy(write_assembly(tmp_path, stacks, {}))
    names = [each["StackName"] for each in cloud.session().client("cloudformation").describe_stacks()["Stacks"]]
    assert "odd" not in names


def test_a_failing_resource_is_named(cloud: LocalCloud, tmp_path: Path) -> None:
    """Deploy a stack whose resource cannot be created: RunFailed names stack and resource."""
    machine = {"RoleArn": ROLE, "DefinitionString": '{"StartAt": "nowhere", "States": {}}'}
    stacks = {"broken": {"Resources": {"Run": {"Type": "AWS::StepFunctions::StateMachine", "Properties": machine}}}}
    with pytest.raises(RunFailed, match=r"broken: Run: "):
        cloud.deploy(write_assembly(tmp_path, stacks, {}))


# A main process with a cloud, a busy function, a Redis; it prints its mark and workspace and waits.
MAIN = """
import pathlib, sys, threading, time
from crossover.local import servers
from crossover.local.cloud import LocalCloud
from crossover.local.servers import RedisServer

sys.path.insert(0, ".")
from tests.local.parts import HANDLERS, ROLE, zipped

workspace = pathlib.Path(sys.argv[1])
with LocalCloud(workspace) as cloud:
    cloud.servers.start_instance("i-1", {"crossover:role": "redis"}, "10.0.0.1", "")
    cloud.session().client("iam").create_role(RoleName="local", AssumeRolePolicyDocument="{}")
    cloud.session().client("lambda").create_function(
        FunctionName="busy", Runtime="python3.13", Role=ROLE, Handler="handlers.sleep", Timeout=600,
        Code={"ZipFile": zipped(handlers=HANDLERS)},
    )
    started = workspace / "started"
    event = ('{"file": "%s"}' % started).encode()
    threading.Thread(target=cloud.invoke, args=("busy", event), daemon=True).start()
    while not started.exists():
        time.sleep(0.01)
    print(servers.mark_variable()[servers.MARK], flush=True)
    time.sleep(3600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_running(tmp_path: Path, number: signal.Signals) -> None:
    """End a process with a local cloud by this signal: Redis, fork server and function end too."""
    main = subprocess.Popen(
        [sys.executable, "-c", MAIN, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert main.stdout
    mark = f"{servers.MARK}={main.stdout.readline().strip()}".encode()
    assert len(watchdog.find_marked(mark)) == 3, "Redis, the fork server and the function run"
    os.kill(main.pid, number)
    main.wait()
    main.stdout.close()
    eventually(lambda: not watchdog.find_marked(mark), what=f"nothing left after {number.name}")
