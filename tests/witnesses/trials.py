"""What is tried with every state machine of an architecture: the straight way, each Retry, each Catch, each adoption of a child."""

import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from crossover.experiment import Experiment
from crossover.workflow import START, Child, Event, ForEach, Node, Step, first_event, state_machines, walk
from crossover.workflow.architecture import Architecture, load
from crossover.workflow.state_machines import RETRY, START_RETRY, StateDefinition
from tests.witnesses.localstack_server import LocalStack
from tests.witnesses.playing import ENDED, Run, Stage
from tests.witnesses.walks import Script, Walk, expected

AT_ONCE = 12  # runs side by side
REPEATED = [error for retry in RETRY for error in retry["ErrorEquals"]]
ATTEMPTS = 1 + RETRY[0]["MaxAttempts"]
FOR_GOOD = "StaleAttempt"  # would come again: no Retry names it
BEFORE = ("SUCCEEDED", "FAILED", "ABORTED", "TIMED_OUT")  # how a child ended before its parent is started again
DURING = ("SUCCEEDED", "FAILED", "ABORTED")  # or while its parent waits for it


@dataclass
class Trial:
    """One run that is tried. `failing`: the step that fails with `error` at worker `worker`; `child`: a child whose execution is started
    under its name before the run, and ends with the status `outcome`.
    """

    root: str
    name: str
    failing: Step | None = None
    error: str = ""
    worker: int = 0
    child: Child | None = None
    outcome: str = ""
    waiting: bool = False  # the parent sees the child running first

    @property
    def id(self) -> str:
        """The trial's name with only letters, digits and hyphens."""
        return "".join(letter if letter.isalnum() else "-" for letter in f"{self.root} {self.name}")

    @property
    def place(self) -> tuple[str, str, int]:
        """The first step of the trial's child, as (run, step, worker)."""
        assert self.child is not None
        return self.id, first_step(self.child).name, self.worker

    def event(self) -> Event:
        """Return the event with which the trial starts."""
        return {**first_event(self.id, workers=2), "minibatches": 2}

    def trouble(self, step: str, event: Event, attempt: int) -> str | None:
        """Return the error with which an attempt (0, 1, ...) of a step fails in this trial; None if it succeeds."""
        if self.name == ONCE:
            return REPEATED[hash_of(step, event) % len(REPEATED)] if attempt == 0 else None
        here = self.failing is not None and step == self.failing.name
        return self.error if here and (event["worker"], event["epoch"], event["round"]) == (self.worker, 0, 0) else None


ONCE = "each step fails once"


def hash_of(step: str, event: Event) -> int:
    """Return a number that spreads the errors over the visits, the same in every process."""
    return len(step) + 7 * int(event["worker"]) + 3 * int(event["round"]) + int(event["minibatch"])


def roots(architecture: Architecture) -> dict[str, Node]:
    """Return the trees of an architecture that state machines run, by name."""
    return {**({"run": architecture.run} if architecture.run else {}), **architecture.machines}


def first_step(child: Child) -> Step:
    """Return the first step of a child's tree."""
    return next(each for each in walk(child.body) if isinstance(each, Step))


def trials(name: str) -> Iterator[Trial]:
    """Yield the trials of the architecture `name`."""
    for root, tree in roots(load(name)).items():
        yield Trial(root, "straight")
        yield Trial(root, ONCE)
        by_worker = {
            id(node)
            for each in walk(tree)
            if isinstance(each, ForEach) and each.item == "worker"
            for node in walk(each)
        }
        for node in walk(tree):
            worker = int(id(node) in by_worker)
            if isinstance(node, Step):
                yield Trial(root, f"{node.name} fails for good", node, FOR_GOOD, worker)
                yield Trial(root, f"{node.name} fails again and again", node, "Lambda.Unknown", worker)
            if isinstance(node, Child):
                first = first_step(node)
                for waiting, outcomes in ((False, BEFORE), (True, DURING)):
                    for outcome in outcomes:
                        failing = first if outcome != "SUCCEEDED" else None
                        what = f"{node.name} {'is running, then' if waiting else 'had'} {outcome}"
                        yield Trial(root, what, failing, FOR_GOOD, worker, node, outcome, waiting)


# --- throttling: the one thing that steps cannot answer ------------------------------------------------------------------

THROTTLED = ("passing", "lasting", "lasting-later")
_THROTTLING = ["StepFunctions.ExecutionLimitExceededException", "StepFunctions.ThrottlingException"]
_ALL_TRUE: Event = {**START, "synchronised": True, "epoch_finished": True, "finished": True, "round": 2, "epoch": 1}


