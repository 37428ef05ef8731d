"""Many experiments, one file, one budget: what is refused, what survives a kill, what the figures are worth."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from crossover.local.cloud import LocalCloud
from crossover.study import runner
from crossover.study.file import read
from crossover.study.trials import TrialFactory, make_grid_trials
from tests.architectures.test_killed_command import KILLED
from tests.cloud import made
from tests.cloud.listings import snapshot
from tests.commands import status
from tests.local.parts import eventually
from tests.local.test_killed_run import find_processes
from tests.moto_patches import AccountCloud
from tests.sampling import WHOLE

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {
    "base": {
        "name": "any",
        "architecture": "single",
        "workers": 1,
        "training": {"model": "small_cnn", "epochs": 2, "batch_size": 30},
        "data": {"dataset": "digits", "limit": 120, "validation": 0.05},
    },
    "grid": {"training.learning_rate": [0.05, 0.1]},
    "seeds": 2,
    "pairs": {"rate": [{"training.learning_rate": 0.05}, {"training.learning_rate": 0.1}]},
}


@pytest.fixture(scope="module")
def cloud(account_cloud: AccountCloud) -> AccountCloud:
    """Return the cloud on this machine that stands for an AWS account."""
    return account_cloud


def written(folder: Path, **changes: Any) -> Path:
    """Write the small study with these changes to `folder`, and return its path."""
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changes}))
    return path


def table(out: Path) -> list[dict[str, str]]:
    """Return the rows of study.csv in `out` without the columns that depend on a clock."""
    with (out / "study.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [
        {name: row[name] for name in ("trial", "seed", "outcome", "reason", "final_metric", "best_metric")}
        for row in rows
    ]


# --- what is refused --------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown field": (
        {"grid": {"training.learing_rate": [0.1, 0.2]}, "pairs": {}},
        ["training.learing_rate: is unknown", "did you mean learning_rate"],
    ),
    "empty list": ({"grid": {"training.epochs": []}, "pairs": {}}, ["grid.training.epochs: the list is empty"]),
    "one name twice": ({"grid": {"training.epochs": [1, 1]}, "pairs": {}}, ["1 is listed twice", "once"]),
    "names alike": (
        {"grid": {"training.schedule": ["none", "none "]}, "pairs": {}},
        ["training.schedule", "'none '"],
    ),
    "repeated seeds": ({"seeds": [1, 2, 2]}, ["seeds: 2 repeated"]),
    "no seeds": ({"seeds": 0}, ["seeds: 0; expected the number of"]),
    "seed in the grid": ({"grid": {"seed": [1, 2]}, "pairs": {}}, ["grid.seed: cannot vary here"]),
    "unknown metric": (
        {"metric": "final_metrics"},
        ["metric: 'final_metrics' is unknown", "did you mean final_metric"],
    ),
    "a pair that is not there": (
        {"pairs": {"rate": [{"training.learning_rate": 0.3}, {"training.learning_rate": 0.1}]}},
        ["pairs.rate: training.learning_rate: 0.3 is not in the grid"],
    ),
    "a pair of one": (
        {"pairs": {"rate": [{"training.learning_rate": 0.1}, {"training.learning_rate": 0.1}]}},
        ["pairs.rate", "two different settings"],
    ),
    "a name that no stack can have": ({"name": "My study"}, ["name: 'My study-10000'"]),
    "a word of nobody's": ({"grids": {}}, ["grids: unknown", "did you mean grid"]),
    "faults of several trials": (
        {"grid": {"training.learning_rate": [0.1, -1], "training.epochs": [0, 1, "x"]}, "pairs": {}},
        ["training.learning_rate: -1", "training.epochs: 0", "training.epochs: 'x'"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_all_that_is_wrong(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that a bad study file is refused with everything that is wrong, and that nothing is written."""
    changes, expected = BAD[name]
    assert status("study", str(written(tmp_path, **changes)), "--on", "inline", "--out", str(tmp_path / "out")) == 2
    said = capsys.readouterr().err
    assert [words for words in expected if words not in said] == [], said
    assert not (tmp_path / "out").exists()


