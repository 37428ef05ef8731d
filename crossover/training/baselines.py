"""What `baseline` asks for beside an experiment: the same model, data and seed on as many GPUs, or by one worker."""

from dataclasses import replace

from crossover.experiment import Aggregation, Exchange, Experiment, Faults
from crossover.learning import sizes
from crossover.learning.staging import minibatches_of


def companions(experiment: Experiment) -> tuple[Experiment, ...]:
    """Those that `baseline` names, in its order."""
    return tuple(
        gpu_fleet(experiment, f"{experiment.name}-gpu")
        if name == "gpu"
        else alone(experiment, f"{experiment.name}-single")
        for name in experiment.baselines
    )


def gpu_fleet(experiment: Experiment, name: str) -> Experiment:
    """The same on as many GPUs, which exchange gradients after each batch, as published."""
    return replace(experiment, name=name, architecture="gpu", baseline="none", exchange=Exchange())


def alone(experiment: Experiment, name: str) -> Experiment:
    """The same by one worker: an update of as many minibatches as all workers' together, and as the GPU fleet does after each batch
    where `exchange.every` is left to an architecture that accumulates an epoch. A function has the default memory.
    """
    e = experiment
    every = e.exchange.every or 1
    if e.exchange.what != "gradients":
        every = 1  # a step for each minibatch, whenever models are exchanged
    return replace(
        e,
        name=name,
        architecture="single",
        baseline="none",
        workers=1,
        aggregation=Aggregation(),
        faults=Faults(),
        storage=replace(e.storage, channel="redis"),
        exchange=Exchange(
            every=every if every == "epoch" else min(e.workers * every, _minibatches(e) or e.workers * every)
        ),
        functions=replace(e.functions, memory_mb={"default": e.functions.memory_of("", torch=True)}),
    )


def _minibatches(experiment: Experiment) -> int | None:
    """Of one worker's epoch over all data: fewer than all workers' together, whose last ones are smaller; None where only loading tells."""
    known, drop_last = sizes.split(experiment), experiment.data.drop_last
    return known and minibatches_of(known[0], 1, experiment.training.batch_size, drop_last=drop_last)
