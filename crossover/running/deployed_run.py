"""A run of a deployed experiment, on AWS or on the cloud on one machine, through nothing but AWS APIs."""

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from crossover.architecture import steps
from crossover.clients.step_functions import innermost_kind, plain_cause
from crossover.costs import platform_reports
from crossover.costs.billing import gb_seconds
from crossover.costs.invocations import Unrecorded
from crossover.dataplane.traffic import Traffic
from crossover.errors import RunFailed, ended_with
from crossover.experiment import Experiment
from crossover.learning.memory import give_back_freed_memory
from crossover.reports.folder import RunFolder
from crossover.running import resumption, room
from crossover.running.fleet import run_fleet
from crossover.running.following import Interruption, OnProgress, all_well, begin_deadline, finish
from crossover.running.patience import Look, at_once
from crossover.running.preparing import Prepared, attempt_number, prepare
from crossover.running.stack import Deployed
from crossover.running.unattended import taken_up, under_way
from crossover.workflow import first_event

_LOCAL_WAIT_S = 5.0  # on one machine a report is in the log before the invocation's answer is out


def run_deployed(
    experiment: Experiment,
    out: Path,
    on_progress: OnProgress,
    *,
    session: Any,
    where: str,
    resume: str = "",
    look: Look = at_once,
    check: Interruption = all_well,
) -> RunFolder:
    """A run of the deployed experiment through nothing but AWS APIs; `session` makes their clients, `look` has what patience there is,
    `check` is asked again and again whether the run can still go on.
    """
    from crossover.dataplane.s3 import SETTINGS, S3ObjectStore

    facts = Deployed.of(experiment, session)
    s3 = session.client("s3", config=SETTINGS)
    objects = S3ObjectStore(facts.bucket, Traffic(), client=s3)
    data = [S3ObjectStore(name, Traffic(), client=s3) for name in facts.data_buckets] or [objects]
    found = under_way(experiment, session)
    if found:
        prepared = taken_up(found.run, experiment, objects=objects, resume=resume)
    else:
        prepared = prepare(experiment, objects=objects, data=data, run=resume)
        give_back_freed_memory()  # the data set's, which was here and on its way: a local run's functions need it
        if resume:
            resumption.rewind(objects, prepared.keys, experiment, lost=where == "local")
        facts.check(prepared)
        room.check(prepared, out)
        begin_deadline(prepared)  # from now on nobody need look
    complete = partial(ask_platform, session=session, where=where)
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
            look=look,
            check=check,
        )
    states = session.client("stepfunctions")
    arn = found.arn if found else started(prepared, states, facts.run_machine, again=bool(resume))
    execution = StateMachineExecution(states, arn, check)
    return finish(prepared, execution, out, on_progress, where=where, complete=complete, look=look)


def ask_platform(prepared: Prepared, *, session: Any, where: str) -> None:
    """Billed time, INIT and peak memory as Lambda reports them, and what was killed before it left a record. On one machine only the
    latter: reports hold waits for a core there, which the steps' own records leave out.
    """
    stack = f"{prepared.experiment.project}-{prepared.experiment.name}"
    functions = {f"{stack}-{step.name.replace('_', '-')}" for step in steps(prepared.architecture)}
    if not functions:
        return
    records = list(prepared.records.values())
    wait_s = platform_reports.WAIT_S if where == "aws" else _LOCAL_WAIT_S
    found = platform_reports.wait_for(session, stack, records, wait_s=wait_s)
    if where == "aws":
        prepared.records.update(zip(list(prepared.records), platform_reports.joined(records, found), strict=True))
    lost = platform_reports.unrecorded(records, found, functions=functions, since_s=prepared.facts["created_at"])
    gb_s = sum(gb_seconds(each.billed_ms, memory_mb=each.memory_mb) for each in lost)
    prepared.unrecorded = Unrecorded(count=len(lost), gb_s=gb_s)


@dataclass
class StateMachineExecution:
    """An execution of the deployed run machine."""

    states: Any  # a boto3 client
    arn: str
    check: Interruption = all_well

    def ended(self) -> bool:
        self.check()
        found = self.states.describe_execution(executionArn=self.arn)
        match found["status"]:
            case "RUNNING" | "PENDING_REDRIVE":
                return False
            case "SUCCEEDED":
                return True
            case "TIMED_OUT":
                raise RunFailed("ended by lifetime.maximum_run_hours: deploy it with more hours, then resume the run")
        error, cause = found.get("error", found["status"]), found.get("cause", "")
        raise ended_with(innermost_kind(error, cause), plain_cause(error, cause))

    def stop(self) -> None:
        self.states.stop_execution(executionArn=self.arn, cause="stopped by the user")


def started(prepared: Prepared, states: Any, machine: str, *, again: bool) -> str:
    """The ARN of a new execution. Names are reserved for 90 days: a run that is resumed has another."""
    event = first_event(
        prepared.run, workers=prepared.experiment.workers, attempt=attempt_number(prepared, again=again)
    )
    name = f"{prepared.run}-{event['attempt']}"
    arn = f"{machine.replace(':stateMachine:', ':execution:')}:{name}"
    try:
        with suppress(
            states.exceptions.ExecutionAlreadyExists
        ):  # it began, its answer was lost, and it has ended since
            states.start_execution(stateMachineArn=machine, name=name, input=json.dumps(event))
    except KeyboardInterrupt:  # it may have begun, and its answer been on the way
        with suppress(states.exceptions.ExecutionDoesNotExist):
            StateMachineExecution(states, arn).stop()
        raise
    return arn
