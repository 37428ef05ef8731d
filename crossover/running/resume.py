"""Keeping a run's state outside its stores, and resuming the run from it."""

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossover import runtime
from crossover.errors import ConfigError, Corrupt, CrossoverError, Missing, UserError, print_line
from crossover.experiment import Experiment, flatten_fields, from_plain
from crossover.reports.folder import MODEL, RESULT, UNFINISHED, list_own_entries, move_aside
from crossover.stores import documents
from crossover.stores.encoding import build_header
from crossover.stores.files import FileObjectStore
from crossover.stores.keys import Keys
from crossover.stores.protocols import ObjectStore, TensorStore, Traffic
from crossover.training import checkpoints
from crossover.training.databases import find_resumable_round, kept_name, own_keys, state_keys
from crossover.training.progress import calendar_of
from crossover.workflow.architecture import Architecture, architecture_of, load

# --- members ----------------------------------------------------------------------------------------------------------


def count_instances(experiment: Experiment, architecture: Architecture) -> int:
    """Return how many instances the programs of a run need, for an architecture that trains by programs on instances."""
    assert architecture.program is not None
    return architecture.program.instances(experiment).count


def tolerates_failures(experiment: Experiment) -> bool:
    """Return whether the run continues after the program of one of its workers fails. True only for peer-to-peer training in asynchronous
    mode.
    """
    return experiment.module.startswith("p2p") and experiment.p2p.mode == "asynchronous"


def count_in_step(experiment: Experiment) -> int:
    """Return how many programs train in step with each other, so that all must resume at the same round: the number of workers, or 0 if
    each program resumes at its own position (asynchronous peers) or if functions train.
    """
    architecture = architecture_of(experiment)
    return experiment.workers if architecture.program and not tolerates_failures(experiment) else 0


def needs_common_round(experiment: Experiment) -> bool:
    """Return whether programs that start again must all go back to one common round of training. True for GPU programs that form a process
    group, which needs every member at the same position.
    """
    return experiment.module == "gpu" and experiment.gpu.exchange == "distributed"


# --- resumption -------------------------------------------------------------------------------------------------------
# How `crossover run --resume FOLDER` resumes a run on this machine from its kept state (`unfinished/`): whether it is the same run, and
# from which round. A resumed run finds its checkpoints in a new object store, under the same keys as on AWS.

WHERE_FILE = "where"  # a file in UNFINISHED: in which of PLACES the run was started
PLACES = ("inline", "local")
_DECISIVE = ("crossover", "torch", "machine", "cpu")  # versions on which a run's bits depend


@dataclass(frozen=True)
class Unfinished:
    """An unfinished run in a results folder that can be resumed. `where`: inline or local, where it was started; `facts`: content of its
    experiment.json; `objects`: store with the state that was saved in the folder.
    """

    run: str
    where: str
    facts: Mapping[str, Any]
    objects: ObjectStore

    def check(
        self, experiment: Experiment, *, where: str, versions: Mapping[str, str], code: Mapping[str, Any]
    ) -> None:
        """Raise ConfigError if resuming the run as `experiment` here would not give exactly the same model as an uninterrupted run, because
        settings, place, code or versions differ from those at its start.

        `where`: inline, local or aws; `versions`: from `collect_versions`, of which only those count that can change the
        model's bits; `code`: identity of the code here, from `digest_code`. Raises UserError if this version cannot read the run's
        settings.
        """
        if where != self.where:
            raise ConfigError(f"--resume: run {self.run} was started --on {self.where}; resume it there")
        check_settings(self.facts, experiment)
        check_code(self.facts, code)
        then = self.facts["versions"]
        if other := [name for name in _DECISIVE if then.get(name) != versions.get(name)]:
            there, here = (", ".join(f"{name} {each.get(name)}" for name in other) for each in (then, versions))
            raise ConfigError(
                f"--resume: run {self.run} was started with {there}; here is {here}, which may compute other bits; "
                "resume it where it was started, or start a new run"
            )

    def restore(self, objects: ObjectStore) -> None:
        """Copy all saved objects of the run into `objects`, the store with which the run is resumed."""
        for key in self.objects.list(Keys(self.run).prefix):
            objects.put(key, self.objects.get(key))


