"""Figures printed in the papers: `config/published.yaml`, row by row with its source. Always labelled `published`, never mixed
with measurements.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

PUBLISHED = Path(__file__).parents[2] / "config" / "published.yaml"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a table printed in a paper. `row`: its name; `about`: what the table is about; `figures`: values by column, with values
    that the table states once for all rows; `deviates`: by column, for figures that do not follow from the paper's own formula, `formula`
    (what it gives) and `relative` (formula / printed - 1); `note`: remark of ours.
    """

    paper: str
    table: str
    row: str
    about: str
    figures: Mapping[str, Any]
    deviates: Mapping[str, Mapping[str, float]]
    note: str

    @property
    def source(self) -> str:
        """The row's paper, table and name as one text, for a citation."""
        return f"{self.paper}, {self.table}, {self.row}"


@cache
def load(path: Path = PUBLISHED) -> tuple[Row, ...]:
    """Return all rows of all tables in the YAML file `path`, by default config/published.yaml, in its order. A file is read once per
    process; the rows are shared by all callers and must not be changed.
    """
    plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    return tuple(_row(table, entry) for table in plain["tables"] for entry in table["rows"])


def rows(
    *, paper: str | None = None, table: str | None = None, architecture: str | None = None, model: str | None = None
) -> list[Row]:
    """Return those rows of config/published.yaml that match every given argument, in the file's order; None matches all. `paper`, `table`:
    where the row is printed; `architecture`, `model`: values in the row.
    """
    return [
        row
        for row in load()
        if (paper is None or row.paper == paper)
        and (table is None or row.table == table)
        and (architecture is None or row.figures.get("architecture") == architecture)
        and (model is None or row.figures.get("model") == model)
    ]


OF_TABLE = ("workers", "functions_per_worker", "columns")  # facts a table states once for all its rows


def _row(table: Mapping[str, Any], entry: Mapping[str, Any]) -> Row:
    """Return one row of a table. `table`: the table's entry in the YAML file, whose common values each row gets; `entry`:
    the row's entry.
    """
    shared = {name: table[name] for name in OF_TABLE if name in table}
    figures = {name: value for name, value in entry.items() if name not in ("row", "deviates", "note")}
    return Row(
        paper=table["paper"],
        table=table["table"],
        row=entry["row"],
        about=table["about"],
        figures={**shared, **figures},
        deviates=entry.get("deviates", {}),
        note=" ".join(part for part in (entry.get("note"), table.get("note")) if part),
    )
