"""Functions act under their role: what its policies do not name is refused in the service's own words, and nobody else is."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.iam.models import iam_backends

from crossover.errors import RunFailed
from crossover.local import permissions
from crossover.local.cloud import LocalCloud
from crossover.local.moto_patches.resource_types import ACCOUNT
from crossover.local.permissions import ApiCall
from crossover.running.deployed import run_deployed
from stacks.synthesis import synthesize
from tests.architectures.harness import small

BUCKET = "arn:aws:s3:::bucket"


def policy(*statements: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an IAM policy document of these statements."""
    return {"Version": "2012-10-17", "Statement": list(statements)}


def allow(actions: str | Sequence[str], resources: str | Sequence[str], effect: str = "Allow") -> Mapping[str, Any]:
    """Return a statement that allows the actions on the resources, or denies them with `effect`."""
    return {"Effect": effect, "Action": actions, "Resource": resources}


@pytest.mark.parametrize(
    ("statement", "call", "expected"),
    [
        (allow("s3:GetObject", f"{BUCKET}/runs/*"), ApiCall("s3:GetObject", f"{BUCKET}/runs/a/b"), True),
        (allow("s3:GetObject", f"{BUCKET}/runs/*"), ApiCall("s3:GetObject", f"{BUCKET}/data/a"), False),
        (allow("s3:GetObject", f"{BUCKET}/runs/*"), ApiCall("s3:PutObject", f"{BUCKET}/runs/a"), False),
        (allow(["s3:PutObject", "s3:Get*"], ["x", f"{BUCKET}/*"]), ApiCall("s3:GetObject", f"{BUCKET}/a"), True),
        (allow("*", "*", "Deny"), ApiCall("s3:GetObject", f"{BUCKET}/a"), False),
    ],
)
def test_a_statement_allows_what_iam_would_allow(statement: Mapping[str, Any], call: ApiCall, expected: bool) -> None:
    """Check whether a policy of one statement allows the call."""
    assert permissions.is_allowed([policy(statement)], call) is expected


def test_a_deny_counts_more_than_an_allow() -> None:
    """Check that a statement that denies a call overrides one that allows it."""
    call = ApiCall("s3:GetObject", f"{BUCKET}/a")
    assert not permissions.is_allowed([policy(allow("s3:*", "*")), policy(allow("s3:GetObject", "*", "Deny"))], call)


def client(cloud: LocalCloud, service: str, role: str) -> Any:
    """Return a client of the local cloud that has signed in as the role."""
    return cloud.endpoint.session(permissions.make_access_key(f"arn:aws:iam::123456789012:role/{role}")).client(service)


@pytest.mark.slow
def test_calls_over_the_apis(cloud: LocalCloud) -> None:
    """Call S3 and Secrets Manager as a role: what its policy allows is answered, all else refused with action and resource; a role that
    does not exist may do nothing.
    """
    session = cloud.session()
    session.client("s3").create_bucket(Bucket="bucket")
    session.client("s3").put_object(Bucket="bucket", Key="runs/a", Body=b"a")
    secret = session.client("secretsmanager").create_secret(Name="s", SecretString="x")["ARN"]
    iam = session.client("iam")
    iam.create_role(RoleName="reader", AssumeRolePolicyDocument="{}")
    given = policy(allow("s3:GetObject", f"{BUCKET}/runs/*"), allow("secretsmanager:GetSecretValue", secret))
    iam.put_role_policy(RoleName="reader", PolicyName="p", PolicyDocument=json.dumps(given))
    s3, secrets = client(cloud, "s3", "reader"), client(cloud, "secretsmanager", "reader")
    assert s3.get_object(Bucket="bucket", Key="runs/a")["Body"].read() == b"a"
    assert secrets.get_secret_value(SecretId=secret)["SecretString"] == "x"
    with pytest.raises(ClientError, match=r"AccessDenied.*role reader is not authorized to perform s3:PutObject"):
        s3.put_object(Bucket="bucket", Key="runs/a", Body=b"b")
    with pytest.raises(ClientError, match=r"s3:DeleteObject on arn:aws:s3:::bucket/a&b"):
        s3.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": "a&b"}]})
    with pytest.raises(ClientError, match="s3:ListBucket"):
        s3.list_objects_v2(Bucket="bucket")
    with pytest.raises(ClientError, match=r"AccessDeniedException.*secretsmanager:GetSecretValue on other"):
        secrets.get_secret_value(SecretId="other")
    with pytest.raises(ClientError, match=r"secretsmanager:ListSecrets.*does not know which resource"):
        secrets.list_secrets()
    with pytest.raises(ClientError, match="role nobody"):
        client(cloud, "s3", "nobody").get_object(Bucket="bucket", Key="runs/a")


def withdraw(cloud: LocalCloud, role: str, action: str) -> None:
    """Remove all policy statements that allow `action` from the one role that has `role` in its name. Fails if there were none."""
    names = [r["RoleName"] for r in cloud.session().client("iam").list_roles()["Roles"] if role in r["RoleName"]]
    assert len(names) == 1, names
    documents: Any = iam_backends[ACCOUNT]["aws"].get_role(names[0]).policies  # text by its type, documents in fact
    withdrawn = 0
    for document in documents.values():
        statements = [each for each in document["Statement"] if action not in each["Action"]]
        withdrawn += len(document["Statement"]) - len(statements)
        document["Statement"] = statements
    assert withdrawn


@pytest.mark.slow
def test_a_run_fails_by_name_where_a_function_lacks_a_permission(cloud: LocalCloud, tmp_path: Path) -> None:
    """Withdraw a permission of the training function: the run fails, and the function's log names the refused action. The same run succeeds
    with the template's own grants, in test_on_local.
    """
    experiment = replace(small("all_reduce", workers=1, epochs=1), name="denied")
    cloud.deploy(synthesize(experiment, tmp_path / "assembly"))
    withdraw(cloud, "Functionstrain", "s3:PutObject")
    with pytest.raises(RunFailed):
        run_deployed(experiment, tmp_path / "out", lambda progress: None, session=cloud.session(), where="local")
    logs = cloud.session().client("logs")
    events = logs.filter_log_events(logGroupName="/aws/lambda/crossover-denied-train")["events"]
    assert any("is not authorized to perform s3:" in event["message"] for event in events)


@pytest.mark.slow
@pytest.mark.parametrize(("action", "where"), [("s3:GetObject", "endpoint.log"), ("s3:PutObject", "0.log")])
def test_a_run_fails_where_a_fleet_lacks_a_permission(
    cloud: LocalCloud, tmp_path: Path, action: str, where: str
) -> None:
    """Withdraw a permission (`action`) of a fleet's role: the run fails, and the log `where` has the refusal. The same run succeeds with
    the template's own grants, in test_programs_on_local.
    """
    found = small("gpu", workers=1, epochs=1)
    experiment = replace(found, name="denied-fleet", gpu=replace(found.gpu, instances=1))
    cloud.deploy(synthesize(experiment, tmp_path / "assembly"))
    try:
        withdraw(cloud, "Workers", action)
        with pytest.raises((RunFailed, ClientError)):  # the latter: its instances cannot even fetch their code
            run_deployed(experiment, tmp_path / "out", lambda progress: None, session=cloud.session(), where="local")
        logs = [path.read_text() for path in (cloud.workspace / "logs").rglob(where)]
        assert any("is not authorized to perform s3:" in text or "(403)" in text for text in logs)
    finally:
        cloud.destroy("crossover-denied-fleet")
