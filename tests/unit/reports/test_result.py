"""result.json: every figure from records, and what is missing is said."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossover.reports import folder
from tests.unit.reports.example_run import ALL, STARTED_AT, spirt

EXAMPLE = spirt()


def without(predicate: Any) -> list[dict[str, Any]]:
    """Return the example's records but those for which the predicate is true."""
    return [record for record in EXAMPLE.records if not predicate(record)]


def test_the_format_of_the_design() -> None:
    """A result has all sections and fields of the documented format."""
    found = EXAMPLE.result()
    assert found.keys() >= {
        "architecture", "where", "label", "started_at", "versions", "experiment", "epochs", "stages", "traffic", "cost",
        "final",
    }  # fmt: skip
    assert found["epochs"][0].keys() >= {"epoch", "train_loss", "val_loss", "val_metric", "wall_s"}
    assert all(row.keys() == {"stage", "count", "wall_s", "cpu_s", "max_rss_mb"} for row in found["stages"])
    assert found["traffic"].keys() == {"object_store", "tensor_store", "bus"}
    assert all(row.keys() == {"bytes_in", "bytes_out", "requests"} for row in found["traffic"].values())
    assert found["cost"].keys() >= {"paper_method_usd", "full_usd", "lines"}
    assert found["cost"]["lines"][0].keys() == {"item", "quantity", "unit", "usd", "as_of"}
    assert found["final"].keys() == {"val_metric", "parameters_sha256"}
    assert found["started_at"] == "2026-11-18T11:06:40.000+00:00"
    json.dumps(found, allow_nan=False)


def test_a_complete_run_misses_nothing() -> None:
    """A complete run's result is "finished", has nothing incomplete, and counts all invocations, with those that failed, were stale or
    retried.
    """
    found = EXAMPLE.result()
    assert found["incomplete"] == []
    assert found["outcome"] == "finished"
    assert found["invocations"]["retried"] == 1
    assert (found["invocations"]["error"], found["invocations"]["stale"]) == (1, 1)
    assert found["invocations"]["count"] == len(EXAMPLE.records)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_record_that_is_lost_is_named(data: st.DataObject) -> None:
    """A missing record is reported with its step, and a missing gradient with worker, epoch, round and minibatch too."""
    lost = data.draw(st.sampled_from([r for r in EXAMPLE.records if r["outcome"] == "ok"]))
    found = EXAMPLE.result(records=without(lambda r: r is lost))
    (sentence,) = found["incomplete"]
    assert sentence.startswith(f"{lost['step']}: 1 of {EXAMPLE.expected[lost['step']]} records are missing")
    if lost["step"] == "compute_gradients":
        where = "worker {worker}, epoch {epoch}, round {round}, minibatch {minibatch}".format(**lost)
        assert where in sentence


def test_a_failed_attempt_does_not_stand_in_for_a_lost_record() -> None:
    """A step whose successful record is lost is incomplete, even if a failed attempt left a record."""
    done = [r for r in EXAMPLE.records if r["step"] == "aggregate_peers" and r["epoch"] == 2 and r["outcome"] == "ok"]
    found = EXAMPLE.result(records=without(lambda r: r is done[0]))
    assert found["incomplete"][0].startswith("aggregate_peers: 1 of ")


def test_in_a_failed_run_the_failing_step_is_accounted_for() -> None:
    """A failed step's record counts as present in a failed run."""
    last = max((r for r in EXAMPLE.records if r["step"] == "collect"), key=lambda r: r["started_at"])
    records = [*without(lambda r: r is last), last | {"outcome": "error", "error": "Unavailable: x"}]
    found = EXAMPLE.result(records=records, failure="collect failed: Unavailable: x", final=None)
    assert (found["outcome"], found["incomplete"]) == ("failed", [])
    assert found["failure"] == "collect failed: Unavailable: x"


def test_without_a_count_it_is_said_that_nobody_counted() -> None:
    """A result without expected counts says in `completeness` that the steps were not counted, and reports nothing missing."""
    assert EXAMPLE.result()["completeness"] == "checked"
    found = EXAMPLE.result(expected=None, records=EXAMPLE.records[5:])
    assert "not counted" in found["completeness"] and found["incomplete"] == []


def test_records_of_a_step_nobody_executed_and_epochs_without_evaluation() -> None:
    """Records of a step that is not expected, and epochs without an evaluation, are reported as incomplete."""
    expected = {step: n for step, n in EXAMPLE.expected.items() if step != "collect"}
    found = EXAMPLE.result(expected=expected, epochs=[e for e in EXAMPLE.epochs if e["epoch"] not in (3, 4)])
    assert found["incomplete"] == [
        "collect: 1 records of a step that was not executed",
        "epoch 3, 4: no evaluation was recorded",
    ]
    assert "no epoch was finished" in EXAMPLE.result(epochs=[], final=None)["incomplete"]


