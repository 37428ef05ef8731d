"""Terminal tables: labels always there, warnings too, the verdict last."""

import io
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from crossover.reports import comparison, display, folder, report_pages, tables
from crossover.reports.folder import RunFolder
from crossover.reports.on_aws import OnAws
from tests.unit.reports.example_run import spirt


def printed(what: RenderableType, *, width: int = 160) -> str:
    """Return what a console prints of the object, without colours and with plain spaces."""
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(what)
    return file.getvalue().replace(display.GAP, " ")


EXAMPLE = spirt(epochs=3)


def test_a_runs_summary() -> None:
    """The table of a run shows its settings, labels, both costs, counts of failed invocations and all stages, without warnings."""
    result = EXAMPLE.result()
    text = printed(tables.summary(result))
    assert (
        "spirt  small_cnn on digits, 4 workers, 3 epochs, local" in text
        and "On this machine  [measured-local]\n" in text
    )
    assert text.count("[projected]") == 2, "both costs of a local run are projections"
    assert "projected from local seconds, prices of us-east-1, 2026-11" in text
    assert display.usd(result["cost"]["full_usd"]) in text
    assert "1 failed, 1 stale, 1 retried" in text
    assert "in total for a core of this machine" in text
    assert "!" not in text
    for row in result["stages"]:
        assert f"\n{row['stage']} " in text


@pytest.mark.slow
def test_what_it_would_take_on_aws_has_its_percentiles() -> None:
    """A simulation's seconds and dollars on AWS are printed with percentiles 5 and 95, or its problems are if it would not run there."""
    known = OnAws(seconds=(60.0, 50.0, 70.0), usd=(2.0, 1.5, 3.0), words="of a test")
    shown = " ".join(printed(tables.summary(EXAMPLE.result(), known)).split())
    assert (
        "On AWS, by simulation: 60.0 s (50.0 s to 70.0 s); $2.00 ($1.50 to $3.00) [projected] On this machine [measured-local]"
        in shown
    )
    assert "On AWS" not in printed(tables.summary(EXAMPLE.result()))
    never = OnAws(seconds=(inf,), usd=(inf,), words="of a test", problems=("too large",))
    unable = printed(tables.summary(EXAMPLE.result(), never))
    assert "On AWS, by simulation: would not run" in unable and "\n  too large\n" in unable
    far = replace(known, outside=("9 functions at once",))
    assert "beyond the measured range: 9 functions at once" in printed(tables.summary(EXAMPLE.result(), far))
    run = RunFolder(path=Path("spirt"), result=EXAMPLE.result(), records=[])
    told, refused = (report_pages.run_page(run, each) for each in (known, never))
    on_aws, here = told.groups
    assert on_aws[0] == "On AWS"
    assert [(tile.value, tile.label) for tile in on_aws[1]] == [("60.0\u00a0s", "projected"), ("$2.00", "projected")]
    assert here[0] == "On this machine" and [tile.name for tile in here[1]][1:] == [
        "time",
        "dollars at AWS's prices",
    ]
    assert [where for where, _ in refused.groups] == ["On this machine"]
    assert "60.0\u00a0s (50.0\u00a0s to 70.0\u00a0s)" in told.title and "$2.00 ($1.50 to $3.00)" in told.title
    assert "AWS would not run this: too large" in refused.warnings and "on AWS" not in refused.title
    assert never.as_json()["seconds"] is None and known.as_json()["usd"]["p50"] == 2.0


def test_warnings_are_printed() -> None:
    """A run's failure, missing records, divergence and damaged files are printed as warnings, each once."""
    records = [r for r in EXAMPLE.records if r["step"] != "collect"]
    epochs = [EXAMPLE.epochs[0] | {"val_loss": float("nan")}]
    result = EXAMPLE.result(records=records, epochs=epochs, failure="worker 3 is gone", expected=EXAMPLE.expected)
    text = printed(tables.summary(result))
    assert "! this run failed: worker 3 is gone" in text
    assert "! incomplete: collect: 1 of 1 records are missing" in text
    assert "! diverged" in text
    told = EXAMPLE.result(damaged=["runs/a/checkpoint/1: checksum differs; it was passed over"] * 2)
    assert printed(tables.summary(told)).count("! damaged: runs/a/checkpoint/1: checksum differs") == 1
    assert "! completeness not checked" in printed(tables.summary(EXAMPLE.result(expected=None)))


def test_who_was_dropped_is_named_with_the_rounds() -> None:
    """Each excluded worker is named with the round, or the number of rounds, of its exclusion."""
    dropped = [{"round": 2, "workers": [1, 3]}, {"round": 5, "workers": [3]}]
    lines = printed(tables.summary(EXAMPLE.result(dropped=dropped))).splitlines()
    told = [line.split(",")[0] for line in lines if "excluded" in line]
    assert [" ".join(line.split()) for line in told] == [
        "excluded worker 1 from round 2",
        "excluded worker 3 from 2 rounds",
    ]
    assert "2 to 5" in next(line for line in lines if "worker 3" in line)


def test_square_brackets_in_a_cause_are_text() -> None:
    """A failure's text with square brackets is printed as it is, not as markup."""
    result = EXAMPLE.result(failure="[red]KeyError[/nonsense]: 'x'")
    assert "! this run failed: [red]KeyError[/nonsense]: 'x'" in printed(tables.summary(result))


def test_a_run_without_epochs_prints() -> None:
    """The table of a run that failed before its first epoch is printed."""
    assert "accuracy" in printed(tables.summary(EXAMPLE.result(records=[], epochs=[], final=None, failure="x")))


def test_the_comparison_ends_with_the_verdict(tmp_path: Path) -> None:
    """A comparison's table names the labels, marks failed runs and ends with the verdict."""
    fast = spirt(epochs=3, speed=4.0, architecture="all_reduce", name="all-reduce")
    runs = [
        folder.write(tmp_path / "spirt", result=EXAMPLE.result(), records=[]),
        folder.write(tmp_path / "[b]", result=fast.result(failure="gone"), records=[]),
        folder.write(tmp_path / "fast", result=fast.result(), records=[]),
    ]
    found = comparison.compare_runs(runs)
    text = printed(tables.comparison(found), width=300)
    assert text.count("[measured-local]") == 1  # the same for all
    assert "[projected] dollars: this machine's seconds at AWS's prices" in text
    assert "! [b] failed: gone" in text and "[b] (failed)" in text
    assert " ".join(text.split()).endswith(found.verdict.replace(display.GAP, " "))
