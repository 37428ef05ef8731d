"""Runs on a deployed stack, on AWS or on the local cloud. Both share all code except the creation of the session."""

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossover import runtime, user_code
from crossover.errors import ConfigError, RunFailed, rebuild_error
from crossover.experiment import Experiment
from crossover.learning.memory import release_freed_memory
from crossover.local import servers
from crossover.reports import usage
from crossover.reports.bill import gb_seconds
from crossover.reports.folder import SERVER_LOG, RunFolder
from crossover.reports.usage import Unrecorded
from crossover.running import preparing
from crossover.running import resume as resumption
from crossover.running.inline import run_with_baselines
from crossover.running.monitor import (
    AwsRetryPolicy,
    CompleteRecords,
    DeployedParameters,
    OnProgress,
    RetryPolicy,
    RunCheck,
    attach_to_run,
    find_run_under_way,
    finish,
    no_retry,
    renewing_session,
    save_then_report,
    skip_check,
    skip_completion,
    write_first_deadline,
)
from crossover.running.preparing import PreparedRun, attempt_number, prepare, print_data
from crossover.running.resume import Databases, Unfinished, count_instances, keep_resume_data, tolerates_failures
from crossover.simulation.processors import fix_threads
from crossover.stores.deployed_clients import describe_cause, find_innermost_error
from crossover.stores.keys import current_run
from crossover.stores.protocols import Traffic
from crossover.training.fleet import ProgramsExecution, announce
from crossover.workflow import first_event
from crossover.workflow.architecture import architecture_of, steps
from crossover.workflow.infrastructure import uses_bus

if TYPE_CHECKING:
    from crossover.local.cloud import LocalCloud


# --- fleet ------------------------------------------------------------------------------------------------------------


def run_fleet(
    prepared: PreparedRun,
    fleet: str,
    out: Path,
    on_progress: OnProgress,
    *,
    session: Any,
    where: str,
    announced: bool = False,
    complete: CompleteRecords = skip_completion,
    retry: RetryPolicy = no_retry,
    check: RunCheck = skip_check,
) -> RunFolder:
    """Run the experiment's programs on the instances of the Auto Scaling group `fleet`, write the results folder `out`, and return it. At
    the end, even after an error, scale the group to zero and delete the announcement of the run from the bucket.

    `prepared`: the run; `on_progress`: called after each epoch; `session`: makes the AWS clients; `where`: aws or local; `announced`:
    whether the fleet already has this run, which is then only followed. `complete`: adds to the records what only the platform knows, after
    the run; `retry`: retry policy for calls to AWS; `check`: called at every poll, raises if something other than the run prevents it from
    continuing. Raises the errors of `finish`.
    """
    groups, members = session.client("autoscaling"), prepared.experiment.workers
    count = count_instances(prepared.experiment, prepared.architecture)

    def release() -> None:
        """Set the desired capacity of the fleet to 0. Does not wait until its instances have ended."""
        groups.set_desired_capacity(AutoScalingGroupName=fleet, DesiredCapacity=0)

    def explain_absence() -> str:
        """Return Auto Scaling's status code and message for its last attempt to start or stop an instance, such as `Failed: ... quota ...`;
        "" if there was none.
        """
        last = groups.describe_scaling_activities(AutoScalingGroupName=fleet, MaxRecords=1)["Activities"]
        return " ".join(f"{each.get('StatusCode', '')}: {each.get('StatusMessage', '')}" for each in last)

    def can_finish() -> bool:
        """Return whether an instance of the fleet may still be running a program: whether the desired capacity is above 0, since each
        program that finishes lowers it. Raises the error of `check`.
        """
        check()
        found = groups.describe_auto_scaling_groups(AutoScalingGroupNames=[fleet])["AutoScalingGroups"]
        return bool(found and found[0]["DesiredCapacity"])

    if not announced:
        announce(prepared.objects, fleet=fleet, run=prepared.run, members=members)
    try:
        groups.set_desired_capacity(AutoScalingGroupName=fleet, DesiredCapacity=count)
        execution = ProgramsExecution(
            prepared.objects,
            prepared.keys,
            members,
            tolerant=tolerates_failures(prepared.experiment),
            release=release,
            can_finish=can_finish,
            explain_absence=explain_absence,
        )
        return finish(prepared, execution, out, on_progress, where=where, complete=complete, retry=retry)
    finally:
        release()
        prepared.objects.delete(current_run(fleet))


