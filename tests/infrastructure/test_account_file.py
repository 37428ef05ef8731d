"""What an organisation says of its account in config/account.yaml: checked at once, in every template, and asked of AWS beforehand."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import App

from cdk import nag
from crossover import validation
from crossover.cli.main import main
from crossover.errors import ConfigError, UserError
from crossover.local.cloud import LocalCloud
from crossover.running import deploying, preflight
from crossover.validation import account_file
from crossover.validation.account_file import AccountFile
from stacks.synthesis import compose, feature_flags, synthesize
from tests.infrastructure.assemblies import Assembly, flat, listed, resources, statements
from tests.infrastructure.cases import Case
from tests.infrastructure.conftest import NOW
from tests.moto_patches import AccountCloud

ROOT = Path(__file__).parents[2]
KEY = "arn:aws:kms:us-east-1:123456789012:key/0a1b2c3d-0000-0000-0000-000000000000"
BOUNDARY = "arn:aws:iam::123456789012:policy/teams/boundary"
WHOLE = f"""
network:
  vpc: vpc-0a1b2c3d4e5f67890
  availability_zone: us-east-1b
  functions_subnet: subnet-0a1b2c3d4e5f67891
  hosts_subnet: subnet-0a1b2c3d4e5f67892
images: {{arm64: ami-0a1b2c3d4e5f67893, amd64: ami-0a1b2c3d4e5f67894, gpu: ami-0a1b2c3d4e5f67895}}
kms_key: {KEY}
permissions_boundary: {BOUNDARY}
tags: {{cost-center: "4711", "data class": internal}}
session_agent: {{version: 3.3.1000.0, arm64: {"a" * 64}, amd64: {"b" * 64}}}
"""


@pytest.fixture(scope="module")
def cloud(account_cloud: AccountCloud) -> AccountCloud:
    """Return the double of an AWS account under the name that this module's tests use."""
    return account_cloud


def written(folder: Path, text: str) -> AccountFile:
    """Write `text` as `account.yaml` into the folder and return it as loaded."""
    path = folder / "account.yaml"
    path.write_text(text)
    return account_file.load(path)


# --- the file ---------------------------------------------------------------------------------------------------------

WRONG = """
network: {vpc: my-vpc, functions_subnet: subnet-0a1b2c3d4e5f67891}
images: {arm64: debian-13}
kms_key: alias/mine
permissions_boundary: boundary
tags: {project: theirs, NAME: theirs, "aws:x": y, ok: "a\\tb", Team: a, team: b}
session_agent: {version: latest, arm64: aa}
vpn: yes
"""
SAID = (
    "network.vpc: 'my-vpc' is not allowed; expected vpc-",
    "network: availability_zone, hosts_subnet missing; expected all of vpc, ",
    "images.arm64: 'debian-13' is not allowed; expected ami-",
    "kms_key: 'alias/mine' is not allowed; expected the ARN of a key (not of an alias)",
    "permissions_boundary: 'boundary' is not allowed; expected the ARN of a managed policy",
    "tags.project: is taken by this project",
    "tags.aws:x: is taken by this project or by AWS",
    "tags.ok: 'a\\tb' is not allowed",
    "tags.NAME: is taken by this project",
    "tags.team: is Team in other letter case",
    "session_agent.version: 'latest' is not allowed; expected a version",
    "session_agent.arm64: 'aa' is not allowed; expected a SHA-256",
    "session_agent: amd64 missing; expected all of version, arm64, amd64, or none of them",
    "vpn: is unknown; one of network, images, kms_key, permissions_boundary, tags",
)


def test_all_that_is_wrong_in_the_file_is_said_at_once(tmp_path: Path) -> None:
    """Check that one error lists everything that is wrong in an account file, a line each."""
    with pytest.raises(ConfigError) as refused:
        written(tmp_path, WRONG)
    lines = str(refused.value).splitlines()
    assert len(lines) == len(SAID)
    for words in SAID:
        assert [line for line in lines if line.startswith(f"{tmp_path / 'account.yaml'}: {words}")], (words, lines)


