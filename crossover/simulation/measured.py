"""Calibration from measured step records: computing, stragglers, and the share of a gradient that a filter lets through.

Local seconds show how models and sizes compare, and how much steps vary; they are not those of AWS. So latencies and bandwidths stay those
of the base. Cold starts do too, unless the run was on AWS, where INIT is taken from its records.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import log, sqrt
from pathlib import Path
from statistics import fmean, median
from typing import Any

from crossover.errors import DataError
from crossover.experiment import from_plain
from crossover.reports import folder
from crossover.reports.folder import RunFolder
from crossover.simulation.calibration import AWS, VCPU_MB, Calibration, threads_of, vcpus
from crossover.simulation.workload import MODEL_SIZES

COMPUTING = ("compute", "compute gradients")
FEWEST = 5  # equal computations, before their spread says anything


def calibrate_from_runs(paths: Sequence[Path], base: Calibration = AWS) -> Calibration:
    """Return the calibration `base` with figures replaced by what recorded runs measured: seconds of computing and their spread; for MLLess
    the share of significant coordinates; for runs on AWS the seconds of INIT. `paths`: folders of the runs, taken in this order: a figure
    that several runs give is that of the last of them, and seconds of computing are kept for each model. Raises DataError if a folder is
    not a run, or if its run cannot be used (see `_learn_from_run`).
    """
    found = base
    for path in paths:
        found = _learn_from_run(folder.read(path), found)
    return found


def _learn_from_run(run: RunFolder, base: Calibration) -> Calibration:
    """Return the calibration `base` with the figures that one run measured (see `calibrate_from_runs`). Raises DataError if the run cannot
    be used: a run of the GPU fleet, with growing images, or without records of computing. Of a run on AWS the seconds are converted to one
    reference vCPU.
    """
    experiment, on_aws = from_plain(run.result["experiment"]), run.result["where"] == "aws"
    if experiment.architecture == "gpu":
        raise DataError(
            f"{run.path}: a run of the GPU fleet says nothing of functions; give one of another architecture"
        )
    if experiment.training.image_size.begin is not None:
        raise DataError(
            f"{run.path}: its images grew with the epochs (training.image_size), and so did its seconds; give a run on images as they are"
        )
    good = [record for record in run.records if record["outcome"] == "ok"]
    timed = list(_iter_computations(good, experiment.training.batch_size, processor=not on_aws))
    if not timed:
        raise DataError(f"{run.path}: no record has a stage {' or '.join(COMPUTING)}: nothing to calibrate with")
    per_sample = median(seconds / samples for seconds, samples in timed)
    if on_aws:  # brought to one whole vCPU of the speed that functions have
        memory_mb = max(int(record.get("memory_mb") or VCPU_MB) for record in good)
        per_sample *= base.speed_up(min(threads_of(experiment), vcpus(memory_mb))) * base.function_speed
    model = experiment.training.model
    changes: dict[str, Any] = {"sample_s": {**base.sample_s, model: per_sample}}
    data = run.result.get("data", {})
    image = tuple(data.get("input_shape", ()))
    size = MODEL_SIZES.get(model, {}).get(image)
    if size is not None and size.macs:
        changes["mac_s"] = per_sample / (3 * size.macs)
    if (sigma := _computing_sigma(timed)) is not None:
        changes["compute_sigma"] = sigma
    if on_aws:
        changes |= _init_seconds(good)
    if (
        experiment.architecture == "mlless"
        and size is not None
        and (share := _significant_share(good, size.parameters, size.buffers))
    ):
        changes["significant"] = share
    where = "on AWS" if on_aws else "on one machine"
    fact = f"{model}: {per_sample * 1e3:.3g} ms a sample, from {len(timed)} records of {run.name} ({where})"
    return base.with_facts(fact, name=f"{base.name}, {run.name}", **changes)


def _iter_computations(
    records: Iterable[Mapping[str, Any]], batch_size: int, *, processor: bool
) -> Iterable[tuple[float, int]]:
    """Yield (seconds, samples) of each minibatch that warm invocations computed; for an invocation that computed several, one pair with
    their mean. `batch_size`: samples per minibatch if a record does not say; `processor`: use processor time instead of wall time, which
    other processes disturb.
    """
    figure = "cpu_s" if processor else "wall_s"
    for record in records:
        for stage in record["stages"]:
            if stage["stage"] not in COMPUTING or record.get("cold"):
                continue
            count = int(stage.get("count", 1))
            samples = int(record.get("samples") or batch_size * count)
            if samples and stage[figure] > 0 and "losses" not in record:
                yield float(stage[figure]), samples
            elif stage[figure] > 0:  # a long invocation: its mean
                yield float(stage[figure]) / count, batch_size


def _computing_sigma(timed: Sequence[tuple[float, int]]) -> float | None:
    """Return the standard deviation (of the population) of the logarithm of computing seconds, over the largest group of minibatches of
    equal size; None if the group has fewer than FEWEST. `timed`: at least one pair (seconds above 0, samples).
    """
    groups: dict[int, list[float]] = defaultdict(list)
    for seconds, samples in timed:
        groups[samples].append(log(seconds))
    largest = max(groups.values(), key=len)
    if len(largest) < FEWEST:
        return None
    middle = fmean(largest)
    return sqrt(fmean((each - middle) ** 2 for each in largest))


def _init_seconds(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the measured seconds of INIT as fields of a calibration: the smallest of the steps' medians as `init_s` (without torch), the
    largest as `init_torch_s`, equal if only one step started cold. {} if there were no cold starts.
    """
    by_step: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if record.get("cold") and record.get("init_s"):
            by_step[record["step"]].append(float(record["init_s"]))
    means = sorted(median(found) for found in by_step.values())
    if not means:
        return {}
    return {"init_s": means[0], "init_torch_s": means[-1]}


def _significant_share(records: Iterable[Mapping[str, Any]], parameters: int, buffers: int) -> float | None:
    """Return the share (0 to 1) of a gradient's coordinates that MLLess's filter let through, computed from the bytes that workers stored
    per update. None if no update was stored. `parameters`, `buffers`: number of values in the model.
    """
    stored = rounds = 0
    for record in records:
        if record["step"] == "train":
            counted = record["traffic"]["tensor_store"]
            stored += counted["bytes_out"]
            rounds += counted["operations"].get("create", 0) // 2
    if not rounds:
        return None
    return max(0.0, min(1.0, (stored / rounds - 128 - 4 * buffers) / 8 / parameters))
