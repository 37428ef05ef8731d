"""Every state machine that can be deployed, with its placeholders filled in: what the judges of state machines are asked about."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from crossover import validation
from crossover.experiment import Experiment
from crossover.workflow import state_machines
from crossover.workflow.architecture import architectures, load
from crossover.workflow.infrastructure import most_minibatches
from crossover.workflow.state_machines import fill_placeholders
from tests.infrastructure.cases import CASES, CONFIG, Case
from tests.infrastructure.expiring import filled_in

State = dict[str, Any]
WHERE = {"stack": "crossover-x", "region": "us-east-1", "account": "123456789012"}


def configurations() -> Iterator[tuple[str, Experiment]]:
    """Yield (name, experiment) of each file in config/ that describes an experiment."""
    for path in sorted([*CONFIG.glob("*.yaml"), *CONFIG.glob("aws/*.yaml")]):
        if re.search("^architecture:", path.read_text(), re.MULTILINE):  # the others are tables of figures
            yield path.stem, validation.load(path)


def experiments() -> Iterator[tuple[str, Experiment]]:
    """Yield (name, experiment) of each file in config/, each case that changes what is deployed, and each architecture with 64 workers."""
    yield from configurations()
    for name in CASES:
        yield name, Case.of(name).experiment
    for name in architectures():
        yield f"{name} with 64 workers", replace(Case.of(name.replace("_", "-")).experiment, workers=64)


def resolved() -> dict[str, State]:
    """Return all state machine definitions by "experiment: machine"; equal ones only once."""
    found: dict[str, tuple[str, State]] = {}
    for name, experiment in experiments():
        architecture = load(experiment.architecture)
        machines = state_machines.build_definitions(architecture, experiment, minibatches=most_minibatches(experiment))
        for machine, definition in machines.items():
            text = json.dumps(definition)
            found.setdefault(text, (f"{name}: {machine}", json.loads(fill_placeholders(text, **WHERE))))
    return dict(found.values())


def guards() -> dict[str, State]:
    """Return the definitions of the state machines that belong to no architecture, by name."""
    return {"expiry": json.loads(filled_in()), "expiry of one": json.loads(filled_in(only="stack"))}
