"""Preparation of a run: code digests, a trial of user code, staged data and facts, and checks of disk space."""

import hashlib
import platform
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import crossover
from cdk.bundling import Sources
from crossover import bundling, runtime
from crossover.errors import ConfigError, Corrupt, DataError, Missing, UserError, print_line
from crossover.experiment import Experiment
from crossover.learning.sizes import HELD_VECTORS, RUNTIME_MB
from crossover.local.servers import FREE_MB
from crossover.reports import spending
from crossover.reports.usage import Unrecorded
from crossover.running import resume
from crossover.stores import documents
from crossover.stores import keys as keys_
from crossover.stores.keys import Keys
from crossover.stores.protocols import ObjectStore
from crossover.training.progress import calendar_of
from crossover.workflow.architecture import Architecture, architecture_of, steps
from crossover.workflow.context import new_learner

if TYPE_CHECKING:
    from crossover.learning.learner import Learner
    from crossover.learning.samples import Dataset


# --- provenance -------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
# Modules that neither compute nor write a run's state: a change in them does not prevent resuming a run.
IRRELEVANT_MODULES = tuple(
    f"crossover.{name}." for name in ("errors", "experiment", "processes", "reports", "user_code")
)

_ZOO = "crossover.learning.zoo"  # every learner imports it; it matters only for runs that train one of its models


def digest_code(experiment: Experiment) -> dict[str, Any]:
    """Return the identity of the code that a run of the experiment executes, as a dictionary.

    `files`: {path: digest} of the project's modules and the user's files that are executed; `settings`: properties of the architecture;
    `digest`: SHA-256 of both; `own`: {path: SHA-256} of the user's own files, including the loader of the data set, which a reproduction
    must match.
    """
    architecture = architecture_of(experiment)
    digests = {**digest_project(ROOT, _list_modules(architecture, experiment)), **bundling.hash_files(experiment)}
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
    return {"digest": whole, "settings": settings, "files": digests, "own": bundling.hash_all_files(experiment)}


def _list_modules(architecture: Architecture, experiment: Experiment) -> tuple[str, ...]:
    """Return the names of the modules that a run of the experiment executes: of the architecture, its steps and program, and of the
    built-in models if it trains one of them.
    """
    program = [architecture.program.module] if architecture.program else []
    model = [] if ":" in experiment.training.model else [_ZOO]
    named = [
        f"{package}.{experiment.module}" for package in ("functions", "peers")
    ]  # the modules that define ARCHITECTURE
    if experiment.outside:
        named = sorted(bundling.collect_files(experiment).first_party)  # modules of this project that its files import
    return tuple(dict.fromkeys([*named, *(step.module for step in steps(architecture)), *program, *model]))


@lru_cache(maxsize=8)
def digest_project(root: Path, modules: tuple[str, ...]) -> Mapping[str, str]:
    """Return {path below `root`: digest} for the files of all modules that those named in `modules` import, directly or not, themselves
    included. A digest is the first 16 hexadecimal digits of the file's SHA-256. IRRELEVANT_MODULES are left out. The result is kept, so
    that later changes of the files do not count, because Python too reads a module only once.
    """
    sources, seen, todo = Sources(root), set[str](), list(modules)
    while todo:
        module = todo.pop()
        left_out = module == _ZOO and _ZOO not in modules
        if module in seen or left_out or not sources.find_file(module) or f"{module}.".startswith(IRRELEVANT_MODULES):
            continue
        seen.add(module)
        found = sources.read_imports(module)
        todo += found.at_once | found.deferred
    paths = sorted(path for module in seen if (path := sources.find_file(module)))
    return {path.as_posix(): _digest(root / path) for path in paths}


