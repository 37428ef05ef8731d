"""Comparisons: what is refused, what is marked, who wins."""

import csv
import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from crossover.errors import ConfigError, DataError
from crossover.reports import comparison, folder, report_pages, tables
from crossover.reports.display import GAP
from crossover.reports.folder import RunFolder
from crossover.reports.on_aws import OnAws
from tests.unit.reports.example_run import Example, spirt

Save = Callable[..., RunFolder]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Return a function that writes an example's run folder under a name; keywords replace fields of its result, `records` its records."""

    def saved(name: str, example: Example, **changes: Any) -> RunFolder:
        """Write the example's run to a folder of this name, and return it. `changes`: arguments of `folder.build` to replace."""
        records = changes.get("records", example.records)
        return folder.write(tmp_path / name, result=example.result(**changes), records=records)

    return saved


SPIRT = spirt(epochs=6)
FAST = spirt(epochs=6, speed=3.0, seed=1, architecture="all_reduce", name="all-reduce")


def by_seed(run: RunFolder, *, seeds: tuple[int, ...] = (1, 2, 3)) -> list[RunFolder]:
    """Return the run once for each seed, each 1 % of the run's time slower for each unit of its seed."""
    found = []
    for seed in seeds:
        slower = [each | {"elapsed_s": each["elapsed_s"] * (1 + seed / 100)} for each in run.result["epochs"]]
        made = changed(run, experiment=run.result["experiment"] | {"seed": seed}, epochs=slower)
        found.append(RunFolder(path=run.path.parent / f"{run.name}-{seed}", result=made.result, records=run.records))
    return found


def test_what_won_and_by_how_much(save: Save) -> None:
    """The verdict names the soonest setting at the target of `--at`, with ratio, its interval and the number of seeds."""
    found = comparison.compare_runs([*by_seed(save("spirt", SPIRT)), *by_seed(save("fast", FAST))], at=0.8)
    slow, fast = found.entries[0], found.entries[3]
    assert found.goal == 0.8 and slow.goal_s and fast.goal_s
    ratio = f"{slow.goal_s / fast.goal_s:.2f}x"
    won = f"At 80.0{GAP}% (--at): fast-1 and 2 more is soonest, {ratio} ({ratio} to {ratio}, 3 seeds) sooner than spirt-1 and 2 more"
    assert found.verdict.startswith(won)
    assert found.verdict.endswith("Dollars: this machine's seconds at AWS's prices.")
    assert found.marks == ()


def test_single_runs_never_win(save: Save) -> None:
    """There is no winner with fewer than three common seeds of two settings, whatever the margin."""
    pair = comparison.compare_runs([save("spirt", SPIRT), save("fast", FAST)], at=0.8)
    assert pair.verdict == (
        "no winner by measured time: at least two settings with 3 common seeds are needed (--set seed=...); "
        "seeds of spirt: 1, fast: 1."
    )
    same = comparison.compare_runs([save(name, SPIRT) for name in ("same1", "same2", "same3")], at=0.8)
    assert same.verdict.startswith("no winner by measured time") and same.verdict.endswith("same1 and 2 more: 1.")


def test_nobody_is_soonest_at_a_goal_that_was_chosen_afterwards(save: Save) -> None:
    """There is no winner by time if the runs have no common target and none is given; the page then has no columns about a target."""
    found = comparison.compare_runs([*by_seed(save("spirt", SPIRT)), *by_seed(save("fast", FAST))])
    assert found.goal is None and found.to_goal == ""
    assert found.verdict.startswith(
        "no winner by measured time: the runs have no common target and --at is not given (such as --at 0.85)"
    )
    page = report_pages.comparison_page(found)
    assert not [column for sheet in page.sheets for column in sheet.head if "goal" in column]
    assert page.plots[0].title == "Accuracy against time"


