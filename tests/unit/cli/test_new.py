"""`crossover new`: drafts after every architecture keep the house's rules; a name that cannot be taken leaves nothing behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from crossover.cli import new
from crossover.errors import ConfigError, UserError
from crossover.workflow.architecture import architectures

ROOT = Path(__file__).parents[3]


def test_drafts_after_every_architecture_pass_the_linters(tmp_path: Path) -> None:
    """The files that `new` drafts from each architecture pass ruff's checks and format."""
    for package in ("crossover", "cdk"):  # the linter tells ours by their folders
        (tmp_path / package).mkdir()
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for like in architectures():
        files = new.draft_files(f"my_{like}", like)
        assert f"config/my-{like.replace('_', '-')}.yaml" in files
        assert sum("# Created by `crossover new" in text for text in files.values()) == 1
        new._write_files(tmp_path, files)
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "."], cwd=tmp_path, capture_output=True, text=True
        )
        assert not done.returncode, done.stdout


def test_settings_of_its_own_are_a_section_of_its_own() -> None:
    """A draft from an architecture with settings has a section under its own name."""
    files = new.draft_files("mine", "mlless")
    assert "\nmine:\n" in files["config/mine.yaml"] and "\nmlless:" not in files["config/mine.yaml"]
    assert "mine.min_workers: " in files["functions/mine/settings.py"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Mine", "'Mine' is not a module name; use lower-case letters, digits and _, starting with a letter"),
        ("../mine", "is not a module name"),
        ("import", "is not a module name"),
        ("", "is not a module name"),
        ("spirt", "'spirt' is taken; choose another one"),
        ("scatter-reduce", "is taken"),
        ("network", "is taken"),
        ("training", "is taken"),  # a section of every YAML
    ],
)
def test_a_name_that_cannot_be_taken_is_refused(name: str, said: str) -> None:
    """A name that is no module name, or is taken, raises UserError with `said`."""
    with pytest.raises(UserError, match=f"^name: .*{said}"):
        new.draft_files(name, "spirt")


def test_an_architecture_that_is_not_there_cannot_be_followed() -> None:
    """Drafting from an unknown architecture raises ConfigError."""
    with pytest.raises(ConfigError, match="'spirr' is unknown"):
        new.draft_files("mine", "spirr")


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    """`new` refuses to write if one of the files exists, and writes none."""
    files = new.draft_files("mine", "spirt")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "mine.yaml").write_text("another's")
    with pytest.raises(UserError, match=r"^config/mine\.yaml exists already; choose another name, or move it$"):
        new._write_files(tmp_path, files)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["mine.yaml"]
    assert (tmp_path / "config" / "mine.yaml").read_text() == "another's"


def test_what_cannot_be_written_whole_is_taken_back(tmp_path: Path) -> None:
    """If one file cannot be written, those written before are deleted."""
    (tmp_path / "config").write_text("no folder")
    with pytest.raises(OSError, match="config"):
        new._write_files(tmp_path, new.draft_files("mine", "spirt"))
    assert [path.name for path in tmp_path.iterdir()] == ["config"]
