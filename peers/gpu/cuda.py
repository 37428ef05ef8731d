"""The learner on a GPU: the same vectors in pinned host memory, computing in the device's.

Stores and optimizer see host memory alone, so an exchange through a store is the same with and without a GPU. Copies go through a stream of
their own: the next batch is on its way while this one is computed.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch

from crossover import own_code
from crossover.algorithms import buffers
from crossover.algorithms.seeds import seed
from crossover.errors import ConfigError, Refused
from crossover.experiment import Experiment
from crossover.learning.batch import Batch
from crossover.learning.flat import FlatModel
from crossover.learning.images import Preparation, at_size, augmented
from crossover.learning.learner import Learner, Shape, is_own, skeleton
from crossover.learning.models.layers import Dropout
from crossover.learning.objectives import BatchScores, Evaluation, Objective
from crossover.own_code import faults

NATIVE_BF16 = (8, 0)  # compute capability from which bfloat16 is in hardware; a T4 has 7.5
LARGEST_SCALE, GOOD_IN_A_ROW = 2.0**16, 2_000  # as torch.amp.GradScaler begins, and grows


@dataclass
class LossScale:
    """float16's smallest gradients would vanish, so the loss is scaled up. Where that overflows, the minibatch is computed again at half
    the scale: nothing is skipped, and what is published is finite.
    """

    scale: float = 1.0
    good: int = 0

    def overflowed(self) -> None:
        self.scale, self.good = self.scale / 2, 0

    def went_well(self) -> None:
        self.good += 1
        if self.scale > 1.0 and self.good >= GOOD_IN_A_ROW:
            self.scale, self.good = min(2 * self.scale, LARGEST_SCALE), 0


def prefer_deterministic() -> None:
    """Process-wide, once the host's learner has asked for it strictly: on a GPU some operations, adaptive pooling's backward among them,
    have no deterministic form, and cuBLAS has one only with workspaces of a fixed size, set before its first use.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch._C._set_deterministic_algorithms(True, warn_only=True)


def half_precision(precision: str, capability: tuple[int, int]) -> torch.dtype | None:
    """What autocast computes in on such a device; None: float32."""
    if precision == "fp32":
        return None
    return torch.bfloat16 if precision == "bf16" and capability >= NATIVE_BF16 else torch.float16


