"""AWS's own language service, the one of its editors: fields and values of every state, and that every transition leads somewhere."""

from tests.witnesses.definitions import State, guards, resolved
from tests.witnesses.environments import asked_of_node

NAME = "language_service"


def judged(definitions: dict[str, State]) -> dict[str, list[str]]:
    """Return the language service's findings by the definition's name; definitions without findings are missing. One process judges all
    definitions.
    """
    found: dict[str, list[str]] = asked_of_node(NAME, definitions)
    return found


def test_no_state_machine_of_any_configuration_is_refused() -> None:
    """Check that the language service finds no error in the state machines of any experiment or in those of no architecture."""
    assert judged({**resolved(), **guards()}) == {}


FINE: State = {"StartAt": "a", "States": {"a": {"Type": "Pass", "End": True}}}


def test_the_language_service_finds_planted_errors() -> None:
    """Check that the language service finds each of three planted errors, and none in a sound machine."""
    bad: dict[str, State] = {
        "start": {**FINE, "StartAt": "b"},
        "transition": {"StartAt": "a", "States": {"a": {"Type": "Pass", "Next": "b"}}},
        "field": {"StartAt": "a", "States": {"a": {"Type": "Wait", "Second": 1, "End": True}}},
    }
    assert judged({**bad, "good": FINE}).keys() == bad.keys()


def test_the_language_service_misses_a_name_that_occurs_twice() -> None:
    """Check that the language service misses a name that occurs twice, which is why it is not the only judge."""
    assert (
        judged({"twice": {"StartAt": "a", "States": {"a": {"Type": "Parallel", "Branches": [FINE], "End": True}}}})
        == {}
    )
