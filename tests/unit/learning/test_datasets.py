"""Data sets: the real ones where they are present, and every way in which files can be missing, damaged or hostile."""

import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossover.errors import ConfigError, DataError
from crossover.experiment import Data, Experiment, Metric, Training
from crossover.learning import datasets, sizes, understood

DATA = Path(os.environ.get("CROSSOVER_DATA") or Path(__file__).parents[4] / "shared" / "datasets")


def experiment(**data: Any) -> Experiment:
    """Return an experiment with these settings of its data."""
    return Experiment(name="test", architecture="spirt", data=Data(**data))


def real(name: str) -> str:
    """Return the folder of the real data sets. Skips the test if the one that is named is absent."""
    if not (DATA / name).exists():
        pytest.skip(f"{DATA / name} is not there; CROSSOVER_DATA names the folder that has the data sets")
    return str(DATA)


# --- digits and splits ------------------------------------------------------------------------------------------------


def test_digits() -> None:
    """The data set digits has its known number of images, range of values and counts of labels."""
    data = datasets.load(experiment(dataset="digits"))
    assert data.train_inputs.shape == (1438, 1, 8, 8) and data.train_inputs.dtype == torch.uint8
    assert data.validation_inputs.shape == (359, 1, 8, 8)
    assert int(data.train_inputs.max()) == 16
    together = torch.cat([data.train_labels, data.validation_labels])
    assert torch.bincount(together).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_splits_are_the_same_at_each_load_and_cut_to_the_limit() -> None:
    """Check that loading twice gives equal splits, and that `data.limit` takes its samples from the training part only."""
    whole = datasets.load(experiment(dataset="digits"))
    again = datasets.load(experiment(dataset="digits"))
    assert torch.equal(whole.train_inputs, again.train_inputs) and whole.fingerprint == again.fingerprint
    cut = datasets.load(experiment(dataset="digits", limit=100))
    assert cut.train_labels.numel() == 100
    assert torch.equal(cut.validation_labels, whole.validation_labels)
    images = {bytes(image.flatten().tolist()) for image in whole.train_inputs}
    assert all(bytes(image.flatten().tolist()) in images for image in cut.train_inputs)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dataset": "digits"}, "digits: 1,797 rows, of which 1,438 train and 359 validate (data.validation), inputs"),
        ({"dataset": "digits", "limit": 1438}, "of which 1,438 train and 359 validate (data.validation), inputs"),
        (
            {"dataset": "digits", "limit": 200},
            "of which 200 train and 359 validate (data.validation, data.limit), inputs",
        ),
        ({"dataset": "mnist", "validation": "test"}, "60,000 rows and 10,000 to test, inputs"),
        ({"dataset": "mnist", "validation": "test", "limit": 9}, "9 train and 10,000 validate (data.limit), inputs"),
        ({"dataset": "mnist"}, "10,000 to test, of which 48,000 train and 12,000 validate (data.validation), inputs"),
    ],
)
def test_how_many_rows_train_and_validate_is_said_with_the_setting(settings: dict[str, Any], words: str) -> None:
    known = understood.describe_known(experiment(**settings))
    assert known is not None and words in understood.format_lines(known)[0]
    if settings["dataset"] == "digits":
        assert datasets.load(experiment(**settings)).understood == {**known, "label": ANY}


@pytest.mark.parametrize("name", sizes.GENERATED)
def test_generated_images_have_the_number_and_shape_of_the_data_set_and_can_be_learned(name: str) -> None:
    """Check number, shape and fingerprint of the generated images of `name`, and that the nearest class mean classifies over
    90 % of them.
    """
    size, wanted = sizes.DATA[name], experiment(dataset=name, limit=2_000, validation="test")
    found, again = datasets.load(wanted), datasets.load(wanted)
    assert found.train_inputs.shape == (2_000, *size.image) and found.validation_inputs.shape == (
        size.test,
        *size.image,
    )
    assert found.train_inputs.dtype == torch.uint8 and found.fingerprint == again.fingerprint
    means = torch.stack([found.train_inputs[found.train_labels == label].float().mean(0) for label in range(10)])
    nearest = torch.cdist(found.validation_inputs[:500].float().flatten(1), means.flatten(1)).argmin(1)
    assert (nearest == found.validation_labels[:500]).float().mean() > 0.9


