"""Power tuning measured: one epoch of one round on a deployed stack, each step invoked from here, with one function at several sizes.

The tree is walked in this process and every step is an invocation that is waited for, so that dollars are bounded before each: Lambda ends
it at its time limit, which is set for the while together with its memory. Both are put back whatever happens.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from crossover import runtime
from crossover.algorithms.calendar import Calendar
from crossover.architecture import architecture_of
from crossover.clients import aws_calls
from crossover.clients.memory import MemoryClients
from crossover.clients.protocol import Event
from crossover.context import Context, Resources
from crossover.costs import platform_reports
from crossover.costs.expectations import expected_records
from crossover.costs.platform_reports import Report
from crossover.costs.prices import Prices
from crossover.dataplane.traffic import Traffic
from crossover.errors import ConfigError, RunFailed, UserError
from crossover.experiment import Experiment, ImageSize
from crossover.learning import datasets
from crossover.learning.staging import minibatches_of
from crossover.running.preparing import Prepared, prepare
from crossover.running.stack import Deployed
from crossover.running.unattended import under_way
from crossover.runtime.pauses import Pauses
from crossover.training.calendar import calendar_of
from crossover.workflow import Node, Step, execute, first_event, mapped

SETTLED_S = 120.0  # for a function's new size to be in force
LOOK_S = 0.5
LONGEST_S = 960.0  # of an invocation, and then some; one that got no answer is not asked for again


class BudgetTooSmall(UserError):
    """What comes next could pass the budget: nothing was invoked for it."""


class NotPutBack(UserError):
    """A function still has the size or the time limit that was tried."""


@dataclass
class Purse:
    """What may be spent, and what has been: an invocation under way counts with the most that it can cost."""

    budget_usd: float
    prices: Prices
    spent_usd: float = 0.0
    _lock: runtime.Lock = field(default_factory=runtime.lock, repr=False)

    def usd(self, seconds: float, memory_mb: int) -> float:
        """Of one invocation that is billed so long."""
        of = self.prices.of
        return seconds * memory_mb / 1_024 * of("lambda.arm64.gb_second").usd + of("lambda.request").usd

    def take(self, usd: float, what: str) -> None:
        """Raises BudgetTooSmall where it is not there."""
        with self._lock:
            if self.spent_usd + usd > self.budget_usd:
                raise BudgetTooSmall(
                    f"--budget: ${self.budget_usd:g}; ${self.spent_usd:.4f} is spent or under way, and {what} could cost ${usd:.4f}"
                )
            self.spent_usd += usd

    def give_back(self, usd: float) -> None:
        with self._lock:
            self.spent_usd -= usd


@dataclass(frozen=True)
class Measured:
    """One size of the function. `seconds`, `usd`: of the mean invocation, as billed; `peak_mb`: of the largest."""

    memory_mb: int
    invocations: int
    seconds: float
    usd: float
    peak_mb: int


@dataclass(frozen=True)
class Unmeasured:
    """A size at which a step failed, or that AWS does not allow; `reason` says which."""

    memory_mb: int
    reason: str


def measured(
    experiment: Experiment,
    step: str,
    sizes: Sequence[int],
    *,
    session: Any,
    purse: Purse,
    timeout_s: int,
    wait_s: float = platform_reports.WAIT_S,
) -> Iterator[Measured | Unmeasured]:
    """The step at each size, one after another. Raises ConfigError where the experiment is not deployed as functions or works on a run,
    BudgetTooSmall before a round that could pass the budget, RunFailed where Lambda reports nothing, NotPutBack where a function could not
    be left as it was.
    """
    from crossover.dataplane.s3 import SETTINGS, S3ObjectStore

    facts, architecture = Deployed.of(experiment, session), architecture_of(experiment)
    if architecture.run is None:
        raise ConfigError(
            f"--tune: the functions of {experiment.architecture} are started by a program; only --tune memory without --on aws sizes them"
            if architecture.machines
            else f"--tune: {experiment.architecture} has no functions as {experiment.name} is set"
        )
    if under_way(experiment, session):
        raise ConfigError(f"--tune: {experiment.name} works on a run; measure when it has ended")
    stores = {
        name: S3ObjectStore(name, Traffic(), client=session.client("s3", config=SETTINGS))
        for name in (facts.bucket, *facts.data_buckets)
    }
    objects, data = stores.pop(facts.bucket), list(stores.values())
    for memory_mb in sizes:
        prepared = prepare(one_round(experiment), objects=objects, data=data or [objects])
        facts.check(prepared)
        calls = Calls(f"{experiment.project}-{experiment.name}", session, purse)
        reason = ""
        try:
            with calls.sized(step, memory_mb=memory_mb, timeout_s=timeout_s):
                calls.one_round(prepared, architecture.run)
        except RunFailed as failed:
            reason = str(failed)
        finally:
            objects.delete_prefix(prepared.keys.prefix)
        reports = calls.settled(wait_s=wait_s)
        yield Unmeasured(memory_mb, reason) if reason else calls.measured(step, memory_mb, reports)


def one_round(experiment: Experiment) -> Experiment:
    """An epoch of as many samples as make one round, or as many epochs as it goes through; images as they are, which need most."""
    resolved = architecture_of(experiment).resolve(experiment)
    every = resolved.exchange.every if isinstance(resolved.exchange.every, int) else 1
    samples = resolved.workers * resolved.training.batch_size * every
    limit = min(samples, experiment.data.limit or samples)
    epochs = 1 if resolved.exchange.what == "gradients" else _span(resolved, every)
    training = replace(experiment.training.of_epochs(epochs), steps=None, target=None, image_size=ImageSize())
    return replace(experiment, training=training, data=replace(experiment.data, limit=limit))


def _span(experiment: Experiment, every: int) -> int:
    """Epochs that a round of so many local steps goes through. Raises what loading data of the user's own raises."""
    samples, batch_size = datasets.training_samples(experiment), experiment.training.batch_size
    minibatches = minibatches_of(samples, experiment.workers, batch_size, drop_last=experiment.data.drop_last)
    return Calendar(minibatches or every, every, experiment.training.epochs).span


