"""The page of all tables and figures: every printed figure stands on it, with ours or with the reason and the command."""

import csv
import re
from pathlib import Path

import pytest

from crossover.reports import published
from crossover.simulation.papers import compare_figures
from crossover.study import paper_cells, papers
from crossover.study.paper_cells import NOT_RUN, NoFigure, Section, TableCell, make_measured
from crossover.study.paper_runs import ReplicationOutcome, Scale
from crossover.study.papers import PARTS, Book, choose_parts, list_measurements
from tests.unit.study.papers import made_up

SMALL = Scale(0.02)
WANTED = list_measurements(choose_parts(["all"]), SMALL)


def filled(*, without: tuple[str, ...] = ()) -> Book:
    """Return the book filled with made-up outcomes. `without`: keys of measurements that are missing."""
    outcome = made_up.outcome(WANTED, SMALL, without=without)
    return papers.fill_book(choose_parts(["all"]), outcome, SMALL, command="crossover replicate all --scale 0.02")


BOOK = filled()


def cells(name: str, of: Book = BOOK) -> list[TableCell]:
    """Return the cells of the section with this name."""
    return list(next(section.cells for section in of.sections if section.name == name))


def one(name: str, row: str, figure: str, of: Book = BOOK) -> TableCell:
    """Return the only cell of the section with this row and figure."""
    (found,) = [cell for cell in cells(name, of) if (cell.row, cell.figure) == (row, figure)]
    return found


def test_every_printed_figure_has_a_cell() -> None:
    """Every number of config/published.yaml that is a result has a cell in the book of all parts."""
    stated = {"function_s", "memory_mb", "function_usd", "total_s", "worker_usd", "total_usd", "epoch_s", "fetch_s", "in_database_s",
              "without_filter_s", "with_filter_s", "speedup", "communication_s", "minutes", "accuracy", "compute_s", "lambda_usd_per_s",
              "peer_usd", "cost_ratio", "reduction", "fetch", "compute", "synchronise", "update"}  # fmt: skip
    given = {"Table I", "Table II", "Table III"}  # memory is a setting there, or a list by stage
    shown = {(cell.by.source, cell.name) for section in BOOK.sections for cell in section.cells if cell.by}
    for row in published.load():
        for figure in row.figures:
            if figure in stated and not (figure == "memory_mb" and row.table in given):
                assert (row.source, figure) in shown
    assert len(cells("2023-table-I")) == 6 * 5 * 3


def test_every_cell_has_ours_with_a_label_or_a_reason_with_a_command() -> None:
    """Every cell has our value with its label and ratio, or a reason why not and the command that would measure it."""
    for section in BOOK.sections:
        for cell in section.cells:
            if isinstance(cell.ours, NoFigure):
                assert cell.label == NOT_RUN and cell.ours.reason and cell.command.startswith("crossover ")
            else:
                assert cell.label in ("measured-local", "projected")
                assert cell.label == "measured-local" or cell.ours.note, (
                    f"{cell.row}, {cell.figure}: how it follows is not said"
                )
                if isinstance(cell.published, float | int):
                    assert cell.ratio == pytest.approx(float(cell.ours.value) / cell.published)


def test_table_2_by_the_papers_formula() -> None:
    """Our dollars in Table 2 follow from our seconds by the paper's formula."""
    row = "MobileNet / SPIRT"
    assert one("2025-table-2", row, "function_s").ours.value == made_up.WALL_S - made_up.EVALUATE_S  # type: ignore[union-attr]
    usd = 8.0 * 0.300 * 0.0000166667
    assert one("2025-table-2", row, "function_usd").ours.value == pytest.approx(usd)  # type: ignore[union-attr]
    total = one("2025-table-2", row, "total_usd")
    assert total.ours.value == pytest.approx(96 * usd) and total.label == "projected"  # type: ignore[union-attr]
    assert one("2025-table-2", row, "function_s").ratio == pytest.approx(8 / 15.44)


