"""What a candidate is said to take at least is never above what the simulation says of it; nothing that cannot run is advised."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from crossover.advice import candidates, explain
from crossover.advice import question as subject
from crossover.advice.candidates import Candidate
from crossover.advice.evaluation import Estimate, Question
from crossover.advice.question import ON_HAND, Constraints, Sizes, find_problem
from crossover.reports.display import Band
from crossover.simulation.repetitions import Outcome
from crossover.validation import load

CONFIG = Path(__file__).parents[3] / "config"
OF_EACH = 2  # cells of each architecture and kind of updates that are simulated


def asked(name: str, *changes: str) -> tuple[Question, Sizes]:
    """Return the question that config/`name`.yaml poses, and its model's sizes. `changes`: overrides as in `--set`."""
    question, sizes, _ = subject.build_question(load(CONFIG / f"{name}.yaml", changes))
    return question, sizes


def all_of(question: Question, sizes: Sizes) -> Sequence[Candidate]:
    """Return every candidate for the question's experiment."""
    return list(
        candidates.list_candidates(
            question.base, samples=question.samples, prices=question.prices, least_mb=sizes.least_mb
        )
    )


def cells(question: Question, sizes: Sizes, *, most_workers: int) -> Sequence[Candidate]:
    """Return up to OF_EACH random candidates of each architecture, way of updating and place, the same ones at each call. Candidates
    above `most_workers` workers or below 32 samples per minibatch are left out.
    """
    rng, by = random.Random(7), dict[tuple[str, str, str], list[Candidate]]()
    for each in all_of(question, sizes):
        if each.workers <= most_workers and each.batch_size >= 32:
            by.setdefault((each.architecture, each.updates, each.on), []).append(each)
    return [each for group in by.values() for each in rng.sample(group, min(OF_EACH, len(group)))]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "changes", "most_workers"), [
    ("all-reduce-cifar10", (), 8),
    ("all-reduce-s3", (), 8),
])  # fmt: skip
def test_no_bound_is_above_the_simulation(name: str, changes: tuple[str, ...], most_workers: int) -> None:
    """Each lower bound of a candidate (by arithmetic, its family's lightest shape, or its own shape) is at most its simulated estimate."""
    question, sizes = asked(name, *changes)
    judged = 0
    shapes = {question.shape(each) for each in all_of(question, sizes)}
    for each in cells(question, sizes, most_workers=most_workers):
        simulated, _ = question.simulated(each)
        own = question.shape(each)
        profile = question.profile(own)
        if simulated.problem or profile.problem:
            continue
        family = [shape for shape in shapes if question.family(shape) == question.family(own)]
        lightest = max(family, key=question.lightness)
        related = question.bound_by_profile(each, question.profile(lightest), lightest)
        for bound in (question.bound_by_computing(each), related, question.bound_by_profile(each, profile)):
            assert bound.is_within(simulated), (each, bound, simulated)
        judged += 1
    assert judged > 15


def test_a_minibatch_of_512_does_not_fit_into_1769_mb() -> None:
    """`find_problem` reports kind "memory" for minibatches of 512 with 1,769 MB, and no problem with 2,685 MB or with
    minibatches of 256.
    """
    question, sizes = asked("all-reduce-cifar10")
    shipped = Candidate("all_reduce", 4, 512, 1, memory_mb=2_685)
    assert find_problem(shipped, sizes, ON_HAND) == ("", "")
    kind, words = find_problem(shipped._replace(memory_mb=1_769), sizes, ON_HAND)
    assert kind == "memory"
    assert "1,769" in words
    assert find_problem(shipped._replace(memory_mb=1_769, batch_size=256, every=2), sizes, ON_HAND) == ("", "")
    assert question.samples == 50_000


def test_what_is_not_on_hand_is_not_advised() -> None:
    """A candidate that needs a resource which --on-hand does not list has the problem "not on hand"."""
    _, sizes = asked("all-reduce-cifar10")
    through_redis = Candidate("all_reduce", 4, 512, 1, memory_mb=2_685, host="m7g.large")
    assert find_problem(through_redis, sizes, ("lambda",))[0] == "not on hand"
    assert find_problem(through_redis._replace(host="", channel="s3"), sizes, ("lambda",)) == ("", "")
    spot = Candidate("gpu", 4, 512, 1, instance="g4dn.xlarge", spot=True)
    assert find_problem(spot, sizes, ("gpu",))[0] == "not on hand"


def test_a_gpu_without_the_precision_is_no_candidate() -> None:
    """A GPU that lacks the experiment's precision has the problem "precision", while other GPUs have none."""
    _, sizes = asked("all-reduce-cifar10")
    t4 = Candidate("gpu", 4, 512, 1, instance="g4dn.xlarge")
    assert find_problem(t4, sizes, ON_HAND, precision="bf16") == (
        "precision",
        "a T4 has no bf16; expected one of fp32, fp16",
    )
    assert find_problem(t4, sizes, ON_HAND, precision="fp16") == ("", "")
    assert find_problem(t4._replace(instance="g6.xlarge"), sizes, ON_HAND, precision="bf16") == ("", "")


@pytest.mark.slow
def test_candidates_make_the_experiments_own_updates() -> None:
    """Candidates with the experiment's own updates make as many updates in an epoch, each of as many samples, for any number of workers."""
    question, sizes = asked("all-reduce-cifar10")
    shapes = {
        (each.workers, each.batch_size, each.every, each.limit)
        for each in candidates.list_candidates(
            question.base, samples=question.samples, prices=question.prices, least_mb=sizes.least_mb
        )
        if each.updates == candidates.OWN
    }
    assert {workers for workers, *_ in shapes} >= {1, 2, 4, 8, 16, 32, 64}
    for workers, batch_size, every, limit in shapes:
        each = Candidate("all_reduce", workers, batch_size, every, limit=limit)
        samples = question.workload_of(each).samples
        assert workers * batch_size * every == 2_048
        assert -(-len(samples) // every) == 24


def test_a_first_estimate_simulates_no_kind_that_is_dearer_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first estimate simulates no candidate whose lower bound in dollars exceeds the cheapest simulated one."""
    question, sizes = asked("all-reduce-cifar10")
    simulated, simulate = dict[Candidate, float](), Question.simulated

    def note(self: Question, candidate: Candidate) -> tuple[Estimate, Outcome | None]:
        """Simulate the candidate and note its dollars."""
        found = simulate(self, candidate)
        simulated[candidate] = found[0].usd
        return found

    monkeypatch.setattr(Question, "simulated", note)
    first = explain.first_estimate(question, sizes, Constraints())
    assert first is not None and first.words.startswith("one g")
    cheapest = min(simulated.values())
    assert [each.kind for each in simulated if question.bound_by_computing(each).usd > cheapest] == []


def test_a_first_estimate_keeps_the_deadline_with_its_band(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first estimate compares the 95th percentile of its band with the deadline, as the answer does, not its single simulation."""
    question, sizes = asked("all-reduce-cifar10")
    measure = explain._estimate_bands

    def delay_gpus(question: Question, candidate: Candidate, figures: Estimate) -> tuple[Band, Band]:
        """Return the candidate's bands, with a long time as 95th percentile if it has a GPU."""
        seconds, usd = measure(question, candidate, figures)
        return seconds._replace(p95=1e6) if candidate.gpu else seconds, usd

    monkeypatch.setattr(explain, "_estimate_bands", delay_gpus)
    first = explain.first_estimate(question, sizes, Constraints(deadline_s=86_400.0))
    assert first is not None and not first.candidate.gpu
