"""The papers' baseline: fetch the vectors, compute here, store the result. What in-database computing is compared against."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from crossover.algorithms.optimizers import OPTIMIZERS, Update
from crossover.algorithms.rules import Agree
from crossover.errors import Refused
from crossover.experiment import Aggregation
from crossover.stores.encoding import Vector, VectorKind
from crossover.stores.protocols import StateKeys, TensorStore, check_optimizer_keys

if TYPE_CHECKING:
    from torch import Tensor

# torch is imported by the first computation, not with this module: it takes a second that a step without arithmetic need not pay.


class FetchCompute:
    """TensorCompute that fetches the vectors from a tensor store, computes in this process, and stores the result, as the compared
    papers do; the alternative to computing in the database.
    """

    def __init__(self, store: TensorStore) -> None:
        """Fetch vectors from `store` and keep results in it."""
        self._store = store

    def mean(self, keys: Sequence[str], *, out: str) -> None:
        """Store the mean of the vectors under `keys`, weighted by their samples, under the key `out`, unless that exists. Raises Missing,
        or Refused if there are none, or if kinds or lengths differ, or one is not float32.
        """
        from crossover.algorithms.averaging import mean

        self._combine(keys, out, lambda tensors, weights: (mean(tensors, weights), sum(weights)))

    def combine(self, keys: Sequence[str], *, rule: Aggregation, out: str, agree: Agree = list) -> None:
        """Store the aggregate of the vectors under `keys` by `rule` under the key `out`, unless that exists. Vectors that are not
        finite raise Refused, or are dropped if `rule.non_finite` is "drop". `agree`: takes the indices (in `keys`) of vectors that
        this process would drop, returns those that all workers drop; by default the same. Raises Missing if a vector does not
        exist.
        """
        from crossover.algorithms.aggregation import apply_rule, is_finite
        from crossover.algorithms.rules import select_participants

        def apply(tensors: "Sequence[Tensor]", weights: Sequence[int]) -> "tuple[Tensor, int]":
            """Return (aggregate by the rule of the tensors that are kept, sum of their weights). `weights`: samples of each tensor. A
            tensor that is not finite is dropped, by agreement with the other workers, or raises Refused, as the rule says.
            """
            kept, left = select_participants([is_finite(each) for each in tensors], rule, names=keys, agree=agree)
            weights = [weights[index] for index in kept]
            return apply_rule([tensors[index] for index in kept], weights, left), sum(weights)

        self._combine(keys, out, apply)

    def update(self, state: StateKeys, gradient: str, *, out: StateKeys, update: Update) -> None:
        """Take one optimizer step in this process, with the settings `update`: read the vectors under the keys in `state` and the
        key `gradient`, and store the new ones under the keys in `out`, unless `out.model` exists. At the first step
        (`update.is_first`) the optimizer's vectors are not read. Raises Missing if a vector does not exist, Corrupt if one has the
        wrong kind, Refused if one is not float32 or if they do not fit together.
        """
        from crossover.algorithms.updates import step

        check_optimizer_keys(state, out, update)
        if self._store.exists(out.model):
            return
        kind = VectorKind(OPTIMIZERS[update.optimizer].kind)
        with _convert_errors(update.optimizer):
            model, others = step(
                self._tensor(state.model, VectorKind.MODEL),
                self._tensor(gradient, VectorKind.GRADIENT),
                [] if update.is_first else [self._tensor(key, kind) for key in state.optimizer],
                update,
            )
        self._store_state(out, model, others, kind)

    def is_finite(self, key: str) -> bool:
        """Return whether no element of the vector under `key` is NaN or infinite. Raises Missing, or Refused if it is not float32."""
        from crossover.algorithms.aggregation import is_finite

        return is_finite(self._tensor(key))

    def _combine(
        self,
        keys: Sequence[str],
        out: str,
        rule: "Callable[[Sequence[Tensor], Sequence[int]], tuple[Tensor, int]]",
    ) -> None:
        """Fetch the vectors under `keys`, apply `rule` to their tensors and sample counts, and store the result under the key
        `out`, unless that exists.

        `rule`: returns (result, number of samples behind it). A vector with 0 samples is given the weight 1. Raises Missing, or
        Refused if there are no `keys` or the vectors do not fit together.
        """
        from crossover.algorithms.buffers import tensor, view

        if self._store.exists(out):
            return
        vectors = [self._store.get(key) for key in keys]
        kind = _check_alike(keys, vectors)
        tensors = [tensor(vector.data) for vector in vectors]
        weights = [vector.samples or 1 for vector in vectors]
        with _convert_errors(out):
            result, samples = rule(tensors, weights)
        self._store.create(out, Vector(kind, view(result), samples))

    def _tensor(self, key: str, kind: VectorKind | None = None) -> "Tensor":
        """Fetch the vector under `key` and return it as a tensor. `kind`: required kind, None for any. Raises Refused if it is not
        float32, and what the store's `get` raises.
        """
        from crossover.algorithms.buffers import tensor

        vector = self._store.get(key, kind=kind)
        if vector.dtype != "float32":
            raise Refused(f"{key}: holds {vector.dtype}; arithmetic is on float32")
        return tensor(vector.data)

    def _store_state(self, out: StateKeys, model: "Tensor", others: "Sequence[Tensor]", kind: VectorKind) -> None:
        """Store the new `model` and the optimizer's vectors, `others` of the `kind`, under the keys in `out`, all at once, unless
        `out.model` exists.
        """
        from crossover.algorithms.buffers import view

        vectors = [(out.model, Vector(VectorKind.MODEL, view(model)))]
        vectors += [(key, Vector(kind, view(other))) for key, other in zip(out.optimizer, others, strict=True)]
        self._store.create_together(vectors)


def _check_alike(keys: Sequence[str], vectors: Sequence[Vector]) -> VectorKind:
    """Return the kind that all `vectors` have. Raises Refused if there are none, or if kinds or lengths differ or one is not float32;
    the message names the first such one by its key in `keys`.
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
def _convert_errors(what: str) -> Iterator[None]:
    """Within the `with` block, turn a ValueError or RuntimeError of the arithmetic into Refused, which a database would raise for
    such a command. `what`: name for the error.
    """
    try:
        yield
    except (ValueError, RuntimeError) as error:
        raise Refused(f"{what}: {error}") from error
