"""Schedules: drawn by a seed, written and read, told in words, made as small as they can be."""

import json
from dataclasses import replace
from typing import Any

import pytest

from crossover.errors import UserError
from tests.chaos.world.drawing import draw
from tests.chaos.world.schedule import (
    CONFLICT,
    KINDS,
    LIMITS,
    REFUSALS,
    WRITTEN_ALL_THE_SAME,
    Fault,
    Terrain,
    as_json,
    from_json,
    limits_of,
    pass_by,
    refusal_of,
)
from tests.chaos.world.shrink import shrink_schedule

TERRAIN = Terrain(
    requests={
        "worker 0": [(0.7 * number, "GetObject") for number in range(40)],
        "worker 1": [(0.7 * number, "PutObject lease/#" if number == 3 else "GetObject") for number in range(40)],
        "client": [(2.0 * number, "HeadObject") for number in range(12)],
    },
    messages={"worker 0": 4, "worker 1": 4},
    deliveries={"worker 0": 1, "worker 1": 2},
    programs=["program 0", "program 1"],
    servers={"redis": 2, "rabbitmq": 1, "s3": 1, "aws": 1},
    kinds=KINDS,
    again={"worker 0": [(30.0, "GetObject")] * 60 + [(30.0, "PutObject checkpoint/#")]},
    again_s=13.7,
)

STORED_ONE_PART: dict[str, Any] = {"kind": "kill", "role": "compute_gradient 0", "request": 2, "side": "after"}
LIMITED = replace(
    TERRAIN,
    requests={
        **TERRAIN.requests,
        "compute_gradient 0": [(1.0, "GetObject"), (2.0, "PutObject computing/#/gradient/#"), (3.0, "HeadObject")],
        "program 0": [(1.0, "GetObject"), (1.1, "PutObject runs/#/lease/#/#"), (1.2, "GetObject")],
        "program 1": [(1.0, "GetObject")],
    },
    limits=tuple(LIMITS),
)


def test_a_seed_gives_one_schedule_and_all_kinds_come() -> None:
    """Draw schedules of 300 seeds twice: they are equal, contain every kind of fault that can happen here, and have at
    most 9 faults each.
    """
    drawn = [draw(TERRAIN, seed) for seed in range(300)]

    assert drawn == [draw(TERRAIN, seed) for seed in range(300)]
    assert {fault.kind for faults in drawn for fault in faults} == set(KINDS) - {"gone", "limit"}
    assert all(len(faults) <= 9 for faults in drawn) and sum(len(faults) >= 5 for faults in drawn) > 150


def test_most_schedules_have_limits_and_each_comes_with_each_of_its_values() -> None:
    """Draw 600 schedules: 480 to 570 have limits, each limit with all its values; limits that belong together come together, and the
    other faults are those drawn without limits.
    """
    drawn = [draw(LIMITED, seed) for seed in range(600)]
    limits = [limits_of(faults) for faults in drawn]

    assert 480 < sum(map(bool, limits)) < 570
    assert {each for found in limits for each in found.items()} == {
        (name, value) for name, values in LIMITS.items() for value in values
    }
    assert all("minibatch_s" in found for found in limits if "timeout_s" in found)
    assert all("page_keys" in found and "timeout_s" not in found for found in limits if "page_s" in found)
    plain = [not any(fault.sort for fault in faults) for faults in drawn]  # not of a late writer
    assert not any(
        {"part_bytes", "exchange_every"} <= found.keys() and alone for found, alone in zip(limits, plain, strict=True)
    )
    for seed, (faults, found) in enumerate(zip(drawn, limits, strict=True)):
        if "waits_s" in found or any(fault.sort for fault in faults):  # a schedule of its own
            continue
        others = [fault.kind for fault in draw(replace(LIMITED, limits=()), seed)]
        assert [fault.kind for fault in faults[len(found) :]][: len(others)] == others


