"""What strangers measured of the services' own clocks (config/calibration/services/; its README says whose): rows of percentiles.

Nothing is repaired: a column that is missing, a figure in other units or that is no positive number, percentiles that do not grow are
refused by file and row.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path

from crossover.calibration.measurements import FOLDER, above_zero, instead
from crossover.errors import DataError

SERVICES = "services"
P95 = 1.645  # standard deviations


@dataclass(frozen=True, kw_only=True)
class Clocked:
    """A series of percentiles or of a mean and a percentile, each in seconds, least first. `middle`: which of them is the middle."""

    columns: tuple[str, ...]
    middle: str
    plausible_s: tuple[float, float]  # what the middle may come to, before its unit is doubted
    seconds: float = 1e-3  # to the file's unit


@dataclass(frozen=True, kw_only=True)
class ClockRow:
    """One row. `told`: what was measured, as the file says it; `seconds`: the figures by column."""

    where: str
    told: Mapping[str, str]
    seconds: Mapping[str, float]

    def of(self, column: str) -> str:
        """Raises DataError where the file has no such column."""
        if column not in self.told:
            raise DataError(f"{self.where}: {column} is missing")
        return self.told[column]

    def spread(self, series: str = "") -> float:
        """Sigma of the logarithms, from p5 to p95."""
        return log(self.seconds[f"{series}p95"] / self.seconds[f"{series}p5"]) / (2 * P95)


def _percentiles(middle_s: tuple[float, float], *, series: str = "", named: str = "p5 p50 p95 p99") -> Clocked:
    columns = tuple(f"{series}{name}" for name in named.split())
    return Clocked(columns=columns, middle=f"{series}p50", plausible_s=middle_s)


TASKS, FAN_OUT = "stepfunctions_task_to_task_ms.csv", "stepfunctions_map_fanout_ms.csv"
LATENCIES, INITS = "faaskeeper_2024_latency_ms.csv", "maxday_lambda_init_ms_2026-07_08.csv"
HOSTS, IMPORTS = "cebert_2025-11-30_warm_ms.csv", "sebs_2020_lambda_x86_exec_s.csv"
FIRST, STARTS = "end_to_first_start_", "spread_of_starts_"
FILES: Mapping[str, tuple[Clocked, ...]] = {
    TASKS: (_percentiles((0.01, 5.0), named="p5 p25 p50 p75 p95 p99"),),
    FAN_OUT: (
        _percentiles((0.01, 5.0), series=FIRST, named="p5 p50 p95"),
        _percentiles((0.001, 5.0), series=STARTS, named="p5 p50 p95"),
    ),
    LATENCIES: (_percentiles((5e-5, 1.0)),),
    INITS: (_percentiles((0.01, 10.0)),),
    HOSTS: tuple(
        Clocked(columns=(f"{of}_mean", f"{of}_p99"), middle=f"{of}_mean", plausible_s=(0.01, 100.0))
        for of in ("arm64", "x86")
    ),
    IMPORTS: (
        Clocked(
            columns=("exec_p5_s", "exec_p50_s", "exec_p95_s"),
            middle="exec_p50_s",
            plausible_s=(0.05, 100.0),
            seconds=1.0,
        ),
    ),
}


def rows(name: str, folder: Path = FOLDER) -> tuple[ClockRow, ...]:
    """Of one of FILES. Raises DataError by file and row."""
    try:
        head, *lines = csv.reader((folder / SERVICES / name).read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError) as problem:
        raise DataError(f"{name}: no measurements: {problem}") from problem
    columns, found = _named(head), []
    for at, line in enumerate(lines, 2):
        where, row = f"{name}: line {at}", dict(zip(columns, line, strict=False))
        seconds: dict[str, float] = {}
        for series in FILES[name]:
            seconds |= _series(row, series, where)
        found.append(ClockRow(where=where, told={n: v for n, v in row.items() if n not in seconds}, seconds=seconds))
    if not found:
        raise DataError(f"{name}: no rows")
    return tuple(found)


def _named(head: Sequence[str]) -> list[str]:
    """One file names the first percentile of a series in full, and those after it by their number alone."""
    found, series = list[str](), ""
    for name in head:
        series = name.removesuffix("p5") if name.endswith("_p5") else series
        found.append(f"{series}{name}" if name in ("p50", "p95") else name)
    return found


def _series(row: Mapping[str, str], series: Clocked, where: str) -> dict[str, float]:
    before, seconds = "", dict[str, float]()
    for name in series.columns:
        if name not in row:
            raise DataError(f"{where}: {name} is missing{instead(row, name)}")
        seconds[name] = series.seconds * above_zero(row[name], f"{where}: {name}")
        if before and seconds[name] < seconds[before]:
            raise DataError(f"{where}: {name}: {row[name]} is less than {before}, {row[before]}; percentiles grow")
        before = name
    least, most = series.plausible_s
    if not least <= seconds[series.middle] <= most:
        raise DataError(
            f"{where}: {series.middle}: {row[series.middle]} would be {seconds[series.middle]:g} s, expected {least:g} to {most:g} s: "
            "other units?"
        )
    return seconds
