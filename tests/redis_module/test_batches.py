"""BATCHSIZE, MINBATCHSIZE and MINBATCHTIMEOUT: which requests of a model are computed together, and that each gets its own rows.

The models tell how many rows they were given, so that a client can see who was computed beside it.
"""

from __future__ import annotations

import contextlib
import io
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.redis_module.servers import Server, starting, statistics, until
from tests.redis_module.test_server import connected, encode, replies
from tests.redis_module.vectors import floats, get, put

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,  # the variant with torch
    pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning"),
]

FOREVER_MS = 10_000_000
SOURCES = {
    "rows": "def forward(self, a):\n    return a, torch.full_like(a, a.size(0))\n",
    "total": "def forward(self, a):\n    return a.sum(), torch.full_like(a, a.size(0))\n",
    "picky": "def forward(self, a):\n    assert bool((a > 0).all()), 'no zeros'\n    return a, torch.full_like(a, a.size(0))\n",
    "forever": "def forward(self, a):\n    i = 0\n    while i >= 0:\n        i = (i + 1) % 7\n    return a, a\n",
}


def archive(name: str, source: str) -> bytes:
    module = torch.jit.script(type(f"Batched_{name}", (torch.nn.Module,), {})())  # a class of its own for each
    module.define(source)
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def archives() -> dict[str, bytes]:
    return {name: archive(name, source) for name, source in SOURCES.items()}


@pytest.fixture(scope="module")
def one_thread(torch_module: Path) -> Iterator[Server]:
    with starting(torch_module) as start:
        yield start()


class Asking:
    """Clients that ask a model each for tensors of their own, whose replies come when they come."""

    def __init__(self, server: Server, archives: dict[str, bytes], ends: contextlib.ExitStack) -> None:
        self.server, self.client, self._archives, self._ends = server, server.client(), archives, ends
        self.waiting = 0
        self.client.flushall()

    def store(self, name: str, *options: object, key: str = "m") -> None:
        self.client.execute_command("AI.MODELSTORE", key, "TORCH", "CPU", *options, "BLOB", self._archives[name])

    def ask(
        self, name: str, *rows: float, key: str = "m", shape: tuple[int, ...] = (), outputs: int = 2, options: Any = ()
    ) -> socket.socket:
        """The connection of a client that has asked and waits. The tensor `name` holds the rows, or one of `shape` holds zeros."""
        if shape:
            self.client.execute_command("AI.TENSORSET", name, "FLOAT", *shape)
        else:
            put(self.client, name, floats(rows))
        connection = self._ends.enter_context(connected(self.server))
        outs = (f"{name}.same", f"{name}.rows")[:outputs]
        connection.sendall(encode("AI.MODELEXECUTE", key, "INPUTS", 1, name, "OUTPUTS", outputs, *outs, *options))
        self.waiting += 1
        until(lambda: self.client.info("clients")["blocked_clients"] == self.waiting, what=f"the request of {name}")
        return connection

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """The only thread has a job that does not end before the block does."""
        self.store("forever", key="endless")
        with contextlib.closing(self.ask("endless.in", 1, key="endless")):
            until(lambda: statistics(self.client)["jobs_running"] == 1, what="the endless job")
            yield
        self.waiting -= 1

    def together(self, name: str) -> int:
        """How many rows were computed at once."""
        return int(get(self.client, f"{name}.rows")[0])


@pytest.fixture
def asking(one_thread: Server, archives: dict[str, bytes]) -> Iterator[Asking]:
    with contextlib.ExitStack() as ends:
        yield Asking(one_thread, archives, ends)


def told(*connections: socket.socket) -> list[str]:
    return [str(replies(connection, 1)[0]) for connection in connections]


