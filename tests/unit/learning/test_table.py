"""How a CSV is read: each guess is right or reported, each flag overrules it, and what cannot be read is refused by the file's line."""

import random
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from crossover.errors import DataError
from crossover.experiment import Data, Experiment, Table, Training
from crossover.learning import scaling, table, understood
from crossover.learning.samples import Samples

ROWS = 30
NAMES = ["a", "b", "kind"]


def cells(rows: int = ROWS, *, label: str = "classes") -> list[list[str]]:
    """Return rows of two decimals and a label, the same at each call. `label`: kind of label."""
    draw = random.Random(7)
    last: Callable[[int], str] = {
        "classes": lambda n: str(n % 3),
        "numbers": lambda n: f"{draw.gauss(150, 40):.2f}",
        "texts": lambda n: ("setosa", "virginica")[n % 2],
        "booleans": lambda n: ("True", "False")[n % 2],
        "letters": lambda n: str(1 + n % 26),
        "each": lambda n: str(1947 + n),
        "counts": lambda n: str(30 + n % 16),
        "zeros": lambda n: f"{n % 3}.0",
        "signs": lambda n: ("-1", "1")[n % 2],
    }[label]
    return [[f"{draw.gauss(5, 1):.3f}", f"{draw.gauss(3, 1):.2f}", last(n)] for n in range(rows)]


def text(rows: list[list[str]], *, by: str = ",", end: str = "\n") -> str:
    """Return the rows as text. `by`: separator of cells; `end`: end of each row."""
    return end.join(by.join(row) for row in rows) + end


def with_index(name: str, rows: list[list[str]], *, first: int = 0) -> list[list[str]]:
    """Return the table with its header and, in front, a column `name` that counts from `first`."""
    return [[name, *NAMES], *([str(first + n), *row] for n, row in enumerate(rows))]


def quoted(rows: list[list[str]]) -> str:
    """Return the rows as CSV with each cell in quotes."""
    return text([[f'"{cell}"' for cell in row] for row in rows])


def said(samples: Samples) -> str:
    """Return what is printed of the samples and how they are understood."""
    loss = "cross_entropy" if samples.classes else "mse"
    experiment = Experiment(name="x", architecture="single", data=Data(dataset="x:rows"), training=Training(loss=loss))
    scale = scaling.compute_label_scale(samples.labels, experiment, classes=samples.classes)
    return "\n".join(understood.format_lines(understood.describe(samples, experiment, scale), flags=True))


@dataclass(frozen=True)
class Read:
    """A table's text and how it must be read. `label`: name of the label's column; `classes`: their number, None for a regression;
    `says`: what the report must contain.
    """

    content: str
    label: str = "kind"
    classes: int | None = 3
    columns: int = 2
    rows: int = ROWS
    header: bool = True
    says: tuple[str, ...] = ()


