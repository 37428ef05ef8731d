"""The virtual world's broker against a real one: the same commands to both, drawn at random, and the same answers."""

import time
import uuid
from collections.abc import Callable
from typing import Any

import pika
import pika.exceptions as amqp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossover.local.servers import RabbitServer
from tests.chaos.world.clients import VirtualServers
from tests.chaos.world.rabbitmq import VirtualConnection
from tests.conformance import servers

QUEUES, MAILBOX, EXCHANGE = ("q", "r"), "m", "e"
_CLASSIC = {"x-queue-type": "classic"}
ARGUMENTS = {"q": _CLASSIC, "r": _CLASSIC, "m": {**_CLASSIC, "x-max-length": 1, "x-overflow": "drop-head"}}
WHERE = st.sampled_from(["q", "q", "q", MAILBOX, MAILBOX, "r"])
MESSAGES = st.tuples(st.sampled_from(["publish", "publish", "get", "get", "get"]), WHERE)
ANSWERS = st.tuples(st.sampled_from(["ack", "nack", "nack", "nack all", "cut", "broadcast"]), st.just(""))
BUS_COMMANDS = st.one_of(
    *[MESSAGES] * 4,
    *[ANSWERS] * 3,
    st.tuples(st.sampled_from(["declare", "delete", "bind"]), WHERE)
    | st.tuples(st.sampled_from(["declare as another", "delete exchange"]), st.just(MAILBOX)),
)


class Speaker:
    """A connection to a broker that carries out commands given as text. `held`: tags of the messages that it got and has not
    acknowledged.
    """

    def __init__(self, connect: Callable[[], Any], names: Callable[[str], str]) -> None:
        """Connect by `connect`. `names`: gives each queue's name at the broker."""
        self._connect, self._name = connect, names
        self._begin()

    def _begin(self) -> None:
        """Open a connection and a channel on which the broker confirms messages; it holds no message yet."""
        self.connection = self._connect()
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.held: list[int] = []

    def says(self, command: str, where: str) -> Any:
        """Carry out a command and return the broker's answer: a body, None, "unroutable", or the code with which it closed the channel;
        after that, connect anew. `where`: queue.
        """
        try:
            return self._said(command, self._name(where))
        except amqp.UnroutableError:
            return "unroutable"
        except amqp.ChannelClosedByBroker as closed:
            self.end()
            self._begin()
            return closed.reply_code

    def end(self) -> None:
        """Close the connection if it is open."""
        if self.connection.is_open:
            self.connection.close()

    def _said(self, command: str, where: str) -> Any:
        """Carry out a command on the queue `where`; return the body if it got a message, else None."""
        exchange, channel = self._name(EXCHANGE), self.channel
        match command:
            case "publish" | "broadcast":
                to = (exchange, "") if command == "broadcast" else ("", where)
                body = b"%d" % next(NUMBER)
                channel.basic_publish(*to, body, properties=pika.BasicProperties(delivery_mode=2), mandatory=True)
            case "get":
                return self._hold(channel.basic_get(where))
            case "ack" if self.held:
                channel.basic_ack(self.held.pop(0))
            case "nack" if self.held:
                channel.basic_nack(self.held.pop(0), requeue=True)
            case "nack all" if self.held:
                channel.basic_nack(self.held[-1], multiple=True, requeue=True)
                self.held.clear()
            case "cut":
                self.end()
                self._begin()
            case "declare":
                channel.exchange_declare(exchange, exchange_type="fanout", durable=True)
                channel.queue_declare(where, durable=True, arguments=ARGUMENTS[where[-1]])
            case "declare as another":
                channel.queue_declare(where, durable=True, arguments=_CLASSIC)
            case "bind":
                channel.queue_bind(where, exchange)
            case "delete":
                channel.queue_delete(where)
            case "delete exchange":
                channel.exchange_delete(exchange)
        return None

    def _hold(self, got: tuple[Any, Any, Any]) -> bytes | None:
        """Keep the tag of a message that was got and return its body, or None if the queue was empty."""
        if got[0] is None:
            return None
        self.held.append(got[0].delivery_tag)
        return bytes(got[2])


NUMBER = iter(range(0))


@pytest.mark.slow
@settings(max_examples=25)
@given(commands=st.lists(st.tuples(st.integers(0, 1), BUS_COMMANDS), min_size=20, max_size=40))
def test_a_virtual_broker_answers_as_rabbitmq(
    rabbit: RabbitServer, virtual: VirtualServers, commands: list[tuple[int, tuple[str, str]]]
) -> None:
    """Check that the virtual broker gives the same answers as RabbitMQ to drawn commands, and holds as many messages."""
    login = pika.PlainCredentials(servers.USERNAME, servers.PASSWORD)
    parameters = pika.ConnectionParameters("127.0.0.1", rabbit.port, credentials=login)
    mark = uuid.uuid4().hex

    def name(where: str) -> str:
        """Return the name that this test gives a queue."""
        return f"{mark}-{where}"

    def look(real: Speaker) -> dict[str, int]:
        """Return how many messages the real broker has in each of this test's queues that the virtual broker has, by name."""
        found = {}
        for each in list(virtual.broker.queues):
            if each.startswith(mark):
                found[each] = real.channel.queue_declare(each, passive=True).method.message_count
        return found

    both = [
        [Speaker(lambda: pika.BlockingConnection(parameters), name) for _ in range(2)],
        [Speaker(lambda: VirtualConnection(virtual.broker, virtual.carry, parameters), name) for _ in range(2)],
    ]
    global NUMBER
    try:
        for where in ("q", "m"):
            for speakers in both:
                speakers[0].says("declare", where)
                speakers[0].says("bind", where)
        for number, (who, (command, where)) in enumerate(commands):
            said = []
            for speakers in both:
                NUMBER = iter([number])
                said.append(speakers[who].says(command, where))
            assert said[1] == said[0], (who, command, where)
            expected = {each: len(queue.ready) for each, queue in virtual.broker.queues.items() if mark in each}
            # What a broker is told without being asked, and the end of a connection, take it a moment.
            deadline = time.monotonic() + 5
            while (found := look(both[0][who])) != expected and time.monotonic() < deadline:
                pass
            assert found == expected, (who, command, where)
    finally:
        for speakers in both:
            for where in (*QUEUES, MAILBOX):
                speakers[0].says("delete", where)
            speakers[0].says("delete exchange", "")
            for speaker in speakers:
                speaker.end()
