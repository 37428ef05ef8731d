"""Records say how long a cold environment took to start, as far as the process can know it."""

import json
from collections.abc import Iterator

import pytest

from crossover import runtime
from crossover.errors import Unavailable
from crossover.runtime import ThisProcess
from crossover.stores.clients import MemoryClients
from crossover.training.fleet import record_step
from crossover.workflow import first_event
from crossover.workflow.context import Context, Meter, Resources


class Old(ThisProcess):
    """A process that started two seconds ago and has done nothing yet."""

    age_s = 2.0

    def started_at(self) -> float:
        """Return when the process started, two seconds before the real one."""
        return super().started_at() - self.age_s


@pytest.fixture
def process() -> Iterator[Old]:
    """Yield a process that has just started its interpreter, in use as the runtime."""
    with runtime.use(found := Old()):
        yield found


@pytest.fixture
def clients(process: Old) -> MemoryClients:
    """Return the clients of a run with one worker in the process that started two seconds ago."""
    return MemoryClients(workers=1)


def records(clients: MemoryClients) -> list[dict[str, object]]:
    """Return the records of two invocations in one environment, in order."""
    for _ in range(2):
        with Meter("train", Context(Resources(clients), run="r", memory_mb=512), first_event("r", workers=1)):
            pass
    found = [json.loads(clients.object_store.get(key)) for key in clients.object_store.list("runs/r/records/")]
    return sorted(found, key=lambda record: float(record["started_at"]))


def test_the_first_invocation_of_a_process_is_its_cold_start(clients: MemoryClients) -> None:
    """The first record of a process is cold, with the seconds since the process began; the second is not."""
    first, second = records(clients)
    assert (first["cold"], second["cold"]) == (True, False)
    assert first["init_s"] >= 2.0
    assert second["init_s"] == 0.0


def test_what_was_restored_from_a_snapshot_does_not_count_the_snapshots_age(
    clients: MemoryClients, process: Old, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first record of a process restored by SnapStart is cold, with zero seconds of INIT."""
    monkeypatch.setenv("AWS_LAMBDA_INITIALIZATION_TYPE", "snap-start")
    process.age_s = 7 * 86_400
    first, _ = records(clients)
    assert first["cold"] is True
    assert first["init_s"] == 0.0


def test_a_long_invocation_says_what_it_has_used_until_its_record_is_there(clients: MemoryClients) -> None:
    """An invocation under way stores a mark with its usage so far, which its record then contains and which is deleted."""
    ctx = Context(Resources(clients), run="r", memory_mb=512)
    ctx.report_usage()  # nothing is metered: nothing to say
    with Meter("train", ctx, first_event("r", workers=1)):
        ctx.report_usage()
        ctx.objects.put("x", b"12345")
        ctx.report_usage()
        [key] = clients.object_store.list("runs/r/marks/")
        mark = json.loads(clients.object_store.get(key))
    assert mark["outcome"] == "under way" and mark["request_id"] == ctx.request_id
    assert [each["traffic"]["object_store"]["bytes_out"] for each in mark["marks"]] == [0, 5]
    [record] = [json.loads(clients.object_store.get(key)) for key in clients.object_store.list("runs/r/records/")]
    assert record["marks"] == mark["marks"] and record["wall_s"] >= mark["wall_s"]
    assert not clients.object_store.list("runs/r/marks/")


def test_a_mark_that_cannot_be_written_is_not_worth_the_invocation(
    clients: MemoryClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invocation goes on and stores its record, although its marks cannot be stored."""

    def refuse(*arguments: object) -> None:
        """Raise Unavailable."""
        raise Unavailable("the store is away")

    ctx = Context(Resources(clients), run="r")
    monkeypatch.setattr(ctx, "write_usage_snapshot", refuse)
    monkeypatch.setattr(ctx, "delete_usage_snapshot", refuse)
    with Meter("train", ctx, first_event("r", workers=1)):
        ctx.report_usage()
    assert len(clients.object_store.list("runs/r/records/")) == 1


def test_a_step_of_a_program_says_on_which_instance_type_it_ran(clients: MemoryClients) -> None:
    """The record of a program's step has its instance type, and no notes of the program's context."""
    ctx = Context(Resources(clients), run="r", memory_mb=512)
    ctx.note(steps=3)
    with record_step(ctx, "train_peer", first_event("r", workers=1), instance_type="t2.large"):
        pass
    (key,) = clients.object_store.list("runs/r/records/")
    record = json.loads(clients.object_store.get(key))
    assert (record["step"], record["instance_type"], "steps" in record) == ("train_peer", "t2.large", False)
