"""Power tuning: dollars and time of a given experiment by the memory of each of its functions, one function at a time."""

from dataclasses import dataclass, replace
from math import inf

from crossover.advice.candidates import LIGHT_MB, MEMORY_MB
from crossover.advice.evaluation import Question
from crossover.advice.question import Sizes
from crossover.errors import ConfigError
from crossover.experiment import Experiment
from crossover.simulation.repetitions import SIMULATED_EPOCHS, Draw, Outcome, RepeatedRun, simulate_draw
from crossover.simulation.simulate import simulate
from crossover.workflow import Step
from crossover.workflow.architecture import architecture_of, steps

TIE_SHARE = 0.001  # dollars of a run that differ by less are the same


@dataclass(frozen=True)
class SimulatedSize:
    """A simulated run of an experiment in which one function has another memory size, `memory_mb`. `step`: the function's step; `own`:
    whether the size is that in the experiment's file; `outcome`: result of the simulation, None if the function is too small; `problem`:
    why it is too small, or, beside an outcome, why AWS would not run it; "" otherwise.
    """

    step: str
    memory_mb: int
    own: bool
    outcome: Outcome | None
    problem: str = ""


def simulate_sizes(question: Question, sizes: Sizes) -> list[SimulatedSize]:
    """Simulate the experiment with each of its functions at each memory size, changing one function at a time, and return the results: by
    function, ascending. The sizes in the experiment's file are included; of sizes that are too small only the largest is kept. `sizes`:
    sizes of the model. Raises ConfigError if the experiment has no functions.
    """
    base = question.base
    found = steps(architecture_of(base))
    if not found:
        raise ConfigError(
            f"--tune: {base.architecture} has no functions as {base.name} is set; expected an architecture that has"
        )
    return [
        size
        for step in found
        for size in _drop_too_small([_simulate_size(question, sizes, step, mb) for mb in _sizes_of(base, sizes, step)])
    ]


def _drop_too_small(found: list[SimulatedSize]) -> list[SimulatedSize]:
    """Return the results without those of sizes that are too small, except for the largest of these. `found`: results of one function in
    ascending order of memory.
    """
    small = [each for each in found if each.outcome is None]
    return [*small[-1:], *(each for each in found if each.outcome is not None)]


def _sizes_of(base: Experiment, sizes: Sizes, step: Step) -> list[int]:
    """Return the memory sizes in MB to try for a step's function, ascending. The size in the experiment's file and the smallest that can
    compute a minibatch are included. `base`: the experiment; `sizes`: sizes of the model.
    """
    torch = step.needs_torch(base)
    return sorted(
        {
            *((*MEMORY_MB, sizes.least_mb(base.training.batch_size)) if torch else (128, *LIGHT_MB, 1_024)),
            base.functions.memory_of(step.name, torch=torch),
        }
    )


def _simulate_size(question: Question, sizes: Sizes, step: Step, memory_mb: int) -> SimulatedSize:
    """Return the simulated run of the experiment with the function of one step at `memory_mb` MB; without simulating it if that is too
    little for the model. `sizes`: sizes of the model.
    """
    base, computes = question.base, step.needs_torch(question.base)
    own = memory_mb == base.functions.memory_of(step.name, torch=computes)
    needed = sizes.step_mb(base.training.batch_size) if computes else 3 * sizes.vector_bytes / 2**20
    if needed > memory_mb:
        return SimulatedSize(step.name, memory_mb, own, None, f"needs {needed:,.0f} MB at its peak")
    memory = {**base.functions.memory_mb, step.name: memory_mb}
    experiment = replace(base, functions=replace(base.functions, memory_mb=memory))
    task = RepeatedRun(experiment, question.calibration, question.sizes(base), question.prices, SIMULATED_EPOCHS)
    found = simulate_draw(task, Draw(base.seed, 0.0))
    return SimulatedSize(step.name, memory_mb, own, found, next(iter(found.problems), ""))


MAX_MEASURED_SIZES = 5  # sizes of one function


def choose_sizes_to_measure(question: Question, sizes: Sizes) -> tuple[str, list[int], float]:
    """Return (step, sizes, seconds): the step whose function costs most, at most MAX_MEASURED_SIZES memory sizes in MB at which to measure
    it (with the file's size among them, if it is large enough), and the projected seconds of one invocation at the smallest of these.
    `sizes`: sizes of the model. Raises ConfigError if the experiment has no functions, or if no size is large enough.
    """
    task = RepeatedRun(
        question.base, question.calibration, question.sizes(question.base), question.prices, SIMULATED_EPOCHS
    )
    found = simulate_sizes(question, sizes)
    used = simulate(task.experiment, task.calibration, workload=task.workload, price_list=task.price_list).steps
    dearest = max(used, key=lambda name: (used[name].billed_ms * used[name].memory_mb, name))
    fits = [each for each in found if each.step == dearest and each.outcome is not None]
    if not fits:
        problem = next(each.problem for each in found if each.step == dearest)
        raise ConfigError(
            f"--tune: {dearest} {problem}, and no function has so much; expected a smaller training.batch_size"
        )
    chosen = pick_evenly([each.memory_mb for each in fits], [each.memory_mb for each in fits if each.own])
    slower = max(1.0, used[dearest].memory_mb / chosen[0])
    return dearest, chosen, slower * used[dearest].billed_ms / 1_000 / max(1, used[dearest].invocations)


def pick_evenly(sizes: list[int], own: list[int]) -> list[int]:
    """Return at most MAX_MEASURED_SIZES of the ascending `sizes`, evenly spread from the first to the last, ascending. `own`: empty, or the
    size in the experiment's file, which takes the place of the one nearest to it; ValueError if it is not among `sizes`.
    """
    last, parts = len(sizes) - 1, MAX_MEASURED_SIZES - 1
    places = {round(part * last / parts) for part in range(MAX_MEASURED_SIZES)}
    for place in (sizes.index(each) for each in own):
        places = {*(places - {min(places, key=lambda each: abs(each - place))}), place}
    return [sizes[place] for place in sorted(places)]


def cheapest_sizes(found: list[SimulatedSize]) -> dict[str, SimulatedSize]:
    """Return {step: result} with the cheapest memory size of each function that AWS would run; a function without such a size is left out.
    Of sizes whose dollars differ by less than TIE_SHARE, it is the one in the experiment's file, otherwise the smallest. `found`: ascending
    within each function, as `simulate_sizes` returns it.
    """
    chosen: dict[str, SimulatedSize] = {}
    for each in found:
        known = chosen.get(each.step)
        if each.outcome is None or each.problem:
            continue
        least = inf if known is None or known.outcome is None else known.outcome.usd
        # Of equal ones what the file says, else the smallest.
        if each.outcome.usd < least * (1 - TIE_SHARE) or (each.own and each.outcome.usd < least * (1 + TIE_SHARE)):
            chosen[each.step] = each
    return chosen
