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
from crossover.algorithms.compression import MatrixShape, PowerSGD, make_generator
from crossover.errors import Corrupt
from crossover.experiment import Experiment

IndexRange = tuple[int, int]  # the first element of a part and the one behind its last


@dataclass(frozen=True)
class Contribution:
    """The vector that one worker sends in one exchange.

    `values`: (D,) float32 that every reader decodes it to. `bodies`: its encoded bytes by part, empty if the values
    travel as they are; `codec` decodes them. Only the first `parameters` values are encoded.
    """

    values: Tensor
    bodies: Mapping[IndexRange, Tensor] = field(default_factory=dict)
    codec: Codec | None = None
    parameters: int = 0

    def read(self, data: memoryview, *, out: Tensor, first: int, what: str) -> Tensor:
        """Decode the same part of another worker's contribution into `out`, and return `out`. This contribution must have a codec.

        `first`: index of `out`'s first element in the contribution; elements behind `parameters` are float32; `what`: name for errors.
        Raises Corrupt if `data` is invalid.
        """
        assert self.codec is not None
        return decode_contribution(
            self.codec, data, out=out, encoded=min(max(0, self.parameters - first), out.numel()), what=what
        )


def decode_contribution(codec: Codec, data: memoryview, *, out: Tensor, encoded: int, what: str) -> Tensor:
    """Decode `data` into `out` and return it: the first `encoded` elements by `codec`, the rest as float32. `what`:
    name for errors. Raises Corrupt if `data` is invalid.
    """
    rest = 4 * (out.numel() - encoded)
    if data.nbytes < rest:
        raise Corrupt(f"{what}: {data.nbytes} bytes, of which {rest} would be statistics")
    codec.decode(data[: data.nbytes - rest], out=out[:encoded], what=what)
    # A copy: what was encoded need not end at a multiple of four bytes.
    out[encoded:] = buffers.tensor(bytes(data[data.nbytes - rest :]))
    return out


class Encoder(Protocol):
    """Protocol of one worker's gradient encoder. Its state changes only when a round's result is known, so a repeated
    round gives an equal result.
    """

    @property
    def unit(self) -> int:
        """Number of elements at whose multiples the parts of a contribution begin."""

    @property
    def state(self) -> Mapping[str, Tensor]:
        """Vectors that the encoder keeps from round to round, by name, float32, each changed in place."""

    def begin(self, gradient: Tensor, *, round: int, parts: Sequence[slice] = (slice(None),)) -> Contribution:
        """Return the round's first contribution. `parts`: the pieces in which it is sent. Raises Refused if `gradient` cannot be
        encoded.
        """

    def proceed(self, mean: Tensor) -> Contribution | Tensor:
        """Return the next contribution, or the round's result, (P + B,) float32, valid until the next round. `mean`: the mean of all
        workers' last contributions.
        """