def test_text_where_text_belongs(tmp_path: Path) -> None:
    """Check that a number is refused as the value of a tag in the account file."""
    with pytest.raises(ConfigError, match=r"tags.cost-center: 4711 is not allowed; expected text"):
        written(tmp_path, "tags: {cost-center: 4711}")


def test_an_experiment_of_another_zone_is_refused(tmp_path: Path) -> None:
    """Check that synthesis refuses an experiment whose availability zone differs from that of the account file's subnets."""
    account = written(tmp_path, WHOLE)
    elsewhere = validation.load(ROOT / "config" / "spirt.yaml", ["network.availability_zone=us-east-1c"])
    with pytest.raises(
        ConfigError, match=r"'us-east-1c', but the network of config/account\.yaml has its subnets in us"
    ):
        compose(App(), elsewhere, account=account)


@pytest.mark.parametrize("command", [("deploy", "--yes"), ("doctor", "--on", "aws"), ("run", "--on", "aws")])
def test_a_wrong_file_is_said_before_aws_is_asked(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that commands report a faulty account file and exit with status 2 before they call AWS."""
    (tmp_path / "account.yaml").write_text("kms_key: alias/mine")
    monkeypatch.setattr(account_file, "PATH", tmp_path / "account.yaml")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nobody answers there
    with pytest.raises(SystemExit) as ended:
        main([*command, str(ROOT / "config" / "all-reduce-s3.yaml")])
    assert ended.value.code == 2
    assert "account.yaml: kms_key: 'alias/mine' is not allowed" in capsys.readouterr().err


def test_the_pages_example_is_one(tmp_path: Path) -> None:
    """Check that the example in docs/aws-account.md is a valid account file that sets every field."""
    (text,) = re.findall(
        r"^```yaml\n(# config/account.yaml\n.*?)^```$", (ROOT / "docs" / "aws-account.md").read_text(), re.M | re.S
    )
    said = written(tmp_path, text)
    assert all(value for section in (said, said.network, said.images) for value in vars(section).values())


# --- the templates ----------------------------------------------------------------------------------------------------

CASES = ("spirt", "gpu", "p2p-instance", "all-reduce over s3")


@pytest.fixture(scope="module")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Assembly]:
    """Return a function that synthesizes a case, by name, with an account file that says all it can, and returns the assembly. cdk-nag
    checks each one.
    """
    made: dict[str, Assembly] = {}
    account = written(tmp_path_factory.mktemp("account"), WHOLE)

    def make(case: str) -> Assembly:
        """Return the synthesized and nag-checked assembly of a case; each case is synthesized once."""
        if case not in made:
            out, experiment = tmp_path_factory.mktemp("assembly"), Case.of(case).experiment
            app = App(outdir=str(out), context=feature_flags(), builtin_cloud_formation_validation=False)
            compose(app, experiment, now=NOW, layers=Path("/nowhere"), account=account)
            nag.add_checks(app)
            app.synth()
            made[case] = Assembly(out, f"{experiment.project}-{experiment.name}")
        return made[case]

    return make


def test_without_a_file_nothing_changes(tmp_path: Path) -> None:
    """Check that templates without an account file and with an empty one have the same bytes."""
    said = account_file.load(tmp_path / "none.yaml")
    for name, account in (("none", None), ("empty", said)):
        synthesize(Case.of("spirt").experiment, tmp_path / name, now=NOW, layers=Path("/nowhere"), account=account)
    names = sorted(path.name for path in (tmp_path / "none").glob("*.template.json"))
    assert len(names) == 3
    for name in [*names, "manifest.json"]:
        assert (tmp_path / "none" / name).read_bytes() == (tmp_path / "empty" / name).read_bytes()


@pytest.mark.parametrize("case", CASES)
def test_every_role_has_the_boundary_and_every_stack_the_tags(case: str, assembly: Callable[[str], Assembly]) -> None:
    """Check that every role has the account file's permissions boundary, and that every stack, function and launch template has its
    tags.
    """
    templates = assembly(case).templates
    for name, template in templates.items():
        roles = resources(template, "AWS::IAM::Role")
        assert {flat(role["PermissionsBoundary"]) for role in roles.values()} <= {BOUNDARY}
        tags = assembly(case).manifest["artifacts"][name]["properties"]["tags"]
        assert tags["cost-center"] == "4711" and tags["data class"] == "internal" and tags["project"] == "crossover"
        for properties in resources(template, "AWS::Lambda::Function").values():
            if "Tags" in properties:  # CDK's own function has none
                assert {"Key": "cost-center", "Value": "4711"} in properties["Tags"]
        for launch in resources(template, "AWS::EC2::LaunchTemplate").values():
            for each in launch["LaunchTemplateData"].get("TagSpecifications", []):
                assert {"Key": "cost-center", "Value": "4711"} in each["Tags"]


@pytest.mark.parametrize("case", CASES)
def test_what_is_stored_is_under_the_key_and_whoever_reads_it_may_use_it(
    case: str, assembly: Callable[[str], Assembly]
) -> None:
    """Check that buckets, secrets, environments and volumes are encrypted with the account file's key, and that the roles which read them
    may use it.
    """
    for template in assembly(case).templates.values():
        for bucket in resources(template, "AWS::S3::Bucket").values():
            (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
            wanted = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": KEY}
            assert rule == {"BucketKeyEnabled": True, "ServerSideEncryptionByDefault": wanted}
        for secret in resources(template, "AWS::SecretsManager::Secret").values():
            assert secret["KmsKeyId"] == KEY
        for function in resources(template, "AWS::Lambda::Function").values():
            assert function.get("KmsKeyArn") == (KEY if "Environment" in function else None)
        for volume in volumes(template):
            assert volume["KmsKeyId"] == KEY and volume["Encrypted"] is True
        reading, using = set(), set()
        for role, statement in statements(template):
            actions = set(listed(statement["Action"]))
            if actions & {"s3:GetObject", "secretsmanager:GetSecretValue"}:
                reading.add(role)
            if actions == {"kms:Decrypt", "kms:GenerateDataKey"} and statement["Resource"] == KEY:
                using.add(role)
        assert reading <= using, reading - using


def volumes(template: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the EBS settings of every block device that the template's instances and launch templates have."""
    made = [*resources(dict(template), "AWS::EC2::Instance").values()]
    made += [each["LaunchTemplateData"] for each in resources(dict(template), "AWS::EC2::LaunchTemplate").values()]
    yield from (mapping["Ebs"] for each in made for mapping in each.get("BlockDeviceMappings", []))


@pytest.mark.parametrize(
    ("case", "image"),
    [("spirt", "ami-0a1b2c3d4e5f67893"), ("p2p-instance", "ami-0a1b2c3d4e5f67894"), ("gpu", "ami-0a1b2c3d4e5f67895")],
)
def test_hosts_boot_the_organisations_images(case: str, image: str, assembly: Callable[[str], Assembly]) -> None:
    """Check that launch templates name the account file's image and have no parameter for a public one."""
    template = assembly(case).experiment
    launches = resources(template, "AWS::EC2::LaunchTemplate").values()
    assert {each["LaunchTemplateData"]["ImageId"] for each in launches} == {image}
    assert not [each for each in template.get("Parameters", {}).values() if "Image" in each["Type"]]


@pytest.mark.parametrize(("case", "digit"), [("spirt", "a"), ("p2p-instance", "b")])
def test_hosts_have_the_pinned_agent_alone(case: str, digit: str, assembly: Callable[[str], Assembly]) -> None:
    """Check that boot scripts install the session agent with the version and digest that the account file pins."""
    template = assembly(case).experiment
    hosts = [*resources(template, "AWS::EC2::Instance").values()]
    hosts += [each["LaunchTemplateData"] for each in resources(template, "AWS::EC2::LaunchTemplate").values()]
    scripts = [flat(each["UserData"]) for each in hosts if "UserData" in each]
    assert scripts
    for script in scripts:
        assert f"SESSION_AGENT='3.3.1000.0'\nSESSION_AGENT_SHA256='{digit * 64}'\n" in script


def test_an_existing_network_is_taken_as_it_is(assembly: Callable[[str], Assembly]) -> None:
    """Check that with the organisation's VPC the network stack creates only security groups, and publishes the given VPC and subnets."""
    network = assembly("spirt").network
    kinds = {each["Type"] for each in network["Resources"].values()}
    assert (
        kinds & {f"AWS::EC2::{kind}" for kind in ("VPC", "Subnet", "InternetGateway", "Route", "VPCEndpoint")} == set()
    )
    groups = resources(network, "AWS::EC2::SecurityGroup")
    assert len(groups) == 4 and {each["VpcId"] for each in groups.values()} == {"vpc-0a1b2c3d4e5f67890"}
    told = {
        each["Name"].rpartition("/")[2]: each["Value"] for each in resources(network, "AWS::SSM::Parameter").values()
    }
    assert (told["vpc"], told["functions_subnet"], told["hosts_subnet"]) == (
        "vpc-0a1b2c3d4e5f67890",
        "subnet-0a1b2c3d4e5f67891",
        "subnet-0a1b2c3d4e5f67892",
    )
    assert network["Parameters"]["Zone"]["Default"] == "us-east-1b" and "ZoneStays" in network["Rules"]


@pytest.mark.slow
def test_cloudformations_own_rules_find_nothing_in_them(assembly: Callable[[str], Assembly]) -> None:
    """Check that cfn-lint finds nothing in the templates with an account file."""
    files = [str(path) for case in CASES for path in assembly(case).folder.glob("*.template.json")]
    standing = ("-i", "W3005")  # as in tests/witnesses/test_cfn_lint.py
    command = [str(Path(sys.executable).parent / "cfn-lint"), *standing, "--", *files]
    ended = subprocess.run(command, text=True, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, len(files) > len(CASES)) == (0, "", True)


# --- what AWS says of it ----------------------------------------------------------------------------------------------


class Organisation:
    """An AWS account with everything that account.yaml names, of which a test changes something. `said`: the file's content."""

    def __init__(self, cloud: LocalCloud, folder: Path) -> None:
        """Create a VPC with a subnet for functions and one for hosts, both routed to a NAT gateway, and a KMS key; `said` describes them
        as account.yaml does.
        """
        self.session, self._folder = cloud.session(), folder
        self.ec2, self.kms = self.session.client("ec2"), self.session.client("kms")
        self.vpc = self.ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
        self.ec2.modify_vpc_attribute(VpcId=self.vpc, EnableDnsHostnames={"Value": True})
        self.functions, self.hosts = (self.subnet(self.vpc, f"10.9.{n}.0/24", "us-east-1b") for n in (0, 1))
        address = self.ec2.allocate_address(Domain="vpc")["AllocationId"]
        nat = self.ec2.create_nat_gateway(SubnetId=self.hosts, AllocationId=address)["NatGateway"]["NatGatewayId"]
        self.nat = {"DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": nat}
        self.tables = {
            "functions_subnet": self._table(self.functions, self.nat),
            "hosts_subnet": self._table(self.hosts, self.nat),
        }
        self.key = self.kms.create_key(KeyUsage="ENCRYPT_DECRYPT", KeySpec="SYMMETRIC_DEFAULT")["KeyMetadata"]["Arn"]
        self.said: dict[str, Any] = {
            "network": {
                "vpc": self.vpc,
                "availability_zone": "us-east-1b",
                "functions_subnet": self.functions,
                "hosts_subnet": self.hosts,
            },
            "kms_key": self.key,
        }

    def subnet(self, vpc: str, block: str, zone: str) -> str:
        """Create a subnet and return its id."""
        made = self.ec2.create_subnet(VpcId=vpc, CidrBlock=block, AvailabilityZone=zone)
        return str(made["Subnet"]["SubnetId"])

    def _table(self, subnet: str, route: dict[str, str]) -> str:
        """Create a route table with one route, associate it with the subnet, and return its id."""
        table = self.ec2.create_route_table(VpcId=self.vpc)["RouteTable"]["RouteTableId"]
        self.ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)
        self.ec2.create_route(RouteTableId=table, **route)
        return str(table)

    def boundary(self, name: str, *statements: dict[str, Any]) -> None:
        """Create a policy of these statements and name it as the permissions boundary in the file."""
        document = json.dumps({"Version": "2012-10-17", "Statement": list(statements)})
        made = self.session.client("iam").create_policy(PolicyName=name, PolicyDocument=document)
        self.said["permissions_boundary"] = made["Policy"]["Arn"]

    def findings(self, case: str = "spirt") -> list[preflight.Finding]:
        """Return the findings of the check before a deployment that do not hold."""
        account = account_file.parse_account(self.said)
        return [each for each in preflight.examine(self.session, Case.of(case).experiment, account) if not each.holds]

    def close(self) -> None:
        """Delete the NAT gateway."""
        self.ec2.delete_nat_gateway(NatGatewayId=self.nat["NatGatewayId"])


