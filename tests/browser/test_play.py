"""The sliders of play.html move what the page says, and it says what was simulated."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from crossover.reports import display
from crossover.reports.report_pages import SCRIPTS
from crossover.simulation import breakeven_page
from crossover.simulation.breakeven import LEADS, READY, Point, describe_option, find_best, sort_by_median, with_workers
from crossover.simulation.breakeven_page import PlayGrid, find_surely_beaten
from tests.browser.chromium import asked, judged
from tests.browser.pages import small_grid

MOVES = (("parameters", "End"), ("epochs", "End"), ("workers", "End"), ("epochs", "Home"), ("deadline", "Home"))


@pytest.fixture(scope="module")
def found() -> PlayGrid:
    """Return a grid in which the two cheapest cannot be told apart at one place, which the test reaches by the epochs' slider."""
    grid = small_grid()
    at = (grid.axes["epochs"][-1], grid.own["parameters"], grid.own["workers"])
    reversed_draws = sort_by_median(grid.cells[at], "dollars")[0].outcomes[::-1]
    tied = [replace(each, outcomes=reversed_draws) if each.name == "one-machine" else each for each in grid.cells[at]]
    return replace(grid, cells={**grid.cells, at: tied})


def moved(page: Path, tmp_path: Path, *moves: tuple[str, str]) -> list[dict[str, Any]]:
    """Return what the page shows after each move of a slider. `moves`: (slider, value)."""
    told: list[dict[str, Any]] = asked("play.mjs", tmp_path, page, json.dumps(moves))
    return told


def settings(found: PlayGrid) -> list[dict[str, int]]:
    """Return the positions of the sliders, except the deadline's, at first and after each of MOVES."""
    standing = dict(found.own)
    settings = [dict(standing)]
    for slider, key in MOVES:
        if slider != "deadline":
            standing[slider] = found.axes[slider][-1 if key == "End" else 0]
        settings.append(dict(standing))
    return settings


def cell(found: PlayGrid, at: dict[str, int]) -> Sequence[Point]:
    """Return the simulated points at the positions of the sliders."""
    return found.cells[at["epochs"], at["parameters"], at["workers"]]


def leaders(points: Sequence[Point]) -> list[Point]:
    """Return the cheapest point and those that it is not significantly cheaper than."""
    names = dict(zip((each.name for each in points), find_surely_beaten(points, "dollars"), strict=True))
    return [
        each for first in sort_by_median(points, "dollars")[:1] for each in points if each.name not in names[first.name]
    ]


def rows(
    points: Sequence[Point], refused: Mapping[str, str], late_s: float, words: Mapping[str, str]
) -> list[list[str]]:
    """Return the texts of the table's cells as the page should show them, row by row, those that would not run last. `refused`: by name,
    why a point would not run; `late_s`: the deadline in seconds; `words`: by name, what an option consists of.
    """
    table = []
    for each in sort_by_median(points, "dollars"):
        time, dollars = each.band(READY), each.band("dollars")
        beaten = any(o.band(READY).p50 <= time.p50 and o.band("dollars").p50 < dollars.p50 for o in points)
        here = [*([] if beaten else ["on the front"]), *(["too late"] if time.p95 > late_s else [])]
        cells = [
            (shown(b.p50), f"{shown(b.p5)} to {shown(b.p95)}")
            for shown, b in ((display.seconds, time), (display.usd, dollars))
        ]
        table.append([each.name, words[each.name], *(text for pair in cells for text in pair), ", ".join(here)])
    return table + [[name, words[name], "", "", "", "", f"would not run: {why}"] for name, why in refused.items()]


