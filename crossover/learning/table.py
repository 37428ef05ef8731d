"""A CSV as samples: which row is the header, which column the label, and what the label is. Each guess is reported, and `data.table` of the
YAML overrules it. Cells are read as float64.
"""

import csv
import gc
import hashlib
import re
import shlex
import textwrap
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor

from crossover import runtime
from crossover.errors import DataError
from crossover.experiment import Table
from crossover.learning import formats
from crossover.learning.samples import Kind, Reading, Samples

MAX_CLASSES = 20  # different whole numbers in a label that are taken for classes
ROWS_PER_CLASS = 3  # fewer on average are no classes, but numbers that happen to be whole
MAX_TEXTS = 1_000  # different texts in a label that are taken for classes
MIN_ROWS = 3
MAX_FLOAT32 = (2 - 2**-23) * 2.0**127  # of float32, in which models compute
MAX_EXACT_INTEGER = 2**53  # below it float64 tells all whole numbers apart
SAMPLED_ROWS = 1_000  # rows that a first row is compared with
LABELS = ("label", "labels", "target", "class")  # names of a label that need not be the last column
INDEXES = (
    "",
    "id",
    "index",
    "idx",
    "row",
    "rowid",
    "row_id",
    "rowname",
    "rownames",
    "row.names",
    "obs",
    "no",
    "nr",
    "#",
)
MISSING = frozenset(
    ("", "na", "n/a", "nan", "null", "none", "nil", "?", "-", ".", "inf", "-inf", "+inf", "infinity", "-infinity")
)
NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", flags=re.ASCII)
REASONS = {  # why a cell that is not missing is no number: the first pattern that it matches
    "dates or times": re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([ T].*)?|\d{1,2}:\d{2}(:\d{2}.*)?( ?[AaPp][Mm])?"),
    "numbers beyond float32": NUMBER,
    "numbers with commas": re.compile(r"[+-]?\d[\d,]*(\.\d+)?"),
    "texts": re.compile(r".*", re.DOTALL),
}
SHOWN_NAMES = 5  # of columns with one reason, in a message
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars (|)", " ": "blanks"}
EXPECTED_INPUT = "expected a CSV of numbers, or a loader of your own, module:loader"

FileRow = tuple[int, list[str]]  # the line of the file in which it begins, and its cells


def read(path: Path, table: Table | None = None, *, also_drop: Sequence[str | int] = ()) -> Samples:
    """Return the samples of the CSV at `path`: inputs (N, columns) float64; labels (N,) int64 if they are classes, or (N, 1)
    float64. Raises DataError, in words for the owner of the file.

    `table`: settings of `data.table` for header, label, kind and dropped columns; what it leaves open is guessed. `also_drop`:
    names or numbers (from 1) of more columns to leave out. The process remembers the samples that it read last, and returns copies.
    """
    known = runtime.get_or_make("the table read last", dict[_Key, Samples])
    if problem := formats.explain_other_format(path):
        raise _build_error(path, problem)
    key = _make_key(path, table or Table(), also_drop)
    if key not in known:
        with _pause_collector():
            samples = _read(path, table or Table(), also_drop)
        assert samples.reading is not None
        known.clear()
        known |= {key: samples, (*key[:2], samples.reading.as_table(), ()): samples}
    found = known[key]
    return replace(found, inputs=found.inputs.clone(), labels=found.labels.clone())  # which the caller may change


