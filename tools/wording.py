"""Check and count the wording of names and docstrings: `python -m tools.wording [FOLDER ...]`, a part of `make lint`.

A docstring that explains an argument which its function does not have is an error (exit 1). Everything else is counted and reported by
folder: openings with a question word or a preposition, names that are a single participle, "where" for a condition, and public functions of
three or more arguments: those whose docstring names each argument ("all named"), and those that explain all that need it ("explained").
"""

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("crossover", "functions", "peers", "stacks", "cdk", "layer", "lab", "tools", "benchmarks")
Function = ast.FunctionDef | ast.AsyncFunctionDef

QUESTION = re.compile(r"(what|which|who|whom|whose|whether|how|where|why|when)\b", re.IGNORECASE)
PREPOSITION = re.compile(
    r"(of|by|with|until|in|for|from|to|at|on|after|before|as|without|through|into|under|over|between|beside|behind|like)\b",
    re.IGNORECASE,
)
PARTICIPLE = re.compile(r"_?[a-z]{3,}ed")
NOT_PARTICIPLES = {"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "succeed"}
CONDITION = re.compile(
    r"\bwhere (?:it|they|he|she|the|a|an|there|that|no|none|nobody|nothing|one|this)\b", re.IGNORECASE
)
EXPLANATION = re.compile(r"(?:^|[.;:] |\n)\s*`(\w+)`(?:, `\w+`)*: ")
COLUMNS = (
    "functions",
    "documented",
    "question",
    "preposition",
    "participle",
    "where",
    "3+ args",
    "all named",
    "explained",
)


def list_functions(tree: ast.Module) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    """Yield (function, class that holds it) for each function and method of a module, nested ones included; None in place of the class for
    others.
    """
    holders = {id(child): node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for child in node.body}
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node, holders.get(id(node))


def list_arguments(function: Function) -> list[str]:
    """Return the names of a function's arguments without `self` and `cls`."""
    given = function.args
    found = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    return [each.arg for each in found if each.arg not in ("self", "cls")]


def list_self_explaining(function: Function) -> set[str]:
    """Return the names of those arguments of a function that need no explanation: their type has their name, as in `prices: Prices` and
    `records: Sequence[Record]`, or they are options of a command, whose help explains them.
    """
    found = set()
    for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
        kind = ast.unparse(each.annotation) if each.annotation else ""
        words = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).lower() for word in re.findall(r"\w+", kind)}
        if {each.arg, each.arg.removesuffix("s")} & words or "typer." in kind:
            found.add(each.arg)
    return found


def find_stale_explanations(path: Path) -> Iterator[str]:
    """Yield `file:line: message` for each docstring of a function that explains an argument which the function does not have.

    Names of the function's body count as known: a docstring may explain a key of what is returned.
    """
    for function, _ in list_functions(ast.parse(path.read_text(encoding="utf-8"))):
        text = ast.get_docstring(function) or ""
        known = {*list_arguments(function), *(word for node in ast.walk(function) for word in _words_of(node))}
        for name in EXPLANATION.findall(text):
            if name not in known:
                yield f"{path.relative_to(ROOT)}:{function.lineno}: {function.name} explains `{name}`, which is no argument of it"


def _words_of(node: ast.AST) -> Iterator[str]:
    """Yield each identifier that one node of a syntax tree contains itself: name, attribute, argument, or a string that is an
    identifier.
    """
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.arg | ast.keyword) and node.arg:
        yield node.arg
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
        yield node.value


def count_wording(paths: list[Path]) -> Counter[str]:
    """Return how many functions of the files meet each criterion, by the names of COLUMNS."""
    counts: Counter[str] = Counter()
    for path in paths:
        for function, _ in list_functions(ast.parse(path.read_text(encoding="utf-8"))):
            text, arguments = ast.get_docstring(function) or "", list_arguments(function)
            counts["functions"] += 1
            counts["documented"] += bool(text)
            counts["question"] += bool(QUESTION.match(text))
            counts["preposition"] += bool(PREPOSITION.match(text))
            counts["participle"] += bool(PARTICIPLE.fullmatch(function.name)) and function.name not in NOT_PARTICIPLES
            counts["where"] += bool(CONDITION.search(text))
            if len(arguments) >= 3 and text and not function.name.startswith("_"):
                counts["3+ args"] += 1
                unnamed = {each for each in arguments if not re.search(rf"\b{re.escape(each)}\b", text)}
                counts["all named"] += not unnamed
                counts["explained"] += unnamed <= list_self_explaining(function)
    return counts


def main(folders: list[str]) -> int:
    """Print the counts of each folder and their sum, then the errors. Returns 1 if there are errors, else 0. `folders`: names relative to
    the project, by default FOLDERS.
    """
    rooms: dict[str, list[Path]] = {}
    for path in sorted(path for folder in folders or FOLDERS for path in (ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).parts
        rooms.setdefault("/".join(parts[: min(2, len(parts) - 1)]), []).append(path)
    total: Counter[str] = Counter()
    print(f"{'':24}" + "".join(f"{column:>13}" for column in COLUMNS))
    for room, paths in rooms.items():
        counts = count_wording(paths)
        total += counts
        print(f"{room:24}" + "".join(f"{counts[column]:13}" for column in COLUMNS))
    print(f"{'all':24}" + "".join(f"{total[column]:13}" for column in COLUMNS))
    stale = [line for paths in rooms.values() for path in paths for line in find_stale_explanations(path)]
    print(*stale, sep="\n", end="\n" if stale else "")
    return bool(stale)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="relative to the project")
    sys.exit(main(parser.parse_args().folders))
