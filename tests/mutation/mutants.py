"""Faults drawn by seed from the source: how many of them the tests catch, before and after a large change.

    python -m tests.mutation.mutants draw                         faults.json: 12 of each of 5 kinds, by seed
    python -m tests.mutation.mutants cover [option ..]            one run of pytest: which tests reach which line, to build/mutation/
    python -m tests.mutation.mutants run [number ..] [option ..]  each fault against the tests that reach its line, up to the first failure

Options are pytest's: -m "not slow" asks what `make test` catches.

A fault is found again by what stands in its line, not by the line's number, so that the same ones can be run after files have changed; one
whose line is gone is reported as gone. Strings, annotations and what only type checkers see are left as they are.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAULTS = Path(__file__).parent / "faults.json"
BUILD = ROOT / "build" / "mutation"
HITS = BUILD / "hits"
SOURCES = ("crossover", "functions", "peers", "cdk", "stacks")
KINDS = ("comparison", "constant", "condition", "arguments", "removed")
SEED, OF_A_KIND = 1, 12
LONGEST_S = 900.0  # tests that take longer hang: the fault is caught

FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


@dataclass(frozen=True, order=True)
class Fault:
    """One changed line: in `function` of `file`, the `occurrence`-th line (from 0) that reads `before`, without its indentation."""

    file: str
    function: str
    before: str
    occurrence: int
    after: str
    kind: str


# --- drawing ----------------------------------------------------------------------------------------------------------


def draw(root: Path, *, seed: int, of_a_kind: int) -> list[Fault]:
    """Draw `of_a_kind` faults of each kind. The same seed and source give the same faults."""
    known = defaultdict(list)
    for path in sorted(path for source in SOURCES for path in (root / source).rglob("*.py")):
        for fault in faults_of(path.read_text("utf-8"), str(path.relative_to(root))):
            known[fault.kind].append(fault)
    chance = random.Random(seed)
    return [fault for kind in KINDS for fault in sorted(chance.sample(sorted(known[kind]), of_a_kind))]


def faults_of(text: str, file: str) -> Iterator[Fault]:
    """Yield every fault that can be made in a file."""
    lines, tree = text.splitlines(), ast.parse(text)
    for function, node in _nodes(tree, ()):
        for kind, target, other in _changes(node):
            if target.lineno != target.end_lineno or not function:
                continue
            line = lines[target.lineno - 1]
            encoded = line.encode()
            changed = encoded[: target.col_offset] + other.encode() + encoded[target.end_col_offset :]
            numbers = _lines_of(tree, lines, function, line.strip())
            yield Fault(file, function, line.strip(), numbers.index(target.lineno), changed.decode().strip(), kind)


def _nodes(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, ast.AST]]:
    """Yield (dotted name of the enclosing function or class, node) of each node of a syntax tree that is executed."""
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or field in ("annotation", "returns", "decorator_list"):
                continue
            if isinstance(child, ast.JoinedStr) or (
                isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            ):
                continue
            inner = (*names, child.name) if isinstance(child, ast.FunctionDef | ast.ClassDef) else names
            yield ".".join(names), child
            yield from _nodes(child, inner)


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """Yield (kind of fault, node to replace, its replacement as text) for each fault that a node allows."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in FLIPPED:
            flipped = ast.Compare(node.left, [FLIPPED[type(operator)]()], node.comparators)
            yield "comparison", node, _unparsed(flipped)
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as value):
            yield "constant", node, repr(value + 1)
            yield "constant", node, repr(value - 1)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield "condition", test, f"(not ({_unparsed(test)}))"
        case ast.Call(args=[first, second, *rest]) if not isinstance(first, ast.Starred) and ast.dump(
            first
        ) != ast.dump(second):
            if not isinstance(second, ast.Starred):
                yield "arguments", node, _unparsed(ast.Call(node.func, [second, first, *rest], node.keywords))
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Delete() | ast.Raise():
            yield "removed", node, "pass"


def _unparsed(node: ast.AST) -> str:
    """Return the source text of a syntax tree."""
    return ast.unparse(ast.fix_missing_locations(node))


