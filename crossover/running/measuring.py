"""Measurement for power tuning: one round on a deployed stack for each memory size of one function.

The workflow is executed in this process. Every step is a synchronous invocation of its function, so that its cost is bounded beforehand:
Lambda ends it at its time limit. Memory and time limit of the measured function are changed during the measurement and restored afterwards,
even after an error.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from crossover import runtime
from crossover.algorithms.schedule import Calendar
from crossover.errors import ConfigError, RunFailed, UserError
from crossover.experiment import Experiment, ImageSize
from crossover.learning.staging import count_minibatches
from crossover.reports import usage
from crossover.reports.prices import Prices
from crossover.reports.usage import Report, expected_records
from crossover.running.monitor import DeployedParameters, find_run_under_way
from crossover.running.preparing import PreparedRun, prepare
from crossover.runtime import Pauses
from crossover.stores import deployed_clients
from crossover.stores.clients import Event, MemoryClients
from crossover.stores.protocols import Traffic
from crossover.training.progress import calendar_of
from crossover.workflow import Node, Step, execute, first_event, map_steps
from crossover.workflow.architecture import architecture_of
from crossover.workflow.context import Context, Resources

APPLY_TIMEOUT_S = 120.0  # until a function's new size is in force
POLL_S = 0.5
LONGEST_INVOCATION_S = 960.0  # longer than Lambda's limit of 900 s; an invocation without an answer is not repeated


class BudgetTooSmall(UserError):
    """The error that the next invocation could exceed the budget of the measurement. The invocation was not made."""


class NotRestored(UserError):
    """The error that a function may still have the memory size or time limit that the measurement set. The message has the command that
    restores both.
    """


@dataclass
class BudgetTracker:
    """A budget of `budget_usd` dollars for invocations on AWS; `spent_usd`: what is spent or reserved of it; `prices`: by which invocations
    are charged. Every invocation reserves its maximum cost beforehand. May be used by several threads.
    """

    budget_usd: float
    prices: Prices
    spent_usd: float = 0.0
    _lock: runtime.Lock = field(default_factory=runtime.lock, repr=False)

    def invocation_usd(self, seconds: float, memory_mb: int) -> float:
        """Return the dollars that one Lambda invocation costs on ARM, the request included. `seconds`: billed duration; `memory_mb`: memory
        size of the function.
        """
        of = self.prices.of
        return seconds * memory_mb / 1_024 * of("lambda.arm64.gb_second").usd + of("lambda.request").usd

    def reserve(self, usd: float, what: str) -> None:
        """Count `usd` as spent. Raises BudgetTooSmall, and counts nothing, if less than that is left of the budget. `what`: what the
        dollars are for, in the error message.
        """
        with self._lock:
            if self.spent_usd + usd > self.budget_usd:
                raise BudgetTooSmall(
                    f"--budget: ${self.budget_usd:g}; ${self.spent_usd:.4f} is spent or reserved, and {what} could cost ${usd:.4f}"
                )
            self.spent_usd += usd

    def release(self, usd: float) -> None:
        """Subtract `usd` dollars, which were reserved and not spent, from what counts as spent."""
        with self._lock:
            self.spent_usd -= usd


@dataclass(frozen=True)
class MeasuredSize:
    """The measured cost of one function at one memory size. `memory_mb`: the size; `invocations`: number of measured ones; `seconds`,
    `usd`: means over the invocations of the billed duration and the cost; `peak_mb`: highest memory use of all invocations.
    """

    memory_mb: int
    invocations: int
    seconds: float
    usd: float
    peak_mb: int


@dataclass(frozen=True)
class UnmeasuredSize:
    """A memory size that could not be measured, because a step failed or AWS does not allow the size. `memory_mb`: the size; `reason`: the
    error message.
    """

    memory_mb: int
    reason: str


def measure_sizes(
    experiment: Experiment,
    step: str,
    sizes: Sequence[int],
    *,
    session: Any,
    budget: BudgetTracker,
    timeout_s: int,
    wait_s: float = usage.WAIT_S,
) -> Iterator[MeasuredSize | UnmeasuredSize]:
    """Run one round of training on AWS for each memory size, with the function of the step `step` set to this size. Yield for each size, in
    order, the mean billed seconds and dollars of the function's invocations and their peak memory, or the error message of a step that
    failed. After each size the function is restored and the round's objects are deleted. Nothing is checked or run before the first result
    is requested, and no further size before the next.

    `sizes`: memory in MB; `session`: makes the AWS clients; `budget`: shared by all sizes; `timeout_s`: time limit of an invocation;
    `wait_s`: longest wait for Lambda's reports. Raises ConfigError if the experiment is not deployed, has no functions to invoke, or has a
    run under way; BudgetTooSmall before a round or an invocation that could exceed the budget; RunFailed if Lambda reports nothing;
    NotRestored if a function could not be restored.
    """
    from crossover.stores.s3 import SETTINGS, S3ObjectStore

    facts, architecture = DeployedParameters.load(experiment, session), architecture_of(experiment)
    if architecture.run is None:
        raise ConfigError(
            f"--tune: the functions of {experiment.architecture} are started by a program; only --tune memory without --on aws sizes them"
            if architecture.machines
            else f"--tune: {experiment.architecture} has no functions as {experiment.name} is set"
        )
    if find_run_under_way(experiment, session):
        raise ConfigError(f"--tune: {experiment.name} is running a run; measure after it has ended")
    stores = {
        name: S3ObjectStore(name, Traffic(), client=session.client("s3", config=SETTINGS))
        for name in (facts.bucket, *facts.data_buckets)
    }
    objects, data = stores.pop(facts.bucket), list(stores.values())
    for memory_mb in sizes:
        prepared = prepare(reduce_to_one_round(experiment), objects=objects, data=data or [objects])
        facts.check(prepared)
        calls = StepInvoker(f"{experiment.project}-{experiment.name}", session, budget)
        reason = ""
        try:
            with calls.resize(step, memory_mb=memory_mb, timeout_s=timeout_s):
                calls.run_round(prepared, architecture.run)
        except RunFailed as failed:
            reason = str(failed)
        finally:
            objects.delete_prefix(prepared.keys.prefix)
        reports = calls.collect_reports(wait_s=wait_s)
        yield UnmeasuredSize(memory_mb, reason) if reason else calls.summarize(step, memory_mb, reports)


def reduce_to_one_round(experiment: Experiment) -> Experiment:
    """Return the experiment shortened to one round, which ends when the workers first exchange what they learned: with as many samples as
    the round needs, at most `data.limit`, and, if the workers exchange models, as many epochs as the round lasts; for that the data set is
    loaded, whose errors are raised. `steps`, `target` and progressive image sizes are dropped: full-size images need the most memory.
    """
    resolved = architecture_of(experiment).resolve(experiment)
    every = resolved.exchange.every if isinstance(resolved.exchange.every, int) else 1
    samples = resolved.workers * resolved.training.batch_size * every
    limit = min(samples, experiment.data.limit or samples)
    epochs = 1 if resolved.exchange.what == "gradients" else _count_epochs_per_round(resolved, every)
    training = replace(experiment.training.with_epochs(epochs), steps=None, target=None, image_size=ImageSize())
    return replace(experiment, training=training, data=replace(experiment.data, limit=limit))


def _count_epochs_per_round(experiment: Experiment, every: int) -> int:
    """Return how many epochs a round lasts, after which the workers exchange their models. `every`: minibatches that each worker trains on
    in one round. Loads the data set, and raises its errors.
    """
    from crossover.learning import datasets

    samples, batch_size = datasets.count_training_samples(experiment), experiment.training.batch_size
    minibatches = count_minibatches(samples, experiment.workers, batch_size, drop_last=experiment.data.drop_last)
    return Calendar(minibatches or every, every, experiment.training.epochs).span


class StepInvoker:
    """A client that invokes the deployed functions of a stack within a budget. It reserves the maximum cost of each invocation beforehand
    and reads the actual cost from Lambda's logs. `stack`: name of the stack, with which the functions' names begin.
    """

    def __init__(self, stack: str, session: Any, budget: BudgetTracker) -> None:
        """Create the AWS clients. `stack`: name of the deployed stack; `session`: boto3 session; `budget`: limits all invocations."""
        from botocore.config import Config

        self.stack, self.session, self.budget = stack, session, budget
        # An invocation is sent once, since it may be paid for twice; a change of settings is retried.
        self._once = session.client(
            "lambda", config=Config(read_timeout=LONGEST_INVOCATION_S, retries={"total_max_attempts": 1})
        )
        self._settings = session.client("lambda")
        self._began_s = runtime.time()
        self._paid = dict[str, float]()  # by request id
        self._most = dict[str, float]()  # by function

    def function_name(self, step: str) -> str:
        """Return the name of the deployed Lambda function of the step `step`: the stack's name, a hyphen, and the step's
        name with hyphens.
        """
        return f"{self.stack}-{step.replace('_', '-')}"

    def make_remote(self, step: Step) -> "RemoteStep":
        """Return a copy of the workflow step `step` that invokes the deployed function instead of running in this process."""
        return RemoteStep(**vars(step), calls=self)

    def run_round(self, prepared: PreparedRun, tree: Node) -> None:
        """Execute one round of training: this process walks through the workflow `tree` and invokes a deployed function for each step.
        `prepared`: the run, reduced to one round. Raises BudgetTooSmall before the first invocation if the whole round could exceed the
        budget, or before a later one that could; RunFailed if a function failed.
        """
        experiment = prepared.experiment
        days = calendar_of(experiment, prepared.facts["data_manifest"])
        times = expected_records(prepared.architecture, workers=experiment.workers, days=days, epochs=days.decisions)
        self.check_affordable(times)
        ctx = Context(Resources(MemoryClients(workers=1)), run=prepared.run)
        execute(map_steps(tree, self.make_remote), ctx, first_event(prepared.run, workers=experiment.workers))

    def check_affordable(self, times: Mapping[str, int]) -> None:
        """Raise BudgetTooSmall if a round could exceed the budget when every invocation lasts to its time limit. Checked before the round,
        since workers that wait for an invocation that can no longer be paid would cost money in vain. Nothing stays reserved. `times`:
        number of invocations by step.
        """
        most = sum(count * self._most_usd(self.function_name(step)) for step, count in times.items())
        self.budget.reserve(most, f"a round of {sum(times.values())} invocations, each to its time limit,")
        self.budget.release(most)

    def invoke(self, step: str, event: Event) -> Event:
        """Invoke the deployed function of the step `step` with `event` and return its answer. Raises BudgetTooSmall if its maximum cost
        exceeds the budget; nothing is invoked then. Raises RunFailed if the function fails. Errors of AWS are raised; the maximum cost then
        stays reserved.
        """
        name = self.function_name(step)
        most = self._most_usd(name)
        self.budget.reserve(most, f"an invocation of {name}, to its time limit,")
        told = self._once.invoke(FunctionName=name, Payload=json.dumps(event).encode())
        self._paid[told["ResponseMetadata"]["RequestId"]] = most
        answer = json.loads(told["Payload"].read())
        if error := told.get("FunctionError"):
            raise RunFailed(f"{name}: {error}: {answer.get('errorType', '')}: {answer.get('errorMessage', answer)}")
        found: Event = answer
        return found

    def collect_reports(self, *, wait_s: float) -> list[Report]:
        """Return Lambda's reports on the invocations of which no earlier call has returned one, and release the reserved dollars that they
        did not cost. An invocation without a report keeps its maximum cost. `wait_s`: longest wait for the reports.
        """
        asked = [{"request_id": each, "started_at": self._began_s} for each in self._paid]
        found = usage.wait_for_reports(self.session, self.stack, asked, wait_s=wait_s)
        mine = [report for request, report in found.items() if request in self._paid]
        for each in mine:
            paid = self._paid.pop(each.request_id)
            self.budget.release(paid - self.budget.invocation_usd(each.billed_ms / 1_000, each.memory_mb))
        return mine

    def summarize(self, step: str, memory_mb: int, reports: Sequence[Report]) -> MeasuredSize:
        """Return the number of the step's invocations, their mean billed seconds and dollars, and their peak memory, from those of
        `reports` that are about this step's function. `memory_mb`: memory size at which the dollars are computed.

        Raises RunFailed if there is no such report.
        """
        mine = [each for each in reports if each.function == self.function_name(step)]
        if not mine:
            raise RunFailed(
                f"--tune: Lambda reports nothing of {self.function_name(step)}: its log group holds no platform.report"
            )
        billed_s = [each.billed_ms / 1_000 for each in mine]
        usd = sum(self.budget.invocation_usd(each, memory_mb) for each in billed_s)
        peak_mb = max(each.max_memory_mb for each in mine)
        return MeasuredSize(memory_mb, len(mine), sum(billed_s) / len(mine), usd / len(mine), peak_mb)

    @contextmanager
    def resize(self, step: str, *, memory_mb: int, timeout_s: int) -> Iterator[None]:
        """Context manager that sets the memory size of the step's function to `memory_mb` MB and its time limit to `timeout_s` seconds, or
        leaves a lower limit, and restores both at the end.

        Raises RunFailed if AWS does not allow this memory size, NotRestored if the function cannot be restored.
        """
        client, name = self._settings, self.function_name(step)
        before = client.get_function_configuration(FunctionName=name)
        had_mb, had_s = before["MemorySize"], before["Timeout"]
        try:
            _apply_size(client, name, memory_mb, min(timeout_s, had_s))
            yield
        finally:
            try:
                _apply_size(client, name, had_mb, had_s)
            except Exception as problem:
                raise NotRestored(
                    f"{name} may still have {memory_mb} MB: {problem}. Put it back: aws lambda update-function-configuration "
                    f"--function-name {name} --memory-size {had_mb} --timeout {had_s}"
                ) from problem

    def _most_usd(self, name: str) -> float:
        """Return the dollars that one invocation of the function `name` costs if it lasts to its time limit. The function's settings are
        read only once.
        """
        if name not in self._most:
            now = self._settings.get_function_configuration(FunctionName=name)
            self._most[name] = self.budget.invocation_usd(now["Timeout"], now["MemorySize"])
        return self._most[name]


@dataclass(frozen=True)
class RemoteStep(Step):
    """A workflow step that invokes its deployed function instead of running in this process. `calls`: makes the invocation."""

    calls: StepInvoker = field(kw_only=True)

    def run(self, ctx: Context, event: Event) -> Event:
        """Invoke the step's deployed function with `event` and return its answer. `ctx`: not used."""
        return self.calls.invoke(self.name, event)


