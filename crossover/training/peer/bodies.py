"""How a peer's contribution travels, by message or as an object: a vector behind its header, encoded where the YAML asks for that."""

from typing import TYPE_CHECKING

from crossover.algorithms import buffers
from crossover.algorithms.aggregation import finite
from crossover.algorithms.contributions import Contribution
from crossover.dataplane.vector import Vector, VectorKind, decode, exchanged, header
from crossover.errors import Corrupt
from crossover.experiment import Experiment

if TYPE_CHECKING:
    from torch import Tensor


class Bodies:
    """One per peer: what is decoded lands in memory that is used again."""

    def __init__(self, experiment: Experiment) -> None:
        self._kind = exchanged(experiment.exchange.what)
        self._refuses = experiment.aggregation.non_finite == "refuse"
        self._decoded: Tensor | None = None

    def of(self, own: Contribution, *, samples: int) -> list[bytes | memoryview]:
        """The body's buffers. The same contribution gives the same bytes."""
        if own.codec is None:
            vector = Vector(self._kind, buffers.view(own.values), samples)
        else:
            vector = Vector(VectorKind.QUANTIZED, buffers.view(own.bodies[0, own.values.numel()]), samples, "uint8")
        return [header(vector), vector.data]

    def read(self, body: bytes | memoryview, *, own: Contribution, samples: int, what: str) -> "Tensor":
        """Another's contribution to what `own` contributes to, (D,) float32, to be read before the next call. Raises Corrupt where it is
        none of such a model.
        """
        vector = decode(body, key=what, kind=self._kind if own.codec is None else VectorKind.QUANTIZED)
        if vector.samples != samples:
            raise Corrupt(f"{what}: stands for {vector.samples} samples where {samples} were announced")
        elements, other = own.values.numel(), "its sender trains another model, or compresses in another way"
        if own.codec is None:
            if vector.elements != elements:
                raise Corrupt(f"{what}: {vector.elements} elements where this model makes {elements}: {other}")
            out = buffers.tensor(vector.data)  # read where it arrived
        else:
            if self._decoded is None or self._decoded.numel() != elements:
                self._decoded = own.values.new_empty(elements)
            try:
                out = own.read(vector.data, out=self._decoded, first=0, what=what)
            except Corrupt as error:
                raise Corrupt(f"{error}: {other}") from error
        if self._refuses and not finite(out):
            raise Corrupt(f"{what}: contains NaN or infinite values")
        return out
