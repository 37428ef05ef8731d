"""Lambda's ARM runtime for functions on one machine: the real layers and AWS's own runtime client on an emulated Graviton2.

What Lambda's managed runtime brings beside Python (its runtime client, boto3) is put together here: the client as the wheel for ARM, boto3
as it stands in this environment, where it is Python alone.
"""

import shutil
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from crossover.local.zygotes import Runtime
from layer import wheels
from layer.contents import pin_version
from tools.arm_emulator import Emulator, unpack_emulator

CLIENT = (pin_version("awslambdaric"), *(f"{name}=={version(name)}" for name in ("snapshot-restore-py", "simplejson")))
BOTO = ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "six", "urllib3")  # Python alone


def brought_by_lambda(folder: Path, *, cache: Path) -> Path:
    """Unpack into `folder`/site-packages the packages that the managed runtime contains, and return that folder. Raises NoWheels."""
    target = folder / "site-packages"
    target.mkdir(parents=True)
    for wheel in wheels.fetch(CLIENT, cache):
        for path, data in wheels.read_members(wheel):
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes(data)
    for name in BOTO:
        spec = find_spec(name)
        assert spec is not None, name
        assert spec.origin is not None, name
        origin = Path(spec.origin)
        source = origin.parent if origin.name == "__init__.py" else origin
        (target / source.name).symlink_to(source)
    return target


def packages(archive: Path, folder: Path) -> Path:
    """Unpack a layer, and return its folder of packages, named so that the fork server recognises it."""
    shutil.unpack_archive(archive, folder)
    return (folder / "python").rename(folder / "site-packages")


def runtime(folder: Path, *, layers: Sequence[Path], cache: Path) -> Runtime:
    """Return Lambda's runtime in the ARM emulator. `layers`: ZIP files of `dataplane` and `torch`; functions that do not compute get only
    the first. Raises MissingTool without an emulator or an ARM system.
    """
    brought = brought_by_lambda(folder / "runtime", cache=cache / "wheels")
    dataplane, torch = (packages(archive, folder / archive.stem) for archive in layers)
    paths = {"plain": [brought, dataplane], "torch": [brought, dataplane, torch]}
    arms: dict[str, Emulator] = {kind: unpack_emulator(cache, path) for kind, path in paths.items()}
    # Not isolated, which would ignore the path. Compiled files of boto3 stay out of this environment's own folders.
    options = ("-s", "-P", "-X", f"pycache_prefix={folder / 'compiled'}")
    return Runtime(command=lambda kind: arms[kind].command(*options), start_s=300.0)
