"""The rules' arithmetic on tensors, and the attacks that they are tested with."""

import math
from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from torch import Tensor

from crossover.algorithms.averaging import mean
from crossover.errors import Refused

# --- robust -----------------------------------------------------------------------------------------------------------

_BLOCK = 65_536  # elements: what is sorted at a time stays in the processor's cache


def median(vectors: Sequence[Tensor]) -> Tensor:
    """Return the median of k vectors, (D,) float32, at each coordinate. For an even k the middle two values are added, then halved,
    in float32. Raises Refused for NaN.
    """
    _check_vectors(vectors)
    middle = len(vectors) // 2

    def reduce(rows: list[Tensor]) -> Tensor:
        """Return the middle one of `rows`, which are sorted at each coordinate; for an even number the mean of the middle two, half their
        sum.
        """
        return rows[middle] if len(rows) % 2 else (rows[middle - 1] + rows[middle]).mul_(0.5)

    return _reduce_by_coordinate(vectors, reduce)


def trimmed_mean(vectors: Sequence[Tensor], *, trim: int) -> Tensor:
    """Return the mean of the vectors at each coordinate without its `trim` lowest and `trim` highest values, summed in ascending
    order, then divided once. Raises Refused unless 2 trim < k, or for NaN.
    """
    _check_vectors(vectors)
    if trim < 0 or 2 * trim >= len(vectors):
        raise Refused(f"trim: {trim} of {len(vectors)} vectors; 0 <= 2 trim < {len(vectors)} is expected")

    def reduce(rows: list[Tensor]) -> Tensor:
        """Return the mean of `rows`, which are sorted at each coordinate, without the first and the last `trim` of them."""
        kept = rows[trim : len(rows) - trim]
        total = kept[0].clone()
        for row in kept[1:]:
            total.add_(row)
        return total.div_(float(len(kept)))

    return _reduce_by_coordinate(vectors, reduce)


def krum(vectors: Sequence[Tensor], *, faulty: int, select: int = 1) -> Tensor:
    """Return the mean of the `select` vectors with the lowest Krum scores, summed in index order; if `select` is 1, a copy of that vector.
    `faulty`: number of faulty vectors to tolerate. Raises Refused as `choose_by_krum` does.
    """
    chosen = [vectors[index] for index in choose_by_krum(vectors, faulty=faulty, select=select)]
    return mean(chosen, [1] * len(chosen))


def choose_by_krum(vectors: Sequence[Tensor], *, faulty: int, select: int = 1) -> list[int]:
    """Return the indices of the `select` vectors with the lowest Krum scores, ascending. A vector's score is the sum of its k -
    faulty - 2 smallest squared distances to the others; ties go to the lower index.

    `faulty`: number of faulty vectors to tolerate. Distances are in float64; those that overflow count as infinite. Raises Refused
    if k < 2 faulty + 3, or if `select` is out of range.
    """
    _check_vectors(vectors)
    count = len(vectors)
    if faulty < 0 or count < 2 * faulty + 3:
        raise Refused(
            f"faulty: {faulty} of {count} vectors; Krum needs at least 2 * faulty + 3 = {2 * faulty + 3} vectors"
        )
    if not 1 <= select <= count - faulty - 2:
        raise Refused(f"select: {select}; 1 to {count - faulty - 2} is expected, for {faulty} faulty of {count}")
    distances: list[list[float]] = [[] for _ in vectors]
    for (i, first), (j, second) in combinations(enumerate(vectors), 2):
        distance = squared_distance(first, second)
        distances[i].append(distance)
        distances[j].append(distance)
    scores = [sum(sorted(row)[: count - faulty - 2]) for row in distances]
    return sorted(sorted(range(count), key=lambda index: (scores[index], index))[:select])


def squared_distance(first: Tensor, second: Tensor) -> float:
    """Return ||first - second||^2 in float64, or infinity if it is undefined (inf - inf)."""
    total = 0.0
    for start in range(0, first.numel(), _BLOCK):
        part = slice(start, start + _BLOCK)
        total += float((first[part].double() - second[part].double()).square().sum())
    return math.inf if math.isnan(total) else total


