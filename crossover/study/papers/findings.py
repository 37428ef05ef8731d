"""Whether the papers' findings are reproduced: does what was printed as larger come out larger here, and is it as large."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from crossover.reports import display
from crossover.study.papers.cells import Ours, Section, TableCell

APART = 1.05  # printed figures that differ by less have no direction
AGREED = 0.9  # of the pairs, from which on the direction is the printed one
SIZE = 2.0  # a figure is as large as the printed one within such a factor
WORDS = ("direction and size", "direction alone", "size alone", "neither")


@dataclass(frozen=True)
class Reproduction:
    """A column of printed figures beside ours. `pairs`: of rows that the paper tells apart, and how many of them come out in the same
    direction. `ratio`: of ours to the printed ones, the median of like figures; None where there are none.
    """

    section: str
    figure: str
    agreeing: int
    pairs: int
    ratio: float | None

    @property
    def reproduced(self) -> str:
        """One of WORDS; what cannot be told is not held against it."""
        direction = self.agreeing >= AGREED * self.pairs
        size = self.ratio is not None and 1 / SIZE <= self.ratio <= SIZE
        if not self.pairs or self.ratio is None:  # only one of the two can be told
            return WORDS[3] if not (direction if self.pairs else size) else WORDS[1 if self.pairs else 2]
        return WORDS[(0 if size else 1) if direction else (2 if size else 3)]

    @property
    def row(self) -> list[str]:
        pairs = f"{self.agreeing} of {self.pairs} pairs" if self.pairs else display.DASH
        size = display.DASH if self.ratio is None else f"{self.ratio:.2g}x"
        return [self.section, self.figure, self.reproduced, pairs, size]


HEAD = ("table or figure", "figure", "reproduced", "direction", "ours by printed")


def findings(sections: Sequence[Section]) -> Iterator[Reproduction]:
    """Of every column that has a printed figure and one of ours, simulated at the published size where the simulator can tell."""
    for section in sections:
        columns: dict[tuple[str, str], list[TableCell]] = {}
        for cell in section.cells:
            if _ours(cell) is not None and isinstance(cell.published, float | int):
                columns.setdefault((cell.figure, cell.unit), []).append(cell)
        for (figure, _), cells in columns.items():
            values = [(float(cell.published or 0), _ours(cell) or 0.0) for cell in cells]
            pairs = [(a, b) for a, b in combinations(values, 2) if max(a[0], b[0]) > APART * min(a[0], b[0])]
            agreeing = sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in pairs)
            ratios = [ratio for cell in cells if (ratio := _ratio(cell))]
            if pairs or ratios:
                yield Reproduction(section.name, figure, agreeing, len(pairs), median(ratios) if ratios else None)


def _ours(cell: TableCell) -> float | None:
    value = cell.ours.value if cell.simulated is None and isinstance(cell.ours, Ours) else cell.simulated
    return None if isinstance(value, str) else value


def _ratio(cell: TableCell) -> float | None:
    return cell.simulated_ratio if cell.simulated is not None else cell.ratio if cell.compares else None


def words(found: Sequence[Reproduction]) -> str:
    """`of 40 findings 20 are reproduced in direction and size, 8 in direction alone, ...`."""
    counts = Counter(each.reproduced for each in found)
    told = ", ".join(f"{counts[word]} in {word}" for word in WORDS)
    return f"of {len(found)} columns of printed figures {told} (direction: {AGREED:.0%} of the pairs; size: within {SIZE:g}x)"
