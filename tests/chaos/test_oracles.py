"""Oracles on histories made up for them: each says what is broken, and nothing of a run in which all is well."""

from dataclasses import replace
from typing import Any

import pytest

from crossover.errors import RunFailed
from crossover.training.fleet import NOBODY, encode_heartbeat
from tests.architectures.harness import small
from tests.chaos.world.history import HistoryEntry, RequestHistory, digest
from tests.chaos.world.judged import JudgedRun
from tests.chaos.world.nemeses import Disturbed
from tests.chaos.world.oracles import list_broken_promises
from tests.chaos.world.trials import reduce_experiment
from tests.chaos.world.world import RunOutcome, VirtualWorld

WELL = RunOutcome(
    run="r",
    failure="",
    model="aa",
    clients=1,
    seconds=1.0,
    left={"s3": ["data/f/manifest.json", "runs/r/outcome.json", "runs/r/model/aa"], "redis": [], "rabbitmq": []},
    crashes=[RunFailed("told in words")],
)


def entry(key: str, found: str, left: str, *, operation: str = "PutObject", role: str = "train 0") -> HistoryEntry:
    """Return a history entry of a request to S3 at 0.5 s; the name of its process follows from the role."""
    return HistoryEntry(0.5, role, role.replace(" ", "/"), "s3 0", operation, key, found, left)


AVERAGE = "r/attempt-0/1/0/average"
WRITTEN, READ = entry(AVERAGE, "", "a1"), entry(AVERAGE, "a1", "a1", operation="TENSOR.GET", role="train 1")
DELETED, MISSED = (
    entry(AVERAGE, "a1", "", operation="UNLINK"),
    entry(AVERAGE, "", "", operation="TENSOR.GET", role="train 1"),
)


def judge(*entries: HistoryEntry, outcome: RunOutcome = WELL, **given: Any) -> list[str]:
    """Return the findings of all oracles about a run with these history entries and this outcome. `given`: further fields of JudgedRun."""
    return list_broken_promises(JudgedRun(RequestHistory(list(entries)), outcome, "aa", workers=2, **given))


def test_a_run_without_a_broken_promise_has_no_findings() -> None:
    """Judge a history without a fault: a decision created twice with one value, a new heartbeat, and a deleted
    checkpoint break no promise.
    """
    assert not judge(
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
def test_a_broken_history_is_told_with_key_and_role(entries: list[HistoryEntry], said: str) -> None:
    """Judge a history in which a key is overwritten or deleted that must not be: a finding begins with `said`."""
    assert any(each.startswith(said) for each in judge(*entries))


def leased(attempt: int, role: str) -> HistoryEntry:
    """Return the entry by which that role creates the lease of rank 1 and `attempt`."""
    return entry(f"runs/r/lease/1/{attempt:06d}", "", "l1", role=role)


def test_what_nobody_has_read_yet_must_not_be_deleted() -> None:
    """Judge a vector that is deleted before another worker, which had asked for it, reads it: that is a finding."""
    said = f"deleted_after_the_last_read: deleted: {AVERAGE} by train 0 (train/0) at 0.500 s, UNLINK on s3 0; train 1 (train/1) asks"

    assert any(each.startswith(said) for each in judge(MISSED, WRITTEN, DELETED, MISSED))


@pytest.mark.parametrize(
    "entries",
    [
        [MISSED, WRITTEN, READ, DELETED],  # it was looked for before it came
        [WRITTEN, READ, DELETED, MISSED],  # a late second delivery asks again
        [WRITTEN, DELETED, WRITTEN, READ],
        [replace(each, key="runs/r/marks/1.json") for each in (MISSED, WRITTEN, DELETED, MISSED)],
        [WRITTEN, DELETED, entry("runs/r/overtaken/0", "", "o1"), MISSED],
        [WRITTEN, DELETED, entry("runs/r/outcome.json", "", "o1"), MISSED],
        [leased(0, "train 1"), WRITTEN, DELETED, leased(1, "train 2"), MISSED],  # its rank was taken over
    ],
)
def test_what_is_asked_for_again_or_of_no_use_any_more_may_be_gone(entries: list[HistoryEntry]) -> None:
    """Judge deletions that are allowed, e.g. of what was read before or belongs to an overtaken attempt: no findings."""
    assert not judge(*entries)


def test_an_attempt_that_was_overtaken_excuses_no_other() -> None:
    """Judge a deletion too early while another attempt, or another role's rank, was taken over: it is a finding all the same."""
    assert judge(entry("runs/r/overtaken/1", "", "o1"), WRITTEN, DELETED, MISSED)
    assert judge(leased(0, "train 0"), leased(1, "train 1"), WRITTEN, DELETED, MISSED)
    again = [leased(0, "train 1"), leased(1, "train 2"), leased(2, "train 1")]
    assert judge(*again, WRITTEN, DELETED, MISSED)  # who lost a rank holds one again


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "bb"}, "right_model: the final model is bb; expected aa"),
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
    """Judge a run with a bad end, such as a wrong model or a key left behind: a finding begins with `said`. `changes`: fields of the
    outcome that differ from a good one.
    """
    assert any(each.startswith(said) for each in judge(outcome=replace(WELL, **changes)))  # type: ignore[arg-type]


