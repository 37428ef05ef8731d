"""Random and mutated commands of scripts, models and DAGs against a build with AddressSanitizer, while clients leave and it reloads.

torch's own libraries are not watched. CROSSOVER_FUZZ says how many commands; a replica of the server follows. Both are killed from time to
time.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.redis_module.servers import Client, Server, build, starting, statistics, until

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.deep,
    pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning"),
]

COMMANDS = int(os.environ.get("CROSSOVER_FUZZ", "20000"))
AT_ONCE = 20  # commands that one client sends before it reads
CLIENTS = 3
PATIENCE_S = 5.0
SOURCE = """
def pair(tensors: List[Tensor], keys: List[str], args: List[str]):
    return tensors[0] + 1, tensors[0].sum()
def one(tensors: List[Tensor], keys: List[str], args: List[str]):
    return torch.cat([t.flatten().float() for t in tensors])
def sets(tensors: List[Tensor], keys: List[str], args: List[str]):
    redis.execute("SET", keys[0], args)
def fails(tensors: List[Tensor], keys: List[str], args: List[str]):
    return tensors[7]
"""
OLDER = "def add(a, b):\n    return a + b\ndef many(a, rest: List[Tensor]):\n    return a, rest[0]\n"
KEYS = ["a", "b", "c", "m", "n", "s", "o", "text", "none"]
STRANGE = [
    *(
        "",
        "-1",
        "0",
        "1",
        "2",
        "9223372036854775807",
        "1e400",
        "nan",
        "\x00",
        "x" * 300,
        "$",
        "|>",
        "LOAD",
        "PERSIST",
        "INPUTS",
        "OUTPUTS",
    ),
    *(
        "BLOB",
        "VALUES",
        "META",
        "TIMEOUT",
        "KEYS",
        "CPU",
        "cpu:0",
        "GPU",
        "TORCH",
        "TAG",
        "AI.TENSORSET",
        "AI.MODELEXECUTE",
    ),
]


def archive() -> bytes:
    class Both(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def forward(self, a: Any, b: Any) -> Any:
            return self.layer(a) + b, (a * b).sum()

    buffer = io.BytesIO()
    torch.jit.save(torch.jit.trace(Both(), (torch.ones(2), torch.ones(2))), buffer)
    return buffer.getvalue()


class Commands:
    """Commands of one seed: well-formed ones, and every third of them mutated."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.archive = archive()

    def some(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def key(self) -> str:
        return self.some("a", "b", "c", self.random.choice(KEYS))

    def tensor_set(self, key: str | None = None) -> list[Any]:
        name = key or self.some("a", "a", "b", "c", self.key())
        kind = self.random.random()
        if kind < 0.1:
            return ["AI.TENSORSET", name, "STRING", 2, "VALUES", "x", self.some("y", "")]
        if kind < 0.2:
            return ["AI.TENSORSET", name, self.some("INT64", "UINT8", "DOUBLE"), 2, self.some("VALUES"), 1, 2]
        size = self.some(0, 2, 2, 2, 2, 300)
        return ["AI.TENSORSET", name, "FLOAT", size, "BLOB", self.random.randbytes(4) * size]

    def runs(self, names: tuple[str, ...]) -> list[Any]:
        name, first, second = self.some(*names), self.some("a", "b", self.key()), self.some("a", "b", self.key())
        outs = [self.some("c", "d", self.key()), self.some("e", self.key())]
        if name == "AI.MODELEXECUTE":
            return [name, self.some("m", "n", self.key()), "INPUTS", 2, first, second, "OUTPUTS", 2, *outs]
        if name == "AI.MODELRUN":
            return [name, self.some("m", "n"), "INPUTS", first, second, "OUTPUTS", *outs]
        if name == "AI.SCRIPTRUN":
            return [
                name,
                "o",
                self.some("add", "many"),
                "INPUTS",
                first,
                *self.some([], ["$"]),
                second,
                "OUTPUTS",
                outs[0],
            ]
        function, count = self.some(("pair", 2), ("pair", 2), ("one", 1), ("sets", 0), ("fails", 1))
        timeout = self.some([], [], ["TIMEOUT", self.some(1, 1000)])
        out = ["OUTPUTS", count, *outs[:count]] if count else []
        return [
            name,
            self.some("s", "s", "o"),
            function,
            "KEYS",
            1,
            "text",
            "INPUTS",
            2,
            first,
            second,
            "ARGS",
            1,
            "x",
            *out,
            *timeout,
        ]

    def dag(self) -> list[Any]:
        name = self.some("AI.DAGEXECUTE", "AI.DAGEXECUTE", "AI.DAGEXECUTE_RO", "AI.DAGRUN", "AI.DAGRUN_RO")
        words: list[Any] = [name, "LOAD", 2, "a", "b"]
        if not name.endswith("_RO"):
            words += self.some([], ["PERSIST", 1, "t"], ["PERSIST", 2, "t", "c"])
        words += self.some([], ["ROUTING", "x"], ["TIMEOUT", 1000])
        words += ["|>", *self.tensor_set("t")]
        for _ in range(self.random.randrange(4)):
            words.append("|>")
            words += self.some(
                self.runs(("AI.MODELEXECUTE", "AI.SCRIPTEXECUTE", "AI.MODELRUN")),
                self.tensor_set("t"),
                ["AI.TENSORGET", self.some("a", "t", "c"), self.some("META", "VALUES", "BLOB")],
            )
        return words

    def store(self) -> list[Any]:
        if self.random.random() < 0.5:
            source, function = self.some(
                (SOURCE, "pair"), (SOURCE, "pair"), (SOURCE + "def f(", "pair"), (SOURCE, "none")
            )
            return [
                "AI.SCRIPTSTORE",
                "s",
                self.some("CPU", "cpu:0"),
                "TAG",
                "t",
                "ENTRY_POINTS",
                4,
                function,
                "one",
                "sets",
                "fails",
                "SOURCE",
                source,
            ]
        # Cut short, not changed within: AddressSanitizer ends a process that asks it for 2^60 bytes, where C++'s own allocator throws.
        blob = self.archive[: self.some(len(self.archive), len(self.archive), self.random.randrange(len(self.archive)))]
        batches = self.some([], ["BATCHSIZE", 4], ["BATCHSIZE", 4, "MINBATCHSIZE", 3, "MINBATCHTIMEOUT", 3])
        return [
            "AI.MODELSTORE",
            self.some("m", "n"),
            "TORCH",
            "CPU",
            *batches,
            "BLOB",
            bytes(blob[:50]),
            bytes(blob[50:]),
        ]

    def whole(self) -> list[Any]:
        kind = self.random.random()
        if kind < 0.25:
            return self.tensor_set()
        if kind < 0.55:
            return self.runs(("AI.MODELEXECUTE", "AI.SCRIPTEXECUTE", "AI.SCRIPTRUN", "AI.MODELRUN"))
        if kind < 0.75:
            return self.dag()
        if kind < 0.77:
            return self.store()
        if kind < 0.775:
            return self.some(
                ["AI.MODELDEL", "n"], ["DEL", "c"], ["AI.SCRIPTSET", "o", "CPU", "SOURCE", OLDER], ["UNLINK", "n"]
            )
        return self.some(
            ["AI.TENSORGET", self.key(), self.some("META", "VALUES", "BLOB")],
            ["AI.MODELGET", self.some("m", "n", self.key()), self.some("META", "BLOB")],
            ["AI.SCRIPTGET", self.some("s", "o", self.key()), "SOURCE"],
            ["AI.INFO", self.key(), *self.some([], ["RESETSTAT"])],
            [self.some("AI._MODELSCAN", "AI._SCRIPTSCAN", "AI.INFO", "TENSOR.STATS")],
            ["AI.CONFIG", *self.some(["GET", "MODEL_CHUNK_SIZE"], ["MODEL_CHUNK_SIZE", 1000], ["BACKENDSPATH", "x"])],
            ["COMMAND", "GETKEYS", *self.dag()],
            ["DUMP", self.key()],
            ["COPY", self.key(), self.key()],
        )  # fmt: skip

    def next(self) -> list[Any]:
        command = self.whole()
        if self.random.random() < 1 / 3:
            for _ in range(self.random.randrange(1, 4)):
                place = self.random.randrange(1, len(command)) if len(command) > 1 else 0
                match self.random.randrange(4):
                    case 0 if place:
                        del command[place]
                    case 1:
                        command.insert(place + 1, self.some(*STRANGE, *KEYS))
                    case 2 if place:
                        command[place] = self.some(*STRANGE, *KEYS)
                    case 3 if place:
                        del command[place:]
        return command


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    """One that is watched, and its replica, which is not."""
    found = subprocess.run(
        ["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not found.startswith("/"):
        pytest.skip("g++ has no libasan here")
    plain = build("torch", "tensors-torch.so", PYTHON=sys.executable)
    watched = build("torch-asan", "tensors-torch-asan.so", PYTHON=sys.executable)
    environment = {
        "LD_PRELOAD": found,
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1:max_allocation_size_mb=2048",
    }
    with starting(plain) as start:
        arguments, kept = ["threads", "2", "spare-mb", "0"], {"appendonly": "yes", "appendfsync": "no"}
        server = start(watched, module_arguments=arguments, config=kept, environment=environment)
        yield server, start(config={"replicaof": f"127.0.0.1 {server.port}"})


def prepare(client: Client, commands: Commands) -> None:
    names = ["pair", "one", "sets", "fails"]
    client.execute_command("AI.SCRIPTSTORE", "s", "CPU", "ENTRY_POINTS", 4, *names, "SOURCE", SOURCE)
    client.execute_command("AI.SCRIPTSET", "o", "CPU", "SOURCE", OLDER)
    for key in ("m", "n"):
        client.execute_command("AI.MODELSTORE", key, "TORCH", "CPU", "BLOB", commands.archive)
    for key in ("a", "b", "c"):
        client.execute_command("AI.TENSORSET", key, "FLOAT", 2, "VALUES", 1, 2)


def exchange(server: Server, commands: Commands) -> tuple[int, int]:
    """Commands of several clients at once; how many were sent and how many answered without an error. Some leave before they read, and
    who waits for a batch that nobody fills leaves later."""
    clients = [server.client(single_connection_client=True, socket_timeout=PATIENCE_S) for _ in range(CLIENTS)]
    batches = [[commands.next() for _ in range(AT_ONCE)] for _ in clients]
    for client, batch in zip(clients, batches, strict=True):
        for command in batch:
            client.connection.send_command(*command)  # type: ignore[union-attr]
    good = 0
    for client, batch in zip(clients, batches, strict=True):
        if commands.random.random() > 0.02:
            with contextlib.suppress(redis.TimeoutError):
                good += sum(answered(client, command) for command in batch)
        client.close()
        server._clients.remove(client)
    return CLIENTS * AT_ONCE, good


def answered(client: Client, command: list[Any]) -> bool:
    """Whether without an error; an error is a sentence."""
    try:
        client.connection.read_response()  # type: ignore[union-attr]
    except redis.ResponseError as error:
        require_sentence(error, command)
        return False
    return True


def require_sentence(error: redis.ResponseError, command: object) -> None:
    if len(str(error)) < 10 or "\n" in str(error):
        pytest.fail(f"{command}: {error!s}")


def test_nothing_a_client_sends_harms_the_server(servers: tuple[Server, Server]) -> None:
    server, replica = servers
    commands, admin = Commands(int(os.environ.get("CROSSOVER_FUZZ_SEED", "1"))), server.client()
    sent = good = rounds = 0
    began = time.monotonic()
    while sent < COMMANDS:
        if rounds % 50 == 0:
            with contextlib.suppress(redis.ResponseError):
                admin.flushall()
                prepare(admin, commands)
        if rounds % 97 == 96:
            admin.execute_command("DEBUG", "RELOAD")
        if rounds % 53 == 52:
            admin.execute_command("CLIENT", "PAUSE", 20, "WRITE")
        if rounds % 211 == 210:
            replica.stop(signal.SIGKILL)
            replica.start()
        if rounds % 307 == 306:
            server.stop(signal.SIGKILL)
            server.start()
            admin = server.client()
        more, answered = exchange(server, commands)
        sent, good, rounds = sent + more, good + answered, rounds + 1
        if rounds % 250 == 0:
            print(f"{sent} commands, {good} answered without an error, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{sent} commands, {good} answered without an error", flush=True)
    assert good > sent / 5
    until(lambda: statistics(admin)["jobs_running"] == statistics(admin)["jobs_queued"] == 0, what="the last jobs' end")
    until(lambda: replica.client().info("replication")["master_link_status"] == "up", what="the replica's link")
    admin.wait(1, 60_000)
    assert replica.client().execute_command("DEBUG", "DIGEST") == admin.execute_command("DEBUG", "DIGEST")
    admin.flushall()
    until(lambda: statistics(admin)["tensors"] == 0, what="the release of all tensors")
    assert "AddressSanitizer" not in server.log


def changed(archive: bytes, rng: random.Random) -> bytes:
    """The archive with some bytes of its code, pickles or version changed, left out or doubled. Lengths and sums of the whole are right
    again, so that torch reads on: into code that does not parse, pickles that lie, tensors of other sizes."""
    files = zipfile.ZipFile(io.BytesIO(archive))
    names = files.namelist()
    chosen = rng.choice([name for name in names if name.endswith((".py", "/data.pkl", "/constants.pkl", "/version"))])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as new:
        for name in names:
            body = bytearray(files.read(name))
            for _ in range(rng.choice([1, 1, 2, 5]) if name == chosen and body else 0):
                place, length = rng.randrange(len(body) or 1), rng.randrange(1, 12)
                piece = rng.choice([b"", rng.randbytes(1), body[place : place + length] * 2, rng.choice(PIECES)])
                body[place : place + rng.choice([0, 1, length])] = piece
            if name != chosen or rng.random() > 0.05:
                new.writestr(name, bytes(body))
    return out.getvalue()


# Words of the languages that an archive holds: TorchScript and pickle's operations.
PIECES = [
    *(
        b"self",
        b"(",
        b")",
        b"[0]",
        b"Tensor",
        b"None",
        b"torch.add",
        b"annotate(List[int], [])",
        b"-1",
        b"while True:",
        b"\n  ",
    ),
    *(
        b"K\xff",
        b"J\xff\xff\xff\x7f",
        b"q\x00",
        b"h\x63",
        b"(",
        b"t",
        b"}",
        b"]",
        b"X\x04\x00\x00\x00abcd",
        b"Q",
        b"R",
        b".",
        b"b",
    ),
]
# What the sanitizer's allocator ends the process for; C++'s own throws there, and the archive is refused.
ASKED_TOO_MUCH = ("allocation-size-too-big", "out-of-memory")


def test_changed_archives_harm_nothing(servers: tuple[Server, Server]) -> None:
    server, _ = servers
    rng = random.Random(int(os.environ.get("CROSSOVER_FUZZ_SEED", "1")))
    whole, loaded, large = archive(), 0, 0
    client = server.client()
    client.config_set("appendonly", "no")
    for count in range(COMMANDS // 20):
        try:
            client.execute_command("AI.TENSORSET", "a", "FLOAT", 2, "VALUES", 1, 2)
            client.execute_command("AI.MODELSTORE", "m", "TORCH", "CPU", "BLOB", changed(whole, rng))
            loaded += 1
            client.execute_command(
                "AI.MODELEXECUTE", "m", "INPUTS", 2, "a", "a", "OUTPUTS", 2, "x", "y", "TIMEOUT", 2000
            )
        except redis.ResponseError as error:
            require_sentence(error, "a changed archive")
        except redis.ConnectionError:
            server.process.wait(60)
            assert any(words in server.log for words in ASKED_TOO_MUCH), server.log[-20_000:]
            large += 1
            (server.folder / "log").unlink()
            client = server.start().client()
        if count % 250 == 249:
            print(f"{count + 1} archives, {loaded} loaded, {large} asked for too much memory", flush=True)
    print(f"{COMMANDS // 20} archives, {loaded} loaded, {large} asked for too much memory", flush=True)
