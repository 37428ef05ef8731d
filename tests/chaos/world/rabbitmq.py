"""pika's blocking connection and channel, as the data plane's bus calls them, to a broker in the virtual world."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import pika.exceptions as amqp

from tests.chaos.world.broker import Channel, Closed, VirtualBroker
from tests.chaos.world.requests import Carry, LostReply, Request, ServerRefusal

_NOTHING = (None, None, None)


@dataclass(frozen=True, slots=True)
class _Method:
    """The part of pika's delivery that the message bus reads: the delivery tag."""

    delivery_tag: int


class VirtualConnection:
    """A connection to the virtual broker and its one channel, with those methods of pika that RabbitMessageBus uses. Opening both counts as
    one request.
    """

    def __init__(self, broker: VirtualBroker, carry: Carry, parameters: Any) -> None:
        """Open connection and channel by one request. `parameters`: pika's. Raises AMQPConnectionError if the reply is lost."""
        self.is_open = False
        self._broker, self._carry, self._patience_s = broker, carry, parameters.heartbeat
        asked = Request("rabbitmq", "connection.open", (), within_s=parameters.stack_timeout)
        try:
            self._channel: Channel = carry(asked, self._opened)
        except LostReply:
            raise amqp.AMQPConnectionError("no connection") from None
        self.is_open = True

    def _opened(self) -> tuple[Channel, int]:
        """Open a channel at the broker. Raises LostReply if the broker is down."""
        if not self._broker.up:
            raise LostReply
        return self._broker.open(), 0

    @property
    def connection(self) -> Self:
        """This object, as the connection of its channel."""
        return self

    def channel(self) -> Self:
        """Return this object as the channel of its connection."""
        return self

    def confirm_delivery(self) -> None:
        """Do nothing: deliveries are always confirmed."""

    def cut(self) -> None:
        """Break the connection at the broker's side. The client notices at its next request."""
        self._broker.drop(self._channel)

    def close(self) -> None:
        """Close the connection; unacknowledged messages return to their queues."""
        self._ask("connection.close", (), lambda: self._broker.drop(self._channel))
        self.is_open = False

    def _ask(self, operation: str, keys: tuple[str, ...], work: Callable[[], Any], *, body: bytes = b"") -> Any:
        """Carry `work` to the broker and return its result. Raises pika's errors, ServerRefusal if the broker refuses; the connection is
        closed after an error of the broker or a lost reply.
        """
        if not self.is_open:
            raise amqp.ChannelWrongStateError("Channel is closed.")

        def effect() -> tuple[Any, int]:
            """Run the request at the broker. Raises LostReply if the channel is closed."""
            if not self._channel.open:
                raise LostReply
            try:
                return work(), 0
            except Closed:
                self.cut()
                raise

        try:
            return self._carry(Request("rabbitmq", operation, keys, len(body), within_s=self._patience_s), effect)
        except Closed as closed:
            self.is_open = False
            raise amqp.ChannelClosedByBroker(closed.code, closed.text) from None
        except LostReply as lost:
            self.cut()
            self.is_open = False
            raise (amqp.AMQPHeartbeatTimeout if lost.silent else amqp.StreamLostError)("connection lost") from None

    def _tell(self, operation: str, keys: tuple[str, ...], work: Callable[[], None]) -> None:
        """Send a request that expects no answer. If it is lost or refused, the error is raised at the next request."""
        was_open = self.is_open
        try:
            self._ask(operation, keys, work)
        except amqp.AMQPError:
            if not was_open:
                raise
            self.is_open = True

    # --- queues and exchanges -----------------------------------------------------------------------------------------

    def queue_declare(self, queue: str, *, durable: bool, arguments: Mapping[str, Any]) -> None:
        """Create a queue with these arguments, unless it exists with the same ones."""
        self._ask("queue.declare", (queue,), lambda: self._broker.declare_queue(queue, arguments))

    def exchange_declare(self, exchange: str, *, exchange_type: str, durable: bool) -> None:
        """Create a fanout exchange, unless it exists."""
        self._ask("exchange.declare", (exchange,), lambda: self._broker.declare_exchange(exchange))

    def queue_bind(self, queue: str, exchange: str) -> None:
        """Let the queue receive every message that is published to the exchange."""
        self._ask("queue.bind", (queue, exchange), lambda: self._broker.bind(queue, exchange))

    def queue_delete(self, queue: str) -> None:
        """Delete the queue, if it exists."""
        self._ask("queue.delete", (queue,), lambda: self._broker.delete_queue(queue))

    def exchange_delete(self, exchange: str) -> None:
        """Delete the exchange, if it exists."""
        self._ask("exchange.delete", (exchange,), lambda: self._broker.delete_exchange(exchange))

    # --- messages -----------------------------------------------------------------------------------------------------

    def basic_publish(self, exchange: str, routing_key: str, body: bytes, *, properties: Any, mandatory: bool) -> None:
        """Publish a message. Raises NackError if the broker refuses it, UnroutableError if no queue gets it."""

        def publish() -> bool:
            """Publish the message at the broker; return whether a queue got it."""
            return self._broker.publish(exchange, routing_key, bytes(body))

        try:
            routed = self._ask("basic.publish", (exchange or routing_key,), publish, body=body)
        except ServerRefusal:
            raise amqp.NackError([]) from None
        if not routed:
            raise amqp.UnroutableError([])

    def basic_get(self, queue: str) -> tuple[Any, Any, Any]:
        """Return (method, None, body) of the next message of a queue; three Nones if there is none."""
        found = self._ask("basic.get", (queue,), lambda: self._broker.get(self._channel, queue))
        return _NOTHING if found is None else (_Method(found[0]), None, found[1].body)

    def basic_ack(self, delivery_tag: int) -> None:
        """Acknowledge a delivered message, without waiting for a reply."""
        held = self._channel.held.get(delivery_tag)
        keys = (held[0],) if held else ()  # the wire says the tag alone; a history says of which queue
        self._tell("basic.ack", keys, lambda: self._broker.acknowledge(self._channel, delivery_tag))

    def basic_nack(self, delivery_tag: int, *, multiple: bool = False, requeue: bool) -> None:
        """Give delivered messages back to their queues, without waiting for a reply. `multiple`: also those with smaller tags."""

        def give_back() -> None:
            """Give the deliveries back at the broker."""
            tags = [tag for tag in self._channel.held if tag == delivery_tag or (multiple and tag < delivery_tag)]
            self._broker.give_back(self._channel, tags)

        self._tell("basic.nack", (), give_back)