def test_an_outcome_says_what_its_model_and_the_last_decision_say() -> None:
    said = {"val_loss": 0.5, "val_metric": 0.75, "epochs": 2, "reason": "target reached"}
    decisions = [{"epoch": 2, "reason": "target reached", "finished": True}]

    def told(**changed: object) -> list[str]:
        """Return the findings about an outcome with these changes."""
        return judge(outcome=replace(WELL, said=said | changed, decisions=decisions), evaluated=(0.5, 0.75))

    assert not told()
    assert told(val_metric=1.0)[0].startswith("outcome_says_what_is_so: the outcome says (0.5, 1.0, 2,")
    assert told(val_loss=0.25) and told(epochs=1) and told(reason="")


def test_an_invocation_that_waits_until_its_timeout_is_told() -> None:
    assert judge(cut_off=["train 0 (train/2)"]) == ["leaves_in_time: ended by its timeout: train 0 (train/2)"]


def test_what_passes_by_itself_needs_no_resumption() -> None:
    """Judge a run that took three clients: a finding if two should have been enough, none if three or any number were allowed."""
    resumed = replace(WELL, clients=3, failures=["RunFailed: worker 1", "RunFailed: worker 0"])
    said = "goes_on_by_itself: 3 clients where 2 should have been enough: RunFailed: worker 1; RunFailed: worker 0"

    assert judge(outcome=resumed, by_itself=2) == [said]
    assert not judge(outcome=resumed, by_itself=3)
    assert not judge(outcome=resumed)  # what went wrong may have needed any number


def test_where_every_database_lost_the_model_a_run_may_fail_in_these_words_but_not_with_a_wrong_model() -> None:
    """Judge a run whose databases lost the model: only a failure that asks for a new run is allowed; another failure and a wrong model are
    findings.
    """
    lost = replace(
        WELL, failure="RunFailed: initialise: r: no worker's database holds a model; start a new run", model=""
    )

    assert not judge(outcome=lost, state_lost=True)
    assert judge(outcome=lost)
    assert judge(outcome=replace(lost, failure="RunFailed: worker 1"), state_lost=True)
    assert judge(outcome=replace(WELL, model="bb"), state_lost=True)


CHECKPOINT = "runs/r/checkpoint/000000000000/0/00000002.00000"
OVERTAKEN, OVER = entry("runs/r/overtaken/0", "", "o1", role="initialise 0"), entry("runs/r/outcome.json", "", "o2")


@pytest.mark.parametrize(("before", "excused"), [([], False), ([OVERTAKEN], False), ([OVER], True)])
def test_who_is_killed_leaves_only_what_nobody_was_to_clear_away_any_more(
    before: list[HistoryEntry], excused: bool
) -> None:
    """Judge a checkpoint left by a killed process: `excused` if it was written after the run's end (`before`: the entries before it), or by
    an invocation that came again after others had continued.
    """
    left = replace(WELL, left={**WELL.left, "s3": [*WELL.left["s3"], CHECKPOINT]})
    said = judge(*before, entry(CHECKPOINT, "", "c1"), outcome=left, killed=("train/0",))

    assert said == ([] if excused else [f"nothing_left: left behind: s3: {CHECKPOINT}"])
    for role, told in (("train 0", False), ("train 1", True)):  # an invocation that came again when others had gone on
        late = judge(entry(CHECKPOINT, "", "c1"), outcome=left, killed=("train/0",), outlived=(role,))
        assert bool(late) == told


