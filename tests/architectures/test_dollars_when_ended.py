"""Dollars at an epoch of a long run, beside the bill of a run that was really ended there: its own records, in the long run's seconds.

Requests, bytes, invocations and transitions are each run's own. Seconds of two runs on one machine are never the same: those of the run
that was ended are replaced by what the long run's marks and records say of the same work; only its end is in its own. That end, which a
long run has not come to, is what they differ by: `collect`, its transitions, the last objects.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossover.experiment import Data, Experiment, Training
from crossover.reports import bill as infrastructure
from crossover.reports import prices
from crossover.reports.bill import BilledRun, Cost
from crossover.reports.folder import RunFolder
from crossover.reports.usage import Record, cell_of, latest_end, state_transitions
from crossover.running.inline import run_inline
from crossover.workflow.architecture import load
from tests.architectures.harness import small

LONG, ENDED = 30, 20  # as many epochs as config/ trains

pytestmark = pytest.mark.deep


def experiment(architecture: str, epochs: int) -> Experiment:
    """Return an experiment of four workers on all digits."""
    training = Training(model="small_cnn", epochs=epochs, batch_size=60, learning_rate=0.05)
    return replace(small(architecture, workers=4), training=training, data=Data(dataset="digits"))


def in_seconds_of(long: RunFolder, record: Record) -> dict[str, Any]:
    """Return the record with the duration that the same work took in the long run. It is returned unchanged if the long run lacks that
    work, and for the steps `initialise` and `collect`.
    """
    same = next((each for each in long.records if cell_of(each) == cell_of(record) and each["outcome"] == "ok"), None)
    if same is None or record["step"] in ("initialise", "collect"):
        return dict(record)
    marks, wall_s = record.get("marks", ()), float(same["wall_s"])
    if marks:
        after_s = float(record["wall_s"]) - float(marks[-1]["wall_s"])
        wall_s = float(same["marks"][len(marks) - 1]["wall_s"]) + after_s
    share = wall_s / float(record["wall_s"])
    stages = [{**stage, "wall_s": share * stage["wall_s"]} for stage in record["stages"]]
    return {**record, "wall_s": wall_s, "stages": stages, **{name: same[name] for name in ("cold", "init_s")}}


def bill(ended: RunFolder, long: RunFolder, *, architecture: str) -> Cost:
    """Return the cost of the run that was ended, with its work lasting as long as in the long run."""
    setting, records = experiment(architecture, ENDED), [in_seconds_of(long, each) for each in ended.records]
    begun_s = latest_end(ended.records) or 0.0
    agreed_s = min(float(each["started_at"]) for each in ended.records) + ended.result["epochs"][-1]["elapsed_s"]
    return BilledRun(
        experiment=setting,
        records=records,
        infrastructure=infrastructure.infrastructure_of(setting),
        prices=prices.load(),
        started_at=0.0,
        duration_s=long.result["epochs"][ENDED - 1]["elapsed_s"] + max(0.0, begun_s - agreed_s),
        transitions=state_transitions(load(architecture), records, workers=setting.workers, epochs=ENDED),
    ).cost()


@pytest.mark.parametrize("architecture", ["all_reduce", "mlless", "p2p_serverless"])
def test_dollars_at_an_epoch_are_the_bill_of_a_run_that_was_ended_there(architecture: str, tmp_path: Path) -> None:
    """Check that the dollars of a long run at an epoch are within 5 % of the bill of a run that ended after this epoch."""
    long, ended = (
        run_inline(experiment(architecture, epochs), tmp_path / str(epochs), lambda progress: None)
        for epochs in (LONG, ENDED)
    )
    found, at = bill(ended, long, architecture=architecture), long.result["epochs"][ENDED - 1]
    for method in ("paper_method_usd", "full_usd"):
        there, billed = at[method], getattr(found, method)
        print(f"{architecture}, {method}: {there:.6g} at epoch {ENDED}, {billed:.6g} ended: {there / billed - 1:+.2%}")
        assert there == pytest.approx(billed, rel=0.05), method
