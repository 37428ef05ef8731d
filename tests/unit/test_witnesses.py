"""A judge that is not there is skipped, unless it was asked for: then that is a failure."""

from pathlib import Path

import pytest

from tests.witnesses import environments


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of witnesses' environments, which does not exist; none is demanded."""
    monkeypatch.setattr(environments, "FOLDER", tmp_path / "build" / "witnesses")
    monkeypatch.delenv(environments.DEMANDED, raising=False)
    return tmp_path / "build" / "witnesses"


def test_every_judge_says_what_it_is_made_from_and_has_tests() -> None:
    """Every witness has its folder of pins and its test file."""
    named = {path.parent.name for path in environments.HERE.glob("*/*") if path.parent.name != "__pycache__"}
    assert named == {path.stem.removeprefix("test_") for path in environments.HERE.glob("test_*.py")}


@pytest.mark.usefixtures("nowhere")
def test_without_its_environment_a_judge_is_skipped_with_the_target_that_makes_one() -> None:
    """A witness without an environment skips its tests and names the make target that installs it."""
    with pytest.raises(pytest.skip.Exception, match="make witness-asl_validator"):
        environments.environment("asl_validator")


@pytest.mark.usefixtures("nowhere")
def test_a_judge_that_was_asked_for_does_not_pass_by_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A witness that was demanded fails its tests if it is not installed."""
    monkeypatch.setenv(environments.DEMANDED, "other asl_validator")
    with pytest.raises(pytest.fail.Exception, match="not installed"):
        environments.environment("asl_validator")


def test_an_environment_made_from_other_pins_is_not_used(
    nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A witness's environment is not used after its setup has changed, until it is installed anew."""
    monkeypatch.setattr(environments, "HERE", tmp_path)
    (tmp_path / "judge").mkdir()
    setup = tmp_path / "judge" / "setup"
    setup.write_text('#!/bin/sh\necho first > "$1/made"\n')
    setup.chmod(0o755)
    environments.install("judge")
    assert (environments.environment("judge") / "made").read_text() == "first\n"

    setup.write_text('#!/bin/sh\necho second > "$1/made"\n')
    with pytest.raises(pytest.skip.Exception):
        environments.environment("judge")
    environments.install("judge")
    assert (environments.environment("judge") / "made").read_text() == "second\n"
    assert nowhere.exists()
