"""A program from start to end: it goes on after troubles, and holds nothing while it waits."""

import json
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crossover.errors import Unavailable
from crossover.runtime import PROGRAM, use
from crossover.stores.keys import Keys
from crossover.stores.memory import MemoryObjectStore
from crossover.stores.protocols import Traffic
from crossover.training.fleet import Membership, ServingSettings, announce, join, serve
from crossover.workflow.context import Context
from tests.clocks import Passing

KEYS = Keys("run")
SETTINGS = ServingSettings(fleet="f", lease_s=60.0, idle_s=5.0, look_s=0.01)


class Forgetful(MemoryObjectStore):
    """An object store with one failure to come. `losing`: operation that takes effect while its answer is lost; `refusing`: operation
    that takes no effect.
    """

    losing, refusing = "", ""

    def create(self, key: str, data: Any) -> bytes:
        """Create the object; raise Unavailable once afterwards if `losing` is "create"."""
        winner = super().create(key, data)
        self._lose("create")
        return winner

    def put(self, key: str, data: Any) -> None:
        """Store the object; raise Unavailable once if `refusing` is "put"."""
        if self.refusing == "put":
            self.refusing = ""
            raise Unavailable("no answer")
        super().put(key, data)

    def _lose(self, operation: str) -> None:
        """Raise Unavailable if the operation is the one that loses its answer, once."""
        if self.losing == operation:
            self.losing = ""
            raise Unavailable("the answer was lost")


@pytest.fixture
def store() -> Forgetful:
    """Return a store of objects in which a run of one member is announced to the fleet."""
    found = Forgetful(Traffic())
    announce(found, fleet="f", run="run", members=1)
    return found


@pytest.fixture
def sleeps() -> Iterator[list[Callable[[], None]]]:
    """Yield the list of functions that each pause calls; the clock passes only in pauses."""
    with use(passing := Passing()):
        yield passing.called


class Killed(BaseException):
    """Error that stands for a signal that kills the process."""


def run(store: Forgetful, body: Callable[[Membership], None], settings: ServingSettings = SETTINGS) -> None:
    """Serve the fleet with `body` in the place of the program's work."""
    resources: Any = SimpleNamespace(clients=SimpleNamespace(objects=lambda traffic: store))

    def with_context(ctx: Context, membership: Membership) -> None:
        """Call `body` with the membership only."""
        body(membership)

    serve(resources, settings, with_context)


@pytest.mark.usefixtures("sleeps")
def test_a_program_that_its_service_starts_again_has_its_rank_back_at_once(store: Forgetful, tmp_path: Path) -> None:
    """A program that is started again on its instance gets its rank back at once, as a new attempt; another program on that instance
    does not.
    """
    variables = {
        "CROSSOVER_FLEET": "f",
        "CROSSOVER_INSTANCE": "boot",
        "CROSSOVER_LEASE_S": "60",
        "CROSSOVER_IDLE_S": "5",
    }
    settings = ServingSettings.from_environment({**variables, "CROSSOVER_PROGRESS": str(tmp_path / "progress")})
    beside = ServingSettings.from_environment({**variables, "CROSSOVER_PROCESS": "1"})
    ranks = []

    def killed(membership: Membership) -> None:
        """Note rank and attempt, report progress, and die."""
        ranks.append((membership.rank, membership.attempt))
        membership.report_progress()
        raise Killed

    for _ in range(2):
        with pytest.raises(Killed):
            run(store, killed, settings)
    assert ranks == [(0, 0), (0, 1)] and (tmp_path / "progress").exists()
    run(store, killed, beside)
    assert len(ranks) == 2, "another program waits for the lease, longer than it looks"


@pytest.mark.usefixtures("sleeps")
def test_a_rank_whose_claim_was_not_answered_is_not_waited_for(store: Forgetful) -> None:
    """A program whose claim was stored, but not answered, gets the rank at its next try as a new attempt."""
    store.losing = "create"
    found = join(store, SETTINGS)
    assert store.exists(KEYS.lease(0, 0))
    assert found is not None
    assert (found.rank, found.attempt) == (0, 1)
    assert join(store, SETTINGS) is None  # for any other program the rank is taken


@pytest.mark.usefixtures("sleeps")
def test_a_rank_that_could_not_be_given_back_is_taken_up_again(store: Forgetful) -> None:
    """A program that fails, and cannot give back its rank, takes the rank up again as a new attempt."""
    attempts: list[int] = []

    def body(membership: Membership) -> None:
        """Note the attempt. The first one fails, and its last write is refused, too."""
        attempts.append(membership.attempt)
        if len(attempts) == 1:
            store.refusing = "put"  # of its last word
            raise Unavailable("no answer")

    run(store, body)
    assert attempts == [0, 1]
    assert store.refusing == ""


@pytest.mark.usefixtures("sleeps")
@pytest.mark.parametrize("progresses", [True, False])
def test_only_troubles_without_progress_between_them_end_a_program(progresses: bool, store: Forgetful) -> None:
    """A program is tried again without limit if it progresses between troubles; else it ends with the error, which is stored."""
    tries = 0

    def body(membership: Membership) -> None:
        """Fail twice as often as ends a program, each time as if it had made progress, or as if it had not; then end."""
        nonlocal tries
        tries += 1
        if tries <= 2 * (1 + PROGRAM.again):
            membership.progressed = progresses
            raise Unavailable("no answer")

    if progresses:
        run(store, body)
        assert tries == 2 * (1 + PROGRAM.again) + 1
        assert not store.exists(KEYS.failure(0))
    else:
        with pytest.raises(Unavailable):
            run(store, body)
        assert tries == 1 + PROGRAM.again
        assert json.loads(store.get(KEYS.failure(0)))["cause"] == "no answer"


def test_nothing_of_a_failed_attempt_is_held_during_the_pause(
    store: Forgetful, sleeps: list[Callable[[], None]]
) -> None:
    """Objects of an attempt that failed are released before the pause that follows."""

    class Connection:
        """An object that is deleted when nothing refers to it any more."""

    made: list[weakref.ref[Connection]] = []
    held: list[Connection | None] = []
    sleeps.append(lambda: held.append(made[-1]()))

    def body(membership: Membership) -> None:
        """Hold a connection, keep a weak reference to it, and fail the first time."""
        connection = Connection()
        made.append(weakref.ref(connection))
        if len(made) == 1:
            raise Unavailable("no answer")

    run(store, body)
    assert held == [None]