def _digest(path: Path) -> str:
    """Return the first 16 hexadecimal digits of the file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


# --- trying -----------------------------------------------------------------------------------------------------------
# A trial of user code before anything is started: load the data, build the model, compute a gradient and an evaluation of two samples.


def check_room_for_base(experiment: Experiment, *, elements: int) -> None:
    """Raise ConfigError if a function that computes has too little memory for torch, the model's pretrained base weights and the vectors of
    a run; what a minibatch takes is not counted. The error names the first such function and the least memory. `elements`: number of
    float32 values in such a vector. Passes if the model has no pretrained base.
    """
    from crossover.learning import weights

    if not (base_bytes := weights.get_file_size(experiment.training.weights)):
        return
    base_mb, vectors_mb = base_bytes / 2**20, HELD_VECTORS * 4 * elements / 2**20
    need = RUNTIME_MB + base_mb + vectors_mb
    for step in steps(architecture_of(experiment)):
        torch = step.needs_torch(experiment)
        given = experiment.functions.memory_of(step.name, torch=torch)
        if torch and given < need:
            raise ConfigError(
                f"functions.memory_mb.{step.name}: {given} MB have no room for the base of {base_mb:,.0f} MB, vectors of "
                f"{vectors_mb:,.0f} and {RUNTIME_MB} of torch; at least {need:,.0f} and what a minibatch takes are expected"
            )


TriedCode = tuple[str | None, Mapping[str, Any] | None]


def try_out(experiment: Experiment) -> TriedCode:
    """Try the user's own code in this process: load the data, build the model, train and evaluate on a few samples.

    Returns (sentence on the result, description of the data such as its columns and classes). Without user code both are None. If the files
    of a built-in data set are not on this machine, only the imports are tried, and the description holds what is known without the files.
    Raises OwnCodeError, ConfigError, DataError.
    """
    used = bundling.list_user_code_with_loader(experiment)
    if not used:
        return None, None
    from crossover.learning import fitness, understood  # torch: not for --help
    from crossover.learning.datasets import load as load_dataset

    experiment = architecture_of(experiment).resolve(experiment)
    names = ", ".join(dict.fromkeys(used.values()))
    try:
        dataset = load_dataset(experiment)
    except DataError as error:
        if "data.dataset" in used:
            raise
        why = f"{names}: imported but not tried, because the data is not here: {error}"
        return why, understood.describe_known(experiment)
    learner = _try_learner(experiment, dataset)
    check_room_for_base(experiment, elements=learner.parameters + learner.buffers)
    found = fitness.describe_dataset(dataset, preprocess=experiment.data.preprocess)
    return f"{names}: {learner.parameters:,} parameters; {found}", dataset.understood


def try_training(experiment: Experiment) -> Mapping[str, Any]:
    """Train the experiment's model for a few minibatches in this process, and return the description of the data, such as its columns and
    classes. Raises OwnCodeError, ConfigError, DataError.
    """
    from crossover.learning.datasets import load as load_dataset

    experiment = architecture_of(experiment).resolve(experiment)
    dataset = load_dataset(experiment)
    _try_learner(experiment, dataset)
    return dataset.understood


def _try_learner(experiment: Experiment, dataset: "Dataset") -> "Learner":
    """Build the experiment's learner (its model, loss and optimizer), try it on a few samples and minibatches, and return it. Raises
    ConfigError if a worker would have no minibatch, or no minibatches enough for a round.
    """
    from crossover.learning.first_steps import try_minibatches
    from crossover.learning.learner import adapt_to_processor, learner_for
    from crossover.learning.staging import plan_staging, take_first_samples

    plan_staging(experiment, len(dataset.train_labels))  # raises if a worker would have no minibatch or no round
    experiment = adapt_to_processor(experiment)
    learner = learner_for(experiment, dataset)
    learner.try_out(take_first_samples(dataset))
    try_minibatches(experiment, dataset, learner)
    return learner


# --- preparing --------------------------------------------------------------------------------------------------------
# A run's data and facts, written to the object store before anything starts.


@dataclass
class PreparedRun:
    """A run whose data and configuration have been written to its object store, and what this process has read of its progress since then.

    `run`: its id; `experiment`, `architecture`: what it trains; `objects`: its store; `facts`: its configuration, the content of
    experiment.json; `records`: by key, one for each finished invocation or interval of a program; `under_way`: latest usage snapshots of
    invocations that have no record yet; `decisions`: one for each evaluation, whether training continues; `unrecorded`: killed invocations
    that left no record, None if the platform was not asked; `damaged`: a sentence for each piece of damaged data that the run does without.
    """

    run: str
    experiment: Experiment
    architecture: Architecture
    objects: ObjectStore
    facts: dict[str, Any]
    records: dict[str, dict[str, Any]] = field(default_factory=dict)  # by key: each is read once
    under_way: list[dict[str, Any]] = field(
        default_factory=list
    )  # the latest usage snapshots of invocations without a record
    decisions: list[dict[str, Any]] = field(default_factory=list)
    unrecorded: Unrecorded | None = None  # None: the platform was not asked
    damaged: list[str] = field(default_factory=list)  # damaged data that the run does without, a sentence each

    def note_damage(self, damaged: Sequence[str]) -> None:
        """Add to `self.damaged`, and print, a note about each piece of data that is damaged and that the run can do without. `damaged`: a
        sentence each.
        """
        self.damaged += damaged
        for each in damaged:
            print_line(f"note: {each}", stderr=True)

    @property
    def keys(self) -> Keys:
        """The names of the run's objects in its store."""
        return Keys(self.run)


