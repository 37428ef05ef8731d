"""Sequences of any length: padded as far as their minibatch needs, with a mask for the model that asks for one."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from crossover import user_code
from crossover.algorithms import buffers
from crossover.errors import UserError
from crossover.experiment import Data, Experiment, Training
from crossover.learning.datasets import load
from crossover.learning.learner import learner_for
from crossover.learning.samples import PADDING, Dataset, Samples, pad_sequences
from crossover.learning.staging import Minibatches, plan_staging, take_first_samples
from tests.architectures import zoo


def experiment_of(model: str = "pooled", data: str = "ragged", **training: object) -> Experiment:
    """Return an experiment with a model and data of the zoo, which becomes the folder of user code."""
    user_code.set_folders(Path(zoo.__file__).parent)
    asked = Training(model=f"zoo:{model}", batch_size=8, **training)  # type: ignore[arg-type]
    return Experiment(
        name="ragged",
        architecture="all-reduce",
        workers=2,
        training=asked,
        data=Data(dataset=f"zoo:{data}", validation=0.25),
    )


def test_each_minibatch_is_as_wide_as_its_longest_sequence() -> None:
    """Check that minibatches of padded sequences are cut to their longest sequence, and labels with them."""
    experiment = experiment_of()
    dataset = load(experiment)
    minibatches = Minibatches(experiment, dataset, made := plan_staging(experiment, len(dataset.train_labels)))
    widths = set[int]()
    for worker in range(2):
        for number in range(made.minibatches):
            batch = minibatches.build_minibatch(worker, number)
            lengths = (batch.inputs != PADDING).sum(1)
            assert batch.inputs.shape == batch.labels.shape == (batch.samples, int(lengths.max()))
            assert torch.equal(batch.labels == -100, batch.inputs == PADDING)
            widths.add(batch.inputs.shape[1])
    assert len(widths) > 1 and max(widths) <= dataset.train_inputs.shape[1] == zoo.LONGEST


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_images_are_tried_out_by_the_first_two(dtype: torch.dtype) -> None:
    """The samples to try a model with are the first two of images, whatever their type."""
    images = torch.tensor([[0, 0], [1, 0], [1, 1], [0, 0]], dtype=dtype)
    labels = torch.arange(4)
    dataset = Dataset(images, labels, images, labels, classes=4, name="images", fingerprint="")
    assert take_first_samples(dataset).labels.tolist() == [0, 1]


def test_the_gradient_of_padded_sequences_equals_that_of_single_ones() -> None:
    """The loss and gradient of a minibatch of padded sequences equal those of its sequences one by one, weighted by their tokens."""
    experiment = experiment_of(loss="zoo:summed", metric=zoo_metric())
    dataset = load(experiment)
    learner = learner_for(experiment, dataset)
    learner.try_out(take_first_samples(dataset))
    batch = Minibatches(experiment, dataset, plan_staging(experiment, len(dataset.train_labels))).build_minibatch(0, 0)
    learner.initialise_model()
    loss = learner.compute_gradient(batch, epoch=1, round=0, worker=0, minibatch=0)
    module = zoo.pooled(zoo.WORDS, ())
    torch.nn.utils.vector_to_parameters(buffers.tensor(bytes(learner.model)), module.parameters())
    total = torch.zeros(())
    for tokens, labels in zip(batch.inputs, batch.labels, strict=True):
        alone = tokens[tokens != PADDING].unsqueeze(0)
        total = total + F.cross_entropy(module(alone, alone >= 0), labels[labels != -100].unsqueeze(0), reduction="sum")
    mean = total / int((batch.labels != -100).sum())
    mean.backward()
    expected = torch.cat([each.grad.reshape(-1) for each in module.parameters() if each.grad is not None])
    assert loss == pytest.approx(float(mean.detach()), rel=1e-6)
    assert torch.allclose(buffers.tensor(learner.gradient), expected, rtol=1e-5, atol=1e-7)
    for number in (0, 1):  # a loss of the user's own counts answers of every width
        other = Minibatches(experiment, dataset, plan_staging(experiment, len(dataset.train_labels))).build_minibatch(
            1, number
        )
        assert learner.count_answers(other) == int((other.labels != -100).sum())


def zoo_metric() -> object:
    """Return the zoo's metric."""
    from crossover.experiment import Metric

    return Metric(name="zoo:right", higher_is_better=True)


def test_a_model_without_a_mask_meets_padding_before_anything_starts() -> None:
    """A model that cannot take padding fails with UserError when it is tried, before a run."""
    experiment = experiment_of("embedding_with_padding")
    dataset = load(experiment)
    with pytest.raises(UserError, match=r"zoo:embedding_with_padding.*index out of range"):
        learner_for(experiment, dataset).try_out(take_first_samples(dataset))


def test_labels_beyond_the_vocabulary_are_refused() -> None:
    """Check that loading sequences with a label as large as the number of classes raises UserError."""
    with pytest.raises(UserError, match=r"labels 0 to 7 for 7 classes; 0 to 6 are expected"):
        load(experiment_of(data="beyond"))


def test_what_is_no_sequence_is_left_alone() -> None:
    """`pad_sequences` returns samples of equal length unchanged."""
    whole = Samples(torch.ones(2, 3), torch.zeros(2, dtype=torch.int64), 2)
    assert pad_sequences(whole) is whole
