"""How many work at once: what stands for a cloud's plenty on a machine with a few cores."""

import contextlib
from collections import deque
from collections.abc import Iterator

from crossover import runtime


class Pool:
    """At most `places` at once, first come, first served."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._queue: deque[runtime.EventFlag] = deque()
        self._lock = runtime.lock()

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        turn = runtime.event()
        with self._lock:
            if self._free:
                self._free -= 1
                return
            self._queue.append(turn)
        turn.wait()

    def _leave(self) -> None:
        with self._lock:
            if self._queue:
                self._queue.popleft().set()  # the place goes from hand to hand
            else:
                self._free += 1