@pytest.mark.parametrize(
    ("queue", "before", "excused"),
    [
        ("r.updates.1", [], False),
        ("r.updates.1", [OVERTAKEN], True),
        ("r.updates.1767225600.1", [OVERTAKEN], False),  # of the next attempt
        ("r.updates.1767225600.1", [OVER], True),
    ],
)
def test_who_is_killed_leaves_only_queues_that_nobody_was_to_delete_any_more(
    queue: str, before: list[HistoryEntry], excused: bool
) -> None:
    """Judge a queue left by a killed process: `excused` if the run or the queue's attempt was over when the process declared it (`before`:
    the entries before), unless the queue existed already.
    """
    left = replace(WELL, left={**WELL.left, "rabbitmq": [queue]})
    declared = entry(queue, "", "", operation="queue.declare")

    said = judge(*before, declared, outcome=left, killed=("train/0",))
    assert said == ([] if excused else [f"nothing_left: left behind: rabbitmq: {queue}"])
    others = replace(declared, process="other")
    assert judge(others, *before, declared, outcome=left, killed=("train/0",))  # it was there
    deleted = replace(others, operation="queue.delete")
    assert judge(others, *before, deleted, declared, outcome=left, killed=("train/0",)) == said


def message(queue: str, said: str, *, taken: bool = False, role: str = "notify 0") -> HistoryEntry:
    """Return the entry of a message that is published to the queue or, if `taken`, acknowledged from it."""
    operation = "basic.ack" if taken else "basic.publish"
    return entry(queue, said if taken else "", "" if taken else said, operation=operation, role=role)


@pytest.mark.parametrize("barrier", ["r.round", "r.round.1767225600"])
def test_a_reader_lets_go_of_a_round_when_all_have_come(barrier: str) -> None:
    """Judge a reader that acknowledges a barrier's message: allowed once all members have come, a finding before."""
    came, again, last = (message(barrier, said) for said in ("0/0", "0/0", "0/1"))
    passed = message(f"{barrier}.1", "0/0", taken=True, role="check 1")

    assert not judge(came, again, last, passed)
    assert judge(came, again, passed) == [
        f"barriers_only_grow: round 0 passed: {barrier}.1 by check 1 (check/1) at 0.500 s, basic.ack on s3 0; only 0 of 2 had come"
    ]


def test_who_knows_that_it_was_overtaken_creates_nothing() -> None:
    """Judge writes and reads of a process that has read that its attempt was overtaken: both are findings. Without that knowledge, in a
    step that sets up an attempt, and in a later invocation they are allowed.
    """
    looked = entry("runs/r/overtaken/0", "o1", "o1", operation="HeadObject")
    late = entry(AVERAGE, "", "a1", operation="AI.TENSORSET")
    gone = entry(AVERAGE, "a1", "", operation="UNLINK")

    assert not judge(OVERTAKEN, late, looked, gone)
    assert not judge(OVERTAKEN, replace(looked, outcome="no reply"), late)
    assert any("knows that it was overtaken" in each for each in judge(OVERTAKEN, looked, late))
    reads = replace(READ, role=late.role, process=late.process)
    assert any("read by an attempt that knows" in each for each in judge(WRITTEN, OVERTAKEN, looked, reads))
    assert not judge(WRITTEN, OVERTAKEN, reads, looked) and not judge(
        WRITTEN, OVERTAKEN, replace(looked, process="o"), reads
    )
    sets_up = [replace(each, role="initialise 0") for each in (looked, reads)]
    assert not judge(WRITTEN, OVERTAKEN, *sets_up)  # the next attempt
    ended = entry("runs/r/records/train/1.json", "", "r1")
    assert not judge(OVERTAKEN, looked, ended, late, gone)  # another invocation, in the same environment


def test_who_was_overtaken_saves_one_checkpoint_at_most() -> None:
    """Judge checkpoints of an overtaken attempt: one after the takeover is allowed, a second one is a finding."""
    first, second = (entry(f"{CHECKPOINT[:-7]}{round}.00000", "", "c1") for round in (2, 4))

    assert not judge(first, OVERTAKEN, second)
    assert any(each.startswith("nobody_goes_on_overtaken: a second") for each in judge(OVERTAKEN, first, second))


FAREWELL = digest(encode_heartbeat(0, beat=0, over=True))


def beats(said: str, at_s: float) -> HistoryEntry:
    """Return the entry of a new heartbeat of rank 0 at `at_s`. `said`: digest of the heartbeat."""
    return replace(entry("runs/r/heartbeat/0", "b0", said, role="program 0"), at_s=at_s)


