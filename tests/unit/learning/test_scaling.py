"""Labels that are numbers are scaled for training, whatever their unit, and everything that is reported is in their own."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from crossover import user_code
from crossover.errors import ConfigError, UserError
from crossover.experiment import Data, Exchange, Experiment, Metric, Table, Training
from crossover.learning import first_steps, scaling
from crossover.learning.batches import Batch
from crossover.learning.datasets import load
from crossover.learning.first_steps import try_minibatches
from crossover.learning.learner import learner_for
from crossover.learning.reference import train_reference
from crossover.running.inline import run_inline
from crossover.running.preparing import try_training

TASK = """
import torch
from torch import nn
from crossover.learning.datasets import Samples

FACTOR, OFFSET = {factor}, {offset}

def rows(experiment):
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randn(200, 4, generator=draw, dtype=torch.float64)
    labels = inputs[:, :1] - 2 * inputs[:, 1:2] + 0.1 * torch.randn(200, 1, generator=draw, dtype=torch.float64)
    return Samples(inputs.float(), (OFFSET + FACTOR * labels){cast})

def network(classes, input_shape):
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1){last})

class Own(nn.Linear):
    def __init__(self): super().__init__(4, 1)
    def forward(self, inputs): return OFFSET + FACTOR * super().forward(inputs)

def in_own_unit(classes, input_shape):
    return Own()

def rms(outputs, labels):
    return (outputs - labels).square().mean().sqrt()

def mine(outputs, labels):
    return nn.functional.mse_loss(outputs, labels)
