"""Records say how long a cold environment took to start, as far as the process can know it."""

import json
import time

import pytest

from crossover import metering
from crossover.context import Context, InlineClients, Resources
from crossover.metering import Meter
from crossover.workflow import first_event


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> InlineClients:
    """A process that has run nothing yet."""
    monkeypatch.setattr(metering, "_seen", set())
    return InlineClients(workers=1)


def records(clients: InlineClients) -> list[dict[str, object]]:
    for _ in range(2):
        with Meter("train", Context(Resources(clients), run="r", memory_mb=512), first_event("r", workers=1)):
            pass
    found = [json.loads(clients.object_store.get(key)) for key in clients.object_store.list("runs/r/records/")]
    return sorted(found, key=lambda record: float(record["started_at"]))


def test_the_first_invocation_of_a_process_is_its_cold_start(
    clients: InlineClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metering, "_PROCESS_STARTED", time.time() - 2.0)
    first, second = records(clients)
    assert (first["cold"], second["cold"]) == (True, False)
    assert first["init_s"] >= 2.0
    assert second["init_s"] == 0.0


def test_what_was_restored_from_a_snapshot_does_not_count_the_snapshots_age(
    clients: InlineClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SnapStart: modules were imported when the version was published, a week ago."""
    monkeypatch.setenv("AWS_LAMBDA_INITIALIZATION_TYPE", "snap-start")
    monkeypatch.setattr(metering, "_PROCESS_STARTED", time.time() - 7 * 86_400)
    first, _ = records(clients)
    assert first["cold"] is True
    assert first["init_s"] == 0.0
