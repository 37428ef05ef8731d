"""README and docs/: links lead somewhere, figures and messages are today's, commands exist."""

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from crossover.cli.arguments import load_runnable
from crossover.cli.commands import app
from crossover.cli.plan import describe_hourly_costs
from crossover.errors import ConfigError
from tools.reference_yaml import PAGE, render_page
from tools.site import list_pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|^    .*?$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
REFUSED = {
    "worker=3": ("spirt", "worker: is unknown; did you mean workers?"),
    "workers=0": ("spirt", "workers: 0 is not allowed; expected an integer >= 1 and <= 64"),
    "architecture=spurt": ("spirt", "architecture: 'spurt' is unknown; one of all_reduce, gpu,"),
    "aggregation.rule=krum": (
        "scatter-reduce",
        "aggregation.rule: krum measures distances between whole gradients, but ScatterReduce aggregates chunks",
    ),
    "training.optimizer=adam": ("mlless", "training.optimizer: adam cannot run in MLLess"),
    "gpu.instance_type=m7g.large": ("gpu", "gpu.instance_type: m7g.large has no NVIDIA GPU"),
}


def _list_documents() -> list[Path]:
    """Return the paths of all tracked Markdown pages but for the generated results."""
    listed = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, check=True, text=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name and not name.startswith("docs/results/")]


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_files_and_anchors_that_exist() -> None:
    """Every relative link of the documents leads to a file, and its anchor to a heading there."""
    broken = []
    for page in _list_documents():
        for target in LINK.findall(CODE.sub("", page.read_text("utf-8"))):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            aimed = (page.parent / path) if path else page
            if not aimed.exists() or (anchor and aimed.suffix == ".md" and anchor not in _anchors(aimed)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken


def test_each_page_says_whom_it_is_for_and_is_in_the_index() -> None:
    """Every page of docs begins with its readers and is linked in docs/README.md."""
    index = (DOCS / "README.md").read_text("utf-8")
    for page in [*DOCS.glob("*.md"), *(DOCS / "architectures").glob("*.md")]:
        assert page.read_text("utf-8").startswith(("For ", "# Assist")), page
        assert page == DOCS / "README.md" or f"({page.relative_to(DOCS)})" in index, page


def test_the_navigation_of_the_site_names_every_page_once() -> None:
    """The navigation in zensical.toml has every page of the site once."""

    def list_entries(entry: Any) -> Iterator[str]:
        """Yield the pages of an entry of the navigation and of all below it."""
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry.values() if isinstance(entry, dict) else entry:
                yield from list_entries(inner)

    nav = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"]
    assert sorted(list_entries(nav)) == list_pages()


def test_readme_is_short_and_states_the_errors_that_calibration_found() -> None:
    """README.md has at most 900 words, and its three rows of errors are those of docs/calibration.md."""
    readme, calibration = (ROOT / "README.md").read_text("utf-8"), (DOCS / "calibration.md").read_text("utf-8")
    assert len(readme.split()) <= 900
    rows = re.findall(r"^\| (.*?) \| (\d+) \| ([\d.]+) % \| ([\d.]+) % \| ([\d,.]+) % \|$", readme, re.MULTILINE)
    assert len(rows) == 3
    for _, count, *errors in rows:
        median, p90, worst = (error.replace(",", "") for error in errors)
        assert re.search(rf"\b{count} [^\n]*median \*\*{median}%\*\*, p90 {p90}%, worst {worst}%", calibration)


def test_the_reference_of_fields_is_what_the_schema_says() -> None:
    """The committed reference of YAML fields is what its tool writes."""
    assert PAGE.read_text("utf-8") == render_page(), "python -m tools.reference_yaml"


@pytest.mark.parametrize("override", REFUSED)
def test_troubleshooting_quotes_messages_as_they_are(override: str) -> None:
    """The messages in docs/troubleshooting.md about wrong settings are those that such settings raise."""
    config, message = REFUSED[override]
    with pytest.raises(ConfigError) as refused:
        load_runnable(ROOT / "config" / f"{config}.yaml", [override])
    assert message in str(refused.value)
    assert message in (DOCS / "troubleshooting.md").read_text("utf-8")


def test_troubleshooting_quotes_messages_that_the_code_has() -> None:
    """Other messages that docs/troubleshooting.md quotes occur in the code."""
    rows = re.findall(r"^\| (.*?) \|", (DOCS / "troubleshooting.md").read_text("utf-8"), re.MULTILINE)
    quoted = {text for row in rows for text in re.findall("`([^`]* [^`]*)`", row)}
    quoted -= {message for _, message in REFUSED.values()}
    code = "".join(path.read_text("utf-8") for path in (ROOT / "crossover").rglob("*.py"))
    assert quoted
    assert [text for text in sorted(quoted) if text not in code] == []


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md", "docs/troubleshooting.md"])
def test_commands_and_their_options_exist(page: str) -> None:
    """The `crossover` commands, options and config files that a page mentions exist."""
    group: Any = get_command(app)
    found = re.findall(r"(?:\.venv/bin/|`)crossover (\w[^\n`#]*)", (ROOT / page).read_text("utf-8"))
    assert found
    for line in found:
        name, *words = shlex.split(line)
        known = {option for parameter in group.get_command(None, name).params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line
        assert [word for word in words if word.startswith("config/") and not (ROOT / word).exists()] == []


def test_the_costs_of_an_hour_are_those_that_plan_prints() -> None:
    """The hourly costs in docs/aws.md are those that `crossover plan` prints."""
    rows = re.findall(
        r"^\| `([\w-]+)` \| (\d\.\d\d) \| (\d\.\d\d) \|$", (DOCS / "aws.md").read_text("utf-8"), re.MULTILINE
    )
    assert len(rows) == 9
    for name, standing, running in rows:
        experiment = load_runnable(ROOT / "config" / f"{name}.yaml")
        printed = f"cost per hour: ${standing} while deployed, ${running} during a run"
        assert describe_hourly_costs(experiment)[0].startswith(printed), name