def _reduce_by_coordinate(vectors: Sequence[Tensor], reduce: Callable[[list[Tensor]], Tensor]) -> Tensor:
    """Return the vector of `reduce`'s results over all coordinates, as long as each of `vectors`, which are not changed. `vectors`: k
    vectors of equal length; `reduce`: called for each block of coordinates with k rows, sorted so that row i holds each coordinate's i-th
    smallest value; returns one value per coordinate, and must not change the rows, which may be parts of the vectors.
    """
    network, result = _build_sorting_network(len(vectors)), torch.empty_like(vectors[0])
    for start in range(0, result.numel(), _BLOCK):
        part = slice(start, start + _BLOCK)
        rows = [vector[part] for vector in vectors]
        for low, high in network:
            # Equal values stay in place, so that zeros of either sign end where the database puts them; torch.minimum
            # does not promise that.
            swap = rows[high] < rows[low]
            rows[low], rows[high] = torch.where(swap, rows[high], rows[low]), torch.where(swap, rows[low], rows[high])
        result[part] = reduce(rows)
    return result


def _build_sorting_network(count: int) -> list[tuple[int, int]]:
    """Return (low, high) index pairs: swapping, pair by pair, the two values that are out of order sorts any `count` rows.
    Batcher's merge exchange (Knuth, volume 3, algorithm 5.2.2M).
    """
    pairs: list[tuple[int, int]] = []
    power = 1 << max(count - 1, 0).bit_length() >> 1
    p = power
    while p > 0:
        q, r, distance = power, 0, p
        while True:
            pairs += [(i, i + distance) for i in range(count - distance) if i & p == r]
            if q == p:
                break
            distance, q, r = q - p, q // 2, p
        p //= 2
    return pairs


def _check_vectors(vectors: Sequence[Tensor]) -> None:
    """Raise Refused unless there is at least one vector and all have one length and no NaN."""
    if not vectors:
        raise Refused("vectors: none given; at least one is needed")
    lengths = {tuple(vector.shape) for vector in vectors}
    if len(lengths) > 1:
        raise Refused(f"vectors: shapes {sorted(lengths)}; vectors of one length are needed")
    for index, vector in enumerate(vectors):
        if bool(vector.isnan().any()):
            raise Refused(f"vectors: number {index} of {len(vectors)} holds NaN; robust rules take no poisoned input")


# --- attacks ----------------------------------------------------------------------------------------------------------
# What a faulty worker does to its gradient or its labels, so that a robust rule can show what it is worth.


def flip_sign(gradient: Tensor, *, scale: float) -> Tensor:
    """Return -scale * gradient, as a faulty worker would send it."""
    return gradient.mul(-scale)


def draw_gaussian(gradient: Tensor, *, scale: float, generator: torch.Generator) -> Tensor:
    """Return normal noise, drawn by `generator`, to be sent instead of the gradient. Its standard deviation is the gradient's root
    mean square times `scale`.
    """
    spread = float(gradient.double().square().mean().sqrt()) * scale
    return torch.randn(gradient.shape, dtype=gradient.dtype, generator=generator).mul_(spread)


def insert_non_finite(gradient: Tensor, *, generator: torch.Generator) -> Tensor:
    """Return a copy of the gradient in which one element is NaN, infinity or minus infinity. `generator`: draws the element and which of
    the three it becomes, each equally likely.
    """
    changed = gradient.clone()
    place, value = (int(torch.randint(choices, (), generator=generator)) for choices in (gradient.numel(), 3))
    changed[place] = (math.nan, math.inf, -math.inf)[value]
    return changed


def flip_labels(labels: Tensor, *, classes: int) -> Tensor:
    """Return the labels with each class c replaced by classes - 1 - c; labels below 0, which do not count, are unchanged."""
    return torch.where(labels < 0, labels, classes - 1 - labels)


def attack_vector(vector: Tensor, *, attack: str, scale: float, generator: torch.Generator, buffers: int = 0) -> Tensor:
    """Return the vector that a faulty worker sends instead of `vector`, [P gradient | B statistics]: a new one, in which only the gradient
    differs, or `vector` itself for an attack that changes nothing here.

    `attack`: sign_flip, gaussian, non_finite, or none and label_flip, which change nothing here. `scale`: factor of the flipped gradient or
    of the noise; `generator`: draws the noise, or the position of the non-finite value. `buffers`: B; statistics stay because a variance
    must not become negative. Raises ValueError for an unknown attack.
    """
    count = vector.numel() - buffers
    match attack:
        case "sign_flip":
            changed = flip_sign(vector[:count], scale=scale)
        case "gaussian":
            changed = draw_gaussian(vector[:count], scale=scale, generator=generator)
        case "non_finite":
            changed = insert_non_finite(vector[:count], generator=generator)
        case "none" | "label_flip":
            return vector
        case _:
            raise ValueError(f"attack: {attack!r}; one of none, sign_flip, gaussian, label_flip, non_finite")
    return torch.cat([changed, vector[count:]])
