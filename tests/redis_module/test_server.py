"""The module as a guest: threads, transactions, ACL, memory limits, shutdown."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import pytest
import redis

from tests.redis_module.servers import Client, Server, Start, statistics, until
from tests.redis_module.vectors import floats, get, put, same_bits

MINUTES_OF_WORK = (
    1000  # inputs of Krum: half a million pairs; a server that waited for their end would not stop in time
)


def encode(*words: object) -> bytes:
    """Return a command in the Redis protocol."""
    texts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%s\r\n" % (len(text), text) for text in texts)


@contextlib.contextmanager
def connected(server: Server) -> Iterator[socket.socket]:
    """Yield a connection that the server has accepted."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(server.path)
        connection.sendall(encode("PING"))
        assert replies(connection, 1) == ["+PONG"]
        yield connection


@contextlib.contextmanager
def sent(server: Server, *command: object) -> Iterator[socket.socket]:
    """Yield a connection that has sent a command and not read its reply."""
    with connected(server) as connection:
        connection.sendall(encode(*command))
        yield connection


@contextlib.contextmanager
def standing_still(server: Server) -> Iterator[None]:
    """Stop the server's process while the block runs."""
    server.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, server.process.pid, os.WSTOPPED)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def stopped(server: Server) -> Iterator[None]:
    """Stop the server's process while the block runs, between two turns of its event loop. It processes all that is sent meanwhile in its
    next turn, in order.
    """
    server.client().ping()  # another turn: no connection is on the list of the last one any more
    with standing_still(server):
        yield


def meanwhile(server: Server, waiting: socket.socket, job: Sequence[object], *command: object) -> None:
    """Start a job for the connection `waiting`, and let the server execute the command before it can store the job's result. Both arrive
    while the server is stopped, so both are processed in its next turn; the result is stored in a later one.
    """
    with connected(server) as other:
        with stopped(server):
            waiting.sendall(encode(*job))
            other.sendall(encode("MULTI") + encode("INFO", "clients") + encode(*command) + encode("EXEC"))
        *_, executed = replies(other, 4)
    assert isinstance(executed, list), executed
    clients, done = executed
    assert "blocked_clients:1\r\n" in clients, "the job was not under way"
    assert not done.startswith("-"), done


def long_job(client: Client, inputs: int, size: int = 1_000_000) -> list[object]:
    """Store `inputs` copies of a vector of `size` elements, and return a Krum command over them."""
    put(client, "x", np.random.default_rng(0).standard_normal(size).astype(np.float32))
    for i in range(inputs):
        client.execute_command("TENSOR.COPY", "x", f"x{i}")
    return ["TENSOR.KRUM", inputs, *(f"x{i}" for i in range(inputs)), "FAULTY", 1, "OUT", "result"]


def running(client: Client) -> bool:
    """Return whether exactly one job is running."""
    return bool(statistics(client)["jobs_running"] == 1)


def test_the_server_answers_while_a_job_runs_and_shuts_down_cleanly(start: Start) -> None:
    """Check that the server answers other commands while a job runs and another one is queued, and that it shuts down cleanly."""
    server = start()
    client = server.client()
    command = long_job(client, MINUTES_OF_WORK, 4_000_000)
    with sent(server, *command) as first, sent(server, *command[:-1], "other"):
        until(lambda: running(client), what="the job's start")
        until(lambda: statistics(client)["jobs_queued"] == 1, what="the second job's place in the queue")
        assert client.ping() and client.set("k", "v") and put(client, "t", floats([1])) == b"OK"
        assert client.execute_command("TENSOR.COPY", "t", "u") == b"OK"
        first.setblocking(False)
        with pytest.raises(BlockingIOError):
            first.recv(1)
        assert running(client)  # all of that was answered before the job's reply
        assert server.stop(signal.SIGTERM) == 0
    assert "crash" not in server.log.lower() and "bug report" not in server.log.lower()


def test_a_job_works_on_what_it_found_at_its_start(server: Server, client: Client) -> None:
    """Check that overwriting a running job's inputs does not change its result."""
    command = long_job(client, 40)
    expected = get(client, "x0")
    with sent(server, *command) as waiting:
        until(lambda: running(client) or bool(client.exists("result")), what="the job's start")
        for i in range(40):
            put(client, f"x{i}", np.zeros(1_000_000, np.float32))
        assert waiting.recv(100) == b"+OK\r\n"
    assert same_bits(get(client, "result"), expected)


