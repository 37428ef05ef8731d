"""The calls that a host signs by itself: botocore makes the same signatures, and moto, which checks them, lets them through."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.infrastructure.conftest import ROOT
from tests.infrastructure.fake_aws import IDENTITY, FakeAws

PROGRAM = ROOT / "cdk" / "boot" / "cloud.py"


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    spec = importlib.util.spec_from_file_location("boot_cloud", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def aws() -> Iterator[FakeAws]:
    made = FakeAws()
    yield made
    made.close()


def run(aws: FakeAws, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """As a host runs it: its own interpreter, nothing of this environment's packages."""
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
    url = f"https://{service}.eu-central-1.amazonaws.com{path}"
    theirs = AWSRequest(method, url, data=body, headers={"content-type": "application/x-amz-json-1.1"})
    keys = Credentials(IDENTITY["AccessKeyId"], IDENTITY["SecretAccessKey"], IDENTITY["Token"])
    (S3SigV4Auth if service == "s3" else SigV4Auth)(keys, service, "eu-central-1").add_auth(theirs)
    signed = {name.lower(): value for name, value in theirs.headers.items() if name.lower() != "authorization"}
    assert "x-amz-security-token" in signed and "x-amz-date" in signed
    ours = cloud.authorization(method, url, service, signed, body, IDENTITY)
    assert ours == theirs.headers["Authorization"]
