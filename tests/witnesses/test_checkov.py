"""checkov: what its authors take for careless in a template. Each of its findings that stands has its reason here."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.witnesses.definitions import configurations
from tests.witnesses.environments import environment
from tests.witnesses.templates import different

NAME = "checkov"

# (check, resource type): why what it finds stands.
STANDS = {
    (
        "CKV_AWS_27",
        "AWS::SQS::Queue",
    ): "SQS encrypts with its own key, which checkov does not count; it holds no secret.",
    (
        "CKV_AWS_18",
        "AWS::S3::Bucket",
    ): "Only the experiment's own functions read its bucket, which is gone with its stack.",
    (
        "CKV_AWS_21",
        "AWS::S3::Bucket",
    ): "Objects are written once under names of their own; versions would be paid for and never read.",
    (
        "CKV_AWS_111",
        "AWS::IAM::Role",
    ): "Interfaces and the session manager know no resources: reasons in cdk/.",
    (
        "CKV_AWS_115",
        "AWS::Lambda::Function",
    ): "A reservation takes from the account's concurrency, of which new accounts have ten.",
    (
        "CKV_AWS_116",
        "AWS::Lambda::Function",
    ): "State machines and programs call them and see their failures.",
    (
        "CKV_AWS_117",
        "AWS::Lambda::Function",
    ): "Steps that need S3 alone stay outside the VPC, which costs them nothing to start.",
    (
        "CKV_AWS_149",
        "AWS::SecretsManager::Secret",
    ): "AWS's own key encrypts it; one of ours costs a dollar a month.",
    ("CKV_AWS_158", "AWS::Logs::LogGroup"): "Logs hold no secret; CloudWatch encrypts them with its own key.",
    (
        "CKV_AWS_173",
        "AWS::Lambda::Function",
    ): "Variables hold names and addresses, no secret; Lambda encrypts them with its own key.",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], set[str]]:
    """Return the failed checks by (check, type of resource), in all templates of all configurations."""
    environment(NAME)
    folder = tmp_path_factory.mktemp(NAME)
    paths = different(dict(configurations()), folder)
    return failures(folder / "templates", len(paths))


def failures(folder: Path, templates: int) -> dict[tuple[str, str], set[str]]:
    """Run checkov on a folder of templates, and return the places of failed checks by (check, type of resource). Raises AssertionError
    unless it has read `templates` templates.
    """
    command = [environment(NAME) / "venv" / "bin" / NAME, "--directory", folder, "--framework", "cloudformation"]
    done = subprocess.run(
        [*command, "--output", "json", "--compact", "--soft-fail", "--skip-download"],
        env={**os.environ, "LOG_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert report["summary"]["parsing_errors"] == 0
    seen = {each["file_path"] for kind in ("passed_checks", "failed_checks") for each in report["results"][kind]}
    assert len(seen) == templates, "a template was not looked at"
    failed: dict[tuple[str, str], set[str]] = {}
    for each in report["results"]["failed_checks"]:
        kind = each["resource"].partition(".")[0]
        failed.setdefault((each["check_id"], kind), set()).add(
            f"{each['file_path']} {each['resource']}: {each['check_name']}"
        )
    return failed


def test_no_check_fails_but_those_with_a_reason(found: dict[tuple[str, str], set[str]]) -> None:
    """Check that no check of checkov fails but those for which a reason is given."""
    assert {check: places for check, places in found.items() if check not in STANDS} == {}


def test_every_reason_is_needed(found: dict[tuple[str, str], set[str]]) -> None:
    """Check that each check with a reason fails somewhere."""
    assert STANDS.keys() - found.keys() == set()


def test_checkov_finds_a_planted_error(tmp_path: Path) -> None:
    """Check that checkov finds a bucket that everybody may read."""
    environment(NAME)
    bucket: dict[str, Any] = {"Type": "AWS::S3::Bucket", "Properties": {"AccessControl": "PublicRead"}}
    (tmp_path / "bad.json").write_text(json.dumps({"Resources": {"Bucket": bucket}}))
    assert ("CKV_AWS_20", "AWS::S3::Bucket") in failures(tmp_path, 1)
