"""The end of a run, however it comes: what is learned of the records afterwards, and what its folder says."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ParamValidationError, UnauthorizedSSOTokenError
from botocore.stub import Stubber

from crossover import runtime
from crossover.errors import Refused, RunFailed, Unavailable
from crossover.reports import display, folder, usage
from crossover.reports.usage import Report
from crossover.running.deployed import fetch_lambda_reports, start_execution
from crossover.running.monitor import AwsRetryPolicy, finish, follow, read_records, renewing_session
from crossover.running.preparing import PreparedRun, prepare
from crossover.stores.clients import MemoryClients
from crossover.stores.protocols import Traffic
from tests.architectures.harness import Proxy, small
from tests.clocks import Passing
from tests.unit.reports.example_run import spirt


class Ending:
    """An execution that raises each error once when it is polled, and has ended then. `stopped`: how often it was stopped."""

    def __init__(self, *errors: BaseException) -> None:
        """Keep the errors that polls raise, one each, in this order."""
        self._errors = list(errors)
        self.stopped = 0

    def has_ended(self) -> bool:
        """Raise the next error, or return True if none is left."""
        if self._errors:
            raise self._errors.pop(0)
        return True

    def stop(self) -> None:
        """Count that the execution was stopped."""
        self.stopped += 1


@pytest.fixture
def prepared() -> PreparedRun:
    """Return a prepared SPIRT run with one record."""
    objects = MemoryClients(workers=2, shared_tensors=False).objects(Traffic())
    found = prepare(small("spirt"), objects=objects, data=[objects])
    found.records["record"] = dict(spirt().records[0])
    return found


def test_an_execution_that_began_and_ended_while_its_answer_was_lost_is_followed(prepared: PreparedRun) -> None:
    """`start_execution` returns the execution's ARN if Step Functions says that this execution exists already."""
    states = boto3.client("stepfunctions", region_name="us-east-1")
    machine = "arn:aws:states:us-east-1:123456789012:stateMachine:x-run"
    with Stubber(states) as stub:
        stub.add_client_error("start_execution", "ExecutionAlreadyExists")  # boto3 had asked before, in vain
        arn = start_execution(prepared, states, machine, again=False)

    assert arn == f"arn:aws:states:us-east-1:123456789012:execution:x-run:{prepared.run}-0"


def billed(prepared: PreparedRun) -> None:
    """Complete the run's record by its billed milliseconds."""
    prepared.records["record"]["billed_ms"] = 7_000


def ended(prepared: PreparedRun, out: Path, error: BaseException, complete: Any) -> folder.RunFolder:
    """Finish a run that ended with the error, which is raised again, and return the folder that was written. `complete`: completes the
    records.
    """
    with pytest.raises(type(error)):
        finish(prepared, Ending(error), out, lambda progress: None, where="aws", complete=complete)
    return folder.read(out)


def test_what_cannot_be_learned_hides_no_failure(prepared: PreparedRun, tmp_path: Path) -> None:
    """A run that failed keeps its own failure if the reports on its invocations cannot be read."""

    def denied(prepared: PreparedRun) -> None:
        """Raise PermissionError in place of completing the records."""
        raise PermissionError("logs")

    run = ended(prepared, tmp_path, RunFailed("no memory left"), denied)
    assert run.result["failure"] == "no memory left" and "billed_ms" not in run.records[0]