def test_a_million_trials_are_told_with_dollars_before_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that too many trials are refused, after their dollars were estimated from a few."""
    rates = [round(0.001 * n, 3) for n in range(1, 1_001)]
    grid = {"training.learning_rate": rates, "training.epochs": list(range(1, 101))}
    assert status("study", str(written(tmp_path, grid=grid, seeds=10, pairs={})), "--on", "inline") == 2
    said = capsys.readouterr()
    assert (
        "1,000,000 trials on AWS (estimated from 24 random settings" in said.out
        and "$" in said.out
        and "[projected]" in said.out
    )
    assert "1,000,000 trials; at most 10,000 are allowed" in said.err


def test_a_dry_run_tells_and_begins_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that --dry-run prints the plan and writes nothing."""
    out = tmp_path / "out"
    assert status("study", str(written(tmp_path)), "--dry-run", "--out", str(out)) == 0
    said = capsys.readouterr().out
    assert "4 trials on AWS" in said and "1,000 concurrent executions" in said and not out.exists()


def test_a_budget_below_the_cheapest_trial_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that a budget below the cheapest trial's cost is refused, and that nothing is written."""
    out = tmp_path / "out"
    assert status("study", str(written(tmp_path)), "--budget", "0.00001", "--out", str(out)) == 2
    assert "the cheapest trial may cost $" in capsys.readouterr().err and not out.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ("\xff", "is not JSON"),
        ('{"format": 1}', "study is not there"),
        ('{"format": 1, "study": {}, "where": "moon", "versions": {}}', "where: "),
        ('{"format": 1, "study": [], "where": "local", "versions": {}}', "study: "),
        ('{"format": 1, "study": {}, "where": "local", "versions": {"torch": 2}}', "versions"),
    ],
)
def test_a_damaged_study_is_not_resumed(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that a study.json which is cut or has other types is called damaged, by its path."""
    path, out = written(tmp_path), tmp_path / "out"
    out.mkdir()
    (out / runner.STATE).write_bytes(text.encode("latin-1"))
    assert status("study", str(path), "--on", "inline", "--out", str(out), "--resume") == 2
    said = capsys.readouterr().err
    assert f"{runner.STATE}: is damaged" in said and words in said


@pytest.mark.parametrize("damage", ["format", "version", "study", "where", "again", "nothing"])
def test_another_study_in_the_folder_is_refused(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that a study is not resumed in a folder whose study differs from it."""
    path, out = written(tmp_path), tmp_path / "out"
    runner.begin_study(read(path), out, where="inline", resume=False)
    state = json.loads((out / runner.STATE).read_text())
    changes: dict[str, tuple[Mapping[str, Any], str]] = {
        "format": ({"format": 7}, "format 7 is unknown, this version reads 1"),
        "version": (
            {"versions": state["versions"] | {"crossover": "0.0.1"}},
            "the study was started with other versions (crossover 0.0.1",
        ),
        "study": ({"study": state["study"] | {"seeds": 9}}, "the study file has changed (seeds)"),
        "where": ({"where": "local"}, "the study was started with --on local"),
        "again": ({}, "this folder holds the study already; add --resume"),
    }
    change, words = changes.get(damage, ({}, "no study to resume"))
    (out / runner.STATE).write_text(json.dumps(state | change))
    if damage == "nothing":
        (out / runner.STATE).unlink()
    options = [] if damage == "again" else ["--resume"]
    assert status("study", str(path), "--on", "inline", "--out", str(out), *options) == 2
    assert words in capsys.readouterr().err


# --- a search -----------------------------------------------------------------------------------------------------------

SEARCH: dict[str, Any] = {
    "trials": 6,
    "space": {
        "training.learning_rate": {"low": 0.0001, "high": 0.5, "log": True},
        "training.epochs": {"low": 2, "high": 3},
    },
    "sampler": {"TPESampler": {"n_startup_trials": 2}},
    "pruner": {"MedianPruner": {"n_startup_trials": 1}},
}


@pytest.mark.parametrize(
    ("part", "given", "words"),
    [
        ("sampler", "TPSSampler", "search.sampler: 'TPSSampler' is unknown to Optuna 5"),
        ("sampler", {"TPESampler": {"n_startups": 2}}, "search.sampler: TPESampler: "),
        ("sampler", {"TPESampler": {"seed": 2}}, "search.sampler: seed: is derived from"),
        ("pruner", "MedianSampler", "search.pruner: 'MedianSampler' is unknown to Optuna 5"),
        ("space", {"training.epochs": {"low": 5, "high": 2}}, "search.space.training.epochs: "),
        ("space", {"training.epochs": {"lowest": 5}}, "expected low and high"),
        ("space", {"training.epoch": [1, 2]}, "training.epoch: is unknown; did you mean epochs?"),
        ("trials", 0, "search.trials: 0; expected the number of"),
    ],
)
def test_what_optuna_does_not_know_is_refused(
    part: str, given: Any, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that names and settings that Optuna does not know are refused."""
    path = written(tmp_path, grid=None, pairs={}, seeds=1, search=SEARCH | {part: given})
    assert status("study", str(path), "--on", "inline", "--out", str(tmp_path / "out")) == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_a_setting_asked_for_again_is_no_second_draw(tmp_path: Path) -> None:
    """Check that a setting which the search proposes again is not run again, and is counted on the page."""
    search = {"trials": 3, "space": {"training.epochs": [1]}, "sampler": "RandomSampler"}
    written(tmp_path, grid=None, pairs={}, seeds=2, search=search)
    ended, out = command(tmp_path, tmp_path / "out", on="inline"), tmp_path / "out"
    assert ended.returncode == 0, ended.stderr
    assert [row["trial"] for row in table(out)] == ["0001_seed=1", "0001_seed=2"]
    assert "2 were proposed again" in (out / "study.html").read_text()


# --- order, budget ----------------------------------------------------------------------------------------------------


def test_trials_are_interleaved_by_seed_in_an_order_that_is_drawn(tmp_path: Path) -> None:
    """Check that the trials of each seed follow one another, in an order that is drawn anew for each, the same every time."""
    path = written(
        tmp_path, grid={"training.learning_rate": [0.01 * n for n in range(1, 9)]}, seeds=[3, 1, 2], pairs={}
    )
    trials = make_grid_trials(read(path), TrialFactory(read(path), travels=False))
    assert [trial.experiment.seed for trial in trials] == [3] * 8 + [1] * 8 + [2] * 8
    blocks = [[trial.varied["training.learning_rate"] for trial in trials[at : at + 8]] for at in (0, 8, 16)]
    assert all(sorted(block) == sorted(blocks[0]) and block != sorted(block) for block in blocks)
    assert blocks[0] != blocks[1] and trials == make_grid_trials(read(path), TrialFactory(read(path), travels=False))
    assert len({trial.stack for trial in trials}) == 1


@pytest.mark.parametrize("budget", [0.0012, 0.002])
def test_no_trial_is_begun_that_may_pass_the_budget(
    budget: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that trials are not begun that might pass the budget, and that the study continues with a larger one.

    A trial's p95 is about 0.0008 dollars, so not all of the four trials are begun.
    """
    path, out = str(written(tmp_path)), tmp_path / "out"
    assert status("study", path, "--on", "inline", "--budget", str(budget), "--out", str(out)) == 0
    said = capsys.readouterr().out
    spent = sum(runner.sum_dollars(each) for each in (out / "runs").iterdir())
    assert 0 < spent <= budget and "not started: it may cost $" in said
    outcomes = Counter(row["outcome"] for row in table(out))
    assert 0 < outcomes["finished"] < 4 and outcomes.keys() == {"finished", "not started"} and outcomes.total() == 4
    assert next(row["reason"] for row in table(out) if row["outcome"] != "finished").startswith(
        "not started: it may cost $"
    )
    assert status("study", path, "--on", "inline", "--budget", "1", "--out", str(out), "--resume") == 0
    assert [row["outcome"] for row in table(out)] == ["finished"] * 4


def test_a_trial_that_passes_its_own_budget_is_stopped_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that two trials with a tiny budget are stopped and left out, and that a second command does not begin them again."""
    path = str(written(tmp_path, grid={"lifetime.budget_usd": [0.0001, 1.0]}, pairs={}))
    for options in ([], ["--resume"]):
        assert status("study", path, "--on", "inline", "--out", str(tmp_path / "out"), *options) == 0
        rows = table(tmp_path / "out")
        assert [row["reason"][:12] for row in rows] == ["stopped at $"] * 2 + [""] * 2
    assert capsys.readouterr().out.count(": kept") == 4


# --- kill -9 ----------------------------------------------------------------------------------------------------------


def command(folder: Path, out: Path, *options: str, on: str, at: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `crossover study` on the folder's small study, killed at its `at`-th touch of `out` (0: never), and return the ended process."""
    given = ["study", str(folder / "small.yaml"), "--on", on, "--out", str(out), *options]
    code = [sys.executable, "-c", KILLED, str(at), str(out), *given]
    return subprocess.run(code, capture_output=True, text=True, check=False, env={**os.environ, "TMPDIR": str(folder)})


def billed_once(out: Path) -> None:
    """Check that every invocation of every trial has exactly one record, and that no trial has the result of a second attempt."""
    lines = [line for path in (out / "runs").glob("*/metrics.jsonl") for line in path.read_text().splitlines()]
    counted = Counter(json.loads(line)["request_id"] for line in lines)
    assert counted and set(counted.values()) == {1}
    assert not list((out / "runs").glob("*/*/result.json")), "no attempt lies beside the one that counts"


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "inline": ("inline", {}),
    "search": ("inline", {"grid": None, "pairs": {}, "seeds": 1, "search": SEARCH}),
    "local": ("local", {}),
}


@pytest.fixture(scope="module", params=["inline", "search", pytest.param("local", marks=pytest.mark.deep)])
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, int]:
    """Return (folder with the undisturbed study as "whole", where the study runs, number of times that it touches its folder)."""
    folder, (on, changes) = tmp_path_factory.mktemp("study"), KINDS[request.param]
    written(folder, **changes)
    ended = command(folder, folder / "whole", on=on)
    assert ended.returncode == 0, ended.stderr
    return folder, on, int(ended.stdout.splitlines()[-1])


