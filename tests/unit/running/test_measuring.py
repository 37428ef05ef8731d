"""Sizes of functions measured: what an invocation could cost is there before it, and functions are left as they were."""

import io
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from botocore.exceptions import ClientError

from crossover.cli import advise
from crossover.errors import ConfigError, CrossoverError, RunFailed, UserError
from crossover.learning.staging import check_rounds, plan_staging
from crossover.reports import prices, usage
from crossover.reports.usage import Report
from crossover.running import measuring
from crossover.running.measuring import (
    BudgetTooSmall,
    BudgetTracker,
    MeasuredSize,
    NotRestored,
    RemoteStep,
    StepInvoker,
    UnmeasuredSize,
    reduce_to_one_round,
)
from crossover.validation import load as read
from crossover.workflow import first_event, map_steps, walk
from crossover.workflow.architecture import load

CONFIG = Path(__file__).parents[3] / "config"
MOST_USD = 900 * 1_769 / 1_024 * 0.0000133334 + 0.0000002
BILLED_USD = 2.0 * 1_769 / 1_024 * 0.0000133334 + 0.0000002


@dataclass
class Lambda:
    """A Lambda service with one function, and the session that makes its clients. `error`: error that each invocation reports; `busy`:
    how many more requests about settings it refuses as too many; `largest`: MB that the account's functions may have; `now`: the
    function's settings; `sizes`: MB that were set so far.
    """

    error: str = ""
    busy: int = 0
    largest: int = 10_240
    now: dict[str, Any] = field(default_factory=lambda: {"MemorySize": 1_769, "Timeout": 900})
    sizes: list[int] = field(default_factory=list)
    invoked: int = 0

    def client(self, service: str, config: Any = None) -> "Client":
        """Return a client with the retries that `config` asks for, five by default."""
        return Client(self, tries=config.retries["total_max_attempts"] if config else 5)


@dataclass
class Client:
    """A client of the Lambda service that repeats a throttled call as botocore does. `tries`: calls that it makes at most."""

    of: Lambda
    tries: int

    def _asked(self, operation: str) -> None:
        """Use up the refusals that the client's own tries meet. Raises ClientError if all of its tries are refused."""
        refused = min(self.of.busy, self.tries)
        self.of.busy -= refused
        if refused == self.tries:
            raise ClientError({"Error": {"Code": "TooManyRequestsException", "Message": "Rate exceeded"}}, operation)

    def get_function_configuration(self, FunctionName: str) -> dict[str, Any]:
        """Return the function's present settings."""
        self._asked("GetFunctionConfiguration")
        return {**self.of.now, "LastUpdateStatus": "Successful"}

    def update_function_configuration(self, FunctionName: str, MemorySize: int, Timeout: int) -> None:
        """Change memory and timeout and note the memory size. Raises ClientError if the account allows no such size."""
        self._asked("UpdateFunctionConfiguration")
        if MemorySize > self.of.largest:
            told = {"Code": "InvalidParameterValueException", "Message": f"less than or equal to {self.of.largest}"}
            raise ClientError({"Error": told}, "UpdateFunctionConfiguration")
        self.of.now = {"MemorySize": MemorySize, "Timeout": Timeout}
        self.of.sizes.append(MemorySize)

    def invoke(self, FunctionName: str, Payload: bytes) -> dict[str, Any]:
        """Return the payload as the function's answer, with the error if the service has one."""
        self.of.invoked += 1
        failed = {"FunctionError": self.of.error} if self.of.error else {}
        return {"Payload": io.BytesIO(Payload), "ResponseMetadata": {"RequestId": f"r{self.of.invoked}"}, **failed}


def reported(*requests: str) -> dict[str, Report]:
    """Return Lambda's report on each request, by request id."""
    figures: dict[str, Any] = {
        "duration_ms": 1_990.5,
        "billed_ms": 2_000,
        "memory_mb": 1_769,
        "max_memory_mb": 300,
        "init_ms": None,
    }
    return {
        each: Report(request_id=each, logged_at=0.0, function="crossover-small-train", **figures) for each in requests
    }


def calls(session: Lambda, budget_usd: float = 1.0) -> StepInvoker:
    """Return the invoker of a deployed experiment's steps with a budget."""
    return StepInvoker("crossover-small", session, BudgetTracker(budget_usd, prices.load()))


