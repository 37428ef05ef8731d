"""Every benchmark can be asked to be quick, so that the continuous integration runs them all."""

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = [
    path.stem for path in sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py")) if path.stem != "report"
]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_can_be_quick(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every benchmark has the option `--quick`."""
    module = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        module.main()
    assert end.value.code == 0 and "--quick" in capsys.readouterr().out


def test_the_integration_runs_them_all() -> None:
    """The continuous integration runs the quick benchmarks."""
    root = Path(__file__).parents[2]
    assert "bench-quick" in (root / ".ci" / "run").read_text()
