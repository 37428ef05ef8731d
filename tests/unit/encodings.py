"""Where a program reads or writes text in whatever encoding the locale has: calls that open text and say none."""

import ast
from collections.abc import Iterator


def unsaid(text: str) -> Iterator[tuple[str, int]]:
    """Yield each call in a module's text that opens a text without naming its encoding: what is called, and in which line."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and not {"encoding", None} & {each.arg for each in node.keywords}:
            name = ast.unparse(node.func).rpartition(".")[2]
            given = {each.arg for each in node.keywords}
            if (
                (name == "read_text" and not node.args)
                or (name == "write_text" and len(node.args) < 2)
                or (name == "open" and _as_text(node))
                or {"text", "universal_newlines"} & given
            ):
                yield name, node.lineno


def _as_text(call: ast.Call) -> bool:
    """Return True if the call of `open` opens a text file: the builtin, or the method of a path with a mode."""
    builtin = isinstance(call.func, ast.Name)
    given = [*call.args[1 if builtin else 0 :][:1], *(each.value for each in call.keywords if each.arg == "mode")]
    modes = [str(each.value) for each in given if isinstance(each, ast.Constant)]
    return not any("b" in mode for mode in modes) and (builtin or any(set(mode) <= set("rwxat+") for mode in modes))