def test_the_page_shows_one_chart_and_six_runs_and_folds_the_rest(save: Save) -> None:
    """The page shows one chart at a time and the best six of nine runs; all runs, and a table of the settings that differ, are folded."""
    runs = []
    for n, run in enumerate(by_seed(save("spirt", SPIRT), seeds=tuple(range(1, 10)))):
        better = [each | {"val_metric": each["val_metric"] + n / 1000} for each in run.result["epochs"]]
        training = run.result["experiment"]["training"] | {"batch_size": 10 + n, "momentum": n / 10, "seed": n}
        experiment = run.result["experiment"] | {"training": training, "recipe": str(n)}
        runs.append(replace(changed(run, experiment=experiment, epochs=better), path=run.path))
    page = report_pages.comparison_page(comparison.compare_runs(runs))
    assert page.title.startswith("spirt-9 reached the best accuracy, ") and page.title.endswith(
        "goal was named (--at)."
    )
    assert [each.choice for each in page.plots] == [(title,) for title in page.choices["Chart"]]
    shown, whole = (each for each in page.sheets if each.title.startswith("Side by side"))
    assert [row[0] for row in shown.rows] == [f"spirt-{n}" for n in range(9, 3, -1)]
    assert len(whole.rows) == 9 and whole.folded and shown.where == "On this machine"
    (warning,) = page.warnings
    names = ["seed", "recipe", "training.batch_size", "training.momentum", "training.seed"]
    assert sorted(warning.split(": ")[1].split(", ")) == sorted(names)
    (table,) = (each for each in page.sheets if each.title == "Settings that differ")
    assert sorted(row[0] for row in table.rows) == sorted(names) and table.folded


def test_what_they_would_take_on_aws_stands_beside_and_is_judged_by_paired_draws(save: Save) -> None:
    """Simulated seconds and dollars on AWS are in the verdict, judged by pairs of draws, and in the table, the page and the CSV file."""
    sessions = [1.0 + n / 20 for n in range(20)]

    def simulated(results: object) -> list[OnAws | None]:
        """Return the seconds and dollars on AWS of two runs: one slower, and one with a problem."""
        close = tuple((0.9 if n < 2 else 1.5) * each for n, each in enumerate(sessions))
        slow = OnAws(seconds=tuple(1.1 * each for each in sessions), usd=close, words="of a test")
        return [slow, OnAws(seconds=tuple(sessions), usd=tuple(sessions), words="of a test", problems=("too [large]",))]

    found = comparison.compare_runs([save("spirt", SPIRT), save("fast", FAST)], simulated=simulated)
    _, said = found.verdict.split(" Projected for whole runs on AWS: ")
    assert "are too close to call as cheapest: fast is in 18 of 20 paired draws; fast is soonest with" in said
    assert "cheaper" not in found.verdict  # one run's local seconds do not say it either
    text = io.StringIO()
    Console(file=text, width=200).print(tables.comparison(found))
    assert (
        "[projected] fast on AWS, by simulation: 1.48 s (1.02 s to 1.92 s); $1.48 ($1.02 to $1.92)" in text.getvalue()
    )
    (sheet,) = [each for each in report_pages.comparison_page(found).sheets if each.title == "On AWS, by simulation"]
    assert sheet.label == "projected" and sheet.rows[1][3:] == ["$1.48 ($1.02 to $1.92)", "too [large]"]
    assert sheet.rows[1][:2] == ["fast", "all_reduce, 4 workers"]
    assert [sheet.has_figures(n) for n in range(5)] == [False, False, True, True, False]
    rows = list(csv.DictReader(io.StringIO(comparison.to_csv(found))))
    assert [float(rows[1][f"on_aws_usd_{name}"]) for name in ("p5", "p50", "p95")] == pytest.approx(
        [1.025, 1.475, 1.925]
    )


