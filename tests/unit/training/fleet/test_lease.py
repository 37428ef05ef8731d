"""Ranks: each has one holder, silence loses it, and who has lost it publishes nothing more."""

import json
import threading
import time
from typing import Any

import pytest

from crossover.errors import RunFailed, StaleAttempt, WaitTimeout
from crossover.runtime import use
from crossover.stores.keys import Keys, current_run
from crossover.stores.memory import MemoryObjectStore
from crossover.stores.protocols import Traffic
from crossover.training.fleet import (
    Heartbeats,
    Membership,
    ProgramsExecution,
    ServingSettings,
    announce,
    join,
    store_failure,
)
from tests.clocks import Passing

KEYS = Keys("run")


@pytest.fixture
def store() -> MemoryObjectStore:
    """Return an empty store of objects."""
    return MemoryObjectStore(Traffic())


def settings(*, lease_s: float = 60.0, absence_s: float = 60.0, idle_s: float = 5.0) -> ServingSettings:
    """Return settings of a fleet's program that looks every hundredth of a second."""
    return ServingSettings(fleet="f", lease_s=lease_s, absence_s=absence_s, idle_s=idle_s, look_s=0.01)


def claim(
    store: MemoryObjectStore, *, members: int = 2, hearts: Heartbeats | None = None, **times: float
) -> Membership | None:
    """Claim a rank of the run and return the membership, or None if none is free. `times`: as `settings` takes them."""
    hearts = hearts or Heartbeats(store, KEYS)
    return Membership.claim(hearts, run="run", members=members, settings=settings(**times))


