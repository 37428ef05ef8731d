"""What programs written for RedisAI match and expect: first words of errors, TIMEDOUT, devices, STRING tensors, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.redis_module.servers import Client, Server, Start, starting, statistics, until
from tests.redis_module.test_server import encode
from tests.redis_module.vectors import floats, get, put

pytestmark = pytest.mark.slow  # the variant with scripts

SOURCE = """
def first(tensors: List[Tensor], keys: List[str], args: List[str]):
    return tensors[0]

def forever(tensors: List[Tensor], keys: List[str], args: List[str]):
    i = 0
    while True:
        i += 1
        if i < 0:
            break
    return tensors[0]
"""
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
EMPTY = "tensor key is empty or in a different shard"


@pytest.fixture(scope="module")
def script_server(torch_module: Path) -> Iterator[Server]:
    with starting(torch_module) as start:
        yield start()


@pytest.fixture
def start_torch(torch_module: Path) -> Iterator[Start]:
    with starting(torch_module) as start:
        yield start


@pytest.fixture
def client(script_server: Server) -> Client:
    made = script_server.client()
    made.flushall()
    store(made, "s", "CPU")
    put(made, "a", floats([1, 2]))
    made.rpush("list", "x")
    return made


def store(client: Client, key: str, device: str) -> None:
    words = ["ENTRY_POINTS", 2, "first", "forever", "SOURCE", SOURCE]
    client.execute_command("AI.SCRIPTSTORE", key, device, "TAG", f"tag of {key}", *words)


@pytest.mark.parametrize(
    ("command", "begins", "names"),
    [
        (("AI.TENSORGET", "none"), EMPTY, "'none'"),
        (("AI.TENSORGET", "list"), WRONG_TYPE, "'list' holds a list"),
        (("AI.TENSORSET", "list", "FLOAT", 1, "VALUES", 1), WRONG_TYPE, "'list' holds a list"),
        (("AI.TENSORSET",), "wrong number of arguments for 'AI.TENSORSET' command", "key dtype size"),
        (("AI.TENSORSET", "z", "FLOAT"), "wrong number of arguments for 'AI.TENSORSET' command", "key dtype size"),
        (("AI.SCRIPTGET", "none"), "script key is empty", "'none'"),
        (("AI.SCRIPTGET", "list"), WRONG_TYPE, "'list'"),
        (("AI.SCRIPTDEL", "none"), "script key is empty", "'none'"),
        (("AI.SCRIPTEXECUTE", "none", "f", "INPUTS", 1, "a"), "script key is empty", "'none'"),
        (("AI.SCRIPTEXECUTE", "s", "first", "INPUTS", 1, "none", "OUTPUTS", 1, "o"), EMPTY, "'none'"),
        (("AI.SCRIPTEXECUTE", "s", "first", "INPUTS", 1, "list", "OUTPUTS", 1, "o"), WRONG_TYPE, "'list'"),
        (("AI.SCRIPTEXECUTE", "s", "first", "OUTPUTS", 1, "o"), "AI.SCRIPTEXECUTE", "KEYS or INPUTS"),
        (("AI.SCRIPTEXECUTE", "s"), "wrong number of arguments for 'AI.SCRIPTEXECUTE' command", "key function"),
        (("AI.SCRIPTRUN", "s", "f", "INPUTS", "a", "$", "a", "$", "a", "OUTPUTS", "o"), "AI.SCRIPTRUN", r"a second \$"),
        (("AI.SCRIPTSTORE", "t", "GPU", "ENTRY_POINTS", 1, "first", "SOURCE", SOURCE), "AI.SCRIPTSTORE", "'GPU'; expected CPU"),
    ],
)  # fmt: skip
def test_errors_begin_as_redisais_and_then_explain(client: Client, command: Any, begins: str, names: str) -> None:
    with pytest.raises(redis.ResponseError, match=f"^{begins}.*{names}"):
        client.execute_command(*command)
    assert sorted(client.keys()) == [b"a", b"list", b"s"]


@pytest.mark.parametrize("device", ["CPU", "cpu", "CPU:0", "Cpu:12"])
def test_a_device_is_kept_as_it_was_given(client: Client, device: str) -> None:
    store(client, "d", device)
    client.execute_command("DEBUG", "RELOAD")
    assert client.execute_command("AI.SCRIPTGET", "d", "META")[:2] == [b"device", device.encode()]
    assert client.execute_command("AI.INFO", "d")[7] == device.encode()


def test_a_timeout_is_a_simple_string(client: Client) -> None:
    command = ("AI.SCRIPTEXECUTE", "s", "forever", "INPUTS", 1, "a", "OUTPUTS", 1, "out", "TIMEOUT", 50)
    assert client.execute_command(*command) == b"TIMEDOUT"
    until(lambda: statistics(client)["jobs_running"] == 0, what="the script's end")
    assert not client.exists("out")


def test_scripts_are_listed_in_one_order(start_torch: Start) -> None:
    server = start_torch(config={"appendonly": "yes"})
    client = server.client()
    for i in (7, 3, 9, 1, 5, 0, 8, 2, 6, 4):
        store(client, f"script {i}", "CPU")
    expected = [[f"script {i}".encode(), f"tag of script {i}".encode()] for i in range(10)]
    assert client.execute_command("AI._SCRIPTSCAN") == expected
    server.stop()
    server.start()
    assert server.client().execute_command("AI._SCRIPTSCAN") == expected


def test_older_scripts_run_by_either_command(client: Client) -> None:
    older = SOURCE + "\ndef add(a, b):\n    return a + b\n"
    client.execute_command("AI.SCRIPTSET", "old", "CPU", "SOURCE", older)
    for function, inputs, expected in (("add", ["a", "a"], [2, 4]), ("first", ["a"], [1, 2])):
        words = ["INPUTS", len(inputs), *inputs, "OUTPUTS", 1, "out"]
        assert client.execute_command("AI.SCRIPTEXECUTE", "old", function, *words) == b"OK"
        assert list(get(client, "out")) == expected
    with pytest.raises(redis.ResponseError, match="'add' takes tensors alone, without KEYS and ARGS"):
        client.execute_command("AI.SCRIPTEXECUTE", "old", "add", "INPUTS", 2, "a", "a", "ARGS", 1, "x")


def test_jobs_of_clients_that_left_are_dropped(client: Client, script_server: Server) -> None:
    """One thread: the first runs without end, the others wait; all their clients leave, and the next command is answered."""
    command = encode("AI.SCRIPTEXECUTE", "s", "forever", "INPUTS", 1, "a", "OUTPUTS", 1, "out")
    leaving = [script_server.client(single_connection_client=True) for _ in range(4)]
    for each in leaving:
        connection: Any = each.connection
        connection._sock.sendall(command)
    until(lambda: statistics(client)["jobs_queued"] == 3, what="three jobs that wait for the one that runs")
    for each in leaving[1:]:
        each.close()
    until(lambda: statistics(client)["jobs_queued"] == 0, what="the queue without those that left")
    assert statistics(client)["jobs_running"] == 1
    leaving[0].close()
    assert client.execute_command("AI.SCRIPTEXECUTE", "s", "first", "INPUTS", 1, "a", "OUTPUTS", 1, "out") == b"OK"


def test_string_tensors(client: Client) -> None:
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
    with pytest.raises(redis.ResponseError, match=message):
        client.execute_command("AI.TENSORSET", "t", "STRING", *words)
    assert not client.exists("t")


def test_strings_are_not_computed_with(client: Client) -> None:
    client.execute_command("AI.TENSORSET", "t", "STRING", 1, "VALUES", "x")
    with pytest.raises(redis.ResponseError, match=r"'t' is STRING; expected numbers"):
        client.execute_command("AI.SCRIPTEXECUTE", "s", "first", "INPUTS", 1, "t", "OUTPUTS", 1, "out")
    with pytest.raises(redis.ResponseError, match=r"'t' is STRING; expected FLOAT"):
        client.execute_command("TENSOR.NORM", "t")
    with pytest.raises(redis.ResponseError, match=r"RANGE .* STRING"):
        client.execute_command("TENSOR.GET", "t", "RANGE", 0, 1)