@contextmanager
def _pause_collector() -> Iterator[None]:
    """Stop Python's search for reference cycles within the `with` block. A table's rows are many objects without cycles, and the search
    takes longer than reading them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_Key = tuple[Path, bytes, Table, tuple[str | int, ...]]  # a file, a digest of its bytes, and how it is read


def _make_key(path: Path, table: Table, also_drop: Sequence[str | int]) -> _Key:
    """Return the key under which the file's samples are remembered: path, digest of its bytes, and the settings. Raises DataError
    if the file cannot be read.
    """
    try:
        digest = hashlib.blake2b(path.read_bytes()).digest()
    except OSError as error:
        raise _build_read_error(path, error) from error
    return path.resolve(), digest, table, tuple(also_drop)


def _read(path: Path, table: Table, also_drop: Sequence[str | int]) -> Samples:
    """Read the CSV and return its samples, as `read` does, without looking for remembered ones; `reading` of the samples says how the file
    was read. Labels of classes are places in `reading.classes`. `also_drop`: names or numbers (from 1) of more columns to leave out. Raises
    DataError if the file is unreadable, too small, does not suit `table`, or has a cell that is not a number.
    """
    rows = _read_rows(path)
    reading, rows = _decide_reading(path, rows, table, also_drop)
    inputs = _read_numbers(path, rows, reading, reading.inputs)
    label = [cells[reading.label].strip() for _, cells in rows]
    if reading.kind == "numbers":
        return Samples(inputs, _read_numbers(path, rows, reading, (reading.label,)), reading=reading)
    texts = label if not _is_number(label[0]) else [_canonicalize(each) for each in label]
    places = {text: place for place, text in enumerate(reading.classes)}
    labels = torch.tensor([places[text] for text in texts], dtype=torch.int64)
    return Samples(inputs, labels, classes=len(reading.classes), reading=reading)


# --- rows and cells ---------------------------------------------------------------------------------------------------


def _read_rows(path: Path) -> list[FileRow]:
    """Return all rows of the file but the blank ones, as (line number, cells). Raises DataError if the file is unreadable or its
    columns are not separated by commas.
    """
    found: list[FileRow] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader, begin = csv.reader(file), 1
            for cells in reader:
                if cells and (len(cells) > 1 or cells[0].strip()):
                    found.append((begin, cells))
                begin = reader.line_num + 1
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _build_read_error(path, error) from error
    width = len(found[0][1]) if found else 0
    sample = [cells for _, cells in found[:SAMPLED_ROWS]]
    if (width < 2 or any(len(cells) != width for cells in sample)) and (separator := _find_separator(sample)):
        raise _build_error(path, separator)
    _check_first_row(path, found)
    return found


def _check_first_row(path: Path, rows: Sequence[FileRow]) -> None:
    """Raise DataError if the first row has only one cell, as a remark above a table has, and all rows below it have the same larger
    number of cells.
    """
    widths = {len(cells) for _, cells in rows[1:]}
    if len(widths) == 1 and len(rows[0][1]) == 1 and min(widths) > 1:
        line, cells = rows[0]
        raise _build_error(
            path,
            f"row {line}: {textwrap.shorten(cells[0], 40)!r} is one cell, and the rows below have {min(widths)}; expected the names of the "
            "columns, or numbers: delete the lines above them",
        )


def _find_separator(rows: Sequence[Sequence[str]]) -> str:
    """Return in words which separator (semicolon, tab, bar, blank) the rows use instead of commas, and how to convert the file; ""
    if none is recognised.
    """
    lines = [",".join(row) for row in rows]
    for mark, words in SEPARATORS.items():
        split = [line.split() if mark == " " else line.split(mark) for line in lines]
        widths = Counter(map(len, split)).most_common(1)
        if not widths or widths[0][0] < 2 or widths[0][1] < 0.9 * len(split):
            continue
        cells = [cell.strip().strip('"') for row in split[1:] for cell in row]
        numbers = [cell for cell in cells if _is_number(cell.replace(",", ".", 1))]
        if len(numbers) < len(cells) / 4 and (mark == " " or max(map(len, rows)) > 1):
            continue
        decimals = ", with commas before the decimals" if any("," in cell for cell in numbers) else ""
        mend = {" ": r'sep=r"\s+"', "\t": r'sep="\t"'}.get(mark, f'sep="{mark}"') + (
            ', decimal=","' if decimals else ""
        )
        return (
            f"its columns are separated by {words}{decimals}; expected commas between columns, and points before decimals: "
            f"pandas.read_csv(..., {mend}).to_csv(..., index=False) writes such a file"
        )
    return ""


def _read_numbers(path: Path, rows: Sequence[FileRow], reading: Reading, columns: Sequence[int]) -> Tensor:
    """Return the cells of the `columns` (numbers from 0) of all rows as a tensor (N, columns) float64. Raises DataError, with the
    file's line, for the first cell that is not a number which float32 can hold.
    """
    try:
        flat = array("d", (float(cells[each]) for _, cells in rows for each in columns))
        values = torch.frombuffer(flat, dtype=torch.float64).view(len(rows), len(columns))
    except ValueError:
        values = torch.tensor([[torch.nan]], dtype=torch.float64)
    plain = all("_" not in (text := "".join(cells)) and text.isascii() for _, cells in rows)
    if plain and bool((values.abs() <= MAX_FLOAT32).all()):
        return values
    for line, cells in rows:
        for each in columns:
            if problem := _find_cell_problem(cells[each]):
                if separator := _find_separator([row for _, row in rows[:SAMPLED_ROWS]]):
                    raise _build_error(path, separator)
                told = f"row {line}: {problem} ({reading.name_column(each)})"
                unusable = _find_unusable_columns(rows, columns) if len(columns) > 1 else {}
                if len(unusable) > 1:
                    raise _build_error(path, f"{told}; {_explain_unusable(path, reading, unusable)}")
                raise _build_error(path, f"{told}; {_suggest_dropping(reading, each)}")
    return values


def _find_unusable_columns(rows: Sequence[FileRow], columns: Sequence[int]) -> dict[int, tuple[str, int]]:
    """Return for each of the `columns` (numbers from 0) that holds a cell that is no number which float32 can hold: the reason, one of
    REASONS or "empty cells", and the number of missing cells. The reason follows from the first SAMPLED_ROWS cells or so that are neither
    numbers nor missing; the cells behind them are not looked at.
    """
    odd, missing = {each: Counter[str]() for each in columns}, Counter[int]()
    for begin in range(0, len(rows), SAMPLED_ROWS):
        block = list(zip(*(cells for _, cells in rows[begin : begin + SAMPLED_ROWS]), strict=True))
        for each in columns:
            if odd[each].total() >= SAMPLED_ROWS:
                continue
            filled = [cell for cell in block[each] if cell.strip().lower() not in MISSING]
            missing[each] += len(block[each]) - len(filled)
            if not _are_plain_numbers(filled):
                odd[each].update(_find_reason(cell) for cell in filled if _find_cell_problem(cell))
    return {
        each: (next(iter(odd[each])) if len(odd[each]) == 1 else "texts" if odd[each] else "empty cells", missing[each])
        for each in columns
        if odd[each] or missing[each]
    }


def _are_plain_numbers(cells: Sequence[str]) -> bool:
    """Return whether all cells are numbers that float32 can hold; True if there are no cells. False also for a spelling that only
    `_find_cell_problem` can judge.
    """
    try:
        values = array("d", map(float, cells))
    except ValueError:
        return False
    if not values:
        return True
    is_held = isfinite(sum(values)) and min(values) >= -MAX_FLOAT32 and max(values) <= MAX_FLOAT32
    return is_held and "_" not in (text := "".join(cells)) and text.isascii()


def _find_reason(cell: str) -> str:
    """Return why the cell, which is not missing, is no number that float32 can hold: one of REASONS."""
    return next(reason for reason, pattern in REASONS.items() if pattern.fullmatch(cell.strip()))


def _explain_unusable(path: Path, reading: Reading, unusable: Mapping[int, tuple[str, int]]) -> str:
    """Return in words, some lines, which columns cannot be used and why, the options that leave them out, and how pandas makes numbers of
    them. `unusable`: as `_find_unusable_columns` returns it.
    """
    lines = [f"{len(unusable)} of {len(reading.names)} columns are not numbers; expected numbers in every cell"]
    for reason in (*REASONS, "empty cells"):
        if named := [each for each, (why, _) in unusable.items() if why == reason]:
            empty = f", {sum(unusable[each][1] for each in named):,} in all" if reason == "empty cells" else ""
            more = f" and {len(named) - SHOWN_NAMES} more" if len(named) > SHOWN_NAMES else ""
            names = ", ".join(map(reading.name_column, named[:SHOWN_NAMES]))
            lines.append(f"    {reason} ({len(named)} column{'s' * (len(named) != 1)}{empty}): {names}{more}")
    if len(unusable) < len(reading.inputs):
        options = " ".join(f"--drop {_refer(reading, each)}" for each in unusable)
        lines.append(f"these options leave all of them out (data.table.drop in a YAML): {options}")
    else:
        lines.append("no column would be left without them")
    commas = any(why == "numbers with commas" for why, _ in unusable.values())
    head, unnamed = ("", "") if reading.header else (", header=None", ", header=False")
    head += ', decimal=","' * commas
    lines += [
        "or pandas makes numbers of them: a code for each text, the column's mean for an empty cell"
        + ' (thousands="," for 1,000 instead of decimal=",")' * commas,
        f'    table = pandas.read_csv("{path.name}"{head}).apply(lambda each: each if each.dtype.kind in "iuf" else '
        "pandas.factorize(each)[0])",
        f'    table.fillna(table.mean()).to_csv("{path.stem}-numbers.csv", index=False{unnamed})',
    ]
    return "\n".join(lines)


def _find_cell_problem(cell: str) -> str:
    """Return in words why the cell is not a number that float32 can hold; "" if it is."""
    if cell.strip().lower() in MISSING:
        return (
            f"{cell!r} is no number that float32 holds"
            if "n" in cell.lower() and _is_float(cell)
            else f"{cell!r} is no number"
        )
    if not NUMBER.fullmatch(cell):
        comma = (
            ", but for a comma in it" if _is_number(cell.replace(",", ".")) or _is_number(cell.replace(",", "")) else ""
        )
        return f"{cell!r} is no number{comma}"
    return f"{cell!r} is no number that float32 holds" if not abs(float(cell)) <= MAX_FLOAT32 else ""


def _is_float(cell: str) -> bool:
    """Return whether Python's float() accepts the cell."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _suggest_dropping(reading: Reading, column: int) -> str:
    """Return the advice for a `column` (from 0) in which a cell is not a number. If it is the label: to choose another label; otherwise the
    option `--drop` that leaves it out, with its name, or its number from 1 if the name is blank or not unique or there is no header, or a
    loader of one's own.
    """
    if column == reading.label:
        return f"{EXPECTED_INPUT}; --label NAME (data.table.label) takes another column for the label"
    drop = f"--drop {_refer(reading, column)} (data.table.drop) leaves the column out"
    return f"expected numbers; {drop}, and a loader of your own, module:loader, may fill it in"


