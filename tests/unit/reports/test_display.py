"""Figures as people read them."""

import pytest

from crossover.reports import display


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (display.usd(None), "–"),
        (display.usd(0.0), "$0"),
        (display.usd(1234.5), "$1,234.50"),
        (display.usd(0.0291), "$0.0291"),
        (display.usd(0.000689), "$0.000689"),
        (display.usd(0.5), "$0.500"),
        (display.usd(1e-9), "< $0.0000001"),
        (display.usd_tick(0.0005), "$0.0005"),
        (display.usd_tick(0.0), "$0"),
        (display.seconds(None), "–"),
        (display.seconds(0.0), "0 s"),
        (display.seconds(0.00002), "0.02 ms"),
        (display.seconds(0.0496), "49.6 ms"),
        (display.seconds(3.456), "3.46 s"),
        (display.seconds(61.24), "61.2 s"),
        (display.seconds(1666.2), "27 min 46 s"),
        (display.seconds(113_379), "31 h 29 min"),
        (display.bytes_(None), "–"),
        (display.bytes_(999), "999 B"),
        (display.bytes_(158_000_000), "158 MB"),
        (display.bytes_(2.5e15), "2.5e+03 TB"),
        (display.percent(0.8505), "85.0 %"),
        (display.percent(None), "–"),
        (display.number(None), "–"),
        (display.number(623), "623"),
        (display.number(1_394.0), "1,394"),
        (display.number(274.4123), "274.4"),
        (display.number(0.00000196), "1.96e-06"),
        (display.times(1.834), "1.83x"),
        (display.times(13.08), "13x"),
    ],
)
def test_figures_are_formatted_with_their_units(shown: str, expected: str) -> None:
    """Each function of `display` returns `expected`, with figure and unit joined by a no-break space."""
    assert shown.replace(display.GAP, " ") == expected
