"""The 2026 paper: ResNet-18 by three designs, VGG-16 by shards. What its functions measured on AWS, with ours beside it.

The measured figures lie in config/calibration/ (its README says whose they are): medians over warm rounds here. The package prints means,
and dollars by a formula that leaves out some of what AWS bills, so dollars are AWS's bill of the measured seconds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from statistics import mean, median
from typing import Any

from crossover.architecture import architecture_of
from crossover.calibration import cells as projections
from crossover.calibration import measurements as taken
from crossover.calibration.papers import measured_held_out
from crossover.costs.invocations import Record
from crossover.reports.folder import RunFolder
from crossover.simulation import AWS, simulate
from crossover.study.papers.cells import (
    Curve,
    Drawing,
    NoFigure,
    Ours,
    Section,
    TableCell,
    Unit,
    Value,
    measured,
    projected,
    where,
)
from crossover.study.papers.measurement import Measurement, Scale
from crossover.study.papers.part import Found

PARAMETERS = {"resnet18": 11_181_642, "vgg16": 134_301_514}  # ten classes
LEAST_PARAMETERS = 50_000
# A phase of the paper's function: what our step calls it.
PHASES = {"read": "fetch", "compute": "aggregate", "write": "store"}

Taken = Mapping[str, Sequence[taken.Round]]  # warm rounds by session and cell


@cache
def sessions() -> Taken:
    """A cell may have been measured in two sessions; each stands for itself."""
    found: dict[str, list[taken.Round]] = {}
    for each in taken.rounds():
        if not each.cold:
            found.setdefault(f"{each.file}, {each.cell.design}", []).append(each)
    return found


def _of(gradient: str) -> Taken:
    return {name: rounds for name, rounds in sessions().items() if rounds[0].cell.gradient == gradient}


def run_of(cell: taken.MeasuredCell) -> Measurement:
    """Our design of the same name, its aggregators of the same memory. Cut down is the size of the gradients."""
    own, parameters = cell.design, PARAMETERS[cell.gradient]
    shards = [f"{own}.shards={cell.aggregators}"] if own == "grads_sharding" else []
    return Measurement(
        key=f"ic2e-2026-{cell.gradient}-{own.replace('_', '-')}-{cell.aggregators}-{cell.memory_mb}",
        config=own.replace("_", "-"),
        fixed=(f"{own}.parameters={parameters}", *shards, f"functions.memory_mb.aggregate={cell.memory_mb}"),
        cut=lambda scale: (f"{own}.parameters={scale.of(parameters, least=LEAST_PARAMETERS)}",),
        trains=False,
    )


def wanted(gradient: str) -> Callable[[Scale], Sequence[Measurement]]:
    return lambda scale: [run_of(rounds[0].cell) for rounds in _of(gradient).values()]


def designs(found: Found) -> Section:
    notes = [
        "20 clients. One function per aggregator reads its inputs one after another, adds, divides, writes; a level begins when the one "
        "before has ended. Simulated: dollars and the slowest function as functions of the paper's, phases as our steps, at its memory.",
        _unseen("resnet18"),
    ]
    return found.section(_rows(found, "resnet18"), notes=notes)


def shards(found: Found) -> Section:
    """The sweep, and seconds against shards."""
    cells = _rows(found, "vgg16")
    printed, ours = list[tuple[float, float]](), list[tuple[float, float]]()
    for rounds in filter(_timed, _of("vgg16").values()):
        cell = rounds[0].cell
        printed.append((cell.aggregators, _slowest(rounds)))
        ours.append((cell.aggregators, projections.projected(cell).slowest_s.p50))
    drawing = Drawing(
        title="Seconds of the slowest function against shards",
        x="shards",
        y="seconds",
        curves=[
            Curve(label="measured on AWS, warm", points=sorted(printed)),
            Curve(label="simulated", points=sorted(set(ours)), dashed=True),
        ],
        log_x=True,
    )
    notes = [
        "Four shards were measured in two sessions, which differ by a factor of 1.5: no projection can come nearer to both.",
        _unseen("vgg16"),
    ]
    return found.section(cells, drawings=[drawing], notes=notes)


def _unseen(gradient: str) -> str:
    """Which of the cells say how far off the simulation is."""
    cells = {rounds[0].cell for rounds in _of(gradient).values()}
    unseen = sorted(projections.name(cell) for cell in cells if measured_held_out(cell.key))
    return f"No fit has seen {' and '.join(unseen)}; the simulation is fitted to the others."


# --- rows -------------------------------------------------------------------------------------------------------------


def _rows(found: Found, gradient: str) -> list[TableCell]:
    return [cell for name, rounds in _of(gradient).items() for cell in _row(found, f"{name.split(',')[0]}", rounds)]


def _row(found: Found, file: str, rounds: Sequence[taken.Round]) -> list[TableCell]:
    cell, wanted = rounds[0].cell, run_of(rounds[0].cell)
    run, size, cut = found.run(wanted), found.size_of(wanted), found.cut(wanted)
    simulated, phases, whole = projections.projected(cell), _simulated(wanted), _timed(rounds)
    named = f"{projections.name(cell)} ({file})"

    def line(figure: str, unit: Unit, published: Value | None, ours: Ours | NoFigure, **more: Any) -> TableCell:
        return TableCell(row=named, figure=figure, unit=unit, published=published, ours=ours, **more)

    def here(read: Callable[[Record], float], over: Callable[[Iterable[float]], float]) -> Ours | NoFigure:
        """`over` all aggregators of our run."""
        return where(run, lambda folder: measured(over(read(each) for each in _aggregates(folder)), size, cut=cut))

    lines = [
        line(
            "memory of a function",
            "MB",
            cell.memory_mb,
            here(_peak_mb, max),
            simulated=_need_mb(wanted),
            note="printed is what it was given, ours the peak; simulated is the least for ours: runtime and two parts",
        ),
        line(
            "slowest function" if whole else "slowest function, writing not timed",
            "s",
            _slowest(rounds),
            here(_wall_s, max),
            simulated=simulated.slowest_s.p50 if whole else None,
            note=f"simulated p5 to p95 {simulated.slowest_s.p5:.3g} to {simulated.slowest_s.p95:.3g} s"
            if whole
            else "",
        ),
        *(
            line(
                f"{phase}, mean of a function",
                "s",
                _phase(rounds, phase),
                here(partial(_stage_s, stage), mean),
                simulated=phases[stage],
            )
            for phase, stage in PHASES.items()
            if _phase(rounds, phase) is not None
        ),
    ]
    if whole:
        bill = 1_000 * median(projections.usd(cell, [each.total_s or 0.0 for each in one.functions]) for one in rounds)
        own = where(
            run,
            lambda folder: replace(projected(_usd(cell, folder), f"local seconds at AWS's prices; {size}"), cut=cut),
        )
        between = f"simulated p5 to p95 ${simulated.usd_1000.p5:.3g} to ${simulated.usd_1000.p95:.3g}"
        lines.append(
            line("AWS's bill of 1,000 rounds", "USD", bill, own, simulated=simulated.usd_1000.p50, note=between)
        )
    return [replace(each, note=simulated.impossible) for each in lines] if simulated.impossible else lines


def _timed(rounds: Sequence[taken.Round]) -> bool:
    """Whether the session says how long whole functions took: one did not time its writes."""
    return all(each.total_s is not None for one in rounds for each in one.functions)


def _slowest(rounds: Sequence[taken.Round]) -> float:
    return median(max(each.total_s or _known_s(each) for each in one.functions) for one in rounds)


def _known_s(function: taken.MeasuredAggregator) -> float:
    """Of a session that did not time its writes: the rest."""
    return sum(each or 0.0 for each in (function.read_s, function.compute_s, function.write_s))


def _phase(rounds: Sequence[taken.Round], phase: str) -> float | None:
    """The median over rounds of the mean over functions; None where the file does not say."""
    means = []
    for one in rounds:
        known: list[float | None] = [getattr(each, f"{phase}_s") for each in one.functions]
        seconds = [each for each in known if each is not None]
        if len(seconds) < len(known):
            return None
        means.append(mean(seconds))
    return median(means)


def _need_mb(measurement: Measurement) -> float:
    experiment = measurement.experiment(Scale(1))
    aggregates = architecture_of(experiment).aggregates
    assert aggregates is not None, "the designs of this paper train nothing"
    return aggregates(experiment).need_mb("aggregate")


def _simulated(measurement: Measurement) -> Mapping[str, float]:
    """Mean seconds of each stage of our aggregating step, in the middle session and without stragglers."""
    still = AWS.calm()
    use = simulate(measurement.experiment(Scale(1)), still).steps["aggregate"]
    return {stage: use.stage_mean_s(stage) for stage in PHASES.values()}


def _aggregates(run: RunFolder) -> list[Record]:
    return [record for record in run.records if record["step"] == "aggregate" and record["outcome"] == "ok"]


def _wall_s(record: Record) -> float:
    return float(record["wall_s"])


def _peak_mb(record: Record) -> float:
    return float(record["max_rss_mb"])


def _stage_s(stage: str, record: Record) -> float:
    return sum(float(each["wall_s"]) for each in record["stages"] if each["stage"] == stage)


def _usd(cell: taken.MeasuredCell, run: RunFolder) -> float:
    return 1_000 * projections.usd(cell, [_wall_s(each) for each in _aggregates(run)])