def test_of_what_nobody_can_simulate_nothing_is_said(save: Save) -> None:
    """The comparison of runs that cannot be simulated says nothing of AWS."""
    found = comparison.compare_runs([save("spirt", SPIRT), save("fast", FAST)], simulated=lambda results: [None, None])
    assert found.on_aws == {} and "On AWS" not in found.verdict
    assert not [each for each in report_pages.comparison_page(found).sheets if each.title == "On AWS, by simulation"]


def test_a_margin_that_repeats_do_not_show_is_no_victory(save: Save) -> None:
    """Settings of which one was faster in some seeds and slower in another are too close to call; a margin in all seeds wins."""
    first, second = save("a", SPIRT), save("b", changed_name(SPIRT))
    runs = by_seed(first)
    level = [*by_seed(second, seeds=(1, 2)), *by_seed(slowed(second, 0.9), seeds=(3,))]
    assert "are too close to call as soonest: 1.0" in comparison.compare_runs([*runs, *level], at=0.8).verdict
    slower = by_seed(slowed(second, 1.06))
    assert "a-1 and 2 more is soonest, 1.06x" in comparison.compare_runs([*runs, *slower], at=0.8).verdict


def changed_name(example: Example) -> Example:
    """Return the example with its experiment renamed."""
    return replace(example, experiment=replace(example.experiment, name="another"))


def slowed(run: RunFolder, factor: float) -> RunFolder:
    """Return the run with the elapsed seconds of each epoch multiplied by the factor."""
    return changed(run, epochs=[epoch | {"elapsed_s": epoch["elapsed_s"] * factor} for epoch in run.result["epochs"]])


def test_goals_are_named_by_hand_or_the_target_of_all(save: Save) -> None:
    """The target of a comparison is that of `--at`, else the one that all runs share, else None."""

    def with_target(run: RunFolder, target: float | None) -> RunFolder:
        """Return the run with this target in its settings."""
        experiment = run.result["experiment"]
        training = experiment["training"] | {"target": target}
        return changed(run, experiment=experiment | {"training": training})

    pair = [save("a", SPIRT), save("b", FAST)]
    assert comparison.compare_runs([with_target(run, 0.6) for run in pair]).goal == 0.6
    assert comparison.compare_runs([with_target(run, 0.6) for run in pair], at=0.7).goal == 0.7
    assert comparison.compare_runs(pair).goal is None
    assert comparison.compare_runs([with_target(pair[0], 0.6), with_target(pair[1], 0.7)]).goal is None


def changed(run: RunFolder, **changes: Any) -> RunFolder:
    """Return the run with fields of its result replaced."""
    return RunFolder(path=run.path, result={**run.result, **changes}, records=run.records)


def with_setting(section: str, **field: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that returns the changes of a result whose experiment has another field in this section."""
    return lambda result: {
        "experiment": result["experiment"] | {section: result["experiment"][section] | field},
    }


def with_fewer(fact: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that returns the changes of a result with 100 for this fact of its data."""
    return lambda result: {"data": result["data"] | {fact: 100}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_setting("data", dataset="cifar10"), "data.dataset differs: digits in a, cifar10 in b"),
        (with_setting("training", model="mobilenet"), "training.model differs"),
        (with_fewer("train_samples"), "data.train_samples differs: 1437 in a, 100 in b"),
        (with_fewer("validation_samples"), "data.validation_samples differs: 360 in a, 100 in b"),
    ],
)
def test_different_data_or_models_are_refused_or_stand_without_verdict(
    change: Callable[[dict[str, Any]], dict[str, Any]], words: str, save: Save
) -> None:
    """Runs with other data or models raise ConfigError; with `mixed` they are shown without a winner. `change`: gives changed parts of a
    result.
    """
    first, second = save("a", SPIRT), save("b", FAST)
    other = changed(second, **change(second.result))
    with pytest.raises(ConfigError, match=rf"{re.escape(words)}.*--mixed shows"):
        comparison.compare_runs([first, other])
    found = comparison.compare_runs([first, other], mixed=True)
    assert found.verdict == "no winner: data or models differ"
    assert found.marks[0].startswith(words)


