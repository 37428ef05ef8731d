"""A run's data and facts, written to the object store before anything starts."""

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import crossover
from crossover import own_code, runtime
from crossover.architecture import Architecture, load
from crossover.context import new_learner
from crossover.costs import spending
from crossover.costs.invocations import Unrecorded
from crossover.dataplane.protocols import ObjectStore
from crossover.errors import Missing, UserError
from crossover.experiment import Experiment
from crossover.keys import Keys
from crossover.running import provenance, resumption
from crossover.training.calendar import calendar_of

if TYPE_CHECKING:
    from crossover.learning.learner import Learner
    from crossover.learning.samples import Dataset


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


@dataclass(frozen=True)
class Materials:
    """What a run is made of besides its experiment. `learner`: of an experiment and its data's manifest."""

    dataset: "Dataset"
    code: Mapping[str, Any]
    versions: Mapping[str, str]
    learner: Callable[[Experiment, Mapping[str, Any]], "Learner"] = new_learner


def materials(experiment: Experiment) -> Materials:
    """The experiment's data set, and what is here: the code, and what it runs on. Raises DataError, ConfigError."""
    from crossover.learning.datasets import load as load_dataset  # numpy and torch: not for `--help`

    return Materials(load_dataset(experiment), provenance.code(experiment), versions())


def prepare(
    experiment: Experiment,
    *,
    objects: ObjectStore,
    data: Sequence[ObjectStore],
    run: str = "",
    of: Callable[[Experiment], Materials] = materials,
) -> Prepared:
    """Stage the data (what is staged already is kept) and write the run's facts. Raises DataError, ConfigError."""
    from crossover.learning.staging import first_samples, stage

    architecture = load(experiment.architecture)
    experiment = architecture.resolve(experiment)
    made_of = of(experiment)
    dataset, code = made_of.dataset, made_of.code
    if run:
        _check_resumed(run, experiment, objects, fingerprint=dataset.fingerprint, code=code)
    manifest = stage(experiment, dataset, data)
    learner = made_of.learner(experiment, manifest)
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
        "versions": made_of.versions,
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
