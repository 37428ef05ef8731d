"""Amazon States Language for an architecture: a pure function of tree and experiment, tested without CDK or AWS.

The second interpreter of the tree (`workflow.execute` is the first). JSONPath, STANDARD machines, one machine per
Child, each with a fixed name. The state that travels is the event alone; a Task selects its fields, so what a Map
leaves behind never reaches a step.

Placeholders that the stack substitutes: `${step_<name>}` a function's ARN, `${machine_<name>}` a state machine's ARN,
`${executions_<name>}`
the ARN prefix of that machine's executions. Sources: AWS Step Functions Developer Guide, "Error handling", "Map
state", "startExecution.sync:2".
"""

from dataclasses import dataclass, field
from typing import Any

from crossover.experiment import Experiment
from crossover.workflow import DAY_S, START, Architecture, Child, ForEach, Node, Parallel, Repeat, Sequence, Step

State = dict[str, Any]

NAME_LIMIT = 80  # characters of a state's name
INLINE_MAP_LIMIT = 40  # concurrent iterations of an inline Map; more never start, so a barrier would never open
RUN_MACHINE = "run"

# Lambda's transient errors, our own Unavailable, and what a killed or timed-out environment leaves behind: steps are
# repeatable. Every other error (StaleAttempt, WaitTimeout, Corrupt, ...) would come again: it ends the execution.
RETRY: list[State] = [
    {
        "ErrorEquals": [
            "Lambda.ServiceException",
            "Lambda.AWSLambdaException",
            "Lambda.SdkClientException",
            "Lambda.ClientExecutionTimeoutException",
            "Lambda.TooManyRequestsException",
            "Lambda.Unknown",
            "Runtime.ExitError",
            "Sandbox.Timedout",
            "Unavailable",
        ],
        "IntervalSeconds": 1,
        "BackoffRate": 2.0,
        "MaxAttempts": 6,
        "MaxDelaySeconds": 30,
        "JitterStrategy": "FULL",
    },
]
_ENDED: State = {"Type": "Pass", "Result": {}, "End": True}
START_RETRY: list[State] = [
    {
        "ErrorEquals": ["StepFunctions.ExecutionLimitExceededException", "StepFunctions.ThrottlingException"],
        "IntervalSeconds": 2,
        "BackoffRate": 2.0,
        "MaxAttempts": 8,
        "JitterStrategy": "FULL",
    }
]


def definitions(
    architecture: Architecture, experiment: Experiment, *, minibatches: int | None = None
) -> dict[str, State]:
    """Every state machine of the architecture by name: `run`, one per Child, one per entry of `machines`.

    `minibatches`: the most that one worker computes side by side; None (unknown) makes those Maps distributed.
    """
    counts = {"workers": experiment.workers, "minibatches": minibatches}
    machines: dict[str, State] = {}
    roots = [*([(RUN_MACHINE, architecture.run)] if architecture.run else []), *architecture.machines.items()]
    for name, node in roots:
        _machine(name, node, counts, machines)
    return machines


def _machine(name: str, node: Node, counts: dict[str, int | None], machines: dict[str, State]) -> None:
    assert name not in machines, f"two subtrees are named {name!r}"
    block = _Block(counts, machines, names=set())
    machines[name] = {
        "Comment": f"{name}: generated from the architecture's tree",
        "TimeoutSeconds": DAY_S * 30,
        **block.of(node),
    }


def fields(**replaced: str) -> State:
    """Parameters that pass the event on, field by field, some replaced by other paths."""
    return {f"{name}.$": replaced.get(name, f"$.{name}") for name in START}


