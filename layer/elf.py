"""ELF files as the dynamic loader sees them: segments, needed libraries, versions; and a smaller copy without what only linkers and
debuggers read.

Source: System V ABI, chapters 4 and 5; ELF64 little-endian alone, which is what Lambda's processors use.
"""

import re
import struct
from dataclasses import astuple, dataclass, replace

HEADER, SEGMENT = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ")
LOAD, DYNAMIC = 1, 2
NEEDED, STRTAB, STRSZ, VERNEED, VERNEEDNUM = 1, 5, 10, 0x6FFFFFFE, 0x6FFFFFFF
AARCH64 = 183
PAGE = 0x10000  # the largest page of Linux on ARM


class Malformed(ValueError):
    """The error for data that are not an ELF file which the loader would map."""


@dataclass(frozen=True)
class Segment:
    """One entry of an ELF program header, with the fields of the format in their order. `kind`: its type, such as LOAD; `offset`: its
    position in the file; `address`: its virtual address; `in_file`, `in_memory`: its size in bytes there.
    """

    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    in_file: int
    in_memory: int
    alignment: int

    @property
    def end(self) -> int:
        """Position in the file just after the segment."""
        return self.offset + self.in_file


def is_elf(data: bytes) -> bool:
    """Return whether the data begin as a 64-bit little-endian ELF file."""
    return data[:6] == b"\x7fELF\x02\x01"


def machine(data: bytes) -> int:
    """Return the ELF number of the processor that the file is for, such as AARCH64."""
    return int(HEADER.unpack_from(data)[2])


def segments(data: bytes) -> list[Segment]:
    """Return all entries of the file's program header."""
    header = HEADER.unpack_from(data)
    start, size, count = header[5], header[9], header[10]
    return [Segment(*SEGMENT.unpack_from(data, start + index * size)) for index in range(count)]


def check_alignment(data: bytes) -> None:
    """Raise Malformed if a loaded segment's offset and address differ modulo its alignment, because the loader maps whole pages."""
    for segment in segments(data):
        if segment.kind == LOAD and (segment.offset - segment.address) % (segment.alignment or 1):
            raise Malformed(
                f"a segment at {segment.offset:#x} is loaded to {segment.address:#x}, off by its alignment {segment.alignment:#x}"
            )


def strip(data: bytes) -> bytes:
    """Return a smaller ELF file that loads to the same image in memory: without symbol tables, debug information and section headers.

    The bytes of loaded segments do not change. A segment that lies behind the symbols (patchelf puts it there) is moved down by whole
    pages, so that its alignment stays valid; `strip` of binutils has corrupted such files.
    """
    found = segments(data)
    moved = _compute_moves(found)
    out = bytearray()
    for segment in sorted((s for s in found if s.kind == LOAD), key=lambda s: s.offset):
        start = segment.offset - moved[segment]
        out.extend(bytes(max(0, start - len(out))))
        out[start : start + segment.in_file] = data[segment.offset : segment.end]
    header = list(HEADER.unpack_from(data))
    header[6], header[11], header[12], header[13] = 0, 0, 0, 0  # no section headers
    HEADER.pack_into(out, 0, *header)
    for index, segment in enumerate(found):
        shifted = replace(segment, offset=segment.offset - _find_shift(segment, moved))
        SEGMENT.pack_into(out, header[5] + index * header[9], *astuple(shifted))
    result = bytes(out)
    check_alignment(result)
    return result


def _compute_moves(found: list[Segment]) -> dict[Segment, int]:
    """Return, for each loaded segment, by how many bytes it is moved from its place in the file towards the start: a multiple of PAGE
    (64 KiB), and 0 if there is no such gap.
    """
    moves, end = dict[Segment, int](), 0
    for segment in sorted((s for s in found if s.kind == LOAD), key=lambda s: s.offset):
        gap = max(0, segment.offset - end)
        moves[segment] = gap // PAGE * PAGE
        end = max(end, segment.end - moves[segment])
    return moves


def _find_shift(segment: Segment, moves: dict[Segment, int]) -> int:
    """Return by how many bytes a segment is moved towards the start of the file: as many as the loaded segment that contains it, 0 outside
    of all loaded ones. `moves`: result of `_compute_moves`.
    """
    return next((by for load, by in moves.items() if load.offset <= segment.offset and segment.end <= load.end), 0)


def list_needed_libraries(data: bytes) -> set[str]:
    """Return the names of the libraries that the loader would load with this ELF file."""
    strings, entries = _read_dynamic_section(data)
    return {_read_string(strings, value) for tag, value in entries if tag == NEEDED}


def list_needed_versions(data: bytes) -> set[str]:
    """Return the symbol versions that an ELF file needs from other libraries, such as GLIBC_2.28 and GLIBCXX_3.4.22. Empty if it needs
    none.
    """
    strings, entries = _read_dynamic_section(data)
    tags = dict(entries)
    if VERNEED not in tags:
        return set()
    found, at = set[str](), _find_offset(data, tags[VERNEED])
    for _ in range(tags[VERNEEDNUM]):
        _, count, _, first, following = struct.unpack_from("<HHIII", data, at)
        entry = at + first
        for _ in range(count):
            _, _, _, name, step = struct.unpack_from("<IHHII", data, entry)
            found.add(_read_string(strings, name))
            entry += step
        at += following
    return found


def find_newest_version(versions: set[str], family: str) -> tuple[int, ...]:
    """Return the highest of the symbol versions in `versions` that belongs to `family` ("GLIBC" or "GLIBCXX"), such as (2, 28); () if there
    is none.
    """
    numbers = [re.fullmatch(rf"{family}_([\d.]+)", version) for version in versions]
    return max((tuple(int(part) for part in match[1].split(".")) for match in numbers if match), default=())


def _read_dynamic_section(data: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """Return (string table, entries as (tag, value)) of an ELF file's dynamic section; both empty if it has none."""
    for segment in segments(data):
        if segment.kind == DYNAMIC:
            entries = list(struct.iter_unpack("<QQ", data[segment.offset : segment.end]))
            tags = dict(entries)
            start = _find_offset(data, tags[STRTAB])
            return data[start : start + tags[STRSZ]], entries
    return b"", []


def _find_offset(data: bytes, address: int) -> int:
    """Return the position in the file of a virtual address. Raises Malformed if no loaded segment contains the address."""
    for segment in segments(data):
        if segment.kind == LOAD and segment.address <= address < segment.address + segment.in_file:
            return segment.offset + address - segment.address
    raise Malformed(f"address {address:#x} is in no loaded segment")


def _read_string(strings: bytes, at: int) -> str:
    """Return the zero-terminated string at position `at` of a string table."""
    return strings[at : strings.index(b"\0", at)].decode()