def test_what_waits_at_the_same_time_is_computed_at_once(asking: Asking) -> None:
    asking.store("rows", "BATCHSIZE", 8)
    with asking.busy():
        three = [asking.ask("a", 1, 2), asking.ask("b", 3), asking.ask("c", 4, 5, 6)]
    assert told(*three) == ["+OK"] * 3
    for name, rows in (("a", [1, 2]), ("b", [3]), ("c", [4, 5, 6])):
        assert list(get(asking.client, f"{name}.same")) == rows and asking.together(name) == 6
    reply = asking.client.execute_command("AI.INFO", "m")
    info = dict(zip(reply[::2], reply[1::2], strict=True))
    assert (info[b"calls"], info[b"samples"], info[b"errors"]) == (3, 6, 0)


def test_without_batchsize_each_is_computed_alone(asking: Asking) -> None:
    asking.store("rows")
    with asking.busy():
        two = [asking.ask("a", 1), asking.ask("b", 2)]
    assert told(*two) == ["+OK"] * 2
    assert (asking.together("a"), asking.together("b")) == (1, 1)


def test_no_batch_has_more_rows_than_batchsize_but_that_of_a_single_request(asking: Asking) -> None:
    asking.store("rows", "BATCHSIZE", 3)
    with asking.busy():
        four = [asking.ask("a", 1, 2), asking.ask("b", 3), asking.ask("c", 4), asking.ask("d", 5, 6, 7, 8)]
    assert told(*four) == ["+OK"] * 4
    assert [asking.together(name) for name in "abcd"] == [3, 3, 1, 4]


def test_only_requests_of_the_same_shape_are_joined(asking: Asking) -> None:
    asking.store("rows", "BATCHSIZE", 8)
    with asking.busy():
        wide = [asking.ask("a", shape=(2, 3)), asking.ask("b", shape=(1, 4)), asking.ask("c", shape=(1, 3))]
        alone = [asking.ask("none", shape=(0, 3))]
    assert told(*wide, *alone) == ["+OK"] * 4
    assert [int(get(asking.client, f"{name}.rows").flat[0]) for name in "abc"] == [3, 1, 3]
    assert get(asking.client, "a.same").shape == (2, 3)


def test_a_request_waits_until_minbatchsize_is_there(asking: Asking) -> None:
    asking.store("rows", "BATCHSIZE", 8, "MINBATCHSIZE", 3)
    two = [asking.ask("a", 1), asking.ask("b", 2)]
    assert statistics(asking.client)["jobs_queued"] == statistics(asking.client)["jobs_running"] == 0
    with pytest.raises(BlockingIOError):
        two[0].recv(1, socket.MSG_DONTWAIT)
    put(asking.client, "c", floats([3]))
    words = ("AI.MODELEXECUTE", "m", "INPUTS", 1, "c", "OUTPUTS", 2, "c.same", "c.rows")
    assert asking.client.execute_command(*words) == b"OK"
    assert told(*two) == ["+OK"] * 2
    assert [asking.together(name) for name in "abc"] == [3, 3, 3]


def test_a_batch_that_the_next_request_does_not_fit_into_waits_no_longer(asking: Asking) -> None:
    asking.store("rows", "BATCHSIZE", 4, "MINBATCHSIZE", 4)
    first = asking.ask("a", 1, 2, 3)
    asking.waiting = 0  # whom the second one lets begin
    second = asking.ask("b", 4, 5, 6)
    assert told(first) == ["+OK"] and asking.together("a") == 3
    asking.client.execute_command("DEL", "m")  # nobody will fill the other one any more
    assert told(second) == ["+OK"] and asking.together("b") == 3


def test_minbatchtimeout_ends_the_wait(asking: Asking) -> None:
    asking.store("rows", "BATCHSIZE", 8, "MINBATCHSIZE", 8, "MINBATCHTIMEOUT", 20)
    put(asking.client, "a", floats([1]))
    words = ("AI.MODELEXECUTE", "m", "INPUTS", 1, "a", "OUTPUTS", 2, "a.same", "a.rows")
    for _ in range(2):
        assert asking.client.execute_command(*words) == b"OK" and asking.together("a") == 1


