"""Which machines are candidates: refused without a price, and named for a model that fits nowhere."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from crossover.advice import candidates
from crossover.advice.advice import (
    Advice,
    _interruption_text,
    describe_needed_memory,
    gpu_wait_words,
    spot_words,
    time_limit_words,
)
from crossover.advice.candidates import Candidate
from crossover.advice.evaluation import Estimate, Question
from crossover.advice.question import Constraints, Sizes
from crossover.advice.search import Finalist
from crossover.errors import ConfigError
from crossover.experiment import Experiment, Functions, Training
from crossover.reports import display, prices
from crossover.simulation.calibration import AWS
from crossover.simulation.repetitions import Outcome
from crossover.simulation.workload import Workload

GIB = 2**30


def test_every_priced_machine_is_a_candidate_and_spot_only_with_a_price_of_its_own() -> None:
    """The candidates of a single worker include CPU and GPU instances with a price, on the spot market only those with a spot price, with
    all vCPUs as threads.
    """
    base = Experiment(name="one", architecture="single", workers=1, training=Training(model="mobilenet"))
    found = list(
        candidates.list_candidates(base, samples=50_000, prices=prices.load(), least_mb=lambda _: 1_024, alone=True)
    )
    assert {"c7g.16xlarge", "c8g.8xlarge", "m7g.4xlarge", "g6e.2xlarge", "g6f.large"} <= {
        each.instance for each in found
    }
    spot = {each.instance for each in found if each.spot}
    assert "g6f.large" in spot and "g5.xlarge" not in spot
    assert {each.threads for each in found if each.instance == "c7g.16xlarge"} == {64}


def test_an_instance_type_without_a_price_is_refused_by_name() -> None:
    """A candidate whose instance type has no price raises ConfigError with its name and the file to add it to."""
    base = Experiment(name="one", architecture="single", workers=1, training=Training(model="mobilenet"))
    question = Question(base, Workload.from_experiment(base), 50_000, AWS, prices.load())
    shape = next(
        each
        for each in candidates.list_candidates(
            base, samples=50_000, prices=prices.load(), least_mb=lambda _: 1_024, alone=True
        )
        if each.gpu
    )
    with pytest.raises(
        ConfigError, match=r"'ec2\.g5\.12xlarge' has no price in us-east-1.*Add it to config/pricing\.yaml"
    ):
        question.bound_by_computing(shape._replace(instance="g5.12xlarge", spot=False))


@pytest.mark.parametrize(
    ("gib", "words"),
    [
        (1, ["without a GPU t2.small (2,048 MB) would do", "with one g6f.large (2,867 MB) would do"]),
        (
            60,
            [
                "without a GPU m7g.4xlarge (65,536 MB) would do",
                "with one g6e.xlarge (45,773 MB) has most, and too little",
            ],
        ),
        (900, ["without a GPU m7g.16xlarge (262,144 MB) has most, and too little"]),
    ],
)
def test_a_model_that_fits_nowhere_is_told_its_memory_and_what_would_do(gib: int, words: list[str]) -> None:
    """The sentence names the memory that a model of `gib` GiB needs, and the machines that have enough or the largest ones."""
    sizes = Sizes(vector_bytes=0, kept_bytes=0.0, evaluation_bytes=0, fixed_bytes=gib * GIB)
    said = describe_needed_memory(sizes, 8)
    assert said.startswith(f"With minibatches of 8 it needs {sizes.step_mb(8):,.0f} MB: "), said
    for each in words:
        assert each in said, said


def finalist(candidate: Candidate, *interruptions: int) -> Finalist:
    """Return a finalist with one outcome of a minute and a dollar for each number of interruptions."""
    outcomes = [
        Outcome(seconds=60.0, epoch_s=1.0, usd=1.0, paper_method_usd=0.0, moved_bytes=0.0, interruptions=each)
        for each in interruptions
    ]
    return Finalist(candidate, Estimate(60.0, 1.0), tuple(outcomes), 0.0)


@pytest.mark.parametrize(("counts", "said"), [((0, 0, 1, 0, 0), "0.2"), ((0, 0), "under 0.1")])
def test_spot_says_how_often_it_would_be_interrupted(counts: tuple[int, ...], said: str) -> None:
    """The number of interruptions is the mean over the repetitions; only spot candidates have a sentence on what was observed."""
    spot = Candidate("single", 1, 32, 1, on="gpu", instance="g4dn.xlarge", spot=True)
    (words,) = spot_words(finalist(spot, *counts))
    assert "taken away (0.06 to 1.62 times an hour were observed)" in words
    assert _interruption_text(finalist(spot, *counts)) == said
    assert spot_words(finalist(spot._replace(spot=False), *counts)) == []


def test_if_no_gpu_is_free_the_next_best_is_named_and_functions_wait_for_none() -> None:
    """If a GPU wins, the advice says how long GPUs were waited for and names the best candidate without one; if a function wins, it says
    nothing.
    """
    gpu = finalist(Candidate("single", 1, 32, 1, on="gpu", instance="g4dn.xlarge"), 0)
    function = finalist(Candidate("single", 1, 32, 1, on="function", memory_mb=1_024), 0)

    def words(winner: Finalist, other: Finalist, deadline_s: float | None) -> list[str]:
        """Return the sentence, in a list, for two candidates that both take a minute, and a deadline."""
        wished = Constraints(deadline_s=deadline_s)
        found = SimpleNamespace(winner=winner, alternatives=(gpu, other), constraints=wished)
        return gpu_wait_words(cast(Advice, found))

    for enough_s in (None, 7_200.0):
        (said,) = words(gpu, function, enough_s)
        assert said.startswith(
            "Waiting for a free GPU may take longer: the only three jobs measured waited 28 to 58 min"
        )
        assert said.endswith("the next best is one function of 1,024 MB, and functions wait for no GPU."), said
    (said,) = words(gpu, function, 1_200.0)
    assert said.startswith(
        "If a GPU must be waited for, the deadline is missed: the only three jobs measured waited 28"
    )
    assert said.endswith("; one function of 1,024 MB needs none, and functions wait for no GPU."), said
    assert "the deadline may be missed: " in words(gpu, function, 2_400.0)[0]
    machine = finalist(Candidate("single", 1, 32, 1, on="ec2", instance="t2.small"), 0)
    (said,) = words(gpu, replace(machine, before_s=2_400.0), 2_400.0)
    assert said.endswith("; one t2.small needs none, but misses the deadline too.")
    assert "Waiting for a free GPU" in words(gpu, function, 30.0)[0], "it misses the deadline without a wait"
    assert words(function, gpu, 2_400.0) == []


def test_functions_that_train_longer_than_one_may_run_continue_from_a_checkpoint() -> None:
    """The sentence on the time limit is there if a long function trains longer than it, not if functions of another architecture do, which
    are started for each round, or an instance.
    """
    function = Candidate("single", 1, 32, 1, on="function", memory_mb=1_024)
    machine = Candidate("single", 1, 32, 1, on="ec2", instance="t2.small")
    rounds = Candidate("spirt", 2, 32, 1, memory_mb=1_024)

    def words(candidate: Candidate, timeout_s: int) -> list[str]:
        """Return the sentence, in a list, on a candidate that runs for a minute."""
        base = Experiment(name="one", architecture="single", functions=Functions(timeout_s=timeout_s))
        found = SimpleNamespace(question=SimpleNamespace(base=base))
        return time_limit_words(cast(Advice, found), finalist(candidate, 0))

    (said,) = words(function, 30)
    assert said == f"A function ends after 30{display.GAP}s, and the next one continues from its checkpoint."
    assert words(function, 900) == words(machine, 30) == words(rounds, 30) == []
