"""What drives an answer: of what its time and its dollars consist."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from crossover.advice.candidates import Candidate
from crossover.advice.evaluation import Question
from crossover.algorithms.calendar import Calendar
from crossover.reports import display
from crossover.simulation.calibration import MOVING, STARTING
from crossover.simulation.simulate import Simulated, simulate

COMPUTING, MOVED, STARTED, BEFORE = (
    "computing gradients",
    "moving data and vectors",
    "starts and transitions",
    "waiting until everything stands",
)
WAITS = ("synchronise", "receive", "aggregate")
TOLD = 0.05  # a share that is smaller drives nothing


@dataclass(frozen=True)
class Drivers:
    """A candidate's seconds and dollars by what they are for, without stragglers and in the middle session."""

    seconds: Mapping[str, float]
    usd: Mapping[str, float]
    exchanges: int
    vector_bytes: int

    @property
    def words(self) -> str:
        """The two largest of each."""
        return f"{_largest(self.of_the_run, 'time is')}; {_largest(self.usd, 'dollars are')}"

    @property
    def of_the_run(self) -> Mapping[str, float]:
        """Seconds, start-up apart."""
        return {name: value for name, value in self.seconds.items() if name != BEFORE}

    @property
    def exchanged(self) -> str:
        """What workers do because they are several."""
        moved = self.of_the_run[MOVED] / max(1e-12, sum(self.of_the_run.values()))
        return f"a vector of {display.bytes_(self.vector_bytes)} is exchanged {self.exchanges:,} times; moving is {moved:.0%} of the time"


def _largest(parts: Mapping[str, float], what: str) -> str:
    whole = max(1e-12, sum(parts.values()))
    (first, name), *others = sorted(((value / whole, name) for name, value in parts.items()), reverse=True)[:2]
    return f"{first:.0%} of its {what} {name}" + "".join(
        f", {share:.0%} {other}" for share, other in others if share >= TOLD
    )


def of(question: Question, candidate: Candidate) -> Drivers:
    """By short runs, lengthened."""
    minibatches = len(question.workload_of(candidate).samples)
    every = minibatches if candidate.every == "epoch" else candidate.every
    return Drivers(
        seconds=seconds(question, candidate),
        usd=parts(replace(question, calibration=question.calm), candidate),
        exchanges=Calendar(minibatches, every, question.base.training.epochs).rounds,
        vector_bytes=question.workload.vector_bytes,
    )


def seconds(question: Question, candidate: Candidate) -> dict[str, float]:
    """Where the time goes, from `deploy` on: what the run would be quicker by if nothing moved, and then if nothing had to start."""
    calm = question.calm
    unmoved = replace(calm.unshared(), **MOVING)
    clouds = (calm, unmoved, replace(unmoved, **STARTING))
    whole, still, pure = (
        lengthened(replace(question, calibration=cloud), candidate, lambda run: {"": run.seconds})[""]
        for cloud in clouds
    )
    return {
        COMPUTING: pure,
        MOVED: max(0.0, whole - still),
        STARTED: max(0.0, still - pure),
        BEFORE: question.before_s(candidate),
    }


def parts(question: Question, candidate: Candidate) -> dict[str, float]:
    """Where the dollars of the run go."""
    return lengthened(question, candidate, _spent)


def lengthened(
    question: Question, candidate: Candidate, of: Callable[[Simulated], Mapping[str, float]]
) -> dict[str, float]:
    """Figures of the run, by two of its epochs (or twice as many as a round goes through): those after the first are alike."""
    epochs, span = question.base.training.epochs, question.span(candidate)
    one = of(run_of(question, candidate, span))
    if epochs == span:
        return dict(one)
    two, more = of(run_of(question, candidate, 2 * span)), epochs / span - 1
    return {name: max(0.0, one.get(name, 0.0) + more * (value - one.get(name, 0.0))) for name, value in two.items()}


def run_of(question: Question, candidate: Candidate, epochs: int) -> Simulated:
    """So many epochs of the candidate, in the middle session."""
    task = question.task(candidate)
    experiment = replace(task.experiment, training=replace(task.experiment.training, epochs=epochs))
    return simulate(experiment, question.calibration, workload=task.workload, price_list=question.prices)


def _spent(run: Simulated) -> dict[str, float]:
    """Dollars by what they are for; functions' by what their seconds go to."""
    found: defaultdict[str, float] = defaultdict(float)
    for line in run.lines:
        found[_group(line.item)] += line.usd
    spent: defaultdict[str, float] = defaultdict(float)
    for use in run.steps.values():
        for stage, (seconds, _) in use.stages.items():
            what = (
                "compute" if stage in ("compute", "evaluate") else "wait for others" if stage in WAITS else "transfer"
            )
            spent[f"functions that {what}"] += seconds * use.memory_mb
    whole, functions_usd = sum(spent.values()), found.pop("functions", 0.0)
    for name, gb_s in spent.items():
        if gb_s:
            found[name] += functions_usd * gb_s / whole
    return dict(found)


def _group(item: str) -> str:
    for begins, name in (
        ("Lambda duration", "functions"),
        ("Step Functions", "transitions"),
        ("S3", "object requests and storage"),
        ("Amazon MQ", "the broker"),
        ("CloudWatch", "logs and requests"),
        ("Lambda requests", "logs and requests"),
    ):
        if item.startswith(begins):
            return name
    if "tensor database" in item:
        return "database hosts"
    if item.startswith(("EC2", "CPU credits", "Public", "EBS")):
        return "instances"
    return "network and secrets"
