"""YAML text to plain data, with errors that name the position; and the `a.b=value` overrides of the command line."""

import ast
import difflib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from crossover.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """A safe YAML loader that reads scalars as YAML 1.2 does: 010 is no octal number, `no` is not false, 1:30 is not 90, and `1e-3` is a
    number.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  one per class is how PyYAML is extended

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node of the document, as PyYAML's method does. Raises MarkedYAMLError if it is an alias (`*name`): values must be
        written out.
        """
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem=f"alias *{event.anchor}: write the value out", problem_mark=event.start_mark
            )
        node: yaml.Node | None = super().compose_node(parent, index)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of `node` as a dictionary. Raises MarkedYAMLError if a key occurs twice."""
        seen: dict[str, int] = {}
        for key, _ in node.value:
            name = str(key.value)
            if name in seen:
                problem = f"{name!r} is given twice, first in line {seen[name]}"
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


YAML_ENDINGS = (".yaml", ".yml")
TABLE_ENDINGS = (".csv", ".data", ".dat", ".txt", ".tsv")  # of text that `--data` may read
DATA_ENDINGS = re.compile(
    r"\.(csv|tsv|jsonl?|ndjson|np[yz]|parquet|feather|arrow|pth?|safetensors|pkl|pickle|h5|hdf5|mat|xlsx?|ods|zip|gz|bz2|xz|tar|tgz|db|sqlite|"
    r"png|jpe?g|gif|tiff?|bmp|webp|wav|mp3|mp4)"
)
MAX_YAML_BYTES = 1_000_000  # of a file that is not called .yaml or .yml


def check_is_no_data(path: Path) -> None:
    """Raise ConfigError if the existing file `path` is data by the ending of its name, or is larger than any YAML file and not called one.
    The message has the command for data. The file is not read: parsing a large one as YAML takes minutes.
    """
    ending = path.suffix.lower()
    if ending in YAML_ENDINGS or not path.is_file():
        return
    if DATA_ENDINGS.fullmatch(ending):
        problem = "is data"
    elif (size := path.stat().st_size) > MAX_YAML_BYTES:
        problem = f"is no .yaml file, and its {size:,} bytes are too many for one"
    else:
        return
    command = (
        f"crossover advise model.py:factory --data {shlex.quote(str(path)) if ending in TABLE_ENDINGS else 'mine:load'}"
    )
    mend = f"`{command}` writes one for a model of yours and this data"
    if ending not in TABLE_ENDINGS:
        mend += ", with a function load(experiment) in mine.py that returns the data as Samples (docs/your-own.md)"
    raise ConfigError(f"{path}: {problem}; expected the YAML of an experiment. {mend}")


def read(path: Path) -> dict[str, Any]:
    """Return the content of the YAML file `path` as a dictionary; its fields are not checked. Raises ConfigError if the file cannot be
    read, is a Python file or data, is no mapping or is empty, or has a syntax error, with its line. The message for a missing file suggests
    others.
    """
    check_is_no_data(path)
    if path.suffix == ".py" and path.is_file():
        raise ConfigError(
            f"{path}: is a Python file; expected the YAML of an experiment. `crossover advise {path}:FACTORY --data FILE.csv` writes one, "
            f"with {_join_choices(find_factories(path))} for FACTORY"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        beside = {other.stem: str(other) for other in sorted(path.parent.glob("*.yaml"))}
        near = difflib.get_close_matches(
            path.stem, list(beside), n=1
        )  # by the name alone: folder and ending are alike anyway
        hint = (
            f"; did you mean {beside[near[0]]}?"
            if near
            else f"; {_describe_choices(path.parent, list(beside.values()))}"
        )
        raise ConfigError(f"{path}: no such file{hint}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; expected a YAML file, such as config/spirt.yaml") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is no text in UTF-8: {error}") from None
    plain = parse(text, source=str(path))
    if not isinstance(plain, dict):
        found = "nothing" if plain is None else f"a {_describe_kind(plain)}"
        raise ConfigError(f"{path}: expected fields such as `name:` and `architecture:`, found {found}")
    return plain


SHOWN = 8  # files, or functions, that a message lists


def _describe_choices(folder: Path, files: Sequence[str]) -> str:
    """Return a phrase that lists the YAML files of `folder`, for the message to a user who named a file that does not exist. `files`: their
    paths, of which the phrase has the first SHOWN and the number of the others. If there are none, it says that the folder has no YAML
    files or does not exist.
    """
    if not files:
        return f"{folder}: {'has no YAML files' if folder.is_dir() else 'no such folder'}"
    return (
        f"expected one of {', '.join(files[:SHOWN])}{f' and {len(files) - SHOWN} more' if len(files) > SHOWN else ''}"
    )


FACTORY = ("classes", "input_shape")  # the parameters of a model's factory


def find_factories(path: Path) -> list[str]:
    """Return the names of the functions in a Python file that may build a model; nothing of the file is executed.

    They are the public top-level functions whose first parameters are `classes` and `input_shape`. If there are none, all public top-level
    functions of two positional parameters. Empty for a file that cannot be read or is not valid Python.
    """
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    functions = [each for each in body if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")]
    named = [each.name for each in functions if _list_parameters(each)[: len(FACTORY)] == FACTORY]
    return named or [each.name for each in functions if len(_list_parameters(each)) == len(FACTORY)]


def find_only_factory(path: Path) -> Path:
    """Return `path` extended to `file.py:name` with the only function of the file that may build a model (see `find_factories`). Raises
    ConfigError if there is none, or several, or the file cannot be read.
    """
    found = find_factories(path)
    if len(found) == 1:
        return path.with_name(f"{path.name}:{found[0]}")
    several = f"{len(found)} functions may make the model" if found else "no function takes (classes, input_shape)"
    raise ConfigError(f"{path}: {several}; expected {path}:FACTORY, with {_join_choices(found)} for FACTORY")


def _join_choices(names: list[str]) -> str:
    """Return the first eight `names` joined by "or", for a message; "the function that makes the model" if there are none."""
    return " or ".join(names[:SHOWN]) or "the function that makes the model"


def _list_parameters(function: ast.FunctionDef) -> tuple[str, ...]:
    """Return the names of a function's positional parameters."""
    return tuple(each.arg for each in (*function.args.posonlyargs, *function.args.args))