def _refer(reading: Reading, column: int) -> str:
    """Return how an option of the command line names a `column` (from 0): by its quoted name, or by its number from 1 if the name is blank
    or not unique or there is no header.
    """
    named = reading.names[column].strip() if reading.header and reading.names.count(reading.names[column]) == 1 else ""
    return shlex.quote(named) if named else str(column + 1)


def _is_number(cell: str) -> bool:
    """Return whether the cell is a decimal number in ASCII, such as `-1.5e3`, `.5` or `2.`; blanks around it are allowed. Empty cells,
    `nan`, `inf`, underscores and separators of thousands are not.
    """
    return bool(NUMBER.fullmatch(cell))


def _canonicalize(cell: str) -> str:
    """Return one text for all spellings of a whole number: `1` for `1`, `01` and `1.0`; other numbers are only stripped of blanks."""
    value = float(cell)
    return str(int(value)) if value.is_integer() and abs(value) < MAX_EXACT_INTEGER else cell.strip()


def _build_read_error(path: Path, error: Exception) -> DataError:
    """Return the DataError for a file that cannot be opened or decoded; for text that is not UTF-8 it says how to convert the file."""
    if isinstance(error, UnicodeDecodeError):
        is_utf16 = path.read_bytes()[:2] in formats.UTF16
        encoding = "utf-16" if is_utf16 else "latin-1"
        return _build_error(
            path,
            f"is not text in UTF-8{', but in UTF-16' if is_utf16 else ''}; expected a CSV in UTF-8: "
            f'pandas.read_csv(..., encoding="{encoding}").to_csv(..., index=False) writes such a file'
            f"{'' if is_utf16 else ', if the text is in Latin-1'}",
        )
    return _build_error(path, f"cannot be read: {error}; expected a CSV of numbers, or module:loader")


