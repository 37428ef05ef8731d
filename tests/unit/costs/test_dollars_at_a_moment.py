"""What a run had cost at a moment: what would be on the bill had it been stopped then, by the papers' method and in full."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.experiment import Experiment
from crossover.reports import bill, prices, spending
from crossover.reports.bill import get_begin_s, make_interim_record, record_until
from crossover.reports.usage import get_end_s, state_transitions
from crossover.workflow.architecture import load
from tests.unit.costs.test_cost import record

PRICES = prices.load()
STARTED_AT = 1_000.0
ARCHITECTURES = ["all_reduce", "scatter_reduce", "mlless", "spirt", "p2p_serverless", "p2p_instance", "gpu"]


def experiment(architecture: str) -> Experiment:
    """Return an experiment with two workers."""
    return Experiment(name="x", architecture=architecture, workers=2)


def run(architecture: str, records: list[dict[str, Any]], **changes: Any) -> bill.BilledRun:
    """Return a billed run of the records, which lasts until the last of them ends. `changes`: arguments of BilledRun to replace."""
    setting = experiment(architecture)
    duration_s = max([0.0, *(get_end_s(each) - STARTED_AT for each in records)])
    arguments = {"infrastructure": bill.infrastructure_of(setting), "prices": PRICES, "duration_s": duration_s}
    return bill.BilledRun(experiment=setting, records=records, started_at=STARTED_AT, **(arguments | changes))


def objects(requests: int, sent: int) -> dict[str, Any]:
    """Return the traffic of an object store: half of the requests read, half write `sent` bytes together."""
    operations = {"get": requests // 2, "put": requests - requests // 2}
    return {"object_store": {"bytes_in": 0, "bytes_out": sent, "requests": requests, "operations": operations}}


def long(*, wall_s: float, marks: int, started_s: float = 0.0, **changes: Any) -> dict[str, Any]:
    """Return the record of an invocation that reported its usage `marks` times at equal distances: a request and a megabyte each second.
    `started_s`: seconds after the run's start.
    """
    spent = [n / marks * wall_s for n in range(marks)]
    at = STARTED_AT + started_s
    return record(
        step="train",
        started_at=at,
        wall_s=wall_s,
        traffic=objects(int(wall_s), int(wall_s * 10**6)),
        marks=[{"at": at + s, "wall_s": s, "traffic": objects(int(s), int(s * 10**6))} for s in spent],
        **changes,
    )


@st.composite
def generated(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw the records of one to eight invocations and programs, cold and warm, with and without marks, whose clocks are set back at
    times.
    """
    found = []
    for _ in range(draw(st.integers(1, 8))):
        started, wall_s = draw(st.floats(0, 500)), draw(st.floats(0, 900))
        shares = sorted(draw(st.lists(st.floats(0, 1), max_size=3)))
        marks = [
            {
                "at": STARTED_AT + started + share * wall_s + draw(st.floats(-5, 5)),
                "wall_s": share * wall_s,
                "traffic": objects(int(40 * share), int(share * 10**7)),
            }
            for share in shares
        ]
        place: dict[str, Any] = {"worker": draw(st.integers(0, 1)), "epoch": draw(st.integers(1, 3))}
        if draw(st.booleans()):
            program = {"instance_type": "t2.large", "memory_mb": 0, "step": "peer"}
            place |= program | {"stages": [{"stage": "compute", "wall_s": wall_s / 2, "cpu_s": 1.0}]}
        if draw(st.booleans()):
            place |= {"cold": True, "init_s": draw(st.floats(0, 10))}
        if draw(st.booleans()) and "instance_type" not in place:
            place |= {"billed_ms": draw(st.integers(1, 900_000))}
        found.append(
            record(
                started_at=STARTED_AT + started,
                wall_s=wall_s,
                slot_wait_s=draw(st.floats(0, 20)),
                traffic=objects(40, 10**7),
                outcome=draw(st.sampled_from(["ok", "ok", "error"])),
                **({"marks": marks} if marks else {}),
                **place,
            )
        )
    return found


moments = st.lists(st.floats(-10, 1_500), min_size=2, max_size=6).map(sorted)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@given(records=generated(), seconds=moments, transitions=st.none() | st.integers(0, 100))
def test_dollars_never_fall_and_end_at_the_bill(
    architecture: str, records: list[dict[str, Any]], seconds: list[float], transitions: int | None
) -> None:
    """Both costs until a moment never fall as the moment rises, and equal the whole bill at the run's end."""
    found = run(architecture, records, transitions=transitions)
    spent = [found.cost_until(STARTED_AT + s) for s in seconds]
    for before, after in pairwise(spent):
        assert before.full_usd <= after.full_usd * (1 + 1e-12)
        assert before.paper_method_usd <= after.paper_method_usd * (1 + 1e-12)
    whole, last = found.cost(), found.cost_until(STARTED_AT + found.duration_s)
    assert (last.full_usd, last.paper_method_usd) == (whole.full_usd, whole.paper_method_usd)
    assert spent[-1].full_usd <= whole.full_usd * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@given(records=generated(), cut=st.integers(0, 8), seconds=moments)
