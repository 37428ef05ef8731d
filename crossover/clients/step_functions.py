"""State machines that a program starts, and what Step Functions says of an execution that failed, in plain words."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from crossover.clients.on_demand import lazy
from crossover.clients.protocol import Event
from crossover.errors import ConfigError, Unavailable, ended_with
from crossover.runtime.pauses import Pauses
from crossover.runtime.retries import MACHINE, MACHINE_REQUEST

UNDER_WAY = ("RUNNING", "PENDING_REDRIVE")


class StepFunctions:
    """Machines by their ARNs in the environment: CROSSOVER_MACHINE_<NAME>.

    An execution's name carries run, machine, worker and round, so that a program that starts again takes up the one that it has started.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def run(self, name: str, event: Event) -> Event:
        """Start it, or take it up, and wait for its end; the event it ends with. Raises RunFailed with the cause, Unavailable."""
        variable = f"CROSSOVER_MACHINE_{name.upper()}"
        arn = self._environment.get(variable)
        if not arn:
            raise ConfigError(f"{variable}: not in the environment; the stack sets it for what starts it")
        kind = failure = ""
        for attempt in range(1 + MACHINE.again):
            found = self._ended(arn, f"{event['run']}-{name}-{event['worker']}-{event['round']}-{attempt}", event)
            if found["status"] == "SUCCEEDED":
                ended: Event = json.loads(found.get("output") or "{}")
                return ended
            told = found.get("error", found["status"]), found.get("cause", "")
            kind, failure = innermost_kind(*told), plain_cause(*told)
        raise ended_with(kind, f"{name}, worker {event['worker']}, round {event['round']}: {failure}")

    def _ended(self, arn: str, name: str, event: Event) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        states = self._client
        try:
            with suppress(states.exceptions.ExecutionAlreadyExists):
                states.start_execution(stateMachineArn=arn, name=name, input=json.dumps(event))
            execution = f"{arn.replace(':stateMachine:', ':execution:')}:{name}"
            pause = Pauses(0.05, 1.0)
            while (found := states.describe_execution(executionArn=execution))["status"] in UNDER_WAY:
                pause()
            return dict(found)
        except (BotoCoreError, ClientError) as error:
            raise Unavailable(f"Step Functions, {name}: {error}") from error

    @lazy
    def _client(self) -> Any:
        import boto3
        from botocore.config import Config

        return boto3.client(
            "stepfunctions",
            config=Config(retries={"mode": "standard", "total_max_attempts": 1 + MACHINE_REQUEST.again}),
        )


# Why Lambda itself ended a function, and what helps: Lambda's message says neither.
_ADVICE = {
    "Runtime.OutOfMemory": "it used all its memory: raise functions.memory_mb.{step}, or lower training.batch_size",
    "Runtime.ExitError": "its log says why; a function that is killed had most often too little functions.memory_mb.{step}",
    "Sandbox.Timedout": "raise functions.timeout_s, or give it more processor by functions.memory_mb.{step}",
}


def innermost_kind(error: str, cause: str) -> str:
    """The name of the error that nested causes begin with."""
    kinds: list[str] = re.findall(r'errorType\\*": ?\\*"([\w.]+)', cause)
    return kinds[-1] if kinds else error


def plain_cause(error: str, cause: str) -> str:
    """A failure in plain words: the innermost errorMessage of nested causes, behind the steps it passed through, and what helps."""
    text = cause or error
    messages = re.findall(r'errorMessage\\*": ?\\*"(.*?)\\*"[,}]', text)
    if not messages:
        return text[:1_000] if cause else error
    where = re.findall(r"(\w+ failed, worker \d+, epoch \d+, round \d+)", text)
    kind, step = innermost_kind(error, cause), where[-1].split()[0] if where else "default"
    advice = f"; {_ADVICE[kind].format(step=step)}" if kind in _ADVICE else ""
    return f"{where[-1] if where else 'a step failed'}: {kind}: {messages[-1]}{advice}"