def holds_unfinished(folder: Path) -> bool:
    """Return whether `folder` holds an unfinished run: it has resume data and no trained model. With a model the run is finished, even if
    it was killed before it could delete its resume data.
    """
    return (folder / UNFINISHED).is_dir() and not has_model(folder)


def has_model(folder: Path) -> bool:
    """Return whether `folder` holds the trained model of a finished run: the model's file, and a result.json that says how the training
    ended. False if result.json cannot be read or says nothing of it.
    """
    with suppress(OSError, ValueError, LookupError, TypeError):
        return (folder / MODEL).is_file() and bool(json.loads((folder / RESULT).read_text(encoding="utf-8"))["final"])
    return False


def has_no_state(folder: Path) -> bool:
    """Return whether `folder` holds an unfinished run that ended before its first checkpoint or state was saved, so that it must start from
    the beginning.
    """
    kept = folder / UNFINISHED
    return holds_unfinished(folder) and not any(
        (*kept.glob("runs/*/checkpoint/*/*/*"), *kept.glob("runs/*/kept/*/model"))
    )


def find_unfinished(folder: Path) -> Unfinished:
    """Return the unfinished run in `folder`. Raises UserError if there is none, or if its resume data is damaged."""
    if not holds_unfinished(folder):
        raise UserError(f"--resume {folder}: nothing to resume: {_explain_nothing_to_resume(folder)}")
    objects = FileObjectStore(folder / UNFINISHED, Traffic())
    try:
        facts, where = load_newest_facts(objects), (folder / UNFINISHED / WHERE_FILE).read_text(encoding="utf-8")
        if where not in PLACES:
            raise Corrupt(f"{WHERE_FILE}: {where!r}, where {' or '.join(PLACES)} was expected")
        return Unfinished(facts["run"], where, facts, objects)
    except (OSError, ValueError, KeyError, Corrupt) as error:
        raise UserError(f"--resume {folder}: {UNFINISHED} is damaged ({error}); start a new run") from error


def _explain_nothing_to_resume(folder: Path) -> str:
    """Return the reason why `folder` holds no run that can be resumed, and what to do if anything can be done, as the end of an error
    message. Raises ConfigError if result.json names an architecture that cannot be loaded.
    """
    if not (folder / RESULT).is_file():
        return f"{folder} is not a run's folder; give the folder of a failed run, such as results/spirt"
    try:
        result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"{RESULT} is damaged ({error}), and there is no state of a run; start a new run"
    if not isinstance(result, dict) or not isinstance(result.get("architecture"), str):
        return f"{RESULT} is damaged (it names no architecture), and there is no state of a run; start a new run"
    if not result.get("failure"):
        return "its run is finished"
    if result.get("final"):
        return "its training is over, and its model is in the folder; only the clean-up failed"
    if load(result["architecture"]).state == "checkpoints":
        return "its run failed before there was a checkpoint; start a new run"
    return "its state was in the database, which ended with the run and had no complete round to keep; start a new run"


def load_newest_facts(objects: ObjectStore) -> dict[str, Any]:
    """Return the configuration (content of experiment.json) of the run in `objects` that was created last. Raises KeyError if there is
    none, Corrupt if one is damaged.
    """
    found = [documents.read_document(objects, key) for key in objects.list("runs/") if key.endswith("/experiment.json")]
    if not found:
        raise KeyError("no run's experiment.json")
    return max(found, key=lambda facts: float(facts["created_at"]))


# --- is it the same run? ----------------------------------------------------------------------------------------------


def load_experiment(facts: Mapping[str, Any]) -> Experiment:
    """Return the experiment that a run was started with. `facts`: content of the run's experiment.json. Raises UserError if the experiment
    has fields that this version does not know.
    """
    try:
        return from_plain(facts["experiment"])
    except TypeError as error:
        raise UserError(
            f"run {facts['run']} was started by another version of crossover ({facts['versions'].get('crossover')}), which has other "
            f"fields ({error}); resume it with that version, or start a new run"
        ) from error


