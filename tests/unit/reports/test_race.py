"""Who won, of measured seconds: held against runs that were measured, of which nobody is ahead, or one by construction."""

from random import Random

import pytest

from crossover.errors import ConfigError
from crossover.reports import comparison
from tests.unit.reports import recorded

HAD_A_CORE = 0.8  # of the recorded runs three quarters; the others were made while the machine was busy


@pytest.mark.parametrize("least_share", [0.0, HAD_A_CORE])
def test_of_equal_runs_hardly_ever_one_wins(least_share: float) -> None:
    """The comparison of runs with equal settings, drawn from recorded ones, names a winner in at most 6.5 % of 1,000 trials."""
    rng, won = Random(15), 0
    for _ in range(1_000):
        drawn = recorded.paired(rng, rng.choice((3, 4, 5)), least_share=least_share)
        won += bool(recorded.winners(recorded.verdict(drawn)))
    assert won <= 65


def test_a_setting_that_takes_half_as_long_again_is_found() -> None:
    """A setting that takes 1.5 times as long loses in at least 80 of 100 trials, and wins in at most two."""
    rng = Random(16)
    said = [
        recorded.winners(recorded.verdict(recorded.paired(rng, 5, times=1.5, least_share=HAD_A_CORE)))
        for _ in range(100)
    ]
    assert sum(winners == {"a"} for winners in said) >= 80
    assert sum("b" in winners for winners in said) <= 2


def test_a_run_that_waited_for_a_core_takes_no_part() -> None:
    """Runs that had a core for too small a share of their time are left out of the race, and named with that share."""
    quiet = {"elapsed_s": 1.0, "paper_method_usd": 1.0, "full_usd": 1.0, "cpu_share": 0.9}
    drawn = [
        recorded.as_run(quiet | {"seed": seed} | busy, setting, times=times)
        for seed in (1, 2, 3)
        for setting, times, busy in (("a", 1.0 + seed / 100, {}), ("b", 9.91, {"cpu_share": 0.106}))
    ]
    said = recorded.verdict(drawn)
    assert said.startswith("no winner by measured time") and " is soonest" not in said
    assert "b-1-1 (had a core for only 10.6\u00a0% of its computing time)" in said


def test_repeats_of_one_seed_are_one_pair_and_three_seeds_are_the_least() -> None:
    """Several runs with one seed count as one pair, and a winner needs three common seeds."""
    quiet = {"elapsed_s": 1.0, "paper_method_usd": 1.0, "full_usd": 1.0, "cpu_share": 0.9}

    def verdict(seeds: tuple[int, ...]) -> str:
        """Return the verdict on pairs of runs with these seeds, in which setting b takes a second longer."""
        return recorded.verdict(
            [
                recorded.as_run(quiet | {"seed": seed}, setting, times=times + n / 100, number=n)
                for n, seed in enumerate(seeds)
                for setting, times in (("a", 1.0), ("b", 2.0))
            ]
        )

    assert verdict((1, 1, 1, 2)).startswith("no winner by measured time: at least two settings with 3 common seeds")
    assert "a-1-0 and 3 more is soonest, " in verdict(
        (1, 1, 2, 3)
    ) and ", 3 seeds) sooner than b-1-0 and 3 more" in verdict((1, 1, 2, 3))


def test_seeds_that_only_one_of_two_settings_has_say_nothing() -> None:
    """There is no winner if two settings have only one seed in common; the verdict lists the seeds of each."""
    quiet = {"elapsed_s": 1.0, "paper_method_usd": 1.0, "full_usd": 1.0, "cpu_share": 0.9}
    drawn = [recorded.as_run(quiet | {"seed": seed}, "a", times=1 + seed / 100) for seed in (1, 2, 3)]
    drawn += [recorded.as_run(quiet | {"seed": seed}, "b", times=2.0) for seed in (3, 4, 5)]
    said = recorded.verdict(drawn)
    assert (
        said.startswith("no winner by measured time")
        and "seeds of a-1-1 and 2 more: 1 2 3, b-3-1 and 2 more: 3 4 5." in said
    )


def test_a_run_that_never_got_there_is_told_from_one_that_failed() -> None:
    """A run that did not reach the target is left out of the race and named as such, and the other seeds decide."""
    quiet = {"paper_method_usd": 1.0, "full_usd": 1.0, "cpu_share": 0.9}
    drawn = [
        recorded.as_run(quiet | {"seed": seed, "elapsed_s": 1 + seed / 100}, setting, times=times)
        for seed in (1, 2, 3, 4)
        for setting, times in (("a", 1.0), ("b", 2.0))
    ]
    late = drawn[-2]
    late.result["epochs"][0]["val_metric"] = recorded.GOAL - 0.01
    said = recorded.verdict(drawn)
    assert ", 3 seeds) sooner" in said and said.endswith(f"Left out: {late.name} (target not reached).")


def test_a_goal_is_a_value_that_the_metric_can_have() -> None:
    """A target of 85 for an accuracy raises ConfigError that suggests 0.85."""
    run = recorded.as_run(
        {"seed": 1, "elapsed_s": 1.0, "paper_method_usd": 1.0, "full_usd": 1.0, "cpu_share": 1.0}, "a"
    )
    with pytest.raises(ConfigError, match=r"--at: 85 is no accuracy, which is a share; did you mean 0\.85\?"):
        comparison.race_goal([run.result], 85.0)
    assert comparison.race_goal([run.result]) == (None, "")


def test_the_interval_is_students() -> None:
    """`interval` returns the lower limit, mean and upper limit of differences: for 1, 2 and 3 these are 2 and 2 -/+ 4.849 / sqrt(3)."""
    low, middle, high = comparison.interval([1.0, 2.0, 3.0])
    assert (low, middle, high) == (pytest.approx(2 - 2.7996, abs=1e-3), 2.0, pytest.approx(2 + 2.7996, abs=1e-3))
