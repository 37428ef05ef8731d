"""What our clients make of requests and replies that are lost, and of servers that fail, as the virtual world has them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from crossover import runtime
from crossover.errors import Missing, Refused, Unavailable
from crossover.experiment import Experiment
from crossover.stores.clients import Event
from crossover.stores.encoding import Vector, VectorKind
from crossover.stores.protocols import Traffic
from tests.chaos.world.clients import VirtualClients, VirtualServers
from tests.chaos.world.requests import Effect, LostReply, Request, ServerRefusal
from tests.clocks import Passing

SPIRT = Experiment(name="x", architecture="spirt", workers=2)
VECTOR = Vector(VectorKind.GRADIENT, memoryview(bytes(8)), 3)


class Way:
    """A `Carry` that takes no time and records each operation in `carried`. Failures set by `fails` strike the next requests of that
    operation, one each.
    """

    def __init__(self) -> None:
        """Start with nothing carried and no failures."""
        self.carried: list[str] = []
        self._failures: list[tuple[str, str]] = []

    def fails(self, operation: str, *how: str) -> None:
        """Let the next requests of the operation fail in these ways: "reply lost" (after its effect), "lost", "silent", or an error code of
        the server.
        """
        self._failures += [(operation, each) for each in how]

    def __call__(self, request: Request, effect: Effect) -> Any:
        """Apply the request's effect and return its reply, unless a failure is due. Raises LostReply or ServerRefusal."""
        self.carried.append(request.operation)
        befalls = next((each for each in self._failures if each[0] == request.operation), None)
        if befalls is None:
            return effect()[0]
        self._failures.remove(befalls)
        match befalls[1]:
            case "reply lost":
                effect()
                raise LostReply
            case "lost" | "silent":
                raise LostReply(silent=befalls[1] == "silent")
            case code:
                raise ServerRefusal(code)


@pytest.fixture
def way() -> Iterator[Way]:
    """Yield a new `Way`; within the test, waiting takes no real time."""
    with runtime.use(Passing()):
        yield Way()


@pytest.fixture
def servers(way: Way) -> VirtualServers:
    """Return virtual servers with two databases, reached by `way`."""
    return VirtualServers(way, databases=2)


@pytest.fixture
def process(servers: VirtualServers) -> Callable[[], VirtualClients]:
    """Return a function that creates the clients of a new process, which cannot run state machines."""

    def nobody(name: str, event: Event) -> Event:
        """Raise AssertionError: no state machine is run here."""
        raise AssertionError(name)

    return lambda: VirtualClients(servers, nobody)


Begin = Callable[[], VirtualClients]


def test_a_put_whose_reply_was_lost_finds_itself(way: Way, process: Begin) -> None:
    """Lose the reply of a conditional put: it is sent again and returns False, because it finds its own object. If the request itself was
    lost, it returns True.
    """
    objects = process().objects(Traffic())
    way.fails("PutObject", "reply lost")
    assert objects.put_new("k", b"mine") is False
    assert objects.get("k") == b"mine"
    way.fails("PutObject", "lost", "SlowDown")
    assert objects.put_new("l", b"mine") is True
    assert way.carried.count("PutObject") == 5


def test_a_create_whose_reply_was_lost_is_sent_again_and_finds_itself(way: Way, process: Begin) -> None:
    """Lose the reply of a create in Redis: it is sent again and returns False, and the vector is stored."""
    tensors = process().tensors(SPIRT, 0, Traffic())
    tensors.put("warm", VECTOR)
    way.fails("AI.TENSORSET", "reply lost")
    assert tensors.create("k", VECTOR) is False
    assert tensors.get("k") == VECTOR


