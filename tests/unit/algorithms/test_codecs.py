"""Every way to compress a gradient: as many bytes as it says, read back near what was written, and in parts as it is whole."""

import pytest
import torch

from crossover.algorithms import buffers, compression
from crossover.algorithms.codecs import Codec, HalfPrecision, Largest, Quantized
from crossover.algorithms.compression import make_generator
from crossover.algorithms.schedule import chunk_slice
from crossover.errors import Corrupt, Refused

WAYS = [
    HalfPrecision(),
    Quantized(8, 128, "max"),
    Quantized(3, 512, "l2"),
    Quantized(4, 200, "l2"),
    Largest(0.01),
]
NAMES = ["fp16", "8 bits", "3 bits", "4 bits", "top 1 %"]


@pytest.mark.parametrize("parameters", [1, 129, 4_001])
@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_what_was_written_is_read_back_and_has_the_size_that_was_said(way: Codec, parameters: int) -> None:
    """An encoded vector has the announced number of bytes, is the same each time, and decodes to values near the original."""
    values = torch.randn(parameters, generator=make_generator("values", parameters))
    data, again = (way.encode(values, random=make_generator("noise", 1))[0] for _ in range(2))
    assert data.numel() == way.nbytes(parameters)
    assert torch.equal(data, again)
    out = torch.full((parameters,), torch.nan)
    way.decode(buffers.view(data.contiguous()), out=out, what="x")
    assert bool(((out - values).abs() <= values.norm()).all())


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_parts_hold_the_bits_of_the_whole(way: Codec, count: int) -> None:
    """A vector that is encoded in chunks decodes to the same bits as one that is encoded whole."""
    values, whole = torch.randn(70_001, generator=make_generator("values", 1)), torch.empty(70_001)
    way.decode(buffers.view(way.encode(values, random=make_generator("noise", 1))[0]), out=whole, what="x")
    parts = [chunk_slice(values.numel(), count, worker=worker, unit=way.unit) for worker in range(count)]
    together = torch.full_like(whole, torch.nan)
    for part, body in zip(parts, way.encode(values, random=make_generator("noise", 1), parts=parts), strict=True):
        way.decode(buffers.view(body), out=together[part], what="x")
    assert torch.equal(together, whole)


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_bytes_of_another_length_are_refused_by_name(way: Codec) -> None:
    """Bytes that are too short or too long raise Corrupt, which names whose they are."""
    body = way.encode(torch.ones(1_000), random=make_generator("noise", 1))[0]
    for data in (body[:-1], torch.cat([body, body[:1]]), body[:3]):
        with pytest.raises(Corrupt, match="worker 3"):
            way.decode(buffers.view(data.contiguous()), out=torch.empty(1_000), what="worker 3")
    with pytest.raises(Corrupt, match="worker 3"):
        way.decode(buffers.view(body), out=torch.empty(999), what="worker 3")


@pytest.mark.parametrize("elements", [10, 5_000, 100_000])
@pytest.mark.parametrize("levels", [3, 40, 10**9])
def test_the_largest_are_those_that_sorting_finds(elements: int, levels: int) -> None:
    """`find_largest` returns the indexes of the largest magnitudes; of equal ones the first, as a stable sort would."""
    random = make_generator("values", elements, levels)
    values = torch.randint(-levels, levels + 1, (elements,), generator=random).float() / levels
    for count in (1, elements // 100 + 1, elements // 3, elements - 1, elements):
        by_magnitude = sorted(range(elements), key=lambda i: (-abs(values[i].item()), i)) if elements < 99 else None
        order = by_magnitude or values.abs().sort(descending=True, stable=True).indices.tolist()
        assert compression.find_largest(values, count).tolist() == sorted(order[:count])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_the_largest_of_what_is_not_finite_are_refused(bad: float) -> None:
    """top_k raises Refused for a vector with NaN or infinity."""
    with pytest.raises(Refused, match="not finite"):
        Largest(0.01).encode(torch.tensor([1.0, bad]), random=make_generator("noise", 1))
