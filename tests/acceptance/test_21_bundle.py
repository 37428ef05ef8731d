"""A study's bundle: tables made again from it, trials run again, and what comes from strangers."""

import json
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest

from crossover.errors import UserError
from crossover.study import bundle as bundles
from tests.acceptance.test_21 import written
from tests.commands import status


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundled")
    out = folder / "rates"
    assert status("study", str(written(folder)), "--on", "inline", "--out", str(out), "--bundle") == 0
    return out / "rates.zip"


def changed(bundle: Path, folder: Path, name: str, body: bytes) -> Path:
    """A copy in which `name` holds `body`."""
    other = folder / "changed.zip"
    with zipfile.ZipFile(bundle) as there, zipfile.ZipFile(other, "w") as here:
        for each in there.namelist():
            here.writestr(each, body if each == name else there.read(each))
    return other


def test_a_bundle_makes_the_tables_again_bit_by_bit(bundled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a process that knows nothing of the study, from the archive alone."""
    assert status("reproduce", str(bundled)) == 0
    said = capsys.readouterr().out
    cells = json.loads((bundled.parent / "cells.json").read_text())
    assert f"{len(cells)} equal bits, 0 within the interval, 0 not" in said


def test_run_again_what_computes_has_equal_bits(
    bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Accuracies are the same bits; seconds and dollars are new draws, which may lie anywhere. Going on with it is asked for by name."""
    again, out = ["reproduce", str(bundled), "--run"], ["--out", str(tmp_path / "again")]
    assert status(*again, *out) in (0, 1)
    said = capsys.readouterr().out
    lines = [line.split() for line in said.splitlines() if "final_metric" in line or " difference" in line]
    assert len(lines) == 3 and all(line[-2:] == ["equal", "bits"] for line in lines) and ": kept" not in said
    assert status(*again, *out) == 2
    assert "holds a study, whose trials would be counted as run again" in capsys.readouterr().err
    assert status(*again, *out, "--resume") in (0, 1)
    assert capsys.readouterr().out.count(": kept") == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--run"], "holds a study, whose trials would be counted as run again"),
        (["--run", "--resume"], "is no reproduction of this bundle"),
        (["--run", "--on", "aws"], "--on aws: somebody else's trials on your account; expected --budget"),
        (["--run", "--on", "aws", "--budget", "0.00001"], "the cheapest trial takes up to $"),
        (["--run", "--budget", "-1"], "--budget -1: expected dollars"),
        (["--resume", "--on", "local"], "--on, --out, --resume: of trials that are run again; expected --run"),
    ],
)
def test_nothing_is_run_again_that_proves_nothing_or_spends_unasked(
    options: list[str], words: str, bundled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the original's own folder."""
    assert status("reproduce", str(bundled), "--out", str(bundled.parent), *options) == 2
    assert words in capsys.readouterr().err


def test_a_table_that_its_records_do_not_make_is_told(
    bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = json.loads((bundled.parent / "cells.json").read_text())
    (cell,) = [each for each in cells if each["column"] == "final_metric" and "0.05" in each["row"]]
    inside, beyond = dict(cell), dict(cell)
    inside["low"], beyond["low"], beyond["value"] = cell["low"] - 0.01, cell["high"] + 1, cell["high"] + 2
    for other, code, words in (
        (inside, 0, "1 within the interval, 0 not"),
        (beyond, 1, "0 within the interval, 1 not"),
    ):
        body = json.dumps([other if each is cell else each for each in cells]).encode()
        assert status("reproduce", str(changed(bundled, tmp_path, "cells.json", body))) == code
        assert words in capsys.readouterr().out


@pytest.mark.parametrize("kept", [0, 11])
def test_cells_that_were_taken_out_are_told(
    kept: int, bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = json.loads((bundled.parent / "cells.json").read_text())
    path = changed(bundled, tmp_path, "cells.json", json.dumps(cells[:kept]).encode())
    assert status("reproduce", str(path)) == 1
    assert f"{kept} equal bits, 0 within the interval, {12 - kept} not" in capsys.readouterr().out


CELL = {"table": "a", "row": "b", "column": "c", "value": 1, "low": None, "high": None}
STATE: dict[str, Any] = {"format": 1, "study": {"name": "a", "base": {}}, "where": "inline", "versions": {}}


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("study.json", b'{"format": 2}', "format 2 is unknown"),
        ("trials.json", b'{"../../etc": {"varied": {}, "seed": 1}}', "is no trial's name"),
        ("trials.json", b'{"a": {"varied": {}, "seed": 1}}', "There is no item named 'runs/a/result.json'"),
        ("trials.json", b"{}", "holds no trial, so it proves nothing"),
        ("cells.json", b'[{"table": 1}]', "cells.json: "),
        ("cells.json", json.dumps([CELL, CELL]).encode(), "cells.json has a, b, c twice"),
        ("study.json", b"[1]", "study.json: "),
        ("study.json", b"[" * 100_000, "study.json: "),
        ("study.json", json.dumps(STATE | {"study": "x"}).encode(), "study.json: study: "),
        ("study.json", json.dumps(STATE | {"study": {"name": "a", "base": "/etc/hosts"}}).encode(), "study.base: "),
        ("study.json", json.dumps(STATE | {"versions": []}).encode(), "study.json: versions: "),
        ("study.json", json.dumps(STATE | {"where": "mars"}).encode(), "study.json: where: "),
        ("study.json", json.dumps(STATE | {"study": STATE["study"] | {"grid": 7}}).encode(), "grid: expected fields"),
        ("study.json", json.dumps(STATE | {"study": STATE["study"] | {"seeds": 10_001}}).encode(), "10,001 trials"),
        ("", b"", "is no bundle of a study"),
    ],
)
def test_what_is_no_bundle_is_refused(
    name: str, body: bytes, words: str, bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.zip").write_text("no archive")
    path = changed(bundled, tmp_path, name, body) if name else tmp_path / "text.zip"
    assert status("reproduce", str(path)) == 2
    assert words in capsys.readouterr().err


def test_no_damage_is_taken_for_a_fault_of_ours(bundled: Path, tmp_path: Path) -> None:
    """Bytes turned around anywhere: the same study, or a refusal."""
    whole, path, refused = bundled.read_bytes(), tmp_path / "damaged.zip", 0
    for seed in range(150):
        draw, body = random.Random(seed), bytearray(whole)
        for _ in range(draw.choice([1, 4])):
            body[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
        path.write_bytes(body)
        try:
            bundles.read(path)
        except UserError:
            refused += 1
    assert refused > 100


def test_an_encrypted_archive_is_refused(bundled: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(bundled) as archive:
        first = archive.infolist()[0]
    body, path = bytearray(bundled.read_bytes()), tmp_path / "encrypted.zip"
    body[first.header_offset + 6] |= 1
    body[body.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(body)
    with pytest.raises(UserError, match="is no bundle of a study, or is damaged"):
        bundles.read(path)
