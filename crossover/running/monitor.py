"""Following a run until it ends: retries, progress, budget, and runs that continue without their command."""

import json
import shutil
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
from crossover.errors import (
    DISK_FULL_ERRNOS,
    ConfigError,
    CrossoverError,
    RunFailed,
    Unavailable,
    UserError,
    print_line,
)
from crossover.experiment import Experiment, Metric
from crossover.reports import spending
from crossover.reports.bill import Cost
from crossover.reports.folder import RunFolder, move_aside, train_losses
from crossover.reports.spending import BudgetReached
from crossover.running import resume as resumption
from crossover.running.preparing import PreparedRun
from crossover.running.results import bill_so_far, write_folder
from crossover.stores import deployed_clients, documents, encoding
from crossover.stores.deployed_clients import EXPIRED_CODES, get_error_code
from crossover.stores.keys import CURRENT_DEADLINE, Keys, current_run
from crossover.stores.protocols import ObjectStore, Traffic
from crossover.training.fleet import POINTER
from crossover.training.progress import DECISION, calendar, calendar_of
from crossover.validation.combinations import explain_too_many_minibatches
from crossover.workflow import infrastructure
from crossover.workflow.architecture import architecture_of
from crossover.workflow.context import RunConfiguration
from crossover.workflow.state_machines import ARRAY_LIMIT

# --- patience ---------------------------------------------------------------------------------------------------------

T = TypeVar("T")


class RetryPolicy(Protocol):
    """A policy for calls to AWS that fail. Such an object is called with a function `work`, calls it, perhaps several times, and returns
    its result.
    """

    def __call__(self, work: Callable[[], T]) -> T:
        """Call `work`, again after errors that the policy retries, and return its result. Other errors are raised unchanged. `work`: must
        be safe to repeat.
        """


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
    """Call `work` once and return its result. The policy of retrying nothing."""
    return work()


class AwsRetryPolicy:
    """A retry policy that waits for the network and for renewed credentials. `policy(work)` calls `work` until it succeeds, without a limit
    of attempts, and returns its result. `renew`: reads the credentials again; keyword-only: `tell`: reports a problem, each kind of problem
    once per call; `pause`: sleeps for a number of seconds.
    """

    def __init__(
        self,
        renew: Callable[[], None],
        *,
        tell: Callable[[str], None] = lambda words: print_line(words, stderr=True),
        pause: Callable[[float], None] = runtime.sleep,
    ) -> None:
        """Store the functions `renew` (reads the credentials again), `tell` (reports a problem) and `pause` (sleeps for seconds)."""
        self._renew, self._tell, self._pause = renew, tell, pause

    def __call__(self, work: Callable[[], T]) -> T:
        """Call `work` until it succeeds and return its result. The number of attempts is not limited; pauses between them grow from 1 s up
        to LONGEST_PAUSE_S, and the credentials are read again after each. Errors that waiting cannot fix are raised at once.
        """
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
    """Return `credentials` or `network` if the error, or an error that caused it, has such a temporary reason; "" if the call would fail
    again.
    """
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
    """Yield the error, then the error that caused it (`__cause__`), and so on to the first one. Yields nothing for None."""
    while error is not None:
        yield error
        error = error.__cause__


class RenewableCredentials(Credentials):
    """AWS credentials that all clients of a session share and that can be read again while they are in use. `read`: function that reads
    credentials in boto3's form.
    """

    def __init__(self, read: Callable[[], Any]) -> None:
        """Read the credentials for the first time. `read`: function that reads credentials in boto3's form."""
        self._read, self._found = read, read()

    def renew(self) -> None:
        """Read the credentials again. The present ones are kept if none can be read."""
        try:
            self._found = self._read() or self._found
        except BotoCoreError:  # a half-written profile or an expired sign-in: the next poll reads again
            return

    def get_frozen_credentials(self) -> Any:
        """Return the present credentials as botocore's immutable triple of access key, secret key and token."""
        return self._found.get_frozen_credentials()

    def __getattr__(self, name: str) -> Any:
        """Return the attribute `name` of the present credentials, such as access_key, secret_key, token, method or account_id."""
        return getattr(self._found, name)