def test_everything_else_that_differs_is_marked(save: Save) -> None:
    """Differing settings, price dates and versions are marked, each with both values and the runs' names."""
    first, second = save("a", SPIRT), save("b", FAST)
    experiment = second.result["experiment"]
    other = changed(
        second,
        experiment=experiment | {"seed": 2, "training": experiment["training"] | {"batch_size": 30}},
        versions={**second.result["versions"], "torch": "2.10.0"},
        cost=second.result["cost"] | {"prices_as_of": "2026-12"},
    )
    assert comparison.compare_runs([first, other]).marks == (
        "seed differs: 1 in a, 2 in b",
        "training.batch_size differs: 60 in a, 30 in b",
        "price dates differ: 2026-11 (a), 2026-12 (b); dollars are not compared",
        "version of torch differs: 2.13.0 (a), 2.10.0 (b)",
    )


def test_dollars_of_different_prices_do_not_race(save: Save) -> None:
    """Runs with prices of other dates or regions are compared by time, and their dollars are not."""
    first, second = save("a", SPIRT), save("b", FAST)
    for changes, mark in (
        ({"prices_as_of": "2026-12"}, "price dates differ: 2026-11 (a), 2026-12 (b); dollars are not compared"),
        ({"region": "eu-west-1"}, "prices' regions differ: us-east-1 (a), eu-west-1 (b); dollars are not compared"),
    ):
        other = changed(second, cost=second.result["cost"] | changes)
        assert comparison.compare_runs([first, other]).marks == (mark,)
        found = comparison.compare_runs([*by_seed(first), *by_seed(other)], at=0.8)
        assert "b-1 and 2 more is soonest" in found.verdict and "lowest" not in found.verdict
        assert found.verdict.endswith("Dollars are not compared, because their prices differ.")


def test_how_data_was_prepared_and_who_attacked_is_marked(save: Save) -> None:
    """Differing recipe, augmentation, aggregation and faults are marked; a differing folder of the data is not."""
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
    assert comparison.compare_runs([first, other]).marks == (
        "recipe differs: none in a, fast in b",
        "data.augment differs: none in a, crop_flip in b",
        "aggregation.rule differs: mean in a, median in b",
        "faults.attack differs: none in a, sign_flip in b",
        "faults.workers differs: [] in a, [0] in b",
    )


def test_records_that_were_lost_afterwards_are_noticed(save: Save) -> None:
    """A run whose metrics.jsonl lacks records of its result, or has those of another run, is marked incomplete, and the incomplete one
    cannot win.
    """
    first, second = save("a", SPIRT), save("b", FAST)
    metrics = second.path / folder.METRICS
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:-1]))
    found = comparison.compare_folders([first.path, second.path])
    assert found.marks == (
        f"b is incomplete: metrics.jsonl has {len(lines) - 1} records, but result.json was computed from {len(lines)}",
    )
    assert found.entries[1].display_name == "b (incomplete)"
    assert comparison.compare_folders([first.path, second.path], at=0.8).verdict.endswith("Left out: b.")
    metrics.write_text("".join(lines[:-1]) + lines[-1].replace('"run": "example"', '"run": "another"'))
    assert comparison.compare_folders([first.path, second.path]).marks == (
        "b is incomplete: metrics.jsonl contains records of 2 runs",
    )


def test_a_run_is_not_compared_with_itself(save: Save, tmp_path: Path) -> None:
    """`compare_folders` raises ConfigError if two folders are the same run."""
    run = save("a", SPIRT)
    (tmp_path / "same").symlink_to(run.path)
    with pytest.raises(ConfigError, match=r"compare: 2 folders contain only 1 different runs; give each run once"):
        comparison.compare_folders([run.path, tmp_path / "same"])


