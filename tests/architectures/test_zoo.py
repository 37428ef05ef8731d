"""Modules of torch itself: a run of each is a plain loop of torch, to the bit, and its file is what was trained. Others are refused."""

import hashlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from crossover import user_code
from crossover.algorithms.schedule import derive_seed
from crossover.errors import UserError
from crossover.experiment import Data, Exchange, Experiment, Training, What
from crossover.learning.datasets import load
from crossover.learning.staging import Minibatches, plan_staging
from crossover.running.inline import run_inline
from crossover.workflow.architecture import EXCHANGES
from tests.architectures import zoo

ARCHITECTURES = ["all-reduce", "spirt", "p2p-instance"]
WORKERS = 2
ADAMW = {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.1, "momentum": 0.0}
ADAPTIVE = ("frozen_first_layer", "adapters")  # by AdamW; the others by SGD with momentum and weight decay


def experiment_of(name: str, architecture: str, seed_: int, *, data: str = "rows", **training: Any) -> Experiment:
    """Return an experiment with a model and a data set of zoo.py. `name`: the model; `seed_`: the experiment's seed; `training`: further
    settings.
    """
    settings: dict[str, Any] = {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 1e-3}
    settings |= (ADAMW if name in ADAPTIVE else {}) | training
    return Experiment(
        name="zoo",
        architecture=architecture,
        workers=WORKERS,
        seed=seed_,
        training=Training(model=f"zoo:{name}", epochs=2, batch_size=8, **settings),
        data=Data(dataset=f"zoo:{data}", validation=0.25, preprocess="none"),
        exchange=Exchange(every=1),
    )


@pytest.fixture(autouse=True)
def beside() -> None:
    """Let experiments find the modules of the folder with zoo.py."""
    user_code.set_folders(Path(zoo.__file__).parent)


def norms_of(module: nn.Module) -> list[nn.BatchNorm1d]:
    """Return the module's BatchNorm layers that are in training mode."""
    return [each for each in module.modules() if isinstance(each, nn.BatchNorm1d) and each.training]


