"""The codecs' arithmetic on tensors: seeded randomness, sparse vectors, quantization, low-rank approximation."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import torch
from torch import Tensor

from crossover.algorithms import buffers
from crossover.algorithms.encoded_sizes import QSGD_HEADER, SPARSE_HEADER, packed_bytes, qsgd_bytes, sparse_bytes
from crossover.algorithms.low_rank import Matrix, Shapes, build_layout
from crossover.algorithms.schedule import derive_seed
from crossover.errors import Corrupt, Refused

# --- randomness -------------------------------------------------------------------------------------------------------


def make_generator(purpose: str, *key: int) -> torch.Generator:
    """Return a new CPU random generator seeded by a hash of `purpose` and `key`. No global state is read or changed."""
    return torch.Generator().manual_seed(derive_seed(purpose, *key))


def compute_hashes(ids: Tensor, purpose: str, *key: int) -> Tensor:
    """Return for each element of `ids`, (N,) int64, a 63-bit hash that depends on `purpose` and `key` too (splitmix64), as (N,) int64 >=
    0.
    """
    start = derive_seed(purpose, *key)
    mixed = ids.to(torch.int64) * _to_signed(0x9E3779B97F4A7C15) + _to_signed(start)
    mixed = (mixed ^ _shift_right(mixed, 30)) * _to_signed(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ _shift_right(mixed, 27)) * _to_signed(0x94D049BB133111EB)
    return _shift_right(mixed ^ _shift_right(mixed, 31), 1)


def _to_signed(value: int) -> int:
    """Return the int64 number with the bits of `value`, an unsigned 64-bit number, because torch has no such integers."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """Return `value` (int64) shifted right by `bits` with zeros filled in; torch's `>>` would repeat the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


# --- sparse -----------------------------------------------------------------------------------------------------------
# An update on its way: (index, value) pairs where that is the smaller form, else all values.
#
# Sparse: uint8, a header of 16 bytes (elements uint64, pairs uint32, tail uint32, little-endian), then indices int32, values float32, and
# a tail of float32 that stands for the vector's last elements in full (BatchNorm's buffers, which are never filtered). Dense: float32, all
# elements.

_SAMPLE_ELEMENTS = 16_384  # magnitudes that tell how large the largest are, about


def encode(indices: Tensor, values: Tensor, *, elements: int, tail: Tensor | None = None) -> Tensor:
    """Return an update as bytes in sparse form, (bytes,) uint8, or as the whole vector, (elements,) float32, whichever is shorter;
    the sparse form if lengths are equal.

    `indices`: (n,), ascending and below elements - len(tail). `values`: (n,) float32. `tail`: the vector's last elements, which are
    sent in full.
    """
    rest = 0 if tail is None else tail.numel()
    if sparse_bytes(indices.numel(), tail=rest) > 4 * elements:
        dense = torch.zeros(elements, dtype=torch.float32)
        dense.index_copy_(0, indices.to(torch.int64), values)
        if tail is not None:
            dense[elements - rest :] = tail
        return dense
    head = torch.frombuffer(bytearray(SPARSE_HEADER.pack(elements, indices.numel(), rest)), dtype=torch.uint8)
    parts = [head, indices.to(torch.int32).view(torch.uint8), values.contiguous().view(torch.uint8)]
    return torch.cat([*parts, tail.contiguous().view(torch.uint8)] if tail is not None else parts)


def encode_pairs(indices: Tensor, values: Tensor, *, elements: int) -> Tensor:
    """Return (index, value) pairs as bytes in sparse form without a tail, (bytes,) uint8, even if the whole vector would be shorter.

    `indices`: (n,) ascending positions below `elements`; `values`: (n,) float32, which is not checked; `elements`: length of the vector.
    """
    head = torch.frombuffer(bytearray(SPARSE_HEADER.pack(elements, indices.numel(), 0)), dtype=torch.uint8)
    return torch.cat([head, indices.to(torch.int32).view(torch.uint8), values.contiguous().view(torch.uint8)])