def test_what_another_version_wrote_is_refused_by_name(save: Save) -> None:
    """A result.json that lacks a field raises DataError with the field's name."""
    run = save("a", SPIRT)
    old = {name: value for name, value in run.result.items() if name not in ("invocations", "steps")}
    folder.write(run.path, result=old, records=run.records)
    with pytest.raises(
        DataError,
        match=r"result\.json: (invocations|steps) is not there: the file is damaged, or another version wrote it; run again",
    ):
        comparison.compare_folders([run.path])
    epochs = [{name: value for name, value in epoch.items() if name != "val_metric"} for epoch in run.result["epochs"]]
    folder.write(run.path, result=run.result | {"epochs": epochs}, records=run.records)
    with pytest.raises(DataError, match=r"epochs\[0\]\.val_metric is not there"):
        comparison.compare_folders([run.path])


def test_local_seconds_do_not_race_amazons(save: Save) -> None:
    """A local run and one on AWS are shown together without a winner."""
    found = comparison.compare_runs([save("a", SPIRT), save("b", FAST, where="aws", label="measured-aws")], at=0.8)
    assert found.verdict.startswith("no winner: seconds and dollars with different labels")
    assert "local seconds are not AWS seconds" in found.marks[0]


def test_failed_and_incomplete_runs_are_marked_and_do_not_win(save: Save) -> None:
    """A comparison marks failed, incomplete and unchecked runs, leaves the first two out of the verdict, and has no winner among fewer
    than two others.
    """
    lost = [r for r in FAST.records if r["step"] != "update_model"]
    runs = [
        save("a", SPIRT),
        save("failed", FAST, failure="out of memory"),
        save("lossy", FAST, records=lost),
        save("uncounted", FAST, expected=None),
    ]
    found = comparison.compare_runs(runs, at=0.8)
    assert found.marks[:3] == (
        "failed failed: out of memory",
        "lossy is incomplete: update_model: 24 of 24 records are missing",
        "uncounted: completeness not checked: the executed steps were not counted",
    )
    assert found.verdict.endswith("Left out: failed, lossy.")
    assert "seeds of a: 1, uncounted: 1." in found.verdict
    assert [entry.display_name for entry in found.entries][1:3] == ["failed (failed)", "lossy (incomplete)"]
    alone = comparison.compare_runs(runs[:3], at=0.8)
    assert alone.verdict == "no winner: fewer than two finished and complete runs. Left out: failed, lossy."


def test_a_run_that_never_got_anywhere(save: Save) -> None:
    """A run that failed before its first epoch is compared, without a best metric or a time to the target."""
    nothing = save("nothing", FAST, records=[], epochs=[], final=None, failure="the broker is gone")
    found = comparison.compare_runs([save("a", SPIRT), nothing])
    assert found.entries[1].goal_s is None and found.entries[1].best_metric is None
    assert comparison.compare_runs([nothing]).goal is None


def test_folders_of_the_same_name_are_told_apart(save: Save) -> None:
    """Runs in folders of the same name are named with their parent folders."""
    found = comparison.compare_runs([save("x/spirt", SPIRT), save("y/spirt", SPIRT)])
    assert [entry.name for entry in found.entries] == ["x/spirt", "y/spirt"]


def test_reading_folders(save: Save, tmp_path: Path) -> None:
    """Comparing a folder names its run after it; a folder without a run raises DataError, and no folder raises ConfigError."""
    save("a", SPIRT)
    assert [entry.name for entry in comparison.compare_folders([tmp_path / "a"]).entries] == ["a"]
    with pytest.raises(DataError, match=r"result\.json: no such file"):
        comparison.compare_folders([tmp_path / "b"])
    with pytest.raises(ConfigError, match="no run given"):
        comparison.compare_folders([])


def test_the_csv_has_raw_figures(save: Save) -> None:
    """The CSV file has one row per run, with unrounded numbers."""
    found = comparison.compare_runs([save("a", SPIRT), save("b, really", FAST)], at=0.8)
    rows = list(csv.DictReader(comparison.to_csv(found).splitlines()))
    assert [row["name"] for row in rows] == ["a", "b, really"]
    assert float(rows[0]["full_usd"]) == found.entries[0].full_usd
    assert float(rows[1]["goal_s"]) == found.entries[1].goal_s


