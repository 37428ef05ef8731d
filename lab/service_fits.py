"""The fit of the services' times to measurements by others, and the file with the result: `python -m lab fit FOLDER`.

The form was chosen before the figures. Reading n objects one after another, in a function with v of a vCPU:

    slowdown x max(bytes / connection, (bytes - burst) / floor), at least bytes x read CPU / v, + n x latency + client CPU / v

and writing: bytes x write CPU / v + latency. Burst and floor come from throughput, latencies from requests for 1 KB, the connection's
rate from AWS's document; the rest from cells that config/held-out.yaml does not hold out. Whoever chose this form had seen all cells.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import yaml

from crossover.errors import DataError
from crossover.reports.folder import write_atomically
from crossover.simulation import figures
from crossover.simulation.calibration import Service, TokenBucket, vcpus
from crossover.simulation.papers import FitResidual, FittedFigure, is_cell_held_out
from lab import clock_fits, measurements
from lab.clock_rows import P95
from lab.measurements import AGGREGATION, FOLDER, SKYRISE, MeasuredAggregator, MeasuredCell, Round

STORES = {
    "s3_standard": "objects",
    "s3_express": "stores.s3_express",
    "dynamodb": "stores.dynamodb",
    "efs": "stores.efs",
}
KB = 1_000  # the size of the objects whose latencies were measured
BURST_S = 1.0  # by then a full bucket is empty, at any rate that a function reaches
HEAD = """\
# Written by `python -m lab fit config/calibration` from the measurements beside it (README.md says whose): not by hand.
# `residuals`: geometric means over a session's warm functions, beside what the fitted figures come to; sessions that were fitted to.
"""


@dataclass(frozen=True)
class TimedFunctions:
    """The measured seconds of one part (such as reading) of all functions of one level of an experiment in one session. `cell`, `level`:
    the experiment and the level; `file`: the session's file; `reads`: vectors that each function reads; `seconds`: one value per function.
    """

    cell: MeasuredCell
    file: str
    level: str
    reads: int
    seconds: tuple[float, ...]

    @property
    def share(self) -> float:
        """Share of one vCPU that each function has by its memory, at most 1."""
        return min(1.0, vcpus(self.cell.memory_mb))

    @property
    def bytes_(self) -> float:
        """Bytes that one function reads."""
        return self.reads * self.cell.object_bytes

    @property
    def mean_s(self) -> float:
        """Geometric mean of the seconds, because errors are multiplicative."""
        return exp(fmean(log(each) for each in self.seconds))

    @property
    def spread(self) -> float:
        """Standard deviation of the seconds' logarithms."""
        middle = log(self.mean_s)
        return sqrt(sum((log(each) - middle) ** 2 for each in self.seconds) / max(1, len(self.seconds) - 1))


def fit(folder: Path = FOLDER, out: Path = figures.FITTED) -> dict[str, Any]:
    """Fit the calibration to the measurements in `folder`, write it to the file `out`, by default config/calibration/fitted.yaml, and
    return its content. Raises DataError, naming file and row, if measurements are missing or malformed.
    """
    found = fit_services(folder)
    text = yaml.safe_dump(found, sort_keys=False, width=200, default_flow_style=None)
    write_atomically(out, (HEAD + text).encode())  # every projection reads it
    return found


def fit_services(folder: Path = FOLDER) -> dict[str, Any]:
    """Fit all services to the measurements in `folder`, except held-out and cold ones, and return the content of fitted.yaml: figures,
    measured ranges, caveats and residuals. Nothing is written. Raises DataError if measurements are missing or malformed.
    """
    kept = [each for each in measurements.load_rounds(folder) if not each.cold and not is_cell_held_out(each.cell.key)]
    latencies = [*_fit_latencies(measurements.load_latencies(folder))]
    networks = [*_fit_network(measurements.load_throughputs(folder))]
    known = {each.figure: each.value for each in (*latencies, *networks)}
    reads, writes = _group_functions(kept, lambda f: f.read_s), _group_functions(kept, lambda f: f.write_s)
    reading, read_rows = _fit_reading(reads, known)
    writing, write_rows = _fit_writing(writes, known)
    arithmetic, compute_rows = _fit_arithmetic(_group_functions(kept, lambda f: f.compute_s))
    clocks, clock_rows = clock_fits.fit_clocks(folder)
    memory = [each.cell.memory_mb for each in kept]
    sizes = [each.cell.object_bytes for each in kept]
    most = max(len(each.functions) for each in kept)
    return {
        "format": figures.FORMAT,
        "as_of": "2026-08",
        "figures": [each.as_json() for each in (*latencies, *networks, *reading, *writing, *arithmetic, *clocks)],
        "measured": {
            "memory_mb": [min(memory), max(memory)],
            "object_bytes": [KB, round(max(sizes))],
            "functions": [1, most],
            "branches": [1, 16],
        },
        "elsewhere": clock_fits.ELSEWHERE,
        "residuals": [each.as_json() for each in (*read_rows, *write_rows, *compute_rows, *clock_rows)],
    }


