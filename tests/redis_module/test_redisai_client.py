"""RedisAI's own Python client, in an environment of its own because it wants an older redis package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.redis_module.servers import MODULE, Server, starting

pytestmark = pytest.mark.slow

REQUIREMENTS = ["redisai==1.3.0", "numpy<2"]

PROGRAM = '''
import sys
import numpy as np
import redisai

client = redisai.Client(host="127.0.0.1", port=int(sys.argv[1]))
for dtype in (np.float32, np.float64, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, bool):
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    assert client.tensorset("t", array) == "OK"
    back = client.tensorget("t")
    assert back.dtype == array.dtype and np.array_equal(back, array), (dtype, back)
assert client.tensorset("v", (2, 3.5), dtype="float") == "OK"
assert client.tensorget("v", as_numpy=False) == {"dtype": "FLOAT", "shape": [2], "values": [2.0, 3.5]}
assert client.tensorget("v", meta_only=True) == {"dtype": "FLOAT", "shape": [2]}

source = """
def add(tensors: List[Tensor], keys: List[str], args: List[str]):
    return tensors[0] + tensors[1] * float(args[0])
def touch(tensors: List[Tensor], keys: List[str], args: List[str]):
    redis.execute("SET", keys[0], args[0])
    return tensors[0]
"""
assert client.scriptstore("s", "CPU", source, ["add", "touch"], tag="v1") == "OK"
got = client.scriptget("s")
assert got["source"] == source and got["device"] == "CPU" and got["tag"] == "v1", got
assert client.scriptexecute("s", "add", inputs=["v", "v"], args=["2"], outputs=["out"]) == "OK"
assert client.tensorget("out").tolist() == [6.0, 10.5]
assert client.scriptexecute("s", "touch", keys=["k"], inputs=["v"], args=["x"], outputs=["out"], timeout=60000) == "OK"
assert client.get("k") == b"x"
assert client.infoget("s")["calls"] == 2 and client.inforeset("s") == "OK"
assert client.scriptscan() == [["s", "v1"]]
assert client.scriptset("old", "CPU", "def double(x):\\n    return x * 2\\n") == "OK"
assert client.scriptrun("old", "double", inputs=["v"], outputs=["out"]) == "OK"
assert client.tensorget("out").tolist() == [4.0, 7.0]
assert client.scriptdel("s") == "OK"
print("every call answered")
'''


@pytest.fixture(scope="module")
def client_python() -> Path:
    """Python with the client, built once in the module's build folder; skips where the registry cannot be had."""
    folder = MODULE / "build" / "redisai-venv"
    python = folder / "bin" / "python"
    if python.exists():
        return python
    building = folder.with_name(f"redisai-venv-{os.getpid()}")
    try:
        subprocess.run([sys.executable, "-m", "venv", building], check=True, capture_output=True, text=True)
        install = [str(building / "bin" / "python"), "-m", "pip", "install", "--quiet", *REQUIREMENTS]
        subprocess.run(install, check=True, capture_output=True, text=True)
        building.rename(folder)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{REQUIREMENTS[0]} cannot be installed here: {error.stderr[-500:]}")
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return python


@pytest.fixture
def server(torch_module: Path) -> Iterator[Server]:
    with starting(torch_module) as start:
        yield start()


def test_redisais_own_client_works(server: Server, client_python: Path) -> None:
    command = [str(client_python), "-W", "ignore", "-c", PROGRAM, str(server.port)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0 and "every call answered" in done.stdout, done.stdout + done.stderr
