"""What must hold of every projection, whatever its sizes."""

from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossover.experiment import Data, Exchange, Experiment, Functions, Gpu, PeerToPeer, Training
from crossover.learning.sizes import StepCounts
from crossover.reports import bill as cost
from crossover.reports import bill as infrastructure
from crossover.reports import prices
from crossover.simulation import AWS, PURE_COMPUTE, Calibration, Simulated, Workload, simulate
from crossover.workflow.architecture import load

SERVERLESS = ("spirt", "all_reduce", "scatter_reduce", "mlless", "p2p_serverless")
ALL = (*SERVERLESS, "p2p_instance", "gpu")
STILL = replace(AWS.without_stragglers(), concurrency=None)

architectures = st.sampled_from(ALL)
sizes = st.builds(
    Workload,
    model=st.just("some"),
    parameters=st.integers(1_000, 20_000_000),
    buffers=st.integers(0, 10_000),
    macs=st.integers(1_000, 100_000_000),
    samples=st.lists(st.integers(1, 256), min_size=1, max_size=6).map(tuple),
    image_bytes=st.just(3_072),
    validation_samples=st.integers(0, 2_000),
    training_share=st.sampled_from([1.0, 0.25]),
    step=st.builds(StepCounts, **{each.name: st.floats(0, 1e8, allow_subnormal=False) for each in fields(StepCounts)}),
)


def experiment(architecture: str, *, workers: int = 3, epochs: int = 2, seed: int = 1, **parts: Any) -> Experiment:
    """Return an experiment of the architecture on CIFAR-10. `parts`: further fields of it."""
    return Experiment(
        name="some",
        architecture=architecture,
        seed=seed,
        workers=workers,
        training=Training(epochs=epochs, batch_size=256),
        data=Data(dataset="cifar10", validation="test"),
        functions=Functions(memory_mb={"default": 3_538}),
        gpu=Gpu(instances=workers),
        p2p=PeerToPeer(),
        **parts,
    )


@settings(max_examples=25, deadline=None)
@given(architectures, sizes, st.integers(1, 9), st.integers(1, 9))
def test_more_workers_never_enter_fewer_states(architecture: str, work: Workload, some: int, more: int) -> None:
    """Check that state transitions, invocations and bytes do not shrink with more workers, each of which has the same minibatches."""
    few, many = (simulate(experiment(architecture, workers=n), STILL, workload=work) for n in (some, some + more))
    assert many.transitions >= few.transitions
    assert many.invocations >= few.invocations
    assert many.moved_bytes >= few.moved_bytes


@settings(max_examples=40, deadline=None)
@given(architectures, sizes, st.integers(1, 6), st.integers(1, 3))
def test_without_latency_and_with_infinite_bandwidth_only_computing_is_left(
    architecture: str, work: Workload, workers: int, epochs: int
) -> None:
    """Check that under the calibration PURE_COMPUTE a run takes its seconds of computing only."""
    run = simulate(experiment(architecture, workers=workers, epochs=epochs), PURE_COMPUTE, workload=work)
    assert run.seconds == pytest.approx(epochs * computing_s(run), rel=1e-9, abs=1e-9)


def computing_s(run: Simulated) -> float:
    """Return an epoch's seconds of computation: the gradients (the slowest one in SPIRT and P2P with Lambda, which compute all at the same
    time, else their sum), then the evaluation.
    """
    setting, calibration, work = run.experiment, run.calibration, run.workload
    if setting.architecture == "gpu":
        on_gpu = partial(calibration.gpu_gradient_s, instance_type=setting.gpu.instance_type)
        each = [on_gpu(work, samples) for samples in work.samples]
        return sum(each) + calibration.evaluate_share * on_gpu(work.at_full_size, work.validation_samples)
    of_peers = partial(calibration.instance_gradient_s, setting, instance_type=setting.p2p.instance_type)
    evaluation_gradient_s = of_peers(work.at_full_size, work.validation_samples)
    if setting.architecture == "p2p_instance":
        each = [of_peers(work, samples) for samples in work.samples]
        return sum(each) + calibration.evaluate_share * evaluation_gradient_s
    each = [calibration.function_gradient_s(setting, work, samples, memory_mb=3_538) for samples in work.samples]
    if setting.architecture == "p2p_serverless":
        return max(each) + calibration.evaluate_share * evaluation_gradient_s
    evaluate_s = calibration.evaluate_share * calibration.function_gradient_s(
        setting, work.at_full_size, work.validation_samples, memory_mb=3_538
    )
    return (max(each) if setting.architecture == "spirt" else sum(each)) + evaluate_s


@settings(max_examples=25, deadline=None)
@given(architectures, sizes, st.integers(1, 4), st.sampled_from([AWS, STILL]))
def test_the_cost_is_that_of_the_simulated_records(
    architecture: str, work: Workload, workers: int, calibration: Calibration
) -> None:
    """Check that the dollars of a simulation, by both methods, are those that the report's cost gives for its records."""
    setting, listed = experiment(architecture, workers=workers), prices.load()
    run = simulate(setting, calibration, workload=work, keep_records=True, price_list=listed)
    bill = cost.BilledRun(
        experiment=setting,
        records=run.records,
        started_at=0.0,
        infrastructure=infrastructure.infrastructure_of(setting),
        prices=listed,
        duration_s=run.seconds,
        transitions=run.transitions,
    ).cost()
    assert run.usd == pytest.approx(bill.full_usd, rel=1e-9)
    assert run.paper_method_usd == pytest.approx(bill.paper_method_usd, rel=1e-6)
    assert [(line.item, line.unit, line.as_of) for line in run.lines] == [
        (line.item, line.unit, line.as_of) for line in bill.lines
    ]


