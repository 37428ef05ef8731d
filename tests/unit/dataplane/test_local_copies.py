"""Copies of staged data: each object is read once if there is room, in memory or on the disk, and its bytes stay what they are."""

import pytest

from crossover.errors import Missing
from crossover.stores.local_copies import LocalCopies

OBJECTS = {"a": b"1" * 10, "b": b"2" * 10, "c": b"3" * 10}


class Counting:
    """An object store that holds OBJECTS and lists each key that was read in `read`."""

    def __init__(self) -> None:
        """Start without reads."""
        self.read: list[str] = []

    def get(self, key: str) -> bytes:
        """Return the object and note its key. Raises Missing if there is none."""
        self.read.append(key)
        if key not in OBJECTS:
            raise Missing(key)
        return OBJECTS[key]


@pytest.mark.parametrize(
    ("memory_bytes", "disk_bytes", "reads"),
    [(100, 0, 3), (10, 20, 3), (0, 30, 3), (10, 10, 4), (0, 0, 6)],
    ids=["memory", "both", "disk", "room for two", "no room"],
)
def test_objects_are_read_once_if_there_is_room(memory_bytes: int, disk_bytes: int, reads: int) -> None:
    """Reading all objects twice reads the store `reads` times, fewer if memory or disk hold copies."""
    store = Counting()
    copies = LocalCopies(store, memory_bytes=memory_bytes, disk_bytes=disk_bytes)
    for _ in range(2):
        assert [copies.get(key) for key in OBJECTS] == list(OBJECTS.values())
    assert len(store.read) == reads


def test_a_missing_object_stays_missing() -> None:
    """A missing object raises Missing each time, and the store is asked each time."""
    copies = LocalCopies(store := Counting())
    for _ in range(2):
        with pytest.raises(Missing):
            copies.get("nothing")
    assert len(store.read) == 2
