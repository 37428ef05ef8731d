"""Run folders: records, result.json, and checks for missing records."""

import contextlib
import json
import math
import os
import re
import secrets
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_type_hints

from safetensors import SafetensorError, safe_open

from crossover.errors import DataError
from crossover.experiment import Experiment, from_plain, move_renamed_fields
from crossover.reports import bill, prices
from crossover.reports.bill import Infrastructure
from crossover.reports.usage import (
    RECORD,
    Record,
    Unrecorded,
    billed_ms,
    busy_s,
    cell_of,
    init_s,
    is_on_instance,
    latest_end,
    traffic,
)
from crossover.stores import encoding

# --- completeness -----------------------------------------------------------------------------------------------------


def count_attempts(records: Sequence[Record]) -> dict[str, int]:
    """Return counts of a run's invocations: all (`count`), by outcome (`ok`, `error`, `stale` for superseded attempts), cold starts
    (`cold`), and pieces of work that succeeded after a failed attempt (`retried`).
    """
    outcomes = Counter(record["outcome"] for record in records)
    failed = {cell_of(record) for record in records if record["outcome"] == "error"}
    succeeded = {cell_of(record) for record in records if record["outcome"] == "ok"}
    return {
        "count": len(records),
        "ok": outcomes["ok"],
        "error": outcomes["error"],
        "stale": outcomes["stale"],
        "retried": len(failed & succeeded),
        "cold": sum(bool(record.get("cold")) for record in records),
    }


def list_missing(
    records: Sequence[Record],
    *,
    expected: Mapping[str, int] | None,
    epochs: Sequence[Mapping[str, Any]],
    span: int = 1,
    failed: bool = False,
) -> list[str]:
    """Return sentences on what is missing from a run's records and epochs: for each step with too few records, or with records though it
    was not executed; for each gap between a worker's invocations; on epochs without evaluation, or if no epoch was finished. Empty if
    nothing is known to be missing.

    `expected`: for each step the number of its successful executions, None if they were not counted, so that lost records of most steps
    cannot be noticed. In a failed run they may include the execution that ended it. `epochs`: the evaluated epochs, as for `build`; `span`:
    number of epochs between two evaluations; `failed`: whether the run failed.
    """
    found = _missing_records(records, expected=expected, failed=failed) if expected is not None else []
    return found + _missing_continuations(records) + _missing_epochs(epochs, span)


def _missing_records(records: Sequence[Record], *, expected: Mapping[str, int], failed: bool) -> list[str]:
    """Return a sentence for each step that has fewer successful records than `expected` says, or that has successful records although it
    was not executed. `expected`: number of executions by step; `failed`: whether the run failed; then its last step may have left a record
    of a failure only.
    """
    by_step: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_step[record["step"]].append(record)
    sentences = []
    for step, count in expected.items():
        present = sum(record["outcome"] == "ok" for record in by_step[step])
        if failed:  # the step that ended the run was executed, and left its record with another outcome
            done = {cell_of(record) for record in by_step[step] if record["outcome"] == "ok"}
            present += len({cell_of(record) for record in by_step[step]} - done)
        if present < count:
            where = _describe_holes(by_step[step])
            sentences.append(f"{step}: {count - present} of {count} records are missing{where}")
    unknown = sorted(
        step for step in by_step if step not in expected and any(r["outcome"] == "ok" for r in by_step[step])
    )
    sentences += [f"{step}: {len(by_step[step])} records of a step that was not executed" for step in unknown]
    return sentences


