"""Two invocations of a resumed attempt's first step, side by side, while the attempt before it concludes the run: one word for both."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from crossover.errors import StaleAttempt
from crossover.stores.documents import seal
from crossover.stores.keys import Keys
from crossover.stores.memory import MemoryObjectStore
from crossover.stores.protocols import Traffic
from crossover.training import progress

BEFORE, OWN = Keys("r", 0), Keys("r", 1)


class Race:
    """A store in which attempt 0 has saved a checkpoint, of which attempt 1 takes over a copy."""

    def __init__(self) -> None:
        """Begin attempt 0 and store its checkpoint."""
        self.objects = MemoryObjectStore(Traffic())
        progress.begin_attempt(self._ctx(BEFORE))
        self.objects.put(BEFORE.checkpoint(0, 5), b"state")

    def _ctx(self, keys: Keys) -> Any:
        """Return the context of the attempt with these keys."""
        return SimpleNamespace(run="r", objects=self.objects, keys=keys)

    def concludes(self) -> None:
        """Store attempt 0's outcome and delete its checkpoints, as attempt 0 does when it ends."""
        self.objects.put(BEFORE.outcome, seal({"attempt": 0}))
        self.objects.delete_prefix(BEFORE.own_checkpoints)

    @contextmanager
    def first_step(self) -> Iterator[None]:
        """Begin attempt 1: it reads the store before the block, and copies and takes over after the block."""
        ctx = self._ctx(OWN)

        def clear(of: list[Keys]) -> None:
            """Delete the own checkpoints of each of the attempts."""
            for keys in of:
                self.objects.delete_prefix(keys.own_checkpoints)

        with progress.set_up_attempt(ctx, lambda: None, clear) as before:
            if not self.own():
                state = self.objects.get(BEFORE.checkpoint(0, 5))
                yield
                self.objects.put_new(OWN.checkpoint(0, 5), state)
            else:
                yield
            progress.mark_taken_over(ctx, before)

    def own(self) -> list[str]:
        """Return the keys of attempt 1's own checkpoints."""
        return self.objects.list(OWN.own_checkpoints)

    def finished(self) -> bool:
        """Return True if attempt 1 is marked as finished."""
        return self.objects.exists(OWN.finished_marker)


def test_who_finds_nothing_to_go_on_with_clears_away_for_a_slower_one_too() -> None:
    """If the attempt before concludes the run, both first steps of the resumed one raise StaleAttempt, and the slower one's copies are
    deleted.
    """
    race = Race()

    def faster() -> None:
        """Conclude the run in the other attempt, and check that a first step is then refused as stale and the run marked as finished."""
        race.concludes()
        with pytest.raises(StaleAttempt, match="was concluded before"), race.first_step():
            pytest.fail("it has something to go on with")
        assert race.finished()

    with pytest.raises(StaleAttempt, match="was concluded before"), race.first_step():
        faster()

    assert race.finished() and not race.own()  # the slower one had copied, and cleared that away itself


def test_where_one_has_set_the_attempt_up_another_does_not_clear_its_state_away() -> None:
    """A second first step leaves an attempt's state in place if the first one has set it up, although the attempt before has ended."""
    race = Race()
    with race.first_step():
        race.concludes()
    saved = race.own()

    with race.first_step():
        pass

    assert saved and race.own() == saved and not race.finished()
