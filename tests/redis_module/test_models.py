"""TorchScript models in the database: RedisAI's model commands, persistence, replicas, bad archives, inputs and outputs."""

from __future__ import annotations

import io
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from tests.redis_module.servers import Client, Server, Start, starting, statistics, until
from tests.redis_module.vectors import floats, get, put, same_bits

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,  # the variant with torch
    pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning"),
]


class Small(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Layers whose operations write in place, keep statistics and drop while they train."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3),
            torch.nn.BatchNorm2d(4),
            torch.nn.ReLU(inplace=True),
            torch.nn.Dropout(),
            torch.nn.Flatten(),
            torch.nn.Linear(4 * 4, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


SOURCES = {
    "two": "def forward(self, a, b):\n    return a + b, a - b\n",
    "list": "def forward(self, first, rest: List[Tensor]):\n    return first + rest[0] * rest[1]\n",
    "in_place": "def forward(self, a):\n    a.add_(1)\n    return a\n",
    "counts": "def forward(self, a):\n    self.seen.add_(1)\n    return self.seen + a\n",
    "forever": "def forward(self, a):\n    i = 0\n    while i >= 0:\n        i = (i + 1) % 7\n    return a\n",
    "throws": "def forward(self, a):\n    assert a.size(0) == 0, 'no, line one'\n    return a\n",
    "words": "def forward(self, a):\n    return 'words'\n",
    "cuda": "def forward(self, a):\n    return a.to(torch.device('cuda:0'))\n",
    "files": "def forward(self, a):\n    return torch.from_file('/etc/passwd', False, 10)\n",
}


def saved(module: Any) -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def archives() -> dict[str, bytes]:
    made = {}
    for name, source in SOURCES.items():
        empty = type(f"Model_{name}", (torch.nn.Module,), {})()  # a class of its own for each
        empty.register_buffer("seen", torch.zeros(1))
        module = torch.jit.script(empty)
        module.define(source)
        made[name] = saved(module)
    return made


@pytest.fixture(scope="module")
def small() -> tuple[Any, bytes]:
    torch.manual_seed(1)
    model = Small()
    model(torch.randn(16, 1, 4, 4))  # statistics that are not the initial ones
    scripted = saved(torch.jit.script(model))  # in training mode: the database evaluates
    return model.eval(), scripted


@pytest.fixture(scope="module")
def model_server(torch_module: Path) -> Iterator[Server]:
    with starting(torch_module) as start:
        yield start()


@pytest.fixture
def start_torch(torch_module: Path) -> Iterator[Start]:
    with starting(torch_module) as start:
        yield start


@pytest.fixture
def client(model_server: Server) -> Client:
    made = model_server.client()
    made.flushall()
    put(made, "a", floats([1, 2]))
    put(made, "b", floats([10, 20]))
    return made


Store = Callable[..., Any]


@pytest.fixture
def store(client: Client, archives: dict[str, bytes]) -> Store:
    def one(name: str, *options: object, command: str = "AI.MODELSTORE") -> Any:
        return client.execute_command(command, "m", "TORCH", "CPU", *options, "BLOB", archives[name])

    return one


def test_a_model_computes_as_torch_does(client: Client, small: tuple[Any, bytes]) -> None:
    model, archive = small
    x = np.random.default_rng(0).standard_normal((5, 1, 4, 4)).astype(np.float32)
    put(client, "x", x)
    assert client.execute_command("AI.MODELSTORE", "m", "TORCH", "CPU", "TAG", "v1", "BLOB", archive) == b"OK"
    for _ in range(3):
        assert client.execute_command("AI.MODELEXECUTE", "m", "INPUTS", 1, "x", "OUTPUTS", 1, "y") == b"OK"
        with torch.inference_mode():
            assert same_bits(get(client, "y"), model(torch.from_numpy(x)).numpy())
    assert same_bits(get(client, "x"), x)
    assert client.execute_command("AI.MODELRUN", "m", "INPUTS", "x", "OUTPUTS", "z") == b"OK"
    assert same_bits(get(client, "z"), get(client, "y"))
    reply = client.execute_command("AI.INFO", "m")
    info = dict(zip(reply[::2], reply[1::2], strict=True))
    assert (info[b"type"], info[b"calls"], info[b"errors"], info[b"samples"]) == (b"MODEL", 4, 0, 20)
    assert client.execute_command("AI.INFO", "m", "RESETSTAT") == b"OK"
    assert client.execute_command("AI.INFO", "m")[13] == 0


@pytest.mark.parametrize("command", ["AI.MODELSTORE", "AI.MODELSET"])
def test_get_scan_and_delete(client: Client, store: Store, archives: dict[str, bytes], command: str) -> None:
    assert store("two", "TAG", "v1", "BATCHSIZE", 8, "MINBATCHSIZE", 2, "MINBATCHTIMEOUT", 5, command=command) == b"OK"
    meta = [b"backend", b"TORCH", b"device", b"CPU", b"tag", b"v1", b"batchsize", 8, b"minbatchsize", 2]
    meta += [b"inputs", [], b"outputs", [], b"minbatchtimeout", 5]
    assert client.execute_command("AI.MODELGET", "m", "META") == meta
    assert client.execute_command("AI.MODELGET", "m") == [*meta, b"blob", archives["two"]]
    assert client.execute_command("AI.MODELGET", "m", "BLOB") == archives["two"]
    assert client.execute_command("AI._MODELSCAN") == [[b"m", b"v1"]]
    assert client.execute_command("AI._SCRIPTSCAN") == []
    assert client.execute_command("AI.MODELDEL", "m") == b"OK"
    assert client.execute_command("AI._MODELSCAN") == []


def test_large_archives_travel_in_pieces(client: Client, archives: dict[str, bytes]) -> None:
    whole = archives["two"]
    words = ["AI.MODELSTORE", "m", "TORCH", "CPU", "BLOB", whole[:100], whole[100:101], whole[101:]]
    assert client.execute_command(*words) == b"OK"
    default = client.execute_command("AI.CONFIG", "GET", "MODEL_CHUNK_SIZE")
    assert default == 511 * 1024 * 1024
    try:
        assert client.execute_command("AI.CONFIG", "MODEL_CHUNK_SIZE", 1000) == b"OK"
        pieces = client.execute_command("AI.MODELGET", "m", "BLOB")
        assert b"".join(pieces) == whole and {len(piece) for piece in pieces[:-1]} == {1000}
    finally:
        client.execute_command("AI.CONFIG", "MODEL_CHUNK_SIZE", default)


def test_several_inputs_and_outputs(client: Client, store: Store) -> None:
    store("two")
    client.execute_command("AI.MODELEXECUTE", "m", "INPUTS", 2, "a", "b", "OUTPUTS", 2, "sum", "difference")
    assert list(get(client, "sum")) == [11, 22] and list(get(client, "difference")) == [-9, -18]
    store("list")
    client.execute_command("AI.MODELEXECUTE", "m", "INPUTS", 3, "a", "a", "b", "OUTPUTS", 1, "out")
    assert list(get(client, "out")) == [11, 42]


def test_inputs_are_never_changed_and_a_state_is_the_models_own(client: Client, store: Store) -> None:
    store("in_place")
    for _ in range(2):
        client.execute_command("AI.MODELEXECUTE", "m", "INPUTS", 1, "a", "OUTPUTS", 1, "out")
        assert list(get(client, "out")) == [2, 3] and list(get(client, "a")) == [1, 2]
    store("counts")
    for calls in (1, 2, 3):
        client.execute_command("AI.MODELEXECUTE", "m", "INPUTS", 1, "a", "OUTPUTS", 1, "out")
        assert list(get(client, "out")) == [1 + calls, 2 + calls]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("TORCH", "CPU", "BLOB", b"no archive"), "the model does not load: "),
        (("TORCH", "CPU", "BLOB", b""), "the model has no bytes"),
        (("TORCH", "CPU", "TAG", "x"), "argument 7 .BLOB. is missing"),
        (("TORCH", "GPU", "BLOB", b"x"), "the device is 'GPU'; expected CPU"),
        (("TF", "CPU", "BLOB", b"x"), "'TF'; expected TORCH"),
        (("TORCH", "CPU", "INPUTS", 1, "x", "BLOB", b"x"), "none of TensorFlow's"),
        (("TORCH", "CPU", "MINBATCHSIZE", 2, "BLOB", b"x"), "MINBATCHSIZE needs a BATCHSIZE"),
        (("TORCH", "CPU", "BATCHSIZE", 2, "MINBATCHSIZE", 3, "BLOB", b"x"), "expected at most BATCHSIZE, 2"),
        (("TORCH", "CPU", "BATCHSIZE", 2, "MINBATCHTIMEOUT", 3, "BLOB", b"x"), "needs a MINBATCHSIZE"),
        (("TORCH", "CPU", "BATCHSIZE", "x", "BLOB", b"x"), "'x'; expected an integer"),
    ],
)
def test_what_is_no_model_is_not_stored(client: Client, words: tuple[Any, ...], message: str) -> None:
    with pytest.raises(redis.ResponseError, match=message):
        client.execute_command("AI.MODELSTORE", "m", *words)
    assert sorted(client.keys()) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("cuda", "wants the device cuda:0; expected cpu"), ("files", "from_file, which reaches the server's files")],
)
def test_a_model_that_wants_what_it_may_not_have_is_refused(
    client: Client, store: Store, name: str, message: str
) -> None:
    with pytest.raises(redis.ResponseError, match=message):
        store(name)
    assert not client.exists("m")


