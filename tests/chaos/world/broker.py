"""A RabbitMQ without time: classic queues, fanout exchanges, and what a lost channel gives back."""

from bisect import insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(order=True, frozen=True, slots=True)
class QueuedMessage:
    """A message in a queue. `order`: its position, to which it returns if it is given back unacknowledged."""

    order: int
    body: bytes = field(compare=False)


@dataclass(eq=False, slots=True)
class Queue:
    """A queue of the broker: the arguments of its declaration, and its messages that are ready for delivery."""

    arguments: Mapping[str, Any]
    ready: list[QueuedMessage] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Channel:
    """The broker's side of one client channel. `held`: by delivery tag, (queue, message) of what was delivered and not acknowledged yet."""

    number: int
    held: dict[int, tuple[str, QueuedMessage]] = field(default_factory=dict)
    tags: int = 0
    open: bool = True


class Closed(Exception):
    """Error of a request for which the broker closes the channel, with AMQP's code: 404 not found, 406 other arguments than before."""

    def __init__(self, code: int, text: str) -> None:
        """Keep AMQP's `code` and the broker's `text`."""
        super().__init__(code, text)
        self.code, self.text = code, text


class VirtualBroker:
    """The queues and exchanges of one RabbitMQ broker; every method takes effect immediately. `up`: whether connections are accepted."""

    def __init__(self) -> None:
        """Start an empty broker that accepts connections."""
        self.up = True
        self.queues: dict[str, Queue] = {}
        self.exchanges: dict[str, list[str]] = {}  # and the queues that are bound to each
        self._channels: list[Channel] = []
        self._opened = self._order = 0
        # Told of each message: whether it was sent to that name or acknowledged from there, and what it says.
        self.moved: Callable[[bool, str, bytes], object] = lambda sent, name, body: None

    # --- connections --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop the broker and lose all it holds: connections break, and `up` is False until `start`."""
        self.up = False
        for channel in list(self._channels):
            self.drop(channel)
        self.queues.clear()
        self.exchanges.clear()

    def start(self) -> None:
        """Accept connections again."""
        self.up = True

    def open(self) -> Channel:
        """Open a channel and return it."""
        self._opened += 1
        channel = Channel(self._opened)
        self._channels.append(channel)
        return channel

    def drop(self, channel: Channel) -> None:
        """Close a channel whose connection has broken, and return what it holds to the queues."""
        if not channel.open:
            return
        channel.open = False
        self._channels.remove(channel)
        self.give_back(channel, list(channel.held))

    # --- queues and exchanges -----------------------------------------------------------------------------------------

    def declare_queue(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Create a queue, unless it exists with the same arguments. Raises Closed if it exists with others."""
        found = self.queues.setdefault(name, Queue(arguments))
        if found.arguments != arguments:
            raise Closed(406, f"PRECONDITION_FAILED - inequivalent arg for queue '{name}' in vhost '/'")

    def declare_exchange(self, name: str) -> None:
        """Create a fanout exchange, unless it exists."""
        self.exchanges.setdefault(name, [])

    def bind(self, queue: str, exchange: str) -> None:
        """Let the queue receive every message that is published to the exchange. Raises Closed if either does not exist."""
        self.queue(queue)
        bound = self._exchange(exchange)
        if queue not in bound:
            bound.append(queue)

    def delete_queue(self, name: str) -> None:
        """Delete a queue and its bindings, if it exists."""
        self.queues.pop(name, None)
        for bound in self.exchanges.values():
            if name in bound:
                bound.remove(name)

    def delete_exchange(self, name: str) -> None:
        """Delete an exchange and its bindings, if it exists."""
        self.exchanges.pop(name, None)

    def queue(self, name: str) -> Queue:
        """Return the queue with that name. Raises Closed if it does not exist."""
        if name not in self.queues:
            raise Closed(404, f"NOT_FOUND - no queue '{name}' in vhost '/'")
        return self.queues[name]

    def _exchange(self, name: str) -> list[str]:
        """Return the names of the queues bound to an exchange. Raises Closed if the exchange does not exist."""
        if name not in self.exchanges:
            raise Closed(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'")
        return self.exchanges[name]

    # --- messages -----------------------------------------------------------------------------------------------------

    def publish(self, exchange: str, routing_key: str, body: bytes) -> bool:
        """Publish a message to an exchange, or without one to the queue `routing_key`. Return whether any queue got it. Raises Closed if
        the exchange does not exist.
        """
        names = self._exchange(exchange) if exchange else [routing_key]
        self.moved(True, exchange or routing_key, body)
        reached = [name for name in names if name in self.queues]
        for name in reached:
            self._order += 1
            self.queues[name].ready.append(QueuedMessage(self._order, body))
            self._drop_head(name)
        return bool(reached)

    def get(self, channel: Channel, name: str) -> tuple[int, QueuedMessage] | None:
        """Deliver the first message of a queue, and return (delivery tag, message); None if the queue is empty."""
        ready = self.queue(name).ready
        if not ready:
            return None
        channel.tags += 1
        channel.held[channel.tags] = name, ready[0]
        return channel.tags, ready.pop(0)

    def acknowledge(self, channel: Channel, tag: int) -> None:
        """Remove a delivered message for good. Raises Closed if the delivery tag is not known."""
        name, message = self._let_go(channel, tag)
        self.moved(False, name, message.body)

    def give_back(self, channel: Channel, tags: list[int]) -> None:
        """Return delivered messages to their positions in their queues. Messages of deleted queues are lost, as are the oldest beyond a
        queue's maximum length.
        """
        names = []
        for tag in tags:
            name, message = self._let_go(channel, tag)
            if name in self.queues:
                insort(self.queues[name].ready, message)
                names.append(name)
        for name in dict.fromkeys(names):
            self._drop_head(name)

    def _let_go(self, channel: Channel, tag: int) -> tuple[str, QueuedMessage]:
        """Remove and return (queue, message) of a delivery that the channel holds. Raises Closed if the tag is not known."""
        if tag not in channel.held:
            raise Closed(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")
        return channel.held.pop(tag)

    def _drop_head(self, name: str) -> None:
        """Drop the oldest messages of a queue until it has at most its maximum length."""
        queue = self.queues[name]
        while len(queue.ready) > queue.arguments.get("x-max-length", float("inf")):
            queue.ready.pop(0)