def check_settings(facts: Mapping[str, Any], experiment: Experiment) -> None:
    """Raise ConfigError, which lists the differences, if the run was started with other settings than `experiment`, UserError if this
    version cannot read its settings. Settings of `lifetime` may differ. `facts`: content of the run's experiment.json.
    """
    if changed := list_differing_settings(experiment, load_experiment(facts)):
        raise ConfigError(
            f"--resume: run {facts['run']} was started with other settings: {', '.join(changed)}; "
            "set them as they were, or start a new run"
        )


def check_code(facts: Mapping[str, Any], code: Mapping[str, Any]) -> None:
    """Raise ConfigError if the run was started with other code; the message names each difference. `facts`: content of the run's
    experiment.json; `code`: identity of the code here, from `digest_code` in running/preparing.py. Passes for a run of an earlier version
    that recorded no code.
    """
    there = facts.get("code", code)  # earlier versions did not record it
    then, now = there["settings"], code["settings"]
    changed = [f"{name}: {then.get(name)} then, {now[name]} now" for name in now if now[name] != then.get(name)]
    files = {**there["files"], **code["files"]}
    for name in sorted(files):
        if there["files"].get(name) != code["files"].get(name):
            gone, new = name not in code["files"], name not in there["files"]
            changed.append(f"{name} is {'gone' if gone else 'new' if new else 'changed'}")
    if changed:
        raise ConfigError(
            f"--resume: run {facts['run']} was started with other code: {'; '.join(changed)}; its result would differ; restore the earlier "
            "code, or start a new run"
        )


def check_data(facts: Mapping[str, Any], fingerprint: str) -> None:
    """Raise ConfigError if the run was started on other data. `facts`: content of the run's experiment.json; `fingerprint`: of the data
    here.
    """
    if fingerprint != facts["data"]:
        raise ConfigError(
            f"--resume: run {facts['run']} was started on other data (fingerprint {facts['data'][:12]}, here "
            f"{fingerprint[:12]}): the data set's files have changed; start a new run"
        )


def list_differing_settings(asked: Experiment, there: Experiment) -> list[str]:
    """Return a line for each setting whose value in `asked` differs from that in `there`: `training.epochs: 3, there 14`. Fields of
    `lifetime`, such as the budget, are not compared.
    """
    mine, other = dict(flatten_fields(asked.to_plain())), dict(flatten_fields(there.to_plain()))
    return [
        f"{name}: {json.dumps(mine.get(name))}, there {json.dumps(other.get(name))}"
        for name in sorted(mine.keys() | other.keys())
        if not name.startswith("lifetime.") and mine.get(name) != other.get(name)
    ]


# --- from which round? ------------------------------------------------------------------------------------------------


def rewind(objects: ObjectStore, keys: Keys, experiment: Experiment, *, lost: bool) -> list[str]:
    """Delete the checkpoints from which the programs of a run must not resume, because a program resumes from its newest one. Returns a
    sentence about each damaged checkpoint that was found. Does nothing if functions train.

    `objects`: the run's store; `keys`: names of its objects. Each asynchronous program only loses its damaged newest checkpoints.
    Synchronous programs go back to the newest round for which all have an undamaged checkpoint, if a newest checkpoint is damaged, if
    messages between them are `lost` (as on the local cloud, whose broker ended with it), or if they form a process group. Raises UserError
    if no round is undamaged for all, and then deletes nothing.
    """
    architecture, together = architecture_of(experiment), count_in_step(experiment)
    if architecture.program is None:  # functions: the workflow's first step finds the state
        return []
    ranks, meets = range(experiment.workers), together > 0 and (lost or needs_common_round(experiment))
    groups = [
        _Group(objects, [objects.list(keys.checkpoints_of(rank)) for rank in group])
        for group in ([ranks] if together else [[rank] for rank in ranks])
    ]
    spent = [key for group in groups for key in group.list_superseded(always=meets)]
    if spent:
        objects.delete(*spent)
    return [f"{error}; it was passed over" for group in groups for error in group.damage]


