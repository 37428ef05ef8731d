"""Every TensorStore keeps its Protocol."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossover.errors import Corrupt, Missing
from crossover.stores.encoding import Vector, VectorKind
from crossover.stores.protocols import TensorStore, Traffic
from tests.conformance.conftest import TENSOR_STORES, MakeTensors
from tests.conformance.vectors import at_once, vector


@pytest.fixture(scope="module", params=TENSOR_STORES)
def store(request: pytest.FixtureRequest, make_tensors: MakeTensors) -> TensorStore:
    """Return a tensor store of each kind."""
    return make_tensors(request.param, Traffic())


def test_a_vector_comes_back_as_it_went(store: TensorStore, run: str) -> None:
    """Check that a vector is read back with its bits, kind and number of samples."""
    store.put(f"{run}/v", vector(1.5, -0.0, 3e38, kind=VectorKind.MODEL, samples=7))
    got = store.get(f"{run}/v", kind=VectorKind.MODEL)
    assert got == vector(1.5, -0.0, 3e38, kind=VectorKind.MODEL, samples=7)
    assert bytes(got.data) == bytes(vector(1.5, -0.0, 3e38).data)
    assert got.elements == 3


@settings(max_examples=25)
@given(data=st.binary(min_size=1, max_size=70_000), samples=st.integers(0, 2**40))
def test_bytes_of_any_length_come_back(store: TensorStore, data: bytes, samples: int) -> None:
    """Check that a sparse vector of any bytes is read back."""
    sparse = Vector(VectorKind.SPARSE, memoryview(data), samples, "uint8")
    store.put("any-length", sparse)
    assert store.get("any-length", kind=VectorKind.SPARSE) == sparse


def test_a_large_vector_comes_back_whole(store: TensorStore, run: str) -> None:
    """Check that a vector of 10 MB is read back, into the caller's memory too."""
    data = bytearray(range(256)) * 40_000  # 10 MB: many segments, several reads
    store.put(f"{run}/v", Vector(VectorKind.MODEL, memoryview(data)))
    assert store.get(f"{run}/v").data == data
    out = bytearray(len(data))
    assert store.get(f"{run}/v", out=memoryview(out)).data.obj is out
    assert out == data


def test_put_replaces(store: TensorStore, run: str) -> None:
    """Check that put replaces a vector of another length and kind."""
    store.put(f"{run}/v", vector(1, 2, kind=VectorKind.MODEL, samples=3))
    store.put(f"{run}/v", vector(4))
    assert store.get(f"{run}/v") == vector(4)


def test_out_receives_the_data(store: TensorStore, run: str) -> None:
    """Check that get reads into the caller's memory."""
    store.put(f"{run}/v", vector(1, 2, 3))
    out = bytearray(12)
    got = store.get(f"{run}/v", out=memoryview(out).cast("i"))
    assert out == bytes(vector(1, 2, 3).data) == bytes(got.data)


@pytest.mark.parametrize("bytes_", [0, 8, 16])
def test_out_of_another_length_is_refused_and_left_alone(store: TensorStore, run: str, bytes_: int) -> None:
    """Check that get refuses memory of another length, leaves it alone and can be used afterwards."""
    store.put(f"{run}/v", vector(1, 2, 3))
    out = bytearray(b"\xaa" * bytes_)
    with pytest.raises(Corrupt, match=r"12 payload bytes"):
        store.get(f"{run}/v", out=memoryview(out))
    assert out == b"\xaa" * bytes_
    assert store.get(f"{run}/v") == vector(1, 2, 3)  # and the connection is in order


def test_another_kind_is_refused(store: TensorStore, run: str) -> None:
    """Check that get refuses a vector of another kind than was asked for."""
    store.put(f"{run}/v", vector(1, kind=VectorKind.UPDATE))
    with pytest.raises(Corrupt, match=r"holds a update vector where a gradient was expected"):
        store.get(f"{run}/v", kind=VectorKind.GRADIENT)


