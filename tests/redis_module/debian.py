"""Debian packages unpacked into the module's build folder, without installing anything on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.redis_module.servers import MODULE

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def unpacked(name: str, packages: Sequence[str], *, architecture: str, suite: str) -> Path:
    """The folder `build/<name>` with these packages' files, downloaded once. Skips where Debian's archive cannot be had."""
    root = MODULE / "build" / name
    if root.is_dir():
        return root
    missing = [program for program in ("apt-get", "dpkg") if shutil.which(program) is None]
    if missing or not Path(KEYRING).is_file():
        pytest.skip(
            f"no Debian here ({', '.join(missing) or KEYRING} is missing), so no {packages[0]} for {architecture}"
        )
    work = MODULE / "build" / f"{name}-{os.getpid()}"
    try:
        _download(work, packages, architecture=architecture, suite=suite)
        for package in sorted(work.glob("*.deb")):
            subprocess.run(["dpkg", "-x", package, work / "root"], check=True)
        (work / "root").rename(root)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"Debian's archive has no {packages[0]} for {architecture} from {suite}: {error.stderr or error}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return root


def _download(work: Path, packages: Sequence[str], *, architecture: str, suite: str) -> None:
    """apt with lists, cache and status of its own, so that this machine's stay as they are."""
    for folder in ("state/lists/partial", "cache/archives/partial", "parts", "root"):
        (work / folder).mkdir(parents=True)
    (work / "status").touch()
    (work / "sources").write_text(f"deb [signed-by={KEYRING}] http://deb.debian.org/debian {suite} main\n")
    settings = {
        "Dir::State": work / "state",
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
        "Dir::Etc::sourcelist": work / "sources",
        "Dir::Etc::sourceparts": work / "parts",
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "1",
        "Acquire::Retries": "1",
        "Acquire::http::Timeout": "20",
    }
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    for command in (["update", "--error-on=any"], ["download", *packages]):
        subprocess.run(["apt-get", "-q", *options, *command], check=True, capture_output=True, text=True, cwd=work)