def _group_functions(
    rounds: Sequence[Round], part: Callable[[MeasuredAggregator], float | None]
) -> list[TimedFunctions]:
    """Return the functions of `rounds` grouped by experiment, session, level and number of vectors. `part`: function that returns the
    seconds of one part; functions for which it returns None are left out.
    """
    groups: dict[tuple[MeasuredCell, str, str, int], list[float]] = {}
    for each in rounds:
        for function in each.functions:
            if (seconds := part(function)) is not None:
                groups.setdefault((each.cell, each.file, function.level, function.reads), []).append(seconds)
    return [TimedFunctions(*key, tuple(seconds)) for key, seconds in groups.items()]


def _fit_latencies(rows: Iterable[measurements.Latency]) -> Iterable[FittedFigure]:
    """Yield the fitted latency, and its spread, of each store and operation. Raises DataError if there is no measurement of one."""
    source = f"{SKYRISE}/storage-latency.csv, all rows of "
    listed = list(rows)
    for store, figure in STORES.items():
        for operation, prefix in (("read", ""), ("write", "write_")):
            mine = [each for each in listed if (each.store, each.operation) == (store, operation)]
            if not mine:
                raise DataError(f"storage-latency.csv: no row of {store}, {operation}")
            mean_s = fmean(each.mean_s for each in mine)
            sigma = median(log(each.p95_s / each.median_s) / P95 for each in mine)
            said = f"{source}{store}, {operation}"
            yield FittedFigure(f"{figure}.{prefix}latency_s", mean_s, "s", f"{said}: mean")
            yield FittedFigure(f"{figure}.{prefix}latency_sigma", sigma, "", f"{said}: ln(p95 / median) / {P95}")
            if store == "s3_standard":
                yield FittedFigure(f"instance_objects.{prefix}latency_s", mean_s, "s", f"{said}: mean; of functions")


def _fit_network(rows: Sequence[measurements.Throughput]) -> Iterable[FittedFigure]:
    """Yield the fitted token buckets of functions' networks, inside and outside a VPC: the sustained rate (floor), and the bytes that the
    first second moves beyond it (burst).
    """
    for vpc, name in ((False, "network"), (True, "vpc_network")):
        bursts, floors = [], []
        for each in rows:
            if each.vpc == vpc:
                first = round(BURST_S / each.interval_s)
                floors.append(fmean(each.bytes_[first:]) / each.interval_s)
                bursts.append(sum(each.bytes_[:first]) - BURST_S * floors[-1])
        where = "in" if vpc else "outside"
        said = f"{SKYRISE}/lambda-network-throughput.csv, single functions {where} a VPC: {len(floors)} rows of 5 s and more"
        yield FittedFigure(f"{name}.burst_bytes", median(bursts), "bytes", f"{said}, first second without the floor")
        yield FittedFigure(f"{name}.floor_bytes_s", median(floors), "bytes/s", f"{said}, from the second second on")


def _name_files(seen: Iterable[TimedFunctions]) -> str:
    """Return the source of a fitted figure as text: the names of the files whose functions were used."""
    return f"{AGGREGATION}/: {', '.join(sorted({each.file for each in seen}))}, warm rows"