def test_a_missing_key_is_named(store: TensorStore, run: str) -> None:
    """Check that get of a missing key raises Missing with the key."""
    with pytest.raises(Missing) as caught:
        store.get(f"{run}/nothing", kind=VectorKind.GRADIENT)
    assert caught.value.key == f"{run}/nothing"
    assert not store.exists(f"{run}/nothing")


def test_create_keeps_the_first(store: TensorStore, run: str) -> None:
    """Check that create keeps an existing vector and returns False."""
    assert store.create(f"{run}/v", vector(1, samples=1)) is True
    assert store.create(f"{run}/v", vector(2, 3, samples=2)) is False
    assert store.get(f"{run}/v") == vector(1, samples=1)


def test_a_race_of_creators_has_one_winner(store: TensorStore, run: str) -> None:
    """Check that create returns True to one of several threads only, whose vector is stored."""
    for turn in range(5):
        won = at_once(8, lambda i, turn=turn: store.create(f"{run}/{turn}", vector(i)))  # type: ignore[misc]
        assert won.count(True) == 1
        assert store.get(f"{run}/{turn}") == vector(won.index(True))


def test_a_state_is_created_together(store: TensorStore, run: str) -> None:
    """Check that create_together stores all vectors, and returns False if the first exists."""
    model, velocity = vector(1, 2, kind=VectorKind.MODEL), vector(3, kind=VectorKind.VELOCITY)
    assert store.create_together([(f"{run}/m", model), (f"{run}/v", velocity)]) is True
    assert store.get(f"{run}/m", kind=VectorKind.MODEL) == model
    assert store.get(f"{run}/v", kind=VectorKind.VELOCITY) == velocity
    assert store.create_together([(f"{run}/m", vector(9)), (f"{run}/w", vector(9))]) is False
    assert store.get(f"{run}/m") == model


def test_who_sees_a_state_sees_all_of_it(store: TensorStore, run: str) -> None:
    """Check that whoever finds the first vector of a state finds the others too."""
    model, velocity = vector(1, 2, kind=VectorKind.MODEL), vector(3, kind=VectorKind.VELOCITY)

    def write_or_look(i: int) -> bool:
        """Wait for the first part of a state and return True if the second is complete. Numbers below 3 write the state first."""
        if i < 3:
            store.create_together([(f"{run}/m", model), (f"{run}/v", velocity)])
        while not store.exists(f"{run}/m"):
            pass
        return store.exists(f"{run}/v") and store.get(f"{run}/v") == velocity

    assert all(at_once(6, write_or_look))


def test_a_race_of_states_has_one_winner(store: TensorStore, run: str, request: pytest.FixtureRequest) -> None:
    """Check that one of several attempts at once stores its state, and that Redis keeps nothing of the others."""

    def attempt(i: int) -> bool:
        """Store the state of attempt `i`, and return True if it was the one stored."""
        return store.create_together([(f"{run}/m", vector(i, i)), (f"{run}/v", vector(i))])

    won, name = at_once(6, attempt), request.node.callspec.params["store"]
    assert won.count(True) == 1
    assert store.get(f"{run}/m") == vector(won.index(True), won.index(True))
    if name in ("memory", "redis"):
        assert store.get(f"{run}/v") == vector(won.index(True))
    if name == "redis":
        keys = {key.decode() for key in store.client.command("KEYS", f"{run}/*")}  # type: ignore[attr-defined]
        assert keys == {f"{run}/m", f"{run}/v"}


def test_delete_takes_what_is_there(store: TensorStore, run: str) -> None:
    """Check that delete removes the existing ones of the keys, and accepts missing ones and none."""
    store.put(f"{run}/a", vector(1))
    store.put(f"{run}/b", vector(2))
    store.delete(f"{run}/a", f"{run}/nothing")
    store.delete()
    assert not store.exists(f"{run}/a")
    assert store.exists(f"{run}/b")
    assert store.create(f"{run}/a", vector(3))


