"""The picture of who imports whom in docs/architecture.md: `python -m tools.house` writes it. An arrow that others imply is left out."""

import re
from pathlib import Path

import networkx

from tests.unit.test_structure import PACKAGES, files, module_of, named, part_of
from tools import refuse_arguments

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
DRAWN = re.compile(r"(?<=^```mermaid\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


def draw_page() -> str:
    """Return the text of docs/architecture.md with its diagram of the packages' imports drawn anew from the code; nothing is written.
    Arrows that others imply are left out.
    """
    house = networkx.DiGraph()
    for path in files():
        own = part_of(module_of(path))
        parts = {part_of(module) for module, _ in named(path)}
        house.add_edges_from((own, part) for part in parts - {own, "crossover"} if part.split(".")[0] in PACKAGES)
    house.remove_nodes_from(["app", "crossover"])
    ground = [part for part in house if not house[part]]
    ends = " · ".join(sorted(part.removeprefix("crossover.") for part in ground))
    house.remove_nodes_from(ground)
    arrows = sorted(networkx.transitive_reduction(house).edges)
    names = sorted(name.removeprefix("crossover.") for name in house if name.startswith("crossover."))
    lines = [
        "graph TD",
        *(f"  {'  -->  '.join(part.removeprefix('crossover.') for part in arrow)}" for arrow in arrows),
        f'  {find_ground(house)} --> ground["{ends}: these import nothing of ours"]',
        f"  classDef within fill:#eef2f7,stroke:#5b6b7f\n  class {','.join(names)} within",
    ]
    return DRAWN.sub(lambda _: "\n".join(lines) + "\n", PAGE.read_text(encoding="utf-8"))


def find_ground(house: "networkx.DiGraph[str]") -> str:
    """Return the names of the packages of `house` that import no other one of it, joined by " & " as Mermaid expects."""
    return " & ".join(sorted(part.removeprefix("crossover.") for part in house if not house[part]))


if __name__ == "__main__":
    refuse_arguments(__doc__)
    PAGE.write_text(draw_page(), encoding="utf-8")
