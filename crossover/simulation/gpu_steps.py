"""Projected time of one training step on a GPU, from the step's operations, bytes and multiply-accumulates.

A step takes a constant time, a time for each operation, its bytes over the memory's bandwidth and its multiply-accumulates over the
arithmetic's peak, each times a factor. The factors are fitted to steps that others measured; `python -m lab gpus` writes them to
config/calibration/gpus.yaml, with their sources and the errors of the fits on models that they have not seen.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from crossover.errors import NoProjection
from crossover.learning.sizes import StepCounts
from crossover.simulation import figures

Precision = Literal["fp32", "fp16", "bf16"]
OPTIMIZER_BYTES = 20  # of each parameter: SGD with momentum reads three vectors and writes two


@dataclass(frozen=True)
class StepFactors:
    """Fitted factors of one GPU card in one precision, from which `GpuCard.step_s` computes a step's time. `constant_s`: seconds per step;
    `operation_s`: seconds per operation; `image_bytes`, `matrix_bytes`: factors on the bytes of models made only of convolutions and only
    of matrix products; `convolution`, `depthwise`, `matrix`: factors on multiply-accumulates.
    """

    constant_s: float
    operation_s: float
    image_bytes: float
    matrix_bytes: float
    convolution: float
    depthwise: float
    matrix: float


@dataclass(frozen=True)
class GpuCard:
    """A GPU card. `name`: the project's name of it; `instances`: families of EC2 instances that have it, such as "g4dn"; `bytes_s`: memory
    bandwidth; `macs_s`: peak multiply-accumulates per second by precision, both from the data sheet; `factors`: fitted factors by
    precision; `sigmas`: uncertainty of a step's time, as sigma of its logarithm, for "convolution" and "matrix" models. `basis`: words on
    the measurements behind the factors.
    """

    name: str
    instances: tuple[str, ...]
    bytes_s: float
    macs_s: Mapping[str, float]
    factors: Mapping[str, StepFactors]
    sigmas: Mapping[str, float]
    basis: str

    def step_s(self, counts: StepCounts, samples: float, *, parameters: int, precision: Precision = "fp32") -> float:
        """Return the projected seconds of one training step of `samples` samples on this card. `counts`: operations, bytes and
        multiply-accumulates of the step; `parameters`: number of the model's parameters. Raises NoProjection if the card lacks the
        precision.
        """
        if lacking := self.precision_problem(precision):
            raise NoProjection(f"training.precision: {lacking}")
        own, peak, share = self.factors[precision], self.macs_s[precision], _share_of_convolutions(counts)
        bytes_ = counts.bytes + samples * counts.of_sample_bytes + OPTIMIZER_BYTES * parameters
        macs = (
            own.convolution * counts.of_sample_convolution
            + own.depthwise * counts.of_sample_depthwise
            + own.matrix * counts.of_sample_matrix
        )
        return (
            own.constant_s
            + own.operation_s * counts.operations
            + (share * own.image_bytes + (1 - share) * own.matrix_bytes) * bytes_ / self.bytes_s
            + samples * macs / peak
        )

    def precision_problem(self, precision: Precision) -> str:
        """Return a message if this card cannot compute in `precision`; "" if it can."""
        if precision in self.factors:
            return ""
        return f"a {self.name} has no {precision}; expected one of {', '.join(self.factors)}"

    def sigma(self, counts: StepCounts) -> float:
        """Return how uncertain a step's time on this card is, as the sigma of its logarithm: that of convolutions and that of matrix
        products, mixed by their shares in `counts`.
        """
        share = _share_of_convolutions(counts)
        return share * self.sigmas["convolution"] + (1 - share) * self.sigmas["matrix"]


def _share_of_convolutions(counts: StepCounts) -> float:
    """Return the share of convolutions in a training step's multiply-accumulates, from 0 to 1; 0 if there are none."""
    convolution = counts.of_sample_convolution + counts.of_sample_depthwise
    return convolution / max(1.0, convolution + counts.of_sample_matrix)


@cache
def load_cards() -> Mapping[str, GpuCard]:
    """Return the GPU cards whose speed is known, by name. Read at the first call; every caller gets the same mapping, which must not be
    changed.
    """
    return {name: _build_card(name, plain) for name, plain in figures.load_gpus().items()}


def _build_card(name: str, plain: Mapping[str, Any]) -> GpuCard:
    """Return one GPU card from its entry in config/calibration/gpus.yaml."""
    return GpuCard(
        name=name,
        instances=tuple(plain["instances"]),
        bytes_s=plain["bytes_s"],
        macs_s=plain["macs_s"],
        factors={precision: StepFactors(**each) for precision, each in plain["factors"].items()},
        sigmas=plain["sigmas"],
        basis=plain["basis"],
    )


def card_of(instance_type: str) -> GpuCard:
    """Return the GPU card of an EC2 instance type. Raises NoProjection if the type has none of the known cards."""
    family = instance_type.split(".")[0]
    for each in load_cards().values():
        if family in each.instances:
            return each
    known = ", ".join(sorted(name for each in load_cards().values() for name in each.instances))
    raise NoProjection(f"{instance_type}: its GPU's speed is not known; expected an instance of {known}")


def card_of_device(name: str) -> GpuCard | None:
    """Return the known card whose name is one of the words in the device name that its driver reports, such as `Tesla T4` or `NVIDIA
    A100-SXM4-40GB`; None if there is none.
    """
    words = re.split(r"[^A-Za-z0-9]+", name)
    return next((card for known, card in load_cards().items() if known in words), None)