def test_fewer_images_are_taken_for_512_and_called_projected() -> None:
    """Seconds measured with smaller minibatches are scaled to 512 images, labelled "projected", and remarked."""
    cell = one("2025-table-2", "ResNet-18 / SPIRT", "function_s")
    assert cell.label == "projected" and "with 61 images" in cell.remarks
    assert cell.ours.value == pytest.approx(8.0 + 0.5 * (512 / 61 - 1))  # type: ignore[union-attr]


def test_figures_that_do_not_follow_from_the_formula_are_marked() -> None:
    """The remark "does not follow" is on exactly those published numbers that are listed as deviating."""
    marked = {
        (cell.row, cell.figure)
        for section in BOOK.sections
        for cell in section.cells
        if "does not follow" in cell.remarks
    }
    expected = {(row.row, figure) for row in published.load() for figure in row.deviates}
    assert marked == expected
    assert "0.035550 (+3.0 %)" in one("2023-table-II", "batch 128", "peer_usd").remarks.replace("0.03555 ", "0.035550 ")


def test_tables_ii_and_iii_by_the_papers_equations() -> None:
    """Our seconds and dollars in Tables II and III follow from measured stages by the paper's equations."""
    at_128, at_512 = (one("2023-table-III", f"batch {size}", "compute_s").ours for size in (128, 512))
    assert at_128.value == pytest.approx(118 * 0.25)  # type: ignore[union-attr]
    assert at_512.value == pytest.approx(30 * 0.25 * 4)  # type: ignore[union-attr]
    assert one("2023-table-II", "batch 128", "compute_s").ours.value == 10.0 - 2.0  # type: ignore[union-attr]
    at_512 = one("2023-table-II", "batch 512", "compute_s").ours
    assert one("2023-table-II", "batch 512", "compute_s").label == "projected"
    assert at_512.value == pytest.approx(8.0 - 0.5 + 1.0)  # type: ignore[union-attr]
    usd = (1800 / 1024 * 0.0000133334 * 118 + 0.00000639) * 8.0
    assert one("2023-table-II", "batch 128", "peer_usd").ours.value == pytest.approx(usd)  # type: ignore[union-attr]


def test_figure_3_shows_the_printed_seconds_of_tables_ii_and_iii_for_four_peers() -> None:
    """Figure 3 has published seconds for four peers only, from Tables II and III."""
    printed = {(cell.row, cell.figure): cell.published for cell in cells("2023-figure-3")}
    assert printed["4 peers, batch 1024", "with functions"] == 41.2
    assert printed["4 peers, batch 64", "on the instance"] == 394.8
    assert {seconds for (row, _), seconds in printed.items() if not row.startswith("4 peers")} == {None}


def test_what_is_not_run_says_why_and_how(tmp_path: Path) -> None:
    """A cell whose run is missing is labelled "not run", without a ratio, and names the reason and the command, in every file."""
    without = filled(without=("epoch-mlless-mobilenet",))
    cell = one("2025-table-2", "MobileNet / MLLess", "function_s", without)
    assert cell.label == NOT_RUN and cell.ratio is None
    assert cell.command == (
        "crossover run config/mlless-cifar10.yaml --set training.epochs=1 --set functions.memory_mb.default=3024 "
        "--out results/epoch-mlless-mobilenet"
    )
    assert cell.command in papers.to_markdown(without) and cell.command in papers.to_csv(without)
    assert one("2025-table-2", "MobileNet / GPU", "epoch_s").remarks.startswith("no GPU on this machine")


def test_unlike_tasks_have_no_part_in_the_verdict() -> None:
    """A cell of a different task is marked as not comparable."""
    cell = one("2025-table-3", "AllReduce", "accuracy")
    assert cell.ratio is not None and not cell.is_comparable and "unlike tasks" in cell.remarks
    assert re.search(r"\d+ of \d+ printed figures have ours beside them", papers.summarize_book(BOOK.sections))