def test_nx_is_checked_again_at_the_swap(server: Server, client: Client) -> None:
    """Check that a job with NX keeps an output that another client stored while it ran."""
    job = [*long_job(client, 40), "NX"]
    with connected(server) as waiting:
        meanwhile(server, waiting, job, "AI.TENSORSET", "result", "FLOAT", 1, "VALUES", 5)
        assert waiting.recv(100) == b":0\r\n"
    assert list(get(client, "result")) == [5]


def test_a_key_that_changes_its_type_meanwhile_is_kept(server: Server, client: Client) -> None:
    """Check that a job is refused if its output key holds text by the time it ends."""
    with connected(server) as waiting:
        meanwhile(server, waiting, long_job(client, 40), "SET", "result", "text")
        answer = waiting.recv(1000)
        assert answer.startswith(b"-WRONGTYPE ") and b"TENSOR.KRUM: output key 'result' holds a string" in answer
    assert client.get("result") == b"text"


def test_a_client_that_leaves_stores_nothing(server: Server, client: Client) -> None:
    """Check that a job stores nothing if its client was disconnected."""
    with connected(server) as waiting:
        waiting.sendall(encode("CLIENT", "ID"))
        (identity,) = replies(waiting, 1)
        meanwhile(server, waiting, long_job(client, 40), "CLIENT", "KILL", "ID", str(identity).removeprefix(":"))
        assert waiting.recv(1) == b""
    client.delete("x", *(f"x{i}" for i in range(40)))
    released = "the release of the job's inputs"
    until(lambda: bool(client.exists("result")) or statistics(client)["tensors"] == 0, what=released)
    assert not client.exists("result")


def test_flushing_during_a_job_is_safe(server: Server, client: Client) -> None:
    """Check that a job whose inputs are flushed while it runs still stores its result."""
    with connected(server) as waiting:
        meanwhile(server, waiting, long_job(client, 40), "FLUSHALL")
        assert waiting.recv(100) == b"+OK\r\n"
    assert client.keys() == [b"result"]


@pytest.mark.parametrize("command", [("TENSOR.MEAN", 1, "t", "OUT", "m"), ("TENSOR.NORM", "t")], ids=lambda c: c[0])
def test_waiting_commands_refuse_multi_and_lua(client: Client, command: Sequence[object]) -> None:
    """Check that commands which run as jobs are refused inside transactions and scripts."""
    put(client, "t", floats([1]))
    with client.pipeline() as made:
        transaction: Any = made
        transaction.execute_command(*command)
        with pytest.raises(redis.ResponseError, match=r"cannot be called inside MULTI"):
            transaction.execute()
    words = ",".join(f"'{word}'" for word in command)
    with pytest.raises(redis.ResponseError, match=r"cannot be called from a Lua script"):
        client.eval(f"return redis.call({words})", 0)
    assert not client.exists("m")


def test_storing_and_reading_work_in_multi_and_lua(client: Client) -> None:
    """Check that tensors can be set, copied and read inside transactions and scripts."""
    with client.pipeline() as made:
        transaction: Any = made
        transaction.execute_command("AI.TENSORSET", "t", "FLOAT", 1, "VALUES", 4)
        transaction.execute_command("TENSOR.COPY", "t", "u", "NX")
        transaction.execute_command("AI.TENSORGET", "u", "VALUES")
        assert transaction.execute() == [b"OK", 1, [b"4"]]
    assert client.eval("return redis.call('AI.TENSORGET', KEYS[1], 'VALUES')", 1, "u") == [b"4"]


def test_watch_sees_a_tensor_change(client: Client) -> None:
    """Check that overwriting a watched tensor aborts the transaction."""
    put(client, "t", floats([1]))
    with client.pipeline() as made:
        transaction: Any = made
        transaction.watch("t")
        put(client, "t", floats([2]))  # in place
        transaction.multi()
        transaction.ping()
        with pytest.raises(redis.WatchError):
            transaction.execute()


