"""Memory that stays with the process: a training step takes and frees the same hundreds of megabytes every time.

glibc gives large blocks back to the kernel at once, which hands them out page by page, zeroed, at the next step: for MobileNet at batch 512
that is half of a step and two thirds of an evaluation. The price is the heap's fragmentation: 1.7 to 2.3 GB at a step's peak, for 1.25 GB
that it uses at once (float32; bf16 1.1 to 1.2).
"""

import ctypes
from functools import cache
from math import inf
from pathlib import Path

from crossover.errors import ConfigError

LARGE_BYTES = 2**28  # of a model's gradient and copy; for less nobody needs to ask how much memory is free
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # mallopt(3)


@cache
def keep_freed_memory() -> bool:
    """Make the C library keep freed memory in the process instead of returning it to the kernel, for speed. Only the first call
    acts. Returns whether the C library supports it (glibc).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def release_freed_memory() -> bool:
    """Return freed memory of the process to the kernel, once. Returns whether any was returned; False if the C library is not glibc."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return False
    return bool(trim(0))


def find_free_bytes() -> float:
    """Return how many bytes new programs can use without swapping, from /proc/meminfo; infinity if the platform does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return inf
    return 1_024.0 * next((int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), inf)


def check_room_for_gradient(model: str, elements: int) -> None:
    """Raise ConfigError if the machine lacks memory for the gradient and one copy of a model, float32, so that the kernel need not end the
    process. Below 256 MiB nothing is checked. `model`: its name in training.model; `elements`: number of its trained elements.
    """
    needed = 2 * 4 * elements
    if needed < LARGE_BYTES or needed <= (free := find_free_bytes()):
        return
    raise ConfigError(
        f"training.model: {model!r} has {elements:,} parameters: its gradient and a copy of its weights take {needed / 1e6:,.0f} MB, and "
        f"{free / 1e6:,.0f} MB of memory are free here; expected a smaller model, or a machine with more free memory"
    )
