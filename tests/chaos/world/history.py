"""What happened in a world: every request, what it found under its keys, what it left there and how it was answered.

The same seed writes the same bytes.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One request and one of its keys. `found`, `left`: digests of the key's value before and after it, "" for no value; of a message to or
    from a barrier, ROUND/MEMBER. `outcome`: "" if it was answered, "no reply" if it took effect but its reply was lost, else why it had no
    effect.
    """

    at_s: float
    role: str
    process: str
    server: str
    operation: str
    key: str
    found: str
    left: str
    outcome: str = ""

    @property
    def changed(self) -> bool:
        """Whether the request changed the key's value."""
        return self.found != self.left

    def __str__(self) -> str:
        """Return the entry as one line: time, role, process, server, operation, key, change of its value, and outcome."""
        change = f"{self.found or '-'} > {self.left or '-'}" if self.changed else self.found or "-"
        told = f" ({self.outcome})" if self.outcome else ""
        return (
            f"{self.at_s:12.6f} {self.role} ({self.process}) {self.server} {self.operation} {self.key} {change}{told}"
        )


@dataclass
class RequestHistory:
    """Entries in the order in which servers saw their requests, with the faults that took effect between them."""

    entries: list[HistoryEntry] = field(default_factory=list)
    faults: list[tuple[int, str]] = field(default_factory=list)  # (after how many entries, in words)

    def lines(self) -> Iterator[str]:
        """Yield the history as text lines, for people and for comparison."""
        told = iter([*self.faults, (len(self.entries) + 1, "")])
        after, words = next(told)
        for number, entry in enumerate(self.entries):
            while after <= number:
                yield f"--- {words}"
                after, words = next(told)
            yield str(entry)
        while words:
            yield f"--- {words}"
            after, words = next(told)

    @property
    def digest(self) -> str:
        """A digest of all lines, equal for equal histories."""
        whole = hashlib.blake2b(digest_size=16)
        for line in self.lines():
            whole.update(line.encode() + b"\n")
        return whole.hexdigest()


def digest(value: object) -> str:
    """Return eight hexadecimal digits that identify a value; "" for None."""
    if value is None:
        return ""
    said = value if isinstance(value, bytes) else repr(value).encode()
    return hashlib.blake2b(said, digest_size=4).hexdigest()
