"""Text in CSV files never begins a formula; numbers are numbers."""

import pytest

from crossover.reports.display import escape_formula


@pytest.mark.parametrize("text", ["=cmd|'calc'!A1", "+1+1", "-2+3", "@SUM(1)", "\t=1", "\r=1", "＝1+1"])
def test_a_formula_is_shown(text: str) -> None:
    """Text that a spreadsheet would take for a formula gets an apostrophe in front."""
    assert escape_formula(text) == f"'{text}"


@pytest.mark.parametrize("cell", [-1.5, -3, "-1.5", "+2e-3", "spirt", "", None, True])
def test_numbers_and_other_text_stay(cell: object) -> None:
    """`escape_formula` returns numbers, text of a number and harmless text unchanged."""
    assert escape_formula(cell) == cell
