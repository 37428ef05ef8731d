"""TorchScript in the database: RedisAI's script commands, redis.execute, deadlines, persistence."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from tests.redis_module.servers import Client, Server, Start, starting, statistics, until
from tests.redis_module.test_server import sent
from tests.redis_module.vectors import DTYPES, floats, get, put, same_bits

pytestmark = pytest.mark.slow  # compiling the variant and loading torch take longer than the tests

SOURCE = """
def scaled(x: Tensor, factor: float) -> Tensor:
    return x * factor

def total(tensors: List[Tensor], keys: List[str], args: List[str]):
    out = tensors[0].clone()
    for i in range(1, len(tensors)):
        out = out + tensors[i]
    return scaled(out, float(args[0]))

def both(tensors: List[Tensor], keys: List[str], args: List[str]):
    return tensors[0] + tensors[1], tensors[0] - tensors[1]

def listed(tensors: List[Tensor], keys: List[str], args: List[str]):
    return [t + 1 for t in tensors]

def in_place(tensors: List[Tensor], keys: List[str], args: List[str]):
    tensors[0].add_(1)
    return tensors[0]

def itself(tensors: List[Tensor], keys: List[str], args: List[str]):
    return tensors[0]

def half(tensors: List[Tensor], keys: List[str], args: List[str]):
    return tensors[0].half()

def nothing(tensors: List[Tensor], keys: List[str], args: List[str]):
    redis.execute("SET", keys[0], args[0])

def forever(tensors: List[Tensor], keys: List[str], args: List[str]):
    i = 0
    while True:
        i += 1
        if i < 0:
            break
    return tensors[0]

def forever_with_redis(tensors: List[Tensor], keys: List[str], args: List[str]):
    i = 0
    while i >= 0:
        redis.execute("PING")
    return torch.tensor(i)

def throws(tensors: List[Tensor], keys: List[str], args: List[str]):
    if len(args) == 0:
        raise ValueError("no args, line one\\nline two")
    return tensors[5]

def count(tensors: List[Tensor], keys: List[str], args: List[str]):
    redis.execute("SET", keys[0], 41)
    redis.execute("INCRBY", keys[0], 1.0 == 1.0)
    value = redis.execute("GET", keys[0])
    return torch.tensor(int(str(value)))

def members(tensors: List[Tensor], keys: List[str], args: List[str]):
    redis.execute("RPUSH", keys[0], args)
    reply = redis.asList(redis.execute("LRANGE", keys[0], 0, -1))
    redis.execute("SET", keys[1], str(reply[0]) + "/" + str(reply[-1]))
    return torch.tensor(len(reply))

def call(tensors: List[Tensor], keys: List[str], args: List[str]):
    redis.execute(args[0], args[1:])
    return torch.tensor(1)