def test_schedules_with_limits_have_the_faults_that_these_make_harmful() -> None:
    """Draw 600 schedules: those with a limit often end with the fault that the limit makes harmful, such as a freeze of a program behind
    its lease if there are spares.
    """
    last = [(draw(LIMITED, seed)[-1], limits_of(draw(LIMITED, seed))) for seed in range(600)]
    killed = [limits for fault, limits in last if fault == Fault(**STORED_ONE_PART)]
    stopped = [limits for fault, limits in last if fault.kind == "freeze" and fault.role.startswith("program ")]

    assert sum("part_bytes" in limits for limits in killed) > 10
    assert sum("spares" in limits for limits in stopped) > 40
    held = [
        each.request
        for each, limits in last
        if (each.kind, each.role) == ("freeze", "program 0") and "spares" in limits
    ]
    assert held.count(3) > len(held) / 2  # behind its lease
    again = [draw(LIMITED, seed)[-3:] for seed in range(600) if "exchange_every" in limits_of(draw(LIMITED, seed))]
    assert sum(all((f.kind, f.side) == ("message", "after") for f in faults) for faults in again) > 20


def test_some_schedules_of_a_single_worker_let_an_attempt_find_states_of_two_others() -> None:
    """Draw 300 schedules of a single worker: some freeze and kill it while it saves, around two resumptions; none do so for several
    workers.
    """
    saves = [(float(at_s), "PutObject runs/#/checkpoint/#/#/#.# if none") for at_s in range(1, 5)]
    alone = replace(TERRAIN, requests=TERRAIN.requests | {"train 0": saves})
    drawn = [[fault.kind for fault in draw(alone, seed)] for seed in range(300)]
    late = ["freeze", "kill", "client_dies", "client_dies"]

    assert 20 < sum(faults == late for faults in drawn) < 60
    assert not any([fault.kind for fault in draw(TERRAIN, seed)] == late for seed in range(300))


def test_a_first_step_stands_still_while_the_run_is_resumed_once_more() -> None:
    first = {"initialise 0": [(1.0, "HeadObject attempt/#"), (1.1, "exchange.declare #")]}
    again = {"initialise 0": [(20.0, "HeadObject attempt/#"), (20.1, "exchange.declare #")]}
    resumed = replace(TERRAIN, requests=TERRAIN.requests | first, again=TERRAIN.again | again)
    drawn = [draw(resumed, seed) for seed in range(300)]
    late = [faults for faults in drawn if [f.role for f in faults if f.kind != "client_dies"][:1] == ["initialise 0"]]
    late = [faults for faults in late if sum(f.kind == "client_dies" for f in faults) == 2 and len(faults) <= 4]

    assert 15 < len(late) < 60
    assert {fault.request for faults in late for fault in faults if fault.kind == "freeze"} == {3, 4}
    assert 0 < sum(any(f.kind == "kill" for f in faults) for faults in late) < len(late)
    beside = replace(resumed, requests=resumed.requests | {"train 1": TERRAIN.requests["worker 1"]})
    dead = [sum((f.kind, f.role) == ("kill", "train 1") for f in draw(beside, seed)) for seed in range(300)]
    assert sum(kills >= 8 for kills in dead) > 5  # it and all its retries


def test_a_last_step_and_all_its_retries_die_behind_the_outcome() -> None:
    last = [(40.0, "HeadObject overtaken/#"), (40.1, "PutObject runs/#/outcome.json if none"), (40.2, "UNLINK #")]
    terrain = replace(TERRAIN, requests=TERRAIN.requests | {"collect 0": last})
    drawn = [draw(terrain, seed) for seed in range(300)]
    dead = [
        faults for faults in drawn if len(faults) == 8 and {(f.kind, f.role) for f in faults} == {("kill", "collect 0")}
    ]

    assert 10 < len(dead) < 50
    assert {faults[0].request for faults in dead} == {3}


def test_a_program_freezes_before_it_stores_something_late_in_the_run() -> None:
    stores = [(float(at_s), f"PutObject runs/#/{what}/#/#") for at_s in range(1, 5) for what in ("body", "checkpoint")]
    asked = [(0.5, "PutObject runs/#/lease/#/#"), *stores]
    terrain = replace(TERRAIN, requests=TERRAIN.requests | {"program 0": asked}, limits=("spares",))
    drawn = [draw(terrain, seed) for seed in range(300)]
    drawn = [faults for faults in drawn if any(f.sort and f.role == "program 0" for f in faults)]
    frozen = [fault for faults in drawn for fault in faults if fault.sort]

    assert 10 < len(frozen) < 50 and all("spares" in limits_of(faults) for faults in drawn)
    assert {(f.role, f.request) for f in frozen} == {("program 0", 3), ("program 0", 4)}
    assert {f.sort for f in frozen} == {"PutObject runs/#/body/#/#", "PutObject runs/#/checkpoint/#/#"}


