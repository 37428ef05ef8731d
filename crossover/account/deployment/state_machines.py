"""Would Step Functions take the state machines? It says so of a definition without making anything."""

import json
from collections.abc import Iterator
from typing import Any

from cdk import expiry_machine
from crossover import asl
from crossover.account.deployment.finding import Finding
from crossover.architecture import architecture_of
from crossover.architecture.infrastructure import most_minibatches, shared_stacks
from crossover.asl.placeholders import filled_in
from crossover.clients import aws_calls
from crossover.experiment import Experiment

ACTION = "states:ValidateStateMachineDefinition"


def finding(session: Any, experiment: Experiment, *, caller: str) -> Finding:
    """`caller`: the ARN of who asks, which names partition and account. Credentials that may not ask are told so: others may deploy."""
    from botocore.exceptions import ClientError

    states, accepted, refused = session.client("stepfunctions"), 0, list[str]()
    _, partition, _, _, account, _ = caller.split(":", 5)
    for name, definition in definitions(experiment).items():
        text = filled_in(
            json.dumps(definition),
            stack=f"{experiment.project}-{experiment.name}",
            region=states.meta.region_name,
            account=account,
            partition=partition,
        )
        try:
            answer = states.validate_state_machine_definition(definition=text, type="STANDARD")
        except ClientError as error:
            if aws_calls.code_of(error) not in aws_calls.DENIED:
                raise
            return Finding("state machines", True, f"not asked: the credentials lack {ACTION}")
        accepted += answer["result"] == "OK"
        if answer["result"] != "OK":
            refused += [f"{name}: {each}" for each in _errors(answer["diagnostics"])]
    if refused:
        return Finding("state machines", False, f"Step Functions would refuse {'; '.join(refused)}")
    return Finding("state machines", True, f"Step Functions would take all {accepted}")


def definitions(experiment: Experiment) -> dict[str, asl.StateDefinition]:
    """Every machine that a deployment of the experiment makes: its own, and the one that ends what has expired."""
    architecture = architecture_of(experiment)
    alone = not shared_stacks(experiment, architecture)
    only = f"{experiment.project}-{experiment.name}" if alone else ""
    own = asl.definitions(architecture, experiment, minibatches=most_minibatches(experiment))
    return {**own, "expiry": expiry_machine.definition(experiment.project, only=only)}


def _errors(diagnostics: list[dict[str, str]]) -> Iterator[str]:
    for each in diagnostics:
        if each["severity"] == "ERROR":
            where = f" at {each['location']}" if each.get("location") else ""
            yield f"{each['code']}{where}: {each['message']}"
