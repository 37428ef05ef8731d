"""Every ObjectStore keeps its Protocol."""

from collections.abc import Sequence

import pytest

from crossover.errors import Missing
from crossover.stores.protocols import ObjectStore, Traffic
from tests.conformance.conftest import BUCKET, OBJECT_STORES, MakeObjects
from tests.conformance.vectors import at_once


@pytest.fixture(params=OBJECT_STORES)
def store(request: pytest.FixtureRequest, make_objects: MakeObjects, traffic: Traffic) -> ObjectStore:
    """Return a store of objects of each kind."""
    return make_objects(request.param, traffic)


def test_put_replaces_and_get_returns_all_bytes(store: ObjectStore, run: str) -> None:
    """Check that put replaces an object, and that get returns all of its bytes."""
    store.put(f"{run}/a", b"first")
    store.put(f"{run}/a", bytes(range(256)) * 5000)
    assert store.get(f"{run}/a") == bytes(range(256)) * 5000


def test_several_buffers_are_joined_in_order(store: ObjectStore, run: str) -> None:
    """Check that an object of several buffers of different types is their bytes in order."""
    payload = memoryview(bytearray(b"\x01\x02\x03\x04" * 100_000)).cast("i")
    store.put(f"{run}/a", [b"head", bytearray(b""), payload, b"tail"])
    assert store.get(f"{run}/a") == b"head" + payload.tobytes() + b"tail"


def test_an_empty_object_is_an_object(store: ObjectStore, run: str) -> None:
    """Check that an empty object exists and is read as no bytes."""
    store.put(f"{run}/empty", b"")
    assert store.exists(f"{run}/empty")
    assert store.get(f"{run}/empty") == b""


def test_what_was_put_no_longer_follows_the_callers_memory(store: ObjectStore, run: str) -> None:
    """Check that an object does not change with the memory that it was stored from."""
    memory = bytearray(b"before")
    store.put(f"{run}/a", memory)
    memory[:] = b"after!"
    assert store.get(f"{run}/a") == b"before"


def test_a_missing_key_is_named(store: ObjectStore, run: str) -> None:
    """Check that get of a missing key raises Missing with the key."""
    with pytest.raises(Missing) as caught:
        store.get(f"{run}/nothing")
    assert caught.value.key == f"{run}/nothing"
    assert not store.exists(f"{run}/nothing")


def test_create_keeps_the_first_and_tells_everyone(store: ObjectStore, run: str) -> None:
    """Check that create and put_new keep an existing object, and that create returns it."""
    assert store.create(f"{run}/a", b"winner") == b"winner"
    assert store.create(f"{run}/a", [b"los", b"er"]) == b"winner"
    assert store.put_new(f"{run}/a", b"winner") is False
    assert store.get(f"{run}/a") == b"winner"


def test_a_race_of_creators_has_one_winner(store: ObjectStore, run: str) -> None:
    """Check that all threads that create an object at once get the same one."""
    for turn in range(5):
        seen = at_once(8, lambda i, turn=turn: store.create(f"{run}/{turn}", b"%d" % i))  # type: ignore[misc]
        assert len(set(seen)) == 1
        assert store.get(f"{run}/{turn}") == seen[0]


def test_a_race_of_put_new_has_one_winner(store: ObjectStore, run: str) -> None:
    """Check that put_new returns True to one of several threads only, whose object is stored."""
    won = at_once(8, lambda i: store.put_new(f"{run}/a", b"%d" % i))
    assert won.count(True) == 1
    assert store.get(f"{run}/a") == b"%d" % won.index(True)


def test_list_is_sorted_and_by_prefix(store: ObjectStore, run: str) -> None:
    """Check that list returns the keys with the prefix in order."""
    for name in ("b/2", "a", "b/1", "b1"):
        store.put(f"{run}/{name}", b"")
    assert store.list(f"{run}/") == [f"{run}/{name}" for name in ("a", "b/1", "b/2", "b1")]
    assert store.list(f"{run}/b") == [f"{run}/{name}" for name in ("b/1", "b/2", "b1")]
    assert store.list(f"{run}/b/") == [f"{run}/b/1", f"{run}/b/2"]
    assert store.list(f"{run}/nothing/") == []


def test_delete_takes_what_is_there(store: ObjectStore, run: str) -> None:
    """Check that delete removes the existing ones of the keys, and accepts missing ones and none."""
    for name in ("a", "b", "c"):
        store.put(f"{run}/{name}", b"")
    store.delete(f"{run}/a", f"{run}/nothing", f"{run}/c")
    store.delete()
    assert store.list(f"{run}/") == [f"{run}/b"]


@pytest.mark.slow
def test_delete_prefix_pages_through_to_the_end(store: ObjectStore, run: str, request: pytest.FixtureRequest) -> None:
    """Check that list and delete_prefix cover more than one page of a thousand keys."""
    keys = [f"{run}/many/{i:04}" for i in range(1_003)]
    _fill(store, keys, moto=request.node.callspec.params["store"] == "s3")
    store.put(f"{run}/other", b"")
    assert store.list(f"{run}/many/") == keys
    assert store.delete_prefix(f"{run}/many/") == 1_003
    assert store.list(f"{run}/") == [f"{run}/other"]


def _fill(store: ObjectStore, keys: Sequence[str], *, moto: bool) -> None:
    """Store an empty object under each key. `moto`: the S3 server runs in this process and is filled directly, without a request a key."""
    if moto:
        from moto.s3.models import s3_backends

        for key in keys:
            s3_backends["123456789012"]["aws"].put_object(BUCKET, key, b"")
        return
    for key in keys:
        store.put(key, b"")


def test_traffic_counts_payloads_and_operations(store: ObjectStore, run: str, traffic: Traffic) -> None:
    """Check that the bytes of objects and the number of each operation are counted."""
    store.put(f"{run}/a", [b"1234", b"56"])
    store.create(f"{run}/a", b"123")
    store.exists(f"{run}/a")
    assert (traffic.as_record()["bytes_out"], traffic.as_record()["bytes_in"]) == (9, 6)
    assert traffic.operations == {"put": 2, "get": 1, "exists": 1}
    assert traffic.as_record() == {"bytes_in": 6, "bytes_out": 9, "requests": 4}
