"""Debian packages unpacked into a folder, without installing anything: programs for this machine's processor, an ARM system for an
emulator.

apt works with lists, cache and status of its own. The archive is the one that this machine's apt already uses.
"""

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from crossover.errors import MissingTool

SUITE = "trixie"  # Debian 13, whose Python is Lambda's
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PYTHON_PACKAGES = (
    *("python3.13-minimal", "libpython3.13-minimal", "libpython3.13-stdlib", "libc6", "zlib1g", "libexpat1"),
    *("libssl3t64", "libzstd1", "libbz2-1.0", "liblzma5", "libffi8", "libuuid1", "libsqlite3-0"),
)
LIBRARIES = ("libgcc-s1", "libstdc++6")  # Lambda's runtime has them; compiled wheels want them
_KINDS = {  # of machines: Debian's name, and where below /usr its dynamic loader lies
    "x86_64": ("amd64", "lib64/ld-linux-x86-64.so.2"),
    "aarch64": ("arm64", "lib/ld-linux-aarch64.so.1"),
}


def architecture() -> str:
    """Return Debian's name for this machine's processor, such as "amd64". Raises MissingTool if the processor is not supported."""
    if platform.machine() not in _KINDS:
        raise MissingTool(f"Debian's packages: none are known for {platform.machine()}")
    return _KINDS[platform.machine()][0]


def command(root: Path, program: Path) -> list[str]:
    """Return the command line that starts `program` of an unpacked system (`root`) with that system's own loader and libraries, regardless
    of this machine's C library.
    """
    usr = root / "usr"
    libraries = usr / "lib" / f"{platform.machine()}-linux-gnu"
    return [str(usr / _KINDS[platform.machine()][1]), "--library-path", str(libraries), str(program)]


def fetch_packages(folder: Path, packages: Sequence[str], *, architecture: str) -> Path:
    """Download the Debian `packages` for the processor `architecture` (Debian's name, such as "arm64") and unpack them into `folder`,
    unless it exists already, and return `folder`. Their dependencies are not downloaded, nothing is installed, and an interrupted download
    leaves no `folder`. Raises MissingTool if a program or Debian's archive is not available.
    """

    def fetch(work: Path) -> Path:
        """Download the packages and unpack them below the folder `work`; return the folder with their files. Raises CalledProcessError if
        dpkg fails, and what `_run_apt_get` raises.
        """
        _run_apt_get(work, "deb", "download", packages, architecture=architecture)
        for package in sorted(work.glob("*.deb")):
            subprocess.run(
                ["dpkg", "-x", package, work / "root"], check=True, capture_output=True, text=True, encoding="utf-8"
            )
        link = work / "root" / "lib"
        if not link.exists():  # base-files would make it
            link.symlink_to("usr/lib")
        return work / "root"

    return _fetch_once(folder, fetch, needs=("apt-get", "dpkg"))


def fetch_source(folder: Path, package: str) -> Path:
    """Download the source of a Debian package by apt-get and unpack it, unless `folder` exists already, and return `folder`, which is then
    the source tree. Nothing is installed, and an interrupted download leaves no `folder`. Raises MissingTool if a program or Debian's
    archive is not available, or if the processor is not supported.
    """

    def fetch(work: Path) -> Path:
        """Download and unpack the source package of the outer call below the folder `work` by apt-get; return the folder of the source."""
        _run_apt_get(work, "deb-src", "source", [package], architecture=architecture())
        return next(path for path in work.glob(f"{package}-*") if path.is_dir())

    return _fetch_once(folder, fetch, needs=("apt-get", "dpkg-source"))


def _fetch_once(folder: Path, fetch: Callable[[Path], Path], *, needs: Sequence[str]) -> Path:
    """Return `folder`; if it does not exist, create it first by `fetch`, atomically. `fetch`: downloads into a given temporary folder and
    returns the folder to keep; `needs`: names of the programs that it uses. Raises MissingTool if one is missing or if it fails.
    """
    if folder.is_dir():
        return folder
    missing = [program for program in needs if shutil.which(program) is None]
    if missing or not KEYRING.is_file():
        raise MissingTool(
            f"{' and '.join(missing) or KEYRING}: not on this machine, so Debian's packages cannot be had"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="debian-") as name:
        try:
            fetch(Path(name)).rename(folder)
        except subprocess.CalledProcessError as error:
            raise MissingTool(f"Debian's archive: {(error.stderr or str(error)).strip()[:500]}") from error
    return folder


def _run_apt_get(work: Path, kind: str, command: str, packages: Sequence[str], *, architecture: str) -> None:
    """Download packages into the folder `work` with apt-get, without touching this machine's apt. `kind`: deb or deb-src; `command`:
    apt-get's command, download or source. Raises CalledProcessError.
    """
    for each in ("state/lists/partial", "cache/archives/partial", "parts", "root"):
        (work / each).mkdir(parents=True)
    (work / "status").touch()
    (work / "sources").write_text(
        f"{kind} [signed-by={KEYRING}] {_find_archive_url()} {SUITE} main\n", encoding="utf-8"
    )
    settings = {
        "Dir::State": work / "state",
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
        "Dir::Etc::sourcelist": work / "sources",
        "Dir::Etc::sourceparts": work / "parts",
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
        "Acquire::Languages": "none",
        "Acquire::Retries": "1",
        "Acquire::http::Timeout": "20",
        "Debug::NoLocking": "1",
    }
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    for words in (["update", "--error-on=any"], [command, *packages]):
        subprocess.run(
            ["apt-get", "-q", *options, *words], check=True, capture_output=True, text=True, cwd=work, encoding="utf-8"
        )


def _find_archive_url() -> str:
    """Return the URL of Debian's archive that this machine's apt uses. Raises MissingTool if it has none."""
    asked = ["apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(REPO_URI)", "Created-By: Packages"]
    listed = subprocess.run(asked, check=True, capture_output=True, text=True, encoding="utf-8").stdout
    found = [line.split()[2] for line in listed.splitlines() if line.startswith("Debian Debian ")]
    if not found:
        raise MissingTool("Debian's archive: this machine's apt has no source of Debian's; run apt-get update first")
    return found[0]
