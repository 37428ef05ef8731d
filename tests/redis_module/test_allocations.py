"""An allocation that fails, in whichever thread, is an error to one client."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.redis_module.servers import MODULE


@pytest.mark.slow
def test_the_kth_allocation_fails(core_module: Path, tmp_path: Path) -> None:
    """Compile a program that lets each allocation of the kernels fail in turn, and check that it ends well."""
    program, objects = tmp_path / "allocations", MODULE / "build" / "core"
    source = Path(__file__).with_name("allocations.cpp")
    command = ["g++", "-std=c++20", "-pthread", "-I", str(MODULE / "src"), str(source), str(objects / "pool.o")]
    command += [*map(str, sorted((objects / "kernels").glob("*.o"))), "-o", str(program)]
    subprocess.run(command, check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    _, median, _, krum = done.stdout.split()
    assert int(median) > 4 and int(krum) > 4  # so many allocations were made to fail
