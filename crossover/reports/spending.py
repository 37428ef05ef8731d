"""Spending of a run so far, and whether its budget is reached."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from crossover import runtime
from crossover.errors import Corrupt, Missing, UserError
from crossover.experiment import Experiment
from crossover.processes import run_in_threads
from crossover.reports import bill as infrastructures
from crossover.reports import prices as pricing
from crossover.reports.bill import BilledRun, Fleet, Infrastructure, Quantities, bill, make_interim_record
from crossover.reports.prices import Price, Prices
from crossover.reports.usage import RECORD, Record, state_transitions
from crossover.stores import documents, encoding
from crossover.stores.keys import TIME_FORMAT, Keys
from crossover.stores.protocols import ObjectStore
from crossover.workflow import Step, walk
from crossover.workflow.architecture import architecture_of

if TYPE_CHECKING:
    from crossover.workflow.context import Context


# --- budget -----------------------------------------------------------------------------------------------------------


class BudgetReached(UserError):
    """Error for a run that reached its budget (lifetime.budget_usd) and was stopped, or has ended itself. Its results so far are kept."""


def explain_no_further_epoch(limit_usd: float, usd: float, *, dearest_usd: float) -> str:
    """Return the reason why a run must not start another epoch, "" if it may. It must not if its cost so far, `usd`, plus that of its most
    expensive epoch so far, `dearest_usd`, exceeds the budget `limit_usd`.
    """
    if usd + dearest_usd <= limit_usd:
        return ""
    return (
        f"stopped at ${usd:.4f}: training until the next evaluation costs up to ${dearest_usd:.4f}, and lifetime.budget_usd is "
        f"{limit_usd:g}; to continue, raise it, or choose fewer training.epochs or smaller instances"
    )


def check_budget(limit_usd: float, usd: float) -> None:
    """Raise BudgetReached if the dollars spent so far, `usd`, have reached the budget `limit_usd`."""
    if usd >= limit_usd:
        raise BudgetReached(
            f"stopped at ${usd:.4f}: lifetime.budget_usd is {limit_usd:g}; "
            "to continue, raise it, or choose fewer training.epochs or smaller instances"
        )


# --- spending ---------------------------------------------------------------------------------------------------------
# What a run has cost so far and until when it may go on, by whoever decides: a function, a program, or the command that follows it.
#
# Prices and infrastructure travel in the run's facts, so that a decision needs neither the price list nor the command. The dollars are
# those of reports/bill.py on what the bucket holds: the records of what has ended, the marks of what is under way.

T = TypeVar("T")
Facts = Mapping[str, Any]
TRANSITIONS_PER_S = 4  # of one worker, at most: assumed; a poll and its wait take longer


def pricing_facts(experiment: Experiment, *, side_by_side: int) -> dict[str, Any]:
    """Return what a run must know to compute its own cost, as a part of the configuration in its bucket: `prices` ({"region", "as_of",
    "hours_per_month", "items": {item: [dollars, unit]}}), `infrastructure` (its fields as plain data), and `most_usd_per_s`, the highest
    dollars per second that the run can spend. `side_by_side`: number of minibatches that one worker computes at once. Raises ConfigError if
    a price is missing.
    """
    listed, found = pricing.load(), infrastructures.infrastructure_of(experiment)
    return {
        "prices": {
            "region": listed.region,
            "as_of": listed.as_of,
            "hours_per_month": listed.hours_per_month,
            "items": {item: [price.usd, price.unit] for item, price in listed.items.items()},
        },
        "infrastructure": asdict(found),
        "most_usd_per_s": _highest_usd_per_s(experiment, found, listed, side_by_side=side_by_side),
    }


def _highest_usd_per_s(experiment: Experiment, found: Infrastructure, listed: Prices, *, side_by_side: int) -> float:
    """Return the highest dollars per second that a run can spend: all of its infrastructure, and as many functions as can run at once,
    working without a pause, each with the largest memory. `found`: the infrastructure; `listed`: prices; `side_by_side`: number of
    minibatches that one worker computes at once. Raises ConfigError if a price is missing.
    """
    hour_s = 3_600
    standing = sum(line.usd for line in bill(Quantities(), found, listed, duration_s=hour_s, transitions=0))
    slots = (experiment.workers + 1) * max(1, side_by_side) if found.memory_mb else 0
    memory_gb = max(found.memory_mb.values(), default=0) / 1_024
    each = memory_gb * listed.of("lambda.arm64.gb_second").usd
    each += TRANSITIONS_PER_S * (listed.of("stepfunctions.transition").usd + listed.of("lambda.request").usd)
    return standing / hour_s + slots * each


def compute_deadline(experiment: Experiment, money: Facts, *, began: float, usd: float, now: float) -> str:
    """Return the time until which a run may continue without being followed by its command, as text in TIME_FORMAT (RFC 3339, UTC): the end
    of its maximum duration, or earlier the time at which it could have spent its budget, if it spends as fast as it can. `money`: result of
    `pricing_facts`, {} if it is unknown; `began`, `now`: unix seconds; `usd`: cost so far.
    """
    ends = began + experiment.lifetime.maximum_run_hours * 3_600
    if experiment.lifetime.budget_usd is not None and money:  # a run of an earlier version knows no prices
        left_s = max(0.0, experiment.lifetime.budget_usd - usd) / money["most_usd_per_s"]
        ends = min(ends, now + left_s)
    return datetime.fromtimestamp(ends, UTC).strftime(TIME_FORMAT)


def write_deadline(
    objects: ObjectStore, keys: Keys, experiment: Experiment, money: Facts, *, began: float, usd: float
) -> None:
    """Write the run's deadline to the bucket (`objects`, under a key of `keys`), replacing an earlier one. The stack's clean-up reads it
    and stops the run after it. `money`: result of `pricing_facts`; `began`: unix seconds at which the run began; `usd`: cost so far. To be
    called only by the run that is current.
    """
    moment = compute_deadline(experiment, money, began=began, usd=usd, now=runtime.time())
    objects.put(keys.deadline(began), moment.encode())


def decide_spending(ctx: "Context", before: Facts) -> dict[str, Any]:
    """Return, after an epoch of a run that has a budget, `usd` (cost so far), `dearest_usd` (cost of the most expensive epoch, without the
    endpoints' first hour) and `over_budget` (why the run must stop, or ""). Also writes the run's deadline anew. `ctx`: the invocation's
    context; `before`: the decision after the epoch before. Raises Corrupt if a record in the bucket is damaged.
    """
    limit = ctx.experiment.lifetime.budget_usd
    assert limit is not None
    usd, money = sum_spent_usd(ctx, epochs=before["epoch"] + 1), ctx.facts.money
    endpoints = _infrastructure(money["infrastructure"]).interface_endpoints
    # Paid once the run begins: a second epoch in the same hour does not pay it again.
    started = infrastructures.endpoints_line(_prices(money["prices"]), endpoints, seconds=1).usd
    dearest = max(before.get("dearest_usd", 0.0), usd - before.get("usd", started))
    write_deadline(ctx.objects, ctx.keys, ctx.experiment, ctx.facts.money, began=ctx.facts.created_at, usd=usd)
    return {
        "usd": usd,
        "dearest_usd": dearest,
        "over_budget": explain_no_further_epoch(limit, usd, dearest_usd=dearest),
    }


def sum_spent_usd(ctx: "Context", *, epochs: int) -> float:
    """Return the total AWS bill in dollars that the run has caused until now, from the records and usage snapshots in its bucket. `epochs`:
    number of epochs decided so far. Records are kept in `ctx`, so that a process reads each only once. Raises Corrupt if one is damaged.
    """
    ended = dict(ctx.resources.records.get(ctx.run, {}))  # a copy: in one process workers decide side by side
    marks, money = read_records(ctx.objects, ctx.keys, ended), ctx.facts.money
    ctx.resources.records = {ctx.run: ended}
    run = bill_running(
        ctx.experiment,
        ended=list(ended.values()),
        marks=marks,
        began=ctx.facts.created_at,
        epochs=epochs,
        now=runtime.time(),
        infrastructure=_infrastructure(money["infrastructure"]),
        prices=_prices(money["prices"]),
    )
    return run.cost().full_usd


def bill_running(
    experiment: Experiment,
    *,
    ended: Sequence[Record],
    marks: Iterable[Record],
    began: float,
    epochs: int,
    now: float,
    infrastructure: Infrastructure,
    prices: Prices,
) -> BilledRun:
    """Return an unfinished run with all that it is billed for until `now` (unix seconds). `ended`: records of ended invocations; `marks`:
    usage snapshots of running invocations; `began`: unix seconds at which the run began; `epochs`: number of epochs decided;
    `infrastructure`, `prices`: those at the run's start.
    """
    records, architecture = [*ended, *(make_interim_record(mark, now) for mark in marks)], architecture_of(experiment)
    started_at = min([began, *(float(record["started_at"]) for record in records)])
    states = state_transitions(architecture, ended, workers=experiment.workers, epochs=epochs)
    steps = {node.name for node in walk(architecture.run) if isinstance(node, Step)} if architecture.run else set()
    to_come = len(steps - {record["step"] for record in records})  # their states are counted, and not yet entered
    return BilledRun(
        experiment=experiment,
        records=records,
        infrastructure=infrastructure,
        prices=prices,
        started_at=started_at,
        duration_s=max(0.0, now - started_at),
        transitions=states * len(records) // max(1, len(records) + to_come),
    )


def read_records(
    objects: ObjectStore, keys: Keys, ended: dict[str, dict[str, Any]], *, damaged: dict[str, Corrupt] | None = None
) -> list[dict[str, Any]]:
    """Read the records that are in the bucket `objects` but not yet in `ended`, several at a time, and add them to `ended` by key. Returns
    the usage snapshots of invocations that have no record. `keys`: names of the run's objects; `damaged`: receives {key: error} of damaged
    records and snapshots; if it is None, Corrupt is raised.
    """
    new = [key for key in objects.list(keys.records) if key not in ended]
    for key, body in zip(new, _call_in_parallel(partial(objects.get, key) for key in new), strict=True):
        with _collect_corrupt(key, damaged):
            ended[key] = documents.unseal(body, RECORD, key=key)
    known = {keys.mark(record["request_id"]) for record in ended.values()}
    marks = [key for key in objects.list(keys.marks) if key not in known]
    found = zip(marks, _call_in_parallel(partial(_get_if_exists, objects, key) for key in marks), strict=True)
    read_marks = list[dict[str, Any]]()
    for key, mark in found:
        with _collect_corrupt(key, damaged):
            read_marks += [encoding.read_plain(mark, RECORD, key=key)] if mark else []
    return read_marks


@contextmanager
def _collect_corrupt(key: str, damaged: dict[str, Corrupt] | None) -> Iterator[None]:
    """Context manager that puts a Corrupt error raised in its block into `damaged` under `key`, or raises it if `damaged` is None."""
    try:
        yield
    except Corrupt as error:
        if damaged is None:
            raise
        damaged[key] = error


def _call_in_parallel(gets: Iterable[Callable[[], T]]) -> list[T]:
    """Call all functions in threads, up to eight at a time, and return their results in order. If some fail, raise the error of the first
    of them in the order of the functions, after all have ended.
    """
    found, failed = run_in_threads(gets, slots=8)
    if failed:
        raise failed[min(failed)]
    return [found[number] for number in sorted(found)]


def _get_if_exists(objects: ObjectStore, key: str) -> bytes | None:
    """Return the content of the object `key`, None if there is no such object. A usage snapshot is deleted when its invocation's record is
    written.
    """
    with suppress(Missing):
        return objects.get(key)
    return None


def _infrastructure(plain: Facts) -> Infrastructure:
    """Return the infrastructure from the plain data in a run's configuration."""
    return Infrastructure(**{**plain, "fleets": tuple(Fleet(**fleet) for fleet in plain["fleets"])})


def _prices(plain: Facts) -> Prices:
    """Return the price list from the plain data in a run's configuration. All its prices have the list's date."""
    items = {
        item: Price(item=item, usd=usd, unit=unit, as_of=plain["as_of"], source="the run's facts")
        for item, (usd, unit) in plain["items"].items()
    }
    return Prices(region=plain["region"], as_of=plain["as_of"], hours_per_month=plain["hours_per_month"], items=items)
