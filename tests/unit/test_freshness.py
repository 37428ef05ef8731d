"""Dated figures that have become old are listed, and only those."""

from datetime import date
from pathlib import Path

from tools.freshness import CONFIG, FILES, list_old


def test_old_dates_are_listed_by_file(tmp_path: Path) -> None:
    """`list_old` yields a line for each file and date that is older than the file's limit in days."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('as_of: "2026-11"\n')
    (tmp_path / FILES[0]).write_text(
        'as_of: "2026-11"\nstale_after: 10\nprices: {a: {usd: 1, as_of: "2026-12-01"}, b: {usd: 1, as_of: "2026-12-01"}}\n'
    )
    assert list(list_old(tmp_path, today=date(2026, 12, 10))) == []
    (line,) = list_old(tmp_path, today=date(2026, 12, 11))
    assert line.startswith(f"config/{FILES[0]}: 1 dated 2026-11 are 11 days old, limit 10")
    assert len(list(list_old(tmp_path, today=date(2028, 1, 1)))) == 5


def test_the_project_has_dates_in_each_file() -> None:
    """Every file that is checked for old dates has dates."""
    old = list(list_old(CONFIG, today=date(2040, 1, 1)))
    assert {line.partition(":")[0] for line in old} == {f"config/{name}" for name in FILES}
