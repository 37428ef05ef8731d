"""Every architecture ends at its budget by its own decision: nobody need look on, and the model is kept."""

import json
import math
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from crossover.experiment import Lifetime
from crossover.reports import folder, prices, spending
from crossover.reports.spending import BudgetReached
from crossover.running import monitor
from crossover.running.inline import run_inline
from crossover.stores.memory import MemoryObjectStore
from tests.architectures.harness import Job, claiming, small

BY_TIME = ("hour", "vCPU-hour", "GB-month")  # of lines, a minute of instances at least


@pytest.mark.parametrize("architecture", claiming("stops"))
def test_the_decision_ends_the_run(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a run without a following command ends by its decision after one epoch if the budget is too small, with a finished result
    that gives the reason.
    """
    monkeypatch.setattr(monitor, "BUDGET_POLL_S", math.inf)  # whoever follows does not look at dollars
    experiment = replace(small(architecture, epochs=50), lifetime=Lifetime(budget_usd=1e-9))
    with pytest.raises(
        BudgetReached,
        match=r"training until the next evaluation costs up to \$0\.\d+, and lifetime\.budget_usd is 1e-09",
    ):
        run_inline(experiment, tmp_path, lambda progress: None)
    result = folder.read(tmp_path).result
    assert len(result["epochs"]) == 1 and result["incomplete"] == []
    assert result["failure"].startswith("stopped at $")
    assert result["final"]["epochs"] == 1 and result["final"]["reason"].startswith("budget: stopped at $")


def test_a_decision_says_what_the_bill_says() -> None:
    """Check the dollars of the decision, and the deadline by which the budget lasts at the highest rate, where the expiry reads it."""
    job = Job(replace(small("spirt", epochs=3), lifetime=Lifetime(budget_usd=50.0)))
    job.execute()
    prepared, objects = job.prepared, job.prepared.objects
    decided = [json.loads(objects.get(prepared.keys.decision(epoch))) for epoch in (1, 2, 3)]
    monitor.read_records(prepared)
    prepared.decisions.extend(decided)
    assert [agreed["over_budget"] for agreed in decided] == ["", "", ""]
    last = decided[-1]["at"]
    assert decided[-1]["usd"] == pytest.approx(
        monitor.bill_so_far(prepared, now=last).cost_until(last).full_usd, rel=0.05
    )
    usd = [agreed["usd"] for agreed in decided]
    hour_usd = (
        prices.load().of("vpc.interface_endpoint").usd
    )  # paid as the run begins, so that no further epoch pays it
    assert decided[-1]["dearest_usd"] == pytest.approx(max(b - a for a, b in zip([hour_usd, *usd], usd, strict=False)))
    told = objects.get(prepared.keys.deadline(prepared.facts["created_at"])).decode()
    ends = datetime.strptime(told, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    left_s = (50.0 - usd[-1]) / prepared.facts["money"]["most_usd_per_s"]
    assert ends == pytest.approx(min(decided[-1]["at"] + left_s, prepared.facts["created_at"] + 6 * 3_600), abs=2)


def test_a_decision_reads_what_is_new_since_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that no record is read twice. If every decision read all records, the reads would grow with the square of their number."""
    get, read = MemoryObjectStore.get, Counter[str]()

    def counted(self: MemoryObjectStore, key: str) -> bytes:
        """Count the read if it is of a record, and return the object."""
        read[key] += "/records/" in key
        return get(self, key)

    monkeypatch.setattr(MemoryObjectStore, "get", counted)
    Job(replace(small("spirt", workers=1, epochs=4), lifetime=Lifetime(budget_usd=50.0))).execute()
    records = [key for key in read if "/records/" in key]
    assert len(records) > 10 and {read[key] for key in records} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("architecture", claiming("stops"))
def test_no_run_costs_more_than_the_highest_rate(architecture: str, tmp_path: Path) -> None:
    """Check the rate on which a budget's deadline depends."""
    found = run_inline(small(architecture, epochs=2), tmp_path, lambda progress: None)
    money = spending.pricing_facts(small(architecture), side_by_side=8)
    first_minute = sum(line["usd"] for line in found.result["cost"]["lines"] if line["unit"] in BY_TIME)
    assert (
        found.result["cost"]["full_usd"]
        <= money["most_usd_per_s"] * max(found.result["duration_s"], 1.0) + first_minute
    )
