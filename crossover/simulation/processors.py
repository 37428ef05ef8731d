"""The vCPUs that a worker pays for, the threads that use them, and what those cost that idle."""

from dataclasses import replace
from math import ceil

from crossover.architecture import architecture_of, steps
from crossover.errors import NoProjection
from crossover.experiment import Experiment
from crossover.simulation.calibration import AWS
from crossover.simulation.figures import UNKNOWN_INSTANCE
from crossover.simulation.services import vcpus
from crossover.simulation.simulate import simulate, sizes_of
from crossover.simulation.workload import calendar


def paid(experiment: Experiment) -> float:
    """Of a function that computes, by its memory (the largest one's, where they differ); of an instance, by its type."""
    architecture = architecture_of(experiment)
    computing = [step.name for step in steps(architecture) if step.needs_torch(experiment)]
    if computing:
        return max(vcpus(experiment.functions.memory_of(name, torch=True)) for name in computing)
    if architecture.program is None:
        return 1.0
    return float(AWS.instances.get(architecture.program.instances(experiment).instance_type, UNKNOWN_INSTANCE).vcpus)


def threads(experiment: Experiment, *, cores: int | None = None) -> int:
    """What `training.threads` comes to. `auto`: all vCPUs that are paid for, a begun one too. `cores`: of the machine that it runs on,
    where that is not AWS.
    """
    given = experiment.training.threads
    if given != "auto":
        return given
    count = ceil(paid(experiment))
    return min(count, cores or count)


def fixed(experiment: Experiment, *, cores: int | None = None) -> Experiment:
    """With that number in its place, as a run has it from its start."""
    count = threads(experiment, cores=cores)
    return replace(experiment, training=replace(experiment.training, threads=count))


WORTH_SAYING = 0.01  # of an epoch's dollars


def idle(experiment: Experiment) -> str:
    """What `training.threads` leaves of the paid vCPUs, and the dollars that this wastes, or how many have none; "" where all are used, or
    next to none wasted.
    """
    count, whole = threads(experiment), paid(experiment)
    if not architecture_of(experiment).trains or whole <= count <= ceil(whole):
        return ""
    if count > whole:
        return (
            f"training.threads: {count} share the {whole:.3g} vCPUs that a worker pays for, and gain nothing over "
            f"{ceil(whole)}, which auto would be"
        )
    words = f"training.threads: {count} leaves {whole - count:.2g} of the {whole:.3g} vCPUs idle that a worker pays for"
    try:
        one, all_ = (_epoch_usd(experiment, each) for each in (count, ceil(whole)))
    except NoProjection:
        return f"{words}; auto would use them, and end with other bits"
    if one - all_ < WORTH_SAYING * one:
        return ""
    return (
        f"{words}: ${one - all_:.4f} of ${one:.4f} an epoch [projected]; auto would use them, and end with other bits"
    )


def _epoch_usd(experiment: Experiment, count: int) -> float:
    """Of the first round, by the epochs that it goes through; of the first epoch where it has several rounds."""
    architecture = architecture_of(experiment)
    sizes = sizes_of(experiment, architecture)
    epochs = calendar(architecture.resolve(experiment), sizes).decided(1)
    first = replace(experiment.training.of_epochs(epochs), threads=count)
    return simulate(replace(experiment, training=first), AWS, workload=sizes).usd / epochs