def test_the_sliders_change_table_answer_and_list(found: PlayGrid, tmp_path: Path) -> None:
    """Check that at each position of the sliders the page shows what was simulated.

    The table has the simulated figures, the answer the cheapest architecture, and the list where another one becomes cheapest.
    """
    *seen, again = moved(breakeven_page.write_sliders(found, tmp_path), tmp_path, *MOVES)
    assert {**again, "drawn": []} == {**seen[-1], "drawn": []}, "the address keeps the sliders' positions"
    assert seen[-1]["hash"] == "#epochs=1&parameters=300000000&workers=16&deadline=10&over=parameters"
    assert len(seen[-1]["csv"].splitlines()) == 1 + len(seen[-1]["rows"])
    late_s = breakeven_page.DEADLINES_S[0]
    for at, told, (slider, _) in zip(settings(found), seen, [("", ""), *MOVES], strict=True):
        limit_s = late_s if slider == "deadline" else float("inf")
        words = {
            each.name: describe_option(each if each.workers == 1 else with_workers(each, at["workers"]))
            for each in found.experiments
        }
        points, refused = cell(found, at), found.refused[at["epochs"], at["parameters"], at["workers"]]
        assert {each.name for each in points} | set(refused) == {each.name for each in found.experiments}
        assert [[row[0].split(" ")[1], *row[1:]] for row in told["rows"]] == rows(points, refused, limit_s, words)
        kept = [each for each in points if each.band(READY).p95 <= limit_s]
        assert (": nothing holds that at p95" in told["says"]) == (not kept)
        if kept:
            cheapest, surely = sort_by_median(kept, "dollars")[0], len(leaders(kept)) == 1
            begins = f": {cheapest.name} ({words[cheapest.name]}) {'is cheapest' if surely else 'and '}"
            assert begins in told["says"], told["says"]
            assert surely or "too close to call as cheapest" in told["says"]
        for (axis, (figure, what)), line in zip(product(found.axes, LEADS.items()), told["crossings"], strict=True):
            names = []
            for value in found.axes[axis]:
                those = [each for each in cell(found, at | {axis: value}) if each.band(READY).p95 <= limit_s]
                names.append(breakeven_page.describe_best(find_best(those, figure)))
            assert line.startswith(f"Over {axis}, {what}: {names[0]} ")
            assert ("throughout" in line) == (len(set(names)) == 1), line
            assert all(name in line for name in names), line
        assert told["heard"][0] == f"{at['epochs']} epoch{'s' if at['epochs'] > 1 else ''}"
    assert any("too close to call" in line for told in seen for line in told["crossings"])
    assert any("would not run" in row[-1] for told in seen for row in told["rows"])
    assert seen[0]["instead"] == ["", ""]
    drawn = [tuple(told["drawn"]) for told in seen]
    assert len({len(each) for each in drawn}) == 1 and len(drawn[0]) == 2
    assert len(set(drawn)) == len(drawn), "every move changes what is drawn"
    assert len({told["says"] for told in seen}) == len(seen)


@pytest.mark.slow
def test_without_uplot_words_and_figures_are_whole(found: PlayGrid, tmp_path: Path) -> None:
    """Check that the page without uPlot shows a sentence in place of the plots, and everything else as usual."""
    page = breakeven_page.write_sliders(found, tmp_path, uplot=tmp_path / "none")
    first, last, _ = moved(page, tmp_path, MOVES[0])
    assert first["drawn"] == [] and first["instead"] == [breakeven_page.WITHOUT] * 2
    assert first["says"] != last["says"] and last["rows"]
    assert judged(page, tmp_path)[0] == []


@pytest.mark.parametrize("changed", ["uPlot.iife.min.js", "uPlot.min.css"])
def test_no_other_script_or_style_than_the_published_one_gets_into_the_page(
    found: PlayGrid, tmp_path: Path, changed: str
) -> None:
    """Check that the page is built without uPlot if one of its files is not the published one."""
    folder = shutil.copytree(breakeven_page.UPLOT, tmp_path / "uplot")
    assert len(breakeven_page.build_sliders_page(found, folder).scripts) == 2
    with (folder / changed).open("a") as file:
        file.write("/* and more */")
    page = breakeven_page.build_sliders_page(found, folder)
    assert len(page.scripts) == 1 and page.styles == []


def test_our_own_script_can_be_read() -> None:
    """Check that play.js has at most 400 lines."""
    assert len((SCRIPTS / "play.js").read_text().splitlines()) <= 400
