"""How sure drawn figures are: percentiles, and who is ahead in paired draws."""

from math import inf, isnan

import pytest

from crossover.reports import display
from crossover.reports.display import Band, band_of, count_wins, describe_winner, is_sure, lead

SESSIONS = [1.0 + n / 20 for n in range(20)]  # a factor of two from the fastest to the slowest


def test_percentiles_lie_in_the_middles_of_their_parts() -> None:
    """`band_of` returns percentiles 5, 50 and 95 of the finite values by Hazen's rule, and NaN if there are none."""
    assert band_of(range(1, 31)) == Band(pytest.approx(2.0), pytest.approx(15.5), pytest.approx(29.0))  # type: ignore[arg-type]
    assert band_of([3.0]) == (3.0, 3.0, 3.0)
    assert isnan(band_of([]).p50) and isnan(band_of([inf]).p5)
    assert band_of([inf, 1.0]) == (1.0, 1.0, 1.0)  # of those that have an end
    assert Band(1.0, 2.0, 3.0).as_json() == {"label": "projected", "p5": 1.0, "p50": 2.0, "p95": 3.0}


def test_ahead_is_who_is_so_in_95_of_100_paired_draws() -> None:
    """`count_wins` counts pairs in which the first is lower, and `is_sure` demands at least 95 % of them."""
    session = [0.01 * n for n in range(30)]
    ours, theirs = ([level + value for value in session] for level in (1.0, 1.1))
    assert count_wins(ours, theirs) == 30  # though their bands overlap almost wholly
    assert [is_sure(count, 30) for count in (28, 29, 30)] == [False, True, True]
    assert count_wins([1.0, 2.0], [1.0, 3.0]) == 1  # level is not ahead


def test_cheaper_is_said_of_paired_draws_and_not_of_bands_that_overlap() -> None:
    """The cheapest is judged by pairs of draws, although both bands overlap; its sentence states both bands, ratio and count of pairs."""
    draws = {"theirs": [1.1 * each for each in SESSIONS], "ours": SESSIONS}
    led = lead(draws)
    assert led is not None and led[:4] == ("ours", "theirs", 20, 20) and led.is_sure
    said = describe_winner(draws, "cheapest", "cheaper", display.usd)
    best, other = "$1.48 ($1.02 to $1.92)", "$1.62 ($1.13 to $2.12)"
    assert said == f"ours is cheapest with {best}, 1.10x cheaper than theirs at {other}, in 20 of 20 paired draws"


def test_who_comes_closest_is_who_is_beaten_least_often() -> None:
    """The second of `lead` is who loses the fewest pairs against the first; medians that differ by less than 1 % are too close to call."""
    closest = [0.9 if n == 0 else 3.0 for n in range(20)]
    led = lead({"ours": SESSIONS, "middle": [1.2 * each for each in SESSIONS], "closest": closest})
    assert led is not None and (led.second, led.wins) == ("closest", 19)
    level = {"ours": SESSIONS, "theirs": [1.004 * each for each in SESSIONS], "far": [3.0 * each for each in SESSIONS]}
    assert describe_winner(level, "soonest", "sooner", display.seconds).endswith(
        "too close to call as soonest: ours is in 20 of 20 paired draws"
    )
    assert lead({"alone": SESSIONS}) is None and describe_winner({}, "cheapest", "cheaper", display.usd) == ""
