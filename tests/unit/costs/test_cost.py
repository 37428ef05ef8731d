"""A run's cost: AWS's rounding and units, every line of the bill, and the papers' formulas over records."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.errors import ConfigError
from crossover.experiment import Database, Experiment, PeerToPeer
from crossover.reports import bill, prices
from crossover.reports.bill import Fleet, Infrastructure
from crossover.reports.usage import Unrecorded, billed_ms, object_requests
from tests.unit.reports.example_run import SPIRT, spirt

PRICES = prices.load()


def record(**changes: Any) -> dict[str, Any]:
    """Return the record of a successful invocation. `changes`: fields to replace or add."""
    plain = {
        "step": "compute_gradient",
        "worker": 0,
        "epoch": 1,
        "round": 0,
        "minibatch": 0,
        "started_at": 100.0,
        "wall_s": 1.0,
        "cpu_s": 1.0,
        "slot_wait_s": 0.0,
        "memory_mb": 1_024,
        "cold": False,
        "init_s": 0.0,
        "outcome": "ok",
        "stages": [],
        "traffic": {},
    }
    return plain | changes


def of_run(experiment: Experiment, records: list[dict[str, Any]], **rest: Any) -> bill.Cost:
    """Return the bill of a run that started at second 100 with these records. `rest`: further fields of BilledRun."""
    return bill.BilledRun(experiment=experiment, records=records, started_at=100.0, **rest).cost()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"wall_s": 0.123}, 123),
        ({"wall_s": 0.1230001}, 124),
        ({"wall_s": 0.1}, 100),
        ({"wall_s": 0.0}, 1),
        ({"wall_s": 1.0, "cold": True, "init_s": 0.5004}, 1_501),
        ({"wall_s": 0.1, "cold": True, "init_s": 0.2}, 300),  # 0.1 + 0.2 > 0.3 in binary
        ({"wall_s": 1.0, "cold": False, "init_s": 9.0}, 1_000),
        ({"wall_s": 1.0, "slot_wait_s": 5.0}, 1_000),
        ({"wall_s": 1.0, "billed_ms": 2_345}, 2_345),
    ],
)
def test_billed_milliseconds(changes: dict[str, Any], expected: int) -> None:
    """A record with `changes` is billed `expected` milliseconds."""
    assert billed_ms(record(**changes)) == expected


@given(st.integers(min_value=1, max_value=900_000))
def test_whole_milliseconds_are_billed_as_they_are(ms: int) -> None:
    """A duration of whole milliseconds is billed without rounding."""
    assert billed_ms(record(wall_s=ms / 1_000)) == ms


def test_the_papers_gigabyte_is_not_amazons() -> None:
    """The paper's formula counts 1,000 MB to a GB, AWS 1,024."""
    assert bill.lambda_usd(1.0, memory_mb=1_000) == pytest.approx(0.0000166667)
    line = bill.lambda_duration(PRICES, bill.gb_seconds(1_000, memory_mb=1_024))
    assert (line.quantity, line.unit) == (1.0, "GB-second")
    assert line.usd == pytest.approx(0.0000133334)