PLAIN = [NAMES, *cells()]
YEARS = [["1990", "1991", "1992"], *cells()]
FOUND: dict[str, Read] = {
    "a header": Read(text(PLAIN)),
    "no header": Read(text(cells()), label="column 3", header=False, says=("no header", "--header")),
    "quoted names": Read(quoted([NAMES]) + text(cells())),
    "all quoted": Read(quoted(PLAIN)),
    "a byte order mark": Read("\ufeff" + text(PLAIN)),
    "carriage returns": Read(text(PLAIN, end="\r\n")),
    "blank lines at the end": Read(text(PLAIN) + "\n\n  \n"),
    "blank lines within": Read(text(PLAIN[:5]) + "\n\n" + text(PLAIN[5:])),
    "no line end": Read(text(PLAIN).rstrip()),
    "blanks around cells": Read(text(PLAIN, by=" , ")),
    "a line end in a name": Read('"a\nmm",b,kind\n' + text(cells())),
    "pandas' numbers as names": Read(text([["0", "1", "2"], *cells()]), label="2", says=("header",)),
    "numbers from 1 as names": Read(text([["1", "2", "3"], *cells()]), label="3"),
    "years as names": Read(text(YEARS), label="1992"),
    "years apart as names": Read(text([["1990", "1995", "2004"], *cells()]), label="2004"),
    "a name and years": Read(text([["kg", "1990", "1991"], *cells()]), label="1991"),
    "pandas' index and numbers as names": Read(
        text([["", "0", "1", "2"], *([str(n), *row] for n, row in enumerate(cells()))]),
        label="2",
        says=("column 1 is left out", "--drop none"),
    ),
    **{
        f"an index called {name!r}": Read(
            text(with_index(name, cells(), first=first)), says=(f"{name or 'column 1'} is left out", "--drop none")
        )
        for name, first in (("", 0), ("Unnamed: 0", 0), ("Id", 1), ("ID", 1), ("rownames", 1), ("index", 0), ("Obs", 1))
    },
    "an index by another name": Read(
        text(with_index("day", cells(), first=1)), columns=3, says=("day, like row numbers, is an input", "--drop day")
    ),
    "identifiers": Read(
        text([["id", *NAMES], *([str(84_000 + 37 * n), *row] for n, row in enumerate(cells()))]),
        columns=3,
        says=("id, like row numbers, is an input", "--drop id"),
    ),
    "an index in the last column": Read(
        text([[*NAMES, "id"], *([*row, str(n)] for n, row in enumerate(cells()))]),
        says=("the last column before the row numbers", "id is left out"),
    ),
    "a label that counts": Read(
        text([["a", "b", "place"], *([*row[:2], str(n)] for n, row in enumerate(cells()))]),
        label="place",
        classes=None,
        says=("the label place looks like row numbers",),
    ),
    "an index without a header": Read(
        text([[str(n), *row] for n, row in enumerate(cells())]),
        label="column 4",
        columns=3,
        header=False,
        says=("column 1, like row numbers, is an input", "--drop 1"),
    ),
    "a label in the first column": Read(
        text([["label", "a", "b"], *([row[2], *row[:2]] for row in cells())]), label="label", says=("by its name",)
    ),
    "a target in the first column": Read(
        text([["Target", "a", "b"], *([row[2], *row[:2]] for row in cells())]), label="Target", says=("by its name",)
    ),
    "a label in the first column by another name": Read(
        text([["kind", "a", "b"], *([row[2], *row[:2]] for row in cells())]),
        label="b",
        classes=None,
        says=("label b (the last column)", "--label NAME"),
    ),
    "numbers": Read(text([NAMES, *cells(label="numbers")]), classes=None, says=("numbers", "--classes", "scaled")),
    "26 classes": Read(
        text([NAMES, *cells(260, label="letters")]),
        classes=None,
        rows=260,
        says=("numbers 1 to 26, 26 different ones", "--classes"),
    ),
    "a class per row": Read(
        text([NAMES, *cells(16, label="each")]),
        classes=None,
        rows=16,
        says=("16 different ones in 16 rows", "--classes"),
    ),
    "counts": Read(text([NAMES, *cells(label="counts")]), classes=None, says=("16 different ones", "--classes")),
    "counts of many rows": Read(
        text([NAMES, *cells(320, label="counts")]), classes=16, rows=320, says=("16 classes (30, 31,", "--numbers")
    ),
    "classes as decimals": Read(text([NAMES, *cells(label="zeros")]), says=("3 classes (0, 1, 2)",)),
    "classes -1 and 1": Read(text([NAMES, *cells(label="signs")]), classes=2, says=("2 classes (-1, 1)",)),
    "classes as texts": Read(text([NAMES, *cells(label="texts")]), classes=2, says=("(setosa, virginica)",)),
    "classes as booleans": Read(text([NAMES, *cells(label="booleans")]), classes=2, says=("(False, True)",)),
    "large classes": Read(
        text([NAMES, *([a, b, str(2**40 + int(k))] for a, b, k in cells())]), says=(f"({2**40}, {2**40 + 1},",)
    ),
    "a class of one row": Read(
        text([*PLAIN, ["5.1", "3.2", "7"]]), classes=4, rows=31, says=("class 7 of kind has one row, row 32",)
    ),
    "a constant column": Read(
        text([["c", *NAMES], *(["0.1", *row] for row in cells())]), columns=3, says=("constant: c",)
    ),
    "seconds since 1970": Read(
        text([["t", *NAMES], *([str(1_732_572_000 + (n * 7) % 31), *row] for n, row in enumerate(cells()))]),
        columns=3,
        says=("float32 does not tell the values of t apart",),
    ),
    "the same name twice": Read(text([["a", "a", "kind"], *cells()]), says=("columns 1 and 2 are both called 'a'",)),
    "labels far from zero": Read(
        text([NAMES, *([a, b, f"{1e9 + n / 8}"] for n, (a, b, _) in enumerate(cells()))]),
        classes=None,
        says=("numbers 1000000000 to 1000000004",),
    ),
    "exponents and signs": Read(text([NAMES, *([f"+{a}e-3", f"-{b}", k] for a, b, k in cells())])),
    "whole numbers in a row, one after another": Read(
        "".join(f"{n},{n + 1},{n % 3}\n" for n in range(2, 32)), label="column 3", header=False
    ),
    "a first row that may be names": Read(
        text([["0", "1", "2"], *([str(n % 4), str(n * 5 % 4), str(n % 3)] for n in range(ROWS))]),
        label="column 3",
        rows=31,
        header=False,
        says=("row 1 (0, 1, 2) is taken for data", "--header"),
    ),
}