def _fit_reading(
    seen: Sequence[TimedFunctions], known: dict[str, float]
) -> tuple[list[FittedFigure], list[FitResidual]]:
    """Fit the slowdown of transfers, the client's set-up time, the processor time per byte and their spreads to the seconds of reading.
    Return (fitted figures, residuals). `seen`: measured reads; `known`: figures fitted before, by name.
    """
    connection = figures.load_figures()["objects"]["client_bytes_s"]
    network = TokenBucket(burst_bytes=known["network.burst_bytes"], floor_bytes_s=known["network.floor_bytes_s"])
    latency_s = known["objects.latency_s"]
    moving = np.array([_project_transfer_s(each.bytes_, connection, network) for each in seen])
    waiting = np.array([each.reads * latency_s for each in seen])
    own = np.array([1 / each.share for each in seen])
    logs = np.log([each.mean_s for each in seen])
    slowdown, client_cpu_s = 1.0, 0.1
    for _ in range(50):  # Gauss-Newton
        total = slowdown * moving + waiting + client_cpu_s * own
        slopes = np.stack([moving / total, own / total], axis=1)
        step = np.linalg.lstsq(slopes, logs - np.log(total), rcond=None)[0]
        slowdown, client_cpu_s = slowdown + float(step[0]), max(0.0, client_cpu_s + float(step[1]))
    total = slowdown * moving + waiting + client_cpu_s * own
    within = sum((len(each.seconds) - 1) * each.spread**2 for each in seen)
    request_sigma = sqrt(within / sum(len(each.seconds) - 1 for each in seen))
    sessions: dict[str, list[float]] = {}
    for each, off in zip(seen, logs - np.log(total), strict=True):
        sessions.setdefault(each.file, []).append(float(off))
    session_sigma = sqrt(sum(fmean(off) ** 2 for off in sessions.values()) / (len(sessions) - 2))
    # The least that a small function's processor can have taken: its fastest read.
    small = [each for each in seen if each.share < 1]
    cpu_s_byte = min(
        ((min(each.seconds) - each.reads * latency_s) * each.share - client_cpu_s) / each.bytes_ for each in small
    )
    said = _name_files(seen)
    mean_one = exp(request_sigma**2 / 2)  # a function's factor has mean 1, and the fit is one of medians
    found = [
        FittedFigure("objects.slowdown", slowdown * mean_one, "", f"{said}: least squares of logarithms, as a mean"),
        FittedFigure(
            "objects.cpu_s_byte", cpu_s_byte, "vCPU s/byte", f"{_name_files(small)}: at most, by the fastest read"
        ),
        FittedFigure("client_cpu_s", client_cpu_s, "vCPU s", f"{said}: with the slowdown"),
        FittedFigure("request_sigma", request_sigma, "", f"{said}: within a session and level"),
        FittedFigure("session_sigma", session_sigma, "", f"{said}: what is left of {len(sessions)} sessions"),
    ]
    return found, _build_residuals("read", seen, total)


def _project_transfer_s(bytes_: float, connection: float, network: TokenBucket) -> float:
    """Return the projected seconds to read `bytes_` bytes, without latency. `connection`: bytes per second of one connection; `network`:
    limit of the function's network.
    """
    seen = Service(latency_s=0.0, client_bytes_s=connection).for_client(
        burst_bytes=network.burst_bytes, floor_bytes_s=network.floor_bytes_s
    )
    return seen.read.seconds(bytes_)


def _fit_writing(
    seen: Sequence[TimedFunctions], known: dict[str, float]
) -> tuple[list[FittedFigure], list[FitResidual]]:
    """Fit the processor seconds per byte that a function writes. Return (fitted figure, residuals), each in a list. `seen`: measured
    writes; `known`: figures fitted before, by name.
    """
    latency_s = known["objects.write_latency_s"]
    each_s = [log((one.mean_s - latency_s) * one.share / one.cell.object_bytes) for one in seen]
    cpu_s_byte = exp(fmean(each_s))
    fitted_s = [cpu_s_byte * one.cell.object_bytes / one.share + latency_s for one in seen]
    found = FittedFigure("objects.write_cpu_s_byte", cpu_s_byte, "vCPU s/byte", f"{_name_files(seen)}: geometric mean")
    return [found], _build_residuals("write", seen, fitted_s)


def _fit_arithmetic(seen: Sequence[TimedFunctions]) -> tuple[list[FittedFigure], list[FitResidual]]:
    """Fit the bytes per second of vector arithmetic on a whole vCPU, and the exponent by which this speed falls with the share of a vCPU.
    Return (fitted figures, residuals). `seen`: measured additions.
    """
    through = [(each.reads + 1) * each.cell.object_bytes for each in seen]
    rates = np.log([bytes_ / each.mean_s for bytes_, each in zip(through, seen, strict=True)])
    lines = np.stack([np.ones(len(seen)), np.log([each.share for each in seen])], axis=1)
    level, exponent = (float(each) for each in np.linalg.lstsq(lines, rates, rcond=None)[0])
    fitted_s = [bytes_ / exp(level) / each.share**exponent for bytes_, each in zip(through, seen, strict=True)]
    said = _name_files(seen)
    return [
        FittedFigure("arithmetic_bytes_s", exp(level), "bytes/s", f"{said}: sums of float32, at a whole vCPU"),
        FittedFigure("arithmetic_exponent", exponent, "", f"{said}: of a vCPU's share"),
    ], _build_residuals("compute", seen, fitted_s)


def _build_residuals(part: str, seen: Sequence[TimedFunctions], fitted_s: Iterable[float]) -> list[FitResidual]:
    """Return the measured mean seconds of each group of functions in `seen` beside the fitted ones. `part`: what was timed, such as "read";
    `fitted_s`: fitted seconds in the same order.
    """
    return [
        FitResidual(part, each.file, each.level, len(each.seconds), each.mean_s, float(projected))
        for each, projected in zip(seen, fitted_s, strict=True)
    ]
