"""A client's gradient, made: from the seed, the client and the place alone, with the same bits on every machine.

Each element is made in whole numbers modulo 2**32, of which 24 bits become a float32 between -0.5 and 0.5 without rounding. So a part can
be made without the rest, and nothing depends on a library's random numbers.
"""

import hashlib

import torch
from torch import Tensor

BLOCK = 2**18  # elements made at a time
_ALL_32_BITS = 0xFFFF_FFFF


def gradient(seed: int, client: int, part: slice) -> Tensor:
    """`part` of the client's gradient, flat float32.

    A block is the same table for all, times an odd number, plus another number, both drawn for client and block.
    """
    made = torch.empty(part.stop - part.start)
    at = part.start
    while at < part.stop:
        block, inside = divmod(at, BLOCK)
        count = min(BLOCK - inside, part.stop - at)
        drawn = hashlib.sha256(f"gradient {seed} {client} {block}".encode()).digest()
        factor, summand = (int.from_bytes(drawn[n : n + 4], "little", signed=True) for n in (0, 4))
        whole = _TABLE[inside : inside + count].mul(factor | 1).add_(summand)  # int32 wraps
        piece = made[at - part.start : at - part.start + count]
        piece.copy_(whole.bitwise_right_shift_(8)).mul_(2.0**-24)
        at += count
    return made


def _table() -> Tensor:
    """(BLOCK,) int32: a bijective hash of 32 bits of 0, 1, 2, ... (C. Wellons, "Prospecting for Hash Functions", 2018: lowbias32)."""
    x = torch.arange(BLOCK, dtype=torch.int64)  # whose products wrap, with the low 32 bits of 32-bit arithmetic
    for shift, factor in ((16, 0x7FEB_352D), (15, 0x846C_A68B)):
        x.bitwise_xor_(x.bitwise_right_shift(shift)).mul_(factor).bitwise_and_(_ALL_32_BITS)
    x.bitwise_xor_(x.bitwise_right_shift(16))
    return x.sub_(2**31).to(torch.int32)


_TABLE = _table()