def _lines_of(tree: ast.Module, lines: list[str], function: str, stripped: str) -> list[int]:
    """Return the numbers, from 1, of the lines in `function` whose stripped text is `stripped`."""
    node: ast.AST = tree
    for name in function.split("."):
        inside = (each for each in ast.walk(node) if isinstance(each, ast.FunctionDef | ast.ClassDef))
        node = next((each for each in inside if each.name == name and each is not node), tree)
        if node is tree:
            return []
    assert isinstance(node, ast.FunctionDef | ast.ClassDef) and node.end_lineno
    return [n for n in range(node.lineno, node.end_lineno + 1) if lines[n - 1].strip() == stripped]


def listed() -> list[Fault]:
    """Return the recorded faults of faults.json."""
    return [Fault(**each) for each in json.loads(FAULTS.read_text())]


# --- running ----------------------------------------------------------------------------------------------------------


def line_of(fault: Fault, root: Path) -> int | None:
    """Return the number of the fault's line in the present source; None if it does not exist any more."""
    path = root / fault.file
    return line_in(path.read_text("utf-8"), fault) if path.exists() else None


def line_in(text: str, fault: Fault) -> int | None:
    """Return the number of the fault's line in the text of its file; None if it does not exist."""
    numbers = _lines_of(ast.parse(text), text.splitlines(), fault.function, fault.before)
    return numbers[fault.occurrence] if fault.occurrence < len(numbers) else None


def apply(fault: Fault, root: Path) -> None:
    """Write the fault into its file under `root`. Raises AssertionError if its line does not exist any more."""
    number, path = line_of(fault, root), root / fault.file
    assert number is not None, f"{fault.file}: the line is gone"
    lines = path.read_text("utf-8").splitlines(keepends=True)
    line = lines[number - 1]
    lines[number - 1] = line.replace(fault.before, fault.after)
    path.write_text("".join(lines), "utf-8")


def cover(options: list[str]) -> None:
    """Record which tests reach each fault's line, by running pytest once on a copy of the source with a note before each such line. Deletes
    the earlier record.
    """
    shutil.rmtree(HITS, ignore_errors=True)
    HITS.mkdir(parents=True)
    with copied() as copy:
        lines = defaultdict[str, dict[int, list[str]]](lambda: defaultdict(list))
        for number, fault in enumerate(listed()):
            if line := line_of(fault, copy):
                lines[fault.file][line].append(str(number))
        for file, numbers in lines.items():
            (copy / file).write_text(noted((copy / file).read_text("utf-8"), numbers), "utf-8")
        subprocess.run([sys.executable, "-m", "pytest", "-q", *options], cwd=copy, env=environment(copy), check=False)


def noted(text: str, numbers: Mapping[int, Sequence[str]]) -> str:
    """Return `text` with a note before each of these lines' statements. The note writes the running test's name to a file below
    HITS/NUMBER. `numbers`: by line, the numbers of its faults; a folder is created for each.
    """
    tree, lines, before = ast.parse(text), text.splitlines(), defaultdict[int, list[str]](list)
    for line, these in numbers.items():
        for number in these:
            (HITS / number).mkdir(exist_ok=True)
            for place in _places(tree, lines, line):
                before[place.lineno].append(f"{' ' * place.col_offset}{_NOTE.format(folder=str(HITS / number))}")
    return "\n".join(each for number, line in enumerate(lines, 1) for each in (*before[number], line)) + "\n"


# A test's name may be longer than a file's: it stands in a file that is named by its digest.
_NOTE = (
    "(lambda test: __import__('pathlib').Path({folder!r}, __import__('hashlib').sha256(test.encode()).hexdigest()).write_text(test))"
    "(__import__('os').environ.get('PYTEST_CURRENT_TEST', '').rpartition(' (')[0])"
)