# --- cdk process ------------------------------------------------------------------------------------------------------
# The cloud assembly of a local run is synthesized in its own process: the CDK and Node would keep half a gigabyte that training needs.


def synthesize_assembly(experiment: Experiment, out: Path) -> Path:
    """Synthesize the experiment's CloudFormation templates into the folder `out`, in a process of its own, and return `out`. Raises
    ConfigError for an experiment that cannot be deployed, RunFailed if the process is killed, RuntimeError if the CDK itself fails.
    """
    done = _run_python(
        "-P",
        "-m",
        "stacks.apart",
        str(out),
        *map(str, user_code.list_folders()),
        stdin=json.dumps(experiment.to_plain()),
    )
    if done.returncode == ConfigError.exit_code:
        raise ConfigError(done.stderr.strip())
    if done.returncode < 0:
        ended = servers.describe_exit(done.returncode)
        raise RunFailed(f"synthesis of {experiment.name}: the CDK was {ended}; the run had not started: start it again")
    if done.returncode:
        raise RuntimeError(f"synthesis of {experiment.name} ended with exit code {done.returncode}:\n{done.stderr}")
    return out


def _run_python(*arguments: str, stdin: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the command-line arguments `arguments` in a new process and return its exit status and output. `stdin`: text for its
    standard input. If this process is interrupted, the new process and its children are killed; their temporary files are deleted in any
    case.
    """
    with servers.temporary_folder() as folder:
        environment = {**os.environ, **servers.mark_variable(), "TMPDIR": str(folder)}
        environment["PYTHONPATH"] = os.pathsep.join(each or os.getcwd() for each in sys.path)
        with subprocess.Popen(
            [sys.executable, *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            encoding="utf-8",
        ) as process:
            try:
                shown, errors = process.communicate(stdin)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, shown, errors)


# --- deployed run -----------------------------------------------------------------------------------------------------
# A run of a deployed experiment, on AWS or on the local cloud, through AWS APIs alone.

_LOCAL_WAIT_S = 5.0  # on the local cloud a report is in the log before the invocation returns


def run_deployed(
    experiment: Experiment,
    out: Path,
    on_progress: OnProgress,
    *,
    session: Any,
    where: str,
    resume: str = "",
    retry: RetryPolicy = no_retry,
    check: RunCheck = skip_check,
) -> RunFolder:
    """Run the deployed experiment through AWS APIs alone, and write and return its results folder `out`. If a run of the experiment is
    already under way, follow that one instead of starting another.

    `on_progress`: called after each epoch; `session`: makes the AWS clients; `where`: aws or local; `resume`: id of the run to resume, ""
    for a new run; `retry`: retry policy for calls to AWS; `check`: called at every poll, raises if something other than the run prevents it
    from continuing. Raises ConfigError if the experiment is not deployed or its stack does not fit the run, and the errors of `prepare`,
    `attach_to_run` and `finish`.
    """
    from crossover.stores.s3 import SETTINGS, S3ObjectStore

    facts = DeployedParameters.load(experiment, session)
    s3 = session.client("s3", config=SETTINGS)
    objects = S3ObjectStore(facts.bucket, Traffic(), client=s3)
    data = [S3ObjectStore(name, Traffic(), client=s3) for name in facts.data_buckets] or [objects]
    found = find_run_under_way(experiment, session)
    if found:
        prepared = attach_to_run(found.run, experiment, objects=objects, resume=resume)
    else:
        prepared = prepare(experiment, objects=objects, data=data, run=resume)
        print_data(prepared)
        release_freed_memory()  # memory of the data set and of its upload, which a local run's functions need
        if resume:
            prepared.note_damage(resumption.rewind(objects, prepared.keys, experiment, lost=where == "local"))
        facts.check(prepared)
        preparing.check_room_for_folder(prepared, out)
        write_first_deadline(prepared)  # from now on the run ends even without this command
    complete = partial(fetch_lambda_reports, session=session, where=where)
    if prepared.architecture.program:
        announced = found is not None
        return run_fleet(
            prepared,
            facts.fleet,
            out,
            on_progress,
            session=session,
            where=where,
            announced=announced,
            complete=complete,
            retry=retry,
            check=check,
        )
    states = session.client("stepfunctions")
    arn = found.arn if found else start_execution(prepared, states, facts.run_machine, again=bool(resume))
    execution = StateMachineExecution(states, arn, check)
    return finish(prepared, execution, out, on_progress, where=where, complete=complete, retry=retry)


def fetch_lambda_reports(prepared: PreparedRun, *, session: Any, where: str) -> None:
    """Read Lambda's own reports on the run `prepared` from its logs, and wait until they have appeared, up to a time limit. They add billed
    time, INIT time and peak memory to the run's records, and to `prepared.unrecorded` the number and GB-seconds of invocations that were
    killed before they wrote a record. Does nothing if the experiment has no functions.

    `session`: makes the AWS clients; `where`: aws or local. On the local cloud only the killed invocations are added: its times contain
    waits for a CPU core, which the records leave out.
    """
    stack = f"{prepared.experiment.project}-{prepared.experiment.name}"
    functions = {f"{stack}-{step.name.replace('_', '-')}" for step in steps(prepared.architecture)}
    if not functions:
        return
    records = list(prepared.records.values())
    wait_s = usage.WAIT_S if where == "aws" else _LOCAL_WAIT_S
    found = usage.wait_for_reports(session, stack, records, wait_s=wait_s)
    if where == "aws":
        prepared.records.update(zip(list(prepared.records), usage.add_reports(records, found), strict=True))
    lost = usage.find_unrecorded(records, found, functions=functions, since_s=prepared.facts["created_at"])
    gb_s = sum(gb_seconds(each.billed_ms, memory_mb=each.memory_mb) for each in lost)
    prepared.unrecorded = Unrecorded(count=len(lost), gb_s=gb_s)


@dataclass
class StateMachineExecution:
    """An execution of the deployed state machine that carries out a run. `states`: a Step Functions client; `arn`: ARN of the execution;
    `check`: called at every poll, raises if something else prevents the run from continuing.
    """

    states: Any  # a boto3 client
    arn: str
    check: RunCheck = skip_check

    def has_ended(self) -> bool:
        """Return True if the execution has succeeded, False while it runs. If it failed, raise the error that its cause names, such as
        ConfigError, or RunFailed. Errors of `check` and of requests to AWS pass.
        """
        self.check()
        found = self.states.describe_execution(executionArn=self.arn)
        match found["status"]:
            case "RUNNING" | "PENDING_REDRIVE":
                return False
            case "SUCCEEDED":
                return True
            case "TIMED_OUT":
                raise RunFailed("ended by lifetime.maximum_run_hours: deploy with more hours, then resume the run")
        error, cause = found.get("error", found["status"]), found.get("cause", "")
        raise rebuild_error(find_innermost_error(error, cause), describe_cause(error, cause))

    def stop(self) -> None:
        """Stop the execution on AWS, as a user's request. It does not wait for its end. Errors of the request pass."""
        self.states.stop_execution(executionArn=self.arn, cause="stopped by the user")


def start_execution(prepared: PreparedRun, states: Any, machine: str, *, again: bool) -> str:
    """Start an execution of the state machine `machine` for the run `prepared` and return the execution's ARN, also if an execution of that
    name exists already.

    The execution's name contains run id and attempt number, since AWS reserves names for 90 days. `states`: a Step Functions client;
    `machine`: ARN of the state machine; `again`: whether the run is resumed. At Ctrl-C the execution is stopped, and KeyboardInterrupt is
    raised again.
    """
    event = first_event(
        prepared.run, workers=prepared.experiment.workers, attempt=attempt_number(prepared, again=again)
    )
    name = f"{prepared.run}-{event['attempt']}"
    arn = f"{machine.replace(':stateMachine:', ':execution:')}:{name}"
    try:
        with suppress(
            states.exceptions.ExecutionAlreadyExists
        ):  # it started, the answer was lost, and it has ended since
            states.start_execution(stateMachineArn=machine, name=name, input=json.dumps(event))
    except KeyboardInterrupt:  # it may have started although the answer has not arrived
        with suppress(states.exceptions.ExecutionDoesNotExist):
            StateMachineExecution(states, arn).stop()
        raise
    return arn


# --- local ------------------------------------------------------------------------------------------------------------
# A run on the local cloud: synthesize, deploy, run, destroy.


def run_local(
    experiment: Experiment, out: Path, on_progress: OnProgress, *, workspace: Path | None = None, resume: bool = False
) -> RunFolder:
    """Run the experiment and its baselines on the local cloud (AWS services simulated on this machine): synthesize templates, deploy, run,
    destroy. Return the results folder `out`, which contains those of the baselines.

    `on_progress`: called after each epoch; `workspace`: folder for the local cloud's files, by default a temporary one; `resume`: continue
    with the unfinished run in `out`. Raises MissingTool or ConfigError, before anything starts, if a program or disk space is missing.
    """
    from crossover.local import servers
    from crossover.local.cloud import LocalCloud
    from crossover.running import preparing

    servers.check_programs()
    preparing.check_room_for_servers(out, broker=uses_bus(architecture_of(experiment)))
    with servers.temporary_folder() as folder:

        def run(each: Experiment, into: Path, unfinished: Unfinished | None) -> RunFolder:
            """Run one experiment into the folder `into`, and return that folder. The stacks are deployed before the first one.
            `unfinished`: the run to resume, None for a new one.
            """
            if not cloud.stacks():
                cloud.deploy(synthesize_assembly(experiment, folder / "assembly"))
            return run_on_cloud(cloud, each, into, on_progress, unfinished=unfinished)

        with LocalCloud(workspace or folder / "cloud") as cloud:
            found = run_with_baselines(run, experiment, out, where="local", resume=resume, cores=os.cpu_count())
            cloud.destroy()  # after a failure or an interrupt, the stacks end with the local cloud
            return found


def run_on_cloud(
    cloud: "LocalCloud", experiment: Experiment, out: Path, on_progress: OnProgress, *, unfinished: Unfinished | None
) -> RunFolder:
    """Run the experiment that is deployed on the local cloud `cloud`, and return its results folder `out`. During the run, the state needed
    to resume it is copied to `out`, because the cloud ends with this process.

    `on_progress`: called after each epoch; `unfinished`: the run to resume, None for a new one.
    """
    from crossover.local import cloud as state_databases
    from crossover.stores.s3 import SETTINGS, S3ObjectStore

    session = cloud.session()
    objects = S3ObjectStore(
        DeployedParameters.load(experiment, session).bucket, Traffic(), client=session.client("s3", config=SETTINGS)
    )
    if unfinished:
        unfinished.restore(objects)
    architecture = architecture_of(experiment)
    (out / SERVER_LOG).unlink(missing_ok=True)  # an earlier run's

    def open_worker_databases() -> Databases:
        """Return a context manager that opens the workers' databases, {rank: database}. The mapping is empty unless the architecture keeps
        its training state in databases.
        """
        if architecture.state != "database":
            return nullcontext({})
        step = steps(architecture)[0].name.replace("_", "-")
        return state_databases.open_databases(
            cloud, experiment, function=f"{experiment.project}-{experiment.name}-{step}"
        )

    with keep_resume_data(objects, out, where="local", databases=open_worker_databases) as keep:
        return run_deployed(
            experiment,
            out,
            save_then_report(keep, on_progress),
            session=session,
            where="local",
            resume=unfinished.run if unfinished else "",
            check=partial(cloud.check, out / SERVER_LOG),
        )


# --- aws --------------------------------------------------------------------------------------------------------------
# A run of the deployed experiment on AWS.


def run_aws(experiment: Experiment, out: Path, on_progress: OnProgress, *, resume: str = "") -> RunFolder:
    """Run the deployed experiment and its baselines on AWS, with the credentials of the environment, and return the results folder `out`.

    `on_progress`: called after each epoch; `resume`: id of a run to resume; then the baselines are not run. If AWS_ENDPOINT_URL is set, the
    results are labelled as measured locally.
    """
    # Seconds of a local cloud are labelled local, even if the command said aws.
    where = "local" if runtime.environment().get("AWS_ENDPOINT_URL") else "aws"
    session, renew = renewing_session()
    retry = AwsRetryPolicy(renew)
    if resume:  # without baselines
        return run_deployed(
            fix_threads(experiment), out, on_progress, session=session, where=where, resume=resume, retry=retry
        )

    def run(each: Experiment, into: Path, unfinished: Unfinished | None) -> RunFolder:
        """Run one deployed experiment into the folder `into`, and return that folder. `unfinished`: not used, since the
        state stays on AWS.
        """
        return run_deployed(each, into, on_progress, session=session, where=where, retry=retry)

    return run_with_baselines(run, experiment, out, where="aws")
