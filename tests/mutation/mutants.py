"""Faults drawn by seed from the source: how many of them the tests catch, before and after a large change.

    python -m tests.mutation.mutants draw              faults.json: 12 of each of 5 kinds, by seed
    python -m tests.mutation.mutants cover             which test file runs which lines, to build/mutation/ (hours)
    python -m tests.mutation.mutants run [number ..]   each fault against the test files that run its line, up to the first failure

A fault is found again by what stands in its line, not by the line's number, so that the same ones can be run after files have changed; one
whose line is gone is reported as gone. Strings, annotations and what only type checkers see are left as they are.
"""

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAULTS = Path(__file__).parent / "faults.json"
BUILD = ROOT / "build" / "mutation"
SOURCES = ("crossover", "functions", "peers", "cdk", "stacks")
KINDS = ("comparison", "constant", "condition", "arguments", "removed")
SEED, OF_A_KIND = 1, 12
LONGEST_S = 900.0  # a test file that takes longer hangs: the fault is caught

FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


@dataclass(frozen=True, order=True)
class Fault:
    """One line changed: the `occurrence`-th (from 0) in `function` of `file` that reads `before`, without its indentation."""

    file: str
    function: str
    before: str
    occurrence: int
    after: str
    kind: str


# --- drawing ----------------------------------------------------------------------------------------------------------


def draw(root: Path, *, seed: int, of_a_kind: int) -> list[Fault]:
    """`of_a_kind` faults of each kind; the same seed and source give the same."""
    known = defaultdict(list)
    for path in sorted(path for source in SOURCES for path in (root / source).rglob("*.py")):
        for fault in faults_of(path.read_text("utf-8"), str(path.relative_to(root))):
            known[fault.kind].append(fault)
    chance = random.Random(seed)
    return [fault for kind in KINDS for fault in sorted(chance.sample(sorted(known[kind]), of_a_kind))]


def faults_of(text: str, file: str) -> Iterator[Fault]:
    """Every fault that could be drawn from a file."""
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
    """Every node that runs, with the function or class around it."""
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
    """(kind, what is replaced, by what)."""
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
    return ast.unparse(ast.fix_missing_locations(node))


def _lines_of(tree: ast.Module, lines: list[str], function: str, stripped: str) -> list[int]:
    """The numbers, from 1, of the lines of `function` that read `stripped`."""
    node: ast.AST = tree
    for name in function.split("."):
        inside = (each for each in ast.walk(node) if isinstance(each, ast.FunctionDef | ast.ClassDef))
        node = next((each for each in inside if each.name == name and each is not node), tree)
        if node is tree:
            return []
    assert isinstance(node, ast.FunctionDef | ast.ClassDef) and node.end_lineno
    return [n for n in range(node.lineno, node.end_lineno + 1) if lines[n - 1].strip() == stripped]


# --- running ----------------------------------------------------------------------------------------------------------


def line_of(fault: Fault, root: Path) -> int | None:
    """The number of the fault's line in the source as it is now; None where it is gone."""
    path = root / fault.file
    return line_in(path.read_text("utf-8"), fault) if path.exists() else None


def line_in(text: str, fault: Fault) -> int | None:
    """The number of the fault's line in the text of its file; None where it is gone."""
    numbers = _lines_of(ast.parse(text), text.splitlines(), fault.function, fault.before)
    return numbers[fault.occurrence] if fault.occurrence < len(numbers) else None


def apply(fault: Fault, root: Path) -> None:
    """Put the fault into the source under `root`."""
    number, path = line_of(fault, root), root / fault.file
    assert number is not None, f"{fault.file}: the line is gone"
    lines = path.read_text("utf-8").splitlines(keepends=True)
    line = lines[number - 1]
    lines[number - 1] = line.replace(fault.before, fault.after)
    path.write_text("".join(lines), "utf-8")