KEYS = [
    (("AI.TENSORSET", "OUT", "FLOAT", "1"), {"OUT": {"OW", "update"}}),
    (("AI.TENSORGET", "a"), {"a": {"RO", "access"}}),
    (("TENSOR.COPY", "a", "b"), {"a": {"RO", "access"}, "b": {"OW", "update"}}),
    (
        ("TENSOR.MEAN", "2", "OUT", "KIND", "WEIGHTS", "1", "2", "NX", "OUT", "c", "KIND", "OUT"),
        {"OUT": {"RO", "access"}, "KIND": {"RO", "access"}, "c": {"OW", "update"}},
    ),
    (("TENSOR.KRUM", "1", "a", "FAULTY", "0", "OUT", "c"), {"a": {"RO", "access"}, "c": {"OW", "update"}}),
    (
        ("TENSOR.SGD", "OUT", "g", "-", "OUT", "q", "v", "LR", "1"),
        {"OUT": {"RO", "access"}, "g": {"RO", "access"}, "q": {"OW", "update"}, "v": {"OW", "update"}},
    ),
    (
        ("TENSOR.ADAM", "p", "g", "m", "-", "LR", "1", "OUT", "q", "n", "w"),
        {k: {"RO", "access"} for k in "pgm"} | {k: {"OW", "update"} for k in "qnw"},
    ),
    (
        ("TENSOR.AXPY", "a", "b", "ALPHA", "OUT", "OUT", "c"),
        {"a": {"RO", "access"}, "b": {"RO", "access"}, "c": {"OW", "update"}},
    ),
]


def replies(connection: socket.socket, count: int) -> list[object]:
    """Return the next `count` replies: lists for arrays, otherwise text. Simple strings, errors and integers keep their first character."""

    def one(stream: BinaryIO) -> object:
        """Read one reply and return it."""
        line = stream.readline()[:-2]
        if line[:1] == b"*":
            return [one(stream) for _ in range(int(line[1:]))]
        if line[:1] == b"$":
            return stream.read(int(line[1:]) + 2)[:-2].decode()
        return line.decode()

    with connection.makefile("rb") as stream:
        return [one(stream) for _ in range(count)]


@pytest.mark.parametrize(("command", "keys"), KEYS, ids=[" ".join(command)[:40] for command, _ in KEYS])
def test_the_server_knows_every_key(server: Server, command: Sequence[str], keys: dict[str, set[str]]) -> None:
    """Check the keys, with their flags, that the server finds in each command."""
    with sent(server, "COMMAND", "GETKEYSANDFLAGS", *command) as connection:
        (answer,) = replies(connection, 1)
    assert isinstance(answer, list), answer
    assert {name: {flag.lstrip("+") for flag in flags} for name, flags in answer} == keys


def test_acl_checks_inputs_and_outputs(client: Client, server: Server) -> None:
    """Check that a user may only use the input and output keys that the ACL allows."""
    for key in ("mine:a", "theirs:a"):
        put(client, key, floats([1]))
    client.acl_setuser("worker", enabled=True, nopass=True, keys=["mine:*"], commands=["+tensor.mean", "+ai.tensorset"])
    worker = server.client(username="worker", password="x")
    assert worker.execute_command("TENSOR.MEAN", 1, "mine:a", "OUT", "mine:b") == b"OK"
    for command in (
        ("TENSOR.MEAN", 2, "mine:a", "theirs:a", "OUT", "mine:b"),
        ("TENSOR.MEAN", 1, "mine:a", "OUT", "theirs:b"),
        ("TENSOR.MEAN", 1, "mine:a", "WEIGHTS", 1, "KIND", "OUT", "OUT", "theirs:b"),
        ("AI.TENSORSET", "theirs:a", "FLOAT", 1, "VALUES", 1),
        ("TENSOR.NORM", "mine:a"),  # no such command for this user
    ):
        with pytest.raises(redis.exceptions.NoPermissionError):
            worker.execute_command(*command)
    client.acl_setuser("reader", enabled=True, nopass=True, categories=["+@all"], keys=["%R~*"])
    reader = server.client(username="reader", password="x")
    assert reader.execute_command("AI.TENSORGET", "mine:a", "VALUES") == [b"1"]
    with pytest.raises(redis.exceptions.NoPermissionError):
        reader.execute_command("TENSOR.COPY", "mine:a", "mine:c")
    client.acl_deluser("worker", "reader")