@pytest.mark.parametrize("case", FOUND)
def test_a_file_is_read_as_it_is_meant_or_the_guess_is_reported(case: str, tmp_path: Path) -> None:
    """A CSV of this `case` is read with the expected header, label, classes and shape, and the report names every guess."""
    expected, path = FOUND[case], tmp_path / "x.csv"
    path.write_bytes(expected.content.encode())
    samples = table.read(path)
    reading = samples.reading
    assert reading is not None
    found = reading.header, reading.name_column(reading.label), samples.classes, *samples.inputs.shape
    assert found == (expected.header, expected.label, expected.classes, expected.rows, expected.columns)
    assert samples.inputs.dtype == torch.float64
    words = said(samples)
    assert words.startswith(f"data: x.csv: {expected.rows:,} rows, ") and words.count("\n") <= 1
    assert f"label {expected.label} (" in words and "--label NAME" in words
    assert [each for each in expected.says if each not in words] == [], words
    again = table.read(path, reading.as_table())
    assert again.reading is not None and again.reading.as_table() == reading.as_table()
    assert torch.equal(again.inputs, samples.inputs) and torch.equal(again.labels, samples.labels)


@pytest.mark.parametrize(
    ("labels", "loss", "words"),
    [
        (torch.arange(30.0).remainder(2), "mse", "return Samples(inputs, labels.long(), classes=2)"),
        (torch.arange(30.0).remainder(2).view(30, 1), "mse", "return Samples(inputs, labels[:, 0].long(), classes=2)"),
        (torch.arange(30.0).remainder(2), "bce_with_logits", None),
        (torch.arange(30.0).remainder(3), "mse", None),
        (torch.arange(30.0).remainder(2).view(15, 2), "mse", None),
    ],
)
def test_labels_of_0_and_1_that_are_numbers_are_doubted(labels: torch.Tensor, loss: str, words: str | None) -> None:
    """A loader's float labels that are all 0 or 1 are said to be regression, with `words` that make classes of them; None: nothing is said,
    as with a loss for two classes, with other values, or with several labels for each row.
    """
    experiment = Experiment(name="x", architecture="single", data=Data(dataset="x:rows"), training=Training(loss=loss))
    found = understood.describe(Samples(torch.rand(len(labels), 2), labels), experiment)
    lines = understood.format_lines(found)
    assert ("this is regression" in "".join(lines)) is (words is not None) and (words or "") in lines[-1]


