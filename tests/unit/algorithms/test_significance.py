"""MLLess's filter against its definition, coordinate by coordinate, and its algebra against plain SGD in float64."""

from math import inf, nan, sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crossover.algorithms import significance
from crossover.algorithms.significance import is_significant, take_local_step, take_significant

numbers = st.floats(-100, 100, width=32)
pairs = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=40)


def vectors(values: list[tuple[float, float]]) -> tuple[Tensor, Tensor]:
    """Return the first elements of all pairs as one vector, and the second ones as another: residual and shared."""
    residual, shared = zip(*values, strict=True)
    return torch.tensor(residual), torch.tensor(shared)


@given(values=pairs, threshold=st.sampled_from([0.0, 0.1, 0.7, 3.0]), step=st.integers(0, 50))
def test_exactly_the_significant_coordinates_are_taken(
    values: list[tuple[float, float]], threshold: float, step: int
) -> None:
    """The filter takes the residuals above threshold / sqrt(step + 1) times the changed weight, and leaves the others unchanged."""
    residual, shared = vectors(values)
    before, factor = residual.clone(), threshold / sqrt(step + 1)
    # float32 throughout, multiplied, as the definition says: no quotient anywhere.
    bound = (shared + residual).abs().mul(factor)
    expected = [i for i, r in enumerate(residual) if r != 0 and r.abs() > bound[i]]
    indices, taken = take_significant(residual, shared, threshold=threshold, step=step)
    assert indices.tolist() == expected
    assert taken.tolist() == before[expected].tolist()
    restored = residual.clone()
    restored[indices] += taken
    assert torch.equal(restored, before), "what is taken and what stays are the whole"
    assert not residual[indices].any()


def test_a_weight_of_zero_is_always_significant_and_nothing_never_is() -> None:
    """The filter takes a change that would make a weight zero at any threshold, and never a change of zero."""
    residual, shared = torch.tensor([0.5, 0.0, 1e-30, 0.0]), torch.tensor([-0.5, 0.0, -1e-30, 1.0])
    indices, _ = take_significant(residual, shared, threshold=1e6, step=0)
    assert indices.tolist() == [0, 2]


def test_the_threshold_falls_with_the_square_root_of_the_step() -> None:
    """Check at which step a residual begins to be significant."""
    for step, sent in ((0, False), (2, False), (4, True)):
        residual = torch.tensor([0.3])
        indices, _ = take_significant(residual, torch.tensor([0.2]), threshold=1.3, step=step)
        assert bool(indices.numel()) is sent, step  # 0.3 > 1.3 * 0.5 / sqrt(t + 1) from t = 4 on


def test_the_filter_does_not_depend_on_the_size_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that both filters give the same result with blocks of 7 elements as with larger ones."""
    random = torch.Generator().manual_seed(1)
    shared, residual = torch.randn(1000, generator=random), torch.randn(1000, generator=random)
    whole = take_significant(residual.clone(), shared, threshold=1.0, step=0)
    monkeypatch.setattr(significance, "BLOCK", 7)
    parts = take_significant(residual.clone(), shared, threshold=1.0, step=0)
    assert torch.equal(whole[0], parts[0]) and torch.equal(whole[1], parts[1])
    for threshold in (0.5, 0.6, 0.7, 0.8):
        monkeypatch.setattr(significance, "BLOCK", 7)
        in_parts = is_significant(residual, shared, threshold=threshold, step=0)
        monkeypatch.setattr(significance, "BLOCK", 10_000)
        assert in_parts is is_significant(residual, shared, threshold=threshold, step=0)


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_a_residual_that_is_not_finite_is_refused(bad: float) -> None:
    """Check that both filters raise ValueError for a residual with the value `bad`, and leave it unchanged."""
    for at in (0, 3):
        residual, shared = torch.ones(5), torch.ones(5)
        residual[at] = bad
        with pytest.raises(ValueError, match="NaN or infinite"):
            take_significant(given := residual.clone(), shared, threshold=0.1, step=0)
        assert torch.equal(given.nan_to_num(), residual.nan_to_num()), "a refused residual is as it was"
        with pytest.raises(ValueError, match="NaN or infinite"):
            is_significant(residual, shared, threshold=0.1, step=0)


@given(values=pairs, threshold=st.sampled_from([0.0, 0.5, 1.0]), step=st.integers(0, 9))
def test_the_filter_by_norm_is_all_or_nothing(values: list[tuple[float, float]], threshold: float, step: int) -> None:
    """The filter by norm is significant exactly if the residual's norm exceeds threshold / sqrt(step + 1) times the changed model's."""
    residual, shared = vectors(values)
    own, whole = residual.double().norm(), (shared.double() + residual.double()).norm()
    bound = threshold / sqrt(step + 1) * whole
    if abs(own - bound) > 1e-9 * (own + bound):
        assert is_significant(residual, shared, threshold=threshold, step=step) is bool(own > bound)


def test_lengths_and_negative_settings_are_refused() -> None:
    """Check that vectors of different lengths and a negative threshold raise ValueError."""
    with pytest.raises(ValueError, match="flat and equal"):
        take_significant(torch.ones(3), torch.ones(4), threshold=0.1, step=0)
    with pytest.raises(ValueError, match="negative"):
        is_significant(torch.ones(3), torch.ones(3), threshold=-0.1, step=0)


def _loss_gradient(model: Tensor, data: Tensor, targets: Tensor) -> Tensor:
    """Return the gradient of a linear model's mean squared error."""
    return 2 * data.T @ (data @ model - targets) / len(targets)