def attempt_number(prepared: PreparedRun, *, again: bool) -> int:
    """Return the number of the run's next attempt (its first start, or a resumption): 0 for a new run, or if the run is resumed (`again`)
    the unix time in hundredths of a second.

    Two clients that resume the same run thus choose different numbers. The number is above those of all attempts that have begun, even if
    another client's clock is ahead.
    """
    if not again:
        return 0
    begun = (int(key.rpartition("/")[2]) for key in prepared.objects.list(prepared.keys.attempt_markers))
    return max(int(100 * runtime.time()), 1 + max(begun, default=0))


def new_run_id() -> str:
    """Return a new run id from the time in UTC and a random part, such as 20260801-120000-1a2b3c. It has at most 24 characters, because
    names of executions, which may have 80, contain it.
    """
    return datetime.fromtimestamp(runtime.time(), UTC).strftime("%Y%m%d-%H%M%S-") + runtime.identifier()[:6]


@dataclass(frozen=True)
class Materials:
    """The inputs of a run besides its experiment. `dataset`: the loaded data set; `code`: identity of the code, from `digest_code`;
    `versions`: from `collect_versions`; `learner`: function that builds a learner from an experiment and the manifest of its data.
    """

    dataset: "Dataset"
    code: Mapping[str, Any]
    versions: Mapping[str, str]
    learner: Callable[[Experiment, Mapping[str, Any]], "Learner"] = new_learner


def load_materials(experiment: Experiment) -> Materials:
    """Return the inputs of a run of `experiment`: its data set, which is downloaded if it is a built-in one and missing, the digests of its
    code, and the versions on this machine; the learner is built by `new_learner`. Raises what `load` in learning/datasets.py raises
    (DataError, ConfigError, OSError), and OwnCodeError if a user's module is no valid Python.
    """
    from crossover.learning.datasets import load as load_dataset  # numpy and torch: not for `--help`

    return Materials(load_dataset(experiment), digest_code(experiment), collect_versions())


