"""Strangers' measurements: what is refused, what fits make of the rest, and that they see nothing held out."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from crossover.errors import ConfigError, DataError
from crossover.simulation import figures
from crossover.simulation.papers import HELD_OUT, is_cell_held_out
from lab import measurements, service_fits
from lab.clock_rows import SERVICES
from lab.measurements import AGGREGATION, SKYRISE, load_rounds

FOLDER = measurements.FOLDER
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the folder of measurements, to be changed."""
    for name in (AGGREGATION, SKYRISE, SERVICES):
        shutil.copytree(FOLDER / name, tmp_path / name)
    return tmp_path


def rewritten(folder: Path, name: str, change: Change) -> None:
    """Change the JSON file `name` of the aggregation's measurements in place by calling `change`."""
    path = folder / AGGREGATION / name
    plain = json.loads(path.read_text("utf-8"))
    change(plain)
    path.write_text(json.dumps(plain), "utf-8")


def without(row: dict[str, Any], name: str, *, other: str) -> None:
    """Rename the row's figure `name` to `other`."""
    row[other] = row.pop(name)


REFUSED: dict[str, tuple[str, Change, str]] = {
    "a row less": (
        "vgg16_m4.json",
        lambda plain: plain["all_results"].pop(6),
        r"vgg16_m4.json: all_results has 13 warm rows of 14; round 1, repetition 1 is not there",
    ),
    "the cold row less": (
        "vgg16_m8.json",
        lambda plain: plain["all_results"].pop(0),
        r"vgg16_m8.json: all_results has 14 warm rows of 14; round 0, repetition 0 is not there",
    ),
    "a function less": (
        "vgg16_m4.json",
        lambda plain: plain["all_results"][2]["shard_s3_read_times_ms"].pop(),
        r"vgg16_m4.json: all_results\[2\]: shard_s3_read_times_ms has 3 figures, expected 4",
    ),
    "no rows": ("vgg16_m1.json", lambda plain: plain.pop("all_results"), "vgg16_m1.json: all_results is missing"),
    "a design less": (
        "rq3_resnet18.json",
        lambda plain: plain["resnet18"].pop("lambda_fl"),
        "rq3_resnet18.json: resnet18.lambda_fl is missing",
    ),
    "no object": (
        "rq3_resnet18.json",
        lambda plain: plain["resnet18"].update(lifl=[1]),
        r"rq3_resnet18.json: resnet18.lifl: \[1\] is not allowed; expected an object",
    ),
    "zero": (
        "lambda_resnet18.json",
        lambda plain: plain["all_results"][3].update(compute_ms=0),
        r"lambda_resnet18.json: all_results\[3\]: compute_ms\[0\]: 0 is not allowed",
    ),
    "negative": (
        "rq3_resnet18.json",
        lambda plain: plain["resnet18"]["lifl"]["all_runs"][5].update(root_duration_s=-3.0),
        r"rq3_resnet18.json: resnet18.lifl.all_runs\[5\]: root_duration_s\[0\]: -3.0 is not allowed",
    ),
    "a name of other units": (
        "vgg16_m1.json",
        lambda plain: without(plain["all_results"][1], "s3_read_ms", other="s3_read_s"),
        r"vgg16_m1.json: all_results\[1\]: s3_read_ms is missing; s3_read_s is there: other units\?",
    ),
    "figures of other units": (
        "vgg16_m1.json",
        lambda plain: plain["all_results"][1].update(s3_read_ms=0.17),
        r"vgg16_m1.json: all_results\[1\]: read of function 0: .* expected 1 to 2,000: other units\?",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_cannot_be_right_is_refused_by_file_and_row(folder: Path, fault: str) -> None:
    """An impossible or missing value in a measurement's JSON file raises DataError with its file and row. `fault`: the case's name."""
    name, change, message = REFUSED[fault]
    rewritten(folder, name, change)
    with pytest.raises(DataError, match=message):
        load_rounds(folder)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        (
            "storage-latency.csv",
            ",13.57,",
            ",-13.57,",
            r"storage-latency.csv: line \d+: p5_ms: '-13.57' is not allowed",
        ),
        (
            "storage-latency.csv",
            "median_ms",
            "median_us",
            "line 2: median_ms is missing; median_us is there: other units",
        ),
        (
            "storage-latency.csv",
            ",5.94,",
            ",0.00594,",
            "line 2: mean_ms: 0.00594 does not lie between min_ms and max_ms",
        ),
        (
            "lambda-network-throughput.csv",
            "False,7076,1,20,upload,725 ",
            "True,7076,1,20,upload,725 ",
            "single functions outside a VPC: 1 rows of uploads and 2 of downloads",
        ),
        ("lambda-network-throughput.csv", ",7076,1,20,", ",7076,1,0,", "line 2: interval_ms: '0' is not allowed"),
        ("lambda-network-throughput.csv", "_mbps_", "_gbps_", "line 2: aggregated_mbps_by_interval is missing"),
    ],
)
def test_tables_are_refused_by_line(folder: Path, name: str, old: str, new: str, message: str) -> None:
    """An impossible value in a measurement's CSV file raises DataError with its line. `old`, `new`: text to replace in file `name`."""
    path = folder / SKYRISE / name
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")
    with pytest.raises(DataError, match=message):
        service_fits.fit_services(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "no rows"),
        (b"\xff", "no measurements: "),
        (b"\n\nfile,vpc\nx,True\n", "line 2: file is missing"),
        (b"vpc\nTrue,7\n", "line 2: file is missing"),
        (b"file,vpc\n" + b"x" * 200_000 + b",True\n", "line 2: field larger than field limit"),
    ],
    ids=["empty", "no text", "blank lines", "more values than columns", "a field too long"],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: bytes, message: str) -> None:
    """A file that is no CSV file with columns raises DataError with its name."""
    (tmp_path / SKYRISE).mkdir()
    (tmp_path / SKYRISE / "lambda-network-throughput.csv").write_bytes(text)
    with pytest.raises(DataError, match=f"^lambda-network-throughput.csv: {message}"):
        measurements.load_throughputs(tmp_path)


