"""YAML text to plain data, with errors that say where; and the `a.b=value` overrides of the command line."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from crossover.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """Safe YAML with the scalars of YAML 1.2, without what surprises: no octal 010, no `no` for false, no 1:30 for 90, no string `1e-3`."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  one per class is how PyYAML is extended

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem=f"alias *{event.anchor}: write the value out", problem_mark=event.start_mark
            )
        node: yaml.Node | None = super().compose_node(parent, index)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            name = str(key.value)
            if name in seen:
                problem = f"{name!r} stands here twice, first in line {seen[name]}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen[name] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in (
    ("bool", r"true|false|True|False", "tfTF"),
    ("null", r"~|null|Null|", ["~", "n", "N", ""]),
    ("int", r"[-+]?(0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.inf|\.nan",
        "-+.0123456789",
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))


def read(path: Path) -> dict[str, Any]:
    """The mapping in the YAML file `path`. Raises ConfigError: no file, no mapping, or a syntax error with its line."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        beside = [str(other) for other in sorted(path.parent.glob("*.yaml"))]
        raise ConfigError(f"{path}: no such file{did_you_mean(str(path), beside)}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; expected a YAML file, such as config/spirt.yaml") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is no text in UTF-8: {error}") from None
    plain = parse(text, source=str(path))
    if not isinstance(plain, dict):
        found = "nothing" if plain is None else f"a {_kind(plain)}"
        raise ConfigError(f"{path}: expected fields such as `name:` and `architecture:`, found {found}")
    return plain


def parse(text: str, *, source: str) -> Any:
    """Plain data of a YAML text. Raises ConfigError naming `source`, line and column."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506  a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{source}{where}: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())}") from None


def apply(plain: dict[str, Any], override: str) -> str:
    """Set one field of `plain` from `section.field=value`; the value is YAML. Gives the field back. Unknown fields are left to the check of
    all fields.
    """
    path, equals, text = override.partition("=")
    names = path.strip().split(".")
    if not equals or not all(names):
        raise ConfigError(f"--set {override}: expected section.field=value, for example training.epochs=3")
    put(plain, names, parse(text, source=f"--set {override}"), said=f"--set {override}")
    return ".".join(names)


def put(plain: dict[str, Any], names: Sequence[str], value: Any, *, said: str) -> None:
    """Set the field of `plain` that lies at `names`, section by section. Raises ConfigError, which begins with what `said` it."""
    target = plain
    for depth, name in enumerate(names[:-1]):
        if target.get(name) is None:
            target[name] = {}
        target = target[name]
        if not isinstance(target, dict):
            raise ConfigError(f"{said}: {'.'.join(names[: depth + 1])} is a {_kind(target)} and has no fields")
    target[names[-1]] = value


def did_you_mean(name: str, choices: list[str]) -> str:
    """`; did you mean x?` where a choice is near, else nothing."""
    near = difflib.get_close_matches(name, choices, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _kind(value: Any) -> str:
    return "list" if isinstance(value, list) else "mapping" if isinstance(value, dict) else "single value"


def is_import(name: str) -> bool:
    """Whether it names something of a module: `package.module:name`."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))