def parse(text: str, *, source: str) -> Any:
    """Return the content of a YAML text as plain Python values, None for an empty text. Raises ConfigError, naming `source` and if possible
    line and column, on a syntax error, a key given twice, an alias, or too deep nesting.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506  a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{source}{where}: {error.problem or error.context}") from None
    except RecursionError:
        raise ConfigError(
            f"{source}: is nested too deeply to be read; expected sections of fields, such as `training:` with `epochs:` below it"
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())}") from None


def apply_override(plain: dict[str, Any], override: str) -> str:
    """Set the field in `plain` that `override`, a text `section.field=value`, names; the value is read as YAML. Return the field's dotted
    name.

    Whether the field exists is checked later. Raises ConfigError if the text has another form, if the value is no YAML, or if a section on
    the way is not a mapping.
    """
    path, equals, text = override.partition("=")
    names = path.strip().split(".")
    if not equals or not all(names):
        raise ConfigError(f"--set {override}: expected section.field=value, for example training.epochs=3")
    set_field(plain, names, parse(text, source=f"--set {override}"), said=f"--set {override}")
    return ".".join(names)


def set_field(plain: dict[str, Any], names: Sequence[str], value: Any, *, said: str) -> None:
    """Set the field of `plain` at the path `names` (section, ..., field) to `value`, in place. Missing sections are created, and so are
    those that are None.

    Raises ConfigError if a section on the way is not a mapping; `said`: beginning of that message.
    """
    target = plain
    for depth, name in enumerate(names[:-1]):
        if target.get(name) is None:
            target[name] = {}
        target = target[name]
        if not isinstance(target, dict):
            raise ConfigError(f"{said}: {'.'.join(names[: depth + 1])} is a {_describe_kind(target)} and has no fields")
    target[names[-1]] = value


def did_you_mean(name: str, choices: list[str]) -> str:
    """Return `; did you mean x?` with the one of `choices` that is most similar to `name`, or '' if none is similar."""
    near = difflib.get_close_matches(name, choices, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _describe_kind(value: Any) -> str:
    """Return "list", "mapping" (for a dict) or "single value", by the type of `value`, for a message."""
    return "list" if isinstance(value, list) else "mapping" if isinstance(value, dict) else "single value"


def is_import(name: str) -> bool:
    """Return whether `name` has the form of an import path: `package.module:name`."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))