def looks_at_heartbeat(said: str, at_s: float) -> HistoryEntry:
    """Return the entry of program 1 reading rank 0's heartbeat at `at_s`. `said`: digest of the heartbeat that it reads."""
    return replace(
        entry("runs/r/heartbeat/0", said, said, operation="GetObject", role="program 1"),
        at_s=at_s,
    )


def takes_rank(attempt: int, who: int, at_s: float, name: str = "") -> HistoryEntry:
    """Return the entry of program `who` taking rank 0 by creating a lease at `at_s`. `name`: digest of the lease, by default one that tells
    programs apart.
    """
    lease = entry(f"runs/r/lease/0/{attempt:06d}", "", name or f"l{who}", role=f"program {who}")
    return replace(lease, at_s=at_s)


def finds_no_failure(who: int) -> HistoryEntry:
    """Return the entry of program `who` asking whether rank 0 has failed, which it has not."""
    return entry("runs/r/failure/0", "", "", operation="HeadObject", role=f"program {who}")


def test_a_rank_is_taken_from_a_program_that_is_silent_or_has_given_it_back() -> None:
    """Judge takeovers of a rank: allowed from a program that was silent for long enough or has given the rank back; findings if the program
    was alive or the look was too early.
    """
    held, beat, told = takes_rank(0, 0, 0.0), beats("b1", 5.0), "ranks_are_taken_from_the_silent: taken from a program"
    silent, too_soon = looks_at_heartbeat("b1", 26.0), looks_at_heartbeat("b1", 24.0)

    sound = finds_no_failure(1)

    assert not judge(held, beat, silent, sound, takes_rank(1, 1, 26.1))
    assert not judge(held, beats(FAREWELL, 5.0), looks_at_heartbeat(FAREWELL, 6.0), sound, takes_rank(1, 1, 6.1))
    assert not judge(held, finds_no_failure(0), takes_rank(1, 0, 0.1, "l0"))  # it is its own: the reply was lost
    assert not judge(takes_rank(0, 0, 0.0, digest(NOBODY)), sound, takes_rank(1, 1, 0.1))
    assert not judge(held, replace(takes_rank(1, 0, 1.0), role="client"))
    for wrong in (
        [held, beat, too_soon, takes_rank(1, 1, 24.1)],
        [held, beat, silent, beats("b2", 26.2), looks_at_heartbeat("b2", 26.3), takes_rank(1, 1, 26.4)],
        [held, takes_rank(1, 1, 0.1)],
        # a farewell of the program before
        [
            held,
            beat,
            silent,
            takes_rank(1, 1, 26.1),
            beats(FAREWELL, 27.0),
            looks_at_heartbeat(FAREWELL, 28.0),
            takes_rank(2, 2, 28.1),
        ],
        # another has just taken it
        [held, beat, takes_rank(1, 2, 25.9), silent, takes_rank(2, 1, 26.1)],
    ):
        assert any(each.startswith(told) for each in judge(*wrong))


def test_a_rank_that_has_failed_is_not_taken_again() -> None:
    held, silent, lists = takes_rank(0, 0, 0.0), looks_at_heartbeat("b1", 26.0), entry("runs/r/lease/", "", "")
    lists = replace(lists, operation="ListObjectsV2", role="program 1", process="program/1")
    failed, sound = replace(finds_no_failure(1), found="f1", left="f1"), finds_no_failure(1)
    taken, said = takes_rank(1, 1, 26.1), "ranks_are_taken_from_the_silent: taken without a look"

    assert not judge(held, lists, silent, sound, taken)
    for wrong in ([lists, silent, failed], [lists, silent], [silent, sound, lists]):
        assert any(each.startswith(said) for each in judge(held, *wrong, taken))


def test_a_run_is_marked_as_over_when_all_have_left() -> None:
    outcome, over = entry("runs/r/outcome.json", "", "o1"), entry("runs/r/over", "", "v1", role="program 0")
    left = [entry(f"runs/r/left/{rank}", "", "x1", role=f"program {rank}") for rank in (0, 1)]
    joined = entry("runs/r/lease/1/000000", "", "l1", role="program 1")
    failed = entry("runs/r/failure/1", "", "f1", role="program 1")
    said = "clears_away_when_all_have_left: marked as over before ranks [1] had left"

    assert not judge(outcome, *left, over)
    for tolerant in (False, True):
        assert [each.startswith(said) for each in judge(outcome, joined, left[0], over, tolerant=tolerant)] == [True]
    for gone in ([joined, failed, left[0], over], [joined, left[0], replace(over, at_s=601.0)]):
        assert not judge(outcome, *gone, tolerant=True) and judge(outcome, *gone)


