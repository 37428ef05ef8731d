"""What is run for a table or a figure: one experiment, as a line of the command line; whole, or cut down by --scale."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from crossover import validation
from crossover.architecture import architecture_of
from crossover.errors import ConfigError
from crossover.experiment import Experiment, flat
from crossover.learning import sizes

CONFIG = Path(__file__).parents[3] / "config"
LEAST_VALIDATION = 100  # images: below, an accuracy says nothing and a stage is not worth timing
LEAST_BATCH = 8

# Seconds per image, forward and backward, of one thread of an unhurried x86 core: for forecasts alone.
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
)  # of a run on the local cloud, besides computing: whole, per worker, per its round

AGGREGATED_BYTES_S = 1e7  # gradients of all clients, made, stored, read and added on one core

Overrides = tuple[str, ...]


@dataclass(frozen=True)
class Scale:
    """How much of the published size is run: `share` 1 is all of it."""

    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(
                f"--scale: {self.share:g} is not allowed; expected more than 0 and at most 1, such as 0.02"
            )

    @property
    def whole(self) -> bool:
        return self.share == 1

    def of(self, count: int, *, least: int = 1) -> int:
        """`count` cut down, at least `least`."""
        return count if self.whole else max(min(least, count), round(count * self.share))


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One run: `config` in config/, changed by `fixed` and, below the published size, by `cut`."""

    key: str  # the folder's name
    config: str
    fixed: Overrides = ()
    cut: Callable[[Scale], Overrides] = field(default=lambda scale: ())
    needs_gpu: bool = False
    trains: bool = True  # else it needs no data, and takes its time for bytes instead of images

    def overrides(self, scale: Scale) -> Overrides:
        return self.fixed if scale.whole else (*self.fixed, *self.cut(scale))

    def experiment(self, scale: Scale, *, data: Path | None = None) -> Experiment:
        """Raises ConfigError for what cannot be run."""
        where = [] if data is None or not self.trains else [f"data.directory={json.dumps(str(data))}"]
        return _loaded(self.config, (*self.overrides(scale), *where))

    def command(self, scale: Scale, *, out: Path | None = None) -> str:
        """The line that runs exactly this."""
        changes = "".join(f" --set {_quoted(each)}" for each in self.overrides(scale))
        return f"crossover run config/{self.config}.yaml{changes} --out {out or Path('results') / self.key}"

    def cuts(self, scale: Scale) -> Mapping[str, tuple[Any, Any]]:
        """What `scale` changes, by field: (published size, this size)."""
        whole, cut = (dict(flat(self.experiment(each).resolved())) for each in (Scale(1), scale))
        return {name: (whole[name], cut[name]) for name in whole if whole[name] != cut[name]}

    def images(self, scale: Scale) -> tuple[int, int]:
        """(for training over all epochs, for one validation) of the run."""
        experiment = self.experiment(scale)
        training, held = sizes.split(experiment) or (0, 0)  # none is trained here but what comes with the project
        return training * experiment.training.epochs, held

    def forecast_s(self, scale: Scale, *, cores: int) -> float:
        """About how long it takes on this machine, undisturbed."""
        experiment = self.experiment(scale)
        if aggregates := architecture_of(experiment).aggregates:
            plan = aggregates(experiment)
            return RUN_S + plan.clients * plan.gradient_bytes / (AGGREGATED_BYTES_S * cores)
        trained, held = self.images(scale)
        training, workers = experiment.training, experiment.workers
        image_s = IMAGE_S.get(training.model, 0.02)
        looks = workers if experiment.module == "spirt" else 1
        computing_s = image_s * (trained + training.epochs * looks * held / 3) / min(cores, workers)
        rounds = trained / (workers * training.batch_size)
        return RUN_S + workers * WORKER_S + rounds * workers * ROUND_S / cores + computing_s


@cache
def _loaded(config: str, overrides: Overrides) -> Experiment:
    return validation.load(CONFIG / f"{config}.yaml", overrides)


def smaller(
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
    """The cut that all training shares: of `minibatches` per worker and epoch a share is left, at least `least_minibatches`; where that is
    more than the share, each has fewer images, unless `keep_batch`; likewise the epochs and the validation images. `published_batch`: where
    `batch` is smaller already.
    """

    images = sizes.DATA[dataset]

    def cut(scale: Scale) -> Overrides:
        count = scale.of(minibatches, least=least_minibatches)
        wanted = batch * minibatches * scale.share
        size = batch if keep_batch else min(batch, max(LEAST_BATCH, round(wanted / count)))
        held = max(LEAST_VALIDATION, (images.test or 0) * scale.share)
        left = scale.of(epochs, least=least_epochs)
        return (
            f"data.limit={workers * size * count}",
            f"data.validation={held / images.training:g}",
            *([f"training.batch_size={size}"] if size != (published_batch or batch) else []),
            *([f"training.epochs={left}"] if left != epochs else []),
        )

    return cut


def _quoted(override: str) -> str:
    return f"'{override}'" if any(letter in override for letter in ' {}[]"*&') else override
