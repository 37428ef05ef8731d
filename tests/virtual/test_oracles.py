"""Oracles on histories made up for them: each says what is broken, and nothing of a run in which all is well."""

from dataclasses import replace

import pytest

from crossover.errors import RunFailed
from crossover.virtual.history import Entry, History
from crossover.virtual.oracles import Judged, broken
from crossover.virtual.schedule import Fault
from crossover.virtual.world import Outcome

WELL = Outcome(
    run="r",
    failure="",
    model="aa",
    clients=1,
    seconds=1.0,
    left={"s3": ["data/f/manifest.json", "runs/r/outcome.json", "runs/r/model/aa"], "redis": [], "rabbitmq": []},
    crashes=[RunFailed("told in words")],
)


def entry(key: str, found: str, left: str, *, operation: str = "PutObject", role: str = "train 0") -> Entry:
    return Entry(1, 0.5, role, role.replace(" ", "/"), "s3 0", operation, key, found, left, "ok")


AVERAGE = "r/attempt-0/1/0/average"
WRITTEN, READ = entry(AVERAGE, "", "a1"), entry(AVERAGE, "a1", "a1", operation="TENSOR.GET", role="train 1")
DELETED, MISSED = (
    entry(AVERAGE, "a1", "", operation="UNLINK"),
    entry(AVERAGE, "", "", operation="TENSOR.GET", role="train 1"),
)


def judged(*entries: Entry, outcome: Outcome = WELL, excused: tuple[Fault, ...] = ()) -> list[str]:
    return broken(Judged(History(list(entries)), outcome, "aa", excused))


def test_a_run_in_which_all_is_well() -> None:
    assert not judged(
        entry("runs/r/decision/000001.json", "", "d1"),
        entry("runs/r/decision/000001.json", "d1", "d1"),  # a second create finds the first
        entry("runs/r/heartbeat/0", "b1", "b2"),
        entry("runs/r/checkpoint/000000000000/0/00000001.00000", "c1", ""),
    )


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (
            [entry("runs/r/decision/000001.json", "d1", "d2")],
            "written_once: overwritten: runs/r/decision/000001.json by train 0",
        ),
        ([entry("r/attempt-0/1/0/model", "m1", "m2")], "written_once: overwritten: r/attempt-0/1/0/model"),
        ([entry("runs/r/outcome.json", "o1", "")], "decisions_stand: deleted: runs/r/outcome.json"),
    ],
)
def test_a_broken_history_is_told_with_key_and_role(entries: list[Entry], said: str) -> None:
    assert any(each.startswith(said) for each in judged(*entries))


def test_what_nobody_has_read_yet_must_not_be_deleted() -> None:
    said = f"deleted_after_the_last_read: deleted: {AVERAGE} by train 0 (train/0) at 0.500 s, UNLINK on s3 0; train 1 (train/1) asks"

    assert any(each.startswith(said) for each in judged(MISSED, WRITTEN, DELETED, MISSED))


@pytest.mark.parametrize(
    "entries",
    [
        [MISSED, WRITTEN, READ, DELETED],  # it was looked for before it came
        [WRITTEN, READ, DELETED, MISSED],  # a late second delivery asks again
        [WRITTEN, DELETED, WRITTEN, READ],
        [WRITTEN, DELETED, entry("runs/r/overtaken/0", "", "o1"), MISSED],
        [WRITTEN, DELETED, entry("runs/r/outcome.json", "", "o1"), MISSED],
    ],
)
def test_what_is_asked_for_again_or_of_no_use_any_more_may_be_gone(entries: list[Entry]) -> None:
    assert not judged(*entries)


def test_an_attempt_that_was_overtaken_excuses_no_other() -> None:
    assert judged(entry("runs/r/overtaken/1", "", "o1"), WRITTEN, DELETED, MISSED)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "bb"}, "right_model: the final model is bb; the reference's is aa"),
        ({"failure": "RunFailed: worker 1"}, "ends_well: 1 clients, and the run still fails: RunFailed: worker 1"),
        ({"model": ""}, "ends_well: the run is said to have ended well, and there is no model"),
        ({"crashes": [KeyError("round")]}, "only_known_errors: KeyError: 'round'"),
        (
            {"left": {**WELL.left, "redis": ["0: r/attempt-0/1/0/model"]}},
            "nothing_left: left behind: redis: 0: r/attempt-0",
        ),
        ({"left": {**WELL.left, "s3": ["runs/r/body/1/0"]}}, "nothing_left: left behind: s3: runs/r/body/1/0"),
    ],
)
def test_a_bad_end_is_told(changes: dict[str, object], said: str) -> None:
    assert any(each.startswith(said) for each in judged(outcome=replace(WELL, **changes)))  # type: ignore[arg-type]


def test_what_is_beyond_the_promise_may_fail_but_not_with_a_wrong_model() -> None:
    lost = (Fault(kind="memory_lost", service="redis"),)

    assert not judged(outcome=replace(WELL, failure="RunFailed: no database holds a model", model=""), excused=lost)
    assert judged(outcome=replace(WELL, model="bb"), excused=lost)