def test_damaged_archives_are_refused_or_answer(client: Client, small: tuple[Any, bytes]) -> None:
    """Bytes are changed or left out all over the archive; whatever loads runs, and the server lives."""
    _, archive = small
    put(client, "x", np.zeros((1, 1, 4, 4), np.float32))
    source, refused = np.random.default_rng(5), 0
    for _ in range(150):
        damaged = bytearray(archive)
        for place in source.integers(len(damaged), size=source.integers(1, 9)):
            damaged[place] = source.integers(256)
        if source.random() < 0.2:
            del damaged[source.integers(len(damaged)) :]
        try:
            client.execute_command("AI.MODELSTORE", "m", "TORCH", "CPU", "BLOB", bytes(damaged))
            client.execute_command("AI.MODELEXECUTE", "m", "INPUTS", 1, "x", "OUTPUTS", 1, "y")
        except redis.ResponseError:
            refused += 1
    assert refused > 100 and client.ping()


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("two", ("INPUTS", 1, "a", "OUTPUTS", 2, "x", "y"), "the model takes 2 inputs; INPUTS names 1 keys"),
        ("two", ("INPUTS", 3, "a", "a", "a", "OUTPUTS", 2, "x", "y"), "takes 2 inputs; INPUTS names 3 keys"),
        ("two", ("INPUTS", 2, "a", "b", "OUTPUTS", 1, "x"), "the model returned 2 tensors; OUTPUTS names 1 keys"),
        ("two", ("INPUTS", 2, "a", "long", "OUTPUTS", 2, "x", "y"), "the model failed: .*size of tensor"),
        ("two", ("INPUTS", 2, "a", "none", "OUTPUTS", 2, "x", "y"), "tensor key is empty .*'none'"),
        ("two", ("INPUTS", 2, "a", "m", "OUTPUTS", 2, "x", "y"), "wrong kind of value.*'m' holds another module's"),
        ("two", ("INPUTS", 2, "a", "b"), "OUTPUTS is missing"),
        ("two", ("INPUTS", 2, "a", "b", "OUTPUTS", 2, "x", "y", "KEYS", 1, "k"), "'KEYS'; expected one of"),
        ("throws", ("INPUTS", 1, "a", "OUTPUTS", 1, "x"), "the model failed: .*no, line one"),
        ("words", ("INPUTS", 1, "a", "OUTPUTS", 1, "x"), "the model returned a String; expected tensors"),
    ],
)
def test_a_run_that_fails_stores_nothing(
    client: Client, store: Store, name: str, words: tuple[Any, ...], message: str
) -> None:
    put(client, "long", floats([1, 2, 3]))
    store(name)
    with pytest.raises(redis.ResponseError, match=message):
        client.execute_command("AI.MODELEXECUTE", "m", *words)
    assert sorted(client.keys()) == [b"a", b"b", b"long", b"m"]


