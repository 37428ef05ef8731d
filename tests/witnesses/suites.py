"""The project's own suites, asked of another server: what it sees is what they check."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
TENSORS = ("tests/redis_module", "-m", "not slow")
STORE = tuple(f"tests/conformance/test_{name}.py" for name in ("tensor_store", "tensor_compute", "redis_client"))
BUS = ("tests/conformance/test_message_bus.py", "tests/conformance/test_rabbitmq.py")
# SPIRT and the P2Ps end with the bits of the single-process reference; MLLess as it does in one process.
RUNS = (
    *("tests/architectures/test_on_local.py", "tests/architectures/test_programs_on_local.py"),
    *("-k", "spirt or mlless or p2p"),
)


def hold(suites: Sequence[str], *, with_server: Path, chosen_by: str, **environment: str) -> None:
    """Run the tests of `suites` with this server, and print the end of pytest's output. Raises AssertionError with that output unless all
    pass. `chosen_by`: environment variable that names the server.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *suites]
    env = {**os.environ, **environment, chosen_by: str(with_server)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    print(done.stdout[-2_000:])  # with the reasons of those that were skipped
