"""The runs behind published figures, at the published size or cut down, and the execution of missing ones."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from crossover import validation
from crossover.errors import ConfigError, DataError
from crossover.experiment import Experiment, flatten_fields
from crossover.learning import sizes
from crossover.reports import folder
from crossover.reports.folder import RunFolder
from crossover.study.runner import Announce, run_items, to_one_line
from crossover.study.runner import find_finished_run as finished_run
from crossover.study.trials import LocalTrials

# --- measurement ------------------------------------------------------------------------------------------------------

CONFIG = Path(__file__).parents[2] / "config"
LEAST_VALIDATION = 100  # images: with fewer, accuracies and times mean nothing
LEAST_BATCH = 8

# Seconds per image, forward and backward, of one thread of a slow x86 core. Used only for forecasts.
IMAGE_S = {
    "mobilenet": 0.012,
    "mobilenet_v3_small": 0.002,
    "resnet18_cifar": 0.06,
    "resnet50": 0.015,
    "squeezenet": 0.002,
    "vgg11": 0.03,
}
RUN_S, WORKER_S, ROUND_S = (
    6.0,
    1.2,
    0.25,
)  # overheads of a run on the local cloud: per run, per worker, per worker and round


Overrides = tuple[str, ...]


@dataclass(frozen=True)
class Scale:
    """The size of a run relative to the published one. `share`: more than 0, at most 1; 1 is the published size. Raises ConfigError, which
    names the option --scale, for other values.
    """

    share: float

    def __post_init__(self) -> None:
        """Raise ConfigError unless the share is more than 0 and at most 1."""
        if not 0 < self.share <= 1:
            raise ConfigError(
                f"--scale: {self.share:g} is not allowed; expected more than 0 and at most 1, such as 0.02"
            )

    @property
    def whole(self) -> bool:
        """True if runs have the published size."""
        return self.share == 1

    def reduce(self, count: int, *, least: int = 1) -> int:
        """Return `count` multiplied by the share and rounded, but not less than `least`, or than `count` itself if that is smaller."""
        return count if self.whole else max(min(least, count), round(count * self.share))


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One run that a table or figure needs. `key`: name of its folder, unique; `config`: name of a file in config/ without `.yaml`;
    `fixed`: overrides (`field=value`) of that file; `cut`: function that returns further overrides for a scale below the published size,
    not called at that size;
    `needs_gpu`: whether it runs only on a machine with a GPU; `depends_on_values`: whether its figures depend on the images' content, as
    accuracies do, so that generated images cannot replace them.
    """

    key: str  # the folder's name
    config: str
    fixed: Overrides = ()
    cut: Callable[[Scale], Overrides] = field(default=lambda scale: ())
    needs_gpu: bool = False
    depends_on_values: bool = False  # accuracies, or bytes that depend on the images: only the real data set gives them

    def on_generated_images(self) -> "Measurement":
        """Return this measurement on generated images of the same number and shape as those of its data set. Its key ends in `-generated`,
        so that it has a folder of its own.
        """
        name = f"{self.experiment(Scale(1)).data.dataset}-generated"
        return replace(self, key=f"{self.key}-generated", fixed=(*self.fixed, f"data.dataset={name}"))

    def overrides(self, scale: Scale) -> Overrides:
        """Return the overrides (`field=value`) of the file for a run at this scale, in the form of `--set`."""
        return self.fixed if scale.whole else (*self.fixed, *self.cut(scale))

    def experiment(self, scale: Scale, *, data: Path | None = None) -> Experiment:
        """Load and return the experiment at a scale; equal calls return the same object. `data`: folder of the data sets, by default the
        file's. Raises ConfigError if the experiment is not valid.
        """
        where = [] if data is None else [f"data.directory={json.dumps(str(data))}"]
        return _load(self.config, (*self.overrides(scale), *where))

    def command(self, scale: Scale, *, out: Path | None = None) -> str:
        """Return the `crossover run` command that runs exactly this measurement. `out`: folder for the run, by default results/ and the
        key.
        """
        changes = "".join(f" --set {_quote(each)}" for each in self.overrides(scale))
        return f"crossover run config/{self.config}.yaml{changes} --out {out or Path('results') / self.key}"

    def list_cuts(self, scale: Scale) -> Mapping[str, tuple[Any, Any]]:
        """Return the settings that the scale changes: by dotted field, (published value, value at this scale). Empty at the published
        size.
        """
        whole, cut = (dict(flatten_fields(self.experiment(each).to_plain())) for each in (Scale(1), scale))
        return {name: (whole[name], cut[name]) for name in whole if whole[name] != cut[name]}

    def images(self, scale: Scale) -> tuple[int, int]:
        """Return (number of training images over all epochs, number of images of one validation)."""
        experiment = self.experiment(scale)
        training, held = sizes.count_split(experiment) or (0, 0)  # all measurements use built-in data sets
        return training * experiment.training.epochs, held

    def forecast_s(self, scale: Scale, *, cores: int) -> float:
        """Return a rough forecast of the run's seconds on this machine if nothing else runs. `cores`: number of its CPU cores."""
        experiment = self.experiment(scale)
        trained, held = self.images(scale)
        training, workers = experiment.training, experiment.workers
        image_s = IMAGE_S.get(training.model, 0.02)
        looks = workers if experiment.module == "spirt" else 1
        computing_s = image_s * (trained + training.epochs * looks * held / 3) / min(cores, workers)
        rounds = trained / (workers * training.batch_size)
        return RUN_S + workers * WORKER_S + rounds * workers * ROUND_S / cores + computing_s