@dataclass
class _Block:
    """One list of states: a machine, a Map's iteration or a Parallel's branch."""

    counts: dict[str, int | None]
    machines: dict[str, State]
    names: set[str]  # of all states in the machine: Step Functions refuses one that occurs twice, in whatever block
    tolerant: bool = False  # a failure ends this block, not what surrounds it
    states: State = field(default_factory=dict)

    def of(self, node: Node, *, silent: bool = False) -> State:
        """`silent`: the block's last state returns {} (240 echoed events approach the payload limit)."""
        done = self._add("Done", {"Type": "Pass", "Result": {}}, None) if silent else None
        return {"StartAt": self.emit(node, done), "States": self.states}

    def inner(self, node: Node, *, tolerant: bool = False) -> State:
        """A block inside this one."""
        return _Block(self.counts, self.machines, self.names, tolerant=tolerant).of(node, silent=True)

    def emit(self, node: Node, then: str | None) -> str:
        """Add `node`'s states, leading on to `then` (None: the end); the name of its first state."""
        match node:
            case Step():
                return self._task(node, then)
            case Sequence(nodes=nodes):
                for child in reversed(nodes):
                    then = self.emit(child, then)
                assert then is not None, "an empty Sequence"
                return then
            case Parallel():
                return self._parallel(node, then)
            case ForEach():
                return self._map(node, then)
            case Repeat():
                return self._repeat(node, then)
            case Child():
                return self._child(node, then, timeout_s=None)
        raise TypeError(f"not a node: {node!r}")

    def _name(self, wanted: str) -> str:
        """A name for a state of this block that no other state of the machine has."""
        unique, n = wanted[:NAME_LIMIT], 1
        while unique in self.names:
            n += 1
            unique = f"{wanted[: NAME_LIMIT - len(f' {n}')]} {n}"
        self.names.add(unique)
        return unique

    def _add(self, wanted: str, state: State, then: str | None) -> str:
        name = self._name(wanted)
        self.states[name] = state | ({"Next": then} if then else {"End": True})
        return name

    def _failing(self, name: str, subject: str) -> list[State]:
        """A Catch that ends the execution with its cause behind the name of the step, worker and round."""
        failed = self._name(f"{name} failed")
        self.states[failed] = (
            _ENDED
            if self.tolerant
            else {
                "Type": "Fail",
                # Not the caught error's own name: a child's is States.TaskFailed, and a Fail state must not raise a States error.
                "Error": "StepFailed",
                "CausePath": f"States.Format('{subject} failed, worker {{}}, epoch {{}}, round {{}}: {{}}: {{}}', "
                "$.worker, $.epoch, $.round, $.failure.Error, $.failure.Cause)",
            }
        )
        return [{"ErrorEquals": ["States.ALL"], "ResultPath": "$.failure", "Next": failed}]

    def _task(self, step: Step, then: str | None) -> str:
        return self._add(
            step.name,
            {
                "Type": "Task",
                "Resource": f"${{step_{step.name}}}",
                "Parameters": fields(),
                "Retry": RETRY,
                "Catch": self._failing(step.name, step.name),
            },
            then,
        )

    def _parallel(self, node: Parallel, then: str | None) -> str:
        branches = [self.inner(branch) for branch in node.branches]
        return self._add("side by side", {"Type": "Parallel", "Branches": branches, "ResultPath": None}, then)

    def _map(self, node: ForEach, then: str | None) -> str:
        count = self.counts[node.count]
        inline = count is not None and count <= INLINE_MAP_LIMIT
        each = self._add(
            f"each {node.item}",
            {
                "Type": "Map",
                "ItemsPath": "$.items",
                "ItemSelector": fields(**{node.item: "$$.Map.Item.Value"}),
                "MaxConcurrency": 0 if inline or not node.together else count or 0,
                "ItemProcessor": {
                    "ProcessorConfig": {"Mode": "INLINE"}
                    if inline
                    else {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"},
                    **self.inner(node.body, tolerant=node.tolerant),
                },
                # One field takes the iterations' results, and they are dropped: only the event goes on.
                "ResultSelector": {},
                "ResultPath": "$.items",
                **({} if inline else {"Label": f"each{node.item}"}),
            },
            then,
        )
        listing = {"items.$": f"States.ArrayRange(0, States.MathAdd($.{node.count}, -1), 1)", **fields()}
        return self._add(f"list {node.item}", {"Type": "Pass", "Parameters": listing}, each)

    def _repeat(self, node: Repeat, then: str | None) -> str:
        name = f"{node.until}?"
        choice = self._add(name, {"Type": "Choice", "Choices": [], "Default": ""}, None)
        del self.states[choice]["End"]
        if then is None:  # a Choice cannot end an execution itself
            then = self._add(f"is {node.until}", {"Type": "Pass"}, None)
        timeout_s = node.timeout_s
        first = (
            self._child(node.body, choice, timeout_s=timeout_s)
            if isinstance(node.body, Child)
            else self.emit(node.body, choice)
        )
        again = (
            self._add(f"wait until {node.until}", {"Type": "Wait", "Seconds": node.every_s}, first)
            if node.every_s
            else first
        )
        self.states[choice]["Choices"] = [{"Variable": f"$.{node.until}", "BooleanEquals": True, "Next": then}]
        self.states[choice]["Default"] = again
        begin = {**fields(since="$$.State.EnteredTime"), "timeout_s": timeout_s}
        del begin["timeout_s.$"]
        return self._add(f"until {node.until}", {"Type": "Pass", "Parameters": begin}, first)

    def _child(self, node: Child, then: str | None, *, timeout_s: int | None) -> str:
        if node.name not in self.machines:
            _machine(node.name, node.body, self.counts, self.machines)
        name = (
            f"States.Format('{{}}-{node.name}-w{{}}-e{{}}-r{{}}-a{{}}', $.run, $.worker, $.epoch, $.round, $.attempt)"
        )
        describe = self._adopt(node, name, then)
        return self._add(
            node.name,
            {
                "Type": "Task",
                "Resource": "arn:aws:states:::states:startExecution.sync:2",
                "Parameters": {
                    "StateMachineArn": f"${{machine_{node.name}}}",
                    "Name.$": name,
                    "Input": {**fields(), "AWS_STEP_FUNCTIONS_STARTED_BY_EXECUTION_ID.$": "$$.Execution.Id"},
                },
                "OutputPath": "$.Output",
                **({"TimeoutSeconds": timeout_s} if timeout_s else {}),
                "Retry": START_RETRY,
                "Catch": [
                    {
                        "ErrorEquals": ["StepFunctions.ExecutionAlreadyExistsException"],
                        "ResultPath": None,
                        "Next": describe,
                    },
                    *self._failing(node.name, node.name),
                ],
            },
            then,
        )

    def _adopt(self, node: Child, name: str, then: str | None) -> str:
        """A name is reserved for 90 days: an execution that exists already is this one, started before a redrive.
        Read its result.
        """
        describe, wait = self._name(f"adopt {node.name}"), self._name(f"wait for {node.name}")
        adopted, lost = self._name(f"adopt {node.name}?"), self._name(f"{node.name} ended before")
        execution = name.replace("States.Format('", f"States.Format('${{executions_{node.name}}}:", 1)
        self.states[describe] = {
            "Type": "Task",
            "Resource": "arn:aws:states:::aws-sdk:sfn:describeExecution",
            "Parameters": {"ExecutionArn.$": execution},
            "ResultSelector": {"status.$": "$.Status", "output.$": "$.Output"},
            "ResultPath": "$.adopted",
            "Retry": START_RETRY,
            "Next": adopted,
        }
        result = self._add(
            f"result of {node.name}",
            {
                "Type": "Pass",
                "Parameters": {"event.$": "States.StringToJson($.adopted.output)"},
                "OutputPath": "$.event",
            },
            then,
        )
        self.states[adopted] = {
            "Type": "Choice",
            "Choices": [
                {"Variable": "$.adopted.status", "StringEquals": "SUCCEEDED", "Next": result},
                {"Variable": "$.adopted.status", "StringEquals": "RUNNING", "Next": wait},
            ],
            "Default": lost,
        }
        self.states[wait] = {"Type": "Wait", "Seconds": 5, "Next": describe}
        self.states[lost] = (
            _ENDED
            if self.tolerant
            else {
                "Type": "Fail",
                "Error": "ChildFailed",
                "Cause": f"an earlier execution of {node.name} failed: resume the run, which starts it under a new name",
            }
        )
        return describe
