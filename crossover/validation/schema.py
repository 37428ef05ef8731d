"""The JSON Schema of experiment files, for editors; committed as config/experiment.schema.json."""

import json
from typing import Any

from crossover.architecture import sections
from crossover.validation.fields import NAMED, adapter, with_sections


def text() -> str:
    """The schema as it is committed. Architectures are not listed: they are found by name when a file is read."""
    schema = adapter(with_sections(tuple(sections(None).items()))).json_schema()
    for section in (schema, *schema["$defs"].values()):
        section["additionalProperties"] = False
    for (section, name), choices in NAMED.items():
        schema["$defs"][section.capitalize()]["properties"][name]["enum"] = list(choices)
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_committed(schema)}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def _committed(value: Any) -> Any:
    """Without titles, which repeat the fields' names, and with 0 for a bound of 0.0: Python's typing takes `Annotated[float, Ge(0)]` and
    `Annotated[float, Ge(0.0)]` for one, and gives whichever a process has met first.
    """
    match value:
        case dict():
            kept = {key: item for key, item in value.items() if not (key == "title" and isinstance(item, str))}
            return {key: _plain(item) if key in _BOUNDS else _committed(item) for key, item in kept.items()}
        case list():
            return [_committed(item) for item in value]
    return value


def _plain(bound: Any) -> Any:
    return int(bound) if isinstance(bound, float) and bound.is_integer() else _committed(bound)
