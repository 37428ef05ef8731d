"""What is kept, what is run anew, and what happens when a run fails; one small part on this machine's local cloud."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossover.errors import RunFailed
from crossover.experiment import Experiment
from crossover.reports import folder
from crossover.reports.folder import RunFolder
from crossover.running.monitor import OnProgress
from crossover.study import paper_runs, papers, runs_2025
from crossover.study.paper_runs import Measurement, Runner, Scale
from tests.sampling import WHOLE
from tests.unit.study.papers import made_up

SMALL = Scale(0.02)
FIRST, SECOND = (runs_2025.make_filter_run(threshold) for threshold in runs_2025.FILTER_THRESHOLDS)
TIMED = runs_2025.make_averaging_run("fetch")  # seconds and bytes alone
ON_GPU = next(each for row in runs_2025.load_rows("Table 2") if (each := runs_2025.make_epoch_run(row)).needs_gpu)


class Pretended:
    """A machine that writes made-up folders instead of training. `made`: names of the runs so far; `fails`: names of those that fail."""

    def __init__(self) -> None:
        """Begin without runs and without failures."""
        self.made: list[str] = []
        self.fails: set[str] = set()

    def __enter__(self) -> "Pretended":
        """Return this machine."""
        return self

    def __exit__(self, *ended: object) -> None:
        """Do nothing: nothing was started."""

    def release(self, experiment: Experiment) -> None:
        """Do nothing: there are no stacks."""

    def run(self, experiment: Experiment, out: Path, watch: OnProgress) -> RunFolder:
        """Note the run and write a made-up folder for its measurement. Raises RunFailed if its name is in `fails`."""
        self.made.append(out.name)
        if out.name in self.fails:
            raise RunFailed("worker 2:\n out of memory")
        measurement = next(each for each in (FIRST, SECOND, TIMED, TIMED.on_generated_images()) if each.key == out.name)
        run = made_up.run(measurement, SMALL)
        return folder.write(out, result=run.result, records=[whole(record) for record in run.records])


def whole(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record completed by the fields that every record has."""
    stages = [{"cpu_s": 0.0} | stage for stage in record["stages"]]
    numbers = dict.fromkeys(("worker", "epoch", "round", "minibatch", "started_at", "cpu_s"), 0)
    return {"request_id": "a", "traffic": {}, **numbers, **record, "stages": stages}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pretended:
    """Put a pretended machine without a GPU in the place of this one, and return it; kept runs are in the test's folder."""
    pretended = Pretended()
    monkeypatch.setattr(paper_runs, "LocalTrials", lambda: pretended)
    monkeypatch.setattr(paper_runs, "_explain_unreadable", lambda dataset, data: "")
    monkeypatch.setattr(paper_runs, "has_gpu", lambda: False)
    monkeypatch.setattr(paper_runs, "KEPT", tmp_path / "kept")
    return pretended


def runner(tmp_path: Path, told: list[str] | None = None, **changes: Any) -> Runner:
    """Return a runner at small scale. `told`: list to which its messages are appended; `changes`: fields to replace."""
    lines = [] if told is None else told
    return replace(Runner(out=tmp_path / "out", scale=SMALL, data=None, tell=lines.append), **changes)


def test_finished_runs_are_kept_and_others_run(machine: Pretended, tmp_path: Path) -> None:
    """A second call keeps the runs that are finished and makes the others."""
    told: list[str] = []
    first = runner(tmp_path, told).run([FIRST])
    assert set(first.runs) == {FIRST.key} and not first.failed and not first.whole
    second = runner(tmp_path, told).run([FIRST, SECOND])
    assert set(second.runs) == {FIRST.key, SECOND.key}
    assert machine.made == [FIRST.key, SECOND.key]
    assert told[1] == f"1/2 {FIRST.key}: kept"


@pytest.mark.parametrize("damage", ["failed", "incomplete", "half written", "no records", "another experiment"])
def test_what_is_not_whole_or_not_this_is_run_anew(machine: Pretended, tmp_path: Path, damage: str) -> None:
    """A run that failed, is incomplete or unreadable, or is of another experiment is made again. `damage`: the case."""
    (run,) = runner(tmp_path).run([FIRST]).runs.values()
    result, path = dict(run.result), run.path / folder.RESULT
    training = result["experiment"]["training"] | {"learning_rate": 9.0}
    changes = {
        "failed": {"outcome": "failed"},
        "incomplete": {"incomplete": ["train: 1 of 8 records are missing"]},
        "another experiment": {"experiment": result["experiment"] | {"training": training}},
    }
    match damage:
        case "half written":
            path.write_text(path.read_text()[:100])
        case "no records":
            (run.path / folder.METRICS).unlink()
        case _:
            path.write_text(json.dumps(result | changes[damage]))
    runner(tmp_path).run([FIRST])
    assert machine.made == [FIRST.key] * 2
    assert runner(tmp_path).find_finished(FIRST)


def test_another_scale_is_another_run(machine: Pretended, tmp_path: Path) -> None:
    """A run at one scale is not found as the run at another."""
    runner(tmp_path).run([FIRST])
    assert runner(tmp_path).find_finished(FIRST)
    assert runner(tmp_path, scale=Scale(0.5)).find_finished(FIRST) is None


