"""The GPU baseline on CPUs: through the object store bitwise equal to the reference, by all-reduce within rounding."""

import os
from dataclasses import replace
from typing import Any

import pytest
import torch

import peers.gpu
from crossover.algorithms import buffers
from crossover.algorithms.contributions import Contribution
from crossover.experiment import Experiment
from crossover.learning import device
from crossover.learning.datasets import load as load_dataset
from crossover.learning.reference import train_reference
from crossover.workflow.context import Context, Resources, new_learner
from peers.gpu.gathering import Gathering
from tests.architectures.fleet import Fleet, member
from tests.architectures.harness import Job, small


def gpu(**settings: Any) -> Experiment:
    """Return a small experiment of the GPU architecture with one instance per worker. `settings`: arguments of `small`, and `exchange` of
    the GPU section.
    """
    exchange = settings.pop("exchange", "s3")
    experiment = small("gpu", **{"every": 1, "batch_size": 10} | settings)
    return replace(experiment, gpu=replace(experiment.gpu, exchange=exchange, instances=experiment.workers))


def distance(model: bytes, other: bytes) -> float:
    """Return the largest difference between two models' elements, relative to the largest magnitude in the second model."""
    a, b = buffers.tensor(model), buffers.tensor(other)
    return float((a - b).abs().max() / b.abs().max())


def test_an_all_reduce_gives_the_same_within_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that one exchange by all-reduce gives the other exchange's model within rounding. Later rounds would amplify the last bits, as
    on any two machines.
    """
    experiment = gpu(workers=3, exchange="distributed", epochs=1, every="epoch")
    fleet = Fleet(Job(experiment))
    model = fleet.run(monkeypatch)
    reference, _, _ = train_reference(fleet.job.prepared.experiment, load_dataset(experiment))
    assert distance(model, reference) <= 1e-6
    assert fleet.left_behind() == []


def test_operations_without_a_deterministic_form_are_allowed_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that on a GPU operations without a deterministic form only warn, and that cuBLAS gets fixed workspaces.

    Without them every linear layer would be refused. The processor's learner forbids such operations.
    """
    from crossover.learning.device import prefer_deterministic

    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    was = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        prefer_deterministic()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.use_deterministic_algorithms(was[0], warn_only=was[1])
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def test_another_attempt_averages_what_the_first_has_shown() -> None:
    """Check that a repeated attempt uses the gradient that the first one stored. If kernels gave other bits the second time, the replicas
    would drift apart.
    """
    job = Job(gpu())
    with Context(Resources(job.clients), run=job.prepared.run) as ctx:
        holder = member(job)
        shown, again = (torch.full((ctx.facts.parameters + ctx.facts.buffers,), value) for value in (1.0, 1.5))
        Gathering(ctx, holder).send(Contribution(shown), 0)
        Gathering(ctx, holder).send(Contribution(again), 0)
    assert torch.equal(again, shown)


def test_resources_that_make_learners_of_their_own_have_no_use_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that no learner for a GPU is made if the resources make learners themselves, as in a simulation."""
    monkeypatch.setattr(device, "choose_device", lambda number: torch.device("cuda"))
    job = Job(gpu())
    own = Resources(job.clients, make_learner=lambda experiment, manifest: new_learner(experiment, manifest))
    with Context(own, run=job.prepared.run) as ctx:
        assert peers.gpu.device_learner(ctx) is None
