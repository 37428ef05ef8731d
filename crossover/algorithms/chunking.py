"""A flat vector of D elements cut into consecutive parts: ScatterReduce's chunks, one per worker, and what P2P's functions average."""

import itertools

PART_BYTES = 64 * 2**20  # of a gradient, for one averaging function: it reads so much of every batch's


def chunk_sizes(elements: int, workers: int) -> list[int]:
    """Chunk i has D // W elements, and one more while i < D % W. Chunks may be empty where D < W."""
    if workers < 1 or elements < 0:
        raise ValueError(f"chunks: {elements} elements for {workers} workers; at least 0 and 1 are needed")
    return [elements // workers + (worker < elements % workers) for worker in range(workers)]


def chunk(elements: int, workers: int, *, worker: int, unit: int = 1) -> slice:
    """Where chunk `worker` lies in the vector, which is shared out by `unit` elements: those of a quantizer's bucket stay together."""
    if not 0 <= worker < workers:
        raise ValueError(f"worker: {worker}; 0 to {workers - 1} is expected")
    sizes = chunk_sizes(-(-elements // unit), workers)
    start = unit * sum(sizes[:worker])
    return slice(min(start, elements), min(start + unit * sizes[worker], elements))


def parts(elements: int, *, most: int) -> list[slice]:
    """How functions share the averaging of a vector: by coordinates, so that each sums its part over all batches in their order and the
    bits are those of one long mean. At most as many parts as there are functions (one per batch).
    """
    count = max(1, min(most, -(-4 * elements // PART_BYTES)))
    bounds = [elements * each // count for each in range(count + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(bounds)]
