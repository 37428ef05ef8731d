"""asl-validator: the structure of every state machine, the paths in it, and that a state's name occurs once in a whole machine."""

from tests.witnesses.definitions import State, guards, resolved
from tests.witnesses.environments import asked_of_node

NAME = "asl_validator"


def judged(definitions: dict[str, State]) -> dict[str, list[dict[str, str]]]:
    """Return the validator's findings by the definition's name; definitions without findings are missing. One process judges all
    definitions.
    """
    return asked_of_node(NAME, definitions)


def test_no_state_machine_of_any_configuration_is_refused() -> None:
    """Check that asl-validator finds no error in the state machines of any experiment."""
    assert judged(resolved()) == {}


def test_no_machine_that_guards_them_is_refused() -> None:
    """Check that asl-validator finds no error in the state machines that belong to no architecture."""
    assert judged(guards()) == {}


FINE: State = {"StartAt": "a", "States": {"a": {"Type": "Pass", "End": True}}}


def test_asl_validator_finds_planted_errors() -> None:
    """Check that asl-validator finds each of three planted errors, and none in a sound machine."""
    bad: dict[str, State] = {
        "MISSING_TRANSITION_TARGET": {**FINE, "StartAt": "b"},
        "DUPLICATE_STATE_NAMES": {
            "StartAt": "a",
            "States": {"a": {"Type": "Parallel", "Branches": [FINE], "End": True}},
        },
        "SCHEMA_VALIDATION_FAILED": {"StartAt": "a", "States": {"a": {"Type": "Task", "Resource": "x", "End": True}}},
    }
    found = judged({**bad, "good": FINE})
    assert {name: {error["Error code"] for error in errors} for name, errors in found.items()} == {
        name: {name} for name in bad
    }
