"""Configurations that `crossover advise` evaluates in a minute, and how far its best is from that of simulating all of them.

    python -m benchmarks.advise [--quick | --grid NAME | --serverless]      one part: a bit of the search, one grid, dollars saved

Three grids of 500 configurations and more, spread evenly over all candidates of three experiments: MobileNet on CIFAR-10 for 50 epochs with
up to 64 workers, a small network on digits, a ResNet whose updates are whole epochs. Each cell is simulated as the search would do it.

The last part is the value of the advice if only functions are allowed: dollars against the file that comes with the project, at no more
time.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.report import Figure, write
from crossover.advice import candidates, evidence
from crossover.advice import question as subject
from crossover.advice.advice import Advice, advice_sort_key, advise
from crossover.advice.candidates import Candidate
from crossover.advice.evaluation import Estimate, Profile, Question
from crossover.advice.question import ON_HAND, Constraints, find_problem
from crossover.advice.search import search
from crossover.validation import load

CONFIG = Path(__file__).parents[1] / "config"
CELLS = 500
REACHED = 0.83  # by the run with local steps that comes with the project
GRIDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "mobilenet": ("all-reduce-cifar10", ()),
    "digits": ("all-reduce-s3", ()),
    "resnet": (
        "spirt-cifar10",
        ("training.model=resnet18", "data.dataset=mnist", "training.epochs=10"),
    ),
}


def load_grid_question(name: str) -> tuple[Question, list[Candidate]]:
    """Return the question of a grid, that is an experiment with all that its estimates need, and all of its candidates that are feasible.
    `name`: a key of GRIDS.
    """
    file, changes = GRIDS[name]
    question, sizes, _ = subject.build_question(load(CONFIG / f"{file}.yaml", changes))
    every = candidates.list_candidates(
        question.base, samples=question.samples, prices=question.prices, least_mb=sizes.least_mb
    )
    return question, [each for each in every if not find_problem(each, sizes, ON_HAND)[1]]


def compute_distance_from_best(found: dict[Candidate, Estimate], whole: dict[Candidate, Estimate]) -> float:
    """Return how far the search's result is from the best, as a share: 0.02 means that every candidate of the grid is at most 2 % better,
    in both seconds and dollars, than some candidate that the search has simulated; 0 if none is better. `found`: estimates that the search
    made, at least one; `whole`: estimates of all candidates.
    """
    worst = 0.0
    for other in whole.values():
        near = min(max(mine.seconds / other.seconds, mine.usd / other.usd) for mine in found.values())
        worst = max(worst, near - 1)
    return worst


def measure_grid(name: str) -> list[Figure]:
    """Search about CELLS candidates of a grid, then simulate all of them, and return figures that compare the two. Takes minutes. `name`: a
    key of GRIDS.
    """
    question, everything = load_grid_question(name)
    began_s = time.process_time()
    step = max(1, len(everything) // CELLS)
    grid = everything[::step]
    found = search(question, grid, processes=1).simulated
    whole, above, by = dict[Candidate, Estimate](), 0, 0.0
    profiles = dict[Candidate, Profile]()
    for each in grid:
        simulated, _ = question.simulated(each)
        if simulated.problem:
            continue
        whole[each] = simulated
        shape = question.shape(each)
        profiles[shape] = profiles.get(shape) or question.profile(shape)
        for bound in (question.bound_by_computing(each), question.bound_by_profile(each, profiles[shape])):
            above += not bound.is_within(simulated)
            by = max(by, bound.seconds / simulated.seconds - 1, bound.usd / simulated.usd - 1)
    return [
        Figure(f"{name}: cells", float(len(grid)), "", ">= 500"),
        Figure(f"{name}: best off by", compute_distance_from_best(found, whole), "", "<= 0.02"),
        Figure(f"{name}: bounds above the simulation", float(above), "", "<= 0"),
        Figure(f"{name}: above by at most", by, ""),
        Figure(f"{name}: simulated by the search", float(len(found)), ""),
        Figure(f"{name}: processor seconds", time.process_time() - began_s, "s"),
    ]


def measure_serverless() -> list[Figure]:
    """Return figures on what advice that allows only functions saves, compared with AllReduce as the project's own file sets it, in no more
    time. One advice keeps the updates; the other may use the local steps of recorded runs that reach the accuracy REACHED.
    """
    asked = load(CONFIG / "all-reduce-cifar10.yaml")
    question, sizes, _ = subject.build_question(asked)
    shipped, _ = question.simulated(
        Candidate(
            architecture=asked.architecture,
            workers=asked.workers,
            batch_size=asked.training.batch_size,
            every=1,
            memory_mb=asked.functions.memory_of("train", torch=True),
            per_invocation=1,
            host=asked.database.instance_type,
        )
    )
    wished = Constraints(deadline_s=shipped.seconds, on_hand=("lambda",))
    own = advise(question, wished, sizes, processes=1)
    wished = replace(wished, target=REACHED)
    shown, _ = evidence.settings_reaching(asked, [], REACHED)
    asking = [subject.build_question(each.experiment) for each in shown if each.experiment.exchange.what != "gradients"]
    local = min((advise(question, wished, sizes, processes=1) for question, sizes, _ in asking), key=advice_sort_key)
    return [
        Figure("serverless: the shipped file, dollars", shipped.usd, "$"),
        Figure("serverless: the shipped file, seconds", shipped.seconds, "s"),
        *_report_savings("the same updates", own, shipped, ">= 0.35"),
        *_report_savings(f"local steps of the shipped runs, to {REACHED:g}", local, shipped, ">= 0.45"),
    ]


def _report_savings(name: str, found: Advice, shipped: Estimate, goal: str) -> list[Figure]:
    """Print the winner of one advice and return its figures. `name`: name of the advice; `found`: the advice; `shipped`: estimate for the
    project's own file; `goal`: goal for the share of its dollars that is saved, such as ">= 0.35".
    """
    winner = found.winner
    print(f"{name}: {winner.candidate.words}: {winner.words}; in time: {found.met}")
    return [
        Figure(f"serverless: {name}, dollars", winner.usd.p50, "$"),
        Figure(f"serverless: {name}, seconds at p95", winner.seconds.p95, "s", f"<= {shipped.seconds}"),
        Figure(f"serverless: {name}, cheaper by", 1 - winner.usd.p50 / shipped.usd, "", goal),
    ]


def measure_search(name: str = "mobilenet", *, every: int = 1) -> list[Figure]:
    """Search all candidates of a grid's experiment, or every `every`-th, and return three figures: the number of candidates, the processor
    seconds for 10,000 of them, and the wall seconds of the search. `name`: a key of GRIDS.
    """
    question, everything = load_grid_question(name)
    everything = everything[::every]
    began_s, spent_s = time.perf_counter(), time.process_time()
    search(question, everything, processes=1)
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - spent_s
    return [
        Figure("configurations", float(len(everything)), "", ">= 10000" if every == 1 else None),
        Figure(
            "processor seconds for 10,000 of them",
            cpu_s * 10_000 / len(everything),
            "s",
            "<= 120" if every == 1 else None,
        ),
        Figure("seconds on one core, as busy as it was", wall_s, "s"),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts that the arguments select, and write the figures of all parts so far after each part. `arguments`: words of the command
    line, by default those of this process.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    alone = parser.add_mutually_exclusive_group()
    alone.add_argument(
        "--quick", action="store_true", help="the search alone, over a few candidates for digits: to see that it runs"
    )
    alone.add_argument("--grid", choices=GRIDS, help="one grid alone")
    alone.add_argument("--serverless", action="store_true", help="dollars that functions alone would save")
    given = parser.parse_args(arguments)
    parts: list[Callable[[], list[Figure]]] = [
        measure_search,
        *(partial(measure_grid, name) for name in GRIDS),
        measure_serverless,
    ]
    if given.grid:
        parts = [partial(measure_grid, given.grid)]
    elif given.quick or given.serverless:
        parts = [partial(measure_search, "digits", every=400) if given.quick else measure_serverless]
    figures = list[Figure]()
    for part in parts:
        figures += part()
        write("advise", figures)


if __name__ == "__main__":
    main()
