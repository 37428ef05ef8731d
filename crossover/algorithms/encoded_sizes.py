"""Sizes of encoded gradients, and the layouts that they follow from: torch is not needed.

crossover/algorithms/compression.py writes and reads what is measured here.
"""

import struct

SPARSE_HEADER = struct.Struct("<QII")  # elements, pairs, tail
QSGD_HEADER = struct.Struct("<4sBBxxIQ")  # magic, bits, norm, bucket, elements


def sparse_bytes(pairs: int, *, tail: int = 0) -> int:
    """Return the size in bytes of the sparse form: header, `pairs` (index, value) pairs, and `tail` elements in full."""
    return SPARSE_HEADER.size + 8 * pairs + 4 * tail


def qsgd_bytes(elements: int, *, bits: int, bucket: int) -> int:
    """Return the size in bytes of `elements` elements that QSGD quantizes to `bits` bits, with one scale per `bucket` of elements."""
    return QSGD_HEADER.size + 4 * -(-elements // bucket) + packed_bytes(elements, bits)


def packed_bytes(count: int, bits: int) -> int:
    """Return the number of bytes that `count` codes of `bits` bits each take."""
    return -(-count * bits // 8)
