"""Every MessageBus keeps its Protocol: mailboxes keep the latest, barriers count distinct members."""

import threading
import uuid
from collections.abc import Callable, Iterator

import pytest

from crossover.errors import Refused
from crossover.stores.protocols import MAX_BODY_BYTES, MessageBus, Traffic, build_arrival
from tests.conformance.conftest import BUSES, MakeBus
from tests.conformance.vectors import at_once


class Named:
    """A bus and the names of one mailbox and one barrier of four members, which are gone after the test."""

    def __init__(self, bus: MessageBus) -> None:
        """Declare a mailbox and a barrier of new names on the bus."""
        mark = uuid.uuid4().hex
        self.bus = bus
        self.mailbox, self.barrier = f"mailbox-{mark}", f"barrier-{mark}"
        self.declare()

    def declare(self) -> None:
        """Declare the mailbox and the barrier."""
        self.bus.declare(mailboxes=[self.mailbox], barriers=[(self.barrier, 4)])

    def remove(self) -> None:
        """Remove the mailbox and the barrier."""
        self.bus.remove(mailboxes=[self.mailbox], barriers=[(self.barrier, 4)])

    def list_arrived(self, round_: int, reader: int = 0) -> set[int]:
        """Return the members that have arrived in the round, as the reader sees them."""
        return set(self.bus.list_arrived(self.barrier, round=round_, reader=reader))

    def arrive(self, round_: int, *members: int) -> None:
        """Let the members arrive at the barrier in the round, one after another."""
        for member in members:
            self.bus.arrive(self.barrier, round=round_, member=member)


@pytest.fixture(params=BUSES)
def on(request: pytest.FixtureRequest, make_bus: MakeBus, traffic: Traffic) -> Iterator[Named]:
    """Yield a mailbox and a barrier on each kind of bus; they are removed and the bus is closed afterwards."""
    named = Named(make_bus(request.param, traffic))
    yield named
    named.remove()
    named.bus.close()