"""
NAMES = [line.split("(")[0][4:] for line in SOURCE.splitlines() if line.startswith("def ")][1:]


@pytest.fixture(scope="module")
def script_server(torch_module: Path) -> Iterator[Server]:
    with starting(torch_module) as start:
        yield start()


@pytest.fixture
def start_torch(torch_module: Path) -> Iterator[Start]:
    with starting(torch_module) as start:
        yield start


def store(client: Client, key: str = "s", source: str = SOURCE, names: list[str] | None = None) -> object:
    names = NAMES if names is None else names
    return client.execute_command(
        "AI.SCRIPTSTORE", key, "CPU", "TAG", "v1", "ENTRY_POINTS", len(names), *names, "SOURCE", source
    )


@pytest.fixture
def client(script_server: Server) -> Client:
    made = script_server.client()
    made.flushall()
    store(made)
    put(made, "a", floats([1, 2]))
    put(made, "b", floats([10, 20]))
    return made


def run(client: Client, function: str, *rest: object) -> object:
    return client.execute_command("AI.SCRIPTEXECUTE", "s", function, *rest)


def test_a_script_computes_from_tensors_and_arguments(client: Client) -> None:
    assert run(client, "total", "INPUTS", 3, "a", "b", "a", "ARGS", 1, "0.5", "OUTPUTS", 1, "out") == b"OK"
    assert list(get(client, "out")) == [6, 12]
    run(client, "both", "INPUTS", 2, "a", "b", "OUTPUTS", 2, "sum", "difference")
    assert list(get(client, "sum")) == [11, 22] and list(get(client, "difference")) == [-9, -18]
    run(client, "listed", "INPUTS", 2, "a", "b", "OUTPUTS", 2, "a", "b")  # onto its inputs
    assert list(get(client, "a")) == [2, 3] and list(get(client, "b")) == [11, 21]


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_goes_in_and_out(client: Client, name: str) -> None:
    array = np.array([[0, 1, 1]]).astype(DTYPES[name])
    put(client, "x", array)
    run(client, "itself", "INPUTS", 1, "x", "OUTPUTS", 1, "y")
    assert same_bits(get(client, "y"), array)


def test_inputs_are_never_changed_in_place(client: Client) -> None:
    client.execute_command("TENSOR.COPY", "a", "shared")
    run(client, "in_place", "INPUTS", 1, "a", "OUTPUTS", 1, "out")
    assert list(get(client, "out")) == [2, 3]
    assert list(get(client, "a")) == list(get(client, "shared")) == [1, 2]


def one_line(body: str) -> str:
    return f"def f(tensors: List[Tensor], keys: List[str], args: List[str]):\n    {body}\n    return tensors[0]\n"


RUNNING = "None, None, tensors[0], tensors[1], True, 0.5, 1e-5, False"
FUSED = "weight_decay=0.0, momentum=0.5, lr=1.0, dampening=0.0, nesterov=False, maximize=False, is_first_step=False"


@pytest.mark.parametrize(
    ("body", "out"),
    [
        ("torch.add(tensors[0], tensors[1], out=tensors[0])", [11, 22]),
        ("tensors[0].view(2)[0:1].add_(1.0)", [2, 2]),
        ("torch.frexp(tensors[1], mantissa=tensors[0], exponent=torch.zeros([2], dtype=torch.int32))", [0.625, 0.625]),
        (f"torch.batch_norm(tensors[1].reshape(2, 1).repeat(1, 2), {RUNNING})", [8, 8.5]),
        (f"torch.instance_norm(tensors[1].reshape(1, 2, 1).repeat(1, 1, 3), {RUNNING})", [5.5, 11]),
    ],
)
def test_no_write_reaches_a_stored_tensor(client: Client, body: str, out: list[float]) -> None:
    store(client, "new", one_line(body), ["f"])
    client.execute_command("AI.SCRIPTEXECUTE", "new", "f", "INPUTS", 2, "a", "b", "OUTPUTS", 1, "out")
    assert list(get(client, "out")) == out
    assert list(get(client, "a")) == [1, 2] and list(get(client, "b")) == [10, 20]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("torch._foreach_add_(tensors, 1.0)", "_foreach_add_"),
        ("torch._foreach_add_([tensors[0]], [tensors[1]])", "_foreach_add_"),
        (f"torch._fused_sgd_(tensors, tensors, tensors, {FUSED})", "_fused_sgd_"),
        ("torch.unbind_copy(tensors[0], 0, out=tensors)", "unbind_copy"),
        ("torch._foreach_add(tensors, 1.0, out=tensors)", "_foreach_add"),
    ],
)
def test_writes_to_the_tensors_of_a_list_are_refused(client: Client, body: str, name: str) -> None:
    with pytest.raises(redis.ResponseError, match=f"{name} can change the tensors of a list.*a loop"):
        store(client, "new", one_line(body), ["f"])
    assert not client.exists("new")


def test_scripts_call_redis(client: Client) -> None:
    run(client, "count", "KEYS", 1, "counter", "OUTPUTS", 1, "n")
    assert client.get("counter") == b"42" and get(client, "n") == 42
    run(client, "members", "KEYS", 2, "list", "text", "ARGS", 3, "x", "y", "z", "OUTPUTS", 1, "n")
    assert client.get("text") == b"x/z" and get(client, "n") == 3
    assert run(client, "nothing", "KEYS", 1, "text", "ARGS", 1, "new") == b"OK"
    assert client.get("text") == b"new"


def test_get_info_scan_and_delete(client: Client) -> None:
    meta = [b"device", b"CPU", b"tag", b"v1", b"Entry Points", [name.encode() for name in NAMES]]
    assert client.execute_command("AI.SCRIPTGET", "s", "META") == meta
    assert client.execute_command("AI.SCRIPTGET", "s") == [*meta, b"source", SOURCE.encode()]
    assert client.execute_command("AI.SCRIPTGET", "s", "SOURCE") == SOURCE.encode()
    run(client, "itself", "INPUTS", 1, "a", "OUTPUTS", 1, "out")
    with pytest.raises(redis.ResponseError):
        run(client, "throws", "INPUTS", 0)
    reply = client.execute_command("AI.INFO", "s")
    info = dict(zip(reply[::2], reply[1::2], strict=True))
    assert (info[b"calls"], info[b"errors"], info[b"type"], info[b"tag"]) == (2, 1, b"SCRIPT", b"v1")
    assert client.execute_command("AI.INFO", "s", "RESETSTAT") == b"OK"
    assert client.execute_command("AI.INFO", "s")[15] == 0
    client.set("noise", 1)
    assert client.execute_command("AI._SCRIPTSCAN") == [[b"s", b"v1"]]
    assert client.execute_command("AI.SCRIPTDEL", "s") == b"OK"
    assert client.execute_command("AI._SCRIPTSCAN") == []


def test_old_style_scripts(client: Client) -> None:
    source = "def add(a, b):\n    return a + b\ndef many(a, rest: List[Tensor]):\n    return a, rest[0] * rest[1]\n"
    assert client.execute_command("AI.SCRIPTSET", "old", "CPU", "SOURCE", source) == b"OK"
    client.execute_command("AI.SCRIPTRUN", "old", "add", "INPUTS", "a", "b", "OUTPUTS", "out")
    assert list(get(client, "out")) == [11, 22]
    client.execute_command("AI.SCRIPTRUN", "old", "many", "INPUTS", "a", "$", "a", "b", "OUTPUTS", "x", "y")
    assert list(get(client, "y")) == [10, 40]


GOOD = "def f(tensors: List[Tensor], keys: List[str], args: List[str]):\n    return tensors[0]\n"


@pytest.mark.parametrize(
    ("source", "names", "message"),
    [
        ("def f(:", ["f"], r"SOURCE does not compile: "),
        (
            "def f(t: List[Tensor], k: List[str], a: List[str]):\n    return torch.nonsense(t[0])",
            ["f"],
            r"does not compile: .*nonsense",
        ),
        (GOOD, ["g"], r"the script has no function 'g'"),
        (GOOD, [], r"ENTRY_POINTS is 0"),
        ("def f(x):\n    return x", ["f"], r"entry point 'f' is .*; expected \(tensors: List\[Tensor\]"),
        (
            GOOD.replace("tensors[0]\n", "torch.from_file('/etc/passwd', False, 10)\n"),
            ["f"],
            r"from_file, which reaches",
        ),
    ],
)
def test_a_script_that_does_not_compile_is_not_stored(
    client: Client, source: str, names: list[str], message: str
) -> None:
    with pytest.raises(redis.ResponseError, match=message):
        store(client, "new", source, names)
    assert not client.exists("new")
    with pytest.raises(redis.ResponseError, match=message):
        store(client, "s", source, names)
    assert client.execute_command("AI.SCRIPTGET", "s", "SOURCE") == SOURCE.encode()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("throws", "INPUTS", 0), r"the script failed: .*no args, line one line two"),
        (("throws", "INPUTS", 0, "ARGS", 1, "x", "OUTPUTS", 1, "out"), r"the script failed: .*list index out of range"),
        (("both", "INPUTS", 2, "a", "b", "OUTPUTS", 1, "out"), r"returned 2 tensors; OUTPUTS names 1 keys"),
        (("half", "INPUTS", 1, "a", "OUTPUTS", 1, "out"), r"tensor of dtype Half"),
        (("none", "INPUTS", 0), r"argument 2 \(function\) is 'none'; expected one of the script's ENTRY_POINTS"),
        (("scaled", "INPUTS", 0), r"expected one of the script's ENTRY_POINTS"),
        (("itself", "INPUTS", 1, "missing", "OUTPUTS", 1, "out"), r"tensor key is empty .*AI.SCRIPTEXECUTE: input key 'missing'"),
        (("itself", "INPUTS", 1, "text", "OUTPUTS", 1, "out"), r"WRONGTYPE .*AI.SCRIPTEXECUTE: input key 'text'"),
        (("itself", "INPUTS", 9, "a"), r"INPUTS at argument 3 has 1 values; expected 9"),
        (("itself", "INPUTS", 0, "TIMEOUT", 0), r"\(TIMEOUT\) is '0'"),
        (("call", "KEYS", 0, "ARGS", 2, "LPUSH", "text", "OUTPUTS", 1, "out"), r"redis.execute: ERR wrong number of arguments"),
        (("call", "KEYS", 0, "ARGS", 3, "LPUSH", "text", "x", "OUTPUTS", 1, "out"), r"redis.execute: WRONGTYPE"),
        (("call", "KEYS", 0, "ARGS", 2, "NONSENSE", "x", "OUTPUTS", 1, "out"), r"redis.execute: ERR unknown command"),
        (("call", "KEYS", 0, "ARGS", 5, *["TENSOR.MEAN", "1", "a", "OUT", "m"], "OUTPUTS", 1, "out"), r"cannot be called .*by a module"),
    ],
)  # fmt: skip
def test_a_script_that_fails_stores_nothing(client: Client, command: tuple[Any, ...], message: str) -> None:
    client.set("text", "x")
    with pytest.raises(redis.ResponseError, match=message):
        run(client, *command)
    assert sorted(client.keys()) == [b"a", b"b", b"s", b"text"]
    assert statistics(client)["tensors"] == 2
    run(client, "itself", "INPUTS", 1, "a", "OUTPUTS", 1, "out")  # and the thread lives


@pytest.mark.parametrize("function", ["forever", "forever_with_redis"])
def test_a_script_that_runs_too_long_is_ended(client: Client, function: str) -> None:
    assert run(client, function, "INPUTS", 1, "a", "OUTPUTS", 1, "out", "TIMEOUT", 100) == b"TIMEDOUT"
    until(lambda: statistics(client)["jobs_running"] == 0, what="the script's end")
    assert not client.exists("out")
    run(client, "itself", "INPUTS", 1, "a", "OUTPUTS", 1, "out", "TIMEOUT", 60_000)


@pytest.mark.parametrize("function", ["forever", "forever_with_redis"])
def test_shutting_down_ends_a_script(start_torch: Start, function: str) -> None:
    server = start_torch()
    client = server.client()
    store(client)
    put(client, "a", floats([1]))
    with sent(server, "AI.SCRIPTEXECUTE", "s", function, "INPUTS", 1, "a", "OUTPUTS", 1, "out"):
        until(lambda: statistics(client)["jobs_running"] == 1, what="the script's start")
        assert client.ping()
        assert server.stop(signal.SIGTERM) == 0


def test_redis_execute_obeys_the_callers_acl(client: Client, script_server: Server) -> None:
    client.acl_setuser(
        "worker", enabled=True, nopass=True, keys=["s", "a", "mine:*"], commands=["+ai.scriptexecute", "+set", "+get"]
    )
    worker = script_server.client(username="worker", password="x")
    for words in (["SET", "theirs", "1"], ["DEL", "mine:x"]):
        with pytest.raises(redis.ResponseError, match=r"redis.execute: .*(?i:acl verification|permission|NOPERM)"):
            run(worker, "call", "KEYS", 0, "ARGS", len(words), *words, "OUTPUTS", 1, "mine:out")
    run(worker, "call", "KEYS", 0, "ARGS", 3, "SET", "mine:x", "1", "OUTPUTS", 1, "mine:out")
    with pytest.raises(redis.exceptions.NoPermissionError):
        run(worker, "itself", "INPUTS", 1, "a", "OUTPUTS", 1, "out")
    client.acl_deluser("worker")
    assert client.get("mine:x") == b"1" and not client.exists("theirs", "out")


def test_scripts_persist_and_are_compiled_when_needed(start_torch: Start) -> None:
    server = start_torch(config={"appendonly": "yes", "appendfsync": "always", "aof-use-rdb-preamble": "no"})
    replica = start_torch(config={"replicaof": f"127.0.0.1 {server.port}"})
    client, other = server.client(), replica.client()
    until(lambda: other.info("replication")["master_link_status"] == "up", what="the replica's link")
    store(client)
    client.execute_command("AI.SCRIPTSET", "old", "CPU", "SOURCE", "def one(a):\n    return a\n")
    put(client, "a", floats([1, 2]))
    run(client, "count", "KEYS", 1, "n", "OUTPUTS", 1, "out")
    client.wait(1, 30_000)
    assert other.execute_command("AI.SCRIPTGET", "s") == client.execute_command("AI.SCRIPTGET", "s")
    assert other.get("n") == b"42" and get(other, "out") == 42
    assert "cmdstat_ai.scriptexecute" not in other.info("commandstats")
    sums = client.execute_command("DEBUG", "DIGEST")
    assert other.execute_command("DEBUG", "DIGEST") == sums

    server.stop(signal.SIGKILL)
    server.start()
    client = server.client()
    client.bgrewriteaof()
    until(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0, what="the AOF's rewrite")
    server.stop(signal.SIGKILL)
    server.start()
    client = server.client()
    assert client.execute_command("DEBUG", "DIGEST") == sums
    run(client, "total", "INPUTS", 1, "a", "ARGS", 1, "2", "OUTPUTS", 1, "twice")
    assert list(get(client, "twice")) == [2, 4]
    client.execute_command("AI.SCRIPTRUN", "old", "one", "INPUTS", "a", "OUTPUTS", "same")
    assert list(get(client, "same")) == [1, 2]


def test_the_core_build_keeps_scripts_it_cannot_run(start_torch: Start, core_module: Path) -> None:
    """An RDB file that holds scripts loads without torch, and saves them again."""
    with_torch = start_torch()
    store(with_torch.client())
    dumped = with_torch.client().dump("s")
    without = start_torch(core_module)
    assert dumped is not None and without.client().restore("s", 0, dumped)
    assert without.client().dump("s") == dumped
    with pytest.raises(redis.ResponseError, match="unknown command"):
        without.client().execute_command("AI.SCRIPTGET", "s")


@pytest.mark.parametrize(
    "body",
    [
        "(" * 50_000 + "x" + ")" * 50_000,
        "x" + " + x" * 50_000,
        "-" * 50_000 + "x",
        "x if 1 else " * 50_000 + "x",
    ],
    ids=["brackets", "sums", "signs", "choices"],
)
def test_a_source_that_goes_too_deep_is_refused(client: Client, body: str) -> None:
    """torch's compiler calls itself for each level, and the server's stack has an end."""
    source = f"def f(x):\n    return {body}\n"
    with pytest.raises(redis.ResponseError, match="more than 1000 levels deep"):
        client.execute_command("AI.SCRIPTSET", "new", "CPU", "SOURCE", source)
    assert not client.exists("new")


def test_a_long_source_is_no_deep_one(client: Client) -> None:
    """Comments, strings, lists and lines by the thousand."""
    numbers = ", ".join(["0.5"] * 3_000)
    lines = "    y = x + 1  # (((((((((( ' + + + +\n" * 400
    source = f'def f(x):\n    """{"( + " * 2_000}"""\n{lines}    return x + torch.tensor([{numbers}]).sum()\n'
    assert client.execute_command("AI.SCRIPTSET", "new", "CPU", "SOURCE", source) == b"OK"


def test_multi_refuses_scripts(client: Client) -> None:
    for words in (["AI.SCRIPTEXECUTE", "s", "itself", "INPUTS", 0], ["AI.SCRIPTSET", "new", "CPU", "SOURCE", GOOD]):
        with client.pipeline() as made:
            transaction: Any = made
            transaction.execute_command(*words)
            with pytest.raises(redis.ResponseError, match="cannot be called inside MULTI"):
                transaction.execute()
    assert not client.exists("new")
