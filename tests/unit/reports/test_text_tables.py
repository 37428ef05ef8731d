"""Tables and lines of a terminal of any width: columns, records where they do not fit, figures in one piece."""

import io
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from crossover.reports import tables
from crossover.reports.display import GAP


def drawn(what: Any, width: int) -> list[str]:
    """Return the lines that a console of this width prints, uncropped and without colours."""
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(what, crop=False)
    return file.getvalue().splitlines()


TABLE = tables.TextTable(
    "sizes",
    ["how", "time", "dollars", "why"],
    [
        ["one function", f"14{GAP}min 05{GAP}s", "$0.0000012", "a sentence that ends with 6.14 s, and goes on"],
        ["two", f"1.5{GAP}s", "$12.00", ""],
    ],
)


def test_a_table_is_one_where_it_fits_and_its_figures_end_at_the_right() -> None:
    """A table that fits is printed in columns, numbers flush right."""
    assert drawn(TABLE, 100) == [
        "sizes",
        "how                  time     dollars  why",
        "one function  14 min 05 s  $0.0000012  a sentence that ends with 6.14 s, and goes on",
        "two                 1.5 s      $12.00",
    ]


def test_the_last_columns_words_are_broken_first_and_then_rows_are_records() -> None:
    """A table that is too wide breaks its last column's text; if that does not suffice, each row is printed as a list of its columns."""
    assert drawn(TABLE, 66)[2:4] == [
        "one function  14 min 05 s  $0.0000012  a sentence that ends with",
        "                                       6.14 s, and goes on",
    ]
    assert drawn(TABLE, 40) == [
        "sizes",
        "how one function",
        "  time     14 min 05 s",
        "  dollars  $0.0000012",
        "  why      a sentence that ends with",
        "           6.14 s, and goes on",
        "how two",
        "  time     1.5 s",
        "  dollars  $12.00",
    ]


@pytest.mark.parametrize("width", range(20, 60))
def test_text_is_never_broken_inside_a_figure(width: int) -> None:
    """Text of any `width` is not broken between a figure and its unit."""
    text = f"it takes 14{GAP}min 05{GAP}s, 0.5 minutes, 2 h 03 min, 20 % and 512 MB of /a/path/that/is/longer/than/any/line/here"
    lines = drawn(tables.WholeLine(Text(text)), width)
    assert " ".join(lines) == text.replace(GAP, " ")
    for whole in ("14 min 05 s", "0.5 minutes", "2 h 03 min", "20 %", "512 MB"):
        assert any(whole in line for line in lines), whole
