"""Seeds as a keyed hash of what they are for, so that no random state lives in a process and a retry draws the same numbers.

Free of torch: staging plans and light steps use it too.
"""

import hashlib


def seed(purpose: str, *key: int) -> int:
    """A 64-bit seed for `purpose` at `key`, e.g. seed("dropout", experiment.seed, round, worker, minibatch).

    Distinct purposes or keys give independent seeds; the same ones give the same seed on every machine and Python version.
    """
    text = "/".join((purpose, *map(str, key)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def permutation(count: int, *, seed: int) -> list[int]:
    """The numbers 0..count-1 in the random order of `seed`: sorted by each number's own hash, the same everywhere."""
    return sorted(range(count), key=lambda i: (_mixed(seed + i * 0x9E3779B97F4A7C15), i))


def _mixed(value: int) -> int:
    """splitmix64's finalizer (Steele, Lea, Flood 2014): every input bit reaches every output bit."""
    mask = (1 << 64) - 1
    value &= mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)
