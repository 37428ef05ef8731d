"""Threads and vCPUs of a worker, and the check that a round's local steps fit into one function."""

from dataclasses import replace
from itertools import accumulate
from math import ceil

from crossover.errors import ConfigError, NoProjection
from crossover.experiment import Experiment
from crossover.simulation.calibration import AWS, Calibration, vcpus
from crossover.simulation.figures import UNKNOWN_INSTANCE
from crossover.simulation.simulate import simulate
from crossover.simulation.workload import Workload, calendar, shares_by_epoch
from crossover.workflow import ForEach, Step, walk
from crossover.workflow.architecture import architecture_of, steps, trees

# --- processors -------------------------------------------------------------------------------------------------------


def count_paid_vcpus(experiment: Experiment) -> float:
    """Return how many vCPUs a worker pays for: those of its largest computing function by memory, or those of its instance by type; 1 if it
    has neither.
    """
    architecture = architecture_of(experiment)
    computing = [step.name for step in steps(architecture) if step.needs_torch(experiment)]
    if computing:
        return max(vcpus(experiment.functions.memory_of(name, torch=True)) for name in computing)
    if architecture.program is None:
        return 1.0
    return float(AWS.instances.get(architecture.program.instances(experiment).instance_type, UNKNOWN_INSTANCE).vcpus)


def count_threads(experiment: Experiment, *, cores: int | None = None) -> int:
    """Return the number of threads that `training.threads` means. `auto` means all vCPUs that a worker pays for, rounded up, but not more
    than `cores`: cores of the machine if the run is not on AWS, None on AWS.
    """
    given = experiment.training.threads
    if given != "auto":
        return given
    count = ceil(count_paid_vcpus(experiment))
    return min(count, cores or count)


def fix_threads(experiment: Experiment, *, cores: int | None = None) -> Experiment:
    """Return the experiment with `auto` in `training.threads` replaced by a number, as it is done at the start of a run. `cores`: cores of
    the machine if the run is not on AWS.
    """
    count = count_threads(experiment, cores=cores)
    return replace(experiment, training=replace(experiment.training, threads=count))


WORTH_SAYING = 0.01  # of an epoch's dollars


def describe_idle_vcpus(experiment: Experiment) -> str:
    """Return a sentence if `training.threads` leaves vCPUs idle that are paid for, with the projected dollars that they cost, or if there
    are more threads than vCPUs. Return "" otherwise, or if the waste is below WORTH_SAYING. If dollars cannot be projected, the sentence
    comes without them. Raises ConfigError if the data cannot be divided among the workers.
    """
    count, whole = count_threads(experiment), count_paid_vcpus(experiment)
    if whole <= count <= ceil(whole):
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
    """Return the projected dollars of one epoch if each worker has `count` threads, as the mean over the epochs until the first decision.
    Raises NoProjection if a size or step is not known to the simulator.
    """
    architecture = architecture_of(experiment)
    sizes = Workload.from_experiment(experiment)
    epochs = calendar(architecture.resolve(experiment), sizes).epoch_of_decision(1)
    first = replace(experiment.training.with_epochs(epochs), threads=count)
    return simulate(replace(experiment, training=first), AWS, workload=sizes).usd / epochs


# --- own steps --------------------------------------------------------------------------------------------------------
# Whether one function can compute all local steps of a round, for architectures that start a function for each round.


def check_fits(experiment: Experiment, calibration: Calibration = AWS) -> None:
    """Raise ConfigError if one function cannot compute all local steps of a round within `functions.timeout_s`. Only computing time counts,
    as projected, with a number for threads `auto`; the first round of each epoch is checked, or each round if a round has several epochs.

    Does nothing for architectures whose workers are long functions or programs, or if the time of a step is not known.
    """
    architecture, limit_s = architecture_of(experiment), experiment.functions.timeout_s
    nodes = (node for tree in trees(architecture) for node in walk(tree))
    maps = [node for node in nodes if isinstance(node, ForEach) and node.count == "minibatches"]
    if experiment.exchange.what == "gradients" or not maps or not isinstance(maps[0].body, Step):
        return
    try:
        workload = Workload.from_experiment(experiment)
    except NoProjection:
        return
    experiment, name = architecture.resolve(fix_threads(experiment)), maps[0].body.name
    memory_mb = experiment.functions.memory_of(name, torch=True)
    days, shares = calendar(experiment, workload), shares_by_epoch(experiment)

    def steps_of(round: int) -> list[float]:
        """Return the projected seconds of each local step of a round (counted from 0), on images of the size that its epoch uses, in a
        function of the outer call's `memory_mb`.
        """
        places = [days.locate_minibatch(round, minibatch) for minibatch in range(days.minibatches_in(round))]
        works = [(replace(workload, training_share=shares[epoch - 1]), n) for epoch, n in places]
        return [
            calibration.function_gradient_s(experiment, work, work.samples[n], memory_mb=memory_mb) for work, n in works
        ]

    taken = max((steps_of(round) for round in range(0, days.rounds, days.rounds_per_epoch)), key=sum)
    fit = sum(until_s <= limit_s for until_s in accumulate(taken))
    if fit == len(taken):
        return
    raise ConfigError(
        f"exchange.every: one {name} takes the {len(taken)} local steps of a round, about {sum(taken):,.0f} s [projected], and "
        f"functions.timeout_s is {limit_s} (at most 900); at most {fit} steps fit: expected a smaller exchange.every, more "
        "functions.memory_mb with training.threads: auto, or all-reduce, whose functions go on where the one before ended"
    )