def test_the_simulators_word_stands_beside_the_papers_seconds() -> None:
    """The simulator's value is in the cell of every number that it projects, with a remark if that number was held out."""
    simulated = {
        (cell.by.source, cell.name): cell for s in BOOK.sections for cell in s.cells if cell.by and cell.simulated
    }
    assert set(simulated) == {(each.row.source, each.figure) for each in compare_figures()}
    for each in compare_figures():
        cell = simulated[each.row.source, each.figure]
        assert cell.simulated == each.projected and cell.published == each.printed
        assert ("has not seen" in cell.remarks) == each.held_out


@pytest.mark.slow
def test_all_three_files_have_every_section_and_cell(tmp_path: Path) -> None:
    """The HTML, Markdown and CSV files have every section and cell, and the page refers only to files of its folder."""
    path = papers.write(BOOK, tmp_path)
    text, markdown = path.read_text(), (tmp_path / "index.md").read_text()
    rows = list(csv.DictReader((tmp_path / "cells.csv").read_text().splitlines()))
    assert len(rows) == sum(len(section.cells) for section in BOOK.sections)
    assert {row["label"] for row in rows} == {"measured-local", "projected", NOT_RUN}
    for part in PARTS.values():
        assert f"## {part.title}" in markdown
        assert part.title.replace("'", "&#39;") in text
    assert "<script" not in text and "src=" not in text
    others = re.findall(r'href="(?!#|data:)([^"]*)"', text)
    assert all((tmp_path / each).is_file() for each in others), "a page names files of its own folder alone"
    assert len(re.findall("<svg", text)) == sum(len(section.drawings) for section in BOOK.sections) >= 9
    assert "data.limit none → 2048" in markdown


@pytest.mark.slow
def test_a_page_without_any_run(tmp_path: Path) -> None:
    """The page is written without any run; its cells are "not run" or "projected"."""
    nothing = filled(without=tuple(each.key for each in WANTED))
    papers.write(nothing, tmp_path)
    labels = {cell.label for section in nothing.sections for cell in section.cells}
    assert labels <= {NOT_RUN, "projected"}


def section(*ours: float) -> Section:
    """Return a section of three published times, 10, 20 and 40 s, and our own beside them."""
    rows = [
        TableCell(row=f"{n}", figure="time", unit="s", published=printed, ours=make_measured(value))
        for n, (printed, value) in enumerate(zip((10.0, 20.0, 40.0), ours, strict=True))
    ]
    return Section(name="a-table", title="a table", cells=rows)


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        ((11.0, 19.0, 50.0), "direction and size"),
        ((100.0, 200.0, 400.0), "direction alone"),
        ((22.0, 20.0, 21.0), "size alone"),
        ((400.0, 200.0, 100.0), "neither"),
    ],
)
def test_a_finding_is_reproduced_in_direction_and_size(ours: tuple[float, ...], words: str) -> None:
    """A finding's verdict says whether direction, size, both or neither are reproduced. `ours`: our values; `words`: the verdict."""
    (found,) = paper_cells.judge_findings([section(*ours)])
    assert found.verdict == words and found.pairs == 3
    assert f"1 in {words}" in paper_cells.summarize_findings([found])


def test_a_page_says_which_runs_used_generated_images(tmp_path: Path) -> None:
    """Runs on generated images are named in the section's notes, a warning and the table of cuts."""
    part = papers.PARTS["2023-figure-5"]
    measurements = part.measurements(SMALL)
    runs = {each.key: made_up.run(each.on_generated_images(), SMALL) for each in measurements}
    outcome = ReplicationOutcome(runs=runs, generated=dict.fromkeys(runs, "mnist: not here"))
    book = papers.fill_book([part], outcome, SMALL, command="crossover replicate 2023-figure-5")
    (section,) = book.sections
    assert "Generated images" in section.notes[-1] and "mnist: not here" in section.notes[-1]
    page = papers.build_page(book)
    assert any("Generated images" in warning for warning in page.warnings)
    cut = {row[0]: row for row in papers.list_cuts(book)}
    for key in runs:
        assert cut[key][1] == "finished, on generated images" and "data.dataset=mnist-generated" in cut[key][3]
