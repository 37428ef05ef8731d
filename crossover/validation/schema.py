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
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_without_titles(schema)}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _without_titles(value: Any) -> Any:
    """A title that repeats the field's name tells an editor nothing."""
    match value:
        case dict():
            return {
                key: _without_titles(item)
                for key, item in value.items()
                if not (key == "title" and isinstance(item, str))
            }
        case list():
            return [_without_titles(item) for item in value]
    return value