class OneExchange:
    """Encoder for codecs with one exchange per round, with optional error feedback."""

    def __init__(self, codec: Codec, *, parameters: int, worker: int, seed: int, feedback: bool) -> None:
        self.codec, self._parameters, self._worker, self._seed = codec, parameters, worker, seed
        self._residual = torch.zeros(parameters) if feedback else None
        self._meant = torch.empty(0)  # in the round under way; what was sent of it, in memory that rounds share
        self._sent = torch.empty(0)

    @property
    def unit(self) -> int:
        """Number of elements at whose multiples the parts of a contribution begin."""
        return self.codec.unit

    @property
    def state(self) -> Mapping[str, Tensor]:
        """The residual, if errors are fed back."""
        return {} if self._residual is None else {"residual": self._residual}

    def begin(self, gradient: Tensor, *, round: int, parts: Sequence[slice] = (slice(None),)) -> Contribution:
        """Return the round's only contribution, valid until the next call: the residual is added to the gradient's P parameters, which
        are encoded; the B statistics behind them are sent as they are. `gradient`: (P + B,); `parts`: pieces in which it is sent.
        """
        parameters, elements = self._parameters, gradient.numel()
        values, statistics = gradient[:parameters], gradient[parameters:]
        if self._residual is not None:
            values = values + self._residual
        if self._sent.numel() != elements:
            self._sent = torch.empty_like(gradient)
        places = [part.indices(elements)[:2] for part in parts]
        encoded = [slice(min(first, parameters), min(end, parameters)) for first, end in places]
        random = make_generator("qsgd", self._seed, round, self._worker)
        bodies = dict[IndexRange, Tensor]()
        for (first, end), body in zip(places, self.codec.encode(values, random=random, parts=encoded), strict=True):
            rest = statistics[max(0, first - parameters) : max(0, end - parameters)]
            bodies[first, end] = whole = torch.cat([body, rest.view(torch.uint8)])
            count = min(max(0, parameters - first), end - first)
            decode_contribution(
                self.codec, buffers.view(whole), out=self._sent[first:end], encoded=count, what="own contribution"
            )
        self._meant = values
        return Contribution(self._sent, bodies, self.codec, parameters)

    def proceed(self, mean: Tensor) -> Contribution | Tensor:
        """Return `mean`, the round's result.

        The rounding errors of this round's encoding are kept as the residual, which the next contribution includes.
        """
        if self._residual is not None:
            torch.sub(self._meant, self._sent[: self._parameters], out=self._residual)
        return mean


class TwoExchanges:
    """Encoder for PowerSGD, which has two exchanges per round: of the factors P, then of Q."""

    unit = 1

    def __init__(self, factors: PowerSGD) -> None:
        self._powersgd, self._first = factors, True

    @property
    def state(self) -> Mapping[str, Tensor]:
        """The factors Q, and the residual if errors are fed back."""
        kept = {"factors": self._powersgd.q}
        return kept if self._powersgd.residual is None else {"residual": self._powersgd.residual, **kept}

    def begin(self, gradient: Tensor, *, round: int, parts: Sequence[slice] = (slice(None),)) -> Contribution:
        """Return the round's first contribution, the factors P of `gradient`.

        The factors travel whole, so `parts` is not used.
        """
        self._first = True
        return Contribution(self._powersgd.build_first(gradient))

    def proceed(self, mean: Tensor) -> Contribution | Tensor:
        """Return the second contribution, the factors Q, or after that the round's result. `mean`: the mean of all
        workers' last contributions.
        """
        if self._first:
            self._first = False
            return Contribution(self._powersgd.build_second(mean))
        return self._powersgd.finish(mean)


def build_encoder(
    experiment: Experiment, *, worker: int, shapes: Sequence[MatrixShape], parameters: int
) -> Encoder | None:
    """Return the encoder of `worker` that the experiment configures for parameters of these `shapes`; None if gradients
    are sent uncompressed. `parameters`: number of elements that are encoded.
    """
    exchange, seed = experiment.exchange, experiment.seed
    codec, feedback = codecs.build_codec(exchange), codecs.has_error_feedback(exchange)
    if codec.exchanges > 1:
        return TwoExchanges(codec.factors(shapes, seed=seed, feedback=feedback))
    if exchange.compression == "none":
        return None
    return OneExchange(codec, parameters=parameters, worker=worker, seed=seed, feedback=feedback)


def exchange_in_process(
    encoders: Sequence[Encoder],
    gradients: Sequence[Tensor],
    combine: Callable[[Sequence[Tensor]], Tensor],
    *,
    round: int,
) -> Tensor:
    """Return the result of one `round` in which all workers are in this process, given their `encoders` and
    `gradients`. `combine`: averages their contributions.
    """
    contributions = [own.begin(gradient, round=round) for own, gradient in zip(encoders, gradients, strict=True)]
    while True:
        mean = combine([each.values for each in contributions])
        following = [own.proceed(mean) for own in encoders]
        contributions = [each for each in following if isinstance(each, Contribution)]
        if not contributions:
            result = following[0]
            assert isinstance(result, Tensor)
            return result