def test_every_line_of_a_spirt_runs_bill() -> None:
    """The bill of a SPIRT run has exactly the expected lines and dollars; its total is their sum, and the papers' formula counts only
    functions.
    """
    records = [
        record(traffic={"object_store": {"bytes_in": 0, "bytes_out": 10**9, "requests": 1_000}}),
        record(wall_s=2.0, cold=True, init_s=1.0, memory_mb=512, outcome="error"),
    ]
    found = of_run(
        Experiment(name="x", architecture="spirt"),
        records,
        infrastructure=SPIRT,
        prices=PRICES,
        duration_s=3_600.0,
        transitions=2_000,
    )
    lines = {line.item: line for line in found.lines}
    usd = {item: line.usd for item, line in lines.items()}
    assert usd == {
        "Lambda duration, arm64": pytest.approx((1.0 + 3.0 * 0.5) * 0.0000133334),
        "Lambda requests": pytest.approx(2 * 0.20e-6),
        "Step Functions transitions": pytest.approx(2_000 * 0.025e-3),
        "S3 requests, PUT and LIST": pytest.approx(0.005),
        "S3 storage": pytest.approx(0.023 / 730),
        "CloudWatch Logs, about 1,000 bytes per invocation": pytest.approx(2_000 / 1e9 * 0.50),
        "Secrets": pytest.approx(2 * 0.40 / 730),
        "Secrets Manager calls": pytest.approx(2 * 0.05 / 10_000),
        "Interface endpoint, Secrets Manager": pytest.approx(0.010),
        "Amazon MQ broker, mq.m7g.medium (price not verified)": pytest.approx(0.10),
        "EC2 m7g.large x 4, tensor database": pytest.approx(4 * 0.0816),
        "Public IPv4 x 4, tensor database": pytest.approx(4 * 0.005),
        "EBS gp3 30 GB x 4, tensor database": pytest.approx(4 * 30 * 0.08 / 730),
    }
    assert found.full_usd == pytest.approx(sum(usd.values()))
    assert found.paper_method_usd == pytest.approx((1.0 * 1.024 + 2.0 * 0.512) * 0.0000166667)
    assert {line.as_of for line in found.lines} == {"2026-11"}
    assert all(line.as_json().keys() == {"item", "quantity", "unit", "usd", "as_of"} for line in found.lines)


def test_killed_invocations_are_in_the_bill_and_not_in_the_papers_formula() -> None:
    """Invocations without a record add to the bill's duration and requests, but not to the papers' formula."""
    arguments: dict[str, Any] = {"infrastructure": Infrastructure(), "prices": PRICES, "duration_s": 1.0}
    spirt = Experiment(name="x", architecture="spirt")
    without = of_run(spirt, [record()], **arguments)
    found = of_run(spirt, [record()], unrecorded=Unrecorded(count=2, gb_s=30.0), **arguments)
    quantities = {line.item: line.quantity for line in found.lines}
    assert (quantities["Lambda duration, arm64"], quantities["Lambda requests"]) == (pytest.approx(31.0), 3)
    assert found.paper_method_usd == without.paper_method_usd


def test_transitions_nobody_counted_are_a_lower_bound() -> None:
    """If state transitions were not counted, the bill has one per invocation, marked "at least"."""
    arguments: dict[str, Any] = {"infrastructure": Infrastructure(), "prices": PRICES, "duration_s": 1.0}
    found = of_run(Experiment(name="x", architecture="spirt"), [record(), record()], **arguments)
    assert {line.item: line.quantity for line in found.lines}["Step Functions transitions, at least"] == 2


def test_instances_are_billed_from_their_boot_and_for_a_minute_at_least() -> None:
    """`instance_hours` adds the boot's seconds and counts at least a minute per instance."""
    assert bill.instance_hours(count=2, seconds=10.0) == pytest.approx(2 * 60 / 3_600)
    assert bill.instance_hours(count=1, seconds=100.0, boot_s=180.0) == pytest.approx(280 / 3_600)


@pytest.mark.parametrize(
    ("instance_type", "busy", "vcpu_hours"),
    [
        ("t4g.medium", inf, 1.6),  # two vCPUs, of which the hourly price pays a fifth each
        ("t2.large", 1.0, 0.4),
        ("t2.small", 0.1, 0.0),
        ("m7g.large", inf, 0.0),
    ],
)
def test_computing_beyond_a_burstable_baseline_is_on_the_bill(
    instance_type: str, busy: float, vcpu_hours: float
) -> None:
    """Burstable instances with `busy` vCPUs pay CPU credits for `vcpu_hours` hours above their baseline."""
    fleet = Fleet(purpose="peer", instance_type=instance_type, count=3, busy=busy)

    found = [each for each in bill.fleet_lines(PRICES, fleet, seconds=3_600) if "credits" in each.item]

    assert sum(each.quantity for each in found) == pytest.approx(3 * vcpu_hours) and len(found) == bool(vcpu_hours)
    assert sum(each.usd for each in found) == pytest.approx(3 * vcpu_hours * (0.04 if "4g" in instance_type else 0.05))


