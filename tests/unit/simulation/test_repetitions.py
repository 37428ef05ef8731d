"""How sure a projection is: repetitions by seed, one session for all functions of a run, and who is ahead in paired draws."""

from dataclasses import replace
from math import exp, inf
from statistics import NormalDist

import pytest

from crossover.experiment import Training
from crossover.reports import prices
from crossover.reports.display import band_of
from crossover.simulation import AWS, Workload, simulate
from crossover.simulation.calibration import Calibration, Service
from crossover.simulation.repetitions import (
    Draw,
    Outcome,
    RepeatedRun,
    apply_session,
    find_problems,
    keep_feasible,
    list_draws,
    list_values,
    project_results,
    run_repetitions,
    simulate_draw,
)
from tests.architectures.harness import small

EVEN = replace(AWS.without_stragglers(), session_sigma=0.3)


def task(architecture: str, calibration: Calibration = AWS) -> RepeatedRun:
    """Return a repeated run of an architecture's small experiment."""
    experiment = small(architecture)
    return RepeatedRun(experiment, calibration, Workload.from_experiment(experiment), prices.load())


def came_to(seconds: float, *found: str) -> Outcome:
    """Return an outcome that cost a dollar for each second, with these problems."""
    return Outcome(
        seconds=seconds, epoch_s=1.0, usd=seconds, paper_method_usd=0.0, moved_bytes=0.0, problems=tuple(found)
    )


def test_a_seed_draws_the_same_repetitions_whatever_the_processes() -> None:
    """Check that draws and outcomes depend on the seed, not on the number of processes."""
    tasks, drawn = [task("spirt"), task("gpu")], list_draws(7, 7)
    assert drawn == list_draws(7, 7) != list_draws(8, 7)
    alone = run_repetitions(tasks, drawn, processes=1)
    assert [len(each) for each in alone] == [7, 7]
    assert len({each.seconds for each in alone[0]}) == 7
    assert run_repetitions(tasks, drawn, processes=2, min_work_s=0.0) == alone
    assert alone[1][3] == simulate_draw(tasks[1], drawn[3])


def test_sessions_are_spread_as_a_normal_distribution_is() -> None:
    """The sessions of the draws have the percentiles of the normal distribution, and every draw has a seed of its own."""
    found = band_of([each.session for each in list_draws(0)])
    assert (found.p5, found.p50) == (pytest.approx(NormalDist().inv_cdf(0.05)), pytest.approx(0.0))
    assert len({each.seed for each in list_draws(0)}) == 30


def test_a_session_slows_the_requests_of_all_and_nothing_else() -> None:
    """Check that apply_session multiplies latencies and transfers of all services by one factor and leaves all else."""
    slow = apply_session(EVEN, 2.0)
    factor = exp(2.0 * 0.3)
    for name in ("objects", "tensors", "bus", "instance_objects", "instance_bus"):
        usual, slowed = getattr(EVEN, name), getattr(slow, name)
        for direction in ("read", "write"):
            before, after = getattr(usual.for_client(), direction), getattr(slowed.for_client(), direction)
            assert after.seconds(0.0) == pytest.approx(factor * before.seconds(0.0))
        assert slowed.slowdown == pytest.approx(factor * usual.slowdown)
        assert slowed.host_bytes_s == usual.host_bytes_s
    services = [name for name in EVEN.as_json() if isinstance(getattr(EVEN, name), Service)]
    others = EVEN.as_json().keys() - set(services)
    assert {name: getattr(slow, name) for name in others} == {name: getattr(EVEN, name) for name in others}
    assert apply_session(EVEN, 0.0) == EVEN


def test_one_session_holds_for_the_whole_run() -> None:
    """Check that a session multiplies a run's fetch seconds by its factor and keeps its computing seconds."""
    experiment = small("all_reduce")
    usual, run = (simulate(experiment, apply_session(EVEN, session)) for session in (0.0, 1.0))
    fetched = run.steps["train"].stages["fetch"][0] / usual.steps["train"].stages["fetch"][0]
    assert fetched == pytest.approx(exp(0.3))
    assert run.steps["train"].stages["compute"][0] == pytest.approx(usual.steps["train"].stages["compute"][0])


def test_what_aws_would_not_run_is_never_ahead_and_out_of_the_band() -> None:
    """Repetitions with problems have infinite values and are left out of bands; problems name the share of such repetitions."""
    mixed = [came_to(1.0), came_to(9.0, "too long, 9 s"), came_to(8.0, "too long, 8 s"), came_to(2.0)]
    assert list_values(mixed, "usd") == [1.0, inf, inf, 2.0]
    assert [each.seconds for each in keep_feasible(mixed)] == [1.0, 2.0]
    assert find_problems(mixed) == ("in 2 of 4 repetitions: too long, 9 s",)
    assert find_problems(mixed[1:2]) == ("too long, 9 s",)
    assert find_problems(mixed[:1]) == ()


@pytest.mark.parametrize("steps", [None, 39])
@pytest.mark.parametrize("architecture", ["spirt", "all_reduce", "p2p_instance"])
def test_epochs_that_a_repetition_leaves_out_are_like_its_mean_one(architecture: str, steps: int | None) -> None:
    """Check that 20 epochs extrapolated from 5 give the figures of 20 simulated ones within 3 %. A peer deletes nothing before its third
    checkpoint, so short runs end sooner.
    """
    whole = task(architecture, AWS.without_stragglers())._replace(epochs=20)
    whole = whole._replace(experiment=small(architecture, epochs=20, every=1 if steps else None, steps=steps))
    full, short = simulate_draw(whole, Draw(3, 1.0)), simulate_draw(whole._replace(epochs=5), Draw(3, 1.0))
    for name in ("seconds", "usd", "paper_method_usd", "moved_bytes"):
        assert getattr(short, name) == pytest.approx(getattr(full, name), rel=0.03), name


def test_runs_are_projected_in_the_same_draws_for_their_reports() -> None:
    """Check that project_results simulates finished runs with their own epochs in equal draws, and gives None and a reason for an unknown
    model.
    """
    plain = {"experiment": small("spirt", epochs=9).to_plain(), "epochs": [{}, {}]}
    unknown = {"experiment": replace(small("spirt"), training=Training(model="mine:model")).to_plain(), "epochs": [{}]}
    other = {"experiment": small("all_reduce").to_plain(), "epochs": [{}, {}]}
    told = list[str]()
    first, none, second = project_results([plain, unknown, other], repetitions=4, tell=told.append)
    assert len(told) == 1 and told[0].startswith("training.model: 'mine:model' is code of your own")
    assert first is not None and none is None and second is not None
    for run, architecture in ((first, "spirt"), (second, "all_reduce")):
        outcomes = [
            simulate_draw(task(architecture, AWS.with_uncertainty_of("small_cnn")), draw)
            for draw in list_draws(small("spirt").seed, 4)
        ]
        assert run.usd == tuple(each.usd for each in outcomes)  # of two epochs, as the run had, not of nine
