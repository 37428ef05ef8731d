"""A MessageBus on RabbitMQ: mailboxes that keep the latest message, barriers of distinct members.

A message that one reader holds is invisible to the others, and a quorum queue (what Amazon MQ makes by default) may drop a message after 20
redeliveries: so every queue here is declared as a classic one, what is read to stay is requeued (never rejected), and who finds nothing
looks again for a while.
"""

import ssl
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pika
import pika.exceptions as amqp
from tenacity import retry_if_exception

from crossover import runtime
from crossover.data.protocols import Buffer, Traffic, arrival, checked, read_arrival, shown
from crossover.errors import ConfigError, Refused, Unavailable

T = TypeVar("T")

_BLOCKED_S = 1.0  # a broker that is short of disk or memory says so, and takes nothing until somebody has made room
_HEARTBEAT_S = 60
_CLASSIC = {"x-queue-type": "classic"}
_MAILBOX = {**_CLASSIC, "x-max-length": 1, "x-overflow": "drop-head"}
_EMPTY_S = 1.0  # how long a mailbox that shows nothing is looked at: another reader may hold its message
_HELD_S = 30.0  # the same for a mailbox that is known to hold one
_PERSISTENT = pika.BasicProperties(delivery_mode=2)


class RabbitMessageBus:
    """A broker's queues. Connections are made when needed, one per thread, and made again when they break; nothing is lost by that.

    What was sent when a connection broke is sent again: messages may come twice, which every protocol here bears. Raises Refused (not
    declared, wrong login, too long), Unavailable (no broker for about a minute, or one that takes
    nothing more).
    """

    def __init__(
        self,
        url: str,
        *,
        username: str,
        password: str,
        traffic: Traffic,
        certificate: str | None = None,
        connect: Callable[[Any], Any] = pika.BlockingConnection,
    ) -> None:
        self._parameters = _parameters(url, username=username, password=password, certificate=certificate)
        self._where = url
        self._connect = connect
        self._traffic = traffic
        self._own = runtime.local()
        self._connections: list[Any] = []
        self._known_filled: set[str] = set()

    def declare(self, *, mailboxes: Sequence[str] = (), barriers: Sequence[tuple[str, int]] = ()) -> None:
        def declare_all(channel: Any) -> None:
            for mailbox in mailboxes:
                channel.queue_declare(mailbox, durable=True, arguments=_MAILBOX)
            for barrier, members in barriers:
                channel.exchange_declare(barrier, exchange_type="fanout", durable=True)
                for member in range(members):
                    channel.queue_declare(_inbox(barrier, member), durable=True, arguments=_CLASSIC)
                    channel.queue_bind(_inbox(barrier, member), barrier)

        self._traffic.count("declare")
        self._do("declare", declare_all)

    def replace(self, mailbox: str, body: Buffer) -> None:
        self._send("replace", mailbox, checked(mailbox, body))
        self._known_filled.add(mailbox)

    def peek(self, mailbox: str) -> bytes | None:
        def look(channel: Any) -> bytes | None:
            method, _, body = channel.basic_get(mailbox)
            if method is None:
                return None
            channel.basic_nack(method.delivery_tag, requeue=True)
            return bytes(body)

        end_s = runtime.monotonic() + (_HELD_S if mailbox in self._known_filled else _EMPTY_S)
        pause_s = 0.002
        while (body := self._do(mailbox, look)) is None and runtime.monotonic() < end_s:
            runtime.sleep(runtime.uniform(0.0, pause_s))
            pause_s = min(2 * pause_s, 0.1)
        if body is not None:
            self._known_filled.add(mailbox)
        self._traffic.count("peek", bytes_in=len(body or b""))
        return body

    def arrive(self, barrier: str, *, round: int, member: int) -> None:
        self._send("arrive", "", arrival(round, member), exchange=barrier)

    def arrived(self, barrier: str, *, round: int, reader: int) -> frozenset[int]:
        inbox = _inbox(barrier, reader)

        received = 0

        def drain(channel: Any) -> frozenset[int]:
            nonlocal received
            members = set()
            held = None
            while (got := channel.basic_get(inbox))[0] is not None:
                received += len(got[2])
                of_round, member = read_arrival(got[2], queue=inbox)
                if of_round < round:
                    channel.basic_ack(got[0].delivery_tag)
                    continue
                held = got[0].delivery_tag
                if of_round == round:
                    members.add(member)
            if held is not None:  # all that are still held: back to their places
                channel.basic_nack(held, multiple=True, requeue=True)
            return frozenset(members)

        present = self._do(inbox, drain)
        self._traffic.count("arrived", bytes_in=received)
        return present

    def remove(self, *, mailboxes: Sequence[str] = (), barriers: Sequence[tuple[str, int]] = ()) -> None:
        def remove_all(channel: Any) -> None:
            for mailbox in mailboxes:
                channel.queue_delete(mailbox)
            for barrier, members in barriers:
                for member in range(members):
                    channel.queue_delete(_inbox(barrier, member))
                channel.exchange_delete(barrier)

        self._traffic.count("remove")
        self._do("remove", remove_all)

    def close(self) -> None:
        """Close every connection; the next call makes a new one. Not while other threads are using the bus."""
        connections, self._connections = self._connections, []
        self._own = runtime.local()
        for connection in connections:
            _close(connection)

    def _send(self, operation: str, queue: str, body: bytes, *, exchange: str = "") -> None:
        def send(channel: Any) -> None:
            # mandatory: a queue that nobody declared is an error, not a hole; confirmed: it is on the broker's disk
            channel.basic_publish(exchange, queue, body, properties=_PERSISTENT, mandatory=True)

        self._do(queue or exchange, send)
        self._traffic.count(operation, bytes_out=len(body))

    def _do(self, name: str, work: Callable[[Any], T]) -> T:
        """`work` on this thread's channel; after a broken connection once more on a new one."""
        try:
            result: T = runtime.BROKER.retrying(retry_if_exception(_may_pass))(self._attempt, work)
            return result
        except (amqp.ProbableAuthenticationError, amqp.ProbableAccessDeniedError):
            raise Refused(f"{self._where}: user name or password was refused") from None
        except amqp.UnroutableError:
            raise Refused(f"{name}: not declared; `initialise` declares what a run uses") from None
        except amqp.ChannelClosedByBroker as error:
            if error.reply_code == 404:
                raise Refused(f"{name}: not declared; `initialise` declares what a run uses") from None
            raise Refused(f"{name}: {error.reply_text}") from None
        except amqp.ConnectionBlockedTimeout:
            raise Unavailable(f"{name}: the broker takes no messages: it is short of disk or memory") from None
        except amqp.NackError:
            raise Unavailable(f"{name}: the broker could not take the message") from None
        except (amqp.AMQPError, OSError) as error:
            if _unverified(error):
                raise Refused(f"{self._where}: its certificate could not be verified: {error}") from None
            raise Unavailable(f"{self._where}: {name}: {str(error) or type(error).__name__}") from None

    def _attempt(self, work: Callable[[Any], T]) -> T:
        try:
            return work(self._channel())
        except BaseException:  # whatever is half done is undone by the broker when the channel's connection goes
            self._drop()
            raise

    def _channel(self) -> Any:
        """Return this thread's channel, in confirm mode; open one if there is none."""
        channel = getattr(self._own, "channel", None)
        if channel is None or not channel.is_open:
            self._drop()
            connection = self._connect(self._parameters)
            self._connections.append(connection)
            channel = connection.channel()
            channel.confirm_delivery()
            self._own.channel = channel
        return channel

    def _drop(self) -> None:
        channel = getattr(self._own, "channel", None)
        self._own.channel = None
        if channel is not None:
            if channel.connection in self._connections:
                self._connections.remove(channel.connection)
            _close(channel.connection)