def _describe_holes(records: Sequence[Record], *, shown: int = 3) -> str:
    """Return in words, in parentheses after a space, which records of a step seem to be missing: combinations of epoch, round, worker and
    minibatch without one; "" if there are none. It is a hint where to look, not a proof. `records`: of this step; `shown`: most
    combinations to name.
    """
    cells = {cell_of(record) for record in records if record["outcome"] == "ok"}
    rounds = sorted({(epoch, round) for _, _, epoch, round, _ in cells})
    workers = sorted({worker for _, worker, *_ in cells})
    minibatches: dict[tuple[int, int], set[int]] = defaultdict(set)
    for _, _, epoch, round, minibatch in cells:
        minibatches[epoch, round].add(minibatch)
    step = records[0]["step"] if records else ""
    holes = [
        f"worker {worker}, epoch {epoch}, round {round}, minibatch {minibatch}"
        for epoch, round in rounds
        for worker in workers
        for minibatch in sorted(minibatches[epoch, round])
        if (step, worker, epoch, round, minibatch) not in cells
    ]
    if not holes:
        return ""
    more = f" and {len(holes) - shown} more" if len(holes) > shown else ""
    return f" ({'; '.join(holes[:shown])}{more})"


def _missing_continuations(records: Sequence[Record]) -> list[str]:
    """Return a sentence for each missing record of a worker that trains through several invocations, one after another. Each record says
    where its invocation ended (`until`: round and minibatch), and the next one must begin there; in the run's first attempt the first must
    begin at 0.
    """
    lives: dict[tuple[str, int, int], list[Record]] = defaultdict(list)
    for record in records:
        if record["outcome"] == "ok" and "until" in record:
            lives[record["step"], record["worker"], record["attempt"]].append(record)
    sentences = []
    for (step, worker, attempt), life in sorted(lives.items()):
        begun = {(record["round"], record["minibatch"]) for record in life}
        reached = {tuple(record["until"]) for record in life} | {min(begun) if attempt else (0, 0)}
        sentences += [
            f"{step}, worker {worker}: the record before round {round}, minibatch {minibatch} is missing"
            for round, minibatch in sorted(begun - reached)
        ]
    return sentences


def _missing_epochs(epochs: Sequence[Mapping[str, Any]], span: int) -> list[str]:
    """Return one sentence, in a list, that names the epochs without the evaluation that was due, or says that no epoch was finished; an
    empty list if all are there. `span`: number of epochs between two evaluations.
    """
    numbers = sorted(int(epoch["epoch"]) for epoch in epochs)
    if not numbers:
        return ["no epoch was finished"]
    gaps = sorted(set(range(span, numbers[-1] + 1, span)) - set(numbers))
    return [f"epoch {', '.join(map(str, gaps))}: no evaluation was recorded"] if gaps else []


# --- folder -----------------------------------------------------------------------------------------------------------
# A run's folder: result.json, metrics.jsonl, model.safetensors, report.html. Each file appears whole or not at all.

FORMAT = 1  # of result.json; those without it were written before it was told
RESULT, METRICS, MODEL, REPORT = "result.json", "metrics.jsonl", "model.safetensors", "report.html"
LABELS = ("measured-local", "measured-aws", "published", "projected")
PROJECTION = "projection.json"  # what the run would take on AWS, by simulation
SERVER_LOG = "server.log"  # of the database or broker with which a run on this machine has ended
UNFINISHED = "unfinished"  # what a run that has not ended well can be gone on with
_OWN = (RESULT, METRICS, MODEL, REPORT, PROJECTION, SERVER_LOG, UNFINISHED, "baseline", "tensorboard", "mlflow")
_EARLIER = re.compile(r"\d{8}-\d{6}-\w{6}|incomplete-\w+")  # a run's id, by which a folder of its own is called

Result = Mapping[str, Any]  # result.json

