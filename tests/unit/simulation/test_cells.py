"""Measured cells that no fit has seen, judged; and what lies beyond what was measured."""

from dataclasses import replace
from math import log
from pathlib import Path
from statistics import median

import pytest

from crossover.experiment import Experiment, Functions
from crossover.simulation import AWS, Workload, simulate
from crossover.simulation.calibration import ASSUMED, AWS_2026_08
from lab import cells
from lab.measurements import MeasuredCell
from tools import judged

ROOT = Path(__file__).parents[3]
PAGE, CONFIG = ROOT / "docs" / "calibration.md", ROOT / "config"


def test_the_goals_are_met_and_the_documented_tables_are_what_comes_out() -> None:
    """Projections of measured cells meet their goals for errors and bands, and docs/calibration.md has their tables."""
    found = cells.judge_cells()
    errors = [each.error for each in found]
    assert median(errors) <= 0.25
    assert sum(error > 0.6 for error in errors) <= 1
    assert median(errors) < median(each.error_before for each in found)
    assert sum(each.is_covered for each in found) * 9 >= len(found) * 7
    assert sum(each.score for each in found) < sum(each.score_constant for each in found)
    assert not any(cells.project_cell(each.cell).impossible for each in found)
    page = PAGE.read_text("utf-8").splitlines()
    for line in judged.format_cells().splitlines():
        assert line in page, "docs/calibration.md: a table is not what the simulator says now; see tools/judged.py"


def test_what_does_not_fit_into_a_function_is_impossible() -> None:
    """A cell of the measurements is impossible if its gradient exceeds a function's memory, or if it would last too long."""
    possible = {cell: not cells.project_cell(cell).impossible for cell in cells.KEPT_ASIDE}
    assert all(fits == (cell.design == "grads_sharding" or cell.gradient == "vgg16") for cell, fits in possible.items())
    long = replace(cells.KEPT_ASIDE[0], gradient="5 GB", gradient_mib=5_120.0, aggregators=2, memory_mb=10_240)
    assert "lasts" in cells.project_cell(long).impossible


def test_levels_are_those_of_the_designs() -> None:
    """A cell's levels are (name, number of inputs of each aggregator), from the leaves to the root."""
    tree, three = (
        MeasuredCell(gradient="", gradient_mib=1, design=d, aggregators=n, memory_mb=512)
        for d, n in (("lambda_fl", 5), ("lifl", 11))
    )
    assert tree.levels == (("leaf", (5, 5, 5, 5)), ("root", (4,)))
    assert three.levels == (("l1", (3, 3, 3, 3, 3, 3, 2)), ("l2", (3, 3, 1)), ("root", (3,)))


def test_the_interval_score_is_width_and_what_was_missed() -> None:
    """The interval score is the logarithmic width, plus 20 times the logarithmic distance of a value outside."""
    assert cells.compute_interval_score(2.0, 1.0, 4.0) == pytest.approx(log(4))
    assert cells.compute_interval_score(8.0, 1.0, 4.0) == pytest.approx(log(4) + 20 * log(2))


def test_small_functions_are_slow_at_what_their_processor_does() -> None:
    """Check that less memory slows a function's writes and arithmetic, but hardly its reads."""
    small, large = (AWS.client(AWS.objects, memory_mb=memory_mb, in_vpc=False) for memory_mb in (512, 3_008))
    size = 44.7e6
    assert small.write.seconds(size) > 2 * large.write.seconds(size)
    assert small.read.seconds(size) < 1.1 * large.read.seconds(size)  # the connection is slower than its processor
    assert AWS.arithmetic_s(size, memory_mb=512) > 4 * AWS.arithmetic_s(size, memory_mb=3_008)
    assert AWS.arithmetic_s(size, memory_mb=3_008) == AWS.arithmetic_s(size)


def test_a_burst_is_followed_by_the_floor() -> None:
    """Check that a read within the burst has the connection's speed, and further bytes the floor's."""
    bucket = AWS.network
    assert bucket is not None
    fast = AWS.client(AWS.tensors, memory_mb=3_008, in_vpc=False).read
    assert fast.seconds(1e8) == pytest.approx(fast.latency_s + 1e8 / fast.bytes_s)
    steady = (fast.seconds(5e9) - fast.seconds(4e9)) / 1e9
    assert 1 / steady == pytest.approx(bucket.floor_bytes_s)


@pytest.mark.parametrize(("memory_mb", "mbps"), [(512, 625), (2_048, 625), (6_144, 1_812.5), (10_240, 3_000)])
def test_the_rule_of_august_2026_grows_with_memory_outside_a_vpc(memory_mb: int, mbps: float) -> None:
    """The steady network speed of AWS_2026_08 follows the function's memory outside a VPC, and is AWS's usual one inside."""
    outside = AWS_2026_08.client(AWS.tensors, memory_mb=memory_mb, in_vpc=False).read
    assert outside.floor_bytes_s == pytest.approx(mbps * 1e6 / 8)
    inside = AWS_2026_08.client(AWS.tensors, memory_mb=memory_mb, in_vpc=True).read
    assert inside == AWS.client(AWS.tensors, memory_mb=memory_mb, in_vpc=True).read


def test_a_projection_beyond_what_was_measured_says_how_far() -> None:
    """Memory sizes and objects outside the measured range are listed with the factor, in a calibration and in a simulated run."""
    assert AWS.list_extrapolations(memory_mb=6_016, functions=8) == (
        "functions of 6,016 MB: 2.0 times the most that was measured (3,008)",
    )
    assert AWS.list_extrapolations(memory_mb=256) == ("functions of 256 MB: 2.0 times less than was measured (512)",)
    assert ASSUMED.list_extrapolations(memory_mb=128) == ()
    setting = Experiment(name="x", architecture="spirt", workers=2, functions=Functions(memory_mb={"default": 9_024}))
    run = simulate(setting, workload=Workload.from_experiment(setting).with_parameters(1_000_000_000))
    assert any(line.startswith("functions of 9,024 MB: 3.0 times") for line in run.outside)
    assert any(line.startswith("objects of 4,0") for line in run.outside)
    assert run.as_json()["outside"] == list(run.outside)
