"""Write docs/reference-yaml.md from config/experiment.schema.json: `python -m tools.reference_yaml`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools import refuse_arguments

ROOT = Path(__file__).parents[1]
SCHEMA, PAGE = ROOT / "config" / "experiment.schema.json", ROOT / "docs" / "reference-yaml.md"
BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
OPENING = """For whoever writes or reads an experiment's YAML and wants every field, what it may be, and its default.

# Fields of an experiment

Generated from [config/experiment.schema.json](../config/experiment.schema.json), which editors use. What fields
mean together: [exchange.md](exchange.md), [your-own.md](your-own.md), [using.md](using.md). `--set section.field=value` overrides each.
"""


def render_page() -> str:
    """Return the text of docs/reference-yaml.md, generated from the JSON schema."""
    schema = json.loads(SCHEMA.read_text("utf-8"))
    return OPENING + "\n".join(_list_section(schema, schema, "")) + "\n"


def _list_section(schema: dict[str, Any], section: dict[str, Any], name: str) -> Iterator[str]:
    """Yield the lines of the page for one section of the schema and all sections inside it: heading, description, then a table of fields.
    `schema`: the whole schema; `section`: the section's part of it; `name`: dotted name of the section, "" for the top.
    """
    yield f"\n## {f'`{name}`' if name else 'At the top'}\n"
    if name and section.get("description"):
        yield f"{section['description']}\n"
    yield "| field | expected | default |"
    yield "| --- | --- | --- |"
    inner = {}
    for field, plain in section["properties"].items():
        whole = f"{name}.{field}" if name else field
        if "$ref" in plain:
            inner[whole] = schema["$defs"][plain["$ref"].rpartition("/")[2]]
            yield f"| `{whole}` | a section, below | |"
            continue
        default = f"`{json.dumps(plain['default'], ensure_ascii=False)}`" if "default" in plain else "required"
        yield f"| `{whole}` | {_describe(schema, plain).replace('|', chr(92) + '|')} | {default.replace('|', chr(92) + '|')} |"
    for whole, each in inner.items():
        yield from _list_section(schema, each, whole)


def _describe(schema: dict[str, Any], plain: dict[str, Any]) -> str:
    """Return the values that a field may have, in words. `plain`: the field's part of the JSON schema; `schema`: the whole schema."""
    if "$ref" in plain:
        return "a section"
    if "const" in plain:
        return f"`{json.dumps(plain['const'])}`"
    if "enum" in plain:
        return ", ".join(f"`{each}`" for each in plain["enum"])
    if "anyOf" in plain:
        return "; or ".join(_describe(schema, each) for each in plain["anyOf"])
    found = str(plain.get("type", "any value"))
    if found == "array" and isinstance(plain.get("items"), dict):
        found = f"list of {_describe(schema, plain['items'])}"
    bounds = " and ".join(f"{sign} {plain[bound]:,}" for bound, sign in BOUNDS.items() if bound in plain)
    return f"{found} {bounds}".strip()


if __name__ == "__main__":
    refuse_arguments(__doc__)
    PAGE.write_text(render_page(), "utf-8")