_FIGURES = dict.fromkeys(("count", "wall_s", "cpu_s", "max_rss_mb"), float)
_METRIC = {"name?": str, "higher_is_better?": (bool, None)}
_USD = {"paper_method_usd": float, "full_usd": float}
# What every page and table relies on; what stands beside it is shown as it is.
_SHAPE = {
    "architecture": str,
    "where": str,
    "label": LABELS,
    "outcome": ("finished", "failed"),
    "started_at": str,
    "duration_s": float,
    "versions": {},
    "incomplete?": [str],
    "failure?": (str, None),
    "completeness?": str,
    "data?": {},
    "experiment": {
        "name": str,
        "architecture": str,
        "workers": int,
        "seed?": int,
        "training?": {"metric?": _METRIC, "target?": (float, None)},
    },
    "epochs": [
        {"epoch": int, "val_metric": (float, None), "val_loss": (float, None), "train_loss": (float, None)}
        | {"elapsed_s": float, **_USD}
    ],
    "invocations": dict.fromkeys(("count", "ok", "error", "stale", "retried", "cold"), int),
    "unrecorded?": ({"count": int}, None),
    "stages": [{"stage": str, **_FIGURES}],
    "steps": [
        {"step": str, "cold": int, "failed": int, "init_s": float, "slot_wait_s": float, "billed_s": float, **_FIGURES}
    ],
    "traffic": {str: {"bytes_in": int, "bytes_out": int, "requests": int}},
    "dropped?": [{"round": int, "workers": [int]}],
    "staleness?": ({"gradients": int, "mean": float, "max": float}, None),
    "cost": {"label": LABELS, "basis": str, "paper_method": str, **_USD, "prices_as_of?": str, "region?": str}
    | {"lines": [{"item": str, "quantity": float, "unit": str, "usd": float, "as_of": str}]},
    "final": ({"val_metric?": (float, None), "seconds?": float, "equals_one_process?": bool}, None),
}


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """One run as stored in a folder. `path`: the folder; `result`: content of result.json; `records`: content of metrics.jsonl, one mapping
    for each invocation of a function and each epoch of a program.
    """

    path: Path
    result: Result
    records: Sequence[Record]

    @property
    def name(self) -> str:
        """Name of the run's folder, which tables use for the run."""
        return self.path.resolve().name


def write(path: Path, *, result: Mapping[str, Any], records: Iterable[Record], model: bytes | None = None) -> RunFolder:
    """Write a run's files into the folder `path`, which is created if necessary, and return the run. Existing files of the same names are
    replaced. result.json is written last, so that a folder that has it is complete. `result`: content of result.json; `records`: records
    for metrics.jsonl, which are sorted by their start; `model`: bytes of model.safetensors, None if there is no trained model; a file that
    exists then stays. Raises ValueError if a number in `result` is not finite.
    """
    path.mkdir(parents=True, exist_ok=True)
    ordered = sorted(records, key=lambda record: float(record["started_at"]))
    lines = "".join(json.dumps(record, sort_keys=True) + "\n" for record in ordered)
    write_atomically(path / METRICS, lines.encode())
    if model is not None:
        write_atomically(path / MODEL, model)
    write_atomically(path / RESULT, json.dumps(result, indent=1, allow_nan=False).encode() + b"\n")
    return RunFolder(path=path, result=result, records=ordered)


def is_ours(entry: Path) -> bool:
    """Return whether the file or folder `entry` of a results folder has a name that runs give: one that begins with the name of one of
    their files, temporary ones included, or that of the folder of an earlier run. The content is not read.
    """
    return entry.name.removeprefix(".").startswith(_OWN) or bool(_EARLIER.fullmatch(entry.name))


def list_own_entries(path: Path) -> list[Path]:
    """Return the entries of the results folder `path` that the run in it has written, without the subfolders into which earlier runs were
    moved; empty if there is no such folder.
    """
    entries = path.iterdir() if path.is_dir() else ()
    return [each for each in entries if is_ours(each) and not _EARLIER.fullmatch(each.name)]


def move_aside(path: Path, run: str = "") -> Path | None:
    """Move the files of an earlier run in the folder `path` into the subfolder named after that run's id (or `incomplete-...` if it is
    unknown), so that another run can write there. Returns the subfolder; None if there are no files, or if they are of the run with the id
    `run`. If the move is interrupted, the next call finishes it.
    """
    found = list_own_entries(path)
    if not found or (run and run == _run_of(path)):
        return None
    earlier = path / _run_of(path) if _run_of(path) else Path(tempfile.mkdtemp(prefix="incomplete-", dir=path))
    earlier.mkdir(exist_ok=True)
    for each in sorted(found, key=lambda each: each.name == METRICS):  # the last: its id stands there
        each.rename(earlier / each.name)
    return earlier


