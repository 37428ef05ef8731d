"""Runs of an architecture's state machines on LocalStack, whose functions this process answers by a script.

The definitions stay as they are but for waits and intervals, which are shortened. Children are really started, and executions that are to
be adopted really exist.
"""

import json
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from crossover.workflow import Event
from crossover.workflow.state_machines import StateDefinition, integration_arn
from tests.witnesses.localstack_server import ACCOUNT, REGION, LocalStack
from tests.witnesses.walks import Entered, Failure, Place, Script, Walk, resolved, seen, states

LONG_S = 3600
PATIENCE_S = 600.0  # for all runs together, on a machine that others use as well
EMPTY_ZIP = b"PK\x05\x06" + bytes(18)
ENDED = ("SUCCEEDED", "FAILED", "TIMED_OUT", "ABORTED")
_ROLE = f"arn:aws:iam::{ACCOUNT}:role/witness"


def arn(kind: str, name: str, service: str = "states") -> str:
    """Return the ARN of a resource in LocalStack's account."""
    return f"arn:aws:{service}:{REGION}:{ACCOUNT}:{kind}:{name}"


def shortened(state: Any) -> Any:
    """Return a definition whose waits and retry intervals are at most a second, the shortest allowed."""
    match state:
        case dict():
            short = {"Seconds": 1, "IntervalSeconds": 1, "MaxDelaySeconds": 1, "BackoffRate": 1.0}
            return {name: short[name] if name in short else shortened(value) for name, value in state.items()}
        case list():
            return [shortened(each) for each in state]
    return state


@dataclass
class Run:
    """One run of state machines, which starts with the machine `root`. `case`: name of the test case of mocked services; `execution`: ARN
    of its execution; `status`, `error`, `cause`: how it ended, "" before.
    """

    id: str
    root: str
    event: Event
    script: Script
    case: str = ""
    execution: str = ""
    status: str = ""
    error: str = ""
    cause: str = ""