"""
MSE = Training(
    model="task:network",
    loss="mse",
    metric=Metric(name="mean_absolute_error"),
    learning_rate=0.02,
    batch_size=20,
    epochs=4,
)


@pytest.fixture(autouse=True)
def nowhere_else() -> Iterator[None]:
    """Forget the folders of user code after each test."""
    yield
    user_code.set_folders()


def experiment(
    folder: Path, *, factor: float = 77.0, offset: float = 150.0, last: str = "", cast: str = "", **data: Any
) -> Experiment:
    """Write a task of rows into a new subfolder, make that the folder of user code, and return an experiment that trains on it."""
    folder = folder / f"{len(list(folder.iterdir()))}"
    folder.mkdir()
    (folder / "task.py").write_text(TASK.format(factor=factor, offset=offset, last=last, cast=cast))
    user_code.set_folders(folder)
    found = Data(dataset="task:rows", **data)
    every = Exchange(every=1)
    return Experiment(name="own", architecture="single", workers=1, training=MSE, data=found, exchange=every)


def errors(asked: Experiment) -> list[float]:
    """Train the experiment and return its validation error after each epoch."""
    return [epoch.val_metric for epoch in train_reference(asked, load(asked))[2]]


@pytest.mark.parametrize(
    ("factor", "offset", "cast"),
    [
        (77.0, 150.0, ".float()"),
        (1e5, 3e5, ".float()"),
        (1e12, 3e12, ""),
        (1.0, 1e4, ".float()"),
        (1e-4, 0.0, ".float()"),
        (1.0, 1.7e9, ""),
    ],
)
def test_any_unit_and_offset_trains_alike(tmp_path: Path, factor: float, offset: float, cast: str) -> None:
    """Labels of any unit and offset give errors that are as large in units of `factor` as those of plain labels."""
    plain = errors(experiment(tmp_path, factor=1.0, offset=0.0, scale_labels="always"))
    found = errors(experiment(tmp_path, factor=factor, offset=offset, cast=cast))
    assert [each / factor for each in found] == pytest.approx(plain, rel=1e-2)
    assert found[-1] < 0.7 * found[0] < 2 * factor


def test_labels_near_0_and_1_and_those_of_other_losses_stay_as_they_are(tmp_path: Path) -> None:
    """Labels are not scaled automatically if they are near mean 0 and deviation 1, or with a user's loss; `never` and `always` decide
    otherwise.
    """
    near = experiment(tmp_path, factor=0.5, offset=0.3, cast=".float()")
    dataset = load(near)
    assert dataset.scale is None and dataset.train_labels.dtype == torch.float32
    own = experiment(tmp_path, cast=".float()")
    own = replace(own, training=replace(own.training, loss="task:mine"))
    assert load(own).scale is None
    assert load(experiment(tmp_path, scale_labels="never")).scale is None
    assert load(replace(own, data=replace(own.data, scale_labels="always"))).scale is not None


def test_losses_and_metrics_are_in_the_labels_unit(tmp_path: Path) -> None:
    """Losses and metrics, a user's own too, are computed from outputs and labels that are converted back to the labels' unit."""
    asked = experiment(tmp_path)
    own = replace(asked, training=replace(asked.training, metric=Metric(name="task:rms", higher_is_better=False)))
    dataset = load(asked)
    assert dataset.scale is not None and dataset.train_labels.abs().max() < 5
    mean, deviation = dataset.scale.mean[0], dataset.scale.deviation[0]
    raw = dataset.train_labels.double() * deviation + mean
    assert float(raw.mean()) == pytest.approx(mean) and mean == pytest.approx(150, abs=30)
    (epoch, *_), (by_own, *_) = (train_reference(each, load(each))[2] for each in (asked, own))
    assert by_own.val_metric == pytest.approx(epoch.val_loss**0.5, rel=1e-4)
    assert 0 < epoch.val_metric < epoch.val_loss**0.5 < 3 * deviation
    assert deviation**2 / 20 < epoch.train_loss < 3 * deviation**2


def test_each_column_of_labels_has_its_own_scale_and_one_without_spread_is_shifted() -> None:
    """Check scales by column, the scaled labels, their conversion back and the scale's way through the manifest."""
    labels = torch.tensor([[1.0, 1e6, 0.1], [3.0, 3e6, 0.1]], dtype=torch.float64)
    found = scaling.compute_label_scale(labels, Experiment(name="x", architecture="single", training=MSE), classes=None)
    assert found is not None and found.mean == pytest.approx((2.0, 2e6, 0.1)) and found.deviation == (1.0, 1e6, 1.0)
    scaled = scaling.scale_labels(labels, found)
    assert scaled.dtype == torch.float32 and scaled.tolist() == [[-1, -1, 0], [1, 1, 0]]
    assert torch.allclose(scaling.unscale(scaled, found).double(), labels)
    assert scaling.from_manifest(json.loads(json.dumps(scaling.to_manifest(found)))) == found
    sequences = torch.randn(5, 3, 7) * 100
    by_place = scaling.compute_label_scale(
        sequences, Experiment(name="x", architecture="single", training=MSE), classes=None
    )
    assert by_place is not None and len(by_place.mean) == 3
    assert scaling.scale_labels(sequences, by_place).mean((0, 2)).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (", nn.ReLU()", "end in relu"),
        (", nn.Softplus(), nn.Unflatten(1, (1, 1)), nn.Flatten()", "end in softplus"),
        (", nn.Sigmoid()", "end in sigmoid"),
    ],
)
def test_a_model_that_cannot_reach_scaled_labels_is_refused(tmp_path: Path, last: str, words: str) -> None:
    """Scaled labels are refused for a model that ends in relu, softplus or sigmoid; labels that are all within its range are accepted."""
    with pytest.raises(ConfigError, match=rf"data\.scale_labels: auto: .*{words}.*never"):
        try_training(experiment(tmp_path, last=last))
    try_training(experiment(tmp_path, factor=0.2, offset=0.5, last=last, cast=".float()"))


def test_a_model_whose_outputs_are_in_the_labels_unit_is_refused(tmp_path: Path) -> None:
    """Check that the trial raises ConfigError for a model that scales its outputs to the labels' unit itself."""
    asked = experiment(tmp_path, factor=1e5, offset=3e5)
    own = replace(asked, training=replace(asked.training, model="task:in_own_unit"))
    with pytest.raises(ConfigError, match=r"from labels in their own unit; expected data\.scale_labels: never"):
        try_training(own)


