"""Sizes that the simulator has by heart, held against the models and data sets themselves."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from crossover.advice import question
from crossover.errors import ConfigError
from crossover.experiment import Data, Experiment, ImageSize, Training
from crossover.learning import fitness
from crossover.learning.batches import Batch, encode_batch
from crossover.learning.learner import list_shapes
from crossover.learning.sizes import list_known_shapes
from crossover.learning.zoo import MODEL_FACTORIES
from crossover.simulation import AWS
from crossover.simulation.workload import DATA, MODEL_SIZES, Workload


def test_every_model_of_the_registry_has_its_sizes() -> None:
    """Check that MODEL_SIZES has the built-in models and no others."""
    assert MODEL_SIZES.keys() == MODEL_FACTORIES.keys()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "image"), [(name, image) for name, sizes in MODEL_SIZES.items() for image in sizes])
def test_sizes_are_the_models_own(name: str, image: tuple[int, int, int]) -> None:
    """A model's entry has the multiply-adds, parameters and buffers that the module has."""
    with torch.device("meta"):  # shapes alone: no memory, no arithmetic
        module = MODEL_FACTORIES[name](10, image)
        macs = 0

        def count(layer: Any, _: Any, out: torch.Tensor) -> None:
            """Add the layer's multiply-accumulates to `macs`; a forward hook."""
            nonlocal macs
            macs += out[0].numel() * layer.weight[0].numel() if isinstance(layer, nn.Conv2d) else layer.weight.numel()

        for layer in module.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.register_forward_hook(count)
        module.eval()(torch.zeros(1, *image))
    parameters = sum(each.numel() for each in module.parameters())
    buffers = sum(each.numel() for key, each in module.named_buffers() if key.endswith(("running_mean", "running_var")))
    known = MODEL_SIZES[name][image]
    assert known == replace(known, parameters=parameters, buffers=buffers, macs=macs)
    assert list_known_shapes(name, image) == list_shapes(name, 10, image)


SMALL = ("small_cnn", "digits")


@pytest.mark.parametrize(
    ("model", "dataset"),
    [
        pytest.param(model, dataset, marks=() if (model, dataset) == SMALL else pytest.mark.slow)
        for model in MODEL_SIZES
        for dataset in ("digits", "mnist", "cifar10-generated")
    ],
)
def test_advice_knows_of_a_model_what_it_would_count(model: str, dataset: str) -> None:
    """Check that advice has the same sizes of a built-in model and data set as it counts by loading them."""
    asked = Experiment(name="some", architecture="spirt", training=Training(model=model), data=Data(dataset=dataset))
    known, size, samples = question._count_known(asked) or pytest.fail("neither model nor data come with the project")
    workload, counted, samples_ = question._count_loaded(asked)
    assert (known, samples) == (workload, samples_)
    held = ("kept_bytes", "widest_bytes", "fixed_bytes")
    assert [getattr(size, each) for each in held] == [getattr(counted, each) for each in held]


@pytest.mark.parametrize("changes", [{"memory_format": "contiguous"}, {"image_size": ImageSize(begin=4)}])
def test_a_model_with_other_counts_is_counted(changes: dict[str, Any]) -> None:
    """Check that advice uses no stored sizes of a model if `changes` changes its counts."""
    training = Training(model="small_cnn", **changes)
    assert question._count_known(Experiment(name="some", architecture="spirt", training=training)) is None


def test_batches_are_as_long_as_they_are_staged() -> None:
    """A workload's bytes of a batch are the length of the encoded batch."""
    work = Workload.from_experiment(Experiment(name="some", architecture="spirt", training=Training(batch_size=60)))
    images = torch.zeros(60, *DATA["digits"].image, dtype=torch.uint8)
    staged = encode_batch(Batch(images, torch.zeros(60, dtype=torch.int64), torch.arange(60)))
    assert work.batch_bytes(60) == len(staged)


