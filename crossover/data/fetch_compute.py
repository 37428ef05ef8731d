"""The papers' baseline: fetch the vectors, compute here, store the result. What in-database computing is compared against."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from crossover.algorithms.optimizers import OPTIMIZERS, Update
from crossover.algorithms.rules import Agree
from crossover.data.encoding import Vector, VectorKind
from crossover.data.protocols import StateKeys, TensorStore, optimizer_keys
from crossover.errors import Refused
from crossover.experiment import Aggregation

if TYPE_CHECKING:
    from torch import Tensor

# torch is imported by the first computation, not with this module: it takes a second that a step without arithmetic need not pay.


class FetchCompute:
    """A TensorCompute over any TensorStore, by crossover.algorithms: over Redis the naive baseline, in memory the inline run's."""

    def __init__(self, store: TensorStore) -> None:
        self._store = store

    def mean(self, keys: Sequence[str], *, out: str) -> None:
        from crossover.algorithms.averaging import mean

        self._combine(keys, out, lambda tensors, weights: (mean(tensors, weights), sum(weights)))

    def combine(self, keys: Sequence[str], *, rule: Aggregation, out: str, agree: Agree = list) -> None:
        from crossover.algorithms.aggregation import applied, finite
        from crossover.algorithms.rules import participants

        def apply(tensors: "Sequence[Tensor]", weights: Sequence[int]) -> "tuple[Tensor, int]":
            kept, left = participants([finite(each) for each in tensors], rule, names=keys, agree=agree)
            weights = [weights[index] for index in kept]
            return applied([tensors[index] for index in kept], weights, left), sum(weights)

        self._combine(keys, out, apply)

    def update(self, state: StateKeys, gradient: str, *, out: StateKeys, update: Update) -> None:
        from crossover.algorithms.updates import step

        optimizer_keys(state, out, update)
        if self._store.exists(out.model):
            return
        kind = VectorKind(OPTIMIZERS[update.optimizer].kind)
        with _refusing(update.optimizer):
            model, others = step(
                self._tensor(state.model, VectorKind.MODEL),
                self._tensor(gradient, VectorKind.GRADIENT),
                [] if update.first else [self._tensor(key, kind) for key in state.optimizer],
                update,
            )
        self._store_state(out, model, others, kind)

    def finite(self, key: str) -> bool:
        from crossover.algorithms.aggregation import finite

        return finite(self._tensor(key))

    def _combine(
        self,
        keys: Sequence[str],
        out: str,
        rule: "Callable[[Sequence[Tensor], Sequence[int]], tuple[Tensor, int]]",
    ) -> None:
        """Fetch `keys`, apply `rule` to tensors and sample counts (a vector without samples counts as one), create `out` from what it
        returns: the result and how many samples that stands for.
        """
        from crossover.algorithms.buffers import tensor, view

        if self._store.exists(out):
            return
        vectors = [self._store.get(key) for key in keys]
        kind = _common(keys, vectors)
        tensors = [tensor(vector.data) for vector in vectors]
        weights = [vector.samples or 1 for vector in vectors]
        with _refusing(out):
            result, samples = rule(tensors, weights)
        self._store.create(out, Vector(kind, view(result), samples))

    def _tensor(self, key: str, kind: VectorKind | None = None) -> "Tensor":
        from crossover.algorithms.buffers import tensor

        vector = self._store.get(key, kind=kind)
        if vector.dtype != "float32":
            raise Refused(f"{key}: holds {vector.dtype}; arithmetic is on float32")
        return tensor(vector.data)

    def _store_state(self, out: StateKeys, model: "Tensor", others: "Sequence[Tensor]", kind: VectorKind) -> None:
        from crossover.algorithms.buffers import view

        vectors = [(out.model, Vector(VectorKind.MODEL, view(model)))]
        vectors += [(key, Vector(kind, view(other))) for key, other in zip(out.optimizer, others, strict=True)]
        self._store.create_together(vectors)


def _common(keys: Sequence[str], vectors: Sequence[Vector]) -> VectorKind:
    """Return the kind that all vectors share. Raises Refused, naming the first wrong key, if kinds or lengths differ or one is not
    float32.
    """
    if not vectors:
        raise Refused("keys: none given; at least one vector is needed")
    first = vectors[0]
    for key, vector in zip(keys, vectors, strict=True):
        if vector.dtype != "float32":
            raise Refused(f"{key}: holds {vector.dtype}; arithmetic is on float32")
        if vector.kind != first.kind:
            raise Refused(f"{key}: holds a {vector.kind} vector, {keys[0]} a {first.kind}; kinds cannot be mixed")
        if vector.elements != first.elements:
            raise Refused(f"{key}: holds {vector.elements} elements, {keys[0]} {first.elements}; lengths must be equal")
    return first.kind


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Convert an algorithm's ValueError or RuntimeError to Refused, as a database would refuse the command."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        raise Refused(f"{what}: {error}") from error
