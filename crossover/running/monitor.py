"""Following a run until it ends: retries, progress, budget, and runs that continue without their command."""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from crossover import runtime
from crossover.data import deployed_clients, documents, encoding
from crossover.data.deployed_clients import EXPIRED_CODES, get_error_code
from crossover.data.keys import CURRENT_DEADLINE, Keys, current_run
from crossover.data.protocols import ObjectStore, Traffic
from crossover.errors import DISK_FULL_ERRNOS, ConfigError, CrossoverError, RunFailed, Unavailable, UserError
from crossover.experiment import Experiment, Metric
from crossover.reports import spending
from crossover.reports.bill import Cost
from crossover.reports.folder import RunFolder, move_aside, train_losses
from crossover.reports.spending import BudgetReached
from crossover.running import resume as resumption
from crossover.running.preparing import Prepared
from crossover.running.results import bill_so_far, write_folder
from crossover.training.fleet import POINTER
from crossover.training.progress import DECISION, calendar, calendar_of
from crossover.validation.combinations import too_many
from crossover.workflow import infrastructure
from crossover.workflow.architecture import architecture_of
from crossover.workflow.context import RunFacts
from crossover.workflow.state_machines import ARRAY_LIMIT

# --- patience ---------------------------------------------------------------------------------------------------------

T = TypeVar("T")


class RetryPolicy(Protocol):
    """A retry policy for calls to AWS: calls `work` and returns its result."""

    def __call__(self, work: Callable[[], T]) -> T: ...


