"""The learner on a GPU, which computes in the device's memory.

If gradients are exchanged through a store, its vectors are in pinned host memory: stores and optimizer see host memory alone, so an
exchange is the same with and without a GPU. If nothing is exchanged, the vectors and the optimizer stay in the device's memory
(`keeps_vectors`). Batches are copied in a CUDA stream of their own: the next one while the current one is computed. With `device="cpu"` the
processor stands in for the device, which is how everything but CUDA itself is tested.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields

import torch

from crossover import user_code
from crossover.algorithms import buffers
from crossover.algorithms.schedule import derive_seed
from crossover.errors import ConfigError, Refused
from crossover.experiment import Experiment
from crossover.learning import scaling
from crossover.learning.batches import Batch
from crossover.learning.flat import FlatModel
from crossover.learning.layers import Dropout
from crossover.learning.learner import (
    BatchScores,
    Evaluation,
    Learner,
    Objective,
    Shape,
    adapt_to_processor,
    build_skeleton,
    has_user_code,
)
from crossover.learning.loss_scale import LossScale
from crossover.learning.samples import Preparation, augment_images, resize_for_epoch

NATIVE_BF16 = (8, 0)  # compute capability from which bfloat16 is in hardware; a T4 has 7.5


class DeviceBatch(Batch):
    """Batch whose inputs, already augmented, and labels are in the device's memory."""


def prefer_deterministic() -> None:
    """Make torch prefer deterministic operations, but only warn if one has no deterministic form. Holds for the whole process.

    Called after the host's learner has made them mandatory: on a GPU some operations, e.g. adaptive pooling's backward, have no
    deterministic form. cuBLAS has one only with workspaces of a fixed size, which are set before its first use.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch._C._set_deterministic_algorithms(True, warn_only=True)


def choose_half_precision(precision: str, device: torch.device) -> torch.dtype | None:
    """Return the dtype for autocast on `device`: None for `precision` "fp32", bfloat16 for "bf16", float16 for "fp16" (and any other text).
    Raises ConfigError if bf16 is asked for on a CUDA card whose compute capability is below 8.0; other devices are not checked.
    """
    if precision == "fp32":
        return None
    if precision == "bf16" and device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < NATIVE_BF16:
            raise ConfigError(
                f"training.precision: {device_name(device)} has no bfloat16 (compute capability {'.'.join(map(str, capability))}, "
                "bfloat16 begins at 8.0); expected fp16 or fp32"
            )
    return torch.bfloat16 if precision == "bf16" else torch.float16


def device_name(device: torch.device) -> str:
    """Return the name that the driver gives the card, such as `Tesla T4`; `cpu` for the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