def test_an_invocation_that_could_pass_the_budget_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """An invocation whose largest cost exceeds the rest of the budget raises BudgetTooSmall before it is made; reports free what was not
    used.
    """
    monkeypatch.setattr(usage, "wait_for_reports", lambda *_, **__: reported("r1", "r2", "another"))
    client, event = Lambda(), first_event("run", workers=1)
    found = calls(client, 2.5 * MOST_USD)
    assert [found.invoke("train", event) for _ in range(2)] == [event] * 2
    for _ in range(2):
        with pytest.raises(BudgetTooSmall, match="could cost"):
            found.invoke("train", event)
    assert client.invoked == 2
    assert [each.request_id for each in found.collect_reports(wait_s=0.0)] == ["r1", "r2"]
    assert found.budget.spent_usd == pytest.approx(2 * BILLED_USD)
    found.invoke("train", event)


def test_an_invocation_without_a_report_counts_with_its_largest_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """An invocation whose report does not come counts with its largest cost; one that failed raises RunFailed."""
    monkeypatch.setattr(usage, "wait_for_reports", lambda *_, **__: reported())
    found = calls(Lambda(), 1.0)
    found.invoke("train", first_event("run", workers=1))
    assert found.collect_reports(wait_s=0.0) == []
    assert found.budget.spent_usd == pytest.approx(MOST_USD)
    with pytest.raises(RunFailed, match="crossover-small-train: Unhandled"):
        calls(Lambda(error="Unhandled"), 1.0).invoke("train", first_event("run", workers=1))


@pytest.mark.parametrize("end", [KeyboardInterrupt, RunFailed])
def test_functions_are_left_as_they_were(end: type[BaseException]) -> None:
    """A resized function has its former memory and timeout after the block, also if that raises and AWS refuses three requests."""
    client, seen = Lambda(), list[dict[str, Any]]()

    def interrupted() -> None:
        """Resize a function, note its settings, and end with an exception while the account refuses three requests."""
        with calls(client).resize("train", memory_mb=3_008, timeout_s=60):
            seen.append(client.now)
            client.busy = 3  # which the functions' own invocations cause
            raise end("over")

    with pytest.raises(end):
        interrupted()
    assert [*seen, client.now] == [{"MemorySize": 3_008, "Timeout": 60}, {"MemorySize": 1_769, "Timeout": 900}]


def test_a_function_that_could_not_be_left_as_it_was_is_named_with_what_mends_it() -> None:
    """A function whose former settings cannot be restored raises NotRestored with the command that does so."""
    client = Lambda()
    with pytest.raises(NotRestored, match=r"crossover-small-train --memory-size 1769 --timeout 900"):
        with calls(client).resize("train", memory_mb=3_008, timeout_s=60):
            client.busy = 99


def test_a_round_begins_only_if_the_whole_of_it_is_there() -> None:
    """A round whose invocations could exceed the budget raises BudgetTooSmall before any of them is made."""
    client = Lambda()
    found = calls(client, 3.5 * MOST_USD)
    found.check_affordable({"initialise": 1, "train": 2})
    with pytest.raises(BudgetTooSmall, match=r"a round of 4 invocations, .* could cost"):
        found.check_affordable({"initialise": 1, "train": 2, "collect": 1})
    assert (client.invoked, found.budget.spent_usd) == (0, 0.0)


