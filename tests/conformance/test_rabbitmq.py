"""What only a broker can do to a bus: break connections, restart, refuse a login, take nothing more."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pika
import pika.exceptions as amqp
import pytest

from crossover import runtime
from crossover.errors import ConfigError, Refused, Unavailable
from crossover.local import servers
from crossover.stores import connecting
from crossover.stores.protocols import Traffic
from crossover.stores.rabbitmq import RabbitMessageBus
from tests.clocks import Passing
from tests.conformance.servers import PASSWORD, USERNAME, Proxy, TlsFiles, TlsRabbitServer, self_made


def bus_at(url: str, certificate: str | None = None, password: str = PASSWORD) -> RabbitMessageBus:
    """Return a message bus for the broker at the address."""
    return connecting.open_message_bus(
        url, username=USERNAME, password=password, certificate=certificate, traffic=Traffic()
    )


def test_broken_connections_lose_nothing(rabbit: TlsRabbitServer, run: str) -> None:
    """Check that each operation works after its connection was broken, and that nothing is lost."""
    with Proxy(rabbit.port) as proxy:
        bus = bus_at(f"amqp://127.0.0.1:{proxy.port}")
        bus.declare(mailboxes=[f"{run}/m"], barriers=[(f"{run}/b", 2)])
        bus.replace(f"{run}/m", b"2")
        proxy.cut()
        bus.replace(f"{run}/m", b"3")
        proxy.cut()
        assert bus.peek(f"{run}/m") == b"3"
        proxy.cut()
        bus.arrive(f"{run}/b", round=1, member=1)
        proxy.cut()
        assert bus.list_arrived(f"{run}/b", round=1, reader=0) == {1}
        assert proxy.connections >= 5
        bus.remove(mailboxes=[f"{run}/m"], barriers=[(f"{run}/b", 2)])
        bus.close()


def test_a_message_that_breaks_off_is_sent_again(rabbit: TlsRabbitServer, run: str) -> None:
    """Check that a message whose connection breaks in its middle is sent again."""
    with Proxy(rabbit.port) as proxy:
        bus = bus_at(f"amqp://127.0.0.1:{proxy.port}")
        bus.declare(mailboxes=[f"{run}/m"])
        proxy.cut_after(1_000_000)
        bus.replace(f"{run}/m", bytes(5_000_000))
        assert bus.peek(f"{run}/m") == bytes(5_000_000)
        bus.remove(mailboxes=[f"{run}/m"])
        bus.close()


@pytest.mark.slow
def test_a_restarted_broker_has_kept_everything(rabbit: TlsRabbitServer, run: str) -> None:
    """Check that a restarted broker still has messages and arrivals."""
    bus = bus_at(rabbit.url)
    bus.declare(mailboxes=[f"{run}/m"], barriers=[(f"{run}/b", 2)])
    bus.replace(f"{run}/m", b"2")
    bus.arrive(f"{run}/b", round=1, member=1)
    rabbit.stop()
    rabbit.start()
    assert bus.peek(f"{run}/m") == b"2"
    assert bus.list_arrived(f"{run}/b", round=1, reader=0) == {1}
    bus.remove(mailboxes=[f"{run}/m"], barriers=[(f"{run}/b", 2)])
    bus.close()


def test_a_wrong_password_is_refused_and_not_repeated(rabbit: TlsRabbitServer) -> None:
    """Check that a wrong password is refused with an error that does not contain it."""
    with pytest.raises(Refused, match="password was refused") as caught:
        bus_at(rabbit.url, password="not-the-password").replace("m", b"")
    assert "not-the-password" not in str(caught.value)


def test_another_certificate_is_refused(
    rabbit: TlsRabbitServer, tls: TlsFiles, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Check that a broker is refused whose certificate is not the given one."""
    other = self_made(tmp_path_factory.mktemp("other"))
    for certificate in (None, other.certificate.read_text()):
        with pytest.raises(Refused, match="certificate"):
            bus_at(rabbit.tls_url, certificate).replace("m", b"")


def test_a_certificate_of_another_host_is_refused(rabbit: TlsRabbitServer, tls: TlsFiles) -> None:
    """Check that a broker is refused whose certificate is for another host."""
    with Proxy(rabbit.tls_port, host="127.0.0.2") as proxy, pytest.raises(Refused, match="certificate"):
        bus_at(f"amqps://127.0.0.2:{proxy.port}", tls.certificate.read_text()).replace("m", b"")


