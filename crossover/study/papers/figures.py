"""What a finished run says, in the papers' terms. Seconds are means; records are the run's own."""

from collections.abc import Mapping
from typing import Any

from crossover.reports import display
from crossover.reports.folder import RunFolder

COMPUTING = ("train", "compute_gradients", "compute_gradient")  # the functions that compute


def function_s(run: RunFolder) -> float:
    """Seconds of one function, as the 2025 paper counts them: one minibatch of one worker, evaluation left out.

    SPIRT has a function per minibatch; a long worker's invocations are divided by the minibatches they worked on.
    """
    records = [r for r in run.records if r["step"] in COMPUTING and r["outcome"] == "ok"]
    total = sum(float(r["wall_s"]) - _of(r, "evaluate") for r in records)
    return total / minibatches(run)


def minibatches(run: RunFolder) -> int:
    """How many minibatches all workers computed over the whole run."""
    stages = {row["stage"]: row for row in run.result["stages"]}
    computed = stages.get("compute") or {"count": 0}
    return max(1, int(computed["count"]))


def _of(record: Mapping[str, Any], stage: str) -> float:
    return sum(float(each["wall_s"]) for each in record["stages"] if each["stage"] == stage)


def stage(run: RunFolder, name: str) -> Mapping[str, float]:
    """Mean seconds, processor's share and peak MB of a stage; zeros where it was never entered."""
    row = next((row for row in run.result["stages"] if row["stage"] == name), None)
    if row is None or not row["count"]:
        return {"count": 0, "wall_s": 0.0, "cpu": 0.0, "max_rss_mb": 0.0}
    share = row["cpu_s"] / row["wall_s"] if row["wall_s"] else 0.0
    return {
        "count": row["count"],
        "wall_s": row["wall_s"] / row["count"],
        "cpu": share,
        "max_rss_mb": row["max_rss_mb"],
    }


def total_s(run: RunFolder, *names: str) -> float:
    """Seconds of the stages `names`, of all workers together."""
    return float(sum(row["wall_s"] for row in run.result["stages"] if row["stage"] in names))


def peak_mb(run: RunFolder) -> float:
    """The most memory that any computing function held."""
    rows = [row for row in run.result["stages"] if row["stage"] in ("compute", "compute gradients")]
    return max((float(row["max_rss_mb"]) for row in rows), default=0.0)


def workers(run: RunFolder) -> int:
    return int(run.result["experiment"]["workers"])


def epochs(run: RunFolder) -> int:
    return display.epochs_of(run.result)


def batch_size(run: RunFolder) -> int:
    return int(run.result["experiment"]["training"]["batch_size"])


def per_round_s(run: RunFolder, *names: str) -> float:
    """Seconds of the stages `names` per worker and round of exchange."""
    rounds = stage(run, "update")["count"] or stage(run, "model update")["count"] or 1
    return total_s(run, *names) / rounds


def best_accuracy(run: RunFolder) -> float | None:
    return max((e["val_metric"] for e in run.result["epochs"] if e["val_metric"] is not None), default=None)


def curve(run: RunFolder, figure: str = "elapsed_s") -> list[tuple[float, float]]:
    """(seconds, accuracy) after each epoch."""
    return [(e[figure], e["val_metric"]) for e in run.result["epochs"] if e["val_metric"] is not None]


def moved_bytes(run: RunFolder, *channels: str) -> int:
    chosen = channels or tuple(run.result["traffic"])
    return sum(run.result["traffic"][c]["bytes_in"] + run.result["traffic"][c]["bytes_out"] for c in chosen)


def peer_minibatches(run: RunFolder) -> int:
    """Minibatches of one peer and epoch."""
    return int(run.result["data"].get("minibatches", 1))