def renewing_session() -> tuple[Any, Callable[[], None]]:
    """Return a boto3 session for the credentials of the environment or of AWS_PROFILE, and a function that reads these credentials again
    for all clients of the session. The function does nothing if there are no credentials.
    """
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
class DeployedParameters:
    """The values that an experiment's deployed stack has published as SSM parameters; `load` reads them.

    `bucket`, `data_buckets`: names of the bucket for the run and of those for the data, if they are separate, else (); `run_machine`: ARN
    of the state machine that carries out runs, "" if programs on instances do; `fleet`: then the name of their Auto Scaling group, else "";
    `shape`: settings that the deployment fixed: {"architecture", "compute", "channel", "workers", "minibatches"}, the last two as the most
    workers and parallel minibatches; "minibatches" is None without functions.
    """

    bucket: str
    run_machine: str  # "" if programs run; then `fleet` is set
    fleet: str
    data_buckets: tuple[str, ...]
    shape: Mapping[str, Any]

    def check(self, prepared: PreparedRun) -> None:
        """Raise ConfigError if the deployed stack cannot carry out the run `prepared`: if it has another architecture, compute or channel
        setting, or if the run has more workers or parallel minibatches than it was deployed for. The message names each difference. If the
        run has more parallel minibatches than a state machine can list (ARRAY_LIMIT), the message names this alone.
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
        side_by_side = calendar(RunConfiguration.from_json(prepared.facts)).count_parallel(0)
        if most is not None and side_by_side > most:
            wrong.append(f"minibatches side by side: {side_by_side}, deployed for {most}")
        if side_by_side > ARRAY_LIMIT and infrastructure.has_minibatch_map(prepared.architecture):
            raise ConfigError(explain_too_many_minibatches(experiment, side_by_side))
        if wrong:
            raise ConfigError("; ".join(wrong) + "; crossover deploy with the same file updates it")

    @classmethod
    def load(cls, experiment: Experiment, session: Any) -> "DeployedParameters":
        """Read the parameters that the experiment's stack has published. Raises ConfigError if the experiment is not deployed. `session`:
        makes the AWS clients.
        """
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

POLL_S = 0.25  # between two looks at a run, on this machine and on AWS alike
BUDGET_POLL_S = 5.0
DEADLINE_EVERY_S = 60.0  # between two writes of the deadline


@dataclass(frozen=True)
class Progress:
    """The state of a run after an epoch. `epoch`, `epochs`: number of the epoch, from 1, and of all epochs; `train_loss`: mean loss of the
    epoch's training, None if none is known; `val_loss`, `val_metric`: loss and `metric` on the validation set; `seconds`: time since this
    command began to follow the run; `usd`: cost so far at AWS's prices, None if it is unknown.
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
CompleteRecords = Callable[[PreparedRun], None]  # adds to the records after the run has ended


RunCheck = Callable[[], None]  # raises if something other than the run itself prevents it from continuing


def skip_check() -> None:
    """Do nothing. The default for a check that is called at every poll of a run, if only the run itself can fail."""


def skip_completion(prepared: PreparedRun) -> None:
    """Do nothing. The default for the step that completes a run's records, if they are complete already."""


def save_then_report(save: Callable[[], None], report: OnProgress) -> OnProgress:
    """Return a function for an epoch's progress that calls `save`, which saves the run's state, then `report` with the progress. An epoch
    is thus reported only after it has been saved; if `save` raises, it is not reported.
    """

    def save_and_report(progress: Progress) -> None:
        """Save the run's state, then report `progress`."""
        save()
        report(progress)

    return save_and_report


class Execution(Protocol):
    """Interface of the thing that carries out a run and can be polled and stopped, such as an execution of a state machine."""

    def has_ended(self) -> bool:
        """Return True if the run has succeeded, False while it runs. If it failed, raise RunFailed with the cause in plain words, or the
        UserError (such as ConfigError) that caused it. May be called at any time and repeatedly. Errors of requests to AWS pass.
        """

    def stop(self) -> None:
        """Stop the execution before its end. May return before it has ended. Errors of requests to AWS pass."""


def finish(
    prepared: PreparedRun,
    execution: Execution,
    out: Path,
    on_progress: OnProgress,
    *,
    where: str,
    complete: CompleteRecords = skip_completion,
    retry: RetryPolicy = no_retry,
) -> RunFolder:
    """Follow the execution of the run `prepared` to its end, write its results folder `out`, and return it. If the run fails, reaches its
    budget or is interrupted, the execution is stopped, the folder is written with the results so far, and the error is raised.

    `on_progress`: called after each epoch; `where`: inline, local or aws; for aws, the files of an earlier run in `out` are moved aside
    first. `complete`: adds to the records what only the platform knows, after the run, unless the user interrupted it; `retry`: retry
    policy for calls to AWS. If `complete` fails after a run that succeeded, its error is raised after the folder is written. If the disk of
    `out` is full, UserError names the temporary folder that holds the results.
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
    try:
        retry(lambda: complete(prepared))
    finally:  # the trained model is not lost because the platform does not tell its seconds
        found = retry(lambda: _write_somewhere(prepared, out, where=where))
    return found


def _write_somewhere(prepared: PreparedRun, out: Path, *, where: str) -> RunFolder:
    """Write the results folder `out` of the finished run `prepared`, and return it. If its disk is full, write a temporary folder instead,
    so that the trained model is not lost, and raise UserError with its path. `where`: inline, local or aws.
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


