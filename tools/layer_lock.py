"""The command `python -m tools.layer_lock`: it writes layer/locked/*.txt anew. Versions are those of requirements.txt, for PyTorch the
layer's; further requirements get the newest version of that day.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator

from crossover import user_code
from layer.contents import TORCH, TYPING_EXTENSIONS, pin_version
from layer.lock import INDEX, LOCKED, NoWheels, add_hashes, platform
from tools import refuse_arguments

# Of functions and Graviton hosts, of Debian 13, of AWS's image for GPUs.
MACHINES = (("3.13", "aarch64"), ("3.13", "x86_64"), ("3.12", "x86_64"))


def _find_wheels(requirements: Iterable[str], python: str, machine: str, *options: str) -> Iterator[tuple[str, str]]:
    """Yield (`name==version`, SHA-256) of each wheel that pip would install for `requirements`, as the package index reports them, without
    installing. `python`, `machine`: Python version and processor of the target, such as "3.13" and "aarch64"; `options`: further options of
    pip. Raises NoWheels if pip finds none.
    """
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    command += ["--report", "-", "--target", "none", *platform(python, machine), *options, *requirements]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8")
    if ended.returncode:
        raise NoWheels(f"pip finds no {', '.join(requirements)} for {machine}: {ended.stderr.strip()}")
    for each in json.loads(ended.stdout)["install"]:
        named = each["metadata"]
        yield (
            f"{named['name'].lower().replace('_', '-')}=={named['version']}",
            each["download_info"]["archive_info"]["hashes"]["sha256"],
        )


def _lock_requirements(requirements: Iterable[str], machines: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield one line of a lock file, with hashes, for each requirement and each of its dependencies, sorted by name. pip chooses the
    versions for the first of `machines` (pairs of Python version and processor); the others get the same versions. Raises NoWheels if one
    of them has no wheel.
    """
    pins, hashes, alone = list(requirements), dict[str, set[str]](), list[str]()
    for python, machine in machines:
        found = list(_find_wheels(pins, python, machine, *alone))
        alone = ["--no-deps"]
        pins = [name for name, _ in found]
        for name, digest in found:
            hashes.setdefault(name, set()).add(digest)
    for name in sorted(hashes):
        yield " ".join([name, *(f"--hash=sha256:{digest}" for digest in sorted(hashes[name]))])


def _lock_torch() -> Iterator[str]:
    """Yield the two lines of a lock file for PyTorch, on ARM and on x86. If PyTorch's index cannot be reached, the x86 line keeps its
    present hash, and a note is printed.
    """
    ((name, digest),) = _find_wheels([f"torch=={TORCH}"], *MACHINES[0], "--no-deps")
    yield f'{name} ; platform_machine == "aarch64" --hash=sha256:{digest}'
    plain = f"torch=={TORCH}+cpu"
    try:
        ((_, digest),) = _find_wheels([plain], *MACHINES[1], "--no-deps", "--index-url", INDEX)
    except NoWheels as missing:  # keeps what is locked, of this version alone
        digest = add_hashes(plain).rpartition(":")[2]
        print(f"kept as it was: {missing}", file=sys.stderr)
    yield f'{plain} ; platform_machine == "x86_64" --hash=sha256:{digest}'


def main() -> int:
    """Write the lock files layer/locked/*.txt anew from the package index, and return the exit status, 0. Raises NoWheels if a requirement
    has no wheel; nothing is written then.
    """
    named = [pin_version(name.replace("_", "-")) for name in (*user_code.DATAPLANE, "boto3")]
    of_torch = ("filelock", "fsspec", "networkx", "setuptools", "sympy")  # as its wheel's METADATA asks
    files = {
        "packages": _lock_requirements(named, MACHINES),
        "torch": [
            f"--extra-index-url {INDEX}",
            *_lock_torch(),
            *_lock_requirements([*of_torch, pin_version("jinja2"), TYPING_EXTENSIONS], MACHINES[:2]),
        ],
    }
    for name, locked in files.items():
        text = "\n".join([f"# By python -m tools.layer_lock: {name}.", *locked, ""])
        (LOCKED / f"{name}.txt").write_text(text, encoding="utf-8")
        print(f"layer/locked/{name}.txt: {text.count('--hash=')} hashes")
    return 0


if __name__ == "__main__":
    refuse_arguments(__doc__)
    sys.exit(main())
