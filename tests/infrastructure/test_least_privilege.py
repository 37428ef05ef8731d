"""Functions and hosts: what each may do, written out by hand."""

import pytest

from crossover import workflow
from crossover.architecture import steps
from functions.spirt import ARCHITECTURE
from tests.infrastructure.assemblies import Assembly, Json, actions_of, flat, listed, resources, statements

STEPS = steps(ARCHITECTURE)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_step_may_do_exactly_what_it_declares(assembly: Assembly, step: workflow.Step) -> None:
    template, function = assembly.experiment, assembly.function(step.name)
    (bucket,) = resources(template, "AWS::S3::Bucket")
    name = function["FunctionName"]
    streams = f"arn:<AWS::Partition>:logs:<AWS::Region>:<AWS::AccountId>:log-group:/aws/lambda/{name}:*"
    expected = {
        "logs:CreateLogStream": {streams},
        "logs:PutLogEvents": {streams},
        "s3:GetObject": {f"<{bucket}.Arn>/runs/*", f"<{bucket}.Arn>/data/*"},
        "s3:PutObject": {f"<{bucket}.Arn>/runs/*"},
        "s3:DeleteObject": {f"<{bucket}.Arn>/runs/*"},
        "s3:ListBucket": {f"<{bucket}.Arn>"},
    }
    if step.uses & {"tensors", "bus"}:
        expected |= {
            f"ec2:{action}": {"*"}
            for action in (
                "CreateNetworkInterface",
                "DescribeNetworkInterfaces",
                "DescribeSubnets",
                "DeleteNetworkInterface",
                "AssignPrivateIpAddresses",
                "UnassignPrivateIpAddresses",
            )
        }
    variables = function["Environment"]["Variables"]
    secrets = {flat(variables[k]) for k in ("CROSSOVER_REDIS_SECRET", "CROSSOVER_BROKER_SECRET") if k in variables}
    if secrets:
        expected["secretsmanager:GetSecretValue"] = secrets
    if "tensors" in step.uses:
        expected["s3:GetObject"] = expected["s3:GetObject"] | {f"<{bucket}.Arn>/hosts/redis/*"}
    assert actions_of(template, function["Role"]) == expected


def test_a_redis_host_may_do_exactly_this(assembly: Assembly) -> None:
    hosts = list(resources(assembly.experiment, "AWS::EC2::Instance").values())
    assert len(hosts) == 4
    for host in hosts:
        (rank,) = (each["Value"] for each in host["Tags"] if each["Key"] == "crossover:rank")
        may_do_exactly_this(assembly.experiment, host, rank)


def may_do_exactly_this(template: Json, host: Json, rank: str) -> None:
    profile = resources(template, "AWS::IAM::InstanceProfile")[host["IamInstanceProfile"]["Ref"]]
    (bucket,) = resources(template, "AWS::S3::Bucket")
    (secret,) = resources(template, "AWS::SecretsManager::Secret")
    allowed = actions_of(template, {"Fn::GetAtt": [profile["Roles"][0]["Ref"], "Arn"]})
    session = {a: r for a, r in allowed.items() if a.startswith(("ssm:", "ssmmessages:"))}
    assert set(session) == {
        "ssm:UpdateInstanceInformation",
        *(f"ssmmessages:{verb}{kind}Channel" for verb in ("Create", "Open") for kind in ("Control", "Data")),
    }
    rest = {a: r for a, r in allowed.items() if a not in session}
    (module,) = rest.pop("s3:GetObject")
    assert "cdk-hnb659fds-assets-" in module
    assert "*" not in module
    boots = {"arn:<AWS::Partition>:logs:<AWS::Region>:<AWS::AccountId>:log-group:/crossover/crossover/boot:*"}
    assert rest == {
        "logs:CreateLogStream": boots,
        "logs:PutLogEvents": boots,
        "s3:PutObject": {f"<{bucket}.Arn>/hosts/redis/{rank}.pem"},
        "secretsmanager:GetSecretValue": {f"<{secret}>"},
    }


def test_only_hosts_write_certificates(assembly: Assembly) -> None:
    """Each its own: functions trust what lies there (aws.md 10)."""
    writers = {
        owner: {flat(r).rpartition("/")[2] for r in listed(statement["Resource"])}
        for owner, statement in statements(assembly.experiment)
        if any(a.startswith("s3:Put") for a in listed(statement["Action"]))
        and any("hosts" in flat(r) or flat(r).endswith(".Arn>/*") for r in listed(statement["Resource"]))
    }
    assert all("Redis" in each for each in writers)
    assert sorted(map(sorted, writers.values())) == [["0.pem"], ["1.pem"], ["2.pem"], ["3.pem"]]


def test_a_functions_own_code_makes_no_network_interfaces(assembly: Assembly) -> None:
    """What Lambda demands of the role is taken from the code again, function by function; nothing else is denied."""
    template = assembly.experiment
    for step in assembly.steps():
        function = assembly.function(step)
        own = [s for owner, s in statements(template) if owner == function["Role"]["Fn::GetAtt"][0]]
        denied = [statement for statement in own if statement["Effect"] == "Deny"]
        if "VpcConfig" not in function:
            assert denied == []
            continue
        (statement,) = denied
        given = next(s["Action"] for s in own if s["Effect"] == "Allow" and "ec2:CreateNetworkInterface" in s["Action"])
        assert statement["Action"] == given
        assert statement["Resource"] == "*"
        (condition,) = statement["Condition"].items()
        arn = f"arn:<AWS::Partition>:lambda:<AWS::Region>:<AWS::AccountId>:function:{function['FunctionName']}"
        assert (condition[0], flat(condition[1]["lambda:SourceFunctionArn"])) == ("ArnEquals", arn)
