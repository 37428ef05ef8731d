"""QSGD: unbiased, within the variance bounds, packed into the promised bits, and strict about what it reads."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossover.algorithms.compression import Norm, decompress, pack, quantize
from crossover.algorithms.encoded_sizes import qsgd_bytes
from crossover.errors import Corrupt, Refused

WIDTHS = range(2, 9)
NORMS: tuple[Norm, ...] = ("l2", "max")


def compress(gradient: torch.Tensor, *, bits: int, bucket: int, norm: Norm, generator: torch.Generator) -> torch.Tensor:
    """Return the gradient quantized and packed into bytes."""
    return pack(quantize(gradient, bits=bits, bucket=bucket, norm=norm, generator=generator))


def generator(seed: int = 1) -> torch.Generator:
    """Return a generator of random numbers with this seed."""
    return torch.Generator().manual_seed(seed)


@pytest.mark.sampled
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bits", WIDTHS)
def test_it_is_unbiased_and_its_variance_stays_within_the_bound(bits: int, norm: Norm) -> None:
    """Check mean and variance of the error over 2,000 quantizations of one vector."""
    draws, bucket = 2_000, 128
    vector = torch.randn(2 * bucket, generator=generator()) * torch.logspace(-3, 0, 2 * bucket)
    body = compress(vector.repeat(draws), bits=bits, bucket=bucket, norm=norm, generator=generator(2))
    samples = decompress(body).view(draws, -1).double()
    error = samples - vector.double()
    levels = 2 ** (bits - 1) - 1
    # Bernstein's inequality at exp(-13) per side, since a small coordinate is a rare event; and the 2^-17 of a level that 16 bits leave.
    parts = torch.split(vector.double(), bucket)
    width = torch.cat([(p.abs().max() if norm == "max" else p.norm()).expand(p.numel()) for p in parts]) / levels
    up = (vector.double() / width) % 1
    deviation = (26 * up * (1 - up) / draws).sqrt() * width + 13 * width / (3 * draws) + width * 2**-16
    assert bool((error.mean(dim=0).abs() <= deviation).all())
    measured = error.square().mean(dim=0)
    for start in range(0, 2 * bucket, bucket):
        part = vector[start : start + bucket].double()
        d = part.numel()
        square = float(part.square().sum())
        l2_bound = min(d / levels**2, math.sqrt(d) / levels) * square
        bound = l2_bound if norm == "l2" else d * float(part.abs().max()) ** 2 / (4 * levels**2)
        assert float(measured[start : start + bucket].sum()) <= bound * 1.05


@settings(max_examples=60, deadline=None)
@given(
    elements=st.integers(0, 3_000) | st.sampled_from([65_536, 65_537, 140_001]),
    bits=st.sampled_from(list(WIDTHS)),
    bucket=st.sampled_from([128, 200, 512]),
    norm=st.sampled_from(NORMS),
)
def test_every_coordinate_comes_back_within_one_level(elements: int, bits: int, bucket: int, norm: Norm) -> None:
    """Check that each decompressed element is within one level of the original, and the number of bytes."""
    vector = torch.randn(elements, generator=generator(elements))
    body = compress(vector, bits=bits, bucket=bucket, norm=norm, generator=generator())
    assert body.numel() == qsgd_bytes(elements, bits=bits, bucket=bucket)
    back = decompress(body)
    assert back.shape == vector.shape
    for start in range(0, elements, bucket):
        part = vector[start : start + bucket]
        scale = part.abs().max() if norm == "max" else part.norm()
        assert float((back[start : start + bucket] - part).abs().max()) <= float(scale) / (2 ** (bits - 1) - 1) * 1.001


def test_zeros_stay_zeros_and_the_largest_stays_the_largest() -> None:
    """Zeros are decompressed to zeros, and the largest element of a bucket to itself."""
    assert not decompress(compress(torch.zeros(1_000), bits=4, bucket=128, norm="l2", generator=generator())).any()
    spike = torch.zeros(256)
    spike[7] = -3.0
    back = decompress(compress(spike, bits=2, bucket=128, norm="max", generator=generator()))
    assert back[7] == -3.0
    assert int(back.count_nonzero()) == 1


def test_eight_and_four_bits_take_a_quarter_and_an_eighth() -> None:
    """Check the compressed size of MobileNet's gradient as a share of float32."""
    elements = 3_217_226
    assert qsgd_bytes(elements, bits=8, bucket=128) <= 0.26 * 4 * elements
    assert qsgd_bytes(elements, bits=4, bucket=512) <= 0.14 * 4 * elements


def test_the_same_generator_gives_the_same_bytes() -> None:
    """Check that two generators of one seed give equal compressed bytes."""
    vector = torch.randn(5_000, generator=generator())
    first, second = (compress(vector, bits=4, bucket=512, norm="max", generator=generator(3)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("norm", NORMS)
def test_what_is_not_finite_is_refused(bad: float, norm: Norm) -> None:
    """Check that quantizing a vector with the value `bad` raises Refused."""
    vector = torch.zeros(1_000)
    vector[999] = bad
    with pytest.raises(Refused, match="not finite"):
        compress(vector, bits=8, bucket=128, norm=norm, generator=generator())


@pytest.mark.parametrize(("bits", "bucket"), [(1, 128), (9, 128), (8, 127)])
def test_settings_out_of_range_are_refused(bits: int, bucket: int) -> None:
    """Check that too few or too many bits, or a bucket below 128, raise ValueError."""
    with pytest.raises(ValueError, match="expected"):
        compress(torch.zeros(10), bits=bits, bucket=bucket, norm="max", generator=generator())


@pytest.mark.parametrize("damage", ["cut", "longer", "magic", "empty", "scale"])
def test_damaged_bytes_are_refused_by_name(damage: str) -> None:
    """Compressed bytes with this `damage` raise Corrupt, which names whose they are."""
    body = compress(torch.ones(1_000), bits=8, bucket=128, norm="max", generator=generator())
    match damage:
        case "cut":
            body = body[:-1]
        case "longer":
            body = torch.cat([body, body[:1]])
        case "magic":
            body = body.clone()
            body[0] = 0
        case "empty":
            body = body[:0]
        case "scale":
            body = body.clone()
            body[20:24] = torch.tensor([float("inf")]).view(torch.uint8)
    with pytest.raises(Corrupt, match="peer 3"):
        decompress(body, key="peer 3")
