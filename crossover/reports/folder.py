"""A run's folder: result.json, metrics.jsonl, model.safetensors, report.html. Each file appears whole or not at all."""

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, get_type_hints

from safetensors import SafetensorError, safe_open

from crossover.costs.invocations import RECORD, Record
from crossover.dataplane import plain
from crossover.errors import DataError
from crossover.experiment import Experiment, from_resolved, renamed

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
    """One finished run as it lies on disk."""

    path: Path
    result: Result
    records: Sequence[Record]

    @property
    def name(self) -> str:
        """What a table calls it: the folder's name."""
        return self.path.resolve().name


def write(path: Path, *, result: Mapping[str, Any], records: Iterable[Record], model: bytes | None = None) -> RunFolder:
    """Write a run's files, result.json last: a folder that has one is whole.

    `model`: the bytes of model.safetensors.
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
    """Whether a run wrote this entry of its folder; a part of a file is `.<name>.<something>`."""
    return entry.name.removeprefix(".").startswith(_OWN) or bool(_EARLIER.fullmatch(entry.name))


def parts(path: Path) -> list[Path]:
    """Of the run in `path`; those of earlier ones lie in folders of their own there."""
    entries = path.iterdir() if path.is_dir() else ()
    return [each for each in entries if is_ours(each) and not _EARLIER.fullmatch(each.name)]


def make_way(path: Path, run: str = "") -> Path | None:
    """Before `run`, or a new one, writes into `path`: what another has left there goes to `path/<its id>`, where it stays as it is. That
    folder; None where there was nothing. Cut off in between, the next call goes on.
    """
    found = parts(path)
    if not found or (run and run == _run_of(path)):
        return None
    earlier = path / _run_of(path) if _run_of(path) else Path(tempfile.mkdtemp(prefix="incomplete-", dir=path))
    earlier.mkdir(exist_ok=True)
    for each in sorted(found, key=lambda each: each.name == METRICS):  # the last: its id stands there
        each.rename(earlier / each.name)
    return earlier


def _run_of(path: Path) -> str:
    """The id of the run in `path`, "" where nothing tells."""
    with contextlib.suppress(OSError, ValueError, KeyError), (path / METRICS).open(encoding="utf-8") as file:
        return str(json.loads(file.readline())["run"])
    return next((each.name for each in (path / UNFINISHED).glob("runs/*")), "")


def read(path: Path) -> RunFolder:
    """The run in `path`. Raises DataError naming the file and what is wrong with it."""
    result = _parse((path / RESULT).read_bytes(), where=str(path / RESULT)) if (path / RESULT).is_file() else None
    if not isinstance(result, dict) or not {"architecture", "epochs", "cost", "experiment"} <= result.keys():
        state = "is not a run's result" if result is not None else "is not there"
        earlier = max((each for each in path.glob("*") if (each / RESULT).is_file()), default=None)
        other = f"{earlier}, which is an earlier one" if earlier else "results/spirt"
        raise DataError(f"{path / RESULT}: {state}; give the folder of a run, such as {other}")
    if result.get("format", FORMAT) != FORMAT:
        told = f"format {result['format']!r} is unknown, this version reads {FORMAT}"
        raise DataError(f"{path / RESULT}: {told}; read it with the version that wrote it")
    _expect(result, _SHAPE, where=str(path / RESULT))
    try:
        experiment_of(result)
        datetime.fromisoformat(result["started_at"])
        if (model := path / MODEL).is_file():
            safe_open(model, framework="numpy").keys()  # type: ignore[no-untyped-call]
    except (SafetensorError, TypeError, AttributeError, ValueError) as error:
        what = (
            f"{path / MODEL}" if isinstance(error, SafetensorError) else f"{path / RESULT}: experiment, or started_at"
        )
        raise DataError(f"{what}: {error}; it is damaged, or another version wrote it: run it again") from error
    metrics = path / METRICS
    if not metrics.is_file():
        raise DataError(f"{metrics}: is not there; the run's folder is incomplete")
    with metrics.open("rb") as file:
        lines = [(f"{metrics}, line {n}", line) for n, line in enumerate(file, start=1)]
        records = [_expect(_parse(line, where=where), RECORD, where=where) for where, line in lines]
    return RunFolder(path=path, result={**result, "experiment": renamed(result["experiment"])}, records=records)


def experiment_of(result: Mapping[str, Any]) -> Experiment:
    """As an earlier version wrote it: fields that are no more decide nothing about updates."""
    said, kinds = renamed(result["experiment"]), get_type_hints(Experiment)
    for section, kind in kinds.items():
        if is_dataclass(kind) and isinstance(said.get(section), Mapping):
            known = {each.name for each in fields(kind)}
            said[section] = {name: value for name, value in said[section].items() if name in known}
    return from_resolved(said)


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside the target, then rename: a reader sees the old file or the new one, also after a crash."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _expect(value: Any, shape: Any, *, where: str) -> Any:
    for wrong in plain.misfits(value, shape):
        said = wrong.removeprefix(".")
        raise DataError(f"{where}: {said}: it is damaged, or another version wrote it; run it again")
    return value


def _parse(text: bytes, *, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise DataError(f"{where}: not JSON: {problem}") from problem
