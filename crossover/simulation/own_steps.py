"""Whether a round's local steps fit into the one function that takes them, where a worker is not one long function or a program."""

from dataclasses import replace
from itertools import accumulate

from crossover.architecture import architecture_of, trees
from crossover.errors import ConfigError, NoProjection
from crossover.experiment import Experiment
from crossover.simulation.calibration import AWS, Calibration
from crossover.simulation.processors import fixed
from crossover.simulation.simulate import sizes_of
from crossover.simulation.workload import calendar, shares_by_epoch
from crossover.workflow import ForEach, Step, walk


def check_fits(experiment: Experiment, calibration: Calibration = AWS) -> None:
    """Raises ConfigError where the steps of a round do not fit into `functions.timeout_s`, by computing alone [projected]. Workers that go
    on by themselves have no such limit; steps of which nobody knows how long they take are not judged.
    """
    architecture, limit_s = architecture_of(experiment), experiment.functions.timeout_s
    nodes = (node for tree in trees(architecture) for node in walk(tree))
    maps = [node for node in nodes if isinstance(node, ForEach) and node.count == "minibatches"]
    if experiment.exchange.what == "gradients" or not maps or not isinstance(maps[0].body, Step):
        return
    try:
        workload = sizes_of(experiment, architecture)
    except NoProjection:
        return
    experiment, name = architecture.resolve(fixed(experiment)), maps[0].body.name
    memory_mb = experiment.functions.memory_of(name, torch=True)
    days, shares = calendar(experiment, workload), shares_by_epoch(experiment)

    def steps_of(round: int) -> list[float]:
        """Seconds of each, on images of its epoch's size."""
        places = [days.place(round, minibatch) for minibatch in range(days.minibatches_in(round))]
        works = [(replace(workload, training_share=shares[epoch - 1]), n) for epoch, n in places]
        return [calibration.in_function(experiment, work, work.samples[n], memory_mb=memory_mb) for work, n in works]

    taken = max((steps_of(round) for round in range(0, days.rounds, days.rounds_per_epoch)), key=sum)
    fit = sum(until_s <= limit_s for until_s in accumulate(taken))
    if fit == len(taken):
        return
    raise ConfigError(
        f"exchange.every: one {name} takes the {len(taken)} local steps of a round, about {sum(taken):,.0f} s [projected], and "
        f"functions.timeout_s is {limit_s} (at most 900); at most {fit} steps fit: expected a smaller exchange.every, more "
        "functions.memory_mb with training.threads: auto, or all-reduce, whose functions go on where the one before ended"
    )
