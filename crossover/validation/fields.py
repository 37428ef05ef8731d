"""The check of a YAML's fields against the annotations of `Experiment`, and the JSON Schema of these fields."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, field, is_dataclass, make_dataclass
from dataclasses import fields as dataclass_fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from crossover.algorithms.codecs import CODECS
from crossover.algorithms.optimizers import OPTIMIZERS
from crossover.algorithms.rules import RULES
from crossover.errors import ConfigError
from crossover.experiment import MOVED, Experiment
from crossover.validation.documents import did_you_mean
from crossover.workflow.architecture import find_settings_classes, load

# --- fields -----------------------------------------------------------------------------------------------------------

FieldPath = tuple[str | int, ...]
# Fields whose value names an entry of one of these tables.
NAMED: dict[tuple[str, str], Mapping[str, object]] = {
    ("training", "optimizer"): OPTIMIZERS,
    ("aggregation", "rule"): RULES,
    ("exchange", "compression"): CODECS,
}
# Fields of earlier versions, and what has become of them.
FORMER = {
    **{old: f"is called {new} now" for old, new in MOVED.items()},
    "training.target_accuracy": "is called training.target now",
    "database.engine": "leave it out, because every host runs this project's tensor module",
    "database.variant": "leave it out: the module with PyTorch (scripts, TorchScript models and DAGs in the database) was taken out, "
    "because nothing here gained by it; redis_module/README.md says where it is",
}


def build_experiment(plain: Mapping[str, Any]) -> Experiment:
    """Return the Experiment that `plain`, a YAML's content, describes, after checking each field by itself; missing fields get their
    defaults. Combinations of fields are not checked. Raises ConfigError with every problem, one a line.
    """
    problems: list[str] = []
    own = find_settings_classes(asked := plain.get("architecture"), _explain_unreadable)
    known, found = read_fields(with_sections(tuple(own.items())), plain, problems)
    for (section, name), choices in NAMED.items():
        named = _find_value((section, name), known)
        if isinstance(named, str) and named not in choices:
            near = did_you_mean(named, list(choices))
            problems.append(f"{section}.{name}: {named!r} is not allowed; expected one of {', '.join(choices)}{near}")
    if problems:
        raise ConfigError("\n".join([*_explain_unknown_architecture(asked), *problems]))
    common = {name: getattr(found, name) for name in _hints(Experiment) if name != "sections"}
    return Experiment(**common).with_settings(*(getattr(found, name) for name in own if name in known))


def read_fields(whole: type, plain: Mapping[str, Any], problems: list[str]) -> tuple[dict[str, Any], Any]:
    """Build an instance of the dataclass `whole` from `plain`, a YAML's content.

    Return (`plain` without unknown names, the instance, or None if any value is invalid). Each problem, an unknown name too, is appended to
    `problems` as one line; unknown names alone do not make the instance None.
    """
    known = _drop_unknown(whole, plain, (), problems)
    try:
        # From JSON, strictly: no "3" for 3, no 1 for true, but a list for a tuple.
        return known, get_type_adapter(whole).validate_json(json.dumps(known, default=str), strict=True)
    except ValidationError as error:
        by_path = {_field_path(whole, detail["loc"]): detail for detail in error.errors()}
        problems += [_describe_problem(whole, path, known) for path in by_path]
    return known, None


def _explain_unknown_architecture(asked: object) -> Iterator[str]:
    """Yield the error message if the architecture called `asked`, the value of `architecture` in the YAML, cannot be loaded; nothing if it
    can, or is no text.

    It comes first, because sections may be unknown only for that reason.
    """
    try:
        if isinstance(asked, str):
            load(asked)
    except ConfigError as problem:
        yield str(problem)


@cache
def _explain_unreadable(settings: type) -> str | None:
    """Return an error message if the dataclass `settings` of an architecture has a field that YAML cannot describe, otherwise None."""
    field = ""
    try:
        for field, annotation in _hints(settings).items():  # noqa: B007
            describe(annotation)
        TypeAdapter(settings)
    except (KeyError, NameError, TypeError, PydanticUserError) as error:
        where = f"settings={settings.__name__}{f', field {field}' if field else ''}"
        return (
            f"{where}: {type(error).__name__}: {' '.join(str(error).split())}; expected fields of bool, int, float, str, Literal, a tuple "
            "of one of them, or one of them and None"
        )
    return None


@cache
def with_sections(own: tuple[tuple[str, type], ...]) -> type:
    """Build the dataclass of everything that a YAML may contain: the fields of Experiment, and one section for each architecture that has
    settings. Equal arguments give the same class.

    `own`: (section's name, settings class) of these architectures.
    """
    common = [(f.name, _hints(Experiment)[f.name], f) for f in dataclass_fields(Experiment) if f.name != "sections"]
    fields = [(name, kind, field(default=f.default, default_factory=f.default_factory)) for name, kind, f in common]
    sections = [(name, kind, field(default_factory=kind)) for name, kind in own]
    return make_dataclass(
        "Experiment",
        [*fields, *sections],
        kw_only=True,
        namespace={"__doc__": Experiment.__doc__, "__module__": __name__},
    )


@cache
def get_type_adapter(whole: type) -> TypeAdapter[Any]:
    """Return pydantic's TypeAdapter for the dataclass `whole`, which checks and builds instances; it is built once and kept."""
    return TypeAdapter(whole)


def _drop_unknown(cls: type, plain: Mapping[str, Any], path: FieldPath, problems: list[str]) -> dict[str, Any]:
    """Return a copy of `plain` without the names that are no field of the dataclass `cls`, in inner sections too; an error message is
    appended to `problems` for each of them. `path`: path of the section `plain`, () for the whole.

    An empty section is left out, so that it gets its defaults. Infinite and NaN numbers become texts, which the next check refuses.
    """
    hints = _hints(cls)
    known: dict[str, Any] = {}
    for name, value in plain.items():
        if name not in hints:
            choices = ", ".join(hints)
            dotted = _join_path((*path, str(name)))
            hint = f"; {FORMER[dotted]}" if dotted in FORMER else did_you_mean(str(name), list(hints))
            problems.append(f"{dotted}: is unknown{hint}; one of {choices}")
        elif is_dataclass(hints[name]) and value is None:
            continue
        elif is_dataclass(hints[name]) and isinstance(value, Mapping):
            known[name] = _drop_unknown(hints[name], value, (*path, name), problems)
        else:
            known[name] = _replace_non_finite(value)
    return known


def _replace_non_finite(value: Any) -> Any:
    """Return `value` with each infinite or NaN number in it replaced by its text: no field allows one, and pydantic's bounds would let
    infinity through.
    """
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case list():
            return [_replace_non_finite(item) for item in value]
        case dict():
            return {str(key): _replace_non_finite(item) for key, item in value.items()}
    return value


def _describe_problem(whole: type, path: FieldPath, known: Mapping[str, Any]) -> str:
    """Return the error message for the invalid or missing value at `path` of the YAML's content `known`."""
    annotation, value = _find_annotation(whole, path), _find_value(path, known)
    if value is MISSING:
        return f"{_join_path(path)}: is missing; expected {describe(annotation)}"
    near = did_you_mean(value, _list_choices(annotation)) if isinstance(value, str) else ""
    by_name = isinstance(origin := get_origin(annotation), type) and issubclass(origin, Mapping)
    example = f", such as {_join_path(path)}.default=1769" if by_name and not isinstance(value, Mapping) else ""
    return f"{_join_path(path)}: {_format_value(value)} is not allowed; expected {describe(annotation)}{example}{near}"


def _field_path(whole: type, location: FieldPath) -> FieldPath:
    """Return the path of the field that pydantic's error `location` refers to: the longest beginning of it that is a field of the dataclass
    `whole`. Pydantic appends parts for the branches of a union; they are removed.
    """
    path: FieldPath = ()
    for part in location:
        try:
            _find_annotation(whole, (*path, part))
        except KeyError:
            break
        path = (*path, part)
    return path


def _find_annotation(whole: type, path: FieldPath) -> Any:
    """Return the type annotation of the field at `path`, starting from the dataclass `whole`. Raises KeyError if there is no such field."""
    annotation: Any = whole
    for part in path:
        origin = get_origin(annotation)
        if is_dataclass(annotation):
            annotation = _hints(annotation)[str(part)]  # type: ignore[arg-type]
        elif origin is tuple and isinstance(part, int):
            annotation = get_args(annotation)[0]
        elif isinstance(origin, type) and issubclass(origin, Mapping):
            annotation = get_args(annotation)[1]
        else:
            raise KeyError(part)
    return annotation


def _find_value(path: FieldPath, known: Any) -> Any:
    """Return the value at `path` in the nested content `known`, or MISSING if there is none."""
    for part in path:
        try:
            known = known[part]
        except (KeyError, IndexError, TypeError):
            return MISSING
    return known


@cache
def _hints(cls: type) -> dict[str, Any]:
    """Return the type annotation of each field of the dataclass `cls`, by name, including its bounds (`Annotated`). Every call returns the
    same dictionary, which must not be changed.
    """
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclass_fields(cls)}


