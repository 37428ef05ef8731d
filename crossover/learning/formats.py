"""Formats of data that are no CSV, by a file's first bytes, and how to bring such data. PyTorch is not imported."""

import re
from pathlib import Path

# Formats of data other than CSV, by the first bytes of a file; a table in one of TABLES is converted by pandas.
FORMATS = {
    b"\x93NUMPY": "an array of NumPy",
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"\x89HDF": "HDF5",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"GIF8": "a picture",
    b"II*\0": "a picture",
    b"MM\0*": "a picture",
    b"\x1f\x8b": "packed by gzip",
    b"BZh": "packed by bzip2",
    b"\xfd7zXZ": "packed by xz",
    b"PK\x03\x04": "a zip archive",
    b"SQLite format 3": "a database",
    b"\x80": "a pickle",
}
ENDINGS = {
    ".npz": "arrays of NumPy",
    ".pt": "tensors of torch",
    ".pth": "tensors of torch",
    ".xlsx": "Excel",
    ".xls": "Excel",
}
TEXTS = {".json": "JSON", ".jsonl": "JSON", ".ndjson": "JSON"}
TABLES = {"Parquet": "parquet", "Arrow": "feather", "Excel": "excel", "JSON": "json"}
CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1f]")  # that some format has in its head, and hardly any text
UTF16 = (b"\xff\xfe", b"\xfe\xff")
LOADER_ADVICE = """For arrays or pictures write a loader, and give it as --data mine:load (docs/your-own.md):
    # mine.py: x is a torch tensor, a row per sample; no classes if y are numbers
    from crossover.learning.datasets import Samples
    def load(experiment): return Samples(x, y, classes=4)"""


def explain_other_format(path: Path) -> str:
    """Return in words that the file or folder `path` is no CSV, and how to bring its data: convert a table, unpack, or write a loader. ""
    if it may be a CSV, or cannot be read.
    """
    known = _find_format(path)
    if known is None:
        return ""
    told = f"is not a CSV file{f', but {known}' if known else ''}. "
    if way := TABLES.get(known):
        told += f'A table: pandas.read_{way}("{path.name}").to_csv("{path.stem}.csv", index=False) writes a CSV. '
    elif known.startswith("packed") or known == "a zip archive":
        told += "Unpack it if it holds a CSV. "
    return told + LOADER_ADVICE


def _find_format(path: Path) -> str | None:
    """Return in words what the file is instead of a CSV, by its first bytes and the ending of its name: a folder, one of FORMATS, ENDINGS
    or TEXTS, or "" for other bytes that are no text. None if it may be a CSV, or cannot be read.
    """
    if path.is_dir():
        return "a folder"
    try:
        with path.open("rb") as file:
            head = file.read(4_096)
    except OSError:
        return None
    ending = path.suffix.lower()
    if head.startswith(UTF16) or not CONTROLS.search(head):
        return TEXTS.get(ending) if head.lstrip()[:1] in (b"{", b"[") else None
    known = next((words for begin, words in FORMATS.items() if head.startswith(begin)), "")
    return ENDINGS.get(ending, known) if known or b"\0" in head else None
