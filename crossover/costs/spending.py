"""What a run has cost so far and until when it may go on, by whoever decides: a function, a program, or the command that follows it.

Prices and infrastructure travel in the run's facts, so that a decision needs neither the price list nor the command. The dollars are those
of costs/cost.py on what the bucket holds: the records of what has ended, the marks of what is under way.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from crossover import runtime
from crossover.architecture import architecture_of
from crossover.costs import budget
from crossover.costs import infrastructure as infrastructures
from crossover.costs import prices as pricing
from crossover.costs.cost import BilledRun, Quantities, bill
from crossover.costs.expectations import state_transitions
from crossover.costs.infrastructure import Fleet, Infrastructure
from crossover.costs.invocations import RECORD, Record
from crossover.costs.prices import Price, Prices
from crossover.costs.stopped import under_way
from crossover.dataplane import documents, plain
from crossover.dataplane.protocols import ObjectStore
from crossover.errors import Missing
from crossover.experiment import Experiment
from crossover.keys import MOMENT, Keys
from crossover.runtime.threads import side_by_side
from crossover.workflow import Step, walk

if TYPE_CHECKING:
    from crossover.context import Context

T = TypeVar("T")
Facts = Mapping[str, Any]
TRANSITIONS_PER_S = 4  # of one worker, at most: assumed; a poll and its wait take longer


def facts(experiment: Experiment, *, side_by_side: int) -> dict[str, Any]:
    """What the run's facts say of money: `prices`, `infrastructure`, and `most_usd_per_s`, the highest rate at which the run can spend.

    `side_by_side`: minibatches that one worker computes at once. Raises ConfigError (no price).
    """
    listed, found = pricing.load(), infrastructures.of(experiment)
    return {
        "prices": {
            "region": listed.region,
            "as_of": listed.as_of,
            "hours_per_month": listed.hours_per_month,
            "items": {item: [price.usd, price.unit] for item, price in listed.items.items()},
        },
        "infrastructure": asdict(found),
        "most_usd_per_s": _most(experiment, found, listed, side_by_side=side_by_side),
    }


def _most(experiment: Experiment, found: Infrastructure, listed: Prices, *, side_by_side: int) -> float:
    """Everything that stands, and every function that may run at once at work without a pause."""
    hour_s = 3_600
    standing = sum(line.usd for line in bill(Quantities(), found, listed, duration_s=hour_s, transitions=0))
    slots = (experiment.workers + 1) * max(1, side_by_side) if found.memory_mb else 0
    memory_gb = max(found.memory_mb.values(), default=0) / 1_024
    each = memory_gb * listed.of("lambda.arm64.gb_second").usd
    each += TRANSITIONS_PER_S * (listed.of("stepfunctions.transition").usd + listed.of("lambda.request").usd)
    return standing / hour_s + slots * each


def deadline(experiment: Experiment, money: Facts, *, began: float, usd: float, now: float) -> str:
    """Until when a run that began at `began` and has cost `usd` may go on though nobody looks: RFC 3339, as the expiry compares."""
    ends = began + experiment.lifetime.maximum_run_hours * 3_600
    if experiment.lifetime.budget_usd is not None and money:  # a run of an earlier version knows no prices
        left_s = max(0.0, experiment.lifetime.budget_usd - usd) / money["most_usd_per_s"]
        ends = min(ends, now + left_s)
    return datetime.fromtimestamp(ends, UTC).strftime(MOMENT)


def write_deadline(
    objects: ObjectStore, keys: Keys, experiment: Experiment, money: Facts, *, began: float, usd: float
) -> None:
    """Where the expiry finds it, once this run is the one under way."""
    moment = deadline(experiment, money, began=began, usd=usd, now=runtime.time())
    objects.put(keys.deadline(began), moment.encode())


def judged(ctx: "Context", before: Facts) -> dict[str, Any]:
    """After an epoch, of a run that has a budget: `usd` so far, `dearest_usd` of an epoch, and why the run is `over_budget`, empty while it
    is not. The deadline is put off by what has not been spent. `before`: the decision of the epoch before.
    """
    limit = ctx.experiment.lifetime.budget_usd
    assert limit is not None
    usd = so_far(ctx, epochs=before["epoch"] + 1)
    dearest = max(before.get("dearest_usd", 0.0), usd - before.get("usd", 0.0))
    write_deadline(ctx.objects, ctx.keys, ctx.experiment, ctx.facts.money, began=ctx.facts.created_at, usd=usd)
    return {"usd": usd, "dearest_usd": dearest, "over_budget": budget.no_room(limit, usd, dearest_usd=dearest)}


def so_far(ctx: "Context", *, epochs: int) -> float:
    """Dollars until now, after `epochs` of them, by what lies in the bucket: a record is read once as long as the process lives."""
    ended = dict(ctx.resources.records.get(ctx.run, {}))  # a copy: in one process workers decide side by side
    marks, money = read(ctx.objects, ctx.keys, ended), ctx.facts.money
    ctx.resources.records = {ctx.run: ended}
    run = going_on(
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


def going_on(
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
    """The bill of a run that goes on, `now` in unix seconds, `epochs` of it decided: of what has ended by its records, of what is under way
    by its marks.
    """
    records, architecture = [*ended, *(under_way(mark, now) for mark in marks)], architecture_of(experiment)
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


def read(objects: ObjectStore, keys: Keys, ended: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the records that are new into `ended`, by their keys, several at a time; the marks of invocations that have left none yet."""
    new = [key for key in objects.list(keys.records) if key not in ended]
    for key, body in zip(new, _bodies(partial(objects.get, key) for key in new), strict=True):
        ended[key] = documents.opened(body, RECORD, key=key)
    known = {keys.mark(record["request_id"]) for record in ended.values()}
    marks = [key for key in objects.list(keys.marks) if key not in known]
    found = zip(marks, _bodies(partial(_if_there, objects, key) for key in marks), strict=True)
    return [plain.read(body, RECORD, key=key) for key, body in found if body]


def _bodies(gets: Iterable[Callable[[], T]]) -> list[T]:
    """What each of them gets, several at a time."""
    found, failed = side_by_side(gets, slots=8)
    if failed:
        raise failed[min(failed)]
    return [found[number] for number in sorted(found)]


def _if_there(objects: ObjectStore, key: str) -> bytes | None:
    """A mark goes when its invocation's record is there: then the record is for the next look."""
    with suppress(Missing):
        return objects.get(key)
    return None


def _infrastructure(plain: Facts) -> Infrastructure:
    return Infrastructure(**{**plain, "fleets": tuple(Fleet(**fleet) for fleet in plain["fleets"])})


def _prices(plain: Facts) -> Prices:
    items = {
        item: Price(item=item, usd=usd, unit=unit, as_of=plain["as_of"], source="the run's facts")
        for item, (usd, unit) in plain["items"].items()
    }
    return Prices(region=plain["region"], as_of=plain["as_of"], hours_per_month=plain["hours_per_month"], items=items)
