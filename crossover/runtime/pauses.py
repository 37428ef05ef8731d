"""Waiting by looking again and again: how long the pauses are, when they end, and when something dearer than a look is due."""

import math
from dataclasses import dataclass, field
from typing import Any

from crossover import runtime


@dataclass
class Pauses:
    """The pauses of one wait: a share of the time waited so far, within bounds. So looking often costs little, and what comes is found at
    most that share too late. `last_s`: the longest; all are alike where it is not given.

        pause = Pauses(0.01, 1.0, within_s=60.0)
        while not there():
            if not pause():
                raise WaitTimeout(...)
    """

    first_s: float
    last_s: float = 0.0
    share: float = 1 / 3
    within_s: float = math.inf
    _began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._began_s = runtime.monotonic()

    @property
    def waited_s(self) -> float:
        return runtime.monotonic() - self._began_s

    @property
    def next_s(self) -> float:
        return max(self.first_s, min(self.share * self.waited_s, self.last_s))

    def __call__(self, *, calm_s: float = 0.0) -> bool:
        """Pause, unless `within_s` have passed since this wait began: whether there is to be another look. The last one is at their end.
        `calm_s`: for so long what is looked at, and what follows from it, can change by others' doing alone.
        """
        left_s = self.within_s - self.waited_s
        if left_s < 1e-6:  # nothing that a clock could tell apart
            return False
        runtime.pause(min(self.next_s, left_s), calm_s=min(calm_s, left_s))
        return True


class Backoff:
    """The pauses of a tenacity.Retrying between attempts: each a random share of a limit that doubles from `first_s` up to `most_s`."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s, self._most_s = first_s, most_s

    def __call__(self, state: Any) -> float:
        return runtime.uniform(0.0, min(self._first_s * 2.0 ** (state.attempt_number - 1), self._most_s))


class Patience:
    """The end of a tenacity.Retrying: `within_s` after its first attempt has failed, however long each takes; so there are two at least."""

    def __init__(self, within_s: float) -> None:
        self._within_s, self._until_s = within_s, math.inf

    def __call__(self, state: Any) -> bool:
        now_s = runtime.monotonic()
        self._until_s = min(self._until_s, now_s + self._within_s)
        return now_s >= self._until_s


class Due:
    """Now and then within a wait: `first_s` after it began, and then every `every_s`."""

    def __init__(self, first_s: float, every_s: float) -> None:
        self._at_s, self._every_s = runtime.monotonic() + first_s, every_s

    @property
    def left_s(self) -> float:
        """Until it is due again."""
        return self._at_s - runtime.monotonic()

    def __call__(self) -> bool:
        now_s = runtime.monotonic()
        if now_s < self._at_s:
            return False
        self._at_s = now_s + self._every_s
        return True
