"""play.html: sliders over a grid that was simulated beforehand. Its scripts stand in it, and their hashes in its policy."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from crossover.reports.folder import write_atomically
from crossover.reports.html import SCRIPTS, render
from crossover.reports.page import Page, Sheet
from crossover.simulation.breakeven_page import looks_of
from crossover.simulation.play import PlayGrid, ahead
from crossover.simulation.repetitions import LIMITS

PAGE = "play.html"
DEADLINES_S = (10, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400)
UPLOT = Path(__file__).parents[2] / "node_modules" / "uplot" / "dist"
UPLOT_SHA256 = {  # of 1.6.32, which package-lock.json pins
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
WITHOUT = (
    "The curves are not drawn: uPlot 1.6.32 is not installed here, or its files are not those that were published (make node_modules, in a "
    "checkout); words and figures are whole."
)


def write(found: PlayGrid, out: Path, uplot: Path = UPLOT) -> Path:
    """`play.html` into `out`; its path. `uplot`: the folder that has it; without it, as UPLOT_SHA256 knows it, the page has words and
    figures alone.
    """
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / PAGE, render(page(found, uplot)).encode())
    return out / PAGE


def page(found: PlayGrid, uplot: Path = UPLOT) -> Page:
    """The whole of it as data."""
    first = found.experiments[0]
    scripts, styles = _published(uplot)
    notes = [
        "every figure is projected by simulation, none measured",
        f"each is the p50 of {found.repetitions} repetitions, p5 to p95 beside it; {LIMITS}",
        "one is called cheapest or soonest where it is in 95 of 100 paired draws, and by a hundredth at least",
        "time is the run's; what passes from deploy until everything stands comes before it",
        "a deadline holds where p95 keeps it",
        f"with {found.own['parameters']:,} parameters it is the file's own model; of another size it is taken for a convolutional network "
        "of 50 multiply-accumulates per parameter and sample, which may be more or less than its own",
        f"calibration: {found.calibration.name}: {'; '.join(found.calibration.basis)}",
        *found.left_out,
    ]
    return Page(
        title="What if",
        subtitle=f"{first.training.model} on {first.data.dataset}; prices of {found.prices_as_of}",
        labels=["projected"],
        play=Markup((SCRIPTS / "play.html").read_text(encoding="utf-8")),
        data=json.dumps(as_json(found), separators=(",", ":"), allow_nan=False),
        styles=styles,
        scripts=[*scripts, Markup((SCRIPTS / "play.js").read_text(encoding="utf-8"))],
        sheets=[Sheet(title="What stands behind it", head=["note"], rows=[[note] for note in notes], folded=True)],
    )


def _published(uplot: Path) -> tuple[list[Markup], list[Markup]]:
    """uPlot's script and its style; neither where a file is absent, or is not the one that UPLOT_SHA256 knows."""
    paths = [uplot / name for name in UPLOT_SHA256]
    files = [path.read_bytes() for path in paths if path.is_file()]
    if [hashlib.sha256(file).hexdigest() for file in files] != list(UPLOT_SHA256.values()):
        return [], []
    script, style = (Markup(file.decode()) for file in files)
    return [script], [style]


def as_json(found: PlayGrid) -> Mapping[str, Any]:
    """What the script reads. Of each entrant in a cell: [number, seconds p5, p50, p95, dollars p5, p50, p95, surely cheaper than, surely
    sooner than], those by their numbers; cells in the order of the axes' values, the last axis first. `refused`, in the same order: of
    each of the others [number, which of the `reasons`].
    """
    looks = looks_of(found.experiments)
    numbers = {each.name: n for n, each in enumerate(found.experiments)}

    def rounded(value: float) -> float:
        return float(f"{value:.6g}")

    cells = [
        [
            [
                numbers[point.name],
                *map(rounded, (*point.band("time"), *point.band("dollars"))),
                [numbers[name] for name in cheaper],
                [numbers[name] for name in sooner],
            ]
            for point, cheaper, sooner in zip(points, ahead(points, "dollars"), ahead(points, "time"), strict=True)
        ]
        for points in found.cells.values()
    ]
    reasons = list(dict.fromkeys(reason for refused in found.refused.values() for reason in refused.values()))
    return {
        "axes": found.axes,
        "begin": {name: values.index(found.own[name]) for name, values in found.axes.items()},
        "deadlines": DEADLINES_S,
        "entrants": [
            {"name": each.name, "colour": looks[each.name].colour, "sign": looks[each.name].sign}
            for each in found.experiments
        ],
        "cells": cells,
        "refused": [
            [[numbers[name], reasons.index(reason)] for name, reason in found.refused[setting].items()]
            for setting in found.cells
        ],
        "reasons": reasons,
        "without": WITHOUT,
    }
