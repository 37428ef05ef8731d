"""Figures that the papers' tables take from runs."""

from pathlib import Path

import pytest

from crossover.reports.folder import RunFolder
from crossover.study import paper_cells


@pytest.mark.parametrize(("metric", "best"), [("accuracy", 0.75), ("mean_absolute_error", 0.5)])
def test_the_best_epoch_is_that_of_the_metric(metric: str, best: float) -> None:
    """The highest accuracy and the lowest error are the best, although neither run says whether higher is better."""
    epochs = [{"val_metric": value} for value in (0.5, None, 0.75, 0.625)]
    result = {"experiment": {"training": {"metric": {"name": metric}}}, "epochs": epochs}
    assert paper_cells.best_metric(RunFolder(path=Path("run"), result=result, records=[])) == best
