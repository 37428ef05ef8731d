"""What is written before anything starts: the number of an attempt."""

from types import SimpleNamespace
from typing import Any

import pytest

from crossover import runtime
from crossover.running.preparing import attempt_number
from crossover.stores.keys import Keys
from crossover.stores.memory import MemoryObjectStore
from crossover.stores.protocols import Traffic

NOW_S = 1_767_225_642.5


@pytest.mark.parametrize(
    ("begun", "later_s", "least"),
    [
        ((0,), 0.011, 1),  # another client resumes within the same second
        ((0, 1_767_225_641), 0.011, 1),  # whose attempt before was told in whole seconds
        ((0, 190_000_000_000), 0.0, 0),  # a clock that is ahead has begun an attempt
    ],
)
def test_who_resumes_has_an_attempt_above_all_others(
    begun: tuple[int, ...], later_s: float, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run's attempt is above all that began, and `least` higher `later_s` seconds later; a new run's is 0. `begun`: earlier
    attempts.
    """
    objects, keys = MemoryObjectStore(Traffic()), Keys("r")
    for attempt in begun:
        objects.put_new(keys.attempt_marker(attempt), b"")
    prepared: Any = SimpleNamespace(objects=objects, keys=keys)

    numbers = []
    for now_s in (NOW_S, NOW_S + later_s):
        monkeypatch.setattr(runtime, "time", lambda now_s=now_s: now_s)
        numbers.append(attempt_number(prepared, again=True))
    assert numbers[0] > max(begun) and numbers[1] >= numbers[0] + least
    assert len(f"{numbers[1]:012d}") == 12 and attempt_number(prepared, again=False) == 0
