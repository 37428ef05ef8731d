"""Clients that send jobs and leave as they like, while the servers pause, change roles, reload, flush, save and end connections.

CROSSOVER_STORMS="3 17" asks for those seeds; what a seed does still depends on who is faster.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from tests.redis_module.servers import Client, Server, Start, until
from tests.redis_module.test_persistence import digest
from tests.redis_module.test_server import encode, sent, standing_still
from tests.sampling import WHOLE

SEEDS = [int(seed) for seed in os.environ.get("CROSSOVER_STORMS", "").split()] or range(10 if WHOLE else 1)
DISTURBANCES = 300 if WHOLE else 60
PATIENCE_S = 0.5  # then a client leaves a server that is paused or waits for another one
CLIENTS = 4
# A server that loads looks at its clients after every so many bytes: often, so that jobs end and clients leave during a reload.
SETTINGS = {
    "loading-process-events-interval-bytes": "1024",
    "shutdown-timeout": "3600",
    "repl-timeout": "3600",
    "repl-diskless-load": "swapdb",
}
KEYS = "abcdefgh"
SIZES = (4, 300, 70_000)  # the largest has a buffer that the module keeps for the next tensor


def tensor(rng: random.Random) -> list[object]:
    """Return a random command that stores a tensor."""
    size = rng.choice(SIZES)
    options = rng.choice([[], [], ["NX"], ["PX", rng.randint(1, 50)], ["KIND", "k", "SAMPLES", 3]])
    return ["AI.TENSORSET", rng.choice(KEYS), "FLOAT", size, *options, "BLOB", rng.randbytes(2) + bytes(4 * size - 2)]


def job(rng: random.Random) -> list[object]:
    """Return a random command that computes from tensors."""
    inputs = rng.choices(KEYS, k=rng.randint(3, 6))
    out, other, third = rng.sample(KEYS, 3)
    options = rng.choice([[], [], [], ["NX"], ["PX", rng.randint(1, 50)]])
    name = rng.choice(["MEAN", "MEDIAN", "TRIMMEDMEAN", "KRUM", "SGD", "ADAM", "AXPY", "NORM", "FINITE"])
    match name:
        case "SGD":
            states = ["-", "OUT", out, other, "LR", "0.1", "MOMENTUM", "0.9"]
            return ["TENSOR.SGD", *inputs[:2], *states, *options]
        case "ADAM":
            return ["TENSOR.ADAM", *inputs[:2], "-", "-", "OUT", out, other, third, "LR", "0.1", "STEP", 1, *options]
        case "AXPY":
            return ["TENSOR.AXPY", *inputs[:2], "ALPHA", "0.5", "OUT", out, *options]
        case "NORM" | "FINITE":
            return [f"TENSOR.{name}", out]
    rule = {"TRIMMEDMEAN": ["TRIM", 1], "KRUM": ["FAULTY", 0, "SELECT", 2]}.get(name, [])
    return [f"TENSOR.{name}", len(inputs), *inputs, *rule, "OUT", out, *options]


def other(rng: random.Random) -> list[object]:
    """Return a random command of another kind: reads, deletions, transactions, scripts."""
    key, second = rng.choice(KEYS), rng.choice(KEYS)
    return rng.choice(
        [
            *(["TENSOR.GET", key], ["AI.TENSORGET", key, "META"], ["DUMP", key], ["TENSOR.COPY", key, second]),
            *(["DEL", key], ["UNLINK", key], ["PEXPIRE", key, 5], ["RENAME", key, second], ["SET", key, "text"]),
            *(["MULTI"], ["EXEC"], ["WATCH", key], ["SELECT", 0], ["SELECT", 1], ["RESET"], ["CLIENT", "TRACKING", "ON"]),
            ["EVAL", "return redis.call('TENSOR.COPY', KEYS[1], KEYS[2])", 2, key, second],
        ]
    )  # fmt: skip


def send_jobs(servers: list[Server], rng: random.Random, over: threading.Event) -> int:
    """Connect one client after another, until `over` is set, and return how many commands were sent. Some clients close their connection
    before they have read their replies.
    """
    count = 0
    while not over.is_set():
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE_S)
            connection.connect(rng.choice(servers).path)
            for _ in range(rng.randint(1, 10)):
                kinds = rng.choices([tensor, job, other], [3, 5, 2], k=rng.randint(1, 12))
                connection.sendall(b"".join(encode(*kind(rng)) for kind in kinds) + encode("ECHO", "the-last"))
                count += len(kinds)
                if rng.random() < 0.1:
                    break
                read_to(connection, b"the-last\r\n")
    return count


def read_to(connection: socket.socket, end: bytes) -> None:
    """Read replies until one ends with `end`, or says that the command was queued. Raises ConnectionResetError if the connection ends
    first, as after a change of role.
    """
    tail = b""
    while not tail.endswith((end, b"QUEUED\r\n")):
        data = connection.recv(1 << 20)
        if not data:
            raise ConnectionResetError
        tail = (tail + data)[-32:]


def disturb(server: Server, partner: Server, rng: random.Random) -> None:
    """Do one random thing that an operator or another server does. Errors are ignored, because the server may refuse it at this moment."""
    client = server.client(socket_timeout=PATIENCE_S)

    def say(*command: object) -> Callable[[], object]:
        """Return a function that sends the command."""
        return lambda: client.execute_command(*command)

    def shutdown_given_up() -> None:
        """Let the server begin a shutdown, which waits for its stopped replica, and abort it; only if it has a linked replica."""
        with standing_still(partner):
            client.set("later", 1)
            if client.info("replication").get("slave0", {}).get("state") == "online":
                patient = server.client()
                with sent(server, "SHUTDOWN"):  # has no reply
                    until(lambda: "shutdown_in_milliseconds" in patient.info("server"), what="the shutdown's begin")
                    patient.execute_command("SHUTDOWN", "ABORT")

    def reload() -> None:
        """Let the server save its data and load it again, if it is a master."""
        # Redis's own ways to end itself are left out, they need no module. A replica's sync or another reload may begin within a reload,
        # then keys are there twice; one that ends before a BGSAVE makes the next one count as a change, which a paused server must not
        # send on.
        if client.info("replication")["role"] == "master":
            server.client().execute_command("DEBUG", "RELOAD")

    here, there = ("127.0.0.1", server.port), ("127.0.0.1", partner.port)
    choices: list[Callable[[], object]] = [
        say("CLIENT", "PAUSE", rng.randint(1, 100), rng.choice(["WRITE", "ALL"])),
        say("CLIENT", "UNPAUSE"),
        say("FAILOVER"),
        say("FAILOVER", "TO", *there, "FORCE", "TIMEOUT", 10),
        say("FAILOVER", "ABORT"),
        say("REPLICAOF", "NO", "ONE"),
        say("REPLICAOF", *there),
        lambda: (
            client.execute_command("REPLICAOF", "NO", "ONE"),
            partner.client().execute_command("REPLICAOF", *here),
        ),
        *(reload, reload),
        say("FLUSHALL", rng.choice(["ASYNC", "SYNC"])),
        say("SWAPDB", 0, 1),
        say("BGREWRITEAOF"),
        say("CONFIG", "SET", "appendonly", rng.choice(["yes", "no"])),
        say("CONFIG", "SET", "maxmemory", rng.choice(["0", "0", "3mb"])),
        say("CLIENT", "KILL", "TYPE", rng.choice(["normal", "replica", "master"])),
        shutdown_given_up,
    ]
    with contextlib.suppress(redis.RedisError, OSError), client:
        rng.choice(choices)()


def insist(server: Server, command: str) -> None:
    """Send the command again and again until the server does not answer that it is loading. Other errors are ignored: there may be nothing
    to end.
    """

    def taken() -> bool:
        """Send the command, and return whether the server was not loading."""
        try:
            server.client().execute_command(*command.split())
        except redis.BusyLoadingError:
            return False
        except redis.ResponseError:
            pass
        return True

    until(taken, what=f"{command} at the end of a load")


def settle(master: Server, replica: Server) -> tuple[Client, Client]:
    """End all that disturbs the servers, link the replica to the master, and return a client of each."""
    for server in (master, replica):
        # A server whose first AOF is still being written, as after each sync, refuses to end at a SIGTERM: it goes without one.
        unsettled = (
            "CLIENT UNPAUSE",
            "FAILOVER ABORT",
            "REPLICAOF NO ONE",
            "CONFIG SET maxmemory 0",
            "CONFIG SET appendonly no",
        )
        for command in unsettled:
            insist(server, command)
    insist(replica, f"REPLICAOF 127.0.0.1 {master.port}")
    client, other = master.client(), replica.client()
    until(lambda: other.info("replication")["master_link_status"] == "up", what="the replica's link")
    return client, other


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_that_happens_beside_jobs_harms_the_servers(start: Start, seed: int) -> None:
    """Let clients send random jobs to two linked servers that are disturbed at random, and check that both survive and end with equal
    data.
    """
    rng = random.Random(seed)
    servers = [start(module_arguments=["threads", "2", "intra-op-threads", "2"], config=SETTINGS) for _ in range(2)]
    over = threading.Event()
    with ThreadPoolExecutor(CLIENTS) as pool:
        sending = [pool.submit(send_jobs, servers, random.Random(f"{seed}:{k}"), over) for k in range(CLIENTS)]
        try:
            for _ in range(DISTURBANCES):
                disturb(*rng.sample(servers, 2), rng)
                assert all(server.process.poll() is None for server in servers), "a server died"
        finally:
            over.set()
            for server in servers:
                with contextlib.suppress(redis.RedisError):
                    server.client().client_unpause()
        print(f"seed {seed}: {sum(each.result() for each in sending)} commands beside {DISTURBANCES} disturbances")
    client, other = settle(*servers)
    until(lambda: not any(each["expires"] for each in client.info("keyspace").values()), what="the mortal keys' end")
    client.wait(1, 30_000)
    before = digest(client)
    assert digest(other) == before
    client.execute_command("DEBUG", "RELOAD")
    assert digest(client) == before
    for server in servers:
        assert server.stop() == 0
