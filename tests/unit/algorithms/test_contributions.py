"""A worker's encoder: what the others take its gradient for, what it keeps of it, and what of a round that is begun anew."""

import pytest
import torch
from torch import Tensor

from crossover.algorithms import buffers, codecs
from crossover.algorithms.averaging import mean
from crossover.algorithms.compression import make_generator
from crossover.algorithms.contributions import Contribution, Encoder, OneExchange, build_encoder, exchange_in_process
from crossover.algorithms.schedule import chunk_slice
from crossover.errors import Corrupt
from crossover.experiment import Exchange, Experiment

SHAPES, STATISTICS = [(30, 40), (30,), (10, 30), (10,)], 7
PARAMETERS = 1_540
EXCHANGES = [
    Exchange(compression="fp16"),
    Exchange(compression="fp16", error_feedback=True),
    Exchange(compression="qsgd", bits=4, bucket=128),
    Exchange(compression="qsgd", bits=6, bucket=200, norm="l2", error_feedback=True),
    Exchange(compression="top_k", share=0.05),
    Exchange(compression="top_k", share=0.05, error_feedback=False),
    Exchange(compression="powersgd", rank=2),
    Exchange(compression="powersgd", rank=3, error_feedback=False),
]


def of(exchange: Exchange, worker: int = 0) -> Encoder:
    """Return the encoder of a worker under these settings of the exchange."""
    experiment = Experiment(name="x", architecture="all-reduce", exchange=exchange)
    found = build_encoder(experiment, worker=worker, shapes=SHAPES, parameters=PARAMETERS)
    assert found is not None
    return found


def gradient(worker: int, round: int) -> Tensor:
    """Return the gradient of a worker in a round, the same at each call."""
    return torch.randn(PARAMETERS + STATISTICS, generator=make_generator("gradient", worker, round))


def trained(workers: list[Encoder], rounds: range) -> list[Tensor]:
    """Return each round's mean of what the workers exchanged of their gradients."""

    def combine(values: list[Tensor]) -> Tensor:
        """Return the mean of the values."""
        return mean(values, [1.0] * len(values))

    own = [[gradient(worker, round) for worker in range(len(workers))] for round in rounds]
    return [
        exchange_in_process(workers, each, combine, round=round).clone()
        for round, each in zip(rounds, own, strict=True)
    ]


@pytest.mark.parametrize("exchange", EXCHANGES, ids=str)
def test_what_is_kept_is_all_that_a_worker_needs_to_go_on(exchange: Exchange) -> None:
    """Workers whose encoders are made anew after three rounds, from the state that was kept, continue with the same bits."""
    whole = trained([of(exchange, worker) for worker in range(2)], range(6))
    before, after = ([of(exchange, worker) for worker in range(2)] for _ in range(2))
    first = trained(before, range(3))
    for own in before:
        own.begin(gradient(0, 9), round=9)  # of a round that does not come to its end, nothing is kept
    for old, new in zip(before, after, strict=True):
        for name, vector in new.state.items():
            vector.copy_(old.state[name])
    for result, expected in zip([*first, *trained(after, range(3, 6))], whole, strict=True):
        assert torch.equal(result, expected)
    statistics = mean([gradient(worker, 0)[PARAMETERS:] for worker in range(2)], [1.0, 1.0])
    assert torch.equal(whole[0][PARAMETERS:], statistics)


@pytest.mark.parametrize("exchange", [each for each in EXCHANGES if each.compression != "powersgd"], ids=str)
def test_in_parts_or_whole_the_others_read_the_same(exchange: Exchange) -> None:
    """A contribution that is sent in chunks has the values of one sent whole, and each chunk decodes to its part of them."""
    own = of(exchange)
    whole = own.begin(gradient(0, 0), round=0).values.clone()
    assert isinstance(own, OneExchange)
    parts = [chunk_slice(whole.numel(), 4, worker=worker, unit=own.codec.unit) for worker in range(4)]
    contribution = own.begin(gradient(0, 0), round=0, parts=parts)
    assert torch.equal(contribution.values, whole)
    for (first, end), body in contribution.bodies.items():
        out = torch.empty(end - first)
        assert torch.equal(contribution.read(buffers.view(body), out=out, first=first, what="x"), whole[first:end])
    with pytest.raises(Corrupt, match="worker 3"):
        contribution.read(buffers.view(body)[:-3], out=out, first=first, what="worker 3")


def test_top_k_with_error_feedback_is_these_lines() -> None:
    """top_k with error feedback equals a plain implementation, bit for bit over five rounds."""
    workers, rounds, count = 3, range(5), 77
    results = trained([of(Exchange(compression="top_k", share=0.05), worker) for worker in range(workers)], rounds)
    residuals = [torch.zeros(PARAMETERS) for _ in range(workers)]
    for round, result in zip(rounds, results, strict=True):
        sent = []
        for worker in range(workers):
            values = gradient(worker, round)[:PARAMETERS] + residuals[worker]
            taken = torch.zeros(PARAMETERS)
            largest = values.abs().topk(count).indices
            taken[largest] = values[largest]
            residuals[worker] = values - taken
            sent.append(taken)
        assert torch.equal(result[:PARAMETERS], (sent[0] + sent[1] + sent[2]) / 3)


@pytest.mark.parametrize("exchange", [each for each in EXCHANGES if codecs.has_error_feedback(each)], ids=str)
def test_what_is_left_out_comes_later(exchange: Exchange) -> None:
    """If the gradient is the same in every round, the mean of the exchanged values approaches it, because errors are fed back."""
    worker, rounds, own = of(exchange), 60, gradient(0, 0)
    results = [
        exchange_in_process([worker], [own], lambda values: values[0], round=round).clone() for round in range(rounds)
    ]
    error = (torch.stack(results).mean(dim=0) - own)[:PARAMETERS].norm() / own[:PARAMETERS].norm()
    assert float(error) < 0.35


def test_a_contribution_of_floats_has_no_bodies() -> None:
    """A contribution without compressed bytes has no bodies and no codec, and an uncompressed exchange has no encoder."""
    assert of(Exchange(compression="powersgd", rank=2)).begin(gradient(0, 0), round=0).bodies == {}
    assert Contribution(torch.zeros(3)).codec is None
    assert (
        build_encoder(Experiment(name="x", architecture="all-reduce"), worker=0, shapes=SHAPES, parameters=PARAMETERS)
        is None
    )
