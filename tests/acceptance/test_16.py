"""The house can be seen whole: what stands in one file, in one function, under one name, and where people look for what they ask.

Who may import whom, and how many rooms there are: tests/unit/test_structure.py.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator

from crossover.architecture import training_architectures
from tests.unit.test_structure import ROOT, files

LONGEST_FILE, LONGEST_FUNCTION, LONGEST_STACK = 400, 60, 60


def trees() -> Iterator[tuple[str, ast.Module]]:
    return ((str(path.relative_to(ROOT)), ast.parse(path.read_text("utf-8"))) for path in files())


def test_no_file_and_no_function_is_too_long_to_read() -> None:
    long = [str(path) for path in files() if len(path.read_text("utf-8").splitlines()) > LONGEST_FILE]
    long += [
        f"{file}:{node.lineno}: {node.name}"
        for file, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.body[-1].end_lineno - node.lineno >= LONGEST_FUNCTION  # type: ignore[operator]
    ]
    assert long == []


def types_of(tree: ast.Module) -> Iterator[str]:
    """Public names of classes, and of aliases of types, which are written as classes are."""
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name):
                    yield name


def test_a_type_name_stands_for_one_thing() -> None:
    counted = Counter(name for _, tree in trees() for name in types_of(tree) if not name.startswith("_"))
    assert [name for name, times in counted.items() if times > 1] == []


def test_every_architecture_has_a_stack_on_a_page() -> None:
    for name in training_architectures():
        text = (ROOT / "stacks" / f"{name}.py").read_text("utf-8")
        (stack,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
        assert stack.end_lineno is not None and stack.end_lineno - stack.lineno < LONGEST_STACK, name


def test_a_question_is_answered_by_five_files_at_most() -> None:
    page = (
        (ROOT / "docs" / "architecture.md")
        .read_text("utf-8")
        .partition("\n## Ten questions\n")[2]
        .partition("\n## ")[0]
    )
    rows = [re.findall(r"`([^`]+\.\w+)`", row) for row in re.findall(r"^\| (?!question|---).*", page, re.MULTILINE)]
    assert len(rows) == 10
    assert [row for row in rows if not 1 <= len(row) <= 5 or not all((ROOT / file).is_file() for file in row)] == []


def test_the_first_page_is_one() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 1_000
    assert len((ROOT / "docs" / "simulation.md").read_text("utf-8").split()) <= 2_000