def test_no_broker_is_unavailable(deserted_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that an address without a broker raises Unavailable with the address."""
    monkeypatch.setattr(runtime, "BROKER", replace(runtime.BROKER, within_s=0.2))
    with pytest.raises(Unavailable, match=r"amqp://127\.0\.0\.1"):
        bus_at(f"amqp://127.0.0.1:{deserted_port}").replace("m", b"")


@pytest.mark.parametrize("url", ["http://host", "amqp://", "amqp://host:port", "amqps://user:secret@host:1"])
def test_bad_urls_are_refused_without_their_secret(url: str) -> None:
    """Check that a bad URL is refused with an error that does not contain its password."""
    with pytest.raises(ConfigError) as caught:
        bus_at(url)
    assert "secret" not in str(caught.value)


def away(monkeypatch: pytest.MonkeyPatch, clock: Passing, *, until_s: float, each_s: float = 0.0) -> None:
    """Let every attempt to connect to the broker fail until `until_s` on the clock; each attempt takes `each_s`."""

    def attempt(bus: RabbitMessageBus, work: Any) -> int:
        """Let `each_s` pass, then return 1, or raise a connection error while the broker is away."""
        clock.now_s += each_s
        if clock.now_s < until_s:
            raise amqp.AMQPConnectionError
        return 1

    monkeypatch.setattr(RabbitMessageBus, "_attempt", attempt)


def test_a_broker_that_is_away_for_half_a_minute_costs_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that no operation fails if the broker is away for 30 seconds, as long as Amazon MQ's maintenance takes."""
    clock, bus = Passing(), bus_at("amqp://127.0.0.1:1")
    away(monkeypatch, clock, until_s=30.0)
    with runtime.use(clock):
        for _ in range(100):  # the pauses are drawn
            clock.now_s = 0.0
            assert bus._run_on_channel("q", lambda channel: 0) == 1


@pytest.mark.parametrize("each_s", [0.0, 1.0, 20.0, 70.0])
def test_a_broker_that_stays_away_is_asked_for_a_minute(monkeypatch: pytest.MonkeyPatch, each_s: float) -> None:
    """Check that a broker is tried for a minute before it is unavailable, and twice at least, however long an attempt takes."""
    clock, bus = Passing(), bus_at("amqp://127.0.0.1:1")
    away(monkeypatch, clock, until_s=7200.0, each_s=each_s)
    with runtime.use(clock), pytest.raises(Unavailable):
        bus._run_on_channel("q", lambda channel: 0)
    assert 60.0 <= clock.now_s - each_s <= 62.0 + each_s
    assert len(clock.slept_s) >= 1


@pytest.fixture
def short_of_disk(rabbit: TlsRabbitServer) -> Iterator[TlsRabbitServer]:
    """Yield the broker while it takes its disk for full, so that it accepts no messages from publishers."""
    assert rabbit._process is not None
    environment = dict(
        each.split("=", 1) for each in Path(f"/proc/{rabbit._process.pid}/environ").read_text().split("\0") if each
    )

    def limit(free: str) -> None:
        """Set the free disk space below which the broker takes no messages."""
        command = [
            Path(servers.require_program(servers.RABBITMQ)).with_name("rabbitmqctl"),
            "set_disk_free_limit",
            free,
        ]
        subprocess.run(command, env=environment, check=True, capture_output=True)

    limit("99999GB")
    yield rabbit
    limit("50MB")


@pytest.mark.slow
def test_a_broker_that_takes_nothing_more_is_unavailable_at_once(short_of_disk: TlsRabbitServer, run: str) -> None:
    """Check that a broker with a full disk is unavailable without a second attempt."""
    connections = 0

    def connect(parameters: pika.ConnectionParameters) -> Any:
        """Connect to the broker; fail at the second connection, or if the timeout for a blocked one is above 5 seconds."""
        nonlocal connections
        connections += 1
        assert connections == 1, "asked again"
        assert parameters.blocked_connection_timeout <= 5
        return pika.BlockingConnection(parameters)

    bus = RabbitMessageBus(short_of_disk.url, username=USERNAME, password=PASSWORD, traffic=Traffic(), connect=connect)
    bus.declare(mailboxes=[f"{run}/m"])
    with pytest.raises(Unavailable, match=f"{run}/m: the broker takes no messages: .* disk or memory"):
        bus.replace(f"{run}/m", b"1")
