"""What contributions weigh in a mean. Nothing here needs torch."""

from collections.abc import Sequence


def weights(answers: Sequence[int]) -> list[int]:
    """By how many answers each stands for; all alike where none has any: their gradients are 0 then, and BatchNorm's statistics count."""
    return list(answers) if any(answers) else [1] * len(answers)