def throws(*errors: str) -> list[StateDefinition]:
    """Return one scripted answer for each of these errors, which fails with it."""
    return [{"Throw": {"Error": error, "Cause": "scripted"}} for error in errors]


def mocks(names: list[str]) -> StateDefinition:
    """Return the SFN_MOCK_CONFIG for the architectures `names`: answers of AWS's services by number of the attempt. A successful start
    cannot be mocked in LocalStack, so the run continues with an existing child.
    """
    output = json.dumps(_ALL_TRUE)
    described = {"Status": "SUCCEEDED", "Output": output, "Name": "x", "StartDate": "2026-01-01T00:00:00Z"}
    answers = {
        "exists": throws(*_THROTTLING, "StepFunctions.ExecutionAlreadyExistsException"),
        "described at last": [*throws("Sfn.SfnException", "Sfn.SfnException"), {"Return": described}],
        "never": throws(*_THROTTLING[:1] * (1 + START_RETRY[0]["MaxAttempts"])),
        "never described": throws(*["Sfn.SfnException"] * (1 + START_RETRY[0]["MaxAttempts"])),
    }
    machines: dict[str, Any] = {}
    for name in names:
        for machine, states in tasks(definitions(name)).items():
            for child, describe in states.items():
                machines.setdefault(f"{name}-{machine}", {"TestCases": {}})["TestCases"] |= {
                    "passing": {child: "exists", describe: "described at last"},
                    "lasting": {child: "never"},
                    "lasting-later": {child: "exists", describe: "never described"},
                }
    numbered = {name: {str(n): each for n, each in enumerate(listed)} for name, listed in answers.items()}
    return {"StateMachines": machines, "MockedResponses": numbered}


def definitions(name: str) -> dict[str, StateDefinition]:
    """Return the state machine definitions of the architecture `name`."""
    experiment = Experiment(name="witness", architecture=name, workers=2)
    return state_machines.build_definitions(load(name), experiment, minibatches=2)


def tasks(machines: Mapping[str, StateDefinition]) -> dict[str, dict[str, str]]:
    """Return {machine: {state that starts a child: state that waits for the child if it exists already}}."""
    found: dict[str, dict[str, str]] = {}
    for machine, definition in machines.items():
        for state, each in all_states(definition).items():
            if each["Type"] == "Task" and each["Resource"] == "${call_states_startExecution}":
                (adopt,) = (c["Next"] for c in each["Catch"] if "AlreadyExists" in str(c["ErrorEquals"]))
                found.setdefault(machine, {})[state] = adopt
    return found


def all_states(block: StateDefinition) -> dict[str, StateDefinition]:
    """Return every state of a machine by its name, those inside Maps and Parallels too."""
    found: dict[str, StateDefinition] = dict(block["States"])
    for state in block["States"].values():
        for inner in [state["ItemProcessor"]] if state["Type"] == "Map" else state.get("Branches", []):
            found |= all_states(inner)
    return found


# --- playing ------------------------------------------------------------------------------------------------------------


@dataclass
class Played:
    """The result of a trial on LocalStack. `walk`: what the state machines walked; `expected`: what the tree of steps gives."""

    run: Run
    walk: Walk
    expected: Walk
    completes: bool  # by `workflow.execute`


@dataclass
class Performance:
    """All trials of an architecture, in progress or done. `throttled`: runs with throttled services, by id; `entered`: every (machine,
    state) that any run has entered so far.
    """

    machines: Mapping[str, StateDefinition]
    futures: dict[str, "Future[Played]"] = field(default_factory=dict)  # by the trial's id
    throttled: dict[str, "Future[Run]"] = field(default_factory=dict)
    entered: set[tuple[str, str]] = field(default_factory=set)

    def played(self, trial: Trial) -> Played:
        """Wait for a trial's end, and return its result. Raises the error of playing it."""
        return self.futures[trial.id].result()


