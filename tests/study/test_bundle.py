"""A study's bundle: tables made again from it, trials run again, and what comes from strangers."""

import hashlib
import json
import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crossover.errors import UserError
from crossover.study import bundle as bundles
from tests.commands import status
from tests.study.test_study import written


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bundle of a study that was run in this process."""
    folder = tmp_path_factory.mktemp("bundled")
    out = folder / "rates"
    assert status("study", str(written(folder)), "--on", "inline", "--out", str(out), "--bundle") == 0
    return out / "rates.zip"


def changed(bundle: Path, folder: Path, name: str, body: bytes) -> Path:
    """Return a copy of the bundle in which `name` contains `body`, with digests that match its files."""
    return edited(bundle, folder, {name: body})


def edited(bundle: Path, folder: Path, bodies: dict[str, bytes], *, digests: bool = True) -> Path:
    """Return a copy of the bundle in which the members of `bodies` have other contents. `digests`: whether the digests are written anew."""
    other, named = folder / "changed.zip", dict[str, str]()
    with zipfile.ZipFile(bundle) as there, zipfile.ZipFile(other, "w", zipfile.ZIP_DEFLATED) as here:
        for each in there.namelist():
            body = bodies.get(each, there.read(each))
            if each == "digests.json" and digests:
                body = json.dumps(named).encode()
            named[each] = hashlib.sha256(body).hexdigest()
            here.writestr(each, body)
    return other


def files(bundle: Path, last: str) -> dict[str, bytes]:
    """Return the contents of the members whose path ends in `last`, by path."""
    with zipfile.ZipFile(bundle) as archive:
        return {each: archive.read(each) for each in archive.namelist() if each.endswith(last)}


def test_a_bundle_makes_the_tables_again_bit_by_bit(bundled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that `reproduce` computes the tables from the archive alone, with equal bits."""
    assert status("reproduce", str(bundled)) == 0
    said = capsys.readouterr().out
    cells = json.loads((bundled.parent / "cells.json").read_text())
    assert f"{len(cells)} equal bits, 0 within the interval, 0 not" in said


