"""Golden numbers: every figure the papers printed follows from their own formulas, or is listed as one that does not."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
import yaml

from crossover.reports import bill, prices, published
from crossover.reports.published import Row

TOLERANCE = 0.004


def derived(row: Row) -> Iterator[tuple[str, float]]:
    """Yield (figure, value by the paper's formula) for each printed figure that has a formula."""
    f = row.figures
    match row.table:
        case "Table 2" if "function_s" in f:
            yield "function_usd", bill.lambda_usd(f["function_s"], memory_mb=f["memory_mb"])
            yield "total_s", f["function_s"] * f["functions_per_worker"]
            yield "worker_usd", f["function_usd"] * f["functions_per_worker"]
            yield "total_usd", f["function_usd"] * f["functions_per_worker"] * f["workers"]
        case "Table 2":
            yield "worker_usd", bill.gpu_usd(f["epoch_s"])
            yield "total_usd", bill.gpu_usd(f["epoch_s"], instances=f["workers"])
        case "Table II":
            yield "ec2_usd_per_s", prices.load().of(f"ec2.{f['instance_type']}").usd / 3_600
            yield "lambda_usd_per_s", bill.lambda_usd_per_s(f["memory_mb"])
            yield (
                "peer_usd",
                bill.peer_serverless_usd(
                    f["compute_s"],
                    batches=f["batches"],
                    lambda_usd_per_s=f["lambda_usd_per_s"],
                    ec2_usd_per_s=f["ec2_usd_per_s"],
                ),
            )
        case "Table III":
            yield "ec2_usd_per_s", prices.load().of(f"ec2.{f['instance_type']}").usd / 3_600
            yield "peer_usd", bill.peer_instance_usd(f["compute_s"], ec2_usd_per_s=f["ec2_usd_per_s"])


def last_digit(path: tuple[str, str, str], figure: str) -> float:
    """Return one unit of the last digit that the file prints for a figure: 0.0001 for 0.0660, of which a float forgets the last."""
    printed = PRINTED[path][figure]
    return float(Decimal(1).scaleb(int(Decimal(printed).as_tuple().exponent)))


def _printed() -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return each row of the published tables as its YAML has it, numbers as strings, by paper, table and row."""
    plain = yaml.load(published.PUBLISHED.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506  strings only
    return {(t["paper"], t["table"], row["row"]): row for t in plain["tables"] for row in t["rows"]}


PRINTED = _printed()
FIGURES = [(row, figure, value) for row in published.load() for figure, value in derived(row)]


@pytest.mark.parametrize(("row", "figure", "formula"), FIGURES, ids=[f"{r.source}: {f}" for r, f, _ in FIGURES])
def test_printed_figures_follow_from_the_formulas_or_are_listed(row: Row, figure: str, formula: float) -> None:
    """Each published number agrees with its formula, or is listed as deviating, with the formula's value, the relative deviation and a
    note.
    """
    printed = row.figures[figure]
    unit = last_digit((row.paper, row.table, row.row), figure)
    agrees = abs(formula / printed - 1) <= TOLERANCE or abs(formula - printed) <= unit
    if figure in row.deviates:
        assert not agrees, f"{row.source}: {figure} is listed as deviating, but agrees"
        listed = row.deviates[figure]
        assert formula == pytest.approx(listed["formula"], rel=1e-4)
        assert formula / printed - 1 == pytest.approx(listed["relative"], abs=6e-4)
        assert row.note, "a deviation wants a note"
    else:
        assert agrees, f"{row.source}: {figure} printed {printed}, formula {formula}"


def test_only_one_row_of_table_2_reproduces_to_the_printed_digit() -> None:
    """The printed price of Table 2 follows exactly from time and memory for ResNet-18 with SPIRT only."""
    rows = [row for row in published.rows(table="Table 2") if "function_s" in row.figures]
    exact = [
        row.row
        for row in rows
        if f"{bill.lambda_usd(row.figures['function_s'], memory_mb=row.figures['memory_mb']):.6f}"
        == PRINTED[row.paper, row.table, row.row]["function_usd"]
    ]
    assert exact == ["ResNet-18 / SPIRT"]


def test_ratios_of_the_2023_tables() -> None:
    """The ratios of cost and time of the 2023 paper's tables are those that its text states, or the listed deviations."""
    serverless = {row.figures["batch_size"]: row.figures for row in published.rows(table="Table II")}
    instance = {row.figures["batch_size"]: row.figures for row in published.rows(table="Table III")}
    ratios = {size: serverless[size]["peer_usd"] / instance[size]["peer_usd"] for size in serverless}
    assert {size: round(ratio, 2) for size, ratio in ratios.items()} == {1024: 5.36, 512: 4.28, 128: 4.06, 64: 5.34}
    stated = {row.row: row for row in published.rows(table="Text")}
    listed = stated["cost ratio at batch 1024"].deviates["cost_ratio"]
    assert ratios[1024] == pytest.approx(listed["formula"], rel=1e-4)
    assert ratios[1024] / 5.34 - 1 == pytest.approx(listed["relative"], abs=1e-4)
    reduction = 1 - serverless[64]["compute_s"] / instance[64]["compute_s"]
    assert reduction == pytest.approx(stated["less compute time at batch 64"].figures["reduction"], abs=5e-5)


def test_the_filters_speedup_is_the_printed_one() -> None:
    """The published speedup of MLLess's filter is the quotient of its two published times."""
    (row,) = [row for row in published.rows(table="Section 4.2") if row.row.startswith("MLLess")]
    f = row.figures
    assert round(f["without_filter_s"] / f["with_filter_s"]) == f["speedup"]


def test_every_table_of_both_papers_is_there() -> None:
    """The published results have every table of both papers, with all rows, and lists as long as their columns."""
    counts: dict[tuple[str, str], int] = {}
    for row in published.load():
        counts[row.paper, row.table] = counts.get((row.paper, row.table), 0) + 1
    assert counts == {
        ("comparison-2025", "Table 1"): 5,
        ("comparison-2025", "Table 2"): 10,
        ("comparison-2025", "Section 4.2"): 7,
        ("comparison-2025", "Table 3"): 5,
        ("p2p-2023", "Table I"): 6,
        ("p2p-2023", "Table II"): 4,
        ("p2p-2023", "Table III"): 4,
        ("p2p-2023", "Text"): 4,
    }
    for row in published.rows(table="Table I"):
        assert all(len(row.figures[f]) == len(row.figures["columns"]) for f in ("cpu_percent", "memory_mb", "wall_s"))
