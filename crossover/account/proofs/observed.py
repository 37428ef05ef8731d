"""What a check saw of one fact, and what it says of it."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, cast

from crossover.account.proofs.evidence import Evidence, Lacking

T = TypeVar("T")
Verdict = Literal["proven", "refuted", "not covered"]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """`value` in `unit` where what was seen is a number."""

    verdict: Verdict
    seen: str
    value: float | None = None
    unit: str = ""


Check = Callable[[Evidence], Observed]
Checks = dict[str, Check]  # by the fact's id


def uncovered(reason: str) -> Observed:
    return Observed(verdict="not covered", seen=reason)


def judged(holds: bool, seen: str, *, value: float | None = None, unit: str = "") -> Observed:
    return Observed(verdict="proven" if holds else "refuted", seen=seen, value=value, unit=unit)


def check(look: Check) -> Check:
    """A check whose evidence may be lacking: then the fact is not covered, for the reason that `needs` gives."""

    @functools.wraps(look)
    def looked(evidence: Evidence) -> Observed:
        try:
            return look(evidence)
        except Lacking as reason:
            return uncovered(str(reason))

    return looked


def by_id(*checks: Check) -> dict[str, Check]:
    """Checks by the facts' ids in docs/aws.md, which their names are."""
    return {each.__name__.replace("_", "-"): each for each in checks}


def known(value: T | None, otherwise: str) -> T:
    """Raises Lacking with what to say where nothing is known."""
    needs(value is not None, otherwise)
    return cast(T, value)


def needs(there: object, otherwise: str) -> None:
    """Raises Lacking with what to say otherwise."""
    if not there:
        raise Lacking(otherwise)
