"""Advice among few candidates: seconds instead of half a minute."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from crossover.advice import candidates


@contextmanager
def few_candidates() -> Iterator[None]:
    """Limit the axes of the candidates to two or three values each within the block."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(candidates, "WORKERS", (1, 2, 4))
        patched.setattr(candidates, "SPLITS", (1, 2))
        patched.setattr(candidates, "MEMORY_MB", (512, 1_769, 3_008))
        patched.setattr(candidates, "LOCAL_ROUNDS", (1,))
        yield
