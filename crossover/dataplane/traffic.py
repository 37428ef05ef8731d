"""What a step moved: bytes in and out, requests, and how often each operation was asked for."""

from collections import Counter

from crossover import runtime


class Traffic:
    """A thread-safe counter that every client of the data plane writes into.

    `bytes_in` were received by the step, `bytes_out` sent by it: payloads, without protocol framing. `operations` counts by name (`get`,
    `put`, `list`, ...), so that a test can assert that training never lists.
    """

    def __init__(self) -> None:
        self._lock = runtime.lock()
        self._bytes_in = 0
        self._bytes_out = 0
        self._operations: Counter[str] = Counter()

    def count(self, operation: str, *, bytes_in: int = 0, bytes_out: int = 0) -> None:
        """One request of `operation` and the payload bytes it moved."""
        with self._lock:
            self._operations[operation] += 1
            self._bytes_in += bytes_in
            self._bytes_out += bytes_out

    def reset(self) -> None:
        """Start anew: a program's next record."""
        with self._lock:
            self._bytes_in = self._bytes_out = 0
            self._operations.clear()

    @property
    def operations(self) -> dict[str, int]:
        """Requests by operation: a snapshot."""
        with self._lock:
            return dict(self._operations)

    def as_record(self) -> dict[str, int]:
        """The three figures as a step's record carries them."""
        with self._lock:
            return {
                "bytes_in": self._bytes_in,
                "bytes_out": self._bytes_out,
                "requests": self._operations.total(),
            }
