"""The walk is exact: simulated invocations are those of an inline run, and their states those of the state machines."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import simpy

from crossover.errors import ConfigError
from crossover.experiment import Exchange, Experiment
from crossover.reports.folder import list_missing
from crossover.reports.usage import expected_records, state_transitions
from crossover.running.inline import run_inline
from crossover.simulation import AWS, Calibration, Workload, simulate
from crossover.simulation.kernel import Gate
from crossover.simulation.workload import calendar
from crossover.workflow.architecture import load
from tests.architectures.harness import small

STILL = AWS.without_stragglers()
Record = Mapping[str, Any]


def cells(records: Sequence[Record], *, once: bool = False) -> Counter[tuple[Any, ...]]:
    """Return how often each (step, worker, epoch, round, minibatch) has a record. `once`: repeated polls of check_peers count as one."""
    found = Counter(tuple(r[name] for name in ("step", "worker", "epoch", "round", "minibatch")) for r in records)
    return Counter({cell: 1 if cell[0] == "check_peers" and once else n for cell, n in found.items()})


def test_a_gate_opens_with_its_last_arrival_even_at_the_first_moment() -> None:
    """Check that a gate opens at its last arrival, also at time 0."""
    env = simpy.Environment()
    gate = Gate(env, needed=2)
    gate.arrive(env, 1)
    assert not gate.is_open
    gate.arrive(env, 0)
    assert gate.is_open and gate.last == 0


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["spirt", "all_reduce", "scatter_reduce", "mlless", "p2p_serverless", "gpu"])
def test_simulated_invocations_are_those_of_a_run(architecture: str, tmp_path: Path) -> None:
    """Check that a simulation has as many records per step, worker, epoch, round and minibatch as a run inline."""
    experiment = small(architecture)
    run = run_inline(experiment, tmp_path, lambda progress: None)
    simulated = simulate(experiment, STILL, keep_records=True)
    assert cells(simulated.records, once=True) == cells(run.records, once=True)


@pytest.mark.sampled
@pytest.mark.parametrize("architecture", ["spirt", "all_reduce", "scatter_reduce", "mlless", "p2p_serverless"])
@pytest.mark.parametrize("calibration", [STILL, AWS], ids=["still", "stragglers"])
@pytest.mark.parametrize("per_invocation", [1, 2, "all"])
def test_states_are_those_of_the_machines(
    architecture: str, calibration: Calibration, per_invocation: int | Literal["all"]
) -> None:
    """Check that the simulated state transitions are those of the generated state machines."""
    experiment = small(architecture, workers=3)
    experiment = replace(experiment, exchange=Exchange(minibatches_per_invocation=per_invocation))
    simulated = simulate(experiment, calibration, workload=tiny(experiment), keep_records=True)
    counted = state_transitions(load(architecture), simulated.records, workers=3, epochs=experiment.training.epochs)
    assert simulated.transitions == counted


def tiny(experiment: Experiment, *, minibatches: int = 3) -> Workload:
    """Return the workload of the experiment with this number of minibatches, of eight samples each."""
    return Workload.from_experiment(experiment).with_equal_minibatches(minibatches=minibatches, batch_size=8)


@pytest.mark.parametrize("architecture", ["all_reduce", "scatter_reduce", "mlless"])
def test_invocations_end_before_the_time_limit_and_go_on(architecture: str) -> None:
    """Check that slow long workers need several invocations per epoch, none above the time limit, with all expected records."""
    experiment = small(architecture, workers=3, every=1)
    experiment = replace(experiment, functions=replace(experiment.functions, timeout_s=30))
    slow = replace(AWS, function_batch_s=4.0)
    simulated = simulate(experiment, slow, workload=tiny(experiment, minibatches=12), keep_records=True)
    days = calendar(load(architecture).resolve(experiment), simulated.workload)
    expected = expected_records(load(architecture), workers=3, days=days, epochs=experiment.training.epochs)
    epochs = [{"epoch": epoch} for epoch in simulated.epochs_end_s]
    assert list_missing(simulated.records, expected=expected, epochs=epochs) == []
    assert simulated.steps["train"].invocations > 3 * experiment.training.epochs
    assert simulated.steps["train"].longest_s < 30
    assert simulated.problems == ()


def test_minibatches_as_a_group_are_those_one_by_one() -> None:
    """Check that minibatches simulated as a group give the same run as one process for each, which the walk uses if concurrency could limit
    the run.
    """
    experiment = small("spirt", workers=3)
    work = tiny(experiment, minibatches=7)
    grouped = simulate(experiment, replace(STILL, concurrency=None), workload=work, keep_records=True)
    one_by_one = simulate(experiment, replace(STILL, concurrency=3 * 9 - 1), workload=work, keep_records=True)
    assert one_by_one.seconds == pytest.approx(grouped.seconds, rel=1e-9)
    assert one_by_one.usd == pytest.approx(grouped.usd, rel=1e-9)
    assert cells(one_by_one.records) == cells(grouped.records)


def test_concurrency_that_binds_takes_longer_and_is_said() -> None:
    """Check that a quota of 5 functions lengthens a run of 27 and is named among its problems."""
    experiment = small("spirt", workers=3)
    work, slow = tiny(experiment, minibatches=9), replace(STILL, function_batch_s=60.0)
    free = simulate(experiment, replace(slow, concurrency=None), workload=work)
    bound = simulate(experiment, replace(slow, concurrency=5), workload=work)
    assert bound.concurrency == 5
    assert free.concurrency == 27
    assert bound.seconds > 3 * free.seconds
    assert any("5 concurrent executions" in problem for problem in bound.problems)


@pytest.mark.parametrize("architecture", ["all_reduce", "mlless"])
def test_workers_that_cannot_all_run_at_once_are_no_run(architecture: str) -> None:
    """Check that a quota below the number of workers is a problem of the run. They wait for one another until their time is up."""
    experiment = small(architecture, workers=3)
    stuck = simulate(experiment, replace(STILL, concurrency=2), workload=tiny(experiment))
    assert any("2 concurrent executions" in problem for problem in stuck.problems)


def test_a_step_that_nobody_described_is_named() -> None:
    """Check that a step without a model raises ConfigError."""
    architecture = replace(load("spirt"), run=ending_otherwise(load("spirt").run))
    with pytest.raises(ConfigError, match=r"functions.spirt.tidy has no model in crossover/simulation/mirror/spirt.py"):
        simulate(small("spirt"), STILL, workload=tiny(small("spirt")), architecture=architecture)


def ending_otherwise(node: Any) -> Any:
    """Return the sequence `node` with its last step renamed to `tidy`."""
    from crossover.workflow import Sequence as InOrder

    return InOrder(*node.nodes[:-1], replace(node.nodes[-1], name="tidy"))


def test_an_invocation_that_aws_would_end_ends_the_simulation() -> None:
    """Check that a transfer that outlasts the time limit ends the simulation unfinished, with a problem. A retry would be cut off again."""
    experiment = small("mlless", workers=3, every=1)
    slow = replace(STILL, tensors=replace(STILL.tensors, host_bytes_s=10.0), instances={})
    stopped = simulate(experiment, slow, workload=tiny(experiment))
    assert not stopped.finished
    assert any("is in the middle of its work after" in problem for problem in stopped.problems)
    assert simulate(experiment, STILL, workload=tiny(experiment)).finished
