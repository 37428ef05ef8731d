"""The conditions that the layers must meet before they are deployed. Each failure names the file and what was expected."""

import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from crossover.errors import CrossoverError
from layer import elf
from layer.archive import sum_unzipped_bytes

LIMIT_BYTES = 262_144_000  # a function and its layers, unzipped (AWS Lambda quotas)
FUNCTION_BYTES = 2_000_000  # kept free for the function itself; a test compares it with the largest one
# Amazon Linux 2023: glibc 2.34; libstdc++ of GCC 11.
GLIBC, GLIBCXX = (2, 34), (3, 4, 29)
RUNTIME_LIBRARIES = frozenset(
    [
        "libc.so.6",
        "libm.so.6",
        "libdl.so.2",
        "librt.so.1",
        "libpthread.so.0",
        "ld-linux-aarch64.so.1",
        "libgcc_s.so.1",
        "libstdc++.so.6",
        "libz.so.1",
    ]
)


class Unfit(CrossoverError):
    """The error for a layer that would not work on Lambda."""


@dataclass(frozen=True)
class Demands:
    """Requirements of a layer's native files on the runtime. `glibc`, `glibcxx`: highest version needed, such as (2, 28); `libraries`:
    names of libraries that are not in the layer, so that the runtime must have them.
    """

    glibc: tuple[int, ...]
    glibcxx: tuple[int, ...]
    libraries: frozenset[str]


def check_size(archives: Iterable[Path], *, function_bytes: int = FUNCTION_BYTES) -> int:
    """Return how many bytes of Lambda's size limit are left beside these layers and a function of `function_bytes` bytes. Raises Unfit if
    they exceed it.
    """
    sizes = {path.name: sum_unzipped_bytes(path) for path in archives}
    left = LIMIT_BYTES - function_bytes - sum(sizes.values())
    if left < 0:
        raise Unfit(
            f"the layers take {sum(sizes.values()):,} bytes ({sizes}); {LIMIT_BYTES - function_bytes:,} fit beside a function"
        )
    return left


def read_native_files(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (path, content) of each native (ELF) file in a layer's ZIP file."""
    with zipfile.ZipFile(archive) as opened:
        for entry in opened.infolist():
            with opened.open(entry) as file:
                if file.read(4) != b"\x7fELF":
                    continue
            yield entry.filename, opened.read(entry)


def check_native(archive: Path) -> Demands:
    """Return what the layer's native files need from the runtime. Raises Unfit if a file is for another processor or has an unaligned
    segment, or if they need a version or library that Lambda's runtime does not have.
    """
    versions, wanted, own = set[str](), dict[str, str](), set[str]()
    for name, data in read_native_files(archive):
        if elf.machine(data) != elf.AARCH64:
            raise Unfit(
                f"{archive.name}: {name} is for processor {elf.machine(data)}; expected {elf.AARCH64}, 64-bit ARM"
            )
        try:
            elf.check_alignment(data)
        except elf.Malformed as error:
            raise Unfit(f"{archive.name}: {name}: {error}") from error
        own.add(name.rpartition("/")[2])
        versions |= elf.list_needed_versions(data)
        wanted |= dict.fromkeys(elf.list_needed_libraries(data), name)
    demands = Demands(
        elf.find_newest_version(versions, "GLIBC"),
        elf.find_newest_version(versions, "GLIBCXX"),
        frozenset(wanted) - own,
    )
    for family, found, offered in (("GLIBC", demands.glibc, GLIBC), ("GLIBCXX", demands.glibcxx, GLIBCXX)):
        if found > offered:
            raise Unfit(
                f"{archive.name}: asks for {family} {_format_version(found)}; Lambda's runtime has {_format_version(offered)}"
            )
    if absent := demands.libraries - RUNTIME_LIBRARIES:
        library = min(absent)
        raise Unfit(
            f"{archive.name}: {wanted[library]} needs {library}, which is neither in the layer nor in Lambda's runtime"
        )
    return demands


def _format_version(version: tuple[int, ...]) -> str:
    """Return a version as text, such as "2.28" for (2, 28)."""
    return ".".join(str(part) for part in version)
