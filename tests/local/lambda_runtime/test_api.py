"""The end of the Runtime API: connections are closed in order, whatever they are in the middle of."""

import asyncio
import gc
import socket
import warnings

import pytest

from crossover.local import lambdas
from crossover.local.lambdas import Handout, RuntimeApi


class Silent:
    """An environment that never gets an invocation."""

    async def take(self) -> Handout | None:
        """Raise AssertionError: nobody may ask for an invocation."""
        raise AssertionError("nobody asks")

    def record_answer(self, request_id: str, body: bytes, *, error: bool) -> None:
        """Do nothing."""

    def record_init_error(self, body: bytes) -> None:
        """Do nothing."""


@pytest.fixture(scope="module", autouse=True)
def _only_what_is_new_is_collected() -> None:
    """Exempt all objects that exist from garbage collection. To collect a hundred times through everything that a process of many tests has
    imported would take minutes.
    """
    gc.collect()
    gc.freeze()


def connect(address: str) -> socket.socket:
    """Return a connection to the host and port of an address `host:port/path`."""
    host, port = address.partition("/")[0].split(":")
    return socket.create_connection((host, int(port)))


def is_closed(connection: socket.socket) -> bool:
    """Return True if the other end closes or resets the connection within 60 seconds, False if it sends a byte."""
    connection.settimeout(60)
    try:
        return not connection.recv(1)
    except ConnectionError:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("said", [b"", b"GET /2018-06-01/runtime/no"])
def test_a_connection_that_is_open_at_the_end_is_closed(said: bytes) -> None:
    """Close the server while connections are open, fifty times: both are closed, without a warning. `said`: what a runtime that is killed
    in the middle of a request has sent.
    """
    for _ in range(50):  # some of them are just being accepted
        api = RuntimeApi()
        with connect(api.open(Silent())) as client, connect(api.open(Silent())) as other:
            client.sendall(said)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                api.close()
                gc.collect()  # what was left open says so
            assert [is_closed(each) for each in (client, other)] == [True, True]


def test_an_answered_connection_is_closed_too() -> None:
    """Answer a request, then close the server: the open connection causes no warning."""
    api = RuntimeApi()
    address = api.open(Silent())
    with connect(address) as client:
        client.settimeout(60)
        client.sendall(f"GET /{address.partition('/')[2]}/elsewhere HTTP/1.1\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 404")
        api.close()
        gc.collect()


def test_a_connection_that_comes_with_its_environments_end_is_closed() -> None:
    """Connect to an environment's address while it is released, fifty times: nothing is left open."""
    api = RuntimeApi()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(50):
            address = api.open(Silent())
            with connect(address):
                api.release(address)
        api.close()
        gc.collect()


@pytest.mark.parametrize("turns", range(4))
def test_a_connection_that_comes_while_its_server_is_released_is_closed(turns: int) -> None:
    """Connect `turns` turns of the event loop after a server's close has begun: no connection is left open. asyncio forgets one that was
    accepted a turn before.
    """

    async def released() -> None:
        """Close a server and connect to it after `turns` turns of the event loop."""
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        closing = asyncio.get_running_loop().create_task(lambdas._close_server(server))
        for _ in range(turns):
            await asyncio.sleep(0)
        with socket.create_connection(server.sockets[0].getsockname()):
            await closing
            for _ in range(3):
                await asyncio.sleep(0)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(released())
        gc.collect()
    assert [str(each.message) for each in told if issubclass(each.category, ResourceWarning)] == []


@pytest.mark.parametrize(
    "said",
    ["GET /2018-06-01/runtime/invocation/next HTTP/1.1", "GET", "POST /{guess}/2018-06-01/runtime/init/error HTTP/1.1"],
)
def test_who_does_not_know_the_path_is_refused(said: str) -> None:
    """Send requests without the secret path: each is answered 403 and the connection closed, without reading the body or asking the
    environment.
    """
    api = RuntimeApi()
    with connect(api.open(Silent())) as client:
        client.settimeout(60)
        client.sendall(said.format(guess="0" * 32).encode() + b"\r\nContent-Length: 1000000000\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 403") and is_closed(client)
    api.close()
