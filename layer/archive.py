"""A layer's zip: the same bytes for the same files on every machine and day."""

import hashlib
import os
import zipfile
import zlib
from pathlib import Path

LONG_AGO = (1980, 1, 1, 0, 0, 0)
LEVEL = 9


def write(folder: Path, target: Path) -> None:
    """Write all files below `folder` to the ZIP file `target`, so that equal files always give equal bytes: sorted by path, without this
    machine's times, owners and modes (ELF files are executable). An existing target is replaced only when the new one is complete.
    """
    part = target.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=LEVEL) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), LONG_AGO)
            entry.create_system = 3  # Unix, also where this is written on another
            entry.external_attr = (0o100755 if path.read_bytes()[:4] == b"\x7fELF" else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    os.replace(part, target)


def compressor() -> str:
    """Return version and level of the compressor as text, because the bytes of a ZIP file depend on them."""
    return f"zlib {zlib.ZLIB_RUNTIME_VERSION}, level {LEVEL}"


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sum_unzipped_bytes(path: Path) -> int:
    """Return the total size in bytes of a ZIP file's contents after unpacking, which AWS Lambda limits."""
    with zipfile.ZipFile(path) as archive:
        return sum(entry.file_size for entry in archive.infolist())
