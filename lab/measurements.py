"""Measurements by others on AWS, read from their files (config/calibration/README.md names the authors): seconds of functions that
aggregate gradients, latencies of stores, throughput of functions.

Nothing is repaired: a missing row, a figure in other units or that is not a positive number is refused by file and row.
"""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from pathlib import Path
from typing import Any

from crossover.errors import DataError

FOLDER = Path(__file__).parents[1] / "config" / "calibration"
AGGREGATION, SKYRISE = "lambda-aggregation-2026", "skyrise-2024"
MIB = 2**20  # the files' MB: 134,301,514 float32 are 512.3 of them
# A file of one session: gradient and design; those that repeat another (lambda_validation_results, vgg16_shard_sweep_results) are not read.
SESSIONS = (
    "lambda_resnet18.json",
    "lambda_vgg16.json",
    "vgg16_m1.json",
    "vgg16_m2.json",
    "vgg16_m4.json",
    "vgg16_m8.json",
    "vgg16_m16.json",
)
DESIGNS = "rq3_resnet18.json"
MOVED = {"grads_sharding": 20, "lambda_fl": 24, "lifl": 30}  # by design: vectors read in a round, of 20 clients
LEVELS = {"grads_sharding": ("shard",), "lambda_fl": ("leaf", "root"), "lifl": ("l1", "l2", "root")}
# What a figure may come to, in bytes per second, before its unit is doubted.
PLAUSIBLE = {"read": (1e6, 2e9), "write": (1e6, 2e9), "compute": (5e7, 1e11), "total": (1e6, 2e9)}
LATENCIES = ("min_ms", "p5_ms", "p25_ms", "median_ms", "p75_ms", "p90_ms", "p95_ms", "p99_ms", "p999_ms", "max_ms")