def _run_of(path: Path) -> str:
    """Return the id of the run whose files are in the folder `path`, by its first record or its resume data; "" if it is not known."""
    with contextlib.suppress(OSError, ValueError, KeyError), (path / METRICS).open(encoding="utf-8") as file:
        return str(json.loads(file.readline())["run"])
    return next((each.name for each in (path / UNFINISHED).glob("runs/*")), "")


def read(path: Path) -> RunFolder:
    """Return the run stored in the folder `path`, finished or failed. Fields that were renamed since then have their present names. Raises
    DataError, with the file and what is wrong with it, if result.json or metrics.jsonl is missing, or a file is damaged or of another
    version.
    """
    result = _parse_json((path / RESULT).read_bytes(), where=str(path / RESULT)) if (path / RESULT).is_file() else None
    if not isinstance(result, dict) or not {"architecture", "epochs", "cost", "experiment"} <= result.keys():
        state = "not the result of a run" if result is not None else "no such file"
        earlier = max((each for each in path.glob("*") if (each / RESULT).is_file()), default=None)
        other = f"{earlier}, an earlier run" if earlier else "results/spirt"
        raise DataError(f"{path / RESULT}: {state}; give the folder of a run, such as {other}")
    if result.get("format", FORMAT) != FORMAT:
        told = f"format {result['format']!r} is unknown, this version reads {FORMAT}"
        raise DataError(f"{path / RESULT}: {told}; read it with the version that wrote it")
    _check_shape(result, _SHAPE, where=str(path / RESULT))
    try:
        experiment_of(result)
        datetime.fromisoformat(result["started_at"])
        if (model := path / MODEL).is_file():
            safe_open(model, framework="numpy").keys()  # type: ignore[no-untyped-call]
    except (SafetensorError, TypeError, AttributeError, ValueError) as error:
        what = (
            f"{path / MODEL}" if isinstance(error, SafetensorError) else f"{path / RESULT}: experiment, or started_at"
        )
        raise DataError(f"{what}: {error}; the file is damaged, or another version wrote it; run again") from error
    metrics = path / METRICS
    if not metrics.is_file():
        raise DataError(f"{metrics}: no such file; the run's folder is incomplete")
    with metrics.open("rb") as file:
        lines = [(f"{metrics}, line {n}", line) for n, line in enumerate(file, start=1)]
        records = [_check_shape(_parse_json(line, where=where), RECORD, where=where) for where, line in lines]
    return RunFolder(
        path=path, result={**result, "experiment": move_renamed_fields(result["experiment"])}, records=records
    )


def experiment_of(result: Mapping[str, Any]) -> Experiment:
    """Return the experiment that a result.json contains, also one that an earlier version wrote: renamed fields are moved, and fields of a
    section that no longer exist are dropped. `result`: content of result.json. Raises TypeError for another unknown field, or if name or
    architecture is missing, KeyError if `result` has no experiment.
    """
    said, kinds = move_renamed_fields(result["experiment"]), get_type_hints(Experiment)
    for section, kind in kinds.items():
        if is_dataclass(kind) and isinstance(said.get(section), Mapping):
            known = {each.name for each in fields(kind)}
            said[section] = {name: value for name, value in said[section].items() if name in known}
    return from_plain(said)


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to a temporary file in the same folder and rename it to `path`, so that a reader sees the whole old file or the whole
    new one, also after a crash. The folder must exist. The file gets the rights that the umask leaves.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # mkstemp would pass over the umask
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _check_shape(value: Any, shape: Any, *, where: str) -> Any:
    """Return `value` if it has the keys and types that `shape` describes, otherwise raise DataError. `where`: file name for the error
    message.
    """
    for wrong in encoding.find_misfits(value, shape):
        said = wrong.removeprefix(".")
        raise DataError(f"{where}: {said}: the file is damaged, or another version wrote it; run again")
    return value


