"""How `crossover run --resume FOLDER` goes on with what a run on this machine has left there (see keeping.py): whether it is the same run,
and from which round. A resumed run finds its checkpoints in its own, new object store, where it would find them on AWS.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossover.architecture import architecture_of, load
from crossover.dataplane import documents
from crossover.dataplane.files import FileObjectStore
from crossover.dataplane.protocols import ObjectStore
from crossover.dataplane.traffic import Traffic
from crossover.errors import ConfigError, Corrupt, UserError
from crossover.experiment import Experiment, flat, from_resolved
from crossover.keys import Keys
from crossover.reports.folder import RESULT, UNFINISHED
from crossover.running.members import in_step
from crossover.training import checkpoints

WHERE = "where"  # a file in UNFINISHED: where the run was started
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

    def restore(self, objects: ObjectStore) -> None:
        """All that was kept, into the object store of the cloud that goes on with it."""
        for key in self.objects.list(Keys(self.run).prefix):
            objects.put(key, self.objects.get(key))


def holds(folder: Path) -> bool:
    """Whether `folder` holds an unfinished run."""
    return (folder / UNFINISHED).is_dir()


def only_begun(folder: Path) -> bool:
    """Whether that run has ended before there was a state to go on with, whatever else it has told: then it begins anew."""
    kept = folder / UNFINISHED
    return holds(folder) and not any((*kept.glob("runs/*/checkpoint/*/*/*"), *kept.glob("runs/*/kept/*/model")))


def find(folder: Path) -> Unfinished:
    """The run that `folder` holds unfinished. Raises UserError where there is none."""
    if not holds(folder):
        raise UserError(f"--resume {folder}: nothing to go on with: {_why_not(folder)}")
    objects = FileObjectStore(folder / UNFINISHED, Traffic())
    try:
        facts, where = newest(objects), (folder / UNFINISHED / WHERE).read_text(encoding="utf-8")
        return Unfinished(facts["run"], where, facts, objects)
    except (OSError, ValueError, KeyError, Corrupt) as error:
        raise UserError(f"--resume {folder}: {UNFINISHED} is damaged ({error}); start a new run") from error


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


def newest(objects: ObjectStore) -> dict[str, Any]:
    """The facts of the run that was prepared last. Raises KeyError, Corrupt."""
    found = [documents.read(objects, key) for key in objects.list("runs/") if key.endswith("/experiment.json")]
    if not found:
        raise KeyError("no run's experiment.json")
    return max(found, key=lambda facts: float(facts["created_at"]))


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


# --- from which round? ------------------------------------------------------------------------------------------------


def rewind(objects: ObjectStore, keys: Keys, experiment: Experiment, *, lost: bool) -> None:
    """Programs begin where their checkpoints stand, so what they must not begin at goes: what is damaged, and what stands beyond it.

    Those that keep step go on at the newest round that all have whole; if nothing is damaged, only where what they had sent beyond it is
    `lost`, as on this machine, whose broker ended with its cloud. Raises Corrupt where no round is whole for all, and deletes nothing then.
    """
    architecture, together = architecture_of(experiment), in_step(experiment)
    if architecture.program is None:  # a tree's first step sees to it
        return
    ranks = range(experiment.workers)
    groups = [
        [objects.list(keys.checkpoints_of(rank)) for rank in group]
        for group in ([ranks] if together else [[rank] for rank in ranks])
    ]
    beyond = [key for group in groups for key in _beyond(objects, group, always=lost and together > 0)]
    if beyond:
        objects.delete(*beyond)


def _beyond(objects: ObjectStore, group: Sequence[Sequence[str]], *, always: bool) -> list[str]:
    """Which of the group's checkpoints, by member and ascending, stand beyond the round that it goes on at."""
    damaged = _damaged(objects, [keys[-1] for keys in group if keys])
    if damaged is None and not always:
        return []
    saved = [{_round(key): key for key in keys} for keys in group]
    for common in sorted(set.intersection(*({0, *each} for each in saved)), reverse=True):
        wrong = _damaged(objects, [each[common] for each in saved if common in each])
        if wrong is None and (common or damaged is None):  # at 0 nothing is left of the run
            return [key for each in saved for round, key in each.items() if round > common]
        damaged = damaged or wrong
    assert damaged is not None, "0 is common to all"
    raise damaged


def _damaged(objects: ObjectStore, keys: Sequence[str]) -> Corrupt | None:
    for key in keys:
        try:
            checkpoints.read(objects.get(key), key=key)
        except Corrupt as error:
            return error
    return None


def _round(key: str) -> int:
    return int(key.rpartition("/")[2].split(".")[0])