def test_splits_that_cannot_be_are_refused() -> None:
    """Check the errors for a missing test split, an empty part and an unknown data set."""
    with pytest.raises(ConfigError, match=r"data\.validation: digits has no test split; give a share"):
        datasets.load(experiment(dataset="digits", validation="test"))
    with pytest.raises(ConfigError, match="leaves one part empty"):
        datasets.load(experiment(dataset="digits", validation=0.0001))
    with pytest.raises(ConfigError, match=r"data\.dataset: 'imagenet' is unknown; one of digits, mnist, cifar10"):
        datasets.load(experiment(dataset="imagenet"))


def test_what_comes_with_the_project_says_when_an_experiment_cannot_train_on_it() -> None:
    """A built-in data set whose labels do not fit the loss raises DataError."""
    own = replace(experiment(), training=Training(loss="mse", metric=Metric(name="mean_absolute_error")))
    with pytest.raises(
        DataError, match=r"digits: labels are single values torch.int64; training.loss: mse takes torch.float32"
    ):
        datasets.load(own)


# --- MNIST ------------------------------------------------------------------------------------------------------------


def test_real_mnist() -> None:
    """The real MNIST has its published number of images, counts of labels and mean."""
    data = datasets.load(experiment(dataset="mnist", validation="test", directory=real("mnist")))
    assert data.train_inputs.shape == (60_000, 1, 28, 28) and data.validation_inputs.shape == (10_000, 1, 28, 28)
    assert torch.bincount(data.train_labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert float(data.train_inputs.double().mean() / 255) == pytest.approx(0.13066, abs=1e-5)


def idx(shape: tuple[int, ...], data: bytes) -> bytes:
    """Return a gzipped IDX file of bytes, MNIST's format, with this shape."""
    return gzip.compress(bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + data)


@pytest.fixture
def tiny_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of MNIST's four files with two samples each; their checksums are expected and nothing is downloaded."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    for name in datasets.FILES:
        shape = (2, 2, 2) if "images" in name else (2,)
        (folder / name).write_bytes(idx(shape, bytes(range(8 if "images" in name else 2))))
        monkeypatch.setitem(datasets.FILES, name, hashlib.md5((folder / name).read_bytes()).hexdigest())
    monkeypatch.setattr(datasets, "MIRRORS", ())
    return folder


@pytest.mark.parametrize("level", ["itself", "above"])
def test_mnist_is_found_in_the_folder_or_below(tiny_mnist: Path, level: str) -> None:
    """Check that MNIST is read from the given folder or from its subfolder `mnist`. `level`: which of the two is given."""
    images, labels, test_images, _ = datasets.read_mnist(str(tiny_mnist if level == "itself" else tiny_mnist.parent))
    assert images.shape == (2, 1, 2, 2) and labels.tolist() == [0, 1]
    assert test_images.flatten().tolist() == list(range(8))


def test_a_damaged_mnist_file_is_refused(tiny_mnist: Path) -> None:
    """Check that a file of MNIST with another MD5 raises DataError."""
    path = tiny_mnist / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"train-labels.*MD5 .* where the published file has"):
        datasets.read_mnist(str(tiny_mnist))