def test_requests_by_kind_or_all_at_the_dearer_price() -> None:
    """Requests to the object store are split into writes and reads, or all are writes if their kinds are unknown."""
    whole = {"bytes_in": 0, "bytes_out": 0, "requests": 7}
    assert object_requests(record(traffic={"object_store": whole})) == (7, 0)
    split = whole | {"operations": {"put": 2, "create": 1, "list": 1, "get": 2, "exists": 1}}
    assert object_requests(record(traffic={"object_store": split})) == (4, 3)


def test_table_2_from_records() -> None:
    """The paper's formula gives, within 0.6 %, the dollars of Table 2 for SPIRT with MobileNet."""
    records = [record(worker=w, minibatch=m, wall_s=15.44, memory_mb=2_685) for w in range(4) for m in range(24)]
    formula, usd = bill.paper_method(
        Experiment(name="x", architecture="spirt"), records, infrastructure=SPIRT, prices=PRICES, duration_s=15.44
    )
    assert formula == bill.FORMULA_2025
    assert usd == pytest.approx(0.0660, rel=0.006)


def test_table_2_gpu_from_time() -> None:
    """The paper's formula gives the dollars of Table 2 for GPUs, and today's price for an instance type that the paper lacks."""
    fleet = Fleet(purpose="GPU worker", instance_type="g4dn.xlarge", count=4)
    arguments: dict[str, Any] = {"prices": PRICES, "duration_s": 92.0}
    experiment = Experiment(name="x", architecture="gpu")
    formula, usd = bill.paper_method(experiment, [], infrastructure=Infrastructure(fleets=(fleet,)), **arguments)
    assert formula == bill.FORMULA_2025_GPU
    assert usd == pytest.approx(0.0538, abs=5e-5)
    other = replace(fleet, instance_type="g5.xlarge", count=1)
    _, usd = bill.paper_method(experiment, [], infrastructure=Infrastructure(fleets=(other,)), **arguments)
    assert usd == pytest.approx(92 / 3_600 * 1.006)


def peers(instance_type: str, *, seconds: float) -> tuple[Infrastructure, list[dict[str, Any]]]:
    """Return a fleet of four peers and their programs' records, each with 3 s of fetching and `seconds` of computing."""
    fleet = Fleet(purpose="peer", instance_type=instance_type, count=4)
    stages = [{"stage": "fetch", "wall_s": 3.0, "cpu_s": 1.0}, {"stage": "compute", "wall_s": seconds, "cpu_s": 1.0}]
    programs = [
        record(step="peer", worker=w, wall_s=seconds + 9, memory_mb=0, instance_type=instance_type, stages=stages)
        for w in range(4)
    ]
    return Infrastructure(fleets=(fleet,)), programs


def test_table_2_and_3_of_the_2023_paper_from_records() -> None:
    """The 2023 paper's equations give the printed dollars of a batch of 1,024, with functions and on the instance."""
    experiment = Experiment(name="x", architecture="p2p_serverless", p2p=PeerToPeer(instance_type="t2.small"))
    infrastructure_, programs = peers("t2.small", seconds=41.2)
    functions = [record(worker=w, minibatch=b, memory_mb=4_400) for w in range(4) for b in range(15)]
    retried = [record(outcome="error", memory_mb=4_400)]  # a failed attempt is no batch of the paper's equation
    arguments: dict[str, Any] = {"prices": PRICES, "duration_s": 300.0}
    formula, usd = bill.paper_method(
        experiment, [*programs, *functions, *retried], infrastructure=infrastructure_, **arguments
    )
    assert formula == bill.FORMULA_2023
    assert usd / 4 == pytest.approx(0.03567, rel=0.004)
    infrastructure_, programs = peers("t2.large", seconds=258.0)
    _, usd = bill.paper_method(experiment, programs, infrastructure=infrastructure_, **arguments)
    assert usd / 4 == pytest.approx(0.00665, abs=1e-5)


