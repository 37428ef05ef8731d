"""What a faulty worker does to its gradient or its labels, so that a robust rule can show what it is worth."""

import math

import torch
from torch import Tensor


def sign_flip(gradient: Tensor, *, scale: float) -> Tensor:
    """-scale * gradient: pushes uphill, `scale` times as hard."""
    return gradient.mul(-scale)


def gaussian(gradient: Tensor, *, scale: float, generator: torch.Generator) -> Tensor:
    """Normal noise of the gradient's own root mean square times `scale`, in place of the gradient."""
    spread = float(gradient.double().square().mean().sqrt()) * scale
    return torch.randn(gradient.shape, dtype=gradient.dtype, generator=generator).mul_(spread)


def non_finite(gradient: Tensor, *, generator: torch.Generator) -> Tensor:
    """One coordinate becomes NaN or infinite: which, and where, the generator says. All others stay as they are."""
    changed = gradient.clone()
    place, value = (int(torch.randint(choices, (), generator=generator)) for choices in (gradient.numel(), 3))
    changed[place] = (math.nan, math.inf, -math.inf)[value]
    return changed


def label_flip(labels: Tensor, *, classes: int) -> Tensor:
    """Class c becomes classes - 1 - c; what asks for no answer (below 0) stays so."""
    return torch.where(labels < 0, labels, classes - 1 - labels)


def attacked(vector: Tensor, *, attack: str, scale: float, generator: torch.Generator, buffers: int = 0) -> Tensor:
    """What a faulty worker publishes in place of its average [P gradient | B statistics]: the gradient attacked, the statistics true.

    The statistics stay, because a variance must not become negative; label_flip acts at staging and changes nothing here.
    """
    count = vector.numel() - buffers
    match attack:
        case "sign_flip":
            changed = sign_flip(vector[:count], scale=scale)
        case "gaussian":
            changed = gaussian(vector[:count], scale=scale, generator=generator)
        case "non_finite":
            changed = non_finite(vector[:count], generator=generator)
        case "none" | "label_flip":
            return vector
        case _:
            raise ValueError(f"attack: {attack!r}; one of none, sign_flip, gaussian, label_flip, non_finite")
    return torch.cat([changed, vector[count:]])
