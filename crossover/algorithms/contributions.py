"""What a worker's gradient becomes before it is exchanged, and what the worker keeps of it: one encoder each, whatever the architecture.

An encoder takes a gradient [P | B], gives what this worker contributes to an exchange, takes the workers' mean of that, and gives another
contribution (PowerSGD's second) or the round's result. BatchNorm's statistics are never compressed: noise in a variance would make it
negative.

Error feedback (Seide et al. 2014; Karimireddy et al. 2019): what a round's encoding left out is added to the next round's gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from crossover.algorithms import buffers, codecs
from crossover.algorithms.codecs import Codec
from crossover.algorithms.compression import MatrixShape, PowerSGD, generator
from crossover.errors import Corrupt
from crossover.experiment import Experiment

IndexRange = tuple[int, int]  # the first element of a part and the one behind its last


@dataclass(frozen=True)
class Contribution:
    """`values`: what everybody takes this worker's contribution for, (D,) float32; whoever finds that an earlier attempt has shown other
    ones writes these there. `bodies`: its bytes by part, where they are other ones than those of `values`; `codec` reads such bytes. The
    first `parameters` of the values are encoded, the rest travels as it is.
    """

    values: Tensor
    bodies: Mapping[IndexRange, Tensor] = field(default_factory=dict)
    codec: Codec | None = None
    parameters: int = 0

    def read(self, data: memoryview, *, out: Tensor, first: int, what: str) -> Tensor:
        """Decode another worker's elements from `first` on into `out`, and return `out`. `what`: name for errors. Raises Corrupt if `data`
        is invalid.
        """
        assert self.codec is not None
        return read(self.codec, data, out=out, encoded=min(max(0, self.parameters - first), out.numel()), what=what)


def read(codec: Codec, data: memoryview, *, out: Tensor, encoded: int, what: str) -> Tensor:
    """Decode `data` into `out` and return it: the first `encoded` elements by `codec`, the rest as float32. `what`: name for errors. Raises
    Corrupt if `data` is invalid.
    """
    rest = 4 * (out.numel() - encoded)
    if data.nbytes < rest:
        raise Corrupt(f"{what}: {data.nbytes} bytes, of which {rest} would be statistics")
    codec.decode(data[: data.nbytes - rest], out=out[:encoded], what=what)
    # A copy: what was encoded need not end at a multiple of four bytes.
    out[encoded:] = buffers.tensor(bytes(data[data.nbytes - rest :]))
    return out


class Encoder(Protocol):
    """One worker's encoder. Its state changes only when a round's result is known, so that a repeated round gives an equal result."""

    @property
    def unit(self) -> int:
        """Parts of a contribution begin at multiples of so many elements."""

    @property
    def state(self) -> Mapping[str, Tensor]:
        """The vectors that it keeps from round to round, float32, each written to in place."""

    def begin(self, gradient: Tensor, *, round: int, parts: Sequence[slice] = (slice(None),)) -> Contribution:
        """Return the round's first contribution. `parts`: the pieces in which it is sent. Raises Refused if `gradient` cannot be
        encoded.
        """

    def proceed(self, mean: Tensor) -> Contribution | Tensor:
        """Return the next contribution, or the round's result, (P + B,) float32, valid until the next round. `mean`: the mean of all
        workers' last contributions.
        """


class OneExchange:
    """Encoded once, decoded by whoever combines."""

    def __init__(self, codec: Codec, *, parameters: int, worker: int, seed: int, feedback: bool) -> None:
        self.codec, self._parameters, self._worker, self._seed = codec, parameters, worker, seed
        self._residual = torch.zeros(parameters) if feedback else None
        self._meant = torch.empty(0)  # in the round under way; what was sent of it, in memory that rounds share
        self._sent = torch.empty(0)

    @property
    def unit(self) -> int:
        return self.codec.unit

    @property
    def state(self) -> Mapping[str, Tensor]:
        return {} if self._residual is None else {"residual": self._residual}

    def begin(self, gradient: Tensor, *, round: int, parts: Sequence[slice] = (slice(None),)) -> Contribution:
        parameters, elements = self._parameters, gradient.numel()
        values, statistics = gradient[:parameters], gradient[parameters:]
        if self._residual is not None:
            values = values + self._residual
        if self._sent.numel() != elements:
            self._sent = torch.empty_like(gradient)
        places = [part.indices(elements)[:2] for part in parts]
        encoded = [slice(min(first, parameters), min(end, parameters)) for first, end in places]
        random = generator("qsgd", self._seed, round, self._worker)
        bodies = dict[IndexRange, Tensor]()
        for (first, end), body in zip(places, self.codec.encode(values, random=random, parts=encoded), strict=True):
            rest = statistics[max(0, first - parameters) : max(0, end - parameters)]
            bodies[first, end] = whole = torch.cat([body, rest.view(torch.uint8)])
            count = min(max(0, parameters - first), end - first)
            read(self.codec, buffers.view(whole), out=self._sent[first:end], encoded=count, what="own contribution")
        self._meant = values
        return Contribution(self._sent, bodies, self.codec, parameters)

    def proceed(self, mean: Tensor) -> Contribution | Tensor:
        if self._residual is not None:
            torch.sub(self._meant, self._sent[: self._parameters], out=self._residual)
        return mean


class TwoExchanges:
    """PowerSGD: the mean of P, then that of Q."""

    unit = 1

    def __init__(self, factors: PowerSGD) -> None:
        self._powersgd, self._first = factors, True

    @property
    def state(self) -> Mapping[str, Tensor]:
        kept = {"factors": self._powersgd.q}
        return kept if self._powersgd.residual is None else {"residual": self._powersgd.residual, **kept}

    def begin(self, gradient: Tensor, *, round: int, parts: Sequence[slice] = (slice(None),)) -> Contribution:
        self._first = True
        return Contribution(self._powersgd.first(gradient))

    def proceed(self, mean: Tensor) -> Contribution | Tensor:
        if self._first:
            self._first = False
            return Contribution(self._powersgd.second(mean))
        return self._powersgd.finish(mean)


def encoder(experiment: Experiment, *, worker: int, shapes: Sequence[MatrixShape], parameters: int) -> Encoder | None:
    """Return the encoder that the experiment configures for parameters of these `shapes`, or None if gradients are sent uncompressed."""
    exchange, seed = experiment.exchange, experiment.seed
    codec, feedback = codecs.named(exchange), codecs.feeds_back(exchange)
    if codec.exchanges > 1:
        return TwoExchanges(codec.factors(shapes, seed=seed, feedback=feedback))
    if exchange.compression == "none":
        return None
    return OneExchange(codec, parameters=parameters, worker=worker, seed=seed, feedback=feedback)


def in_one_process(
    encoders: Sequence[Encoder],
    gradients: Sequence[Tensor],
    combine: Callable[[Sequence[Tensor]], Tensor],
    *,
    round: int,
) -> Tensor:
    """Return a round's result if all workers are in this process. `combine`: averages their contributions."""
    contributions = [own.begin(gradient, round=round) for own, gradient in zip(encoders, gradients, strict=True)]
    while True:
        mean = combine([each.values for each in contributions])
        following = [own.proceed(mean) for own in encoders]
        contributions = [each for each in following if isinstance(each, Contribution)]
        if not contributions:
            result = following[0]
            assert isinstance(result, Tensor)
            return result