def test_a_study_run_again_from_its_bundle_has_equal_accuracies(
    bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that accuracies of a study run again have equal bits, and that a reproduction is continued only with --resume.

    Seconds and dollars are new draws, which may be anything.
    """
    again, out = ["reproduce", str(bundled), "--run"], ["--out", str(tmp_path / "again")]
    assert status(*again, *out) in (0, 1)
    said = capsys.readouterr().out
    lines = [line.split() for line in said.splitlines() if "final_metric" in line or " difference" in line]
    assert len(lines) == 3 and all(line[-2:] == ["equal", "bits"] for line in lines) and ": kept" not in said
    assert status(*again, *out) == 2
    assert "holds a study, whose trials would count as reproduced" in capsys.readouterr().err
    assert status(*again, *out, "--resume") in (0, 1)
    assert capsys.readouterr().out.count(": kept") == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--run"], "holds a study, whose trials would count as reproduced"),
        (["--run", "--resume"], "does not hold a reproduction of this bundle"),
        (["--run", "--on", "aws"], "--on aws: runs someone else's trials at your expense; expected --budget"),
        (["--run", "--on", "aws", "--budget", "0.00001"], "the cheapest trial may cost $"),
        (["--run", "--budget", "-1"], "--budget -1: expected a number of dollars"),
        (["--resume", "--on", "local"], "--on, --out, --resume: works only with --run"),
    ],
)
def test_nothing_is_run_again_that_proves_nothing_or_spends_unasked(
    options: list[str], words: str, bundled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that --run is refused in the folder of the original study, and with options that would spend money unasked."""
    assert status("reproduce", str(bundled), "--out", str(bundled.parent), *options) == 2
    assert words in capsys.readouterr().err


def test_a_table_that_its_records_do_not_make_is_told(
    bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that a cell with another value or interval than its records give counts as different, and rounding separately."""
    cells = json.loads((bundled.parent / "cells.json").read_text())
    (cell,) = [each for each in cells if each["column"] == "final_metric" and "0.05" in each["row"]]
    for other, code, words in (
        (cell | {"low": cell["low"] - 0.01}, 1, "11 equal bits, 0 within the interval, 1 not"),
        (cell | {"value": cell["value"] + 0.01, "low": -1e9, "high": 1e9}, 1, "0 within the interval, 1 not"),
        (cell | {"value": cell["value"] + 1e-14}, 0, "11 equal bits, 0 within the interval, 0 not, 1 equal but for"),
    ):
        body = json.dumps([other if each is cell else each for each in cells]).encode()
        assert status("reproduce", str(changed(bundled, tmp_path, "cells.json", body))) == code
        assert words in capsys.readouterr().out


@pytest.mark.parametrize("kept", [0, 11])
def test_cells_that_were_taken_out_are_told(
    kept: int, bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that cells missing from a bundle count as different."""
    cells = json.loads((bundled.parent / "cells.json").read_text())
    path = changed(bundled, tmp_path, "cells.json", json.dumps(cells[:kept]).encode())
    assert status("reproduce", str(path)) == 1
    assert f"{kept} equal bits, 0 within the interval, {12 - kept} not" in capsys.readouterr().out


_TRIAL = b'{"%s": {"varied": {"training.learning_rate": %s}, "seed": %s}}'
CELL = {"table": "a", "row": "b", "column": "c", "value": 1, "low": None, "high": None}
STATE: dict[str, Any] = {"format": 1, "study": {"name": "a", "base": {}}, "where": "inline"}
STATE |= {"versions": {"crossover": "1", "torch": "2"}}


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("study.json", b'{"format": 2}', "format 2 is unknown"),
        ("trials.json", b'{"../../etc": {"varied": {}, "seed": 1}}', "is not a valid name of a trial"),
        ("trials.json", b'{"a": {"varied": {}, "seed": 1}}', "trial a: sets nothing; the study varies training.lear"),
        ("trials.json", _TRIAL % (b"x", b"0.05", b"1"), "trial x: the study has no trial of this name"),
        ("trials.json", _TRIAL % (b"learning_rate=0.3_seed=1", b"0.3", b"1"), "0.3 is not in the study's grid"),
        ("trials.json", _TRIAL % (b"learning_rate=0.05_seed=7", b"0.05", b"7"), "seed 7 is none of the study's seeds"),
        (
            "trials.json",
            _TRIAL % (b"learning_rate=0.05_seed=1", b"0.05", b"1"),
            "'runs/learning_rate=0.05_seed=2/metrics",
        ),
        ("cells.json", b'[{"value": NaN}]', "cells.json: not the JSON of a bundle: NaN is not a finite number"),
        ("cells.json", b'[{"value": 1e999}]', "1e999 is not a finite number"),
        ("cells.json", b'[{"value": 1, "value": 2}]', "'value' appears twice in an object"),
        ("trials.json", b"{}", "contains no trial, so there is nothing to reproduce"),
        ("cells.json", b'[{"table": 1}]', "cells.json: "),
        ("cells.json", json.dumps([CELL, CELL]).encode(), "cells.json contains a, b, c twice"),
        ("study.json", b"[1]", "study.json: "),
        ("study.json", b"[" * 100_000, "study.json: "),
        ("study.json", json.dumps(STATE | {"study": "x"}).encode(), "study.json: study: "),
        ("study.json", json.dumps(STATE | {"study": {"name": "a", "base": "/etc/hosts"}}).encode(), "study.base: "),
        ("study.json", json.dumps(STATE | {"versions": []}).encode(), "study.json: versions: "),
        ("study.json", json.dumps(STATE | {"versions": {"torch": "2"}}).encode(), "versions: crossover is not there"),
        ("study.json", json.dumps(STATE | {"where": "mars"}).encode(), "study.json: where: "),
        ("study.json", json.dumps(STATE | {"study": STATE["study"] | {"grid": 7}}).encode(), "grid: expected fields"),
        ("study.json", json.dumps(STATE | {"study": STATE["study"] | {"seeds": 10_001}}).encode(), "10,001 trials"),
        ("", b"", "not a study's bundle"),
    ],
)
def test_a_file_that_is_no_bundle_is_refused(
    name: str, body: bytes, words: str, bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that a bundle with one bad file is refused with the reason."""
    (tmp_path / "text.zip").write_text("no archive")
    path = changed(bundled, tmp_path, name, body) if name else tmp_path / "text.zip"
    assert status("reproduce", str(path)) == 2
    assert words in capsys.readouterr().err


def test_no_damage_is_taken_for_a_fault_of_ours(bundled: Path, tmp_path: Path) -> None:
    """Check that a bundle with bytes changed anywhere is either read or refused, without another error."""
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
    """Check that an encrypted archive is refused."""
    with zipfile.ZipFile(bundled) as archive:
        first = archive.infolist()[0]
    body, path = bytearray(bundled.read_bytes()), tmp_path / "encrypted.zip"
    body[first.header_offset + 6] |= 1
    body[body.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(body)
    with pytest.raises(UserError, match="not a study's bundle, or damaged"):
        bundles.read(path)


def test_records_that_were_cut_are_told(bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that incomplete records are found where results, tables and digests are correct."""
    cut = {name: body.partition(b"\n")[0] + b"\n" for name, body in files(bundled, "metrics.jsonl").items()}
    assert status("reproduce", str(edited(bundled, tmp_path, cut))) == 1
    said = capsys.readouterr()
    assert "4 of 4 trials' results do not follow from their records" in said.err
    assert "invocations.count: 1 by its records, " in said.out
    assert "duration_s" in said.out and "0 not" not in said.out.splitlines()[-1]


def _set(*path: Any, by: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Return a function that changes one value of a result. `path`: keys to the value; `by`: makes the new value of the old one."""

    def change(result: Any) -> None:
        """Replace the value at the path in the result."""
        for each in path[:-1]:
            result = result[each]
        result[path[-1]] = by(result[path[-1]])

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_set("duration_s", by=lambda s: s + 0.01), "duration_s: "),
        (_set("started_at", by=lambda at: at.replace("+00:00", "+01:00")), "duration_s: "),
        (_set("invocations", "cold", by=lambda n: n + 1), "invocations.cold: "),
        (_set("traffic", "object_store", "bytes_out", by=lambda n: n - 1), "traffic.object_store.bytes_out: "),
        (_set("stages", 0, "cpu_s", by=lambda s: s * 1.001), ".cpu_s: "),
        (_set("steps", 0, "billed_s", by=lambda s: s / 2), "steps[initialise].billed_s: "),
        (_set("cost", "full_usd", by=lambda usd: usd / 2), "cost.full_usd: "),
        (_set("cost", "paper_method_usd", by=lambda usd: usd / 2), "cost.paper_method_usd: "),
        (_set("cost", "lines", 0, "quantity", by=lambda n: n * 2), "cost.lines[Lambda duration, arm64].quantity: "),
        (_set("cost", "lines", by=lambda lines: lines[1:]), "cost.lines[Lambda duration, arm64].usd: "),
        (_set("epochs", 0, "full_usd", by=lambda usd: usd / 2), "epochs[0].full_usd: "),
        (_set("experiment", "seed", by=lambda n: n + 7), "seed: "),
        (_set("experiment", "training", "learning_rate", by=lambda n: n + 7), "training.learning_rate: "),
        (
            _set("experiment", "training", "batch_size", by=lambda n: n + 7),
            "training.batch_size: 30 in the study, but 37",
        ),
        (_set("experiment", "data", "dataset", by=lambda name: "cifar10"), "data.dataset: 'digits' in the study, but"),
        (_set("where", by=lambda name: "aws"), "where: inline in study.json, but 'aws' in result.json"),
        (_set("label", by=lambda name: "measured-aws"), "a run on inline is measured-local"),
        (_set("architecture", by=lambda name: "spirt"), "architecture: 'spirt', but 'single' in its experiment"),
        (_set("versions", "torch", by=lambda name: "9.9"), "in study.json, but '9.9' in result.json"),
        (_set("code", "files", by=lambda files: {}), "code: the digest in result.json is not that of the files"),
        (_set("epochs", by=lambda epochs: epochs[:1]), "final.val_metric: "),
        (_set("epochs", by=lambda epochs: epochs * 2), "epochs: their numbers do not rise: [1, 2, 1, 2]"),
        (_set("final", "val_metric", by=lambda metric: metric / 2), " in the last epoch"),
        (_set("epochs", 0, "val_metric", by=lambda metric: 2.0), "epochs: an accuracy is not from 0 to 1"),
        (
            _set("incomplete", by=lambda gaps: ["a record"]),
            "incomplete: [] by its records, ['a record'] in result.json",
        ),
        (_set("data", "minibatches", by=lambda n: 0), "data: does not say how many minibatches an epoch has"),
    ],
)
def test_a_result_that_its_records_do_not_give_is_told(
    change: Callable[[Any], None], words: str, bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that each changed value of a trial's result is found by its records."""
    name, body = next(iter(files(bundled, "result.json").items()))
    result = json.loads(body)
    change(result)
    assert status("reproduce", str(changed(bundled, tmp_path, name, json.dumps(result).encode()))) == 1
    said = capsys.readouterr()
    assert words in said.out and "1 of 4 trials' results do not follow from their records" in said.err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"training": {"epochs": 20}}, "training.epochs: 20 in the study, but 2 in result.json"),
        ({"architecture": "all-reduce"}, "architecture: 'all-reduce' in the study, but 'single' in result.json"),
        ({"workers": 3}, "workers: 3 in the study, but 1 in result.json"),
    ],
)
def test_results_of_another_base_than_the_studys_are_told(
    change: dict[str, Any], words: str, bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that results of another experiment than the study's base are found."""
    state = json.loads(files(bundled, "study.json")["study.json"])
    base = state["study"]["base"]
    base |= {name: base[name] | value if isinstance(value, dict) else value for name, value in change.items()}
    assert status("reproduce", str(changed(bundled, tmp_path, "study.json", json.dumps(state).encode()))) == 1
    said = capsys.readouterr()
    assert words in said.out and "4 of 4 trials' results do not follow from their records" in said.err


def test_a_base_that_is_no_experiment_is_refused(
    bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that a bundle is refused if its study's base is not an experiment."""
    state = json.loads(files(bundled, "study.json")["study.json"])
    state["study"]["base"]["zzz"] = 1
    assert status("reproduce", str(changed(bundled, tmp_path, "study.json", json.dumps(state).encode()))) == 2
    assert "the study's base is not an experiment: zzz: is unknown" in capsys.readouterr().err


def test_a_study_of_several_fields_is_reproduced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that a study that varies several fields is reproduced, whatever order JSON has: the study's order names the rows."""
    grid = {"training.momentum": [0.9], "training.learning_rate": [0.05]}
    path = written(tmp_path, grid=grid, seeds=1, pairs={})
    out = tmp_path / "two"
    assert status("study", str(path), "--on", "inline", "--out", str(out), "--bundle") == 0
    trials = json.loads(files(out / "two.zip", "trials.json")["trials.json"])
    other = changed(out / "two.zip", tmp_path, "trials.json", json.dumps(trials, sort_keys=True).encode())
    for bundle in (out / "two.zip", other):
        capsys.readouterr()
        assert status("reproduce", str(bundle)) == 0
        assert "4 equal bits, 0 within the interval, 0 not" in capsys.readouterr().out


def test_one_run_does_not_count_as_two_trials(
    bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that a bundle is refused in which a trial has another's result and records with only the seed changed."""
    metrics, results = files(bundled, "metrics.jsonl"), files(bundled, "result.json")
    (metric, other_metric), (name, other_name) = list(metrics)[:2], list(results)[:2]
    result = json.loads(results[name])
    result["experiment"]["seed"] = json.loads(results[other_name])["experiment"]["seed"]
    path = edited(bundled, tmp_path, {other_metric: metrics[metric], other_name: json.dumps(result).encode()})
    assert status("reproduce", str(path)) == 2
    assert "have the same run's records; expected one run per trial" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["../study.json", "/tmp/result.json", "runs/ghost/result.json", "runs/a/b/result.json"]
)
def test_files_of_no_trial_are_refused(
    name: str, bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that a bundle with a file of no trial is refused."""
    path = edited(bundled, tmp_path, {})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, b"{}")
    assert status("reproduce", str(path)) == 2
    assert f"{name!r} does not belong in a bundle" in capsys.readouterr().err


def test_dollars_by_other_prices_are_not_called_counted(
    bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that `reproduce` says if a trial's dollars were computed by other prices."""
    name, body = next(iter(files(bundled, "result.json").items()))
    result = json.loads(body)
    result["cost"]["prices_as_of"] = "2019-01"
    assert status("reproduce", str(changed(bundled, tmp_path, name, json.dumps(result).encode()))) == 0
    assert "the trial used prices of 2019-01" in capsys.readouterr().out


def test_files_of_other_bytes_than_their_digests_are_named(
    bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that `reproduce` names a file whose bytes do not have its digest."""
    name, body = next(iter(files(bundled, "metrics.jsonl").items()))
    path = edited(bundled, tmp_path, {name: body.replace(b"{", b"{ ", 1)}, digests=False)
    assert status("reproduce", str(path)) == 1
    said = capsys.readouterr()
    assert f"{name}: SHA-256 " in said.out and "1 files differ from their digests in digests.json" in said.err


def test_code_that_is_not_the_studys_is_named(
    bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that `reproduce` names files of code that differ from the study's, and those outside the project's folder too."""
    assert status("reproduce", str(bundled)) == 0 and "files that computed the study" not in capsys.readouterr().out
    name, body = next(iter(files(bundled, "result.json").items()))
    result = json.loads(body)
    code = result["code"]
    code["files"] |= {"crossover/errors.py": "0" * 16, "../../etc/passwd": "0" * 16}
    code["digest"] = hashlib.sha256(repr((sorted(code["files"].items()), code["settings"])).encode()).hexdigest()
    assert status("reproduce", str(changed(bundled, tmp_path, name, json.dumps(result).encode()))) == 0
    said = capsys.readouterr().out
    assert "code: 2 of " in said and "differ in this version: crossover/errors.py, ../../etc/passwd" in said


def _line(records: bytes, **changes: Any) -> bytes:
    """Return the records with changed fields of the first one."""
    first, rest = records.split(b"\n", 1)
    return json.dumps(json.loads(first) | changes).encode() + b"\n" + rest


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda records: records + records, "has two records"),
        (lambda records: records + b'{"a": "' + b"x" * 2**20 + b'"}\n', "longer than 1,048,576 bytes"),
        (lambda records: records + b"[" * 500_000 + b"\n", "is not JSON"),
        (lambda records: b" " * (64 * 2**20 + 1), "unpacks to 67,108,865 bytes"),
        (lambda records: _line(records, traffic={str(n): {"requests": 1} for n in range(65)}), "more than 64 names"),
        (
            lambda records: _line(records, traffic={"bus": {"requests": "many"}}),
            "not a study's bundle, or damaged",
        ),
        (lambda records: _line(records, wall_s=10**400), "line 1: wall_s: 10000000000000000000 is not a"),
        (lambda records: _line(records, wall_s=float("nan")), "line 1: wall_s: nan is not a figure from 0 to 1e+15"),
        (lambda records: _line(records, cpu_s=-1.0), "line 1: cpu_s: -1.0 is not a figure"),
        (lambda records: _line(records, init_s="soon"), 'line 1: init_s: "soon" is not a number or null'),
        (lambda records: _line(records, marks=7), "line 1: marks: 7 is not a list"),
        (lambda records: _line(records, traffic={"bus": {"requests": -1}}), "line 1: requests: -1 is not a figure"),
    ],
)
def test_records_that_nobody_writes_are_refused(
    body: Callable[[bytes], bytes], words: str, bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that records are refused that no run writes, such as too long or negative ones."""
    name, records = next(iter(files(bundled, "metrics.jsonl").items()))
    assert status("reproduce", str(changed(bundled, tmp_path, name, body(records)))) == 2
    assert words in capsys.readouterr().err


def _archive(path: Path, names: list[str], how: int = zipfile.ZIP_DEFLATED, comment: bytes = b"") -> Path:
    """Write a ZIP archive with these members, each "{}", and return its path."""
    with zipfile.ZipFile(path, "w", how) as archive:
        for name in names:
            archive.writestr(name, b"{}")
        archive.comment = comment
    return path


@pytest.mark.parametrize(
    ("names", "how", "comment", "words"),
    [
        ([f"runs/{n}/result.json" for n in range(20_005)], zipfile.ZIP_STORED, b"", "20,005 members"),
        ([f"runs/{n}/result.json" for n in range(66_000)], zipfile.ZIP_STORED, b"", "has more members than a bundle"),
        (["study.json"], zipfile.ZIP_BZIP2, b"", "has an unexpected compression"),
        (["study.json"], zipfile.ZIP_LZMA, b"", "has an unexpected compression"),
        (["study.json"], zipfile.ZIP_STORED, b"a", "the end of the ZIP archive is not as expected"),
        (["study.json", "code.py"], zipfile.ZIP_STORED, b"", "'code.py' does not belong in a bundle"),
        (["study.json", "study.json"], zipfile.ZIP_STORED, b"", "contains 'study.json' twice"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_that_would_fill_the_memory_are_refused(
    names: list[str], how: int, comment: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that archives with too many, repeated or unexpected members are refused, and those with another compression."""
    assert status("reproduce", str(_archive(tmp_path / "a.zip", names, how, comment))) == 2
    assert words in capsys.readouterr().err


def test_figures_that_add_up_to_infinity_are_refused(
    bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that a bundle with a figure above 1e15 is refused, because sums of such figures would be infinite."""
    name, body = next(iter(files(bundled, "result.json").items()))
    result = json.loads(body)
    result["final"]["val_metric"] = 1e308
    assert status("reproduce", str(changed(bundled, tmp_path, name, json.dumps(result).encode()))) == 2
    assert "a figure is not finite or exceeds 1e+15" in capsys.readouterr().err


def test_control_characters_of_a_stranger_are_written_out(
    bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that control characters in a study's name are printed as escapes, and that --run refuses the study."""
    state = json.loads(files(bundled, "study.json")["study.json"])
    state["study"]["name"] = "\x1b]0;owned\x07\x1b[2J\nall is well"
    path = changed(bundled, tmp_path, "study.json", json.dumps(state).encode())
    assert status("reproduce", str(path)) == 0
    said = capsys.readouterr().out
    assert "study \\x1b]0;owned\\x07\\x1b[2J\\nall is well, " in said and "\x1b" not in said
    assert status("reproduce", str(path), "--run") == 2
    assert "cannot be a folder's name; add --out" in capsys.readouterr().err


OWN = """
from pathlib import Path
import torch

Path({mark!r}).touch()


def network(classes, input_shape):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the bundle of a study of a user's own model, and with that model's module, which writes the file `imported` when
    it is imported.
    """
    folder = tmp_path_factory.mktemp("own")
    (folder / "sketch.py").write_text(OWN.format(mark=str(folder / "imported")))
    base = {"name": "any", "architecture": "single", "workers": 1}
    base |= {"training": {"model": "sketch:network", "epochs": 1, "batch_size": 30}}
    base |= {"data": {"dataset": "digits", "limit": 120, "validation": 0.05}}
    path = written(folder, base=base, seeds=1)
    assert status("study", str(path), "--on", "inline", "--out", str(folder / "rates"), "--bundle") == 0
    return folder


def test_own_code_is_named_before_it_is_imported(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that `reproduce --run` names the user's module beside the bundle, which it imports, and its digest."""
    bundle = tmp_path / "rates.zip"
    bundle.write_bytes((own / "rates" / "rates.zip").read_bytes())
    body = (own / "sketch.py").read_bytes()
    (tmp_path / "sketch.py").write_bytes(body)
    monkeypatch.chdir(tmp_path)
    assert status("reproduce", str(bundle), "--run", "--out", str(tmp_path / "again")) in (0, 1)
    said = capsys.readouterr().out
    digest = hashlib.sha256(body).hexdigest()
    assert f"training.model: sketch:network imports {tmp_path / 'sketch.py'}, SHA-256 {digest}" in said


@pytest.mark.parametrize("kind", ["other", "absent", "unknown"])
def test_other_own_code_than_the_bundles_is_not_imported(
    kind: str, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that a user's module is not imported if it is absent, another one, or has no digest in the bundle."""
    bundle, mark = own / "rates" / "rates.zip", tmp_path / "imported"
    if kind == "unknown":
        results = {name: json.loads(body) for name, body in files(bundle, "result.json").items()}
        for result in results.values():
            del result["code"]["own"]
        bundle = edited(bundle, tmp_path, {name: json.dumps(result).encode() for name, result in results.items()})
    else:
        bundle = edited(bundle, tmp_path, {})
    if kind != "absent":
        (tmp_path / "sketch.py").write_text(OWN.format(mark=str(mark)))
    monkeypatch.chdir(tmp_path)
    assert status("reproduce", str(bundle), "--run", "--out", str(tmp_path / "again")) == 2
    said = capsys.readouterr().err
    words = {
        "other": "restore the file that was run",
        "absent": "module sketch was not found beside the bundle or in the current folder",
        "unknown": "the bundle has no digest of this file",
    }
    assert words[kind] in said and "no user code was imported" in said
    assert not mark.exists() and not os.path.exists(tmp_path / "again")