def test_wrong_keys_are_named(client: Client) -> None:
    for command in ("AI.MODELGET", "AI.MODELDEL"):
        with pytest.raises(redis.ResponseError, match=r"^model key is empty: .*'none'"):
            client.execute_command(command, "none")
        with pytest.raises(redis.ResponseError, match=r"^WRONGTYPE Operation against .*'a' holds .*expected a model"):
            client.execute_command(command, "a")
    with pytest.raises(redis.ResponseError, match=r"^cannot find run info for key"):
        client.execute_command("AI.INFO", "none")


def test_a_model_that_runs_too_long_is_ended(client: Client, store: Store) -> None:
    store("forever")
    command = ("AI.MODELEXECUTE", "m", "INPUTS", 1, "a", "OUTPUTS", 1, "out", "TIMEOUT", 50)
    assert client.execute_command(*command) == b"TIMEDOUT"
    until(lambda: statistics(client)["jobs_running"] == 0, what="the model's end")
    assert not client.exists("out")


def test_models_persist_and_travel(start_torch: Start, archives: dict[str, bytes]) -> None:
    server = start_torch(config={"appendonly": "yes", "appendfsync": "always", "aof-use-rdb-preamble": "no"})
    replica = start_torch(config={"replicaof": f"127.0.0.1 {server.port}"})
    client, other = server.client(), replica.client()
    until(lambda: other.info("replication")["master_link_status"] == "up", what="the replica's link")
    words = ["TORCH", "cpu", "TAG", "v1", "BATCHSIZE", 4, "BLOB", archives["two"]]
    assert client.execute_command("AI.MODELSTORE", "m", *words) == b"OK"
    put(client, "a", floats([1, 2]))
    client.execute_command("AI.MODELEXECUTE", "m", "INPUTS", 2, "a", "a", "OUTPUTS", 2, "x", "y")
    client.wait(1, 30_000)
    sums = client.execute_command("DEBUG", "DIGEST")
    assert other.execute_command("DEBUG", "DIGEST") == sums
    client.bgrewriteaof()
    until(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0, what="the AOF's rewrite")
    server.stop(signal.SIGKILL)
    server.start()
    client = server.client()
    assert client.execute_command("DEBUG", "DIGEST") == sums
    client.execute_command("DEBUG", "RELOAD")
    assert client.execute_command("DEBUG", "DIGEST") == sums
    assert client.execute_command("AI.MODELGET", "m", "META")[3] == b"cpu"
    client.execute_command("AI.MODELEXECUTE", "m", "INPUTS", 2, "a", "a", "OUTPUTS", 2, "x", "y")
    assert list(get(client, "x")) == [2, 4]


