from collections.abc import Iterator
from pathlib import Path

import pytest

from crossover import user_code
from tests.unit.own_code.folders import Folders


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folders]:
    """Yield an experiment's folder and the current folder, in which user code is looked up."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiment").mkdir()
    user_code.set_folders(tmp_path / "experiment", tmp_path)
    yield Folders(tmp_path)
    user_code.set_folders()