def test_a_run_whose_records_are_the_beginning_of_anothers_never_costs_more(
    architecture: str, records: list[dict[str, Any]], cut: int, seconds: list[float]
) -> None:
    """A run with the first `cut` of the records never costs more, at any moment, than the run with all of them."""
    whole, beginning = run(architecture, records), run(architecture, records[:cut])
    for s in seconds:
        one, other = beginning.cost_until(STARTED_AT + s), whole.cost_until(STARTED_AT + s)
        assert one.full_usd <= other.full_usd * (1 + 1e-12)
        assert one.paper_method_usd <= other.paper_method_usd * (1 + 1e-12)


@given(records=generated(), seconds=st.floats(-10, 1_500))
def test_a_stopped_invocation_is_none_a_part_or_whole(records: list[dict[str, Any]], seconds: float) -> None:
    """`record_until` returns None before an invocation's start, the record itself after its end, and a part between."""
    moment = STARTED_AT + seconds
    for each in records:
        part = record_until(each, moment)
        assert (part is None) == (moment < get_begin_s(each))
        assert part is not each or moment >= get_end_s(each)
        assert part is None or 0 <= part["wall_s"] <= each["wall_s"]


@pytest.mark.parametrize("method", ["paper_method_usd", "full_usd"])
def test_half_of_a_long_invocation_costs_half(method: str) -> None:
    """The cost until half of two long invocations is half of the whole, by both methods, without the endpoint's started hour."""
    workers = [long(wall_s=800.0, marks=4, worker=w, memory_mb=4_096) for w in range(2)]
    found = run("all_reduce", workers)
    hour_usd = PRICES.of("vpc.interface_endpoint").usd if method == "full_usd" else 0.0
    half, whole = (getattr(found.cost_until(STARTED_AT + s), method) - hour_usd for s in (400.0, 800.0))
    assert half == pytest.approx(whole / 2, rel=0.02)


def test_marks_say_where_an_invocation_worked_and_where_it_waited() -> None:
    """A part of a record follows its usage snapshots: waiting for a core of this machine adds neither seconds nor requests."""
    marks = [{"at": STARTED_AT + 50.0, "wall_s": 20.0, "traffic": objects(10, 0)}]
    each = record(started_at=STARTED_AT, wall_s=80.0, slot_wait_s=20.0, traffic=objects(100, 0), marks=marks)
    part = record_until(each, STARTED_AT + 50.0)
    assert part is not None and part["wall_s"] == 20.0
    assert part["traffic"]["object_store"]["operations"] == {"get": 5, "put": 5}


def test_what_an_instance_costs_at_least_is_spent_when_it_starts() -> None:
    """The bill at a run's start has one minute of each instance."""
    found = run("all_reduce", [long(wall_s=600.0, marks=2)])
    lines = {line.item: line.quantity for line in found.cost_until(STARTED_AT).lines}
    assert lines["EC2 m7g.large x 1, tensor database"] == pytest.approx(60 / 3_600)


def test_an_invocation_under_way_is_billed_to_the_present_moment() -> None:
    """The interim record of a running invocation lasts until now, and never shorter than its snapshot says."""
    mark = {**long(wall_s=100.0, marks=2), "outcome": "under way"}
    now = STARTED_AT + 250.0
    assert make_interim_record(mark, now)["wall_s"] == pytest.approx(250.0)
    assert get_end_s(make_interim_record(mark, now)) == pytest.approx(now)
    assert make_interim_record(mark, STARTED_AT)["wall_s"] == 100.0  # a clock that runs behind takes nothing back


def test_training_on_past_the_goal_does_not_make_the_goal_cheaper() -> None:
    """The cost until a moment does not depend on how long the run continues after it."""
    short = run("all_reduce", [long(wall_s=100.0, marks=2)])
    longer = run("all_reduce", [long(wall_s=900.0, marks=18)])
    moment = STARTED_AT + 100.0
    assert longer.cost_until(moment).full_usd == pytest.approx(short.cost().full_usd, rel=0.01)


def test_what_a_run_under_way_costs_is_what_its_records_tell_later() -> None:
    """The live cost of a running run equals the cost until that moment by the records that it writes later."""
    begun = record(step="initialise", started_at=STARTED_AT, wall_s=2.0)
    workers = [long(wall_s=98.0, marks=14, started_s=2.0, worker=rank, request_id=str(rank)) for rank in range(2)]
    collected = record(step="collect", started_at=STARTED_AT + 100.0, wall_s=1.0)
    moment, setting = STARTED_AT + 51.0, experiment("all_reduce")
    live = spending.bill_running(
        setting,
        ended=[begun],
        marks=[{**worker, **worker["marks"][7], "marks": worker["marks"][:8]} for worker in workers],
        began=STARTED_AT,
        epochs=7,
        now=moment + 0.25,
        infrastructure=bill.infrastructure_of(setting),
        prices=PRICES,
    )
    records = [begun, *workers, collected]
    states = state_transitions(load("all_reduce"), records, workers=2, epochs=14)
    later = run("all_reduce", records, transitions=states)
    assert live.cost_until(moment).full_usd == pytest.approx(later.cost_until(moment).full_usd, rel=0.01)
