"""Jobs that end while the server must not change anything: it is paused, fails over, or waits for its replicas before it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import redis

from tests.redis_module.servers import Client, Server, Start, statistics, until
from tests.redis_module.test_persistence import digest
from tests.redis_module.test_server import connected, encode, replies, sent, stopped
from tests.redis_module.vectors import floats, get, put
from tests.sampling import WHOLE

JOB = ("TENSOR.AXPY", "a", "a", "ALPHA", 1, "OUT", "result")
FOREVER_MS = 10_000_000


@contextlib.contextmanager
def under_way(
    server: Server, job: tuple[object, ...], *commands: tuple[object, ...]
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Start a job, and let the server execute the commands in the same turn, so before the job's result can be stored. Yields (connection
    of the job, connection of the commands); neither's reply to these has been read.
    """
    with connected(server) as waiting, connected(server) as other:
        with stopped(server):
            waiting.sendall(encode(*job))
            other.sendall(encode("INFO", "clients") + b"".join(encode(*command) for command in commands))
        with other.makefile("rb", buffering=0) as stream:
            size = int(stream.readline()[1:])
            clients = b""
            while len(clients) < size + 2:
                clients += stream.read(size + 2 - len(clients)) or b""
        assert b"blocked_clients:1\r\n" in clients, "the job was not under way"
        yield waiting, other


def held(client: Client) -> bool:
    """Return whether the server holds the result of one job back."""
    return bool(statistics(client)["jobs_held"] == 1)


def nothing_came(connection: socket.socket) -> bool:
    """Return whether the connection is open and has nothing to read. It is blocking afterwards."""
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) is None
    except BlockingIOError:
        return True
    finally:
        connection.setblocking(True)


@pytest.fixture
def pair(start: Start) -> tuple[Server, Server]:
    """Return a master that holds `a`, and its replica."""
    return paired(start)


def paired(start: Start) -> tuple[Server, Server]:
    """Start a master that holds `a` and a replica, wait until they are linked, and return them."""
    master = start(config={"shutdown-timeout": "3600", "repl-timeout": "3600"})
    put(master.client(), "a", floats([1, 2]))
    replica = start(config={"replicaof": f"127.0.0.1 {master.port}", "repl-timeout": "3600"})
    client = replica.client()
    until(lambda: client.info("replication")["master_link_status"] == "up", what="the replica's link")
    return master, replica


@contextlib.contextmanager
def lagging(master: Server, replica: Server) -> Iterator[None]:
    """Stop the replica's process while the block runs, and let the master make one change that the replica lacks meanwhile."""
    replica.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, replica.process.pid, os.WSTOPPED)
    try:
        master.client().set("later", 1)
        yield
    finally:
        replica.process.send_signal(signal.SIGCONT)


def same(master: Server, replica: Server) -> bool:
    """Return whether master and replica contain the same data."""
    return digest(master.client()) == digest(replica.client())


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["WRITE", "ALL"])
def test_a_job_that_ends_in_a_pause_is_stored_after_it(pair: tuple[Server, Server], mode: str) -> None:
    """Check that the result of a job which ends while clients are paused is stored and acknowledged after the pause."""
    master, replica = pair
    client = master.client()
    command = ("CLIENT", "PAUSE", FOREVER_MS if mode == "WRITE" else 300, mode)
    with under_way(master, JOB, command) as (waiting, _):
        if mode == "WRITE":
            until(lambda: held(client), what="the job's end")
            assert nothing_came(waiting) and not client.exists("result")
            assert float(client.execute_command("TENSOR.NORM", "a")) > 2  # what changes nothing does not wait
            client.client_unpause()
        assert replies(waiting, 1) == ["+OK"]
    assert list(get(client, "result")) == [2, 4]
    client.wait(1, 30_000)
    assert same(master, replica) and statistics(client)["jobs_held"] == 0


def test_a_job_that_ends_just_before_a_pause_is_refused(pair: tuple[Server, Server]) -> None:
    """Check that a job that ends during a script, and is answered after a pause has begun, is refused and stores nothing."""
    master, replica = pair
    client = master.client()
    client.config_set("busy-reply-threshold", 1)
    script = ("EVAL", "for _ = 1, 1e7 do end return 1", 0)
    answer = "+OK"
    while answer == "+OK":  # the machine was so busy that the job outlasted the script
        with under_way(master, JOB, script, ("CLIENT", "PAUSE", FOREVER_MS, "WRITE")) as (waiting, other):
            assert replies(other, 2) == [":1", "+OK"]
            until(lambda: held(client) or not nothing_came(waiting), what="the job's end")
            exists = client.exists("result")
            client.client_unpause()
            (answer,) = replies(waiting, 1)
        if answer == "+OK":
            assert not exists and client.delete("result") == 1
    assert str(answer).startswith("-TRYAGAIN TENSOR.AXPY: the server was paused meanwhile; nothing was stored")
    client.wait(1, 30_000)
    assert not client.exists("result") and same(master, replica)