def _build_error(path: Path, problem: str) -> DataError:
    """Return a DataError with the text `path: problem`."""
    return DataError(f"{path}: {problem}")


# --- which row, which column, which kind ------------------------------------------------------------------------------


def _decide_reading(
    path: Path, rows: list[FileRow], table: Table, also_drop: Sequence[str | int]
) -> tuple[Reading, list[FileRow]]:
    """Return (how the file is read, its rows without the header). What `table` leaves open is guessed. `also_drop`: more columns to
    leave out. Raises DataError if the file is too small, its rows differ in length, or a setting names no column.
    """
    width = len(rows[0][1]) if rows else 0
    header, why, doubt = _guess_header([cells for _, cells in rows[: SAMPLED_ROWS + 1]]) if rows else (False, "", "")
    if table.header is not None and table.header != header:
        header, why, doubt = table.header, "as told", ""
    body = rows[1:] if header else rows
    if width < 2 or len(body) < MIN_ROWS:
        raise _build_error(
            path,
            f"has {width} column{'s' * (width != 1)} and {len(body)} row{'s' * (len(body) != 1)}"
            f"{' below its header' if header else ''}; expected two columns and three rows at least",
        )
    for line, cells in body:
        if len(cells) != width:
            raise _build_error(
                path, f"row {line}: has {len(cells)} columns, and the first has {width}; {EXPECTED_INPUT}"
            )
    names = (
        tuple(cell.strip() for cell in rows[0][1]) if header else tuple(f"column {each + 1}" for each in range(width))
    )
    reading = Reading(
        file=path.name,
        names=names,
        header=header,
        label=-1,
        kind="numbers",
        why_header=why,
        doubts=(*((doubt,) if doubt else ()), *(_list_repeated_names(names) if header else ())),
    )
    told = [*(table.drop or ()), *also_drop]
    drop = {find_column(path, reading, each, "data.table.drop (--drop)") for each in told}
    label, why_label = _choose_label(path, reading, body, table, drop)
    if label in drop:
        raise _build_error(
            path,
            f"data.table.drop (--drop): {reading.name_column(label)} is the label; expected another column, or another label",
        )
    reading = _add_kind(path, replace(reading, label=label, why_label=why_label), body, table)
    reading = replace(reading, drop=tuple(sorted(drop)))
    if table.drop is None and header:
        reading = _drop_guessed_columns(reading, body)
    if not reading.inputs:
        raise _build_error(
            path, "data.table.drop (--drop): no column is left for the model; expected one at least beside the label"
        )
    return reading, body


