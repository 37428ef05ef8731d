"""Synchronous architectures, trees and programs alike, end bitwise equal to a single-process reference (docs/correctness.md, 2)."""

from dataclasses import replace
from typing import Any

import pytest

from crossover.experiment import Aggregation, Faults
from tests.architectures.harness import Job, claiming, small
from tests.architectures.trained import assert_equal_to_reference, trained

# MLLess adds updates to what all have been told (x = y + r): its equality is another claim, in its own test.
SYNCHRONOUS = claiming("equals_reference")


@pytest.mark.sampled
@pytest.mark.parametrize(
    "training",
    [
        {
            "batch_size": 6,
            "sync_every": 1,
        },  # 20 samples for each of two workers: the last one is ragged, so the means are weighted
        {"batch_size": 6, "sync_every": 2},
        {"batch_size": 6, "sync_every": "epoch"},
        *({"workers": workers} for workers in (1, 2, 3, 4, 5)),
        {"momentum": 0.0},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        {"optimizer": "adam", "learning_rate": 0.01},
        {"optimizer": "adamw", "learning_rate": 0.01},
        {"schedule": "one_cycle"},
        {"schedule": "plateau", "plateau_patience": 1, "epochs": 4, "learning_rate": 0.5},
        {"label_smoothing": 0.1},
        {"precision": "bf16"},
        {"epochs": 6, "early_stopping": 1, "learning_rate": 1e-6},
        {"epochs": 6, "target": 0.01},
    ],
    ids=str,
)
@pytest.mark.parametrize("architecture", SYNCHRONOUS)
def test_every_way_to_train(architecture: str, training: dict[str, Any]) -> None:
    assert_equal_to_reference(small(architecture, **training))


@pytest.mark.parametrize("architecture", SYNCHRONOUS)
def test_a_ragged_partition_is_weighted(architecture: str) -> None:
    """One sample more or less than the others', and rounds that end at the epoch's odd minibatch."""
    experiment = small(architecture, workers=3, batch_size=7, sync_every=2)
    assert_equal_to_reference(replace(experiment, data=replace(experiment.data, limit=61)))


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "krum"])
@pytest.mark.parametrize("architecture", ["spirt", "p2p_instance"])
def test_robust_rules_equal_the_reference(architecture: str, rule: str) -> None:
    aggregation = Aggregation(rule=rule, trim=1, faulty=1)  # type: ignore[arg-type]
    assert_equal_to_reference(replace(small(architecture, workers=5, epochs=1), aggregation=aggregation))


def test_twelve_peers() -> None:
    assert_equal_to_reference(small("p2p_instance", workers=12, epochs=1))


@pytest.mark.parametrize("attack", ["sign_flip", "gaussian", "label_flip"])
def test_an_attack_is_reproducible(attack: str) -> None:
    plain = small("spirt", epochs=1)
    experiment = replace(plain, faults=Faults(attack=attack, workers=(1,)))  # type: ignore[arg-type]
    assert Job(experiment).run() == trained(experiment).model != trained(plain).model