def test_a_client_that_leaves_in_a_pause_stores_nothing(pair: tuple[Server, Server]) -> None:
    """Check that a job's result is dropped if its client disconnects during a pause."""
    master, replica = pair
    client = master.client()
    with under_way(master, JOB, ("CLIENT", "PAUSE", FOREVER_MS, "WRITE")):
        until(lambda: held(client), what="the job's end")
    until(lambda: client.info("clients")["blocked_clients"] == 0, what="the client's leave")
    client.client_unpause()
    until(lambda: statistics(client)["jobs_held"] == 0, what="the pause's end")
    until(lambda: statistics(client)["tensors"] == 1, what="the release of the result")
    assert not client.exists("result") and same(master, replica)


@pytest.mark.parametrize("given_up", ["FAILOVER", "SHUTDOWN"])
def test_a_job_that_ends_before_what_is_given_up_is_stored(given_up: str, pair: tuple[Server, Server]) -> None:
    """Check that the result of a job which ends during a failover or shutdown is held back, and stored once that is aborted."""
    master, replica = pair
    client = master.client()
    with lagging(master, replica), under_way(master, JOB, (given_up,)) as (waiting, _):
        until(lambda: held(client), what="the job's end")
        assert nothing_came(waiting) and not client.exists("result")
        client.execute_command(given_up, "ABORT")
        assert replies(waiting, 1) == ["+OK"]
    client.wait(1, 30_000)
    assert list(get(replica.client(), "result")) == [2, 4] and same(master, replica)


@pytest.mark.slow
def test_a_job_that_ends_in_a_failover_is_refused(pair: tuple[Server, Server]) -> None:
    """Check that a job which ends during a failover is refused and stores nothing."""
    master, replica = pair
    client = master.client()
    with contextlib.ExitStack() as stack:
        with lagging(master, replica):
            waiting, _ = stack.enter_context(under_way(master, JOB, ("FAILOVER",)))
            until(lambda: held(client), what="the job's end")
        (refusal,) = replies(waiting, 1)
        assert str(refusal).startswith(("-UNBLOCKED", "-READONLY", "-TRYAGAIN"))
    until(lambda: client.info("replication")["role"] == "slave", what="the change of roles")
    until(lambda: client.info("replication").get("master_link_status") == "up", what="the new replica's link")
    until(lambda: statistics(client)["jobs_held"] == 0, what="the job's release")
    assert not client.exists("result") and same(master, replica)


@pytest.mark.slow
def test_a_job_that_ends_before_a_shutdown_is_not_stored(pair: tuple[Server, Server]) -> None:
    """Check that a job which ends during a shutdown is neither acknowledged nor stored."""
    master, replica = pair
    client = master.client()
    with contextlib.ExitStack() as stack:
        with lagging(master, replica):
            waiting, _ = stack.enter_context(under_way(master, JOB, ("SHUTDOWN",)))
            until(lambda: held(client), what="the job's end")
        assert waiting.recv(100) == b""  # gone without a word: nothing was acknowledged
        assert master.process.wait(timeout=120) == 0
    other = replica.client()
    until(lambda: bool(other.exists("later")), what="the last change's arrival")
    assert not other.exists("result")


def test_an_end_that_the_server_refuses_ends_no_thread(start: Start) -> None:
    """Check that jobs still work after the server has refused to end at a SIGTERM, because its first AOF is being written."""
    server = start(config={"rdb-key-save-delay": "1000000000"})
    client = server.client()
    put(client, "a", floats([1, 2]))
    client.config_set("appendonly", "yes")
    server.process.send_signal(signal.SIGTERM)
    until(lambda: "can't exit" in server.log, what="the refusal")
    assert client.execute_command(*JOB) == b"OK" and list(get(client, "result")) == [2, 4]
    client.config_set("appendonly", "no")
    assert server.stop() == 0


JOBS, ROUNDS = (1000, 10) if WHOLE else (60, 2)


