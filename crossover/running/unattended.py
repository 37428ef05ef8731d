"""A run that nobody may be following any more, because its command was killed."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from crossover.architecture import architecture_of
from crossover.costs.cost import Cost
from crossover.dataplane import documents, plain
from crossover.dataplane.protocols import ObjectStore
from crossover.dataplane.traffic import Traffic
from crossover.errors import UserError
from crossover.experiment import Experiment
from crossover.keys import Keys, current_run
from crossover.running import resumption
from crossover.running.following import catch_up
from crossover.running.preparing import Prepared
from crossover.running.results import so_far
from crossover.running.stack import Deployed
from crossover.training.fleet.lease import POINTER


@dataclass(frozen=True)
class UnderWay:
    """A run that nobody may be following any more: its command was killed. `arn` of its execution, "" for programs."""

    run: str
    arn: str


def under_way(experiment: Experiment, session: Any) -> UnderWay | None:
    """The run that the deployed experiment works on now. Raises ConfigError where it is not deployed."""
    facts = Deployed.of(experiment, session)
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
        return UnderWay(plain.read(told, POINTER, key=current_run(facts.fleet))["run"], "")
    return None


def taken_up(run: str, experiment: Experiment, *, objects: ObjectStore, resume: str) -> Prepared:
    """A run under way, as it was prepared. Raises UserError where it is not the one that is asked for."""
    if resume and resume != run:
        raise UserError(f"--resume {resume}: run {run} is under way and would be in its way; --resume {run} follows it")
    facts = documents.read(objects, Keys(run).experiment)
    there, architecture = resumption.started_with(facts), architecture_of(experiment)
    if not resume and (differing := resumption.differing(architecture.resolve(experiment), there)):
        raise UserError(
            f"run {run} is under way with other settings: {', '.join(differing)}; --resume {run} follows that one to its end"
        )
    return Prepared(run, there, architecture, objects, facts)


def spent(found: UnderWay, experiment: Experiment, session: Any, *, now: float) -> tuple[Prepared, Cost]:
    """A run under way with all that it has told, and what it has cost until `now`, in unix seconds, as the run's own lines say it."""
    from crossover.dataplane.s3 import SETTINGS, S3ObjectStore

    objects = S3ObjectStore(
        Deployed.of(experiment, session).bucket, Traffic(), client=session.client("s3", config=SETTINGS)
    )
    prepared = taken_up(found.run, experiment, objects=objects, resume=found.run)
    catch_up(prepared)
    return prepared, so_far(prepared, now=now).until(now)