def test_maxmemory_refuses_and_keeps_the_old_value(start: Start) -> None:
    """Check that a command whose result exceeds maxmemory is refused with the sizes and keeps the old output."""
    client = start().client()
    rows = np.random.default_rng(0).standard_normal((4, 250_000)).astype(np.float32)
    for i, row in enumerate(rows):
        put(client, f"t{i}", row)
    put(client, "out", floats([1]))
    used = client.info("memory")["used_memory"]
    client.config_set("maxmemory", used + 700_000)  # less than a result of a million bytes
    with pytest.raises(
        redis.exceptions.OutOfMemoryError, match=r"TENSOR.MEAN: needs 1000000 bytes, but \d+ of maxmemory \d+ are used"
    ):
        client.execute_command("TENSOR.MEAN", 4, "t0", "t1", "t2", "t3", "OUT", "out")
    client.config_set("maxmemory", used - 700_000)  # beyond it already: the server refuses before the module
    for command in (
        ("TENSOR.MEAN", 4, "t0", "t1", "t2", "t3", "OUT", "out"),
        ("AI.TENSORSET", "out", "FLOAT", 1, "VALUES", 2),
    ):
        with pytest.raises(redis.ResponseError, match=r"maxmemory|OOM"):
            client.execute_command(*command)
    assert list(get(client, "out")) == [1]
    client.config_set("maxmemory", 0)
    assert client.execute_command("TENSOR.MEAN", 4, "t0", "t1", "t2", "t3", "OUT", "out") == b"OK"


def test_spare_memory_never_stands_in_the_way_of_maxmemory(start: Start) -> None:
    """Check that memory kept for reuse is released when maxmemory is reached."""
    client = start(module_arguments=["spare-mb", "64"]).client()
    # Zeros without a blob: the server would count a connection's buffer of megabytes too, and drop it when it likes.
    client.execute_command("AI.TENSORSET", "t", "FLOAT", 2_000_000)
    client.delete("t")
    assert statistics(client)["spare_bytes"] == 8_000_000
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 1000)
    until(
        lambda: statistics(client)["spare_bytes"] == 0, what="the release of spare memory", timeout_s=8
    )  # idle ones go after 10 s
    assert put(client, "u", np.zeros(300_000, np.float32)) == b"OK"


def test_a_result_may_take_the_place_of_spare_memory(start: Start) -> None:
    """Check that a result may use the memory kept for reuse although maxmemory is nearly reached."""
    client = start(module_arguments=["spare-mb", "64"]).client()
    client.execute_command("AI.TENSORSET", "t", "FLOAT", 500_000)
    client.execute_command("AI.TENSORSET", "gone", "FLOAT", 3_000_000)
    client.delete("gone")
    used = client.info("memory")["used_memory"]
    client.config_set("maxmemory", int(used * 1.05))  # 0.7 MB free beside 12 MB of spares; a result needs 2 MB
    assert client.execute_command("TENSOR.AXPY", "t", "t", "ALPHA", 1, "OUT", "u") == b"OK"


def test_tensors_can_be_evicted(start: Start) -> None:
    """Check that the server evicts tensors under the policy allkeys-lru."""
    # Valkey frees later by default, and gives up when a few large values are not gone at once.
    config = {"maxmemory-policy": "allkeys-lru", "lazyfree-lazy-eviction": "no"}
    client = start(module_arguments=["spare-mb", "0"], config=config).client()
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 5_000_000)
    for i in range(20):
        put(client, f"t{i}", np.zeros(250_000, np.float32))
    assert 0 < client.dbsize() < 20 and client.info("stats")["evicted_keys"] > 0


def test_databases_are_apart(server: Server, client: Client) -> None:
    """Check that commands read and write keys of the connection's own database."""
    other = server.client(db=3)
    put(other, "t", floats([1]))
    assert client.execute_command("TENSOR.INFO", "t") is None
    other.execute_command("TENSOR.MEAN", 1, "t", "OUT", "m")
    assert other.exists("m") and not client.exists("m")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["workers", "2"],
            "module argument 'workers' is unknown; expected threads, intra-op-threads, spare-mb or one of RedisAI's",
        ),
        (["threads", "0"], r"(threads) is '0'; expected an integer from 1 to 256"),
        (["threads"], "(threads) is missing"),
    ],
)
def test_wrong_module_arguments_stop_the_load(
    core_module: object, start: Start, arguments: list[str], message: str
) -> None:
    """Check that the server does not start with invalid module arguments, and the message."""
    with pytest.raises(AssertionError) as refusal:
        start(module_arguments=arguments)
    assert message in str(refusal.value)


def test_module_arguments_are_reported(start: Start) -> None:
    """Check that TENSOR.STATS reports the module's numbers of threads and its SIMD instructions."""
    client = start(module_arguments=["threads", "3", "INTRA-OP-THREADS", "2"]).client()
    found = statistics(client)
    assert (found["threads"], found["intra_op_threads"]) == (3, 2)
    assert found["simd"] in (b"avx2", b"neon", b"baseline")
