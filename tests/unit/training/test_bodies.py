"""How a peer's contribution travels: read back, refused when it is another's, small where compressed."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossover.algorithms import buffers, contributions
from crossover.algorithms.contributions import Contribution
from crossover.errors import Corrupt
from crossover.experiment import Aggregation, Exchange, Experiment
from crossover.training.peer import ContributionMessages

WAYS = [{}, {"compression": "qsgd"}, {"compression": "fp16"}, {"compression": "top_k"}]


class Peer:
    """One peer that encodes contributions as messages and reads those of others."""

    def __init__(
        self, *, parameters: int = 1000, aggregation: Aggregation | None = None, round: int = 0, **exchange: Any
    ) -> None:
        """Make worker 1's codec and messages. `exchange`: settings of the exchange."""
        aggregation = aggregation or Aggregation()
        experiment = Experiment(
            name="x", architecture="p2p_instance", exchange=Exchange(**exchange), aggregation=aggregation
        )
        self.codec = contributions.build_encoder(experiment, worker=1, shapes=[(parameters,)], parameters=parameters)
        self.bodies, self.round = ContributionMessages(experiment), round

    def contribution(self, gradient: torch.Tensor) -> Contribution:
        """Return the contribution of a gradient, compressed if the peer has a codec."""
        return Contribution(gradient) if self.codec is None else self.codec.begin(gradient, round=self.round)

    def body(self, gradient: torch.Tensor) -> bytes:
        """Return the message with the contribution of a gradient, for 7 samples."""
        return b"".join(bytes(part) for part in self.bodies.encode(self.contribution(gradient), samples=7))

    def read(self, body: bytes, *, like: torch.Tensor, samples: int = 7) -> torch.Tensor:
        """Return the vector in another peer's message. `like`: this peer's own gradient of the round."""
        return self.bodies.decode(body, own=self.contribution(like), samples=samples, what="x").clone()


def random(elements: int, seed: int = 1) -> torch.Tensor:
    """Return normally distributed numbers, the same for the same seed."""
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 300), st.integers(0, 9), st.integers(0, 2**31))
def test_an_uncompressed_gradient_comes_back_bit_for_bit(parameters: int, statistics: int, seed: int) -> None:
    """A gradient that is sent without compression is read back with the same bytes."""
    gradient, peer = random(parameters + statistics, seed), Peer(parameters=parameters)
    assert bytes(buffers.view(peer.read(peer.body(gradient), like=gradient))) == bytes(buffers.view(gradient))


@pytest.mark.parametrize(
    ("settings", "share", "error"),
    [
        ({"compression": "qsgd", "bits": 8}, 0.26, 0.02),
        ({"compression": "qsgd", "bits": 4}, 0.14, 0.2),
        ({"compression": "fp16"}, 0.51, 0.02),
        ({"compression": "top_k", "share": 0.1}, 0.201, 0.8),
    ],
)
def test_compression_keeps_statistics_whole_and_is_as_small_as_it_says(
    settings: dict[str, Any], share: float, error: float
) -> None:
    """A compressed gradient is at most `share` of its size, deterministic, off by less than `error` (relative norm), and keeps
    statistics exactly.
    """
    peer, gradient = Peer(parameters=100_000, round=3, **settings), random(100_033)
    body = peer.body(gradient)
    assert len(body) <= share * 4 * gradient.numel()
    assert body == peer.body(gradient)  # a retry sends the same bytes
    read = peer.read(body, like=gradient)
    assert torch.equal(read[100_000:], gradient[100_000:])
    assert torch.equal(read, peer.contribution(gradient).values)  # as its sender takes it, too
    assert float((read - gradient).norm() / gradient.norm()) < error


@pytest.mark.parametrize("settings", WAYS, ids=str)
def test_gradients_of_other_models_or_with_nan_are_refused(settings: dict[str, Any]) -> None:
    """A gradient of another model's size, with another number of samples, or with NaN raises Corrupt."""
    each, other, ones = Peer(**settings), Peer(parameters=1001, **settings), torch.ones(1006)
    good = each.body(ones)
    with pytest.raises(Corrupt, match="trains another model"):
        other.read(good, like=torch.ones(1007))
    with pytest.raises(Corrupt, match="stands for 7 samples; the sender announced 8"):
        each.read(good, like=ones, samples=8)
    bad = torch.ones(1006)
    bad[1005] = float("nan")  # a statistic: what stands before it may be refused by the compression already
    with pytest.raises(Corrupt, match="NaN"):
        each.read(each.body(bad), like=ones)


def test_half_precision_does_not_overflow() -> None:
    """Finite values beyond float16 are sent as its largest number with their sign."""
    peer, large = Peer(parameters=2, compression="fp16"), torch.tensor([1e6, -1e6])
    assert peer.read(peer.body(large), like=large).tolist() == [65_504.0, -65_504.0]


def test_half_precision_keeps_infinity_for_the_rule_to_see() -> None:
    """Infinite values stay infinite in fp16, so that the aggregation can drop them."""
    drops = Aggregation(rule="median", non_finite="drop")
    peer, sent = Peer(parameters=2, aggregation=drops, compression="fp16"), torch.tensor([1.0, -float("inf"), 0.5])
    assert torch.equal(peer.read(peer.body(sent), like=sent), sent)
