"""CIFAR-10 in its official Python form (Krizhevsky 2009): pickles, which are read without ever running what a pickle may ask for.

Each member's published MD5 is checked before a byte of it is interpreted. The archive's own sum is not: repacked archives hold the same
members.
"""

import io
import pickle
import tarfile
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crossover.algorithms import buffers
from crossover.errors import DataError
from crossover.learning import download

ARCHIVE = "cifar-10-python.tar.gz"
ARCHIVE_MD5 = "c58f30108f718f92721af3b95e74349a"  # of the official archive: what a download must have
ARCHIVE_URLS = ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",)
FOLDER = "cifar-10-batches-py"
MEMBERS = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}


def read(directory: str | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(train images (50000, 3, 32, 32) uint8, train labels (50000,) int64, test images, test labels). Raises DataError."""
    base = download.folder(directory)
    places = (base, base / "cifar-10", base / "cifar10")
    members = _unpacked(places) or _packed(places, base)
    parts = []
    for name, md5 in MEMBERS.items():
        if name not in members:
            raise DataError(f"{name}: not among the CIFAR-10 files under {base}; fetch {ARCHIVE} again")
        download.check(members[name], md5, name=f"{FOLDER}/{name}")
        parts.append(decode(members[name], name=name))
    images, labels = torch.cat([part[0] for part in parts[:5]]), torch.cat([part[1] for part in parts[:5]])
    return images, labels, *parts[5]


def decode(member: bytes, *, name: str) -> tuple[Tensor, Tensor]:
    """(images (N, 3, 32, 32) uint8, labels (N,) int64) of one member. Raises DataError on anything that is not such a member."""
    try:
        content = _Reader(io.BytesIO(member), encoding="bytes").load()
        pixels, labels = content[b"data"], content[b"labels"]
        images = pixels.uint8().view(len(labels), 3, 32, 32)
        numbers = torch.tensor(labels, dtype=torch.int64)
    except DataError:
        raise
    except Exception as error:  # a damaged pickle may raise nearly anything
        raise DataError(f"{name}: not a CIFAR-10 member: {type(error).__name__}: {error}") from error
    if numbers.ndim != 1 or bool(((numbers < 0) | (numbers > 9)).any()):
        raise DataError(f"{name}: labels outside 0 to 9")
    return images, numbers


class _Reader(pickle.Unpickler):
    """Builds dictionaries, lists, numbers and strings, and for the one numpy array a stand-in that only keeps its bytes."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
            ("numpy", "ndarray"): _Array,
            ("numpy", "dtype"): _DType,
        }
        if (module, name) not in allowed:
            raise DataError(
                f"CIFAR-10 member asks for {module}.{name}, which such a file does not need; it is not read further"
            )
        return allowed[module, name]


class _DType:
    """Stand-in for numpy.dtype: its name alone."""

    def __init__(self, code: Any = b"", *_: Any) -> None:
        self.code = code.decode() if isinstance(code, bytes) else code

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment say nothing about single bytes."""


class _Array:
    """Stand-in for numpy.ndarray: shape, type and bytes."""

    def __init__(self) -> None:
        self.shape: tuple[int, ...] = ()
        self.data = b""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, dtype, fortran, self.data = state
        if dtype.code != "u1" or fortran or len(self.data) != self.shape[0] * self.shape[1]:
            raise DataError(
                f"CIFAR-10 member: array of shape {self.shape}, type {dtype.code}; N x 3072 unsigned bytes are expected"
            )

    def uint8(self) -> Tensor:
        return buffers.tensor(self.data, torch.uint8)


def _unpacked(places: tuple[Path, ...]) -> dict[str, bytes] | None:
    folder = download.found(FOLDER, places)
    if folder is None:
        return None
    return {name: (folder / name).read_bytes() for name in MEMBERS if (folder / name).is_file()}


def _packed(places: tuple[Path, ...], base: Path) -> dict[str, bytes]:
    """The members, read from the archive one after another into memory; nothing is unpacked to the disk."""
    archive = download.found(ARCHIVE, places)
    if archive is None:
        archive = download.fetch(ARCHIVE, urls=ARCHIVE_URLS, md5=ARCHIVE_MD5, into=base / "cifar-10")
    members = {}
    try:
        with tarfile.open(archive, "r|gz") as packed:
            for entry in packed:
                name = entry.name.rpartition("/")[2]
                if name in MEMBERS and entry.isfile() and (file := packed.extractfile(entry)):
                    members[name] = file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{archive}: not a whole tar.gz archive ({error}); delete it and fetch it again") from error
    return members