def test_the_largest_message_fits_and_a_longer_one_is_refused_with_advice(on: Named) -> None:
    """Check that a message of the largest length is kept, and that a longer one is refused with the advice to use the object store."""
    body = bytes(range(256)) * (MAX_BODY_BYTES // 256)
    on.bus.replace(on.mailbox, body)
    assert on.bus.peek(on.mailbox) == body
    with pytest.raises(Refused, match="object store"):
        on.bus.replace(on.mailbox, body + b"!")


def test_declaring_again_loses_nothing(on: Named) -> None:
    """Check that a second declaration loses neither a message nor an arrival."""
    on.bus.replace(on.mailbox, b"kept")
    on.arrive(1, 2)
    on.declare()
    assert on.bus.peek(on.mailbox) == b"kept"
    assert on.list_arrived(1) == {2}


def test_removing_twice_is_harmless(on: Named) -> None:
    """Check that a second removal raises nothing."""
    on.remove()
    on.remove()


@pytest.mark.parametrize(
    "use",
    [
        lambda on: on.bus.replace("undeclared", b""),
        lambda on: on.bus.peek("undeclared"),
        lambda on: on.bus.arrive("undeclared", round=1, member=0),
        lambda on: on.bus.list_arrived("undeclared", round=1, reader=0),
        lambda on: on.bus.list_arrived(on.barrier, round=1, reader=4),
    ],
)
def test_what_nobody_declared_is_refused_and_the_bus_goes_on(on: Named, use: Callable[[Named], object]) -> None:
    """Check that an undeclared mailbox, barrier or reader is refused, and that the bus can be used afterwards."""
    with pytest.raises(Refused):
        use(on)
    on.bus.replace(on.mailbox, b"next")
    assert on.bus.peek(on.mailbox) == b"next"


# --- mailboxes --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_mailbox_keeps_the_latest_for_every_reader(on: Named) -> None:
    """Check that a mailbox is empty at first, and then shows its latest message as often as it is read."""
    assert on.bus.peek(on.mailbox) is None
    for body in (b"1", b"2", b"3"):
        on.bus.replace(on.mailbox, body)
    assert [on.bus.peek(on.mailbox) for _ in range(3)] == [b"3"] * 3


@pytest.mark.slow
def test_twelve_readers_peek_while_the_message_is_replaced(on: Named) -> None:
    """Check that every reader finds one whole message while another thread replaces it."""
    on.bus.replace(on.mailbox, b"0" * 1000)
    replaced = 0
    reading = threading.Event()

    def read_or_write(i: int) -> list[bytes | None]:
        """Peek 50 times and return the bodies; number 0 replaces the message meanwhile and returns nothing."""
        nonlocal replaced
        if i:
            bodies = [on.bus.peek(on.mailbox) for _ in range(50)]
            reading.set()
            return bodies
        while replaced < 20 or not reading.is_set():
            replaced += 1
            on.bus.replace(on.mailbox, b"%d" % (replaced % 10) * 1000)
        return []

    seen = [body for bodies in at_once(13, read_or_write) for body in bodies]
    assert len(seen) == 600
    assert all(body is not None and len(body) == 1000 and len(set(body)) == 1 for body in seen)
    assert on.bus.peek(on.mailbox) == b"%d" % (replaced % 10) * 1000


def test_a_peeked_message_survives_its_reader(make_bus: MakeBus, on: Named) -> None:
    """Check that a message is kept however often it is read, and after the bus was closed."""
    on.bus.replace(on.mailbox, b"kept")
    for _ in range(30):  # a quorum queue would drop it after 20 redeliveries
        assert on.bus.peek(on.mailbox) == b"kept"
    on.bus.close()
    assert on.bus.peek(on.mailbox) == b"kept"


# --- barriers ---------------------------------------------------------------------------------------------------------


def test_a_barrier_counts_distinct_members(on: Named) -> None:
    """Check that a repeated arrival counts once, and that looking changes nothing."""
    on.arrive(1, 0, 2, 2, 0, 2)
    assert on.list_arrived(1) == {0, 2}
    assert on.list_arrived(1) == {0, 2}  # looking changes nothing
    on.arrive(1, 3)
    assert on.list_arrived(1) == {0, 2, 3}
    assert on.list_arrived(1, reader=3) == {0, 2, 3}


def test_rounds_are_apart_and_older_ones_are_forgotten(on: Named) -> None:
    """Check that arrivals are listed by round, and that a reader which has seen a later round finds the earlier ones empty."""
    on.arrive(1, 0, 1)
    on.arrive(2, 1)
    assert on.list_arrived(1) == {0, 1}
    assert on.list_arrived(2) == {1}
    on.arrive(1, 3)  # a straggler of a round that is over
    assert on.list_arrived(2) == {1}
    assert on.list_arrived(1) == set()
    assert on.list_arrived(1, reader=1) == {0, 1, 3}  # each reader has its own inbox
    on.arrive(2, 0)
    assert on.list_arrived(2) == {0, 1}


def test_a_round_that_nobody_reached_is_empty(on: Named) -> None:
    """Check that a skipped round is empty and that looking at it loses no later arrival."""
    on.arrive(5, 1)
    assert on.list_arrived(3) == set()
    assert on.list_arrived(5) == {1}


def test_two_readers_of_one_inbox_lose_nothing(on: Named) -> None:
    """Check that no arrival is lost if two threads read one inbox at once."""
    on.arrive(1, 0, 1, 2, 3, 1, 2)
    seen = at_once(2, lambda _: [on.list_arrived(1) for _ in range(25)])
    assert all(members <= {0, 1, 2, 3} for part in seen for members in part)
    assert on.list_arrived(1) == {0, 1, 2, 3}


def test_members_arrive_and_look_at_once(on: Named) -> None:
    """Check that four members which arrive and look at once meet in every round."""

    def meet(member: int) -> list[int]:
        """Meet the other three members in five rounds and return the rounds that were met."""
        rounds = []
        for round_ in range(1, 6):
            on.arrive(round_, member, member)
            while on.list_arrived(round_, reader=member) != {0, 1, 2, 3}:
                pass
            rounds.append(round_)
        return rounds

    assert at_once(4, meet) == [[1, 2, 3, 4, 5]] * 4


def test_traffic_counts_bodies(on: Named, traffic: Traffic) -> None:
    """Check that replacing and reading a message counts its bytes and two requests."""
    before = traffic.as_record()
    on.bus.replace(on.mailbox, b"12345")
    on.bus.peek(on.mailbox)
    after = traffic.as_record()
    assert (after["bytes_out"] - before["bytes_out"], after["bytes_in"] - before["bytes_in"]) == (5, 5)
    assert after["requests"] - before["requests"] == 2


def test_traffic_counts_what_a_barrier_moves(on: Named, traffic: Traffic) -> None:
    """Check that arriving and looking counts the bytes of the arrivals' messages."""
    before = traffic.as_record()
    for member in (0, 1):
        on.bus.arrive(on.barrier, round=1, member=member)
    assert on.list_arrived(1) == {0, 1}
    after = traffic.as_record()
    moved = len(build_arrival(1, 0)) + len(build_arrival(1, 1))
    assert (after["bytes_out"] - before["bytes_out"], after["bytes_in"] - before["bytes_in"]) == (moved, moved)
