"""The trace of the Python files that PyTorch loads on Lambda's processor: `python -m tools.layer_trace` writes layer/torch-<version>.txt.

It takes minutes: the whole wheel runs in the emulator. `layer/pruning.py` keeps the files that the trace finds.
"""

import subprocess
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path

from crossover.errors import CrossoverError
from layer import elf, pruning, wheels
from layer.build import HERE
from layer.contents import ROOT, TORCH, layers
from tools import refuse_arguments
from tools.arm_emulator import unpack_emulator

COMPILER = ("torch/_dynamo/*", "torch/_inductor/*")


def trace_files(folder: Path) -> list[str]:
    """Run the workload on the unpruned wheels in the ARM emulator, and return the paths, inside the wheels, of PyTorch's Python files that
    it loaded, without those of its compiler. Takes minutes. `folder`: folder for downloads. Raises CrossoverError if the workload fails,
    TimeoutExpired if it takes more than half an hour.
    """
    with tempfile.TemporaryDirectory(dir=folder) as name:
        tree = Path(name)
        for layer in layers():
            for wheel in wheels.fetch(layer.requirements, folder / "wheels"):
                for path, data in wheels.read_members(wheel):
                    if path.endswith(".py") or elf.is_elf(data) or ".dist-info/" in path:
                        _write_file(tree / path, data)
        for path, data in pruning.load_stubs().items():
            _write_file(tree / path, data)
        try:
            listed = (
                unpack_emulator(folder, [tree, ROOT])
                .run(str(ROOT / "tools" / "layer_workload.py"), "trace", timeout_s=1_800)
                .split()
            )
        except subprocess.CalledProcessError as error:
            raise CrossoverError(f"the workload failed in the emulator: {error.stderr[-2_000:]}") from error
    return [path for path in listed if path.endswith(".py") and not any(fnmatch(path, each) for each in COMPILER)]


def _write_file(path: Path, data: bytes) -> None:
    """Write `data` to the file `path`; missing folders are created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def main() -> int:
    """Write layer/torch-<version>.txt, the list of loaded files, and return the exit status: 0, or that of the error that is printed."""
    folder = ROOT / "build" / "layer"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        found = trace_files(folder)
    except CrossoverError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    target = HERE / f"torch-{TORCH}.txt"
    target.write_text("\n".join(found) + "\n", encoding="utf-8")
    print(f"{target.relative_to(ROOT)}: {len(found)} files")
    return 0


if __name__ == "__main__":
    refuse_arguments(__doc__)
    sys.exit(main())