@pytest.fixture
def organisation(cloud: LocalCloud, tmp_path: Path) -> Iterator[Organisation]:
    """Yield an organisation's network and key in the local cloud; they are removed afterwards."""
    made = Organisation(cloud, tmp_path)
    yield made
    made.close()


def change(name: str, organisation: Organisation) -> None:
    """Make the one change to the account, or to what its file says, that `name` stands for; afterwards the account does not serve."""
    ec2, network, tables = organisation.ec2, organisation.said["network"], organisation.tables
    if name in ("no route of functions", "no route of hosts"):
        table = tables["functions_subnet" if "functions" in name else "hosts_subnet"]
        ec2.delete_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0")
    elif name == "no vpc":
        network["vpc"] = "vpc-00000000"
    elif name == "no subnet":
        network["hosts_subnet"] = "subnet-00000000"
    elif name == "names off":
        ec2.modify_vpc_attribute(VpcId=organisation.vpc, EnableDnsHostnames={"Value": False})
    elif name == "another zone":
        network["hosts_subnet"] = organisation.subnet(organisation.vpc, "10.9.7.0/24", "us-east-1c")
    elif name == "another vpc":
        other = ec2.create_vpc(CidrBlock="10.8.0.0/16")["Vpc"]["VpcId"]
        network["functions_subnet"] = organisation.subnet(other, "10.8.0.0/24", "us-east-1b")
    elif name == "key disabled":
        organisation.kms.disable_key(KeyId=organisation.key.rpartition("/")[2])  # moto knows no ARN here
    elif name == "key for one person":
        alone = {
            "Effect": "Allow",
            "Principal": {"AWS": "arn:aws:iam::123456789012:user/ada"},
            "Action": "kms:*",
            "Resource": "*",
        }
        organisation.kms.put_key_policy(
            KeyId=organisation.key, PolicyName="default", Policy=json.dumps({"Statement": [alone]})
        )
    elif name == "no key":
        organisation.said["kms_key"] = KEY
    elif name == "key elsewhere":
        organisation.said["kms_key"] = KEY.replace("us-east-1", "eu-west-1")
    elif name == "no boundary":
        organisation.said["permissions_boundary"] = BOUNDARY
    elif name == "boundary without an end":
        allow = {"Effect": "Allow", "Action": "*", "Resource": "*"}
        organisation.boundary("no-end", allow, {"Effect": "Deny", "Action": "cloudformation:*", "Resource": "*"})
    else:
        assert name == "no image"
        organisation.said["images"] = {"arm64": "ami-00000000"}


