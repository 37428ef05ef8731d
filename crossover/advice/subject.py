"""What is to be trained, as sizes: of the models and data sets that come with the project, and of the user's own."""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from crossover.advice.evaluation import Question
from crossover.advice.needs import OF_KEPT, Sizes
from crossover.advice.probe import KNOWN, Probe
from crossover.costs import prices
from crossover.errors import ConfigError, DataError, NoProjection
from crossover.experiment import Experiment
from crossover.learning import sizes as data_sizes
from crossover.simulation.calibration import AWS, Calibration
from crossover.simulation.workload import Workload

# How sure a speed is by a ratio that was measured on another processor, in sigmas of its logarithm; assumed.
BY_RATIO = 0.2
WIDER = 1.3  # than a peak that was measured here: another allocator, another processor; assumed
MOST_SHARED = 0.99


def of(
    experiment: Experiment, calibration: Calibration = AWS, *, measured: Probe | None = None
) -> tuple[Question, Sizes, list[str]]:
    """The question, what bounds its answers, and how the model's work was told. Raises ConfigError, DataError, OwnCodeError."""
    from crossover.learning import footprint  # torch: not for --help
    from crossover.learning.models import weights

    sample, sample_bytes, classes, training, validation = _data(experiment)
    found = footprint.of_model(experiment.training, classes=classes, sample=sample)
    workload = Workload(
        model=experiment.training.model,
        parameters=found.parameters,
        buffers=found.buffers,
        macs=found.macs,
        samples=(1,),  # each candidate has its own
        image_bytes=sample_bytes,
        validation_samples=validation,
        training_share=footprint.training_share(experiment.training, classes=classes, shape=tuple(sample.shape)),
        base_bytes=weights.size(experiment.training.weights),
    )
    if measured is not None:
        sample_s = measured.ratio * calibration.sample_s[KNOWN]
        batch_s = measured.batch_ratio * calibration.sample_s[KNOWN]
        calibration = calibration.with_facts(
            measured.words,
            sample_s={**calibration.sample_s, workload.model: sample_s},
            function_batch_s=batch_s,
            instance_batch_s=batch_s,
            **_threads(measured, calibration),
            name=f"{calibration.name}, probed",
        )
    known = workload.model in calibration.sample_s
    note = (
        measured.words
        if measured is not None
        else (
            f"{workload.model}'s gradient takes as long as was measured on one core, and on a GPU an assumed share of its peak"
            if known
            else f"{workload.model}'s gradient is taken for {found.macs:,} multiply-accumulates a sample forward; --probe would measure it"
        )
    )
    bounds = Sizes(
        vector_bytes=workload.vector_bytes,
        kept_bytes=max(found.kept_bytes, WIDER * measured.sample_bytes / OF_KEPT if measured else 0.0),
        evaluation_bytes=found.evaluation_bytes,
        fixed_bytes=found.fixed_bytes,
    )
    calibration = calibration.unsure_of(workload.model)
    if measured is not None:
        calibration = replace(calibration, level_sigma=BY_RATIO)
    return Question(_plain(experiment), workload, training, calibration, prices.load()), bounds, [note]


def sizes(experiment: Experiment) -> Callable[[Experiment], Workload]:
    """How experiments of the same model and data come to what they move and compute; one's own by looking at them."""
    try:
        Workload.of(experiment)
    except NoProjection:
        return of(experiment)[0].sizes
    return Workload.of


def _threads(measured: Probe, calibration: Calibration) -> dict[str, float]:
    """What of a step several threads share, by two of them here; beyond, as unsure as MobileNet's."""
    if measured.two_threads is None:
        return {}
    share = min(MOST_SHARED, max(0.0, 2 * (1 - 1 / max(1.0, measured.two_threads))))
    usual = calibration.parallel_share
    least, most = share + calibration.parallel_least - usual, share + calibration.parallel_most - usual
    return {"parallel_share": share, "parallel_least": max(0.0, least), "parallel_most": min(MOST_SHARED, most)}


def _plain(experiment: Experiment) -> Experiment:
    """Without what belongs to the run rather than to the training: a second deployment beside it."""
    return replace(experiment, baseline="none")


def _data(experiment: Experiment) -> tuple[Any, int, int | None, int, int]:
    """(one input, its bytes as staged, classes, training samples, validation samples): by name where the data set is ours, else by loading
    it.
    """
    import torch

    known = data_sizes.split(experiment)
    if known is not None:
        training, validation = known
        image = data_sizes.DATA[experiment.data.dataset].image
        return torch.zeros(image), prod(image), 10, training, validation
    from crossover.learning.datasets import load

    try:
        dataset = load(experiment)
    except DataError as missing:
        raise ConfigError(
            f"data.dataset: {experiment.data.dataset} is not at hand, so neither its samples nor their shape are known: {missing}"
        ) from missing
    sample = dataset.train_inputs[0]
    return sample, sample.nbytes, dataset.classes, len(dataset.train_labels), len(dataset.validation_labels)
