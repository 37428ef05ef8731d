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
from crossover.algorithms.compression import PowerSGD, make_generator
from crossover.algorithms.low_rank import Shapes
from crossover.errors import Corrupt
from crossover.experiment import Experiment

IndexRange = tuple[int, int]  # the first element of a part and the one behind its last


@dataclass(frozen=True)
class Contribution:
    """The vector that one worker sends in one exchange.

    `values`: (D,) float32, as every receiver decodes it. `bodies`: its encoded bytes by (begin, end) of each part, empty if the
    values are sent as they are; `codec` decodes them. Only the first `parameters` values are encoded.
    """

    values: Tensor
    bodies: Mapping[IndexRange, Tensor] = field(default_factory=dict)
    codec: Codec | None = None
    parameters: int = 0

    def read(self, data: memoryview, *, out: Tensor, first: int, what: str) -> Tensor:
        """Decode one part of another worker's contribution to the same exchange into `out`, and return `out`. This contribution
        must have a codec.

        `data`: the part's bytes; `first`: index in the contribution at which the part begins; `what`: name for errors. Elements
        from `parameters` on are plain float32. Raises Corrupt if `data` is invalid.
        """
        assert self.codec is not None
        return decode_contribution(
            self.codec, data, out=out, encoded=min(max(0, self.parameters - first), out.numel()), what=what
        )


def decode_contribution(codec: Codec, data: memoryview, *, out: Tensor, encoded: int, what: str) -> Tensor:
    """Decode `data` into `out` and return `out`. Its first `encoded` elements are decoded by `codec`, the rest are plain float32.
    `what`: name for errors. Raises Corrupt if `data` is invalid.
    """
    rest = 4 * (out.numel() - encoded)
    if data.nbytes < rest:
        raise Corrupt(f"{what}: {data.nbytes} bytes, of which {rest} would be statistics")
    codec.decode(data[: data.nbytes - rest], out=out[:encoded], what=what)
    # A copy: what was encoded need not end at a multiple of four bytes.
    out[encoded:] = buffers.tensor(bytes(data[data.nbytes - rest :]))
    return out


class Encoder(Protocol):
    """Protocol of one worker's gradient encoder. In each round `begin` gives the first contribution, and `proceed` the next one or
    the result. Its state changes only when a round's result is known, so a repeated round gives an equal result.
    """

    @property
    def unit(self) -> int:
        """Step, in elements, at whose multiples a contribution may be cut into parts."""

    @property
    def state(self) -> Mapping[str, Tensor]:
        """Vectors (float32) that the encoder keeps from round to round, by name; they are the encoder's own memory, changed in place."""

    def begin(self, gradient: Tensor, *, round: int, parts: Sequence[slice] = (slice(None),)) -> Contribution:
        """Return the round's first contribution, made of `gradient`, (P + B,); it is valid until the next call. `state` does not change, so
        that the same round may be begun again. `parts`: slices in which it will be sent. Raises Refused if the gradient cannot be encoded.
        """

    def proceed(self, mean: Tensor) -> Contribution | Tensor:
        """Return the round's next contribution, or the round's result, (P + B,) float32, which is valid until the next round. Called once
        for each exchange of the round, after `begin`; the call that returns the result changes `state`. `mean`: the workers' mean of the
        contributions before; the result may be this tensor itself.
        """


class OneExchange:
    """Implementation of `Encoder` for the codecs with one exchange per round, with or without error feedback: `begin` returns the encoded
    contribution, and the only `proceed` of the round returns the mean of all workers' contributions as the result.
    """

    def __init__(self, codec: Codec, *, parameters: int, worker: int, seed: int, feedback: bool) -> None:
        """Prepare for vectors whose first `parameters` elements are encoded. `worker`, `seed`: seed the random rounding;
        `feedback`: whether to keep the errors as a residual.
        """
        self.codec, self._parameters, self._worker, self._seed = codec, parameters, worker, seed
        self._residual = torch.zeros(parameters) if feedback else None
        self._meant = torch.empty(0)  # in the round under way; what was sent of it, in memory that rounds share
        self._sent = torch.empty(0)

    @property
    def unit(self) -> int:
        """Step, in elements, at whose multiples a contribution may be cut into parts: the codec's."""
        return self.codec.unit

    @property
    def state(self) -> Mapping[str, Tensor]:
        """The vector "residual", (P,), if errors are fed back; otherwise nothing. It is the encoder's own memory, changed in place by
        `proceed`.
        """
        return {} if self._residual is None else {"residual": self._residual}

    def begin(self, gradient: Tensor, *, round: int, parts: Sequence[slice] = (slice(None),)) -> Contribution:
        """Return the round's only contribution, valid until the next call: the encoded sum of the gradient's P parameters and the
        residual, and the B statistics as they are. The residual itself is not changed yet. `gradient`: (P + B,); `round`: seeds the
        rounding; `parts`: slices in which it will be sent. Raises Refused if a value is not finite and the codec cannot encode it.
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
        """Return `mean` unchanged: it is the round's result.

        With error feedback, what this round's encoding left out becomes the residual, which the next contribution includes.
        """
        if self._residual is not None:
            torch.sub(self._meant, self._sent[: self._parameters], out=self._residual)
        return mean


class TwoExchanges:
    """Implementation of `Encoder` for PowerSGD, which has two exchanges per round: `begin` returns the factors P, the first `proceed` the
    factors Q, and the second the result.
    """

    unit = 1

    def __init__(self, factors: PowerSGD) -> None:
        """Wrap `factors`, the PowerSGD compression of one worker."""
        self._powersgd, self._first = factors, True

    @property
    def state(self) -> Mapping[str, Tensor]:
        """The vectors "factors", all factors Q, and "residual", (P,), if errors are fed back. They are the encoder's own memory, changed in
        place by the second `proceed` of a round.
        """
        kept = {"factors": self._powersgd.q}
        return kept if self._powersgd.residual is None else {"residual": self._powersgd.residual, **kept}

    def begin(self, gradient: Tensor, *, round: int, parts: Sequence[slice] = (slice(None),)) -> Contribution:
        """Return the round's first contribution: the factors P of `gradient` with everything uncompressed. They are not cut, so
        `parts` is not used.
        """
        self._first = True
        return Contribution(self._powersgd.build_first(gradient))

    def proceed(self, mean: Tensor) -> Contribution | Tensor:
        """Return the second contribution, the factors Q, at the first call after `begin`. At the second, update the factors Q and the
        residual, and return the round's gradient, in memory that the next round overwrites. `mean`: the workers' mean of the
        contributions before.
        """
        if self._first:
            self._first = False
            return Contribution(self._powersgd.build_second(mean))
        return self._powersgd.finish(mean)


def build_encoder(experiment: Experiment, *, worker: int, shapes: Shapes, parameters: int) -> Encoder | None:
    """Return the gradient encoder of `worker` that the experiment's `exchange` configures; None if gradients are sent uncompressed.
    `shapes`: of the parameters; `parameters`: their total number of elements, which are encoded.
    """
    exchange, seed = experiment.exchange, experiment.seed
    codec, feedback = codecs.build_codec(exchange), codecs.has_error_feedback(exchange)
    if codec.exchanges > 1:
        return TwoExchanges(codec.build_powersgd(shapes, seed=seed, feedback=feedback))
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
    """Return the result of one `round` in which all workers are in this process, (P + B,), valid until the next round, and update the
    encoders' state. `encoders`, `gradients`: one per worker, by rank. `combine`: takes the workers' decoded contributions of one exchange,
    by rank, and returns their aggregate.
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
