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

from crossover.errors import ConfigError
from crossover.experiment import Experiment, Training
from crossover.reports import display, prices
from crossover.simulation import AWS
from crossover.simulation import breakeven as swept
from crossover.simulation import breakeven_page as page
from crossover.simulation.breakeven import (
    LEADS,
    READY,
    Breakeven,
    Point,
    add_rivals,
    breakeven,
    find_best,
    find_crossings,
    sort_by_median,
)
from crossover.simulation.repetitions import Outcome
from crossover.simulation.workload import Workload
from tests.architectures.harness import small
from tests.commands import status


@pytest.fixture(scope="module")
def found() -> Breakeven:
    """Return the break-even of a SPIRT and an all-reduce experiment on AWS, in 3 draws."""
    experiment = small("spirt", workers=4, epochs=1, every="epoch")
    return breakeven(
        [experiment, replace(experiment, name="other", architecture="all_reduce")], AWS, prices.load(), repetitions=3
    )


def test_one_of_each_and_a_fleet_of_as_many_gpus_stand_beside() -> None:
    """`add_rivals` adds one function, one machine, one GPU, and as many GPUs as workers; a user's GPU experiment replaces the last."""
    one, *alone, gpu = add_rivals([small("spirt", workers=6, every="epoch")])
    assert [(each.name, each.workers, each.sections["single"]["on"]) for each in alone] == [
        ("one-function", 1, "function"),
        ("one-machine", 1, "instance"),
        ("one-gpu", 1, "gpu"),
    ]
    assert {(each.exchange.every, each.training.threads) for each in alone} == {("epoch", "auto")}
    assert (one.architecture, gpu.architecture, gpu.workers, gpu.gpu.instances) == ("spirt", "gpu", 6, 6)
    assert gpu.exchange.every is None  # its own: after each batch
    mine = replace(small("gpu", workers=6), name="mine")
    assert [each.name for each in add_rivals([one, mine])] == ["small", "mine", *swept.ALONE]
    assert len(add_rivals([one, mine, *alone])) == 5


def test_one_worker_alone_updates_by_as_many_minibatches_as_any_number_of_workers_together() -> None:
    """Check that on the axis of workers a single worker has `exchange.every` multiplied by their number, up to the
    minibatches of an epoch.
    """
    one, *rest = add_rivals([small("all_reduce", workers=4, every=1)])
    function = next(each for each in rest if each.name == "one-function")
    own = Workload.from_experiment(function)

    def on(entrants: list[Experiment], workers: int) -> tuple[object, int]:
        """Return `exchange.every` and the workers of the experiment on functions at this point of the axis `workers`."""
        axes = swept._list_axis_points(entrants, own, swept.find_own_settings(entrants, own))
        changed, _ = next(change for axis, value, change in axes if (axis, value) == ("workers", workers))(
            function, own
        )
        return changed.exchange.every, changed.workers

    assert (function.exchange.every, own.minibatches) == (4, 7)
    for entrants in ([one, function], [function, one]):  # whichever file comes first
        assert on(entrants, 4) == (4, 1)
        assert on(entrants, 16) == (7, 1), "they would have a minibatch each: an update an epoch"


def test_what_does_not_train_the_same_is_refused() -> None:
    """Experiments with different models, or of the same name, or none at all raise ConfigError."""
    one = small("spirt")
    with pytest.raises(ConfigError, match=r"training\.model: small_cnn in small, resnet18 in other"):
        add_rivals([one, replace(one, name="other", training=Training(model="resnet18"))])
    with pytest.raises(ConfigError, match="small was given twice"):
        add_rivals([one, one])
    with pytest.raises(ConfigError, match="no experiment was given"):
        add_rivals([])


@pytest.mark.slow
def test_every_figure_is_projected_and_every_axis_is_there(found: Breakeven) -> None:
    """Every point is labelled "projected", every axis has points, and a model of 1,000,000,000 parameters would run on no functions."""
    assert {point.label for point in (*found.here, *found.points)} == {"projected"}
    assert {point.axis for point in found.points} == set(page.AXES)
    assert [point.name for point in found.here] == ["small", "other", *swept.ALONE, "gpu"]
    largest = [
        point for point in found.points_of_axis("parameters") if point.value == 1_000_000_000 and not point.rival
    ]
    assert not any(point.would_run for point in largest)  # 4 GB a vector


def test_what_lies_beyond_all_measurements_is_said(found: Breakeven) -> None:
    """Points beyond the measured range are named in notes, with the value and the largest one that was measured."""
    said = [note for note in page.list_notes(found) if note.startswith("beyond the measured range: other, ")]
    assert any("parameters 1,000,000,000: objects of 4,0" in note for note in said)
    assert any("workers 64: 64 functions at once: 4.0 times the most that was measured (16)" in note for note in said)
    assert not any("gpu" in note for note in page.list_notes(found) if note.startswith("outside"))