def test_a_step_does_not_poll_for_long_after_its_wait_has_timed_out() -> None:
    assert judge(overdue=["check_peers 1, since 9"]) == [
        "leaves_in_time: polls after its wait has timed out: check_peers 1, since 9"
    ]


def test_one_program_speaks_for_a_rank() -> None:
    """Judge messages of programs: each must hold the rank's lease and check it before every message; otherwise it is a finding."""
    mine = entry("runs/r/lease/0/000000", "", "l1", role="program 0")
    other = entry("runs/r/lease/0/000001", "", "l2", role="program 1")
    sent, more = (message("r.mailbox.0.1", said, role="program 0") for said in ("m1", "m2"))

    asks, other_asks = (entry("runs/r/lease/0/9", "", "", operation="HeadObject", role=f"program {n}") for n in (0, 1))
    third, free = message("r.mailbox.0.0", "m3", role="program 1"), looks_at_heartbeat(FAREWELL, 1.0)
    sound = finds_no_failure(1)
    assert not judge(mine, asks, sent, asks, more, beats(FAREWELL, 0.5), free, sound, other, other_asks, third)
    assert any("has not asked" in each for each in judge(mine, asks, sent, more))
    taken = beats("b1", 0.5), looks_at_heartbeat("b1", 21.0), sound, other
    assert not judge(mine, *taken, asks, sent, asks, sent)  # it had asked before, and sends again what got no answer
    assert any("another has taken over" in each for each in judge(mine, other, sent, more))
    assert any("does not hold the rank" in each for each in judge(other, sent))


@pytest.mark.parametrize(
    ("usd", "said"),
    [([0.1, 0.2, 0.3], []), ([0.1, 0.35, 0.4], ["an epoch follows epoch 2"]), ([0.2, 0.1], ["epoch 2: $0.1"])],
)
def test_no_epoch_follows_one_after_which_it_would_pass_the_budget(usd: list[float], said: list[str]) -> None:
    """Judge epochs by the spending after each (`usd`): an epoch that would pass the budget, and spending that falls, are findings that
    begin with `said`.
    """
    told = [{"epoch": epoch, "usd": each, "dearest_usd": 0.2} for epoch, each in enumerate(usd, start=1)]
    found = judge(outcome=replace(WELL, decisions=told), budget_usd=0.5)

    assert len(found) == len(said)
    assert all(each.startswith(f"spends_within_its_budget: {start}") for each, start in zip(found, said, strict=True))


def test_workers_that_hold_different_models_are_told() -> None:
    """Judge workers that saved different models of one round: the finding names attempt, round and workers."""
    told = judge(models={(0, 2, None): {0: "a", 1: "a"}, (0, 4, None): {0: "a", 1: "b"}})

    assert told == ["workers_hold_one_model: attempt 0, round 4: workers [0, 1] have saved different models"]


def test_models_that_workers_save_are_recorded() -> None:
    """Run MLLess: the nemesis records, by round, a model of each worker, for the comparison between workers."""
    nemesis = Disturbed()
    VirtualWorld(reduce_experiment(small("mlless", workers=2)), 0, nemesis).run()

    assert any(held.keys() == {0, 1} for held in nemesis.models.values())


def checkpoint(attempt: int, worker: int, round: int, *, role: str, read: bool = False) -> HistoryEntry:
    """Return the entry of a checkpoint that a role stores or, if `read`, reads."""
    key = f"runs/r/checkpoint/{attempt:012d}/{worker}/{round:08d}.00000"
    return entry(key, "c1" if read else "", "c1", operation="GetObject" if read else "PutObject", role=role)


def test_an_attempt_begins_where_all_stood_and_those_before_it_are_told() -> None:
    """Judge the start of an attempt: it must begin at the newest round that all members have saved, after marking all earlier attempts as
    overtaken.
    """
    stood = [checkpoint(0, worker, round, role=f"train {worker}") for worker in (0, 1) for round in (0, 2)]
    begins = entry("runs/r/attempt/000000000007", "", "b", role="initialise 0")
    newest, older = (checkpoint(7, 0, round, role="initialise 0") for round in (2, 0))

    assert not judge(*stood, begins, OVERTAKEN, newest, members=2)
    assert any(
        "all could have started from round 2" in each for each in judge(*stood, begins, OVERTAKEN, older, members=2)
    )
    first, second = (entry(f"runs/r/attempt/{number:012d}", "", "b", role="initialise 0") for number in (0, 5))
    assert any("it has not told attempts [0]" in each for each in judge(first, *stood, begins, newest, members=2))
    told = replace(OVERTAKEN, key="runs/r/overtaken/5")  # 5 was killed before it told 0
    assert any("it has not told attempts [0]" in each for each in judge(first, second, begins, told, newest))
    assert not judge(first, second, begins, told, OVERTAKEN, newest)
    assert any("attempts [0]" in each for each in judge(first, begins, replace(OVERTAKEN, process="other"), newest))