def follow(
    prepared: PreparedRun, execution: Execution, on_progress: OnProgress, *, retry: RetryPolicy = no_retry
) -> None:
    """Poll the execution of the run `prepared` until it ends, collect the run's records, and call `on_progress` after each epoch.

    If anything but the execution ends this, such as Ctrl-C or an exhausted budget, the execution is stopped. `retry`: retry policy for
    calls to AWS. Raises RunFailed if the run failed, BudgetReached if it ended because of its budget.
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


def _poll_until_end(prepared: PreparedRun, execution: Execution, on_progress: OnProgress, retry: RetryPolicy) -> None:
    """Poll the execution every POLL_S until it has ended. Meanwhile report each epoch to `on_progress`, and if the run has a budget,
    compare the cost with it and put off the run's deadline while money is left. Raises BudgetReached if the budget is exceeded, and the
    errors of the execution.
    """
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
            usd = bill_so_far(prepared, now=now).cost_until(now).full_usd
            spending.check_budget(limit_usd, usd)
            if looked - put > DEADLINE_EVERY_S:  # the dollars not spent allow more time
                put = looked
                retry(partial(extend_deadline, prepared, usd=usd))
        runtime.sleep(POLL_S)


def has_ended(prepared: PreparedRun, execution: Execution) -> bool:
    """Return True if the run has succeeded, False while it runs. Raises RunFailed if its execution failed, unless the run is marked as
    finished in its store: then only cleaning up failed.
    """
    try:
        return execution.has_ended()
    except RunFailed:
        with suppress(CrossoverError):  # the execution's failure matters more than this error
            if prepared.objects.exists(prepared.keys.finished_marker):
                return True
        raise


def _read_remaining(prepared: PreparedRun) -> None:
    """Read the decisions and records that the run wrote last. Errors are ignored; what was read before remains."""
    with suppress(CrossoverError):
        read_all_progress(prepared)


def read_all_progress(prepared: PreparedRun) -> None:
    """Read into `prepared` all decisions (one for each epoch or round that was evaluated) and all records that the run has
    written so far.
    """
    while _read_next_decision(prepared):
        pass
    read_records(prepared)


def _stop(execution: Execution, *, why: BaseException) -> None:
    """Stop the execution. If that fails, add a note to the error `why`, which is about to be raised, and print it. The run's deadline then
    ends the run.
    """
    try:
        execution.stop()
    except Exception as error:
        why.add_note(f"the execution could not be stopped: {error}")
        print_line(f"the run could not be stopped and continues, at most until its deadline: {error}", stderr=True)


def extend_deadline(prepared: PreparedRun, *, usd: float | None = None) -> None:
    """Write into the run's store the time until which the run may continue without its command: the end of its maximum duration, or earlier
    the time at which it could have spent its budget. `usd`: cost of the run so far; None reads the records and computes it.
    """
    if usd is None:
        read_records(prepared)  # of a run that is resumed
        now = runtime.time()
        usd = bill_so_far(prepared, now=now).cost_until(now).full_usd
    facts, money = prepared.facts, prepared.facts.get("money", {})
    spending.write_deadline(
        prepared.objects, prepared.keys, prepared.experiment, money, began=facts["created_at"], usd=usd
    )


def write_first_deadline(prepared: PreparedRun) -> None:
    """Write the run's first deadline, until which it may continue without its command, and make it the one that the stack's deadline check
    reads. Called before anything is started.
    """
    extend_deadline(prepared)
    prepared.objects.put(CURRENT_DEADLINE, prepared.keys.deadline(prepared.facts["created_at"]).encode())


def _check_budget(prepared: PreparedRun) -> None:
    """Raise BudgetReached if the run's last decision says that training ended because of the budget."""
    last = prepared.decisions[-1] if prepared.decisions else {}
    if str(last.get("reason", "")).startswith("budget: "):
        raise BudgetReached(last["over_budget"])