@pytest.mark.parametrize(
    "content",
    [b"not gzip", gzip.compress(b""), gzip.compress(b"\0\0\x08\x01\0\0\0\x03ab"), idx((2,), b"ab")[:-3]],
    ids=["no gzip", "empty", "cut", "short"],
)
def test_a_file_that_is_no_idx_is_refused(tiny_mnist: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """A file with the expected checksum that is no IDX file raises DataError."""
    name = "train-images-idx3-ubyte.gz"
    (tiny_mnist / name).write_bytes(content)
    monkeypatch.setitem(datasets.FILES, name, hashlib.md5(content).hexdigest())
    with pytest.raises(DataError, match=r"not an idx file|not a whole gzip"):
        datasets.read_mnist(str(tiny_mnist))


def test_a_missing_file_says_what_to_do(tiny_mnist: Path) -> None:
    """Check that the error for a missing file of MNIST says where to put it."""
    (tiny_mnist / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"t10k-labels.*put the official file there.*--data DIR\)$"):
        datasets.read_mnist(str(tiny_mnist))


# --- CIFAR-10 ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_real_cifar10() -> None:
    """The real CIFAR-10 has its published number of images, counts of labels and means."""
    data = datasets.load(experiment(dataset="cifar10", validation="test", directory=real("cifar-10")))
    assert data.train_inputs.shape == (50_000, 3, 32, 32) and data.validation_inputs.shape == (10_000, 3, 32, 32)
    assert torch.bincount(data.train_labels).tolist() == [5000] * 10
    means = [float(channel) / 255 for channel in data.train_inputs[:, :].double().mean((0, 2, 3))]
    assert means == pytest.approx([0.491400, 0.482158, 0.446531], abs=1e-5)


def text(value: bytes) -> bytes:
    """Return the pickle of a byte string of at most 255 bytes."""
    return b"U" + bytes([len(value)]) + value


def member(pixels: bytes, labels: list[int]) -> bytes:
    """Return a pickle as Python 2 wrote the official files: protocol 2, byte strings, one numpy array."""
    array = b"".join(
        [
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + text(b"b") + b"\x87R",
            b"(K\x01J" + struct.pack("<i", len(labels)) + b"M\x00\x0c\x86",
            b"cnumpy\ndtype\n"
            + text(b"u1")
            + b"K\0K\x01\x87R(K\x03"
            + text(b"|")
            + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb",
            b"\x89T" + struct.pack("<i", len(pixels)) + pixels + b"tb",
        ]
    )
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + listed + text(b"batch_label") + text(b"x") + b"u."


PIXELS = bytes(i % 251 for i in range(2 * 3072))
MEMBER = member(PIXELS, [3, 9])


def test_a_member_is_decoded_without_numpy_objects() -> None:
    """A file of CIFAR-10 is decoded to the images and labels that pickle would give, without NumPy."""
    images, labels = datasets.decode_cifar10(MEMBER, name="data_batch_1")
    assert images.shape == (2, 3, 32, 32) and bytes(images.flatten().tolist()) == PIXELS
    assert labels.tolist() == [3, 9]
    theirs = pickle.loads(MEMBER.replace(b"numpy.core", b"numpy._core"), encoding="bytes")  # noqa: S301 - written above
    assert theirs[b"data"].tobytes() == PIXELS and theirs[b"data"].shape == (2, 3072)


class Evil:
    """An object whose unpickling creates the file `target`."""

    def __init__(self, target: Path) -> None:
        """Remember the file to create."""
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes pickle run a command that creates the file."""
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_hostile_pickle_runs_nothing(tmp_path: Path, protocol: int) -> None:
    """Check that a pickle with a call of os.system raises DataError and does not run the call."""
    target = tmp_path / "ran"
    hostile = pickle.dumps({b"data": Evil(target), b"labels": [1]}, protocol=protocol)
    with pytest.raises(DataError, match="which such a file does not need"):
        datasets.decode_cifar10(hostile, name="data_batch_1")
    assert not target.exists()


@pytest.mark.parametrize(
    "named",
    ["builtins\neval", "numpy\nload", "numpy.core.multiarray\nscalar", "_codecs\nencode", "copyreg\n_reconstructor"],
)
def test_only_three_names_are_known(named: str) -> None:
    """A pickle that names any other global than the three allowed ones raises DataError."""
    with pytest.raises(DataError, match="does not need"):
        datasets.decode_cifar10(b"\x80\x02c" + named.encode() + b"\n.", name="data_batch_1")


@given(st.data())
def test_a_damaged_member_is_refused_or_harmless(data: st.DataObject) -> None:
    """A file of CIFAR-10 with changed bytes raises DataError, or decodes to as many images as labels."""
    body = bytearray(member(PIXELS, [3, 9]))
    places = st.one_of(st.integers(0, 220), st.integers(len(body) - 60, len(body) - 1))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(places)] = data.draw(st.integers(0, 255))
    try:
        images, labels = datasets.decode_cifar10(bytes(body), name="data_batch_1")
    except DataError:
        return
    assert images.shape[0] == labels.numel()


def test_labels_outside_the_classes_are_refused() -> None:
    """Check that a label of 10 raises DataError."""
    with pytest.raises(DataError, match="labels outside 0 to 9"):
        datasets.decode_cifar10(member(PIXELS, [3, 10]), name="data_batch_1")


@pytest.fixture
def tiny_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Return the pickled members of a tiny CIFAR-10 by name; their checksums are expected and nothing is downloaded."""
    members = {name: member(PIXELS, [number, 9]) for number, name in enumerate(datasets.MEMBERS)}
    for name, body in members.items():
        monkeypatch.setitem(datasets.MEMBERS, name, hashlib.md5(body).hexdigest())
    monkeypatch.setattr(datasets, "ARCHIVE_URLS", ())
    return members


def pack(members: dict[str, bytes], into: Path) -> Path:
    """Write the members into CIFAR-10's archive in the folder `into` and return its path."""
    into.mkdir(parents=True, exist_ok=True)
    with tarfile.open(into / datasets.ARCHIVE, "w:gz") as archive:
        for name, body in members.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            entry.size = len(body)
            archive.addfile(entry, io.BytesIO(body))
    return into / datasets.ARCHIVE


@pytest.mark.parametrize("form", ["archive", "archive below", "folder"])
def test_cifar_is_found_packed_and_unpacked(tmp_path: Path, tiny_cifar: dict[str, bytes], form: str) -> None:
    """Check that CIFAR-10 is read from an archive in the folder, an archive in a subfolder, and an unpacked folder. `form`:
    which of them.
    """
    if form == "folder":
        (tmp_path / datasets.FOLDER).mkdir()
        for name, body in tiny_cifar.items():
            (tmp_path / datasets.FOLDER / name).write_bytes(body)
    else:
        pack(tiny_cifar, tmp_path / "cifar-10" if "below" in form else tmp_path)
    images, labels, test_images, test_labels = datasets.read_cifar10(str(tmp_path))
    assert images.shape == (10, 3, 32, 32) and test_images.shape == (2, 3, 32, 32)
    assert labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9] and test_labels.tolist() == [5, 9]