class DeviceLearner:
    """Learner on a GPU with the interface of `learner.Learner`. Methods raise ConfigError if the model or a batch does not fit the
    device's memory.

    `model` and `gradient`, writable views of bytes, are in pinned host memory, copied to and from the device for each computation. With
    `keeps_vectors`, `model_vector` and `gradient_vector` are in the device's memory instead; `model` and `gradient` are then copies of
    them, made each time that they are asked for, and what is written there has no effect. `shapes`, `parameters`, `buffers`: of the
    model's parameters, their number of elements, and that of BatchNorm statistics. `loss_scale`: the loss scale in fp16, otherwise None.
    """

    def __init__(
        self,
        experiment: Experiment,
        *,
        classes: int | None,
        input_shape: Shape,
        affine: Mapping[str, Sequence[float]],
        device: torch.device,
        keeps_vectors: bool = False,
    ) -> None:
        """Build the model on `device`; its initial weights are drawn on the host, equal on every machine. Raises ConfigError if it does not
        fit the device's memory or if the card has no bf16 that is asked for; also the errors of `Learner`.

        `classes`: number of classes, None if labels are numbers. `input_shape`: shape of one input. `affine`: how inputs and labels
        are scaled, from the data's manifest. `keeps_vectors`: whether model and gradient stay in the device's memory from one
        minibatch to the next, for optimizer steps there.
        """
        self.slot: Callable[[], AbstractContextManager[object]] = nullcontext
        self._experiment, self.device = experiment, device
        self._half = choose_half_precision(experiment.training.precision, device)
        training = experiment.training
        self._host = Learner(  # draws the first weights: the same on every machine
            adapt_to_processor(experiment),
            classes=classes,
            input_shape=input_shape,
            affine=affine,
        )
        prefer_deterministic()
        with torch.device(device), self._explain_memory_errors():
            self._flat = FlatModel(build_skeleton(training, classes, input_shape))
            self._prepare = Preparation(affine, memory_format=training.memory_format)
            self._flat.switch_to_evaluation()  # BatchNorm's statistics get memory: a built-in model comes without
            self._flat.module.to(device)
            self._copy_fixed()
            if training.memory_format == "channels_last" and device.type == "cuda":
                torch.backends.cudnn.benchmark = True
        self._objective = Objective(training, scaling.from_manifest(affine))
        self._dropouts = [layer for layer in self._flat.module.modules() if isinstance(layer, Dropout)]
        self.shapes, self.parameters, self.buffers = self._flat.shapes, self._flat.parameters, self._flat.buffers
        cuda = device.type == "cuda"
        with self._use_device():  # pinning makes a context on the current device: not on every process's first one
            self._model = torch.zeros(self._flat.model.numel(), pin_memory=cuda)
            self._gradient = torch.zeros(self._flat.model.numel(), pin_memory=cuda)
        self.keeps_vectors = keeps_vectors
        self.model_vector: torch.Tensor = self._flat.model if keeps_vectors else self._model
        self.gradient_vector: torch.Tensor = self._flat.gradient if keeps_vectors else self._gradient
        self.loss_scale = LossScale() if self._half is torch.float16 else None
        self._copies = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]

    @property
    def model(self) -> memoryview:
        """The model's vector in host memory, float32 as bytes; with `keeps_vectors` a copy of the present one, in memory that the next
        access overwrites.
        """
        if self.keeps_vectors:
            self._model.copy_(self._flat.model)
        return buffers.view(self._model)

    @property
    def gradient(self) -> memoryview:
        """The gradient's vector in host memory, float32 as bytes; with `keeps_vectors` a copy of the present one, in memory that the next
        access overwrites.
        """
        if self.keeps_vectors:
            self._gradient.copy_(self._flat.gradient)
        return buffers.view(self._gradient)

    def initialise_model(self) -> memoryview:
        """Fill `model_vector` with the initial parameters and BatchNorm statistics, drawn from the seed on the host, and return
        `model`.
        """
        self.model_vector.copy_(buffers.tensor(self._host.initialise_model()))
        return self.model

    def take_constants(self, constants: bytes) -> None:
        """Copy the buffers in `constants`, which `Learner.encode_constants` returned on the machine that started the run, into the module
        on host and device. `constants` must not be empty. Raises Corrupt if names, shapes or dtypes differ from the module's,
        ConfigError if frozen parameters differ there and here.
        """
        self._host.take_constants(constants)
        self._copy_fixed()

    def _copy_fixed(self) -> None:
        """Copy the frozen parameters, and the buffers that are not in the model's vector (all but BatchNorm's running statistics), from
        the host's module to the device's; drawn on the device they would have other bits.
        """
        fixed = self._host.list_fixed()
        for name, own in (self._flat.list_frozen() | self._flat.list_constants()).items():
            own.copy_(fixed[name])

    def copy_to_device(self, batch: Batch, *, epoch: int) -> DeviceBatch:
        """Return the batch, augmented for `epoch`, on the device. The copy runs in a CUDA stream of its own and may not be complete on
        return, so that another batch can be computed meanwhile; `compute_gradient`, to which it is given with the same `epoch`, waits for
        it. Called by itself, this method raises torch.OutOfMemoryError, not ConfigError, if the device's memory is too small.
        """
        asked, zero = self._experiment, self._prepare.zero
        inputs = augment_images(batch.inputs, batch.sample_ids, asked.data, seed=asked.seed, epoch=epoch, zero=zero)
        kept = {each.name: getattr(batch, each.name) for each in fields(batch)}
        if self._copies is None:
            return DeviceBatch(**kept | {"inputs": inputs.to(self.device), "labels": batch.labels.to(self.device)})
        with torch.cuda.stream(self._copies):
            moved = [part.pin_memory().to(self.device, non_blocking=True) for part in (inputs, batch.labels)]
        return DeviceBatch(**kept | {"inputs": moved[0], "labels": moved[1]})

    def _await_copies(self, batch: DeviceBatch) -> None:
        """Make the device's computations wait until the batch's copies are complete; the calling thread does not wait."""
        if self._copies is None:
            return
        torch.cuda.current_stream().wait_stream(self._copies)
        for part in (
            batch.inputs,
            batch.labels,
        ):  # made on the other stream: its memory must not be used again too soon
            part.record_stream(torch.cuda.current_stream())

    def compute_gradient(self, batch: Batch, *, epoch: int, round: int, worker: int, minibatch: int) -> float:
        """Write the gradient of `batch` at `model_vector` to `gradient_vector`, and return the mean loss, NaN if it is not finite. `epoch`
        sets augmentation and image size; a DeviceBatch is augmented already. `round`, `worker` and `minibatch` seed dropout.

        In fp16, a gradient that is not finite is computed again at half the loss scale. Raises Refused if it is not finite at scale 1 or in
        another precision, unless the experiment drops such gradients; OwnCodeError if a user's model or loss fails.
        """
        where = f"worker {worker}, epoch {epoch}, round {round}, minibatch {minibatch}"
        with self._use_device(), self._explain_memory_errors():
            self._load_model()
            held = batch if isinstance(batch, DeviceBatch) else self.copy_to_device(batch, epoch=epoch)
            self._await_copies(held)
            while True:
                self._seed_draws(derive_seed("dropout", self._experiment.seed, round, worker, minibatch))
                value = self._backward(held, epoch=epoch)
                if not self.keeps_vectors:
                    self._gradient.copy_(self._flat.gradient, non_blocking=True)
                finite = self._flat.gradient.isfinite().all()
                if bool(finite):  # waits for the device, and so for the copy before it
                    if self.loss_scale is not None:
                        self.loss_scale.count_finite()
                    return value
                if self.loss_scale is None or self.loss_scale.scale <= 1.0:
                    if self._experiment.aggregation.non_finite == "drop":  # all peers leave it out of the round
                        return value
                    raise Refused(
                        f"{where}: the gradient has values that are not finite, the loss is {value}; "
                        "a lower training.learning_rate or a warm-up may keep it finite"
                    )
                self.loss_scale.halve()

    def _load_model(self) -> None:
        """Start to copy the host's model to the device. Does nothing with `keeps_vectors`, as the device's is the model then."""
        if not self.keeps_vectors:
            self._flat.model.copy_(self._model, non_blocking=True)

    def evaluate(self, batches: Iterable[Batch]) -> Evaluation:
        """Return the loss and metric of `model` on all `batches`. Raises ValueError if there are no batches, Refused if no label counts,
        OwnCodeError if a user's model, loss or metric fails.
        """
        judged, samples = list[BatchScores](), 0
        with self._use_device(), torch.inference_mode(), self._explain_memory_errors():
            self._load_model()
            self._flat.switch_to_evaluation()
            for batch in batches:
                inputs, labels = batch.inputs.to(self.device), batch.labels.to(self.device)
                judged.append(self._objective.score(self._compute_outputs(self._prepare(inputs)), labels))
                samples += batch.samples
        return self._objective.summarize(judged, samples)

    def _backward(self, batch: Batch, *, epoch: int) -> float:
        """Compute the gradient of `batch` into the device's gradient vector, with the loss scale divided out again; return the mean
        loss, NaN if it is not finite. Raises OwnCodeError if a BatchNorm layer was not called.
        """
        self._flat.switch_to_training()
        inputs = resize_for_epoch(self._prepare(batch.inputs), self._experiment.training, epoch=epoch)
        outputs = self._compute_outputs(inputs)
        loss = self._objective.compute_loss(outputs, batch.labels, answers=batch.answers)
        scale = 1.0 if self.loss_scale is None else self.loss_scale.scale
        (loss * scale).backward()  # type: ignore[no-untyped-call]
        if problem := self._flat.find_norm_problem():
            raise user_code.build_user_code_error(
                "training.model", self._experiment.training.model, problem, place=None
            )
        if scale != 1.0:
            self._flat.gradient[: self.parameters].div_(scale)
        value = self._objective.convert_loss(float(loss.detach()), outputs, batch.labels)
        return value if math.isfinite(value) else float("nan")

    def _compute_outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the model's outputs for prepared inputs, computed in the run's precision. Errors of a user's model become
        OwnCodeError, a lack of memory ConfigError.
        """
        with (
            user_code.attribute_errors("training.model", self._experiment.training.model),
            self._explain_memory_errors(),
            self._autocast(),
        ):
            outputs: torch.Tensor = self._flat.module(inputs)
        return outputs

    def _seed_draws(self, number: int) -> None:
        """Seed the random draws of dropout with `number`; those of torch's global generator too if the model or loss is user code."""
        if has_user_code(
            self._experiment.training
        ):  # one process for each device, so its global generator is this learner's
            torch.manual_seed(number)  # on every device
        for layer in self._dropouts:
            layer.generator = torch.Generator(self.device).manual_seed(number)

    def _autocast(self) -> AbstractContextManager[object]:
        """Return the autocast context for half precision, without effect in fp32."""
        return torch.autocast(self.device.type, self._half, enabled=self._half is not None)

    def _use_device(self) -> AbstractContextManager[object]:
        """Return the context in which CUDA calls go to this learner's device. On a CPU, set torch to one thread and return a
        context without effect.
        """
        if self.device.type == "cuda":
            return torch.cuda.device(self.device)
        torch.set_num_threads(1)
        return nullcontext()

    def _explain_memory_errors(self) -> "_MemoryErrors":
        """Return the context manager that turns a lack of device memory into a ConfigError."""
        return _MemoryErrors(self._experiment, self.device)


