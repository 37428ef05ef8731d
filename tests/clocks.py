"""Clocks of the tests' own."""

from collections.abc import Callable

from crossover.runtime import ThisProcess


class Passing(ThisProcess):
    """A runtime whose time passes only in its own sleeps. `now_s`: its monotonic clock, which a test may set; `slept_s`: its pauses so far,
    in seconds; `called`: functions that are called in each pause.
    """

    def __init__(self) -> None:
        """Start at 0 seconds with nothing slept and nothing called."""
        super().__init__()
        self.now_s = 0.0
        self.slept_s: list[float] = []
        self.called: list[Callable[[], None]] = []

    def monotonic(self) -> float:
        """Return the seconds of this runtime's clock."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Move the clock forward at once, and call the functions in `called`."""
        self.now_s += seconds
        self.slept_s.append(seconds)
        for each in self.called:
            each()


class Stepping:
    """A clock that advances by `step_s` seconds each time it is read."""

    def __init__(self, step_s: float = 0.0) -> None:
        """Start at 1,000 seconds. `step_s`: seconds by which each reading advances the clock."""
        self.now_s, self.step_s = 1000.0, step_s

    def __call__(self) -> float:
        """Return the seconds of the clock after one more step."""
        self.now_s += self.step_s
        return self.now_s
