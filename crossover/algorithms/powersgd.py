"""PowerSGD: a gradient's matrices as products of two thin ones, found by one step of power iteration that all workers take together.

Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization" (2019). A parameter of shape
(out, ...) is a matrix M, (out, rest). Two exchanges in each round: of P = M Q, whose mean every worker orthogonalises by itself, and of
Q = M^T P. All end with the product of P and the mean of Q, and begin the next round with that Q. What a worker's own matrix has beside
the product is its residual, which the next round's gradient is added to. What has one dimension, or would not become smaller, travels
whole with the first exchange.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from crossover.algorithms.randomness import generator

MatrixShape = Sequence[int]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A parameter's place in the gradient, and its factors' places among all factors."""

    at: slice
    rows: int
    columns: int
    p: slice
    q: slice


@dataclass(frozen=True, slots=True)
class Layout:
    """How a gradient is taken apart: `matrices`, and the elements of `whole`, which travel as they are."""

    matrices: tuple[Matrix, ...]
    whole: tuple[slice, ...]
    whole_elements: int
    p_elements: int
    q_elements: int


def highest_rank(shape: MatrixShape) -> int:
    """Up to which the two factors are less than the matrix; below its own rank. 0: there is none, as of what has one dimension."""
    rows, columns = _sides(shape)
    return (rows * columns - 1) // (rows + columns) if len(shape) > 1 else 0


def problem(shapes: Sequence[MatrixShape], *, rank: int) -> str | None:
    """Why a model of such parameters cannot be compressed; None where it can."""
    most = max(map(highest_rank, shapes), default=0)
    if most == 0:
        return "exchange.compression: powersgd compresses matrices, and the model has none that would become smaller; expected another"
    if rank > most:
        return f"exchange.rank: {rank} makes none of the model's matrices smaller; expected at most {most}"
    return None


def layout(shapes: Sequence[MatrixShape], *, rank: int) -> Layout:
    """Of parameters of these shapes, one behind the other. Raises ValueError on a rank below 1."""
    if rank < 1:
        raise ValueError(f"powersgd: rank {rank}; at least 1 is expected")
    matrices, whole = list[Matrix](), list[slice]()
    at = p = q = 0
    for shape in shapes:
        place = slice(at, at + prod(shape))
        at = place.stop
        if rank > highest_rank(shape):
            joined = slice(whole.pop().start, at) if whole and whole[-1].stop == place.start else place
            whole.append(joined)
            continue
        rows, columns = _sides(shape)
        matrices.append(Matrix(place, rows, columns, slice(p, p + rows * rank), slice(q, q + columns * rank)))
        p, q = p + rows * rank, q + columns * rank
    return Layout(tuple(matrices), tuple(whole), sum(each.stop - each.start for each in whole), p, q)


def _sides(shape: MatrixShape) -> tuple[int, int]:
    rows = shape[0] if shape else 1
    return rows, prod(shape) // max(1, rows)


class PowerSGD:
    """One worker's side. `residual`: (P,), none without error feedback; `q`: the second factors that the next round begins with, the same
    on every worker. Both change once a round's result is known, never before.

    Every operand lies in memory of torch's own, at the same distance from an aligned beginning in every process: products of the same
    numbers have the same bits then.
    """

    def __init__(
        self, shapes: Sequence[MatrixShape], *, rank: int, seed: int, feedback: bool, dtype: torch.dtype
    ) -> None:
        self.layout, self.rank = layout(shapes, rank=rank), rank
        parameters = sum(prod(shape) for shape in shapes)
        self.residual: Tensor | None = torch.zeros(parameters, dtype=dtype) if feedback else None
        self.q = torch.randn(self.layout.q_elements, generator=generator("powersgd", seed), dtype=dtype)
        self._values = torch.empty(
            parameters, dtype=dtype
        )  # what is to be sent: the gradient, and what was left out before
        self._p = torch.empty(self.layout.p_elements, dtype=dtype)
        self._result = torch.empty(0, dtype=dtype)

    def first(self, gradient: Tensor) -> Tensor:
        """[P of every matrix | whole parameters | statistics] of the gradient [P gradient | B statistics]; averaged over the workers, it is
        what `second` takes.
        """
        values, parameters = self._values, self._values.numel()
        values.copy_(gradient[:parameters])
        if self.residual is not None:
            values.add_(self.residual)
        if self._result.numel() != gradient.numel():
            self._result = torch.empty_like(gradient)
        p = torch.empty_like(self._p)
        for matrix, m in self._matrices(values):
            q = torch.linalg.qr(self.q[matrix.q].view(matrix.columns, self.rank)).Q
            torch.mm(m, q, out=p[matrix.p].view(matrix.rows, self.rank))
        return torch.cat([p, *(values[part] for part in self.layout.whole), gradient[parameters:]])

    def second(self, mean: Tensor) -> Tensor:
        """[Q of every matrix], from the mean of what `first` gave."""
        result, at, q = self._result, self.layout.p_elements, torch.empty_like(self.q)
        for matrix, m in self._matrices(self._values):
            p = torch.linalg.qr(mean[matrix.p].view(matrix.rows, self.rank)).Q
            self._p[matrix.p].view(matrix.rows, self.rank).copy_(p)
            torch.mm(m.t(), self._p[matrix.p].view(matrix.rows, self.rank), out=q[matrix.q].view(-1, self.rank))
        for part in self.layout.whole:
            result[part] = mean[at : at + part.stop - part.start]
            at += part.stop - part.start
        result[self._values.numel() :] = mean[at:]
        return q

    def finish(self, mean: Tensor) -> Tensor:
        """The gradient that all workers agree on, (P + B,), from the mean of what `second` gave; to be read before the next round."""
        self.q.copy_(mean)
        for matrix, m in self._matrices(self._result):
            p = self._p[matrix.p].view(matrix.rows, self.rank)
            torch.mm(p, self.q[matrix.q].view(matrix.columns, self.rank).t(), out=m)
        if self.residual is not None:
            torch.sub(self._values, self._result[: self._values.numel()], out=self.residual)
            for part in self.layout.whole:
                self.residual[part] = 0.0  # nothing was left out
        return self._result

    def _matrices(self, vector: Tensor) -> Iterator[tuple[Matrix, Tensor]]:
        for matrix in self.layout.matrices:
            yield matrix, vector[matrix.at].view(matrix.rows, matrix.columns)
