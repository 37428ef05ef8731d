"""redisai-py, RedisAI's own client: every method of its client, pipeline and DAG against the tensor module with torch."""

import subprocess
from pathlib import Path

import pytest

from tests.redis_module.servers import starting
from tests.witnesses.environments import HERE, python
from tests.witnesses.torch_variant import archive, torch_module

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")


def test_every_method_is_answered(tmp_path: Path) -> None:
    """In: all of them, the deprecated ones too, for TorchScript on CPU. Out: TensorFlow, TFLite, ONNX and GPUs, by their arguments."""
    judge = python("redisai_py")
    with starting(torch_module()) as start:
        command = [judge, HERE / "redisai_py" / "walk.py", str(start().port), archive(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "left out: []"
