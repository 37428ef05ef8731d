"""Write a tree of steps as Amazon States Language: one definition for the run and one for each child."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from crossover.errors import StaleAttempt
from crossover.experiment import Experiment
from crossover.runtime import EXECUTION, STEP, Retries
from crossover.workflow import REPEATED, START, Child, ForEach, Node, Parallel, Repeat, Sequence, Step
from crossover.workflow.architecture import Architecture

# --- limits -----------------------------------------------------------------------------------------------------------

NAME_LIMIT = 80  # characters of a state's name
INLINE_MAP_LIMIT = 40  # concurrent iterations of an inline Map; more never start, so a barrier would never open
HISTORY_LIMIT = 25_000  # events of one execution
ARRAY_LIMIT = 1_000  # items that States.ArrayRange lists for a Map
LOOKS_LIMIT = 8_000  # of these events, how many may be spent on polling children of earlier attempts
EVENTS_PER_LOOK = 9  # a Task of DescribeExecution 5, a Choice 2, a Wait 2


def fits_inline(items: int | None) -> bool:
    """Return whether a Map with at most `items` iterations can run inline; otherwise it must be distributed. None means an unknown number,
    which must be.

    The mode is fixed in the deployed machine, so all its runs share it.
    """
    return items is not None and items <= INLINE_MAP_LIMIT


def poll_interval_s(limit_s: int, *, times: int) -> int:
    """Return the seconds, at least 5, to wait between two polls of a running child, so that polling for `limit_s` seconds fits into the
    execution's history. `times`: number of iterations that poll at the same time.
    """
    return max(5, -(-limit_s * EVENTS_PER_LOOK * times // LOOKS_LIMIT))


def check_history(machine: str, node: Node, counts: Mapping[str, int | None]) -> None:
    """Raise AssertionError if the execution of `machine` would leave more events than a history holds, with every wait lasting until its
    timeout.

    `node`: the machine's tree; `counts`: number of iterations of a ForEach by its `count`, None if unknown.
    """
    needed = count_events(node, counts)
    assert needed <= HISTORY_LIMIT, (
        f"machine {machine}: {needed:,} events where its waits last until their timeouts; an execution has {HISTORY_LIMIT:,}: "
        "poll less often, shorten the timeout, or make it a Child"
    )


def count_events(node: Node, counts: Mapping[str, int | None]) -> int:
    """Return the number of history events of running `node` once, if polls last until their timeout, other loops run once, and nothing is
    retried. What runs in a history of its own, the body of a Child or of a distributed Map, is not counted.

    `counts`: number of iterations of a ForEach by its `count`, None if unknown, which counts as 0 iterations.
    """
    match node:
        case Step():
            return 5  # entered, scheduled, started, succeeded, exited
        case Child():
            return 6  # and submitted
        case Sequence(nodes=nodes):
            return sum(count_events(each, counts) for each in nodes)
        case Parallel(branches=branches):
            return 4 + sum(2 + count_events(branch, counts) for branch in branches)
        case ForEach(count=count, body=body):
            items = counts[count]
            return 8 + ((items or 0) * (4 + count_events(body, counts)) if fits_inline(items) else 0)
        case Repeat(body=body, timeout_s=timeout_s, every_s=every_s):
            return 4 + (-(-timeout_s // every_s) if every_s else 1) * (
                count_events(body, counts) + 4
            )  # and a Choice, a Wait
    raise TypeError(f"not a node: {node!r}")


# --- placeholders -----------------------------------------------------------------------------------------------------
# The placeholders of a definition, and the ARNs that replace them.

PLACEHOLDER = re.compile(r"\$\{((step|machine|executions|call)_(\w+))\}")
START_EXECUTION, DESCRIBE_EXECUTION = "states_startExecution", "sfn_describeExecution"  # targets of the kind `call`
_RESOURCES = {
    "step": "lambda:{where}:function:{name}",
    "machine": "states:{where}:stateMachine:{name}",
    "executions": "states:{where}:execution:{name}",
}


def fill_placeholders(text: str, *, stack: str, region: str, account: str, partition: str = "aws") -> str:
    """Return `text`, the JSON of a definition, with each placeholder replaced by the ARN of a function or state machine of `stack`, or of
    an AWS call.

    Resources are named `stack` and a hyphen before the placeholder's name, whose underscores become hyphens. `region`, `account`: where the
    stack is deployed; `partition`: the ARNs' partition, such as aws or aws-cn.
    """

    def arn(found: re.Match[str]) -> str:
        """Return the ARN for one placeholder, given as a match of PLACEHOLDER, in the stack, region and account of the call."""
        if found[2] == "call":
            return integration_arn(found[3], partition=partition)
        name = f"{stack}-{found[3].replace('_', '-')}"
        return f"arn:{partition}:{_RESOURCES[found[2]].format(where=f'{region}:{account}', name=name)}"

    return PLACEHOLDER.sub(arn, text)


def integration_arn(target: str, *, partition: str) -> str:
    """Return the ARN for a Task state's `Resource` that calls an AWS service. `target`: service and action, such as
    `sfn_describeExecution`; `partition`: AWS's group of regions, usually `aws`. With START_EXECUTION, the state also waits for the end of
    the execution.
    """
    service, _, action = target.partition("_")
    call = "states:startExecution.sync:2" if target == START_EXECUTION else f"aws-sdk:{service}:{action}"
    return f"arn:{partition}:states:::{call}"


# --- events -----------------------------------------------------------------------------------------------------------
# What every task has in common: the fields that it passes on, and the errors after which it is retried.

StateDefinition = dict[str, Any]


def _retry_timing(retries: Retries) -> StateDefinition:
    """Return the fields of a Retry in Amazon States Language that set its pauses and its number of retries."""
    longest = {} if retries.most_s == inf else {"MaxDelaySeconds": retries.most_s}
    how_often = {"IntervalSeconds": retries.first_s, "BackoffRate": 2.0, "MaxAttempts": retries.again}
    return {**how_often, **longest, "JitterStrategy": "FULL"}


# Lambda's transient errors, the one of our own that passes by itself, and what a killed or timed-out environment leaves
# behind. Every other error (StaleAttempt, WaitTimeout, Corrupt, ...) would come again: it ends the execution.
RETRY: list[StateDefinition] = [
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
            REPEATED.__name__,
        ],
        **_retry_timing(STEP),
    },
]
START_RETRY: list[StateDefinition] = [
    {
        "ErrorEquals": ["StepFunctions.ExecutionLimitExceededException", "StepFunctions.ThrottlingException"],
        **_retry_timing(EXECUTION),
    }
]


def select_fields(**replaced: str) -> StateDefinition:
    """Return the `Parameters` of a state that pass on each field of the event, such as {"run.$": "$.run"}. `replaced`: other paths for some
    fields, by name.
    """
    return {f"{name}.$": replaced.get(name, f"$.{name}") for name in START}


# --- references -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class References:
    """Resources of its stack to which a state machine refers: the `steps` (functions) that it invokes and the `children` (machines) that it
    starts, as dictionaries {name: None} in the order of addition, and whether one of its Maps is `distributed`.
    """

    steps: dict[str, None] = field(default_factory=dict)
    children: dict[str, None] = field(default_factory=dict)
    distributed: bool = False

    def placeholders(self) -> Iterator[tuple[str, str]]:
        """Yield (kind, name) of each placeholder in the definition, such as ("step", "train"). Kinds are step, machine, executions (of a
        machine) and call (of AWS).
        """
        yield from (("step", name) for name in self.steps)
        yield from ((kind, name) for name in self.children for kind in ("machine", "executions"))
        yield from (("call", target) for target in (START_EXECUTION, DESCRIBE_EXECUTION) if self.children)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A state machine as a stack deploys it: its `definition` in Amazon States Language, and the `references` in it to other resources of
    the stack.
    """

    definition: StateDefinition
    references: References