def test_who_says_that_0_and_1_are_numbers_is_not_asked_again(tmp_path: Path) -> None:
    """A CSV whose label is 0 or 1 is read as classes, and with `--numbers` as numbers without a doubt."""
    path = tmp_path / "x.csv"
    path.write_text("".join(f"{n}.5,{n % 7},{n % 2}\n" for n in range(30)))
    assert table.read(path).classes == 2
    assert "regression" not in said(table.read(path, Table(kind="numbers")))


BROKEN: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "nothing": ("", ("has 0 columns and 0 rows",)),
    "a header alone": ("a,b\n", ("has 2 columns and 0 rows below its header",)),
    "one row": ("a,b\n1,2\n", ("has 2 columns and 1 row below its header",)),
    "one column": ("a\n1\n2\n3\n", ("has 1 column and 3 rows",)),
    "semicolons": (text(PLAIN, by=";"), ("separated by semicolons", 'sep=";"')),
    "semicolons, decimal commas": (text(PLAIN, by=";").replace(".", ","), ("semicolons, with commas", 'decimal=","')),
    "semicolons, decimal commas, no header": (
        text(cells(label="numbers"), by=";").replace(".", ","),
        ("separated by semicolons, with commas before the decimals",),
    ),
    "semicolons and texts": (text([["x", "y"], *[["a", "b"]] * 5], by=";"), ("separated by semicolons",)),
    "tabs": (text(PLAIN, by="\t"), ("separated by tabs", r'sep="\t"')),
    "bars": (text(PLAIN, by="|"), ("separated by bars (|)",)),
    "blanks": (text(PLAIN, by="  "), ("separated by blanks", r'sep=r"\s+"')),
    "blanks, decimal commas": (text(cells(label="numbers"), by=" ").replace(".", ","), ("separated by blanks, with",)),
    "decimal commas in quotes": (quoted(PLAIN).replace(".", ","), ("row 2: '", "but for a comma in it (a)")),
    "thousands": ('a,b\n"1,000",2\n3,4\n5,6\n', ("row 2: '1,000' is no number, but for a comma in it",)),
    "underscores": ("a,b\n1,2\n3_1,4\n5,6\n", ("row 3: '3_1' is no number (a)", "--drop a")),
    "underscores in the label": ("a,b\n1,2\n3,4_1\n5,6\n", ("row 3: '4_1' is no number (b)",)),
    "other digits": ("a,b\n1,2\n\uff13,4\n5,6\n", ("row 3: '\uff13' is no number",)),
    "hexadecimal": ("a,b\n1,2\n0x10,4\n5,6\n", ("row 3: '0x10' is no number",)),
    **{
        f"{word!r} for a missing cell": (
            f"a,b\n1,2\n3,4\n{word},6\n",
            (f"row 4: {word!r} is no number", "(a)", "--drop a"),
        )
        for word in ("", "NA", "nan", "NaN", "null", "?", "inf", "-Infinity")
    },
    "a missing label": ("a,b\n1,0\n3,1\n5,\n", ("row 4: '' is no number (b)", "--label NAME")),
    "missing labels among texts": ("a,b\n1,x\n2,y\n3,x\n4,NA\n", ("row 2: 'x' is no number (b)",)),
    "beyond float32": ("a,b\n1,2\n3,4\n1e39,6\n", ("row 4: '1e39' is no number that float32 holds",)),
    "dates": ("a,b\n1,2\n2024-01-02,4\n5,6\n", ("row 3: '2024-01-02' is no number (a)",)),
    "a column of booleans": ("a,b\nTrue,2\nFalse,4\nTrue,6\n", ("row 2: 'True' is no number (a)", "--drop a")),
    "a column of texts": ("a name,b\nx,2\ny,4\nz,6\n", ("row 2: 'x' is no number (a name)", "--drop 'a name'")),
    "every text another": ("a,b\n1,x\n2,y\n3,z\n", ("row 2: 'x' is no number (b), and 3 different texts in 3 rows",)),
    "a ragged row": ("1,2\n3,4\n5\n", ("row 3: has 1 columns, and the first has 2",)),
    "a remark above the names": (
        "# made by x\na,b\n1,2\n3,4\n5,6\n",
        ("row 1: '# made by x' is one cell, and the rows below have 2", "delete the lines above"),
    ),
    "UTF-16": (b"\xff\xfea\x00,\x00b\x00", ("in UTF-16", 'encoding="utf-16"')),
    "Latin-1": (b"gr\xf6\xdfe,b\n1,2\n3,4\n5,6\n", ("is not text in UTF-8", 'encoding="latin-1"')),
    "commas at the ends": ("a,b,\n1,2,\n3,4,\n5,6,\n", ("row 2: '' is no number (column 3)",)),
    "a label without a second value": ("1,1\n3,1\n5,1\n", ("the last column is 1 in every row", "--label NAME")),
    "a row behind blank lines": ("a,b\n1,2\n\n\n3,x4\n5,6\n", ("row 5: 'x4' is no number",)),
    "a row behind a line end in quotes": ('"a\nm",b\n1,2\n3,4\nx,6\n', ("row 5: 'x' is no number",)),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_read_is_refused_by_the_files_own_line(case: str, tmp_path: Path) -> None:
    """A broken CSV of this `case` raises DataError with the line in the file and what was expected."""
    content, words = BROKEN[case]
    path = tmp_path / "x.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as refused:
        table.read(path)
    assert [each for each in words if each not in str(refused.value)] == [], str(refused.value)
    assert "expected" in str(refused.value)


