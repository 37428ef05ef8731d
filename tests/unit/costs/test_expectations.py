"""What a run must have executed, held against what an inline run of the same tree recorded, and against the generated states."""

from typing import Any

from crossover.reports.usage import state_transitions
from crossover.workflow.architecture import load
from crossover.workflow.state_machines import build_definitions
from tests.architectures.harness import small


def walked(machines: dict[str, Any], name: str, *, turns: dict[str, int], items: dict[str, int]) -> int:
    """Count the states that one execution of a machine and all executions that it starts enter. `turns`: times that each Choice is asked
    before it leaves its loop; `items`: number of items of each Map.
    """

    def block(definition: Any) -> int:
        """Count the states entered in one definition or iteration, inner ones included."""
        states, state_name, left, count = definition["States"], definition["StartAt"], dict(turns), 0
        while True:
            state = states[state_name]
            count += 1
            if state["Type"] == "Map":
                count += items[state_name] * block(state["ItemProcessor"])
            elif "StateMachineArn" in state.get("Parameters", {}):
                count += block(machines[state["Parameters"]["StateMachineArn"].removeprefix("${machine_").rstrip("}")])
            if state["Type"] == "Choice":
                flag = state["Choices"][0]["Variable"].removeprefix("$.")
                left[flag] -= 1
                state_name = state["Default"] if left[flag] else state["Choices"][0]["Next"]
            elif state.get("End"):
                return count
            else:
                state_name = state["Next"]

    return block(machines[name])


def test_transitions_are_those_of_the_generated_states() -> None:
    """The number of state transitions computed from records equals that of walking through SPIRT's generated state machines."""
    workers, epochs, rounds, minibatches, polls = 3, 4, 2, 5, 2
    machines = build_definitions(load("spirt"), small("spirt", workers=workers), minibatches=minibatches)
    turns = {"synchronised": polls, "epoch_finished": rounds, "finished": epochs}
    expected = walked(machines, "run", turns=turns, items={"each worker": workers, "each minibatch": minibatches})
    often = workers * epochs * rounds
    each = {"compute_gradients": often * minibatches, "check_peers": often * polls, "initialise": 1, "collect": 1}
    names = ("average_in_database", "notify_peers", "aggregate_peers", "update_model", "detect_convergence")
    records = [
        {"step": step, "outcome": "ok", "worker": k % workers, "epoch": 1 + k // workers % epochs}
        for step, n in (each | dict.fromkeys(names, often)).items()
        for k in range(n)
    ]
    assert state_transitions(load("spirt"), records, workers=workers, epochs=epochs) == expected
    failed = [*records, {"step": "update_model", "outcome": "error"}]
    assert state_transitions(load("spirt"), failed, workers=workers, epochs=epochs) == expected + 1


def test_a_failed_program_on_an_instance_enters_no_state() -> None:
    """A failed program on an instance adds no state transition."""
    failed = {"step": "train_gpu", "outcome": "error", "worker": 0, "epoch": 1, "instance_type": "g4dn.xlarge"}
    assert state_transitions(load("gpu"), [failed], workers=1, epochs=1) == 0