# --- states -----------------------------------------------------------------------------------------------------------
# Adding states to a list of them: names that occur once in the machine, and where a failure leads.


@dataclass(kw_only=True)
class States:
    """A set of connected states in Amazon States Language, under construction: those of a machine, of a Map's iteration, or of a Parallel's
    branch. `names`: names of all states in the whole machine, where each may occur once; `tolerant`: whether a failure ends only this set,
    not what contains it; `times`: how often it runs at the same time in one execution; `states`: the states so far, by name.
    """

    names: set[str]  # of all states in the machine: Step Functions refuses one that occurs twice, in whatever block
    tolerant: bool = False  # a failure ends this block, not what surrounds it
    times: int = 1  # how often it runs side by side in one execution, which has one history
    states: StateDefinition = field(default_factory=dict)

    def reserve(self, wanted: str) -> str:
        """Return a state name that is not yet used in the machine, and mark it as used: `wanted`, or with a number appended, cut to
        NAME_LIMIT characters.
        """
        unique, n = wanted[:NAME_LIMIT], 1
        while unique in self.names:
            n += 1
            unique = f"{wanted[: NAME_LIMIT - len(f' {n}')]} {n}"
        self.names.add(unique)
        return unique

    def add(self, wanted: str, state: StateDefinition, then: str | None) -> str:
        """Add `state` under a free name similar to `wanted`, and return that name. `then`: name of the next state; None makes this the last
        one.
        """
        name = self.reserve(wanted)
        self.states[name] = state | ({"Next": then} if then else {"End": True})
        return name

    def add_failure(self, wanted: str, failure: StateDefinition, *, cause: str) -> str:
        """Add the states for a path that has failed, and return the name of the first.

        In a tolerant block they end only that block, unless the text at the path `cause` names StaleAttempt, which fails the execution: a
        worker of a superseded attempt is no dead worker. Otherwise it is a Fail state. `wanted`: preferred name; `failure`: fields of the
        Fail state.
        """
        name = self.reserve(wanted)
        if not self.tolerant:
            self.states[name] = {"Type": "Fail", **failure}
            return name
        alone, gave_way = self.reserve(f"{wanted} alone"), self.reserve(f"{wanted} late")
        names_it = {"Variable": cause, "StringMatches": f"*{StaleAttempt.__name__}*"}
        self.states[name] = {
            "Type": "Choice",
            "Choices": [{"And": [{"Variable": cause, "IsPresent": True}, names_it], "Next": gave_way}],
            "Default": alone,
        }
        self.states[alone] = {"Type": "Pass", "Result": {}, "End": True}
        self.states[gave_way] = {"Type": "Fail", **failure}
        return name

    def catch_failures(self, subject: str) -> list[StateDefinition]:
        """Add the states of a failed step, as `add_failure` does, and return the `Catch` that leads to them. Their message is the caught
        error, preceded by step, worker, epoch and round. `subject`: name of the step.
        """
        failed = self.add_failure(
            f"{subject} failed",
            {
                # Not the caught error's own name: a child's is States.TaskFailed, and a Fail state must not raise a States error.
                "Error": "StepFailed",
                "CausePath": f"States.Format('{subject} failed, worker {{}}, epoch {{}}, round {{}}: {{}}: {{}}', "
                "$.worker, $.epoch, $.round, $.failure.Error, $.failure.Cause)",
            },
            cause="$.failure.Cause",
        )
        return [{"ErrorEquals": ["States.ALL"], "ResultPath": "$.failure", "Next": failed}]


