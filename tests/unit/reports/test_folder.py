"""A run's folder: whole files or none, and clear words about a folder that is not one."""

import json
import os
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import Phase, given, settings
from safetensors.torch import save as safetensors

from crossover.errors import DataError
from crossover.reports import comparison, folder, report_pages, tables
from tests.commands import status
from tests.unit.mutants import mutated
from tests.unit.reports.example_run import spirt

EXAMPLE = spirt(epochs=2)
MODEL = safetensors({"weight": torch.ones(100)})


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """A run's folder that is written is read back equal, with the records in the order of their beginnings and the model's bytes."""
    written = folder.write(tmp_path / "a" / "run", result=EXAMPLE.result(), records=EXAMPLE.records, model=MODEL)
    found = folder.read(tmp_path / "a" / "run")
    assert found.name == "run"
    assert found.result == EXAMPLE.result()
    assert found.records == written.records == sorted(EXAMPLE.records, key=lambda r: r["started_at"])
    assert sorted(p.name for p in found.path.iterdir()) == ["metrics.jsonl", "model.safetensors", "result.json"]
    assert (found.path / "model.safetensors").read_bytes() == MODEL
    assert len((found.path / "metrics.jsonl").read_text().splitlines()) == len(EXAMPLE.records)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`write_atomically` that fails raises the error, and leaves the old content and no temporary file."""
    target = tmp_path / "result.json"
    folder.write_atomically(target, b"old")

    def full(_: int) -> None:
        """Raise OSError, as a full disk does."""
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        folder.write_atomically(target, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]
    assert target.read_bytes() == b"old"


def test_folders_without_a_readable_result_are_refused(tmp_path: Path) -> None:
    """A folder without result.json or metrics.jsonl, or with a result of no known form, raises DataError with the file's name."""
    with pytest.raises(DataError, match=r"result\.json: no such file; give the folder of a run"):
        folder.read(tmp_path)
    for text, complaint in (
        ("{", "not JSON"),
        ("[]", "not the result of a run"),
        ('{"a": 1}', "not the result of a run"),
    ):
        (tmp_path / "result.json").write_text(text)
        with pytest.raises(DataError, match=complaint):
            folder.read(tmp_path)
    (tmp_path / "result.json").write_text(json.dumps({**EXAMPLE.result(), "format": 2}))
    with pytest.raises(DataError, match=r"result\.json: format 2 is unknown, this version reads 1"):
        folder.read(tmp_path)
    (tmp_path / "result.json").write_text(json.dumps(EXAMPLE.result()))
    with pytest.raises(DataError, match=r"metrics\.jsonl: no such file"):
        folder.read(tmp_path)
    (tmp_path / "metrics.jsonl").write_text(json.dumps(EXAMPLE.records[0]) + '\n{"b": \n')
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2: not JSON"):
        folder.read(tmp_path)


@pytest.mark.parametrize("damaged", [b"\xd9\x00\xff", b'{"a": "\xe9"}', b"[" * 100_000])
@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl"])
def test_bytes_that_are_no_text_are_named(tmp_path: Path, name: str, damaged: bytes) -> None:
    """A file whose bytes are no JSON text raises DataError with its name. `damaged`: its bytes."""
    folder.write(tmp_path, result=EXAMPLE.result(), records=EXAMPLE.records, model=MODEL)
    (tmp_path / name).write_bytes(damaged)
    with pytest.raises(DataError, match=rf"{name}.*: not JSON"):
        folder.read(tmp_path)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_written_file_has_the_rights_that_the_umask_leaves(mask: int, tmp_path: Path) -> None:
    """A file of results has the rights that the umask leaves, and no others."""
    before = os.umask(mask)
    try:
        folder.write_atomically(tmp_path / "result.json", b"{}")
    finally:
        os.umask(before)
    assert (tmp_path / "result.json").stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_seed_is_a_whole_number(tmp_path: Path) -> None:
    """Reading a result whose seed is not a whole number raises DataError with the value."""
    result = EXAMPLE.result()
    folder.write(
        tmp_path, result={**result, "experiment": {**result["experiment"], "seed": "x"}}, records=[], model=MODEL
    )
    with pytest.raises(DataError, match=r"result\.json: experiment\.seed: \"x\" is not a whole number"):
        folder.read(tmp_path)


SAMPLE = json.loads(json.dumps(EXAMPLE.result()))


@pytest.mark.slow
@given(result=mutated(SAMPLE))
@settings(max_examples=60, deadline=None, phases=[Phase.generate])
def test_a_result_of_another_shape_is_compared_or_refused(result: object) -> None:
    """Whatever value a field has, the comparison gives a table, a page and a CSV file, or raises DataError with the file's name."""
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        folder.write(run, result={}, records=EXAMPLE.records)
        (run / "result.json").write_text(json.dumps(result))
        said = "result.json: "
        try:
            found = comparison.compare_folders([run])
            report_pages.write_comparison(found, Path(name) / "comparison")
            tables.comparison(found)
        except DataError as error:
            said = str(error)
        assert "result.json: " in said


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"cost": {}}, "result.json: cost.label is not there"),
        ({"stages": None}, "result.json: stages: null is not a list"),
        ({"epochs": [{"epoch": 1}]}, "result.json: epochs[0].val_metric is not there"),
        ({"duration_s": "long"}, 'result.json: duration_s: "long" is not a number'),
        ({"label": "guessed"}, "result.json: label: \"guessed\" is not 'measured-local' or"),
        ({"experiment": {"name": "x"}}, "result.json: experiment.architecture is not there"),
        ("model", "model.safetensors: "),
        ("record", "metrics.jsonl, line 3: wall_s is not there"),
    ],
    ids=str,
)
def test_compare_names_the_file_and_the_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: dict[str, object] | str, words: str
) -> None:
    """`crossover compare` of a damaged run exits with status 2 and says `words`, the file and the place. `damage`: parts of the result, or
    the file.
    """
    result, records = dict(SAMPLE), [dict(each) for each in EXAMPLE.records]
    model = MODEL
    if isinstance(damage, dict):
        result |= damage
    elif damage == "model":
        model = model[:-7]
    folder.write(tmp_path / "run", result=result, records=records, model=model)
    if damage == "record":
        lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
        lines[2] = lines[2].replace('"wall_s"', '"wall"')
        (tmp_path / "run" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert status("compare", str(tmp_path / "run"), "--out", str(tmp_path / "comparison")) == 2
    said = capsys.readouterr().err
    assert words in " ".join(said.split()) and "fault of Crossover" not in said
