"""Measurements by others of the services' own clocks (config/calibration/services/; its README names the authors): rows of percentiles.

Nothing is repaired: a missing column, a figure in other units or that is not a positive number, and percentiles that do not grow are
refused by file and row.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from crossover.errors import DataError
from crossover.simulation.calibration import vcpus
from lab.measurements import FOLDER, parse_positive, suggest_column

SERVICES = "services"
P95 = 1.645  # standard deviations


class ClockSeries(NamedTuple):
    """Format of a group of columns in a file of percentiles. `columns`: their names, smallest percentile first; `middle`: column that is
    checked against the plausible range `least_s` to `most_s`, because the unit might differ; `seconds`: seconds per unit of the file;
    `rows`: regular expression for the beginning of the first column of the rows that have these columns, "" for all; `computes`: whether
    the range is for a whole vCPU and shrinks with the function's memory.
    """

    columns: tuple[str, ...]
    middle: str
    least_s: float
    most_s: float
    seconds: float = 1e-3  # to the unit
    rows: str = ""
    computes: bool = False


@dataclass(frozen=True, kw_only=True)
class ClockRow:
    """One row of a file of percentiles. `where`: file and line, for errors; `told`: text columns by name; `seconds`: percentiles in seconds
    by name of the column.
    """

    where: str
    told: Mapping[str, str]
    seconds: Mapping[str, float]

    def read_column(self, column: str) -> str:
        """Return the text in a text column of this row. Raises DataError if the file has no such column."""
        if column not in self.told:
            raise DataError(f"{self.where}: {column} is missing")
        return self.told[column]


TASKS, FAN_OUT = "stepfunctions_task_to_task_ms.csv", "stepfunctions_map_fanout_ms.csv"
LATENCIES, INITS = "faaskeeper_2024_latency_ms.csv", "maxday_lambda_init_ms_2026-07_08.csv"
HOSTS = "cebert_2025-11-30_warm_ms.csv"
PERCENTILES = ("p5", "p50", "p95", "p99")
FIRST, STARTS = "end_to_first_start_", "spread_of_starts_"
FILES: Mapping[str, tuple[ClockSeries, ...]] = {
    TASKS: (ClockSeries(("p5", "p25", "p50", "p75", "p95", "p99"), "p50", 0.01, 5.0),),
    FAN_OUT: tuple(
        ClockSeries((f"{of}p5", f"{of}p50", f"{of}p95"), f"{of}p50", least_s, 5.0)
        for of, least_s in ((FIRST, 0.01), (STARTS, 0.001))
    ),
    INITS: (ClockSeries(PERCENTILES, "p50", 0.01, 10.0),),
    LATENCIES: (
        ClockSeries(PERCENTILES, "p50", 5e-5, 0.02, rows="Redis|TCP"),
        ClockSeries(PERCENTILES, "p50", 1e-3, 1.0, rows="S3|to a warm"),
    ),
    HOSTS: tuple(
        ClockSeries((f"{of}_mean", f"{of}_p99"), f"{of}_mean", 0.02, 30.0, computes=True) for of in ("arm64", "x86")
    ),
}
COUNTED = (r"[1-9]\d*", "a whole number above 0")
TOLD: Mapping[str, tuple[str, str]] = {  # what a column may say, and in words
    **dict.fromkeys(("executions", "gaps", "n", "memory_mb"), COUNTED),
    "year": (r"201[5-9]|202\d|2030", "2015 to 2030"),
    "payload_bytes": (r"\d*", "a whole number, or nothing"),
    "bytes": (r"\d+", "a whole number"),
    "next_function": ("warm|cold", "warm or cold"),
    "branches": (r"[2-9]|[1-9]\d+", "a whole number above 1"),
    "cold_share": (r"0\.0|0\.\d*[1-9]|1\.0", "0.0 to 1.0"),
}


def load_rows(name: str, folder: Path = FOLDER) -> tuple[ClockRow, ...]:
    """Return the rows of the file `name` (one of FILES) in the folder `services` below `folder`, in the file's order. Percentiles are
    converted to seconds; all other columns stay text. Raises DataError if the file cannot be read, is no CSV or has no rows, or, naming the
    line, if a row is malformed or implausible.
    """
    try:
        text = (folder / SERVICES / name).read_text(encoding="utf-8")
        # One file names the first percentile of a series in full, and those after it by their number alone.
        reader = csv.reader(re.sub(r"\b(\w+_)p5,p50,p95", r"\1p5,\1p50,\1p95", text).splitlines())
    except (OSError, ValueError) as problem:
        raise DataError(f"{name}: no measurements: {problem}") from problem
    try:
        columns, *lines = reader
    except ValueError as problem:
        raise DataError(f"{name}: no measurements: the file is empty") from problem
    except csv.Error as problem:
        raise DataError(f"{name}: line {reader.line_num}: {problem}") from problem
    if not columns:
        raise DataError(f"{name}: line 1: no column names")
    found = []
    for at, line in enumerate(lines, 2):
        where, row = f"{name}: line {at}", dict(zip(columns, line, strict=False))
        for column in TOLD.keys() & row.keys():
            pattern, expected = TOLD[column]
            if not re.fullmatch(pattern, row[column]):
                raise DataError(f"{where}: {column}: {row[column]!r} is not allowed; expected {expected}")
        mine = [series for series in FILES[name] if re.match(series.rows, line[0])] if line else []
        if not mine:
            raise DataError(f"{where}: {columns[0]}: {line[:1]} is unknown")
        seconds = {column: s for series in mine for column, s in _parse_series(row, series, where).items()}
        found.append(ClockRow(where=where, told={n: v for n, v in row.items() if n not in seconds}, seconds=seconds))
    if not found:
        raise DataError(f"{name}: no rows")
    return tuple(found)


def _parse_series(row: Mapping[str, str], series: ClockSeries, where: str) -> dict[str, float]:
    """Return the seconds of one group of columns in a row, by column. `series`: format of the columns; `where`: file and line, for the
    error. Raises DataError if a figure or the needed memory is missing, if percentiles decrease, or if the middle one is implausible.
    """
    seconds = dict[str, float]()
    for name in series.columns:
        if name not in row:
            raise DataError(f"{where}: {name} is missing{suggest_column(row, name)}")
        seconds[name] = series.seconds * parse_positive(row[name], f"{where}: {name}")
    for before, name in pairwise(series.columns):
        if seconds[name] < seconds[before]:
            raise DataError(f"{where}: {name}: {row[name]} is less than {before}, {row[before]}; percentiles grow")
    if series.computes and "memory_mb" not in row:
        raise DataError(f"{where}: memory_mb is missing{suggest_column(row, 'memory_mb')}")
    share = min(1.0, vcpus(int(row["memory_mb"]))) if series.computes else 1.0
    if not series.least_s <= share * seconds[series.middle] <= series.most_s:
        raise DataError(
            f"{where}: {series.middle}: {row[series.middle]} would be {seconds[series.middle]:g} s, expected "
            f"{series.least_s / share:g} to {series.most_s / share:g} s: other units?"
        )
    return seconds