@cache
def _load(config: str, overrides: Overrides) -> Experiment:
    """Load and validate a file of config/ with overrides; keep the result for later calls with the same arguments. `config`: name of the
    file without `.yaml`.
    """
    return validation.load(CONFIG / f"{config}.yaml", overrides)


def make_cut(
    *,
    workers: int = 4,
    batch: int,
    minibatches: int,
    dataset: str = "cifar10",
    epochs: int = 1,
    keep_batch: bool = False,
    published_batch: int | None = None,
    least_minibatches: int = 1,
    least_epochs: int = 1,
) -> Callable[[Scale], Overrides]:
    """Return a function that cuts down a training run: for a scale it returns overrides (`field=value`) with fewer images and epochs.

    Of `minibatches` per worker and epoch, the scale's share is left, but at least `least_minibatches`. If that minimum applies, each
    minibatch has fewer than its `batch` images instead, unless `keep_batch`. Epochs (at least `least_epochs`) and validation images are
    reduced likewise. `published_batch`: the published minibatch size, if `batch` is smaller than that already. `workers`, `dataset`,
    `epochs`: number of workers, data set and epochs at the published size.
    """

    images = sizes.DATA[dataset]

    def cut(scale: Scale) -> Overrides:
        """Return the overrides (`field=value`) that reduce the run to this scale: `data.limit` and `data.validation` always,
        `training.batch_size` and `training.epochs` only if they differ from the published ones.
        """
        count = scale.reduce(minibatches, least=least_minibatches)
        wanted = batch * minibatches * scale.share
        size = batch if keep_batch else min(batch, max(LEAST_BATCH, round(wanted / count)))
        held = max(LEAST_VALIDATION, (images.test or 0) * scale.share)
        left = scale.reduce(epochs, least=least_epochs)
        return (
            f"data.limit={workers * size * count}",
            f"data.validation={held / images.training:g}",
            *([f"training.batch_size={size}"] if size != (published_batch or batch) else []),
            *([f"training.epochs={left}"] if left != epochs else []),
        )

    return cut


def _quote(override: str) -> str:
    """Return the override (`field=value`), in single quotes if a shell would interpret it."""
    return f"'{override}'" if any(letter in override for letter in ' {}[]"*&') else override


# --- runner -----------------------------------------------------------------------------------------------------------
# Runs missing measurements on the local cloud and keeps finished ones: a second call continues after the first.

RUNS = "runs"
KEPT = Path(__file__).parents[2] / "docs" / "results"  # runs at the published size that come with the project