def test_a_worker_dies_for_good_before_it_does_what_the_others_leave_to_it() -> None:
    claims = [(3.0, "PutObject runs/#/decision/#.json if none"), (3.1, "PutObject runs/#/outcome.json if none")]
    terrain = replace(TERRAIN, requests=TERRAIN.requests | {"train 0": claims}, may_go=1)
    lost = [draw(terrain, seed) for seed in range(300)]
    lost = [
        faults for faults in lost if [(f.kind, f.role, bool(f.sort)) for f in faults] == [("gone", "train 0", True)]
    ]

    assert 10 < len(lost) < 50 and {faults[0].sort for faults in lost} == {what for _, what in claims}
    assert not any(f.sort for seed in range(300) for f in draw(replace(terrain, may_go=0), seed) if f.kind == "gone")
    last = {"collect 0": [(9.0, "PutObject runs/#/outcome.json if none"), (9.1, "UNLINK #")]}
    resumed = [draw(replace(terrain, requests=terrain.requests | last), seed) for seed in range(300)]
    assert sum([f.kind for f in faults] == ["gone", *["kill"] * 8] for faults in resumed) > 5


def test_a_writer_freezes_until_the_run_is_over_without_it() -> None:
    asked = [(1.0, "GetObject data/#"), (2.0, "PutObject runs/#/evaluating/#.json if none"), (2.5, "UNLINK #")]
    alone = {"deliveries": {"train 0": 1}, "programs": [], "kinds": ("kill", "duplicate")}
    terrain = replace(TERRAIN, requests=TERRAIN.requests | {"train 0": asked}, **alone)
    frozen = [faults for faults in (draw(terrain, seed) for seed in range(300)) if any(f.sort for f in faults)]

    assert 10 < len(frozen) < 50
    assert all([f.kind for f in faults] == ["client_dies", "freeze"] for faults in frozen)
    assert {(f.sort, f.request) for faults in frozen for f in faults[1:]} == {(asked[1][1], 1)}
    served = replace(terrain, programs=TERRAIN.programs)
    twins = [faults for faults in (draw(served, seed) for seed in range(300)) if any(f.sort for f in faults)]
    assert all([f.kind for f in faults] == ["duplicate", "freeze"] for faults in twins)


def test_a_first_step_is_tried_again_while_a_late_state_appears() -> None:
    first = {"initialise 0": [(1.0, "HeadObject attempt/#")], "train 0": [(5.0, "PutObject runs/#/checkpoint/#/#")]}
    terrain = replace(TERRAIN, requests=TERRAIN.requests | first, again={"initialise 0": [(15.0, "UNLINK #")]})
    drawn = [draw(terrain, seed) for seed in range(300)]
    late = [("freeze", "train 0"), ("client_dies", ""), ("kill", "initialise 0")]
    tried = [[(f.kind, f.role) for f in faults if (f.kind, f.role) != ("kill", "train 0")] for faults in drawn]

    assert 10 < tried.count(late) < 50


def test_a_step_stands_still_until_the_others_have_waited_too_long() -> None:
    alone = {"deliveries": {"compute 0": 1, "check_peers 0": 9}, "limits": ("waits_s",)}
    asked = {"compute 0": TERRAIN.requests["worker 0"], "check_peers 0": TERRAIN.requests["worker 1"]}
    drawn = [draw(replace(TERRAIN, requests=TERRAIN.requests | asked, **alone), seed) for seed in range(300)]
    missed = [faults for faults in drawn if limits_of(faults)]

    assert 8 < len(missed) < 40 and {(faults[1].kind, faults[1].role) for faults in missed} == {("freeze", "compute 0")}
    assert not any(map(pass_by, missed))


