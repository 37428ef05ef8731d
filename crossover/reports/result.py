"""result.json from a run's own records: nothing in it comes from anywhere else, and what is missing is said."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Literal

from crossover.costs import cost as costs
from crossover.costs import infrastructure as infrastructures
from crossover.costs import prices
from crossover.costs.infrastructure import Infrastructure
from crossover.costs.invocations import (
    Record,
    Unrecorded,
    billed_ms,
    busy_s,
    cell,
    init_s,
    latest,
    on_instance,
    traffic,
)
from crossover.experiment import Experiment
from crossover.reports import display
from crossover.reports.completeness import attempts, missing
from crossover.reports.folder import FORMAT

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
    span: int = 1,
) -> dict[str, Any]:
    """result.json as a dict. Raises ConfigError for an item without price.

    `where`: inline, local or aws. `epochs`: one mapping per epoch with `epoch` (from 1), `val_loss`, `val_metric` and either `at` (unix
    seconds when it was agreed) or `wall_s`; `train_loss` where known, else it is the sample-weighted mean of the records' `loss`. `final`:
    `val_metric`, `parameters_sha256` and what else the run's end says. `expected`: how often each step was executed. `failure`: the plain
    cause, for a run that did not end well. `data`: facts of the staged data. `code`: digests of what computed, by file. `unrecorded`: None
    where nobody asked the platform. `dropped`: `workers` left out of a `round`, not finite. `span`: epochs between two evaluations.
    """
    began, ended = _span(records, epochs, started_at=started_at)
    run = costs.BilledRun(
        experiment=experiment,
        records=records,
        infrastructure=infrastructure or infrastructures.of(experiment),
        prices=prices.load(),
        started_at=began,
        duration_s=ended - began,
        transitions=transitions,
        unrecorded=unrecorded,
    )
    trains = display.trains({"data": data or {}})
    found = {
        **_asked(experiment, label=label, where=where, failure=failure),
        "started_at": datetime.fromtimestamp(began, UTC).isoformat(timespec="milliseconds"),
        "duration_s": run.duration_s,
        "versions": dict(versions),
        "code": dict(code or {}),
        "data": dict(data or {}),
        "epochs": _epochs(epochs, run),
        "unrecorded": asdict(unrecorded) if unrecorded else None,
        "completeness": "checked" if expected is not None else "not checked: nobody counted the executed steps",
        "incomplete": missing(
            records, expected=expected, epochs=epochs, span=span, failed=bool(failure), trains=trains
        ),
        **_sums(records),
        "dropped": [dict(each) for each in dropped],
        "cost": {**run.cost().as_json(where=where), "prices_as_of": run.prices.as_of, "region": run.prices.region},
        "final": dict(final) if final else None,
    }
    return dict(_finite(found))


def _asked(experiment: Experiment, *, label: Label, where: str, failure: str | None) -> dict[str, Any]:
    """What was to be run, where, what the figures are by that, and whether it ended well."""
    return {
        "format": FORMAT,
        "architecture": experiment.architecture,
        "where": where,
        "label": label,
        "outcome": "failed" if failure else "finished",
        "failure": failure,
        "experiment": experiment.resolved(),
    }


def _span(records: Sequence[Record], epochs: Sequence[Mapping[str, Any]], *, started_at: float) -> tuple[float, float]:
    """From when to when the run lasted. A resumed run's facts are newer than the records of its first attempt."""
    began = min([started_at, *(float(record["started_at"]) for record in records)])
    agreed = [float(epoch["at"]) for epoch in epochs if "at" in epoch]
    return began, max([began, latest(records) or began, *agreed])


def _sums(records: Sequence[Record]) -> dict[str, Any]:
    return {
        "invocations": attempts(records),
        "stages": stages(records),
        "steps": steps(records),
        "traffic": traffic(records),
        "staleness": staleness(records),
    }


def staleness(records: Sequence[Record]) -> dict[str, float] | None:
    """How many rounds old the peers' gradients were that asynchronous peers averaged; None where peers wait for one another."""
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
    """Time by stage, in order of first appearance; `other` is what steps spent outside every named stage."""
    table: dict[str, dict[str, Any]] = {}
    for record in sorted(records, key=lambda r: float(r["started_at"])):
        for stage in record["stages"]:
            _add(table, stage, record)
        rest = {
            figure: max(0.0, float(record[figure]) - sum(stage[figure] for stage in record["stages"]))
            for figure in ("wall_s", "cpu_s")
        }
        _add(table, {"stage": "other", **rest}, record)
    other = table.pop("other", None)
    return [*table.values(), *([other] if other else [])]


def _add(table: dict[str, dict[str, Any]], stage: Mapping[str, Any], record: Record) -> None:
    name = stage["stage"]
    row = table.setdefault(name, {"stage": name, "count": 0, "wall_s": 0.0, "cpu_s": 0.0, "max_rss_mb": 0.0})
    # A long invocation adds its stages up.
    _grow(row, count=stage.get("count", 1), wall_s=stage["wall_s"], cpu_s=stage["cpu_s"])
    # A program's stages know their own peaks; a function's environment has one for all.
    row["max_rss_mb"] = max(row["max_rss_mb"], float(stage.get("max_rss_mb") or record.get("max_rss_mb") or 0.0))


def _grow(row: dict[str, Any], **by: float) -> None:
    for figure, more in by.items():
        row[figure] += more


def steps(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Time by step: what is billed.

    `slot_wait_s` is a local machine's shortage of cores and part of no other figure.
    """
    table: dict[str, dict[str, Any]] = {}
    zero = ("count", "cold", "failed", "wall_s", "cpu_s", "init_s", "slot_wait_s", "billed_s", "max_rss_mb")
    for record in sorted(records, key=lambda r: float(r["started_at"])):
        row = table.setdefault(record["step"], {"step": record["step"], **dict.fromkeys(zero, 0)})
        _grow(
            row,
            count=1,
            cold=bool(record.get("cold")),
            failed=record["outcome"] != "ok",
            wall_s=float(record["wall_s"]),
            cpu_s=float(record["cpu_s"]),
            init_s=init_s(record),
            slot_wait_s=busy_s(record) - float(record["wall_s"]),
            billed_s=0.0 if on_instance(record) else billed_ms(record) / 1_000,
        )
        row["max_rss_mb"] = max(row["max_rss_mb"], float(record.get("max_rss_mb") or 0.0))
    return list(table.values())


def _epochs(epochs: Sequence[Mapping[str, Any]], run: costs.BilledRun) -> list[dict[str, Any]]:
    """One row per epoch; `elapsed_s` and dollars are cumulative, so that the metric can be held against both."""
    losses = train_losses(run.records)
    begin = min((float(r["started_at"]) for r in run.records if r["step"] != "initialise"), default=run.started_at)
    rows, moment = [], begin
    for epoch in sorted(epochs, key=lambda e: int(e["epoch"])):
        number = int(epoch["epoch"])
        before, moment = moment, float(epoch["at"]) if "at" in epoch else moment + float(epoch["wall_s"])
        until, given = run.until(moment), epoch.get("train_loss")
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
    """Mean training loss by epoch, weighted by answers; a cell that was computed twice counts once.

    A long invocation's record has `losses`, (epoch, mean, answers) of every epoch it worked on, in place of one `loss`.
    """
    once = {cell(r): r for r in records if r["outcome"] == "ok"}
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


def _finite(value: Any) -> Any:
    """JSON has no NaN or infinity: a diverged loss is null, and the report says `diverged`."""
    match value:
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case float():
            return value if math.isfinite(value) else None
    return value
