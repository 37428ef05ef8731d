"""A run on this machine keeps in its folder, `unfinished/`, what it can be gone on with, whatever ends the command.

The cloud on one machine ends with its command, the databases with it. So after every epoch, and when the run fails or is stopped, its
checkpoints, decisions and records are copied there from the object store; of those whose state lives in the workers' databases alone, the
newest state that is whole. What lies there already stays until what is newer is there whole: the copying, too, may be killed.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from crossover import runtime
from crossover.dataplane.files import FileObjectStore
from crossover.dataplane.protocols import ObjectStore, TensorStore
from crossover.dataplane.traffic import Traffic
from crossover.dataplane.vector import header
from crossover.errors import CrossoverError, Missing
from crossover.experiment import from_resolved
from crossover.keys import Keys
from crossover.reports.folder import MODEL, RESULT, UNFINISHED, make_way, parts
from crossover.running.resumption import WHERE, newest, only_begun
from crossover.training.calendar import calendar_of
from crossover.training.databases import kept_name, own_keys, resumable, state_keys

Databases = AbstractContextManager[Mapping[int, TensorStore]]  # of the workers, by rank, for as long as it is open
_LOOKS, _PAUSE_S = 10, 0.2  # workers that still run replace checkpoints while they are copied
_STATES = 2  # of databases: should the newer one be damaged


@contextmanager
def begun(folder: Path, *, where: str) -> Iterator[None]:
    """Around a new run in `folder`: what an earlier one left there is set aside, and comes back if this one never began."""
    earlier = make_way(folder)
    if earlier:
        print(f"note: the earlier run in {folder} lies in {earlier} now", file=sys.stderr, flush=True)
    _mark(folder, where)
    try:
        yield
    finally:
        if only_begun(folder):
            forget(folder)
        if earlier and not parts(folder):
            for each in earlier.iterdir():
                each.rename(folder / each.name)
            earlier.rmdir()
        with suppress(OSError):
            folder.rmdir()


def _mark(folder: Path, where: str) -> None:
    (folder / UNFINISHED).mkdir(parents=True, exist_ok=True)
    (folder / UNFINISHED / WHERE).write_text(where, encoding="utf-8")


@contextmanager
def keeping(
    objects: ObjectStore, folder: Path, *, where: str, databases: Callable[[], Databases]
) -> Iterator[Callable[[], None]]:
    """Around a run; gives what keeps in `folder` how far it is, for after each epoch. It is called once more should the run fail or be
    stopped. What is kept goes when the run's folder stands. `databases`: those of the workers where they alone hold the state.
    """
    full = list[str]()

    def keep_now(*, looks: int = 1) -> None:
        try:
            with suppress(CrossoverError), databases() as stores:  # why the run fails matters more than why this does
                keep(objects, folder, databases=stores, looks=looks)
        except OSError as error:
            if not full:
                print(
                    f"{folder}: how far the run is cannot be kept: {error.strerror}; free some space", file=sys.stderr
                )
            full.append(str(error))

    _mark(folder, where)
    try:
        yield keep_now
    except BaseException:
        keep_now(looks=_LOOKS)
        if _stands(folder):  # only clearing away failed
            forget(folder)
        raise
    forget(folder)


def _stands(folder: Path) -> bool:
    """Whether the trained model lies there."""
    with suppress(OSError, ValueError):
        return (folder / MODEL).is_file() and bool(json.loads((folder / RESULT).read_text(encoding="utf-8"))["final"])
    return False


def forget(folder: Path) -> None:
    """The run in `folder` is finished."""
    gone = folder / f".{UNFINISHED}"
    shutil.rmtree(gone, ignore_errors=True)
    with suppress(OSError):
        (folder / UNFINISHED).rename(gone)  # at once: half of it would pass for a run that has lost its epochs
    shutil.rmtree(gone, ignore_errors=True)


def keep(objects: ObjectStore, folder: Path, *, databases: Mapping[int, TensorStore], looks: int = _LOOKS) -> None:
    """Copy what the newest run in `objects` can go on with into `folder`, if there is anything yet."""
    try:
        facts = newest(objects)
    except KeyError:
        return
    keys = Keys(facts["run"])
    if objects.exists(keys.outcome):
        return  # training is over: its model will lie in the folder
    part = folder / f".{UNFINISHED}"
    shutil.rmtree(part, ignore_errors=True)
    try:
        new, kept = FileObjectStore(part, Traffic()), FileObjectStore(folder / UNFINISHED, Traffic())
        if databases:
            spent = _copy_state(objects, databases, new, keys, facts, kept=kept, looks=looks)
        else:
            spent = _copy_checkpoints(objects, new, keys, kept=kept, looks=looks)
        if not (copied := new.list(keys.prefix)):
            return
        # What the state depends on was there before it; so it is here before it.
        told, there = (keys.decisions, keys.records, keys.attempt_markers, keys.drops), set(kept.list(keys.prefix))
        for key in [keys.experiment, *(key for prefix in told for key in objects.list(prefix) if key not in there)]:
            kept.put(key, objects.get(key))
        for key in sorted(copied, key=lambda key: key.endswith("/model")):  # a state with its model is whole
            place = folder / UNFINISHED / key
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(part / key, place)
        kept.delete(*spent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _copy_checkpoints(
    objects: ObjectStore, new: FileObjectStore, keys: Keys, *, kept: FileObjectStore, looks: int
) -> list[str]:
    """All checkpoints into `new`, if possible those of one moment: then what is older goes, and is returned."""
    for look in range(looks):
        if look:
            runtime.sleep(_PAUSE_S)
        listed, gone = objects.list(keys.checkpoints), False
        for key in listed:
            try:
                new.put(key, objects.get(key))
            except Missing:
                gone = True
        if not gone and listed and listed == objects.list(keys.checkpoints):
            new.delete(*(key for key in new.list(keys.checkpoints) if key not in listed))
            return [key for key in kept.list(keys.checkpoints) if key not in listed]
    return []


def _copy_state(
    objects: ObjectStore,
    databases: Mapping[int, TensorStore],
    new: FileObjectStore,
    keys: Keys,
    facts: Mapping[str, Any],
    *,
    kept: FileObjectStore,
    looks: int,
) -> list[str]:
    """One worker's state, which is every worker's, of the newest round that can be gone on with, into `new`; which of those that were kept
    may go then.
    """
    experiment = from_resolved(facts["experiment"])
    days = calendar_of(experiment, facts["data_manifest"])
    for look in range(looks):
        if look:
            runtime.sleep(_PAUSE_S)
        with suppress(Missing):
            begun = sorted((int(key.rpartition("/")[2]) for key in objects.list(keys.attempt_markers)), reverse=True)
            attempts = (Keys(keys.run, attempt) for attempt in begun)
            found = ((resumable(databases, each, days, decided=days.decisions), each) for each in attempts)
            round, keys = next((each for each in found if each[0] is not None), (None, keys))
            if round is None:
                return []
            donor = next(w for w, database in databases.items() if database.exists(keys.model(round, w)))
            state = state_keys(experiment, keys, round, donor)
            for worker, database in databases.items():
                for name in own_keys(experiment, keys, round, worker):
                    vector = database.get(name)
                    new.put(keys.kept_state(round, kept_name(name)), [header(vector), vector.data])
            for name in (*(state.optimizer if round else ()), state.model):
                vector = databases[donor].get(name)
                new.put(keys.kept_state(round, name.rpartition("/")[2]), [header(vector), vector.data])
            older = sorted({key.split("/")[-2] for key in kept.list(keys.kept_states)} - {f"{round:08d}"})
            return [key for key in kept.list(keys.kept_states) if key.split("/")[-2] in older[: 1 - _STATES]]
        new.delete_prefix(keys.kept_states)
    return []
