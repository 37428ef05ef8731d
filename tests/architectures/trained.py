"""Undisturbed runs of every architecture, each made once in a process however many tests ask for it."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from crossover.experiment import Experiment
from crossover.learning.datasets import load as load_dataset
from crossover.learning.reference import train_reference
from crossover.workflow.architecture import architecture_of
from tests.architectures.fleet import Counted, Fleet
from tests.architectures.harness import Hook, Job, Killed, silent


@dataclass(frozen=True)
class Trained:
    """A run that was trained to its end. `model`: bytes of the trained model; `calls`: names of the data plane's operations in the run of
    its tree, or by the program that made the most; `all_calls`: number of operations of the whole run.
    """

    model: bytes
    job: Job
    calls: list[str]
    all_calls: int


_RUNS: dict[str, Trained] = {}


def trained(experiment: Experiment) -> Trained:
    """Return the finished run of an experiment, trained once per process. Raises AssertionError if the run left anything behind but its
    results.
    """
    name = repr(experiment)
    if name not in _RUNS:
        job, calls = Job(experiment), Counted()
        model = run(job, calls)
        _RUNS[name] = Trained(model, job, calls.longest(), sum(len(each.operations) for each in calls))
        assert job.queues() == {}
    return _RUNS[name]


def run(job: Job, hooks: Callable[[int], Hook] = lambda number: silent) -> bytes:
    """Run the job as a tree, or as programs in threads of their own, and return the bytes of the trained model. `hooks(number)`: returns
    the hook for the calls of program `number`. Raises AssertionError if tensors are left, or a program ended with an error other than
    Killed.
    """
    if architecture_of(job.experiment).run is not None:
        job.clients.hook = hooks(0)
        model = job.run()
    else:
        fleet = Fleet(job, hooks=hooks)
        with pytest.MonkeyPatch.context() as patch:
            model = fleet.run(patch)
        assert all(isinstance(error, Killed) for error in fleet.errors), fleet.errors
        assert fleet.left_behind() == []
    assert job.tensor_keys() == []
    return model


def assert_equal_to_reference(experiment: Experiment) -> Job:
    """Run the experiment and check that model and metrics equal, bit for bit, those of one process that trains alone. Returns the finished
    job.
    """
    job = Job(experiment)
    model = run(job)
    reference, _, history = train_reference(job.prepared.experiment, load_dataset(experiment))
    assert model == reference
    assert [d["val_metric"] for d in job.decisions()] == [epoch.val_metric for epoch in history]
    return job