def test_stages_add_up_to_the_invocations() -> None:
    """Wall and CPU seconds of the stages, and of the steps, add up to those of all records."""
    found = EXAMPLE.result()
    for figure in ("wall_s", "cpu_s"):
        whole = math.fsum(record[figure] for record in EXAMPLE.records)
        assert math.fsum(row[figure] for row in found["stages"]) == pytest.approx(whole)
        assert math.fsum(row[figure] for row in found["steps"]) == pytest.approx(whole)
    (compute,) = [row for row in found["stages"] if row["stage"] == "compute"]
    assert compute["count"] == 4 * 6 * 12
    assert compute["max_rss_mb"] == max(r["max_rss_mb"] for r in EXAMPLE.records if r["step"] == "compute_gradients")
    assert found["stages"][-1]["stage"] == "other"
    assert {row["step"] for row in found["steps"]} == {"initialise", *ALL, "collect"}


def test_traffic_is_the_sum_of_the_records() -> None:
    """Each traffic figure of the result is the sum over all records."""
    found = EXAMPLE.result()["traffic"]
    for channel, figures in found.items():
        for figure, total in figures.items():
            assert total == sum(record["traffic"][channel][figure] for record in EXAMPLE.records)


def test_waits_for_a_core_are_apart_from_billed_time() -> None:
    """A step's row has the seconds of waiting for a core on their own; its billed seconds are those of running and starting."""
    (row,) = [row for row in EXAMPLE.result()["steps"] if row["step"] == "compute_gradients"]
    computed = [r for r in EXAMPLE.records if r["step"] == "compute_gradients"]
    assert row["slot_wait_s"] == pytest.approx(sum(r["slot_wait_s"] for r in computed))
    assert row["billed_s"] == pytest.approx(row["wall_s"] + row["init_s"], abs=0.001 * len(computed))


def test_training_loss_is_the_mean_over_samples_and_counts_a_cell_once() -> None:
    """An epoch's training loss is the mean over samples of successful cells, with a repeated cell counted once."""
    base = dict(EXAMPLE.records[1], step="compute_gradients", epoch=1, outcome="ok")
    records = [
        base | {"minibatch": 0, "loss": 1.0, "samples": 30},
        base | {"minibatch": 1, "loss": 2.0, "samples": 10},
        base | {"minibatch": 1, "loss": 2.0, "samples": 10},
        base | {"minibatch": 2, "loss": 9.0, "samples": 99, "outcome": "error"},
    ]
    assert folder.train_losses(records) == {1: pytest.approx(1.25)}


def test_epochs_by_moment_or_by_duration() -> None:
    """Epochs are given with the moment of their end or with their duration; the result has elapsed and wall seconds in both cases."""
    moments = [{"epoch": 1, "val_loss": 1.0, "val_metric": 0.5, "at": STARTED_AT + 5.0}]
    (row,) = EXAMPLE.result(epochs=moments)["epochs"]
    begin = min(r["started_at"] for r in EXAMPLE.records if r["step"] != "initialise")
    assert (row["elapsed_s"], row["wall_s"]) == (pytest.approx(5.0), pytest.approx(STARTED_AT + 5.0 - begin))
    durations = [{"epoch": n, "val_loss": 1.0, "val_metric": 0.5, "wall_s": 2.0, "train_loss": 3.0} for n in (1, 2)]
    rows = EXAMPLE.result(epochs=durations)["epochs"]
    assert rows[1]["elapsed_s"] == pytest.approx(begin - STARTED_AT + 4.0)
    assert rows[0]["train_loss"] == 3.0


def test_a_resumed_run_begins_with_its_first_record() -> None:
    """Duration and epochs' times of a result count from the first record if that is before the given start."""
    first = min(r["started_at"] for r in EXAMPLE.records)
    found = EXAMPLE.result(started_at=STARTED_AT + 10.0)
    assert found["duration_s"] == pytest.approx(EXAMPLE.result()["duration_s"] - (first - STARTED_AT))
    assert found["epochs"][0]["elapsed_s"] == pytest.approx(EXAMPLE.epochs[0]["at"] - first)


def test_a_diverged_loss_is_null_not_nan() -> None:
    """A validation loss of NaN or infinity is null in the result's JSON."""
    epochs = [EXAMPLE.epochs[0] | {"val_loss": math.nan}, EXAMPLE.epochs[1] | {"val_loss": math.inf}]
    found = EXAMPLE.result(epochs=epochs)
    assert [row["val_loss"] for row in found["epochs"]] == [None, None]
    json.dumps(found, allow_nan=False)


def test_a_dropped_workers_loss_does_not_count() -> None:
    """A loss of NaN by an excluded worker does not enter an epoch's training loss."""
    record = next(r for r in EXAMPLE.records if r.get("loss") is not None)
    found = folder.train_losses([record, record | {"worker": 63, "loss": math.nan}])
    assert found == {record["epoch"]: pytest.approx(record["loss"])}


def test_local_seconds_are_never_measured_dollars() -> None:
    """The cost of a local run is labelled "projected", and that of a run on AWS "measured-aws"."""
    local = EXAMPLE.result()["cost"]
    assert (local["label"], local["basis"]) == ("projected", "projected from local seconds")
    assert EXAMPLE.result(where="aws", label="measured-aws")["cost"]["label"] == "measured-aws"


def test_a_run_that_left_nothing() -> None:
    """A run without records has a result: zero seconds and dollars, no stages, and every expected step reported as missing."""
    found = EXAMPLE.result(records=[], epochs=[], final=None, failure="the stack is not there")
    assert found["duration_s"] == 0
    assert found["stages"] == [] and found["cost"]["paper_method_usd"] == 0
    assert len(found["incomplete"]) == len(EXAMPLE.expected) + 1
