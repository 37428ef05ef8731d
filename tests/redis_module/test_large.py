"""Large tensors: what would hold the server up for longer than a tenth of a second is done beside it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import redis

from tests.redis_module.servers import Client, Server, Start, statistics, until
from tests.redis_module.test_server import MINUTES_OF_WORK, long_job, replies, running, sent
from tests.redis_module.vectors import get, put

LONG_COPY = 64 << 20  # bytes; redis_module/README.md
LONG_REPLY = 1_000_000  # elements


@contextlib.contextmanager
def queued(server: Server, *command: object) -> Iterator[socket.socket]:
    """Yield the connection of a command that was queued behind a long job on the only thread. The long job's connection is closed just
    before the block.
    """
    client = server.client()
    with contextlib.ExitStack() as busy:
        busy.enter_context(sent(server, *long_job(client, MINUTES_OF_WORK)))
        until(lambda: running(client), what="the long job's start")
        with sent(server, *command) as connection:
            until(lambda: statistics(client)["jobs_queued"] == 1, what="the command's place in the queue")
            busy.close()
            yield connection


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        (("UINT8", LONG_COPY), ("AI.TENSORGET", "t", "BLOB")),
        (("UINT8", LONG_COPY), ("AI.TENSORGET", "t")),
        (("UINT8", LONG_COPY), ("TENSOR.GET", "t")),
        (("UINT8", LONG_COPY + 1), ("TENSOR.GET", "t", "RANGE", 1, LONG_COPY)),
        (("INT8", LONG_REPLY), ("AI.TENSORGET", "t", "VALUES")),
        (("STRING", LONG_REPLY), ("AI.TENSORGET", "t", "META", "VALUES")),
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_a_long_reply_is_made_beside_the_server(
    server: Server, client: Client, stored: tuple[Any, ...], asked: tuple[Any, ...]
) -> None:
    """Check that a long reply is built by a thread of the module, and that its content is right."""
    client.execute_command("AI.TENSORSET", "t", *stored)
    with queued(server, *asked):
        pass
    found = client.execute_command(*asked)
    if found[0] == b"dtype":
        found = found[-1]
    elif asked[0] == "TENSOR.GET":
        assert found[:4] == [b"UINT8", [stored[1]], b"", None]
        found = found[4]
    assert len(found) == min(stored[1], LONG_COPY) and (found == bytes(len(found)) or not any(found))


@pytest.mark.slow
def test_a_long_tensor_is_stored_beside_the_server(server: Server, client: Client) -> None:
    """Check that a long tensor is stored by a thread of the module, with its options."""
    data = np.random.default_rng(0).bytes(LONG_COPY)
    words: tuple[object, ...] = ("AI.TENSORSET", "t", "UINT8", LONG_COPY, "KIND", "k", "PX", 1_000_000, "BLOB", data)
    with queued(server, *words) as waiting:
        assert replies(waiting, 1) == ["+OK"]
    assert client.execute_command("TENSOR.GET", "t") == [b"UINT8", [LONG_COPY], b"k", None, data]
    assert client.pttl("t") > 0
    words = ("AI.TENSORSET", "t", "UINT8", LONG_COPY, "NX", "BLOB", bytes(LONG_COPY))
    assert client.execute_command(*words) == 0
    client.delete("t")
    assert client.execute_command(*words) == 1


def test_a_long_tensor_is_looked_through_beside_the_server(server: Server, client: Client) -> None:
    """Check that a long BOOL tensor with a byte other than 0 or 1 is refused, which a thread of the module finds."""
    words = ("AI.TENSORSET", "t", "BOOL", LONG_COPY, "BLOB", bytes(LONG_COPY - 1) + b"\2")
    with queued(server, *words) as waiting:
        (refusal,) = replies(waiting, 1)
    assert f"BLOB byte {LONG_COPY - 1} is 2; expected 0 or 1 for BOOL" in str(refusal)
    assert not client.exists("t")


def test_more_words_than_are_read_at_once_are_refused(server: Server, client: Client) -> None:
    """Check that a command with more than 1,048,576 words is refused with a hint to use BLOB."""
    with sent(server, "AI.TENSORSET", "t", "INT8", 1 << 20, "VALUES", *([1] * (1 << 20))) as waiting:
        (refusal,) = replies(waiting, 1)
    assert "1048581 words; expected at most 1048576: write a longer tensor with BLOB" in str(refusal)
    assert not client.exists("t")


@pytest.mark.parametrize("inside", ["MULTI", "Lua"])
def test_where_nothing_can_wait_long_ones_are_done_at_once(client: Client, inside: str) -> None:
    """Check that long tensors are stored and read immediately inside a transaction or a script."""
    data = np.random.default_rng(0).bytes(LONG_COPY)
    if inside == "MULTI":
        with client.pipeline(transaction=True) as together:
            together.execute_command("AI.TENSORSET", "t", "UINT8", LONG_COPY, "BLOB", data)
            together.execute_command("AI.TENSORGET", "t", "BLOB")
            assert together.execute() == [b"OK", data]
    else:
        script = "redis.call('AI.TENSORSET', 't', 'UINT8', ARGV[1], 'BLOB', ARGV[2]) return redis.call('AI.TENSORGET', 't', 'BLOB')"
        assert client.eval(script, 0, LONG_COPY, data) == data


@pytest.mark.slow
def test_a_replica_and_a_log_take_long_ones(start: Start) -> None:
    """Check that long tensors reach a replica and the append-only file."""
    master = start(config={"appendonly": "yes", "aof-use-rdb-preamble": "no"})
    client = master.client()
    replica = start(config={"replicaof": f"127.0.0.1 {master.port}"})
    other = replica.client()
    put(client, "first", np.zeros(1, np.float32))
    client.wait(1, 30_000)
    data = np.random.default_rng(0).bytes(LONG_COPY)
    client.execute_command("AI.TENSORSET", "t", "UINT8", LONG_COPY, "BLOB", data)
    client.execute_command("AI.TENSORSET", "zeros", "FLOAT", LONG_COPY)
    client.wait(1, 60_000)
    assert other.execute_command("DEBUG", "DIGEST") == client.execute_command("DEBUG", "DIGEST")
    before = client.execute_command("DEBUG", "DIGEST")
    (log,) = (master.folder / "appendonlydir").glob("*.incr.aof")
    assert log.stat().st_size < 1.5 * LONG_COPY  # zeros travel as what was asked for
    master.stop()
    master.start()
    assert master.client().execute_command("DEBUG", "DIGEST") == before


# --- zeros ------------------------------------------------------------------------------------------------------------


def test_zeros_are_asked_of_maxmemory(start: Start) -> None:
    """Check that a tensor of zeros beyond maxmemory is refused although its pages are not written."""
    client = start(module_arguments=["spare-mb", "0"]).client()
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 10_000_000)
    with pytest.raises(redis.ResponseError, match=r"^(OOM )?AI.TENSORSET: needs 40000000 bytes, but"):
        client.execute_command("AI.TENSORSET", "z", "FLOAT", 10_000_000)
    assert not client.exists("z")
    assert client.execute_command("AI.TENSORSET", "z", "FLOAT", 1_000_000) == b"OK"


def test_zeros_are_not_written(server: Server, client: Client) -> None:
    """Check that 512 MB of zeros take no memory, because the kernel provides pages of zeros at their first use."""

    def resident_kb() -> int:
        """Return the server's resident memory in KiB."""
        status = (f"/proc/{server.process.pid}/status",)
        with open(*status, encoding="ascii") as file:
            return int(next(line for line in file if line.startswith("VmRSS")).split()[1])

    before = resident_kb()
    client.execute_command("AI.TENSORSET", "z", "FLOAT", 1 << 27)
    assert resident_kb() - before < 100_000
    assert client.execute_command("TENSOR.GET", "z", "RANGE", (1 << 27) - 3, 3)[4] == bytes(12)
    client.delete("z")


def test_zeros_are_zeros_in_memory_that_was_used(start: Start) -> None:
    """Check that a tensor without data is all zeros if its memory held other values before."""
    client = start(module_arguments=["spare-mb", "256"]).client()
    for size in (100, 70_000, 3_000_001):
        put(client, "t", np.ones(size, np.float32))
        client.execute_command("TENSOR.COPY", "t", "held")
        client.delete("held", "t")
        client.execute_command("AI.TENSORSET", "z", "FLOAT", size)
        assert not get(client, "z").any()
        put(client, "z", np.ones(size, np.float32))
        client.execute_command("AI.TENSORSET", "z", "FLOAT", size)
        assert not get(client, "z").any()
    assert statistics(client)["tensors"] == 1
