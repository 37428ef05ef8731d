"""Synchronous architectures, trees and programs alike, end bitwise equal to a single-process reference (docs/correctness.md, 2)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossover import user_code
from crossover.experiment import Aggregation, Clip, Exchange, Faults, ImageSize, Outer
from crossover.workflow.architecture import load
from tests.architectures import zoo
from tests.architectures.harness import Job, claiming, small
from tests.architectures.trained import assert_equal_to_reference, trained


@pytest.fixture(autouse=True)
def beside() -> None:
    """Let experiments find the modules of the folder with zoo.py."""
    user_code.set_folders(Path(zoo.__file__).parent)


# MLLess adds updates to what all have been told (x = y + r): its equality is another claim, in its own test.
SYNCHRONOUS = claiming("equals_reference")


@pytest.mark.sampled
@pytest.mark.parametrize(
    "training",
    [
        {
            "batch_size": 6,
            "every": 1,
        },  # 20 samples for each of two workers: the last one is ragged, so the means are weighted
        {"batch_size": 6, "every": 2},
        {"batch_size": 6, "every": "epoch"},
        *({"workers": workers} for workers in (1, 2, 3, 4, 5)),
        {"momentum": 0.0},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        {"optimizer": "adam", "learning_rate": 0.01},
        {"optimizer": "adamw", "learning_rate": 0.01},
        {"schedule": "one_cycle"},
        {"schedule": "cosine", "warm_up": 0.3, "floor": 0.1, "clip": Clip(norm=0.5)},
        {**zoo.TUNED, "optimizer": "adamw", "betas": (0.8, 0.95), "weight_decay": 0.1, "no_decay": ("*.bias",)},
        {"schedule": "plateau", "plateau_patience": 1, "epochs": 4, "learning_rate": 0.5},
        {"label_smoothing": 0.1},
        {"precision": "bf16"},
        {"image_size": ImageSize(begin=4, step=2), "epochs": 3},
        {"epochs": 6, "early_stopping": 1, "learning_rate": 1e-6},
        {"epochs": 6, "target": 0.01},
    ],
    ids=str,
)
@pytest.mark.parametrize("architecture", SYNCHRONOUS)
def test_every_way_to_train(architecture: str, training: dict[str, Any]) -> None:
    """Check that each synchronous architecture ends with the reference's bits under various settings of training."""
    assert_equal_to_reference(small(architecture, **training))


@pytest.mark.parametrize("architecture", SYNCHRONOUS)
def test_a_ragged_partition_is_weighted(architecture: str) -> None:
    """Check the reference's bits if workers have one sample more or less than others, and if rounds end at the epoch's odd minibatch."""
    experiment = small(architecture, workers=3, batch_size=7, every=2)
    assert_equal_to_reference(replace(experiment, data=replace(experiment.data, limit=61)))


@pytest.mark.parametrize("architecture", SYNCHRONOUS)
def test_the_last_epoch_may_end_early(architecture: str) -> None:
    """Check that training ends at the update that `training.steps` gives. Learning rates and all epochs take it into account, and the last
    epoch is evaluated like a whole one.
    """
    steps = 9 if load(architecture).alone else 6  # of 14 and of 8 in two epochs
    job = assert_equal_to_reference(small(architecture, batch_size=6, every=1, schedule="one_cycle", steps=steps))
    assert job.decisions()[-1]["reason"] == f"steps: all {steps} done"


LOCAL = [
    (name, exchange)
    for exchange in (
        Exchange(what="model", every=2),
        Exchange(what="delta", every=2),
        Exchange(what="delta", every="epoch", outer=Outer(learning_rate=1.0, momentum=0.0, nesterov=False)),
    )
    for name in SYNCHRONOUS
    if exchange.what in load(name).exchanges
]


@pytest.mark.parametrize(("architecture", "exchange"), LOCAL, ids=lambda value: getattr(value, "what", value))
def test_local_steps(architecture: str, exchange: Exchange) -> None:
    """Check the reference's bits with local steps: ragged minibatches and rounds, a learning rate that changes with every step, and an
    inner velocity that each worker keeps.
    """
    experiment = small(architecture, workers=3, batch_size=7, epochs=2, schedule="one_cycle", nesterov=True)
    assert_equal_to_reference(replace(experiment, exchange=exchange, data=replace(experiment.data, limit=61)))


BEYOND = {name: ("delta", "model")[rank % 2] for rank, (name, _) in enumerate(LOCAL[: len(LOCAL) // 3])}


@pytest.mark.parametrize(("architecture", "what"), BEYOND.items())
def test_rounds_of_several_epochs(architecture: str, what: Any) -> None:
    """Check the reference's bits if a round lasts two epochs of three minibatches and the last one is shorter. Learning rates follow steps,
    or evaluations, of which there are fewer; what is cut from an image follows its epoch.
    """
    schedule = "one_cycle" if what == "model" else "plateau"
    training = {"epochs": 5, "learning_rate": 0.2, "schedule": schedule, "plateau_patience": 0, "plateau_factor": 0.5}
    experiment = small(architecture, workers=3, batch_size=7, **training)
    data = replace(experiment.data, limit=61, augment="crop_flip")
    job = assert_equal_to_reference(replace(experiment, exchange=Exchange(what=what, every=6), data=data))
    assert [decision["epoch"] for decision in job.decisions()] == [2, 4, 5]


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "krum"])
@pytest.mark.parametrize("architecture", ["spirt", "p2p_instance"])
def test_robust_rules_equal_the_reference(architecture: str, rule: str) -> None:
    """Check the reference's bits with five workers under each robust rule."""
    aggregation = Aggregation(rule=rule, trim=1, faulty=1)  # type: ignore[arg-type]
    assert_equal_to_reference(replace(small(architecture, workers=5, epochs=1), aggregation=aggregation))


def test_twelve_peers() -> None:
    """Check the reference's bits with twelve peers on instances."""
    assert_equal_to_reference(small("p2p_instance", workers=12, epochs=1))


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["sign_flip", "gaussian", "label_flip"])
def test_an_attack_is_reproducible(attack: str) -> None:
    """Check that two runs with the same attack end with the same model, which differs from that of a run without it."""
    plain = small("spirt", epochs=1)
    experiment = replace(plain, faults=Faults(attack=attack, workers=(1,)))  # type: ignore[arg-type]
    assert Job(experiment).run() == trained(experiment).model != trained(plain).model
