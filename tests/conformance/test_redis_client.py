"""The zero-copy client: broken, frozen and refused connections, time-outs, TLS, and errors that keep secrets."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from crossover.errors import ConfigError, Missing, Refused, Unavailable
from crossover.local.servers import RedisServer
from crossover.stores.encoding import Vector, VectorKind
from crossover.stores.protocols import Traffic
from crossover.stores.redis_client import RedisAddress, RedisClient, allocate_memory, parse_address
from crossover.stores.redis_tensors import RedisTensorStore
from tests.conformance.conftest import MakeTensors
from tests.conformance.servers import IN_MEMORY, PASSWORD, Proxy, TlsFiles, TlsRedisServer, module, self_made
from tests.conformance.vectors import vector

SCHEMES = ("redis", "rediss")


ClientAt = Callable[..., RedisClient]


@pytest.fixture
def client_at() -> Iterator[ClientAt]:
    """Yield a function that makes clients for an address; they are closed when the test ends."""
    with ExitStack() as closing:

        def made(url: str, *, password: str | None = PASSWORD, certificate: str | None = None, **options: float) -> Any:
            """Make a client for the address and note it for closing."""
            client = RedisClient(parse_address(url, password=password, certificate=certificate), **options)
            closing.callback(client.close)
            return client

        yield made


def store_at(client: RedisClient) -> RedisTensorStore:
    """Return a tensor store over the client, whose keys live for ten minutes."""
    return RedisTensorStore(client, Traffic(), time_to_live_s=600)


def proxied(scheme: str, redis: TlsRedisServer) -> Proxy:
    """Return a new proxy to the server's port for the scheme: TLS for `rediss`, else plain."""
    return Proxy(redis.tls_port if scheme == "rediss" else redis.port)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_connection_that_died_while_idle_is_replaced(
    client_at: ClientAt, redis: TlsRedisServer, tls: TlsFiles, run: str, scheme: str
) -> None:
    """Check that a broken idle connection is replaced unnoticed, as a frozen function finds one when it wakes."""
    with proxied(scheme, redis) as proxy:
        client = client_at(f"{scheme}://127.0.0.1:{proxy.port}", certificate=tls.certificate.read_text())
        store = store_at(client)
        for turn in range(3):
            store.put(f"{run}/{turn}", vector(turn))
            assert store.exists(f"{run}/{turn}")
            proxy.cut()  # what a frozen function finds when it wakes
        assert store.get(f"{run}/2") == vector(2)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_reused_connection_that_breaks_midway_sends_again(
    client_at: ClientAt, redis: TlsRedisServer, tls: TlsFiles, run: str, scheme: str
) -> None:
    """Check that a command is sent again if a used connection breaks in its middle."""
    data = bytes(range(256)) * 20_000
    with proxied(scheme, redis) as proxy:
        client = client_at(f"{scheme}://127.0.0.1:{proxy.port}", certificate=tls.certificate.read_text())
        store = store_at(client)
        store.put(f"{run}/before", vector(1))
        proxy.cut_after(1_000_000)
        assert store.create(f"{run}/v", Vector(VectorKind.SPARSE, memoryview(data), dtype="uint8")) is True
        assert store.get(f"{run}/v").data == data


def test_a_new_connection_that_breaks_is_unavailable(client_at: ClientAt, redis: TlsRedisServer, run: str) -> None:
    """Check that a command raises Unavailable if a new connection breaks in its middle."""
    with Proxy(redis.port) as proxy:
        client = client_at(f"redis://127.0.0.1:{proxy.port}")
        proxy.cut_after(1_000_000)
        with pytest.raises(Unavailable, match=f"AI.TENSORSET {run}/v"):
            store_at(client).put(f"{run}/v", Vector(VectorKind.SPARSE, memoryview(bytes(5_000_000)), dtype="uint8"))


def test_an_idle_connection_is_asked_before_it_is_used(client_at: ClientAt, redis: TlsRedisServer) -> None:
    """Check that a connection that was idle is tested by PING before a command."""
    client = client_at(redis.url, idle_s=0.0)
    client.command("CONFIG", "RESETSTAT")
    for _ in range(3):
        client.command("EXISTS", "nothing")
    stats = client.command("INFO", "commandstats").decode()
    assert int(stats.partition("cmdstat_ping:calls=")[2].partition(",")[0]) >= 3


