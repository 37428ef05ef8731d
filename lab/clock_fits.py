"""The calibration's figures for the services' own clocks, fitted to rows that others measured (clock_rows.py), with their residuals.

The form was chosen before the figures. From the end of a Lambda task to the start of the next, both warm, in a year's service: `task_s`,
and for each byte of the state `payload_s_byte`. A state that is no task takes no time: entering a Map took no longer. Branches of a Map
begin `branch_s` one after another. If the next function is cold, its sandbox takes `sandbox_s` more, and then INIT. Spreads are
lognormal around medians.
"""

from collections.abc import Iterable, Sequence
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean

from crossover.errors import DataError
from crossover.simulation.calibration import VCPU_MB
from crossover.simulation.papers import FitResidual, FittedFigure
from lab import clock_rows
from lab.clock_rows import FIRST, P95, SERVICES, STARTS, ClockRow

NOW, BEFORE = "2024", "2022"  # what a projection stands on, and the year that it can be asked for
LITTLE = 1_024  # bytes of state: as much as an event may have (workflow.EVENT_LIMIT_BYTES)
FoundAndLeft = tuple[list[FittedFigure], list[FitResidual]]
ELSEWHERE = {
    "functions": [
        "from task to task, and a cold start's sandbox: measured of Python 3.8 on x86 alone, until 2024",
    ],
    "databases": ["Redis's latency as functions see it: measured in 2022 alone"],
}
WARM = "0.0"  # share of cold starts
MEASURED_ON = "python3.10"  # the nearest to those functions' Python 3.8 of which INIT is known


def fit_clocks(folder: Path) -> FoundAndLeft:
    """Fit the figures of the services' own delays to the rows of the files in `folder`, the calibration's folder. Return (fitted figures,
    residuals of the rows). Raises DataError if rows are missing or cannot be read.
    """
    tasks, maps, inits, latencies, hosts = (clock_rows.load_rows(name, folder) for name in clock_rows.FILES)
    try:
        level_s, of_tasks = _fit_tasks(tasks)
        init_s = _average_seconds(_group_rows(inits, "runtime", package="zip", arch="x86_64")[MEASURED_ON])
        starts = _fit_maps(maps, level_s[NOW]), _fit_sandboxes(tasks, maps, level_s[BEFORE], init_s), _fit_inits(inits)
        parts = [of_tasks, *starts, _fit_latencies(latencies), _fit_hosts(hosts)]
    except (KeyError, IndexError, ValueError) as problem:
        raise DataError(f"{SERVICES}/: rows are missing or say something else: {problem}") from problem
    return [each for found, _ in parts for each in found], [each for _, left in parts for each in left]


# --- Step Functions ---------------------------------------------------------------------------------------------------


def _fit_tasks(rows: Sequence[ClockRow]) -> tuple[dict[str, float], FoundAndLeft]:
    """Fit the time from the end of one task to the start of the next. Return (its seconds by year, (fitted figures, residuals)); the
    figures include its spread, and the seconds per byte of state.
    """
    said, level_s, found, left = (
        f"{SERVICES}/{clock_rows.TASKS}",
        dict[str, float](),
        list[FittedFigure](),
        list[FitResidual](),
    )
    for year, warm in _group_rows(rows, "year", next_function="warm").items():
        little = [each for each in warm if _read_state_bytes(each) <= LITTLE]
        level_s[year] = _average_seconds(little)
        which = f"{said}: {len(little)} warm rows of {year}, states of at most {LITTLE:,} bytes"
        found.append(
            FittedFigure(f"{_prefix_year(year)}task_s", level_s[year], "s", f"{which}: geometric mean of medians")
        )
        found.append(
            FittedFigure(
                f"{_prefix_year(year)}task_sigma", _estimate_sigma(little), "", f"{which}: ln(p95 / p5) / {2 * P95}"
            )
        )
        left += [_build_residual("task to task", each, level_s[year]) for each in little]
    larger = [each for each in rows if _read_state_bytes(each) > LITTLE]
    byte_s = sum(each.seconds["p50"] - level_s[each.read_column("year")] for each in larger) / sum(
        map(_read_state_bytes, larger)
    )
    left += [
        _build_residual("payload", each, level_s[each.read_column("year")] + byte_s * _read_state_bytes(each))
        for each in larger
    ]
    which = f"{said}: {len(larger)} rows of larger states: seconds beyond those, by bytes, of all together"
    return level_s, ([*found, FittedFigure("payload_s_byte", byte_s, "s/byte", which)], left)


