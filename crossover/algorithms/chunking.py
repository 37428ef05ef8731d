"""ScatterReduce's chunks: a flat vector of D elements cut into W consecutive parts, one per worker."""


def chunk_sizes(elements: int, workers: int) -> list[int]:
    """Chunk i has D // W elements, and one more while i < D % W. Chunks may be empty where D < W."""
    if workers < 1 or elements < 0:
        raise ValueError(f"chunks: {elements} elements for {workers} workers; at least 0 and 1 are needed")
    return [elements // workers + (worker < elements % workers) for worker in range(workers)]


def chunk(elements: int, workers: int, *, worker: int) -> slice:
    """Where chunk `worker` lies in the vector."""
    if not 0 <= worker < workers:
        raise ValueError(f"worker: {worker}; 0 to {workers - 1} is expected")
    sizes = chunk_sizes(elements, workers)
    start = sum(sizes[:worker])
    return slice(start, start + sizes[worker])
