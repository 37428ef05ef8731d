"""The layout of PowerSGD's factors, which follows from a model's shapes alone: torch is not needed."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

Shapes = Sequence[Sequence[int]]  # of a model's parameters, in the order of its vector


@dataclass(frozen=True, slots=True)
class Matrix:
    """One parameter that PowerSGD compresses: its slice of the gradient (`at`), its `rows` and `columns` as a matrix, and the
    slices of its two factors in the vectors of all factors P and Q.
    """

    at: slice
    rows: int
    columns: int
    p: slice
    q: slice


@dataclass(frozen=True, slots=True)
class Layout:
    """Division of a gradient for PowerSGD: `matrices` are compressed, the slices in `whole` are sent as they are. The
    `..._elements` are the total lengths of the uncompressed slices and of all factors P and Q.
    """

    matrices: tuple[Matrix, ...]
    whole: tuple[slice, ...]
    whole_elements: int
    p_elements: int
    q_elements: int


def _find_highest_rank(shape: Sequence[int]) -> int:
    """Return the highest rank at which a parameter's two factors together have fewer elements than the parameter; 0 if there is
    none, as for a parameter of one dimension.
    """
    rows, columns = _get_matrix_sides(shape)
    return (rows * columns - 1) // (rows + columns) if len(shape) > 1 else 0


def find_rank_problem(shapes: Shapes, *, rank: int) -> str | None:
    """Return in words why PowerSGD of this `rank` cannot compress a model with parameters of these `shapes`; None if it can."""
    most = max(map(_find_highest_rank, shapes), default=0)
    if most == 0:
        return "exchange.compression: powersgd compresses matrices, and the model has none that would become smaller; expected another"
    if rank > most:
        return f"exchange.rank: {rank} makes none of the model's matrices smaller; expected at most {most}"
    return None


def build_layout(shapes: Shapes, *, rank: int) -> Layout:
    """Return the layout of parameters of these `shapes`, stored one after another: each is compressed if that makes it smaller,
    otherwise sent whole. Raises ValueError if the rank is below 1.
    """
    if rank < 1:
        raise ValueError(f"powersgd: rank {rank}; at least 1 is expected")
    matrices, whole = list[Matrix](), list[slice]()
    at = p = q = 0
    for shape in shapes:
        place = slice(at, at + prod(shape))
        at = place.stop
        if rank > _find_highest_rank(shape):
            joined = slice(whole.pop().start, at) if whole and whole[-1].stop == place.start else place
            whole.append(joined)
            continue
        rows, columns = _get_matrix_sides(shape)
        matrices.append(Matrix(place, rows, columns, slice(p, p + rows * rank), slice(q, q + columns * rank)))
        p, q = p + rows * rank, q + columns * rank
    return Layout(tuple(matrices), tuple(whole), sum(each.stop - each.start for each in whole), p, q)


def _get_matrix_sides(shape: Sequence[int]) -> tuple[int, int]:
    """Return (rows, columns) of a parameter seen as a matrix: its first dimension, and the product of the others."""
    rows = shape[0] if shape else 1
    return rows, prod(shape) // max(1, rows)
