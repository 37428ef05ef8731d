"""One run at a time in a folder: who holds its lock file, which no other user can."""

from pathlib import Path

import pytest

from crossover.cli.run import lock_folder
from crossover.errors import UserError


def test_a_second_run_is_refused_while_the_first_is_at_work(tmp_path: Path) -> None:
    """A folder's lock cannot be taken twice; afterwards it can be taken again, and its file is deleted."""
    with (
        lock_folder(tmp_path / "out"),
        pytest.raises(UserError, match="another run is using this folder"),
        lock_folder(tmp_path / "out"),
    ):
        pass
    with lock_folder(tmp_path / "out"):
        assert (tmp_path / ".out.lock").stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_has_left_bars_nobody(tmp_path: Path) -> None:
    """A lock file that nobody holds does not prevent a run."""
    (tmp_path / ".out.lock").touch()
    with lock_folder(tmp_path / "out"):
        pass