def cover(files: list[str]) -> None:
    """Per test file: its seconds, and the lines of the source that it runs, in processes that it starts too."""
    BUILD.mkdir(parents=True, exist_ok=True)
    tests = files or sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
    settings = BUILD / "coverage.ini"
    settings.write_text(
        f"[run]\nsource = {','.join(SOURCES)}\nparallel = true\npatch = subprocess\ndata_file = {BUILD / 'data'}\n"
    )
    coverage = [sys.executable, "-m", "coverage"]
    for test in tests:
        for old in BUILD.glob("data*"):
            old.unlink()
        began = time.monotonic()
        command = [*coverage, "run", f"--rcfile={settings}", "-m", "pytest", "-q", "-n0", "-x", test]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        if ended.returncode:
            print(f"{test}: fails as it is, left out", flush=True)
            continue
        seconds = time.monotonic() - began
        found = BUILD / "lines.json"
        subprocess.run([*coverage, "combine", f"--rcfile={settings}", "-q"], cwd=ROOT, check=True)
        subprocess.run([*coverage, "json", f"--rcfile={settings}", "-q", "-o", str(found)], cwd=ROOT, check=True)
        measured = json.loads(found.read_text())["files"]
        lines = {name: facts["executed_lines"] for name, facts in measured.items() if facts["executed_lines"]}
        target = BUILD / f"{test.replace('/', '.')}.json"
        target.write_text(json.dumps({"test": test, "seconds": seconds, "lines": lines}))
        print(f"{test}: {seconds:.0f} s", flush=True)


def run(numbers: list[int]) -> None:
    """Each fault in a copy of what is committed, against what covers it, the quickest file first; build/mutation/caught.json holds what is
    known so far.
    """
    faults = [Fault(**each) for each in json.loads(FAULTS.read_text())]
    covered = [json.loads(path.read_text()) for path in BUILD.glob("tests.*.json")]
    known = BUILD / "caught.json"
    caught: dict[str, str] = json.loads(known.read_text()) if known.exists() else {}
    with copied() as copy:
        for number in numbers or range(len(faults)):
            fault, line = faults[number], line_of(faults[number], copy)
            caught[str(number)] = "gone"
            if line is not None:
                quickest = sorted(covered, key=lambda each: float(each["seconds"]))
                tests = [each["test"] for each in quickest if line in each["lines"].get(fault.file, [])]
                caught[str(number)] = outcome(fault, tests, copy)
            known.write_text(json.dumps(caught, indent=1))
            print(f"{number}: {fault.file}: {fault.before} -> {fault.after}: {caught[str(number)]}", flush=True)


@contextmanager
def copied() -> Iterator[Path]:
    """A worktree of what is committed, with this one's environment and built module."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(copy)], cwd=ROOT, check=True)
        try:
            for built in (".venv", "redis_module/build", "build"):
                if (ROOT / built).exists():
                    (copy / built).symlink_to(ROOT / built)
            yield copy
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(copy)], cwd=ROOT, check=True)


def outcome(fault: Fault, tests: list[str], copy: Path) -> str:
    """The first of `tests` that fails with the fault, and passes without it."""
    path = copy / fault.file
    sound = path.read_bytes()
    for test in tests:
        try:
            apply(fault, copy)
            failed = fails(test, copy)
        finally:
            path.write_bytes(sound)
        if failed and not fails(test, copy):
            return test
    return f"survived {len(tests)} test files" if tests else "covered by no test"


def fails(test: str, copy: Path) -> bool:
    """Hanging is failing."""
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-x", "-p", "no:cacheprovider", test]
    try:
        ended = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        return True
    return ended.returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["draw", "cover", "run"])
    parser.add_argument("which", nargs="*")
    chosen = parser.parse_args()
    match chosen.what:
        case "draw":
            drawn = [asdict(fault) for fault in draw(ROOT, seed=SEED, of_a_kind=OF_A_KIND)]
            FAULTS.write_text(json.dumps(drawn, indent=1) + "\n")
        case "cover":
            cover(chosen.which)
        case "run":
            run([int(each) for each in chosen.which])


if __name__ == "__main__":
    main()
