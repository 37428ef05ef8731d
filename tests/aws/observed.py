"""What a check saw of one fact, and what it says of it."""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tests.aws.evidence import Evidence, Lacking

Verdict = Literal["proven", "refuted", "not covered"]


@dataclass(frozen=True)
class Observed:
    """`value` in `unit` where what was seen is a number."""

    verdict: Verdict
    seen: str
    value: float | None = None
    unit: str = ""


Check = Callable[[Evidence], Observed]


def judged(holds: bool, seen: str, *, value: float | None = None, unit: str = "") -> Observed:
    return Observed("proven" if holds else "refuted", seen, value, unit)


def check(look: Check) -> Check:
    """A check whose evidence may be lacking: then the fact is not covered, for the reason that is raised."""

    @functools.wraps(look)
    def looked(evidence: Evidence) -> Observed:
        try:
            return look(evidence)
        except Lacking as reason:
            return Observed("not covered", str(reason))

    return looked


def checks_in(module: str) -> dict[str, Check]:
    """Those of a module, by the facts' ids in docs/aws.md, which their names are."""
    found = vars(sys.modules[module]).items()
    return {name.replace("_", "-"): each for name, each in found if hasattr(each, "__wrapped__")}
