"""The single-process reference: it is ordinary training, and it learns."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from crossover.algorithms import buffers
from crossover.errors import ConfigError, Refused
from crossover.experiment import Aggregation, Data, Exchange, Experiment, Faults, Training
from crossover.learning import learner as learner_module
from crossover.learning.datasets import load
from crossover.learning.reference import train_reference
from crossover.learning.samples import Preparation, compute_constants
from crossover.learning.staging import Minibatches, plan_staging


def experiment(*, workers: int = 4, seed: int = 1, limit: int | None = None, **fields: Any) -> Experiment:
    """Return a SPIRT experiment. `fields`: its aggregation, faults and `every`; all others are settings of the training."""
    parts = {name: fields.pop(name) for name in ("aggregation", "faults") if name in fields}
    exchange = Exchange(every=fields.pop("every", None))
    training = {"batch_size": 60, "learning_rate": 0.4, "epochs": 12} | fields
    return Experiment(
        name="test",
        architecture="spirt",
        workers=workers,
        seed=seed,
        training=Training(**training),
        data=Data(limit=limit),
        exchange=exchange,
        **parts,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_digits_in_a_dozen_updates(seed: int) -> None:
    """Training on digits with one update per epoch over all minibatches reaches an accuracy of 0.95."""
    own = experiment(seed=seed, target=0.95)
    _, _, history = train_reference(own, load(own))
    assert history[-1].val_metric >= 0.95


def test_one_worker_and_one_minibatch_are_ordinary_training() -> None:
    """One worker with one minibatch per round trains to the weights and momentum of a plain PyTorch loop, bit for bit; the running
    statistics are equal but for rounding.
    """
    own = experiment(workers=1, limit=40, batch_size=40, epochs=5, every=1, weight_decay=1e-3, nesterov=True)
    data = load(own)
    vector, (velocity,), history = train_reference(own, data)
    torch.set_num_threads(1)
    module = learner_module._build_seeded(Training(model="small_cnn"), 10, (1, 8, 8), seed_=1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.4, momentum=0.9, weight_decay=1e-3, nesterov=True)
    scale, shift = compute_constants(data.train_inputs, "standardize")
    prepare = Preparation({"scale": scale, "shift": shift}, memory_format="channels_last")
    batch = Minibatches(own, data, plan_staging(own, 40)).build_minibatch(0, 0)
    for epoch in history:
        optimizer.zero_grad()
        loss = F.cross_entropy(module.train()(prepare(batch.inputs)), batch.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        assert epoch.train_loss == pytest.approx(float(loss.detach()), rel=1e-6)
        with torch.no_grad():
            logits = module.eval()(prepare(data.validation_inputs))
        assert epoch.val_loss == pytest.approx(float(F.cross_entropy(logits, data.validation_labels)), rel=1e-4)
    flat = buffers.tensor(vector)
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
    assert torch.equal(flat[: weights.numel()], weights)
    momenta = [optimizer.state[parameter]["momentum_buffer"].reshape(-1) for parameter in module.parameters()]
    assert torch.equal(buffers.tensor(velocity), torch.cat(momenta))
    statistics = []
    for norm in (layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)):
        assert norm.running_mean is not None and norm.running_var is not None
        statistics += [norm.running_mean, norm.running_var]
    assert torch.allclose(flat[weights.numel() :], torch.cat(statistics), rtol=1e-6, atol=1e-7)


def test_however_the_samples_are_cut_the_round_is_the_mean_over_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other numbers of workers and batch sizes give nearly the same update over the same samples, each weighing alike."""
    own_module = ModuleType("own_models")
    own_module.linear = lambda classes, shape: nn.Sequential(nn.Flatten(), nn.Linear(64, classes))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_models", own_module)
    updates = []
    for workers, batch_size in ((1, 41), (1, 12), (3, 5), (2, 20), (2, 21)):
        own = experiment(workers=workers, limit=41, batch_size=batch_size, epochs=1, model="own_models:linear")
        try:
            vector, _, _ = train_reference(own, load(own))
        except ConfigError:
            assert batch_size == 20  # 21 and 20 samples: two minibatches and one
            continue
        updates.append(buffers.tensor(vector))
    assert len(updates) == 4
    for update in updates[1:]:
        assert torch.allclose(update, updates[0], rtol=1e-5, atol=1e-6)


def test_states_are_shown_round_by_round() -> None:
    """`on_round` is called with each round's number and state, from 1 on; the last state is the result."""
    own = experiment(workers=2, limit=40, batch_size=5, epochs=2, every=3)  # 4 minibatches: rounds of 3 and 1
    seen: list[tuple[int, bytes]] = []
    vector, _, _ = train_reference(
        own, load(own), on_round=lambda round, state: seen.append((round, bytes(buffers.view(state.model))))
    )
    assert [round for round, _ in seen] == [1, 2, 3, 4]
    assert seen[-1][1] == vector
    assert len({model for _, model in seen}) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "training",
    [
        {"optimizer": "adam", "learning_rate": 0.01},
        {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.01},
        {"schedule": "one_cycle"},
        {"schedule": "plateau", "plateau_patience": 1},
        {"precision": "bf16"},
    ],
)
def test_every_way_of_training_learns(training: dict[str, Any]) -> None:
    """Six epochs with these settings lower the training loss by a quarter or more."""
    own = experiment(epochs=6, **training)
    _, _, history = train_reference(own, load(own))
    assert history[-1].train_loss < 0.75 * history[0].train_loss


def test_early_stopping_and_target_end_it() -> None:
    """Training ends before its last epoch by early stopping, or when it reaches its target."""
    own = experiment(limit=40, batch_size=10, epochs=20, learning_rate=1e-9, early_stopping=2)
    assert len(train_reference(own, load(own))[2]) < 20
    own = experiment(limit=40, batch_size=10, epochs=20, target=0.01)
    assert len(train_reference(own, load(own))[2]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["sign_flip", "gaussian"])
@pytest.mark.parametrize(
    "aggregation",
    [
        Aggregation(rule="median"),
        Aggregation(rule="trimmed_mean", trim=1),
        Aggregation(rule="krum", faulty=1, select=2),
    ],
)
def test_robust_rules_learn_under_attack_and_the_mean_does_not(attack: Any, aggregation: Aggregation) -> None:
    """Check that this aggregation reaches 80 % accuracy with one faulty worker of five, and the mean stays below 50 %."""

    def accuracy(aggregation: Aggregation) -> float:
        """Return the accuracy after training under attack, 0 if the loss diverged."""
        own = experiment(
            workers=5, epochs=6, aggregation=aggregation, faults=Faults(attack=attack, workers=(1,), scale=100.0)
        )
        try:
            return train_reference(own, load(own))[2][-1].val_metric
        except Refused:  # the mean may diverge to where the loss is not finite
            return 0.0

    assert accuracy(aggregation) > 0.8
    assert accuracy(Aggregation()) < 0.5
