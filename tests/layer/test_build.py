"""A layer from a small wheel: the same bytes each time, built again only where something changed, and refused where it would not work."""

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cdk.bundling import Sources
from cdk.packaging import ROOT
from crossover.user_code import DATAPLANE, TORCH
from crossover.workflow.architecture import architectures, load, steps
from layer import archive, build, checks, elf, lock, pruning, wheels
from layer.bytecode import Interpreter
from layer.contents import TORCH as TORCH_VERSION
from layer.contents import TYPING_EXTENSIONS, Layer, layers, pin_version

THIS = Interpreter([sys.executable])  # any Python compiles; which one matters to Lambda alone
TINY = Layer("tiny", ("tiny==1.0",), sourceless=True)


def wheel(folder: Path, files: dict[str, bytes], *, layer: Layer = TINY) -> Path:
    """Write a wheel of these files where the layer's build looks for downloaded ones, and return its path."""
    name, _, version = layer.requirements[0].partition("==")
    target = folder / "layer" / "wheels" / f"{name}-{version}-py3-none-any.whl"
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w") as opened:
        for path, data in files.items():
            opened.writestr(path, data)
    return target


FILES = {
    "tiny/__init__.py": b"from tiny.inner import VALUE\n",
    "tiny/inner.py": b"VALUE = {'a', 'b', 'c'}\n",
    "tiny/inner.pyi": b"VALUE: set[str]\n",
    "tiny-1.0.dist-info/METADATA": b"Name: tiny\n",
    "tiny-1.0.dist-info/RECORD": b"",
}


def names(path: Path) -> set[str]:
    """Return the names of the zip file's members."""
    with zipfile.ZipFile(path) as opened:
        return set(opened.namelist())


def test_the_layer_imports_without_its_sources(tmp_path: Path) -> None:
    """Check that a layer contains compiled modules without their sources, and that they can be imported."""
    wheel(tmp_path, FILES)
    build.build(TINY, tmp_path, python=THIS)
    zipped = tmp_path / "layer-tiny.zip"
    assert names(zipped) == {"python/tiny/__init__.pyc", "python/tiny/inner.pyc", "python/tiny-1.0.dist-info/METADATA"}
    with zipfile.ZipFile(zipped) as opened:
        opened.extractall(tmp_path / "opt")
    program = "import sys; sys.path.insert(0, sys.argv[1]); import tiny; print(sorted(tiny.VALUE), tiny.__file__)"
    printed = THIS.run("-c", program, str(tmp_path / "opt/python"))
    assert "['a', 'b', 'c']" in printed and "__init__.pyc" in printed


def test_two_builds_in_two_folders_are_the_same_bytes(tmp_path: Path) -> None:
    """Check that a layer's bytes do not depend on the folder it is built in."""
    sums = []
    for name in ("one", "another-much-longer-name"):
        wheel(tmp_path / name, FILES)
        sums.append(build.build(TINY, tmp_path / name, python=THIS).sha256)
    assert sums[0] == sums[1]


def test_what_is_there_is_kept_and_what_changed_is_built_again(tmp_path: Path) -> None:
    """Check that a finished layer is not built again, and that one of another recipe or with damage is not taken for it."""
    source = wheel(tmp_path, FILES)
    build.build(TINY, tmp_path, python=THIS)
    zipped, before = tmp_path / "layer-tiny.zip", (tmp_path / "layer-tiny.zip").stat().st_mtime_ns
    source.unlink()  # from here on a second build could not succeed
    assert build.build(TINY, tmp_path, python=THIS) == build.load_cached(TINY, tmp_path)
    assert zipped.stat().st_mtime_ns == before
    assert build.load_cached(Layer("tiny", ("tiny==1.0",), sourceless=False), tmp_path) is None
    zipped.write_bytes(zipped.read_bytes()[:-1])
    assert build.load_cached(TINY, tmp_path) is None
    zipped.with_suffix(".json").write_text("{")
    assert build.load_cached(TINY, tmp_path) is None