def test_digits_are_split_as_they_are_loaded() -> None:
    """A workload's samples of the digits data set are those of the loaded one."""
    from crossover.learning.datasets import load

    experiment = Experiment(name="some", architecture="spirt", training=Training(batch_size=60))
    dataset, work = load(experiment), Workload.from_experiment(experiment)
    assert work.validation_samples == dataset.validation_labels.numel()
    assert sum(work.samples) == -(-dataset.train_labels.numel() // experiment.workers)


@pytest.mark.slow
@pytest.mark.parametrize(("dataset", "folder"), [("cifar10", "cifar-10"), ("mnist", "mnist")])
def test_published_data_sets_are_as_large(dataset: str, folder: str) -> None:
    """A workload's samples of a published data set are those of its files; without these the test is skipped."""
    place = Path(os.environ.get("CROSSOVER_DATA", Path(__file__).parents[4] / "shared" / "datasets")) / folder
    if not place.is_dir():
        pytest.skip(f"{place} is not there")
    from crossover.learning.datasets import load

    training = Training(batch_size=500, model="small_cnn")
    experiment = Experiment(
        name="some",
        architecture="spirt",
        training=training,
        data=Data(dataset=dataset, validation="test", directory=str(place)),
    )
    loaded, work = load(experiment), Workload.from_experiment(experiment)
    assert (loaded.train_labels.numel(), loaded.validation_labels.numel()) == (
        4 * sum(work.samples),
        work.validation_samples,
    )


def test_sizes_that_are_not_known_are_refused_by_field() -> None:
    """Check that a user's model or data set raises ConfigError."""
    known = Experiment(name="some", architecture="spirt", training=Training(batch_size=60))
    with pytest.raises(ConfigError, match=r"training\.model: 'my\.module:net' is code of your own"):
        Workload.from_experiment(replace(known, training=replace(known.training, model="my.module:net")))
    with pytest.raises(ConfigError, match=r"data\.dataset: 'my\.module:data' is code of your own"):
        Workload.from_experiment(replace(known, data=replace(known.data, dataset="my.module:data")))


@pytest.mark.parametrize(("model", "share"), [("small_cnn", 0.5625), ("vgg11", 1.0)])
def test_smaller_images_take_what_the_model_computes_on_them(model: str, share: float) -> None:
    """The share of computing on growing images follows the model's multiply-adds. `share`: an epoch on 24 pixels, divided by one at full
    size.
    """
    training = Training(model=model, epochs=4, image_size=ImageSize(begin=24, full_from=1.0))
    work = Workload.from_experiment(
        Experiment(name="some", architecture="spirt", training=training, data=Data(dataset="cifar10"))
    )
    assert work.training_share == pytest.approx((3 * share + 1) / 4, rel=0.01)
    assert work.at_full_size == replace(work, training_share=1.0)
    assert (
        fitness.compute_training_share(replace(training, image_size=ImageSize()), classes=10, shape=(3, 32, 32)) == 1.0
    )


def test_another_size_is_the_same_model_larger() -> None:
    """Check that multiply-accumulates, buffers and computing time grow in proportion to the number of parameters."""
    own = Workload.from_experiment(Experiment(name="own", architecture="spirt"))
    assert own.with_parameters(own.parameters) == own
    doubled = own.with_parameters(2 * own.parameters)
    assert (doubled.macs, doubled.buffers) == (2 * own.macs, 2 * own.buffers)
    known = Workload.from_experiment(
        Experiment(name="own", architecture="spirt", training=Training(model="mobilenet"))
    )  # its speed was measured
    assert AWS.sample_gradient_s(known.with_parameters(2 * known.parameters)) == pytest.approx(
        2 * AWS.sample_gradient_s(known)
    )
    near = own.with_parameters(own.parameters + 1)
    assert near.macs == pytest.approx(own.macs, rel=1e-3) and near.vector_bytes == pytest.approx(
        own.vector_bytes, rel=1e-3
    )
