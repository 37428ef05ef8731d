"""What the services' own clocks come to by strangers' rows (clock_rows.py), as figures of the calibration with their residuals.

Form before figures. From the end of a Lambda task to the start of the next, both warm, in a year's service: `task_s`, and for each byte of
the state `payload_s_byte`. A state that is no task takes nothing: to enter a Map took no longer. Branches of a Map begin `branch_s` one
after another. Where the next function is cold, its sandbox takes `sandbox_s` more, and then INIT. Spreads are lognormal around medians.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, median

from crossover.calibration import clock_rows
from crossover.calibration.clock_rows import FIRST, P95, SERVICES, STARTS, ClockRow
from crossover.calibration.fitting import FitResidual, Fitted
from crossover.errors import DataError
from crossover.simulation.services import VCPU_MB

NOW, BEFORE = "2024", "2022"  # what a projection stands on, and the year that it can be asked for
LITTLE = 1_024  # bytes of state: as much as an event may have (workflow.EVENT_LIMIT_BYTES)
IMPORTER = "411 PyTorch ResNet-50 inference"
FoundAndLeft = tuple[list[Fitted], list[FitResidual]]
ELSEWHERE = {
    "functions": [
        "from task to task, and a cold start's sandbox: measured of Python 3.8 on x86 alone, until 2024",
        "importing torch: measured on x86 alone, in 2020",
    ],
    "databases": ["Redis's latency as functions see it: measured in 2022 alone"],
}
MEASURED_ON = "python3.10"  # the nearest to those functions' Python 3.8 of which INIT is known


def fitted(folder: Path) -> FoundAndLeft:
    """Every figure of the clocks, and what is left of the rows. Raises DataError by file and row."""
    tasks, maps, starts, latencies, hosts, imports = (
        clock_rows.rows(name, folder)
        for name in (
            clock_rows.TASKS,
            clock_rows.FAN_OUT,
            clock_rows.INITS,
            clock_rows.LATENCIES,
            clock_rows.HOSTS,
            clock_rows.IMPORTS,
        )
    )
    level_s, of_tasks = _tasks(tasks)
    init_s = _middle(
        [
            row
            for name, rows in _by(starts, "runtime", package="zip", arch="x86_64")
            for row in rows
            if name == MEASURED_ON
        ]
    )
    parts = [
        of_tasks,
        _maps([each for each in maps if _is_warm(each)], level_s[NOW]),
        _sandboxes(tasks, maps, level_s, init_s),
        _inits(starts),
    ]
    figures = [figure for found, _ in parts for figure in found]
    figures += [*_latencies(latencies), *_hosts(hosts), *_imports(imports)]
    return figures, [each for _, left in parts for each in left]


# --- Step Functions ---------------------------------------------------------------------------------------------------


def _tasks(rows: Sequence[ClockRow]) -> tuple[dict[str, float], FoundAndLeft]:
    """By year, and what each byte of the state adds."""
    said, level_s, found, left = (
        f"{SERVICES}/{clock_rows.TASKS}",
        dict[str, float](),
        list[Fitted](),
        list[FitResidual](),
    )
    for year, warm in _by(rows, "year", next_function="warm"):
        little = [each for each in warm if _bytes(each) <= LITTLE]
        level_s[year] = _middle(little)
        which = f"{said}: {len(little)} warm rows of {year}, states of at most {LITTLE:,} bytes"
        found.append(Fitted(f"{_year(year)}task_s", level_s[year], "s", f"{which}: geometric mean of medians"))
        found.append(Fitted(f"{_year(year)}task_sigma", _within(little), "", f"{which}: ln(p95 / p5) / {2 * P95}"))
        left += [_left("task to task", each, level_s[year]) for each in little]
    larger = [each for each in rows if _bytes(each) > LITTLE]
    byte_s = _slope(larger, level_s)
    which = f"{said}: {len(larger)} rows of larger states: least squares of logarithms"
    left += [_left("payload", each, level_s[each.of("year")] + byte_s * _bytes(each)) for each in larger]
    return level_s, ([*found, Fitted("payload_s_byte", byte_s, "s/byte", which)], left)


def _maps(rows: Sequence[ClockRow], level_s: float) -> FoundAndLeft:
    """Of warm rows. No year is in them; their starts are those of the later level."""
    began = [(each, int(each.of("branches")) - 1) for each in rows]
    branch_s = exp(fmean(log(each.seconds[f"{STARTS}p50"] / count) for each, count in began))
    which = f"{SERVICES}/{clock_rows.FAN_OUT}: {len(rows)} warm rows, the last start after the first, by branch: geometric mean"
    left = [_left("a Map's branches", each, branch_s * count, STARTS) for each, count in began]
    left += [_left("into a Map", each, level_s, FIRST) for each in rows]
    return [Fitted("branch_s", branch_s, "s", which)], left


def _sandboxes(
    tasks: Sequence[ClockRow], maps: Sequence[ClockRow], level_s: dict[str, float], init_s: float
) -> FoundAndLeft:
    """What a cold start takes beyond a warm one, without INIT: of the later level by Maps, of the earlier one by tasks."""
    cold_tasks = [each for each in tasks if each.of("next_function") == "cold"]
    cold_maps = [each for each in maps if not _is_warm(each)]
    found, left, variances = list[Fitted](), list[FitResidual](), list[float]()
    for year, rows, series, warm_s in (
        (NOW, cold_maps, FIRST, _middle([each for each in maps if _is_warm(each)], FIRST)),
        (BEFORE, cold_tasks, "", level_s[BEFORE]),
    ):
        extra_s = _middle(rows, series) - warm_s
        file = rows[0].where.partition(":")[0]
        which = f"{SERVICES}/{file}: {len(rows)} cold rows, beyond the warm ones and INIT of {MEASURED_ON}"
        found.append(Fitted(f"{_year(year)}sandbox_s", extra_s - init_s, "s", which))
        variances.append(_extra_variance(rows, series, warm_s, extra_s))
        left += [_left("cold", each, warm_s + extra_s, series) for each in rows]
    which = f"{SERVICES}/, the same rows: of sandbox and INIT, within rows and between them"
    return [*found, Fitted("cold_sigma", sqrt(fmean(variances)), "", which)], left


def _is_warm(row: ClockRow) -> bool:
    """Of a Map; of the others nearly all starts were cold."""
    return float(row.of("cold_share")) == 0.0


def _bytes(row: ClockRow) -> int:
    """Of the state; rows that do not say it had hardly any."""
    return int(row.of("payload_bytes") or 0)


def _year(year: str) -> str:
    return "" if year == NOW else f"year_{year}."


def _slope(rows: Sequence[ClockRow], level_s: dict[str, float]) -> float:
    """Seconds of a byte, the levels given: least squares of logarithms, Gauss-Newton."""
    byte_s = 1e-6
    for _ in range(50):
        fits = [(_bytes(each), level_s[each.of("year")], each.seconds["p50"]) for each in rows]
        slopes = [bytes_ / (level + byte_s * bytes_) for bytes_, level, _ in fits]
        off = [log(seconds / (level + byte_s * bytes_)) for bytes_, level, seconds in fits]
        byte_s += sum(a * b for a, b in zip(slopes, off, strict=True)) / sum(a * a for a in slopes)
    return byte_s


def _extra_variance(rows: Sequence[ClockRow], series: str, warm_s: float, extra_s: float) -> float:
    """Of the logarithm: within a row, and from row to row."""
    p5, p50, p95 = (f"{series}{name}" for name in ("p5", "p50", "p95"))
    within = fmean(((each.seconds[p95] - each.seconds[p5]) / (2 * P95) / extra_s) ** 2 for each in rows)
    return within + fmean(log((each.seconds[p50] - warm_s) / extra_s) ** 2 for each in rows)


# --- functions, Redis, hosts ------------------------------------------------------------------------------------------


def _inits(rows: Sequence[ClockRow]) -> FoundAndLeft:
    """Of Python functions without dependencies, whatever their memory. Ours are ARM: those of x86 are not fitted."""
    found, left = list[Fitted](), list[FitResidual]()
    for package in ("zip", "image"):
        mine = list(_by(rows, "runtime", package=package, arch="arm64"))
        said = f"{SERVICES}/{clock_rows.INITS}, ARM, {package}"
        for runtime, of in mine:
            found.append(
                Fitted(
                    f"init.{package}.{runtime.replace('.', '')}",
                    _middle(of),
                    "s",
                    f"{said}: 128 to 1,024 MB, geometric mean of medians",
                )
            )
            left += [_left(f"INIT, {package}", each, _middle(of)) for each in of]
        found.append(
            Fitted(
                f"init.{package}.sigma",
                _within([each for _, of in mine for each in of]),
                "",
                f"{said}: ln(p95 / p5) / {2 * P95}",
            )
        )
    return found, left


def _latencies(rows: Sequence[ClockRow]) -> Iterator[Fitted]:
    said = f"{SERVICES}/{clock_rows.LATENCIES}"
    trips = sorted((each for each in rows if each.of("what").startswith("TCP")), key=lambda each: each.seconds["p50"])
    direct = [
        each for each in rows if each.of("what").endswith("direct invoke") and 0 < int(each.of("bytes")) <= LITTLE
    ]
    if not trips or not direct:
        raise DataError(f"{clock_rows.LATENCIES}: expected rows of TCP round trips and of direct invocations")
    for figure, each in (("tensors", trips[0]), ("stores.redis_of_another_zone", trips[-1])):
        how = "quickest" if each is trips[0] else "slowest"
        which = f"{said}: the {how} of {len(trips)} runs of TCP round trips from a function to EC2, 2022"
        yield Fitted(f"{figure}.latency_s", each.seconds["p50"], "s", f"{which}; Redis's own work is not in it")
        yield Fitted(f"{figure}.latency_sigma", log(each.seconds["p95"] / each.seconds["p50"]) / P95, "", which)
    yield Fitted(
        "direct_s", _middle(direct), "s", f"{said}: a warm function invoked directly, and a connection back, 2022"
    )


def _hosts(rows: Sequence[ClockRow]) -> Iterator[Fitted]:
    """Of functions with a whole vCPU, whose one thread takes as long at any memory: what differs are the hosts."""
    whole = [each for each in rows if int(each.of("memory_mb")) >= VCPU_MB]
    off = list[float]()
    for _, mine in groupby(sorted(whole, key=_workload), key=_workload):
        logs = [log(each.seconds["arm64_mean"]) for each in mine]
        off += [(each - fmean(logs)) / sqrt(1 - 1 / len(logs)) for each in logs]
    sigma = sqrt(fmean(each**2 for each in off))
    yield Fitted(
        "host_sigma",
        sigma,
        "",
        f"{SERVICES}/{clock_rows.HOSTS}: {len(off)} ARM functions from {VCPU_MB:,} MB on, around the mean of their workload and runtime",
    )


def _workload(row: ClockRow) -> tuple[str, str]:
    return row.of("workload"), row.of("runtime")


def _imports(rows: Sequence[ClockRow]) -> Iterator[Fitted]:
    """The first invocation's more, on the paid share of one vCPU."""
    by_start = {
        start: {
            int(each.of("memory_mb")): each.seconds["exec_p50_s"]
            for each in rows
            if (each.of("benchmark"), each.of("start")) == (IMPORTER, start)
        }
        for start in ("cold", "warm")
    }
    if not by_start["cold"] or by_start["cold"].keys() != by_start["warm"].keys():
        raise DataError(f"{clock_rows.IMPORTS}: {IMPORTER}: expected a cold and a warm row of each memory size")
    seconds = [min(1.0, mb / VCPU_MB) * (cold - by_start["warm"][mb]) for mb, cold in by_start["cold"].items()]
    yield Fitted(
        "torch_cpu_s",
        median(seconds),
        "vCPU s",
        f"{SERVICES}/{clock_rows.IMPORTS}: {IMPORTER}, cold less warm by the paid share of a vCPU: median",
    )


# --- rows -------------------------------------------------------------------------------------------------------------


def _by(rows: Iterable[ClockRow], column: str, **told: str) -> Iterator[tuple[str, list[ClockRow]]]:
    """Those rows that say so, by what they say in `column`."""
    mine = [each for each in rows if all(each.of(name) == value for name, value in told.items())]
    if not mine:
        raise DataError(f"no row with {', '.join(f'{name} {value}' for name, value in told.items())}")
    for value, same in groupby(sorted(mine, key=lambda each: each.of(column)), key=lambda each: each.of(column)):
        yield value, list(same)


def _middle(rows: Sequence[ClockRow], series: str = "") -> float:
    return exp(fmean(log(each.seconds[f"{series}p50"]) for each in rows))


def _within(rows: Sequence[ClockRow]) -> float:
    return sqrt(fmean(each.spread() ** 2 for each in rows))


def _left(part: str, row: ClockRow, fitted_s: float, series: str = "") -> FitResidual:
    functions = int(next(row.told[name] for name in ("gaps", "executions", "n") if name in row.told))
    file, _, line = row.where.partition(": ")
    return FitResidual(part, file, line, functions, row.seconds[f"{series}p50"], fitted_s)