@pytest.mark.parametrize("architecture", ALL)
def test_the_same_seed_gives_the_same_run_and_another_another(architecture: str) -> None:
    """Check that a simulation repeats for a seed and differs for another."""
    one, again, other = (simulate(experiment(architecture, seed=seed), keep_records=True) for seed in (1, 1, 2))
    assert (one.seconds, one.usd, one.records) == (again.seconds, again.usd, again.records)
    assert one.seconds != other.seconds


@pytest.mark.parametrize("architecture", ALL)
def test_records_that_are_not_kept_change_nothing(architecture: str) -> None:
    """Check that a simulation without records, which adds equal polls at once, has the figures of one with records."""
    slow = replace(AWS, compute_sigma=0.6)
    kept, summed = (simulate(experiment(architecture, workers=6), slow, keep_records=keep) for keep in (True, False))
    assert summed.records == ()
    assert (summed.seconds, summed.transitions, summed.invocations) == (
        kept.seconds,
        kept.transitions,
        kept.invocations,
    )
    assert summed.usd == pytest.approx(kept.usd, rel=1e-9)
    assert summed.traffic == kept.traffic


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ALL)
def test_a_slower_cloud_is_never_faster(architecture: str) -> None:
    """Check that a run does not take less time if state machines, stores, hosts or processors are slower."""
    setting = experiment(architecture)
    quick = simulate(setting, STILL)
    for change in (
        {"task_s": 0.5, "sandbox_s": 1.0, "branch_s": 0.05, "child_s": 2.0},
        {
            "objects": replace(AWS.objects, latency_s=0.5),
            "instance_objects": replace(AWS.instance_objects, latency_s=0.5),
        },
        {  # hosts whose types nobody has documented
            "tensors": replace(AWS.tensors, host_bytes_s=2e6),
            "bus": replace(AWS.bus, host_bytes_s=2e6),
            "instances": {},
        },
        {"function_speed": 0.3, "instance_speed": 0.3, "gpu_pace": 30.0},
    ):
        assert simulate(setting, replace(STILL, **change)).seconds >= quick.seconds, change


def test_the_worst_straggler_sets_the_pace() -> None:
    """Check that random factors of mean 1 lengthen a run, more with more workers, because a barrier waits for the slowest."""
    even, spread = PURE_COMPUTE, replace(PURE_COMPUTE, compute_sigma=0.4)
    slower = {}
    for workers in (2, 32):
        setting = experiment("spirt", workers=workers, epochs=6)
        work = Workload.from_experiment(experiment("spirt")).with_equal_minibatches(minibatches=8, batch_size=256)
        slower[workers] = (
            simulate(setting, spread, workload=work).seconds / simulate(setting, even, workload=work).seconds
        )
    assert slower[2] > 1.1
    assert slower[32] > slower[2]


def test_what_aws_would_not_run_is_said() -> None:
    """A simulated run of too large a model has problems about memory and time, and a small one none."""
    setting = experiment("spirt", exchange=Exchange())
    large = simulate(setting, STILL, workload=Workload.from_experiment(setting).with_parameters(1_000_000_000))
    text = "; ".join(large.problems)
    assert "a function has at most 10,240" in text
    assert "functions.timeout_s is 900" in text
    assert simulate(setting, STILL).problems == ()


def test_a_projection_says_so_and_can_be_written_down() -> None:
    """A simulated run's JSON has the label "projected", the calibration and the experiment."""
    run = simulate(experiment("spirt"))
    plain = run.as_json()
    assert plain["label"] == run.label == "projected"
    assert plain["calibration"]["objects"]["host_bytes_s"] is None
    assert plain["seconds"] == run.seconds
    assert load("spirt").name == plain["experiment"]["architecture"]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ALL)
def test_dollars_at_an_epoch_are_those_of_a_run_that_ended_there(architecture: str) -> None:
    """Check that the dollars of a run until an epoch, by both methods, are within 5 % of those of a run with so many epochs."""
    listed = prices.load()

    def run(epochs: int) -> tuple[cost.BilledRun, dict[int, float]]:
        """Return the billed simulation of so many epochs, and the second at which each epoch ended."""
        setting = experiment(architecture)
        setting = replace(setting, training=replace(setting.training, epochs=epochs, target=None))
        found = simulate(setting, keep_records=True, price_list=listed)
        billed = cost.BilledRun(
            experiment=setting,
            records=found.records,
            started_at=0.0,
            infrastructure=infrastructure.infrastructure_of(setting),
            prices=listed,
            duration_s=found.seconds,
            transitions=found.transitions,
        )
        return billed, dict(found.epochs_end_s)

    whole, ends_s = run(8)
    for epoch in (2, 5):
        passed, ended = whole.cost_until(ends_s[epoch]), run(epoch)[0].cost()
        assert passed.full_usd == pytest.approx(ended.full_usd, rel=0.05)
        assert passed.paper_method_usd == pytest.approx(ended.paper_method_usd, rel=0.05)
