"""What MLLess's supervisor says is held against the reports, and these against the algorithm in one process."""

from dataclasses import replace
from math import isclose

from crossover.experiment import Exchange
from functions.mlless.words import StepReport, Word
from tests.architectures.harness import small
from tests.chaos.world.nemeses import Disturbed
from tests.chaos.world.schedule import Fault
from tests.chaos.world.supervised import (
    judge_dropped,
    judge_fewest,
    judge_removals,
    judge_reports,
    judge_resumptions,
    judge_words,
)
from tests.chaos.world.trials import Trials, reduce_experiment
from tests.chaos.world.world import VirtualWorld
from tests.chaos.world.yardstick import EpochResult

REPORTS = {0: StepReport(loss=0.5, samples=3, update=True), 1: StepReport(loss=0.25, samples=1)}
WORD = Word(step=0, senders=(0,), loss=0.4375)


def test_a_word_follows_from_the_reports_before_it() -> None:
    def told(word: Word) -> list[str]:
        """Return what is found about the word on step 0."""
        return judge_words({(0, 0): (word, REPORTS)})

    assert not told(WORD) and not told(replace(WORD, dropped=(1,), loss=0.5))
    assert "the loss is 0.375; the reports say 0.4375" in told(replace(WORD, loss=0.375))[0]
    assert "names the senders (); (0,) have sent" in told(replace(WORD, senders=()))[0]
    assert not judge_words({(0, 0): (Word(step=0), {})})


def test_no_later_word_takes_a_worker_back() -> None:
    dropped = replace(WORD, dropped=(1,), loss=0.5)
    words = {(0, 0): (dropped, REPORTS), (0, 1): (replace(WORD, step=1), REPORTS)}

    assert ["takes workers back: (1,)" in each for each in judge_words(words)] == [True]
    assert not judge_words(words | {(0, 1): (replace(dropped, step=1), REPORTS)})


def test_no_attempt_begins_with_a_worker_that_had_been_dropped() -> None:
    assert judge_resumptions({(0, 4): frozenset({2}), (5, 4): frozenset()}) == [
        "attempt 5 begins at round 4 with workers [2], which had been dropped"
    ]
    assert not judge_resumptions({(0, 4): frozenset({2}), (5, 4): frozenset({2, 3})})
    assert not judge_resumptions({(0, 4): frozenset({2}), (5, 2): frozenset(), (5, 4): frozenset()})


def test_a_worker_that_was_dropped_before_an_attempt_reports_nothing_in_it() -> None:
    dropped = {(0, 0): frozenset[int](), (5, 4): frozenset({1}), (5, 6): frozenset({0, 1})}

    assert not judge_dropped(dropped, {(0, 4): REPORTS, (5, 5): {0: REPORTS[0]}})
    assert judge_dropped(dropped, {(0, 4): REPORTS, (5, 5): REPORTS}) == [
        "attempt 5: worker 1 reports, and had been dropped before the attempt began"
    ]


def test_the_slowest_worker_leaves() -> None:
    reports = {
        worker: StepReport(loss=0.5, samples=1, seconds=seconds) for worker, seconds in enumerate((1.0, 3.0, 2.0))
    }
    word = Word(step=0, loss=0.5, leaves={1: 4})

    assert not judge_removals({(0, 0): (word, reports)}, 3)
    assert "[2] must leave" in judge_removals({(0, 0): (replace(word, leaves={2: 4}), reports)}, 3)[0]
    assert not judge_removals({(5, 0): (replace(word, leaves={2: 4}), reports)}, 3)


def test_as_many_workers_stay_as_must() -> None:
    word = Word(step=1, leaves={1: 4})

    assert judge_fewest({(0, 1): (word, {})}, 3, 3) == ["attempt 0, step 1: only workers [0, 2] stay; at least 3 must"]
    assert not judge_fewest({(0, 1): (word, {})}, 3, 2)
    dropped = replace(word, step=2, dropped=(2,))  # nobody has sent that one away
    assert not judge_fewest({(0, 1): (word, {}), (0, 2): (dropped, {})}, 3, 2)


def test_a_report_says_what_the_algorithm_computes() -> None:
    right = {1: EpochResult("", 0.0, 0.0, finished=True, reports={(0, 0): (0.5, 3), (0, 1): (0.25, 1)})}

    assert not judge_reports({(0, 0): (WORD, REPORTS)}, right)
    wrong = {**REPORTS, 1: replace(REPORTS[1], loss=0.5)}
    assert judge_reports({(0, 0): (WORD, wrong)}, right) == [
        "attempt 0, step 0: worker 1 reports 0.5 for 1 samples; expected (0.25, 1)"
    ]


def test_a_report_is_the_mean_of_all_minibatches_of_its_step_also_across_invocations() -> None:
    experiment = reduce_experiment(replace(small("mlless"), exchange=Exchange(every=2)))
    limits = (Fault(kind="limit", service="minibatches", seconds=4.0),)
    losses = []
    for seed in (1, 2):  # of these two, the second invokes a function for each minibatch
        trials, nemesis = Trials(experiment), Disturbed(limits)
        world = VirtualWorld(trials._world(seed, nemesis).experiment, seed, nemesis, minibatches=4)
        outcome = world.run()
        judged = trials.collect_facts(nemesis, outcome, world)
        assert judged.epochs and all(epoch.reports for epoch in judged.epochs.values()) and not judged.wrong_words
        losses.append([word.loss for word, _ in nemesis.words.values()])

    assert all(isclose(one or 0.0, other or 0.0, abs_tol=1e-9) for one, other in zip(*losses, strict=True))
