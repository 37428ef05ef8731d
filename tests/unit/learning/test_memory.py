"""Memory that the C library keeps, and gives back when it is told to."""

import subprocess
import sys

import pytest

CODE = """
from pathlib import Path
from crossover.learning.memory import release_freed_memory

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

pieces = [bytes(60_000) for _ in range(4_000)]
last = bytes(60_000)  # above them all: what lies below it stays with the heap
del pieces
before = resident_mb()
assert release_freed_memory()
print(before - resident_mb())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_freed_memory_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 100  # of 240 MB, of which some were given back before
