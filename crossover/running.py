"""A run from its experiment to its folder: stage the data, start the execution, follow it, collect what it recorded.

`inline` runs the tree in this process on memory stores, `local` on the cloud on one machine, `aws` on the deployed
stack. Local and AWS share every
line but the session: this program talks to S3, SSM and Step Functions only, never to Redis or the broker.
"""

import json
import os
import platform
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol

import crossover
from crossover import platform_reports, resumption
from crossover.budget import BudgetReached, Guard
from crossover.context import Context, InlineClients, Resources, RunFacts
from crossover.dataplane.protocols import ObjectStore, TensorStore
from crossover.dataplane.traffic import Traffic
from crossover.dataplane.vector import Kind, decode
from crossover.deployment import plain_cause
from crossover.errors import ConfigError, Missing, RunFailed, UserError
from crossover.expectations import expected_records, state_transitions
from crossover.experiment import Experiment, from_resolved
from crossover.keys import Keys, current_run
from crossover.programs import Settings
from crossover.programs.execution import ProgramsExecution, announce
from crossover.reports import infrastructure, prices
from crossover.reports.cost import of_run
from crossover.reports.folder import RunFolder, read, write
from crossover.reports.html import write_report
from crossover.reports.result import build, train_losses
from crossover.resumption import Unfinished
from crossover.rounds import calendar
from crossover.workflow import Architecture, execute, first_event, load, steps

if TYPE_CHECKING:
    from crossover.local.cloud import LocalCloud

POLL_S = 0.25
BUDGET_LOOK_S = 5.0


@dataclass(frozen=True)
class Progress:
    """What is known after an epoch. `usd`: by AWS's prices for what was recorded so far."""

    epoch: int
    epochs: int
    train_loss: float | None
    val_loss: float
    val_accuracy: float
    seconds: float
    usd: float | None


OnProgress = Callable[[Progress], None]


class Execution(Protocol):
    """A run under way."""

    def ended(self) -> bool:
        """Whether it succeeded; False while it runs. Raises RunFailed with the cause in plain words."""

    def stop(self) -> None: ...


@dataclass
class Prepared:
    """A run whose data and facts lie in the object store."""

    run: str
    experiment: Experiment
    architecture: Architecture
    objects: ObjectStore
    facts: dict[str, Any]
    records: dict[str, dict[str, Any]] = field(default_factory=dict)  # by key: each is read once
    decisions: list[dict[str, Any]] = field(default_factory=list)

    @property
    def keys(self) -> Keys:
        return Keys(self.run)


def new_run_id() -> str:
    """At most 24 characters: execution names add machine, worker, epoch and round and must stay within 80."""
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + uuid.uuid4().hex[:6]


def resolve(experiment: Experiment, architecture: Architecture) -> Experiment:
    """Fill in what the YAML leaves to the architecture."""
    if experiment.training.sync_every is not None:
        return experiment
    return replace(experiment, training=replace(experiment.training, sync_every=architecture.sync_every))


def prepare(experiment: Experiment, *, objects: ObjectStore, data: Sequence[ObjectStore], run: str = "") -> Prepared:
    """Stage the data (what is staged already is kept) and write the run's facts. Raises DataError, ConfigError."""
    from crossover.learning.datasets import load as load_dataset  # numpy and torch: not for `--help`
    from crossover.learning.learner import Learner
    from crossover.learning.staging import stage

    architecture = load(experiment.architecture)
    experiment = resolve(experiment, architecture)
    dataset = load_dataset(experiment)
    if run:
        _check_resumed(run, experiment, objects, fingerprint=dataset.fingerprint)
    manifest = stage(experiment, dataset, data)
    learner = Learner(
        experiment, classes=manifest["classes"], input_shape=tuple(manifest["input_shape"]), affine=manifest["affine"]
    )
    run = run or new_run_id()
    facts = {
        "run": run,
        "experiment": experiment.resolved(),
        "data": dataset.fingerprint,
        "data_manifest": manifest,
        "parameters": learner.parameters,
        "buffers": learner.buffers,
        "created_at": time.time(),
        "versions": versions(),
    }
    objects.put(Keys(run).experiment, json.dumps(facts).encode())
    return Prepared(run, experiment, architecture, objects, facts)


def _check_resumed(run: str, experiment: Experiment, objects: ObjectStore, *, fingerprint: str) -> None:
    """Raises UserError where there is no such run, or it was started with other settings or data."""
    try:
        began = json.loads(objects.get(Keys(run).experiment))
    except Missing:
        raise UserError(
            f"--resume {run}: there is no such run; its name stands in its records and executions"
        ) from None
    resumption.check_settings(began, experiment)
    resumption.check_data(began, fingerprint)


