"""The simulator judged: every figure that it can know of the papers' rows beside what was printed.

The headline counts rows held out alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import median

from crossover.calibration.papers import (
    PAPERS,
    batches_s,
    communication_s,
    function_s,
    in_database_s,
    is_held_out,
    peer_s,
)
from crossover.calibration.papers_deployments import gpus, lambdaml, peers, spirt, vgg_functions, vgg_instances
from crossover.reports.bands import of_errors
from crossover.reports.published import Row, rows

A, B = PAPERS
Figures = Mapping[str, float]


@dataclass(frozen=True)
class JudgedFigure:
    """One figure of one row. `held_out`: the fits have not seen it."""

    row: Row
    figure: str
    printed: float
    projected: float
    held_out: bool

    @property
    def error(self) -> float:
        return abs(self.projected / self.printed - 1)


def projections(row: Row) -> Figures:
    """What the simulator says of a row's figures in seconds; nothing for a row without any that it can know."""
    figures = row.figures
    match (row.paper, row.table):
        case (str(), "Table 2") if row.paper == A:
            name = "epoch_s" if figures["architecture"] == "gpu" else "function_s"
            fleet = {"gpu": gpus}.get(figures["architecture"], lambdaml)()
            return {name: function_s(row, fleet)}
        case (str(), "Section 4.2") if "stage" in figures:
            return {name: in_database_s(row, spirt(), name) for name in ("fetch_s", "in_database_s")}
        case (str(), "Section 4.2") if "communication_s" in figures:
            return {"communication_s": communication_s(row, lambdaml())}
        case (str(), "Table I"):
            return {f"wall_s.{name}": peer_s(row, peers(), name) for name in figures["columns"]}
        case (str(), "Table II"):
            return {"compute_s": batches_s(row, vgg_functions())}
        case (str(), "Table III"):
            return {"compute_s": batches_s(row, vgg_instances())}
    return {}


@cache
def judged() -> tuple[JudgedFigure, ...]:
    """Every figure that can be projected, calibration rows too, in the order of the file."""
    found = []
    for row in rows():
        for figure, value in projections(row).items():
            name, _, part = figure.partition(".")
            printed = row.figures[name]
            if part:
                printed = printed[row.figures["columns"].index(part)]
            found.append(JudgedFigure(row, figure, float(printed), value, is_held_out(row)))
    return tuple(found)


def row_errors(*, held_out_rows: bool = True) -> dict[str, float]:
    """By row: the median of its figures' errors."""
    errors: dict[str, list[float]] = {}
    for each in judged():
        if each.held_out == held_out_rows:
            errors.setdefault(each.row.source, []).append(each.error)
    return {source: median(found) for source, found in errors.items()}


def median_error() -> float:
    """The headline: over the rows held out."""
    return median(row_errors().values())


def headline() -> str:
    """What the table comes to, the worst with it."""
    errors, figures = row_errors(), [each.error for each in judged() if each.held_out]
    off = sum(each > 0.15 for each in figures)
    return (
        f"Error over the {len(errors)} rows held out: {of_errors(list(errors.values()))} (goal: a median of at most 15 %). "
        f"Over their {len(figures)} figures by themselves: {of_errors(figures)}, {off} of them off by more than 15 %."
    )
