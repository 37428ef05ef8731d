"""A run's data and facts, written to the object store before anything starts."""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import crossover
from crossover import own_code, runtime
from crossover.architecture import Architecture, load
from crossover.costs import spending
from crossover.costs.invocations import Unrecorded
from crossover.dataplane.protocols import ObjectStore
from crossover.errors import Missing, UserError
from crossover.experiment import Experiment
from crossover.keys import Keys
from crossover.running import provenance, resumption
from crossover.training.calendar import calendar_of


@dataclass
class Prepared:
    """A run whose data and facts lie in the object store."""

    run: str
    experiment: Experiment
    architecture: Architecture
    objects: ObjectStore
    facts: dict[str, Any]
    records: dict[str, dict[str, Any]] = field(default_factory=dict)  # by key: each is read once
    under_way: list[dict[str, Any]] = field(default_factory=list)  # the latest marks of invocations without a record
    decisions: list[dict[str, Any]] = field(default_factory=list)
    unrecorded: Unrecorded | None = None  # None: the platform was not asked

    @property
    def keys(self) -> Keys:
        return Keys(self.run)


def new_run_id() -> str:
    """At most 24 characters: execution names add machine, worker, epoch and round and must stay within 80."""
    return datetime.fromtimestamp(runtime.time(), UTC).strftime("%Y%m%d-%H%M%S-") + runtime.identifier()[:6]


def prepare(experiment: Experiment, *, objects: ObjectStore, data: Sequence[ObjectStore], run: str = "") -> Prepared:
    """Stage the data (what is staged already is kept) and write the run's facts. Raises DataError, ConfigError."""
    from crossover.learning.datasets import load as load_dataset  # numpy and torch: not for `--help`
    from crossover.learning.learner import Learner
    from crossover.learning.staging import first_samples, stage

    architecture = load(experiment.architecture)
    experiment = architecture.resolve(experiment)
    dataset = load_dataset(experiment)
    code = provenance.code(experiment)
    if run:
        _check_resumed(run, experiment, objects, fingerprint=dataset.fingerprint, code=code)
    manifest = stage(experiment, dataset, data)
    learner = Learner(
        experiment, classes=manifest["classes"], input_shape=tuple(manifest["input_shape"]), affine=manifest["affine"]
    )
    if own_code.used(experiment):
        learner.try_out(first_samples(dataset))
    run = run or new_run_id()
    facts = {
        "run": run,
        "experiment": experiment.resolved(),
        "data": dataset.fingerprint,
        "data_manifest": manifest,
        "parameters": learner.parameters,
        "buffers": learner.buffers,
        "created_at": runtime.time(),
        "money": spending.facts(experiment, side_by_side=calendar_of(experiment, manifest).minibatches_in(0)),
        "versions": versions(),
        "code": code,
    }
    objects.put(Keys(run).experiment, json.dumps(facts).encode())
    return Prepared(run, experiment, architecture, objects, facts)


def _check_resumed(
    run: str, experiment: Experiment, objects: ObjectStore, *, fingerprint: str, code: Mapping[str, Any]
) -> None:
    """Raises UserError where there is no such run, or it was started with other settings, code or data."""
    try:
        began = json.loads(objects.get(Keys(run).experiment))
    except Missing:
        raise UserError(
            f"--resume {run}: there is no such run; its name stands in its records and executions"
        ) from None
    if objects.exists(Keys(run).outcome):
        raise UserError(f"--resume {run}: the run is finished; leave --resume out for a new one")
    resumption.check_settings(began, experiment)
    resumption.check_code(began, code)
    resumption.check_data(began, fingerprint)


def versions() -> dict[str, str]:
    """What the figures of a run depend on."""
    import torch

    return {
        "crossover": crossover.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
