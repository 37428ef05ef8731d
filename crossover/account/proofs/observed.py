"""What a check saw of one fact, and what it says of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from crossover.account.proofs.evidence import Evidence

Verdict = Literal["proven", "refuted", "not covered"]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """`value` in `unit` where what was seen is a number."""

    verdict: Verdict
    seen: str
    value: float | None = None
    unit: str = ""


Check = Callable[[Evidence], Observed]
Checks = Mapping[str, Check]  # by the fact's id


def uncovered(reason: str) -> Observed:
    return Observed(verdict="not covered", seen=reason)


def judged(holds: bool, seen: str, *, value: float | None = None, unit: str = "") -> Observed:
    return Observed(verdict="proven" if holds else "refuted", seen=seen, value=value, unit=unit)
