"""What `doctor` found."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing looked at; where it does not hold, `detail` says how to mend it. `certain` False: inferred, no API tells it; `asked` False:
    the account does not let these credentials ask.
    """

    name: str
    holds: bool
    detail: str
    certain: bool = True
    asked: bool = True

    @property
    def word(self) -> str:
        return ("ok" if self.holds else "missing") if self.asked else "unasked"