def test_all_unusable_columns_are_named_at_once(tmp_path: Path) -> None:
    """A CSV of forty columns, 31 of which hold dates, texts or empty cells, is refused with all of them, and read with the options of the
    message.
    """
    odd = {0: "2024-01-{row:02}", 1: "{row}:15", **dict.fromkeys(range(2, 6), "t{row}"), 6: "True", 7: "1_0"}
    names = ["pick up", *(f"c{each}" for each in range(1, 40))]
    lines = [
        [odd.get(each, "" if each < 31 and row == each % 7 + 3 else "{row}.5").format(row=row) for each in range(40)]
        for row in range(10, 40)
    ]
    for each in range(8, 31):
        lines[each % 7][each] = ("", "NA", " ", "n/a ")[each % 4]
    path = tmp_path / "trips.csv"
    path.write_text(text([names, *lines]))
    with pytest.raises(DataError) as refused:
        table.read(path)
    told = str(refused.value).splitlines()
    assert told[0].startswith(
        f"{path}: row 2: '2024-01-10' is no number (pick up); 31 of 40 columns are not numbers; expected"
    )
    assert told[1:4] == [
        "    dates or times (2 columns): pick up, c1",
        "    texts (6 columns): c2, c3, c4, c5, c6 and 1 more",
        "    empty cells (23 columns, 23 in all): c8, c9, c10, c11, c12 and 18 more",
    ]
    options = shlex.split(told[4].partition(": ")[2])
    assert options[:2] == ["--drop", "pick up"] and len(options) == 62 and set(options[::2]) == {"--drop"}
    assert told[6].startswith('    table = pandas.read_csv("trips.csv").apply(') and "trips-numbers.csv" in told[7]
    assert table.read(path, also_drop=options[1::2]).inputs.shape == (30, 8)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            "a,b,c\nx,,1\ny,2,2\nz,3,3\n",
            ("no column would be left without them", "empty cells (1 column, 1 in all): b"),
        ),
        (
            'a,b,c,d\n"1,5",1e39,1,1\n"2,5",2,2,2\n3,3,3,3\n',
            ("numbers with commas (1 column): a", "numbers beyond float32 (1 column): b", 'decimal=",").apply('),
        ),
        ("x,,1,1\ny,,2,2\nz,,3,3\n", ("--drop 1 --drop 2", "header=None", "header=False")),
    ],
)
def test_unusable_columns_of_other_kinds(content: str, words: tuple[str, ...], tmp_path: Path) -> None:
    """A CSV with several unusable columns raises DataError that contains `words`."""
    path = tmp_path / "x.csv"
    path.write_text(content)
    with pytest.raises(DataError) as refused:
        table.read(path)
    assert [each for each in words if each not in str(refused.value)] == [], str(refused.value)