@pytest.mark.parametrize("where", ["local", "aws"])
def test_what_was_killed_is_told_and_billed(
    prepared: PreparedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Lambda's reports on invocations without a record are counted in the result, with their GB-seconds, and named in its text. `where`:
    local or aws.
    """

    def reported(request_id: str, function: str) -> Report:
        """Return Lambda's report on a request of one of the experiment's functions."""
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
    monkeypatch.setattr(usage, "wait_for_reports", lambda session, stack, records, *, wait_s: found)
    run = ended(
        prepared, tmp_path, RunFailed("no memory left"), partial(fetch_lambda_reports, session=None, where=where)
    )
    assert run.result["unrecorded"] == {"count": 1, "gb_s": 6.0}
    assert ("billed_ms" in run.records[0]) == (where == "aws")  # here a report holds waits for a core
    assert "1 killed and billed without a record" in display.describe_attempts(run.result)


def test_ctrl_c_does_not_wait_for_reports(prepared: PreparedRun, tmp_path: Path) -> None:
    """A run that is interrupted ends as "interrupted" without fetching Lambda's reports."""
    run = ended(prepared, tmp_path, KeyboardInterrupt(), billed)
    assert run.result["failure"] == "interrupted" and "billed_ms" not in run.records[0]


# --- money: what ends the looking, and what does not ------------------------------------------------------------------


def refused(code: str, operation: str = "DescribeExecution", status: int = 400) -> ClientError:
    """Return the error with which AWS refuses an operation."""
    answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, operation)


def unread() -> Refused:
    """Return the error of a bucket that refused a read, with AWS's error as its cause."""
    error = Refused("s3://bucket/key: expired")
    error.__cause__ = refused("400", "HeadObject")
    return error


PASSING = [
    refused("ExpiredTokenException"),
    refused("ExpiredToken"),
    unread(),
    UnauthorizedSSOTokenError(),
    refused("ThrottlingException"),
    refused("InternalError", status=500),
    EndpointConnectionError(endpoint_url="https://states"),
    Unavailable("s3://bucket/key: gone"),
]


def test_what_passes_ends_neither_the_run_nor_the_looking(prepared: PreparedRun, tmp_path: Path) -> None:
    """Passing errors of AWS while a run is followed are tolerated: pauses grow to at most 60 s, and each kind is reported once."""
    renewed, told, pauses = list[int](), list[str](), list[float]()
    look = AwsRetryPolicy(lambda: renewed.append(1), tell=told.append, pause=pauses.append)
    execution = Ending(*PASSING)
    found = finish(prepared, execution, tmp_path, lambda progress: None, where="aws", retry=look)
    assert found.result["outcome"] == "finished" and execution.stopped == 0
    assert len(renewed) == len(PASSING) == len(pauses) and pauses == sorted(pauses) and max(pauses) <= 60
    assert ["sign in again" in words for words in told] == [True, False]  # each once


@pytest.mark.slow
@pytest.mark.parametrize(
    "error",
    [
        refused("AccessDeniedException", status=403),
        ParamValidationError(report="executionArn: 7"),
        OSError(28, "No space left"),
        KeyboardInterrupt(),
    ],
)
def test_whatever_else_ends_the_looking_stops_the_run(
    prepared: PreparedRun, tmp_path: Path, error: BaseException
) -> None:
    """Any other error while a run is followed is raised, and stops the execution once."""
    execution = Ending(error)
    look = AwsRetryPolicy(lambda: None, pause=lambda seconds: None)
    with pytest.raises(type(error)):
        finish(prepared, execution, tmp_path, lambda progress: None, where="aws", retry=look)
    assert execution.stopped == 1


def test_a_finished_run_is_kept_if_its_records_cannot_be_completed(prepared: PreparedRun, tmp_path: Path) -> None:
    """The error is raised, and the folder of the finished run is written all the same."""

    def deny(prepared: PreparedRun) -> None:
        """Raise PermissionError in place of completing the records."""
        raise PermissionError("logs")

    prepared.objects.put_new(prepared.keys.finished_marker, b"")
    with pytest.raises(PermissionError):
        finish(prepared, Ending(), tmp_path, lambda progress: None, where="aws", complete=deny)
    assert folder.read(tmp_path).result["outcome"] == "finished"


def test_a_run_that_failed_is_not_stopped(prepared: PreparedRun, tmp_path: Path) -> None:
    """An execution that failed raises RunFailed and is not stopped."""
    execution = Ending(RunFailed("no memory left"))
    with pytest.raises(RunFailed):
        finish(prepared, execution, tmp_path, lambda progress: None, where="aws")
    assert execution.stopped == 0