def test_every_change_of_the_best_option_is_found_and_lies_between_two_values(found: Breakeven) -> None:
    """Check that crossings and tables name the same best options at each value, and that each change between neighbours is a crossing."""
    assert found.crossings
    for axis in page.AXES:
        for figure in LEADS:
            points = found.points_of_axis(axis)
            values = sorted({point.value for point in points})
            best = [find_best([point for point in points if point.value == value], figure) for value in values]
            there = [c for c in found.crossings if (c.axis, c.figure) == (axis, figure)]
            changes = [pair for pair in zip(pairwise(values), pairwise(best), strict=True) if pair[1][0] != pair[1][1]]
            assert [((c.left, c.right), (c.before, c.after)) for c in there] == changes
            said = [row[2].partition(": ")[2] for row in page.axis_rows(found, axis) if row[1] == figure]
            assert said == [page.describe_best(names) for names in best]
            rows = [row for row in page.crossing_rows(found) if row[:2] == [axis, LEADS[figure]]]
            assert len(rows) == max(1, len(changes))
            assert (rows[0][2] == "no change") == (not changes)
            for crossing in there:
                if crossing.value is not None:
                    assert crossing.left <= crossing.value.p50 <= crossing.right
                    assert crossing.value.p5 <= crossing.value.p50 <= crossing.value.p95
                    assert 0 < crossing.count <= crossing.of == 3


def test_rivals_cross_each_other_when_only_a_single_worker_is_given() -> None:
    """Changes between rivals are told too: with one worker alone given, `breakeven` said that there were none in these ranges."""
    mine = small("single", workers=1, epochs=7)
    found = breakeven([mine], AWS, prices.load(), repetitions=3)
    assert [each.name for each in found.experiments] == ["small", "one-machine", "one-gpu"], "no fleet of one GPU"
    assert {point.axis for point in found.points} == {"parameters", "batch size", "epochs"}, "one worker has no axis"
    assert {each.axis for each in found.crossings} >= {"parameters"}
    for axis, own in found.own.items():
        points = [point for point in found.points_of_axis(axis) if point.value == own]
        assert axis == "workers" or [each.outcomes for each in points] == [each.outcomes for each in found.here]
    rows = [row[0] for row in page.axis_rows(found, "epochs")]
    assert rows[6:8] == ["7 (yours)"] * 2 and sum("yours" in row for row in rows) == 2


