"""Storing and reading tensors: RedisAI's commands and their extensions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.redis_module.servers import Client, Server, statistics
from tests.redis_module.vectors import DTYPES, floats, get, put, same_bits

SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)

arrays = st.sampled_from(list(DTYPES.values())).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4))
)


@SHARED
@given(array=arrays)
def test_blob_comes_back_bitwise_for_every_dtype_and_rank(client: Client, array: np.ndarray) -> None:
    """Check that arrays of every dtype and rank are read back with the same bits."""
    assert put(client, "t", array) == b"OK"
    assert same_bits(get(client, "t"), array)
    dtype_word, dtype, shape_word, shape, blob_word, blob = client.execute_command("AI.TENSORGET", "t")
    assert (dtype_word, shape_word, blob_word) == (b"dtype", b"shape", b"blob")
    assert DTYPES[dtype.decode()] == array.dtype and tuple(shape) == array.shape and blob == array.tobytes()


@SHARED
@given(array=arrays)
def test_values_read_back_as_they_were_written(client: Client, array: np.ndarray) -> None:
    """Check that values printed by AI.TENSORGET give the same array when they are set again."""
    put(client, "t", array)
    _, dtype, _, shape, word, values = client.execute_command("AI.TENSORGET", "t", "META", "VALUES")
    assert word == b"values"
    client.execute_command("AI.TENSORSET", "u", dtype, *shape, "VALUES", *values)
    np.testing.assert_array_equal(get(client, "u"), array)  # bitwise but for the NaNs' payloads


def test_formats_of_tensorget(client: Client) -> None:
    """Check the replies of AI.TENSORGET with BLOB, META and VALUES."""
    client.execute_command("AI.TENSORSET", "t", "INT16", 2, "VALUES", -1, 5)
    assert client.execute_command("AI.TENSORGET", "t", "BLOB") == np.array([-1, 5], np.int16).tobytes()
    assert client.execute_command("AI.TENSORGET", "t", "META") == [b"dtype", b"INT16", b"shape", [2]]
    assert client.execute_command("AI.TENSORGET", "t", "VALUES") == [-1, 5]
    assert client.execute_command("ai.tensorget", "t", "values") == [-1, 5]


@pytest.mark.parametrize(("text", "value"), [("0x1.8p-4", 0.09375), ("1e-3", np.float32(1e-3)), ("-inf", -np.inf)])
def test_values_are_decimal_or_hex(client: Client, text: str, value: float) -> None:
    """Check which texts are accepted as values."""
    client.execute_command("AI.TENSORSET", "t", "FLOAT", 1, "VALUES", text)
    assert get(client, "t")[0] == value


def test_without_data_it_is_zeros(client: Client) -> None:
    """Check that a tensor set without data is all zeros."""
    client.execute_command("AI.TENSORSET", "t", "DOUBLE", 3, 2)
    assert same_bits(get(client, "t"), np.zeros((3, 2)))


def test_kind_and_samples_are_carried(client: Client) -> None:
    """Check that the labels KIND and SAMPLES are stored and returned."""
    array = np.arange(4, dtype=np.float32)
    put(client, "plain", array)
    put(client, "g", array, "KIND", "gradient", "SAMPLES", 512)
    assert client.execute_command("TENSOR.INFO", "plain") == [b"FLOAT", [4], b"", None, 16]
    assert client.execute_command("TENSOR.INFO", "g") == [b"FLOAT", [4], b"gradient", 512, 16]
    assert client.execute_command("TENSOR.GET", "g") == [b"FLOAT", [4], b"gradient", 512, array.tobytes()]
    assert len(client.execute_command("AI.TENSORGET", "g", "META")) == 4


def test_missing_tensors_are_nil(client: Client) -> None:
    """Check that TENSOR.INFO and TENSOR.GET return nil for a missing key."""
    assert client.execute_command("TENSOR.INFO", "none") is None
    assert client.execute_command("TENSOR.GET", "none") is None


def test_range_returns_a_part(client: Client) -> None:
    """Check that RANGE returns the given elements and refuses more than there are."""
    array = np.arange(12, dtype=np.int64).reshape(3, 4)
    put(client, "t", array)
    assert client.execute_command("TENSOR.GET", "t", "RANGE", 5, 3)[4] == array.ravel()[5:8].tobytes()
    assert client.execute_command("TENSOR.GET", "t", "RANGE", 12, 0)[4] == b""
    with pytest.raises(redis.ResponseError, match=r"RANGE count.*'8'.*from 0 to 7"):
        client.execute_command("TENSOR.GET", "t", "RANGE", 5, 8)


def test_nx_keeps_the_first(client: Client) -> None:
    """Check that a set with NX keeps an existing tensor and answers 0."""
    first, second = floats([1, 2]), floats([3, 4])
    assert put(client, "t", first, "NX") == 1
    assert put(client, "t", second, "NX") == 0
    assert same_bits(get(client, "t"), first)
    assert put(client, "t", second) == b"OK"
    assert same_bits(get(client, "t"), second)


def test_px_expires_and_a_later_set_lives_on(client: Client) -> None:
    """Check that PX sets a time to live and that a later set without it removes that."""
    array = floats([1])
    put(client, "t", array, "PX", 100_000)
    assert 99_000 < (client.pttl("t") or 0) <= 100_000
    put(client, "t", array)  # the same size: overwritten in place
    assert client.pttl("t") == -1
    put(client, "t", array, "PX", 1)
    while client.exists("t"):
        pass
    assert client.execute_command("TENSOR.INFO", "t") is None


def test_copy_keeps_everything_and_is_independent(client: Client) -> None:
    """Check that TENSOR.COPY copies values and labels, and that overwriting the original does not change the copy."""
    array = floats([1, 2, 3])
    put(client, "a", array, "KIND", "model", "SAMPLES", 7)
    assert client.execute_command("TENSOR.COPY", "a", "b") == b"OK"
    assert client.execute_command("TENSOR.COPY", "a", "b", "NX") == 0
    assert client.execute_command("TENSOR.COPY", "a", "c", "NX", "PX", 90_000) == 1
    assert client.pttl("c") > 80_000
    put(client, "a", array * 2)
    assert client.execute_command("TENSOR.GET", "b") == [b"FLOAT", [3], b"model", 7, array.tobytes()]
    assert client.copy("b", "d")  # Redis's own
    put(client, "b", array * 3)
    assert same_bits(get(client, "d"), array)


def test_reading_while_overwriting_sees_one_or_the_other(client: Client, server: Server) -> None:
    """Check that each reply of a pipeline has the tensor of its turn, though the next set reuses that one's memory."""
    pipe: Any = client.pipeline(transaction=False)
    for value in range(20):
        pipe.execute_command(
            "AI.TENSORSET", "t", "FLOAT", 5000, "BLOB", np.full(5000, value, np.float32).tobytes()
        ).execute_command("AI.TENSORGET", "t", "BLOB")
    replies = pipe.execute()[1::2]
    for value, blob in enumerate(replies):
        assert blob == np.full(5000, value, np.float32).tobytes()


