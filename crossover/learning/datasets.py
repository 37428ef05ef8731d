"""Data sets by name, and the user's own: samples, images, and where they are downloaded from."""

import gzip
import hashlib
import io
import json
import os
import pickle
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crossover import user_code
from crossover.algorithms import buffers
from crossover.algorithms.schedule import derive_seed, permute
from crossover.errors import ConfigError, DataError
from crossover.experiment import Experiment, Table
from crossover.learning import fitness, scaling, sizes, understood
from crossover.learning import samples as affine
from crossover.learning.kept import compute_once
from crossover.learning.samples import Dataset as Dataset
from crossover.learning.samples import LabelScale, Preparation, pad_sequences, to_whole_number
from crossover.learning.samples import Samples as Samples
from crossover.learning.sizes import DataSize

# --- download ---------------------------------------------------------------------------------------------------------

_TIMEOUT_S = 30.0
_BLOCK_BYTES = 1 << 20


def get_data_folder(directory: str | None) -> Path:
    """Return the data sets' folder: `directory` with ~ expanded if given, otherwise ~/.cache/crossover/data. It is not created."""
    return Path(directory).expanduser() if directory else Path.home() / ".cache" / "crossover" / "data"


def find_path(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the path of the file or folder `name` in the first of `folders` that has it, or None."""
    return next((place / name for place in folders if (place / name).exists()), None)


def check_md5(data: bytes | memoryview, md5: str, *, name: str) -> None:
    """Raise DataError, naming `name`, unless the MD5 digest of `data` is `md5`, the published one. This guards against transmission
    errors, not forgery.
    """
    actual = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if actual != md5:
        raise DataError(
            f"{name}: MD5 {actual} where the published file has {md5}; the file is damaged or another one: delete it and fetch it again"
        )


def download(name: str, *, urls: Sequence[str], md5: str, into: Path) -> Path:
    """Download the file `name` from the first of `urls` that delivers it with this `md5`, into the folder `into`, which is created if
    missing; return the file's path. A file of that name is replaced. The download gets the name only when it is complete and checked.
    Raises DataError, which says where to put the file by hand, if every source fails.
    """
    target, reasons = into / name, []
    for url in urls:
        partial = into / f".{name}.{os.getpid()}.part"
        try:
            into.mkdir(parents=True, exist_ok=True)
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response, partial.open("wb") as file:
                while block := response.read(_BLOCK_BYTES):
                    file.write(block)
            check_md5(partial.read_bytes(), md5, name=f"{name} from {url}")
            partial.rename(target)
            return target
        except (OSError, urllib.error.URLError, DataError) as error:
            reasons.append(str(error) if isinstance(error, DataError) else f"{url}: {error}")
        finally:
            partial.unlink(missing_ok=True)
    failed = f". Downloading it failed: {'; '.join(reasons)}" if reasons else ""
    raise DataError(
        f"{name}: is not in {into}; put the official file there, or name the folder that has it in data.directory (--data DIR){failed}"
    )


# --- mnist ------------------------------------------------------------------------------------------------------------
# MNIST in its official form: four gzip files of the idx format (LeCun, Cortes, Burges).

# Published MD5 sums of the official files.
FILES = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")


def read_mnist(directory: str | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (train images (60000, 1, 28, 28) uint8, train labels (60000,) int64, test images, test labels) of MNIST, downloaded if
    missing. The images must not be written to. `directory`: folder of the files, None for the user's cache. Raises DataError if a file
    cannot be downloaded or is damaged (a damaged one is not downloaded again), OSError if it cannot be read.
    """
    base = get_data_folder(directory)
    parts = [_read_idx(_find_or_download(name, base)) for name in FILES]
    images, labels, test_images, test_labels = parts
    return images.unsqueeze(1), labels.long(), test_images.unsqueeze(1), test_labels.long()


def _find_or_download(name: str, base: Path) -> Path:
    """Return the path of the MNIST file `name` in the folder `base` or `base`/mnist; download it into the latter if it is missing."""
    place = find_path(name, (base, base / "mnist"))
    if place is None:
        place = download(name, urls=[mirror + name for mirror in MIRRORS], md5=FILES[name], into=base / "mnist")
    return place


def _read_idx(path: Path) -> Tensor:
    """Return the array of one of MNIST's gzipped idx files as a uint8 tensor in its own shape, which must not be written to, after its MD5
    was checked. `path`: must have a name in FILES. Raises DataError if the file is damaged or is no uint8 idx file, OSError if it cannot be
    read.
    """
    packed = path.read_bytes()
    check_md5(packed, FILES[path.name], name=str(path))
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


# --- cifar10 ----------------------------------------------------------------------------------------------------------
# CIFAR-10 in its official Python form (Krizhevsky 2009): pickles, which are read without ever running what a pickle may ask for.
#
# Each member's published MD5 is checked before a byte of it is interpreted. The archive's own sum is not: repacked archives hold the same
# members.

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


def read_cifar10(directory: str | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (train images (50000, 3, 32, 32) uint8, train labels (50000,) int64, test images, test labels) of CIFAR-10, downloaded if
    missing. The test images must not be written to. `directory`: folder of the files, None for the user's cache. Raises DataError if they
    cannot be downloaded, are incomplete or damaged; such files are not downloaded again; OSError if an unpacked file cannot be read. An
    unpacked folder comes before an archive.
    """
    base = get_data_folder(directory)
    places = (base, base / "cifar-10", base / "cifar10")
    members = _read_unpacked(places) or _read_archive(places, base)
    parts = []
    for name, md5 in MEMBERS.items():
        if name not in members:
            raise DataError(f"{name}: not among the CIFAR-10 files under {base}; fetch {ARCHIVE} again")
        check_md5(members[name], md5, name=f"{FOLDER}/{name}")
        parts.append(decode_cifar10(members[name], name=name))
    images, labels = torch.cat([part[0] for part in parts[:5]]), torch.cat([part[1] for part in parts[:5]])
    return images, labels, *parts[5]


def decode_cifar10(member: bytes, *, name: str) -> tuple[Tensor, Tensor]:
    """Return (images (N, 3, 32, 32) uint8, a view of `member` that must not be written to, labels (N,) int64 from 0 to 9) from `member`,
    the bytes of one file of the CIFAR-10 archive: a pickle, of which no code runs. `name`: the file's name for errors. Raises DataError if
    it is not such a file.
    """
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
    """Unpickler for CIFAR-10 files that builds only plain values and, instead of numpy arrays, `_Array` objects that keep their
    bytes; so no code of the pickle runs.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Return the replacement of one of the three numpy names that a CIFAR-10 file uses. Raises DataError for any other name."""
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
    """Replacement of numpy.dtype in an unpickled file, which keeps only the type's code, such as "u1"."""

    def __init__(self, code: Any = b"", *_: Any) -> None:
        """Keep the type's code, such as "u1"; the other arguments of the pickle are ignored."""
        self.code = code.decode() if isinstance(code, bytes) else code

    def __setstate__(self, state: Any) -> None:
        """Do nothing: byte order and alignment do not matter for single bytes."""


class _Array:
    """Replacement of numpy.ndarray in an unpickled file, which keeps shape and bytes."""

    def __init__(self) -> None:
        """Create an empty array, which `__setstate__` fills."""
        self.shape: tuple[int, ...] = ()
        self.data = b""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Take shape and bytes from the pickle. Raises DataError unless they are a two-dimensional array of unsigned bytes in row order."""
        _, self.shape, dtype, fortran, self.data = state
        if dtype.code != "u1" or fortran or len(self.data) != self.shape[0] * self.shape[1]:
            raise DataError(
                f"CIFAR-10 member: array of shape {self.shape}, type {dtype.code}; N x 3072 unsigned bytes are expected"
            )

    def uint8(self) -> Tensor:
        """Return a flat uint8 tensor over the array's bytes, without a copy; it must not be written to."""
        return buffers.tensor(self.data, torch.uint8)


def _read_unpacked(places: tuple[Path, ...]) -> dict[str, bytes] | None:
    """Return the bytes of the CIFAR-10 files by name from the unpacked folder in the first of `places` that has it, without missing
    files; None if there is no such folder.
    """
    folder = find_path(FOLDER, places)
    if folder is None:
        return None
    return {name: (folder / name).read_bytes() for name in MEMBERS if (folder / name).is_file()}


def _read_archive(places: tuple[Path, ...], base: Path) -> dict[str, bytes]:
    """Return the bytes of the CIFAR-10 files by name from the archive in the first of `places` that has it, or else downloaded into
    a folder of `base`. Nothing is unpacked to the disk. Raises DataError if the archive is damaged.
    """
    archive = find_path(ARCHIVE, places)
    if archive is None:
        archive = download(ARCHIVE, urls=ARCHIVE_URLS, md5=ARCHIVE_MD5, into=base / "cifar-10")
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


# --- datasets ---------------------------------------------------------------------------------------------------------
# Data sets by name: loaded, split and fingerprinted on the machine that stages them.
#
# digits (scikit-learn's 8x8 digits), mnist, cifar10, generated images in the shape of these two, or `package.module:loader`. This module
# may use numpy through scikit-learn; no step imports it.

_STAGING_FORMAT = 1  # raise it when the staged bytes change, so that old ones are not taken for new ones


def count_training_samples(experiment: Experiment) -> int:
    """Return the number of training samples of the experiment. The data set is loaded only if it is not a built-in one. Raises the
    errors of `load`.
    """
    known = sizes.count_split(experiment)
    return known[0] if known else len(load(experiment).train_labels)


def load(experiment: Experiment) -> Dataset:
    """Return the experiment's data set, loaded, checked, split, with labels scaled; MNIST and CIFAR-10 are downloaded if missing. Within a
    block of `keep_results` it is loaded once, and all callers share it: it must not be changed. Raises DataError if it is missing and
    cannot be downloaded, damaged or does not fit the model, OSError if a file cannot be read, ConfigError if it is unknown, has no test
    split to validate on, or a setting does not fit it, OwnCodeError if a user's loader fails or returns samples that are malformed.
    """
    training = experiment.training
    cut = (experiment.seed, experiment.workers, training.batch_size, repr(experiment.faults))
    key = ("data set", repr(experiment.data), *cut, training.model, training.loss, repr(training.image_size))
    return compute_once(key, lambda: _load(experiment))


def _load(experiment: Experiment) -> Dataset:
    """Load the experiment's data set anew, check it, split off the validation set, scale labels and preprocess, and return it as `load`
    does. Raises what `load` raises.
    """
    samples, loader = load_samples(experiment)
    if experiment.data.table != Table() and getattr(samples, "reading", None) is None:
        raise ConfigError(
            f"data.table: is for the loader of a CSV, as `crossover advise --data` writes it; {experiment.data.dataset} reads none by it; "
            "leave it out, or let crossover.learning.table.read(path, experiment.data.table) read the file"
        )
    fitness.check_samples(samples, experiment, loader=loader)
    training, validation = _split_samples(samples, experiment)
    scale = scaling.compute_label_scale(training[1], experiment, classes=samples.classes)
    found = understood.describe(samples, experiment, scale)
    if scale is not None or (samples.labels.dtype == torch.float64 and ":" not in experiment.training.loss):
        training, validation = (
            (inputs, scaling.scale_labels(labels, scale).float()) for inputs, labels in (training, validation)
        )
    given = Dataset(*training, *validation, samples.classes, experiment.data.dataset, "", scale=scale, understood=found)
    dataset = _map_inputs(given, experiment, loader)
    early = dataset.train_inputs is not given.train_inputs
    return replace(dataset, fingerprint=_fingerprint(experiment, *training, *validation, early=early, scale=scale))


def load_samples(experiment: Experiment) -> tuple[Samples, Callable[..., object] | None]:
    """Return (samples, loader): the whole data set that `data.dataset` names, before it is split, and the user's loader function, None for
    a built-in data set. What a user's loader returns is not checked; lists of sequences are padded to one length. Raises ConfigError if
    the name is unknown, OwnCodeError if the loader fails, DataError if the files are missing or damaged.
    """
    name = experiment.data.dataset
    match name:
        case "digits":
            return _load_digits(), None
        case "mnist":
            images, labels, test_images, test_labels = read_mnist(experiment.data.directory)
            return Samples(images, labels, 10, test_images, test_labels), None
        case "cifar10":
            images, labels, test_images, test_labels = read_cifar10(experiment.data.directory)
            return Samples(images, labels, 10, test_images, test_labels), None
    if name in sizes.GENERATED:
        return _generate(sizes.DATA[name]), None
    if ":" not in name:
        raise ConfigError(
            f"data.dataset: {name!r} is unknown; one of digits, mnist, cifar10, {', '.join(sizes.GENERATED)}, or package.module:loader"
        )
    loader = user_code.load(name, field="data.dataset")
    with user_code.attribute_errors("data.dataset", name, what=loader):
        samples: Samples = loader(experiment)
    if isinstance(samples, Samples):
        samples = replace(pad_sequences(samples), classes=to_whole_number(samples.classes))
    return samples, loader


def _map_inputs(dataset: Dataset, experiment: Experiment, loader: Callable[..., object] | None) -> Dataset:
    """Return `dataset` with `affine` (scale and shift of each channel) set if its inputs are floats, otherwise itself. If float32 would
    lose precision, its inputs are preprocessed now, in float64, and `affine` says that nothing is left to do; notes about channels that are
    mostly rounding are printed. `loader`: user's loader, for errors. Raises as `fitness.check_mapped` does.
    """
    inputs, preprocess = dataset.train_inputs, experiment.data.preprocess
    if not inputs.is_floating_point():
        return dataset
    scale, shift = affine.compute_constants(inputs, preprocess)
    whole = {"scale": scale, "shift": shift}
    if not affine.is_mapped_early(inputs, scale, shift):
        return replace(dataset, affine=whole)
    prepare = Preparation(whole, memory_format="contiguous")
    training, validation = (
        torch.cat([prepare(block.to(torch.float64)) for block in torch.split(part, affine.BLOCK)])
        for part in (inputs, dataset.validation_inputs)
    )
    rest = {"scale": [], "shift": [], "zero": shift}
    mapped = replace(dataset, train_inputs=training, validation_inputs=validation, affine=rest)
    fitness.check_mapped(mapped, experiment, loader=loader)
    fitness.note_blurred_channels(dataset, whole)
    return mapped


def _load_digits() -> Samples:
    """Return scikit-learn's 1,797 handwritten digits of 8x8 pixels with values 0 to 16 (UCI, test part). Raises DataError if
    scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError("digits: scikit-learn is not installed; pip install scikit-learn") from error
    bunch = load_digits()
    images = torch.tensor(bunch.images.tolist(), dtype=torch.uint8).unsqueeze(1)
    return Samples(images, torch.tensor(bunch.target.tolist(), dtype=torch.int64), 10)


def _generate(size: DataSize) -> Samples:
    """Return artificial images, uint8, in the numbers and shape of `size`, the same in every call: one of ten fixed patterns, the class,
    plus random noise. The published test part is filled too, with no images if `size.test` is None.
    """
    random = torch.Generator().manual_seed(0)
    patterns = torch.randint(0, 128, (10, *size.image), dtype=torch.uint8, generator=random)

    def make(count: int) -> Split:
        """Return `count` new artificial images of the shape `size.image`, uint8, and their labels, int64, 0 to 9 in turn. The noise comes
        from `random`, so each call's differs.
        """
        labels = torch.arange(count) % 10
        noise = torch.randint(0, 128, (count, *size.image), dtype=torch.uint8, generator=random)
        return noise.add_(patterns[labels]), labels

    return Samples(*make(size.training), 10, *make(size.test or 0))


Split = tuple[Tensor, Tensor]


def _split_samples(samples: Samples, experiment: Experiment) -> tuple[Split, Split]:
    """Return (training part, validation part), each (inputs, labels). If `data.validation` is "test", the published test split validates,
    as the very tensors of `samples`; else a fraction of the training samples, drawn by the seed. `data.limit`: number of the other training
    samples that are kept, drawn by the seed; None keeps all. The training part stays in the order of `samples`. Raises ConfigError if the
    test split is missing, or if the fraction leaves one part empty.
    """
    share, count = experiment.data.validation, len(samples.labels)
    ids = permute(count, seed=derive_seed("split", experiment.seed))
    if share == "test":
        if samples.test_inputs is None or samples.test_labels is None:
            raise ConfigError(f"data.validation: {experiment.data.dataset} has no test split; give a share such as 0.2")
        validation, kept = (samples.test_inputs, samples.test_labels), ids
    else:
        held = sizes.count_held_out(count, share)
        chosen = torch.tensor(ids[:held], dtype=torch.int64)
        validation, kept = (samples.inputs[chosen], samples.labels[chosen]), ids[held:]
    rest = torch.tensor(sorted(kept[: experiment.data.limit]), dtype=torch.int64)
    return (samples.inputs[rest].contiguous(), samples.labels[rest].contiguous()), validation


def _fingerprint(experiment: Experiment, *tensors: Tensor, early: bool, scale: LabelScale | None) -> str:
    """Return a hash that identifies the staged data: of the `tensors` and of each setting that selects or changes samples.

    `early`: whether inputs are preprocessed before staging; `scale`: how labels are scaled.
    """
    flips = asdict(experiment.faults) if experiment.faults.attack == "label_flip" else {}
    settings = asdict(experiment.data) | {"directory": None, "augment": None}
    del settings["table"], settings["scale_labels"]  # the tensors have what they decide, and the scale
    settings |= {"workers": experiment.workers, "batch_size": experiment.training.batch_size, "seed": experiment.seed}
    digest = hashlib.blake2b(digest_size=16)
    staged = [_STAGING_FORMAT, settings, flips, *(["mapped early"] if early else [])]
    digest.update(json.dumps(staged, sort_keys=True).encode())
    if scale is not None:
        digest.update(json.dumps([scale.mean, scale.deviation]).encode())
    for tensor in tensors:
        digest.update(json.dumps([str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(buffers.view(tensor.contiguous()))
    return digest.hexdigest()
