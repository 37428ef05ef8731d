"""What `advise`, `project` and `breakeven` count of a model of the user's own: they take the samples that a run takes."""

import pytest

from crossover.advice import question as subject
from crossover.experiment import Data, Experiment, Training
from crossover.learning.datasets import load
from crossover.learning.learner import learner_for
from crossover.learning.staging import take_first_samples
from tests.unit.own_code.folders import Folders

SHOP = """
import torch
from torch import nn
from crossover.learning.datasets import Samples

def photos(experiment):
    rows = torch.arange(20 * 48).remainder(97).view(20, 3, 4, 4)
    return Samples({samples}, torch.arange(20) % 4, 4)

def network(classes, input_shape):
    return nn.Sequential({layers})
"""
CNN = "nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(20, classes)"
NAMES = "nn.Embedding(97, 5), nn.Flatten(), nn.Linear(20, classes)"
OWN = Experiment(
    name="shop",
    architecture="single",
    workers=1,
    training=Training(model="shop:network", batch_size=4),
    data=Data(dataset="shop:photos"),
)


@pytest.mark.parametrize(
    ("samples", "layers", "macs"),
    [
        *(
            (f"rows.to(torch.{dtype})", CNN, 5 * 27 * 4 + 20 * 4)
            for dtype in ("uint8", "float32", "float64", "float16", "bfloat16")
        ),
        ("rows[:, 0, 0]", NAMES, 20 * 4),
        ("rows[:, 0, 0].int()", NAMES, 20 * 4),
    ],
)
def test_what_is_counted_is_given_what_is_trained(folders: Folders, samples: str, layers: str, macs: int) -> None:
    """The advice counts a user's model's multiply-adds and its inputs' bytes for each type of input that training accepts. `macs`:
    expected count.
    """
    folders.experiment(shop=SHOP.format(samples=samples, layers=layers))
    dataset = load(OWN)
    learner_for(OWN, dataset).try_out(take_first_samples(dataset))
    question, bounds, _ = subject.build_question(OWN)
    assert question.workload.macs == macs and bounds.kept_bytes > 0
    assert question.workload.image_bytes == dataset.train_inputs[0].nbytes  # as it is staged
