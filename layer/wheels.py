"""Wheels for Lambda's processor and Python, fetched by pip on any host."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from crossover.errors import CrossoverError
from layer.contents import PYTHON

# Amazon Linux 2023 has glibc 2.34.
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")


class NoWheels(CrossoverError):
    """pip could not fetch what a layer is made of."""


def fetch(requirements: Sequence[str], folder: Path) -> list[Path]:
    """One wheel per requirement in `folder`, sorted; those that are there already are kept. Raises NoWheels."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", PYTHON.replace(".", "")]
    command += [word for abi in (f"cp{PYTHON.replace('.', '')}", "abi3", "none") for word in ("--abi", abi)]
    command += [word for platform in PLATFORMS for word in ("--platform", platform)]
    missing = [each for each in requirements if not _present(each, folder)]
    if missing:
        ended = subprocess.run(
            [*command, "--dest", str(folder), *missing], capture_output=True, text=True, check=False, encoding="utf-8"
        )
        if ended.returncode:
            raise NoWheels(f"pip cannot fetch {', '.join(missing)} for ARM and Python {PYTHON}: {ended.stderr.strip()}")
    return sorted(wheel for each in requirements if (wheel := _present(each, folder)))


def _present(requirement: str, folder: Path) -> Path | None:
    name, _, version = requirement.partition("==")
    found = sorted(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    return found[0] if found else None


def members(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """Paths and contents of a wheel's files, one in memory at a time."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
            if not entry.is_dir():
                yield entry.filename, archive.read(entry)
