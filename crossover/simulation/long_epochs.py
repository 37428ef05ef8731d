"""Simulate epochs of many rounds by shorter ones, so that the cost of a projection does not grow with the number of minibatches."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from math import ceil
from typing import Any

from crossover.experiment import Experiment
from crossover.reports import bill, prices
from crossover.reports.prices import Prices
from crossover.simulation.calibration import AWS, Calibration
from crossover.simulation.kernel import StepUse
from crossover.simulation.mirror.programs import MOST_ROUNDS
from crossover.simulation.simulate import Simulated, simulate
from crossover.simulation.workload import Workload, calendar
from crossover.workflow.architecture import architecture_of
from crossover.workflow.infrastructure import has_minibatch_map

SHORT_ROUNDS, LONGER_ROUNDS = (
    80,
    240,
)  # of the epochs that stand for a longer one: multiples of the usual checkpoint intervals
QUICK_ROUNDS, QUICK_LONGER_ROUNDS = 24, 72  # the same, if many candidates are compared
ENOUGH = 6  # restarts of each worker's function for the mean interval between them to be known


def simulate_run(
    experiment: Experiment,
    calibration: Calibration = AWS,
    *,
    workload: Workload,
    price_list: Prices | None = None,
    quick: bool = False,
) -> Simulated:
    """Simulate a run of the experiment like `simulate`, but in a time that does not grow with the number of rounds in an epoch.
    `calibration`: speeds of AWS; `workload`: sizes of model and data; `price_list`: by default the project's; `quick`: begin with
    QUICK_ROUNDS and QUICK_LONGER_ROUNDS rounds.

    If an epoch has more than MOST_ROUNDS rounds, the run is simulated twice, with SHORT_ROUNDS and with LONGER_ROUNDS rounds per epoch, and
    seconds and usage are extrapolated linearly. If the difference of the two holds too few restarts of each worker's function (ENOUGH),
    both are lengthened; the whole epoch is simulated instead if it is shorter than both together. `quick` suffices for workers that no time
    limit ends. A run with a given number of steps, and one that AWS would end early, are simulated in full; so is a single worker's
    program, of whose rounds `simulate` skips most. Raises as `simulate` does.
    """
    price_list = price_list or prices.load()
    architecture = architecture_of(experiment)
    days = calendar(architecture.resolve(experiment), workload)
    if architecture.alone and architecture.program is not None:
        return simulate(experiment, calibration, workload=workload, price_list=price_list)

    @cache
    def simulate_rounds(rounds: int) -> Simulated:
        """Return the simulation of the run with only the first `rounds` rounds of each epoch. Simulated once for each number of rounds;
        later calls return the same object.
        """
        samples = workload.samples[: rounds * days.sync_every]
        return simulate(experiment, calibration, workload=replace(workload, samples=samples), price_list=price_list)

    limited = architecture.program is None and not has_minibatch_map(architecture)
    short_rounds, longer_rounds = (QUICK_ROUNDS, QUICK_LONGER_ROUNDS) if quick else (SHORT_ROUNDS, LONGER_ROUNDS)
    while max(MOST_ROUNDS, short_rounds + longer_rounds) < days.rounds_per_epoch and days.steps is None:
        short, longer = simulate_rounds(short_rounds), simulate_rounds(longer_rounds)
        if not (short.finished and longer.finished):
            break
        left = sum(workload.samples) - sum(longer.workload.samples)
        more = left / (sum(longer.workload.samples) - sum(short.workload.samples))
        seen = (longer.invocations - short.invocations) / experiment.workers
        end_s = longer.seconds + more * (longer.seconds - short.seconds)
        few = limited and longer_rounds < LONGER_ROUNDS and end_s >= experiment.functions.timeout_s
        enough = seen >= ENOUGH or (seen == 0 and not few)
        if enough and longer.seconds > short.seconds:
            return _extend_run(short, longer, more, workload, price_list)
        if longer_rounds < LONGER_ROUNDS:
            short_rounds, longer_rounds = SHORT_ROUNDS, LONGER_ROUNDS
            continue
        times = min(9, max(2, ceil(ENOUGH / seen))) if seen else 9
        short_rounds, longer_rounds = times * short_rounds, times * longer_rounds
    return simulate(experiment, calibration, workload=workload, price_list=price_list)


def _extend_run(short: Simulated, longer: Simulated, more: float, workload: Workload, price_list: Prices) -> Simulated:
    """Return the simulated run of `workload`, extrapolated from two shorter runs. `more`: how many times the difference between `short` and
    `longer` is added to `longer`.
    """

    def extend(low: float, high: float) -> float:
        """Return a figure of the whole run, extrapolated by `more` times the difference from its values `low` in the short run and `high`
        in the longer one; `high` if it is less than `low`.
        """
        return high + more * max(0.0, high - low)

    seconds = extend(short.seconds, longer.seconds)
    used = bill.Quantities(
        **{
            each.name: _round_like(
                getattr(longer.used, each.name), extend(getattr(short.used, each.name), getattr(longer.used, each.name))
            )
            for each in fields(bill.Quantities)
        }
    )
    transitions = round(extend(short.transitions, longer.transitions))
    lines = bill.bill(
        used, bill.infrastructure_of(longer.experiment), price_list, duration_s=seconds, transitions=transitions
    )
    return replace(
        longer,
        workload=workload,
        seconds=seconds,
        usd=sum(line.usd for line in lines),
        paper_method_usd=extend(short.paper_method_usd, longer.paper_method_usd),
        used=used,
        lines=tuple(line for line in lines if line.quantity > 0),
        traffic={name: _extend_numbers(short.traffic[name], longer.traffic[name], more) for name in longer.traffic},
        steps={name: _extend_use(short.steps.get(name), use, more) for name, use in longer.steps.items()},
        epochs_end_s={
            epoch: extend(short.epochs_end_s.get(epoch, end), end) for epoch, end in longer.epochs_end_s.items()
        },
        invocations=used.invocations,
        transitions=transitions,
    )


def _extend_use(short: StepUse | None, longer: StepUse, more: float) -> StepUse:
    """Return the usage of one step, extrapolated from two shorter runs; `longer` itself if `short` is None. The seconds of its longest
    invocation are not extrapolated. `more`: how many times the difference between `short` and `longer` is added to `longer`.
    """
    if short is None:
        return longer
    summed = ("invocations", "cold", "wall_s", "init_s", "billed_ms")
    values: dict[str, Any] = _extend_numbers(
        {name: getattr(short, name) for name in summed}, {name: getattr(longer, name) for name in summed}, more
    )
    stages = {
        name: [
            high + more * max(0.0, high - low) for low, high in zip(short.stages.get(name, found), found, strict=True)
        ]
        for name, found in longer.stages.items()
    }
    return replace(longer, **values, stages=stages)


def _extend_numbers(short: Mapping[str, Any], longer: Mapping[str, Any], more: float) -> dict[str, Any]:
    """Return `longer` with each number, also in nested mappings, extrapolated: increased by `more` times its difference from the number in
    `short`. A number that is smaller than in `short` is not changed, and one that `short` lacks counts as 0 there.
    """
    found: dict[str, Any] = {}
    for name, high in longer.items():
        low = short.get(name, Counter() if isinstance(high, Mapping) else 0)
        if isinstance(high, Mapping):
            found[name] = _extend_numbers(low, high, more)
        else:
            found[name] = _round_like(high, high + more * max(0.0, high - low))
    return found


def _round_like(example: float, value: float) -> Any:
    """Return `value`, rounded to an integer if `example` is an integer."""
    return round(value) if isinstance(example, int) else value
