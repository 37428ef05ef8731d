"""The calls that a host signs by itself: botocore makes the same signatures, and moto, which checks them, lets them through."""

import importlib.util
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import boto3
import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.server import ThreadedMotoServer

from tests.infrastructure.conftest import ROOT
from tests.infrastructure.fake_aws import IDENTITY, FakeAws

PROGRAM = ROOT / "cdk" / "boot" / "cloud.py"


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the boot hosts' program `cloud.py`, imported anew as a module, with region eu-central-1."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    spec = importlib.util.spec_from_file_location("boot_cloud", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def aws() -> Iterator[FakeAws]:
    """Yield a running fake of AWS; it is closed afterwards."""
    made = FakeAws()
    yield made
    made.close()


def run(aws: FakeAws, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run cloud.py as a host does, with the interpreter's own modules only, and return the result. `environment`: further variables."""
    return subprocess.run(
        [sys.executable, "-I", "-S", PROGRAM, *arguments],
        env={"AWS_DEFAULT_REGION": "eu-central-1", **aws.environment, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("service", "method", "path", "body"),
    [
        ("s3", "GET", "/bucket/a%20key%2Bwith/signs~_-.zip", b""),
        ("s3", "PUT", "/bucket/hosts/redis/0.pem", b"certificate\n"),
        ("secretsmanager", "POST", "/", b'{"SecretId": "arn:aws:x"}'),
        ("autoscaling", "POST", "/", b"Action=TerminateInstanceInAutoScalingGroup"),
        ("logs", "POST", "/", "{'ä'}".encode()),
    ],
)
def test_botocore_signs_alike(cloud: ModuleType, service: str, method: str, path: str, body: bytes) -> None:
    """Check that cloud.py computes the same signature of a request as botocore."""
    url = f"https://{service}.eu-central-1.amazonaws.com{path}"
    theirs = AWSRequest(method, url, data=body, headers={"content-type": "application/x-amz-json-1.1"})
    keys = Credentials(IDENTITY["AccessKeyId"], IDENTITY["SecretAccessKey"], IDENTITY["Token"])
    (S3SigV4Auth if service == "s3" else SigV4Auth)(keys, service, "eu-central-1").add_auth(theirs)
    signed = {name.lower(): value for name, value in theirs.headers.items() if name.lower() != "authorization"}
    assert "x-amz-security-token" in signed and "x-amz-date" in signed
    ours = cloud.authorization(method, url, service, signed, body, IDENTITY)
    assert ours == theirs.headers["Authorization"]


def test_it_wants_the_standard_library_alone_and_says_what_was_refused(aws: FakeAws, tmp_path: Path) -> None:
    """Check that cloud.py runs without packages, and that it reports refused calls and failed connections without a traceback."""
    found = run(aws, "secret", "arn:x")
    assert (found.returncode, found.stdout, found.stderr) == (0, "s3cret\n", "")
    aws.fails.add("GetSecretValue")
    refused = run(aws, "secret", "arn:x")
    assert refused.returncode == 1
    assert refused.stderr.startswith('secret: HTTP Error 400: Bad Request {"__type": "AccessDeniedException"}')
    nobody = run(aws, "get", "s3://bucket/key", str(tmp_path / "x"), AWS_ENDPOINT_URL="http://127.0.0.1:9")
    assert (nobody.returncode, nobody.stdout, list(tmp_path.iterdir())) == (1, "", [])
    assert "Connection refused" in nobody.stderr and "Traceback" not in nobody.stderr


def test_a_long_log_is_cut_to_what_one_call_takes(aws: FakeAws, tmp_path: Path) -> None:
    """Check that cloud.py sends the end of a long log, within the limits of one call."""
    (tmp_path / "log").write_text(
        "".join(f"{number} {'x' * 300}\n" for number in range(20_000)) + "y" * 9_000 + "\nlast"
    )
    assert run(aws, "log", "/g", "host", str(tmp_path / "log")).returncode == 0
    events = aws.logs["/g host/i-0123"]
    assert len(events) <= 10_000 and sum(len(each.encode()) + 26 for each in events) <= 1_048_576
    assert events[-1] == "last" and "".join(events[-6:-1]).endswith("y" * 9_000)


def access_control(url: str, *, from_call: bytes) -> None:
    """Make moto check permissions from the n-th call on. `from_call`: that n in decimal digits."""
    asked = urllib.request.Request(f"{url}/moto-api/reset-auth", from_call, {"Content-Type": "text/plain"})
    urllib.request.urlopen(asked).close()


def test_moto_computes_each_signature_anew_and_lets_it_through(
    cloud: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Check that moto with its access control accepts the signatures of the boot's calls, and refuses a wrong key.

    It also looks each action up in the role's policy.
    """
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "admin")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "admin")
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    try:
        url = "http://{}:{}".format(*server.get_host_and_port())
        made = {
            name: boto3.client(name, "eu-central-1", endpoint_url=url)
            for name in ("iam", "s3", "sts", "secretsmanager", "logs")
        }
        role = made["iam"].create_role(RoleName="host", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
        actions = [
            "s3:GetObject",
            "s3:PutObject",
            "secretsmanager:GetSecretValue",
            "logs:CreateLogStream",
            "logs:PutLogEvents",
        ]
        policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": actions, "Resource": "*"}]}
        made["iam"].put_role_policy(RoleName="host", PolicyName="p", PolicyDocument=json.dumps(policy))
        given = made["sts"].assume_role(RoleArn=role, RoleSessionName="i-0123")["Credentials"]
        made["s3"].create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
        arn = made["secretsmanager"].create_secret(Name="x", SecretString="s3cret")["ARN"]
        made["logs"].create_log_group(logGroupName="/crossover/x/boot")
        identity = {"AccessKeyId": given["AccessKeyId"], "SecretAccessKey": given["SecretAccessKey"]}
        identity["Token"] = given["SessionToken"]
        answers = {"instance-id": "i-0123", "iam/security-credentials/": "host"}
        monkeypatch.setattr(cloud, "metadata", lambda path: answers.get(path) or json.dumps(identity))
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        (tmp_path / "log").write_text("one\n\ntwo\n")
        access_control(url, from_call=b"0")
        cloud.s3("s3://bucket/a key+with/signs.pem", "PUT", b"certificate")
        assert cloud.s3("s3://bucket/a key+with/signs.pem", "GET") == b"certificate"
        assert cloud.secret(arn) == "s3cret"
        cloud.log("/crossover/x/boot", "redis-0", str(tmp_path / "log"))
        with pytest.raises(urllib.error.HTTPError) as refused:
            cloud.leave()  # no action of this role's
        assert refused.value.code == 403
        refused.value.close()  # with the connection that its answer holds: whoever collects garbage next would be told of it
        identity["SecretAccessKey"] = "another"
        for call in (lambda: cloud.secret(arn), lambda: cloud.s3("s3://bucket/a key+with/signs.pem", "GET")):
            with pytest.raises(urllib.error.HTTPError) as refused:
                call()
            refused.value.close()
        access_control(url, from_call=b"Infinity")
        (stream,) = made["logs"].describe_log_streams(logGroupName="/crossover/x/boot")["logStreams"]
        events = made["logs"].get_log_events(logGroupName="/crossover/x/boot", logStreamName=stream["logStreamName"])[
            "events"
        ]
        assert (stream["logStreamName"], [each["message"] for each in events]) == ("redis-0/i-0123", ["one", "two"])
    finally:
        server.stop()
