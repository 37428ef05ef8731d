"""Developers' programs: none of them runs for `--help` or a mistyped argument."""

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted(
    path for path in (ROOT / "tools").rglob("*.py") if '\nif __name__ == "__main__":' in path.read_text("utf-8")
)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_program_asked_for_help_does_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program of tools/ prints its help for `--help`, and exits with status 2 for an unknown option."""
    text = path.read_text("utf-8")
    assert "refuse_arguments(__doc__)" in text or "argparse.ArgumentParser(" in text, "it would run"
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for argument, expected in (("--help", 0), ("--hlep", 2)):
        monkeypatch.setattr(sys, "argv", [str(path), argument])
        monkeypatch.delitem(sys.modules, name, raising=False)
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(name, run_name="__main__")
        assert ended.value.code == expected
        assert "usage: " in "".join(capsys.readouterr())