MOMENTS = 30


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.parametrize("moment", range(MOMENTS) if WHOLE else (4, 19))
def test_a_killed_study_continues_to_the_same_table(
    moment: int, undisturbed: tuple[Path, str, int], tmp_path: Path
) -> None:
    """Check that a study killed at some moment and resumed gives the undisturbed one's table, with every invocation billed once."""
    folder, on, touches = undisturbed
    out, span = tmp_path / "out", touches / MOMENTS
    at = 1 + int(moment * span + random.Random(f"study {moment}").random() * span)
    killed = command(folder, out, on=on, at=at)
    assert killed.returncode in (-signal.SIGKILL, 0)
    options = ["--resume"] if (out / runner.STATE).exists() else []
    resumed = command(folder, out, *options, on=on)
    assert resumed.returncode == 0, resumed.stderr
    assert table(out) == table(folder / "whole")
    billed_once(out)
    eventually(lambda: not find_processes(folder), what="no process is left")


# --- stacks that come and go ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_three_architectures_come_and_go_on_aws(cloud: LocalCloud, tmp_path: Path) -> None:
    """Check that a study deploys, runs and deletes three architectures by AWS's APIs, although it is killed once.

    A stack of another study must stay unchanged, and the budget must hold.
    """
    session = cloud.session()
    session.client("cloudformation").create_stack(
        StackName="rivals-small-1",
        TemplateBody=json.dumps({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}}),
        Tags=[{"Key": key, "Value": value} for key, value in made.tags("rivals", "small-1").items()],
    )
    before = snapshot(session)
    base = {**SMALL["base"], "training": SMALL["base"]["training"] | {"epochs": 1}}
    grid = {"architecture": ["single", "all_reduce", "scatter_reduce"]}
    path, out = written(tmp_path, base=base, grid=grid, pairs={}), tmp_path / "out"
    environment = {**os.environ, **cloud.environment(), "CROSSOVER_WITHOUT_LAYERS": "1", "TMPDIR": str(tmp_path)}
    code = "from crossover.cli.main import main; main()"
    given = [sys.executable, "-c", code, "study", str(path), "--on", "aws", "--out", str(out), "--budget", "1"]
    with (tmp_path / "said").open("w") as said:
        killed = subprocess.Popen(given, cwd=ROOT, env=environment, stdout=said, stderr=subprocess.STDOUT)
        try:
            eventually(
                lambda: any((out / "runs").glob("*/result.json")) or killed.poll() is not None,
                what="a trial has ended",
                timeout_s=600,
            )
        finally:
            killed.kill()
            killed.wait()
    assert snapshot(session) != before, (tmp_path / "said").read_text()
    eventually(lambda: not find_processes(tmp_path), what="no process of it is left")
    ended = subprocess.run([*given, "--resume"], cwd=ROOT, env=environment, text=True, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ": kept" in ended.stdout
    assert [row["outcome"] for row in table(out)] == ["finished"] * 6
    assert snapshot(session) == before
    assert ended.stdout.count("deleting stack crossover-small-") == 3 and "crossover-network" in ended.stdout
    assert sum(runner.sum_dollars(each) for each in (out / "runs").iterdir()) < 1


def test_a_failed_trial_is_told_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that trials which fail by NaN are told and left out of all means, and that the others count."""
    path, out = str(written(tmp_path, grid={"training.learning_rate": [0.1, 1e30]}, pairs={})), tmp_path / "out"
    assert status("study", path, "--on", "inline", "--out", str(out)) == 1
    assert "2 of 4 trials failed" in capsys.readouterr().err
    assert {row["trial"].split("_seed")[0] for row in table(out) if row["outcome"] == "finished"} == {
        "learning_rate=0.1"
    }
    assert "Excluded from all means" in (out / "study.html").read_text()
