"""MNIST in its official form: four gzip files of the idx format (LeCun, Cortes, Burges)."""

import gzip
import zlib
from pathlib import Path

import torch
from torch import Tensor

from crossover.algorithms import buffers
from crossover.errors import DataError
from crossover.learning import download

# Published MD5 sums of the official files.
FILES = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")


def read(directory: str | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(train images (60000, 1, 28, 28) uint8, train labels (60000,) int64, test images, test labels). Raises DataError."""
    base = download.folder(directory)
    parts = [_idx(_file(name, base)) for name in FILES]
    images, labels, test_images, test_labels = parts
    return images.unsqueeze(1), labels.long(), test_images.unsqueeze(1), test_labels.long()


def _file(name: str, base: Path) -> Path:
    place = download.found(name, (base, base / "mnist"))
    if place is None:
        place = download.fetch(name, urls=[mirror + name for mirror in MIRRORS], md5=FILES[name], into=base / "mnist")
    return place


def _idx(path: Path) -> Tensor:
    """The uint8 array of an idx file: magic 0, 0, 8 (unsigned byte), dimensions, then each dimension as big-endian uint32."""
    packed = path.read_bytes()
    download.check(packed, FILES[path.name], name=str(path))
    try:
        data = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not a whole gzip file ({error})") from error
    dimensions = data[3] if len(data) >= 4 and data[:3] == b"\0\0\x08" else 0
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions)]
    start, elements = 4 + 4 * dimensions, 1
    for size in shape:
        elements *= size
    if not dimensions or len(data) != start + elements:
        raise DataError(f"{path}: {len(data)} bytes that are not an idx file of shape {shape}")
    return buffers.tensor(memoryview(data)[start:], torch.uint8).view(shape)
