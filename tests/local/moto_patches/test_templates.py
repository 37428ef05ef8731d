"""What templates may contain: each seam of CloudFormation, seen through the APIs that a deployed resource answers to."""

import itertools
import json
import string
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from crossover.errors import RunFailed
from crossover.local.cloud import LocalCloud
from crossover.local.moto_patches import deletion, list_supported_types
from crossover.local.moto_patches.resource_types import WITHOUT_EFFECT
from crossover.local.moto_patches.secrets import generate_secret
from tests.local.parts import HANDLERS, ROLE, zipped

_numbers = itertools.count()


class Deploy:
    """A deployer of small stacks; `delete` deletes them all and checks that none is left."""

    def __init__(self, cloud: LocalCloud) -> None:
        """Prepare to deploy stacks on `cloud`; none is deployed yet."""
        self._client = cloud.session().client("cloudformation")
        self._names: list[str] = []

    def __call__(
        self, resources: dict[str, Any], outputs: dict[str, Any] | None = None, **parameters: Any
    ) -> dict[str, str]:
        """Create a stack of these resources under a new name and return its outputs by key. `outputs`: value to report under each key;
        `parameters`: the template's parameters.
        """
        self._names.append(f"stack-{next(_numbers)}")
        template = {
            "Resources": resources,
            "Outputs": {key: {"Value": value} for key, value in (outputs or {}).items()},
            "Parameters": parameters,
        }
        self._client.create_stack(StackName=self._names[-1], TemplateBody=json.dumps(template))
        stack = self._client.describe_stacks(StackName=self._names[-1])["Stacks"][0]
        assert stack["StackStatus"] == "CREATE_COMPLETE"
        return {each["OutputKey"]: each["OutputValue"] for each in stack.get("Outputs", [])}

    def delete(self) -> None:
        """Delete all stacks, newest first, and check that each is gone."""
        while self._names:
            self._client.delete_stack(StackName=self._names[-1])
            assert self._names.pop() not in [each["StackName"] for each in self._client.describe_stacks()["Stacks"]]


@pytest.fixture
def deploy(cloud: LocalCloud) -> Iterator[Deploy]:
    """Yield a deployer of small stacks; the stacks are deleted afterwards."""
    deployer = Deploy(cloud)
    yield deployer
    deployer.delete()


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(WITHOUT_EFFECT))
def test_types_without_effect_are_accepted(cloud: LocalCloud, deploy: Deploy, kind: str) -> None:
    """Deploy a resource of each type that has no counterpart here: it gets a name."""
    assert kind in list_supported_types(cloud)
    assert deploy({"Thing": {"Type": kind}}, {"Name": {"Ref": "Thing"}})["Name"].startswith("stack-")


def test_a_secret_is_generated_and_resolved(cloud: LocalCloud, deploy: Deploy) -> None:
    """Deploy a generated secret and a parameter that refers to it: the secret follows its rule, and the parameter has the password."""
    rule: dict[str, Any] = {
        "SecretStringTemplate": '{"username": "crossover"}',
        "GenerateStringKey": "password",
        "ExcludeCharacters": ",:= \"'@/\\",
        "PasswordLength": 40,
    }
    resolve = "{{resolve:secretsmanager:${Login}:SecretString:password::}}"
    outputs = deploy(
        {
            "Login": {"Type": "AWS::SecretsManager::Secret", "Properties": {"GenerateSecretString": rule}},
            "Copy": {
                "Type": "AWS::SSM::Parameter",
                "Properties": {"Type": "String", "Value": {"Fn::Sub": resolve}, "Tags": {"project": "crossover"}},
            },
            "Whole": {"Type": "AWS::SecretsManager::Secret", "Properties": {"SecretString": "s3cret"}},
        },
        {"Arn": {"Ref": "Login"}, "Copy": {"Fn::GetAtt": ["Copy", "Value"]}, "Whole": {"Fn::GetAtt": ["Whole", "Id"]}},
    )
    secrets = cloud.session().client("secretsmanager")
    login = json.loads(secrets.get_secret_value(SecretId=outputs["Arn"])["SecretString"])
    assert login["username"] == "crossover"
    assert len(login["password"]) == 40
    assert not set(login["password"]) & set(rule["ExcludeCharacters"])
    assert outputs["Copy"] == login["password"]
    assert secrets.get_secret_value(SecretId=outputs["Whole"])["SecretString"] == "s3cret"


@pytest.mark.parametrize("excluded", ["Lowercase", "Uppercase", "Numbers", "Punctuation"])
def test_generated_secrets_follow_their_rule(excluded: str) -> None:
    """Generate secrets without one kind of characters: each has the asked length, all other kinds, and none of the excluded one."""
    letters = {
        "Lowercase": string.ascii_lowercase,
        "Uppercase": string.ascii_uppercase,
        "Numbers": string.digits,
        "Punctuation": string.punctuation,
    }
    for _ in range(20):
        text = generate_secret({f"Exclude{excluded}": True, "PasswordLength": 12})
        assert len(text) == 12
        assert {name for name, each in letters.items() if set(text) & set(each)} == set(letters) - {excluded}
    assert len(generate_secret({})) == 32
    assert len({generate_secret({"RequireEachIncludedType": False}) for _ in range(20)}) == 20


