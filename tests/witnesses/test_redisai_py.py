"""redisai-py, RedisAI's own client: tensors, by its client and its pipeline, against the tensor module."""

import subprocess

from tests.redis_module.servers import build, starting
from tests.witnesses.environments import HERE, python


def test_tensors_are_answered() -> None:
    """Check that redisai-py can store and read tensors in the module's server."""
    judge = python("redisai_py")
    with starting(build("core", "tensors.so")) as start:
        command = [judge, HERE / "redisai_py" / "walk.py", str(start().port)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
