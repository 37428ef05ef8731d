"""Byte code for Python 3.13, compiled by a Python 3.13: /opt is read-only, so without it every cold start would compile some 900 files.

`unchecked-hash`: never compared with the source, whose time stamp a zip changes. One process, fixed hash seed: equal input, equal bytes.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crossover.errors import MissingTool
from layer import debian
from layer.contents import PYTHON
from layer.pruning import reads_its_source

TAG = f"cpython-{PYTHON.replace('.', '')}"


@dataclass(frozen=True)
class Interpreter:
    """A Python 3.13 that runs on this machine. `command`: the command that starts it; `variables`: environment variables that it needs."""

    command: Sequence[str]
    variables: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, **more: str) -> str:
        """Run the interpreter with `arguments` and the option -S, and return its standard output as text, the line end included. Its
        environment: this process's, `variables`, PYTHONHASHSEED=0, PYTHONNOUSERSITE=1, and `more`, of which the later ones win; PYTHONPATH
        is always left out. Raises CalledProcessError if its exit status is not 0.
        """
        environment = {**os.environ, **self.variables, "PYTHONHASHSEED": "0", "PYTHONNOUSERSITE": "1", **more}
        environment.pop("PYTHONPATH", None)
        ended = subprocess.run(
            [*self.command, "-S", *arguments],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
        return ended.stdout

    @property
    def version(self) -> str:
        """Version of the interpreter, such as 3.13.1. Starts the interpreter at each access."""
        return self.run("-c", "import platform; print(platform.python_version())").strip()


def find_interpreter(folder: Path) -> Interpreter:
    """Find a Python 3.13: this process's, or one on the PATH, or else Debian's, downloaded and unpacked below `folder`. Raises MissingTool,
    which says what to install, if there is none.
    """
    if sys.version_info[:2] == tuple(int(part) for part in PYTHON.split(".")):
        return Interpreter([sys.executable])
    found = shutil.which(f"python{PYTHON}")
    if found and _has_right_version(Interpreter([found])):
        return Interpreter([found])
    try:
        return _fetch_debian_python(folder)
    except MissingTool as error:
        raise MissingTool(
            f"python{PYTHON}: not on this machine ({error}); it compiles the layers' byte code: install it, for example with "
            f"`uv python install {PYTHON}` or `brew install python@{PYTHON}`, so that python{PYTHON} is on the PATH"
        ) from error


def _has_right_version(python: Interpreter) -> bool:
    """Return whether the interpreter can be started and has the right version. Version managers put programs on the PATH that only say how
    to install the real one.
    """
    try:
        return python.version.startswith(f"{PYTHON}.")
    except (OSError, subprocess.CalledProcessError):
        return False


def _fetch_debian_python(folder: Path) -> Interpreter:
    """Download Debian's Python 3.13, unless it is below `folder` already, and return it."""
    kind = debian.architecture()
    root = debian.fetch_packages(folder / f"python-{kind}", debian.PYTHON_PACKAGES, architecture=kind)
    command = debian.command(root, root / "usr" / "bin" / f"python{PYTHON}")
    return Interpreter(command, {"PYTHONHOME": str(root / "usr")})


def compile_tree(python: Interpreter, folder: Path, *, sourceless: bool) -> None:
    """Compile the Python files in `folder`/python to byte code that says /opt/python as their place. `sourceless`: afterwards delete the
    sources, except files whose source is read when they are imported.
    """
    options = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", str(folder), "-p", "/opt"]
    python.run(*options, *(["-b"] if sourceless else []), str(folder / "python"))
    if not sourceless:
        return
    for source in sorted((folder / "python").rglob("*.py")):
        compiled = source.with_suffix(".pyc")
        if reads_its_source(source.read_bytes()):
            beside = source.parent / "__pycache__"
            beside.mkdir(exist_ok=True)
            compiled.rename(beside / f"{source.stem}.{TAG}.pyc")
        else:
            source.unlink()
