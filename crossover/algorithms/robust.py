"""Robust rules over the workers' averages: coordinate-wise median and trimmed mean (Yin et al. 2018), Krum (Blanchard et al. 2017).

Unweighted. The coordinate-wise rules give the same bits as the tensor database, whose sorting network they share. Every rule raises Refused
on NaN in an input (a poisoned gradient must not hide) and on a number of vectors that its parameter does not allow.
"""

import math
from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from torch import Tensor

from crossover.algorithms.averaging import mean
from crossover.errors import Refused

_BLOCK = 65_536  # elements: what is sorted at a time stays in the processor's cache


def median(vectors: Sequence[Tensor]) -> Tensor:
    """The median of each coordinate of k vectors (D,) float32; for an even k the middle two are added, then halved, in float32."""
    _check(vectors)
    middle = len(vectors) // 2

    def reduce(rows: list[Tensor]) -> Tensor:
        return rows[middle] if len(rows) % 2 else (rows[middle - 1] + rows[middle]).mul_(0.5)

    return _by_coordinate(vectors, reduce)


def trimmed_mean(vectors: Sequence[Tensor], *, trim: int) -> Tensor:
    """Each coordinate without its `trim` lowest and highest values: the rest summed in ascending order, then one division. 2 trim < k."""
    _check(vectors)
    if trim < 0 or 2 * trim >= len(vectors):
        raise Refused(f"trim: {trim} of {len(vectors)} vectors; 0 <= 2 trim < {len(vectors)} is expected")

    def reduce(rows: list[Tensor]) -> Tensor:
        kept = rows[trim : len(rows) - trim]
        total = kept[0].clone()
        for row in kept[1:]:
            total.add_(row)
        return total.div_(float(len(kept)))

    return _by_coordinate(vectors, reduce)


def krum(vectors: Sequence[Tensor], *, faulty: int, select: int = 1) -> Tensor:
    """The mean, in index order, of the `select` vectors with the best Krum scores (one: that vector itself). k >= 2 faulty + 3."""
    chosen = [vectors[index] for index in krum_choice(vectors, faulty=faulty, select=select)]
    return mean(chosen, [1] * len(chosen))


def krum_choice(vectors: Sequence[Tensor], *, faulty: int, select: int = 1) -> list[int]:
    """The indices that Krum selects, ascending: smallest sum of the k - faulty - 2 smallest squared distances, ties to the lower index.

    Distances are in float64; those that overflow count as infinite.
    """
    _check(vectors)
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
    """||first - second||^2 in float64; infinity where it cannot be told (inf - inf)."""
    total = 0.0
    for start in range(0, first.numel(), _BLOCK):
        part = slice(start, start + _BLOCK)
        total += float((first[part].double() - second[part].double()).square().sum())
    return math.inf if math.isnan(total) else total


def _by_coordinate(vectors: Sequence[Tensor], reduce: Callable[[list[Tensor]], Tensor]) -> Tensor:
    """`reduce` of the rows sorted by coordinate (row i holds the i-th smallest values), block by block."""
    network, result = _sorting_network(len(vectors)), torch.empty_like(vectors[0])
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


def _sorting_network(count: int) -> list[tuple[int, int]]:
    """Compare-exchange pairs that sort any `count` rows: Batcher's merge exchange (Knuth, volume 3, algorithm 5.2.2M)."""
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


def _check(vectors: Sequence[Tensor]) -> None:
    if not vectors:
        raise Refused("vectors: none given; at least one is needed")
    lengths = {tuple(vector.shape) for vector in vectors}
    if len(lengths) > 1:
        raise Refused(f"vectors: shapes {sorted(lengths)}; vectors of one length are needed")
    for index, vector in enumerate(vectors):
        if bool(vector.isnan().any()):
            raise Refused(f"vectors: number {index} of {len(vectors)} holds NaN; robust rules take no poisoned input")