def _read_state_bytes(row: ClockRow) -> int:
    """Return the bytes of the state in a row of tasks; 0 if the row does not give them, because those states were nearly empty."""
    return int(row.read_column("payload_bytes") or 0)


def _fit_maps(rows: Sequence[ClockRow], level_s: float) -> FoundAndLeft:
    """Fit the interval between the starts of a Map's branches to warm rows, and return (fitted figures, residuals). `level_s`: fitted
    seconds from task to task, with which the start of the first branch is compared.
    """
    began = [(each, int(each.read_column("branches")) - 1) for each in _group_rows(rows, "cold_share")[WARM]]
    branch_s = exp(fmean(log(each.seconds[f"{STARTS}p50"] / count) for each, count in began))
    left = [_build_residual("a Map's branches", each, branch_s * count, f"{STARTS}p50") for each, count in began]
    left += [_build_residual("into a Map", each, level_s, f"{FIRST}p50") for each, _ in began]
    which = f"{SERVICES}/{clock_rows.FAN_OUT}: {len(began)} warm rows, the last start after the first, by branch: geometric mean"
    return [FittedFigure("branch_s", branch_s, "s", which)], left


def _fit_sandboxes(tasks: Sequence[ClockRow], maps: Sequence[ClockRow], before_s: float, init_s: float) -> FoundAndLeft:
    """Fit the time that a cold start takes beyond a warm one and INIT (the new sandbox), for two years of the service, and the spread of
    both together. Return (fitted figures, residuals). `tasks`, `maps`: rows of their files; `before_s`: fitted seconds from task to task in
    the earlier year; `init_s`: seconds of INIT.
    """
    by_share = _group_rows(maps, "cold_share")
    warm_maps = by_share.pop(WARM)
    now_s = _average_seconds(warm_maps, FIRST)
    cold_maps = [row for rows in by_share.values() for row in rows]  # of which nearly all starts were cold
    found, left, variances = list[FittedFigure](), list[FitResidual](), list[float]()
    before = [
        each for each in _group_rows(tasks, "year", next_function="warm")[BEFORE] if _read_state_bytes(each) <= LITTLE
    ]
    for year, rows, warm, series, warm_s in (
        (NOW, cold_maps, warm_maps, FIRST, now_s),
        (BEFORE, _group_rows(tasks, "next_function")["cold"], before, "", before_s),
    ):
        extra_s = _average_seconds(rows, series) - warm_s
        which = f"{SERVICES}/: {len(rows)} cold rows, beyond the warm ones and INIT of {MEASURED_ON}"
        found.append(FittedFigure(f"{_prefix_year(year)}sandbox_s", extra_s - init_s, "s", which))
        # A warm start's own spread is in a cold one's, and drawn beside it.
        whole, own = (
            fmean(((s[f"{series}p95"] - s[f"{series}p5"]) / (2 * P95) / extra_s) ** 2 for s in (r.seconds for r in of))
            for of in (rows, warm)
        )
        between = fmean(log((each.seconds[f"{series}p50"] - warm_s) / extra_s) ** 2 for each in rows)
        variances.append(max(0.0, whole - own) + between)
        left += [_build_residual("cold", each, warm_s + extra_s, f"{series}p50") for each in rows]
    which = f"{SERVICES}/, the same rows: of sandbox and INIT, within rows beyond the warm ones, and between them"
    return [*found, FittedFigure("cold_sigma", sqrt(fmean(variances)), "", which)], left


def _prefix_year(year: str) -> str:
    """Return the prefix for the name of an earlier year's figure, such as `year_2022.`; "" for the current year."""
    return "" if year == NOW else f"year_{year}."


# --- functions, Redis, hosts ------------------------------------------------------------------------------------------


def _fit_inits(rows: Sequence[ClockRow]) -> FoundAndLeft:
    """Fit the seconds of INIT of Python functions without dependencies, by kind of package and runtime, to rows on ARM of any memory, and
    their spread by kind of package. Return (fitted figures, residuals).
    """
    found, left = list[FittedFigure](), list[FitResidual]()
    for package in ("zip", "image"):
        by_runtime = _group_rows(rows, "runtime", package=package, arch="arm64")
        said = f"{SERVICES}/{clock_rows.INITS}, ARM, {package}, 128 to 1,024 MB"
        for runtime, mine in by_runtime.items():
            figure = f"init.{package}.{runtime.replace('.', '')}"
            found.append(FittedFigure(figure, _average_seconds(mine), "s", f"{said}: geometric mean of medians"))
            left += [_build_residual(f"INIT, {package}", each, _average_seconds(mine)) for each in mine]
        sigma = _estimate_sigma([each for mine in by_runtime.values() for each in mine])
        found.append(FittedFigure(f"init.{package}.sigma", sigma, "", f"{said}: ln(p95 / p5) / {2 * P95}"))
    return found, left


