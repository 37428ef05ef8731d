"""The simulator's word beside a printed figure: the papers' deployment at the published size, always projected."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from crossover.calibration.judgement import JudgedFigure, judged
from crossover.study.papers.cells import Section

HELD_OUT = "simulator: has not seen this row"
FITTED = "simulator: fitted to this row"


def with_projections(section: Section) -> Section:
    """`section` with what the simulator says of its cells; the cells as they are where it has no word."""
    cells = []
    for cell in section.cells:
        known = None if cell.by is None else _judged().get((cell.by.source, cell.name))
        if known is not None:
            remark = HELD_OUT if known.held_out else FITTED
            cell = replace(cell, simulated=known.projected, note="; ".join(filter(None, (cell.note, remark))))
        cells.append(cell)
    return replace(section, cells=cells)


@cache
def _judged() -> Mapping[tuple[str, str], JudgedFigure]:
    return {(each.row.source, each.figure): each for each in judged()}