class Calls:
    """Invocations of a stack's functions, each paid for beforehand with the most that it can cost; what it did cost is in Lambda's logs."""

    def __init__(self, stack: str, session: Any, purse: Purse) -> None:
        from botocore.config import Config

        self.stack, self.session, self.purse = stack, session, purse
        # An invocation that is asked for twice may be paid for twice; a change of settings has to arrive.
        self._once = session.client("lambda", config=Config(read_timeout=LONGEST_S, retries={"total_max_attempts": 1}))
        self._settings = session.client("lambda")
        self._began_s = runtime.time()
        self._paid = dict[str, float]()  # by request id
        self._most = dict[str, float]()  # by function

    def function(self, step: str) -> str:
        return f"{self.stack}-{step.replace('_', '-')}"

    def remote(self, step: Step) -> "Remote":
        return Remote(**vars(step), calls=self)

    def one_round(self, prepared: Prepared, tree: Node) -> None:
        """Raises BudgetTooSmall before its first invocation, RunFailed where a function failed."""
        experiment = prepared.experiment
        days = calendar_of(experiment, prepared.facts["data_manifest"])
        times = expected_records(prepared.architecture, workers=experiment.workers, days=days, epochs=days.decisions)
        self.afford(times)
        ctx = Context(Resources(MemoryClients(workers=1)), run=prepared.run)
        execute(mapped(tree, self.remote), ctx, first_event(prepared.run, workers=experiment.workers))

    def afford(self, times: Mapping[str, int]) -> None:
        """Raises BudgetTooSmall where so many invocations of each step, to their time limits, could pass the budget: those who wait at a
        barrier for one that nobody can pay any more would be paid for nothing.
        """
        most = sum(count * self._most_usd(self.function(step)) for step, count in times.items())
        self.purse.take(most, f"a round of {sum(times.values())} invocations, each to its time limit,")
        self.purse.give_back(most)

    def invoke(self, step: str, event: Event) -> Event:
        """The step's answer. Raises BudgetTooSmall before it asks, RunFailed where the function failed."""
        name = self.function(step)
        most = self._most_usd(name)
        self.purse.take(most, f"an invocation of {name}, to its time limit,")
        told = self._once.invoke(FunctionName=name, Payload=json.dumps(event).encode())
        self._paid[told["ResponseMetadata"]["RequestId"]] = most
        answer = json.loads(told["Payload"].read())
        if error := told.get("FunctionError"):
            raise RunFailed(f"{name}: {error}: {answer.get('errorType', '')}: {answer.get('errorMessage', answer)}")
        found: Event = answer
        return found

    def settled(self, *, wait_s: float) -> list[Report]:
        """What Lambda reports of the invocations; what is above that goes back. One of which it says nothing stays with the most."""
        asked = [{"request_id": each, "started_at": self._began_s} for each in self._paid]
        found = platform_reports.wait_for(self.session, self.stack, asked, wait_s=wait_s)
        mine = [report for request, report in found.items() if request in self._paid]
        for each in mine:
            paid = self._paid.pop(each.request_id)
            self.purse.give_back(paid - self.purse.usd(each.billed_ms / 1_000, each.memory_mb))
        return mine

    def measured(self, step: str, memory_mb: int, reports: Sequence[Report]) -> Measured:
        """What the step took. Raises RunFailed where Lambda says nothing of it."""
        mine = [each for each in reports if each.function == self.function(step)]
        if not mine:
            raise RunFailed(
                f"--tune: Lambda reports nothing of {self.function(step)}: its log group holds no platform.report"
            )
        billed_s = [each.billed_ms / 1_000 for each in mine]
        usd = sum(self.purse.usd(each, memory_mb) for each in billed_s)
        peak_mb = max(each.max_memory_mb for each in mine)
        return Measured(memory_mb, len(mine), sum(billed_s) / len(mine), usd / len(mine), peak_mb)

    @contextmanager
    def sized(self, step: str, *, memory_mb: int, timeout_s: int) -> Iterator[None]:
        """Within it the step's function has so much memory and time; at its end what it had. Raises RunFailed where AWS does not allow so
        much memory, NotPutBack where the function stays at the size.
        """
        client, name = self._settings, self.function(step)
        before = client.get_function_configuration(FunctionName=name)
        had_mb, had_s = before["MemorySize"], before["Timeout"]
        try:
            _settle(client, name, memory_mb, min(timeout_s, had_s))
            yield
        finally:
            try:
                _settle(client, name, had_mb, had_s)
            except Exception as problem:
                raise NotPutBack(
                    f"{name} may still have {memory_mb} MB: {problem}. Put it back: aws lambda update-function-configuration "
                    f"--function-name {name} --memory-size {had_mb} --timeout {had_s}"
                ) from problem

    def _most_usd(self, name: str) -> float:
        if name not in self._most:
            now = self._settings.get_function_configuration(FunctionName=name)
            self._most[name] = self.purse.usd(now["Timeout"], now["MemorySize"])
        return self._most[name]


@dataclass(frozen=True)
class Remote(Step):
    """A step whose deployed function does the work."""

    calls: Calls = field(kw_only=True)

    def run(self, ctx: Context, event: Event) -> Event:
        return self.calls.invoke(self.name, event)


def _settle(client: Any, function: str, memory_mb: int, timeout_s: int) -> None:
    """Raises RunFailed where AWS does not allow the size (a new account's functions have 3,008 MB at most), or the change is not in force
    within SETTLED_S. AWS refuses a change while another one is under way.
    """
    from botocore.exceptions import ClientError

    _settled(client, function)
    try:
        client.update_function_configuration(FunctionName=function, MemorySize=memory_mb, Timeout=timeout_s)
    except ClientError as refused:
        if aws_calls.code_of(refused) != "InvalidParameterValueException":
            raise
        raise RunFailed(f"{function}: AWS does not allow {memory_mb} MB: {refused}") from refused
    _settled(client, function)


def _settled(client: Any, function: str) -> None:
    pause = Pauses(LOOK_S, within_s=SETTLED_S)
    while client.get_function_configuration(FunctionName=function).get("LastUpdateStatus") == "InProgress":
        if not pause():
            raise RunFailed(f"{function}: its configuration is still being changed after {SETTLED_S:g} s")