def prepare(
    experiment: Experiment,
    *,
    objects: ObjectStore,
    data: Sequence[ObjectStore],
    run: str = "",
    load_inputs: Callable[[Experiment], Materials] = load_materials,
) -> PreparedRun:
    """Prepare a run: divide the experiment's data and upload it, unless the stores have it already, check the model, and write the run's
    configuration to its object store. Returns the run, whose experiment has the architecture's defaults filled in. A resumed run's
    configuration is written anew, with the present as its time of creation.

    `objects`: the run's store; `data`: stores of the data, one for all workers or one for each; `run`: id of a run to resume, "" for a new
    one; `load_inputs`: loads the run's inputs. Damaged records of a resumed run are deleted and noted. Raises DataError, ConfigError, and
    UserError if the run cannot be resumed.
    """
    architecture = architecture_of(experiment)
    experiment = architecture.resolve(experiment)
    made_of = load_inputs(experiment)
    fingerprint = made_of.dataset.fingerprint
    damaged = dict[str, Corrupt]()
    if run:
        _check_can_resume(run, experiment, objects, fingerprint=fingerprint, code=made_of.code)
        damaged = _find_damaged_records(Keys(run), objects)
    sizes, constants = _stage_training(experiment, made_of, data)
    check_room_for_base(experiment, elements=sizes["parameters"] + sizes["buffers"])
    _stage_base(experiment, objects)
    run = run or new_run_id()
    if constants:
        objects.put(Keys(run).constants, constants)
    calendar = calendar_of(experiment, sizes["data_manifest"])
    facts = {
        "run": run,
        "experiment": experiment.to_plain(),
        "data": fingerprint,
        "understood": made_of.dataset.understood if made_of.dataset else None,
        **sizes,
        "constants": bool(constants),
        "created_at": runtime.time(),
        "money": spending.pricing_facts(experiment, side_by_side=calendar.count_parallel(0)),
        "versions": made_of.versions,
        "code": made_of.code,
    }
    objects.put(Keys(run).experiment, documents.seal(facts))
    prepared = PreparedRun(run, experiment, architecture, objects, facts)
    if damaged:
        objects.delete(*damaged)
        prepared.note_damage(
            [f"{error}; the record was dropped, and the report lacks it" for error in damaged.values()]
        )
    return prepared


def print_data(prepared: PreparedRun) -> None:
    """Print lines that describe the run's data, such as its columns and classes. Print nothing if the run has no such description."""
    from crossover.learning import understood

    if found := prepared.facts.get("understood"):
        for line in understood.format_lines(found):
            print_line(line)


def _stage_training(
    experiment: Experiment, made_of: Materials, data: Sequence[ObjectStore]
) -> tuple[dict[str, Any], bytes]:
    """Upload the data that `made_of` holds to the stores `data`, and build the model. Returns (sizes, constants): what the run's
    configuration says about the data and the model's size, {"data_manifest", "parameters", "buffers"} and with `training.no_decay` also
    "undecayed"; and the constants of a user's model that are not among its parameters, b"" for a built-in model.
    """
    from crossover.learning.learner import adapt_to_processor, has_user_code, learner_for
    from crossover.learning.staging import stage, take_first_samples

    experiment = adapt_to_processor(experiment)
    tried = learner_for(experiment, made_of.dataset) if bundling.list_user_code_with_loader(experiment) else None
    if tried is not None:
        tried.try_out(take_first_samples(made_of.dataset))
    own_loss = tried.count_answers if tried is not None and ":" in experiment.training.loss else None
    manifest = stage(experiment, made_of.dataset, data, answers=own_loss)
    learner = tried or made_of.learner(experiment, manifest)
    sizes = {"data_manifest": manifest, "parameters": learner.parameters, "buffers": learner.buffers}
    if experiment.training.no_decay:
        sizes["undecayed"] = learner.list_undecayed()
    return sizes, learner.encode_constants() if has_user_code(experiment.training) else b""


def _stage_base(experiment: Experiment, objects: ObjectStore) -> None:
    """Upload the pretrained base weights of the model to `objects`, if it has any and they are not there yet. All runs with the same base
    share them.
    """
    if experiment.training.weights.file is None:
        return
    from crossover.learning import weights

    with weights.map_file(experiment.training.weights) as body:
        if not objects.exists(key := keys_.weights(str(experiment.training.weights.sha256))):
            objects.put(key, bytes(body))