def test_a_size_that_fails_leaves_the_others_to_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory size that AWS refuses, or that runs out of memory, is returned as unmeasured with its reason; the others are measured."""
    lambda_, stack = Lambda(largest=3_008), MagicMock(bucket="runs", data_buckets=())
    monkeypatch.setattr(measuring.DeployedParameters, "load", lambda *_: stack)
    monkeypatch.setattr(measuring, "find_run_under_way", lambda *_: None)
    monkeypatch.setattr(measuring, "prepare", lambda *_, **__: MagicMock())
    monkeypatch.setattr("crossover.stores.s3.S3ObjectStore", MagicMock())
    monkeypatch.setattr(usage, "wait_for_reports", lambda *_, **__: reported(f"r{lambda_.invoked}"))

    def one_round(found: StepInvoker, *_: object) -> None:
        """Invoke one function, which runs out of memory at 512 MB."""
        lambda_.error = "Runtime.OutOfMemory" if lambda_.now["MemorySize"] == 512 else ""
        found.invoke("train", first_event("run", workers=1))

    monkeypatch.setattr(StepInvoker, "run_round", one_round)
    experiment, budget = replace(read(CONFIG / "all-reduce-s3.yaml"), name="small"), BudgetTracker(1.0, prices.load())
    found = measuring.measure_sizes(
        experiment, "train", [512, 1_769, 7_076], session=lambda_, budget=budget, timeout_s=60, wait_s=0.0
    )
    first, second, third = found
    assert isinstance(first, UnmeasuredSize) and "Runtime.OutOfMemory" in first.reason
    assert isinstance(second, MeasuredSize) and second.memory_mb == 1_769
    assert isinstance(third, UnmeasuredSize) and "does not allow 7076 MB" in third.reason
    assert budget.spent_usd == pytest.approx(2 * BILLED_USD), "what was not used went back"
    assert lambda_.now == {"MemorySize": 1_769, "Timeout": 900}


def test_what_was_measured_is_told_whatever_ended_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sizes measured before an error of AWS are printed, with the cheapest one and what was spent; the error is raised."""

    def measured(*_: object, **__: object) -> Iterator[MeasuredSize | UnmeasuredSize]:
        """Yield one measured size, then raise an error of AWS."""
        yield MeasuredSize(1_769, 4, 2.0, 0.00004, 300)
        raise ClientError({"Error": {"Code": "ServiceException", "Message": "gone"}}, "Invoke")

    monkeypatch.setattr(measuring, "measure_sizes", measured)
    monkeypatch.setattr("crossover.running.monitor.renewing_session", lambda: (MagicMock(), None))
    monkeypatch.setattr("crossover.cli.advise.is_aws", lambda _: False)
    monkeypatch.setattr("crossover.advice.question.build_question", lambda _: (MagicMock(), None, ()))
    monkeypatch.setattr("crossover.advice.tuning.choose_sizes_to_measure", lambda *_: ("train", [1_769], 1.0))
    with pytest.raises(CrossoverError, match="ServiceException"):
        advise.print_measured_sizes(read(CONFIG / "all-reduce-s3.yaml"), 0.25, asks="")
    told = capsys.readouterr().out
    assert "cheapest size: functions.memory_mb: {train: 1769}" in told
    assert "memory sizes and timeouts are restored; spent at most" in told


def test_functions_that_a_program_starts_are_not_said_to_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring functions that a program starts raises ConfigError, which names the command that works without AWS."""
    monkeypatch.setattr(measuring.DeployedParameters, "load", lambda *_: None)
    experiment = read(CONFIG / "p2p-serverless.yaml")
    with pytest.raises(ConfigError, match="p2p_serverless are started by a program; only --tune memory without --on"):
        next(
            measuring.measure_sizes(
                experiment,
                "compute_gradient",
                [512],
                session=None,
                budget=BudgetTracker(1.0, prices.load()),
                timeout_s=60,
            )
        )


def test_the_tree_is_the_architectures_with_invocations_for_steps() -> None:
    """`map_steps` with remote steps keeps the architecture's tree, in which every step with code is an invocation."""
    tree, found = load("spirt").run, calls(Lambda(), 1.0)
    assert tree is not None
    remote = map_steps(tree, found.make_remote)
    names = [getattr(node, "name", type(node).__name__) for node in walk(tree)]
    assert [getattr(node, "name", type(node).__name__) for node in walk(remote)] == names
    assert {type(node) for node in walk(remote) if hasattr(node, "body") and hasattr(node, "module")} == {RemoteStep}


def test_one_round_is_an_epoch_of_as_many_samples() -> None:
    """An experiment reduced to one round has one epoch and as many samples as one round of all workers takes."""
    made = reduce_to_one_round(read(CONFIG / "all-reduce-cifar10.yaml"))
    assert (made.training.epochs, made.data.limit) == (1, 4 * 512)


def test_one_round_is_as_many_epochs_as_it_goes_through_on_whole_images() -> None:
    """A reduced experiment whose round spans two epochs keeps these two, and trains on images of full size."""
    local = ["exchange.what=model", "exchange.every=48", "training.epochs=4", "training.image_size.begin=16"]
    made = reduce_to_one_round(read(CONFIG / "all-reduce-cifar10.yaml", local))
    assert made.training.epochs == 2
    assert made.training.image_size.begin is None
    check_rounds(made, len(plan_staging(made, 50_000).counts[0]))


def test_without_a_budget_nothing_is_asked_of_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring without a budget raises UserError before any call of AWS."""
    monkeypatch.setattr(measuring, "measure_sizes", lambda *_, **__: pytest.fail("asked"))
    with pytest.raises(UserError, match="give the most dollars it may cost"):
        advise.print_measured_sizes(read(CONFIG / "all-reduce-s3.yaml"), None, asks="")