def test_a_series_of_requests_that_is_missing_is_noticed(folder: Path) -> None:
    """A CSV file that lacks a row of a series raises DataError with the number that is expected."""
    path = folder / SKYRISE / "storage-latency.csv"
    lines = path.read_text("utf-8").splitlines(keepends=True)
    gone = next(line for line in lines if ",s3_standard,read," in line)
    path.write_text("".join(line for line in lines if line != gone), "utf-8")
    with pytest.raises(DataError, match=r"storage-latency.csv: s3_standard: 9 rows of reads, expected 10"):
        measurements.load_latencies(folder)


def test_a_store_without_rows_and_a_cell_on_no_side_are_refused(folder: Path) -> None:
    """A fit to measurements without rows of a store, or with a cell that held-out.yaml does not list, raises DataError."""
    rewritten(folder, "vgg16_m1.json", lambda plain: plain.update(memory_mb=2.9))
    with pytest.raises(DataError, match=r"held-out.yaml: measured: \('vgg16', 'grads_sharding', 1, 2\) is not listed"):
        service_fits.fit_services(folder)
    shutil.copy(FOLDER / AGGREGATION / "vgg16_m1.json", folder / AGGREGATION)
    path = folder / SKYRISE / "storage-latency.csv"
    lines = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "s3_express" not in line), "utf-8")
    with pytest.raises(DataError, match=r"storage-latency.csv: no row of s3_express, read"):
        service_fits.fit_services(folder)


def test_what_is_written_down_is_what_the_measurements_give(tmp_path: Path) -> None:
    """Check that config/calibration/fitted.yaml is what the fits write now."""
    out = tmp_path / "fitted.yaml"
    service_fits.fit(FOLDER, out)
    assert out.read_text("utf-8") == figures.FITTED.read_text("utf-8"), (
        "config/calibration/fitted.yaml is not what its measurements give: python -m lab fit config/calibration"
    )


def test_a_fit_sees_no_cell_held_out(folder: Path) -> None:
    """Check that the fits are the same if the measurements held out take half as long again."""

    def longer(value: Any) -> Any:
        """Return the number or list of numbers, each multiplied by 1.5."""
        return [1.5 * each for each in value] if isinstance(value, list) else 1.5 * value

    def change(row: dict[str, Any]) -> None:
        """Multiply the row's times by 1.5 in place."""
        row.update({name: longer(value) for name, value in row.items() if name.endswith(("_ms", "_s"))})

    for name in ("vgg16_m2.json", "vgg16_m8.json"):
        rewritten(folder, name, lambda plain: [change(row) for row in plain["all_results"]])
    for design in ("grads_sharding", "lifl"):
        rewritten(
            folder, measurements.DESIGNS, lambda plain, d=design: [change(r) for r in plain["resnet18"][d]["all_runs"]]
        )
    assert load_rounds(folder) != load_rounds()
    assert service_fits.fit_services(folder) == service_fits.fit_services()


def test_the_cells_held_out_follow_the_rule() -> None:
    """Check that every second measured experiment is held out, sorted by size, design and aggregators."""
    listed = yaml.safe_load(HELD_OUT.read_text("utf-8"))["measured"]
    assert [each["held_out"] for each in listed] == [n % 2 == 1 for n in range(len(listed))]
    cells = {
        (round(each.cell.gradient_mib), each.cell.design, each.cell.aggregators, each.cell.key)
        for each in load_rounds()
    }
    assert [key for *_, key in sorted(cells)] == [
        (each["gradient"], each["design"], each["aggregators"], each["memory_mb"]) for each in listed
    ]
    assert {is_cell_held_out(key) for *_, key in cells} == {True, False}


def test_figures_of_another_format_are_refused_by_name(tmp_path: Path) -> None:
    """Check that a calibration file of another format raises ConfigError."""
    (tmp_path / "fitted.yaml").write_text("format: 2\nfigures: []\n")
    with pytest.raises(ConfigError, match=r"fitted.yaml: not a calibration: format 2 is unknown; this version reads 1"):
        figures._read_figures(tmp_path / "fitted.yaml")