def test_modes_and_times_of_this_machine_do_not_show(tmp_path: Path) -> None:
    """Check that an archive's bytes do not depend on the files' modes and times, and that programs are executable in it."""
    (tmp_path / "tree/python").mkdir(parents=True)
    (tmp_path / "tree/python/program").write_bytes(b"\x7fELF...")
    (tmp_path / "tree/python/text.py").write_text("")
    archive.write(tmp_path / "tree", tmp_path / "a.zip")
    os.chmod(tmp_path / "tree/python/text.py", 0o777)
    os.utime(tmp_path / "tree/python/text.py", (1, 1))
    archive.write(tmp_path / "tree", tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as opened:
        assert {e.filename: e.external_attr >> 16 for e in opened.infolist()} == {
            "python/program": 0o100755,
            "python/text.py": 0o100644,
        }


def test_another_processors_library_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    """Check that a layer with a library for another processor is refused, and that nothing but the wheels is left."""
    header = list(elf.HEADER.unpack_from(b"\x7fELF\x02\x01".ljust(64, b"\0")))
    header[2], header[5], header[9], header[10] = 62, 64, 56, 1
    load = elf.SEGMENT.pack(elf.LOAD, 5, 0, 0, 0, 120, 120, 0x1000)
    wheel(tmp_path, FILES | {"tiny/native.so": elf.HEADER.pack(*header) + load})
    with pytest.raises(checks.Unfit, match=r"tiny/native\.so is for processor 62; expected 183"):
        build.build(TINY, tmp_path, python=THIS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layer"]
    assert sorted(path.name for path in (tmp_path / "layer").iterdir()) == ["wheels"]


def test_layers_that_leave_no_room_for_a_function_are_refused(tmp_path: Path) -> None:
    """Check that the size of layers is refused if a function does not fit beside them."""
    with zipfile.ZipFile(tmp_path / "layer-a.zip", "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("python/a", bytes(1_000_000))
    assert checks.check_size([tmp_path / "layer-a.zip"]) == checks.LIMIT_BYTES - checks.FUNCTION_BYTES - 1_000_000
    with pytest.raises(checks.Unfit, match="the layers take 1,000,000 bytes"):
        checks.check_size([tmp_path / "layer-a.zip"], function_bytes=checks.LIMIT_BYTES - 999_999)


def test_the_largest_function_fits_into_what_is_kept_free() -> None:
    """Check that the sources of the largest step's function fit into the room that the layers leave."""
    sources = Sources(ROOT)
    packages = DATAPLANE | TORCH | {"boto3", "botocore"}
    sizes = {}
    for name in architectures():
        for step in steps(load(name)):
            closure = sources.collect_files(step.module, available=packages)
            sizes[step.name] = sum((ROOT / path).stat().st_size for path in closure.files)
    largest = max(sizes, key=lambda name: sizes[name])
    assert 0 < sizes[largest] < checks.FUNCTION_BYTES, largest


def test_layers_hold_what_functions_may_import() -> None:
    """Check that the layers' packages are those that functions may import."""
    dataplane, torch = ({r.partition("==")[0].replace("-", "_") for r in layer.requirements} for layer in layers())
    assert dataplane == DATAPLANE
    assert torch == TORCH | {"typing_extensions"}


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("torch/__init__.py", True),
        ("torch/nn/modules/linear.py", True),
        ("torch/lib/libtorch_cpu.so", True),
        ("torch/bin/torch_shm_manager", True),
        ("torch/bin/protoc", False),
        ("torch/include/ATen/ATen.h", False),
        ("torch/_inductor/codecache.py", False),
        ("torch/_dynamo/__init__.py", False),
        ("torch/onnx/__init__.py", False),
        ("torch/lib/libtorchbind_test.so", False),
        ("torch/nn/modules/linear.pyi", False),
        ("torch-2.10.0.dist-info/METADATA", True),
        ("torch-2.10.0.dist-info/licenses/LICENSE", True),
        ("torch-2.10.0.dist-info/RECORD", False),
        ("redis/commands/core.py", True),
    ],
)
def test_what_is_kept(path: str, kept: bool) -> None:
    """Check whether a path of PyTorch is kept in the layer."""
    assert pruning.is_kept(path) is kept


def test_stubs_stand_where_the_compiler_stood() -> None:
    """Check that the stubs which replace PyTorch's compiler are two modules that compile."""
    assert sorted(pruning.load_stubs()) == ["torch/_compile.py", "torch/_dynamo/__init__.py"]
    for name, data in pruning.load_stubs().items():
        compile(data, name, "exec")


# --- nothing without a hash ---


@pytest.mark.parametrize("layer", layers(), ids=lambda layer: layer.name)
def test_every_wheel_of_a_layer_has_its_hash(layer: Layer) -> None:
    """Check that each requirement of a layer is one version with a hash."""
    assert all(re.fullmatch(r"[\w-]+==[\w.]+( --hash=sha256:[0-9a-f]{64})+", each) for each in layer.requirements)


def test_a_wheel_of_another_hash_is_not_taken(tmp_path: Path) -> None:
    """Check that a downloaded wheel of another hash is deleted, and refused if it cannot be fetched."""
    there = wheel(tmp_path, FILES)
    digest = hashlib.sha256(there.read_bytes()).hexdigest()
    assert wheels.fetch([f"tiny==1.0 --hash=sha256:{digest}"], there.parent) == [there]
    with pytest.raises(lock.NoWheels, match=r"pip cannot fetch tiny==1\.0 for ARM"):
        wheels.fetch([f"tiny==1.0 --hash=sha256:{'0' * 64}"], there.parent)
    assert not there.exists()


def test_pip_itself_refuses_what_is_not_as_it_was_locked(tmp_path: Path) -> None:
    """Check that pip refuses a wheel of the right name with other bytes, as an index might serve it."""
    there = wheel(tmp_path / "index", FILES)
    line = f"tiny==1.0 --hash=sha256:{'0' * 64}"
    (tmp_path / "requirements.txt").write_text(f"--no-index\n--find-links {there.parent}\n{line}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--dest", str(tmp_path)]
    ended = subprocess.run(
        [*command, "--requirement", str(tmp_path / "requirements.txt")], text=True, capture_output=True, check=False
    )
    assert ended.returncode != 0 and "DO NOT MATCH THE HASHES" in ended.stderr


def test_the_lock_is_of_the_versions_that_are_required() -> None:
    """Check that the lock files contain the versions that the project pins."""
    names = {line.split(" ")[0] for file in ("packages", "torch") for line in lock.lines(file)}
    for name in (*DATAPLANE, "boto3", "jinja2"):
        assert pin_version(name.replace("_", "-")) in names
    assert {f"torch=={TORCH_VERSION}", f"torch=={TORCH_VERSION}+cpu", TYPING_EXTENSIONS} <= names