def _fit_latencies(rows: Sequence[ClockRow]) -> FoundAndLeft:
    """Fit the latencies of Redis in the same and in another zone, and of a function invoked directly, to measured round trips. Return
    (fitted figures, residuals).
    """
    found, left = list[FittedFigure](), list[FitResidual]()
    said, by_what = f"{SERVICES}/{clock_rows.LATENCIES}", _group_rows(rows, "what")
    trips = sorted(
        (row for what, mine in by_what.items() if what.startswith("TCP") for row in mine),
        key=lambda each: each.seconds["p50"],
    )
    for figure, how, each in (
        ("tensors", "quickest", trips[0]),
        ("stores.redis_of_another_zone", "slowest", trips[-1]),
    ):
        which = f"{said}: the {how} of {len(trips)} runs of TCP round trips from a function to EC2, 2022"
        found.append(
            FittedFigure(f"{figure}.latency_s", each.seconds["p50"], "s", f"{which}; Redis's own work is not in it")
        )
        found.append(
            FittedFigure(f"{figure}.latency_sigma", log(each.seconds["p95"] / each.seconds["p50"]) / P95, "", which)
        )
        left.append(_build_residual("Redis by zone", each, each.seconds["p50"]))
    direct = [
        each for each in by_what["to a warm function, Lambda direct invoke"] if int(each.read_column("bytes")) <= LITTLE
    ]
    which = f"{said}: a warm function invoked directly, and a connection back, 2022"
    left += [_build_residual("invoked directly", each, _average_seconds(direct)) for each in direct]
    return [*found, FittedFigure("direct_s", _average_seconds(direct), "s", which)], left


def _fit_hosts(rows: Sequence[ClockRow]) -> FoundAndLeft:
    """Fit the spread of computing speed between hosts. Return (fitted figure, residuals). Only functions with at least one vCPU count:
    their one thread takes equally long at any memory, so differences come from the hosts.
    """
    whole, off, left = (
        [each for each in rows if int(each.read_column("memory_mb")) >= VCPU_MB],
        list[float](),
        list[FitResidual](),
    )
    for mine in _group_rows(whole, "workload", "runtime").values():
        logs = [log(each.seconds["arm64_mean"]) for each in mine]
        off += [(each - fmean(logs)) / sqrt(1 - 1 / len(logs)) for each in logs]
        left += [_build_residual("hosts", each, exp(fmean(logs)), "arm64_mean") for each in mine]
    which = f"{SERVICES}/{clock_rows.HOSTS}: {len(off)} ARM functions from {VCPU_MB:,} MB on, around the mean of their workload and runtime"
    return [FittedFigure("host_sigma", sqrt(fmean(each**2 for each in off)), "", which)], left


# --- rows -------------------------------------------------------------------------------------------------------------


def _group_rows(rows: Iterable[ClockRow], *columns: str, **told: str) -> dict[str, list[ClockRow]]:
    """Return the rows whose columns have the values in `told`, grouped by the values (joined by spaces) of the columns named in `columns`;
    one group "" if none is named. Raises DataError if a row lacks a column.
    """
    found: dict[str, list[ClockRow]] = {}
    for each in rows:
        if all(each.read_column(name) == value for name, value in told.items()):
            found.setdefault(" ".join(map(each.read_column, columns)), []).append(each)
    return found


def _average_seconds(rows: Sequence[ClockRow], series: str = "") -> float:
    """Return the geometric mean of the rows' median seconds. `series`: prefix of the name of the column with the median, before "p50".
    Raises ValueError for no rows.
    """
    return exp(fmean(log(each.seconds[f"{series}p50"]) for each in rows))


def _estimate_sigma(rows: Sequence[ClockRow]) -> float:
    """Return the standard deviation of the logarithm of the seconds within a row, estimated from p5 and p95 and averaged over the rows."""
    return sqrt(fmean((log(each.seconds["p95"] / each.seconds["p5"]) / (2 * P95)) ** 2 for each in rows))


def _build_residual(part: str, row: ClockRow, fitted_s: float, column: str = "p50") -> FitResidual:
    """Return the measured seconds of a row beside the fitted ones. `part`: what the row measured; `column`: name of the column with the
    measured seconds.
    """
    functions = int(next((row.told[name] for name in ("gaps", "executions", "n") if name in row.told), 1))
    file, _, line = row.where.partition(": ")
    return FitResidual(part, file, line, functions, row.seconds[column], fitted_s)
