"""What programs written for RedisAI match and expect of its tensors: first words of errors, STRING tensors, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.redis_module.servers import Client
from tests.redis_module.vectors import floats, put

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
EMPTY = "tensor key is empty or in a different shard"


@pytest.mark.parametrize(
    ("command", "begins", "names"),
    [
        (("AI.TENSORGET", "none"), EMPTY, "'none'"),
        (("AI.TENSORGET", "list"), WRONG_TYPE, "'list' holds a list"),
        (("AI.TENSORSET", "list", "FLOAT", 1, "VALUES", 1), WRONG_TYPE, "'list' holds a list"),
        (("AI.TENSORSET",), "wrong number of arguments for 'AI.TENSORSET' command", "key dtype size"),
        (("AI.TENSORSET", "z", "FLOAT"), "wrong number of arguments for 'AI.TENSORSET' command", "key dtype size"),
    ],
)
def test_errors_begin_as_redisais_and_then_explain(client: Client, command: Any, begins: str, names: str) -> None:
    """Check that errors begin with RedisAI's words and then name the argument, and that nothing is stored."""
    put(client, "a", floats([1, 2]))
    client.rpush("list", "x")
    with pytest.raises(redis.ResponseError, match=f"^{begins}.*{names}"):
        client.execute_command(*command)
    assert sorted(client.keys()) == [b"a", b"list"]


def test_string_tensors(client: Client) -> None:
    """Check that tensors of strings can be set by values or as one blob and read in each form."""
    words = [b"first", b"", "für".encode(), b"fourth"]
    joined = b"".join(word + b"\0" for word in words)
    assert client.execute_command("AI.TENSORSET", "t", "STRING", 2, 2, "VALUES", *words) == b"OK"
    assert client.execute_command("AI.TENSORSET", "u", "STRING", 2, 2, "BLOB", joined) == b"OK"
    for _ in range(2):
        for key in ("t", "u"):
            meta = [b"dtype", b"STRING", b"shape", [2, 2]]
            assert client.execute_command("AI.TENSORGET", key) == [*meta, b"blob", joined]
            assert client.execute_command("AI.TENSORGET", key, "META", "VALUES") == [*meta, b"values", words]
            assert client.execute_command("AI.TENSORGET", key, "VALUES") == words
            assert client.execute_command("TENSOR.INFO", key) == [b"STRING", [2, 2], b"", None, len(joined)]
        client.execute_command("DEBUG", "RELOAD")
    client.execute_command("AI.TENSORSET", "empty", "STRING", 3)
    assert client.execute_command("AI.TENSORGET", "empty", "VALUES") == [b"", b"", b""]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((2, "BLOB", b"a\0"), r"BLOB holds 1 strings that end in a zero byte; expected 2"),
        ((1, "BLOB", b"a\0b"), r"BLOB ends in 1 bytes without a zero byte"),
        ((1, "BLOB", b"a\0b\0"), r"BLOB holds 2 strings that end in a zero byte; expected 1"),
        ((0, "BLOB", b"a\0"), r"BLOB holds 1 strings that end in a zero byte; expected 0"),
        ((1, "VALUES", b"a\0b"), r"\(STRING\) is 'a\\x00b'; expected a string without a zero byte"),
        ((2, "VALUES", b"a"), r"VALUES has 1 values; expected 2"),
    ],
)
def test_malformed_strings_are_refused(client: Client, words: tuple[Any, ...], message: str) -> None:
    """Check that malformed tensors of strings are refused and not stored."""
    with pytest.raises(redis.ResponseError, match=message):
        client.execute_command("AI.TENSORSET", "t", "STRING", *words)
    assert not client.exists("t")


def test_strings_are_not_computed_with(client: Client) -> None:
    """Check that commands which compute, and ranges, refuse a tensor of strings."""
    client.execute_command("AI.TENSORSET", "t", "STRING", 1, "VALUES", "x")
    with pytest.raises(redis.ResponseError, match=r"'t' is STRING; expected FLOAT"):
        client.execute_command("TENSOR.NORM", "t")
    with pytest.raises(redis.ResponseError, match=r"RANGE .* STRING"):
        client.execute_command("TENSOR.GET", "t", "RANGE", 0, 1)
