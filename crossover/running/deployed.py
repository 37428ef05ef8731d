"""A run of a deployed experiment, on AWS or on the cloud on one machine, through nothing but AWS APIs."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossover import platform_reports
from crossover.dataplane.traffic import Traffic
from crossover.deployment import plain_cause
from crossover.errors import RunFailed
from crossover.experiment import Experiment
from crossover.reports.folder import RunFolder
from crossover.running.fleet import run_fleet
from crossover.running.following import OnProgress, finish
from crossover.running.preparing import Prepared, prepare
from crossover.running.stack import Deployed
from crossover.running.unattended import taken_up, under_way
from crossover.workflow import first_event


def run_deployed(
    experiment: Experiment, out: Path, on_progress: OnProgress, *, session: Any, where: str, resume: str = ""
) -> RunFolder:
    """A run of the deployed experiment through nothing but AWS APIs; `session` makes their clients."""
    from crossover.dataplane.s3 import S3ObjectStore

    facts = Deployed.of(experiment, session)
    s3 = session.client("s3")
    objects = S3ObjectStore(facts.bucket, Traffic(), client=s3)
    data = [S3ObjectStore(name, Traffic(), client=s3) for name in facts.data_buckets] or [objects]
    found = under_way(experiment, session)
    if found:
        prepared = taken_up(found.run, experiment, objects=objects, resume=resume)
    else:
        prepared = prepare(experiment, objects=objects, data=data, run=resume)
        facts.check(prepared)
    if prepared.architecture.program:
        return run_fleet(
            prepared, facts.fleet, out, on_progress, session=session, where=where, announced=found is not None
        )
    states = session.client("stepfunctions")
    arn = found.arn if found else _start(prepared, states, facts.run_machine, again=bool(resume))

    def with_reports(prepared: Prepared) -> None:
        """Billed time, INIT and peak memory as Lambda reports them; on one machine they would hold waits for a core."""
        stack = f"{experiment.project}-{experiment.name}"
        found = platform_reports.wait_for(session, stack, list(prepared.records.values()))
        joined = platform_reports.joined(prepared.records.values(), found)
        prepared.records.update(zip(list(prepared.records), joined, strict=True))

    execution = StateMachineExecution(states, arn)
    complete = with_reports if where == "aws" else lambda prepared: None
    return finish(prepared, execution, out, on_progress, where=where, complete=complete)


@dataclass
class StateMachineExecution:
    """An execution of the deployed run machine."""

    states: Any  # a boto3 client
    arn: str

    def ended(self) -> bool:
        found = self.states.describe_execution(executionArn=self.arn)
        match found["status"]:
            case "RUNNING" | "PENDING_REDRIVE":
                return False
            case "SUCCEEDED":
                return True
        raise RunFailed(plain_cause(found.get("error", found["status"]), found.get("cause", "")))

    def stop(self) -> None:
        self.states.stop_execution(executionArn=self.arn, cause="stopped by the user")


def _start(prepared: Prepared, states: Any, machine: str, *, again: bool) -> str:
    """The ARN of a new execution. Names are reserved for 90 days: a run that is resumed has another."""
    event = first_event(prepared.run, workers=prepared.experiment.workers, attempt=int(time.time()) if again else 0)
    name = f"{prepared.run}-{event['attempt']}"
    return str(states.start_execution(stateMachineArn=machine, name=name, input=json.dumps(event))["executionArn"])