def _apply_size(client: Any, function: str, memory_mb: int, timeout_s: int) -> None:
    """Set the memory size and time limit of a Lambda function, and wait until they are in force. `client`: a Lambda client. A change that
    is already in progress is waited for first. Raises RunFailed if AWS does not allow the memory size (a new account's functions have at
    most 3,008 MB), or if a change takes longer than APPLY_TIMEOUT_S.
    """
    from botocore.exceptions import ClientError

    _wait_until_applied(client, function)
    try:
        client.update_function_configuration(FunctionName=function, MemorySize=memory_mb, Timeout=timeout_s)
    except ClientError as refused:
        if deployed_clients.get_error_code(refused) != "InvalidParameterValueException":
            raise
        raise RunFailed(f"{function}: AWS does not allow {memory_mb} MB: {refused}") from refused
    _wait_until_applied(client, function)


def _wait_until_applied(client: Any, function: str) -> None:
    """Wait until AWS has applied the last change of the function's configuration. `client`: a Lambda client. Raises RunFailed after
    APPLY_TIMEOUT_S.
    """
    pause = Pauses(POLL_S, within_s=APPLY_TIMEOUT_S)
    while client.get_function_configuration(FunctionName=function).get("LastUpdateStatus") == "InProgress":
        if not pause():
            raise RunFailed(f"{function}: its configuration is still being changed after {APPLY_TIMEOUT_S:g} s")
