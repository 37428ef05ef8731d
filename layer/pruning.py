"""The choice of the wheels' files that a function needs.

Left out of libraries: headers, programs and tests. Left out of PyTorch's Python files: those that are neither loaded by importing and
using it (a traced list, `python -m tools.layer_trace`, one per version) nor part of a public package that training code may use as a
whole.
"""

import re
from fnmatch import fnmatch
from pathlib import Path

from layer.contents import TORCH

HERE = Path(__file__).parent
STUBS = HERE / "stubs"  # stand where torch's compiler stood; it alone would need sympy

WITHOUT_USE = (
    *("torch/include/*", "torch/share/*", "torch/test/*", "torchgen/packaged/*", "caffe2/*"),
    *("*.pyi", "*/py.typed", "*.h", "*.cuh", "*.cpp", "*.cmake", "*.a", "*.pxd", "*.pyx"),
    *("torch/lib/libbackend_with_compiler.so", "torch/lib/libjitbackend_test.so"),
    *("torch/lib/libtorchbind_test.so", "torch/lib/libaoti_custom_ops.so"),
    *("torch/_dynamo/*", "torch/_inductor/*"),
)
# `import torch` asks whether this program is there; no other program of torch/bin is ever called.
PROGRAMS, WANTED_PROGRAM = "torch/bin/*", "torch/bin/torch_shm_manager"
METADATA = re.compile(r"[^/]+\.dist-info/(METADATA|.*LICEN[CS]E.*|.*NOTICE.*)", re.IGNORECASE)

WHOLE_PACKAGES = tuple(
    f"torch/{name}/*"
    for name in (
        *("nn", "optim", "autograd", "utils/data", "func", "amp", "cpu", "linalg", "fft", "special", "backends"),
        *("distributions", "masked", "nested", "_library", "_custom_op", "signal", "profiler", "multiprocessing"),
        *("_vendor", "_logging", "futures", "monitor"),
    )
)


def is_kept(path: str) -> bool:
    """Return whether the layer includes this file of a wheel. `path`: path inside the wheel.

    Of a folder .dist-info only metadata, licences and notices are kept. Folders .data, the files that match WITHOUT_USE, and PyTorch's
    programs other than WANTED_PROGRAM are left out. PyTorch's Python files are kept if they lie directly in torch, torchgen, functorch or
    torch/utils, if a recorded training loads them (`load_traced_paths`), or if they belong to WHOLE_PACKAGES. All other files are kept.
    """
    if ".dist-info/" in path:
        return bool(METADATA.fullmatch(path))
    if ".data/" in path or (fnmatch(path, PROGRAMS) and path != WANTED_PROGRAM):
        return False
    if any(fnmatch(path, pattern) for pattern in WITHOUT_USE):
        return False
    if not (path.startswith(("torch/", "torchgen/", "functorch/")) and path.endswith(".py")):
        return True
    directly = path.count("/") == 1 or (path.startswith("torch/utils/") and path.count("/") == 2)
    return directly or path in load_traced_paths() or any(fnmatch(path, pattern) for pattern in WHOLE_PACKAGES)


def load_traced_paths() -> frozenset[str]:
    """Return the recorded paths, inside the wheel, of the Python files that PyTorch loads when it is imported and trains a model."""
    return frozenset((HERE / f"torch-{TORCH}.txt").read_text(encoding="utf-8").split())


def load_stubs() -> dict[str, bytes]:
    """Return the project's files that replace files of PyTorch, as contents by path inside the wheel."""
    return {str(path.relative_to(STUBS)): path.read_bytes() for path in sorted(STUBS.rglob("*.py"))}


def reads_its_source(source: bytes) -> bool:
    """Return whether PyTorch reads the source text of this file when it is imported, so that byte code alone does not suffice: whether it
    contains one of two marks, be it in a comment. `source`: the file's content.
    """
    return b"install_config_module(" in source or b"_overload" in source