@dataclass(frozen=True)
class _MemoryErrors:
    """Context manager that turns a lack of memory on the device into a ConfigError that says what to change. `experiment`, `device`: for
    the message.
    """

    experiment: Experiment
    device: torch.device

    def __enter__(self) -> None:
        """Do nothing: only the end of the context matters."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise ConfigError, with a smaller batch size to try, if the block ended with torch's OutOfMemoryError; let any other
        error pass.
        """
        if isinstance(error, torch.OutOfMemoryError):
            training = self.experiment.training
            half = ", or training.precision: fp16" if training.precision == "fp32" else ""
            raise ConfigError(
                f"training.batch_size: {training.batch_size} of {training.model} do not fit {_describe_memory(self.device)}; "
                f"try {max(1, training.batch_size // 2)}{half}"
            ) from error


def _describe_memory(device: torch.device) -> str:
    """Return the device's memory in words, such as `the 15 GiB of Tesla T4`."""
    if device.type != "cuda":
        return f"the memory of {device_name(device)}"
    total = torch.cuda.get_device_properties(device).total_memory
    return f"the {total / 2**30:.0f} GiB of {device_name(device)}"


def choose_device(rank_on_instance: int) -> torch.device | None:
    """Return the GPU that this process should use, or None if there is none and the CPU computes. `rank_on_instance`: number of the
    process on its instance, from 0; modulo the number of GPUs, it is the GPU's number.
    """
    if not torch.cuda.is_available():
        return None
    return torch.device("cuda", rank_on_instance % torch.cuda.device_count())