def test_a_member_with_another_checksum_is_never_interpreted(
    tmp_path: Path, tiny_cifar: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a file of CIFAR-10 with another MD5 raises DataError before it is unpickled."""
    read: list[str] = []
    monkeypatch.setattr(datasets._Reader, "load", lambda _: read.append("interpreted"))
    changed = bytearray(tiny_cifar["data_batch_1"])
    changed[300] ^= 1
    pack(tiny_cifar | {"data_batch_1": bytes(changed)}, tmp_path)
    with pytest.raises(DataError, match=r"data_batch_1: MD5 .* where the published file has"):
        datasets.read_cifar10(str(tmp_path))
    assert not read


def test_a_missing_member_and_a_cut_archive_are_refused(tmp_path: Path, tiny_cifar: dict[str, bytes]) -> None:
    """Check that an archive without one file, and a truncated archive, raise DataError."""
    archive = pack({name: body for name, body in tiny_cifar.items() if name != "test_batch"}, tmp_path)
    with pytest.raises(DataError, match="test_batch: not among"):
        datasets.read_cifar10(str(tmp_path))
    whole = pack(tiny_cifar, tmp_path).read_bytes()
    for cut in (0, 10, len(whole) // 2):
        archive.write_bytes(whole[:cut])
        with pytest.raises(DataError, match=r"not a whole tar\.gz archive|not among"):
            datasets.read_cifar10(str(tmp_path))


def test_no_archive_at_all_says_what_to_do(tmp_path: Path, tiny_cifar: dict[str, bytes]) -> None:
    """Check that the error for a missing CIFAR-10 says where to put it."""
    with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz: is not in .*--data DIR"):
        datasets.read_cifar10(str(tmp_path))


# --- downloads --------------------------------------------------------------------------------------------------------


class _Quiet(SimpleHTTPRequestHandler):
    """A file server that logs nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Yield an empty folder and the URL under which its files are served."""
    folder = tmp_path / "served"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_download_is_checked_and_kept(served: tuple[Path, str], tmp_path: Path) -> None:
    """A file is downloaded from the first address that has it, and kept if its checksum is right."""
    folder, address = served
    (folder / "file").write_bytes(b"content")
    md5 = hashlib.md5(b"content").hexdigest()
    urls = [f"{address}missing", f"{address}file"]  # the first mirror does not have it
    path = datasets.download("file", urls=urls, md5=md5, into=tmp_path / "into")
    assert path.read_bytes() == b"content"
    assert [entry.name for entry in (tmp_path / "into").iterdir()] == ["file"]


def test_a_download_of_something_else_leaves_nothing(served: tuple[Path, str], tmp_path: Path) -> None:
    """A download with another checksum raises DataError, and no file is left."""
    folder, address = served
    (folder / "file").write_bytes(b"an error page")
    with pytest.raises(DataError, match=r"put the official file there.*MD5 "):
        datasets.download("file", urls=[f"{address}file"], md5="0" * 32, into=tmp_path / "into")
    assert list((tmp_path / "into").iterdir()) == []


def test_no_connection_says_what_to_do(tmp_path: Path) -> None:
    """Check that the error for a URL without a server says where to put the file."""
    with pytest.raises(DataError, match=r"put the official file there.*failed: http://127\.0\.0\.1:9/file: "):
        datasets.download("file", urls=["http://127.0.0.1:9/file"], md5="0" * 32, into=tmp_path)
