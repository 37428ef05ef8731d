"""The end of a run, however it comes: what is learned of the records afterwards, and what its folder says."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from crossover import platform_reports
from crossover.context import InlineClients
from crossover.dataplane.traffic import Traffic
from crossover.errors import RunFailed
from crossover.platform_reports import Report
from crossover.reports import display, folder
from crossover.running.deployed import ask_platform
from crossover.running.following import finish
from crossover.running.preparing import Prepared, prepare
from tests.architectures.harness import small
from tests.unit.reports.example_run import spirt


class Ending:
    """An execution that ends with `error`."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def ended(self) -> bool:
        raise self._error

    def stop(self) -> None: ...


@pytest.fixture
def prepared() -> Prepared:
    objects = InlineClients(workers=2, shared_tensors=False).objects(Traffic())
    found = prepare(small("spirt"), objects=objects, data=[objects])
    found.records["record"] = dict(spirt().records[0])
    return found


def billed(prepared: Prepared) -> None:
    prepared.records["record"]["billed_ms"] = 7_000


def ended(prepared: Prepared, out: Path, error: BaseException, complete: Any) -> folder.RunFolder:
    with pytest.raises(type(error)):
        finish(prepared, Ending(error), out, lambda progress: None, where="aws", complete=complete)
    return folder.read(out)


def test_a_failed_run_is_billed_as_the_platform_says(prepared: Prepared, tmp_path: Path) -> None:
    run = ended(prepared, tmp_path, RunFailed("no memory left"), billed)
    assert run.result["failure"] == "no memory left"
    assert run.records[0]["billed_ms"] == 7_000


def test_what_cannot_be_learned_hides_no_failure(prepared: Prepared, tmp_path: Path) -> None:
    def refused(prepared: Prepared) -> None:
        raise PermissionError("logs")

    run = ended(prepared, tmp_path, RunFailed("no memory left"), refused)
    assert run.result["failure"] == "no memory left" and "billed_ms" not in run.records[0]


@pytest.mark.parametrize("where", ["local", "aws"])
def test_what_was_killed_is_told_and_billed(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def reported(request_id: str, function: str) -> Report:
        stack = f"{prepared.experiment.project}-{prepared.experiment.name}"
        return Report(
            request_id=request_id,
            logged_at=prepared.facts["created_at"] + 1,
            function=f"{stack}-{function}",
            duration_ms=3_000.0,
            billed_ms=3_000,
            memory_mb=2_048,
            max_memory_mb=2_048,
            init_ms=None,
        )

    prepared.records["record"]["request_id"] = "r"
    every = (reported("r", "setup"), reported("k", "compute-gradients"), reported("g", "stop-instances"))
    found = {each.request_id: each for each in every}
    monkeypatch.setattr(platform_reports, "wait_for", lambda session, stack, records, *, wait_s: found)
    run = ended(prepared, tmp_path, RunFailed("no memory left"), partial(ask_platform, session=None, where=where))
    assert run.result["unrecorded"] == {"count": 1, "gb_s": 6.0}
    assert ("billed_ms" in run.records[0]) == (where == "aws")  # here a report holds waits for a core
    assert "1 killed and billed without a record" in display.attempts(run.result)


def test_ctrl_c_does_not_wait_for_reports(prepared: Prepared, tmp_path: Path) -> None:
    run = ended(prepared, tmp_path, KeyboardInterrupt(), billed)
    assert run.result["failure"] == "interrupted" and "billed_ms" not in run.records[0]