def test_who_is_started_again_takes_up_its_newest_checkpoint() -> None:
    """Judge a new process's first read of a checkpoint: it must be the newest; an older one is a finding."""
    saved = [checkpoint(0, 0, round, role="train 0") for round in (0, 2)]
    looks = replace(entry("runs/r/experiment.json", "e", "e", operation="GetObject"), process="train/9")
    old, new = (replace(checkpoint(0, 0, round, role="train 0", read=True), process="train/9") for round in (0, 2))

    assert not judge(*saved, looks, new)
    assert any("there was one of round 2" in each for each in judge(*saved, looks, old))


def tensor(name: str, *, role: str = "train 0") -> HistoryEntry:
    """Return the entry of a tensor of round 1 that a role stores."""
    return entry(f"r/attempt-0/1/{name}", "", name[-3:], operation="AI.TENSORSET", role=role)


def test_update_report_and_announcement_come_in_this_order_and_a_word_before_its_announcement() -> None:
    """Judge the order of MLLess's writes: a worker stores update, report, announcement; the supervisor stores its word before announcing
    it. Any other order is a finding.
    """
    update, report, told = tensor("0/update"), tensor("0/report"), message("r.updates", "1/0", role="train 0")
    word, woken = tensor("expected", role="supervise 0"), message("r.updates", "1/2", role="supervise 0")

    assert not judge(update, report, told, word, woken)
    stands = replace(word, found=word.left)  # another invocation of the supervisor has given its own
    read = replace(stands, operation="TENSOR.GET")
    assert not judge(word, woken, stands, read, woken)
    for wrong in ([report, update, told], [update, told, report], [woken, word], [word, woken, stands, woken]):
        assert any(each.startswith("keeps_the_order") for each in judge(*wrong))


def test_who_stores_asks_behind_it_and_who_agrees_has_kept_the_round() -> None:
    """Judge functions and programs that store something without checking afterwards whether their attempt or the run is over, and a
    decision made before the round was saved: each is a finding.
    """
    answers = entry("runs/r/records/train/1.json", "", "r1")
    asks = entry("runs/r/overtaken/0", "", "", operation="HeadObject")
    agrees = entry("runs/r/decision/000001.json", "", "d1")
    stores, keeps = (
        entry("r/attempt-0/1/0/chunk/1", "", "a1", operation="AI.TENSORSET"),
        checkpoint(0, 0, 2, role="train 0"),
    )
    stores = replace(stores, server="redis 0")

    assert not judge(stores, asks, answers)
    assert any("does not ask behind it" in each for each in judge(stores, answers))
    assert any("does not ask behind it" in each for each in judge(keeps, answers)) and not judge(keeps, asks, answers)
    kept, over = (replace(each, role="program 0") for each in (keeps, replace(asks, key="runs/r/over")))
    assert any("whether the run is over" in each for each in judge(kept, kept)) and not judge(kept, over, kept)
    lease = replace(over, key="runs/r/lease/0/000001")
    model = replace(kept, key="runs/r/computing/00000000/0/model")
    assert not judge(kept, over, lease, model, over) and any(
        "behind it" in each for each in judge(kept, lease, model, answers)
    )
    assert any("still holds the rank" in each for each in judge(kept, over, model))
    assert not judge(stores, keeps, agrees, keeps=True)
    assert any("has not kept" in each for each in judge(stores, agrees, keeps=True))