class _Group:
    """The checkpoints of programs that must resume at one common round. `members`: for each program the keys of its
    checkpoints, ascending.
    """

    def __init__(self, objects: ObjectStore, members: Sequence[Sequence[str]]) -> None:
        """Remember the keys of the checkpoints by their round. `objects`: the run's store, from which checkpoints are read when needed;
        `members`: for each program the keys of its checkpoints.
        """
        self._objects, self._read = objects, dict[str, Corrupt | None]()
        self._members = [{_parse_round(key): key for key in keys} for keys in members]

    @property
    def damage(self) -> list[Corrupt]:
        """The errors of the damaged checkpoints among those that were read so far, as a new list. Only `list_superseded` reads
        checkpoints.
        """
        return [error for error in self._read.values() if error is not None]

    def list_superseded(self, *, always: bool) -> list[str]:
        """Return the keys of the checkpoints to delete: those after the round at which the group resumes, and damaged ones before it. Empty
        if all newest checkpoints are undamaged, unless `always`: then the group goes back to a common round in any case, and all
        checkpoints before that round are read too. Raises UserError if there is no undamaged common round.
        """
        held = [key for each in self._members for key in each.values()]
        if self._are_undamaged([each[max(each)] for each in self._members if each]) and not always:
            return []
        for common in sorted(set.intersection(*({0, *each} for each in self._members)), reverse=True):
            if self._are_undamaged([each[common] for each in self._members if common in each]) and (
                common or not self.damage  # going back to round 0 would lose the whole run
            ):
                if always:
                    self._are_undamaged([key for key in held if _parse_round(key) < common])
                return [key for key in held if _parse_round(key) > common or self._read.get(key)]
        first = self.damage[0]
        raise UserError(
            f"--resume: {first}; no older round is undamaged for all programs, and nothing was deleted; restore it from a copy, or "
            "start a new run"
        ) from first

    def _are_undamaged(self, keys: Sequence[str]) -> bool:
        """Return whether the checkpoints with these keys are all undamaged. Each is read from the store only once."""
        for key in keys:
            if key not in self._read:
                self._read[key] = _find_damage(self._objects, key)
        return not any(self._read[key] for key in keys)


def _find_damage(objects: ObjectStore, key: str) -> Corrupt | None:
    """Return the error of the checkpoint `key` if it is damaged, None if it is not. Raises Missing if there is no such checkpoint."""
    try:
        checkpoints.read(objects.get(key), key=key)
    except Corrupt as error:
        return error
    return None


def _parse_round(key: str) -> int:
    """Return the number of the training round in a checkpoint's key."""
    return int(key.rpartition("/")[2].split(".")[0])


# --- keeping ----------------------------------------------------------------------------------------------------------
# A run on this machine keeps in its folder, `unfinished/`, the state from which it can be resumed, whatever ends the command.
#
# The local cloud and its databases end with the command. So after every epoch, and when the run fails or is stopped, its checkpoints,
# decisions and records are copied there from the object store; if only the workers' databases have the state, the newest complete state is
# copied. Older files stay until newer ones are complete, because the copying may be killed, too.

Databases = AbstractContextManager[Mapping[int, TensorStore]]  # of the workers, by rank; closed at the end of the block
_TRIES, _PAUSE_S = 10, 0.2  # running workers replace checkpoints during the copying
_KEPT_STATES = 2  # of databases: the older one in case the newer is damaged
_KEPT_STARTS = 4  # checkpoints of each member: from two copies, each with a round that all members have


@contextmanager
def begin_run(folder: Path, *, where: str) -> Iterator[None]:
    """Context manager for a new run in `folder`, which is created if needed: move an earlier run's files aside into a folder of their own,
    say so on standard error, and create the folder of resume data. At the end, also after an error, resume data without a saved state is
    deleted; if `folder` then holds nothing of the new run, the earlier run is moved back; an empty `folder` is deleted. `where`: inline or
    local.
    """
    earlier = move_aside(folder)
    if earlier:
        print_line(f"note: the earlier run in {folder} was moved to {earlier}", stderr=True)
    _mark_begun(folder, where)
    try:
        yield
    finally:
        if has_no_state(folder):
            discard_resume_data(folder)
        if earlier and not list_own_entries(folder):
            for each in earlier.iterdir():
                each.rename(folder / each.name)
            earlier.rmdir()
        with suppress(OSError):
            folder.rmdir()