def test_a_run_that_is_finished_has_ended_well(prepared: PreparedRun, tmp_path: Path) -> None:
    """A run with a finished marker has the outcome "finished", even if its last execution failed."""
    prepared.objects.put_new(prepared.keys.finished_marker, b"")
    found = finish(prepared, Ending(RunFailed("gave way")), tmp_path, lambda progress: None, where="aws")
    assert found.result["outcome"] == "finished"


def test_a_stop_that_is_refused_hides_nothing(
    prepared: PreparedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If stopping fails after Ctrl-C, KeyboardInterrupt is raised all the same, the result is "interrupted", and stderr says how long the
    run may go on.
    """
    execution = Ending(KeyboardInterrupt())

    def stop() -> None:
        """Raise the error of an expired token."""
        raise refused("ExpiredTokenException")

    monkeypatch.setattr(execution, "stop", stop)
    with pytest.raises(KeyboardInterrupt):
        finish(prepared, execution, tmp_path, lambda progress: None, where="aws")
    assert "at most until its deadline" in capsys.readouterr().err
    assert folder.read(tmp_path).result["failure"] == "interrupted"


def test_clients_take_renewed_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients made before a new sign-in use its credentials once they are renewed; an unreadable file leaves the old ones in use."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")

    def sign_in(key: str) -> None:
        """Write a credentials file with this access key."""
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = s\naws_session_token = t\n")

    sign_in("AKIAOLD")
    session, renew = renewing_session()
    states, signed = session.client("stepfunctions"), list[str]()

    def sent(request: Any, **_: Any) -> None:
        """Note the access key that signed a request, and raise Unavailable in the place of sending it."""
        signed.append(request.headers["Authorization"].decode().split("Credential=")[1].split("/")[0])
        raise Unavailable("not sent")

    states.meta.events.register("before-send.sfn.DescribeExecution", sent)
    for key in ("AKIAOLD", "AKIANEW"):
        sign_in(key)
        renew()
        with pytest.raises(Unavailable):
            states.describe_execution(executionArn="arn:aws:states:us-east-1:123456789012:execution:m:e")
    file.write_text("[def")  # half written: the ones in hand stay
    renew()
    with pytest.raises(Unavailable):
        states.describe_execution(executionArn="arn:aws:states:us-east-1:123456789012:execution:m:e")
    assert signed == ["AKIAOLD", "AKIANEW", "AKIANEW"]


def test_a_mark_that_goes_while_it_is_looked_at_is_no_failure(prepared: PreparedRun) -> None:
    """A mark of an invocation that is deleted between its listing and its reading is skipped, and the others are returned."""
    objects, mark = prepared.objects, spirt().records[0]
    objects.put(prepared.keys.mark("ended"), [memoryview(b"{}")])
    objects.put(prepared.keys.mark("going-on"), [memoryview(json.dumps(mark).encode())])

    def hook(moment: str, operation: str) -> None:
        """Delete the mark before the first read."""
        if (moment, operation) == ("before", "get"):
            objects.delete(prepared.keys.mark("ended"))

    prepared.objects = Proxy(objects, hook)
    read_records(prepared)
    assert prepared.under_way == [mark]


def test_whoever_follows_a_run_looks_four_times_a_second(prepared: PreparedRun) -> None:
    """`follow` polls an execution four times per second, which docs/correctness.md promises."""
    clock, looks = Passing(), list[float]()

    class Lasting(Ending):
        """An execution that ends after a minute of the clock and notes the time of each poll."""

        def has_ended(self) -> bool:
            """Note the clock's time; return whether a minute has passed."""
            looks.append(clock.now_s)
            return clock.now_s >= 60.0

    with runtime.use(clock):
        follow(prepared, Lasting(), lambda progress: None)
    assert len(looks) == 4 * 60 + 1