def pooled(statistics: list[list[Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the mean over the workers of each layer's means, and of its variances. `statistics`: of each worker, mean and variance of each
    layer in turn.
    """
    means = [cast(Tensor, sum(each) / WORKERS) for each in zip(*statistics, strict=True)]
    return means[::2], means[1::2]


@cache
def plain(name: str, seed_: int) -> nn.Module:
    """Train the model in a plain PyTorch loop over all workers' minibatches, once per process, and return it. BatchNorm's statistics move,
    in each step, by the mean of the workers' minibatches.
    """
    build, data = zoo.TRAINED[name]
    experiment = experiment_of(name, "all-reduce", seed_, data=data)
    dataset, settings = load(experiment), experiment.training
    minibatches = Minibatches(experiment, dataset, made := plan_staging(experiment, len(dataset.train_labels)))
    torch.manual_seed(derive_seed("model", seed_))
    module = build(cast(int, dataset.classes), tuple(dataset.train_inputs.shape[1:]))
    trained = [each for each in module.parameters() if each.requires_grad]
    if settings.optimizer == "adamw":
        optimizer: Any = torch.optim.AdamW(trained, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    else:
        optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9, weight_decay=1e-3)
    for step in range(settings.epochs * made.minibatches):
        module.train()
        optimizer.zero_grad()
        batches = [minibatches.build_minibatch(worker, step % made.minibatches) for worker in range(WORKERS)]
        answers = sum(int((batch.labels != -100).sum()) for batch in batches)
        before = [(norm.running_mean, norm.running_var) for norm in norms_of(module)]
        means: list[list[Tensor]] = []
        for worker, batch in enumerate(batches):
            for norm in norms_of(module):
                norm.momentum = 1.0
                norm.running_mean, norm.running_var = torch.zeros(16), torch.ones(16)
            torch.manual_seed(derive_seed("dropout", seed_, step, worker, 0))
            outputs = module(batch.inputs)
            if data == "rows":
                F.cross_entropy(outputs, batch.labels).backward()
            else:
                (F.cross_entropy(outputs, batch.labels, reduction="sum") / answers).backward()
            means.append([part for norm in norms_of(module) for part in (norm.running_mean, norm.running_var)])
        for norm, old, mean, var in zip(norms_of(module), before, *pooled(means), strict=True):
            norm.running_mean, norm.running_var = (
                (0.9 * was.double() + 0.1 * now.double()).float() for was, now in zip(old, (mean, var), strict=True)
            )
        if data == "rows":
            for each in trained:
                each.grad /= WORKERS
        optimizer.step()
    module.eval()
    return module


def judged(module: nn.Module, experiment: Experiment) -> tuple[float, float]:
    """Return loss and accuracy over all answers of the validation set, in one pass."""
    dataset = load(experiment)
    with torch.inference_mode():
        module.eval()
        outputs = module(dataset.validation_inputs)
    labels = dataset.validation_labels
    right = (outputs.argmax(1) == labels).sum() / (labels != -100).sum()
    return float(F.cross_entropy(outputs, labels)), float(right)


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the module's state_dict without BatchNorm's counters of minibatches."""
    return {name: value for name, value in module.state_dict().items() if not name.endswith("num_batches_tracked")}


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("seed_", [1, 2])
@pytest.mark.parametrize("name", zoo.TRAINED)
def test_a_run_is_a_plain_loop_and_its_file_is_what_was_trained(
    name: str, seed_: int, architecture: str, tmp_path: Path
) -> None:
    """Check the model file and the metrics of a run against a plain PyTorch loop: the file, loaded into a new module, gives the same
    metrics and has the loop's weights.
    """
    build, data = zoo.TRAINED[name]
    experiment = experiment_of(name, architecture, seed_, data=data)
    found = run_inline(experiment, tmp_path, lambda progress: None).result
    # What the file does not hold comes from the seed, as everything does.
    torch.manual_seed(derive_seed("model", seed_))
    reloaded = build(zoo.CLASSES, ())
    reloaded.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True)
    loss, share = judged(reloaded, experiment)
    assert found["final"]["val_metric"] == pytest.approx(share, abs=1e-7)
    assert found["final"]["val_loss"] == pytest.approx(loss, rel=1e-6)
    expected = state_of(plain(name, seed_))
    tolerance = 0.0 if data == "rows" and name not in ADAPTIVE else 1e-6
    learnt = {name for name, each in reloaded.named_parameters(remove_duplicate=False) if each.requires_grad}
    for each, value in state_of(reloaded).items():
        if tolerance and each in learnt:
            assert torch.allclose(value, expected[each], rtol=0, atol=tolerance), each
        else:
            assert torch.equal(value, expected[each]), each


@pytest.mark.parametrize("build", zoo.REFUSED, ids=lambda build: build.__name__)
def test_a_model_whose_state_cannot_be_exchanged_is_refused_by_name(build: Any, tmp_path: Path) -> None:
    """Check that each model of zoo.REFUSED is refused, and that the message names the model and the reason."""
    with pytest.raises(UserError, match=rf"training\.model: 'zoo:{build.__name__}'.*{zoo.REFUSED[build]}"):
        run_inline(experiment_of(build.__name__, "all-reduce", 1), tmp_path, lambda progress: None)


@pytest.mark.sampled
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize(
    ("what", "compression"), [(what, way) for what, ways in EXCHANGES.items() for way in ways], ids=str
)
def test_what_is_frozen_has_the_same_bits_after_training(
    optimizer: str, what: What, compression: str, tmp_path: Path
) -> None:
    """Check this under weight decay, with partitions of unequal size and everything that may be exchanged; and that no vector contains what
    is frozen.
    """
    experiment = experiment_of("adapters", "all-reduce", 1, optimizer=optimizer, momentum=0.0, learning_rate=0.01)
    experiment = replace(
        experiment,
        workers=3,
        data=replace(experiment.data, limit=47),
        exchange=Exchange(every=1, what=what, compression=compression, share=0.1, rank=1),
    )
    found = run_inline(experiment, tmp_path, lambda progress: None)
    after = load_file(tmp_path / "model.safetensors")
    torch.manual_seed(derive_seed("model", 1))
    before = zoo.adapters(zoo.CLASSES, ())
    moved = {name for name, value in before.state_dict().items() if not torch.equal(value, after[name])}
    assert moved == {name for name, value in before.named_parameters() if value.requires_grad}
    learnt = sum(value.numel() for value in before.parameters() if value.requires_grad)
    assert found.result["final"]["parameters_sha256"] == hashlib.sha256(vector_of(before, after)).hexdigest()
    assert len(vector_of(before, after)) == 4 * learnt


def vector_of(module: nn.Module, state: dict[str, Tensor]) -> bytes:
    """Return the bytes whose digest is a run's outcome: the trained parameters, in the module's order."""
    parts = [state[name].reshape(-1) for name, value in module.named_parameters() if value.requires_grad]
    return bytes(torch.cat(parts).numpy())