@pytest.mark.parametrize("nesterov", [False, True])
def test_at_threshold_0_three_epochs_equal_sgd_on_the_mean_gradient_in_float64(nesterov: bool) -> None:
    """Four workers with unequal shares and no threshold train as SGD on the mean gradient, within an L2 distance of 1e-10."""
    random = torch.Generator().manual_seed(2)
    counts, size, rate, momentum, decay = (5, 6, 6, 3), 12, 0.01, 0.9, 0.01
    data = [torch.randn(n, size, generator=random, dtype=torch.float64) for n in counts]
    targets = [torch.randn(n, generator=random, dtype=torch.float64) for n in counts]
    shared = torch.randn(size, generator=random, dtype=torch.float64)
    parameter = torch.nn.Parameter(shared.clone())
    sgd = torch.optim.SGD([parameter], lr=rate, momentum=momentum, weight_decay=decay, nesterov=nesterov)
    residuals = [torch.zeros(size, dtype=torch.float64) for _ in counts]
    velocities = [torch.zeros(size, dtype=torch.float64) for _ in counts]
    for step in range(3 * 24):
        updates = []
        for worker, count in enumerate(counts):
            model = shared + residuals[worker]
            take_local_step(
                residuals[worker],
                velocities[worker],
                _loss_gradient(model, data[worker], targets[worker]),
                model,
                share=count / sum(counts),
                learning_rate=rate,
                momentum=momentum,
                nesterov=nesterov,
                weight_decay=decay,
            )
            updates.append(take_significant(residuals[worker], shared, threshold=0.0, step=step))
            assert not residuals[worker].any()
        for indices, values in updates:
            shared[indices] += values
        gradients = [
            _loss_gradient(parameter.detach(), *each) * n for *each, n in zip(data, targets, counts, strict=True)
        ]
        parameter.grad = torch.stack(gradients).sum(0) / sum(counts)
        sgd.step()
    assert float((shared - parameter.detach()).norm()) <= 1e-10


def test_summed_over_workers_the_buffers_follow_batchnorms_rule() -> None:
    """The workers' changes of the buffers add up to BatchNorm's momentum update by the pooled statistics."""
    model, shares = torch.tensor([1.0, 5.0, 2.0]), (0.25, 0.75)
    statistics = (torch.tensor([0.0, 9.0, 1.0]), torch.tensor([0.0, 1.0, 4.0]))
    told = torch.zeros(3)
    for share, statistic in zip(shares, statistics, strict=True):
        residual = torch.zeros(3)
        take_local_step(
            residual, None, statistic, model, share=share, learning_rate=0.0, buffers=2, statistics_momentum=0.1
        )
        told += residual
    pooled = 0.25 * statistics[0] + 0.75 * statistics[1]
    expected = 0.9 * model[1:] + 0.1 * pooled[1:]
    assert torch.allclose(model[1:] + told[1:], expected, rtol=1e-6)
    assert told[0] == 0
