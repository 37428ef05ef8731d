"""The section `mlless` of an experiment, and the checks of its combination with other settings."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from crossover.experiment import Experiment, Fraction, NonNegative, Positive


@dataclass(frozen=True, kw_only=True)
class MLLess:
    """Settings of MLLess (section `mlless` of the YAML). Significance filter: `filter` decides by coordinate or by the norm of the whole
    update, `threshold` is how large a change must be relative to the model. `slack`: steps by which updates are applied late.

    Scale-in: if `scale_in`, the slowest worker leaves once the loss curve is past its knee and the loss is predicted to fall by at most the
    share `knee_reduction` in the next `knee_window_s` seconds. At least `min_workers` stay.
    """

    filter: Literal["coordinate", "norm"] = "coordinate"
    threshold: NonNegative = 0.7
    slack: Annotated[int, Ge(0)] = 0  # steps; 0: bulk synchronous. At most functions.checkpoint_every - 1
    scale_in: bool = False
    min_workers: Positive = 1
    knee_window_s: Annotated[float, Gt(0.0)] = 10.0  # how far ahead the loss is predicted
    knee_reduction: Fraction = (
        0.02  # a worker goes when so small a share of the loss, or less, is predicted to fall away
    )


def checks(e: Experiment) -> Iterator[str]:
    """Yield one error message for each setting of the experiment that MLLess does not support: an optimizer other than sgd, clip.norm,
    no_decay, an aggregation rule other than mean, and values of min_workers or slack that can never be reached.
    """
    if e.training.optimizer != "sgd":
        yield (
            f"training.optimizer: {e.training.optimizer} cannot run in MLLess: it sends the significant part of additive updates, and "
            "Adam's are not additive; expected sgd"
        )
    for name, given in (("clip.norm", e.training.clip.norm), ("no_decay", e.training.no_decay)):
        if given:
            yield f"training.{name}: {e.architecture} steps each worker separately, before a mean exists; leave it out"
    if e.aggregation.rule != "mean":
        yield f"aggregation.rule: {e.aggregation.rule} needs every worker's whole gradient, but MLLess sends a part of it; expected mean"
    if (fewest := e.settings(MLLess).min_workers) > e.workers:
        yield f"mlless.min_workers: {fewest} is more than the run's workers; expected at most {e.workers}"
    if (slack := e.settings(MLLess).slack) >= (every := e.functions.checkpoint_every):
        yield (
            f"mlless.slack: {slack} steps can never be reached with functions.checkpoint_every: {every}, "
            f"as no worker is behind at a checkpoint; expected at most {every - 1}, or functions.checkpoint_every of at least {slack + 1}"
        )