def _parse_json(text: bytes, *, where: str) -> Any:
    """Return the value of a JSON text. Raises DataError if it is not JSON. `where`: file name for the error message."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise DataError(f"{where}: not JSON: {problem}") from problem


# --- result -----------------------------------------------------------------------------------------------------------
# result.json is computed only from a run's records, and lists missing records.

Label = Literal["measured-local", "measured-aws", "published", "projected"]


def build(
    *,
    experiment: Experiment,
    label: Label,
    where: str,
    records: Sequence[Record],
    epochs: Sequence[Mapping[str, Any]],
    started_at: float,
    versions: Mapping[str, str],
    final: Mapping[str, Any] | None = None,
    expected: Mapping[str, int] | None = None,
    transitions: int | None = None,
    infrastructure: Infrastructure | None = None,
    failure: str | None = None,
    data: Mapping[str, Any] | None = None,
    code: Mapping[str, Any] | None = None,
    unrecorded: Unrecorded | None = None,
    dropped: Sequence[Mapping[str, Any]] = (),
    damaged: Sequence[str] = (),
    span: int = 1,
) -> dict[str, Any]:
    """Return the content of result.json. Raises ConfigError if a price is missing.

    `label`, `where`: origin of the figures, and inline, local or aws; `records`: of all invocations. `epochs`: one mapping for each
    evaluated epoch with `epoch` (from 1), `val_loss`, `val_metric`, and either `at` (unix seconds of the evaluation) or `wall_s`;
    `train_loss` is taken from the records if it is not there. `started_at`: unix seconds; `versions`: of software, by name; `final`:
    results of the run's end, None if it did not finish. `expected`: number of executions by step, None if not counted; `transitions`:
    number of state transitions, None if not counted; `infrastructure`: by default what the experiment deploys; `failure`: cause in words of
    a failed run. `data`: description of the data; `code`: digests of the code; `unrecorded`: killed invocations, None if the platform was
    not asked; `dropped`: for each round the workers left out because their values were not finite; `damaged`: sentences on data that a
    resumed run had to do without; `span`: number of epochs between two evaluations.
    """
    began, ended = _find_begin_and_end(records, epochs, started_at=started_at)
    run = bill.BilledRun(
        experiment=experiment,
        records=records,
        infrastructure=infrastructure or bill.infrastructure_of(experiment),
        prices=prices.load(),
        started_at=began,
        duration_s=ended - began,
        transitions=transitions,
        unrecorded=unrecorded,
    )
    found = {
        **_head_of_result(experiment, label=label, where=where, failure=failure),
        "started_at": datetime.fromtimestamp(began, UTC).isoformat(timespec="milliseconds"),
        "duration_s": run.duration_s,
        "versions": dict(versions),
        "code": dict(code or {}),
        "data": dict(data or {}),
        "epochs": _epoch_rows(epochs, run),
        "unrecorded": asdict(unrecorded) if unrecorded else None,
        "completeness": "checked" if expected is not None else "not checked: the executed steps were not counted",
        "incomplete": list_missing(records, expected=expected, epochs=epochs, span=span, failed=bool(failure)),
        **sum_records(records),
        "dropped": [dict(each) for each in dropped],
        "damaged": list(dict.fromkeys(damaged)),
        "cost": {**run.cost().as_json(where=where), "prices_as_of": run.prices.as_of, "region": run.prices.region},
        "final": dict(final) if final else None,
    }
    return dict(_replace_non_finite(found))


def _head_of_result(experiment: Experiment, *, label: Label, where: str, failure: str | None) -> dict[str, Any]:
    """Return the first fields of result.json: format, architecture, where, label, outcome (finished or failed), failure, and experiment.
    `where`: inline, local or aws; `failure`: cause of a failed run, None if it did not fail.
    """
    return {
        "format": FORMAT,
        "architecture": experiment.architecture,
        "where": where,
        "label": label,
        "outcome": "failed" if failure else "finished",
        "failure": failure,
        "experiment": experiment.to_plain(),
    }


def _find_begin_and_end(
    records: Sequence[Record], epochs: Sequence[Mapping[str, Any]], *, started_at: float
) -> tuple[float, float]:
    """Return (begin, end) of a run in unix seconds: from the earliest to the latest of `started_at`, its records, and the evaluations of
    its epochs. `started_at`: time of the run's configuration, which for a resumed run is later than the records of the first attempt.
    """
    began = min([started_at, *(float(record["started_at"]) for record in records)])
    agreed = [float(epoch["at"]) for epoch in epochs if "at" in epoch]
    return began, max([began, latest_end(records) or began, *agreed])


def sum_records(records: Sequence[Record]) -> dict[str, Any]:
    """Return those fields of result.json that are sums over the records, by name: `invocations`, `stages`, `steps`, `traffic` and
    `staleness`.
    """
    return {
        "invocations": count_attempts(records),
        "stages": stages(records),
        "steps": steps(records),
        "traffic": traffic(records),
        "staleness": staleness(records),
    }


def staleness(records: Sequence[Record]) -> dict[str, float] | None:
    """Return {"gradients", "mean", "max"}: how many gradients asynchronous peers averaged, and the mean (over gradients) and maximum of the
    gradients' age in rounds. None if the records have no such figures, because the peers wait for one another.
    """
    found = [record for record in records if record.get("staleness") is not None]
    if not found:
        return None
    gradients = sum(int(record["gradients"]) for record in found)
    total = sum(float(record["staleness"]) * int(record["gradients"]) for record in found)
    return {
        "gradients": gradients,
        "mean": total / gradients if gradients else 0.0,
        "max": max(float(record["max_staleness"]) for record in found),
    }


def stages(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return a row for each stage of the steps, such as compute, with its count, wall and processor seconds and peak memory in MB over all
    records: {"stage", "count", "wall_s", "cpu_s", "max_rss_mb"}. Stages are in order of first appearance; the last row, `other`, is the
    time of steps outside all stages. An empty list without records.
    """
    table: dict[str, dict[str, Any]] = {}
    for record in sorted(records, key=lambda r: float(r["started_at"])):
        for stage in record["stages"]:
            _add_stage(table, stage, record)
        rest = {
            figure: max(0.0, float(record[figure]) - sum(stage[figure] for stage in record["stages"]))
            for figure in ("wall_s", "cpu_s")
        }
        _add_stage(table, {"stage": "other", **rest}, record)
    other = table.pop("other", None)
    return [*table.values(), *([other] if other else [])]