# --- children ---------------------------------------------------------------------------------------------------------
# A Child: starting an execution of another machine, or waiting for the one that an earlier try started under the same name.

# A read that can be repeated, whatever it was refused for: `Sfn.SfnException` is all that a throttled call says.
DESCRIBE_RETRY = [{**START_RETRY[0], "ErrorEquals": ["States.TaskFailed"]}]


def add_child_states(block: States, node: Child, then: str | None, *, timeout_s: int | None, limit_s: int) -> str:
    """Add the states that start an execution for the Child `node` and wait for its end; return the name of the first state. If an execution
    of that name exists already, they poll that one until it ends; if it did not succeed, that is a failure as in `States.add_failure`.

    `block`: receives the states. `then`: name of the next state, None for the end. `timeout_s`: time limit of the wait for an execution
    that these states start, None for none. `limit_s`: the longest that any execution can last; it caps `timeout_s` and determines the
    seconds between two polls, but does not end the polling.
    """
    name = f"States.Format('{{}}-{node.name}-w{{}}-e{{}}-r{{}}-a{{}}', $.run, $.worker, $.epoch, $.round, $.attempt)"
    taken = {
        "ErrorEquals": ["StepFunctions.ExecutionAlreadyExistsException"],
        "ResultPath": None,
        "Next": _adopt(block, node, name, then, limit_s=limit_s),
    }
    return block.add(
        node.name,
        {
            "Type": "Task",
            "Resource": f"${{call_{START_EXECUTION}}}",
            "Parameters": {
                "StateMachineArn": f"${{machine_{node.name}}}",
                "Name.$": name,
                "Input": {**select_fields(), "AWS_STEP_FUNCTIONS_STARTED_BY_EXECUTION_ID.$": "$$.Execution.Id"},
            },
            "OutputPath": "$.Output",
            **({"TimeoutSeconds": min(timeout_s, limit_s)} if timeout_s else {}),
            "Retry": START_RETRY,
            "Catch": [taken, *block.catch_failures(node.name)],
        },
        then,
    )


