"""Where one overtakes the other: found where it happens, labelled, and shown in one page that needs nothing else."""

import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from crossover.cli.main import main
from crossover.costs import prices
from crossover.errors import ConfigError
from crossover.experiment import Training
from crossover.reports import display
from crossover.simulation import AWS
from crossover.simulation import breakeven_page as page
from crossover.simulation.breakeven import FIGURES, Breakeven, best, breakeven, with_gpu
from tests.architectures.harness import small


@pytest.fixture(scope="module")
def found() -> Breakeven:
    experiment = small("spirt", workers=4, epochs=5)
    return breakeven([experiment, replace(experiment, name="other", architecture="all_reduce")], AWS, prices.load())


def test_a_gpu_fleet_of_as_many_gpus_stands_beside() -> None:
    one, gpu = with_gpu([small("spirt", workers=6, sync_every="epoch")])
    assert (one.architecture, gpu.architecture, gpu.workers, gpu.gpu.instances) == ("spirt", "gpu", 6, 6)
    assert gpu.training.sync_every is None  # its own: after each batch
    mine = replace(small("gpu", workers=6), name="mine")
    assert with_gpu([one, mine]) == (one, mine)


def test_what_does_not_train_the_same_is_refused() -> None:
    one = small("spirt")
    with pytest.raises(ConfigError, match=r"training\.model: small_cnn in small, resnet18 in other"):
        with_gpu([one, replace(one, name="other", training=Training(model="resnet18"))])
    with pytest.raises(ConfigError, match="small was given twice"):
        with_gpu([one, one])
    with pytest.raises(ConfigError, match="no experiment was given"):
        with_gpu([])


def test_every_figure_is_projected_and_every_axis_is_there(found: Breakeven) -> None:
    assert {point.label for point in (*found.here, *found.points)} == {"projected"}
    assert {point.axis for point in found.points} == set(page.AXES)
    assert [point.name for point in found.here] == ["small", "other", "gpu"]
    largest = [point for point in found.of("parameters") if point.value == 1_000_000_000 and not point.gpu]
    assert all(point.problems for point in largest)  # 4 GB a vector


def test_a_crossing_lies_between_two_values_that_disagree_who_leads(found: Breakeven) -> None:
    assert found.crossings
    for crossing in found.crossings:
        of = FIGURES[crossing.figure]
        name = crossing.before if crossing.after == "gpu" else crossing.after
        values = sorted({point.value for point in found.of(crossing.axis)})
        by = {(point.name, point.value): of(point) for point in found.of(crossing.axis)}
        left = max(value for value in values if value <= crossing.value)
        right = min(value for value in values if value >= crossing.value)
        leads = [min((name, "gpu"), key=lambda who, at=at: by[who, at]) for at in (left, right)]  # type: ignore[misc]
        assert leads == [crossing.before, crossing.after]


def test_every_change_of_lead_is_found(found: Breakeven) -> None:
    """As many crossings as neighbouring values that disagree."""
    for axis in page.AXES:
        for name in ("small", "other"):
            mine = [point for point in found.of(axis) if point.name == name and not point.problems]
            fleet = {point.value: point for point in found.of(axis) if point.gpu}
            for figure, of in FIGURES.items():
                leads = [of(point) < of(fleet[point.value]) for point in mine]
                changes = sum(a != b for a, b in pairwise(leads))
                there = [
                    c for c in found.crossings if (c.axis, c.figure) == (axis, figure) and name in (c.before, c.after)
                ]
                assert len(there) == changes


def test_what_would_not_run_cannot_win(found: Breakeven) -> None:
    spoilt = tuple(
        replace(point, usd=0.0, seconds=0.0, problems=("too large",)) if point.name == "small" else point
        for point in found.here
    )
    assert all(point.name != "small" for point in best(spoilt, "dollars"))
    assert "small" not in page.verdict(replace(found, here=spoilt))
    assert "would not run *" in str(page.rows(found, "parameters"))


def test_the_last_line_says_what_won_and_by_how_much(found: Breakeven) -> None:
    cheapest, second = best(found.here, "dollars")[:2]
    line = page.verdict(found)
    assert line.startswith("[projected] as the files say: ")
    assert re.search(rf"{cheapest.name} .*{second.name}", line)
    alone = replace(found, here=found.here[:1])
    assert page.verdict(alone) == "[projected] no verdict: fewer than two of these would run on AWS"


def test_epochs_beyond_the_simulated_ones_are_like_the_last(found: Breakeven) -> None:
    points = {point.value: point for point in found.of("epochs") if point.name == "small"}
    each_s = (points[100].seconds - points[50].seconds) / 50
    assert each_s == pytest.approx((points[20].seconds - points[10].seconds) / 10, rel=1e-6)
    assert points[100].usd > points[50].usd > points[20].usd


def test_the_page_needs_nothing_else_and_the_files_say_the_same(found: Breakeven, tmp_path: Path) -> None:
    text = page.write(found, tmp_path).read_text("utf-8")
    assert not re.search(r"<script|<link|(?:src|href)=\"(?!#)|url\((?!#)", text)
    assert "prefers-color-scheme: dark" in text
    assert text.count('class="plot"') == 8  # dollars and time over four axes
    assert "projected" in text
    pictures = sorted(tmp_path.glob("*.svg"))
    assert len(pictures) == 8
    for picture in pictures:
        assert ElementTree.parse(picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        assert "var(--" not in picture.read_text("utf-8")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "breakeven.csv").read_text("utf-8"))))
    assert len(rows) == len(found.here) + len(found.points)
    assert {row["label"] for row in rows} == {"projected"}
    assert "nan" not in (tmp_path / "breakeven.csv").read_text("utf-8")


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(str(ended.value.code or 0))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "some.yaml"
    plain = {
        "name": "some",
        "architecture": "spirt",
        "workers": 4,
        "training": {"model": "small_cnn", "epochs": 2, "batch_size": 60},
    }
    path.write_text(yaml.safe_dump(plain), "utf-8")
    return path


def test_breakeven_ends_with_the_verdict(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("breakeven", str(config), "--out", str(tmp_path / "out")) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1].startswith("[projected] as the files say: ")
    assert "calibration: AWS: S3, networks" in shown
    assert (tmp_path / "out" / "breakeven.html").is_file()


def test_project_shows_time_cost_and_traffic_as_projected(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "projection.json"
    assert (
        command(
            "project",
            str(config),
            "--workers",
            "100",
            "--parameters",
            "2000000",
            "--repetitions",
            "20",
            "--out",
            str(out),
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "[projected] some: 2,000,000 parameters, 100 workers, 2 epochs" in shown
    assert "Lambda duration" in shown
    assert "tensor_store" in shown
    written = json.loads(out.read_text("utf-8"))
    seconds, count = written["repetitions"]["seconds"], written["repetitions"]["count"]
    assert written["label"] == seconds["label"] == "projected"
    assert seconds["p5"] < seconds["p50"] < seconds["p95"] and count == len(written["repetitions"]["outcomes"]) == 20
    band = display.band(display.seconds, seconds["p5"], seconds["p50"], seconds["p95"])
    assert shown.splitlines()[-2].startswith(f"[projected] {band}; $")
    assert "20 repetitions of seed 1" in shown and "not in the band: prices, assumed figures" in shown


def test_project_refuses_two_papers_at_once(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = ("--calibration", "comparison-2025", "--calibration", "p2p-2023")
    assert command("project", str(config), *both) == 2
    assert "give one of them" in capsys.readouterr().err
    assert command("project", str(config), "--calibration", "results/nowhere") == 2
    assert "results/nowhere" in capsys.readouterr().err