def _mark_begun(folder: Path, where: str) -> None:
    """Create the folder of resume data inside `folder`, with a file that says where the run was started. `where`: inline or local."""
    (folder / UNFINISHED).mkdir(parents=True, exist_ok=True)
    (folder / UNFINISHED / WHERE_FILE).write_text(where, encoding="utf-8")


@contextmanager
def keep_resume_data(
    objects: ObjectStore, folder: Path, *, where: str, databases: Callable[[], Databases]
) -> Iterator[Callable[[], None]]:
    """Context manager that yields a function which copies the run's state from `objects` to `folder`, to be called after each epoch; that
    function raises no errors of stores or of the disk. If the block fails or is interrupted, the function is called once more; if it ends
    normally, or the trained model is in the folder, the copies are deleted.

    `objects`: the run's store; `where`: inline or local; `databases`: opens the workers' databases, empty unless they alone hold the state.
    """
    full = list[str]()

    def keep_now(*, tries: int = 1) -> None:
        """Copy the run's state to the folder as `save_resume_data` does. Errors of stores are ignored; of the disk's errors, only the first
        is printed. Earlier copies then stay. `tries`: number of attempts to get a consistent copy.
        """
        try:
            with suppress(CrossoverError), databases() as stores:  # the run's failure matters more than this one
                save_resume_data(objects, folder, databases=stores, tries=tries)
        except OSError as error:
            if not full:
                print_line(
                    f"{folder}: the run's progress cannot be saved: {error.strerror}; free some space", stderr=True
                )
            full.append(str(error))

    _mark_begun(folder, where)
    try:
        yield keep_now
    except BaseException:
        keep_now(tries=_TRIES)
        if has_model(folder):  # only clearing away failed
            discard_resume_data(folder)
        raise
    discard_resume_data(folder)


def discard_resume_data(folder: Path) -> None:
    """Delete the resume data of a finished run in `folder`. It is renamed first, so that an interrupted deletion cannot be mistaken for an
    unfinished run.
    """
    gone = folder / f".{UNFINISHED}"
    shutil.rmtree(gone, ignore_errors=True)
    with suppress(OSError):
        (folder / UNFINISHED).rename(gone)  # atomic: a half-deleted folder would look like a run that lost its epochs
    shutil.rmtree(gone, ignore_errors=True)