@dataclass
class Stage:
    """The state machines of one architecture, created on LocalStack, and the runs that are played there. `gates`: events for which a step
    waits before it answers, by run, step and worker.
    """

    server: LocalStack
    name: str
    machines: Mapping[str, StateDefinition]
    runs: dict[str, Run] = field(default_factory=dict)
    gates: dict[tuple[str, str, int], threading.Event] = field(default_factory=dict)  # by run, step and worker
    arrived: set[tuple[str, str, int]] = field(default_factory=set)  # steps that wait at their gate

    def __post_init__(self) -> None:
        """Create the state machines on LocalStack."""
        self.states = self.server.client("stepfunctions")
        self.steps = set[str]()
        for machine in self.machines:
            definition = self._definition(machine)
            self.states.create_state_machine(name=self._full(machine), definition=definition, roleArn=_ROLE)

    def _full(self, name: str) -> str:
        """Return the full name of a state machine of this architecture."""
        return f"{self.name}-{name}"

    def _definition(self, machine: str, **changes: Any) -> str:
        """Return a machine's definition as text, with short waits and with `changes` of its fields. Placeholders become ARNs. Creates the
        functions that occur for the first time.
        """
        text = json.dumps({**shortened(self.machines[machine]), **changes})
        for target in set(re.findall(r"\$\{call_(\w+)\}", text)):
            text = text.replace(f"${{call_{target}}}", integration_arn(target, partition="aws"))
        found = set[str]()
        for kind, service, prefix in (
            ("step", "lambda", "function"),
            ("machine", "states", "stateMachine"),
            ("executions", "states", "execution"),
        ):
            for name in set(re.findall(rf"\$\{{{kind}_(\w+)\}}", text)):
                text = text.replace(f"${{{kind}_{name}}}", arn(prefix, self._full(name), service))
                if kind == "step":
                    found.add(name)
        for step in found - self.steps:
            self.steps.add(step)
            self.server.client("lambda").create_function(
                FunctionName=self._full(step),
                Runtime="python3.13",
                Handler="x.y",
                Role=_ROLE,
                Code={"ZipFile": EMPTY_ZIP},
            )
        return text

    def change(self, machine: str, **changes: Any) -> None:
        """Deploy `machine` with other values of these fields; without any, as it was originally."""
        definition = self._definition(machine, **changes)
        self.states.update_state_machine(
            stateMachineArn=arn("stateMachine", self._full(machine)), definition=definition
        )

    def enlisted(self, run: Run) -> Run:
        """Add a run, so that its steps are answered from now on, and return it."""
        self.runs[run.id] = run
        return run

    # --- executions -----------------------------------------------------------------------------------------------------

    def start(self, run: Run) -> None:
        """Start the execution of a run."""
        machine = arn("stateMachine", self._full(run.root)) + (f"#{run.case}" if run.case else "")
        started = self.states.start_execution(stateMachineArn=machine, name=run.id, input=json.dumps(run.event))
        run.execution = started["executionArn"]

    def start_child(self, name: str, event: Event) -> str:
        """Start a child as an earlier parent would have, under the name that the definitions give it, and return the execution's ARN."""
        started = self.states.start_execution(
            stateMachineArn=arn("stateMachine", self._full(name)), name=child_name(name, event), input=json.dumps(event)
        )
        return str(started["executionArn"])

    def child(self, name: str, event: Event) -> str:
        """Return the ARN of a child's execution, whether or not it exists."""
        return arn("execution", f"{self._full(name)}:{child_name(name, event)}")

    def status(self, execution: str) -> str:
        """Return the status of an execution, such as RUNNING."""
        return str(self.states.describe_execution(executionArn=execution)["status"])

    def entered(self, execution: str) -> list[tuple[str, Event]]:
        """Return (state, input) of each state that an execution has entered so far; [] if there is no such execution."""
        pages = self.states.get_paginator("get_execution_history").paginate(executionArn=execution)
        try:
            events = [event for page in pages for event in page["events"] if "stateEnteredEventDetails" in event]
        except self.states.exceptions.ExecutionDoesNotExist:
            return []
        details = [event["stateEnteredEventDetails"] for event in sorted(events, key=lambda event: event["id"])]
        return [(each["name"], json.loads(each["input"])) for each in details]

    # --- the steps' answers ---------------------------------------------------------------------------------------------

    def play(self, until: Callable[[], bool]) -> None:
        """Poll until `until` returns True. Raises AssertionError after PATIENCE_S."""
        limit = time.monotonic() + PATIENCE_S
        while not until():
            running = [run.id for run in self.runs.values() if not run.status]
            assert time.monotonic() < limit, f"still running: {running}"
            time.sleep(0.2)

    def called(self, function: str, event: Event) -> Event:
        """Return the scripted answer of a function's step to an event; a step with a gate waits for it first. Raises Failure if the script
        lets the step fail.
        """
        step = function.removeprefix(f"{self.name}-")
        place = (event["run"], step, event["worker"])
        if (gate := self.gates.get(place)) is not None:
            self.arrived.add(place)
            gate.wait()
        return self.runs[event["run"]].script.answer(step, event)

    def finish(self, run: Run) -> None:
        """Wait until the run's execution has ended, and store its status, error and cause in `run`."""
        self.play(lambda: self.status(run.execution) in ENDED)
        found = self.states.describe_execution(executionArn=run.execution)
        run.status, run.error, run.cause = found["status"], found.get("error", ""), found.get("cause", "")

    # --- what was walked ------------------------------------------------------------------------------------------------

    def walk(self, run: Run) -> tuple[Walk, set[tuple[str, str]]]:
        """Return the run's walk, and every (machine, state) that it entered; executions of its children are included."""
        meanings = states(self.machines, run.root)
        found: Walk = defaultdict(list)
        entered = set[tuple[str, str]]()
        waiting = [(run.root, run.execution)]
        while waiting:
            machine, execution = waiting.pop(0)
            for state, event in self.entered(execution):
                entered.add((machine, state))
                meaning: Entered = meanings[machine][state]
                if meaning.name:
                    place: Place = resolved(meaning.place, event)
                    found[place].append((meaning.name, seen(event)))
                if meaning.name.startswith("child "):
                    child = meaning.name.removeprefix("child ")
                    waiting.append((child, self.child(child, event)))
        return dict(found), entered


def child_name(name: str, event: Event) -> str:
    """Return the name of a child's execution, written independently of crossover/workflow/state_machines.py, so that a change there is
    noticed.
    """
    return "{run}-{0}-w{worker}-e{epoch}-r{round}-a{attempt}".format(name, **event)


@contextmanager
def answering(stages: Mapping[str, Stage]) -> Iterator[str]:
    """Yield the address of an HTTP server that answers invocations of functions, each by the stage whose name its own begins with. All
    gates are opened at the end.
    """

    class Handler(BaseHTTPRequestHandler):
        """An HTTP handler that answers invocations of functions as the scripts of the runs say."""

        def do_POST(self) -> None:
            """Answer one invocation of the function that the path names, with an error if the script says so."""
            function = self.path.removeprefix("/")
            event = json.loads(self.rfile.read(int(self.headers["content-length"])))
            try:
                status, answer = None, stages[function.partition("-")[0]].called(function, event)
            except Failure as failure:
                status, answer = "Unhandled", {"errorMessage": str(failure), "errorType": failure.error}
            body = json.dumps(answer).encode()
            self.send_response(200)
            if status:
                self.send_header("x-function-error", status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        for stage in stages.values():
            for gate in stage.gates.values():
                gate.set()
        server.shutdown()
        server.server_close()