def versions() -> dict[str, str]:
    """What the figures of a run depend on."""
    import torch

    return {
        "crossover": crossover.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def follow(prepared: Prepared, execution: Execution, on_progress: OnProgress) -> None:
    """Until the execution ends: read new records and decisions, tell about each epoch. Ctrl-C and the budget stop the execution first."""
    started = looked = time.monotonic()
    guard = Guard(prepared.experiment.lifetime.budget_usd)
    try:
        while True:
            ended = execution.ended()
            while _next_decision(prepared):
                read_records(prepared)
                progress = _progress(prepared, seconds=time.monotonic() - started)
                on_progress(progress)
                guard.epoch(progress.usd or 0.0, last=ended or progress.epoch == progress.epochs)
            if ended:
                return
            if guard.limit_usd is not None and time.monotonic() - looked > BUDGET_LOOK_S:
                looked = time.monotonic()
                read_records(prepared)
                guard.between(_spent(prepared, seconds=looked - started))
            time.sleep(POLL_S)
    except (KeyboardInterrupt, BudgetReached):
        execution.stop()
        raise
    finally:
        while _next_decision(prepared):  # those that a failure was faster than
            pass
        read_records(prepared)


def _next_decision(prepared: Prepared) -> bool:
    key = prepared.keys.decision(len(prepared.decisions) + 1)
    if not prepared.objects.exists(key):
        return False
    prepared.decisions.append(json.loads(prepared.objects.get(key)))
    return True


def read_records(prepared: Prepared) -> None:
    """The records that are new since the last call, several at a time."""
    new = [key for key in prepared.objects.list(prepared.keys.records) if key not in prepared.records]
    with ThreadPoolExecutor(max_workers=8) as pool:
        for key, body in zip(new, pool.map(prepared.objects.get, new), strict=True):
            prepared.records[key] = json.loads(body)


def _progress(prepared: Prepared, *, seconds: float) -> Progress:
    decision = prepared.decisions[-1]
    return Progress(
        epoch=decision["epoch"],
        epochs=prepared.experiment.training.epochs,
        train_loss=train_losses(list(prepared.records.values())).get(decision["epoch"]),
        val_loss=decision["val_loss"],
        val_accuracy=decision["val_accuracy"],
        seconds=seconds,
        usd=_spent(prepared, seconds=seconds),
    )


def _spent(prepared: Prepared, *, seconds: float) -> float:
    """Dollars so far by AWS's prices; of a local run these are projected from local seconds."""
    experiment = prepared.experiment
    records = list(prepared.records.values())
    return of_run(
        experiment, records, infrastructure=infrastructure.of(experiment), prices=prices.load(), duration_s=seconds
    ).full_usd


def run_facts(prepared: Prepared) -> RunFacts:
    facts = prepared.facts
    return RunFacts(
        prepared.experiment,
        facts["data"],
        facts["data_manifest"],
        facts["parameters"],
        facts["buffers"],
        facts["created_at"],
    )


def write_folder(prepared: Prepared, out: Path, *, where: str, failure: str | None = None) -> RunFolder:
    """The run's folder from what it recorded; also of a run that failed: what was computed so far is kept."""
    objects, keys = prepared.objects, prepared.keys
    final = json.loads(objects.get(keys.outcome)) if objects.exists(keys.outcome) else None
    model = None
    if final:
        from crossover.learning.saving import safetensors_bytes  # torch

        vector = decode(objects.get(keys.final_model), key=keys.final_model, kind=Kind.MODEL)
        model = safetensors_bytes(prepared.experiment, prepared.facts["data_manifest"], vector)
    records = list(prepared.records.values())
    folder = write(
        out, result=_result(prepared, where=where, final=final, failure=failure), records=records, model=model
    )
    write_report(out)
    return folder


def _result(
    prepared: Prepared, *, where: str, final: dict[str, Any] | None = None, failure: str | None = None
) -> dict[str, Any]:
    facts, records = prepared.facts, list(prepared.records.values())
    workers, decided, days = prepared.experiment.workers, len(prepared.decisions), calendar(run_facts(prepared))
    return build(
        experiment=prepared.experiment,
        label="measured-aws" if where == "aws" else "measured-local",
        where=where,
        records=records,
        epochs=prepared.decisions,
        started_at=facts["created_at"],
        versions=facts["versions"],
        final=final,
        expected=expected_records(prepared.architecture, workers=workers, days=days, epochs=decided),
        transitions=state_transitions(prepared.architecture, records, workers=workers, epochs=decided),
        failure=failure,
        data={**{k: v for k, v in facts["data_manifest"].items() if k != "counts"}, "fingerprint": facts["data"]},
    )


# --- inline -----------------------------------------------------------------------------------------------------------


@dataclass
class InlineExecution:
    """The tree in a thread of this process."""

    future: Future[Any]

    def ended(self) -> bool:
        if not self.future.done():
            return False
        error = self.future.exception()
        if isinstance(error, UserError):
            raise error
        if error:
            raise RunFailed(f"{type(error).__name__}: {error}") from error
        return True

    def stop(self) -> None:
        """Threads end with the process; nothing outside it was started."""


class InlinePrograms:
    """An architecture's programs as threads of this process, each with resources of its own, as on an instance of its own."""

    def __init__(self, prepared: Prepared, clients: InlineClients) -> None:
        architecture, members = prepared.architecture, members_of(prepared.experiment, prepared.architecture)
        assert architecture.program is not None
        functions = Resources(clients)
        clients.run_machine = lambda name, event: execute(
            architecture.machines[name], Context(functions, run=event["run"]), event
        )
        objects = clients.objects(Traffic())
        announce(objects, fleet="inline", run=prepared.run, members=members)
        settings = Settings(fleet="inline", look_s=0.1)
        program = architecture.program.main
        self._threads = [
            Thread(target=_quietly, args=(program, Resources(clients), settings), name=f"program-{number}", daemon=True)
            for number in range(members)
        ]
        self._execution = ProgramsExecution(
            objects,
            prepared.keys,
            members,
            tolerant=goes_on_without(prepared.experiment),
            release=lambda: None,  # threads end with the process; nothing outside it was started
            alive=lambda: any(thread.is_alive() for thread in self._threads),
        )
        for thread in self._threads:
            thread.start()

    def ended(self) -> bool:
        return self._execution.ended()

    def stop(self) -> None:
        self._execution.stop()


def _quietly(program: Callable[..., None], resources: Resources, settings: Settings) -> None:
    """A program that gave up has left its word in the object store: that is what the runner reads."""
    with suppress(Exception):
        program(resources, settings)


def members_of(experiment: Experiment, architecture: Architecture) -> int:
    """How many programs take part in a run: one per worker. Validation has seen to it that GPUs and workers are as many."""
    return experiment.workers


def goes_on_without(experiment: Experiment) -> bool:
    """Whether a program that fails leaves the others going: asynchronous peers only."""
    return experiment.module.startswith("p2p") and experiment.p2p.mode == "asynchronous"


def with_baseline(
    run: Callable[[Experiment, Path, Unfinished | None], RunFolder],
    experiment: Experiment,
    out: Path,
    *,
    resume: str = "",
) -> RunFolder:
    """`run` of the experiment into `out` and, with `baseline: gpu`, of the GPU fleet after it into `out`/baseline:
    measured one at a time. `resume` (inline or local): the one that its folder holds unfinished, and what follows."""
    companion, baseline = experiment.companion(), out / "baseline"
    if resume and companion is not None and resumption.holds(baseline) and not resumption.holds(out):
        run(companion, baseline, _unfinished(companion, baseline, where=resume))
        return read(out)
    folder = run(experiment, out, _unfinished(experiment, out, where=resume) if resume else None)
    if companion is not None:
        run(companion, baseline, None)
    return folder


def _unfinished(experiment: Experiment, folder: Path, *, where: str) -> Unfinished:
    """Raises UserError where `folder` holds none, or one of another experiment."""
    found = resumption.find(folder)
    found.check(resolve(experiment, load(experiment.architecture)), where=where, versions=versions())
    return found


def run_inline(experiment: Experiment, out: Path, on_progress: OnProgress, *, resume: bool = False) -> RunFolder:
    """The whole run in this process on memory stores: seconds, for development."""

    def run(each: Experiment, folder: Path, unfinished: Unfinished | None) -> RunFolder:
        return _run_inline(each, folder, on_progress, unfinished)

    return with_baseline(run, experiment, out, resume="inline" if resume else "")


def _run_inline(experiment: Experiment, out: Path, on_progress: OnProgress, unfinished: Unfinished | None) -> RunFolder:
    architecture = load(experiment.architecture)
    clients = InlineClients(workers=experiment.workers, shared_tensors=architecture.tensor_hosts != "per_worker")
    objects = clients.objects(Traffic())
    if unfinished:
        unfinished.restore(objects, together=_in_step(experiment))
    prepared = prepare(experiment, objects=objects, data=[objects], run=unfinished.run if unfinished else "")

    def databases() -> dict[int, TensorStore]:
        if architecture.tensor_hosts != "per_worker":
            return {}
        return {worker: clients.tensors(experiment, worker, Traffic()) for worker in range(experiment.workers)}

    with resumption.keeping(objects, out, databases=databases, resumed=unfinished is not None):
        if architecture.run is None:
            return finish(prepared, InlinePrograms(prepared, clients), out, on_progress, where="inline")
        context = Context(Resources(clients), run=prepared.run)
        with ThreadPoolExecutor(max_workers=1) as pool:
            event = first_event(prepared.run, workers=experiment.workers, attempt=int(time.time()) if unfinished else 0)
            execution = InlineExecution(pool.submit(execute, architecture.run, context, event))
            return finish(prepared, execution, out, on_progress, where="inline")


def _in_step(experiment: Experiment) -> int:
    """How many peers must all go on at the same round; 0: each where it stands, or as the tree's first step says."""
    architecture = load(experiment.architecture)
    return members_of(experiment, architecture) if architecture.program and not goes_on_without(experiment) else 0


def finish(
    prepared: Prepared,
    execution: Execution,
    out: Path,
    on_progress: OnProgress,
    *,
    where: str,
    complete: Callable[[Prepared], None] = lambda prepared: None,
) -> RunFolder:
    """Follow the execution to its end and write the folder, whatever the end. `complete`: what is learned of records afterwards."""
    try:
        follow(prepared, execution, on_progress)
    except (Exception, KeyboardInterrupt) as error:
        cause = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
        write_folder(prepared, out, where=where, failure=cause)
        raise
    complete(prepared)
    return write_folder(prepared, out, where=where)


# --- deployed: local and aws ------------------------------------------------------------------------------------------


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
        prepared = _taken_up(found.run, experiment, objects=objects, resume=resume)
    else:
        prepared = prepare(experiment, objects=objects, data=data, run=resume)
        facts.check(prepared)
    if prepared.architecture.program:
        return _run_fleet(
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


def _start(prepared: Prepared, states: Any, machine: str, *, again: bool) -> str:
    """The ARN of a new execution. Names are reserved for 90 days: a run that is resumed has another."""
    event = first_event(prepared.run, workers=prepared.experiment.workers, attempt=int(time.time()) if again else 0)
    name = f"{prepared.run}-{event['attempt']}"
    return str(states.start_execution(stateMachineArn=machine, name=name, input=json.dumps(event))["executionArn"])


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
        return UnderWay(json.loads(told)["run"], "")
    return None


def _taken_up(run: str, experiment: Experiment, *, objects: ObjectStore, resume: str) -> Prepared:
    """A run under way, as it was prepared. Raises UserError where it is not the one that is asked for."""
    if resume and resume != run:
        raise UserError(f"--resume {resume}: run {run} is under way and would be in its way; --resume {run} follows it")
    facts = json.loads(objects.get(Keys(run).experiment))
    there, architecture = from_resolved(facts["experiment"]), load(experiment.architecture)
    if not resume and (differing := resumption.differing(resolve(experiment, architecture), there)):
        raise UserError(
            f"run {run} is under way with other settings: {', '.join(differing)}; --resume {run} follows that one to its end"
        )
    return Prepared(run, there, architecture, objects, facts)


def _run_fleet(
    prepared: Prepared,
    fleet: str,
    out: Path,
    on_progress: OnProgress,
    *,
    session: Any,
    where: str,
    announced: bool = False,
) -> RunFolder:
    """A run of programs: the fleet gets its instances, is told what to join, and is emptied again, whatever happens.

    `announced`: the programs are at work on it already.
    """
    groups, members = session.client("autoscaling"), members_of(prepared.experiment, prepared.architecture)
    count = instances_of(prepared.experiment, prepared.architecture)

    def release() -> None:
        groups.set_desired_capacity(AutoScalingGroupName=fleet, DesiredCapacity=0)

    def why() -> str:
        """What Auto Scaling says of its last attempt to start an instance: a quota, no capacity."""
        last = groups.describe_scaling_activities(AutoScalingGroupName=fleet, MaxRecords=1)["Activities"]
        return " ".join(f"{each.get('StatusCode', '')}: {each.get('StatusMessage', '')}" for each in last)

    def alive() -> bool:
        """Programs that are through leave the fleet, and take their place with them."""
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
            tolerant=goes_on_without(prepared.experiment),
            release=release,
            alive=alive,
            why=why,
        )
        return finish(prepared, execution, out, on_progress, where=where)
    finally:
        release()
        prepared.objects.delete(current_run(fleet))


def instances_of(experiment: Experiment, architecture: Architecture) -> int:
    """How many instances a run's programs need."""
    assert architecture.program is not None
    return experiment.gpu.instances if architecture.program.count == "gpus" else experiment.workers


@dataclass(frozen=True)
class Deployed:
    """What the experiment's stack published, found from project and experiment alone."""

    bucket: str
    run_machine: str  # "" where programs run, which `fleet` then names
    fleet: str
    data_buckets: tuple[str, ...]
    shape: Mapping[str, Any]

    def check(self, prepared: Prepared) -> None:
        """Map modes, database hosts and layers were fixed when the stack was made: what does not fit it is refused before anything runs."""
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
        side_by_side = calendar(run_facts(prepared)).minibatches_in(0)
        if most is not None and side_by_side > most:
            wrong.append(f"minibatches side by side: {side_by_side}, deployed for {most}")
        if wrong:
            raise ConfigError("; ".join(wrong) + f"; deploy it anew: cdk deploy crossover-{experiment.name}")

    @classmethod
    def of(cls, experiment: Experiment, session: Any) -> "Deployed":
        path = f"/crossover/{experiment.project}/{experiment.name}/"
        pages = session.client("ssm").get_paginator("get_parameters_by_path").paginate(Path=path)
        found = {p["Name"].removeprefix(path): p["Value"] for page in pages for p in page["Parameters"]}
        if "bucket" not in found or not {"run_machine", "fleet"} & found.keys():
            raise ConfigError(
                f"{experiment.name}: not deployed in project {experiment.project}; "
                f"cdk deploy crossover-{experiment.name} -c config=config/{experiment.name}.yaml"
            )
        buckets = tuple(found.get("data_buckets", "").split())
        return cls(
            found["bucket"], found.get("run_machine", ""), found.get("fleet", ""), buckets, json.loads(found["shape"])
        )


def run_local(
    experiment: Experiment, out: Path, on_progress: OnProgress, *, workspace: Path | None = None, resume: bool = False
) -> RunFolder:
    """The same through the cloud on one machine: synthesize, deploy, run, tear down. `resume`: what `out` holds
    unfinished."""
    from cdk.synthesis import synthesize
    from crossover.local import tools
    from crossover.local.cloud import LocalCloud

    tools.check()
    with tempfile.TemporaryDirectory(prefix="crossover-") as folder:

        def run(each: Experiment, into: Path, unfinished: Unfinished | None) -> RunFolder:
            if not cloud.stacks():
                cloud.deploy(synthesize(experiment, Path(folder) / "assembly"))
            return run_on_cloud(cloud, each, into, on_progress, unfinished=unfinished)

        with LocalCloud(workspace or Path(folder) / "cloud") as cloud:
            try:
                return with_baseline(run, experiment, out, resume="local" if resume else "")
            finally:
                cloud.destroy()


def run_on_cloud(
    cloud: "LocalCloud", experiment: Experiment, out: Path, on_progress: OnProgress, *, unfinished: Unfinished | None
) -> RunFolder:
    """A run of the experiment that the local cloud holds. What it can go on with is kept in `out` should it fail: the
    cloud ends with it."""
    from crossover.dataplane.s3 import S3ObjectStore
    from crossover.local import databases

    session = cloud.session()
    objects = S3ObjectStore(Deployed.of(experiment, session).bucket, Traffic(), client=session.client("s3"))
    if unfinished:
        unfinished.restore(objects, together=_in_step(experiment))
    architecture = load(experiment.architecture)

    def of_workers() -> dict[int, TensorStore]:
        if architecture.tensor_hosts != "per_worker":
            return {}
        step = steps(architecture)[0].name.replace("_", "-")
        return databases.of(cloud, experiment, function=f"{experiment.project}-{experiment.name}-{step}")

    with resumption.keeping(objects, out, databases=of_workers, resumed=unfinished is not None):
        return run_deployed(
            experiment,
            out,
            on_progress,
            session=session,
            where="local",
            resume=unfinished.run if unfinished else "",
        )


def run_aws(experiment: Experiment, out: Path, on_progress: OnProgress, *, resume: str = "") -> RunFolder:
    """The deployed experiment on AWS, by the credentials of the environment."""
    import boto3

    # Seconds of a cloud on one machine are not AWS's, whichever command asked for them.
    where = "local" if os.environ.get("AWS_ENDPOINT_URL") else "aws"
    session = boto3.Session()
    if resume:  # that run alone
        return run_deployed(experiment, out, on_progress, session=session, where=where, resume=resume)

    def run(each: Experiment, into: Path, unfinished: Unfinished | None) -> RunFolder:
        return run_deployed(each, into, on_progress, session=session, where=where)

    return with_baseline(run, experiment, out)
