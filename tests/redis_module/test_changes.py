"""What counts as a change and is saved, what is none, and where a change may no longer happen when a job ends."""

from __future__ import annotations

import contextlib
import signal
from typing import Any

import pytest
import redis

from tests.redis_module.servers import Client, Server, Start, until
from tests.redis_module.test_pauses import under_way
from tests.redis_module.test_server import replies
from tests.redis_module.vectors import floats, get, put

STORING: list[Any] = [
    ("TENSOR.MEAN", 2, "a", "b", "OUT", "out"),
    ("TENSOR.MEDIAN", 2, "a", "b", "OUT", "out"),
    ("TENSOR.TRIMMEDMEAN", 3, "a", "b", "a", "TRIM", 1, "OUT", "out"),
    ("TENSOR.KRUM", 3, "a", "b", "a", "FAULTY", 0, "OUT", "out"),
    ("TENSOR.SGD", "a", "b", "-", "OUT", "out", "-", "LR", 1),
    ("TENSOR.ADAM", "a", "b", "-", "-", "OUT", "out", "m", "v", "LR", 1, "STEP", 1),
    ("TENSOR.AXPY", "a", "b", "ALPHA", 1, "OUT", "out"),
    ("TENSOR.COPY", "a", "out"),
    ("AI.TENSORSET", "out", "FLOAT", 1, "VALUES", 1),
    ("AI.TENSORSET", "out", "FLOAT", 1),
]


def changes(client: Client) -> int:
    """Return the number of changes that the server counts since its last save."""
    return int(client.info("persistence")["rdb_changes_since_last_save"])


def inputs(client: Client, names: str = "ab", tag: str = "") -> None:
    """Store a vector under `tag` plus each letter of `names`."""
    for name in names:
        put(client, tag + name, floats([1, 2]))


@pytest.mark.parametrize("command", STORING, ids=lambda command: command[0])
def test_whatever_is_stored_counts_as_a_change(client: Client, command: tuple[Any, ...]) -> None:
    """Check that a command that stores a key counts as a change, even without AOF and replicas, or no save would become due."""
    inputs(client)
    before = changes(client)
    client.execute_command(*command)
    assert client.exists("out") and changes(client) > before


@pytest.mark.slow
def test_updates_are_saved_when_their_save_is_due(start: Start) -> None:
    """Check that computed updates make a save due, and that a killed server has them after its restart."""
    server = start(config={"save": "1 1"})
    client = server.client()
    inputs(client)
    until(lambda: changes(client) == 0, what="the inputs' save")
    for _ in range(50):
        client.execute_command("TENSOR.SGD", "a", "b", "-", "OUT", "a", "-", "LR", 1)
    assert list(get(client, "a")) == [-49, -98]
    until(lambda: changes(client) == 0, what="the updates' save")
    server.stop(signal.SIGKILL)
    server.start()
    assert list(get(server.client(), "a")) == [-49, -98]


# --- what changes nothing ---------------------------------------------------------------------------------------------

NOTHING: list[Any] = [
    ("AI.TENSORSET", "out", "FLOAT", 1, "NX", "VALUES", 1),
    ("AI.TENSORSET", "out", "FLOAT", 1, "VALUES", "x"),
    ("AI.TENSORSET", "text", "FLOAT", 1, "VALUES", 1),
    ("TENSOR.COPY", "a", "out", "NX"),
    ("TENSOR.COPY", "none", "out"),
    ("TENSOR.COPY", "a", "text"),
    ("TENSOR.MEAN", 1, "a", "OUT", "out", "NX"),
    ("TENSOR.AXPY", "a", "a", "ALPHA", 1, "OUT", "text"),
]


@pytest.mark.parametrize("command", NOTHING, ids=lambda command: " ".join(map(str, command)))
def test_a_command_that_stores_nothing_notifies_nobody(
    server: Server, client: Client, command: tuple[Any, ...]
) -> None:
    """Check that a command that stores nothing neither counts as a change nor ends a transaction that watches the key."""
    inputs(client, "a")
    put(client, "out", floats([1]))
    client.set("text", "x")
    before = changes(client)
    watching = server.client(single_connection_client=True)
    watching.execute_command("WATCH", "out", "text")
    with contextlib.suppress(redis.ResponseError):
        client.execute_command(*command)
    watching.execute_command("MULTI")
    watching.execute_command("PING")
    assert watching.execute_command("EXEC") is not None
    assert changes(client) == before


# --- where nothing may be stored any more -----------------------------------------------------------------------------


def job(tag: str = "") -> tuple[object, ...]:
    """Return a command that computes from `tag`a and stores under `tag`out."""
    return ("TENSOR.AXPY", f"{tag}a", f"{tag}a", "ALPHA", 1, "OUT", f"{tag}out")


@pytest.mark.slow
def test_a_slot_that_moved_meanwhile_gets_nothing(start: Start) -> None:
    """Check that a job stores nothing if its output's slot moved to another node of a cluster while it ran."""
    first, second = (start(config={"cluster-enabled": "yes", "cluster-require-full-coverage": "no"}) for _ in range(2))
    client, other = first.client(), second.client()
    client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
    client.execute_command("CLUSTER MEET", "127.0.0.1", second.port)
    identity = other.execute_command("CLUSTER MYID").decode()

    def joined() -> bool:
        """Return whether the server knows the other node, and their handshake is over."""
        nodes = str(client.execute_command("CLUSTER NODES"))
        return identity in nodes and "handshake" not in nodes

    until(joined, what="the other node's arrival")
    until(lambda: "ok" in str(client.execute_command("CLUSTER INFO")["cluster_state"]), what="the cluster")
    inputs(client, "a", "{s}")
    slot = client.execute_command("CLUSTER KEYSLOT", "{s}")
    moved = (("DEL", "{s}a"), ("CLUSTER", "SETSLOT", slot, "NODE", identity))
    with under_way(first, job("{s}"), *moved) as (waiting, _):
        (refusal,) = replies(waiting, 1)
    assert str(refusal).startswith("-TRYAGAIN TENSOR.AXPY: "), refusal
    assert client.execute_command("CLUSTER COUNTKEYSINSLOT", slot) == 0
    with pytest.raises(redis.exceptions.MovedError):  # what it is told when it tries again
        client.execute_command("TENSOR.INFO", "{s}a")


def test_a_job_is_refused_at_its_end_as_a_plain_set_would_be(server: Server, client: Client) -> None:
    """Check that a job which ends while the server refuses writes is refused too and stores nothing."""
    inputs(client, "a")
    try:
        with under_way(server, job(), ("CONFIG", "SET", "min-replicas-to-write", 1)) as (waiting, _):
            (refusal,) = replies(waiting, 1)
        assert str(refusal).startswith("-NOREPLICAS TENSOR.AXPY: nothing was stored: "), refusal
        assert not client.exists("out")
        with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
            client.set("plain", "x")
    finally:
        client.config_set("min-replicas-to-write", 0)