@dataclass
class Pair:
    """Two servers linked by replication, with the roles that they have at present."""

    master: Server
    replica: Server

    def exchange(self) -> None:
        """Record that the servers have exchanged their roles."""
        self.master, self.replica = self.replica, self.master

    def until_linked(self) -> None:
        """Wait until the replica is online at the master."""

        def linked() -> bool:
            """Return whether each server reports the other one as connected."""
            found = [server.client().info("replication") for server in (self.master, self.replica)]
            return found[1].get("master_link_status") == "up" and found[0].get("slave0", {}).get("state") == "online"

        until(linked, what="the replica's link")


def send_jobs(pair: Pair, name: str, done: Counter[str], over: threading.Event) -> None:
    """Send one job after another to the server that is the master at the time, until `over` is set. `done`: counts acknowledged jobs under
    `name`, and errors under their first word.
    """
    while not over.is_set():
        client = pair.master.client()
        try:
            while not over.is_set():
                client.execute_command("TENSOR.AXPY", "a", "a", "ALPHA", done[name] + 1, "OUT", name)
                done[name] += 1
        except redis.RedisError as refusal:  # paused, a replica now, or gone
            done[str(refusal).split(" ")[0]] += 1


def pause(pair: Pair) -> None:
    """Pause the master's writes while its replica lags, then end the pause."""
    client = pair.master.client()
    with lagging(pair.master, pair.replica):
        client.client_pause(FOREVER_MS, all=False)
        client.client_unpause()


def failover_given_up(pair: Pair) -> None:
    """Begin a failover while the replica lags, and abort it."""
    with lagging(pair.master, pair.replica):
        pair.master.client().execute_command("FAILOVER")
        pair.master.client().execute_command("FAILOVER", "ABORT")


def failover(pair: Pair) -> None:
    """Let master and replica exchange their roles by a failover, and wait until they are linked again."""
    with lagging(pair.master, pair.replica):
        pair.master.client().execute_command("FAILOVER")
    until(lambda: pair.replica.client().info("replication")["role"] == "master", what="the change of roles")
    pair.exchange()
    pair.until_linked()


def shutdown_given_up(pair: Pair) -> None:
    """Begin a shutdown of the master, which waits for the lagging replica, and abort it."""
    client = pair.master.client()
    with lagging(pair.master, pair.replica), sent(pair.master, "SHUTDOWN"):  # has no reply
        until(lambda: "shutdown_in_milliseconds" in client.info("server"), what="the shutdown's begin")
        client.execute_command("SHUTDOWN", "ABORT")


def shutdown(pair: Pair) -> None:
    """Shut the master down by SIGTERM, make the replica the master, and start the other server again as its replica."""
    client, ended = pair.master.client(), pair.master.process
    with lagging(pair.master, pair.replica):
        ended.send_signal(signal.SIGTERM)
        until(lambda: "shutdown_in_milliseconds" in client.info("server"), what="the shutdown's begin")
    assert ended.wait(timeout=120) == 0
    pair.replica.client().execute_command("REPLICAOF", "NO", "ONE")
    pair.exchange()
    pair.replica.start().client().execute_command("REPLICAOF", "127.0.0.1", pair.master.port)
    pair.until_linked()


@pytest.mark.slow
@pytest.mark.parametrize("event", [pause, failover_given_up, failover, shutdown_given_up, shutdown])
def test_jobs_beside_pauses_failovers_and_shutdowns_lose_no_acknowledged_result(
    pair: tuple[Server, Server], event: Callable[[Pair], None]
) -> None:
    """Repeat the event while the replica lags: the result of each acknowledged job is in the master, its replica and the file."""
    servers = Pair(*pair)
    names, done, over = [f"out:{k}" for k in range(4)], Counter[str](), threading.Event()
    with ThreadPoolExecutor(len(names)) as pool:
        sending = [pool.submit(send_jobs, servers, name, done, over) for name in names]
        try:
            rounds = 0
            while rounds < ROUNDS or sum(done[name] for name in names) < JOBS:
                event(servers)
                rounds += 1
        finally:
            over.set()
        for each in sending:
            each.result()
    print(f"{event.__name__}: {rounds} times; {dict(done)}")
    client = servers.master.client()
    client.wait(1, 30_000)
    for name in names:  # one that nobody acknowledged may be stored all the same
        assert list(get(client, name)) in ([n + 1, 2 * (n + 1)] for n in (done[name], done[name] + 1))
    before = digest(client)
    assert same(servers.master, servers.replica)
    client.execute_command("DEBUG", "RELOAD")
    assert digest(client) == before