def _guess_header(rows: Sequence[Sequence[str]]) -> tuple[bool, str, str]:
    """Return (whether the first row is a header, the reason, a doubt about the guess). The reason is "" if it is not a header, the doubt if
    there is none. It is one if no cell of it is a number and not all are missing, if it has a name over a column of numbers, or if its
    whole numbers count upwards and do not fit the rows below.
    """
    first, rest = [cell.strip() for cell in rows[0]], rows[1:]
    shown = ", ".join(first[:6]) + (", ..." if len(first) > 6 else "")
    if not any(map(_is_number, first)):
        return any(cell.lower() not in MISSING for cell in first), "its cells are no numbers", ""
    columns = [[row[each] for row in rest if each < len(row)] for each in range(len(first))]
    numbers = [each for each, cell in enumerate(first) if _is_number(cell)]
    others = [each for each, cell in enumerate(first) if not _is_number(cell)]
    whole = all(re.fullmatch(r"\d+", first[each], flags=re.ASCII) for each in numbers)
    values = [float(first[each]) for each in numbers]
    if not whole or not rest or any(a >= b for a, b in pairwise(values)):
        return False, "", ""
    if any(first[each].lower() not in MISSING and all(map(_is_number, columns[each])) for each in others):
        return True, f"row 1 ({shown}) has names over numbers", ""
    if any(first[each] for each in others):
        return False, "", ""
    outside = [_is_foreign(value, columns[each]) for value, each in zip(values, numbers, strict=True)]
    even = _has_even_steps(values) and not any(_is_even_row(row, numbers) for row in rest)
    enough = len(numbers) >= 3 or len(rest) >= 10
    if enough and (all(outside) or (even and any(outside))):
        return True, f"row 1 ({shown}) counts, and does not fit the rows below", ""
    if even and len(numbers) >= 3:
        return False, "", f"row 1 ({shown}) is taken for data: --header takes it for names"
    return False, "", ""


def _is_foreign(value: float, column: Sequence[str]) -> bool:
    """Return whether the whole number `value` of the first row does not look like the cells of `column` below it: none of these is
    a number, or all have decimals, or it is outside their range without continuing an ascending or descending order.
    """
    below = [float(cell) for cell in column if _is_number(cell)]
    if not below:
        return True
    if all("." in cell for cell in column):
        return True
    ascends = all(a <= b for a, b in zip([value, *below], below, strict=False))
    descends = all(a >= b for a, b in zip([value, *below], below, strict=False))
    return not (ascends or descends) and not min(below) <= value <= max(below)