def describe(annotation: Any) -> str:
    """Return a phrase that describes which values an annotation allows, such as `an integer >= 1, or epoch`. Raises KeyError or TypeError
    for one that no field of a YAML may have.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = " and ".join(_describe_bound(mark) for mark in arguments[1:])
        return f"{describe(arguments[0])} {bounds}"
    if origin in (Union, UnionType):
        return ", or ".join(describe(argument) for argument in arguments)
    if origin is Literal:
        return arguments[0] if len(arguments) == 1 else f"one of {', '.join(arguments)}"
    if origin is tuple:
        return f"a list, each {describe(arguments[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"names, each with {describe(arguments[1])}"
    if is_dataclass(annotation):
        return f"fields: {', '.join(_hints(annotation))}"  # type: ignore[arg-type]
    words = {bool: "true or false", int: "an integer", float: "a number", str: "text", NoneType: "null (none)"}
    return words[annotation]


def _describe_bound(mark: Any) -> str:
    """Return a bound (Ge, Gt, Le or Lt) as text, such as `>= 1`. Raises TypeError for any other mark."""
    match mark:
        case Ge(ge=bound):
            return f">= {bound:g}"
        case Gt(gt=bound):
            return f"> {bound:g}"
        case Le(le=bound):
            return f"<= {bound:g}"
        case Lt(lt=bound):
            return f"< {bound:g}"
    raise TypeError(f"no words for {mark!r}")


def _list_choices(annotation: Any) -> list[str]:
    """Return the values that the Literals in an annotation allow, at any depth, as a list; empty if it has no Literal."""
    return list(_list_literals(annotation))


def _list_literals(annotation: Any) -> Iterator[str]:
    """Yield the allowed values of each Literal in an annotation, at any depth."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    for argument in get_args(annotation):
        if get_origin(argument) is not None:
            yield from _list_literals(argument)


