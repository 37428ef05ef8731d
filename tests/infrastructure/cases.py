"""Experiments whose templates are looked at as a whole: each architecture, and each option that changes what is deployed."""

from dataclasses import dataclass
from pathlib import Path

from crossover import validation
from crossover.experiment import Experiment
from crossover.workflow.architecture import Architecture, architecture_of, architectures

CONFIG = Path(__file__).parents[2] / "config"

PLAIN = tuple(name.replace("_", "-") for name in architectures())
OPTIONS = {
    "all-reduce over s3": ("all-reduce-s3",),
    "scatter-reduce over s3": ("scatter-reduce", "storage.channel=s3"),
    "spirt fetching": ("spirt", "database.compute=fetch"),
    "spirt with a bucket per worker": ("spirt", "storage.bucket_per_worker=true"),
    "p2p-serverless with a bucket per worker": ("p2p-serverless", "storage.bucket_per_worker=true"),
    "p2p-instance with a bucket per worker": ("p2p-instance", "storage.bucket_per_worker=true"),
    "spirt as images": ("spirt", "functions.packaging=image"),
    "p2p-serverless as images": ("p2p-serverless", "functions.packaging=image"),
    "spirt from snapshots": ("spirt", "functions.snap_start=true"),
    "spirt beside gpu": ("spirt", "baseline=gpu"),
    "spirt beside both": ("spirt", "baseline=[gpu, single]"),
    "spirt with a budget": ("spirt", "lifetime.budget_usd=5", "owner=ada@example.org"),
    "spirt of unknown size": ("spirt", "data.dataset=elsewhere:loader", "workers=1"),  # distributed Maps
    "gpu on spot": ("gpu", "gpu.spot=true"),
    "gpu distributed": ("gpu", "gpu.exchange=distributed"),
    "single on an instance": ("single", "single.on=instance"),
    "single on a gpu": ("single", "single.on=gpu", "single.spot=true"),
}
CASES: dict[str, tuple[str, ...]] = {name: (name,) for name in PLAIN} | OPTIONS


@dataclass(frozen=True)
class Case:
    """An experiment whose templates are tested. `config`: name of a file of config/, without `.yaml`; `overrides`: fields of it,
    as `--set` takes them.
    """

    config: str
    overrides: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str) -> "Case":
        """Return the case with that name in CASES."""
        config, *overrides = CASES[name]
        return cls(config, tuple(overrides))

    @property
    def experiment(self) -> Experiment:
        """The experiment of the case."""
        return validation.load(CONFIG / f"{self.config}.yaml", list(self.overrides))

    @property
    def architecture(self) -> Architecture:
        """The architecture of the case's experiment."""
        return architecture_of(self.experiment)
