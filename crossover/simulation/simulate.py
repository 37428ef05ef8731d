"""Simulation of one run: from an experiment and a calibration to seconds, dollars and bytes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from crossover.experiment import MAX_MEMORY_MB, Experiment
from crossover.reports import bill as cost
from crossover.reports import bill as infrastructure
from crossover.reports import bill as paper_cost
from crossover.reports import prices
from crossover.reports.bill import BY_THE_HOUR, Infrastructure, Line, gb_seconds, paper_method
from crossover.reports.prices import Prices
from crossover.reports.usage import WRITES
from crossover.simulation.calibration import AWS, Calibration
from crossover.simulation.kernel import StepUse, Usage, WhereInRun
from crossover.simulation.mirror import models_of, programs
from crossover.simulation.walk import Walk
from crossover.simulation.workload import Workload, calendar
from crossover.simulation.world import World
from crossover.workflow.architecture import Architecture, architecture_of
from crossover.workflow.infrastructure import has_minibatch_map

LABEL = "projected"
RETRIES_S = 45.0  # how long a throttled invocation is asked for again at least (RETRY of state_machines.py)


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """A projected run: its time, dollars, traffic and steps. `label` is always "projected", because nothing was measured.

    `experiment`, `workload`, `calibration`: what was simulated; `seconds`: time of the whole run; `usd`: total AWS bill; `used`, `lines`:
    usage and the lines of the bill; `paper_method_usd`: dollars as the papers count them; `traffic`: bytes and requests by channel, as in
    result.json; `steps`: usage by name of the step; `epochs_end_s`: simulated time of each epoch's decision; `invocations`, `transitions`:
    number of function invocations and of state transitions; `concurrency`: most functions at once; `problems`: why AWS would not run it;
    `outside`: warnings that sizes lie beyond the measured range; `finished`: False if AWS would end it early, where the figures then end;
    `records`: one per invocation, if they were asked for.
    """

    experiment: Experiment
    workload: Workload
    calibration: Calibration
    label: str
    seconds: float
    usd: float
    paper_method_usd: float
    used: cost.Quantities  # what `lines` bill by use
    lines: tuple[Line, ...]
    traffic: Mapping[str, Mapping[str, Any]]  # as in result.json, with `operations` beside
    steps: Mapping[str, StepUse]
    epochs_end_s: Mapping[int, float]
    invocations: int
    transitions: int
    concurrency: int  # the most functions at once
    problems: tuple[str, ...]  # why AWS would not run it so
    outside: tuple[str, ...]  # what of it lies beyond what the calibration's measurements have seen, and how far
    finished: bool  # whether it was simulated to its end; else `problems` says what ended it, and figures end there
    records: tuple[Mapping[str, Any], ...]  # one per invocation where they were asked for

    @property
    def moved_bytes(self) -> int:
        """Bytes that the run moved through all channels, in and out."""
        return sum(channel["bytes_in"] + channel["bytes_out"] for channel in self.traffic.values())

    def as_json(self) -> dict[str, Any]:
        """Return this projected run as plain data under the names of its fields, without `used`, `epochs_end_s` and `records`, but with
        `epoch_s`; "steps" is a list.
        """
        return {
            "label": self.label,
            "experiment": self.experiment.to_plain(),
            "workload": asdict(self.workload),
            "calibration": self.calibration.as_json(),
            "seconds": self.seconds,
            "epoch_s": self.epoch_s,
            "usd": self.usd,
            "paper_method_usd": self.paper_method_usd,
            "lines": [line.as_json() for line in self.lines],
            "traffic": dict(self.traffic),
            "steps": [asdict(use) for use in self.steps.values()],
            "invocations": self.invocations,
            "transitions": self.transitions,
            "concurrency": self.concurrency,
            "problems": list(self.problems),
            "outside": list(self.outside),
            "finished": self.finished,
        }

    @property
    def epoch_s(self) -> float:
        """Mean seconds of an epoch after the first decision, so that cold starts are left out. If there is only one decision, the mean of
        the epochs until it; if there is none, the seconds of the whole run.
        """
        ends = self.epochs_end_s
        if not ends:
            return self.seconds
        first, last = min(ends), max(ends)
        return (ends[last] - ends[first]) / (last - first) if last > first else ends[first] / first


def simulate(
    experiment: Experiment,
    calibration: Calibration = AWS,
    *,
    workload: Workload | None = None,
    keep_records: bool = False,
    price_list: Prices | None = None,
    architecture: Architecture | None = None,
) -> Simulated:
    """Simulate the run of `experiment`, with all its epochs and without early stopping, and return its time, cost and usage. The same seed
    gives the same result. A run that AWS would end is returned too, with `problems`.

    `calibration`: speeds of AWS; `workload`: sizes of model and data, by default the experiment's own; `keep_records`: keep one record per
    invocation, only for small runs; `price_list`: by default the project's; `architecture`: by default the one that the experiment names.
    Raises NoProjection if the simulator has no models for the architecture's steps, or if a size is not known, and ConfigError as
    `calendar` does.
    """
    architecture = architecture or architecture_of(experiment)
    workload = workload or Workload.from_experiment(experiment)
    experiment = architecture.resolve(experiment)
    days = calendar(experiment, workload)
    usage = Usage(experiment.architecture, keep_records=keep_records)
    world = World(experiment, architecture, workload, calibration, days, usage)
    walk = Walk(world, models_of(architecture))
    whole = programs.run(world, walk) if architecture.run is None else walk.run(architecture.run, WhereInRun())
    world.env.run_until(world.env.process(whole) | world.ended_early)
    return _build_result(world, price_list or prices.load())


def _build_result(world: World, price_list: Prices) -> Simulated:
    """Return the projected run, read from the state of `world` after the simulation; its bill uses the prices of `price_list`."""
    seconds, usage, experiment = float(world.env.now), world.usage, world.experiment
    fixed = infrastructure.infrastructure_of(experiment, world.architecture)
    total = usage.total()
    functions = [use for use in usage.steps.values() if use.memory_mb]
    operations: Mapping[str, int] = total.operations.get("objects", {})
    writes = sum(operations.get(name, 0) for name in WRITES)
    used = cost.Quantities(
        gb_s=sum(gb_seconds(use.billed_ms, memory_mb=use.memory_mb) for use in functions),
        invocations=sum(use.invocations for use in functions),
        cold_starts=sum(use.cold for use in functions),
        writes=writes,
        reads=sum(operations.values()) - writes,
        stored_bytes=total.bytes_out.get("objects", 0),
    )
    bill = cost.bill(used, fixed, price_list, duration_s=seconds, transitions=world.transitions)
    lines = tuple(line for line in bill if line.quantity > 0)
    return Simulated(
        experiment=experiment,
        workload=world.workload,
        calibration=world.calibration,
        label=LABEL,
        seconds=seconds,
        usd=sum(line.usd for line in lines),
        paper_method_usd=_paper_usd(world, fixed, price_list, seconds),
        used=used,
        lines=lines,
        traffic=total.as_traffic(),
        steps=usage.steps,
        epochs_end_s=world.epochs_end_s,
        invocations=used.invocations,
        transitions=world.transitions,
        concurrency=world.slots.most,
        problems=tuple(_list_problems(world)),
        outside=_list_extrapolations(world),
        finished=not world.ended_early.triggered,
        records=tuple(usage.records),
    )


def _paper_usd(world: World, fixed: Infrastructure, price_list: Prices, seconds: float) -> float:
    """Return the dollars of the simulated run by the papers' own formulas. `fixed`: infrastructure of the run; `seconds`: duration of the
    run.
    """
    if any(fleet.purpose in BY_THE_HOUR for fleet in fixed.fleets):
        _, usd = paper_method(world.experiment, (), infrastructure=fixed, prices=price_list, duration_s=seconds)
        return usd
    if world.architecture.program is not None:
        return programs.paper_usd(world, price_list)
    functions = (use for use in world.usage.steps.values() if use.memory_mb)
    return sum(paper_cost.lambda_usd(use.wall_s, memory_mb=use.memory_mb) for use in functions)


def _list_extrapolations(world: World) -> tuple[str, ...]:
    """Return one sentence for each size of the simulated run that lies outside the measured range (memory of the functions, bytes they
    move, their number at once), and the caveats of the measurements. Empty for programs on instances.
    """
    if not world.slots.most:
        return ()  # programs on instances alone
    memories = sorted({use.memory_mb for use in world.usage.steps.values() if use.memory_mb})
    of_memory = (text for mb in memories for text in world.calibration.list_extrapolations(memory_mb=mb))
    bytes_ = world.workload.vector_bytes
    found = world.calibration.list_extrapolations(
        object_bytes=bytes_, functions=world.slots.most, branches=world.branches or 1
    )
    used = ("functions", "databases") if world.hosts else ("functions",)
    return (*of_memory, *found, *(words for each in used for words in world.calibration.elsewhere.get(each, ())))


def _list_problems(world: World) -> list[str]:
    """Return the reasons why the simulated run would fail on AWS, such as a timeout or a quota; empty if it would not."""
    experiment, found = world.experiment, list[str]()
    limit_s = experiment.functions.timeout_s
    longest_s = {use.step: _longest_s(world, use) for use in world.usage.steps.values() if use.memory_mb}
    found += [
        f"{step} takes up to {seconds:,.0f} s; functions.timeout_s is {limit_s} (at most 900)"
        for step, seconds in longest_s.items()
        if seconds > limit_s * 1.001
    ]
    found += _memory_problems(world)
    if world.ended_early.triggered:
        found.append(str(world.ended_early.value))
    if world.slots.longest_wait_s > RETRIES_S:
        found.append(
            f"the account's {world.slots.limit:,} concurrent executions: invocations waited up to {world.slots.longest_wait_s:,.0f} s, "
            f"longer than they are asked for again; a higher quota is needed"
        )
    if (waited_s := world.new_environments_waited_s) > RETRIES_S:
        found.append(
            f"new environments of a function come {world.calibration.ramp_at_once:,.0f} at once and {world.calibration.ramp_per_s:,.0f} a "
            f"second: invocations waited up to {waited_s:,.0f} s, longer than they are asked for again"
        )
    return found


def _longest_s(world: World, use: StepUse) -> float:
    """Return the seconds of a step's longest invocation, to be compared with the timeout.

    If images grow during training, the run is simulated with the mean of its epochs, so the computing time of the longest invocation is
    scaled up to full-size images. Long workers need no scaling, because they continue in their next function.
    """
    whole, mean = world.workload.at_full_size.training_share, world.workload.training_share
    more = whole / mean - 1 if has_minibatch_map(world.architecture) else 0.0
    return use.longest_s + more * use.longest_compute_s


def _memory_problems(world: World) -> list[str]:
    """Return a list with one problem if not even the largest function's memory can hold three vectors (model, gradient, and one in
    transfer); otherwise an empty list.
    """
    uses = [use for use in world.usage.steps.values() if use.memory_mb]
    least_mb = 3 * world.workload.vector_bytes / 2**20  # model, gradient, and one on its way
    memory_mb = max((use.memory_mb for use in world.usage.steps.values()), default=0)
    if not uses or least_mb <= memory_mb:
        return []
    most = f", and a function has at most {MAX_MEMORY_MB:,}" if least_mb > MAX_MEMORY_MB else ""
    return [f"a function holds {least_mb:,.0f} MB of vectors alone; its memory is {memory_mb:,} MB{most}"]
