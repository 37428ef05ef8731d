"""Strangers' control characters are shown, never sent to the terminal."""

import pytest

from crossover.cli import main
from crossover.errors import ConfigError, quote_controls
from crossover.reports import tables

NAME = "\x1b]0;owned\x07\x1b[2J\x9b2J\u202e"


def test_control_characters_in_tables_are_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    """A printed table has control characters in title and cells as escapes."""
    tables.show(NAME, tables.TextTable(NAME, ["run", "is"], [[NAME, NAME]]))
    shown = capsys.readouterr().out
    assert shown.count("\\x1b]0;owned") == 4
    assert quote_controls(shown) == shown


def test_control_characters_in_errors_are_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    """A printed error has control characters as escapes."""
    with pytest.raises(SystemExit):
        main._fail(ConfigError(NAME), NAME, status=2, arguments=[])
    assert capsys.readouterr().err.startswith("error: \\x1b]0;owned\\x07\\x1b[2J\\x9b2J\\u202e")
