"""What a run that failed on this machine leaves in its folder, so that `crossover run --resume FOLDER` goes on with it.

The cloud on one machine ends with its run, the databases with it. So when a run fails, or is stopped, its checkpoints, decisions and
records are copied from the object store into `unfinished/`; of SPIRT, whose state lives in the workers' databases alone, the newest state
that is whole. A resumed run finds them in its own, new object store, where it would find them on AWS.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossover import runtime
from crossover.architecture import load
from crossover.dataplane.files import FileObjectStore
from crossover.dataplane.protocols import ObjectStore, TensorStore
from crossover.dataplane.traffic import Traffic
from crossover.dataplane.vector import header
from crossover.errors import ConfigError, CrossoverError, Missing, UserError
from crossover.experiment import Experiment, flat, from_resolved
from crossover.keys import Keys
from crossover.reports.folder import RESULT
from crossover.training.calendar import calendar_of
from crossover.training.databases import kept_name, own_keys, resumable, state_keys

FOLDER = "unfinished"
_LOOKS, _PAUSE_S = 10, 0.2  # workers that still run replace checkpoints while they are copied
Databases = AbstractContextManager[Mapping[int, TensorStore]]  # of the workers, by rank, for as long as it is open
_DECISIVE = ("crossover", "torch", "machine", "cpu")  # versions on which a run's bits depend


@dataclass(frozen=True)
class Unfinished:
    """A run to go on with. `facts`: what stood in its experiment.json; `where` it was started."""

    run: str
    where: str
    facts: Mapping[str, Any]
    objects: ObjectStore

    def check(
        self, experiment: Experiment, *, where: str, versions: Mapping[str, str], code: Mapping[str, Any]
    ) -> None:
        """Raises ConfigError where it would not end with the bits that it was to end with."""
        if where != self.where:
            raise ConfigError(f"--resume: run {self.run} was started --on {self.where}; go on with it there")
        check_settings(self.facts, experiment)
        check_code(self.facts, code)
        then = self.facts["versions"]
        if other := [name for name in _DECISIVE if then.get(name) != versions.get(name)]:
            there, here = (", ".join(f"{name} {each.get(name)}" for name in other) for each in (then, versions))
            raise ConfigError(
                f"--resume: run {self.run} was started with {there}; here is {here}, which may compute other bits; "
                "go on with it where it was started, or start a new run"
            )

    def restore(self, objects: ObjectStore, *, together: int = 0) -> None:
        """All that was kept, into the object store of the cloud that goes on with it. `together`: so many peers go on at the newest round
        that all have saved, since what one of them had sent beyond it went with its broker.
        """
        for key in self.objects.list(Keys(self.run).prefix):
            objects.put(key, self.objects.get(key))
        _rewind(objects, Keys(self.run), together)


def holds(folder: Path) -> bool:
    """Whether `folder` holds an unfinished run."""
    return (folder / FOLDER).is_dir()


def find(folder: Path) -> Unfinished:
    """The run that `folder` holds unfinished. Raises UserError where there is none."""
    if not holds(folder):
        raise UserError(f"--resume {folder}: nothing to go on with: {_why_not(folder)}")
    objects = FileObjectStore(folder / FOLDER, Traffic())
    try:
        facts = _newest(objects)
        where = json.loads((folder / RESULT).read_text(encoding="utf-8"))["where"]
        return Unfinished(facts["run"], where, facts, objects)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"--resume {folder}: {FOLDER} or {RESULT} is damaged ({error}); start a new run") from error


def _why_not(folder: Path) -> str:
    if not (folder / RESULT).is_file():
        return f"{folder} is no run's folder; give that of a run that failed, such as results/spirt"
    result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    if not result.get("failure"):
        return "its run is finished"
    if result.get("final"):
        return "its training is over, and its model lies in the folder; only clearing away failed, which ended with the run"
    if load(result["architecture"]).state == "checkpoints":
        return "its run failed before there was a checkpoint; start a new run"
    return "its state lay in the database, which ended with the run, and held no whole round that could be kept; start a new run"


def _newest(objects: ObjectStore) -> dict[str, Any]:
    """The facts of the run that was prepared last."""
    found = [json.loads(objects.get(key)) for key in objects.list("runs/") if key.endswith("/experiment.json")]
    if not found:
        raise KeyError("no run's experiment.json")
    newest: dict[str, Any] = max(found, key=lambda facts: float(facts["created_at"]))
    return newest


# --- is it the same run? ----------------------------------------------------------------------------------------------


def started_with(facts: Mapping[str, Any]) -> Experiment:
    """The experiment of the run of `facts`. Raises UserError where it has fields that this version does not know."""
    try:
        return from_resolved(facts["experiment"])
    except TypeError as error:
        raise UserError(
            f"run {facts['run']} was started by another version of crossover ({facts['versions'].get('crossover')}), which has other "
            f"fields ({error}); go on with that version, or start a new run"
        ) from error


def check_settings(facts: Mapping[str, Any], experiment: Experiment) -> None:
    """Raises ConfigError where the run of `facts` was started with other settings, UserError as `started_with` does."""
    if changed := differing(experiment, started_with(facts)):
        raise ConfigError(
            f"--resume: run {facts['run']} was started with other settings: {', '.join(changed)}; "
            "set them as they were, or start a new run"
        )


def check_code(facts: Mapping[str, Any], code: Mapping[str, Any]) -> None:
    """Raises ConfigError naming what differs between the code of the run of `facts` and `code`, as running/provenance.py tells it."""
    there = facts.get("code", code)  # runs of earlier versions do not know theirs
    then, now = there["settings"], code["settings"]
    changed = [f"{name}: {then.get(name)} then, {now[name]} now" for name in now if now[name] != then.get(name)]
    files = {**there["files"], **code["files"]}
    for name in sorted(files):
        if there["files"].get(name) != code["files"].get(name):
            gone, new = name not in code["files"], name not in there["files"]
            changed.append(f"{name} is {'gone' if gone else 'new' if new else 'changed'}")
    if changed:
        raise ConfigError(
            f"--resume: run {facts['run']} was started with other code: {'; '.join(changed)}; its end would be another; put back what was "
            "there, or start a new run"
        )


def check_data(facts: Mapping[str, Any], fingerprint: str) -> None:
    """Raises ConfigError where other data was staged than the run of `facts` was started with."""
    if fingerprint != facts["data"]:
        raise ConfigError(
            f"--resume: run {facts['run']} was started on other data (fingerprint {facts['data'][:12]}, here "
            f"{fingerprint[:12]}): the data set's files have changed; start a new run"
        )


def differing(asked: Experiment, there: Experiment) -> list[str]:
    """`training.epochs: 3, there 14`; what a run may cost is no setting of the run's."""
    mine, other = dict(flat(asked.resolved())), dict(flat(there.resolved()))
    return [
        f"{name}: {json.dumps(mine.get(name))}, there {json.dumps(other.get(name))}"
        for name in sorted(mine.keys() | other.keys())
        if not name.startswith("lifetime.") and mine.get(name) != other.get(name)
    ]


