"""Schedules: drawn by a seed, written and read, told in words, made as small as they can be."""

import json

import pytest

from crossover.errors import UserError
from crossover.virtual.schedule import KINDS, Fault, Terrain, as_json, draw, from_json
from crossover.virtual.shrink import smallest

TERRAIN = Terrain(
    requests={"worker 0": 40, "worker 1": 40, "client": 12},
    programs=["program 0", "program 1"],
    servers={"redis": 2, "rabbitmq": 1, "s3": 1},
    seconds=30.0,
    kinds=KINDS,
)


def test_a_seed_gives_one_schedule_and_all_kinds_come() -> None:
    drawn = [draw(TERRAIN, seed) for seed in range(300)]

    assert drawn == [draw(TERRAIN, seed) for seed in range(300)]
    assert {fault.kind for faults in drawn for fault in faults} == set(KINDS)
    assert all(5 <= len(faults) <= 9 for faults in drawn)


def test_a_schedule_is_written_read_and_told() -> None:
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
def test_what_is_no_schedule_is_refused_by_field(given: object, said: str) -> None:
    with pytest.raises(UserError, match=said):
        from_json(given, TERRAIN)


def test_what_fails_is_made_small() -> None:
    needed = Fault(kind="freeze", role="worker 1", request=3, seconds=437.123)
    with_it = Fault(kind="kill", role="client", request=2)

    def fails(faults: tuple[Fault, ...]) -> bool:
        long = any(f.kind == "freeze" and f.role == "worker 1" and f.seconds >= 60.0 for f in faults)
        return long and with_it in faults

    found = smallest((*draw(TERRAIN, 1), needed, *draw(TERRAIN, 2), with_it), fails)

    assert sorted(found, key=lambda f: f.kind) == [
        Fault(kind="freeze", role="worker 1", request=3, seconds=100.0),
        with_it,
    ]


def test_what_fails_without_any_fault_is_told_so() -> None:
    assert smallest(draw(TERRAIN, 1), lambda faults: True) == ()
