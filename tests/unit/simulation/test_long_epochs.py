"""Epochs of many rounds are simulated by shorter ones: the figures stay, the work does not grow."""

from dataclasses import replace

import pytest

from crossover.advice.candidates import Candidate, experiment_of
from crossover.experiment import Experiment
from crossover.simulation import AWS, Workload, long_epochs, simulate
from crossover.simulation.calibration import Calibration
from crossover.simulation.kernel import RandomFactors
from crossover.simulation.long_epochs import LONGER_ROUNDS, QUICK_LONGER_ROUNDS, simulate_run
from crossover.simulation.mirror import programs
from crossover.simulation.simulate import Simulated
from crossover.validation import load

CALM = AWS.without_stragglers()


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [60_000, 11_000_000])  # the larger one outlives a function's time limit
@pytest.mark.parametrize("name", ["all-reduce", "scatter-reduce", "mlless", "gpu", "spirt", "p2p-instance"])
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


def simulate_every_round(experiment: Experiment, calibration: Calibration, workload: Workload) -> Simulated:
    """Return the simulation of a single worker's program of whose epochs no round is skipped."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(programs, "MOST_ROUNDS", 10**9)
        return simulate(experiment, calibration, workload=workload)


def build_single(on: str, instance: str, *overrides: str) -> Experiment:
    """Return an experiment that trains on one machine. `on`: "gpu" or "instance"; `instance`: its type."""
    base = load("config/all-reduce-cifar10.yaml", overrides)
    return experiment_of(base, Candidate("single", 1, 60, 1, on=on, instance=instance))


@pytest.mark.parametrize("parameters", [60_000, 11_000_000, 110_000_000])  # a save each second, or each ten minutes
@pytest.mark.parametrize(("on", "instance"), [("gpu", "g6e.2xlarge"), ("instance", "c7g.2xlarge")])
@pytest.mark.parametrize("compression", ["none", "qsgd"])
def test_skipped_rounds_of_a_single_program_count_as_if_each_was_simulated(
    on: str, instance: str, parameters: int, compression: str
) -> None:
    """Skip rounds without stragglers: the requests and bytes are those of every round, the seconds and dollars within 0.1 %, and the ends
    of epochs within 0.5 %.
    """
    experiment = build_single(on, instance, "training.epochs=2")
    experiment = replace(experiment, exchange=replace(experiment.exchange, compression=compression))
    workload = Workload.from_experiment(experiment).with_parameters(parameters)
    workload = replace(workload, samples=(60,) * 3_000 + (20,))
    skipped, whole = simulate(experiment, CALM, workload=workload), simulate_every_round(experiment, CALM, workload)
    assert skipped.traffic == whole.traffic
    assert (skipped.seconds, skipped.usd) == pytest.approx((whole.seconds, whole.usd), rel=0.001)
    assert skipped.epochs_end_s == pytest.approx(whole.epochs_end_s, rel=0.005)  # a save more or less in the first
    for name, use in whole.steps.items():
        counts = [{stage: count for stage, (_, count) in each.stages.items()} for each in (use, skipped.steps[name])]
        assert counts[0] == counts[1]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("on", "instance"), [("gpu", "g6e.2xlarge"), ("instance", "c7g.2xlarge")])
def test_skipped_rounds_take_as_long_as_others_with_stragglers(on: str, instance: str, seed: int) -> None:
    """Skip rounds with stragglers, and more samples to evaluate than an epoch trains: the seconds are those of every round within 2 %."""
    experiment = replace(build_single(on, instance, "training.epochs=1"), seed=seed)
    workload = Workload.from_experiment(experiment).with_equal_minibatches(minibatches=2_000, batch_size=60)
    workload = replace(workload, validation_samples=1_000_000)
    skipped, whole = simulate(experiment, AWS, workload=workload), simulate_every_round(experiment, AWS, workload)
    assert skipped.seconds == pytest.approx(whole.seconds, rel=0.02)


def test_a_million_rounds_of_a_single_program_take_no_more_draws_than_a_thousand() -> None:
    """The gradients that are simulated for an epoch of a single program do not grow with its rounds; if minibatches differ, none is
    skipped.
    """
    experiment, drawn = build_single("gpu", "g6e.2xlarge", "training.epochs=1"), list[int]()
    workload, draw = Workload.from_experiment(experiment), RandomFactors.draw_compute_factor
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RandomFactors, "draw_compute_factor", lambda self: (drawn.append(1), draw(self))[1])
        for samples in ((60,) * 1_000, (60,) * 1_000_000, (60, 30) * 500):
            drawn.append(0)
            simulate(experiment, CALM, workload=replace(workload, samples=samples))
    text = "".join(map(str, drawn))
    assert [len(each) for each in text.split("0")[1:]] == [programs.SAMPLED_ROUNDS + 2] * 2 + [1_000]


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
