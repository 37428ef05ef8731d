"""What only a folder does: keys that would leave it, names that clash, nothing half written."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from crossover.errors import Missing, Refused
from crossover.stores.files import FileObjectStore
from crossover.stores.protocols import Traffic
from tests.conformance.vectors import at_once


@pytest.fixture
def store(tmp_path: Path) -> FileObjectStore:
    """Return a store of objects in a new folder."""
    return FileObjectStore(tmp_path / "objects", Traffic())


@pytest.mark.parametrize(
    "key", ["", ".", "..", "../x", "a/../../x", "/etc/passwd", "a//b", "a/./b", "a/", ".unfinished/x", "a\0b"]
)
def test_keys_cannot_leave_the_folder(store: FileObjectStore, tmp_path: Path, key: str) -> None:
    """Check that every operation refuses keys that are not plain relative paths."""
    for use in (
        lambda: store.put(key, b""),
        lambda: store.get(key),
        lambda: store.delete(key),
        lambda: store.exists(key),
    ):
        with pytest.raises(Refused, match="relative path"):
            use()
    assert [each.name for each in tmp_path.iterdir()] == ["objects"]


@pytest.mark.parametrize("write", ["put", "put_new", "create"])
def test_an_object_cannot_be_a_folder_too(store: FileObjectStore, write: str) -> None:
    """Check that a key is refused if it would lie below an object or above one."""
    store.put("a", b"1")
    with pytest.raises(Refused, match="folder"):
        getattr(store, write)("a/b", b"2")
    store.put("c/d", b"3")
    with pytest.raises(Refused, match="folder"):
        getattr(store, write)("c", b"4")
    with pytest.raises(Missing):
        store.get("c")
    with pytest.raises(Missing):
        store.get("a/b")
    assert store.list("") == ["a", "c/d"]


def test_nothing_unfinished_stays(store: FileObjectStore, tmp_path: Path) -> None:
    """Check that no operation leaves an unfinished file or an empty folder."""
    store.put("a/b", b"1")
    store.put_new("a/b", b"2")
    store.create("a/c", b"3")
    assert list((tmp_path / "objects" / ".unfinished").iterdir()) == []
    assert store.delete_prefix("") == 2
    assert [each.name for each in (tmp_path / "objects").iterdir()] == [".unfinished"]


def test_writing_beside_a_deletion(store: FileObjectStore) -> None:
    """Check that objects can be written while other threads delete their folder."""

    def write_or_delete(i: int) -> None:
        """Delete the prefix 50 times if `i` is odd, write 50 objects below it if it is even."""
        for turn in range(50):
            if i % 2:
                store.delete_prefix("deep/er/")
            else:
                store.put(f"deep/er/{i}-{turn}", b"x")

    at_once(4, write_or_delete)
    store.put("deep/er/last", b"y")
    assert store.get("deep/er/last") == b"y"


def test_a_folder_that_is_deleted_before_the_object_is_in_it(
    store: FileObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that an object is written if its folder is deleted just before."""

    def after_a_deletion(move: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        """Return `move` with the target's folder deleted before its first call."""
        deleted: list[Path] = []

        def delete_and_move(source: Path, target: Path) -> None:
            """Move the file; before the first move, delete the target's empty folder."""
            if not deleted:
                target.parent.rmdir()
                deleted.append(target.parent)
            move(source, target)

        return delete_and_move

    for name, write in (("link", store.put_new), ("replace", store.put)):
        monkeypatch.setattr(os, name, after_a_deletion(getattr(os, name)))
        write(f"folder/{name}", b"x")
        assert store.get(f"folder/{name}") == b"x"
        store.delete_prefix("folder/")


@pytest.mark.parametrize("stands", ["the folder itself", "only the folder above"])
@pytest.mark.parametrize("write", ["put", "put_new"])
def test_a_folder_that_is_deleted_while_it_is_made(
    stands: str, write: str, store: FileObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that an object is written if its folder is deleted as soon as it has been made."""
    above = tmp_path / "objects" / "deep"
    if stands == "the folder itself":
        (above / "er").mkdir(parents=True)
    make, deleted = os.mkdir, []

    def make_and_delete(path: Path, mode: int = 0o777) -> None:
        """Make the folder. The first time that it exists afterwards, delete it with its empty parents, as a concurrent deletion would."""
        try:
            make(path, mode)
        finally:
            if not deleted and Path(path).is_dir():
                os.removedirs(path)
                deleted.append(path)

    monkeypatch.setattr(os, "mkdir", make_and_delete)
    getattr(store, write)("deep/er/key", b"x")
    assert deleted and store.get("deep/er/key") == b"x"


def test_two_stores_on_one_folder_see_each_other(store: FileObjectStore, tmp_path: Path) -> None:
    """Check that of two stores on one folder the second gets the object that the first created."""
    other = FileObjectStore(tmp_path / "objects", Traffic())
    assert store.create("k", b"mine") == other.create("k", b"theirs") == b"mine"