def test_messages_come_again_that_the_broker_has_lost() -> None:
    sends = [(float(at_s), f"basic.publish #.{what}") for at_s in range(1, 9) for what in ("mailbox", "round")]
    roles = {f"program {rank}": sends for rank in (0, 1)}
    terrain = replace(TERRAIN, requests=TERRAIN.requests | roles, messages=dict.fromkeys(roles, 16))
    drawn = [draw(terrain, seed) for seed in range(300)]
    lost = [faults for faults in drawn if [f.kind for f in faults][:2] == ["freeze", "queues_lost"]]
    lost = [faults for faults in lost if all(f.kind == "message" for f in faults[2:])]
    again = [(faults[1].at_s, fault) for faults in lost for fault in faults[2:]]

    assert 10 < len(lost) < 60 and len(again) > 30
    sent_s = [sends[fault.request - 1][0] for _, fault in again]
    assert all(at + fault.seconds > lost_s + 5.0 for (lost_s, fault), at in zip(again, sent_s, strict=True))


def test_a_worker_of_many_steps_sleeps_until_it_is_given_up() -> None:
    roles = {"train 0": TERRAIN.requests["worker 1"], "supervise 0": TERRAIN.requests["worker 0"]}
    terrain = replace(TERRAIN, requests=TERRAIN.requests | roles, limits=("minibatches", "checkpoint_every"), may_go=1)
    drawn = [draw(terrain, seed) for seed in range(300)]
    late = [
        faults
        for faults in drawn
        if {f.kind for f in faults} == {"limit", "freeze"}
        and limits_of(faults) == {"minibatches": 6.0, "checkpoint_every": 1.0}
    ]

    assert 10 < len(late) < 60
    assert all(f.role == "train 0" and f.seconds >= 900.0 for faults in late for f in faults if f.kind == "freeze")


def test_a_database_is_lost_and_the_run_resumed_before_a_decision() -> None:
    deciding = {f"detect_convergence {worker}": [(20.0 + worker, "HeadObject decision/#")] for worker in (0, 1)}
    terrain = replace(TERRAIN, requests=TERRAIN.requests | deciding)
    drawn = [draw(terrain, seed) for seed in range(300)]
    lost = [faults for faults in drawn if [f.role for f in faults[:2]] == sorted(deciding) and faults[0].request == 1]

    assert 15 < sum([f.kind for f in faults[2:]] == ["memory_lost", "client_dies"] for faults in lost) < 60
    assert all(faults[2].at_s > 21.0 for faults in lost)


def test_where_gradients_may_hardly_be_late_one_peer_is_slow_and_another_is_gone() -> None:
    programs = {f"program {rank}": TERRAIN.requests["worker 0"] for rank in (0, 1)}
    terrain = replace(
        TERRAIN, requests=TERRAIN.requests | programs, limits=("staleness_limit",), may_go=2, kinds=("kill",)
    )
    drawn = [draw(terrain, seed) for seed in range(100)]
    late = [faults for faults in drawn if "staleness_limit" in limits_of(faults)]

    assert late and all([f.kind for f in faults[-2:]] == ["slow", "gone"] for faults in late)
    assert all({f.role for f in faults[-2:]} == set(programs) for faults in late)


def test_some_workers_sleep_until_they_are_given_up() -> None:
    asked = TERRAIN.requests | {"train 1": TERRAIN.requests["worker 1"], "collect 0": [(40.0, "HeadObject")]}
    drawn = [draw(replace(TERRAIN, requests=asked, may_go=1), seed) for seed in range(600)]
    asleep = [[f for f in faults if f.kind == "freeze" and f.seconds >= 900.0] for faults in drawn]
    unfinished = [faults for faults in drawn if any((f.kind, f.role) == ("gone", "collect 0") for f in faults)]

    assert sum(len(faults) >= 2 and {f.role for f in faults} == {"train 1"} for faults in asleep) > 5
    assert unfinished and not any(pass_by(faults, may_go=2) for faults in unfinished)


def test_conflicts_come_at_conditional_writes() -> None:
    """Draw 300 schedules: many let S3 answer with a conflict at the time of the only conditional write."""
    created = {"worker 0": [(30.0, "PutObject decision/# if none")]}
    drawn = [draw(replace(TERRAIN, requests=TERRAIN.requests | created), seed) for seed in range(300)]
    conflicts = [
        [fault for fault in faults if (fault.code, 29.0 <= fault.at_s <= 30.0) == (CONFLICT, True)] for faults in drawn
    ]

    assert sum(len(each) >= 3 for each in conflicts) > 50