def test_connections_are_reused(client_at: ClientAt, redis: TlsRedisServer, run: str) -> None:
    """Check that successive commands use one connection."""
    with Proxy(redis.port) as proxy:
        client = client_at(f"redis://127.0.0.1:{proxy.port}")
        store = store_at(client)
        for turn in range(20):
            store.put(f"{run}/{turn}", vector(turn))
        assert proxy.connections == 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_silent_server_ends_the_wait_and_is_waited_for_once(
    client_at: ClientAt, tls: TlsFiles, redis: TlsRedisServer, scheme: str
) -> None:
    """Check that a command raises Unavailable after its timeout, without a second attempt."""
    # BLPOP is a server that takes its time
    with proxied(scheme, redis) as proxy:
        url = f"{scheme}://127.0.0.1:{proxy.port}"
        client = client_at(url, certificate=tls.certificate.read_text(), timeout_s=0.2)
        with pytest.raises(Unavailable, match="BLPOP empty"):
            client.command("BLPOP", "empty", 30, keys=["empty"])
        assert proxy.connections == 1


@pytest.mark.parametrize("kind", ["plain", "tls", "socket"])
def test_payloads_travel_without_being_joined(
    client_at: ClientAt, redis: TlsRedisServer, tls: TlsFiles, run: str, kind: str
) -> None:
    """Check that a large value is received in the memory that the caller provides."""
    url = {"plain": redis.url, "tls": redis.tls_url, "socket": redis.socket_url}[kind]
    client = client_at(url, certificate=tls.certificate.read_text())
    payload = bytearray(range(256)) * 100_000
    client.command("SET", f"{run}/v", memoryview(payload))
    into = bytearray(len(payload))
    reply = client.command("GET", f"{run}/v", place=lambda bytes_: memoryview(into))
    assert reply.obj is into
    assert into == payload
    assert client.command("MSET", f"{run}/a", memoryview(b"1"), f"{run}/b", memoryview(b""), f"{run}/c", 0.1) == "OK"
    assert client.command("MGET", f"{run}/a", f"{run}/b", f"{run}/c", f"{run}/d") == [b"1", b"", b"0.1", None]


