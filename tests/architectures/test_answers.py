"""Labels that ask for no answer: a run is one pass over all answers, however they are split into workers, minibatches and chunks."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from crossover import user_code
from crossover.algorithms.schedule import derive_seed
from crossover.errors import UserError
from crossover.experiment import Data, Exchange, Experiment, Metric, Training
from crossover.learning.datasets import load
from crossover.learning.staging import Minibatches, plan_staging
from crossover.running.inline import run_inline
from functions.mlless.settings import MLLess
from tests.architectures import zoo

ARCHITECTURES = ["all-reduce", "scatter-reduce", "spirt", "p2p-instance", "p2p-serverless", "mlless"]
OURS: dict[str, Any] = {}
OWN: dict[str, Any] = {"loss": "zoo:summed", "metric": Metric(name="zoo:right", higher_is_better=True)}


@pytest.fixture(autouse=True)
def beside() -> None:
    """Let experiments find the modules of the folder with zoo.py."""
    user_code.set_folders(Path(zoo.__file__).parent)


def experiment_of(
    architecture: str, *, batch_size: int = 2, workers: int = 2, every: Any = 1, **training: Any
) -> Experiment:
    """Return an experiment with a language model on sequences of which many have no answers (labels that count)."""
    settings: dict[str, Any] = {"learning_rate": 0.1, "momentum": 0.0, "epochs": 1, "model": "zoo:tied"} | training
    return Experiment(
        name="answers",
        architecture=architecture,
        workers=workers,
        training=Training(batch_size=batch_size, **settings),
        data=Data(dataset="zoo:sparse", validation=0.25),
        exchange=Exchange(every=every),
    )


def plain(experiment: Experiment, *, every: int) -> nn.Module:
    """Train the model with plain PyTorch, without this project's learner, and return it. Each step takes the mean over all answers in
    `every` minibatches of all workers, in one pass.
    """
    dataset = load(experiment)
    minibatches = Minibatches(experiment, dataset, made := plan_staging(experiment, len(dataset.train_labels)))
    torch.manual_seed(derive_seed("model", experiment.seed))
    module = zoo.tied(zoo.WORDS, ())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for first in range(0, made.minibatches, every):
        numbers = range(first, min(first + every, made.minibatches))
        batches = [
            minibatches.build_minibatch(worker, number) for worker in range(experiment.workers) for number in numbers
        ]
        inputs, labels = torch.cat([b.inputs for b in batches]), torch.cat([b.labels for b in batches])
        optimizer.zero_grad()
        if (labels != -100).any():
            F.cross_entropy(module(inputs), labels).backward()
        optimizer.step()
    return module


@pytest.mark.sampled
@pytest.mark.parametrize("training", [OURS, OWN], ids=["ours", "own"])
@pytest.mark.parametrize("split", [(2, 2, 1), (4, 3, 2), (8, 2, "epoch")], ids=str)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_run_is_one_pass_over_all_answers(
    architecture: str, split: tuple[int, int, Any], training: dict[str, Any], tmp_path: Path
) -> None:
    """Check that a run with samples of unequal numbers of answers ends with the model and metrics of plain PyTorch, which averages over all
    answers of a step at once.
    """
    batch_size, workers, every = split
    experiment = experiment_of(architecture, batch_size=batch_size, workers=workers, every=every, **training)
    experiment = experiment.with_settings(MLLess(threshold=0.0))
    found = run_inline(experiment, tmp_path, lambda progress: None).result
    made = plan_staging(experiment, 48).minibatches
    expected = plain(experiment, every=made if every == "epoch" else every).state_dict()
    for name, value in load_file(tmp_path / "model.safetensors").items():
        assert torch.allclose(value, expected[name], rtol=0, atol=2e-6), name
    dataset, module = load(experiment), zoo.tied(zoo.WORDS, ())
    module.load_state_dict(load_file(tmp_path / "model.safetensors"))
    with torch.inference_mode():
        outputs, labels = module(dataset.validation_inputs), dataset.validation_labels
    right, answers = zoo.right(outputs, labels)
    assert found["final"]["val_metric"] == right / answers
    assert found["final"]["val_loss"] == pytest.approx(float(F.cross_entropy(outputs, labels)), rel=1e-6)
    assert all(math.isfinite(epoch["train_loss"]) for epoch in found["epochs"])


def test_perplexity_is_exp_of_the_mean_over_all(tmp_path: Path) -> None:
    """Check that the metric perplexity is the exponential of the validation loss."""
    experiment = experiment_of("all-reduce", metric=Metric(name="perplexity"))
    final = run_inline(experiment, tmp_path, lambda progress: None).result["final"]
    assert final["val_metric"] == pytest.approx(math.exp(final["val_loss"]), rel=1e-12)


def test_a_count_that_labels_alone_do_not_decide_is_refused(tmp_path: Path) -> None:
    """Check that a loss whose number of answers depends on the model's outputs is refused."""
    with pytest.raises(UserError, match=r"training\.loss: 'zoo:moody'.*labels alone"):
        run_inline(experiment_of("all-reduce", loss="zoo:moody", epochs=3), tmp_path, lambda progress: None)


def test_outputs_of_any_form_are_counted(tmp_path: Path) -> None:
    """Check that a model may return several outputs: one with the samples on another axis than the first, a scalar, and something that is
    no tensor.
    """
    metric = Metric(name="zoo:right_beside", higher_is_better=True)
    one = experiment_of("all-reduce", batch_size=4, **OWN)
    other = experiment_of("all-reduce", batch_size=4, model="zoo:sided", loss="zoo:summed_beside", metric=metric)
    for each in (one, other):
        run_inline(each, tmp_path / each.training.model[4:], lambda progress: None)
    models = [(tmp_path / name / "model.safetensors") for name in ("tied", "sided")]
    (one_, other_) = map(load_file, models)
    assert all(torch.equal(value, other_[name]) for name, value in one_.items())
