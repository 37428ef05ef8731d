"""One optimizer step as data: what decides it besides the vectors. The same wherever it is computed."""

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
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    buffers: int = 0
    statistics_momentum: float = 1.0

    @classmethod
    def of(cls, training: Training, *, number: int, rate: float, buffers: int, sync_every: int) -> "Update":
        """`sync_every`: the minibatches behind a gradient."""
        return cls(
            optimizer=training.optimizer,
            number=number,
            learning_rate=rate,
            momentum=training.momentum,
            nesterov=training.nesterov,
            weight_decay=training.weight_decay,
            buffers=buffers,
            statistics_momentum=statistics_momentum(sync_every),
        )

    @property
    def first(self) -> bool:
        """Whether the optimizer has no vectors yet."""
        return self.number == 0