class CudaLearner:
    """What `learning.learner.Learner` offers, on `device`. Raises ConfigError where the model does not fit its memory."""

    def __init__(
        self,
        experiment: Experiment,
        *,
        classes: int | None,
        input_shape: Shape,
        affine: Mapping[str, Sequence[float]],
        device: torch.device,
    ) -> None:
        self.slot: Callable[[], AbstractContextManager[object]] = nullcontext
        self._experiment, self.device = experiment, device
        training = experiment.training
        self._host = Learner(  # draws the first weights: the same on every machine
            replace(experiment, training=replace(training, precision="fp32")),
            classes=classes,
            input_shape=input_shape,
            affine=affine,
        )
        prefer_deterministic()
        with torch.device(device), self._fitting():
            self._flat = FlatModel(skeleton(training, classes, input_shape))
            self._prepare = Preparation(affine, memory_format=training.memory_format)
            self._flat.module.to(device)
            self._take_fixed()
            if training.memory_format == "channels_last":
                torch.backends.cudnn.benchmark = True
        self._objective = Objective(training)
        self._dropouts = [layer for layer in self._flat.module.modules() if isinstance(layer, Dropout)]
        self.shapes, self.parameters, self.buffers = self._flat.shapes, self._flat.parameters, self._flat.buffers
        with torch.cuda.device(
            device
        ):  # pinning makes a context on the current device: not on every process's first one
            self._model = torch.zeros(self._flat.model.numel(), pin_memory=True)
            self._gradient = torch.zeros(self._flat.model.numel(), pin_memory=True)
        self.model: memoryview = buffers.view(self._model)
        self.gradient: memoryview = buffers.view(self._gradient)
        self._half = half_precision(training.precision, torch.cuda.get_device_capability(device))
        self._scale = LossScale(LARGEST_SCALE if self._half is torch.float16 else 1.0)
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def initial_model(self) -> memoryview:
        self.model[:] = self._host.initial_model()
        return self.model

    def take_constants(self, constants: bytes) -> None:
        self._host.take_constants(constants)
        self._take_fixed()

    def _take_fixed(self) -> None:
        """What no vector holds, as it is on the host: drawn on the device it would be other bits."""
        fixed = self._host.fixed()
        for name, own in (self._flat.frozen() | self._flat.constants()).items():
            own.copy_(fixed[name])

    def on_device(self, batch: Batch, *, epoch: int) -> Batch:
        """The batch, augmented, on its way to the device through a stream of its own: another may be computed meanwhile."""
        asked = self._experiment
        inputs = augmented(batch.inputs, batch.sample_ids, asked.data, seed=asked.seed, epoch=epoch)
        with torch.cuda.stream(self._copies):
            moved = [part.pin_memory().to(self.device, non_blocking=True) for part in (inputs, batch.labels)]
        return replace(batch, inputs=moved[0], labels=moved[1])

    def compute_gradient(self, batch: Batch, *, epoch: int, round: int, worker: int, minibatch: int) -> float:
        where = f"worker {worker}, epoch {epoch}, round {round}, minibatch {minibatch}"
        with torch.cuda.device(self.device), self._fitting():
            self._flat.model.copy_(self._model, non_blocking=True)
            batch = batch if batch.inputs.is_cuda else self.on_device(batch, epoch=epoch)
            torch.cuda.current_stream().wait_stream(self._copies)
            for part in (
                batch.inputs,
                batch.labels,
            ):  # made on the other stream: its memory must not be used again too soon
                part.record_stream(torch.cuda.current_stream())
            while True:
                self._seed_draws(seed("dropout", self._experiment.seed, round, worker, minibatch))
                value = self._backward(batch, epoch=epoch)
                self._gradient.copy_(self._flat.gradient, non_blocking=True)
                finite = self._flat.gradient.isfinite().all()
                if bool(finite):  # waits for the device, and so for the copy before it
                    self._scale.went_well()
                    return value
                if self._scale.scale <= 1.0:
                    if self._experiment.aggregation.non_finite == "drop":  # all peers leave it out of the round
                        return value
                    raise Refused(
                        f"{where}: the gradient has values that are not finite, the loss is {value}; "
                        "a lower training.learning_rate or a warm-up may keep it finite"
                    )
                self._scale.overflowed()

    def evaluate(self, batches: Iterable[Batch]) -> Evaluation:
        judged, samples = list[BatchScores](), 0
        with torch.cuda.device(self.device), torch.inference_mode(), self._fitting():
            self._flat.model.copy_(self._model, non_blocking=True)
            self._flat.evaluate()
            for batch in batches:
                inputs, labels = batch.inputs.to(self.device), batch.labels.to(self.device)
                judged.append(self._objective.judged(self._outputs(self._prepare(inputs)), labels))
                samples += batch.samples
        return self._objective.evaluation(judged, samples)

    def _backward(self, batch: Batch, *, epoch: int) -> float:
        """The gradient, unscaled, in the device's flat vector; the loss."""
        self._flat.train()
        inputs = at_size(self._prepare(batch.inputs), self._experiment.training, epoch=epoch)
        loss = self._objective.loss(self._outputs(inputs), batch.labels, answers=batch.answers)
        (loss * self._scale.scale).backward()  # type: ignore[no-untyped-call]
        if problem := self._flat.problem():
            raise faults.told("training.model", self._experiment.training.model, problem, place=None)
        if self._scale.scale != 1.0:
            self._flat.gradient[: self.parameters].div_(self._scale.scale)
        value = float(loss.detach())
        return value if math.isfinite(value) else float("nan")

    def _outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        with own_code.blame("training.model", self._experiment.training.model), self._fitting(), self._autocast():
            outputs: torch.Tensor = self._flat.module(inputs)
        return outputs

    def _seed_draws(self, number: int) -> None:
        if is_own(self._experiment.training):  # one process for each device, so its global generator is this learner's
            torch.cuda.manual_seed(number)
        for layer in self._dropouts:
            layer.generator = torch.Generator(self.device).manual_seed(number)

    def _autocast(self) -> AbstractContextManager[object]:
        return torch.autocast("cuda", self._half, enabled=self._half is not None)

    def _fitting(self) -> "_Fitting":
        return _Fitting(self._experiment, self.device)


@dataclass(frozen=True)
class _Fitting:
    """Too little memory on the device, in words that help."""

    experiment: Experiment
    device: torch.device

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, torch.cuda.OutOfMemoryError):
            training, total = self.experiment.training, torch.cuda.get_device_properties(self.device).total_memory
            raise ConfigError(
                f"training.batch_size: {training.batch_size} of {training.model} do not fit the {total / 2**30:.0f} GiB of "
                f"{torch.cuda.get_device_name(self.device)}; try {training.batch_size // 2}, or training.precision: bf16"
            ) from error


def best_device(rank_on_instance: int) -> torch.device | None:
    """The GPU of this process; None where there is none: then the CPU computes."""
    if not torch.cuda.is_available():
        return None
    return torch.device("cuda", rank_on_instance % torch.cuda.device_count())
