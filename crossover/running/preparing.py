"""A run's data and facts, written to the object store before anything starts."""

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import crossover
from crossover import keys, own_code, runtime
from crossover.algorithms.aggregators.plan import HELD_PARTS, Plan
from crossover.architecture import Architecture, architecture_of
from crossover.context import new_learner
from crossover.costs import spending
from crossover.costs.invocations import Unrecorded
from crossover.dataplane import documents
from crossover.dataplane.protocols import ObjectStore
from crossover.errors import ConfigError, Corrupt, Missing, UserError
from crossover.experiment import Experiment
from crossover.keys import Keys
from crossover.running import provenance, resumption
from crossover.running.trying import check_room_for_base
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


def attempt_number(prepared: Prepared, *, again: bool) -> int:
    """0, or of a run that is resumed `again` the time in hundredths of a second, by which clients that know nothing of each other differ,
    also where one is stopped before its attempt has begun; and above every attempt that has, since another client's clock may be ahead.
    """
    if not again:
        return 0
    begun = (int(key.rpartition("/")[2]) for key in prepared.objects.list(prepared.keys.attempt_markers))
    return max(int(100 * runtime.time()), 1 + max(begun, default=0))


def new_run_id() -> str:
    """At most 24 characters: execution names add machine, worker, epoch and round and must stay within 80."""
    return datetime.fromtimestamp(runtime.time(), UTC).strftime("%Y%m%d-%H%M%S-") + runtime.identifier()[:6]


@dataclass(frozen=True)
class Materials:
    """What a run is made of besides its experiment. `dataset`: None where nothing is trained. `learner`: of an experiment and its data's
    manifest.
    """

    dataset: "Dataset | None"
    code: Mapping[str, Any]
    versions: Mapping[str, str]
    learner: Callable[[Experiment, Mapping[str, Any]], "Learner"] = new_learner


def materials(experiment: Experiment) -> Materials:
    """The experiment's data set, and what is here: the code, and what it runs on. Raises DataError, ConfigError."""
    from crossover.learning.datasets import load as load_dataset  # numpy and torch: not for `--help`

    dataset = load_dataset(experiment) if architecture_of(experiment).trains else None
    return Materials(dataset, provenance.code(experiment), versions())


def prepare(
    experiment: Experiment,
    *,
    objects: ObjectStore,
    data: Sequence[ObjectStore],
    run: str = "",
    of: Callable[[Experiment], Materials] = materials,
) -> Prepared:
    """Stage the data (what is staged already is kept) and write the run's facts. Raises DataError, ConfigError."""
    architecture = architecture_of(experiment)
    experiment = architecture.resolve(experiment)
    made_of = of(experiment)
    fingerprint = made_of.dataset.fingerprint if made_of.dataset else ""
    if run:
        _check_resumed(run, experiment, objects, fingerprint=fingerprint, code=made_of.code)
    constants = b""
    if architecture.aggregates:
        sizes = _of_gradients(architecture.aggregates(experiment), experiment)
    else:
        sizes, constants = _of_training(experiment, made_of, data)
        check_room_for_base(experiment, elements=sizes["parameters"] + sizes["buffers"])
        _stage_base(experiment, objects)
    run = run or new_run_id()
    if constants:
        objects.put(Keys(run).constants, constants)
    calendar = calendar_of(experiment, sizes["data_manifest"])
    facts = {
        "run": run,
        "experiment": experiment.resolved(),
        "data": fingerprint,
        **sizes,
        "constants": bool(constants),
        "created_at": runtime.time(),
        "money": spending.facts(experiment, side_by_side=calendar.side_by_side(0)),
        "versions": made_of.versions,
        "code": made_of.code,
    }
    objects.put(Keys(run).experiment, documents.sealed(facts))
    return Prepared(run, experiment, architecture, objects, facts)


def _of_training(
    experiment: Experiment, made_of: Materials, data: Sequence[ObjectStore]
) -> tuple[dict[str, Any], bytes]:
    """What a run's facts say of data and model, once the data is staged; and what a model of one's own has besides its vector."""
    from crossover.learning.learner import is_own, learner_for
    from crossover.learning.staging import first_samples, stage

    assert made_of.dataset is not None, "an architecture that trains has data"
    tried = learner_for(experiment, made_of.dataset) if own_code.used(experiment) else None
    if tried is not None:
        tried.try_out(first_samples(made_of.dataset))
    own_loss = tried.answers if tried is not None and ":" in experiment.training.loss else None
    manifest = stage(experiment, made_of.dataset, data, answers=own_loss)
    learner = tried or made_of.learner(experiment, manifest)
    sizes = {"data_manifest": manifest, "parameters": learner.parameters, "buffers": learner.buffers}
    if experiment.training.no_decay:
        sizes["undecayed"] = learner.undecayed()
    return sizes, learner.constants() if is_own(experiment.training) else b""


def _stage_base(experiment: Experiment, objects: ObjectStore) -> None:
    """The base that the model begins from, once for all runs that name it."""
    if experiment.training.weights.file is None:
        return
    from crossover.learning.models import weights

    with weights.mapped(experiment.training.weights) as body:
        if not objects.exists(key := keys.weights(str(experiment.training.weights.sha256))):
            objects.put(key, bytes(body))


def _of_gradients(plan: Plan, experiment: Experiment) -> dict[str, Any]:
    """The same of an aggregation, whose gradients its clients make. Raises ConfigError where a function has no room for them."""
    if problems := plan.too_small({step: experiment.functions.memory_of(step, torch=True) for step in HELD_PARTS}):
        raise ConfigError("\n".join(f"functions.memory_mb.{problem}" for problem in problems))
    manifest = {
        "minibatches": plan.widest,
        "clients": plan.clients,
        "gradient_bytes": plan.gradient_bytes,
        "aggregators": [len(level) for level in plan.levels],
        "need_mb": plan.need_mb("aggregate"),
    }
    return {"data_manifest": manifest, "parameters": plan.elements, "buffers": 0}


def _check_resumed(
    run: str, experiment: Experiment, objects: ObjectStore, *, fingerprint: str, code: Mapping[str, Any]
) -> None:
    """Raises UserError where there is no such run, or it was started with other settings, code or data."""
    try:
        began = documents.read(objects, Keys(run).experiment)
    except Missing:
        raise UserError(
            f"--resume {run}: there is no such run; its name stands in its records and executions"
        ) from None
    if objects.exists(Keys(run).finished):  # until then a resumption has at least something to clear away
        raise UserError(f"--resume {run}: the run is finished; leave --resume out for a new one")
    resumption.check_settings(began, experiment)
    resumption.check_code(began, code)
    resumption.check_data(began, fingerprint)
    _check_whole(Keys(run), objects)


def _check_whole(keys: Keys, objects: ObjectStore) -> None:
    """What the run has told so far, all of it, before anything is gone on with. Raises UserError."""
    try:
        for key in [*objects.list(keys.decisions), *objects.list(keys.drops)]:
            documents.read(objects, key)
        spending.read(objects, keys, {})
    except Corrupt as error:
        raise UserError(
            f"--resume: {error}; nothing was changed. A damaged record can be deleted, and the report will say that it lacks one; anything "
            "else has to be put back from a copy, or start a new run"
        ) from error


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
