"""ValidateStateMachineDefinition, which moto lacks.

The stand-in's answer is a parse by moto's own grammar and one look of ours, for names that occur twice: the service refuses those, moto
takes them. Everything else that the service may find, it alone knows.
"""

import json
from collections.abc import Iterator
from typing import Any

from crossover.local.moto_patches.replacing import Replacements


def install(changes: Replacements) -> None:
    """Add the validation of state machine definitions to moto."""
    from moto.core.responses import ActionResult
    from moto.stepfunctions.responses import StepFunctionResponse

    @changes.adds(StepFunctionResponse, "validate_state_machine_definition")
    def validate(self: Any) -> Any:
        """Answer ValidateStateMachineDefinition with the diagnostics of the definition."""
        found = list(diagnostics(self._get_param("definition")))
        return ActionResult({"result": "FAIL" if found else "OK", "diagnostics": found, "truncated": False})


def diagnostics(text: str) -> Iterator[dict[str, str]]:
    """Yield what is wrong with a definition, in the fields of the API's answer."""
    from moto.stepfunctions.parser.asl.parse.asl_parser import AmazonStateLanguageParser

    try:
        AmazonStateLanguageParser.parse(text)
    except Exception as error:  # the parser's own, and any Python error of a definition that it did not expect
        yield _error("SCHEMA_VALIDATION_FAILED", "/", str(error))
        return
    seen: set[str] = set()
    for name, location in _names(json.loads(text), ""):
        if name in seen:
            yield _error("DUPLICATE_STATE_NAME", location, f"Duplicate state name '{name}'")
        seen.add(name)


def _names(block: dict[str, Any], location: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the location of every state of a block, inner ones too."""
    for name, state in block["States"].items():
        here = f"{location}/States/{name}"
        yield name, here
        for field in ("ItemProcessor", "Iterator"):
            if field in state:
                yield from _names(state[field], f"{here}/{field}")
        for number, branch in enumerate(state.get("Branches", [])):
            yield from _names(branch, f"{here}/Branches[{number}]")


def _error(code: str, location: str, message: str) -> dict[str, str]:
    """Return one finding in the fields of the API's answer."""
    return {"severity": "ERROR", "code": code, "location": location, "message": message}