def test_a_training_that_diverges_is_refused_before_any_figure(tmp_path: Path) -> None:
    """Trying a training that diverges raises ConfigError, which names the learning rate and data.scale_labels."""
    with pytest.raises(ConfigError, match=r"training.learning_rate: 0.02: training diverges.*data.scale_labels: auto"):
        try_training(experiment(tmp_path, factor=1e5, offset=3e5, scale_labels="never"))
    asked = experiment(tmp_path)
    with pytest.raises(ConfigError, match=r"training.learning_rate: 1e\+06: training diverges"):
        try_training(replace(asked, training=replace(asked.training, learning_rate=1e6)))
    found = try_training(asked)
    assert found["label"]["scaled"]["mean"] == [pytest.approx(150, abs=30)]


def test_the_trial_leaves_nothing_behind(tmp_path: Path) -> None:
    """A learner that was tried trains to the same bits as a new one."""
    asked = experiment(tmp_path)
    dataset = load(asked)
    learner = learner_for(asked, dataset)
    try_minibatches(asked, dataset, learner)
    assert train_reference(asked, dataset, learner=learner)[0] == train_reference(asked, dataset)[0]


@pytest.mark.parametrize(
    ("sample_s", "timed", "samples", "large", "minibatches"),
    [(0.001, 2, 20, 100, 3), (0.5, 2, 6, 100, 3), (0.6, 1, 5, 100, 3), (100.0, 1, 2, 1, 2)],
)
def test_the_trial_of_a_slow_model_takes_fewer_samples_and_of_a_large_one_fewer_minibatches(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sample_s: float,
    timed: int,
    samples: int,
    large: int,
    minibatches: int,
) -> None:
    """The trial of a model that takes `sample_s` seconds a sample uses `minibatches` minibatches of `samples` samples. `timed`:
    minibatches of 2 samples before those; `large`: number of elements up to which a model is not large.
    """
    monkeypatch.setattr(first_steps, "LARGE", large)
    asked = experiment(tmp_path)
    asked = replace(asked, workers=1, training=replace(asked.training, batch_size=20))
    dataset = load(asked)
    learner = learner_for(asked, dataset)
    now, seen, compute = [0.0], list[int](), learner.compute_gradient

    def slow(batch: Batch, **where: int) -> float:
        """Compute the minibatch, note its size, and let `sample_s` pass for each sample."""
        now[0] += sample_s * batch.samples
        seen.append(batch.samples)
        return compute(batch, **where)

    monkeypatch.setattr(learner, "compute_gradient", slow)
    try_minibatches(asked, dataset, learner, clock=lambda: now[0])
    assert seen == [*[2] * timed, *[samples] * minibatches]


def test_a_run_says_how_the_data_was_understood_and_leaves_the_scale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run prints how its data was understood, and stores the labels' scale in result.json and in the model's file."""
    found = run_inline(experiment(tmp_path), tmp_path / "out", lambda progress: None).result
    said = capsys.readouterr().out
    assert said.startswith(
        "data: task:rows: 200 rows, of which 160 train and 40 validate (data.validation), inputs (4)"
    )
    assert "labels are scaled for training by mean 1" in said
    data = found["data"]
    assert data["understood"]["rows"] == 200 and data["understood"]["label"]["kind"] == "numbers"
    assert data["affine"][scaling.MEAN] == data["understood"]["label"]["scaled"]["mean"]
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as model:
        assert json.loads(model.metadata()[scaling.DEVIATION]) == data["affine"][scaling.DEVIATION]


def test_fields_of_a_table_are_for_the_loader_of_a_table(tmp_path: Path) -> None:
    """Settings of `data.table` for a loader that reads no CSV raise UserError."""
    with pytest.raises(UserError, match=r"data\.table: is for the loader of a CSV"):
        load(experiment(tmp_path, table=Table(label="a")))