EXPIRED_CREDENTIALS = EXPIRED_CODES | {"RequestExpired", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
THROTTLING_CODES = {"Throttling", "ThrottlingException", "TooManyRequestsException", "RequestLimitExceeded", "SlowDown"}
PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0

TROUBLE_MESSAGES = {
    "credentials": "AWS no longer accepts the credentials; the run continues, and this command continues after you renew them: sign in "
    "again (aws sso login). Credentials in the environment cannot be changed from outside: set new ones in another terminal and repeat the "
    "command there, which follows the run",
    "network": "AWS does not answer; the run continues, and this command tries again",
}


def no_retry(work: Callable[[], T]) -> T:
    """Call `work` without retries."""
    return work()


class AwsRetryPolicy:
    """A retry policy that waits for the network and for renewed credentials. `renew`: reads the credentials again; `tell`: reports each
    kind of problem once per call; `pause`: sleeps.
    """

    def __init__(
        self,
        renew: Callable[[], None],
        *,
        tell: Callable[[str], None] = lambda words: print(words, file=sys.stderr, flush=True),
        pause: Callable[[float], None] = runtime.sleep,
    ) -> None:
        self._renew, self._tell, self._pause = renew, tell, pause

    def __call__(self, work: Callable[[], T]) -> T:
        """Call `work` until it succeeds and return its result. Errors that waiting cannot fix are raised."""
        told, pause_s = set[str](), PAUSE_S
        while True:
            try:
                return work()
            except Exception as error:
                trouble = classify_error(error)
                if not trouble:
                    raise
                if trouble not in told:
                    told.add(trouble)
                    self._tell(f"{TROUBLE_MESSAGES[trouble]} ({error})")
            self._pause(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            self._renew()


def classify_error(error: BaseException) -> str:
    """Return the temporary problem behind the error, `credentials` or `network`; "" if the error would occur again."""
    for each in _list_causes(error):
        if isinstance(each, Unavailable):
            return "network"
        if isinstance(each, ClientError):
            code = get_error_code(each)
            status = int(each.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            unsaid = each.operation_name == "HeadObject" and code in ("400", "403")  # an answer without a body
            if code in EXPIRED_CREDENTIALS or unsaid:
                return "credentials"
            return "network" if code in THROTTLING_CODES or status >= 500 else ""
        if isinstance(each, ParamValidationError):  # the client refuses it without sending it, every time
            return ""
        if isinstance(each, BotoCoreError):
            return "credentials" if any(word in type(each).__name__ for word in ("Token", "Credential")) else "network"
    return ""


def _list_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error, its cause, the cause of that, and so on."""
    while error is not None:
        yield error
        error = error.__cause__


class RenewableCredentials(Credentials):
    """Credentials that all clients of a session share and that can be read again while they are in use. `read`: reads them."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self._read, self._found = read, read()

    def renew(self) -> None:
        """Read the credentials again. The old ones stay if there are none to read."""
        try:
            self._found = self._read() or self._found
        except BotoCoreError:  # a half-written profile or an expired sign-in: the next poll reads again
            return

    def get_frozen_credentials(self) -> Any:
        """Return the current credentials in botocore's frozen form."""
        return self._found.get_frozen_credentials()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the current credentials: access_key, secret_key, token, method, account_id."""
        return getattr(self._found, name)


def renewing_session() -> tuple[Any, Callable[[], None]]:
    """Return a boto3 session from the environment, AWS_PROFILE included, and a function that reads its credentials again."""
    import boto3

    session = boto3.Session()
    if session.get_credentials() is None:
        return session, lambda: None
    renewed = RenewableCredentials(lambda: boto3.Session().get_credentials())
    plain: Any = session
    plain._session._credentials = renewed  # botocore puts its own refreshing credentials there, too
    return session, renewed.renew


# --- stack ------------------------------------------------------------------------------------------------------------
# The parameters that an experiment's stack published, and whether a run fits it.


@dataclass(frozen=True)
class Deployed:
    """The parameters that an experiment's stack published, found by project and experiment alone. `fleet`: name of the fleet if programs
    run, else ""; `shape`: the settings that were fixed by the deployment.
    """

    bucket: str
    run_machine: str  # "" if programs run; then `fleet` is set
    fleet: str
    data_buckets: tuple[str, ...]
    shape: Mapping[str, Any]

    def check(self, prepared: Prepared) -> None:
        """Raise ConfigError if the prepared run does not fit the deployed stack: map modes, database hosts and layers were fixed by the
        deployment.
        """
        experiment, most = prepared.experiment, self.shape["minibatches"]
        asked = {
            "architecture": experiment.architecture,
            "compute": experiment.database.compute,
            "channel": experiment.storage.channel,
        }
        wrong = [
            f"{name}: {asked[name]!r}, deployed {self.shape[name]!r}"
            for name in asked
            if asked[name] != self.shape[name]
        ]
        if experiment.workers > self.shape["workers"]:
            wrong.append(f"workers: {experiment.workers}, deployed for {self.shape['workers']}")
        side_by_side = calendar(RunFacts.from_json(prepared.facts)).count_parallel(0)
        if most is not None and side_by_side > most:
            wrong.append(f"minibatches side by side: {side_by_side}, deployed for {most}")
        if side_by_side > ARRAY_LIMIT and infrastructure.has_minibatch_map(prepared.architecture):
            raise ConfigError(too_many(experiment, side_by_side))
        if wrong:
            raise ConfigError("; ".join(wrong) + "; crossover deploy with the same file updates it")

    @classmethod
    def load(cls, experiment: Experiment, session: Any) -> "Deployed":
        """Read the parameters of the experiment's stack. Raises ConfigError if it is not deployed."""
        found = deployed_clients.read_parameters(session, f"/crossover/{experiment.project}/{experiment.name}/")
        if "bucket" not in found or not {"run_machine", "fleet"} & found.keys():
            raise ConfigError(
                f"{experiment.name}: not deployed in project {experiment.project}; "
                "crossover deploy with the same file does that"
            )
        buckets = tuple(found.get("data_buckets", "").split())
        return cls(
            found["bucket"], found.get("run_machine", ""), found.get("fleet", ""), buckets, json.loads(found["shape"])
        )


# --- following --------------------------------------------------------------------------------------------------------
# From a started execution to its end: progress, records, the budget, and the folder after any end.

POLL_S = 0.25
BUDGET_POLL_S = 5.0
DEADLINE_EVERY_S = 60.0  # between two writes of the deadline


@dataclass(frozen=True)
class Progress:
    """The state of a run after an epoch. `seconds`: since this command began to follow it; `usd`: cost so far, at AWS's prices for what was
    recorded.
    """

    epoch: int
    epochs: int
    train_loss: float | None
    val_loss: float
    val_metric: float
    metric: Metric
    seconds: float
    usd: float | None


OnProgress = Callable[[Progress], None]
CompleteRecords = Callable[[Prepared], None]  # adds to the records after the run has ended


RunCheck = Callable[[], None]  # raises if something other than the run itself prevents it from continuing


def skip_check() -> None:
    """Do nothing. The default check, if only the run itself can fail."""


def skip_completion(prepared: Prepared) -> None:
    """Do nothing. The default for runs whose own records are complete."""


def save_then_report(keep: Callable[[], None], tell: OnProgress) -> OnProgress:
    """Return a progress callback that calls `keep`, then `tell`, so that an epoch is reported only after it has been saved."""

    def save_and_report(progress: Progress) -> None:
        """Save, then report."""
        keep()
        tell(progress)

    return save_and_report


class Execution(Protocol):
    """Protocol of what carries out a run, such as a state machine's execution."""

    def has_ended(self) -> bool:
        """Return whether the run has succeeded; False while it runs. Raises RunFailed with its cause in plain words."""

    def stop(self) -> None:
        """End the run's execution."""


def finish(
    prepared: Prepared,
    execution: Execution,
    out: Path,
    on_progress: OnProgress,
    *,
    where: str,
    complete: CompleteRecords = skip_completion,
    retry: RetryPolicy = no_retry,
) -> RunFolder:
    """Follow the execution of the run `prepared` to its end, write the run's folder `out`, and return it. The folder of a failed or
    interrupted run is written too; then its error is raised.

    `on_progress`: called after each epoch; `where`: inline, local or aws, which first moves an older folder `out` aside; `complete`: adds
    what only the platform knows, after the run, unless the user interrupted it; `retry`: retry policy for calls to AWS.
    """
    if where == "aws":  # on this machine that happened before the run started
        move_aside(out, prepared.run)
    try:
        follow(prepared, execution, on_progress, retry=retry)
    except KeyboardInterrupt:  # a user who pressed Ctrl-C does not want to wait for logs
        write_folder(prepared, out, where=where, failure="interrupted")
        raise
    except Exception as error:
        write_folder(prepared, out, where=where, failure=str(error))  # first: the rest can fail or be interrupted
        with suppress(Exception):  # the run's own failure is the one to report
            complete(prepared)
            write_folder(prepared, out, where=where, failure=str(error))
        raise
    retry(lambda: complete(prepared))
    return retry(lambda: _write_somewhere(prepared, out, where=where))


def _write_somewhere(prepared: Prepared, out: Path, *, where: str) -> RunFolder:
    """Write the finished run's folder. If its disk is full, write it into a temporary folder, so that the trained model is not lost, and
    raise UserError.
    """
    try:
        return write_folder(prepared, out, where=where)
    except OSError as error:
        if error.errno not in DISK_FULL_ERRNOS:
            raise
        elsewhere = Path(tempfile.mkdtemp(prefix=f"crossover-{prepared.experiment.name}-"))
        try:
            write_folder(prepared, elsewhere, where=where)
        except OSError:
            shutil.rmtree(elsewhere, ignore_errors=True)
            raise error from None
        raise UserError(
            f"{out}: {error.strerror}; the run is finished, and its folder is {elsewhere}: move it to a disk with space"
        ) from error


def follow(prepared: Prepared, execution: Execution, on_progress: OnProgress, *, retry: RetryPolicy = no_retry) -> None:
    """Read the new records and decisions of `prepared` until the execution ends, and call `on_progress` after each epoch.

    Any other end, such as Ctrl-C or an exhausted budget, stops the execution first. `retry`: retry policy for calls to
    AWS. Raises RunFailed, BudgetReached.
    """
    try:
        _poll_until_end(prepared, execution, on_progress, retry)
    except (RunFailed, ConfigError):  # it has ended
        _read_remaining(prepared)
        raise
    except BaseException as error:
        _stop(execution, why=error)
        _read_remaining(prepared)
        raise
    _check_budget(prepared)


def _poll_until_end(prepared: Prepared, execution: Execution, on_progress: OnProgress, retry: RetryPolicy) -> None:
    """Poll the execution until it ends; report each epoch, check the budget, and extend the run's deadline."""
    started = looked = put = runtime.monotonic()
    limit_usd = prepared.experiment.lifetime.budget_usd
    while True:
        ended = retry(partial(has_ended, prepared, execution))
        while retry(lambda: _read_next_decision(prepared)):
            retry(lambda: read_records(prepared))
            on_progress(_make_progress(prepared, seconds=runtime.monotonic() - started))
        if ended:
            return retry(lambda: read_records(prepared))
        if limit_usd is not None and runtime.monotonic() - looked > BUDGET_POLL_S:
            looked = runtime.monotonic()
            retry(lambda: read_records(prepared))
            now = runtime.time()
            usd = bill_so_far(prepared, now=now).until(now).full_usd
            spending.check_budget(limit_usd, usd)
            if looked - put > DEADLINE_EVERY_S:  # the dollars not spent allow more time
                put = looked
                retry(partial(extend_deadline, prepared, usd=usd))
        runtime.sleep(POLL_S)


def has_ended(prepared: Prepared, execution: Execution) -> bool:
    """Return True if the run has succeeded, False while it runs. Raises RunFailed if its execution failed, unless the run is marked as
    finished: that execution only failed to clean up, or was stopped late.
    """
    try:
        return execution.has_ended()
    except RunFailed:
        with suppress(CrossoverError):  # the execution's failure matters more than this error
            if prepared.objects.exists(prepared.keys.finished_marker):
                return True
        raise


def _read_remaining(prepared: Prepared) -> None:
    """Read the last decisions and records. If they cannot be read any more, those read before remain."""
    with suppress(CrossoverError):
        catch_up(prepared)


def catch_up(prepared: Prepared) -> None:
    """Read all decisions and records that exist now."""
    while _read_next_decision(prepared):
        pass
    read_records(prepared)


def _stop(execution: Execution, *, why: BaseException) -> None:
    """Stop the execution. If that fails, note it on the error `why` and print it; the run's deadline ends the run in any case."""
    try:
        execution.stop()
    except Exception as error:
        why.add_note(f"the execution could not be stopped: {error}")
        print(f"the run could not be stopped and continues, at most until its deadline: {error}", file=sys.stderr)


def extend_deadline(prepared: Prepared, *, usd: float | None = None) -> None:
    """Write the time until which the run may continue without its command. `usd`: cost so far, None to compute it."""
    if usd is None:
        read_records(prepared)  # of a run that is resumed
        now = runtime.time()
        usd = bill_so_far(prepared, now=now).until(now).full_usd
    facts, money = prepared.facts, prepared.facts.get("money", {})
    spending.write_deadline(
        prepared.objects, prepared.keys, prepared.experiment, money, began=facts["created_at"], usd=usd
    )


def begin_deadline(prepared: Prepared) -> None:
    """Write the run's first deadline and mark it as the current one, before anything is started."""
    extend_deadline(prepared)
    prepared.objects.put(CURRENT_DEADLINE, prepared.keys.deadline(prepared.facts["created_at"]).encode())


def _check_budget(prepared: Prepared) -> None:
    """Raise BudgetReached if the last decision ended the run because of its budget."""
    last = prepared.decisions[-1] if prepared.decisions else {}
    if str(last.get("reason", "")).startswith("budget: "):
        raise BudgetReached(last["over_budget"])


def _read_next_decision(prepared: Prepared) -> bool:
    """Read the next decision into `prepared` if it exists, and return whether it did."""
    days = calendar_of(prepared.experiment, prepared.facts["data_manifest"])
    number = len(prepared.decisions) + 1
    key = prepared.keys.decision(days.epoch_of_decision(number))
    if number > days.decisions or not prepared.objects.exists(key):
        return False
    prepared.decisions.append(documents.read_document(prepared.objects, key, DECISION))
    return True


def read_records(prepared: Prepared) -> None:
    """Read records that are new since the last call, and the usage snapshots of invocations without a record."""
    prepared.under_way = spending.read_records(prepared.objects, prepared.keys, prepared.records)


def _make_progress(prepared: Prepared, *, seconds: float) -> Progress:
    """Return the progress after the last decision. `seconds`: since following began."""
    decision = prepared.decisions[-1]
    return Progress(
        epoch=decision["epoch"],
        epochs=prepared.experiment.training.epochs,
        train_loss=train_losses(list(prepared.records.values())).get(decision["epoch"]),
        val_loss=decision["val_loss"],
        val_metric=decision["val_metric"],
        metric=prepared.experiment.training.metric,
        seconds=seconds,
        usd=bill_so_far(prepared, now=runtime.time()).until(decision["at"]).full_usd,
    )


# --- unattended -------------------------------------------------------------------------------------------------------
# Runs without a command, for example because it was killed.


@dataclass(frozen=True)
class UnderWay:
    """Id of a run that works on AWS, perhaps after the command that started it has ended. `arn`: of its execution; "" if programs on
    instances carry it out.
    """

    run: str
    arn: str


def find_run_under_way(experiment: Experiment, session: Any) -> UnderWay | None:
    """Return the run that the deployed experiment is working on, None if there is none. Raises ConfigError if the experiment is not
    deployed.
    """
    facts = Deployed.load(experiment, session)
    if facts.run_machine:
        listed = session.client("stepfunctions").list_executions(
            stateMachineArn=facts.run_machine, statusFilter="RUNNING"
        )["executions"]
        return UnderWay(listed[0]["name"].rpartition("-")[0], listed[0]["executionArn"]) if listed else None
    groups = session.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[facts.fleet])
    s3 = session.client("s3")
    if not any(group["DesiredCapacity"] for group in groups["AutoScalingGroups"]):
        return None
    with suppress(s3.exceptions.NoSuchKey):
        told = s3.get_object(Bucket=facts.bucket, Key=current_run(facts.fleet))["Body"].read()
        return UnderWay(encoding.read_plain(told, POINTER, key=current_run(facts.fleet))["run"], "")
    return None


def attach_to_run(run: str, experiment: Experiment, *, objects: ObjectStore, resume: str) -> Prepared:
    """Return the run with the id `run`, which is under way in `objects`, in the form in which `prepare` returned it.

    `resume`: id that the user asked for, "" for none. Raises UserError if the run is not the one asked for, or has
    other settings than `experiment`.
    """
    if resume and resume != run:
        raise UserError(f"--resume {resume}: run {run} is under way, and only one can run; --resume {run} follows it")
    facts = documents.read_document(objects, Keys(run).experiment)
    there, architecture = resumption.load_experiment(facts), architecture_of(experiment)
    if not resume and (differing := resumption.list_differing_settings(architecture.resolve(experiment), there)):
        raise UserError(
            f"run {run} is under way with other settings: {', '.join(differing)}; --resume {run} follows that one to its end"
        )
    return Prepared(run, there, architecture, objects, facts)


def load_run_with_cost(found: UnderWay, experiment: Experiment, session: Any, *, now: float) -> tuple[Prepared, Cost]:
    """Return the run under way that was `found`, with all records it has written, and its cost until `now` (unix
    seconds), as the run's own lines report it.

    `experiment`: the deployed one; `session`: makes the AWS clients.
    """
    from crossover.data.s3 import SETTINGS, S3ObjectStore

    objects = S3ObjectStore(
        Deployed.load(experiment, session).bucket, Traffic(), client=session.client("s3", config=SETTINGS)
    )
    prepared = attach_to_run(found.run, experiment, objects=objects, resume=found.run)
    catch_up(prepared)
    return prepared, bill_so_far(prepared, now=now).until(now)
