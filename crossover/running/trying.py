"""Own code tried out before anything is started: the data loaded, the model built, a gradient and an evaluation made of two samples."""

from crossover import own_code
from crossover.architecture import architecture_of
from crossover.errors import DataError
from crossover.experiment import Experiment


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
    found = fitness.description(dataset, preprocess=experiment.data.preprocess)
    return f"{names}: {learner.parameters:,} parameters; {found}"
