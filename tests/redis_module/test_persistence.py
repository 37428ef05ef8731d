"""RDB, AOF, rewrites, kill -9 and replicas: everything comes back byte-equal."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest
import redis

from tests.redis_module.servers import Client, Server, Start, until
from tests.redis_module.vectors import DTYPES, floats, get, put, same_bits

ALWAYS = {"appendonly": "yes", "appendfsync": "always"}


def fill(client: Client) -> None:
    """Store tensors of every dtype, with labels, with a time to live, and computed ones."""
    rng = np.random.default_rng(0)
    for name, dtype in DTYPES.items():
        put(client, f"dtype:{name}", rng.integers(0, 2, size=(3, 1, 2)).astype(dtype))
    put(client, "scalar", np.array(1.5))
    put(client, "empty", np.zeros((0, 4), np.float32))
    put(client, "labelled", floats([1, np.nan, -0.0]), "KIND", "gradient", "SAMPLES", 512)
    put(client, "mortal", floats([7]), "PX", 500_000)
    put(client, "first", floats([1]), "NX")
    put(client, "first", floats([2]), "NX")
    for key in ("a", "b"):
        put(client, key, rng.standard_normal(70_001).astype(np.float32), "KIND", "gradient", "SAMPLES", len(key) + 1)
    client.execute_command("TENSOR.MEAN", 2, "a", "b", "OUT", "mean", "PX", 500_000)
    client.execute_command("TENSOR.SGD", "a", "b", "-", "OUT", "model", "velocity", "LR", 0.1, "MOMENTUM", 0.9)
    client.execute_command("TENSOR.COPY", "labelled", "copied", "PX", 500_000)
    client.execute_command("AI.TENSORSET", "values", "FLOAT", 2, "VALUES", "0x1.999999999999ap-4", "-inf")
    client.delete("b")


def contents(client: Client) -> dict[bytes, Any]:
    """Return (reply of TENSOR.GET, time of expiry) of each key."""
    names: Any = client.keys("*")
    return {key: (client.execute_command("TENSOR.GET", key), client.pexpiretime(key)) for key in names}


def digest(client: Client) -> bytes:
    """Return the server's digest of all its data."""
    return client.execute_command("DEBUG", "DIGEST")  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "config", [{}, ALWAYS, {**ALWAYS, "aof-use-rdb-preamble": "no"}], ids=["rdb", "aof", "aof-plain"]
)
def test_a_restart_brings_everything_back(start: Start, config: dict[str, str]) -> None:
    """Check that a restarted server has the same data and digest, from its RDB or its append-only file."""
    server = start(config=config)
    client = server.client()
    fill(client)
    if not config:
        client.save()
    before, sum_before = contents(client), digest(client)
    server.stop()
    server.start()
    assert contents(server.client()) == before and digest(server.client()) == sum_before
    # a client that sets no expiry sees none; the others kept theirs to the millisecond
    assert before[b"labelled"][1] == -1 and before[b"mean"][1] > 0 and before[b"copied"][1] > 0


@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_the_aof_is_rewritten(start: Start, preamble: str) -> None:
    """Check that a rewritten append-only file restores all data, with and without an RDB preamble."""
    server = start(config={**ALWAYS, "aof-use-rdb-preamble": preamble, "auto-aof-rewrite-percentage": "0"})
    client = server.client()
    fill(client)
    before = contents(client)
    client.bgrewriteaof()
    until(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0, what="the AOF's rewrite")
    assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"
    put(client, "later", floats([1]))
    later = contents(client)
    server.stop(signal.SIGKILL)
    server.start()
    assert contents(server.client()) == later and later.items() >= before.items()


def test_kill_9_keeps_what_was_acknowledged(start: Start) -> None:
    """Kill a server after a series of optimizer steps, and check that all acknowledged results are there after its restart."""
    server = start(config=ALWAYS)
    client = server.client()
    put(client, "p0", floats([1, 2]))
    put(client, "g", floats([1, 1]))
    state = "-"
    for step in range(20):
        rule = ["LR", 0.25, "MOMENTUM", 0.5, "NX"]
        client.execute_command("TENSOR.SGD", f"p{step}", "g", state, "OUT", f"p{step + 1}", f"v{step + 1}", *rule)
        state = f"v{step + 1}"
    before = contents(client)
    server.stop(signal.SIGKILL)
    server.start()
    assert contents(server.client()) == before


def test_both_outputs_of_a_step_travel_in_one_transaction(start: Start) -> None:
    """Check that the AOF has both outputs of a step in one transaction: if it is cut inside, neither output exists."""
    server = start(config={**ALWAYS, "aof-load-truncated": "yes"})
    client = server.client()
    put(client, "p", floats([1, 2]))
    put(client, "g", floats([1, 1]))
    client.execute_command("TENSOR.SGD", "p", "g", "-", "OUT", "q", "v", "LR", 1, "MOMENTUM", 0.5)
    server.stop()
    (log,) = (server.folder / "appendonlydir").glob("*.incr.aof")
    whole = log.read_bytes()
    assert b"TENSOR.SGD" not in whole.upper() and whole.count(b"MULTI") == whole.count(b"EXEC") == 1
    second = whole.rindex(b"TENSORSET")  # between the two outputs
    log.write_bytes(whole[:second])
    server.start()
    assert sorted(server.client().keys()) == [b"g", b"p"]