def _adopt(block: States, node: Child, name: str, then: str | None, *, limit_s: int) -> str:
    """Add the states that wait for an execution that exists already, and return its result; return the name of the first state.

    An earlier try of this Child has started it. If it did not succeed, the states fail. `block`: receives the states; `name`: expression
    for the execution's name; `then`: name of the next state, None for the end; `limit_s`: the longest that any execution can last.
    """
    describe, wait = block.reserve(f"adopt {node.name}"), block.reserve(f"wait for {node.name}")
    succeeded = {"event.$": "States.StringToJson($.adopted.Output)"}
    result = block.add(
        f"result of {node.name}", {"Type": "Pass", "Parameters": succeeded, "OutputPath": "$.event"}, then
    )
    lost = block.add_failure(
        f"{node.name} ended before",
        {
            "Error": "ChildFailed",
            "CausePath": f"States.Format('an earlier execution of {node.name} ended as {{}}, worker {{}}, epoch {{}}, round {{}}: "
            "resume the run, which starts it under a new name', $.adopted.Status, $.worker, $.epoch, $.round)",
        },
        cause="$.adopted.Cause",
    )
    status = "$.adopted.Status"
    how = block.reserve(f"adopt {node.name}?")
    block.states[how] = {
        "Type": "Choice",
        "Choices": [
            {"Variable": status, "StringEquals": "SUCCEEDED", "Next": result},
            {"Variable": status, "StringEquals": "RUNNING", "Next": wait},
        ],
        "Default": lost,
    }
    execution = name.replace("States.Format('", f"States.Format('${{executions_{node.name}}}:", 1)
    block.states[describe] = {
        "Type": "Task",
        "Resource": f"${{call_{DESCRIBE_EXECUTION}}}",
        "Parameters": {"ExecutionArn.$": execution},
        "ResultPath": "$.adopted",
        "Retry": DESCRIBE_RETRY,
        "Catch": block.catch_failures(f"adopt {node.name}"),
        "Next": how,
    }
    block.states[wait] = {
        "Type": "Wait",
        "Seconds": poll_interval_s(limit_s, times=block.times),
        "Next": describe,
    }
    return describe


# --- blocks -----------------------------------------------------------------------------------------------------------
# A machine's blocks: lists of states, one for the machine itself and one for each iteration of a Map or branch of a Parallel.


@dataclass
class MachineDefinitions:
    """All state machines of one architecture, collected while they are built.

    `counts`: number of iterations of a ForEach by its `count`, None if unknown; `limit_s`: time limit of every execution, so that one that
    hangs does not cost without end.
    """

    counts: Mapping[str, int | None]
    limit_s: int
    machines: dict[str, Machine] = field(default_factory=dict)
    _children: dict[str, Node] = field(default_factory=dict)

    def add(self, name: str, node: Node) -> None:
        """Build the machine `name`, and those of its children, from the tree `node`. Raises AssertionError if the name is taken, or if its
        events may not fit into a history.
        """
        assert name not in self.machines, f"two subtrees are named {name!r}"
        check_history(name, node, self.counts)
        references = References()
        self.machines[name] = Machine(definition={}, references=references)  # takes the name before children do
        definition = {
            "Comment": f"{name}: generated from the architecture's tree",
            "TimeoutSeconds": self.limit_s,
            **Block(machines=self, names=set(), references=references).build(node),
        }
        self.machines[name] = Machine(definition=definition, references=references)

    def add_child(self, child: Child) -> None:
        """Build the machine of the Child, unless the same subtree has been added already: a tree may start it in several places.
        Raises AssertionError if another subtree has its name.
        """
        if self._children.get(child.name) != child.body:
            self.add(child.name, child.body)
            self._children[child.name] = child.body


