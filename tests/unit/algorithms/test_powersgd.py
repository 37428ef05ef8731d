"""PowerSGD against PyTorch's own, and by the properties that its paper gives it."""

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as distributed
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as pytorch

from crossover.algorithms.compression import PowerSGD, make_generator
from crossover.algorithms.low_rank import build_layout

SHAPES = [(8, 3, 3, 3), (8,), (16, 8, 1, 1), (16, 1, 3, 3), (16,), (10, 64), (10,)]
ELEMENTS = sum(torch.Size(shape).numel() for shape in SHAPES)
RANKS = (2, 4)  # with Gram and Schmidt, and by QR
WORKERS, STEPS, VANILLA = (
    2,
    10,
    2,
)  # PyTorch's hook averages plainly in its first iterations: at least two, with error feedback


def gradient(worker: int, step: int) -> Tensor:
    """Return the gradient of a worker in a step in float64, the same at each call."""
    return torch.randn(ELEMENTS, dtype=torch.float64, generator=make_generator("gradient", worker, step))


class Bucket:
    """All gradients, as DistributedDataParallel hands them to its hook."""

    def __init__(self, vector: Tensor) -> None:
        """Hold the gradients in `vector`."""
        self.vector = vector

    def buffer(self) -> Tensor:
        """Return the whole vector."""
        return self.vector

    def gradients(self) -> list[Tensor]:
        """Return the vector's parts in the shapes of SHAPES."""
        parts = self.vector.split([torch.Size(shape).numel() for shape in SHAPES])
        return [part.view(shape) for part, shape in zip(parts, SHAPES, strict=True)]

    def index(self) -> int:
        """Return 0: there is one bucket."""
        return 0

    def is_last(self) -> bool:
        """Return True: there is one bucket."""
        return True


def with_pytorch(worker: int, meeting: str, results: Any, told: Any) -> None:
    """Run one process of PyTorch's own PowerSGD hook, put what it makes of the gradients, by rank in RANKS and step, into `results`, and
    end the process. The hook's last futures hold the group, and a thread of the group that drops it last would wait for itself and abort
    the process; so the process ends without closing the group, once `told` says that all results have arrived.
    """
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=meeting, rank=worker, world_size=WORKERS)
    found: list[list[list[float]]] = []
    for rank in RANKS:
        state = pytorch.PowerSGDState(
            None, matrix_approximation_rank=rank, start_powerSGD_iter=VANILLA, min_compression_rate=1
        )
        own = PowerSGD(SHAPES, rank=rank, seed=1, feedback=True, dtype=torch.float64)
        state.p_memory_dict[0] = torch.empty(own.layout.p_elements, dtype=torch.float64)
        state.q_memory_dict[0] = own.q  # the same first Q: there before the hook would draw its own
        buckets = [Bucket(gradient(worker, step)) for step in range(-VANILLA, STEPS)]
        found.append([pytorch.powerSGD_hook(state, bucket).wait().tolist() for bucket in buckets][VANILLA:])  # type: ignore[arg-type]
    results.put((worker, found))
    results.close()
    results.join_thread()
    told.wait(60)
    os._exit(0)


@pytest.mark.slow
def test_it_equals_pytorchs_hook(tmp_path: Path) -> None:
    """PowerSGD's results over ten steps equal those of PyTorch's own hook in float64, with error feedback and the same first Q."""
    many = multiprocessing.get_context("spawn")
    results, told = many.Queue(), many.Event()
    meeting = f"file://{tmp_path / 'gloo'}"
    group = [many.Process(target=with_pytorch, args=(each, meeting, results, told)) for each in range(WORKERS)]
    for process in group:
        process.start()
    theirs = dict(results.get(timeout=60) for _ in group)
    told.set()
    for process in group:
        process.join(timeout=60)
    assert theirs[0] == theirs[1]
    for rank, steps in zip(RANKS, theirs[0], strict=True):
        for (result, other), expected in zip(ours(rank), torch.tensor(steps, dtype=torch.float64), strict=True):
            assert torch.equal(result, other)
            torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().mean()))


def ours(rank: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the gradients with which the two workers end each step. `rank`: rank of the factors."""
    workers = [PowerSGD(SHAPES, rank=rank, seed=1, feedback=True, dtype=torch.float64) for _ in range(WORKERS)]
    for step in range(STEPS):
        p = torch.stack([own.build_first(gradient(worker, step)) for worker, own in enumerate(workers)]).mean(dim=0)
        q = torch.stack([own.build_second(p) for own in workers]).mean(dim=0)
        result, other = (own.finish(q) for own in workers)
        yield result, other


def test_a_gradient_of_low_rank_is_found_at_once_and_leaves_nothing() -> None:
    """A matrix of rank 1 is reproduced by the first step and leaves no residual; a zero matrix stays finite."""
    sides = make_generator("sides", 1)
    matrix = torch.outer(torch.randn(30, generator=sides), torch.randn(40, generator=sides))
    own = PowerSGD([(30, 40), (5,)], rank=2, seed=1, feedback=True, dtype=torch.float32)
    for vector in (torch.zeros(1_208), torch.cat([matrix.flatten(), torch.ones(8)])):  # three statistics behind it
        result = own.finish(own.build_second(own.build_first(vector)))
        torch.testing.assert_close(result, vector, rtol=1e-4, atol=1e-5)
        assert own.residual is not None and float(own.residual.abs().max()) < 1e-5 and not own.residual[1_200:].any()


def test_what_would_not_become_smaller_travels_whole() -> None:
    """The layout factorizes only matrices that become smaller; biases and small matrices are sent whole."""
    found = build_layout([(8, 8), (8,), (64, 2), (100, 3, 3), (4, 4)], rank=4)
    assert [(each.rows, each.columns) for each in found.matrices] == [(100, 9)]
    assert found.whole == (slice(0, 200), slice(1_100, 1_116)) and found.whole_elements == 216
    assert (found.p_elements, found.q_elements) == (400, 36)
    with pytest.raises(ValueError, match="rank 0"):
        build_layout([(8, 8)], rank=0)