def _may_pass(error: BaseException) -> bool:
    """Whether another attempt may fare better: connections break, a wrong password stays wrong, a full disk stays full."""
    lasting = amqp.ProbableAuthenticationError | amqp.ProbableAccessDeniedError | amqp.ConnectionBlockedTimeout
    if isinstance(error, lasting) or _unverified(error):
        return False
    return isinstance(error, amqp.AMQPConnectionError | amqp.ChannelWrongStateError | OSError)


def _unverified(error: BaseException) -> bool:
    """Whether the broker showed a certificate that it should not have: pika passes it on inside errors of its own."""
    return "CERTIFICATE_VERIFY_FAILED" in repr(error)


def _inbox(barrier: str, member: int) -> str:
    return f"{barrier}.{member}"


def _close(connection: Any) -> None:
    try:
        if connection.is_open:
            connection.close()
    except (amqp.AMQPError, OSError):  # it was broken already
        return


def _parameters(url: str, *, username: str, password: str, certificate: str | None) -> Any:
    """How to reach the broker. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("amqp", "amqps") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"broker URL {shown(url)!r}: expected amqp://host:port or amqps://host:port")
    if parts.password is not None:
        raise ConfigError(f"broker URL of {parts.hostname}: it carries a password; give the password by itself")
    encrypted = None
    if parts.scheme == "amqps":  # certificate and host name are verified
        encrypted = pika.SSLOptions(ssl.create_default_context(cadata=certificate), parts.hostname)
    return pika.ConnectionParameters(
        parts.hostname,
        port or (5671 if encrypted else 5672),
        credentials=pika.PlainCredentials(username, password, erase_on_connect=False),
        heartbeat=_HEARTBEAT_S,
        blocked_connection_timeout=_BLOCKED_S,
        socket_timeout=10,
        stack_timeout=20,
        ssl_options=encrypted,
    )