# --- keeping ----------------------------------------------------------------------------------------------------------


@contextmanager
def keeping(objects: ObjectStore, folder: Path, *, databases: Callable[[], Databases], resumed: bool) -> Iterator[None]:
    """Around a run: should it fail or be stopped, what it can go on with is kept in `folder`.

    `databases`: those of the workers where they alone hold the state. `resumed`: what the folder holds already is this run's, and stays
    until there is newer.
    """
    if not resumed:
        forget(folder)
    try:
        yield
    except BaseException:
        # Why the run failed matters more than why this did.
        with suppress(CrossoverError, OSError), databases() as stores:
            keep(objects, folder, databases=stores)
        raise
    forget(folder)


def forget(folder: Path) -> None:
    """The run in `folder` is finished, or another one begins there."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def keep(objects: ObjectStore, folder: Path, *, databases: Mapping[int, TensorStore]) -> bool:
    """Copy what the newest run in `objects` can go on with into `folder`; whether there is anything."""
    part = folder / f".{FOLDER}"
    shutil.rmtree(part, ignore_errors=True)
    try:
        if not _copy(objects, FileObjectStore(part, Traffic()), databases=databases):
            return False
        forget(folder)
        part.rename(folder / FOLDER)
        return True
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _copy(objects: ObjectStore, kept: FileObjectStore, *, databases: Mapping[int, TensorStore]) -> bool:
    try:
        facts = _newest(objects)
    except KeyError:
        return False
    keys = Keys(facts["run"])
    if objects.exists(keys.outcome):
        return False  # training is over: its model lies in the folder
    # State first: the decisions that it depends on were there before it, and are never deleted.
    whole = _copy_state(objects, databases, kept, keys, facts) if databases else _copy_checkpoints(objects, kept, keys)
    if whole:
        told = [
            key
            for part in (keys.decisions, keys.records, keys.attempt_markers, keys.drops)
            for key in objects.list(part)
        ]
        for key in [*told, keys.experiment]:
            kept.put(key, objects.get(key))
    return whole


def _copy_checkpoints(objects: ObjectStore, kept: FileObjectStore, keys: Keys) -> bool:
    """All checkpoints of one moment."""
    for _ in range(_LOOKS):
        listed = objects.list(keys.checkpoints)
        with suppress(Missing):
            for key in listed:
                kept.put(key, objects.get(key))
            if listed == objects.list(keys.checkpoints):
                return bool(listed)
        kept.delete_prefix(keys.checkpoints)
        runtime.sleep(_PAUSE_S)
    return False


def _copy_state(
    objects: ObjectStore,
    databases: Mapping[int, TensorStore],
    kept: FileObjectStore,
    keys: Keys,
    facts: Mapping[str, Any],
) -> bool:
    """One worker's state, which is every worker's, of the newest round that can be gone on with."""
    experiment = from_resolved(facts["experiment"])
    days = calendar_of(experiment, facts["data_manifest"])
    for _ in range(_LOOKS):
        with suppress(Missing):
            begun = sorted((int(key.rpartition("/")[2]) for key in objects.list(keys.attempt_markers)), reverse=True)
            attempts = (Keys(keys.run, attempt) for attempt in begun)
            found = ((resumable(databases, each, days, decided=days.decisions), each) for each in attempts)
            round, keys = next((each for each in found if each[0] is not None), (None, keys))
            if round is None:
                return False
            donor = next(w for w, database in databases.items() if database.exists(keys.model(round, w)))
            state = state_keys(experiment, keys, round, donor)
            for name in (state.model, *(state.optimizer if round else ())):
                vector = databases[donor].get(name)
                kept.put(keys.kept_state(round, name.rpartition("/")[2]), [header(vector), vector.data])
            for worker, database in databases.items():
                for name in own_keys(experiment, keys, round, worker):
                    vector = database.get(name)
                    kept.put(keys.kept_state(round, kept_name(name)), [header(vector), vector.data])
            return True
        kept.delete_prefix(keys.kept_states)
        runtime.sleep(_PAUSE_S)
    return False


def _rewind(objects: ObjectStore, keys: Keys, members: int) -> None:
    saved = [{_round(key): key for key in objects.list(keys.checkpoints_of(rank))} for rank in range(members)]
    common = max(set.intersection(*({0, *each} for each in saved))) if saved else 0
    if beyond := [key for each in saved for round, key in each.items() if round > common]:
        objects.delete(*beyond)


def _round(key: str) -> int:
    return int(key.rpartition("/")[2].split(".")[0])