def _join_path(path: FieldPath) -> str:
    """Return the path of a field as text, such as `training.epochs`."""
    return ".".join(str(part) for part in path)


def _format_value(value: Any) -> str:
    """Return `value` as YAML writes it, cut to 60 characters, for a message."""
    match value:
        case None | bool():
            return json.dumps(value)
        case str():
            text = repr(value)
        case _:
            text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- schema -----------------------------------------------------------------------------------------------------------
# The JSON Schema of experiment files, for editors; committed as config/experiment.schema.json.


def render_schema() -> str:
    """Return the JSON Schema of experiment files as text, as it is committed in config/experiment.schema.json. In it the field
    `architecture` may be any text, because architectures are found by name when a file is read.
    """
    schema = get_type_adapter(with_sections(tuple(find_settings_classes(None).items()))).json_schema()
    for section in (schema, *schema["$defs"].values()):
        section["additionalProperties"] = False
    for (section, name), choices in NAMED.items():
        schema["$defs"][section.capitalize()]["properties"][name]["enum"] = list(choices)
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_normalize_schema(schema)}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def _normalize_schema(value: Any) -> Any:
    """Return the part `value` of a JSON Schema without titles, which only repeat field names, and with whole-numbered bounds as integers.

    Otherwise the text would vary: Python's typing treats `Annotated[float, Ge(0)]` and `Annotated[float, Ge(0.0)]` as one type, and returns
    whichever a process has met first.
    """
    match value:
        case dict():
            kept = {key: item for key, item in value.items() if not (key == "title" and isinstance(item, str))}
            return {
                key: _normalize_bound(item) if key in _BOUNDS else _normalize_schema(item) for key, item in kept.items()
            }
        case list():
            return [_normalize_schema(item) for item in value]
    return value


def _normalize_bound(bound: Any) -> Any:
    """Return a bound for the schema: an int if it is a whole number."""
    return int(bound) if isinstance(bound, float) and bound.is_integer() else _normalize_schema(bound)