def test_who_stores_a_contribution_asks_behind_it_whether_the_run_is_over() -> None:
    program = {"role": "program 1"}
    stored = entry("runs/r/body/00000002/1", "", "g1", **program)
    asked = entry("runs/r/over", "", "", operation="HeadObject", **program)
    saved = entry("runs/r/checkpoint/000000000000/1/00000003.00000", "", "c1", **program)
    record = entry("runs/r/records/train_gpu/1.json", "", "r1", **program)
    holds = entry("runs/r/lease/1/000001", "", "", operation="HeadObject", **program)

    assert not judge(holds, stored, asked, record) and not judge(entry(stored.key, "g1", "g1", **program), record)
    assert ["stores a contribution, and does not ask" in each for each in judge(holds, stored, record, asked)] == [True]
    assert any("stores a contribution" in each for each in judge(holds, stored, saved, asked))


def test_the_model_of_a_state_comes_last() -> None:
    """Judge the set-up of a state: a vector stored after the model, of any member, is a finding, unless it existed or the model is gone."""
    model, velocity = (tensor(f"0/{name}", role="initialise 0") for name in ("model", "velocity"))

    assert not judge(velocity, model, members=2)
    assert not judge(velocity, model, replace(velocity, found=velocity.left), members=2)  # a second create
    assert not judge(model, entry(model.key, model.left, "", operation="UNLINK"), velocity, members=2)
    other = replace(velocity, key=velocity.key.replace("/0/", "/1/"))
    for late in (velocity, other):
        assert any("behind a model of its round" in each for each in judge(model, late, members=2))


def test_a_run_that_waits_too_long_for_the_dead_or_averages_what_is_older_is_told() -> None:
    """Judge a run longer than `within_s`, and a peer that averages an older version than before: both are findings."""
    assert judge(within_s=0.5) and not judge(within_s=2.0)
    assert judge(seen={1: {2: {"0": 3}, 3: {"0": 2}}}) and not judge(seen={1: {2: {"0": 3}, 3: {"0": 3}}})


def test_a_first_step_asks_behind_what_it_took_over_whether_it_was_overtaken() -> None:
    """Judge a first step that deletes an earlier attempt's checkpoints and does not check afterwards whether it was
    overtaken: a finding.
    """
    begins = entry("runs/r/attempt/000000000007", "", "b", role="initialise 0")
    clears, own = (
        entry(
            f"runs/r/checkpoint/{attempt:012d}/0/00000002.00000",
            "c1",
            "",
            operation="DeleteObjects",
            role="initialise 0",
        )
        for attempt in (0, 7)
    )
    asks = entry("runs/r/overtaken/7", "", "", operation="HeadObject", role="initialise 0")
    answers = entry("runs/r/records/initialise/1.json", "", "r1", role="initialise 0")

    assert not judge(begins, clears, asks, answers) and not judge(begins, asks, own, answers)
    told = judge(begins, asks, clears, answers)
    assert any("takes over from an attempt before, and does not ask behind it" in each for each in told)


def test_who_says_that_all_is_cleared_away_has_looked_at_every_attempt() -> None:
    """Judge a step that marks the run as finished without having listed the checkpoints of every attempt: a finding, also if a listing had
    no answer.
    """
    saved = [checkpoint(attempt, 0, 2, role="train 0") for attempt in (0, 7)]
    looks = [
        entry(f"runs/r/checkpoint/{attempt:012d}/", "", "", operation="ListObjectsV2", role="collect 0")
        for attempt in (0, 7)
    ]
    asks = entry("runs/r/overtaken/7", "", "", operation="HeadObject", role="collect 0")
    finished = entry("runs/r/finished", "", "f", role="collect 0")

    assert not judge(*saved, *looks, asks, finished)
    assert not judge(*saved, replace(looks[0], key="runs/r/checkpoint/"), asks, finished)
    assert any("has not looked at attempts [0]" in each for each in judge(*saved, looks[1], asks, finished))
    unanswered = replace(looks[0], outcome="SlowDown")
    assert any("at attempts [0]" in each for each in judge(*saved, unanswered, looks[1], asks, finished))


def test_who_knows_that_nobody_needs_its_state_takes_its_checkpoints_back() -> None:
    """Judge an invocation that has read that its state was taken over: it must delete its checkpoints, unless its delete request failed."""
    saved, asks = checkpoint(0, 0, 2, role="train 0"), entry("runs/r/overtaken/0", "o1", "o1", operation="HeadObject")
    taken = entry("runs/r/taken-over/0", "t", "t", operation="HeadObject")
    deletes = replace(saved, found="c1", left="", operation="DeleteObjects")
    answers = entry("runs/r/records/train/1.json", "", "r1")

    assert not judge(saved, asks, taken, deletes, answers) and not judge(saved, asks, answers)
    assert not judge(saved, asks, taken, replace(deletes, left="c1", outcome="SlowDown"), answers)
    assert any("knows that nobody needs them" in each for each in judge(saved, asks, taken, answers))