def test_redisais_settings(start_torch: Start) -> None:
    arguments = "THREADS_PER_QUEUE 3 INTRA_OP_PARALLELISM 2 INTER_OP_PARALLELISM 0 BACKENDSPATH /b MODEL_CHUNK_SIZE 9"
    client = start_torch(module_arguments=[*arguments.split(), "TORCH", "x.so"]).client()
    reply = client.execute_command("AI.INFO")
    info = dict(zip(reply[::2], reply[1::2], strict=True))
    assert (info[b"threads"], info[b"intra_op_threads"]) == (3, 2) and b"Version" in info
    assert client.execute_command("AI.CONFIG", "GET", "BACKENDSPATH") == b"/b"
    assert client.execute_command("AI.CONFIG", "GET", "MODEL_CHUNK_SIZE") == 9
    assert client.execute_command("AI.CONFIG", "LOADBACKEND", "TORCH", "x.so") == b"OK"
    for words, message in (
        (("LOADBACKEND", "TF", "x.so"), "'TF'; expected TORCH"),
        (("GET", "COLOUR"), "'COLOUR'; expected BACKENDSPATH"),
        (("MODEL_CHUNK_SIZE", 0), "'0'; expected an integer"),
        (("COLOUR", "red"), "'COLOUR'; expected GET"),
    ):
        with pytest.raises(redis.ResponseError, match=message):
            client.execute_command("AI.CONFIG", *words)