def test_each_refusal_comes_and_one_behind_which_a_write_may_stand_on_both_sides_of_it() -> None:
    """Draw 600 schedules: each service's refusals all come, before a request's effect, and after it too if the code allows that the write
    took place.
    """
    drawn = [fault for seed in range(600) for fault in draw(TERRAIN, seed) if fault.kind == "refusal"]
    refused = {(fault.service, refusal_of(fault), fault.side) for fault in drawn}

    assert refused == {
        (service, code, side)
        for service, codes in REFUSALS.items()
        for code in codes
        for side in (("before", "after") if code in WRITTEN_ALL_THE_SAME else ("before",))
    }


def test_some_schedules_pass_by_themselves_and_some_are_of_few_kinds_and_roles() -> None:
    """Draw 300 schedules: 80 to 220 must be survived without a resumption, and more than 30 have at most two kinds of faults."""
    drawn = [draw(TERRAIN, seed) for seed in range(300)]

    assert 80 < sum(map(pass_by, drawn)) < 220
    assert sum(len({fault.kind for fault in faults}) <= 2 for faults in drawn) > 30


@pytest.mark.parametrize(
    ("faults", "by_themselves"),
    [
        ([Fault(kind="kill", role="worker 1", request=3), Fault(kind="kill", role="worker 1", request=9)], True),
        ([Fault(kind="kill", role="worker 1", request=number) for number in (3, 9, 12)], False),
        ([Fault(kind="client_dies", at_s=3.0, seconds=700.0)], True),
        ([Fault(kind="freeze", role="worker 0", request=3, seconds=59.0)], True),
        ([Fault(kind="freeze", role="worker 0", request=3, seconds=901.0)], False),
        ([Fault(kind="memory_lost", service="redis", at_s=3.0)], False),
    ],
)
def test_what_passes_by_itself(faults: list[Fault], by_themselves: bool) -> None:
    """Check for single schedules whether a run must survive them without being resumed."""
    assert pass_by(faults) == by_themselves


def test_what_a_role_asks_for_once_is_struck_often_and_so_is_a_later_life_of_it() -> None:
    """Draw 300 schedules: rare requests are struck more often than common ones, and some faults strike requests that a role makes only
    after a resumption.
    """
    struck = [f.request for seed in range(300) for f in draw(TERRAIN, seed) if f.role == "worker 1" and f.side]

    assert struck.count(4) > 3 * struck.count(20)
    assert max(struck) > 40
    again = [f.request for seed in range(300) for f in draw(TERRAIN, seed) if f.role == "worker 0" and f.side]
    assert again.count(40 + 61) > 3 * again.count(40 + 59)  # what it asks for only in a resumed run


def test_somebody_stands_still_while_another_resumes_the_run() -> None:
    """Draw 300 schedules: more than 25 begin with a freeze between two requests of a role, during which the client dies and the run is
    resumed.
    """
    drawn = [draw(TERRAIN, seed) for seed in range(300)]
    firsts = [faults[:2] for faults in drawn if [f.kind for f in faults[:2]] == ["freeze", "client_dies"]]
    moments = [(dies.at_s, TERRAIN.requests[freeze.role][freeze.request - 1 :][:2]) for freeze, dies in firsts]

    assert sum(len(around) == 2 and around[0][0] <= at_s <= around[1][0] for at_s, around in moments) > 25


def test_a_run_is_resumed_again_while_its_first_resumption_stands_before_a_write() -> None:
    """Draw 300 schedules: at least one kills the client at the usual time of a resumption, and freezes a role at a write of the first
    resumption.
    """
    drawn = [[f for f in draw(TERRAIN, seed) if f.at_s == TERRAIN.again_s or f.request == 101] for seed in range(300)]

    assert any([f.kind for f in faults][:2] == ["client_dies", "freeze"] for faults in drawn)


