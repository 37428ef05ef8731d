"""Every way to compress a gradient: as many bytes as it says, and read back near what was written."""

import pytest
import torch

from crossover.algorithms import buffers
from crossover.algorithms.compression import Compression, HalfPrecision, Quantized, Uncompressed
from crossover.algorithms.randomness import generator


@pytest.mark.parametrize("parameters", [1, 129, 4_001])
@pytest.mark.parametrize("way", [Uncompressed(), HalfPrecision(), Quantized(8, 128, "max"), Quantized(3, 512, "l2")])
def test_what_was_written_is_read_back_and_has_the_size_that_was_said(way: Compression, parameters: int) -> None:
    values = torch.randn(parameters, generator=generator("values", parameters))
    data, again = (way.encode(values, random=generator("noise", 1)) for _ in range(2))
    assert data.numel() == way.nbytes(parameters)
    assert torch.equal(data, again)
    out = torch.full((parameters,), torch.nan)
    way.decode(buffers.view(data.contiguous()), out=out, what="x")
    assert bool(((out - values).abs() <= (0.0 if way.lossless else values.norm())).all())