def perform(server: LocalStack, name: str, stages: dict[str, Stage]) -> Performance:
    """Play every trial of the architecture `name` on LocalStack, wait until all have ended, and return them. The architecture's stage is
    added to `stages`, from which functions are answered.
    """
    made = Performance(definitions(name))
    stage = stages[name] = Stage(server, name, made.machines)
    trees = roots(load(name))

    def play(trial: Trial) -> Played:
        """Run a trial to its end, and return its result beside the expected one."""
        tree = trees[trial.root]
        repeated = trial.name == ONCE  # which only state machines do
        walked, completes = expected(Script(tree) if repeated else Script(tree, trial.trouble), trial.event())
        run = stage.runs.get(trial.id) or _enlisted(stage, trial, tree)
        if trial.child is None:
            stage.start(run)
        else:
            _adopting(stage, trial, run, timed_out.get(trial.id) or _earlier(stage, trial, tree))
        stage.finish(run)
        found, entered = stage.walk(run)
        made.entered.update(entered)
        return Played(run, found, walked, completes)

    def throttle(run_id: str, machine: str, case: str) -> Run:
        """Run a state machine whose services are throttled, and return the run."""
        event = {**first_event(run_id, workers=2), "minibatches": 2}
        run = stage.enlisted(Run(run_id, machine, event, Script(trees["run"]), case))
        stage.start(run)
        stage.finish(run)
        made.entered.update((machine, state) for state, _ in stage.entered(run.execution))
        return run

    timed_out: dict[str, str] = {}
    for trial in trials(name):
        if trial.child is not None and trial.outcome == "TIMED_OUT":  # before others start that child
            _enlisted(stage, trial, trees[trial.root])
            stage.change(trial.child.name, TimeoutSeconds=1)
            timed_out[trial.id] = _earlier(stage, trial, trees[trial.root])
            stage.change(trial.child.name)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        made.futures = {trial.id: pool.submit(play, trial) for trial in trials(name)}
        for machine in tasks(made.machines):
            for case in THROTTLED:
                run_id = f"{machine}-{case}"
                made.throttled[run_id] = pool.submit(throttle, run_id, machine, case)
    return made


def _enlisted(stage: Stage, trial: Trial, tree: Node) -> Run:
    """Enlist a trial's run on the stage, and return it. A trial that is stopped from outside fails in no step."""
    script = Script(tree) if trial.outcome in ("ABORTED", "TIMED_OUT") else Script(tree, trial.trouble)
    return stage.enlisted(Run(trial.id, trial.root, trial.event(), script))


def _earlier(stage: Stage, trial: Trial, tree: Node) -> str:
    """Start the child under its name, as the parent will once more, and return the execution's ARN. Its first step waits at a gate if the
    child must not end by itself.
    """
    if trial.waiting or trial.outcome in ("ABORTED", "TIMED_OUT"):
        stage.gates[trial.place] = threading.Event()
    assert trial.child is not None
    return stage.start_child(trial.child.name, _first(trial, tree))


def _first(trial: Trial, tree: Node) -> Event:
    """Return the event that the parent hands to the child which is to be adopted, the first time."""
    straight, _ = expected(Script(tree), trial.event())
    assert trial.child is not None
    event = next(
        event
        for entries in straight.values()
        for entry, event in entries
        if entry == f"child {trial.child.name}" and event["worker"] == trial.worker
    )
    return {**event, "since": "2026-01-01T00:00:00Z" if event["since"] else ""}


def _adopting(stage: Stage, trial: Trial, run: Run, earlier: str) -> None:
    """Let the earlier child's execution end with the trial's outcome, then start the run, which finds it. If `trial.waiting`, start the run
    first, and wait until it waits for that child.
    """
    place = trial.place
    if trial.waiting:
        stage.start(run)
        stage.play(lambda: place in stage.arrived and _waits(stage, trial, run))
    if trial.outcome == "ABORTED":
        stage.play(lambda: place in stage.arrived)
        stage.states.stop_execution(executionArn=earlier)
    if place in stage.gates:
        stage.gates[place].set()
    stage.play(lambda: stage.status(earlier) in ENDED)
    ended = stage.status(earlier)  # LocalStack breaks down in some that are stopped inside a Map
    assert ended == trial.outcome or (ended, trial.outcome) == ("FAILED", "ABORTED")
    if not trial.waiting:
        stage.start(run)


def _waits(stage: Stage, trial: Trial, run: Run) -> bool:
    """Return True if the parent has entered the state in which it waits for a child that exists already."""
    assert trial.child is not None
    starting = f"${{machine_{trial.child.name}}}"
    parent = next(machine for machine, definition in stage.machines.items() if starting in json.dumps(definition))
    execution = run.execution
    if parent != run.root:
        execution = stage.child(parent, {**run.event, "worker": trial.worker})
    return any(state.startswith(f"wait for {trial.child.name}") for state, _ in stage.entered(execution))