REFUSED = [
    ("no vpc", "own network", r"network.vpc: vpc-00000000 is not in us-east-1 of this account"),
    ("names off", "own network", r"network.vpc: vpc-\w+ has enableDnsHostnames off"),
    ("no subnet", "own network", r"network.hosts_subnet: subnet-00000000 is not in us-east-1 of this account"),
    ("another zone", "own network", r"network.hosts_subnet: subnet-\w+ is in us-east-1c, not in us-east-1b"),
    ("another vpc", "own network", r"network.functions_subnet: subnet-\w+ is of vpc-\w+, not of vpc-\w+"),
    ("no route of functions", "own network", r"functions_subnet: subnet-\w+ has no route that leads functions to s3 and secretsm"),
    ("no route of hosts", "own network", r"hosts_subnet: subnet-\w+ has no route that leads hosts to the internet"),
    ("key disabled", "own key", r"kms_key: .*: KeyState Disabled, expected Enabled"),
    ("key for one person", "own key", r"its policy lets no role of the account use it \(kms:Decrypt, kms:GenerateDataKey\)"),
    ("no key", "own key", r"kms_key: .*: there is no such key"),
    ("key elsewhere", "own key", r"kms_key: .*: is of eu-west-1, not of us-east-1"),
    ("no boundary", "permissions boundary", r"permissions_boundary: .*: there is no such policy"),
    ("boundary without an end", "permissions boundary", r": allows no role cloudformation:DeleteStack: runs would fail, or"),
    ("no image", "own image", r"images.arm64: ami-00000000: not in this region, or not for this account to use"),
]  # fmt: skip