def _check_can_resume(
    run: str, experiment: Experiment, objects: ObjectStore, *, fingerprint: str, code: Mapping[str, Any]
) -> None:
    """Raise UserError if the run to resume does not exist or is finished, and ConfigError if it was started with other settings, code or
    data. `run`: its id; `fingerprint`: of the data here; `code`: identity of the code here, from `digest_code`.
    """
    try:
        began = documents.read_document(objects, Keys(run).experiment)
    except Missing:
        raise UserError(f"--resume {run}: there is no such run; its id is in its records and executions") from None
    if objects.exists(Keys(run).finished_marker):  # before that, a resumed run has at least something to clean up
        raise UserError(f"--resume {run}: the run is finished; leave --resume out for a new one")
    resume.check_settings(began, experiment)
    resume.check_code(began, code)
    resume.check_data(began, fingerprint)


def _find_damaged_records(keys: Keys, objects: ObjectStore) -> dict[str, Corrupt]:
    """Read everything that the run has written so far, before it is resumed, and return {key: error} of the damaged records, which only the
    report needs. Raises UserError if a decision is damaged, without which the run cannot continue.
    """
    damaged = dict[str, Corrupt]()
    try:
        for key in [*objects.list(keys.decisions), *objects.list(keys.drop_decisions)]:
            documents.read_document(objects, key)
    except Corrupt as error:
        raise UserError(
            f"--resume: {error}; nothing was changed; put it back from a copy, or start a new run"
        ) from error
    spending.read_records(objects, keys, {}, damaged=damaged)
    return damaged


def collect_versions() -> dict[str, str]:
    """Return the versions and properties of this machine on which a run's results depend: {"crossover", "python", "torch", "machine",
    "cpu"}.
    """
    import torch

    return {
        "crossover": crossover.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


# --- room -------------------------------------------------------------------------------------------------------------
# Room on the disks that a run writes to, checked before it begins and not after the training.

_SERVERS_MB = 100  # code, logs, and what databases and brokers write of a small model
_FILES_MB = 50  # of the run's folder: records, report, and a small model
# Of a member: four checkpoints of model and two vectors of the optimizer, while two newer ones are copied.
_KEPT_VECTORS = 3 * (4 + 2)


def check_room_for_servers(out: Path, *, broker: bool) -> None:
    """Raise ConfigError if too little disk space is free in the folder for temporary files, where the servers of the local cloud write, or
    for results in `out`. `broker`: whether RabbitMQ is among the servers.
    """
    reason = f", {FREE_MB} MB of it so that RabbitMQ takes messages" if broker else ""
    _check_room(
        Path(tempfile.gettempdir()), _SERVERS_MB + broker * FREE_MB, f"for the servers{reason}", "set TMPDIR to a"
    )
    _check_room_for_results(out, _FILES_MB)


def check_room_for_folder(prepared: PreparedRun, out: Path) -> None:
    """Raise ConfigError if the disk of `out` has too little free space for the run's results and for the checkpoints that are kept there
    during the run.
    """
    facts, members = prepared.facts, prepared.experiment.workers if prepared.architecture.state == "checkpoints" else 1
    vectors_mb = 4 * (1 + _KEPT_VECTORS * members) * (facts["parameters"] + facts["buffers"]) / 1e6
    _check_room_for_results(out, _FILES_MB + vectors_mb)


def _check_room_for_results(out: Path, needed_mb: float) -> None:
    """Raise ConfigError if the disk of `out` has less than `needed_mb` MB of free space. The folder need not exist."""
    _check_room(out, needed_mb, "for the results, and for checkpoints during the run", "give --out a")


def _check_room(folder: Path, needed_mb: float, what_for: str, otherwise: str) -> None:
    """Raise ConfigError if the disk of `folder` has less than `needed_mb` MB of free space. The folder need not exist. `what_for`: words
    for the purpose; `otherwise`: words of a command that chooses another folder; both are parts of the message.
    """
    disk = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if (free_mb := shutil.disk_usage(disk).free // 10**6) < needed_mb:
        raise ConfigError(
            f"{folder}: {needed_mb:,.0f} MB are needed {what_for}; {free_mb:,.0f} MB are free: free some space, or {otherwise} "
            "folder on another disk"
        )
