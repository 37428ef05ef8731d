"""One small page of each kind, from runs and figures that are made up or projected in seconds."""

from dataclasses import replace
from pathlib import Path

import pytest

from crossover.advice import advice, page
from crossover.advice import question as subject
from crossover.advice.question import Constraints
from crossover.reports import comparison, folder, prices, report_pages
from crossover.simulation import AWS, breakeven, breakeven_page
from crossover.study import papers, report
from crossover.study.paper_runs import Scale
from crossover.study.papers import choose_parts, list_measurements
from crossover.study.papers import write as write_book
from tests.architectures.harness import small
from tests.unit.advice.few import few_candidates
from tests.unit.reports.example_run import spirt
from tests.unit.study.papers import made_up
from tests.unit.study.test_tables import row, study

EXAMPLE = spirt(epochs=4)
FAST = spirt(epochs=4, speed=3.0, architecture="all_reduce", name="all-reduce")


def run_page(out: Path) -> Path:
    """Write the page of an example run, with the run's files, into `out`, and return its path."""
    folder.write(out, result=EXAMPLE.result(), records=EXAMPLE.records)
    return report_pages.write_report(out)


def comparison_page(out: Path) -> Path:
    """Write the page of a comparison of two example runs into `out`, and return its path."""
    runs = [
        folder.write(out / "spirt", result=EXAMPLE.result(), records=EXAMPLE.records),
        folder.write(out / "all-reduce", result=FAST.result(), records=FAST.records),
    ]
    return report_pages.write_comparison(comparison.compare_runs(runs), out / "comparison")


def study_page(out: Path) -> Path:
    """Write the page of a study with more settings than a page shows at first into `out`, and return its path."""
    rates = [1.0, 2, 3, 4, 5, 6, 7]
    rows = [row(rate, seed, 0.5 + rate / 100 + seed / 1_000) for rate in rates for seed in (1, 2, 3)]
    out.mkdir(parents=True, exist_ok=True)
    report.write(study(2, 1.0, grid={"training.learning_rate": rates}), rows, {}, out, spent_usd=1.0)
    return out / report.PAGE


def replication_page(out: Path) -> Path:
    """Write the page of the papers' tables from made-up runs into `out`, and return its path."""
    parts, scale = choose_parts(["all"]), Scale(0.02)
    finished = made_up.outcome(list_measurements(parts, scale), scale)
    return write_book(papers.fill_book(parts, finished, scale, command="crossover replicate all"), out)


def breakeven_page_(out: Path) -> Path:
    """Write the page of a small break-even into `out`, and return its path."""
    own = small("spirt", workers=4, epochs=5)
    found = breakeven.breakeven(
        [own, replace(own, name="other", architecture="all_reduce")], AWS, prices.load(), repetitions=3
    )
    return breakeven_page.write_page(found, out)


def advice_page(out: Path) -> Path:
    """Write the page of an advice with few candidates into `out`, and return its path."""
    question, sizes, notes = subject.build_question(small("single", workers=1, epochs=2))
    with few_candidates():
        found = advice.advise(question, Constraints(on_hand=("lambda", "gpu")), sizes, processes=1, repetitions=5)
    return page.write_page(found, out, notes)


def small_grid() -> breakeven_page.PlayGrid:
    """Return a grid of few settings, simulated for the page with sliders."""
    own = small("spirt", workers=4, epochs=5)
    with pytest.MonkeyPatch.context() as patched:
        for name, values in (("EPOCHS", (1, 100)), ("PARAMETERS", (10_000_000, 300_000_000)), ("WORKERS", (16,))):
            patched.setattr(breakeven, name, values)
        return breakeven_page.simulate_grid([own], AWS, prices.load(), repetitions=5, processes=1)


def play_page_(out: Path) -> Path:
    """Write the page with sliders into `out`, and return its path."""
    return breakeven_page.write_sliders(small_grid(), out)


PAGES = {
    "run": run_page,
    "comparison": comparison_page,
    "study": study_page,
    "replication": replication_page,
    "breakeven": breakeven_page_,
    "advice": advice_page,
    "play": play_page_,
}