FOREIGN: dict[str, tuple[str, bytes, tuple[str, ...]]] = {
    "arrays": ("boards.npz", b"PK\x03\x04\0\0", ("but arrays of NumPy.",)),
    "an array": ("x.npy", b"\x93NUMPY\x01\0v\0", ("but an array of NumPy.",)),
    "Parquet": (
        "x.parquet",
        b"PAR1\x15",
        ("but Parquet.", 'pandas.read_parquet("x.parquet").to_csv("x.csv", index=False)'),
    ),
    "Excel": ("x.xlsx", b"PK\x03\x04", ("but Excel.", "pandas.read_excel(")),
    "a zip": ("x.zip", b"PK\x03\x04", ("but a zip archive.", "Unpack it if it holds a CSV.")),
    "a packed CSV": ("x.csv.gz", b"\x1f\x8b\x08", ("but packed by gzip.", "Unpack it")),
    "a model": ("x.pt", b"PK\x03\x04", ("but tensors of torch.",)),
    "a picture": ("x.csv", b"\xff\xd8\xff\xe0\0\x10", ("but a picture.",)),
    "JSON": ("x.json", b' {"a": 1}', ("but JSON.", "pandas.read_json(")),
    "other bytes": ("x.bin", b"ab\0\x01", ("is not a CSV file. For",)),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_another_format_is_refused_with_a_loader(case: str, tmp_path: Path) -> None:
    """A file that is no CSV raises DataError with its format and an example of a loader. `case`: its format."""
    name, content, words = FOREIGN[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as refused:
        table.read(tmp_path / name)
    said = str(refused.value)
    assert said.startswith(f"{tmp_path / name}: is not a CSV file") and "give it as --data mine:load" in said
    assert [
        each for each in (*words, "import Samples\n    def load(experiment): return Samples(x, y, ") if each not in said
    ] == []


def test_a_header_that_begins_like_another_format_is_read(tmp_path: Path) -> None:
    """A CSV whose first name is the beginning of another format is read."""
    (tmp_path / "x.csv").write_text("PAR1,PAR2\n1,2\n3,4\n5,6\n")
    assert table.read(tmp_path / "x.csv").inputs.shape == (3, 1)


def test_a_folder_is_refused_with_a_loader(tmp_path: Path) -> None:
    """A folder, such as one of pictures, raises DataError with an example of a loader."""
    with pytest.raises(DataError, match=r"is not a CSV file, but a folder\. For arrays or pictures write a loader"):
        table.read(tmp_path)


TOLD: dict[str, tuple[str, dict[str, Any], tuple[str, int | None, int, int]]] = {
    # label, classes, inputs, rows
    "a label by name": (text(PLAIN), {"label": "a"}, ("a", None, 2, ROWS)),
    "a label by number": (text(cells()), {"label": "1"}, ("column 1", None, 2, ROWS)),
    "a label by number in YAML": (text(cells()), {"label": 1}, ("column 1", None, 2, ROWS)),
    "a name that is a number": (text([["2", "3", "1"], *cells()]), {"label": "1", "header": True}, ("1", 3, 2, ROWS)),
    "numbers": (text(PLAIN), {"kind": "numbers"}, ("kind", None, 2, ROWS)),
    "classes": (text([NAMES, *cells(260, label="letters")]), {"kind": "classes"}, ("kind", 26, 2, 260)),
    "a header": ("1,2,3\n" + text(cells()), {"header": False}, ("column 3", 4, 2, ROWS + 1)),
    "no header": (text(cells()), {"header": True}, (cells()[0][2], 3, 2, ROWS - 1)),
    "a column to leave out": (text(PLAIN), {"drop": ("a",)}, ("kind", 3, 1, ROWS)),
    "texts to leave out": (
        text([["s", *NAMES], *(["x", *row] for row in cells())]),
        {"drop": ("s",)},
        ("kind", 3, 2, ROWS),
    ),
    "nothing to leave out": (text(with_index("Id", cells())), {"drop": ()}, ("kind", 3, 3, ROWS)),
    "the last column to leave out": (
        text([[*NAMES, "s"], *([*row, "x"] for row in cells())]),
        {"drop": ("s",)},
        ("kind", 3, 2, ROWS),
    ),
}


@pytest.mark.parametrize("case", TOLD)
def test_what_is_told_overrules_the_guess(case: str, tmp_path: Path) -> None:
    """Settings of how a CSV is read, of this `case`, take the place of the guesses."""
    content, told, expected = TOLD[case]
    path = tmp_path / "x.csv"
    path.write_text(content)
    samples = table.read(path, Table(**told))
    assert samples.reading is not None
    found = (
        samples.reading.name_column(samples.reading.label),
        samples.classes,
        samples.inputs.shape[1],
        len(samples.inputs),
    )
    assert found == expected


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            {"label": "c"},
            "data.table.label (--label): there is no column 'c'; expected one of a, b, kind, or a number from 1 to 3",
        ),
        ({"label": 0}, "there is no column '0'"),
        ({"drop": ("c",)}, "data.table.drop (--drop): there is no column 'c'"),
        ({"drop": ("kind",), "label": "kind"}, "kind is the label"),
        ({"drop": ("a", "b")}, "no column is left"),
    ],
)
def test_what_is_told_and_not_there_is_refused(told: dict[str, Any], words: str, tmp_path: Path) -> None:
    """Settings that name a column which does not exist, or do not fit, raise DataError with `words`."""
    path = tmp_path / "x.csv"
    path.write_text(text(PLAIN))
    with pytest.raises(DataError) as refused:
        table.read(path, Table(**told))
    assert words in str(refused.value)


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CSV is parsed once per process and again after it has changed; callers get copies."""
    path = tmp_path / "x.csv"
    path.write_text(text(PLAIN))
    first = table.read(path)
    assert first.reading is not None
    before = first.inputs.clone()
    first.inputs.zero_()
    with monkeypatch.context() as patched:
        patched.setattr(table, "_read_rows", None)
        for again in (table.read(path), table.read(path, first.reading.as_table())):
            assert torch.equal(again.inputs, before) and torch.equal(again.labels, first.labels)
    path.write_text(text(PLAIN[:-1] + PLAIN[1:2]))
    assert not torch.equal(table.read(path).inputs, before)


def test_a_number_that_also_names_another_column_is_refused(tmp_path: Path) -> None:
    """Check that a column number raises DataError if another column has that number as its name."""
    path = tmp_path / "x.csv"
    path.write_text(text([["0", "1", "2"], *cells()]))
    with pytest.raises(DataError, match=r"2 counts a column, '1', and names another; expected the name .* in quotes"):
        table.read(path, Table(label=2))
    reading = table.read(path, Table(label="1")).reading
    assert reading is not None and reading.label == 1


def test_of_two_columns_of_one_name_the_number_is_asked_for(tmp_path: Path) -> None:
    """A label name that two columns have raises DataError, which asks for the column's number."""
    path = tmp_path / "x.csv"
    path.write_text(text([["a", "a", "kind"], *cells()]))
    with pytest.raises(DataError, match=r"2 columns are called 'a'; expected the number of one of them: 1 and 2"):
        table.read(path, Table(label="a"))
    assert table.read(path, Table(label="2")).inputs.shape == (ROWS, 2)


def test_numbers_that_float32_does_not_tell_apart_are_read_as_they_are(tmp_path: Path) -> None:
    """Large numbers of a CSV stay distinct, since they are read in float64."""
    path = tmp_path / "x.csv"
    path.write_text("".join(f"{1_700_000_000 + n},{1_700_000_000.5 + n}\n" for n in range(200)))
    samples = table.read(path)
    assert len(set(samples.inputs[:, 0].tolist())) == len(set(samples.labels[:, 0].tolist())) == 200
