"""Comparisons: what is refused, what is marked, who wins."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crossover.errors import ConfigError, DataError
from crossover.reports import compare, folder, race
from crossover.reports.display import GAP
from crossover.reports.folder import RunFolder
from tests.unit.reports.example_run import Example, spirt

Save = Callable[..., RunFolder]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def saved(name: str, example: Example, **changes: Any) -> RunFolder:
        records = changes.get("records", example.records)
        return folder.write(tmp_path / name, result=example.result(**changes), records=records)

    return saved


SPIRT = spirt(epochs=6)
FAST = spirt(epochs=6, speed=3.0, seed=1, architecture="all_reduce", name="all-reduce")


def test_what_won_and_by_how_much(save: Save) -> None:
    found = compare.of([save("spirt", SPIRT), save("fast", FAST)])
    slow, fast = found.entries
    assert found.goal == min(slow.best_accuracy or 0, fast.best_accuracy or 0)
    assert slow.goal_s and fast.goal_s and slow.goal_s > fast.goal_s
    assert (
        f"fast is soonest with {fast.goal_s:.1f}{GAP}s, {slow.goal_s / fast.goal_s:.2f}x sooner than spirt"
        in found.verdict
    )
    assert found.verdict.endswith("Dollars are projected from local seconds.")
    assert found.marks == ()


def test_a_small_margin_is_no_victory(save: Save) -> None:
    first, second = save("a", SPIRT), save("b", SPIRT)
    assert "are about level as soonest" in compare.of([first, second]).verdict
    for factor, level in ((1.04, True), (1.06, False)):
        slower = [epoch | {"elapsed_s": epoch["elapsed_s"] * factor} for epoch in second.result["epochs"]]
        verdict = compare.of([first, changed(second, epochs=slower)]).verdict
        assert ("are about level as soonest" in verdict) == level


def test_goals_are_the_common_target_or_what_all_reached(save: Save) -> None:
    def with_target(run: RunFolder, target: float | None) -> RunFolder:
        experiment = run.result["experiment"]
        training = experiment["training"] | {"target_accuracy": target}
        result = {**run.result, "experiment": {**experiment, "training": training}}
        return RunFolder(path=run.path, result=result, records=run.records)

    pair = [save("a", SPIRT), save("b", FAST)]
    assert compare.of([with_target(run, 0.6) for run in pair]).goal == 0.6
    reached = compare.of(pair).goal
    assert compare.of([with_target(run, 0.999) for run in pair]).goal == reached
    assert compare.of([with_target(pair[0], 0.6), with_target(pair[1], 0.7)]).goal == reached


def changed(run: RunFolder, **changes: Any) -> RunFolder:
    return RunFolder(path=run.path, result={**run.result, **changes}, records=run.records)


def test_different_data_or_models_are_refused_or_stand_without_verdict(save: Save) -> None:
    first, second = save("a", SPIRT), save("b", FAST)
    experiment = second.result["experiment"]
    other = changed(second, experiment=experiment | {"data": experiment["data"] | {"dataset": "cifar10"}})
    with pytest.raises(ConfigError, match=r"data\.dataset differs: digits in a, cifar10 in b\. With --mixed"):
        compare.of([first, other])
    found = compare.of([first, other], mixed=True)
    assert found.verdict == "no verdict: different data or models"
    assert found.marks[0].startswith("data.dataset differs")
    model = changed(second, experiment=experiment | {"training": experiment["training"] | {"model": "mobilenet"}})
    with pytest.raises(ConfigError, match=r"training\.model differs"):
        compare.of([first, model])


def test_everything_else_that_differs_is_marked(save: Save) -> None:
    first, second = save("a", SPIRT), save("b", FAST)
    experiment = second.result["experiment"]
    other = changed(
        second,
        experiment=experiment | {"seed": 2, "training": experiment["training"] | {"batch_size": 30}},
        versions={**second.result["versions"], "torch": "2.10.0"},
        cost=second.result["cost"] | {"prices_as_of": "2026-12"},
    )
    assert compare.of([first, other]).marks == (
        "seed differs: 1 in a, 2 in b",
        "training.batch_size differs: 60 in a, 30 in b",
        "price dates differ: 2026-11 (a), 2026-12 (b)",
        "version of torch differs: 2.13.0 (a), 2.10.0 (b)",
    )


def test_local_seconds_do_not_race_amazons(save: Save) -> None:
    found = compare.of([save("a", SPIRT), save("b", FAST, where="aws", label="measured-aws")])
    assert found.verdict.startswith("no verdict: seconds and dollars of different labels")
    assert "local seconds are not AWS seconds" in found.marks[0]


def test_failed_and_incomplete_runs_are_marked_and_do_not_win(save: Save) -> None:
    lost = [r for r in FAST.records if r["step"] != "update_model"]
    runs = [
        save("a", SPIRT),
        save("failed", FAST, failure="out of memory"),
        save("lossy", FAST, records=lost),
        save("uncounted", FAST, expected=None),
    ]
    found = compare.of(runs)
    assert found.marks[:3] == (
        "failed failed: out of memory",
        "lossy is incomplete: update_model: 24 of 24 records missing",
        "uncounted: completeness not checked: nobody counted the executed steps",
    )
    assert found.verdict.endswith("Left out: failed, lossy.")
    assert "uncounted is soonest" in found.verdict
    assert [entry.display_name for entry in found.entries][1:3] == ["failed (failed)", "lossy (incomplete)"]
    alone = compare.of(runs[:3])
    assert alone.verdict == "no verdict: fewer than two finished, complete runs to compare. Left out: failed, lossy."


def test_a_run_that_never_got_anywhere(save: Save) -> None:
    nothing = save("nothing", FAST, records=[], epochs=[], final=None, failure="the broker is gone")
    found = compare.of([save("a", SPIRT), nothing])
    assert found.entries[1].goal_s is None and found.entries[1].best_accuracy is None
    assert compare.of([nothing]).goal is None


def test_folders_of_the_same_name_are_told_apart(save: Save) -> None:
    found = compare.of([save("x/spirt", SPIRT), save("y/spirt", SPIRT)])
    assert [entry.name for entry in found.entries] == ["x/spirt", "y/spirt"]


def test_reading_folders(save: Save, tmp_path: Path) -> None:
    save("a", SPIRT)
    assert [entry.name for entry in compare.read([tmp_path / "a"]).entries] == ["a"]
    with pytest.raises(DataError, match=r"result\.json: is not there"):
        compare.read([tmp_path / "b"])
    with pytest.raises(ConfigError, match="no run was given"):
        compare.read([])


def test_the_csv_has_raw_figures(save: Save) -> None:
    found = compare.of([save("a", SPIRT), save("b, really", FAST)])
    rows = list(csv.DictReader(compare.to_csv(found).splitlines()))
    assert [row["name"] for row in rows] == ["a", "b, really"]
    assert float(rows[0]["full_usd"]) == found.entries[0].full_usd
    assert float(rows[1]["goal_s"]) == found.entries[1].goal_s


def test_where_one_overtakes_another() -> None:
    curves = {"early": [(1.0, 0.5), (3.0, 0.7)], "late": [(2.0, 0.3), (4.0, 0.9)]}
    assert race.lead_changes(curves) == [(1.0, "early"), (4.0, "late")]
    # Between its evaluations a run rises straight: at 2.0 `steady` stands at 0.7, not at 0.5.
    steady = [(1.0, 0.5), (3.0, 0.9)]
    assert race.lead_changes({"steady": steady, "b": [(2.0, 0.65)]}) == [(1.0, "steady")]
    assert race.lead_changes({"steady": steady, "b": [(2.0, 0.75)]}) == [
        (1.0, "steady"),
        (2.0, "b"),
        (3.0, "steady"),
    ]
    assert race.lead_changes({"a": [(1.0, 0.5)], "b": [(2.0, 0.505)]}) == [(1.0, "a")]
    assert race.lead_changes({"a": [(1.0, 0.9), (2.0, 0.1)], "b": [(2.0, 0.8)]}) == [(1.0, "a")]
    assert race.lead_changes({"a": []}) == []