def test_the_same_settings_have_the_same_figures_on_axes_and_sliders(
    found: Breakeven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fleet's figures differed by a last, smaller minibatch, which its own number of workers and batch size left out on axes and
    sliders.
    """
    own = {each.name: each.outcomes for each in found.here}
    assert {p.name: p.outcomes for p in found.points_of_axis("workers") if p.value == found.own["workers"]} == own
    for axis in ("PARAMETERS", "BATCHES", "WORKERS", "EPOCHS"):
        monkeypatch.setattr(swept, axis, ())
    grid = page.simulate_grid(found.experiments, AWS, prices.load(), repetitions=3)
    (points,) = grid.cells.values()
    assert {each.name: each.outcomes for each in points} == own


def test_the_words_of_an_option_are_those_of_a_candidate(found: Breakeven) -> None:
    """Check what the names of options stand for, on the page and in the verdict, and that the seconds count start-up."""
    words = {row[0]: row[1] for row in page.rows_at_own_settings(found)}
    assert words == {
        "small": "4 functions of 1,769 MB, spirt",
        "other": "4 functions of 1,769 MB, all-reduce",
        "one-function": "one function of 1,769 MB",
        "one-machine": "one c7g.xlarge",
        "one-gpu": "one g4dn.xlarge",
        "gpu": "4 g4dn.xlarge, gpu",
    }
    gpu = next(each for each in found.here if each.name == "one-gpu")
    run_s = display.band_of([each.seconds for each in gpu.outcomes]).p50
    assert gpu.band(READY).p50 == pytest.approx(run_s + gpu.before_s) and gpu.before_s > 60
    assert sum(f"{name} ({said})" in page.describe_winner(found) for name, said in words.items()) >= 2


def test_an_architecture_has_the_count_of_workers_that_makes_it_cheapest(found: Breakeven) -> None:
    """An architecture is projected with the number of workers that makes it cheapest, except over the axis of workers and at the
    settings of its file.
    """
    counts = {point.value: point.workers for point in found.points_of_axis("workers") if point.name == "other"}
    assert counts == {value: value for value in counts} and {point.workers for point in found.here} == {4, 1}
    (first, *_) = (point for point in found.points_of_axis("epochs") if point.name == "other" and point.value == 5)
    (filed,) = (point for point in found.here if point.name == "other")
    assert first.workers < filed.workers and first.band("dollars").p50 < filed.band("dollars").p50
    assert all(point.workers == 1 for point in found.points if point.name in swept.ALONE)


def point(name: str, *usd: float, problem: str = "", rival: bool = False, value: int = 1) -> Point:
    """Return a point with one repetition for each of `usd`. `problem`: what prevents the last one."""
    outcomes = [Outcome(seconds=each, epoch_s=1.0, usd=each, paper_method_usd=each, moved_bytes=1.0) for each in usd]
    if problem:
        outcomes[-1] = replace(outcomes[-1], problems=(problem,))
    return Point(axis="here", value=value, name=name, rival=rival, outcomes=tuple(outcomes))


def with_points(found: Breakeven, *here: Point) -> Breakeven:
    """Return the break-even with other points, each the 4 workers of SPIRT by words, at the settings of the files."""
    own = found.experiments[0]
    return replace(found, here=here, experiments=tuple(replace(own, name=each.name) for each in here))


FOUR = "(4 functions of 1,769 MB, spirt)"


def test_a_value_without_a_sure_lead_is_too_close_to_call(found: Breakeven) -> None:
    """The verdict and the tables say "too close to call" if one is cheaper in only 18 of 20 draws."""
    ours = point("ours", *(1.0 + n / 20 for n in range(20)))
    theirs = point("theirs", *((0.9 if n < 2 else 1.5) * (1.0 + n / 20) for n in range(20)))
    assert f"ours {FOUR} is in 18 of 20 paired draws" in page.describe_winner(with_points(found, ours, theirs))
    points = tuple(replace(each, axis="epochs") for each in (ours, theirs))
    (dollars, ready) = page.axis_rows(replace(found, points=points), "epochs")
    said = "ours or theirs (too close to call)"
    assert (dollars[2], ready[2]) == (f"cheapest: {said}", f"soonest: {said}")
    assert [*dollars[:2], dollars[3]] == ["1 (yours)", "dollars", "$1.48 (-31/+31%)"]


def test_what_would_not_run_cannot_win(found: Breakeven) -> None:
    """Check that a run that AWS would refuse is not among the leaders, and one that it would refuse in one of three draws is."""
    never, once = point("never", 0.1, problem="too large"), point("once", 1.0, 1.1, 0.1, problem="too slow")
    other = point("other", 5.0, 5.0, 5.0)
    assert [each.name for each in sort_by_median([never, once, other], "dollars")] == ["once", "other"]
    assert once.problems == ("in 1 of 3 repetitions: too slow",)
    assert f"once {FOUR} is in 2 of 3 paired draws" in page.describe_winner(with_points(found, once, other))
    assert "never" not in page.describe_winner(
        with_points(found, replace(never, outcomes=never.outcomes * 3), once, other)
    )
    assert "would not run *" in str(page.axis_rows(found, "parameters"))


def test_a_crossing_has_the_band_of_the_draws_in_which_it_happens() -> None:
    """A crossing's band is of those repetitions in which the lead changes: at 10 and 31.6 in two of three here."""
    ours = [point("ours", 1.0, 1.0, 1.0, value=value) for value in (1, 100)]
    gpu = [point("gpu", 10.0, 10.0, 10.0, rival=True), point("gpu", 0.1, 10 ** (-1 / 3), 2.0, rival=True, value=100)]
    (crossing,) = [each for each in find_crossings([*ours, *gpu]) if each.figure == READY]
    assert (crossing.before, crossing.after, crossing.count, crossing.of) == (("ours",), ("gpu", "ours"), 2, 3)
    assert (crossing.left, crossing.right) == (1, 100) and crossing.value is not None
    assert crossing.value.p5 == pytest.approx(10.0)
    assert crossing.value.p95 == pytest.approx(10**1.5)


def test_the_last_line_says_what_won_and_by_how_much(found: Breakeven) -> None:
    """The verdict begins with the cheapest; if fewer than two would run, it says that there is none."""
    cheapest = sort_by_median(found.here, "dollars")[0]
    line = page.describe_winner(found)
    assert line.startswith(f"[projected] with your settings: {cheapest.name} ")
    alone = replace(found, here=found.here[:1])
    assert page.describe_winner(alone) == "[projected] no verdict: fewer than two of these would run on AWS"


def test_epochs_beyond_the_simulated_ones_are_like_their_mean(found: Breakeven) -> None:
    """Check that seconds grow linearly between 10 and 100 epochs in each draw."""
    points = {point.value: point.by_draw(READY) for point in found.points_of_axis("epochs") if point.name == "small"}
    for ten, twenty, fifty, hundred in zip(points[10], points[20], points[50], points[100], strict=True):
        assert (hundred - fifty) / 50 == pytest.approx((twenty - ten) / 10, rel=1e-6)


@pytest.mark.slow
def test_the_page_needs_nothing_else_and_the_files_say_the_same(found: Breakeven, tmp_path: Path) -> None:
    """Check that the page loads no other file, has its plots and choices, and that pictures and CSV hold the same figures."""
    text = page.write_page(found, tmp_path).read_text("utf-8")
    assert not re.search(r"<script|<link|src=|href=\"(?!#|data:|breakeven.csv\")|url\((?!#)", text)
    assert "prefers-color-scheme: dark" in text
    assert text.count('class="plot"') == 8  # dollars and time over four axes, of which the two choices show one
    assert re.findall(r'name="choice-(\d)" value="([^"]+)" checked', text) == [("0", "parameters"), ("1", "dollars")]
    assert len(re.findall(r':not\(:checked\)\) \[data-choice-\d="[^"]+"\] { display: none; }', text)) == 4 + 2
    assert "projected" in text
    pictures = sorted(tmp_path.glob("*.svg"))
    assert len(pictures) == 8
    for picture in pictures:
        assert ElementTree.parse(picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        assert "var(--" not in picture.read_text("utf-8")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "breakeven.csv").read_text("utf-8"))))
    assert len(rows) == len(found.here) + len(found.points)
    first = found.here[0].band("dollars")
    assert [float(rows[0][f"usd_{name}"]) for name in ("p5", "p50", "p95")] == list(first)
    assert rows[0]["repetitions"] == "3"
    assert {row["label"] for row in rows} == {"projected"}
    assert "nan" not in (tmp_path / "breakeven.csv").read_text("utf-8")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return the path of the YAML file of a small SPIRT experiment."""
    path = tmp_path / "some.yaml"
    plain = {
        "name": "some",
        "architecture": "spirt",
        "workers": 4,
        "training": {"model": "small_cnn", "epochs": 2, "batch_size": 60},
    }
    path.write_text(yaml.safe_dump(plain), "utf-8")
    return path


@pytest.mark.slow
def test_breakeven_ends_with_the_verdict(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check what `crossover breakeven --play` prints and which files it writes."""
    for axis, values in (("PARAMETERS", ()), ("BATCHES", ()), ("WORKERS", ()), ("EPOCHS", (1, 2))):
        monkeypatch.setattr(swept, axis, values)
    assert status("breakeven", str(config), "--out", str(tmp_path / "out"), "--repetitions", "20", "--play") == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1].startswith("[projected] with your settings: ")
    assert "calibration: AWS: S3, networks" in shown
    assert f"crossover breakeven {config} " in (tmp_path / "out" / "breakeven.html").read_text("utf-8")
    assert (tmp_path / "out" / "play.html").is_file() and "play.html" in shown


