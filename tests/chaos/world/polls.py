"""Looks whose answer cannot have changed are skipped: whoever pauses between two of them sleeps until somebody writes what it has read.

What a task looks at is what it has read since its last pause. Where some of that was written meanwhile, or nothing was read, it pauses as
it asked to.
"""

from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.world.kernel import Kernel, Signal, Task
from tests.chaos.world.requests import Request

# Requests that change nothing that another task can see. Taking a message or giving it back counts as none: it returns to its position.
_READS = frozenset(
    {"HeadObject", "GetObject", "ListObjectsV2", "TENSOR.GET", "AI.TENSORGET", "EXISTS", "PTTL", "PING", "CLIENT"}
)
_WRITES = frozenset({"basic.publish", "queue.delete", "exchange.delete"})  # of the broker's requests
Watched = tuple[str, int, str]


class Looks:
    """A record of which task has read which keys and how often each was written, to wake a poller when something it has read is written."""

    def __init__(self, kernel: Kernel) -> None:
        """Start with nothing read or written."""
        self._kernel = kernel
        self._written: dict[Watched, int] = defaultdict(int)
        self._read: dict[Task, dict[Watched, int]] = {}
        self._waiting: dict[Watched, list[Signal]] = {}

    def served(self, task: Task, request: Request) -> None:
        """Record that a request has taken effect; wake tasks that pause until what it wrote changes."""
        rabbit = request.service == "rabbitmq"
        if request.operation in _WRITES if rabbit else request.operation not in _READS:
            for place in _places(request):
                self._written[place] += 1
                for signal in self._waiting.pop(place, ()):
                    signal.set()
            return
        seen = self._read.setdefault(task, {})
        for place in _places(request):
            seen[place] = self._written.get(place, 0)

    def pause(self, seconds: float, calm_s: float) -> None:
        """Let the calling task pause between two polls: for `seconds` if something it has read since its last pause was written meanwhile,
        or it read nothing. Otherwise it pauses until something it has read is written, for at most `calm_s`.
        """
        task = self._kernel.task
        seen = self._read.pop(task, {})
        if calm_s <= seconds or not seen or any(self._written.get(place, 0) != times for place, times in seen.items()):
            self._kernel.sleep(seconds)
            return
        news = Signal()
        for place in seen:
            self._waiting.setdefault(place, []).append(news)
        if self._kernel.wait(news, calm_s):
            self._kernel.sleep(
                self._kernel.chance.random() * seconds
            )  # the look after the news comes somewhere in a pause


def _places(request: Request) -> Iterator[Watched]:
    """Yield what a request reads or writes: its keys; the whole broker; for a listing the whole bucket."""
    if request.service == "rabbitmq":
        yield "rabbitmq", 0, ""
        return
    if request.service == "s3" and request.operation not in ("HeadObject", "GetObject"):
        yield "s3", 0, ""
    if request.operation != "ListObjectsV2":
        for key in request.keys:
            yield request.service, request.server, key
