"""Files that `advise` writes are projected as it said; its exit status says whether there is advice."""

import json
from pathlib import Path

import pytest

from tests.commands import status
from tests.unit.advice.few import few_candidates

NETWORK = """
from torch import nn

def network(classes, input_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, classes))
"""
OWN = """
name: mine
architecture: all_reduce
workers: 2
training: {model: "mine:network", epochs: 3, batch_size: 60, target: null}
data: {dataset: digits, validation: 0.2}
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return the path of a written experiment, mine.yaml, beside the module of its model."""
    (tmp_path / "mine.py").write_text(NETWORK)
    (tmp_path / "mine.yaml").write_text(OWN)
    return tmp_path / "mine.yaml"


@pytest.mark.slow
def test_project_says_of_the_files_that_advise_wrote_what_advise_said(own: Path, tmp_path: Path) -> None:
    """`project` of each YAML file that `advise` wrote for a user's model has the dollars that `advise` said, and its seconds without
    start-up.
    """
    with few_candidates():
        assert status("advise", str(own), "--on-hand", "lambda,ec2", "--out", str(tmp_path / "advice")) == 0
    advised = json.loads((tmp_path / "advice" / "advice.json").read_text())
    files = sorted(tmp_path.glob("mine-advice-*.yaml"))
    named = [each["finalist"] for each in advised["cards"]]
    told = {str(each["candidate"]): each for each in (advised["winner"], *named, *advised["alternatives"])}
    for path, said in zip(files, told.values(), strict=True):
        assert status("project", str(path), "--out", str(tmp_path / "out.json")) == 0
        projected = json.loads((tmp_path / "out.json").read_text())["repetitions"]
        assert projected["usd"]["p50"] == pytest.approx(said["usd"]["p50"], rel=0.01)
        assert projected["seconds"]["p50"] == pytest.approx(said["seconds"]["p50"] - said["before_s"], rel=0.01)


def test_a_deadline_that_nothing_meets_ends_with_status_3(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`advise` ends with status 3 if no candidate meets the deadline; it says that the speed of the user's model was not measured."""
    with few_candidates():
        assert (
            status("advise", str(own), "--on-hand", "lambda", "--deadline", "1s", "--out", str(tmp_path / "advice"))
            == 3
        )
    assert "Assumed: the speed of your model" in capsys.readouterr().out