def test_memory_is_counted_and_given_back(client: Client) -> None:
    """Check the counters of tensors and bytes: a copy shares memory, and deletion releases it."""
    before = client.info("memory")["used_memory"]
    put(client, "t", np.zeros(1 << 20, np.float32))
    client.execute_command("TENSOR.COPY", "t", "u")
    assert statistics(client)["tensors"] == 1 and statistics(client)["bytes"] == 4 << 20  # a copy shares
    assert client.info("memory")["used_memory"] - before > 4 << 20
    assert (client.memory_usage("t") or 0) > 4 << 20
    client.delete("t", "u")
    assert statistics(client)["tensors"] == 0 and statistics(client)["bytes"] == 0


def test_spare_memory_is_reused_and_let_go_in_time(client: Client) -> None:
    """Check that the memory of a deleted tensor is kept, reused by one of equal size, and released after a while."""
    put(client, "t", np.zeros(1 << 20, np.float32))
    client.delete("t")
    assert statistics(client)["spare_bytes"] >= 4 << 20
    spare = statistics(client)["spare_bytes"]
    put(client, "t", np.zeros(1 << 20, np.float32))
    assert statistics(client)["spare_bytes"] == spare - (4 << 20)


BLOB4 = np.zeros(4, np.float32).tobytes()
REFUSED = [
    (("AI.TENSORSET", "t"), r"wrong number of arguments for 'AI.TENSORSET' command: 1 given, expected at least 3"),
    (("AI.TENSORSET", "t", "FLOTA", 4), r"argument 2 \(dtype\) is 'FLOTA'; expected FLOAT, DOUBLE"),
    (("AI.TENSORSET", "t", "TEXT", 1, "VALUES", "a"), r"\(dtype\) is 'TEXT'"),
    (("AI.TENSORSET", "t", "FLOAT", -4, "BLOB", BLOB4), r"argument 3 \(size\) is '-4'; expected an integer from 0"),
    (("AI.TENSORSET", "t", "FLOAT", 4.5, "BLOB", BLOB4), r"argument 3 \(option\) is '4.5'; expected a size"),
    (("AI.TENSORSET", "t", "FLOAT", 5, "BLOB", BLOB4), r"BLOB has 16 bytes; expected 20 for FLOAT \[5\]"),
    (("AI.TENSORSET", "t", "FLOAT", 4, "BLOB"), r"argument 5 \(BLOB\) is missing"),
    (("AI.TENSORSET", "t", "FLOAT", 4, "BLOB", BLOB4, "NX"), r"argument 6 \(after the blob\) is 'NX'"),
    (("AI.TENSORSET", "t", "FLOAT", 1 << 40, 1 << 40, "BLOB", BLOB4), r"shape \[\d+, \d+\] overflows"),
    (("AI.TENSORSET", "t", "FLOAT", 1 << 40), r"4398046511104 bytes and no data; expected at most"),
    (("AI.TENSORSET", "t", "FLOAT", *[1] * 65), r"more than 64 sizes"),
    (("AI.TENSORSET", "t", "FLOAT", 2, "VALUES", 1), r"VALUES has 1 values; expected 2 for FLOAT \[2\]"),
    (("AI.TENSORSET", "t", "FLOAT", 1, "VALUES", "x"), r"argument 5 \(FLOAT\) is 'x'; expected a number"),
    (
        ("AI.TENSORSET", "t", "FLOAT", 1, "VALUES", "1e39"),
        r"\(FLOAT\) is '1e39'; expected a number in the dtype's range",
    ),
    (("AI.TENSORSET", "t", "INT8", 1, "VALUES", 128), r"\(INT8\) is '128'; expected an integer from -128 to 127"),
    (("AI.TENSORSET", "t", "BOOL", 1, "VALUES", 2), r"expected an integer from 0 to 1"),
    (("AI.TENSORSET", "t", "BOOL", 2, "BLOB", b"\1\2"), r"BLOB byte 1 is 2; expected 0 or 1"),
    (("AI.TENSORSET", "t", "FLOAT", 4, "KIND", "k" * 33, "BLOB", BLOB4), r"KIND\) is 'k+'; expected at most 32 bytes"),
    (("AI.TENSORSET", "t", "FLOAT", 4, "SAMPLES", -1, "BLOB", BLOB4), r"SAMPLES\) is '-1'"),
    (("AI.TENSORSET", "t", "FLOAT", 4, "PX", 0, "BLOB", BLOB4), r"PX\) is '0'; expected an integer from 1"),
    (("AI.TENSORGET", "t"), r"tensor key is empty or in a different shard: AI.TENSORGET: key 't' does not exist"),
    (("AI.TENSORGET", "t", "BLOB", "VALUES"), r"both BLOB and VALUES"),
    (("AI.TENSORGET", "t", "JSON"), r"\(format\) is 'JSON'; expected META, BLOB or VALUES"),
    (
        ("AI.TENSORGET", "list"),
        r"WRONGTYPE Operation against a key holding the wrong kind of value: AI.TENSORGET: key 'list' holds a list; expected a tensor",
    ),
    (("AI.TENSORSET", "list", "FLOAT", 1, "VALUES", 1), r"WRONGTYPE .*holds a list"),
    (("TENSOR.COPY", "t", "u"), r"NOKEY TENSOR.COPY: source key 't'"),
    (("TENSOR.COPY", "kept", "list"), r"WRONGTYPE .*TENSOR.COPY: destination key 'list'"),
    (("TENSOR.INFO",), r"wrong number of arguments for 'TENSOR.INFO' command: 0 given, expected 1: TENSOR.INFO key"),
    (("TENSOR.STATS", "x"), r"wrong number of arguments"),
]


