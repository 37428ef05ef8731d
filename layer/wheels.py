"""Wheels for Lambda's processor and Python, fetched by pip on any host."""

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from layer.contents import PYTHON
from layer.lock import NoWheels, platform


def fetch(requirements: Sequence[str], folder: Path) -> list[Path]:
    """Download one wheel per requirement into `folder`, except those that it has, and return the wheels' paths, sorted. If a requirement
    has hashes, only a wheel with one of them is accepted. Raises NoWheels if pip fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    missing = [each for each in requirements if not _find_wheel(each, folder)]
    if missing:
        names = ", ".join(each.split(" ")[0] for each in missing)
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
            file.write("\n".join(missing))
            file.flush()
            wanted = [*platform(PYTHON, "aarch64"), "--dest", str(folder), "--requirement", file.name]
            ended = subprocess.run([*command, *wanted], capture_output=True, text=True, check=False, encoding="utf-8")
        if ended.returncode:
            raise NoWheels(f"pip cannot fetch {names} for ARM and Python {PYTHON}: {ended.stderr.strip()}")
    return sorted(wheel for each in requirements if (wheel := _find_wheel(each, folder)))


def _find_wheel(requirement: str, folder: Path) -> Path | None:
    """Return the wheel in `folder` for a requirement (`name==version`, with or without hashes); None if there is none. A wheel with another
    hash is deleted.
    """
    name, version = requirement.split(" ")[0].split("==")
    hashes = re.findall(r"--hash=sha256:(\w+)", requirement)
    for found in sorted(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl")):
        if not hashes or hashlib.sha256(found.read_bytes()).hexdigest() in hashes:
            return found
        found.unlink()  # pip would keep it
    return None


def read_members(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (path, content) of each file in a wheel, sorted by path. Only one content is in memory at a time."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
            if not entry.is_dir():
                yield entry.filename, archive.read(entry)