def save_resume_data(
    objects: ObjectStore, folder: Path, *, databases: Mapping[int, TensorStore], tries: int = _TRIES
) -> None:
    """Copy what is needed to resume the newest run in `objects` into `folder`: its state and the records, decisions and configuration that
    belong to it. Older copies are deleted only after the new one is complete and consistent. Does nothing if there is no run, no state yet,
    or if training is over. If no attempt gives a consistent copy, checkpoints are copied as they are, beside the older ones; of the
    databases nothing is copied.

    `databases`: the workers' databases by rank, empty unless they alone hold the state; `tries`: number of attempts to get a consistent
    copy. Raises OSError if `folder` cannot be written, CrossoverError if a store cannot be read.
    """
    try:
        facts = load_newest_facts(objects)
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
            spent = _copy_state(objects, databases, new, keys, facts, kept=kept, tries=tries)
        else:
            spent = _copy_checkpoints(objects, new, keys, kept=kept, tries=tries)
        if not (copied := new.list(keys.prefix)):
            return
        # Objects that the state depends on were written before it, so they are copied before it.
        told, there = (
            (keys.decisions, keys.records, keys.attempt_markers, keys.drop_decisions),
            set(kept.list(keys.prefix)),
        )
        for key in [keys.experiment, *(key for prefix in told for key in objects.list(prefix) if key not in there)]:
            kept.put(key, objects.get(key))
        for key in sorted(
            copied, key=lambda key: key.endswith("/model")
        ):  # a state is complete when its model is there
            place = folder / UNFINISHED / key
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(part / key, place)
        kept.delete(*spent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _copy_checkpoints(
    objects: ObjectStore, new: FileObjectStore, keys: Keys, *, kept: FileObjectStore, tries: int
) -> set[str]:
    """Copy all checkpoints of the run from `objects` into `new`, if possible those of one moment. Returns the keys of the older copies in
    `kept` that are not needed any more; none if no attempt was consistent: `new` then keeps what was copied.

    `keys`: names of the run's objects; `tries`: number of attempts, since running workers replace checkpoints meanwhile.
    """
    for number in range(tries):
        if number:
            runtime.sleep(_PAUSE_S)
        listed, gone = objects.list(keys.checkpoints), False
        for key in listed:
            try:
                new.put(key, objects.get(key))
            except Missing:
                gone = True
        if not gone and listed and listed == objects.list(keys.checkpoints):
            new.delete(*(key for key in new.list(keys.checkpoints) if key not in listed))
            return _list_outdated({*kept.list(keys.checkpoints), *listed}) - {*listed}
    return set()


def _list_outdated(checkpoints: Collection[str]) -> set[str]:
    """Return the keys of the checkpoints that may be deleted: for each worker those older than its newest four (_KEPT_STARTS) checkpoints
    from the start of a round; none of a worker that has fewer than four.
    """
    outdated, by_member = set[str](), defaultdict[str, list[str]](list)
    for key in sorted(checkpoints, reverse=True):  # by attempt, member, round
        by_member[key.split("/")[-2]].append(key)
    for found in by_member.values():
        starts = [number for number, key in enumerate(found) if key.endswith(".00000")]
        outdated.update(found[starts[_KEPT_STARTS - 1] + 1 :] if len(starts) >= _KEPT_STARTS else ())
    return outdated


def _copy_state(
    objects: ObjectStore,
    databases: Mapping[int, TensorStore],
    new: FileObjectStore,
    keys: Keys,
    facts: Mapping[str, Any],
    *,
    kept: FileObjectStore,
    tries: int,
) -> set[str]:
    """Copy the newest state from which the run can be resumed from the workers' databases into `new`: model and optimizer of one worker,
    since they are the same for all, and the vectors that each worker has of its own. Returns the keys of the older copies in `kept` that
    are not needed any more.

    `objects`: the run's store; `keys`: names of its objects; `facts`: content of its experiment.json; `tries`: number of attempts, since
    running workers replace their state meanwhile. If there is no complete state, or none after all attempts, copies nothing and returns an
    empty set.
    """
    experiment = from_plain(facts["experiment"])
    days = calendar_of(experiment, facts["data_manifest"])
    for number in range(tries):
        if number:
            runtime.sleep(_PAUSE_S)
        with suppress(Missing):
            begun = sorted((int(key.rpartition("/")[2]) for key in objects.list(keys.attempt_markers)), reverse=True)
            attempts = (Keys(keys.run, attempt) for attempt in begun)
            found = ((find_resumable_round(databases, each, days, decided=days.decisions), each) for each in attempts)
            round, keys = next((each for each in found if each[0] is not None), (None, keys))
            if round is None:
                return set()
            donor = next(w for w, database in databases.items() if database.exists(keys.model(round, w)))
            state = state_keys(experiment, keys, round, donor)
            for worker, database in databases.items():
                for name in own_keys(experiment, keys, round, worker):
                    vector = database.get(name)
                    new.put(keys.saved_state(round, kept_name(name)), [build_header(vector), vector.data])
            for name in (*(state.optimizer if round else ()), state.model):
                vector = databases[donor].get(name)
                new.put(keys.saved_state(round, name.rpartition("/")[2]), [build_header(vector), vector.data])
            older = sorted({key.split("/")[-2] for key in kept.list(keys.saved_states)} - {f"{round:08d}"})
            return {key for key in kept.list(keys.saved_states) if key.split("/")[-2] in older[: 1 - _KEPT_STATES]}
        new.delete_prefix(keys.saved_states)
    return set()
