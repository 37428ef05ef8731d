"""QSGD: stochastic quantization of a gradient to a few bits per coordinate, packed into bits.

Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding" (2017). A bucket of d coordinates shares one
scale (its L2 norm, or its largest magnitude); a coordinate v becomes the integer floor(v s / scale + u) with u uniform in [0, 1) and s =
2^(bits-1) - 1, so that its expectation is v. Variance per bucket: L2 at most min(d/s^2, sqrt(d)/s) ||v||^2, max at most d max^2 / (4 s^2).
"""

import struct
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from crossover.algorithms import buffers
from crossover.errors import Corrupt, Refused

Norm = Literal["l2", "max"]

_LAYOUT = struct.Struct("<4sBBxxIQ")  # magic, bits, norm, bucket, elements
_MAGIC = b"XQSG"
_NORMS: tuple[Norm, ...] = ("l2", "max")
_BLOCK = 65_536  # elements worked on at a time: they stay in the processor's cache


@dataclass(frozen=True)
class Levels:
    """A quantized gradient before it is packed: `codes` (D,) uint8 below 2^bits, one of `scales` for each bucket."""

    codes: Tensor
    scales: Tensor
    bits: int
    bucket: int
    norm: Norm

    def part(self, part: slice) -> "Levels":
        """Of some elements; they begin where a bucket does, and end there or with the gradient."""
        begin, end, _ = part.indices(self.codes.numel())
        scales = self.scales[begin // self.bucket : -(-end // self.bucket)] if begin < end else self.scales[:0]
        return replace(self, codes=self.codes[begin:end], scales=scales)


def quantize(gradient: Tensor, *, bits: int, bucket: int, norm: Norm, generator: torch.Generator) -> Levels:
    """gradient (D,) float32 -> its levels. Raises ValueError on bits outside 2..8 or a bucket below 128, Refused on a coordinate that is
    not finite.
    """
    if not 2 <= bits <= 8 or bucket < 128:
        raise ValueError(f"qsgd: bits {bits}, bucket {bucket}; bits 2 to 8 and a bucket of at least 128 are expected")
    scales = _scales(gradient, bucket=bucket, norm=norm)
    if not bool(scales.isfinite().all()):
        raise Refused("qsgd: the gradient has a coordinate that is not finite, or overflows its norm")
    codes = torch.empty(gradient.numel(), dtype=torch.uint8)
    levels = (1 << (bits - 1)) - 1
    factors = torch.where(scales > 0, levels / scales, 0.0).nan_to_num_(posinf=0.0)
    step = _block_elements(bucket, bits)
    random = torch.empty(step // 4, dtype=torch.int64)
    values, noise = torch.empty(step), torch.empty(step)
    for start in range(0, gradient.numel(), step):
        part = gradient[start : start + step]
        count, first = part.numel(), start // bucket
        y, u = values[:count], noise[:count]
        _scaled(part, factors[first : first + -(-count // bucket)], bucket, out=y)
        # 64 random bits serve four coordinates: 16 bits each bias a level by at most 2^-17.
        random.random_(-(2**63), None, generator=generator)
        u.copy_(random.view(torch.int16)[:count]).mul_(2.0**-16)
        y.add_(u).add_(levels + 0.5).floor_().clamp_(0, 2 * levels)
        codes[start : start + count] = y
    return Levels(codes, scales, bits, bucket, norm)


def pack(levels: Levels) -> Tensor:
    """Bytes (uint8): header, one float32 scale per bucket, codes of `bits` bits."""
    bits, bucket, elements = levels.bits, levels.bucket, levels.codes.numel()
    body = torch.empty(compressed_bytes(elements, bits=bits, bucket=bucket), dtype=torch.uint8)
    head = _LAYOUT.pack(_MAGIC, bits, _NORMS.index(levels.norm), bucket, elements)
    scales_end = len(head) + 4 * levels.scales.numel()
    body[: len(head)] = buffers.tensor(head, torch.uint8)
    body[len(head) : scales_end] = levels.scales.view(torch.uint8)
    packed, step = body[scales_end:], _block_elements(bucket, bits)
    for start in range(0, elements, step):
        part, at = levels.codes[start : start + step], start * bits // 8
        _pack(part, bits, packed[at : at + _packed_bytes(part.numel(), bits)])
    return body


def decompress(body: Tensor, *, out: Tensor | None = None, key: str = "qsgd") -> Tensor:
    """The bytes of `pack` -> (D,) float32. Raises Corrupt, naming `key`, where they are none, or not as long as `out`."""
    if body.numel() < _LAYOUT.size:
        raise Corrupt(f"{key}: {body.numel()} bytes; a quantized gradient has a header of {_LAYOUT.size}")
    magic, bits, norm, bucket, elements = _LAYOUT.unpack(bytes(buffers.view(body[: _LAYOUT.size].contiguous())))
    known = magic == _MAGIC and 2 <= bits <= 8 and bucket >= 128 and norm < len(_NORMS)
    buckets = -(-elements // bucket) if known else 0
    size = _LAYOUT.size + 4 * buckets + _packed_bytes(elements, bits)
    if not known or body.numel() != size:
        raise Corrupt(f"{key}: {body.numel()} bytes that are no quantized gradient")
    if out is not None and out.numel() != elements:
        raise Corrupt(f"{key}: a quantized gradient of {elements} elements where {out.numel()} are expected")
    scales = body[_LAYOUT.size : _LAYOUT.size + 4 * buckets].clone().view(torch.float32)
    if not bool(scales.isfinite().all()):
        raise Corrupt(f"{key}: a scale that is not finite")
    codes = body[_LAYOUT.size + 4 * buckets :]
    levels = (1 << (bits - 1)) - 1
    factors = scales / levels
    result = torch.empty(elements) if out is None else out
    step = _block_elements(bucket, bits)
    bytes_ = torch.empty(step, dtype=torch.uint8)
    for start in range(0, elements, step):
        part = result[start : start + step]
        count, first = part.numel(), start // bucket
        packed_start = start * bits // 8
        packed = codes[packed_start : packed_start + _packed_bytes(count, bits)]
        part.copy_(_unpack(packed, bits, bytes_[:count])).sub_(levels)
        _scaled(part, factors[first : first + -(-count // bucket)], bucket, out=part)
    return result


def compressed_bytes(elements: int, *, bits: int, bucket: int) -> int:
    """The length of what `pack` returns."""
    return _LAYOUT.size + 4 * -(-elements // bucket) + _packed_bytes(elements, bits)


def _scales(gradient: Tensor, *, bucket: int, norm: Norm) -> Tensor:
    """One scale per bucket; the last bucket may be shorter."""
    whole = gradient.numel() // bucket * bucket
    parts = [gradient[:whole].view(-1, bucket), gradient[whole:].view(1, -1)]
    return torch.cat([_norms(part, norm) for part in parts if part.numel()] or [torch.empty(0)])


def _norms(rows: Tensor, norm: Norm) -> Tensor:
    if norm == "l2":
        lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
        return lengths
    low, high = torch.aminmax(rows, dim=1)  # several times as fast as vector_norm with infinity
    largest: Tensor = torch.maximum(high, low.neg_())
    return largest


def _scaled(values: Tensor, factors: Tensor, bucket: int, *, out: Tensor) -> None:
    """values * their bucket's factor."""
    whole = values.numel() // bucket * bucket
    torch.mul(
        values[:whole].view(-1, bucket), factors[: whole // bucket].unsqueeze(1), out=out[:whole].view(-1, bucket)
    )
    if whole < values.numel():
        torch.mul(values[whole:], factors[-1], out=out[whole:])


def _block_elements(bucket: int, bits: int) -> int:
    """Whole buckets, and whole groups of eight codes, so that every block begins at a byte."""
    unit = bucket * 8
    return max(1, _BLOCK // unit) * unit


def _packed_bytes(count: int, bits: int) -> int:
    return -(-count * bits // 8)


def _pack(codes: Tensor, bits: int, out: Tensor) -> None:
    """Codes (uint8 below 2^bits) into ceil(count * bits / 8) bytes.

    The block's first half stands in the low bits and its second half in the high bits, so that nothing is interleaved; widths that do not
    divide a byte go eight codes at a time through one 64-bit word.
    """
    count = codes.numel()
    if bits == 8:
        out.copy_(codes)
    elif bits in (2, 4):
        rows = torch.zeros(8 // bits, out.numel(), dtype=torch.uint8)
        rows.view(-1)[:count] = codes
        out.copy_(rows[0])
        for i in range(1, 8 // bits):
            out.bitwise_or_(rows[i].bitwise_left_shift_(i * bits))
    else:
        groups = torch.zeros(-(-count // 8), 8, dtype=torch.int64)
        groups.view(-1)[:count] = codes
        words = groups[:, 0].clone(memory_format=torch.contiguous_format)
        for i in range(1, 8):
            words.bitwise_or_(groups[:, i] << (i * bits))
        out.copy_(words.view(torch.uint8).view(-1, 8)[:, :bits].reshape(-1)[: out.numel()])


def _unpack(packed: Tensor, bits: int, out: Tensor) -> Tensor:
    """The inverse of `_pack`: `out` (count,) uint8."""
    count = out.numel()
    if bits == 8:
        return packed
    if bits in (2, 4):
        for i in range(8 // bits):
            part = out[i * packed.numel() : (i + 1) * packed.numel()]
            torch.bitwise_right_shift(packed[: part.numel()], i * bits, out=part)
        return out.bitwise_and_((1 << bits) - 1)
    groups = -(-count // 8)
    padded = torch.zeros(groups * bits, dtype=torch.uint8)
    padded[: packed.numel()] = packed
    words = torch.zeros(groups, 8, dtype=torch.uint8)
    words[:, :bits] = padded.view(groups, bits)
    word = words.view(torch.int64).view(groups)
    codes = torch.stack([(word >> (i * bits)) & ((1 << bits) - 1) for i in range(8)], dim=1)
    return out.copy_(codes.view(-1)[:count])
