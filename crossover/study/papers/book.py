"""From the runs that are there to the filled tables and figures."""

import os
import platform
from collections.abc import Sequence

from crossover.study.papers import runner
from crossover.study.papers.book_page import Book
from crossover.study.papers.measurement import Scale
from crossover.study.papers.part import Found, Part
from crossover.study.papers.projection import with_projections


def of(parts: Sequence[Part], outcome: runner.Replicated, scale: Scale, *, command: str) -> Book:
    """Every part filled; cells without a run say why and how to get one."""
    sections = []
    for part in parts:
        found = Found(
            part=part,
            scale=scale,
            runs=outcome.runs,
            whole=outcome.whole,
            missing=outcome.missing,
            has_gpu=runner.has_gpu(),
        )
        sections.append(with_projections(part.fill(found)))
    return Book(sections=sections, outcome=outcome, scale=scale, command=command, machine=machine())


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
