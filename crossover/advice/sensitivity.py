"""What would change the answer: prices, speed, sessions and epochs, each made smaller and larger by what is plausible."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from crossover.advice.candidates import Candidate
from crossover.advice.drivers import lengthened
from crossover.advice.evaluation import Question
from crossover.costs.prices import Prices
from crossover.simulation.repetitions import in_session


@dataclass(frozen=True)
class Swing:
    """Dollars of the rival, in the winner's, where `what` is made smaller and larger. Below 1 the answer is another one."""

    what: str
    smaller: float
    larger: float

    @property
    def width(self) -> float:
        return max(self.smaller, self.larger) / max(1e-12, min(self.smaller, self.larger))


def swings(question: Question, winner: Candidate, rival: Candidate) -> list[Swing]:
    """The widest first."""

    def ratio(changed: Question) -> float:
        mine, its = (_usd(changed, candidate) for candidate in (winner, rival))
        return its / mine

    span = max(question.span(each) for each in (winner, rival))
    found = [Swing(what, ratio(smaller), ratio(larger)) for what, smaller, larger in _changes(question, span)]
    return sorted(found, key=lambda each: -each.width)


def _usd(question: Question, candidate: Candidate) -> float:
    return lengthened(question, candidate, lambda run: {"": run.usd})[""]


def _changes(question: Question, span: int) -> Iterator[tuple[str, Question, Question]]:
    """(what, the question with less of it, with more). `span`: epochs of the shortest run."""
    cloud, epochs = question.calibration, question.base.training.epochs

    def calibrated(**factors: float) -> Question:
        values = {name: getattr(cloud, name) * factor for name, factor in factors.items()}
        return replace(question, calibration=replace(cloud, **values))

    def trained(count: int) -> Question:
        return replace(question, base=replace(question.base, training=replace(question.base.training, epochs=count)))

    yield (
        "functions' speed, half to twice",
        calibrated(function_speed=0.5, function_batch_s=2.0),
        calibrated(function_speed=2.0, function_batch_s=0.5),
    )
    yield "GPUs' speed, half to twice", calibrated(gpu_efficiency=0.5), calibrated(gpu_efficiency=2.0)
    yield (
        "instances' speed, half to twice",
        calibrated(instance_speed=0.5, instance_batch_s=2.0),
        calibrated(instance_speed=2.0, instance_batch_s=0.5),
    )
    yield "epochs, a fifth to five times", trained(max(span, epochs // 5)), trained(5 * epochs)
    quick, slow = (replace(question, calibration=in_session(cloud, sigmas)) for sigmas in (-1.64, 1.64))
    yield "sessions, p5 to p95", quick, slow
    for what, begins in (
        ("Lambda's price", "lambda."),
        ("instances' price", ("ec2.", "cpu_credits.")),
        ("transitions' price", "stepfunctions."),
    ):
        less, more = (replace(question, prices=priced(question.prices, begins, factor)) for factor in (0.7, 1.3))
        yield f"{what}, 30 % down to up", less, more


def priced(prices: Prices, begins: str | tuple[str, ...], factor: float) -> Prices:
    """With those items at another price."""
    items = {
        name: replace(price, usd=price.usd * factor) if name.startswith(begins) else price
        for name, price in prices.items.items()
    }
    return replace(prices, items=items)
