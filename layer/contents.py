"""The contents of each layer: wheels by name and version. Versions are those of requirements.txt; PyTorch's is set here, because it
differs.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from layer import lock

ROOT = Path(__file__).parents[1]
PYTHON = "3.13"  # of Lambda's runtime

# The last PyTorch whose plain ARM wheel carries no CUDA: later ones do not fit into a layer however they are pruned.
TORCH = "2.10.0"
TYPING_EXTENSIONS = "typing-extensions==4.15.0"


@dataclass(frozen=True)
class Layer:
    """The contents of one layer. `name`: "dataplane" or "torch", part of its file's name; `requirements`: wheels as pip expects them, with
    hashes; `sourceless`: whether it contains byte code without sources, because both would not fit.
    """

    name: str
    requirements: tuple[str, ...]
    sourceless: bool = False


def layers() -> tuple[Layer, Layer]:
    """Return the two layers: `dataplane` for every function, and `torch` for functions that compute."""
    dataplane = ("pika", "safetensors", "annotated-types", "tenacity")
    return (
        Layer("dataplane", tuple(lock.add_hashes(pin_version(name)) for name in dataplane), sourceless=True),
        # Torch names sympy, networkx, jinja2, fsspec and filelock as well; none of them is imported by what is kept.
        Layer("torch", tuple(map(lock.add_hashes, (f"torch=={TORCH}", TYPING_EXTENSIONS))), sourceless=True),
    )


def pin_version(name: str) -> str:
    """Return `name==version` with the version that requirements.txt pins. Raises LookupError if the name is not in that file."""
    for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines():
        found = re.match(rf"{re.escape(name)}==\S+", line)
        if found:
            return found[0]
    raise LookupError(f"requirements.txt: no version of {name}, which a layer needs")
