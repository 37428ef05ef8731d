"""What of a model is trained and how its steps are taken: settings that are right one by one and impossible together."""

from collections.abc import Iterator

from crossover.experiment import Adapters, Experiment, Training
from crossover.validation.documents import is_import


def adapters_fit_own_models(e: Experiment) -> Iterator[str]:
    training, usual = e.training, Adapters()
    asked, told = (
        training.adapters,
        [name for name in ("rank", "alpha") if getattr(training.adapters, name) != getattr(usual, name)],
    )
    if told and not asked.targets:
        yield f"training.adapters.{told[0]}: does nothing without training.adapters.targets; give them, or leave {told[0]} out"
    for name, given in (
        ("weights.file", training.weights.file),
        ("adapters.targets", asked.targets),
        ("trainable", training.trainable),
    ):
        if given and not is_import(training.model):
            yield f"training.{name}: belongs to a model of your own, package.module:factory; one that returns {training.model} will do"
    if training.weights.sha256 and not training.weights.file:
        yield "training.weights.sha256: does nothing without training.weights.file; give it, or leave sha256 out"
    if training.trainable == () and not asked.targets:
        yield "training.trainable: empty, so that everything would be frozen; expected names or patterns of parameters, or leave it out"
    if training.save != "all" and not asked.targets and training.trainable is None:
        yield f"training.save: {training.save} belongs to training.adapters or training.trainable; expected all"


def steps_are_taken_as_asked(e: Experiment) -> Iterator[str]:
    training, usual = e.training, Training()
    if training.betas != usual.betas and training.optimizer not in ("adam", "adamw"):
        yield f"training.betas: belongs to adam and adamw, not to {training.optimizer}; leave it out"
    if training.no_decay and not training.weight_decay:
        yield "training.no_decay: does nothing without training.weight_decay; give it, or leave no_decay out"
    if training.floor and training.schedule != "cosine":
        yield f"training.floor: belongs to cosine, not to {training.schedule}; leave it out, or set training.schedule: cosine"