@dataclass(frozen=True, kw_only=True)
class MeasuredCell:
    """One measured experiment: a way to aggregate the gradients of `clients` clients in Lambda functions. `gradient`: name of the model;
    `gradient_mib`: size of a gradient in MiB; `design`: grads_sharding, lambda_fl or lifl; `aggregators`: number of functions; `memory_mb`:
    memory of each.
    """

    gradient: str
    gradient_mib: float
    design: str  # grads_sharding, lambda_fl or lifl
    aggregators: int
    memory_mb: int
    clients: int = 20

    @property
    def key(self) -> tuple[str, str, int, int]:
        """The key of the experiment in config/held-out.yaml: (gradient, design, aggregators, memory in MB)."""
        return (self.gradient, self.design, self.aggregators, self.memory_mb)

    @property
    def object_bytes(self) -> float:
        """Size in bytes of each vector that is read or written: a shard, or the whole gradient."""
        parts = self.aggregators if self.design == "grads_sharding" else 1
        return self.gradient_mib * MIB / parts

    @property
    def levels(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The levels of functions, each of which waits for the one before, as (name, numbers of vectors that each of its functions
        reads).
        """
        match self.design:
            case "grads_sharding":
                reads = [(self.clients,) * self.aggregators]
            case "lambda_fl":
                reads = _count_tree_reads(self.clients, groups=[ceil(self.clients / (self.aggregators - 1))])
            case _:
                reads = _count_tree_reads(self.clients, groups=[3, 3])
        return tuple(zip(LEVELS[self.design], reads, strict=True))


def _count_tree_reads(clients: int, *, groups: Sequence[int]) -> list[tuple[int, ...]]:
    """Return, for each level of a tree of functions, how many vectors each function reads: groups of results of the level below, filled in
    order; at the end one root that reads all that is left. `clients`: number of vectors at the bottom; `groups`: size of the groups at each
    level below the root.
    """
    levels, below = list[tuple[int, ...]](), clients
    for size in (*groups, clients):
        levels.append(tuple(min(size, below - start) for start in range(0, below, size)))
        below = len(levels[-1])
    return levels


@dataclass(frozen=True, kw_only=True)
class MeasuredAggregator:
    """Measured seconds of one function in one round: reading, computing, writing and in all; each None if the file has no figure. `level`:
    the function's place in the tree of aggregators; `reads`: number of vectors that it read.
    """

    level: str
    reads: int
    read_s: float | None = None
    compute_s: float | None = None
    write_s: float | None = None
    total_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Round:
    """One measured round of an experiment. `cell`: the experiment; `functions`: one entry for each function; `file`: name of the file;
    `cold`: whether its functions had to be started.
    """

    cell: MeasuredCell
    file: str
    cold: bool
    functions: tuple[MeasuredAggregator, ...]


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Measured seconds of requests for 1 KB to the store named `store`, in one series of measurements: mean, median and 95th percentile.
    `operation`: "read" or "write".
    """

    store: str
    operation: str
    mean_s: float
    median_s: float
    p95_s: float


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Measured bytes that one function moved in each interval of `interval_s` seconds. `direction`: "upload" or "download"; `vpc`: whether
    the function was in a VPC.
    """

    vpc: bool
    direction: str
    interval_s: float
    bytes_: tuple[float, ...]


def load_rounds(folder: Path = FOLDER) -> tuple[Round, ...]:
    """Return every measured round of all files below `folder`, held-out and cold ones included. Raises DataError, naming file and row, if a
    file or row is missing, malformed or implausible.
    """
    found = [each for name in SESSIONS for each in _read_session(folder / AGGREGATION / name)]
    return (*found, *_read_designs(folder / AGGREGATION / DESIGNS))


# --- aggregation ------------------------------------------------------------------------------------------------------


def _read_session(path: Path) -> Iterable[Round]:
    """Yield the rounds in the file of one session. Raises DataError if a row is missing, malformed or implausible."""
    plain, file = _read_json(path), path.name
    size = "gradient_mb" if "gradient_mb" in plain else "gradient_size_mb"
    shards = int(_read_positive(plain, "num_shards", file))
    cell = MeasuredCell(
        gradient=str(plain.get("model_name") or plain.get("model", "")).lower().replace("-", ""),
        gradient_mib=_read_positive(plain, size, file),
        design="grads_sharding",
        aggregators=shards,
        memory_mb=int(_read_positive(plain, "memory_mb", file)),
        clients=int(_read_positive(plain, "num_clients", file)),
    )
    listed = _require_rows(plain, "all_results", file, warm=int(_read_positive(plain, "num_warm_invocations", file)))
    many = shards > 1
    parts = {"read": "s3_read", "compute": "compute", "write": "s3_write"}
    if many and not any("shard_s3_write_times_ms" in row for row in listed):
        del parts["write"]  # one session did not time it
    for number, row in enumerate(listed):
        where = f"{file}: all_results[{number}]"
        timed = {
            part: _read_seconds(row, f"shard_{name}_times_ms" if many else f"{name}_ms", where, shards, 1_000)
            for part, name in parts.items()
        }
        functions = [_build_aggregator(cell, "shard", where, timed, n) for n in range(shards)]
        yield Round(cell=cell, file=file, cold=_is_cold(row, where), functions=tuple(functions))


def _read_designs(path: Path) -> Iterable[Round]:
    """Yield the rounds in a file that compares designs, gradient by gradient. Raises DataError if a design or row is missing, malformed or
    implausible.
    """
    plain, file = _read_json(path), path.name
    if not plain:
        raise DataError(f"{file}: no rows; expected a gradient with the rows of {', '.join(MOVED)}")
    for gradient, designs in plain.items():
        for design in MOVED:
            if design not in _require_mapping(designs, f"{file}: {gradient}"):
                raise DataError(f"{file}: {gradient}.{design} is missing")
        for design, listed in designs.items():
            where = f"{file}: {gradient}.{design}"
            yield from _read_design(where, file, gradient, design, _require_mapping(listed, where))


def _require_mapping(plain: Any, where: str) -> Mapping[str, Any]:
    """Return `plain` if it is a JSON object; otherwise raise DataError. `where`: its position, for the error."""
    if not isinstance(plain, Mapping):
        raise DataError(f"{where}: {plain!r} is not allowed; expected an object")
    return plain


def _read_design(where: str, file: str, gradient: str, design: str, plain: Mapping[str, Any]) -> Iterable[Round]:
    """Yield the rounds of one design for one gradient. `where`: position in the file, for errors; `plain`: the design's part of the file.
    Raises DataError if a row is missing, malformed or implausible.
    """
    if design not in MOVED:
        raise DataError(f"{where}: the design is unknown; expected one of {', '.join(MOVED)}")
    aggregators = int(_read_positive(plain, "num_lambda_invocations", where))
    memory_mb = int(_read_positive(plain, "memory_mb", where))
    for number, row in enumerate(
        _require_rows(plain, "all_runs", where, warm=int(_read_positive(plain, "num_warm_runs", where)))
    ):
        at = f"{where}.all_runs[{number}]"
        cell = MeasuredCell(
            gradient=gradient,
            gradient_mib=_read_positive(row, "s3_bytes_read", at) / MOVED[design] / MIB,
            design=design,
            aggregators=aggregators,
            memory_mb=memory_mb,
        )
        functions = []
        for level, reads in cell.levels:
            timed = {part: _read_seconds(row, key, at, len(reads), 1) for part, key in _KEYS[design, level].items()}
            functions += [_build_aggregator(cell, level, at, timed, n, reads=each) for n, each in enumerate(reads)]
        yield Round(cell=cell, file=file, cold=_is_cold(row, at), functions=tuple(functions))


_KEYS = {
    ("grads_sharding", "shard"): {
        "read": "s3_read_s",
        "compute": "compute_s",
        "write": "s3_write_s",
        "total": "shard_durations_s",
    },
    ("lambda_fl", "leaf"): {"read": "s3_read_s_leaves", "compute": "compute_s_leaves", "total": "leaf_durations_s"},
    ("lambda_fl", "root"): {"read": "s3_read_s_root", "compute": "compute_s_root", "total": "root_duration_s"},
    ("lifl", "l1"): {"total": "l1_durations_s"},
    ("lifl", "l2"): {"total": "l2_durations_s"},
    ("lifl", "root"): {"total": "root_duration_s"},
}


def _build_aggregator(
    cell: MeasuredCell,
    level: str,
    where: str,
    timed: Mapping[str, Sequence[float]],
    number: int,
    *,
    reads: int | None = None,
) -> MeasuredAggregator:
    """Return the measured seconds of function `number` (from 0) of a round's level. `where`: position in the file, for errors; `timed`:
    seconds of all functions of the level by part ("read", "compute", "write" or "total"); a missing total is the sum of the parts if
    writing was timed; `reads`: number of vectors that it reads, by default one per client. Raises DataError if its throughput is
    implausible, because the file may then use other units.
    """
    reads = cell.clients if reads is None else reads
    seconds = {part: series[number] for part, series in timed.items()}
    for part, value in seconds.items():
        bytes_ = cell.object_bytes * (1 if part == "write" else reads)
        least, most = PLAUSIBLE[part]
        if not least <= bytes_ / value <= most:
            raise DataError(
                f"{where}: {part} of function {number}: {value:g} s for {bytes_ / 1e6:,.1f} MB would be "
                f"{bytes_ / value / 1e6:,.3g} MB/s, expected {least / 1e6:g} to {most / 1e6:,g}: other units?"
            )
    if "total" not in seconds and "write" in seconds:
        seconds["total"] = sum(seconds.values())
    return MeasuredAggregator(level=level, reads=reads, **{f"{part}_s": value for part, value in seconds.items()})


def _read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises DataError if the file cannot be read, is not JSON or holds something else."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise DataError(f"{path.name}: no measurements: {problem}") from problem
    if not isinstance(plain, dict):
        raise DataError(f"{path.name}: expected an object with the session's settings and rows")
    return plain


def _require_rows(plain: Mapping[str, Any], key: str, where: str, *, warm: int) -> Sequence[Mapping[str, Any]]:
    """Return the list of rows below `key` in the JSON object `plain`. Raises DataError if it is missing, if the number of rows that are not
    cold differs from `warm`, or if a combination of round and repetition is missing. `where`: position in the file, for errors.
    """
    listed = plain.get(key)
    if not isinstance(listed, list) or not listed:
        raise DataError(f"{where}: {key} is missing")
    found = sum(not _is_cold(row, f"{where}: {key}[{number}]") for number, row in enumerate(listed))
    there = {(row.get("round_id"), row.get("rep")) for row in listed}
    ids, reps = ({pair[n] for pair in there} for n in (0, 1))
    gone = [(each, rep) for each in ids for rep in reps if (each, rep) not in there]
    if found != warm or gone:
        which = "".join(f"; round {each}, repetition {rep} is not there" for each, rep in gone)
        raise DataError(f"{where}: {key} has {found} warm rows of {warm}{which}")
    return listed


def _is_cold(row: Any, where: str) -> bool:
    """Return whether a row's round was cold. Raises DataError if the row does not say."""
    if not isinstance(row, Mapping) or not isinstance(row.get("cold_start"), bool):
        raise DataError(f"{where}: cold_start is missing; expected true or false")
    return bool(row["cold_start"])


def _read_positive(row: Mapping[str, Any], key: str, where: str) -> float:
    """Return the number below `key`. Raises DataError if it is missing, or not a finite number above 0. `where`: position in the file, for
    errors.
    """
    if key not in row:
        raise DataError(f"{where}: {key} is missing{suggest_column(row, key)}")
    return parse_positive(row[key], f"{where}: {key}")


def _read_seconds(row: Mapping[str, Any], key: str, where: str, count: int, units: float) -> list[float]:
    """Return the seconds of `count` functions from the list (or single number) below `key`. `where`: position in the file, for errors;
    `units`: units of the file per second, such as 1,000. Raises DataError if figures are missing or not above 0.
    """
    if key not in row:
        raise DataError(f"{where}: {key} is missing{suggest_column(row, key)}")
    listed = row[key] if isinstance(row[key], list) else [row[key]]
    if len(listed) != count:
        raise DataError(f"{where}: {key} has {len(listed)} figures, expected {count}, one for each function")
    return [parse_positive(value, f"{where}: {key}[{number}]") / units for number, value in enumerate(listed)]


def suggest_column(row: Mapping[str, Any], key: str) -> str:
    """Return a hint for an error message if `row` has a column named like `key` but with another unit; "" if it has none."""
    stem = key.rsplit("_", 1)[0]
    near = [name for name in row if name.rsplit("_", 1)[0] == stem]
    return f"; {near[0]} is there: other units?" if near else ""


def parse_positive(value: Any, where: str) -> float:
    """Return `value` as a number. Raises DataError unless it is finite and above 0. `where`: position in the file, for the error."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if isinstance(value, bool) or not isfinite(number) or number <= 0:
        raise DataError(f"{where}: {value!r} is not allowed; expected a number above 0")
    return number


# --- stores and networks ----------------------------------------------------------------------------------------------


def load_latencies(folder: Path = FOLDER) -> tuple[Latency, ...]:
    """Return the measured latencies of requests for 1 KB objects, one per series of measurements. Raises DataError, naming file and row, if
    one is malformed or implausible, or if a store has not as many rows of reads as of writes.
    """
    path, found = folder / SKYRISE / "storage-latency.csv", []
    for where, row in _read_table(path, ("file", "store", "operation", "object_kb", "mean_ms", *LATENCIES)):
        figures = {name: parse_positive(row[name], f"{where}: {name}") for name in ("object_kb", "mean_ms", *LATENCIES)}
        ordered = [figures[name] for name in LATENCIES]
        if figures["object_kb"] != 1:
            raise DataError(
                f"{where}: object_kb is {figures['object_kb']:g}; expected 1: latencies are of 1 KB objects"
            )
        if ordered != sorted(ordered) or not 1e-3 <= figures["median_ms"] / 1_000 <= 1:
            raise DataError(f"{where}: percentiles that do not grow, or a median outside 1 to 1,000 ms: other units?")
        if not figures["min_ms"] <= figures["mean_ms"] <= figures["max_ms"]:
            raise DataError(
                f"{where}: mean_ms: {figures['mean_ms']:g} does not lie between min_ms and max_ms: other units?"
            )
        mean_s, median_s, p95_s = (figures[name] / 1_000 for name in ("mean_ms", "median_ms", "p95_ms"))
        found.append(
            Latency(
                store=row["store"],
                operation=row["operation"],
                mean_s=mean_s,
                median_s=median_s,
                p95_s=p95_s,
            )
        )
    pairs = {(each.store, operation) for each in found for operation in ("read", "write")}
    for store, operation in sorted(pairs):
        counts = [sum(e.store == store and e.operation == o for e in found) for o in (operation, "read", "write")]
        if counts[0] != max(counts):
            raise DataError(f"{path.name}: {store}: {counts[0]} rows of {operation}s, expected {max(counts)}")
    return tuple(found)


def load_throughputs(folder: Path = FOLDER, *, interval_ms: float = 20, least_s: float = 5) -> tuple[Throughput, ...]:
    """Return the measured throughputs of single functions (not of several at once), in series with intervals of `interval_ms` milliseconds
    and at least `least_s` seconds. Raises DataError, naming file and row, if one is malformed or implausible, or if there are none inside
    or outside a VPC.
    """
    path, found, series = folder / SKYRISE / "lambda-network-throughput.csv", [], "aggregated_mbps_by_interval"
    for where, row in _read_table(path, ("file", "vpc", "concurrent", "interval_ms", "direction", series)):
        every_ms = parse_positive(row["interval_ms"], f"{where}: interval_ms")
        if int(parse_positive(row["concurrent"], f"{where}: concurrent")) > 1 or every_ms != interval_ms:
            continue
        rates = [_parse_not_negative(value, f"{where}: {series}") for value in row[series].split()]
        if len(rates) * every_ms / 1_000 < least_s:
            continue
        mean = sum(rates) / max(1, len(rates))
        if not 10 <= mean <= 500:  # a function's fastest second: about 340
            raise DataError(f"{where}: {series}: {mean:g} in the mean, expected 10 to 500 MB/s: other units?")
        bytes_ = tuple(rate * 1e6 * every_ms / 1_000 for rate in rates)
        vpc = row["vpc"] == "True"
        found.append(Throughput(vpc=vpc, direction=row["direction"], interval_s=every_ms / 1_000, bytes_=bytes_))
    if not {True, False} <= {each.vpc for each in found}:
        raise DataError(f"{path.name}: expected rows of single functions with and without a VPC, each of 5 s at least")
    for vpc in (False, True):
        up, down = (sum((e.vpc, e.direction) == (vpc, way) for e in found) for way in ("upload", "download"))
        if up and down and up != down:
            raise DataError(
                f"{path.name}: single functions {'in' if vpc else 'outside'} a VPC: {up} rows of uploads and {down} of downloads; "
                "expected as many of each"
            )
    return tuple(found)


def _parse_not_negative(value: str, where: str) -> float:
    """Return `value` as a number of at least 0. An interval without data is valid, because AWS refills its token bucket in portions.
    `where`: position in the file, for errors.
    """
    return 0.0 if value in ("0", "0.0") else parse_positive(value, where)


def _read_table(path: Path, needed: Sequence[str]) -> Iterable[tuple[str, dict[str, str]]]:
    """Yield (file and line, text by column) for each row of a CSV file. `needed`: columns that every row must have. Raises DataError if the
    file cannot be read or is no CSV, if there is no row, or if such a column is missing.
    """
    try:
        reader = csv.DictReader(path.read_text(encoding="utf-8").splitlines(), restkey="")
        lines = list(reader)
    except (OSError, ValueError) as problem:
        raise DataError(f"{path.name}: no measurements: {problem}") from problem
    except csv.Error as problem:
        raise DataError(f"{path.name}: line {reader.reader.line_num}: {problem}") from problem
    if not lines:
        raise DataError(f"{path.name}: no rows")
    for number, row in enumerate(lines, 2):
        where = f"{path.name}: line {number}"
        for name in needed:
            if row.get(name) is None:
                raise DataError(f"{where}: {name} is missing{suggest_column(row, name)}")
        yield where, row