def test_a_deleted_secret_is_gone(cloud: LocalCloud, deploy: Deploy) -> None:
    """Deploy a secret and delete its stack: the secret no longer exists."""
    properties = {"SecretString": "x", "Name": "named"}
    deploy({"Login": {"Type": "AWS::SecretsManager::Secret", "Properties": properties}})
    secrets = cloud.session().client("secretsmanager")
    assert secrets.get_secret_value(SecretId="named")["SecretString"] == "x"
    deploy.delete()
    with pytest.raises(ClientError, match="ResourceNotFound"):
        secrets.get_secret_value(SecretId="named")


def test_public_parameters_name_an_image(deploy: Deploy) -> None:
    """Deploy a stack whose parameter is a public one for a machine image: it resolves to an image's id."""
    image = {
        "Type": "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>",
        "Default": "/aws/service/debian/release/13/latest/arm64",
    }
    outputs = deploy(
        {"Handle": {"Type": "AWS::CloudFormation::WaitConditionHandle"}}, {"Id": {"Ref": "Image"}}, Image=image
    )
    assert outputs["Id"].startswith("ami-")


def test_parameters_are_resolved(cloud: LocalCloud, deploy: Deploy) -> None:
    """Deploy an output that refers to an SSM parameter: it has the parameter's value."""
    cloud.session().client("ssm").put_parameter(Name="/a/b", Value="here", Type="String")
    handle = {"Handle": {"Type": "AWS::CloudFormation::WaitConditionHandle"}}
    assert deploy(handle, {"There": "{{resolve:ssm:/a/b}}"})["There"] == "here"