@pytest.mark.parametrize(("command", "message"), REFUSED, ids=lambda value: str(value)[:50])
def test_bad_input_is_named_and_changes_nothing(client: Client, command: tuple[object, ...], message: str) -> None:
    """Check the error messages of faulty commands for single tensors, and that they change nothing."""
    client.rpush("list", "x")
    put(client, "kept", floats([1, 2, 3, 4]), "SAMPLES", 2)
    with pytest.raises(redis.ResponseError) as refusal:
        client.execute_command(*command)
    assert re.search(message, str(refusal.value)), refusal.value
    assert sorted(client.keys()) == [b"kept", b"list"] and client.lrange("list", 0, -1) == [b"x"]
    assert client.execute_command("TENSOR.INFO", "kept") == [b"FLOAT", [4], b"", 2, 16]
    assert statistics(client)["tensors"] == 1


def test_a_refused_overwrite_leaves_the_old_value(client: Client) -> None:
    """Check that a faulty set keeps the existing tensor."""
    put(client, "t", floats([1, 2]))
    for bad in (["FLOAT", 2, "VALUES", 1, "x"], ["FLOAT", 2, "BLOB", b"123"], ["BOOL", 8, "BLOB", b"\2" * 8]):
        with pytest.raises(redis.ResponseError):
            client.execute_command("AI.TENSORSET", "t", *bad)
    assert same_bits(get(client, "t"), floats([1, 2]))