@pytest.mark.slow
def test_project_shows_time_cost_and_traffic_as_projected(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`crossover project` prints time, cost lines and traffic labelled "projected", and writes them to the file of `--out`."""
    out = tmp_path / "projection.json"
    assert (
        status(
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
    assert "[projected] some: small_cnn with 2,000,000 parameters, 100 workers, 2 epochs" in shown
    assert "Lambda duration" in shown
    assert "tensor_store" in shown
    written = json.loads(out.read_text("utf-8"))
    seconds, count = written["repetitions"]["seconds"], written["repetitions"]["count"]
    assert written["label"] == seconds["label"] == "projected"
    assert seconds["p5"] < seconds["p50"] < seconds["p95"] and count == len(written["repetitions"]["outcomes"]) == 20
    band = display.band(display.seconds, seconds["p5"], seconds["p50"], seconds["p95"])
    assert shown.splitlines()[-2].startswith(f"[projected] {band}; $".replace(display.GAP, " "))
    assert "beyond the measured range: 600 functions at once: 37.5 times the most that was measured (16)" in shown
    assert "20 repetitions of seed 1" in shown and "not in the band: prices, assumed figures" in shown


def test_project_refuses_two_papers_at_once(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that `crossover project` refuses two papers' calibrations, and a run's folder that does not exist."""
    both = ("--calibration", "comparison-2025", "--calibration", "p2p-2023")
    assert status("project", str(config), *both) == 2
    assert "give one of them" in capsys.readouterr().err
    assert status("project", str(config), "--calibration", "results/nowhere") == 2
    assert "results/nowhere" in capsys.readouterr().err
