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
from crossover.errors import ConfigError, Refused, Unavailable
from crossover.stores.protocols import Buffer, Traffic, build_arrival, check_body, read_arrival, redact_url

T = TypeVar("T")

_BLOCKED_S = 1.0  # a broker that is short of disk or memory says so, and takes nothing until somebody has made room
_HEARTBEAT_S = 60
_CLASSIC = {"x-queue-type": "classic"}
_MAILBOX = {**_CLASSIC, "x-max-length": 1, "x-overflow": "drop-head"}
_EMPTY_S = 1.0  # how long a mailbox that shows nothing is looked at: another reader may hold its message
_HELD_S = 30.0  # the same for a mailbox that is known to hold one
_PERSISTENT = pika.BasicProperties(delivery_mode=2)


class RabbitMessageBus:
    """MessageBus on a RabbitMQ broker, with one connection per thread, opened at first use and again after it breaks. A mailbox is a
    queue that keeps one message; a barrier is an exchange with one queue per member. Messages are persistent.

    A message that was being sent when a connection broke is sent again, so messages may arrive twice, which all users of the bus
    allow for. Raises Refused (not declared, wrong login, too long), Unavailable (no broker for about a minute, or one that accepts
    no messages).
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
        """Prepare a bus without connecting. `url`: amqp:// or amqps://, without user and password. `certificate`: PEM text of the
        authority for amqps, None for the system's. `connect`: opens a connection from pika's parameters. Raises ConfigError if the
        URL has another form.
        """
        self._parameters = _build_parameters(url, username=username, password=password, certificate=certificate)
        self._where = url
        self._connect = connect
        self._traffic = traffic
        self._own = runtime.local()
        self._connections: list[Any] = []
        self._known_filled: set[str] = set()

    def declare(self, *, mailboxes: Sequence[str] = (), barriers: Sequence[tuple[str, int]] = ()) -> None:
        """Create a queue for each mailbox, and for each barrier, a pair (name, number of members), an exchange with one queue per
        member. Existing ones are left as they are. Raises Refused if one exists with other properties.
        """

        def declare_all(channel: Any) -> None:
            """Create all queues and exchanges on `channel`; existing ones stay."""
            for mailbox in mailboxes:
                channel.queue_declare(mailbox, durable=True, arguments=_MAILBOX)
            for barrier, members in barriers:
                channel.exchange_declare(barrier, exchange_type="fanout", durable=True)
                for member in range(members):
                    channel.queue_declare(_build_inbox_name(barrier, member), durable=True, arguments=_CLASSIC)
                    channel.queue_bind(_build_inbox_name(barrier, member), barrier)

        self._traffic.count("declare")
        self._run_on_channel("declare", declare_all)

    def replace(self, mailbox: str, body: Buffer) -> None:
        """Put `body`, at most 15 MiB, into `mailbox` as its only message; an older one is dropped. Waits for the broker's
        confirmation. Raises Refused if the mailbox was not declared or `body` is longer.
        """
        self._send("replace", mailbox, check_body(mailbox, body))
        self._known_filled.add(mailbox)

    def peek(self, mailbox: str) -> bytes | None:
        """Return the message in `mailbox` without removing it. Polls for up to 1 s, or 30 s if the mailbox is known to have had a
        message, because another reader may hold it; then returns None. Raises Refused if the mailbox was not declared.
        """

        def take_and_requeue(channel: Any) -> bytes | None:
            """Take the message from the queue and put it back at once; return its body, or None if the queue shows none."""
            method, _, body = channel.basic_get(mailbox)
            if method is None:
                return None
            channel.basic_nack(method.delivery_tag, requeue=True)
            return bytes(body)

        end_s = runtime.monotonic() + (_HELD_S if mailbox in self._known_filled else _EMPTY_S)
        pause_s = 0.002
        while (body := self._run_on_channel(mailbox, take_and_requeue)) is None and runtime.monotonic() < end_s:
            runtime.sleep(runtime.uniform(0.0, pause_s))
            pause_s = min(2 * pause_s, 0.1)
        if body is not None:
            self._known_filled.add(mailbox)
        self._traffic.count("peek", bytes_in=len(body or b""))
        return body

    def arrive(self, barrier: str, *, round: int, member: int) -> None:
        """Report to every member of `barrier` that `member` has reached `round`: put a message into each member's queue, and wait
        for the broker's confirmation. Raises Refused if the barrier was not declared.
        """
        self._send("arrive", "", build_arrival(round, member), exchange=barrier)

    def list_arrived(self, barrier: str, *, round: int, reader: int) -> frozenset[int]:
        """Return the members of `barrier` that have reported exactly `round`, according to the messages in the queue of the member
        `reader`; empty if there are none.

        Messages of earlier rounds are removed; all others stay in the queue. Raises Refused if the barrier was not declared or has no such
        member, Corrupt if a message has another form.
        """
        inbox = _build_inbox_name(barrier, reader)

        received = 0

        def drain(channel: Any) -> frozenset[int]:
            """Read all messages of the reader's queue, remove those of earlier rounds and put the others back. Returns the members of the
            round. Adds the bytes that were read to the call's `received`. Raises Corrupt if a message has another form.
            """
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

        present = self._run_on_channel(inbox, drain)
        self._traffic.count("arrived", bytes_in=received)
        return present

    def remove(self, *, mailboxes: Sequence[str] = (), barriers: Sequence[tuple[str, int]] = ()) -> None:
        """Delete the queues and exchanges of mailboxes and of barriers, pairs (name, number of members); missing ones are fine."""

        def remove_all(channel: Any) -> None:
            """Delete all queues and exchanges on `channel`."""
            for mailbox in mailboxes:
                channel.queue_delete(mailbox)
            for barrier, members in barriers:
                for member in range(members):
                    channel.queue_delete(_build_inbox_name(barrier, member))
                channel.exchange_delete(barrier)

        self._traffic.count("remove")
        self._run_on_channel("remove", remove_all)

    def close(self) -> None:
        """Close the connections of all threads; the next call opens a new one. Do not call it while other threads use the bus."""
        connections, self._connections = self._connections, []
        self._own = runtime.local()
        for connection in connections:
            _close(connection)

    def _send(self, operation: str, queue: str, body: bytes, *, exchange: str = "") -> None:
        """Publish `body` to the `queue`, or if that is "" to the `exchange`, wait until the broker confirms it, and count it as
        `operation`. Raises Refused if there is no such queue or exchange.
        """

        def send(channel: Any) -> None:
            """Publish the outer call's message on `channel`, and wait for the broker's confirmation."""
            # mandatory: an undeclared queue is an error, the message is not lost; confirmed: it is on the broker's disk
            channel.basic_publish(exchange, queue, body, properties=_PERSISTENT, mandatory=True)

        self._run_on_channel(queue or exchange, send)
        self._traffic.count(operation, bytes_out=len(body))

    def _run_on_channel(self, name: str, work: Callable[[Any], T]) -> T:
        """Call `work` with this thread's channel and return its result; if the connection breaks, repeat it on a new one for up to
        a minute, so `work` must be repeatable. Converts pika's errors to Refused or Unavailable. `name`: queue for errors.
        """
        try:
            result: T = runtime.BROKER.build_retrying(retry_if_exception(_is_retryable))(self._attempt, work)
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
            if _is_certificate_error(error):
                raise Refused(f"{self._where}: its certificate could not be verified: {error}") from None
            raise Unavailable(f"{self._where}: {name}: {str(error) or type(error).__name__}") from None

    def _attempt(self, work: Callable[[Any], T]) -> T:
        """Call `work` once with this thread's channel and return its result; if it raises, close the channel's connection."""
        try:
            return work(self._get_channel())
        except BaseException:  # whatever is half done is undone by the broker when the channel's connection goes
            self._drop_channel()
            raise

    def _get_channel(self) -> Any:
        """Return this thread's channel, in confirm mode; open one, with a new connection, if there is none or it is closed. Raises pika's
        errors.
        """
        channel = getattr(self._own, "channel", None)
        if channel is None or not channel.is_open:
            self._drop_channel()
            connection = self._connect(self._parameters)
            self._connections.append(connection)
            channel = connection.channel()
            channel.confirm_delivery()
            self._own.channel = channel
        return channel

    def _drop_channel(self) -> None:
        """Close the connection of this thread's channel, if there is one."""
        channel = getattr(self._own, "channel", None)
        self._own.channel = None
        if channel is not None:
            if channel.connection in self._connections:
                self._connections.remove(channel.connection)
            _close(channel.connection)


