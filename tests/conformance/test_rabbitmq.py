"""What only a broker can do to a bus: break connections, restart, refuse a login."""

from typing import Any

import pika.exceptions as amqp
import pytest

from crossover import runtime
from crossover.dataplane import connecting
from crossover.dataplane.rabbitmq import RabbitMessageBus
from crossover.dataplane.traffic import Traffic
from crossover.errors import ConfigError, Refused, Unavailable
from crossover.local.rabbitmq_server import RabbitServer
from crossover.local.tls import TlsFiles, self_made
from tests.conformance.servers import PASSWORD, USERNAME, Proxy


def bus_at(url: str, certificate: str | None = None, password: str = PASSWORD) -> RabbitMessageBus:
    return connecting.message_bus(url, username=USERNAME, password=password, certificate=certificate, traffic=Traffic())


def test_broken_connections_lose_nothing(rabbit: RabbitServer, run: str) -> None:
    with Proxy(rabbit.port) as proxy:
        bus = bus_at(f"amqp://127.0.0.1:{proxy.port}")
        bus.declare(queues=[f"{run}/q"], mailboxes=[f"{run}/m"], barriers=[(f"{run}/b", 2)])
        bus.publish(f"{run}/q", b"1")
        proxy.cut()
        bus.publish(f"{run}/q", b"2")
        bus.replace(f"{run}/m", b"3")
        proxy.cut()
        assert bus.peek(f"{run}/m") == b"3"
        proxy.cut()
        bus.arrive(f"{run}/b", round=1, member=1)
        proxy.cut()
        assert bus.arrived(f"{run}/b", round=1, reader=0) == {1}
        proxy.cut()
        assert [bus.receive(f"{run}/q", timeout_s=5) for _ in range(2)] == [b"1", b"2"]
        assert proxy.connections >= 5
        bus.remove(queues=[f"{run}/q"], mailboxes=[f"{run}/m"], barriers=[(f"{run}/b", 2)])
        bus.close()


def test_a_message_that_breaks_off_is_sent_again(rabbit: RabbitServer, run: str) -> None:
    with Proxy(rabbit.port) as proxy:
        bus = bus_at(f"amqp://127.0.0.1:{proxy.port}")
        bus.declare(queues=[f"{run}/q"])
        proxy.cut_after(1_000_000)
        bus.publish(f"{run}/q", bytes(5_000_000))
        assert bus.receive(f"{run}/q", timeout_s=5) == bytes(5_000_000)
        bus.remove(queues=[f"{run}/q"])
        bus.close()


def test_a_connection_lost_while_waiting_is_made_again(rabbit: RabbitServer, run: str) -> None:
    with Proxy(rabbit.port) as proxy:
        bus, sender = bus_at(f"amqp://127.0.0.1:{proxy.port}"), bus_at(rabbit.url)
        bus.declare(queues=[f"{run}/q"])
        proxy.cut_after(200)  # the basic.get and the consumer's first frames: breaks in the midst of the wait
        sender.publish(f"{run}/q", b"after")
        assert bus.receive(f"{run}/q", timeout_s=20) == b"after"
        bus.remove(queues=[f"{run}/q"])
        bus.close()
        sender.close()


def test_a_restarted_broker_has_kept_everything(rabbit: RabbitServer, run: str) -> None:
    bus = bus_at(rabbit.url)
    bus.declare(queues=[f"{run}/q"], mailboxes=[f"{run}/m"], barriers=[(f"{run}/b", 2)])
    bus.publish(f"{run}/q", b"1")
    bus.replace(f"{run}/m", b"2")
    bus.arrive(f"{run}/b", round=1, member=1)
    rabbit.stop()
    rabbit.start()
    assert bus.receive(f"{run}/q", timeout_s=5) == b"1"
    assert bus.peek(f"{run}/m") == b"2"
    assert bus.arrived(f"{run}/b", round=1, reader=0) == {1}
    bus.remove(queues=[f"{run}/q"], mailboxes=[f"{run}/m"], barriers=[(f"{run}/b", 2)])
    bus.close()


def test_a_wrong_password_is_refused_and_not_repeated(rabbit: RabbitServer) -> None:
    with pytest.raises(Refused, match="password was refused") as caught:
        bus_at(rabbit.url, password="not-the-password").publish("q", b"")
    assert "not-the-password" not in str(caught.value)


def test_another_certificate_is_refused(
    rabbit: RabbitServer, tls: TlsFiles, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = self_made(tmp_path_factory.mktemp("other"))
    for certificate in (None, other.certificate.read_text()):
        with pytest.raises(Refused, match="certificate"):
            bus_at(rabbit.tls_url, certificate).publish("q", b"")


def test_a_certificate_of_another_host_is_refused(rabbit: RabbitServer, tls: TlsFiles) -> None:
    with Proxy(rabbit.tls_port, host="127.0.0.2") as proxy, pytest.raises(Refused, match="certificate"):
        bus_at(f"amqps://127.0.0.2:{proxy.port}", tls.certificate.read_text()).publish("q", b"")


def test_no_broker_is_unavailable(deserted_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossover.dataplane.rabbitmq._ATTEMPTS", 2)
    with pytest.raises(Unavailable, match=r"amqp://127\.0\.0\.1"):
        bus_at(f"amqp://127.0.0.1:{deserted_port}").publish("q", b"")


@pytest.mark.parametrize("url", ["http://host", "amqp://", "amqp://host:port", "amqps://user:secret@host:1"])
def test_bad_urls_are_refused_without_their_secret(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bus_at(url)
    assert "secret" not in str(caught.value)


def test_a_broker_that_is_away_for_half_a_minute_costs_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at Amazon MQ's maintenance; the clock goes by the pauses alone."""
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def attempt(bus: RabbitMessageBus, work: Any) -> int:
        if now_s < 30.0:
            raise amqp.AMQPConnectionError
        return 1

    monkeypatch.setattr(runtime, "sleep", sleep)
    monkeypatch.setattr(RabbitMessageBus, "_attempt", attempt)
    bus = bus_at("amqp://127.0.0.1:1")
    for _ in range(100):  # the pauses are drawn
        now_s = 0.0
        assert bus._do("q", lambda channel: 0) == 1
