"""ELF files: what is left out is nothing that the loader maps, also where segments stand behind the symbols."""

import ctypes
import shutil
import subprocess
from dataclasses import astuple, replace
from pathlib import Path

import pytest

from layer import elf

SOURCE = """
#include <cmath>
#include <string>
static int counter = 41;
extern "C" double root(double x) { counter += 1; return std::sqrt(x) + std::to_string(counter).size(); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile a library with symbols and debug information for this machine, and return its path. Skips the test without g++."""
    if not shutil.which("g++"):
        pytest.skip("g++ is not installed here")
    folder = tmp_path_factory.mktemp("library")
    (folder / "root.cpp").write_text(SOURCE)
    command = ["g++", "-g", "-shared", "-fPIC", "-o", str(folder / "libroot.so"), str(folder / "root.cpp")]
    subprocess.run(command, check=True)
    return folder / "libroot.so"


def behind_the_symbols(data: bytes, *, pages: int) -> bytes:
    """Return the file as patchelf leaves it: the last loaded segment copied to a place behind the file's end, `pages` further."""
    found = elf.segments(data)
    last = max((s for s in found if s.kind == elf.LOAD), key=lambda s: s.offset)
    start = (len(data) // elf.PAGE + pages) * elf.PAGE + last.offset % elf.PAGE
    out = bytearray(data.ljust(start, b"\xaa"))
    out[start:] = data[last.offset : last.end]
    header = elf.HEADER.unpack_from(data)
    for index, segment in enumerate(found):
        if last.offset <= segment.offset and segment.end <= last.end and segment.in_file:
            moved = replace(segment, offset=segment.offset - last.offset + start)
            elf.SEGMENT.pack_into(out, header[5] + index * header[9], *astuple(moved))
    return bytes(out)


def image(data: bytes) -> list[tuple[int, bytes]]:
    """Return the address and the bytes of each loaded segment, without the header, which says where the segments are in the file."""
    header = elf.HEADER.unpack_from(data)
    skip = header[5] + header[9] * header[10]
    loads = [s for s in elf.segments(data) if s.kind == elf.LOAD]
    return [(s.address, data[max(s.offset, skip if s.offset == 0 else 0) : s.end]) for s in loads]


def call(data: bytes, folder: Path) -> float:
    """Load the shared library and return its function `root` at 49."""
    path = folder / "lib.so"
    path.write_bytes(data)
    root = ctypes.CDLL(str(path)).root
    root.restype, root.argtypes = ctypes.c_double, [ctypes.c_double]
    return float(root(49.0))


def test_a_stripped_library_is_smaller_and_still_works(library: Path, tmp_path: Path) -> None:
    """Check that a stripped library is smaller, has no symbols, and computes the same."""
    data = library.read_bytes()
    stripped = elf.strip(data)
    assert len(stripped) < 0.8 * len(data)
    assert image(stripped) == image(data)
    assert b".symtab" not in stripped and b".debug_info" not in stripped
    assert call(stripped, tmp_path) == 9.0


@pytest.mark.parametrize("pages", [1, 3, 50])
def test_a_segment_behind_the_symbols_moves_down_by_whole_pages(library: Path, tmp_path: Path, pages: int) -> None:
    """Check that a library whose last segment is behind the symbols is stripped by whole pages and works."""
    data = behind_the_symbols(library.read_bytes(), pages=pages)
    stripped = elf.strip(data)
    assert len(stripped) <= len(data) - (pages - 1) * elf.PAGE
    assert image(stripped) == image(data)
    assert elf.list_needed_libraries(stripped) == elf.list_needed_libraries(data) != set()
    assert call(stripped, tmp_path) == 9.0


def test_stripping_twice_changes_nothing(library: Path) -> None:
    """Check that stripping a stripped library changes nothing."""
    once = elf.strip(library.read_bytes())
    assert elf.strip(once) == once


def test_needed_libraries_and_versions(library: Path) -> None:
    """Check that the libraries and the GLIBC version which a library needs are found."""
    data = library.read_bytes()
    assert {"libstdc++.so.6"} <= elf.list_needed_libraries(data)
    assert elf.find_newest_version(elf.list_needed_versions(data), "GLIBC") >= (2, 2)


def test_the_newest_version_is_by_number_not_by_letters() -> None:
    """Check that 2.28 is newer than 2.9, and that a missing name has no version."""
    assert elf.find_newest_version({"GLIBC_2.9", "GLIBC_2.28", "GLIBCXX_3.4.22", "GLIBC_PRIVATE"}, "GLIBC") == (2, 28)
    assert elf.find_newest_version({"GLIBC_2.9"}, "GLIBCXX") == ()


def test_a_misaligned_segment_is_refused(library: Path) -> None:
    """Check that a segment whose offset does not have its address's alignment is refused."""
    data = bytearray(library.read_bytes())
    header = elf.HEADER.unpack_from(data)
    index, segment = next((i, s) for i, s in enumerate(elf.segments(bytes(data))) if s.kind == elf.LOAD and s.offset)
    wrong = replace(segment, offset=segment.offset + 8)
    elf.SEGMENT.pack_into(data, header[5] + index * header[9], *astuple(wrong))
    with pytest.raises(elf.Malformed, match="off by its alignment"):
        elf.check_alignment(bytes(data))
