"""Learning rates and stopping, against torch's own schedulers where torch has one."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossover.algorithms.schedule import (
    compute_image_side,
    count_evaluations_without_improvement,
    count_plateau_reductions,
    find_stop_reason,
    learning_rate,
)
from crossover.experiment import ImageSize, Metric, Training


def optimizer(rate: float = 1.0) -> torch.optim.SGD:
    """Return SGD for one parameter with this learning rate."""
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)


def test_without_a_schedule_the_learning_rate_is_constant() -> None:
    """Check that the learning rate of a round is the setting if there is no schedule."""
    assert learning_rate(Training(learning_rate=0.3), round=7, rounds=9) == 0.3


@pytest.mark.parametrize(("rounds", "warm_up"), [(50, 0.2), (24, 0.25), (10, 0.3), (200, 0.05)])
def test_one_cycle_equals_torch(rounds: int, warm_up: float) -> None:
    """Check the learning rate of each round against torch's OneCycleLR."""
    own = Training(learning_rate=0.4, schedule="one_cycle", warm_up=warm_up)
    sgd = optimizer()
    reference = torch.optim.lr_scheduler.OneCycleLR(
        sgd, max_lr=0.4, total_steps=rounds, pct_start=warm_up, cycle_momentum=False
    )
    for round in range(rounds):
        expected = reference.get_last_lr()[0]
        assert learning_rate(own, round=round, rounds=rounds) == pytest.approx(expected, rel=1e-9), round
        sgd.step()
        if round < rounds - 1:
            reference.step()


@pytest.mark.parametrize(("rounds", "warm_up", "floor"), [(50, 0.2, 0.1), (24, 0.0, 0.0), (1, 0.2, 0.5)])
def test_cosine_equals_torch(rounds: int, warm_up: float, floor: float) -> None:
    """Check the learning rate of each round against torch's LinearLR followed by CosineAnnealingLR."""
    own = Training(learning_rate=0.4, schedule="cosine", warm_up=warm_up, floor=floor)
    sgd, rising = optimizer(0.4), round(warm_up * rounds)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, rounds - rising, eta_min=0.4 * floor)
    reference: torch.optim.lr_scheduler.LRScheduler = falling
    if rising:
        up = torch.optim.lr_scheduler.LinearLR(sgd, 1 / rising, total_iters=rising - 1)
        reference = torch.optim.lr_scheduler.SequentialLR(sgd, [up, falling], [rising])
    for number in range(rounds):
        expected = reference.get_last_lr()[0]
        assert learning_rate(own, round=number, rounds=rounds) == pytest.approx(expected, rel=1e-9), number
        sgd.step()
        reference.step()


@pytest.mark.parametrize("warm_up", [0.0, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("rounds", [1, 2, 3, 10])
def test_one_cycle_stays_between_its_ends_whatever_the_rounds(rounds: int, warm_up: float) -> None:
    """Check that one_cycle's learning rates stay between 1/250,000 of the peak and the peak, also beyond the last round."""
    own = Training(learning_rate=0.4, schedule="one_cycle", warm_up=warm_up)
    rates = [learning_rate(own, round=round, rounds=rounds) for round in range(rounds + 2)]
    assert all(0.4 / 250_000 * 0.999 <= rate <= 0.4 for rate in rates)


@pytest.mark.parametrize(
    ("asked", "sides"),
    [
        (ImageSize(), [32] * 8),
        (ImageSize(begin=16), [16, 16, 16, 24, 24, 24, 32, 32]),
        (ImageSize(begin=16, full_from=0.5), [16, 16, 24, 24, 32, 32, 32, 32]),
        (ImageSize(begin=12, step=100, full_from=1.0), [12] * 7 + [32]),  # the last epoch is of images as they are
        (ImageSize(begin=28, step=1, full_from=0.3), [28, 29, 31, 32, 32, 32, 32, 32]),  # more sizes than epochs
    ],
)
def test_images_grow_to_their_own_size(asked: ImageSize, sides: list[int]) -> None:
    """The image side of each of eight epochs is as `sides` says."""
    training = Training(epochs=8, image_size=asked)
    assert [compute_image_side(training, 32, epoch=epoch) for epoch in range(1, 9)] == sides


@pytest.mark.parametrize(("epochs", "sides"), [(1, [32]), (2, [16, 32]), (3, [16, 16, 32])])
def test_short_runs_end_with_whole_images_too(epochs: int, sides: list[int]) -> None:
    """The images of a run of `epochs` epochs have the sides `sides`, the last of them full size."""
    training = Training(epochs=epochs, image_size=ImageSize(begin=16))
    assert [compute_image_side(training, 32, epoch=epoch) for epoch in range(1, epochs + 1)] == sides


LOSSES = st.lists(st.sampled_from([0.5, 0.7, 0.6999999, 1.0, 0.3, math.nan, math.inf]), max_size=40)


@given(LOSSES, st.integers(1, 5))
def test_plateau_equals_torch(losses: list[float], patience: int) -> None:
    """Check the learning rate after these losses against torch's ReduceLROnPlateau."""
    sgd = optimizer()
    reference = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd, factor=0.5, patience=patience)
    for loss in losses:
        reference.step(loss)
    history = [(loss, 0.0) for loss in losses]
    own = Training(learning_rate=1.0, schedule="plateau", plateau_factor=0.5, plateau_patience=patience)
    expected = sgd.param_groups[0]["lr"]
    # torch stops reducing once the change would be below 1e-8; the rates of these histories stay above.
    assert learning_rate(own, round=0, rounds=1, history=history) == pytest.approx(expected)
    assert count_plateau_reductions(history, patience=patience) == round(-math.log2(expected))


def test_epochs_without_improvement() -> None:
    """The count of evaluations since the best loss starts anew with a lower loss; equal losses and NaN do not improve it."""
    losses = [1.0, 0.8, 0.9, 0.8, math.nan]
    assert [count_evaluations_without_improvement([(loss, 0.0) for loss in losses[:n]]) for n in range(6)] == [
        0,
        0,
        0,
        1,
        2,
        3,
    ]


def test_a_run_stops_at_target_early_stopping_or_last_epoch() -> None:
    """Check the reason that find_stop_reason gives for several histories, "" if training continues."""
    training = Training(epochs=5, early_stopping=2, target=0.9)
    assert find_stop_reason(training, []) == ""
    assert find_stop_reason(training, [(1.0, 0.5)]) == ""
    assert find_stop_reason(training, [(1.0, 0.5), (1.1, 0.91)]).startswith("target: validation accuracy 0.9100")
    assert find_stop_reason(training, [(1.0, 0.5), (1.1, 0.5), (1.2, 0.5)]).startswith("early stopping: 2 epochs")
    assert find_stop_reason(training, [(1.0 / n, 0.5) for n in range(1, 6)]) == "epochs: all 5 done"
    assert find_stop_reason(Training(epochs=9), [(1.0, 1.0)] * 8) == ""
    errors = Training(epochs=9, target=0.5, metric=Metric(name="houses:mean_error", higher_is_better=False))
    assert find_stop_reason(errors, [(1.0, 0.51)]) == ""
    assert find_stop_reason(errors, [(1.0, 0.51), (0.9, 0.5)]) == "target: validation mean error 0.5000 reached 0.5"
