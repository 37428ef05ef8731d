"""Own code tried out before anything is started: the data loaded, the model built, a gradient and an evaluation made of two samples."""

from crossover import own_code
from crossover.advice.needs import HELD_VECTORS, RUNTIME_MB
from crossover.architecture import architecture_of, steps
from crossover.errors import ConfigError, DataError
from crossover.experiment import Experiment


def check_room_for_base(experiment: Experiment, *, elements: int) -> None:
    """Raises ConfigError where a function has no memory for the base that the model begins from, beside vectors of so many elements. The
    base is never in a file there, so that /tmp need not have room.
    """
    from crossover.learning.models import weights

    if not (base_bytes := weights.size(experiment.training.weights)):
        return
    base_mb, vectors_mb = base_bytes / 2**20, HELD_VECTORS * 4 * elements / 2**20
    need = RUNTIME_MB + base_mb + vectors_mb
    for step in steps(architecture_of(experiment)):
        torch = step.needs_torch(experiment)
        given = experiment.functions.memory_of(step.name, torch=torch)
        if torch and given < need:
            raise ConfigError(
                f"functions.memory_mb.{step.name}: {given} MB have no room for the base of {base_mb:,.0f} MB, vectors of "
                f"{vectors_mb:,.0f} and {RUNTIME_MB} of torch; at least {need:,.0f} and what a minibatch takes are expected"
            )


def try_out(experiment: Experiment) -> str | None:
    """What was found, in words; None where no code is the user's own. Raises OwnCodeError, ConfigError, DataError.

    A data set of ours whose files are not here hinders nothing but the trial.
    """
    used = own_code.used(experiment)
    if not used:
        return None
    from crossover.learning import fitness  # torch: not for --help
    from crossover.learning.datasets import load as load_dataset
    from crossover.learning.learner import learner_for
    from crossover.learning.staging import first_samples, plan

    experiment = architecture_of(experiment).resolve(experiment)
    names = ", ".join(dict.fromkeys(used.values()))
    try:
        dataset = load_dataset(experiment)
    except DataError as error:
        if "data.dataset" in used:
            raise
        return f"{names}: imported, and not tried, since the data is not here: {error}"
    plan(experiment, len(dataset.train_labels))  # refuses what would leave a worker without a minibatch or a round
    learner = learner_for(experiment, dataset)
    learner.try_out(first_samples(dataset))
    check_room_for_base(experiment, elements=learner.parameters + learner.buffers)
    found = fitness.description(dataset, preprocess=experiment.data.preprocess)
    return f"{names}: {learner.parameters:,} parameters; {found}"
