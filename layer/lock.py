"""The requirements that layers and hosts install, with the hash of every file (layer/locked/*.txt): pip then takes no other file,
whichever index it comes from. `python -m tools.layer_lock` writes them anew.
"""

from pathlib import Path

from crossover.errors import CrossoverError

LOCKED = Path(__file__).parent / "locked"
INDEX = "https://download.pytorch.org/whl/cpu"  # builds without CUDA; on ARM the plain one is


class NoWheels(CrossoverError):
    """The error if pip cannot download a wheel that a layer or a lock file needs, or if its hash is not the locked one."""


def lines(file: str) -> list[str]:
    """Return the lines of layer/locked/`file`.txt without comments: requirements with hashes, and pip's options."""
    return [line for line in (LOCKED / f"{file}.txt").read_text(encoding="utf-8").splitlines() if line[:1] != "#"]


def add_hashes(requirement: str) -> str:
    """Return the requirement `name==version` followed by the hashes that are locked for it, as pip expects them. Raises LookupError if
    there are none.
    """
    for line in (*lines("packages"), *lines("torch")):
        if line.split(" ")[0] == requirement:
            return " ".join(word for word in line.split() if word == requirement or word.startswith("--hash="))
    raise LookupError(f"layer/locked: no hash of {requirement}; python -m tools.layer_lock makes them anew")


def platform(python: str, machine: str) -> list[str]:
    """Return pip's options that select wheels for Linux, CPython of the version `python` (such as "3.13") and the processor `machine`
    (such as "aarch64"), regardless of the Python that runs pip.
    """
    words = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    words += [word for abi in (f"cp{python.replace('.', '')}", "abi3", "none") for word in ("--abi", abi)]
    # Amazon Linux 2023 has glibc 2.34, Debian 13 and Ubuntu 24.04 have later ones.
    tags = (f"manylinux_2_28_{machine}", f"manylinux_2_17_{machine}", f"manylinux2014_{machine}")
    return words + [word for tag in tags for word in ("--platform", tag)]