def _has_even_steps(values: Sequence[float]) -> bool:
    """Return whether each number exceeds the one before it by exactly the same positive step; False for fewer than two numbers."""
    steps = {b - a for a, b in pairwise(values)}
    return len(steps) == 1 and min(steps) > 0


def _is_even_row(row: Sequence[str], columns: Sequence[int]) -> bool:
    """Return whether the row's cells in `columns` are numbers, each above the one before it by exactly the same positive step. Cells that
    the row lacks are left out. False if fewer than two remain.
    """
    cells = [row[each] for each in columns if each < len(row)]
    return all(map(_is_number, cells)) and _has_even_steps([float(cell) for cell in cells])


def _list_repeated_names(names: Sequence[str]) -> Iterator[str]:
    """Yield a remark for each name that several columns of the header have; columns without a name are left out."""
    for name, count in Counter(names).items():
        if name and count > 1:
            places = [str(number) for number, each in enumerate(names, 1) if each == name]
            yield f"columns {', '.join(places[:-1])} and {places[-1]} are {'both' if count == 2 else 'all'} called {name!r}"


def _choose_label(
    path: Path, reading: Reading, body: Sequence[FileRow], table: Table, drop: Collection[int]
) -> tuple[int, str]:
    """Return (number of the label's column from 0, why it is the label). Without a setting it is the only column with a label's
    name, such as `target`, or else the last, except for one of row numbers. `body`: rows without the header. `drop`: columns
    that are left out.
    """
    left = [each for each in range(len(reading.names)) if each not in drop] or [0]
    last = "the last column"
    if len(left) > 2 and reading.header and is_index_name(reading.names[left[-1]]) and _counts_rows(body, left[-1]):
        left.pop()
        last = "the last column before the row numbers"
    named = [each for each in left if reading.header and reading.names[each].lower() in LABELS]
    is_named = len(named) == 1 and named[0] != left[-1]
    guess, why = (named[0], "by its name") if is_named else (left[-1], last)
    if table.label is None:
        return guess, why
    told = find_column(path, reading, table.label, "data.table.label (--label)")
    return told, why if told == guess else "as told"


def find_column(path: Path, reading: Reading, asked: str | int, field: str) -> int:
    """Return the number, from 0, of the column that `asked` names: by its name if the file has a header, or else by its number from 1,
    also as text.

    `path`: file, and `field`: name of the YAML field, both for errors. Raises DataError if no column or more than one matches, or if an
    integer counts one column and names another.
    """
    same = [each for each, name in enumerate(reading.names) if name == str(asked).strip()] if reading.header else []
    width = len(reading.names)
    if isinstance(asked, int) and same and 1 <= asked <= width and same != [asked - 1]:
        raise _build_error(
            path,
            f"{field}: {asked} counts a column, {reading.names[asked - 1]!r}, and names another; expected the name of the one that is "
            "meant, in quotes",
        )
    if len(same) == 1:
        return same[0]
    known = ", ".join(name or "(no name)" for name in reading.names[:12]) + (", ..." if width > 12 else "")
    if same:
        places = " and ".join(str(each + 1) for each in same)
        raise _build_error(
            path,
            f"{field}: {len(same)} columns are called {str(asked)!r}; expected the number of one of them: {places}",
        )
    if str(asked).isascii() and str(asked).isdigit() and 1 <= int(asked) <= width:
        return int(asked) - 1
    expected = (
        f"one of {known}, or a number from 1 to {width}"
        if reading.header
        else f"a number from 1 to {width}, since the file has no header"
    )
    raise _build_error(path, f"{field}: there is no column {str(asked)!r}; expected {expected}")


