"""Epochs of many rounds are simulated by shorter ones: the figures stay, the work does not grow."""

from dataclasses import replace
from functools import partial

import pytest

from crossover.advice.candidates import Candidate, experiment_of
from crossover.simulation import AWS, Workload, long_epochs, simulate
from crossover.simulation.long_epochs import LONGER_ROUNDS, QUICK_LONGER_ROUNDS, simulate_run
from crossover.validation import load

CALM = AWS.without_stragglers()


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [60_000, 11_000_000])  # the larger one outlives a function's time limit
@pytest.mark.parametrize("name", ["single", "all-reduce", "scatter-reduce", "mlless", "gpu", "spirt", "p2p-instance"])
def test_a_shortened_epoch_gives_the_figures_of_the_whole_one(name: str, parameters: int) -> None:
    """Check that simulate_run gives the figures of simulate within 2 %, or 4 % with `quick`."""
    experiment = load(f"config/{name}.yaml")
    experiment = replace(experiment, training=experiment.training.with_epochs(2))
    workload = (
        Workload.from_experiment(experiment)
        .with_parameters(parameters)
        .with_equal_minibatches(minibatches=1_000, batch_size=60)
    )
    whole, found = (each(experiment, CALM, workload=workload) for each in (simulate, simulate_run))
    quick = simulate_run(experiment, CALM, workload=workload, quick=True)
    assert (quick.seconds, quick.usd) == pytest.approx((whole.seconds, whole.usd), rel=0.04)
    for figure in ("seconds", "usd", "paper_method_usd", "epoch_s", "moved_bytes"):
        assert getattr(found, figure) == pytest.approx(getattr(whole, figure), rel=0.02), figure
    assert found.problems == whole.problems
    assert found.workload == workload


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("on", "instance"), [("gpu", "g6e.2xlarge"), ("instance", "c7g.2xlarge")])
def test_a_long_evaluation_does_not_hide_what_more_rounds_take(on: str, instance: str, seed: int) -> None:
    """A shortened epoch has the seconds of the whole one, with stragglers and more samples to evaluate than an epoch trains."""
    base = load("config/all-reduce-cifar10.yaml", ["training.epochs=1"])
    experiment = replace(experiment_of(base, Candidate("single", 1, 60, 1, on=on, instance=instance)), seed=seed)
    workload = Workload.from_experiment(experiment).with_equal_minibatches(minibatches=2_000, batch_size=60)
    workload = replace(workload, validation_samples=1_000_000)
    quick, whole = (each(experiment, AWS, workload=workload) for each in (partial(simulate_run, quick=True), simulate))
    assert quick.seconds == pytest.approx(whole.seconds, rel=0.05)


@pytest.mark.parametrize(("minibatches", "rounds"), [(400, QUICK_LONGER_ROUNDS), (100_000, LONGER_ROUNDS)])
def test_a_quick_look_at_functions_is_enough_if_their_run_ends_before_their_limit(
    minibatches: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quick simulation simulates few rounds if the functions end before their time limit, else more. `rounds`: expected most
    minibatches.
    """
    experiment = load("config/all-reduce.yaml")
    experiment = replace(experiment, training=experiment.training.with_epochs(1))
    simulated: list[int] = []

    def watched(*arguments: object, workload: Workload, **named: object) -> object:
        """Note the number of minibatches and simulate."""
        simulated.append(workload.minibatches)
        return simulate(*arguments, workload=workload, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(long_epochs, "simulate", watched)
    simulate_run(
        experiment,
        CALM,
        workload=Workload.from_experiment(experiment).with_equal_minibatches(minibatches=minibatches, batch_size=1),
        quick=True,
    )
    assert max(simulated) == rounds


@pytest.mark.parametrize(("quick", "rounds"), [(False, LONGER_ROUNDS), (True, QUICK_LONGER_ROUNDS)])
def test_the_number_of_rounds_costs_nothing(quick: bool, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that for 100,000 rounds the longest simulated epoch has `rounds` rounds, and that twice as many take twice the
    time and bytes.
    """
    experiment = load(f"config/{'gpu' if quick else 'all-reduce'}.yaml")
    experiment = replace(experiment, training=experiment.training.with_epochs(2))
    simulated: list[int] = []

    def watched(*arguments: object, workload: Workload, **named: object) -> object:
        """Note the number of minibatches and simulate."""
        simulated.append(workload.minibatches)
        return simulate(*arguments, workload=workload, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(long_epochs, "simulate", watched)
    workload = Workload.from_experiment(experiment).with_equal_minibatches(minibatches=100_000, batch_size=60)
    found = simulate_run(experiment, CALM, workload=workload, quick=quick)
    assert max(simulated) == rounds
    twice = simulate_run(experiment, CALM, workload=replace(workload, samples=2 * workload.samples), quick=quick)
    assert twice.seconds == pytest.approx(2 * found.seconds, rel=0.01)
    assert twice.moved_bytes == pytest.approx(2 * found.moved_bytes, rel=0.01)
