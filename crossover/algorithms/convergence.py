"""When to stop, and when to learn slower: pure functions of the validation history, so that every worker comes to the same answer.

A history is the (validation loss, validation metric) of the evaluations so far, in order: one after each epoch, or after each round where
that goes through several. Patience counts evaluations. Free of torch: light steps ask it too.
"""

from collections.abc import Sequence

from crossover.experiment import Training

History = Sequence[tuple[float, float]]


def verdict(training: Training, history: History, *, epochs: int | None = None) -> str:
    """Why training ends after so many `epochs` (None: one for each evaluation), in words; empty while it goes on. The last epoch is a
    reason like any other.
    """
    epochs = len(history) if epochs is None else epochs
    if training.target is not None and history and training.metric.reaches(history[-1][1], training.target):
        return f"target: validation {training.metric.words} {history[-1][1]:.4f} reached {training.target}"
    waited = epochs_without_improvement(history)
    if training.early_stopping and waited >= training.early_stopping:
        what = "epochs" if epochs == len(history) else "evaluations"
        return f"early stopping: {waited} {what} without a better validation loss"
    if epochs >= training.epochs:
        return f"epochs: all {training.epochs} done" if training.steps is None else f"steps: all {training.steps} done"
    return ""


def epochs_without_improvement(history: History) -> int:
    """Epochs since the lowest validation loss. A loss that is not a number improves nothing."""
    best, since = float("inf"), 0
    for loss, _ in history:
        best, since = (loss, 0) if loss < best else (best, since + 1)
    return since


def plateau_reductions(history: History, *, patience: int, threshold: float = 1e-4) -> int:
    """How often torch's ReduceLROnPlateau (mode min, relative threshold, no cooldown) would have reduced the rate after these epochs.

    It reduces once more than `patience` epochs in a row brought no loss below best * (1 - threshold), then counts anew.
    """
    best, bad, reductions = float("inf"), 0, 0
    for loss, _ in history:
        best, bad = (loss, 0) if loss < best * (1 - threshold) else (best, bad + 1)
        if bad > patience:
            reductions, bad = reductions + 1, 0
    return reductions
