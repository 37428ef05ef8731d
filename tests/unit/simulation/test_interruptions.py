"""Spot instances that are taken away: how often, what a run loses by it, what a configuration may say."""

import random
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossover.errors import ConfigError
from crossover.experiment import Experiment, Gpu, Training
from crossover.reports import prices
from crossover.simulation import AWS, Workload, figures, repetitions
from crossover.simulation.figures import SpotMarket
from crossover.simulation.interruptions import MAX_LOSSES, draw_losses
from crossover.simulation.repetitions import RepeatedRun, list_draws, run_repetitions
from crossover.training.checkpoints import checkpoint_interval_s

HOUR = 3_600.0
RUNS = 2_000


def task(*, spot: bool, epochs: int = 200) -> RepeatedRun:
    """Return a repeated run on two g4dn.xlarge. `spot`: whether they are spot instances instead of on demand."""
    gpu = Gpu(instances=2, gpus_per_instance=1, instance_type="g4dn.xlarge", spot=spot)
    training = Training(model="mobilenet", epochs=epochs)
    base = Experiment(name="one", architecture="gpu", workers=2, gpu=gpu, training=training)
    return RepeatedRun(base, AWS, replace(Workload.from_experiment(base), samples=(512,) * 4), prices.load(), 2)


@settings(deadline=None, max_examples=20)
@given(rate=st.floats(0.05, 2.0), hours=st.floats(0.1, 8.0), instances=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_as_many_interruptions_as_rate_times_hours_held(rate: float, hours: float, instances: int, seed: int) -> None:
    """Check that the mean number of interruptions is the rate times the hours for which instances are held."""
    rng, market = random.Random(seed), SpotMarket(lost_per_hour=rate, wait_s=HOUR)
    found = [
        draw_losses(hours * HOUR, instances=instances, market=market, boot_s=300.0, interval_s=600.0, rng=rng)
        for _ in range(RUNS)
    ]
    expected = fmean(rate * instances * each.held_s / HOUR for each in found)
    assert fmean(each.count for each in found) == pytest.approx(expected, abs=6 * (expected / RUNS) ** 0.5 + 1e-3)
    assert all(each.held_s >= hours * HOUR * (1 - 1e-9) for each in found)


def test_without_losses_spot_takes_on_demands_time_at_spots_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that spot instances without interruptions take the same time for fewer dollars."""
    monkeypatch.setattr(repetitions, "load_spot_markets", lambda: (SpotMarket(lost_per_hour=0.0, wait_s=HOUR),))
    (spot,), (held,) = (run_repetitions([task(spot=each)], list_draws(3, 20), processes=1) for each in (True, False))
    assert [each.seconds for each in spot] == [each.seconds for each in held]
    assert all(each.interruptions == 0 and each.usd < other.usd for each, other in zip(spot, held, strict=True))


def test_losses_take_time_and_dollars_and_are_the_same_for_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that interruptions add time and dollars to the repetitions that have them, and repeat for a seed."""
    monkeypatch.setattr(repetitions, "load_spot_markets", lambda: (SpotMarket(lost_per_hour=0.0, wait_s=HOUR),))
    (calm,) = run_repetitions([task(spot=True)], list_draws(3, 20), processes=1)
    monkeypatch.setattr(repetitions, "load_spot_markets", lambda: (SpotMarket(lost_per_hour=20.0, wait_s=HOUR),))
    (one,), (again,) = (run_repetitions([task(spot=True)], list_draws(3, 20), processes=1) for _ in range(2))
    assert one == again
    assert any(each.interruptions for each in one)
    for lost, still in zip(one, calm, strict=True):
        if lost.interruptions:
            assert lost.seconds > still.seconds and lost.usd > still.usd
        else:
            assert lost == still


def test_a_run_that_never_ends_is_given_up() -> None:
    """Check that a run is given up after MAX_LOSSES interruptions."""
    market = SpotMarket(lost_per_hour=60.0, wait_s=0.0)
    found = draw_losses(HOUR, instances=64, market=market, boot_s=300.0, interval_s=600.0, rng=random.Random(1))
    assert not found.ended and found.count == MAX_LOSSES


def test_checkpoints_take_two_percent_of_the_time_and_come_every_ten_minutes_at_least() -> None:
    """The interval between checkpoints is 50 times the seconds of saving one, and 600 s at most."""
    assert checkpoint_interval_s(1.0) == pytest.approx(50.0)
    assert checkpoint_interval_s(30.0) == 600.0


def test_the_markets_are_those_that_were_watched() -> None:
    """The documented spot markets are 32, with 0.06 to 1.62 interruptions per hour."""
    rates = [each.lost_per_hour for each in figures.load_spot_markets()]
    assert (min(rates), max(rates), len(rates)) == (0.06, 1.62, 32)


@pytest.mark.parametrize("pair", ["[60.1, 1]", "[-1, 1]", "[1, .inf]", "[true, 1]", "[1]", "3"])
def test_a_spot_rate_above_one_a_minute_is_refused(tmp_path: Path, pair: str) -> None:
    """Check that a malformed pair, or one above 60 interruptions an hour, raises ConfigError. `pair`: entry of documented.yaml."""
    path = tmp_path / "documented.yaml"
    path.write_text(f"format: 1\nfigures: []\nspot: {{lost_per_hour_and_wait_h: [[60, 1], {pair}]}}\n")
    with pytest.raises(
        ConfigError, match=r"documented\.yaml: spot\.lost_per_hour_and_wait_h: .* is not allowed; .*one a minute"
    ):
        figures.load_spot_markets(path)
