"""Cells of a study's tables from rows made by hand."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossover.errors import ConfigError
from crossover.experiment import Metric
from crossover.reports.display import DASH
from crossover.study import report
from crossover.study.file import MEASURES, Study, parse_study
from crossover.study.runner import TrialRow

RATES = {"training.learning_rate": [1.0, 2]}


def study(*pair: Any, **changes: Any) -> Study:
    """Return a study of three seeds on a grid of learning rates. `pair`: the two rates to compare; `changes`: fields of its file to
    replace.
    """
    pairs = {"rate": [{"training.learning_rate": value} for value in pair]} if pair else {}
    return parse_study({"base": {}, "grid": RATES, "pairs": pairs, "seeds": 3, **changes}, Path("small.yaml"))


def row(rate: float, seed: int, value: float, *, trial: str = "") -> TrialRow:
    """Return the row of a finished trial in which every measure has this value."""
    return TrialRow(
        trial=trial or f"{rate} {seed}",
        varied={"training.learning_rate": rate},
        seed=seed,
        label="measured-local",
        cost_label="projected",
        outcome="finished",
        reason="",
        seconds=1.0,
        usd=1.0,
        measures=dict.fromkeys(MEASURES, value),
        curve=[],
        metric=Metric(),
        code="",
        data="",
    )


def found(study: Study, rows: list[TrialRow]) -> dict[tuple[str, str], float | None]:
    """Return the value of each cell of the study's report, by row and column; None if the cell has none."""
    return {(cell.row, cell.column): cell.value for cell in report.make_cells(study, rows)}


def test_a_pair_finds_the_grids_value_however_the_number_is_written() -> None:
    """A pair's value is found in the grid if it is the same number, such as 2.0 for 2; True for 1 raises ConfigError."""
    rows = [row(rate, seed, seed * rate) for rate in (1.0, 2) for seed in (1, 2, 3)]
    cells = found(study(2.0, 1), rows)
    assert cells["rate: learning_rate=2 - learning_rate=1.0", "difference"] == 2.0
    with pytest.raises(ConfigError, match=r"training.learning_rate: True is not in the grid"):
        study(True, 2)


def test_a_pair_of_which_nothing_was_run_is_told_and_counts_for_holm() -> None:
    """A named pair without runs has cells with n 0 and no p, for each setting of the rest of the grid."""
    grid = RATES | {"training.epochs": [1, 2]}
    cells = found(study(1, 2, grid=grid), [])
    name = "rate: learning_rate=1.0, epochs=2 - learning_rate=2, epochs=2"
    assert cells[name, "n"] == 0 and cells[name, "p, Holm"] is None
    assert len([1 for _, column in cells if column == "p, Holm"]) == 2


def test_one_run_twice_is_one_draw() -> None:
    """Several trials with the same setting and seed count once."""
    rows = [row(1.0, 1, 0.9, trial=f"000{n}_seed=1") for n in (1, 2, 3)]
    (first, *_) = report.make_cells(study(), rows)
    assert (first.column, first.value) == ("n", 1)


def test_differences_all_alike_are_called_nothing_else() -> None:
    """A pair whose differences are all equal is shown without interval and p, as "all differences equal: no test"."""
    rows = [row(1.0, seed, 0.94 + seed / 100) for seed in (1, 2, 3)]
    rows += [row(2, seed, 0.93 + seed / 100) for seed in (1, 2, 3)]
    (_, compared) = report.make_sheets(study(1, 2), rows, report.make_cells(study(1, 2), rows))
    assert compared.rows[0][1:] == ["3", "+0.01", DASH, DASH, "all differences equal: no test"]


