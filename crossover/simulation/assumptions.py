"""What an answer rests on: how fast computing is on AWS, which nobody has measured there, and by what factor that may be off before there
is another answer.
"""

from collections.abc import Callable, Iterator
from math import sqrt
from typing import NamedTuple

from crossover.simulation.calibration import Calibration

FACTORS = (1.5, 3.0, 10.0)  # that are tried, both ways
EXACT = 1.01  # how far apart the last factor with the same answer and the first with another may be

AnswerOf = Callable[[Calibration], str]


class Turn(NamedTuple):
    """The answer is the same where computing takes `before` times as long as is assumed, and `other` where it takes `after` times."""

    before: float
    after: float
    other: str


def turns(answer: AnswerOf, paced: Callable[[float], Calibration]) -> list[Turn]:
    """Where computing is quicker, and where it is slower; nothing of a way in which none of FACTORS turns the answer."""
    now, found = answer(paced(1.0)), []
    for sign in (-1, 1):
        before = 1.0
        for factor in FACTORS:
            after = factor**sign
            if (other := answer(paced(after))) != now:
                found.append(_between(before, after, other, now, lambda at: answer(paced(at))))
                break
            before = after
    return found


def _between(before: float, after: float, other: str, now: str, answer: Callable[[float], str]) -> Turn:
    while max(before / after, after / before) > EXACT:
        middle = sqrt(before * after)
        said = answer(middle)
        before, after, other = (middle, after, other) if said == now else (before, middle, said)
    return Turn(before, after, other)


def assumed(cloud: Calibration, *, gpus: bool) -> Iterator[tuple[str, Callable[[float], Calibration]]]:
    """(what stands for what, the calibration where that takes so many times as long). `gpus`: whether there are any."""
    yield "a core of this machine for a vCPU of ARM", lambda times: cloud.paced(times, 1.0)
    if gpus:
        yield f"a GPU at {cloud.gpu_efficiency:.0%} of its peak", lambda times: cloud.paced(1.0, times)


def words(answer: AnswerOf, cloud: Calibration, *, gpus: bool) -> str:
    """One line."""
    parts = [f"{what} ({_told(turns(answer, paced))})" for what, paced in assumed(cloud, gpus=gpus)]
    return f"It rests on {' and on '.join(parts)}."


def _told(found: list[Turn]) -> str:
    if not found:
        return f"off by {FACTORS[-1]:g}x either way, the answer is the same"
    return "; ".join(
        f"{1 / each.after:.2f}x quicker, it would be {each.other}"
        if each.after < 1
        else f"{each.after:.2f}x slower, it would be {each.other}"
        for each in found
    )