def test_functions_keep_tags_log_group_and_architecture(cloud: LocalCloud, deploy: Deploy) -> None:
    """Deploy a function: it keeps its properties, sees its variables and those of the cloud, and writes into its log group, which a late
    line does not create again.
    """
    s3 = cloud.session().client("s3")
    s3.create_bucket(Bucket="code")
    s3.put_object(Bucket="code", Key="code.zip", Body=zipped(handlers=HANDLERS))
    function = {
        "FunctionName": "kept",
        "Handler": "handlers.environment",
        "Runtime": "python3.13",
        "Architectures": ["arm64"],
        "Role": ROLE,
        "Code": {"S3Bucket": "code", "S3Key": "code.zip"},
        "Timeout": "7",
        "MemorySize": "256",
        "LoggingConfig": {"LogGroup": "/own/group"},
        "Tags": [{"Key": "crossover:waits", "Value": "true"}, {"Key": "crossover:torch", "Value": "false"}],
        "Environment": {"Variables": {"CROSSOVER_NAME": "kept"}},
    }
    group = {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": "/own/group"}}
    deploy({"Group": group, "Function": {"Type": "AWS::Lambda::Function", "Properties": function}})
    client = cloud.session().client("lambda")
    answer = client.invoke(FunctionName="kept", LogType="Tail", Payload=b"{}")
    seen = json.loads(answer["Payload"].read())
    assert seen["CROSSOVER_NAME"] == "kept"
    assert seen["AWS_ENDPOINT_URL"] == cloud.endpoint.url
    assert seen["AWS_LAMBDA_LOG_GROUP_NAME"] == "/own/group"
    assert seen["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"] == "256"
    assert seen["CROSSOVER_SLOTS"] == str(cloud.workspace / "slots")

    from moto.awslambda.models import lambda_backends

    deployed = cloud.function(lambda_backends["123456789012"]["us-east-1"].get_function("kept"))
    assert (deployed.waits, deployed.torch, deployed.timeout_s) == (True, False, 7.0)
    logs = cloud.session().client("logs")
    events = logs.filter_log_events(logGroupName="/own/group")["events"]
    assert json.loads(events[-1]["message"])["record"]["requestId"] == answer["ResponseMetadata"]["RequestId"]

    logs.delete_log_group(logGroupName="/own/group")
    client.invoke(FunctionName="kept", Payload=b"{}")
    assert logs.describe_log_groups(logGroupNamePrefix="/own/")["logGroups"] == []  # a late line brings nothing back
    logs.create_log_group(logGroupName="/own/group")  # for the stack's deletion


def test_invocations_through_the_api(cloud: LocalCloud) -> None:
    """Invoke functions by Lambda's API: results, errors, events and a payload that is too large are answered as on AWS."""
    client = cloud.session().client("lambda")
    code = {"ZipFile": zipped(handlers=HANDLERS)}
    for name in ("echo", "fail"):
        client.create_function(
            FunctionName=f"api-{name}", Runtime="python3.13", Role=ROLE, Handler=f"handlers.{name}", Code=code
        )
    good = client.invoke(FunctionName="api-echo", Payload=b'{"x": 1}')
    assert (good["StatusCode"], good.get("FunctionError")) == (200, None)
    assert json.loads(good["Payload"].read())["x"] == 1
    bad = client.invoke(FunctionName="api-fail", Payload=b"{}")
    assert (bad["StatusCode"], bad["FunctionError"]) == (200, "Unhandled")
    assert json.loads(bad["Payload"].read())["errorType"] == "ValueError"
    assert client.invoke(FunctionName="api-echo", Payload=b"{}", InvocationType="Event")["StatusCode"] == 202
    with pytest.raises(ClientError, match="RequestTooLargeException"):
        client.invoke(FunctionName="api-echo", Payload=b'"' + b"x" * 6_400_000 + b'"')


def test_state_machines_take_their_substitutions(cloud: LocalCloud, deploy: Deploy) -> None:
    """Deploy a state machine with substitutions: they are filled into its definition."""
    definition = {"StartAt": "only", "States": {"only": {"Type": "Pass", "Result": {"is": "${what}"}, "End": True}}}
    properties = {
        "StateMachineName": "substituted",
        "RoleArn": ROLE,
        "DefinitionString": json.dumps(definition),
        "DefinitionSubstitutions": {"what": {"Ref": "AWS::Region"}},
    }
    arn = deploy(
        {"Run": {"Type": "AWS::StepFunctions::StateMachine", "Properties": properties}}, {"Arn": {"Ref": "Run"}}
    )["Arn"]
    described = cloud.session().client("stepfunctions").describe_state_machine(stateMachineArn=arn)
    assert json.loads(described["definition"])["States"]["only"]["Result"] == {"is": "us-east-1"}


@pytest.mark.parametrize("late", [False, True])
def test_a_bucket_is_emptied_when_its_stack_goes(
    cloud: LocalCloud, deploy: Deploy, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delete the stack of a bucket that empties itself: the bucket is gone, even if a function writes once more (`late`)."""
    token = "arn:aws:lambda:us-east-1:123456789012:function:emptier"
    deploy(
        {
            "Bucket": {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": "to-be-emptied"}},
            "Emptier": {
                "Type": "Custom::S3AutoDeleteObjects",
                "Properties": {"ServiceToken": token, "BucketName": {"Ref": "Bucket"}},
                "DependsOn": ["Bucket"],
            },
        }
    )
    s3 = cloud.session().client("s3")
    s3.put_object(Bucket="to-be-emptied", Key="key", Body=b"x")
    empty = deletion.empty_bucket

    def and_write_again(bucket: str) -> None:
        """Empty the bucket; if `late`, write an object into it afterwards."""
        empty(bucket)
        if late:
            s3.put_object(Bucket=bucket, Key="late", Body=b"y")

    monkeypatch.setattr(deletion, "empty_bucket", and_write_again)
    deploy.delete()
    assert "to-be-emptied" not in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]


def test_a_network_is_deleted_whole(cloud: LocalCloud, deploy: Deploy) -> None:
    """Deploy and delete a network: no VPC, route table or endpoint of it is left."""
    ec2 = cloud.session().client("ec2")
    before = len(ec2.describe_vpcs()["Vpcs"]), len(ec2.describe_route_tables()["RouteTables"])
    vpc = {"Ref": "Vpc"}
    deploy(
        {
            "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.9.0.0/16"}},
            "Subnet": {"Type": "AWS::EC2::Subnet", "Properties": {"VpcId": vpc, "CidrBlock": "10.9.1.0/24"}},
            "Table": {"Type": "AWS::EC2::RouteTable", "Properties": {"VpcId": vpc}},
            "Association": {
                "Type": "AWS::EC2::SubnetRouteTableAssociation",
                "Properties": {"RouteTableId": {"Ref": "Table"}, "SubnetId": {"Ref": "Subnet"}},
            },
            "Endpoint": {
                "Type": "AWS::EC2::VPCEndpoint",
                "Properties": {
                    "VpcId": vpc,
                    "ServiceName": "com.amazonaws.us-east-1.s3",
                    "RouteTableIds": [{"Ref": "Table"}],
                    "VpcEndpointType": "Gateway",
                },
            },
        }
    )
    deploy.delete()
    assert (len(ec2.describe_vpcs()["Vpcs"]), len(ec2.describe_route_tables()["RouteTables"])) == before
    assert not ec2.describe_vpc_endpoints()["VpcEndpoints"]


def test_an_unknown_custom_resource_is_refused_by_name(deploy: Deploy) -> None:
    """Deploy an unknown custom resource: the error names its type."""
    with pytest.raises(ClientError, match="Custom::Mystery is a custom resource that the local cloud does not know"):
        deploy({"Odd": {"Type": "Custom::Mystery", "Properties": {"ServiceToken": "arn"}}})


def test_an_unknown_attribute_is_refused_by_name() -> None:
    """Read an attribute that a made resource does not have: RunFailed names resource, type and attribute."""
    from crossover.local.moto_patches.resource_types import MadeResource

    made = MadeResource("id", {"Arn": "arn"}, cf_resource_type="AWS::Some::Thing", logical_resource_id="Odd")
    assert made.get_cfn_attribute("Arn") == "arn"
    with pytest.raises(RunFailed, match=r"Odd: the local AWS::Some::Thing has no attribute 'Name'"):
        made.get_cfn_attribute("Name")
