"""cfn-lint: every template against CloudFormation's own resource schemas, warnings too."""

import json
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.witnesses.definitions import configurations
from tests.witnesses.environments import environment
from tests.witnesses.templates import different

NAME = "cfn_lint"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return cfn-lint's findings by rule, in all templates of all configurations."""
    environment(NAME)
    return broken(list(different(dict(configurations()), tmp_path_factory.mktemp(NAME)).values()))


def broken(templates: list[Path]) -> dict[str, set[str]]:
    """Run cfn-lint on templates, and return its findings by rule."""
    program = environment(NAME) / "venv" / "bin" / "cfn-lint"
    done = subprocess.run(
        [program, "--format", "json", "--regions", "us-east-1", "--", *templates],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr[-2000:]
    rules = defaultdict[str, set[str]](set)
    for each in json.loads(done.stdout):
        place = "/".join(map(str, each["Location"]["Path"] or []))
        rules[each["Rule"]["Id"]].add(f"{Path(each['Filename']).name} {place}: {each['Message']}")
    return dict(rules)


def test_no_template_breaks_a_rule_of_cfn_lint(found: dict[str, set[str]]) -> None:
    """Check that cfn-lint finds nothing in the templates of any configuration."""
    assert found == {}


def test_cfn_lint_finds_a_planted_error(tmp_path: Path) -> None:
    """Check that cfn-lint finds a property that does not exist."""
    environment(NAME)
    bad: dict[str, Any] = {"Resources": {"Bucket": {"Type": "AWS::S3::Bucket", "Properties": {"Colour": "red"}}}}
    (tmp_path / "bad.json").write_text(json.dumps(bad))
    assert "E3002" in broken([tmp_path / "bad.json"])
