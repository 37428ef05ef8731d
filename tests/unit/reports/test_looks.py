"""No two curves are told apart by what somebody cannot see: colours by CIEDE2000 under simulated sight, else a marker."""

from itertools import combinations

import pytest

from crossover.reports.display import LOOKS, PALETTE, PLAIN, SeriesLook
from crossover.workflow.architecture import architectures
from tests.browser.colours import SIGHTS, apart, ciede2000, contrast

LEAST = 10.0
GROUNDS = (("#ffffff", "#f6f7f9"), ("#14161a", "#1d2025"))  # page and card, light and dark


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, -1.3802, -84.2814), (50.0, 0.0, -82.7485), 1.0),
        ((50.0, 2.49, -0.001), (50.0, -2.49, 0.0011), 7.2195),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_the_distance_is_the_published_one(one: tuple[float, ...], other: tuple[float, ...], expected: float) -> None:
    """`ciede2000` returns the published distance of pairs from the test data of Sharma, Wu and Dalal 2005."""
    assert ciede2000(one, other) == pytest.approx(expected, abs=1e-4)  # type: ignore[arg-type]


def indistinct(one: SeriesLook, other: SeriesLook) -> list[str]:
    """Return the kinds of colour vision to which the two series look alike: one marker, and colours nearer than LEAST in one theme."""
    return [
        sight
        for sight in SIGHTS
        for one_, other_ in zip(PALETTE[one.colour], PALETTE[other.colour], strict=True)
        if one.marker == other.marker and apart(one_, other_, sight) < LEAST
    ]


def test_any_two_looks_are_told_apart() -> None:
    """No two looks, of architectures or of plain series, are indistinct."""
    pairs = [*combinations(LOOKS.items(), 2), *combinations(enumerate(PLAIN), 2)]
    assert [(a, b) for (a, one), (b, other) in pairs if indistinct(one, other)] == []
    assert indistinct(SeriesLook(3, "o", ""), SeriesLook(6, "o", "")), "without markers they would not be"


def test_every_architecture_has_a_look() -> None:
    """Every architecture but `single`, which has its machine's, has a look of its own."""
    assert set(architectures()) - {"single"} <= set(LOOKS)  # which has that of the machine that it is on


def test_every_colour_can_be_text() -> None:
    """Every colour of the palette has a contrast of at least 4.5 to its backgrounds."""
    pale = [
        (colour, ground)
        for pair in PALETTE
        for colour, grounds in zip(pair, GROUNDS, strict=True)
        for ground in grounds
        if contrast(colour, ground) < 4.5
    ]
    assert pale == []
