"""Runs that were never run: what a finished run's folder says, with figures that are easy to follow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crossover.reports.folder import RunFolder
from crossover.study.paper_runs import Measurement, ReplicationOutcome, Scale
from crossover.workflow.architecture import load

FUNCTION_STAGES = ("fetch", "compute", "store", "average", "synchronise", "aggregate", "filter", "update", "evaluate")
PEER_STAGES = ("compute gradients", "send", "receive", "model update", "convergence detection")
DOLLARS = {"paper_method_usd": 0.0, "full_usd": 0.0}
WALL_S, EVALUATE_S = 10.0, 2.0  # of one function's record


def run(measurement: Measurement, scale: Scale) -> RunFolder:
    """Return a made-up run of a measurement: two entries of half a second in every stage for each worker, and functions of 10 s per
    minibatch.
    """
    experiment = measurement.experiment(scale)
    peers = experiment.architecture in ("p2p_instance", "p2p_serverless", "gpu")
    minibatches = 2
    count = experiment.workers * minibatches
    names = (*PEER_STAGES, "compute") if peers else FUNCTION_STAGES
    stages = [
        {"stage": n, "count": count, "wall_s": 0.5 * count, "cpu_s": 0.25 * count, "max_rss_mb": 300.0} for n in names
    ]
    step = {"spirt": "compute_gradients", "p2p_serverless": "compute_gradient"}.get(experiment.architecture, "train")
    records: list[dict[str, Any]] = [
        {"step": step, "outcome": "ok", "wall_s": WALL_S, "stages": [{"stage": "evaluate", "wall_s": EVALUATE_S}]}
        for _ in range(count)
    ]
    moved = {"bytes_in": 1_000_000, "bytes_out": 2_000_000, "requests": 10}
    result = {
        "architecture": experiment.architecture,
        "outcome": "finished",
        "label": "measured-local",
        "where": "local",
        "versions": {},
        "started_at": "2026-11-01T00:00:00+00:00",
        "invocations": {"count": count, "ok": count, **dict.fromkeys(("error", "stale", "retried", "cold"), 0)},
        "steps": [],
        "final": None,
        "experiment": load(experiment.architecture).resolve(experiment).to_plain(),
        "duration_s": 60.0,
        "stages": stages,
        "epochs": [
            {
                "epoch": e,
                "val_metric": 0.1 * e,
                "val_loss": 1.0,
                "train_loss": 1.0,
                "elapsed_s": 20.0 * e,
                "wall_s": 20.0,
            }
            | DOLLARS
            for e in (1, 2)
        ],
        "traffic": dict.fromkeys(("object_store", "tensor_store", "bus"), moved),
        "data": {"minibatches": minibatches},
        "cost": {"label": "projected", "basis": "seconds", "paper_method": "2025 paper", "lines": [], **DOLLARS},
    }
    return RunFolder(path=Path("runs") / measurement.key, result=result, records=records)


def outcome(measurements: Sequence[Measurement], scale: Scale, *, without: Sequence[str] = ()) -> ReplicationOutcome:
    """Return an outcome in which all measurements have finished, except those that need a GPU and those named."""
    left_out = {each.key for each in measurements if each.needs_gpu} | set(without)
    return ReplicationOutcome(
        runs={each.key: run(each, scale) for each in measurements if each.key not in left_out},
        missing=dict.fromkeys(left_out, "no GPU on this machine"),
    )