def find_largest(values: Tensor, count: int) -> Tensor:
    """Return the indices, int64 ascending, of the `count` elements of largest magnitude among `values`, (D,) finite. Of equal magnitudes
    the first ones are taken. A `count` of at least D gives all indices; 0 is allowed only for an empty vector.
    """
    magnitudes, elements = values.abs(), values.numel()
    among = torch.arange(elements)
    if elements > _SAMPLE_ELEMENTS and 4 * count < elements:
        # Twice as many as needed lie beyond what a sample suggests: the search that sorts is spared the rest.
        sample = magnitudes[:: elements // _SAMPLE_ELEMENTS]
        rank = max(1, sample.numel() - sample.numel() * 2 * count // elements - 8)
        beyond = (magnitudes >= sample.kthvalue(rank).values).nonzero().squeeze(1)
        if beyond.numel() >= count:
            among, magnitudes = beyond, magnitudes[beyond]
    if count >= among.numel():
        return among
    least = magnitudes.kthvalue(magnitudes.numel() - count + 1).values
    chosen = magnitudes > least
    equal = (magnitudes == least).nonzero().squeeze(1)
    chosen[equal[: count - int(chosen.sum())]] = True
    return among[chosen]


def add_to(target: Tensor, update: Tensor) -> None:
    """Add an update, the result of `encode` or `encode_pairs`, to `target`, (D,) float32, in place.

    Raises ValueError, and changes nothing, if the update is for another length, was cut short, contains NaN or infinity, or has
    indices that are not ascending and within the vector.
    """
    if update.dtype == torch.float32:
        if update.shape != target.shape:
            raise ValueError(f"update: {update.numel()} elements for a vector of {target.numel()}")
        _refuse_infinite(update)
        target.add_(update)
        return
    indices, values, tail = _split_update(update, elements=target.numel())
    filtered = target.numel() - tail.numel()
    if indices.numel():
        ascending = bool((indices[1:] > indices[:-1]).all())
        if not ascending or int(indices[0]) < 0 or int(indices[-1]) >= filtered:
            raise ValueError(f"update: indices that are not ascending within 0 to {filtered - 1}")
    _refuse_infinite(values)
    _refuse_infinite(tail)
    target.index_add_(0, indices, values)
    target[filtered:].add_(tail)


def _split_update(update: Tensor, *, elements: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return (indices (n,) int32, values (n,) float32, tail float32) as views of an `update` in sparse form. Raises ValueError if
    its length is wrong or it was not made for a vector of `elements`.
    """
    if update.dtype != torch.uint8 or update.ndim != 1 or update.numel() < SPARSE_HEADER.size:
        raise ValueError(
            f"update: {update.numel()} elements of {update.dtype}; bytes with a header, or float32, are expected"
        )
    promised, pairs, rest = SPARSE_HEADER.unpack(bytes(update[: SPARSE_HEADER.size].tolist()))
    if promised != elements:
        raise ValueError(f"update: made for {promised} elements, the vector has {elements}")
    if update.numel() != sparse_bytes(pairs, tail=rest) or rest > elements:
        raise ValueError(
            f"update: {update.numel()} bytes; {pairs} pairs and a tail of {rest} take {sparse_bytes(pairs, tail=rest)}"
        )
    values_at, tail_at = SPARSE_HEADER.size + 4 * pairs, SPARSE_HEADER.size + 8 * pairs
    return (
        update[SPARSE_HEADER.size : values_at].view(torch.int32),
        update[values_at:tail_at].view(torch.float32),
        update[tail_at:].view(torch.float32),
    )


def _refuse_infinite(values: Tensor) -> None:
    """Raise ValueError if any of the values is NaN or infinite."""
    if bool(values.sum().isfinite()):
        return  # at once; a sum of finite values may be infinite all the same
    if not bool(values.isfinite().all()):
        raise ValueError("update: contains NaN or infinite values")


# --- qsgd -------------------------------------------------------------------------------------------------------------
# QSGD: stochastic quantization of a gradient to a few bits per coordinate, packed into bits.
#
# Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding" (2017). A bucket of d coordinates shares one
# scale (its L2 norm, or its largest magnitude); a coordinate v becomes the integer floor(v s / scale + u) with u uniform in [0, 1) and s =
# 2^(bits-1) - 1, so that its expectation is v. Variance per bucket: L2 at most min(d/s^2, sqrt(d)/s) ||v||^2, max at most d max^2 / (4
# s^2).

Norm = Literal["l2", "max"]

_MAGIC = b"XQSG"
_NORMS: tuple[Norm, ...] = ("l2", "max")
_BLOCK = 65_536  # elements worked on at a time: they stay in the processor's cache


@dataclass(frozen=True)
class Levels:
    """Gradient after QSGD's quantization and before packing. `codes`: (D,) uint8 below 2^bits. `scales`: one float32 per bucket of
    `bucket` elements, its L2 norm or largest magnitude, as `norm` says.
    """

    codes: Tensor
    scales: Tensor
    bits: int
    bucket: int
    norm: Norm

    def part(self, part: slice) -> "Levels":
        """Return the levels of a slice of elements, as views. It must begin at a bucket's start and end at a bucket's or the gradient's
        end.
        """
        begin, end, _ = part.indices(self.codes.numel())
        scales = self.scales[begin // self.bucket : -(-end // self.bucket)] if begin < end else self.scales[:0]
        return replace(self, codes=self.codes[begin:end], scales=scales)


def quantize(gradient: Tensor, *, bits: int, bucket: int, norm: Norm, generator: torch.Generator) -> Levels:
    """Return `gradient`, (D,) float32, quantized by stochastic rounding, for which `generator` draws the random numbers.

    Each `bucket` of elements is scaled by its norm (`norm`: "l2", or "max" for the largest magnitude) and rounded to levels of
    `bits` bits. Raises ValueError if `bits` is outside 2..8 or `bucket` is below 128, Refused if an element is not finite.
    """
    if not 2 <= bits <= 8 or bucket < 128:
        raise ValueError(f"qsgd: bits {bits}, bucket {bucket}; bits 2 to 8 and a bucket of at least 128 are expected")
    scales = _compute_scales(gradient, bucket=bucket, norm=norm)
    if not bool(scales.isfinite().all()):
        raise Refused("qsgd: the gradient has a coordinate that is not finite, or overflows its norm")
    codes = torch.empty(gradient.numel(), dtype=torch.uint8)
    levels = (1 << (bits - 1)) - 1
    factors = torch.where(scales > 0, levels / scales, 0.0).nan_to_num_(posinf=0.0)
    step = _count_block_elements(bucket)
    random = torch.empty(step // 4, dtype=torch.int64)
    values, noise = torch.empty(step), torch.empty(step)
    for start in range(0, gradient.numel(), step):
        part = gradient[start : start + step]
        count, first = part.numel(), start // bucket
        y, u = values[:count], noise[:count]
        _scale_by_bucket(part, factors[first : first + -(-count // bucket)], bucket, out=y)
        # 64 random bits serve four coordinates: 16 bits each bias a level by at most 2^-17.
        random.random_(-(2**63), None, generator=generator)
        u.copy_(random.view(torch.int16)[:count]).mul_(2.0**-16)
        y.add_(u).add_(levels + 0.5).floor_().clamp_(0, 2 * levels)
        codes[start : start + count] = y
    return Levels(codes, scales, bits, bucket, norm)


def pack(levels: Levels) -> Tensor:
    """Return quantized `levels` as bytes (uint8): header, one float32 scale per bucket, codes of `bits` bits each."""
    bits, bucket, elements = levels.bits, levels.bucket, levels.codes.numel()
    body = torch.empty(qsgd_bytes(elements, bits=bits, bucket=bucket), dtype=torch.uint8)
    head = QSGD_HEADER.pack(_MAGIC, bits, _NORMS.index(levels.norm), bucket, elements)
    scales_end = len(head) + 4 * levels.scales.numel()
    body[: len(head)] = buffers.tensor(head, torch.uint8)
    body[len(head) : scales_end] = levels.scales.view(torch.uint8)
    packed, step = body[scales_end:], _count_block_elements(bucket)
    for start in range(0, elements, step):
        part, at = levels.codes[start : start + step], start * bits // 8
        _pack(part, bits, packed[at : at + packed_bytes(part.numel(), bits)])
    return body


def decompress(body: Tensor, *, out: Tensor | None = None, key: str = "qsgd") -> Tensor:
    """Return the (D,) float32 vector that `body`, the result of `pack`, stands for.

    `out`: tensor to write the vector to, which is then returned; `key`: name for errors. Raises Corrupt if the bytes are invalid or do not
    fit `out`.
    """
    if body.numel() < QSGD_HEADER.size:
        raise Corrupt(f"{key}: {body.numel()} bytes; a quantized gradient has a header of {QSGD_HEADER.size}")
    magic, bits, norm, bucket, elements = QSGD_HEADER.unpack(bytes(buffers.view(body[: QSGD_HEADER.size].contiguous())))
    known = magic == _MAGIC and 2 <= bits <= 8 and bucket >= 128 and norm < len(_NORMS)
    buckets = -(-elements // bucket) if known else 0
    size = QSGD_HEADER.size + 4 * buckets + packed_bytes(elements, bits)
    if not known or body.numel() != size:
        raise Corrupt(f"{key}: {body.numel()} bytes that are no quantized gradient")
    if out is not None and out.numel() != elements:
        raise Corrupt(f"{key}: a quantized gradient of {elements} elements where {out.numel()} are expected")
    scales = body[QSGD_HEADER.size : QSGD_HEADER.size + 4 * buckets].clone().view(torch.float32)
    if not bool(scales.isfinite().all()):
        raise Corrupt(f"{key}: a scale that is not finite")
    codes = body[QSGD_HEADER.size + 4 * buckets :]
    levels = (1 << (bits - 1)) - 1
    factors = scales / levels
    result = torch.empty(elements) if out is None else out
    step = _count_block_elements(bucket)
    bytes_ = torch.empty(step, dtype=torch.uint8)
    for start in range(0, elements, step):
        part = result[start : start + step]
        count, first = part.numel(), start // bucket
        packed_start = start * bits // 8
        packed = codes[packed_start : packed_start + packed_bytes(count, bits)]
        part.copy_(_unpack(packed, bits, bytes_[:count])).sub_(levels)
        _scale_by_bucket(part, factors[first : first + -(-count // bucket)], bucket, out=part)
    return result


def _compute_scales(gradient: Tensor, *, bucket: int, norm: Norm) -> Tensor:
    """Return one scale per bucket of `bucket` elements: its L2 norm or largest magnitude. The last bucket may be shorter."""
    whole = gradient.numel() // bucket * bucket
    parts = [gradient[:whole].view(-1, bucket), gradient[whole:].view(1, -1)]
    return torch.cat([_compute_norms(part, norm) for part in parts if part.numel()] or [torch.empty(0)])


def _compute_norms(rows: Tensor, norm: Norm) -> Tensor:
    """Return for each row its L2 norm or its largest magnitude."""
    if norm == "l2":
        lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
        return lengths
    low, high = torch.aminmax(rows, dim=1)  # several times as fast as vector_norm with infinity
    largest: Tensor = torch.maximum(high, low.neg_())
    return largest


def _scale_by_bucket(values: Tensor, factors: Tensor, bucket: int, *, out: Tensor) -> None:
    """Write to `out` each value multiplied by the factor of its bucket. `factors`: one per bucket of `bucket` elements."""
    whole = values.numel() // bucket * bucket
    torch.mul(
        values[:whole].view(-1, bucket), factors[: whole // bucket].unsqueeze(1), out=out[:whole].view(-1, bucket)
    )
    if whole < values.numel():
        torch.mul(values[whole:], factors[-1], out=out[whole:])


def _count_block_elements(bucket: int) -> int:
    """Return how many elements to process at a time: the largest multiple of 8 buckets up to 65,536, at least 8 buckets, so that every
    block begins at a whole byte, whatever the number of bits.
    """
    unit = bucket * 8
    return max(1, _BLOCK // unit) * unit


def _pack(codes: Tensor, bits: int, out: Tensor) -> None:
    """Pack `codes` (uint8, below 2^bits) into `out`, ceil(count * bits / 8) bytes.

    Widths of 2 and 4 bits cut the block into 8 / bits runs: the first run fills the lowest bits of each byte, so nothing is
    interleaved. Widths that do not divide a byte put eight codes at a time through one 64-bit word.
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
    """Return the codes, (count,) uint8, in `packed`, the result of `_pack`. `out`: gives their number and is used as memory, except
    for 8 bits, when `packed` itself is returned.
    """
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


# --- powersgd ---------------------------------------------------------------------------------------------------------
# PowerSGD: a gradient's matrices as products of two thin ones, found by one step of power iteration that all workers take together.
#
# Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization" (2019). A parameter of shape
# (out, ...) is a matrix M, (out, rest). Two exchanges in each round: of P = M Q, whose mean every worker orthogonalises by itself, and of
# Q = M^T P. All end with the product of P and the mean of Q, and begin the next round with that Q. What a worker's own matrix has beside
# the product is its residual, which the next round's gradient is added to. What has one dimension, or would not become smaller, travels
# whole with the first exchange.


class PowerSGD:
    """PowerSGD compression of one worker's gradients. A round calls `build_first`, `build_second` and `finish`. `residual`: (P,),
    what compression left out so far, None without error feedback. `q`: factors with which the next round begins, equal on every
    worker. Both change in `finish` only.

    Every operand has its own torch memory, aligned alike in every process, so that equal products have equal bits.
    """

    def __init__(self, shapes: Shapes, *, rank: int, seed: int, feedback: bool, dtype: torch.dtype) -> None:
        """Prepare for parameters of these `shapes`. `rank`: columns of each factor; `seed`: of the first factors `q`, equal for all
        workers; `feedback`: whether to keep a residual. Raises ValueError if the rank is below 1.
        """
        self.layout, self.rank = build_layout(shapes, rank=rank), rank
        parameters = sum(prod(shape) for shape in shapes)
        self.residual: Tensor | None = torch.zeros(parameters, dtype=dtype) if feedback else None
        self.q = torch.randn(self.layout.q_elements, generator=make_generator("powersgd", seed), dtype=dtype)
        self._values = torch.empty(
            parameters, dtype=dtype
        )  # what is to be sent: the gradient, and what was left out before
        self._p = torch.empty(self.layout.p_elements, dtype=dtype)
        self._result = torch.empty(0, dtype=dtype)

    def build_first(self, gradient: Tensor) -> Tensor:
        """Return the first vector to exchange, [P of every matrix | uncompressed parameters | statistics], for `gradient`, [P
        gradient | B statistics].
        """
        values, parameters = self._values, self._values.numel()
        values.copy_(gradient[:parameters])
        if self.residual is not None:
            values.add_(self.residual)
        if self._result.numel() != gradient.numel():
            self._result = torch.empty_like(gradient)
        p = torch.empty_like(self._p)
        for matrix, m in self._list_matrices(values):
            q = torch.linalg.qr(self.q[matrix.q].view(matrix.columns, self.rank)).Q
            torch.mm(m, q, out=p[matrix.p].view(matrix.rows, self.rank))
        return torch.cat([p, *(values[part] for part in self.layout.whole), gradient[parameters:]])

    def build_second(self, mean: Tensor) -> Tensor:
        """Return the second vector to exchange, [Q of every matrix], after `build_first` in the same round. `mean`: the workers' mean of
        the vectors from `build_first`.
        """
        result, at, q = self._result, self.layout.p_elements, torch.empty_like(self.q)
        for matrix, m in self._list_matrices(self._values):
            p = torch.linalg.qr(mean[matrix.p].view(matrix.rows, self.rank)).Q
            self._p[matrix.p].view(matrix.rows, self.rank).copy_(p)
            torch.mm(m.t(), self._p[matrix.p].view(matrix.rows, self.rank), out=q[matrix.q].view(-1, self.rank))
        for part in self.layout.whole:
            result[part] = mean[at : at + part.stop - part.start]
            at += part.stop - part.start
        result[self._values.numel() :] = mean[at:]
        return q

    def finish(self, mean: Tensor) -> Tensor:
        """Return the round's gradient, (P + B,), equal on all workers, and update `q` and `residual`. `mean`: the workers' mean of
        the vectors from `build_second`. The next round overwrites the returned memory.
        """
        self.q.copy_(mean)
        for matrix, m in self._list_matrices(self._result):
            p = self._p[matrix.p].view(matrix.rows, self.rank)
            torch.mm(p, self.q[matrix.q].view(matrix.columns, self.rank).t(), out=m)
        if self.residual is not None:
            torch.sub(self._values, self._result[: self._values.numel()], out=self.residual)
            for part in self.layout.whole:
                self.residual[part] = 0.0  # nothing was left out
        return self._result

    def _list_matrices(self, vector: Tensor) -> Iterator[tuple[Matrix, Tensor]]:
        """Yield (matrix, its view (rows, columns) in `vector`) for each compressed parameter."""
        for matrix in self.layout.matrices:
            yield matrix, vector[matrix.at].view(matrix.rows, matrix.columns)