def test_who_leaves_or_is_timed_out_takes_his_rows_along(asking: Asking) -> None:
    asking.store("rows", "BATCHSIZE", 8, "MINBATCHSIZE", 3, "MINBATCHTIMEOUT", FOREVER_MS)
    leaving = asking.ask("a", 1)
    late = asking.ask("b", 2, options=("TIMEOUT", 30))
    assert told(late) == ["+TIMEDOUT"]
    leaving.close()
    until(lambda: asking.client.info("clients")["blocked_clients"] == 0, what="the client's end")
    asking.waiting = 0
    two = [asking.ask("c", 3), asking.ask("d", 4)]
    put(asking.client, "e", floats([5]))
    words = ("AI.MODELEXECUTE", "m", "INPUTS", 1, "e", "OUTPUTS", 2, "e.same", "e.rows")
    assert asking.client.execute_command(*words) == b"OK" and told(*two) == ["+OK"] * 2
    assert [asking.together(name) for name in "cde"] == [3, 3, 3]
    assert not asking.client.exists("a.same", "b.same")


def test_a_replaced_model_leaves_nobody_waiting(asking: Asking) -> None:
    asking.store("rows", "BATCHSIZE", 8, "MINBATCHSIZE", 8)
    waiting = asking.ask("a", 1, 2)
    asking.store("total")
    assert told(waiting) == ["+OK"] and list(get(asking.client, "a.same")) == [1, 2]


def test_one_request_does_not_fail_for_another(asking: Asking) -> None:
    asking.store("picky", "BATCHSIZE", 8)
    with asking.busy():
        good, bad, fewer = asking.ask("a", 1, 2), asking.ask("b", 0), asking.ask("c", 3, outputs=1)
    assert told(good) == ["+OK"] and asking.together("a") == 2
    assert "no zeros" in told(bad)[0] and "returned 2 tensors; OUTPUTS names 1 keys" in told(fewer)[0]
    assert not asking.client.exists("b.same", "c.same")


def test_what_cannot_be_split_is_computed_alone(asking: Asking) -> None:
    asking.store("total", "BATCHSIZE", 8)
    for _ in range(2):
        with asking.busy():
            two = [asking.ask("a", 1, 2), asking.ask("b", 3)]
        assert told(*two) == ["+OK"] * 2
        assert (get(asking.client, "a.same"), asking.together("a"), asking.together("b")) == (3, 2, 1)
        asking.waiting = 0


def test_who_waits_to_be_joined_is_answered_when_that_turns_out_impossible(asking: Asking) -> None:
    asking.store("total", "BATCHSIZE", 2, "MINBATCHSIZE", 2)
    with asking.busy():
        three = [asking.ask("a", 1), asking.ask("b", 2), asking.ask("c", 3)]  # the third waits for a fourth
    assert told(*three) == ["+OK"] * 3


def test_running_requests_that_nobody_waits_for_end(asking: Asking) -> None:
    asking.store("forever", "BATCHSIZE", 8, "MINBATCHSIZE", 2)
    two = [asking.ask("a", 1), asking.ask("b", 2, options=("TIMEOUT", 50))]
    assert told(two[1]) == ["+TIMEDOUT"]
    assert statistics(asking.client)["jobs_running"] == 1
    two[0].close()
    until(lambda: statistics(asking.client)["jobs_running"] == 0, what="the batch's end")


def test_a_server_with_waiting_requests_ends(torch_module: Path, archives: dict[str, bytes]) -> None:
    with starting(torch_module) as start, contextlib.ExitStack() as ends:
        asking = Asking(start(), archives, ends)
        asking.store("rows", "BATCHSIZE", 8, "MINBATCHSIZE", 8)
        asking.ask("a", 1)
        assert asking.server.stop() == 0


def test_models_that_were_stored_with_batches_do_not_wait_in_a_dag(asking: Asking) -> None:
    asking.store("rows", "BATCHSIZE", 8, "MINBATCHSIZE", 8)
    put(asking.client, "a", floats([1]))
    execute = ("|>", "AI.MODELEXECUTE", "m", "INPUTS", 1, "a", "OUTPUTS", 2, "same", "rows")
    assert asking.client.execute_command("AI.DAGEXECUTE", "LOAD", 1, "a", *execute) == [b"OK"]