@pytest.mark.slow
def test_an_account_as_the_file_says_lacks_nothing(organisation: Organisation) -> None:
    """Check that an account which has everything that the account file names passes all checks before a deployment."""
    organisation.boundary("wide", {"Effect": "Allow", "Action": "*", "Resource": "*"})
    assert organisation.findings() == []


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.parametrize(("name", "finding", "words"), REFUSED)
def test_what_does_not_serve_is_refused_before_anything_is_made(
    name: str,
    finding: str,
    words: str,
    organisation: Organisation,
    cloud: LocalCloud,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Make one change by which the account does not serve. Check that the checks before a deployment find it, and that the deployment is
    refused.
    """
    change(name, organisation)
    (found,) = organisation.findings()
    assert (found.name, found.certain) == (finding, True)
    assert re.search(words, found.detail) and found.detail.startswith("config/account.yaml: "), found.detail
    for key, value in cloud.environment().items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(account_file, "load", lambda: account_file.parse_account(organisation.said))
    with pytest.raises(UserError, match=words):
        deploying.check_before_deploying(Case.of("spirt").experiment, config=Path("x.yaml"), tell=lambda line: None)


@pytest.mark.slow
def test_functions_may_go_out_by_endpoints_instead(organisation: Organisation) -> None:
    """Check that a functions' subnet without a route out passes if VPC endpoints make S3 and Secrets Manager reachable."""
    change("no route of functions", organisation)
    table = organisation.tables["functions_subnet"]
    make = organisation.ec2.create_vpc_endpoint
    make(
        VpcId=organisation.vpc,
        VpcEndpointType="Gateway",
        ServiceName="com.amazonaws.us-east-1.s3",
        RouteTableIds=[table],
    )
    (found,) = organisation.findings()
    assert "functions to secretsmanager (" in found.detail
    make(
        VpcId=organisation.vpc,
        VpcEndpointType="Interface",
        ServiceName="com.amazonaws.us-east-1.secretsmanager",
        SubnetIds=[organisation.functions],
        PrivateDnsEnabled=True,
    )
    assert organisation.findings() == []


@pytest.mark.slow
def test_a_standing_network_does_not_move_into_another_vpc(
    organisation: Organisation, cloud: LocalCloud, tmp_path: Path
) -> None:
    """Check that an account file with another VPC than that of the deployed network, or with none, is refused."""
    account, experiment = account_file.parse_account(organisation.said), Case.of("gpu").experiment
    cloud.deploy(synthesize(experiment, tmp_path / "assembly", now=NOW, account=account))
    assert [each.name for each in organisation.findings("gpu")] == [
        "EBS key"
    ]  # Auto Scaling is not named in its policy
    del organisation.said["network"]
    (found,) = [each for each in organisation.findings("gpu") if each.name == "own network"]
    assert (
        f"network.vpc: none, but crossover-network is in {organisation.vpc}, and a network does not move"
        in found.detail
    )