def test_each_rank_is_claimed_once_however_many_programs_want_one(store: MemoryObjectStore) -> None:
    """Nine programs that claim five ranks at once get each rank once."""
    found: list[Membership | None] = []
    threads = [threading.Thread(target=lambda: found.append(claim(store, members=5))) for _ in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ranks = sorted(each.rank for each in found if each is not None)
    assert ranks == [0, 1, 2, 3, 4]


def next_beat(store: MemoryObjectStore, after: int) -> int:
    """Return rank 0's next heartbeat number above `after`. Fails the test after a minute."""
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        if store.exists(KEYS.heartbeat(0)) and (beat := json.loads(store.get(KEYS.heartbeat(0)))["beat"]) > after:
            return int(beat)
        time.sleep(0.005)
    pytest.fail(f"no beat after {after}")


def test_a_beating_heart_keeps_its_rank_and_a_silent_one_loses_it(store: MemoryObjectStore) -> None:
    """A rank whose program sends heartbeats cannot be claimed, however long it is held; one without new heartbeats can, after the lease
    time.
    """
    first = claim(store, members=1, lease_s=0.02)
    assert first is not None
    beat, hearts = 0, Heartbeats(store, KEYS)
    with use(passing := Passing()), first:
        for _ in range(4):  # more than twice the lease's time
            beat = next_beat(store, beat)
            assert claim(store, members=1, hearts=hearts, lease_s=20.0) is None
            passing.now_s += 15.0
        first.confirm()
        first._over.set()  # it is killed: no word, no more beats
        first._thread.join()
        assert claim(store, members=1, hearts=hearts, lease_s=20.0) is None  # the last beat may be news
        passing.now_s += 20.0
        second = claim(store, members=1, hearts=hearts, lease_s=20.0)
        assert second is not None
        assert (second.rank, second.attempt) == (0, 1)
        with pytest.raises(StaleAttempt, match="peer 0: attempt 0 was superseded by attempt 1"):
            first.confirm()
        second.confirm()


def test_a_rank_that_failed_is_nobodys_and_one_that_has_left_comes_last(store: MemoryObjectStore) -> None:
    """A rank that failed cannot be claimed; one that has left is claimed after those that still train."""
    for each in [claim(store), claim(store)]:
        assert each is not None
        with each:
            pass
    store.put(KEYS.leaving_marker(0), b"")
    training, sending = claim(store), claim(store)
    assert training is not None and (training.rank, training.attempt) == (1, 1)
    assert sending is not None and (sending.rank, sending.attempt) == (0, 1)
    with sending:
        pass
    store.put(KEYS.failure(0), b"{}")
    assert claim(store) is None


def test_a_program_killed_has_no_last_word(store: MemoryObjectStore) -> None:
    """A program that is killed does not give its rank back: no other can claim it yet."""
    first = claim(store, members=1)
    assert first is not None
    with pytest.raises(KeyboardInterrupt), first:
        raise KeyboardInterrupt
    assert claim(store, members=1) is None


def test_waiting_ends_with_a_name(store: MemoryObjectStore) -> None:
    """Waiting for a peer raises RunFailed if it failed, and WaitTimeout if it is silent or never joined; both name the peer."""
    me, other = claim(store, absence_s=0.05), claim(store)
    assert me is not None and other is not None
    me.raise_if_pointless([1], what="waited for the arrival")  # the first look
    store.put(KEYS.failure(1), json.dumps({"error": "RunFailed", "cause": "no room"}).encode())
    with pytest.raises(RunFailed, match="peer 0: waited for the arrival of peer 1, which gave up: no room"):
        me.raise_if_pointless([1], what="waited for the arrival")
    store.delete(KEYS.failure(1))
    end_s = time.monotonic() + 60

    def ask_until(peer: int) -> None:
        """Ask about a peer again and again, for a minute at most."""
        while time.monotonic() < end_s:
            me.raise_if_pointless([peer], what="waited for the arrival")

    with pytest.raises(WaitTimeout, match="of peer 1, which has not been heard of for 0 s"):
        ask_until(1)
    with pytest.raises(WaitTimeout, match="of peer 7, which never joined the run; waited for 0 s"):
        ask_until(7)


def test_a_program_without_a_run_or_rank_leaves_after_a_while(store: MemoryObjectStore) -> None:
    """`join` returns None after the idle time if there is no run, no free rank, or only a finished run."""
    assert join(store, settings(idle_s=0.05)) is None
    announce(store, fleet="f", run="run", members=1)
    assert join(store, settings(idle_s=60)) is not None
    assert join(store, settings(idle_s=0.05)) is None  # the only rank is taken
    store.put(KEYS.finished_marker, b"")
    assert join(store, settings(idle_s=5)) is None


def test_announcing_a_run_again_forgets_how_it_failed(store: MemoryObjectStore) -> None:
    """Announcing a run deletes its failures and stores its id and number of members."""
    store.put(KEYS.failure(0), b"{}")
    announce(store, fleet="f", run="run", members=2)
    assert store.list(KEYS.failures) == []
    assert json.loads(store.get(current_run("f"))) == {"run": "run", "members": 2}


def test_a_resumed_run_takes_every_rank_from_its_program_at_once(store: MemoryObjectStore) -> None:
    """Announcing a run again makes the attempts before stale: their failures are not stored, and every rank can be claimed at once."""
    with claim(store) as former:
        assert former is not None
        announce(store, fleet="f", run="run", members=1)
        with pytest.raises(StaleAttempt, match="peer 0: attempt 0 was superseded by attempt 1"):
            former.confirm()
        store_failure(store, former, RunFailed("peer 1 gave up"))
        assert store.list(KEYS.failures) == []
        now = claim(store)
        assert now is not None and (now.rank, now.attempt) == (0, 2)


def fail(store: MemoryObjectStore, rank: int, error: str, cause: str) -> None:
    """Store a failure of the rank, as its program does."""
    store.put(KEYS.failure(rank), json.dumps({"error": error, "cause": cause}).encode())


def test_the_runner_is_told_the_cause_and_not_its_echo(store: MemoryObjectStore) -> None:
    """The error of a failed run is that of the peer that failed first by itself, not of one that waited for it; a finished marker ends
    the run well.
    """
    run = ProgramsExecution(store, KEYS, 3, tolerant=False, release=lambda: None)
    assert run.has_ended() is False
    fail(store, 0, "RunFailed", "peer 0: waited for peer 2, which gave up")
    fail(store, 2, "MemoryError", "no room")
    with pytest.raises(RunFailed, match=r"^peer 2 gave up: MemoryError: no room$"):
        run.has_ended()
    store.put(KEYS.finished_marker, b"")
    assert run.has_ended() is True


def test_asynchronous_runs_outlive_a_peer(store: MemoryObjectStore) -> None:
    """A tolerant run goes on after the failure of one peer, and fails after that of all."""
    run = ProgramsExecution(store, KEYS, 2, tolerant=True, release=lambda: None)
    fail(store, 0, "MemoryError", "no room")
    assert run.has_ended() is False
    fail(store, 1, "MemoryError", "no room")
    with pytest.raises(RunFailed, match="no room"):
        run.has_ended()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            {"explain_absence": lambda: "quota of 0 vCPUs", "boot_s": 0.0},
            r"no program has joined the run in 0 s. quota of 0 vCPUs",
        ),
        ({"can_finish": lambda: False}, "none has finished it or reported an error"),
    ],
)
def test_a_fleet_that_never_starts_or_ends_without_a_word_is_explained(
    how: dict[str, Any], words: str, store: MemoryObjectStore
) -> None:
    """A run that no program joins, or whose programs have ended without a result, raises RunFailed with the reason. `how`: arguments;
    `words`: message.
    """
    run = ProgramsExecution(store, KEYS, 2, tolerant=False, release=lambda: None, **how)
    with pytest.raises(RunFailed, match=words):
        run.has_ended()
