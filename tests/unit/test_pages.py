"""Pages, docstrings and comments name files, modules and functions that exist."""

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.unit.test_structure import FLOOR
from tools import house

ROOT = Path(__file__).parents[2]
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
FILES = [name for name in TRACKED if (ROOT / name).is_file()]  # one may be deleted and not yet committed
MODULES = [Path(name) for name in FILES if name.endswith(".py")]
SCHEMA = json.loads((ROOT / "config" / "experiment.schema.json").read_text(encoding="utf-8"))

FILE = re.compile(r"(?<![\w./<>{}*~$-])((?:[\w.-]+/)*[\w-]+\.(?:py|md|yaml|sh|hpp|cpp|jinja))(?![\w/{<*-])")
FOLDER = re.compile(
    r"(?<![\w./<>{}*~$-])((?:crossover|functions|peers|stacks|cdk|layer|lab|tools|examples|docs|config|tests|benchmarks)/(?:\w+/)*)(?![\w{<*.])"
)
NAME = re.compile(r"(?<![\w./'\"$-])([a-z_]\w*(?:\.[A-Za-z_]\w*)+)(?![\w/])")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```\w+\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)  # a file, by its first line
CITED = re.compile(r"(docs/\w+\.md), (\d)")
ENDINGS = {"py", "md", "yaml", "json", "jsonl", "csv", "html", "sh", "hpp", "cpp", "so", "zip", "out", "safetensors"}
# What a reader's own files are called, and what commands write.
EXAMPLES = {"mine", "mytask", "name", "NAME", "index"}
WRITTEN = {
    "config/account.yaml",
    "account.yaml",
    "study.yaml",
    "1-single.yaml",
    "mine-advice-1-single.yaml",
}  # by users and by advise
OTHERS = {"torch", "aws", "docs"}  # packages, services and sites of others that a module of ours is called after


@cache
def parsed(file: str) -> ast.Module:
    """Return the syntax tree of a file of the project."""
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def prose(file: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of a page, or of each of a module's docstrings and comments."""
    text = (ROOT / file).read_text(encoding="utf-8")
    if file.endswith(".md"):
        yield 1, text
        return
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""
    for number, line in enumerate(text.splitlines(), 1):
        yield number, line[found.start() :] if (found := re.search(r"(?:^|\s)# ", line)) else ""


def own_names(file: str) -> set[str]:
    """Return the names that may look like modules and are not: of a page the files that its code blocks are, of a module its functions'
    parameters.
    """
    if file.endswith(".py"):
        return {node.arg for node in ast.walk(parsed(file)) if isinstance(node, ast.arg)}
    return {each for name, _ in BLOCK.findall((ROOT / file).read_text("utf-8")) for each in (name, Path(name).stem)}


def ends(parts: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield all endings of a dotted name, the longest first."""
    return (parts[start:] for start in range(len(parts)))


# Every file and folder, by any end of its path: `workflow/state_machines.py` is found, too.
THERE = {end for name in FILES for path in (Path(name), *Path(name).parents) for end in ends(path.parts)}


def words_of(module: Path) -> set[str]:
    """Return every name in the module's code; for a package, the names of its modules too."""
    inside = {
        str(getattr(node, part, "")) for node in ast.walk(parsed(str(module))) for part in ("name", "id", "attr", "arg")
    }
    return inside | ({path.stem for path in (ROOT / module.parent).iterdir()} if module.stem == "__init__" else set())


WORDS: dict[tuple[str, ...], set[str]] = {}
for path in MODULES:
    words = words_of(path)
    for end in ends(path.parent.parts if path.stem == "__init__" else path.with_suffix("").parts):
        WORDS.setdefault(end, set()).update(words)
FIRST = {end[0] for end in WORDS}


def resolves(name: str) -> bool:
    """Return whether the dotted name exists: a module of this project with what it holds (leading packages may be left out), or a field of
    an experiment's YAML.
    """
    parts = tuple(name.split("."))
    modules = (parts[:count] for count in range(len(parts), 0, -1) if parts[:count] in WORDS)
    known = any(WORDS[module].issuperset(parts[len(module) :]) for module in modules)
    return known or has_field(SCHEMA, parts[parts[0] == "experiment" :])


def has_field(schema: dict[str, object], parts: tuple[str, ...]) -> bool:
    """Return whether the schema has a field with that dotted name."""
    if not parts:
        return True
    text = json.dumps(schema)
    reference = re.search(r'"\$ref": "#/\$defs/(\w+)"', text) if "properties" not in schema else None
    inner = SCHEMA["$defs"][reference[1]] if reference else schema
    return parts[0] in inner.get("properties", {}) and has_field(inner["properties"][parts[0]], parts[1:])


PAGES = [name for name in FILES if name.endswith(".md")]


@pytest.mark.parametrize("files", [PAGES, [str(path) for path in MODULES]], ids=["pages", "modules"])
def test_what_is_mentioned_exists(files: list[str]) -> None:
    """The files, folders, modules and fields that documents, docstrings and comments mention exist."""
    wrong = []
    for file in files:
        own = own_names(file)
        for line, text in prose(file):
            text = FENCED.sub("", text)  # what a page's code names, its run shows
            paths = [path for found in (FILE, FOLDER) for path in found.findall(text)]
            wrong += [
                f"{file}:{line}: {path} is not there"
                for path in paths
                if not path.startswith("../")  # a link, which test_documents.py follows
                and path not in own | WRITTEN
                and EXAMPLES.isdisjoint(Path(path).with_suffix("").parts)
                and Path(path).parts not in THERE
            ]
            wrong += [
                f"{file}:{line}: {name} is neither a name of a module nor a field of a YAML"
                for name in NAME.findall(text)
                if name.split(".")[0] in FIRST - OTHERS - EXAMPLES - own
                and name.split(".")[-1] not in ENDINGS
                and not resolves(name)
            ]
    assert not wrong, "\n".join(wrong)


def test_the_map_has_a_line_for_every_part_of_the_house() -> None:
    """The table in docs/architecture.md has a line for every package of `crossover`."""
    rows = "".join(re.findall(r"^\| .*", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"), re.MULTILINE))
    names = {part.removeprefix("crossover.") for part in FLOOR} - {"app"}
    assert {name for name in names if f"`{name}/`" not in rows and f"`{name}.py`" not in rows} == set()


def test_sections_that_are_named_by_number_exist() -> None:
    """Every section that a file names by its page and number exists."""
    cited = [
        (file, *found)
        for file in FILES
        if file.endswith((".py", ".md"))
        for found in CITED.findall((ROOT / file).read_text("utf-8"))
    ]
    wrong = [
        f"{file}: {page}, {number}"
        for file, page, number in cited
        if f"\n## {number}. " not in (ROOT / page).read_text("utf-8")
    ]
    assert cited and not wrong, "\n".join(wrong)


def test_the_picture_of_the_house_is_the_one_that_its_imports_draw() -> None:
    """The committed picture of the packages is what their imports give."""
    assert house.PAGE.read_text(encoding="utf-8") == house.draw_page(), "draw it anew: python -m tools.house"


def test_files_of_the_project_that_a_page_shows_are_shown_as_they_stand() -> None:
    """A file of the project that a page shows in full is shown unchanged."""
    blocks = [(page, *each) for page in PAGES for each in BLOCK.findall((ROOT / page).read_text("utf-8"))]
    shown = [(page, name, text) for page, name, text in blocks if name in FILES]
    assert shown and not [f"{page}: {name}" for page, name, text in shown if text != (ROOT / name).read_text("utf-8")]
