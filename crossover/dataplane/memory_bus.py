"""A MessageBus in this process's memory: what RabbitMQ does for an `inline` run. Thread-safe."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from crossover import runtime
from crossover.dataplane.messages import arrival, checked
from crossover.dataplane.protocols import Buffer
from crossover.dataplane.traffic import Traffic
from crossover.errors import Refused

T = TypeVar("T")


@dataclass
class _State:
    """What all clients of one bus share. A barrier is one inbox per member: the rounds it knows, and who reached each."""

    lock: runtime.Lock = field(default_factory=runtime.lock)
    mailboxes: dict[str, bytes | None] = field(default_factory=dict)
    barriers: dict[str, list[dict[int, set[int]]]] = field(default_factory=dict)


class MemoryMessageBus:
    """Mailboxes and barriers under one lock. `beside(traffic)` is another client of the same bus."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._state = _State()

    def beside(self, traffic: Traffic) -> "MemoryMessageBus":
        """The same bus, counted into `traffic`."""
        other = MemoryMessageBus(traffic)
        other._state = self._state
        return other

    def declare(self, *, mailboxes: Sequence[str] = (), barriers: Sequence[tuple[str, int]] = ()) -> None:
        self._traffic.count("declare")
        with self._state.lock:
            for mailbox in mailboxes:
                self._state.mailboxes.setdefault(mailbox, None)
            for barrier, members in barriers:
                inboxes = self._state.barriers.setdefault(barrier, [])
                inboxes.extend({} for _ in range(members - len(inboxes)))

    def replace(self, mailbox: str, body: Buffer) -> None:
        message = checked(mailbox, body)
        self._traffic.count("replace", bytes_out=len(message))
        with self._state.lock:
            _declared(self._state.mailboxes, mailbox, "mailbox")
            self._state.mailboxes[mailbox] = message

    def peek(self, mailbox: str) -> bytes | None:
        with self._state.lock:
            message = _declared(self._state.mailboxes, mailbox, "mailbox")
        self._traffic.count("peek", bytes_in=len(message or b""))
        return message

    def arrive(self, barrier: str, *, round: int, member: int) -> None:
        self._traffic.count("arrive", bytes_out=len(arrival(round, member)))
        with self._state.lock:
            for inbox in _declared(self._state.barriers, barrier, "barrier"):
                inbox.setdefault(round, set()).add(member)

    def arrived(self, barrier: str, *, round: int, reader: int) -> frozenset[int]:
        with self._state.lock:
            inboxes = _declared(self._state.barriers, barrier, "barrier")
            if not 0 <= reader < len(inboxes):
                raise Refused(f"barrier {barrier}: reader {reader} is not one of its {len(inboxes)} members")
            inbox = inboxes[reader]
            for older in [known for known in inbox if known < round]:
                del inbox[older]
            present = frozenset(inbox.get(round, ()))
        self._traffic.count("arrived", bytes_in=sum(len(arrival(round, member)) for member in present))
        return present

    def remove(self, *, mailboxes: Sequence[str] = (), barriers: Sequence[tuple[str, int]] = ()) -> None:
        self._traffic.count("remove")
        with self._state.lock:
            for mailbox in mailboxes:
                self._state.mailboxes.pop(mailbox, None)
            for barrier, _ in barriers:
                self._state.barriers.pop(barrier, None)

    def close(self) -> None:
        """Nothing to close."""


def _declared(declared: dict[str, T], name: str, what: str) -> T:
    try:
        return declared[name]
    except KeyError:
        raise Refused(f"{what} {name}: not declared; `initialise` declares what a run uses") from None