def _is_retryable(error: BaseException) -> bool:
    """Return whether another attempt may succeed after `error`: yes for a broken connection, no for a wrong password or
    certificate, or a broker short of disk or memory.
    """
    lasting = amqp.ProbableAuthenticationError | amqp.ProbableAccessDeniedError | amqp.ConnectionBlockedTimeout
    if isinstance(error, lasting) or _is_certificate_error(error):
        return False
    return isinstance(error, amqp.AMQPConnectionError | amqp.ChannelWrongStateError | OSError)


def _is_certificate_error(error: BaseException) -> bool:
    """Return whether the error, or one that pika has wrapped in it, says that the broker's certificate could not be verified."""
    return "CERTIFICATE_VERIFY_FAILED" in repr(error)


def _build_inbox_name(barrier: str, member: int) -> str:
    """Return the name of the queue with the messages of `barrier` for `member`."""
    return f"{barrier}.{member}"


def _close(connection: Any) -> None:
    """Close the connection, ignoring errors of one that is already broken."""
    try:
        if connection.is_open:
            connection.close()
    except (amqp.AMQPError, OSError):  # it was broken already
        return


def _build_parameters(url: str, *, username: str, password: str, certificate: str | None) -> Any:
    """Return pika's connection parameters for the broker at `url`. `certificate`: PEM text of the authority for amqps, None for the
    system's. Raises ConfigError if the URL is malformed or contains a password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("amqp", "amqps") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"broker URL {redact_url(url)!r}: expected amqp://host:port or amqps://host:port")
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
