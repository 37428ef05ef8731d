"""How large the data sets are that come with the project: what a run's minibatches follow from before anything is loaded."""

from dataclasses import dataclass

from crossover.errors import ConfigError
from crossover.experiment import Experiment


@dataclass(frozen=True)
class DataSize:
    """Samples for training and of the test split, and one image's shape (C, H, W)."""

    training: int
    test: int | None
    image: tuple[int, int, int]


DATA = {
    "digits": DataSize(1_797, None, (1, 8, 8)),
    "mnist": DataSize(60_000, 10_000, (1, 28, 28)),
    "cifar10": DataSize(50_000, 10_000, (3, 32, 32)),
}


def held_out(samples: int, share: float) -> int:
    """How many of the training set's `samples` validate. Raises ConfigError where none would, or none be left."""
    held = round(samples * share)
    if not 0 < held < samples:
        raise ConfigError(f"data.validation: {share} of {samples} samples leaves one part empty")
    return held


def not_smaller(begin: int, name: str, side: int) -> str:
    """What to say of a `training.image_size.begin` that is no smaller than the images."""
    return f"training.image_size.begin: {begin} is not smaller than the images of {name}, which have {side} pixels a side; leave it out"


def split(experiment: Experiment) -> tuple[int, int] | None:
    """Samples that the experiment trains on and those that validate; None for a data set that only loading would tell.

    Raises ConfigError as `held_out` does.
    """
    data, found = experiment.data, DATA.get(experiment.data.dataset)
    if found is None:
        return None
    held = (found.test or 0) if data.validation == "test" else held_out(found.training, data.validation)
    training = found.training - (0 if data.validation == "test" else held)
    return min(training, data.limit or training), held
