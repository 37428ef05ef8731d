"""Several commands in one: tensors of a DAG's own, what it loads and keeps, what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.redis_module.servers import Client, Server, Start, starting, statistics, until
from tests.redis_module.test_redisai_words import SOURCE
from tests.redis_module.vectors import floats, get, put

pytestmark = pytest.mark.slow  # the variant with scripts

SCRIPT = (
    SOURCE
    + """
def sum(tensors: List[Tensor], keys: List[str], args: List[str]):
    return tensors[0] + tensors[1]

def both(tensors: List[Tensor], keys: List[str], args: List[str]):
    return tensors[0] * 2, tensors[0] * 3

def throws(tensors: List[Tensor], keys: List[str], args: List[str]):
    return tensors[9]
"""
)
SET = "AI.TENSORSET t FLOAT 2 VALUES 3 4"
SUM = "AI.SCRIPTEXECUTE s sum INPUTS 2 a t OUTPUTS 1 u"


@pytest.fixture(scope="module")
def script_server(torch_module: Path) -> Iterator[Server]:
    with starting(torch_module) as start:
        yield start()


@pytest.fixture
def client(script_server: Server) -> Client:
    made = script_server.client()
    prepare(made)
    return made


def prepare(client: Client) -> None:
    client.flushall()
    names = ["first", "forever", "sum", "both", "throws"]
    client.execute_command("AI.SCRIPTSTORE", "s", "CPU", "ENTRY_POINTS", len(names), *names, "SOURCE", SCRIPT)
    client.execute_command("AI.SCRIPTSET", "old", "CPU", "SOURCE", "def add(a, b):\n    return a + b\n")
    put(client, "a", floats([1, 2]))


def dag(client: Client, text: str) -> Any:
    return client.execute_command(*text.split())


def test_tensors_are_the_dags_own_until_they_are_kept(client: Client) -> None:
    reply = dag(client, f"AI.DAGEXECUTE LOAD 1 a PERSIST 1 u |> {SET} |> {SUM} |> AI.TENSORGET u VALUES")
    assert reply == [b"OK", b"OK", [b"4", b"6"]]
    assert list(get(client, "u")) == [4, 6] and sorted(client.keys()) == [b"a", b"old", b"s", b"u"]


def test_a_name_may_be_made_anew(client: Client) -> None:
    twice = "AI.SCRIPTEXECUTE s both INPUTS 1 a OUTPUTS 2 a b"
    reply = dag(client, f"AI.DAGEXECUTE LOAD 1 a PERSIST 2 b a |> {twice} |> {twice} |> AI.TENSORGET a META")
    assert reply == [b"OK", b"OK", [b"dtype", b"FLOAT", b"shape", [2]]]
    assert list(get(client, "a")) == [4, 8] and list(get(client, "b")) == [6, 12]


def test_the_older_commands(client: Client) -> None:
    run = "AI.SCRIPTRUN old add INPUTS a t OUTPUTS u"
    assert dag(client, f"AI.DAGRUN LOAD 1 a |> {SET} |> {run} |> AI.TENSORGET u VALUES")[2] == [b"4", b"6"]
    assert dag(client, f"AI.DAGRUN |> {SET}") == [b"OK"]
    assert dag(client, f"AI.DAGRUN_RO |> {SET} |> AI.TENSORGET t VALUES") == [b"OK", [b"3", b"4"]]
    assert dag(client, f"AI.DAGEXECUTE_RO ROUTING x |> {SET}") == [b"OK"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("AI.DAGEXECUTE LOAD 1 a", "wrong number of arguments for 'AI.DAGEXECUTE' command"),
        (f"AI.DAGEXECUTE |> {SET}", "LOAD, PERSIST or ROUTING must be given"),
        (f"AI.DAGEXECUTE LOAD 1 none |> {SET}", "tensor key is empty .*LOAD key 'none'"),
        (f"AI.DAGEXECUTE LOAD 1 s |> {SET}", "wrong kind of value.*LOAD key 's'"),
        (
            f"AI.DAGEXECUTE LOAD 1 a |> {SUM} |> {SET}",
            "uses 't', which is neither in LOAD nor the output of an earlier",
        ),
        (f"AI.DAGEXECUTE LOAD 1 a PERSIST 1 x |> {SET}", "PERSIST names 'x', which no command"),
        (f"AI.DAGEXECUTE PERSIST 1 text |> {SET.replace(' t ', ' text ')}", "output key 'text' holds a string"),
        (f"AI.DAGEXECUTE PERSIST 2 t t |> {SET}", "each key once"),
        (f"AI.DAGEXECUTE LOAD 1 a |> {SET} |>", "nothing stands behind the |>"),
        (f"AI.DAGEXECUTE LOAD 1 a |> {SET} |> GET text", "'GET' is no command of a DAG"),
        ("AI.DAGEXECUTE LOAD 1 a |> AI.MODELRUN m INPUTS a OUTPUTS b", "'AI.MODELRUN' is no command of a DAG"),
        ("AI.DAGEXECUTE LOAD 1 a |> AI.MODELEXECUTE m INPUTS 1 a OUTPUTS 1 b", "model key is empty.*'m'"),
        ("AI.DAGEXECUTE LOAD 1 a |> AI.TENSORSET t FLOAT 1 VALUES x", "a number in the dtype's range"),
        (f"AI.DAGEXECUTE LOAD 1 a |> {SET} |> {SUM} TIMEOUT 5", "has a TIMEOUT; expected one for the whole"),
        (f"AI.DAGEXECUTE_RO PERSIST 1 t |> {SET}", "PERSIST writes; expected AI.DAGEXECUTE"),
        (f"AI.DAGEXECUTE_RO LOAD 1 a |> {SET} |> {SUM}", "may write by redis.execute; expected models alone"),
        ("AI.DAGEXECUTE LOAD 1 a |> AI.TENSORSET t FLOAT 1 NX VALUES 1", "NX and PX have no meaning within a DAG"),
    ],
)
def test_what_cannot_run_is_refused_as_a_whole(client: Client, text: str, message: str) -> None:
    client.set("text", "x")
    with pytest.raises(redis.ResponseError, match=message):
        dag(client, text)
    assert sorted(client.keys()) == [b"a", b"old", b"s", b"text"]
    assert statistics(client)["tensors"] == 1


def test_a_command_that_fails_ends_the_dag_and_nothing_is_kept(client: Client) -> None:
    throws = "AI.SCRIPTEXECUTE s throws INPUTS 1 a OUTPUTS 1 u"
    reply = dag(client, f"AI.DAGEXECUTE LOAD 1 a PERSIST 2 t u |> {SET} |> {throws} |> AI.TENSORGET u")
    assert (reply[0], reply[2]) == (b"OK", b"NA")
    assert isinstance(reply[1], redis.ResponseError) and "AI.SCRIPTEXECUTE: the script failed" in str(reply[1])
    assert not client.exists("t", "u")
    info = client.execute_command("AI.INFO", "s")
    assert (info[15], info[17]) == (1, 1)


def test_a_timeout_is_the_whole_dags(client: Client) -> None:
    forever = "AI.SCRIPTEXECUTE s forever INPUTS 1 a OUTPUTS 1 u"
    assert dag(client, f"AI.DAGEXECUTE LOAD 1 a PERSIST 1 u TIMEOUT 50 |> {forever}") == b"TIMEDOUT"
    until(lambda: statistics(client)["jobs_running"] == 0, what="the script's end")
    assert not client.exists("u")


def test_keys_are_reported(client: Client) -> None:
    words = f"AI.DAGEXECUTE LOAD 1 a PERSIST 1 u ROUTING r |> {SET} |> {SUM}".split()
    keys = client.execute_command("COMMAND GETKEYS", *words)
    assert keys == ["a", "u", "r", "s"]


def test_replicas_are_told_the_result_and_answer_what_only_reads(torch_module: Path) -> None:
    with starting(torch_module) as start:
        serve_a_replica(start)


def serve_a_replica(start: Start) -> None:
    server = start()
    replica = start(config={"replicaof": f"127.0.0.1 {server.port}"})
    client, other = server.client(), replica.client()
    until(lambda: other.info("replication")["master_link_status"] == "up", what="the replica's link")
    prepare(client)
    dag(client, f"AI.DAGEXECUTE LOAD 1 a PERSIST 2 t u |> {SET} |> {SUM}")
    client.wait(1, 30_000)
    assert other.execute_command("DEBUG", "DIGEST") == client.execute_command("DEBUG", "DIGEST")
    assert dag(other, "AI.DAGEXECUTE_RO LOAD 1 u |> AI.TENSORGET u VALUES") == [[b"4", b"6"]]
    with pytest.raises(redis.exceptions.ReadOnlyError):
        dag(other, f"AI.DAGEXECUTE PERSIST 1 t |> {SET}")
