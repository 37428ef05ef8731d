"""Synchronous architectures end bitwise equal to a single-process reference (docs/correctness.md, 2)."""

from dataclasses import replace
from typing import Any

import pytest

from crossover.experiment import Aggregation, Experiment, Faults
from crossover.learning.datasets import load as load_dataset
from crossover.learning.reference import train_reference
from tests.architectures.harness import Job, small, tree_architectures

# MLLess adds updates to what all have been told (x = y + r): its equality is another claim, in its own test.
SYNCHRONOUS = tree_architectures("equals_reference")


def assert_equal_to_reference(experiment: Experiment) -> None:
    job = Job(experiment)
    model = job.run()
    reference, _, history = train_reference(job.prepared.experiment, load_dataset(experiment))
    assert model == reference
    assert [d["val_metric"] for d in job.decisions()] == [epoch.val_metric for epoch in history]
    assert job.tensor_keys() == []


@pytest.mark.parametrize("sync_every", [1, 2, "epoch"])
@pytest.mark.parametrize("architecture", SYNCHRONOUS)
def test_every_synchronisation_interval(architecture: str, sync_every: int | str) -> None:
    """40 samples in minibatches of 6 for each of two workers: the last one is ragged, so the means are weighted."""
    assert_equal_to_reference(small(architecture, batch_size=6, sync_every=sync_every))


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("architecture", SYNCHRONOUS)
def test_every_number_of_workers(architecture: str, workers: int) -> None:
    assert_equal_to_reference(small(architecture, workers=workers))


@pytest.mark.parametrize(
    "training",
    [
        {"momentum": 0.0},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        {"schedule": "one_cycle"},
        {"schedule": "plateau", "plateau_patience": 1, "epochs": 4, "learning_rate": 0.5},
        {"label_smoothing": 0.1},
        {"precision": "bf16"},
    ],
    ids=lambda training: ",".join(training),
)
@pytest.mark.parametrize("architecture", SYNCHRONOUS)
def test_every_way_to_train(architecture: str, training: dict[str, Any]) -> None:
    assert_equal_to_reference(small(architecture, **training))


@pytest.mark.parametrize("architecture", SYNCHRONOUS)
def test_a_partition_that_differs_by_one_sample_is_weighted(architecture: str) -> None:
    experiment = small(architecture, workers=3, batch_size=7)
    assert_equal_to_reference(replace(experiment, data=replace(experiment.data, limit=61)))


@pytest.mark.parametrize("architecture", SYNCHRONOUS)
def test_early_stopping_and_a_target_end_every_worker_at_the_same_epoch(architecture: str) -> None:
    assert_equal_to_reference(small(architecture, epochs=6, early_stopping=1, learning_rate=1e-6))
    assert_equal_to_reference(small(architecture, epochs=6, target=0.01))


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "krum"])
def test_robust_rules_equal_the_reference(rule: str) -> None:
    aggregation = Aggregation(rule=rule, trim=1, faulty=1)  # type: ignore[arg-type]
    assert_equal_to_reference(replace(small("spirt", workers=5, epochs=1), aggregation=aggregation))


@pytest.mark.parametrize("attack", ["sign_flip", "gaussian", "label_flip"])
def test_an_attack_is_reproducible(attack: str) -> None:
    experiment = replace(small("spirt", epochs=1), faults=Faults(attack=attack, workers=(1,)))  # type: ignore[arg-type]
    assert Job(experiment).run() == Job(experiment).run() != Job(small("spirt", epochs=1)).run()
