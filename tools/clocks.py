"""Tables of the services' clocks: `python -m tools.clocks` prints those of docs/simulation.md and docs/calibration.md.

First the projections for settings whose figures others keep aside, then what each architecture's tasks cost.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import NamedTuple

from crossover.experiment import Experiment
from crossover.reports import prices
from crossover.reports.display import Band, band_of
from crossover.simulation.calibration import AWS, AWS_2022, Calibration
from crossover.simulation.kernel import RandomFactors
from crossover.simulation.simulate import simulate
from crossover.simulation.workload import Workload, calendar
from crossover.validation import load
from crossover.workflow.architecture import architecture_of
from tools import refuse_arguments

CONFIG, PRICES = Path(__file__).parents[1] / "config", prices.load()

DRAWS, SEED = 10_000, 1
WITHOUT_PACKAGES = AWS.inits["zip"]["python310"]  # the nearest to Python 3.8
# Of Python 3.12 no INIT is handed out: between its neighbours, by factors.
PYTHON_3_12 = sqrt(AWS.inits["zip"]["python311"] * AWS.inits["zip"]["python313"])
HEAD = ["", "in milliseconds", "p5", "p50", "p95"]


def predict_bands() -> Iterator[tuple[str, str, Band]]:
    """Yield (letter of the prediction, setting in words, p5, p50 and p95 in milliseconds) for each predicted delay of the services."""
    yield "a", "a task's end to the next one's start, chain of five, 128 MB, 2024, warm", _draw_band(AWS, _draw_warm_s)
    yield "b", "the same, next task cold", _draw_band(AWS, _draw_cold_s)
    for year, calibration in ((2024, AWS), (2022, AWS_2022)):
        yield "c", f"a Map's last branch to the next task, 256 MB, {year}, warm", _draw_band(calibration, _draw_warm_s)
        yield "c", f"that task to the one after it, 256 MB, {year}, warm", _draw_band(calibration, _draw_warm_s)
    yield "d", "a Map's join to the next task, 1,024 MB, 2022, all cold", _draw_band(AWS_2022, _draw_cold_s)
    init = replace(AWS, task_sigma=AWS.inits["zip"]["sigma"])
    for memory_mb in ("256", "1,024"):
        yield "e", f"INIT, Python 3.12, ARM, zip, {memory_mb} MB, summer of 2026", _draw_band(init, _draw_init_s)


def _draw_warm_s(calibration: Calibration, factors: RandomFactors) -> float:
    """Draw the random seconds from the end of one task to the start of the next in a state machine, if both environments are warm.
    `factors`: source of the random factors. Neither memory nor a Map state made a difference in the measurements.
    """
    return calibration.task_s * factors.draw_task_factor()


def _draw_cold_s(calibration: Calibration, factors: RandomFactors) -> float:
    """Draw the random seconds from the end of one task to the start of the next, if the next one needs a new environment of a function
    without packages. `factors`: source of the random factors.
    """
    started = replace(calibration, init_s=WITHOUT_PACKAGES).cold_start_parts_s(
        torch=False, factor=factors.draw_cold_factor()
    )
    return _draw_warm_s(calibration, factors) + sum(started)


def _draw_init_s(calibration: Calibration, factors: RandomFactors) -> float:
    """Draw the random seconds of INIT of a Python 3.12 function without packages. `factors`: source of the random factors, of which that of
    a task is used; `calibration`: not used; all functions for `_draw_band` take it.
    """
    return PYTHON_3_12 * factors.draw_task_factor()


def _draw_band(calibration: Calibration, seconds: Callable[[Calibration, RandomFactors], float]) -> Band:
    """Return p5, p50 and p95, in milliseconds, of DRAWS random draws. `calibration`: gives the spreads of the random factors; `seconds`:
    function that draws one value in seconds. Equal calls give equal results.
    """
    factors = RandomFactors(
        SEED,
        0,
        compute_sigma=0.0,
        request_sigma=0.0,
        task_sigma=calibration.task_sigma,
        cold_sigma=calibration.cold_sigma,
    )
    return band_of([1_000 * seconds(calibration, factors) for _ in range(DRAWS)])


def list_rows() -> list[list[str]]:
    """Return the rows of the table of predictions as text: letter, setting, p5, p50, p95."""
    return [[letter, setting, *(f"{value:.3g}" for value in found)] for letter, setting, found in predict_bands()]


def format_predictions() -> str:
    """Return the Markdown table of predictions in docs/simulation.md."""
    return format_table(HEAD, list_rows())


# --- what tasks cost --------------------------------------------------------------------------------------------------

ARCHITECTURES = ("spirt", "mlless", "all-reduce", "scatter-reduce", "p2p-instance", "p2p-serverless", "gpu", "single")
# By file: what its rounds are of.
SETTINGS = [
    *(
        (file, training)
        for name in ARCHITECTURES
        for file, training in ((name, "digits"), (f"{name}-cifar10", "MobileNet"))
    ),
    ("all-reduce-s3", "digits"),
]
COST_HEAD = [
    "architecture",
    "training",
    "tasks per round and worker",
    "in sequence",
    "s per epoch",
    "of which task starts",
    "USD per epoch",
    "of which task starts and states",
    "s saved by one task less",
]


def project_costs() -> Iterator[list[str]]:
    """Yield one table row per architecture and training, in the order of COST_HEAD: time and cost of an epoch, and how much of it is due to
    the starts of tasks and states. Simulated without random stragglers, which takes seconds to minutes.
    """
    without = replace(AWS, task_s=0.0, payload_s_byte=0.0)
    for file, training in SETTINGS:
        experiment = load(CONFIG / f"{file}.yaml", [])
        found, quick = (_simulate_epoch(experiment, calibration.without_stragglers()) for calibration in (AWS, without))
        seconds, usd = found.seconds - quick.seconds, found.usd - quick.usd
        states_usd = found.transitions * PRICES.of("stepfunctions.transition").usd
        yield [
            file.removesuffix("-cifar10"),
            training,
            f"{found.invocations / found.rounds / experiment.workers:.3g}",
            f"{seconds / found.rounds / AWS.task_s:z.2f}",
            f"{found.seconds:.3g}",
            f"{seconds / found.seconds:z.0%}",
            f"{found.usd:.3g}",
            f"{(usd + states_usd) / found.usd:z.0%}",
            f"{AWS.task_s * found.rounds:.3g}" if found.invocations else "",
        ]


class Epoch(NamedTuple):
    """Duration in seconds, cost in dollars, and numbers of invocations, state transitions and rounds of one epoch of a simulated run."""

    seconds: float
    usd: float
    invocations: int
    transitions: int
    rounds: int


def _simulate_epoch(experiment: Experiment, calibration: Calibration) -> Epoch:
    """Return duration, cost and counts of the third epoch of a simulated run, as the difference of runs of three and two epochs."""
    architecture = architecture_of(experiment)
    sizes = Workload.from_experiment(experiment)
    two, three = (
        simulate(replace(experiment, training=replace(experiment.training, epochs=epochs)), calibration, workload=sizes)
        for epochs in (2, 3)
    )
    rounds = calendar(architecture.resolve(three.experiment), sizes).rounds_per_epoch
    seconds, usd = three.seconds - two.seconds, three.usd - two.usd
    return Epoch(seconds, usd, three.invocations - two.invocations, three.transitions - two.transitions, rounds)


def format_table(head: Sequence[str], listed: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. `head`: titles of the columns; `listed`: the rows."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *listed))


if __name__ == "__main__":
    refuse_arguments(__doc__)
    print(format_predictions(), format_table(COST_HEAD, project_costs()), sep="\n\n")
