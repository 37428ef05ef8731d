"""What a Python file imports, read from its text: nothing is executed."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Imports:
    """Module names and the line that imports each first. Of `from a import b`, `a.b` is named too: b may be a module.

    At once: when the module itself is imported. Deferred: inside functions, or where their absence is provided for.
    """

    at_once: dict[str, int] = field(default_factory=dict)
    deferred: dict[str, int] = field(default_factory=dict)


def read(text: str, *, package: str) -> Imports:
    """The imports of a module of `package`, parents of each name included. Raises SyntaxError."""
    found = Imports()
    _collect(ast.parse(text).body, package, found)
    for name in found.at_once.keys() & found.deferred.keys():
        del found.deferred[name]
    return found


def _collect(body: list[ast.stmt], package: str, found: Imports) -> None:
    """Module-level statements, into branches and classes; what stands in functions is deferred; TYPE_CHECKING never runs."""
    for statement in body:
        match statement:
            case ast.Import() | ast.ImportFrom():
                _add(found.at_once, statement, package)
            case ast.If(test=test) if "TYPE_CHECKING" in ast.unparse(test):
                _collect(statement.orelse, package, found)
            case ast.Try(handlers=handlers) if any("Import" in ast.unparse(h.type) for h in handlers if h.type):
                _add_all(found.deferred, statement, package)  # optional
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                _add_all(found.deferred, statement, package)
            case _:
                inner = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
                _collect(inner, package, found)


def _add_all(names: dict[str, int], statement: ast.stmt, package: str) -> None:
    for node in ast.walk(statement):
        _add(names, node, package)


def _add(names: dict[str, int], node: ast.AST, package: str) -> None:
    for name in _names(node, package):
        names.setdefault(name, getattr(node, "lineno", 0))


def _names(node: ast.AST, package: str) -> Iterator[str]:
    """The modules that an import statement may name, and their parents."""
    if isinstance(node, ast.Import):
        found = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        parents = package.split(".")
        base = ".".join([*parents[: len(parents) - node.level + 1], *([node.module] if node.module else [])])
        base = base if node.level else str(node.module)
        found = [base, *(f"{base}.{alias.name}" for alias in node.names)]
    else:
        return
    for name in found:
        parts = name.split(".")
        yield from (".".join(parts[: i + 1]) for i in range(len(parts)))
