"""Lambda's processor and Python on this machine: qemu with Graviton2's core, Debian 13's Python 3.13, and a layer where /opt would be.

`-cpu neoverse-n1` is Graviton2's core, and much faster to emulate than qemu's default model.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crossover.errors import MissingTool
from layer import debian
from layer.contents import PYTHON

CORE = "neoverse-n1"


@dataclass(frozen=True)
class Emulator:
    """An emulated ARM system with Lambda's Python. `qemu`: path of the emulator program; `root`: folder of the unpacked system; `path`:
    folders in which its Python searches first for modules.
    """

    qemu: str
    root: Path
    path: Sequence[Path] = ()

    def command(self, *arguments: str) -> list[str]:
        """Return the command line that runs the emulated Python with `arguments`. It computes with one thread, because a Lambda function of
        1,769 MB has one vCPU.
        """
        variables = {"PYTHONPATH": ":".join(str(entry) for entry in self.path), "OMP_NUM_THREADS": "1"}
        settings = [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
        return [self.qemu, "-cpu", CORE, "-L", str(self.root), *settings, self.python, *arguments]

    @property
    def python(self) -> str:
        """Path of the system's Python."""
        return str(self.root / "usr" / "bin" / f"python{PYTHON}")

    def run(self, *arguments: str, timeout_s: float = 300.0) -> str:
        """Run the emulated Python with `arguments` and return its standard output. It gets no variables of this process's environment.
        Raises CalledProcessError, with its error output, if it fails; TimeoutExpired after `timeout_s` seconds.
        """
        environment = {"PATH": os.defpath, "LANG": "C.UTF-8"}
        ended = subprocess.run(
            self.command(*arguments),
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            encoding="utf-8",
        )
        if ended.returncode:
            raise subprocess.CalledProcessError(ended.returncode, ended.args, ended.stdout, ended.stderr)
        return ended.stdout


def unpack_emulator(folder: Path, path: Sequence[Path] = ()) -> Emulator:
    """Download and unpack an ARM system into `folder`/arm64, unless that is done already, and return an emulator of it. `path`: folders in
    which its Python searches first for modules. Raises MissingTool if qemu or Debian's archive is missing.
    """
    qemu = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if qemu is None:
        raise MissingTool("qemu-aarch64-static: not on this machine (Debian's package qemu-user-static)")
    packages = (*debian.PYTHON_PACKAGES, *debian.LIBRARIES)
    return Emulator(qemu, debian.fetch_packages(folder / "arm64", packages, architecture="arm64"), path)