def test_workers_die_for_good_where_the_others_go_on_without_them() -> None:
    """Draw 300 schedules of an architecture that can continue without one worker: in more than 20 that worker's process
    is killed for good.
    """
    drawn = [
        draw(replace(TERRAIN, requests=TERRAIN.requests | {"train 1": TERRAIN.requests["worker 1"]}, may_go=1), seed)
        for seed in range(300)
    ]
    dead = [faults for faults in drawn if any(fault.kind == "gone" for fault in faults)]

    assert len(dead) > 15 and all({f.role for f in faults if f.kind == "gone"} == {"train 1"} for faults in dead)
    assert all(pass_by(faults, may_go=1) == pass_by([f for f in faults if f.kind != "gone"]) for faults in dead)
    assert not any(map(pass_by, dead))


def test_a_schedule_is_written_read_and_told() -> None:
    """Write schedules as JSON and read them back: they are equal, and each fault is described in words."""
    for faults in (draw(TERRAIN, seed) for seed in range(100)):
        assert from_json(json.loads(json.dumps(as_json(faults))), TERRAIN) == faults
        assert all(len(str(fault)) > 10 for fault in faults)
    told = str(Fault(kind="kill", role="worker 1", request=14, side="after"))
    assert told == "worker 1, request 14, after its effect: its process is killed"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "expected a list of faults"),
        ([{"kind": "flood"}], "'flood' cannot happen"),
        ([{"kind": "kill", "role": "worker 7"}], "this experiment has client, worker 0, worker 1"),
        ([{"kind": "kill", "when": 3}], "its fields are kind, role"),
    ],
)
def test_a_malformed_schedule_is_refused_by_field(given: object, said: str) -> None:
    """Check that a malformed schedule raises UserError, and the message contains `said`."""
    with pytest.raises(UserError, match=said):
        from_json(given, TERRAIN)


def test_a_schedule_that_fails_is_shrunk() -> None:
    """Shrink a schedule of many faults of which two are needed: those two remain, with a rounded duration."""
    needed = Fault(kind="freeze", role="worker 1", request=3, seconds=437.123)
    with_it = Fault(kind="kill", role="client", request=2)

    def fails(faults: tuple[Fault, ...]) -> bool:
        """Return whether the schedule freezes worker 1 at its third request for at least 60 s and also has the kill of the client."""
        long = any((f.kind, f.role, f.request) == ("freeze", "worker 1", 3) and f.seconds >= 60.0 for f in faults)
        return long and with_it in faults

    found = shrink_schedule((*draw(TERRAIN, 3), needed, *draw(TERRAIN, 4), with_it), fails)

    assert sorted(found, key=lambda f: f.kind) == [
        Fault(kind="freeze", role="worker 1", request=3, seconds=100.0),
        with_it,
    ]


def test_a_failure_that_needs_no_fault_is_shrunk_to_none() -> None:
    """Shrink a schedule for a failure that needs no fault: the schedule becomes empty."""
    assert shrink_schedule(draw(TERRAIN, 1), lambda faults: True) == ()


def test_of_two_invocations_that_do_the_work_of_one_one_stands_still() -> None:
    """Draw 300 schedules: those that deliver an invocation twice often freeze its role for up to 30 s."""
    drawn = [draw(TERRAIN, seed) for seed in range(300)]
    twins = [
        [fault.request for fault in faults if fault.kind == "freeze" and fault.seconds <= 30.0]
        for faults in drawn
        if any((fault.kind, fault.role, fault.request) == ("duplicate", "worker 0", 1) for fault in faults)
    ]

    assert sum(map(bool, twins)) > 10 and max(map(max, filter(None, twins))) > 40


@pytest.mark.parametrize("state", ["PutObject runs/#/checkpoint/#/#", "TENSOR.SGD #/attempt-#/#/#/model"])
def test_a_write_on_its_way_across_a_resumption_is_often_a_state(state: str) -> None:
    """Draw 300 schedules: more than half of those that freeze the role before a request do so at its only request that stores a state."""
    written = {"worker 0": [*([(1.0, "PutObject records/#")] * 20), (2.0, state)]}
    terrain = replace(TERRAIN, requests=TERRAIN.requests | written)
    frozen = [draw(terrain, seed)[0] for seed in range(300)]
    before = [
        fault.request for fault in frozen if (fault.kind, fault.role, fault.side) == ("freeze", "worker 0", "before")
    ]

    assert before.count(21) > len(before) / 2