@dataclass(kw_only=True)
class Block(States):
    """A set of connected states that is built from a node of the tree. `machines`: receives the machines of its Child nodes; `references`:
    of the whole machine, extended by what the states refer to.
    """

    machines: MachineDefinitions
    references: References  # of the whole machine

    def build(self, node: Node, *, silent: bool = False) -> StateDefinition:
        """Build the states of `node` and return the definition with `StartAt` and `States`.

        `silent`: whether to append a last state that returns {}, because the events of 240 iterations together approach the payload limit.
        """
        done = self.add("Done", {"Type": "Pass", "Result": {}}, None) if silent else None
        return {"StartAt": self.emit(node, done), "States": self.states}

    def build_inner(self, node: Node, *, tolerant: bool = False, items: int = 1) -> StateDefinition:
        """Return the definition of a new block inside this one, built from `node`: an iteration of a Map or a branch of a Parallel. Its
        last state returns {}.

        `tolerant`: whether a failure ends only that block; `items`: number of iterations of it that run at the same time.
        """
        inner = Block(
            machines=self.machines,
            names=self.names,
            references=self.references,
            tolerant=tolerant,
            times=self.times * items,
        )
        return inner.build(node, silent=True)

    def emit(self, node: Node, then: str | None) -> str:
        """Add the states for `node` and return the name of the first. `then`: name of the state that follows, None for the end. Raises
        AssertionError for an empty Sequence at the end.
        """
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
                return self._child(node, then)
        raise TypeError(f"not a node: {node!r}")

    def _task(self, step: Step, then: str | None) -> str:
        """Add the Task state that invokes the step's function, and return its name. `then`: name of the next state, None for the end."""
        self.references.steps[step.name] = None
        return self.add(
            step.name,
            {
                "Type": "Task",
                "Resource": f"${{step_{step.name}}}",
                "Parameters": select_fields(),
                "Retry": RETRY,
                "Catch": self.catch_failures(step.name),
            },
            then,
        )

    def _child(self, node: Child, then: str | None, *, timeout_s: int | None = None) -> str:
        """Add the states that run the Child `node` as an execution of its own, and return the name of the first. Its machine is added to
        `machines`, and its name to the children in `references`. `then`: name of the next state, None for the end; `timeout_s`: limit in
        seconds of the wait for an execution that the states start, None for none. Raises AssertionError if another subtree has the Child's
        name.
        """
        self.machines.add_child(node)
        self.references.children[node.name] = None
        return add_child_states(self, node, then, timeout_s=timeout_s, limit_s=self.machines.limit_s)

    def _parallel(self, node: Parallel, then: str | None) -> str:
        """Add a Parallel state with one block for each branch, and return its name. `then`: name of the next state, None for the end."""
        branches = [self.build_inner(branch) for branch in node.branches]
        return self.add("side by side", {"Type": "Parallel", "Branches": branches, "ResultPath": None}, then)

    def _map(self, node: ForEach, then: str | None) -> str:
        """Add a state that lists the items of the ForEach, and the Map state over them; return the name of the former. `then`: name of the
        next state, None for the end.

        The Map is inline if its iterations fit into one history, else distributed.
        """
        count = self.machines.counts[node.count]
        within = fits_inline(count)
        self.references.distributed |= not within
        name = self.reserve(f"each {node.item}")
        self.states[name] = {
            "Type": "Map",
            "ItemsPath": "$.items",
            "ItemSelector": select_fields(**{node.item: "$$.Map.Item.Value"}),
            "MaxConcurrency": 0 if within or not node.together else count or 0,
            "ItemProcessor": {
                "ProcessorConfig": {"Mode": "INLINE"}
                if within
                else {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"},
                **self.build_inner(node.body, tolerant=node.tolerant, items=count if within and count else 1),
            },
            # One field takes the iterations' results, and they are dropped: only the event goes on.
            "ResultSelector": {},
            "ResultPath": "$.items",
            **({} if within else {"Label": name.replace(" ", "")}),  # unique in the machine as well
            **({"Next": then} if then else {"End": True}),
        }
        listing = {"items.$": f"States.ArrayRange(0, States.MathAdd($.{node.count}, -1), 1)", **select_fields()}
        return self.add(f"list {node.item}", {"Type": "Pass", "Parameters": listing}, name)

    def _repeat(self, node: Repeat, then: str | None) -> str:
        """Add the states of the Repeat: note when the wait begins, run the body, check the flag, and pause if it is a poll. Return the name
        of the first. `then`: name of the next state, None for the end.
        """
        choice = self.reserve(f"{node.until}?")
        if then is None:  # a Choice cannot end an execution itself
            then = self.add(f"is {node.until}", {"Type": "Pass"}, None)
        timeout_s = node.timeout_s
        first = (
            self._child(node.body, choice, timeout_s=timeout_s)
            if isinstance(node.body, Child)
            else self.emit(node.body, choice)
        )
        again = (
            self.add(f"wait until {node.until}", {"Type": "Wait", "Seconds": node.every_s}, first)
            if node.every_s
            else first
        )
        met = {"Variable": f"$.{node.until}", "BooleanEquals": True, "Next": then}
        self.states[choice] = {"Type": "Choice", "Choices": [met], "Default": again}
        begin = {**select_fields(since="$$.State.EnteredTime"), "timeout_s": timeout_s}
        del begin["timeout_s.$"]
        return self.add(f"until {node.until}", {"Type": "Pass", "Parameters": begin}, first)


# --- asl --------------------------------------------------------------------------------------------------------------
# Amazon States Language for an architecture: a pure function of tree and experiment, tested without CDK or AWS.
#
# The second interpreter of the tree (`workflow.execute` is the first). JSONPath, STANDARD machines, one machine per Child, each with a
# fixed name. The state that travels is the event alone; a Task selects its fields, so what a Map leaves behind never reaches a step.
#
# Placeholders that the stack substitutes: `${step_<name>}` a function's ARN, `${machine_<name>}` a state machine's ARN,
# `${executions_<name>}` the ARN prefix of that machine's executions. Sources: AWS Step Functions Developer Guide, "Error handling", "Map
# state", "startExecution.sync:2".

RUN_MACHINE = "run"


def build_definitions(
    architecture: Architecture, experiment: Experiment, *, minibatches: int | None = None
) -> dict[str, StateDefinition]:
    """Return the definition in Amazon States Language of every state machine that `architecture` needs for `experiment`, by the machine's
    name. Raises as `build_machines` does.

    `minibatches`: largest number that one worker computes side by side; None (unknown) makes the Maps over them distributed.
    """
    made = build_machines(architecture, experiment, minibatches=minibatches)
    return {name: machine.definition for name, machine in made.items()}


def build_machines(
    architecture: Architecture, experiment: Experiment, *, minibatches: int | None = None
) -> dict[str, Machine]:
    """Return every state machine of the architecture by name: `run`, one per Child, and one per entry of `Architecture.machines`. Raises
    AssertionError if an execution could leave more events than a history holds, or if two different subtrees have one name.

    `experiment`: gives the number of workers and the time limit. `minibatches`: largest number that one worker computes side by side; None
    (unknown) makes the Maps over them distributed.
    """
    counts = {"workers": experiment.workers, "minibatches": minibatches}
    made = MachineDefinitions(counts, limit_s=limit_s(experiment))
    roots = [*([(RUN_MACHINE, architecture.run)] if architecture.run else []), *architecture.machines.items()]
    for name, node in roots:
        made.add(name, node)
    return made.machines


def limit_s(experiment: Experiment) -> int:
    """Return the time limit of an execution in seconds: `lifetime.maximum_run_hours`, rounded up."""
    return math.ceil(experiment.lifetime.maximum_run_hours * 3_600)
