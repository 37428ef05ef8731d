"""What `doctor` found."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing looked at; where it does not hold, `detail` says how to mend it. `certain` False: inferred, no API tells it."""

    name: str
    holds: bool
    detail: str
    certain: bool = True
