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
    """The result of checking one fact: a verdict, and what was seen. `value`: what was seen as a number in `unit`, if it is a number."""

    verdict: Verdict
    seen: str
    value: float | None = None
    unit: str = ""


Check = Callable[[Evidence], Observed]


def judged(holds: bool, seen: str, *, value: float | None = None, unit: str = "") -> Observed:
    """Return the result of a check: proven if `holds`, else refuted. `seen`: what was seen, in words."""
    return Observed("proven" if holds else "refuted", seen, value, unit)


def check(look: Check) -> Check:
    """Decorate a check whose evidence may be lacking: the fact then counts as not covered, for the reason that was raised."""

    @functools.wraps(look)
    def looked(evidence: Evidence) -> Observed:
        """Run the check; return "not covered" with the reason if evidence is lacking."""
        try:
            return look(evidence)
        except Lacking as reason:
            return Observed("not covered", str(reason))

    return looked


def checks_in(module: str) -> dict[str, Check]:
    """Return the checks of a module by the ids of their facts in docs/aws.md, which are the names of the functions."""
    found = vars(sys.modules[module]).items()
    return {name.replace("_", "-"): each for name, each in found if hasattr(each, "__wrapped__")}