def test_settings_of_their_architectures_own_are_marked(save: Save) -> None:
    """Differing settings in an architecture's own section are marked like others."""
    experiment = save("a", SPIRT).result["experiment"]
    runs = [
        changed(save(name, SPIRT), experiment=experiment | {"mine": {"outer": outer}})
        for name, outer in (("a", 0.7), ("b", 0.9))
    ]
    assert "mine.outer differs: 0.7 in a, 0.9 in b" in comparison.compare_runs(runs).marks


@pytest.mark.slow
def test_a_metric_of_which_lower_is_better_is_read_the_other_way_round(save: Save) -> None:
    """Runs judged by an error that mirrors their accuracy have the same times, costs and winner, and texts use the metric's own name."""

    def by_error(run: RunFolder, *, higher_is_better: bool = False) -> RunFolder:
        """Return the run with an error as its metric: 20 times what its accuracy lacks to 1."""
        experiment = run.result["experiment"]
        metric = {"name": "houses:mean_error", "higher_is_better": higher_is_better}
        epochs = [epoch | {"val_metric": 20 * (1 - epoch["val_metric"])} for epoch in run.result["epochs"]]
        final = run.result["final"] | {"val_metric": epochs[-1]["val_metric"]}
        training = experiment["training"] | {"metric": metric}
        return changed(run, experiment=experiment | {"training": training}, epochs=epochs, final=final)

    runs = [save("spirt", SPIRT), save("fast", FAST)]
    plain, found = (
        comparison.compare_runs(runs, at=0.8),
        comparison.compare_runs([by_error(run) for run in runs], at=4.0),
    )
    assert [e.goal_s for e in found.entries] == [e.goal_s for e in plain.entries]
    assert [e.goal_full_usd for e in found.entries] == [e.goal_full_usd for e in plain.entries]
    raced = [by_error(each) for run in runs for each in by_seed(run)]
    assert "fast-1 and 2 more is soonest" in comparison.compare_runs(raced, at=4.0).verdict
    errors = [epoch["val_metric"] for epoch in found.runs[0].result["epochs"]]
    assert found.entries[0].best_metric == min(errors) < max(errors)
    text = rendered(tables.comparison(found)) + rendered(tables.summary(found.runs[0].result))
    page = str(report_pages.comparison_page(found)) + str(report_pages.run_page(found.runs[0]))
    for told in (text, page):
        assert "mean error" in told and "ccuracy" not in told.split("Published results")[0]
    with pytest.raises(ConfigError, match=r"training\.metric\.name differs"):
        comparison.compare_runs([runs[0], by_error(runs[1])])
    with pytest.raises(ConfigError, match=r"training\.metric\.higher_is_better differs"):
        comparison.compare_runs([by_error(runs[0]), by_error(runs[1], higher_is_better=True)])


def test_a_direction_that_is_said_is_the_one_that_the_metrics_name_implies(save: Save) -> None:
    """Runs of accuracy of which only one states that higher is better do not differ in their metric."""
    silent, said = (
        judged_upwards(save(name, run), said) for name, run, said in (("a", SPIRT, None), ("b", FAST, True))
    )
    assert not any("metric" in mark for mark in comparison.compare_runs([silent, said]).marks)


def judged_upwards(run: RunFolder, said: bool | None) -> RunFolder:
    """Return the run judged by its accuracy. `said`: the direction in its settings; None leaves it to the metric's name."""
    experiment = run.result["experiment"]
    metric = {"name": "accuracy", "higher_is_better": said}
    return changed(run, experiment=experiment | {"training": experiment["training"] | {"metric": metric}})


def rendered(table: Any) -> str:
    """Return what a console of 200 columns prints of the table."""
    console = Console(width=200, file=io.StringIO())
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
