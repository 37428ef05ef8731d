"""The command `python -m layer.build [FOLDER]`: it builds build/layer-dataplane.zip and build/layer-torch.zip, unless what they are made
of is unchanged.
"""

import hashlib
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from crossover.errors import CrossoverError
from layer import archive, bytecode, checks, elf, pruning, wheels
from layer.contents import ROOT, Layer, layers

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Built:
    """The description of a layer's built ZIP file, which is stored beside it as JSON. `made_of`: hash of everything it was made from,
    except the machine; `sha256`: of the ZIP file; `unzipped_bytes`: size of its contents; `python`, `compressor`: versions that made it.
    """

    made_of: str
    sha256: str
    unzipped_bytes: int
    python: str
    compressor: str


def build(layer: Layer, folder: Path, *, python: bytecode.Interpreter | None = None) -> Built:
    """Return the description of `folder`/layer-<name>.zip; build the ZIP file first unless it exists and is up to date. `python`:
    interpreter that compiles, by default one that is found or downloaded. Raises CrossoverError if the layer cannot be built or does not
    fit Lambda.
    """
    folder = folder.resolve()
    target, description = folder / f"layer-{layer.name}.zip", folder / f"layer-{layer.name}.json"
    found = load_cached(layer, folder)
    if found:
        return found
    python = python or bytecode.find_interpreter(folder / "layer")
    with tempfile.TemporaryDirectory(dir=_create_folder(folder / "layer"), prefix=f"{layer.name}-") as name:
        tree = Path(name)
        for wheel in wheels.fetch(layer.requirements, folder / "layer" / "wheels"):
            _unpack(wheel, tree / "python")
        if layer.name == "torch":
            _write_all(pruning.load_stubs(), tree / "python")
        bytecode.compile_tree(python, tree, sourceless=layer.sourceless)
        candidate = tree.with_suffix(".zip")
        try:
            archive.write(tree, candidate)
            checks.check_native(candidate)
            checks.check_size([candidate])
            built = Built(
                compute_fingerprint(layer),
                archive.sha256(candidate),
                archive.sum_unzipped_bytes(candidate),
                python.version,
                archive.compressor(),
            )
            description.unlink(missing_ok=True)  # it describes the zip that stands there, or nothing
            candidate.replace(target)
        finally:
            candidate.unlink(missing_ok=True)
    description.write_text(json.dumps(asdict(built), indent=1) + "\n", encoding="utf-8")
    return built


def load_cached(layer: Layer, folder: Path) -> Built | None:
    """Return the description of the layer's ZIP file in `folder`; None if the file is missing, damaged, or not up to date."""
    target, description = folder / f"layer-{layer.name}.zip", folder / f"layer-{layer.name}.json"
    if not (target.exists() and description.exists()):
        return None
    try:
        found = Built(**json.loads(description.read_text(encoding="utf-8")))
    except (TypeError, ValueError):
        return None
    return found if found.made_of == compute_fingerprint(layer) and found.sha256 == archive.sha256(target) else None


def compute_fingerprint(layer: Layer) -> str:
    """Return a hash of everything that a layer is made from: its requirements, the list of kept files, the stubs and this
    package's code.
    """
    digest = hashlib.sha256(repr(layer).encode())
    for path in sorted([*HERE.glob("*.py"), *HERE.glob("*.txt"), *HERE.rglob("stubs/**/*.py")]):
        digest.update(path.relative_to(HERE).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _unpack(wheel: Path, into: Path) -> None:
    """Write those files of a wheel that the layer keeps into the folder `into`. Native libraries are stripped of symbols."""
    kept = {}
    for path, data in wheels.read_members(wheel):
        if pruning.is_kept(path):
            kept[path] = elf.strip(data) if elf.is_elf(data) else data
            if len(kept) >= 200:  # not all of PyTorch in memory at once
                _write_all(kept, into)
                kept.clear()
    _write_all(kept, into)


def _write_all(files: dict[str, bytes], into: Path) -> None:
    """Write files (contents by relative path) into the folder `into`."""
    for path, data in files.items():
        target = into / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def _create_folder(folder: Path) -> Path:
    """Create a folder, if it is missing, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main() -> int:
    """Build each of the layers that are not up to date, check that they fit Lambda's size limit, and return the exit status. A
    CrossoverError is printed, and its exit status is returned.
    """
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build"
    try:
        for layer in layers():
            started, there = time.monotonic(), load_cached(layer, folder)
            built = there or build(layer, folder)
            how = "is up to date" if there else f"built in {time.monotonic() - started:.0f} s"
            print(f"layer-{layer.name}.zip {how}: {built.unzipped_bytes:,} bytes unzipped, sha256 {built.sha256[:16]}")
        left = checks.check_size(folder / f"layer-{layer.name}.zip" for layer in layers())
    except CrossoverError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{left:,} bytes left beside a function of {checks.FUNCTION_BYTES:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
