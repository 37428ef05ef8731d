"""Steps on GPUs: counts by hand, rates that were printed elsewhere, and what is refused by name."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from crossover.errors import NoProjection
from crossover.experiment import Experiment, Training
from crossover.learning.step_counts import count_step
from crossover.simulation import AWS
from crossover.simulation.gpu_steps import card_of, load_cards
from crossover.simulation.workload import MODEL_SIZES, Workload
from lab import gpu_steps

FLOAT = 4


def test_a_fully_connected_layer_is_counted_as_by_hand() -> None:
    """A fully connected layer has the operations of one product forward and one backward, and the bytes of weights, inputs and outputs."""
    found = count_step(nn.Linear(5, 3, bias=False), torch.zeros(5))
    assert found.of_sample_matrix == 2 * 5 * 3
    assert found.of_sample_convolution == found.of_sample_depthwise == 0
    assert found.bytes == 2 * FLOAT * 5 * 3, "the weights are read, and their gradient is written"
    assert found.of_sample_bytes == 2 * FLOAT * (5 + 3), (
        "forward: inputs and outputs; backward: inputs and the outputs' gradients"
    )


@pytest.mark.parametrize(
    ("groups", "kind", "macs"),
    [
        (1, "of_sample_convolution", 8 * 4 * 4 * 9 * 4),
        (4, "of_sample_depthwise", 8 * 4 * 4 * 9),
        (2, "of_sample_convolution", 8 * 4 * 4 * 9 * 2),
    ],
)
def test_a_convolution_is_counted_by_its_groups(groups: int, kind: str, macs: int) -> None:
    """A convolution counts as depthwise if it has a group for each input channel. `kind`: field of the result; `macs`: expected
    multiply-adds.
    """
    layers = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1, groups=groups, bias=False))
    found = count_step(layers, torch.zeros(4, 4, 4))
    assert getattr(found, kind) == 2 * macs
    assert found.of_sample_convolution + found.of_sample_depthwise == 2 * macs


def test_attention_is_counted_among_the_products() -> None:
    """The operations of an attention layer are counted as matrix products, with its scores once more in the backward pass."""
    tokens, width = 7, 16
    layer = nn.TransformerEncoderLayer(width, 2, dim_feedforward=4 * width, dropout=0.0, batch_first=True)
    found = count_step(layer, torch.zeros(tokens, width), run=lambda own, inputs: own(inputs.requires_grad_()))
    products = 12 * width * width * tokens  # projections and the two layers behind
    attention = 2 * tokens * tokens * width
    assert found.of_sample_matrix == 3 * products + 7 * attention / 2, "backward computes the scores again"


@pytest.mark.parametrize("model", sorted(MODEL_SIZES))
def test_a_step_is_about_three_times_its_forward_pass(model: str) -> None:
    """Check that a step has 2 to 3 times the multiply-accumulates of the forward pass. The first layer passes no gradient on."""
    for size in MODEL_SIZES[model].values():
        step = size.step
        whole = step.of_sample_convolution + step.of_sample_depthwise + step.of_sample_matrix
        assert 2 * size.macs < whole <= 3 * size.macs


def test_rates_that_no_fit_has_seen_are_projected() -> None:
    """Check that published rates which no fit has used are projected within 25 %."""
    unseen = [row for row in gpu_steps.tabulate_printed(load_cards()) if row[-1] == "no"]
    assert {row[1] for row in unseen} == {"resnet50", "vgg16"}
    for _, model, printed, projected, _ in unseen:
        assert 1 / 1.25 < float(projected) / float(printed) < 1.25, model


def test_a_precision_that_a_card_lacks_is_refused() -> None:
    """Check that a step in bf16 raises NoProjection on a T4, and takes time on an L4."""
    step = MODEL_SIZES["resnet18"][3, 32, 32].step
    with pytest.raises(NoProjection, match=r"training\.precision: a T4 has no bf16; expected one of fp32, fp16"):
        card_of("g4dn.xlarge").step_s(step, 64, parameters=1, precision="bf16")
    assert card_of("g6.xlarge").step_s(step, 64, parameters=1, precision="bf16") > 0


def test_a_card_that_nobody_knows_is_refused() -> None:
    """Check that an instance type without a known card raises NoProjection."""
    with pytest.raises(
        NoProjection, match=r"x1e\.xlarge: its GPU's speed is not known; expected an instance of g3, g3s, g4dn"
    ):
        card_of("x1e.xlarge")


def test_the_bound_by_arithmetic_is_kept_for_products() -> None:
    """Check that no card's fitted speed of matrix products in fp32 exceeds its data sheet. Convolutions may exceed it by
    Winograd's method.
    """
    for card in load_cards().values():
        assert card.factors["fp32"].matrix >= 1, card.name


def test_half_precision_and_a_worse_draw_change_a_step() -> None:
    """Check that fp16 shortens a step, a higher `gpu_level` lengthens it, and no samples take no time."""
    training = Training(model="resnet18_cifar")
    work = Workload.from_experiment(Experiment(name="one", architecture="single", workers=1, training=training))
    whole = AWS.gpu_gradient_s(work, 512, instance_type="g4dn.xlarge")
    assert AWS.gpu_gradient_s(work, 512, instance_type="g4dn.xlarge", precision="fp16") < whole
    assert replace(AWS, gpu_level=1.0).gpu_gradient_s(work, 512, instance_type="g4dn.xlarge") > whole
    assert AWS.gpu_gradient_s(work, 0, instance_type="g4dn.xlarge") == 0.0