def test_a_run_that_fails_twice_leaves_the_others_going(machine: Pretended, tmp_path: Path) -> None:
    """A run that fails is tried twice and reported as missing with its cause; the others are made, and a later call tries it again."""
    machine.fails = {FIRST.key}
    told: list[str] = []
    outcome = runner(tmp_path, told).run([FIRST, SECOND])
    assert outcome.failed == (FIRST.key,) and set(outcome.runs) == {SECOND.key}
    assert outcome.missing == {FIRST.key: "it failed here: worker 2: out of memory"}
    assert [line.split(": ", 1)[1] for line in told[:2]] == [
        "failed, trying once more: worker 2: out of memory",
        "failed: worker 2: out of memory",
    ]
    machine.fails = set()
    assert not runner(tmp_path).run([FIRST, SECOND]).failed
    assert machine.made == [FIRST.key, FIRST.key, SECOND.key, FIRST.key]


def test_what_this_machine_lacks_is_said_and_not_tried(
    machine: Pretended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that need a GPU or data which are not here are reported as missing and not tried."""
    monkeypatch.setattr(paper_runs, "_explain_unreadable", lambda dataset, data: f"{dataset}: not here")
    outcome = runner(tmp_path).run([ON_GPU, FIRST])
    assert outcome.missing == {ON_GPU.key: "no GPU on this machine", FIRST.key: "cifar10: not here"}
    assert not outcome.failed and not machine.made


def test_a_timed_run_uses_generated_images_if_its_data_set_cannot_be_had(
    machine: Pretended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run for times only uses generated images if its data set is missing, is kept by a second call, and made anew once the data are
    there.
    """
    monkeypatch.setattr(paper_runs, "_explain_unreadable", lambda dataset, data: f"{dataset}: not here")
    for _ in range(2):
        outcome = runner(tmp_path).run([TIMED, FIRST])
        assert outcome.generated == {TIMED.key: "cifar10: not here"}
        assert outcome.runs[TIMED.key].result["experiment"]["data"]["dataset"] == "cifar10-generated"
        assert outcome.missing == {FIRST.key: "cifar10: not here"}
    assert machine.made == [f"{TIMED.key}-generated"], "the second call keeps it"
    monkeypatch.setattr(paper_runs, "_explain_unreadable", lambda dataset, data: "")
    outcome = runner(tmp_path).run([TIMED])
    assert not outcome.generated and machine.made[1:] == [TIMED.key], "the real images are there: the run is made anew"


def test_every_figure_of_accuracy_or_of_filtered_bytes_needs_the_real_images() -> None:
    """The measurements that need real images are those of accuracy, and of MLLess's filtered bytes."""
    keys = {each.key for each in papers.list_measurements(list(papers.PARTS.values()), SMALL) if each.depends_on_values}
    assert all(key.partition("-")[0] in ("convergence", "barrier", "mlless", "epoch") for key in keys)
    assert {key for key in keys if key.startswith("epoch")} == {"epoch-mlless-mobilenet", "epoch-mlless-resnet18"}


def test_a_run_of_the_published_size_that_comes_along_is_taken(machine: Pretended, tmp_path: Path) -> None:
    """A run of the published size in the folder of kept runs is used at any scale, whatever its name."""
    whole: Measurement = runs_2025.make_convergence_run("all_reduce")
    run = made_up.run(whole, Scale(1))
    experiment = run.result["experiment"]
    filled_in = {**experiment, "exchange": experiment["exchange"] | {"every": 1}, "name": "another"}
    folder.write(tmp_path / "kept" / "curve", result={**run.result, "experiment": filled_in}, records=[])
    outcome = runner(tmp_path).run([whole])
    assert outcome.whole == {whole.key} and not machine.made
    assert outcome.runs[whole.key].path.name == "curve"


def test_the_run_that_comes_with_the_project_is_taken(tmp_path: Path) -> None:
    """The run of the published size that comes with the project is found, although its settings are of an earlier version."""
    found = runner(tmp_path).find_finished(runs_2025.make_convergence_run("all_reduce"))
    assert found is not None and found[0].name == "all-reduce-cifar10-fast" and found[1]


@pytest.mark.slow
def test_a_part_on_the_cloud_on_this_machine(tmp_path: Path, datasets: Path) -> None:
    """The runs of figure 3 are made at a tiny scale with local servers, and a second call keeps them."""
    tiny, told, asked = Scale(0.001), list[str](), [FIRST, SECOND] if WHOLE else [SECOND]
    line = Runner(out=tmp_path / "out", scale=tiny, data=datasets, tell=told.append)
    outcome = line.run(asked)
    assert not outcome.failed, told
    for measurement in asked:
        run = outcome.runs[measurement.key]
        assert run.result["label"] == "measured-local" and run.result["where"] == "local"
        assert not run.result["incomplete"]
    sent = [outcome.runs[each.key].result["traffic"]["tensor_store"]["bytes_out"] for each in asked]
    assert not WHOLE or sent[1] < sent[0], "the filter holds something back"
    again = Runner(out=tmp_path / "out", scale=tiny, data=datasets, tell=told.append).run(asked)
    assert set(again.runs) == {each.key for each in asked} and told[-1].endswith("kept")