def test_programs_are_not_billed_as_functions() -> None:
    """The bill of a run whose peers are instances has their EC2 line and no line of Lambda or Step Functions."""
    infrastructure_, programs = peers("t2.large", seconds=258.0)
    found = of_run(
        Experiment(name="x", architecture="p2p_instance"),
        programs,
        infrastructure=infrastructure_,
        prices=PRICES,
        duration_s=300.0,
    )
    assert not [line for line in found.lines if line.item.startswith(("Lambda", "Step Functions"))]
    assert "EC2 t2.large x 4, peer" in {line.item for line in found.lines}


def test_a_run_in_one_process_is_priced_with_the_memory_it_would_deploy() -> None:
    """A record without a memory size is priced at the deployed size, or at the default if none is known."""
    kept = Infrastructure(memory_mb={"compute_gradient": 2_000})
    experiment = Experiment(name="x", architecture="spirt")
    arguments: dict[str, Any] = {"prices": PRICES, "duration_s": 1.0}
    _, usd = bill.paper_method(experiment, [record(memory_mb=0)], infrastructure=kept, **arguments)
    assert usd == pytest.approx(2.0 * 0.0000166667)
    _, usd = bill.paper_method(experiment, [record(memory_mb=0)], infrastructure=Infrastructure(), **arguments)
    assert usd == pytest.approx(1.769 * 0.0000166667)


def test_cost_accrues_monotonically_up_to_the_total() -> None:
    """The dollars of the epochs rise, about in proportion to time, and end near the whole run's."""
    example = spirt()
    found = example.result()
    for figure, total in (("paper_method_usd", "paper_method_usd"), ("full_usd", "full_usd")):
        spent = [epoch[figure] for epoch in found["epochs"]]
        assert spent == sorted(spent) and spent[0] > 0
        assert spent[-1] <= found["cost"][total]
        assert spent[-1] >= 0.9 * found["cost"][total]
        middle = len(spent) // 2
        elapsed = found["epochs"][middle]["elapsed_s"] / found["duration_s"]
        assert spent[middle] / found["cost"][total] == pytest.approx(elapsed, abs=0.15)


@pytest.mark.parametrize(("seconds", "hours"), [(0.0, 0), (1.0, 1), (3_600.0, 1), (3_601.0, 2)])
def test_an_interface_endpoint_is_billed_by_the_started_hour(seconds: float, hours: int) -> None:
    """The endpoint's line has whole hours."""
    assert bill.endpoints_line(PRICES, 2, seconds=seconds).quantity == 2 * hours


@pytest.mark.parametrize(
    ("architecture", "endpoints"), [("spirt", 1), ("gpu", 1), ("p2p_instance", 1), ("single", 0), ("all_reduce", 1)]
)
def test_a_run_pays_for_the_networks_endpoint_whether_its_functions_use_it_or_not(
    architecture: str, endpoints: int
) -> None:
    """Each experiment that needs the network has its endpoint in the bill of a run."""
    found = bill.infrastructure_of(Experiment(name="x", architecture=architecture))
    assert found.interface_endpoints == endpoints


def test_an_instance_type_without_price_is_refused() -> None:
    """`of_run` raises ConfigError with the item's name if an instance type has no price."""
    fleets = (Fleet(purpose="tensor database", instance_type="x9.huge", count=1),)
    with pytest.raises(ConfigError, match=r"ec2\.x9\.huge"):
        of_run(
            Experiment(name="x", architecture="spirt"),
            [record()],
            infrastructure=Infrastructure(fleets=fleets),
            prices=PRICES,
            duration_s=1.0,
        )


def test_spirts_infrastructure_follows_from_its_tree() -> None:
    """SPIRT's infrastructure has a database host per worker, a broker, an endpoint, two secrets and its functions' memory."""
    experiment = Experiment(name="x", architecture="spirt", workers=3, database=Database(instance_type="t4g.medium"))
    found = bill.infrastructure_of(experiment)
    assert found.fleets == (Fleet(purpose="tensor database", instance_type="t4g.medium", count=3),)
    assert (found.broker_instance_type, found.interface_endpoints, found.secrets) == ("mq.m7g.medium", 1, 2)
    assert found.memory_mb["compute_gradients"] == 1_769
    assert found.memory_mb["notify_peers"] == 512
