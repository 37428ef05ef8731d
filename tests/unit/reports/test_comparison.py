"""Comparisons: what is refused, what is marked, who wins."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from crossover.errors import ConfigError, DataError
from crossover.experiment import Metric
from crossover.reports import comparison, comparison_page, folder, race, run_page, tables
from crossover.reports.display import GAP
from crossover.reports.folder import RunFolder
from crossover.reports.on_aws import OnAws
from tests.unit.reports.example_run import Example, spirt

Save = Callable[..., RunFolder]
ACCURACY = Metric()


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def saved(name: str, example: Example, **changes: Any) -> RunFolder:
        records = changes.get("records", example.records)
        return folder.write(tmp_path / name, result=example.result(**changes), records=records)

    return saved


SPIRT = spirt(epochs=6)
FAST = spirt(epochs=6, speed=3.0, seed=1, architecture="all_reduce", name="all-reduce")


def test_what_won_and_by_how_much(save: Save) -> None:
    found = comparison.of([save("spirt", SPIRT), save("fast", FAST)])
    slow, fast = found.entries
    assert found.goal == min(slow.best_metric or 0, fast.best_metric or 0)
    assert slow.goal_s and fast.goal_s and slow.goal_s > fast.goal_s
    assert (
        f"fast is soonest with {fast.goal_s:.1f}{GAP}s, {slow.goal_s / fast.goal_s:.2f}x sooner than spirt"
        in found.verdict
    )
    assert found.verdict.endswith("Dollars are projected from local seconds.")
    assert found.marks == ()


def test_what_they_would_take_on_aws_stands_beside_and_is_judged_by_paired_draws(save: Save) -> None:
    sessions = [1.0 + n / 20 for n in range(20)]

    def simulated(results: object) -> list[OnAws | None]:
        close = tuple((0.9 if n < 2 else 1.5) * each for n, each in enumerate(sessions))
        slow = OnAws(seconds=tuple(1.1 * each for each in sessions), usd=close, words="of a test")
        return [slow, OnAws(seconds=tuple(sessions), usd=tuple(sessions), words="of a test", problems=("too [large]",))]

    found = comparison.of([save("spirt", SPIRT), save("fast", FAST)], simulated=simulated)
    _, said = found.verdict.split(" On AWS, whole runs, projected: ")
    assert "are too close to call as cheapest: fast is in 18 of 20 paired draws; fast is soonest with" in said
    assert "cheaper" not in found.verdict  # one run's local seconds do not say it either
    text = io.StringIO()
    Console(file=text, width=200).print(tables.comparison(found))
    assert (
        f"[projected] fast on AWS, by simulation: 1.48{GAP}s (1.02{GAP}s to 1.92{GAP}s); $1.48 ($1.02 to $1.92)"
        in text.getvalue()
    )
    (sheet,) = [each for each in comparison_page.page(found).sheets if each.title == "On AWS, by simulation"]
    assert sheet.label == "projected" and sheet.rows[1][2:] == ["$1.48 ($1.02 to $1.92)", "too [large]"]
    rows = list(csv.DictReader(io.StringIO(comparison.to_csv(found))))
    assert [float(rows[1][f"on_aws_usd_{name}"]) for name in ("p5", "p50", "p95")] == pytest.approx(
        [1.025, 1.475, 1.925]
    )


def test_of_what_nobody_can_simulate_nothing_is_said(save: Save) -> None:
    found = comparison.of([save("spirt", SPIRT), save("fast", FAST)], simulated=lambda results: [None, None])
    assert found.on_aws == {} and "On AWS" not in found.verdict
    assert not [each for each in comparison_page.page(found).sheets if each.title == "On AWS, by simulation"]


def test_a_small_margin_is_no_victory(save: Save) -> None:
    first, second = save("a", SPIRT), save("b", SPIRT)
    assert "are about level as soonest" in comparison.of([first, second]).verdict
    for factor, level in ((1.04, True), (1.06, False)):
        slower = [epoch | {"elapsed_s": epoch["elapsed_s"] * factor} for epoch in second.result["epochs"]]
        verdict = comparison.of([first, changed(second, epochs=slower)]).verdict
        assert ("are about level as soonest" in verdict) == level


def test_goals_are_the_common_target_or_what_all_reached(save: Save) -> None:
    def with_target(run: RunFolder, target: float | None) -> RunFolder:
        experiment = run.result["experiment"]
        training = experiment["training"] | {"target": target}
        result = {**run.result, "experiment": {**experiment, "training": training}}
        return RunFolder(path=run.path, result=result, records=run.records)

    pair = [save("a", SPIRT), save("b", FAST)]
    assert comparison.of([with_target(run, 0.6) for run in pair]).goal == 0.6
    reached = comparison.of(pair).goal
    assert comparison.of([with_target(run, 0.999) for run in pair]).goal == reached
    assert comparison.of([with_target(pair[0], 0.6), with_target(pair[1], 0.7)]).goal == reached


def changed(run: RunFolder, **changes: Any) -> RunFolder:
    return RunFolder(path=run.path, result={**run.result, **changes}, records=run.records)


def test_different_data_or_models_are_refused_or_stand_without_verdict(save: Save) -> None:
    first, second = save("a", SPIRT), save("b", FAST)
    experiment = second.result["experiment"]
    other = changed(second, experiment=experiment | {"data": experiment["data"] | {"dataset": "cifar10"}})
    with pytest.raises(ConfigError, match=r"data\.dataset differs: digits in a, cifar10 in b\. With --mixed"):
        comparison.of([first, other])
    found = comparison.of([first, other], mixed=True)
    assert found.verdict == "no verdict: different data or models"
    assert found.marks[0].startswith("data.dataset differs")
    model = changed(second, experiment=experiment | {"training": experiment["training"] | {"model": "mobilenet"}})
    with pytest.raises(ConfigError, match=r"training\.model differs"):
        comparison.of([first, model])


def test_everything_else_that_differs_is_marked(save: Save) -> None:
    first, second = save("a", SPIRT), save("b", FAST)
    experiment = second.result["experiment"]
    other = changed(
        second,
        experiment=experiment | {"seed": 2, "training": experiment["training"] | {"batch_size": 30}},
        versions={**second.result["versions"], "torch": "2.10.0"},
        cost=second.result["cost"] | {"prices_as_of": "2026-12"},
    )
    assert comparison.of([first, other]).marks == (
        "seed differs: 1 in a, 2 in b",
        "training.batch_size differs: 60 in a, 30 in b",
        "price dates differ: 2026-11 (a), 2026-12 (b); dollars are not compared",
        "version of torch differs: 2.13.0 (a), 2.10.0 (b)",
    )


def test_dollars_of_different_prices_do_not_race(save: Save) -> None:
    first, second = save("a", SPIRT), save("b", FAST)
    for changes, mark in (
        ({"prices_as_of": "2026-12"}, "price dates differ: 2026-11 (a), 2026-12 (b); dollars are not compared"),
        ({"region": "eu-west-1"}, "prices' regions differ: us-east-1 (a), eu-west-1 (b); dollars are not compared"),
    ):
        found = comparison.of([first, changed(second, cost=second.result["cost"] | changes)])
        assert found.marks == (mark,)
        assert "b is soonest with" in found.verdict and "cheapest" not in found.verdict
        assert found.verdict.endswith("Dollars are not compared: their prices differ.")


def test_data_of_one_name_that_is_not_the_same_is_refused(save: Save) -> None:
    first, second = save("a", SPIRT), save("b", FAST)
    for fact, there in (("train_samples", 1_437), ("validation_samples", 360)):
        other = changed(second, data=second.result["data"] | {fact: 100})
        with pytest.raises(ConfigError, match=rf"data\.{fact} differs: {there} in a, 100 in b"):
            comparison.of([first, other])
        assert comparison.of([first, other], mixed=True).verdict == "no verdict: different data or models"


def test_how_data_was_prepared_and_who_attacked_is_marked(save: Save) -> None:
    first, second = save("a", SPIRT), save("b", FAST)
    experiment = second.result["experiment"]
    other = changed(
        second,
        experiment=experiment
        | {
            "recipe": "fast",
            "data": experiment["data"] | {"augment": "crop_flip", "directory": "/elsewhere"},
            "aggregation": experiment["aggregation"] | {"rule": "median"},
            "faults": experiment["faults"] | {"attack": "sign_flip", "workers": [0]},
        },
    )
    assert comparison.of([first, other]).marks == (
        "recipe differs: none in a, fast in b",
        "data.augment differs: none in a, crop_flip in b",
        "aggregation.rule differs: mean in a, median in b",
        "faults.attack differs: none in a, sign_flip in b",
        "faults.workers differs: [] in a, [0] in b",
    )


def test_records_that_were_lost_afterwards_are_noticed(save: Save) -> None:
    first, second = save("a", SPIRT), save("b", FAST)
    metrics = second.path / folder.METRICS
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:-1]))
    found = comparison.read([first.path, second.path])
    assert found.marks == (
        f"b is incomplete: metrics.jsonl has {len(lines) - 1} records, result.json was made from {len(lines)}",
    )
    assert found.entries[1].display_name == "b (incomplete)" and found.verdict.endswith("Left out: b.")
    metrics.write_text("".join(lines[:-1]) + lines[-1].replace('"run": "example"', '"run": "another"'))
    assert comparison.read([first.path, second.path]).marks == ("b is incomplete: metrics.jsonl has records of 2 runs",)


def test_a_run_that_failed_half_way_has_no_say_in_the_goal(save: Save) -> None:
    half = save("half", FAST, epochs=FAST.epochs[:2], failure="interrupted", final=None)
    runs = [save("a", SPIRT), save("b", FAST), half]
    found = comparison.of(runs)
    assert found.goal == comparison.of(runs[:2]).goal
    assert found.marks[0] == "half failed: interrupted" and found.verdict.endswith("Left out: half.")


def test_a_run_is_not_compared_with_itself(save: Save, tmp_path: Path) -> None:
    run = save("a", SPIRT)
    (tmp_path / "same").symlink_to(run.path)
    with pytest.raises(ConfigError, match=r"compare: 2 folders are 1 runs; give each once"):
        comparison.read([run.path, tmp_path / "same"])


def test_what_another_version_wrote_is_refused_by_name(save: Save) -> None:
    run = save("a", SPIRT)
    old = {name: value for name, value in run.result.items() if name not in ("invocations", "steps")}
    folder.write(run.path, result=old, records=run.records)
    with pytest.raises(
        DataError,
        match=r"result\.json: (invocations|steps) is not there: it is damaged, or another version wrote it; run it again",
    ):
        comparison.read([run.path])
    epochs = [{name: value for name, value in epoch.items() if name != "val_metric"} for epoch in run.result["epochs"]]
    folder.write(run.path, result=run.result | {"epochs": epochs}, records=run.records)
    with pytest.raises(DataError, match=r"epochs\[0\]\.val_metric is not there"):
        comparison.read([run.path])


def test_local_seconds_do_not_race_amazons(save: Save) -> None:
    found = comparison.of([save("a", SPIRT), save("b", FAST, where="aws", label="measured-aws")])
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
    found = comparison.of(runs)
    assert found.marks[:3] == (
        "failed failed: out of memory",
        "lossy is incomplete: update_model: 24 of 24 records missing",
        "uncounted: completeness not checked: nobody counted the executed steps",
    )
    assert found.verdict.endswith("Left out: failed, lossy.")
    assert "uncounted is soonest" in found.verdict
    assert [entry.display_name for entry in found.entries][1:3] == ["failed (failed)", "lossy (incomplete)"]
    alone = comparison.of(runs[:3])
    assert alone.verdict == "no verdict: fewer than two finished, complete runs to compare. Left out: failed, lossy."


def test_a_run_that_never_got_anywhere(save: Save) -> None:
    nothing = save("nothing", FAST, records=[], epochs=[], final=None, failure="the broker is gone")
    found = comparison.of([save("a", SPIRT), nothing])
    assert found.entries[1].goal_s is None and found.entries[1].best_metric is None
    assert comparison.of([nothing]).goal is None


def test_folders_of_the_same_name_are_told_apart(save: Save) -> None:
    found = comparison.of([save("x/spirt", SPIRT), save("y/spirt", SPIRT)])
    assert [entry.name for entry in found.entries] == ["x/spirt", "y/spirt"]


def test_reading_folders(save: Save, tmp_path: Path) -> None:
    save("a", SPIRT)
    assert [entry.name for entry in comparison.read([tmp_path / "a"]).entries] == ["a"]
    with pytest.raises(DataError, match=r"result\.json: is not there"):
        comparison.read([tmp_path / "b"])
    with pytest.raises(ConfigError, match="no run was given"):
        comparison.read([])


def test_the_csv_has_raw_figures(save: Save) -> None:
    found = comparison.of([save("a", SPIRT), save("b, really", FAST)])
    rows = list(csv.DictReader(comparison.to_csv(found).splitlines()))
    assert [row["name"] for row in rows] == ["a", "b, really"]
    assert float(rows[0]["full_usd"]) == found.entries[0].full_usd
    assert float(rows[1]["goal_s"]) == found.entries[1].goal_s


def test_where_one_overtakes_another() -> None:
    curves = {"early": [(1.0, 0.5), (3.0, 0.7)], "late": [(2.0, 0.3), (4.0, 0.9)]}
    assert race.lead_changes(curves, ACCURACY) == [(1.0, "early"), (4.0, "late")]
    # Between its evaluations a run rises straight: at 2.0 `steady` stands at 0.7, not at 0.5.
    steady = [(1.0, 0.5), (3.0, 0.9)]
    assert race.lead_changes({"steady": steady, "b": [(2.0, 0.65)]}, ACCURACY) == [(1.0, "steady")]
    assert race.lead_changes({"steady": steady, "b": [(2.0, 0.75)]}, ACCURACY) == [
        (1.0, "steady"),
        (2.0, "b"),
        (3.0, "steady"),
    ]
    assert race.lead_changes({"a": [(1.0, 0.5)], "b": [(2.0, 0.505)]}, ACCURACY) == [(1.0, "a")]
    assert race.lead_changes({"a": [(1.0, 0.9), (2.0, 0.1)], "b": [(2.0, 0.8)]}, ACCURACY) == [(1.0, "a")]
    assert race.lead_changes({"a": []}, ACCURACY) == []


def test_settings_of_their_architectures_own_are_marked(save: Save) -> None:
    experiment = save("a", SPIRT).result["experiment"]
    runs = [
        changed(save(name, SPIRT), experiment=experiment | {"mine": {"outer": outer}})
        for name, outer in (("a", 0.7), ("b", 0.9))
    ]
    assert "mine.outer differs: 0.7 in a, 0.9 in b" in comparison.of(runs).marks


def test_a_metric_of_which_lower_is_better_is_read_the_other_way_round(save: Save) -> None:
    """The same runs, judged by their error: the same places win at the same moments, in the metric's own words."""

    def by_error(run: RunFolder, *, higher_is_better: bool = False) -> RunFolder:
        experiment = run.result["experiment"]
        metric = {"name": "houses:mean_error", "higher_is_better": higher_is_better}
        epochs = [epoch | {"val_metric": 20 * (1 - epoch["val_metric"])} for epoch in run.result["epochs"]]
        final = run.result["final"] | {"val_metric": epochs[-1]["val_metric"]}
        training = experiment["training"] | {"metric": metric}
        return changed(run, experiment=experiment | {"training": training}, epochs=epochs, final=final)

    runs = [save("spirt", SPIRT), save("fast", FAST)]
    plain, found = comparison.of(runs), comparison.of([by_error(run) for run in runs])
    assert [e.goal_s for e in found.entries] == [e.goal_s for e in plain.entries]
    assert [e.goal_full_usd for e in found.entries] == [e.goal_full_usd for e in plain.entries]
    assert plain.goal is not None and found.goal == pytest.approx(20 * (1 - plain.goal))
    assert "(the mean error that all runs reached)" in found.verdict and "fast is soonest" in found.verdict
    errors = [epoch["val_metric"] for epoch in found.runs[0].result["epochs"]]
    assert found.entries[0].best_metric == min(errors) < max(errors)

    def curves(of: comparison.Comparison) -> dict[str, list[tuple[float, float]]]:
        return {run.name: [(e["elapsed_s"], e["val_metric"]) for e in run.result["epochs"]] for run in of.runs}

    assert race.lead_changes(curves(found), found.metric)[0][1] == "fast"
    assert race.lead_changes({"a": [(1.0, 5.0)], "b": [(2.0, 9.0), (3.0, 1.0)]}, found.metric)[-1] == (3.0, "b")
    text = rendered(tables.comparison(found)) + rendered(tables.summary(found.runs[0].result))
    page = str(comparison_page.page(found)) + str(run_page.page(found.runs[0]))
    for told in (text, page):
        assert "mean error" in told and "ccuracy" not in told.split("What the papers printed")[0]
    with pytest.raises(ConfigError, match=r"training\.metric\.name differs"):
        comparison.of([runs[0], by_error(runs[1])])
    with pytest.raises(ConfigError, match=r"training\.metric\.higher_is_better differs"):
        comparison.of([by_error(runs[0]), by_error(runs[1], higher_is_better=True)])


def test_a_direction_that_is_said_is_the_one_that_the_metrics_name_implies(save: Save) -> None:
    silent, said = (
        judged_upwards(save(name, run), said) for name, run, said in (("a", SPIRT, None), ("b", FAST, True))
    )
    assert not any("metric" in mark for mark in comparison.of([silent, said]).marks)


def judged_upwards(run: RunFolder, said: bool | None) -> RunFolder:
    """The run, judged by its accuracy, with the direction `said` in its settings or (None) left to the metric's name."""
    experiment = run.result["experiment"]
    metric = {"name": "accuracy", "higher_is_better": said}
    return changed(run, experiment=experiment | {"training": experiment["training"] | {"metric": metric}})


def rendered(table: Any) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
