"""The list of what is unproven on AWS: the table in docs/aws.md, which people and `make test-aws` both read."""

import re
from pathlib import Path

from crossover.errors import CrossoverError

DOCUMENT = Path(__file__).parents[2] / "docs" / "aws.md"
ROW = re.compile(r"^\| `([a-z0-9-]+)` \| (.+?) \|", re.MULTILINE)


def read(path: Path = DOCUMENT) -> dict[str, str]:
    """Return the unproven facts of docs/aws.md by their ids, in the document's order. Raises CrossoverError if the document has no such
    table.
    """
    _, _, section = path.read_text("utf-8").partition("\n## Unproven\n")
    if not (rows := ROW.findall(section)):
        raise CrossoverError(f"{path}: no table of unproven facts below '## Unproven'")
    return dict(rows)