def _read_next_decision(prepared: PreparedRun) -> bool:
    """Append the run's next decision (whether training continues after an epoch, and the metric) to `prepared` if it has been written.
    Returns whether it has. Raises Corrupt if it is damaged.
    """
    days = calendar_of(prepared.experiment, prepared.facts["data_manifest"])
    number = len(prepared.decisions) + 1
    key = prepared.keys.decision(days.epoch_of_decision(number))
    if number > days.decisions or not prepared.objects.exists(key):
        return False
    prepared.decisions.append(documents.read_document(prepared.objects, key, DECISION))
    return True


def read_records(prepared: PreparedRun) -> None:
    """Read into `prepared` the records of invocations that were written since the last call, and replace the usage snapshots of invocations
    that still have no record.
    """
    prepared.under_way = spending.read_records(prepared.objects, prepared.keys, prepared.records)


def _make_progress(prepared: PreparedRun, *, seconds: float) -> Progress:
    """Return the progress of the run at its last decision, with the cost until then. `seconds`: time since this command began to follow the
    run.
    """
    decision = prepared.decisions[-1]
    return Progress(
        epoch=decision["epoch"],
        epochs=prepared.experiment.training.epochs,
        train_loss=train_losses(list(prepared.records.values())).get(decision["epoch"]),
        val_loss=decision["val_loss"],
        val_metric=decision["val_metric"],
        metric=prepared.experiment.training.metric,
        seconds=seconds,
        usd=bill_so_far(prepared, now=runtime.time()).cost_until(decision["at"]).full_usd,
    )


# --- unattended -------------------------------------------------------------------------------------------------------
# Runs without a command, for example because it was killed.


@dataclass(frozen=True)
class RunUnderWay:
    """A run that is being carried out on AWS, perhaps after the command that started it has ended. `run`: its id; `arn`: ARN of its
    execution, "" if programs on instances carry it out.
    """

    run: str
    arn: str


def find_run_under_way(experiment: Experiment, session: Any) -> RunUnderWay | None:
    """Return the run that the deployed experiment is carrying out now, None if there is none. Raises ConfigError if the experiment is not
    deployed, Corrupt if the object that names a fleet's run is damaged. `session`: makes the AWS clients.
    """
    facts = DeployedParameters.load(experiment, session)
    if facts.run_machine:
        listed = session.client("stepfunctions").list_executions(
            stateMachineArn=facts.run_machine, statusFilter="RUNNING"
        )["executions"]
        return RunUnderWay(listed[0]["name"].rpartition("-")[0], listed[0]["executionArn"]) if listed else None
    groups = session.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[facts.fleet])
    s3 = session.client("s3")
    if not any(group["DesiredCapacity"] for group in groups["AutoScalingGroups"]):
        return None
    with suppress(s3.exceptions.NoSuchKey):
        told = s3.get_object(Bucket=facts.bucket, Key=current_run(facts.fleet))["Body"].read()
        return RunUnderWay(encoding.read_plain(told, POINTER, key=current_run(facts.fleet))["run"], "")
    return None


def attach_to_run(run: str, experiment: Experiment, *, objects: ObjectStore, resume: str) -> PreparedRun:
    """Return the run with the id `run`, which is already under way, read from its store `objects`, in the form in which `prepare` returns a
    new run.

    `resume`: id that the user asked for, "" if none. Raises UserError if that is another id, or, without one, if the run was started with
    other settings than `experiment`; Missing or Corrupt if its configuration is not stored or damaged.
    """
    if resume and resume != run:
        raise UserError(f"--resume {resume}: run {run} is under way, and only one can run; --resume {run} follows it")
    facts = documents.read_document(objects, Keys(run).experiment)
    there, architecture = resumption.load_experiment(facts), architecture_of(experiment)
    if not resume and (differing := resumption.list_differing_settings(architecture.resolve(experiment), there)):
        raise UserError(
            f"run {run} is under way with other settings: {', '.join(differing)}; --resume {run} follows that one to its end"
        )
    return PreparedRun(run, there, architecture, objects, facts)


def load_run_with_cost(
    found: RunUnderWay, experiment: Experiment, session: Any, *, now: float
) -> tuple[PreparedRun, Cost]:
    """Return the run under way that was `found`, with all records and decisions that it has written, and its cost until `now` (unix
    seconds).

    `experiment`: the deployed one; `session`: makes the AWS clients. Raises ConfigError if it is not deployed.
    """
    from crossover.stores.s3 import SETTINGS, S3ObjectStore

    objects = S3ObjectStore(
        DeployedParameters.load(experiment, session).bucket, Traffic(), client=session.client("s3", config=SETTINGS)
    )
    prepared = attach_to_run(found.run, experiment, objects=objects, resume=found.run)
    read_all_progress(prepared)
    return prepared, bill_so_far(prepared, now=now).cost_until(now)
