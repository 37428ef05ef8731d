"""Which code a run's bits come from, so that what is resumed goes on with the same: the files that its architecture's functions and
programs consist of, the user's own among them, and what the architecture says of itself.

Left out is what neither computes nor lays down a run's state: reports, what a run costs, records and their times, words of errors, and the
models that this run does not train. Settings are compared by their values, data by their fingerprint.
"""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from cdk.bundling import Sources
from crossover import own_code
from crossover.architecture import Architecture, architecture_of, steps
from crossover.experiment import Experiment
from crossover.learning.models.registry import MODELS, factory

ROOT = Path(__file__).parents[2]
UNDECISIVE = tuple(
    f"crossover.{name}."
    for name in [
        "clients.slots",
        "costs",
        "errors",
        "experiment",
        "instances",
        "metering",
        "own_code",
        "reports",
        "surroundings",
        "threads",
    ]
)
_REGISTRY = "crossover.learning.models.registry"  # imports every model; the run's own is followed by itself


def code(experiment: Experiment) -> dict[str, Any]:
    """`files`: digests by path, `settings`: what the architecture says of itself, `digest`: of both."""
    architecture = architecture_of(experiment)
    digests = {**digests_of_project(ROOT, _modules(architecture, experiment)), **own_code.digests(experiment)}
    if architecture.state == "database" and experiment.database.compute == "in_database":
        digests |= {
            path.relative_to(ROOT).as_posix(): _digest(path) for path in (ROOT / "redis_module/src").rglob("*.?pp")
        }
    settings = {
        "tensor_hosts": architecture.tensor_hosts,
        "state": architecture.state,
        "sync_every": architecture.sync_every,
        "steps": [step.name for step in steps(architecture)],
    }
    whole = hashlib.sha256(repr((sorted(digests.items()), settings)).encode()).hexdigest()
    return {"digest": whole, "settings": settings, "files": digests}


def _modules(architecture: Architecture, experiment: Experiment) -> tuple[str, ...]:
    program = [architecture.program.module] if architecture.program else []
    model = [factory(experiment.training.model).__module__] if experiment.training.model in MODELS else []
    named = [f"{package}.{experiment.module}" for package in ("functions", "peers")]  # where ARCHITECTURE stands
    if experiment.outside:
        named = sorted(own_code.bundled(experiment).first_party)  # what its files import of this project
    return tuple(dict.fromkeys([*named, *(step.module for step in steps(architecture)), *program, *model]))


@lru_cache(maxsize=8)
def digests_of_project(root: Path, modules: tuple[str, ...]) -> Mapping[str, str]:
    """By path, of what `modules` reach below `root`: read once per process, as Python itself does."""
    sources, seen, todo = Sources(root), set[str](), list(modules)
    while todo:
        module = todo.pop()
        if module in seen or not sources.path(module) or f"{module}.".startswith(UNDECISIVE):
            continue
        seen.add(module)
        if module != _REGISTRY:
            found = sources.imports(module)
            todo += found.at_once | found.deferred
    paths = sorted(path for module in seen if (path := sources.path(module)))
    return {path.as_posix(): _digest(root / path) for path in paths}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