@pytest.mark.slow
def test_replicas_are_byte_equal_and_never_compute(start: Start) -> None:
    """Check that a replica has the same data and digest as its master, and that it did not execute any job."""
    master = start()
    client = master.client()
    put(client, "before", floats([1]), "KIND", "model")
    replica = start(config={"replicaof": f"127.0.0.1 {master.port}"})
    other = replica.client()
    until(lambda: other.info("replication")["master_link_status"] == "up", what="the replica's link")
    fill(client)
    client.wait(1, 30_000)
    assert contents(other) == contents(client) and digest(other) == digest(client)
    commands = other.info("commandstats")
    assert "cmdstat_tensor.mean" not in commands and "cmdstat_tensor.sgd" not in commands
    with pytest.raises(redis.ReadOnlyError):
        other.execute_command("TENSOR.MEAN", 1, "a", "OUT", "m")
    assert float(other.execute_command("TENSOR.NORM", "a")) > 0  # reading commands work


def test_debug_reload_and_restore(start: Start) -> None:
    """Check that DEBUG RELOAD, and DUMP with RESTORE, keep tensors as they are."""
    client = start().client()
    fill(client)
    before, sum_before = contents(client), digest(client)
    client.execute_command("DEBUG", "RELOAD")
    assert contents(client) == before and digest(client) == sum_before
    dumped = client.dump("labelled")
    assert dumped is not None
    client.restore("again", 0, dumped)
    assert client.execute_command("TENSOR.GET", "again") == before[b"labelled"][0]
    with pytest.raises(redis.ResponseError):
        client.restore("broken", 0, dumped[:-20] + bytes(20))


def test_a_save_in_the_background_sees_one_moment(start: Start) -> None:
    """Check that a background save writes what was stored when it began, though the tensors are overwritten meanwhile."""
    server: Server = start(config={"rdb-key-save-delay": "20000"})
    client = server.client()
    for i in range(10):
        put(client, f"t{i}", np.full(1000, i, np.float32))
    client.bgsave()
    for i in range(10):
        put(client, f"t{i}", np.full(1000, -1, np.float32))
    until(lambda: client.info("persistence")["rdb_bgsave_in_progress"] == 0, what="the background save")
    server.stop(signal.SIGKILL)
    server.start()
    for i in range(10):
        assert same_bits(get(server.client(), f"t{i}"), np.full(1000, i, np.float32))


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def type_id(name: str, encoding: int) -> bytes:
    """Return the 8 bytes by which a dump names a module type: nine letters of 6 bits each, and 10 bits for the version of its encoding."""
    number = 0
    for letter in name:
        number = number << 6 | LETTERS.index(letter)
    return (number << 10 | encoding).to_bytes(8, "big")


@pytest.mark.parametrize(("name", "encoding"), [("xo-script", 2), ("xo-models", 1)])
def test_a_file_with_scripts_or_models_is_refused_in_words(start: Start, name: str, encoding: int) -> None:
    """Check that the server refuses a file with types that a second build of this module once had, and names the type."""
    server = start()
    put(server.client(), "t", floats([1]))
    server.client().save()
    server.stop()
    file = server.folder / "dump.rdb"
    whole = file.read_bytes()
    assert whole.count(type_id("xo-tensor", 1)) == 1
    file.write_bytes(whole.replace(type_id("xo-tensor", 1), type_id(name, encoding))[:-8] + bytes(8))  # without a sum
    with pytest.raises(AssertionError, match=f"no matching module type '{name}'"):
        server.start()
    server.process.wait(timeout=120)
    file.write_bytes(whole)
    server.start()
    assert get(server.client(), "t") == [1]


@pytest.mark.parametrize("command", ["AI.SCRIPTSTORE", "AI.SCRIPTSET", "AI.MODELSTORE"])
def test_a_log_with_scripts_or_models_is_refused_in_words(start: Start, command: str) -> None:
    """Check that a server refuses an append-only file with commands for scripts or models, and names the command."""
    server = start(config=ALWAYS)
    put(server.client(), "t", floats([1]))
    server.stop()
    (log,) = (server.folder / "appendonlydir").glob("*.incr.aof")
    log.write_bytes(log.read_bytes() + f"*2\r\n${len(command)}\r\n{command}\r\n$1\r\ns\r\n".encode())
    with pytest.raises(AssertionError, match=f"Unknown command '{command}'"):
        server.start()
    server.process.wait(timeout=120)