def test_what_did_not_run_stands_in_the_file_with_its_setting_and_why() -> None:
    """Trials that failed or were not started have rows in the tidy file, with settings, outcome and reason, and no measures."""
    why = {"learning_rate=2_seed=3": "no projection: odd", "learning_rate=1.0_seed=1": "no room"}
    failed = ["learning_rate=1.0_seed=1"]
    one, two, three = report.make_tidy_rows(study(), [row(1.0, 2, 0.9)], why, failed=failed)
    assert one.keys() == two.keys() == three.keys()
    names = ("training.learning_rate", "seed", "outcome", "reason", "final_metric")
    assert [two[name] for name in names] == [2, 3, "not started", "no projection: odd", None]
    assert [three[name] for name in names] == [1.0, 1, "failed", "no room", None]


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        ("moved_bytes", {"moved_bytes", "difference", "p"}),
        ("full_usd", {"p"}),
        ("final_metric", set()),
    ],
)
def test_what_follows_from_no_seed_is_not_called_comparable(metric: str, told: set[str]) -> None:
    """Cells of measures that no seed determines compare as INCOMPARABLE, others as unequal. `metric`: the measure; `told`: those cells'
    columns.
    """
    of = study(1, 2, metric=metric)
    there = report.make_cells(of, [row(rate, seed, 5.0 + rate * seed**2) for rate in (1.0, 2) for seed in (1, 2, 3)])
    there = [replace(cell, low=cell.value, high=cell.value) if cell.low is not None else cell for cell in there]
    here = [replace(cell, value=cell.value + 0.001) if cell.value and cell.column != "n" else cell for cell in there]
    held = list(report.compare_cells(there, here, incomparable=report.list_incomparable(of)))
    stands = {cell.column: how for cell, _, how in held if cell}
    assert {column for column, how in stands.items() if how == report.INCOMPARABLE} - {"p, Holm"} == told
    assert all(how == report.NOT for column, how in stands.items() if column not in {*told, "n", "p, Holm"})
    assert report.INCOMPARABLE not in {how for *_, how in report.compare_cells(there, here)}


def test_the_title_of_its_page_is_the_answer() -> None:
    """A study's title names the best setting, the pairs that differ significantly and the trials that count."""
    rows = [
        row(rate, seed, 0.9 + seed / 1_000 + (0.05 if rate == 2 else 0.0) * seed)
        for rate in (1.0, 2)
        for seed in (1, 2)
    ]
    asked = study(1, 2, metric="best_metric")
    title = report.summarize(asked, rows, report.make_cells(asked, rows))
    assert title.startswith("learning_rate=2 has the best accuracy: 97.7")
    assert title.endswith("; 0 of 1 named pairs differ significantly (95 %, after Holm); 4 of 6 trials count.")
    assert report.summarize(asked, [], report.make_cells(asked, [])) == "Nothing to compare: 0 of 6 trials count."


def test_its_page_shows_the_six_best_settings_and_names_two_points(tmp_path: Path) -> None:
    """A study's page shows its six best settings and folds the whole table; its plot names the best and the cheapest."""
    rates = [1.0, 2, 3, 4, 5, 6, 7, 8]
    rows = [row(rate, seed, 0.5 + rate / 100 + seed / 1_000) for rate in rates for seed in (1, 2, 3)]
    rows = [
        replace(each, measures=each.measures | {"full_usd": each.varied["training.learning_rate"]}) for each in rows
    ]
    asked = study(grid={"training.learning_rate": rates})
    report.write(asked, rows, {}, tmp_path, spent_usd=1.0)
    text = (tmp_path / report.PAGE).read_text()
    head, opened, whole = text.split("<h2>Settings")
    assert re.findall(r"<td>(learning_rate=\S+)", opened.split("</table>")[0]) == [
        f"learning_rate={n}" for n in (8, 7, 6, 5, 4, 3)
    ]
    assert len(re.findall(r"<td>learning_rate", whole.split("</table>")[0])) == 8
    assert "best: learning_rate=8" in head and "cheapest: learning_rate=1.0" in head and ">50 %<" not in head
    assert "Accuracy against total AWS bill" in head and "final_metric against" not in text
