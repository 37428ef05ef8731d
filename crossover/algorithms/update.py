"""One optimizer step as data: what decides it besides the vectors. The same wherever it is computed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from crossover.experiment import Training

MOMENTUM = 0.1  # of BatchNorm's running statistics, torch's default


def statistics_momentum(sync_every: int) -> float:
    """A step that follows many minibatches takes their average; one that follows each averages as torch does by default."""
    return MOMENTUM if sync_every == 1 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Step `number` (from 0) of `optimizer`. The model's last `buffers` elements take the gradient's statistics."""

    optimizer: str = "sgd"
    number: int = 0
    learning_rate: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    undecayed: tuple[tuple[int, int], ...] = ()  # what it leaves alone: first elements, and those behind the last
    clip: float | None = None  # the longest gradient, L2
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    buffers: int = 0
    statistics_momentum: float = 1.0

    @classmethod
    def of(
        cls,
        training: Training,
        *,
        number: int,
        rate: float,
        buffers: int,
        sync_every: int,
        undecayed: Iterable[Sequence[int]] = (),
    ) -> "Update":
        """`sync_every`: the minibatches behind a gradient."""
        return cls(
            optimizer=training.optimizer,
            number=number,
            learning_rate=rate,
            momentum=training.momentum,
            nesterov=training.nesterov,
            weight_decay=training.weight_decay,
            undecayed=tuple((first, end) for first, end in undecayed),
            clip=training.clip.norm,
            beta1=training.betas[0],
            beta2=training.betas[1],
            buffers=buffers,
            statistics_momentum=statistics_momentum(sync_every),
        )

    def decaying(self, elements: int) -> list[slice]:
        """The parts of `elements` parameters that `weight_decay` is for; none where it is 0."""
        if not self.weight_decay:
            return []
        ends = [0, *(end for _, end in self.undecayed)]
        begins = [*(first for first, _ in self.undecayed), elements]
        return [slice(first, end) for first, end in zip(ends, begins, strict=True) if first < end]

    @property
    def first(self) -> bool:
        """Whether the optimizer has no vectors yet."""
        return self.number == 0
