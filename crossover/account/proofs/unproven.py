"""The list of what is unproven on AWS: the table in docs/aws.md, which people and `crossover verify-aws` both read."""

import re
from dataclasses import dataclass
from pathlib import Path

from crossover.errors import CrossoverError

DOCUMENT = Path(__file__).parents[3] / "docs" / "aws.md"
ROW = re.compile(
    r"^\| `(?P<id>[a-z0-9-]+)` \| (?P<what>.+?) \| (?P<rests_on>.+?) \| (?P<if_wrong>.+?) \|$", re.MULTILINE
)


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One line of the list."""

    id: str
    what: str
    rests_on: str
    if_wrong: str


def read(path: Path = DOCUMENT) -> tuple[Fact, ...]:
    """In the document's order. Raises CrossoverError where it has no such table."""
    _, _, section = path.read_text("utf-8").partition("\n## Unproven\n")
    found = tuple(Fact(**match.groupdict()) for match in ROW.finditer(section))
    if not found:
        raise CrossoverError(f"{path}: no table of unproven facts below '## Unproven'")
    return found