def test_an_invocation_takes_back_no_checkpoint_of_another_worker_that_its_environment_served_before() -> None:
    """Judge two invocations in one environment: only the worker that saved the checkpoint has to delete it."""
    saved = entry("runs/r/checkpoint/000000000000/2/00000003.00000", "", "c1", role="train 2")
    known = entry("runs/r/taken-over/0", "t1", "t1", operation="HeadObject", role="train 2")
    answered = entry("runs/r/records/train/1.json", "", "r1", role="train 2")
    other = [replace(each, role="train 0") for each in (known, answered)]
    said = "clears_away_behind_every_attempt: train 2 (train/2) knows that nobody needs them, and leaves "

    assert any(each.startswith(said) for each in judge(saved, known, answered))
    assert not [each for each in judge(saved, answered, *other) if each.startswith("clears_away")]


def test_the_model_is_stored_before_the_outcome_that_names_it() -> None:
    """Judge an outcome stored before its model: a finding."""
    model, outcome = entry("runs/r/model/aa", "", "m1"), entry("runs/r/outcome.json", "", "o1")
    said = "keeps_the_order: train/0 stores the model behind the outcome that names it: "

    assert not judge(model, outcome)
    assert [each for each in judge(outcome, model) if each.startswith(said)]


def test_a_run_is_over_only_with_an_outcome() -> None:
    over, outcome = entry("runs/r/over", "", "o1", role="program 0"), entry("runs/r/outcome.json", "", "o1")
    said = "decisions_stand: marked as over, without an outcome: runs/r/over by program 0"

    assert any(each.startswith(said) for each in judge(over))
    assert not [each for each in judge(outcome, over) if each.startswith("decisions_stand")]


def test_two_checkpoints_stay_while_an_attempt_trains() -> None:
    saved = [checkpoint(0, 1, round, role="train 1") for round in range(3)]
    gone = [replace(each, found="c1", left="") for each in saved]
    overtaken = entry("runs/r/overtaken/0", "", "o1", role="initialise 0")
    said = "keeps_needed_checkpoints: runs/r/checkpoint/000000000000/1/00000000.00000 is deleted by train 1"

    def told(*entries: HistoryEntry) -> bool:
        """Return whether the oracle finds that the first checkpoint went too early."""
        return any(each.startswith(said) for each in judge(*entries))

    assert told(*saved[:2], gone[0]) and told(*saved, gone[1], gone[0])
    assert not told(*saved, gone[0]) and not told(*saved[:2], overtaken, gone[0])
    assert not told(*saved[:2], entry("runs/r/outcome.json", "", "o1"), gone[0])


def test_what_a_retry_of_an_invocation_reads_stays_until_the_invocation_has_answered() -> None:
    saved = [checkpoint(0, 0, round, role="train 0") for round in range(4)]
    begins = replace(saved[1], found="c1", left="c1", operation="GetObject")
    gone = replace(saved[1], found="c1", left="")
    asks = entry("runs/r/overtaken/0", "", "", operation="HeadObject")
    answers = entry("runs/r/records/train/1.json", "", "r1")
    said = "keeps_needed_checkpoints: runs/r/checkpoint/000000000000/0/00000001.00000 is deleted by train 0 (train/0), whose"

    assert any(each.startswith(said) for each in judge(*saved[:2], begins, *saved[2:], gone))
    assert not judge(*saved[:2], begins, *saved[2:], asks, answers, gone)


def test_what_a_round_stored_goes_when_nobody_returns_to_it() -> None:
    """Judge a key that still exists `kept_rounds` rounds later: a finding, except for checkpoints of MLLess's supervisor."""
    first, fourth = entry("runs/r/computing/00000000/0/average/0", "", "a1"), entry("r/attempt-0/4/0/update", "", "u1")
    gone = entry("runs/r/computing/00000000/0/average/0", "a1", "")
    said = "used_up_keys_go: runs/r/computing/00000000/0/average/0 on s3 0 is still there in round 4"

    assert judge(first, fourth, kept_rounds=3) == [said]
    assert not judge(first, fourth, kept_rounds=4) and not judge(first, fourth)
    assert not judge(first, gone, fourth, kept_rounds=3)
    assert not judge(entry("runs/r/checkpoint/000000000000/2/00000000.00000", "", "c1"), fourth, kept_rounds=3)
