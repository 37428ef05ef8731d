"""When to stop, and when to learn slower: pure functions of the validation history, so that every worker comes to the same answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from crossover.experiment import Training


@dataclass(frozen=True, slots=True)
class EpochResult:
    """What validation said after an epoch: mean loss, accuracy in 0..1."""

    loss: float
    accuracy: float


def stop_reason(training: Training, history: Sequence[EpochResult]) -> str | None:
    """Why training ends after these epochs; None: it goes on. The last epoch is a reason like any other."""
    if training.target_accuracy is not None and history and history[-1].accuracy >= training.target_accuracy:
        return f"target: validation accuracy {history[-1].accuracy:.4f} reached {training.target_accuracy}"
    waited = epochs_without_improvement(history)
    if training.early_stopping and waited >= training.early_stopping:
        return f"early stopping: {waited} epochs without a better validation loss"
    if len(history) >= training.epochs:
        return f"epochs: all {training.epochs} done"
    return None


def epochs_without_improvement(history: Sequence[EpochResult]) -> int:
    """Epochs since the lowest validation loss. A loss that is not a number improves nothing."""
    best, since = float("inf"), 0
    for result in history:
        better = result.loss < best
        best, since = (result.loss, 0) if better else (best, since + 1)
    return since


def plateau_reductions(history: Sequence[EpochResult], *, patience: int, threshold: float = 1e-4) -> int:
    """How often torch's ReduceLROnPlateau (mode min, relative threshold, no cooldown) would have reduced the rate after these epochs.

    It reduces once more than `patience` epochs in a row brought no loss below best * (1 - threshold), then counts anew.
    """
    best, bad, reductions = float("inf"), 0, 0
    for result in history:
        if result.loss < best * (1 - threshold):
            best, bad = result.loss, 0
        else:
            bad += 1
        if bad > patience:
            reductions, bad = reductions + 1, 0
    return reductions