def _add_stage(table: dict[str, dict[str, Any]], stage: Mapping[str, Any], record: Record) -> None:
    """Add one stage of a record to the row of this stage in `table`, which has the rows by name."""
    name = stage["stage"]
    row = table.setdefault(name, {"stage": name, "count": 0, "wall_s": 0.0, "cpu_s": 0.0, "max_rss_mb": 0.0})
    # A long invocation adds its stages up.
    _add_numbers(row, count=stage.get("count", 1), wall_s=stage["wall_s"], cpu_s=stage["cpu_s"])
    # A program's stages know their own peaks; a function's environment has one for all.
    row["max_rss_mb"] = max(row["max_rss_mb"], float(stage.get("max_rss_mb") or record.get("max_rss_mb") or 0.0))


def _add_numbers(row: dict[str, Any], **by: float) -> None:
    """Add each number in `by` to the field of the row that has its name."""
    for figure, more in by.items():
        row[figure] += more


def steps(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return a row for each step, in order of first appearance, with its number of invocations (`count`), cold starts (`cold`) and
    invocations that failed or were superseded (`failed`), its seconds (`wall_s`, `cpu_s`, `init_s`, `billed_s`) and its peak memory
    (`max_rss_mb`) in MB over all records. `slot_wait_s`, the wait for a free core of the local machine, is in no other field. Programs on
    instances have no billed seconds.
    """
    table: dict[str, dict[str, Any]] = {}
    zero = ("count", "cold", "failed", "wall_s", "cpu_s", "init_s", "slot_wait_s", "billed_s", "max_rss_mb")
    for record in sorted(records, key=lambda r: float(r["started_at"])):
        row = table.setdefault(record["step"], {"step": record["step"], **dict.fromkeys(zero, 0)})
        _add_numbers(
            row,
            count=1,
            cold=bool(record.get("cold")),
            failed=record["outcome"] != "ok",
            wall_s=float(record["wall_s"]),
            cpu_s=float(record["cpu_s"]),
            init_s=init_s(record),
            slot_wait_s=busy_s(record) - float(record["wall_s"]),
            billed_s=0.0 if is_on_instance(record) else billed_ms(record) / 1_000,
        )
        row["max_rss_mb"] = max(row["max_rss_mb"], float(record.get("max_rss_mb") or 0.0))
    return list(table.values())


def _epoch_rows(epochs: Sequence[Mapping[str, Any]], run: bill.BilledRun) -> list[dict[str, Any]]:
    """Return the rows of result.json for the epochs, in order: {"epoch", "train_loss", "val_loss", "val_metric", "learning_rate", "wall_s",
    "elapsed_s", "paper_method_usd", "full_usd"}. `wall_s` is of the epoch alone; elapsed seconds and dollars are cumulative, from the run's
    start to the end of the epoch. `epochs`: as for `build`; `run`: gives the dollars at a moment.
    """
    losses = train_losses(run.records)
    begin = min((float(r["started_at"]) for r in run.records if r["step"] != "initialise"), default=run.started_at)
    rows, moment = [], begin
    for epoch in sorted(epochs, key=lambda e: int(e["epoch"])):
        number = int(epoch["epoch"])
        before, moment = moment, float(epoch["at"]) if "at" in epoch else moment + float(epoch["wall_s"])
        until, given = run.cost_until(moment), epoch.get("train_loss")
        rows.append(
            {
                "epoch": number,
                "train_loss": losses.get(number) if given is None else given,
                "val_loss": epoch.get("val_loss"),
                "val_metric": epoch.get("val_metric"),
                "learning_rate": epoch.get("learning_rate"),
                "wall_s": float(epoch["wall_s"]) if "wall_s" in epoch else moment - before,
                "elapsed_s": moment - run.started_at,
                "paper_method_usd": until.paper_method_usd,
                "full_usd": until.full_usd,
            }
        )
    return rows


def train_losses(records: Sequence[Record]) -> dict[int, float]:
    """Return {epoch: mean training loss}, weighted by the number of samples (or predictions) behind each loss. Work that was done twice
    counts once, and losses that are not finite are left out, as are epochs without a loss. A record has one `loss`, or `losses` as (epoch,
    mean, weight) if its invocation worked on several epochs.
    """
    once = {cell_of(r): r for r in records if r["outcome"] == "ok"}
    total: dict[int, float] = defaultdict(float)
    samples: dict[int, float] = defaultdict(float)
    for record in once.values():
        parts = record.get("losses") or []
        if record.get("loss") is not None:
            parts = [*parts, (record["epoch"], record["loss"], record.get("answers", record.get("samples") or 1.0))]
        for epoch, loss, weight in parts:
            if not math.isfinite(loss):
                continue  # of a worker that was dropped
            total[epoch] += float(weight) * float(loss)
            samples[epoch] += float(weight)
    return {epoch: total[epoch] / samples[epoch] for epoch in sorted(samples) if samples[epoch]}


def _replace_non_finite(value: Any) -> Any:
    """Return the value with every NaN and infinity in it, at any depth, replaced by None, because JSON has neither. Tuples become lists."""
    match value:
        case dict():
            return {key: _replace_non_finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_replace_non_finite(item) for item in value]
        case float():
            return value if math.isfinite(value) else None
    return value