def test_a_socket_that_takes_little_at_a_time(
    client_at: ClientAt, redis: TlsRedisServer, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that large values are sent and received whole in many small pieces."""

    class Stingy(socket.socket):
        """A socket that sends at most 1000 bytes and receives at most 700 at a time."""

        def sendmsg(self, buffers: Any, *_: Any) -> int:
            """Send the first 1000 bytes at most, and return how many were sent."""
            return self.send(b"".join(buffers)[:1_000])

        def recv_into(self, buffer: Any, *_: Any) -> int:
            """Receive 700 bytes at most, and return how many were received."""
            return super().recv_into(buffer[:700])

    connect = RedisAddress.connect
    monkeypatch.setattr(RedisAddress, "connect", lambda *a: Stingy(fileno=connect(*a).detach()))
    client = client_at(redis.url)
    payload = bytes(range(250)) * 100
    client.command("MSET", f"{run}/a", memoryview(payload), f"{run}/b", memoryview(payload[:1_500]))
    for key, expected in (("a", payload), ("b", payload[:1_500])):
        assert client.command("GET", f"{run}/{key}", place=allocate_memory) == expected


def test_errors_inside_an_array_do_not_break_the_stream(client_at: ClientAt, redis: TlsRedisServer, run: str) -> None:
    """Check that an error inside a transaction's answer is returned in its place, and that the connection can be used afterwards."""
    client = client_at(redis.url)
    client.command("SET", f"{run}/text", "a")
    client.command("MULTI")
    client.command("INCR", f"{run}/text")
    client.command("SET", f"{run}/text", "b")
    first, second = client.command("EXEC")
    assert isinstance(first, Exception)
    assert second == "OK"
    assert client.command("GET", f"{run}/text") == b"b"


def test_errors_name_command_and_key_but_neither_payload_nor_password(
    client_at: ClientAt, redis: TlsRedisServer, run: str
) -> None:
    """Check that errors contain the command and the key, but neither payload nor password."""
    client = client_at(redis.url)
    secret = memoryview(b"secret-payload")
    client.command("LPUSH", f"{run}/list", "x")
    with pytest.raises(Refused, match=f"AI.TENSORSET {run}/list") as wrong_type:
        client.command("AI.TENSORSET", f"{run}/list", "FLOAT", 1, "NX", "BLOB", secret, keys=[f"{run}/list"])
    with pytest.raises(Refused, match=r"NO\.SUCH: .*is the tensor module loaded") as unknown:
        client.command("NO.SUCH", secret)
    with pytest.raises(Missing) as missing:
        client.command("TENSOR.NORM", f"{run}/nothing", keys=[f"{run}/nothing"])
    assert missing.value.key == f"{run}/nothing"
    for password in ("not-the-password", None):
        stranger = client_at(redis.url, password=password)
        with pytest.raises(Refused, match="password") as refused:
            stranger.command("GET", "k")
        assert "not-the-password" not in str(refused.value)
    assert "secret" not in str(wrong_type.value) + str(unknown.value)
    assert PASSWORD not in repr(client.address)


def test_a_server_without_a_password_refuses_one(client_at: ClientAt, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Check that a server without a password can be used without one, and that one is refused."""
    with RedisServer(tmp_path_factory.mktemp("open"), settings=IN_MEMORY) as server:
        client = client_at(server.url, password=None)
        assert client.command("PING") == "PONG"
        with pytest.raises(Refused, match="password"):
            client_at(server.url).command("PING")


def test_another_certificate_is_refused(
    client_at: ClientAt, redis: TlsRedisServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Check that a server is refused whose certificate is not the given one."""
    other = self_made(tmp_path_factory.mktemp("other")).certificate.read_text()
    for certificate in (other, None):
        client = client_at(redis.tls_url, certificate=certificate)
        with pytest.raises(Refused, match="certificate"):
            client.command("PING")


def test_a_certificate_of_another_host_is_refused(client_at: ClientAt, redis: TlsRedisServer, tls: TlsFiles) -> None:
    """Check that a server is refused whose certificate is for another host."""
    with Proxy(redis.tls_port, host="127.0.0.2") as proxy:
        client = client_at(f"rediss://127.0.0.2:{proxy.port}", certificate=tls.certificate.read_text())
        with pytest.raises(Refused, match="certificate"):
            client.command("PING")


def test_no_server_is_unavailable(client_at: ClientAt, deserted_port: int) -> None:
    """Check that an address without a server raises Unavailable."""
    for url in (f"redis://127.0.0.1:{deserted_port}", "unix:///nowhere/redis.sock"):
        with pytest.raises(Unavailable, match="no connection"):
            client_at(url).command("PING")


@pytest.mark.parametrize("url", ["http://host", "redis://", "redis://host:port", "redis://:secret@host"])
def test_bad_urls_are_refused_without_their_secret(url: str) -> None:
    """Check that a bad URL is refused with an error that does not contain its password."""
    with pytest.raises(ConfigError) as caught:
        parse_address(url)
    assert "secret" not in str(caught.value)


def test_what_was_acknowledged_survives_a_crash(client_at: ClientAt, folder: Path, run: str) -> None:
    """Check that a killed and restarted server still has all vectors that it acknowledged."""
    with RedisServer(folder / "crash", password=PASSWORD, module=module("core", "tensors.so")) as server:
        client = client_at(server.url)
        store = store_at(client)
        model, velocity = vector(*range(1000), kind=VectorKind.MODEL, samples=5), vector(0.1, kind=VectorKind.VELOCITY)
        store.create(f"{run}/gradient", vector(1, 2, samples=3))
        store.create_together([(f"{run}/m", model), (f"{run}/v", velocity)])
        client.command("TENSOR.MEAN", 1, f"{run}/gradient", "OUT", f"{run}/mean", "NX", "PX", 600_000)
        server.kill()
        with pytest.raises(Unavailable):
            store.get(f"{run}/m")
        server.start()
        assert store.get(f"{run}/gradient") == store.get(f"{run}/mean") == vector(1, 2, samples=3)
        assert store.get(f"{run}/m", kind=VectorKind.MODEL) == model
        assert store.get(f"{run}/v", kind=VectorKind.VELOCITY) == velocity
        assert 0 < client.command("PTTL", f"{run}/mean") <= 600_000
        assert store.create(f"{run}/m", vector(9)) is False


def test_threads_get_connections_of_their_own(make_tensors: MakeTensors, run: str) -> None:
    """Check that a thread whose command waits holds up no other thread."""
    store = make_tensors("redis", Traffic())
    client = store.client  # type: ignore[attr-defined]
    waiting = threading.Thread(target=client.command, args=("BLPOP", f"{run}/list", 10))
    waiting.start()
    store.put(f"{run}/v", vector(1))  # not held up by the one that waits
    client.command("LPUSH", f"{run}/list", "x")
    waiting.join(10)
    assert not waiting.is_alive()


@pytest.mark.parametrize("bytes_", [0, 1, 4 * 2**20, 10_000_001])
def test_new_memory_has_the_length_and_can_be_written(bytes_: int) -> None:
    """Check that allocated memory has the length and can be written to."""
    memory = allocate_memory(bytes_)
    assert memory.nbytes == bytes_
    memory[:] = b"\xff" * bytes_
