"""What an experiment or a project has on AWS: every entry of every listing that is ours or looks like it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from crossover.account.resources import ownership
from crossover.account.resources.listings import KINDS
from crossover.account.resources.ownership import Owner, Whose


@dataclass(frozen=True)
class FoundResource:
    """One resource, by the id that its own API takes. `why`: it looks like ours and is not provably so."""

    kind: str
    id: str
    name: str
    whose: Whose
    why: str = ""

    @property
    def billable(self) -> bool:
        return KINDS[self.kind].billable

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def take(session: Any, owner: Owner, kinds: Iterable[str] = ()) -> list[FoundResource]:
    """All there is, kind by kind. Raises botocore's errors, so that an API that does not answer is never taken for an empty one."""
    found: list[FoundResource] = []
    for kind in kinds or KINDS:
        entries = {each.id: each for each in KINDS[kind].entries(session, owner)}
        for entry in sorted(entries.values(), key=lambda each: each.name):
            if (tags := KINDS[kind].tags) and entry.id in owner.left.get(entry.type, ()):
                entry = replace(entry, witness=tags(session, entry.id))
            whose, why = ownership.whose(session, owner, entry)
            if whose is not Whose.NOT_OURS:
                found.append(FoundResource(kind, entry.id, entry.name, whose, why))
    return found
