"""The recipe `fast` on real photographs: a short run on a subset; docs/results has the whole one."""

from pathlib import Path

import pytest

from crossover import validation
from crossover.running.inline import run_inline

CONFIG = Path(__file__).parents[2] / "config" / "all-reduce-cifar10.yaml"


@pytest.mark.deep
def test_fast_learns_photographs_in_96_updates(datasets: Path, tmp_path: Path) -> None:
    """Check that the recipe `fast` lowers the training loss in each of three short epochs and reaches 20 % accuracy on photographs."""
    cut = ["training.batch_size=32", "training.epochs=3", "data.limit=4096", "data.validation=0.02"]
    experiment = validation.load(CONFIG, ["recipe=fast", *cut, f"data.directory={datasets}"])
    epochs = run_inline(experiment, tmp_path, lambda progress: None).result["epochs"]
    losses = [epoch["train_loss"] for epoch in epochs]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 2.1  # by the tenth class: 2.303; two seeds ended at 1.93
    assert epochs[-1]["val_metric"] > 0.2
