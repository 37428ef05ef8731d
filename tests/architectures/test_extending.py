"""docs/extending.md as it stands: its files in a copy of the project, its commands there, and what they print."""

import shutil
from pathlib import Path

import pytest

from tests.architectures.worked_pages import ROOT, check, written

CONSOLES = ["architecture"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a copy of the project's packages and configuration, which the test may change."""
    for package in ("crossover", "functions", "peers", "stacks", "cdk", "config"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_every_example_has_a_name_here(tmp_path: Path) -> None:
    """Check that docs/extending.md has as many console blocks as CONSOLES, and shows the added modules of tests/ as they are."""
    assert len(written("extending.md", tmp_path)) == len(CONSOLES)
    for path in (tmp_path / "tests").rglob("*.py"):  # which test_additions.py trains with
        shown = path.read_text(encoding="utf-8").partition("\n")[2]  # below its name
        assert shown == (ROOT / path.relative_to(tmp_path)).read_text(encoding="utf-8"), path


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CONSOLES)), ids=CONSOLES)
def test_the_pages_commands_print_what_it_says(project: Path, number: int) -> None:
    """Run the commands of each console block of docs/extending.md, and check that they print the lines shown."""
    check(written("extending.md", project)[number], project)