def _add_kind(path: Path, reading: Reading, body: Sequence[FileRow], table: Table) -> Reading:
    """Return the reading completed by the label's kind (classes or numbers), the class names, and a doubt if a class has a single
    row. `body`: rows without the header. Raises DataError if the label has only one value, or cannot be of the kind that `table`
    sets.
    """
    cells, shown = [row[reading.label].strip() for _, row in body], reading.name_column(reading.label)
    which = "the last column" if reading.label == len(reading.names) - 1 else f"the label, {shown},"
    numbers = [_is_number(cell) for cell in cells]
    texts = not any(numbers) and not any(cell.lower() in MISSING for cell in cells)
    if not texts and not all(numbers):
        _read_numbers(path, body, reading, (reading.label,))  # names the first cell that is no number
    labels = cells if texts else [_canonicalize(cell) for cell in cells]
    known = Counter(labels)
    if len(known) == 1:
        expected = EXPECTED_INPUT.replace("CSV of numbers", "label of two values and more")
        cure = f"{expected}; --label NAME (data.table.label) takes another column"
        raise _build_error(path, f"{which} is {next(iter(known))} in every row; {cure}")
    whole = not texts and all(float(cell).is_integer() for cell in known)
    kind, why = _guess_kind(len(known), len(cells), texts=texts, whole=whole)
    if table.kind and table.kind != kind:
        if texts:
            raise _build_error(path, f"{which} holds texts such as {cells[0]!r}; expected numbers, or --classes")
        kind, why = table.kind, "as told"
    if texts and len(known) > min(MAX_TEXTS, len(cells) // 2):
        raise _build_error(
            path,
            f"row {body[0][0]}: {cells[0]!r} is no number ({shown}), and {len(known):,} different texts in {len(cells):,} rows are no "
            f"classes; {EXPECTED_INPUT}",
        )
    if kind == "numbers":
        return replace(reading, kind=kind, why_kind=why)
    if (
        whole
        and (largest := max(known, key=lambda cell: abs(float(cell))))
        and abs(float(largest)) >= MAX_EXACT_INTEGER
    ):
        raise _build_error(
            path,
            f"{which} has the class {largest}, which float64 does not tell from its neighbours; expected classes between "
            f"-{MAX_EXACT_INTEGER} and {MAX_EXACT_INTEGER}, or a loader of your own, module:loader",
        )
    classes = tuple(sorted(known) if texts else sorted(known, key=float))
    if lonely := [name for name in classes if known[name] == 1]:
        line = body[labels.index(lonely[0])][0]
        one = f"class {lonely[0]} of {shown} has one row, row {line}"
        few = one if len(lonely) == 1 else f"{len(lonely)} classes of {shown} have one row each"
        reading = replace(reading, doubts=(*reading.doubts, few))
    return replace(reading, kind=kind, why_kind=why, classes=classes)


def _guess_kind(different: int, rows: int, *, texts: bool, whole: bool) -> tuple[Kind, str]:
    """Return (kind of the label, the reason in words). `different`: number of distinct values; `texts`, `whole`: whether all values are
    texts, or whole numbers. Texts are classes, and so are whole numbers if they are at most two different ones, or few for the number of
    rows.
    """
    if texts:
        return "classes", "texts"
    if not whole:
        return "numbers", "not all whole"
    if different > MAX_CLASSES:
        return "numbers", f"{different:,} different ones"
    if different > 2 and rows < ROWS_PER_CLASS * different:
        return "numbers", f"{different} different ones in {rows} rows"
    return "classes", f"{different} different whole numbers"


def _drop_guessed_columns(reading: Reading, body: Sequence[FileRow]) -> Reading:
    """Return the reading with those input columns dropped that have an index's name, such as `id`, and count the rows. It is
    unchanged if no input would remain. `body`: rows without the header.
    """
    found = [each for each in reading.inputs if is_index_name(reading.names[each]) and _counts_rows(body, each)]
    if not found or len(found) == len(reading.inputs):
        return reading
    return replace(reading, drop=tuple(sorted([*reading.drop, *found])))


def is_index_name(name: str) -> bool:
    """Return whether a column of this name, such as `id` or `Unnamed: 0`, usually holds row numbers."""
    return name.lower() in INDEXES or name.lower().startswith("unnamed")


def _counts_rows(body: Sequence[FileRow], column: int) -> bool:
    """Return whether the column's cells are whole numbers that increase by one from row to row, in more than two rows."""
    return len(body) > 2 and all(_compare_increments(body, column))


def _compare_increments(body: Sequence[FileRow], column: int) -> Iterator[bool]:
    """Yield whether the column's first cell is a whole number, then for each row whether its cell is that number plus the row's index.
    After a first False the caller must stop: the cell may be no number, which would raise ValueError.
    """
    first = body[0][1][column].strip()
    yield bool(re.fullmatch(r"\d+(\.0*)?", first, flags=re.ASCII))
    for number, (_, cells) in enumerate(body):
        yield _is_number(cells[column]) and float(cells[column]) == float(first) + number