@pytest.mark.parametrize("how", ["silent", "LOADING"])
def test_a_database_that_does_not_serve_is_unavailable(way: Way, process: Begin, how: str) -> None:
    """Let the database be silent or loading: a read raises Unavailable with command and key, without a second request."""
    way.fails("TENSOR.GET", how)
    with pytest.raises(Unavailable, match=r"TENSOR\.GET k"):
        process().tensors(SPIRT, 0, Traffic()).get("k")
    assert way.carried.count("TENSOR.GET") == 1


def test_a_database_that_loses_its_memory_has_no_vectors_and_is_connected_to_again(
    servers: VirtualServers, process: Begin
) -> None:
    """Restart a database empty: reads raise Unavailable meanwhile and Missing afterwards; the other database keeps its vectors."""
    clients = process()
    tensors, other = (clients.tensors(SPIRT, worker, Traffic()) for worker in (0, 1))
    for store in (tensors, other):
        store.put("k", VECTOR)
    servers.databases[0].stop()
    with pytest.raises(Unavailable, match="no connection"):
        tensors.get("k")
    with pytest.raises(Unavailable):
        tensors.exists("k")
    servers.databases[0].start()
    with pytest.raises(Missing):
        tensors.get("k")
    assert not tensors.exists("k")
    assert other.get("k") == VECTOR


def test_a_message_whose_confirm_was_lost_comes_twice(way: Way, servers: VirtualServers, process: Begin) -> None:
    """Lose the confirmation of a message: it is sent again, lies in the queue twice, and counts once."""
    bus = process().bus(Traffic())
    bus.declare(barriers=[("b", 1)])
    way.fails("basic.publish", "reply lost", "lost")
    bus.arrive("b", round=1, member=0)
    assert len(servers.broker.queue("b.0").ready) == 2
    assert bus.list_arrived("b", round=1, reader=0) == {0}


def test_an_acknowledgement_that_is_lost_brings_the_message_again(
    way: Way, servers: VirtualServers, process: Begin
) -> None:
    """Lose acknowledgements of an old round's message: the reader gets the message again, and still returns the right members."""
    bus = process().bus(Traffic())
    bus.declare(barriers=[("b", 1)])
    for round_ in (1, 2):
        bus.arrive("b", round=round_, member=0)
    way.fails("basic.ack", "lost", "reply lost")
    assert bus.list_arrived("b", round=2, reader=0) == {0}
    assert way.carried.count("basic.ack") == 2
    assert len(servers.broker.queue("b.0").ready) == 1


def test_messages_that_a_dead_process_held_return_to_their_queue(way: Way, process: Begin) -> None:
    """Let a reader die while it holds a message: another reader finds the message in the mailbox."""
    clients, other = process(), process().bus(Traffic())
    bus = clients.bus(Traffic())
    bus.declare(mailboxes=["m"])
    bus.replace("m", b"1")
    way.fails("basic.nack", "basic.nack")
    with pytest.raises(ServerRefusal):  # stands for the death of the process: nothing catches it
        bus.peek("m")
    clients.cut()
    assert other.peek("m") == b"1"


def test_a_broker_that_is_out_is_waited_for_and_has_lost_its_queues(servers: VirtualServers, process: Begin) -> None:
    """Stop the broker: a send raises Unavailable after waiting, and Refused once the broker is back without its queues."""
    bus = process().bus(Traffic())
    bus.declare(mailboxes=["m"])
    servers.broker.stop()
    began_s = runtime.monotonic()
    with pytest.raises(Unavailable):
        bus.replace("m", b"1")
    assert runtime.monotonic() > began_s
    servers.broker.start()
    with pytest.raises(Refused, match="not declared"):
        bus.replace("m", b"2")


def test_a_publish_that_the_broker_cannot_take_is_unavailable(way: Way, process: Begin) -> None:
    """Let the broker reject a message: the send raises Unavailable."""
    bus = process().bus(Traffic())
    bus.declare(mailboxes=["m"])
    way.fails("basic.publish", "basic.nack")
    with pytest.raises(Unavailable, match="could not take"):
        bus.replace("m", b"1")
