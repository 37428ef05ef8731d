"""The faults that measure the tests: drawn alike from the same source, found again when lines have moved."""

import ast
from pathlib import Path

import pytest

from tests.mutation import mutants

SOURCE = '''"""Words with 1 < 2 stay."""
LIMIT: int = 3


class Store:
    def get(self, key: str, size: int = 4) -> int:
        if key == "a < 1" and size > 2:
            self.note(f"{key:>3} < 1")
        size += self.between(key, size)
        return size if size in (1, 2) else 0

    def note(self, text: str) -> None:
        if len(text) == 1:
            raise ValueError("text", 7)
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root with all folders of sources, and one module in crossover."""
    for name in mutants.SOURCES:
        (tmp_path / name).mkdir()
    (tmp_path / "crossover" / "store.py").write_text(SOURCE)
    return tmp_path


def test_every_fault_changes_one_line_and_still_compiles(root: Path) -> None:
    """Every planted fault changes exactly one line, and the source still compiles; all kinds of faults are found."""
    path, lines = root / "crossover" / "store.py", SOURCE.splitlines()
    found = list(mutants.faults_of(SOURCE, "crossover/store.py"))
    assert {fault.kind for fault in found} == set(mutants.KINDS)
    for fault in found:
        mutants.apply(fault, root)
        changed = path.read_text().splitlines()
        ast.parse("\n".join(changed))
        assert len(changed) == len(lines)
        assert [a for a, b in zip(changed, lines, strict=True) if a != b] != [], fault
        assert sum(a != b for a, b in zip(changed, lines, strict=True)) == 1, fault
        path.write_text(SOURCE)


def test_strings_annotations_and_what_stands_outside_functions_stay() -> None:
    """No fault changes a string, an annotation or a line outside functions."""
    after = "\n".join(fault.after for fault in mutants.faults_of(SOURCE, "crossover/store.py"))
    assert "Words" not in after and "LIMIT" not in after and "{key:>2}" not in after
    assert 'key == "a < 1"' in after


def test_the_same_seed_draws_the_same(root: Path) -> None:
    """A seed draws the same faults each time, as many of each kind as asked."""
    drawn = mutants.draw(root, seed=1, of_a_kind=1)
    assert [fault.kind for fault in drawn] == list(mutants.KINDS)
    assert drawn == mutants.draw(root, seed=1, of_a_kind=1)


def test_a_fault_is_found_by_what_its_line_says(root: Path) -> None:
    """A fault is found by its line's text, also if it has moved, and not if the text has changed."""
    fault = next(each for each in mutants.faults_of(SOURCE, "crossover/store.py") if each.before.startswith("size +="))
    path = root / "crossover" / "store.py"
    before = mutants.line_of(fault, root)
    assert before is not None
    path.write_text("# a line more\n" + SOURCE)
    assert mutants.line_of(fault, root) == before + 1
    path.write_text(SOURCE.replace("size +=", "size -="))
    assert mutants.line_of(fault, root) is None


def test_a_note_tells_which_test_reaches_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line's tests are those noted for it; a function's head is reached by who calls the function, a second condition by who reaches
    the first.
    """
    source = SOURCE + "        elif (\n            size > 7\n        ):\n            size = 3\n        assert size\n"
    source = source.replace("text: str) -> None", "text: str, size: int = 2) -> None").replace("len(text)", "size")
    monkeypatch.setattr(mutants, "HITS", tmp_path)
    lines = source.splitlines()
    head, second = (next(n for n, line in enumerate(lines, 1) if said in line) for said in ("int = 2", "size > 7"))
    noted = mutants.noted(
        source,
        {head: ["head"], second: ["second"], lines.index("        size += self.between(key, size)") + 1: ["sum"]},
    )
    made: dict[str, type] = {}
    exec(compile(noted, "store.py", "exec"), made)
    made["Store"]().note("text")
    here = ["tests/unit/test_mutants.py::test_a_note_tells_which_test_reaches_a_line"]
    assert mutants.covering("head") == mutants.covering("second") == here
    assert not mutants.covering("sum")


def test_the_drawn_faults_can_be_read() -> None:
    """The file of drawn faults has all of them, and some lines of the code still match."""
    faults = mutants.listed()
    assert len(faults) == len(mutants.KINDS) * mutants.OF_A_KIND
    assert any(mutants.line_of(fault, mutants.ROOT) for fault in faults)