def _places(tree: ast.Module, lines: Sequence[str], line: int) -> list[ast.stmt]:
    """Return the statements before which a note for the line belongs: the innermost statement around it, or the beginning of each function
    inside a class body or function head.
    """
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt)
        and node.lineno <= line <= (node.end_lineno or 0)
        and not (
            lines[node.lineno - 1].encode()[: node.col_offset].strip()
            or lines[node.lineno - 1].lstrip().startswith("elif ")
        )
    ]
    inner = max(around, key=lambda node: (node.lineno, node.col_offset))
    classes = [node for node in around if isinstance(node, ast.ClassDef)]
    functions = [node for node in around if isinstance(node, ast.FunctionDef)]
    whole = (
        inner
        if isinstance(inner, ast.FunctionDef | ast.ClassDef)
        else classes[-1]
        if classes and not functions
        else None
    )
    if whole is None:
        return [inner]
    functions = [
        node for node in ast.walk(whole) if isinstance(node, ast.FunctionDef) and node.body[-1].lineno > node.lineno
    ]
    return [node.body[len(node.body) > 1 and ast.get_docstring(node) is not None] for node in functions]


def run(numbers: list[int], options: list[str]) -> None:
    """Run the tests that reach each fault's line on a copy of the committed source with the fault, print each outcome, and add it to
    build/mutation/caught.json. `numbers`: faults to run, [] for all.
    """
    known = BUILD / "caught.json"
    caught: dict[str, str] = json.loads(known.read_text()) if known.exists() else {}
    with copied() as copy:
        for number, fault in enumerate(listed()):
            if numbers and number not in numbers:
                continue
            caught[str(number)] = (
                outcome(fault, covering(str(number)), options, copy) if line_of(fault, copy) else "gone"
            )
            known.write_text(json.dumps(caught, indent=1))
            print(f"{number}: {fault.file}: {fault.before} -> {fault.after}: {caught[str(number)]}", flush=True)


def covering(number: str) -> list[str]:
    """Return the tests that reach the fault's line, those of tests/unit first. If only processes without a known test reach it, return all
    tests; [] if none does.
    """
    found = sorted(each.read_text() for each in (HITS / number).glob("*"))
    return sorted(filter(None, found), key=lambda test: not test.startswith("tests/unit")) or (
        ["tests"] if found else []
    )


@contextmanager
def copied() -> Iterator[Path]:
    """Yield a worktree of the committed source, with this checkout's environment and built module."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(copy)], cwd=ROOT, check=True)
        try:
            for built in (".venv", "node_modules", "redis_module/build", "build"):
                if (ROOT / built).exists():
                    (copy / built).symlink_to(ROOT / built)
            yield copy
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(copy)], cwd=ROOT, check=True)


def outcome(fault: Fault, tests: list[str], options: list[str], copy: Path) -> str:
    """Return the test that fails with the fault but not without it; otherwise why the fault was not found, such as "survived 3 tests". The
    file is restored afterwards.
    """
    if not tests:
        return "covered by no test"
    path = copy / fault.file
    sound = path.read_bytes()
    try:
        apply(fault, copy)
        failed = failing(tests, options, copy)
    finally:
        path.write_bytes(sound)
    if failed and (without := failing([failed] if failed in tests else tests, options, copy)):
        return f"not decided: without the fault {without}"
    return failed or f"survived {len(tests)} tests"


def failing(tests: list[str], options: list[str], copy: Path) -> str:
    """Return the first of `tests` that fails or hangs, or another reason for which pytest ends; "" if all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-x", "-p", "no:cacheprovider", *options, *tests]
    try:
        ended = subprocess.run(
            command, cwd=copy, env=environment(copy), capture_output=True, text=True, timeout=LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "it hangs"
    if ended.returncode == pytest.ExitCode.OK:
        return ""
    told = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", ended.stdout, re.MULTILINE)
    return told[1] if told else f"pytest ends with {ended.returncode}"


def environment(folder: Path) -> dict[str, str]:
    """Return the environment variables for a process that imports the packages of `folder`."""
    return os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}


def main() -> None:
    """Draw faults, measure which tests cover them, or run the tests on them, as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["draw", "cover", "run"])
    parser.add_argument("which", nargs="*", type=int)
    parser.add_argument("options", nargs=argparse.REMAINDER)
    chosen = parser.parse_args()
    match chosen.what:
        case "draw":
            drawn = [asdict(fault) for fault in draw(ROOT, seed=SEED, of_a_kind=OF_A_KIND)]
            FAULTS.write_text(json.dumps(drawn, indent=1) + "\n")
        case "cover":
            cover(chosen.options)
        case "run":
            run(chosen.which, chosen.options)


if __name__ == "__main__":
    main()
