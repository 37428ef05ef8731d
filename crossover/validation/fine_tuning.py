"""What of a model is trained and how its steps are taken: settings that are right one by one and impossible together."""

from collections.abc import Iterator

from crossover.experiment import Adapters, Experiment
from crossover.validation.documents import is_import


def adapters_fit_own_models(e: Experiment) -> Iterator[str]:
    training, usual = e.training, Adapters()
    asked, told = (
        training.adapters,
        [name for name in ("rank", "alpha") if getattr(training.adapters, name) != getattr(usual, name)],
    )
    if told and not asked.targets:
        yield f"training.adapters.{told[0]}: does nothing without training.adapters.targets; give them, or leave {told[0]} out"
    for name, given in (("adapters.targets", asked.targets), ("trainable", training.trainable)):
        if given and not is_import(training.model):
            yield f"training.{name}: belongs to a model of your own, package.module:factory; one that returns {training.model} will do"
    if training.trainable == () and not asked.targets:
        yield "training.trainable: empty, so that everything would be frozen; expected names or patterns of parameters, or leave it out"
    if training.save != "all" and not asked.targets and training.trainable is None:
        yield f"training.save: {training.save} belongs to training.adapters or training.trainable; expected all"
