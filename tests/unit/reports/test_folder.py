"""A run's folder: whole files or none, and clear words about a folder that is not one."""

import json
import os
from pathlib import Path

import pytest

from crossover.errors import DataError
from crossover.reports import folder
from tests.unit.reports.example_run import spirt

EXAMPLE = spirt(epochs=2)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    written = folder.write(tmp_path / "a" / "run", result=EXAMPLE.result(), records=EXAMPLE.records, model=b"model")
    found = folder.read(tmp_path / "a" / "run")
    assert found.name == "run"
    assert found.result == EXAMPLE.result()
    assert found.records == written.records == sorted(EXAMPLE.records, key=lambda r: r["started_at"])
    assert sorted(p.name for p in found.path.iterdir()) == ["metrics.jsonl", "model.safetensors", "result.json"]
    assert (found.path / "model.safetensors").read_bytes() == b"model"
    assert len((found.path / "metrics.jsonl").read_text().splitlines()) == len(EXAMPLE.records)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "result.json"
    folder.write_atomically(target, b"old")

    def full(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        folder.write_atomically(target, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]
    assert target.read_bytes() == b"old"


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"result\.json: is not there; give the folder of a run"):
        folder.read(tmp_path)
    for text, complaint in (("{", "not JSON"), ("[]", "is not a run's result"), ('{"a": 1}', "is not a run's result")):
        (tmp_path / "result.json").write_text(text)
        with pytest.raises(DataError, match=complaint):
            folder.read(tmp_path)
    (tmp_path / "result.json").write_text(json.dumps(EXAMPLE.result()))
    with pytest.raises(DataError, match=r"metrics\.jsonl: is not there"):
        folder.read(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"a": 1}\n{"b": \n')
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2: not JSON"):
        folder.read(tmp_path)