@dataclass(frozen=True, kw_only=True)
class ReplicationOutcome:
    """The runs that exist after `Runner.run`. `runs`: finished runs by key of their measurement; `whole`: keys of runs of the published
    size; `missing`: by key, why there is no run; `failed`: keys of those that failed twice; `generated`: by key of a run on generated
    images, why its data set could not be read.
    """

    runs: Mapping[str, RunFolder]
    whole: frozenset[str] = frozenset()
    missing: Mapping[str, str] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    generated: Mapping[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class Runner:
    """A runner of measurements on this machine's local cloud. `out`: folder in which `runs/<key>` holds each run; `scale`: size of the
    runs; `data`: folder of the data sets, None for the default; `tell`: called with one line about each measurement.
    """

    out: Path
    scale: Scale
    data: Path | None
    tell: Announce = lambda line: None
    _readable: dict[str, str] = field(default_factory=dict)  # by data set: why it cannot be read, or nothing

    def explain_refusal(self, measurement: Measurement) -> str:
        """Return why a measurement cannot be run on this machine (no GPU, or its data set cannot be read though its figures depend on the
        images); "" if it can. May try to download the data set.
        """
        if measurement.needs_gpu and not has_gpu():
            return "no GPU on this machine"
        return self.explain_generated(measurement) if measurement.depends_on_values else ""

    def explain_generated(self, measurement: Measurement) -> str:
        """Return why a measurement's data set cannot be read or downloaded, in which case generated images may replace it; "" if it can.
        Each data set is tried once, and the answer is kept in this object.
        """
        name = measurement.experiment(self.scale).data.dataset
        if name not in self._readable:
            self._readable[name] = _explain_unreadable(name, self.data)
        return self._readable[name]

    def choose_images(self, measurement: Measurement) -> Measurement:
        """Return the measurement to run here: the given one, or its variant on generated images if its data set cannot be read and its
        figures do not depend on the images. May try to download the data set.
        """
        if measurement.depends_on_values or not self.explain_generated(measurement):
            return measurement
        return measurement.on_generated_images()

    def find_finished(self, measurement: Measurement) -> tuple[RunFolder, bool] | None:
        """Return (the finished, complete run of this measurement, whether it has the published size); None if there is none. Runs that come
        with the project are searched first, then those of earlier calls, which may be on generated images. May try to download the data
        set, as `choose_images` does.
        """
        whole = measurement.experiment(Scale(1))
        for path in sorted(KEPT.glob(f"*/{folder.RESULT}")):
            if (found := finished_run(path.parent, whole)) is not None:
                return found, True
        for here in dict.fromkeys((measurement, self.choose_images(measurement))):
            if (run := finished_run(self.out / RUNS / here.key, here.experiment(self.scale))) is not None:
                return run, self.scale.whole
        return None

    def run(self, measurements: Sequence[Measurement]) -> ReplicationOutcome:
        """Run every measurement that has no finished run, one after another on the local cloud, and return all runs. A measurement that
        fails twice, or cannot run on this machine, is reported and left out.
        """
        with LocalTrials() as machine:
            done = run_items(
                ((each.key, each) for each in measurements),
                total=len(measurements),
                kept=self.find_finished,
                refused=self.explain_refusal,
                run=lambda each: (self._run_measurement(each, machine), self.scale.whole),
                tell=self.tell,
            )
        whole = frozenset(key for key, (_, whole) in done.found.items() if whole)
        runs = {key: run for key, (run, _) in done.found.items()}
        generated = {
            each.key: why
            for each in measurements
            if each.key in runs and (why := self.explain_generated(each)) and is_generated(runs[each.key])
        }
        return ReplicationOutcome(
            runs=runs, whole=whole, missing=done.missing, failed=tuple(done.failed), generated=generated
        )

    def _run_measurement(self, measurement: Measurement, machine: LocalTrials) -> RunFolder:
        """Run one measurement, or resume its unfinished run, destroy its stack, and return the run. Uses generated images if
        `choose_images` says so. `machine`: the local cloud, whose context has been entered.
        """
        here = self.choose_images(measurement)
        experiment = here.experiment(self.scale, data=self.data)
        run = machine.run(experiment, self.out / RUNS / here.key, lambda progress: None)
        machine.release(experiment)
        return run


def is_generated(run: RunFolder) -> bool:
    """Return whether a run was trained on generated images."""
    return run.result["experiment"]["data"]["dataset"] in sizes.GENERATED


def has_gpu() -> bool:
    """Return whether this machine has an NVIDIA driver and the program `nvidia-smi`."""
    return shutil.which("nvidia-smi") is not None and os.path.exists("/proc/driver/nvidia")


def _explain_unreadable(dataset: str, data: Path | None) -> str:
    """Return why a data set cannot be read or downloaded, in one line; "" if it can. Not cached: a failing download may take long.
    `dataset`: "cifar10" or "mnist"; `data`: folder of the data sets, None for the default. Raises KeyError for another data set.
    """
    from crossover.learning import datasets

    read = {"cifar10": datasets.read_cifar10, "mnist": datasets.read_mnist}[dataset]
    try:
        read(None if data is None else str(data))
    except DataError as error:
        return to_one_line(error)
    return ""
