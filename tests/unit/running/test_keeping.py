"""What a run on this machine keeps in its folder while it lasts."""

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from crossover.running import resume
from crossover.stores.documents import seal
from crossover.stores.files import FileObjectStore
from crossover.stores.keys import Keys
from crossover.stores.memory import MemoryObjectStore
from crossover.stores.protocols import Traffic

KEYS, WORKERS = Keys("run"), range(2)


@pytest.fixture
def objects() -> MemoryObjectStore:
    """Return a store of objects with the run's experiment document in it."""
    found = MemoryObjectStore(Traffic())
    found.put(KEYS.experiment, seal({"run": KEYS.run, "created_at": 1.0}))
    return found


def stand_at(objects: MemoryObjectStore, *rounds: tuple[int, ...]) -> None:
    """Replace all checkpoints by those of the given rounds, one tuple of rounds for each worker."""
    objects.delete_prefix(KEYS.checkpoints)
    for worker, own in zip(WORKERS, rounds, strict=True):
        for round in own:
            objects.put(KEYS.checkpoint(worker, round), f"worker {worker}, round {round}".encode())


def kept(folder: Path) -> dict[int, set[int]]:
    """Return the rounds whose checkpoints the folder keeps, by worker; fail if one of them is not whole."""
    store, found = FileObjectStore(folder / "unfinished", Traffic()), defaultdict[int, set[int]](set)
    for key in store.list(KEYS.checkpoints):
        worker, round = int(key.split("/")[-2]), int(key.rpartition("/")[2].partition(".")[0])
        assert store.get(key) == f"worker {worker}, round {round}".encode()
        found[worker].add(round)
    return found


def common(folder: Path) -> set[int]:
    """Return the rounds that are kept of every worker."""
    found = kept(folder)
    return set.intersection(*(found[worker] for worker in WORKERS))


def test_two_rounds_that_all_have_are_kept_wherever_workers_stand(objects: MemoryObjectStore, tmp_path: Path) -> None:
    """The data kept for resuming has two rounds that all workers have, as soon as there were two, and at most four rounds per worker."""
    for last in range(4, 40, 3):
        stand_at(objects, (last, last + 1), (last - 1, last))
        resume.save_resume_data(objects, tmp_path, databases={}, tries=1)
        assert len(common(tmp_path)) >= min(2, last - 3)
        assert all(len(rounds) <= 4 for rounds in kept(tmp_path).values())


@pytest.mark.parametrize("at", range(4))
def test_what_is_kept_stays_until_what_is_newer_is_whole(
    at: int, objects: MemoryObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copying that is cut off before checkpoint number `at` leaves all checkpoints that were kept before."""
    for last in (2, 5, 8):
        stand_at(objects, (last - 1, last), (last - 1, last))
        resume.save_resume_data(objects, tmp_path, databases={}, tries=1)
    before, replace, moved = kept(tmp_path), os.replace, list[Any]()

    def cut_off(source: Any, target: Any) -> None:
        """Move a file into place, or raise KeyboardInterrupt once more than `at` checkpoints were moved."""
        if Path(target).is_relative_to(tmp_path / "unfinished" / KEYS.checkpoints):
            moved.append(target)
            if len(moved) > at:
                raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", cut_off)
    stand_at(objects, (10, 11), (10, 11))
    with pytest.raises(KeyboardInterrupt):
        resume.save_resume_data(objects, tmp_path, databases={}, tries=1)
    assert all(before[worker] <= kept(tmp_path)[worker] for worker in WORKERS)


@pytest.mark.parametrize("at", range(2))
def test_a_database_s_older_state_stays_until_the_newer_one_is_whole(
    at: int, objects: MemoryObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copying a database's state that is cut off before file number `at` leaves the older state whole, and the newer one without its
    model.
    """
    older, newer = ([KEYS.saved_state(round, name) for name in ("model", "velocity")] for round in (3, 9))
    store, replace, moved = FileObjectStore(tmp_path / "unfinished", Traffic()), os.replace, list[Any]()
    for key in older:
        store.put(key, b"older")

    def copy(*given: Any, **named: Any) -> set[str]:
        """Store the newer state as if it had been copied from the database, and return the older state's keys."""
        for key in newer:
            given[2].put(key, b"newer")
        return set(older)

    def cut_off(source: Any, target: Any) -> None:
        """Move a file into place, or raise KeyboardInterrupt once more than `at` saved states were moved."""
        if Path(target).is_relative_to(tmp_path / "unfinished" / KEYS.saved_states):
            moved.append(target)
            if len(moved) > at:
                raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(resume, "_copy_state", copy)
    monkeypatch.setattr(os, "replace", cut_off)
    databases: Any = {0: None}
    with pytest.raises(KeyboardInterrupt):
        resume.save_resume_data(objects, tmp_path, databases=databases, tries=1)
    there = store.list(KEYS.saved_states)
    assert set(older) <= set(there) and newer[0] not in there
