"""State machines of the virtual world walk as the tree does: by the same trials as LocalStack, a judge that others wrote."""

import json
from collections import defaultdict
from typing import Any

import pytest

from crossover.workflow.architecture import architectures, load
from tests.chaos.world.kernel import Kernel, Process
from tests.chaos.world.machines import Failed, VirtualExecution, VirtualMachines
from tests.chaos.world.paths import compile_path
from tests.chaos.world.process_runtime import install_runtime
from tests.witnesses.trials import ATTEMPTS, ONCE, Trial, definitions, first_step, roots, trials
from tests.witnesses.walks import Failure, Script, Walk, expected, resolved, seen, states

ALL = [
    pytest.param(name, trial, id=f"{name} {trial.id}")
    for name in architectures()
    for trial in trials(name)
    if trial.child is None
]


def collect_walk(machines: VirtualMachines, root: str, name: str) -> Walk:
    """Return all steps that the executions entered: for each place of the tree, (name of the step, its input) in order. `root`: name of the
    tree's root machine; `name`: the architecture's.
    """
    meanings, found = states(definitions(name), root), defaultdict(list)
    for execution in machines.executions.values():
        for state, event in execution.visited:
            meaning = meanings[execution.machine][state]
            if meaning.name:
                found[resolved(meaning.place, event)].append((meaning.name, seen(event)))
    return dict(found)


class Played:
    """A trial's execution in a virtual world, in which the trial's script answers for all functions."""

    def __init__(self, name: str, trial: Trial) -> None:
        """Create the world and its state machines; `run` starts one. `name`: the architecture's; `trial`: what its script answers, and
        where it fails.
        """
        self.script = Script(roots(load(name))[trial.root], trial.trouble)
        self.kernel = Kernel(trial.id)
        self.machines = VirtualMachines(self.kernel, definitions(name), self._answer, transition_s=lambda: 0.03)
        self.execution: VirtualExecution

    def _answer(self, step: str, event: dict[str, Any]) -> dict[str, Any]:
        """Return the script's answer to a step after 0.1 s. Raises Failed if the script lets the step fail."""
        self.kernel.sleep(0.1)
        try:
            return self.script.answer(step, event)
        except Failure as failure:
            raise Failed(
                failure.error, json.dumps({"errorType": failure.error, "errorMessage": str(failure)})
            ) from None

    def run(self, root: str, event: dict[str, Any]) -> None:
        """Run the state machine `root` on the event to its end, and keep its execution."""

        def start() -> None:
            """Start the execution, and wait until it has ended."""
            self.execution = self.machines.start(root, "run", event)
            self.machines.wait(self.execution)

        with install_runtime(self.kernel):
            task = self.kernel.spawn(start, process=Process(self.kernel, "client"), name="client")
            self.kernel.run(lambda: task.over)


@pytest.mark.parametrize(("name", "trial"), ALL)
def test_a_state_machine_walks_as_the_tree_does(name: str, trial: Trial) -> None:
    """Run a generated state machine under the trial's errors: it enters the same steps with the same input as the tree's interpreter, and
    fails with the same message after as many tries.
    """
    tree = roots(load(name))[trial.root]
    played = Played(name, trial)
    played.run(trial.root, trial.event())
    repeated = trial.name == ONCE  # which only state machines do
    walk, completes = expected(Script(tree) if repeated else Script(tree, trial.trouble), trial.event())
    found = collect_walk(played.machines, trial.root, name)
    assert played.execution.status == ("SUCCEEDED" if completes else "FAILED"), played.execution.cause
    if trial.failing is None or completes:
        assert found == walk
        return
    for place, entries in found.items():
        assert entries == walk.get(place, [])[: len(entries)], place
    assert (
        f"{trial.failing.name} failed, worker {trial.worker}, epoch 0, round 0: {trial.error}" in played.execution.cause
    )
    attempts = max(times for (step, *_), times in played.script.attempts.items() if step == trial.failing.name)
    assert attempts == (ATTEMPTS if trial.error == "Lambda.Unknown" else 1)


@pytest.mark.parametrize("outcome", ["SUCCEEDED", "FAILED"])
def test_a_child_that_exists_already_is_adopted(outcome: str) -> None:
    """Start the execution of a child before its parent does: the parent starts no second one, and ends with `outcome` as the child did."""
    trial = next(each for each in trials("all_reduce") if each.child is not None and each.child.name == "worker")
    assert trial.child is not None
    fails = outcome == "FAILED"
    trouble = Trial(trial.root, outcome, first_step(trial.child) if fails else None, "StaleAttempt", worker=1)
    played = Played("all_reduce", trouble)
    earlier = {**trouble.event(), "worker": 1}
    name = f"{earlier['run']}-worker-w1-e0-r0-a0"
    with install_runtime(played.kernel):
        process = Process(played.kernel, "earlier")
        task = played.kernel.spawn(
            lambda: played.machines.wait(played.machines.start("worker", name, earlier)),
            process=process,
            name="earlier",
        )
        played.kernel.run(lambda: task.over)
    played.run(trial.root, trouble.event())
    assert played.execution.status == outcome
    assert [each.name for each in played.machines.executions.values()].count(name) == 1
    if fails:
        assert "an earlier execution of worker ended as FAILED" in played.execution.cause


@pytest.mark.parametrize("text", ["States.Base64Encode('x')", "$.a[0]", "States.Format('{}', $.a", "nonsense"])
def test_a_definition_that_the_project_does_not_generate_is_refused(text: str) -> None:
    """Check that an expression of Step Functions which the project never generates raises ValueError."""
    with pytest.raises(ValueError, match=r"virtual world|expected|crossover/asl"):
        compile_path(text)