def test_what_is_stored_cannot_be_changed_from_outside(store: TensorStore, run: str) -> None:
    """Check that a stored vector changes neither with the memory it came from nor with what get returned."""
    memory = bytearray(bytes(vector(1, 2).data))
    store.put(f"{run}/v", Vector(VectorKind.GRADIENT, memoryview(memory)))
    memory[:] = bytes(8)
    got = store.get(f"{run}/v")
    if not got.data.readonly:
        got.data[:] = bytes(8)
    assert store.get(f"{run}/v") == vector(1, 2)


def test_many_threads_share_one_store(store: TensorStore, run: str) -> None:
    """Check that six threads can use one store at once."""

    def use(i: int) -> bool:
        """Write ten vectors and return True if each is read back as it was written."""
        mine = vector(*range(i, i + 3000), samples=i)
        for turn in range(10):
            store.put(f"{run}/{i}/{turn}", mine)
        return all(store.get(f"{run}/{i}/{turn}") == mine for turn in range(10))

    assert all(at_once(6, use))


@pytest.mark.parametrize("name", TENSOR_STORES)
def test_traffic_counts_payloads(make_tensors: MakeTensors, name: str, run: str, traffic: Traffic) -> None:
    """Check that the bytes of vectors are counted, and that no operation lists keys."""
    store = make_tensors(name, traffic)
    store.put(f"{run}/v", vector(1, 2, 3))
    store.create(f"{run}/w", vector(1))
    store.get(f"{run}/v")
    header = 48 if name == "objects" else 0
    assert (traffic.as_record()["bytes_out"], traffic.as_record()["bytes_in"]) == (16 + 2 * header, 12 + header)
    assert not {"list", "scan", "keys"} & traffic.operations.keys()


def test_every_key_lives_for_a_while_only_and_nothing_is_searched(
    make_tensors: MakeTensors, run: str, traffic: Traffic
) -> None:
    """Check that every key in Redis expires, that none is temporary, and that no command lists keys."""
    store = make_tensors("redis", traffic)
    client = store.client  # type: ignore[attr-defined]
    client.command("FLUSHALL")
    client.command("CONFIG", "RESETSTAT")
    store.put(f"{run}/v", vector(1))
    store.create(f"{run}/w", vector(1))
    store.create_together([(f"{run}/x", vector(1)), (f"{run}/y", vector(2))])
    sent = traffic.as_record()["bytes_out"]
    store.create_together([(f"{run}/x", vector(1)), (f"{run}/z", vector(2))])
    assert traffic.as_record()["bytes_out"] == sent  # a finished step sends no vectors
    store.get(f"{run}/v")
    store.delete(f"{run}/w")
    commands = client.command("INFO", "commandstats").decode()
    assert "cmdstat_keys" not in commands and "cmdstat_scan" not in commands
    keys = client.command("KEYS", "*")
    assert {key.decode() for key in keys} == {f"{run}/{k}" for k in "vxy"}  # no temporary ones
    assert all(0 < client.command("PTTL", key) <= 600_000 for key in keys)


def test_plain_tensors_of_others_are_refused(make_tensors: MakeTensors, run: str) -> None:
    """Check that get refuses tensors in Redis without a kind, or of another type of number."""
    store = make_tensors("redis", Traffic())
    client = store.client  # type: ignore[attr-defined]
    client.command("AI.TENSORSET", f"{run}/nameless", "FLOAT", 1, "VALUES", 1)
    client.command("AI.TENSORSET", f"{run}/double", "DOUBLE", 1, "KIND", "model", "VALUES", 1)
    with pytest.raises(Corrupt, match="nameless: holds a tensor of kind ''"):
        store.get(f"{run}/nameless")
    with pytest.raises(Corrupt, match="DOUBLE"):
        store.get(f"{run}/double")
