"""Check that a user's model fits its data, and count its operations and its memory."""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from crossover import runtime, user_code
from crossover.algorithms.schedule import image_side
from crossover.errors import ConfigError, CrossoverError, DataError, OwnCodeError
from crossover.experiment import Experiment, Training
from crossover.learning import batches, flat, sizes, zoo
from crossover.learning.learner import skeleton
from crossover.learning.samples import NO_CLASS, UNMAPPED, Affine, Dataset, Preparation, Samples, is_measured, to_side
from crossover.learning.sizes import StepCounts
from crossover.learning.step_counts import count_step

# --- fitness ----------------------------------------------------------------------------------------------------------

FIELD = "data.dataset"
_COARSE = 0.01  # of a deviation, or of minmax's range, in which values are rounded
_EPS = torch.finfo(torch.float64).eps
_WHOLE = 2**24  # from which on float32 leaves out whole numbers
_MEND = "take an offset off them in the loader"
_LAST_BITS = 16  # of the epsilons by which two ways to compute one number may differ


def check(samples: Samples, experiment: Experiment, *, loader: Callable[..., object] | None) -> None:
    """Raise OwnCodeError or DataError if the samples are invalid, ConfigError if the experiment's settings do not fit them."""
    if problem := _malformed(samples) or _unfit(samples, experiment):
        raise _told(experiment, problem, loader)
    if problem := _impossible(samples, experiment):
        raise ConfigError(problem)


def check_mapped(dataset: Dataset, experiment: Experiment, *, loader: Callable[..., object] | None) -> None:
    """Raise OwnCodeError or DataError if float32 does not hold what `data.preprocess` has made of the inputs."""
    for inputs, of in ((dataset.train_inputs, "training"), (dataset.validation_inputs, "validation")):
        if rows := _rows_not_finite(inputs):
            problem = (
                f"inputs are beyond float32, which the model is given, in {rows}, of the {of} set, after data.preprocess: "
                f"{experiment.data.preprocess}; scale them in the loader"
            )
            raise _told(experiment, problem, loader)


def tell_blurred(given: Dataset, whole: Affine) -> None:
    """Print a note, once in a process, for each channel of floats whose spread is within their rounding: little or nothing of it reaches
    the model. `whole`: the map of the inputs as they were given.
    """
    inputs, told = given.train_inputs, runtime.get_or_make("notes on data sets", set[str])
    for channel, (scale, shift) in enumerate(zip(whole["scale"], whole["shift"], strict=True)):
        if not shift or (scale != 1.0 and torch.finfo(inputs.dtype).eps * abs(shift) < _COARSE):
            continue
        if words := _blurred(inputs if inputs.ndim == 1 else inputs[:, channel], is_constant=scale == 1.0):
            line = f"note: {FIELD}: {given.name}: inputs, channel {channel}, {words}"
            if line not in told:
                told.add(line)
                print(line, file=sys.stderr, flush=True)


def _blurred(values: Tensor, *, is_constant: bool) -> str:
    """Return why the rounding of a channel's values hides their spread, and what helps; empty if it does not. `is_constant`: the map leaves
    their scale.
    """
    wide, kind = values.to(torch.float64), torch.finfo(values.dtype)
    around, deviation = float(wide.mean()), float(wide.std(correction=0))
    said = f"lie around {around:.4g} and deviate by {deviation:.2g}, which"
    step = f"{kind.dtype} holds in steps of {math.ldexp(kind.eps, math.frexp(around)[1] - 1):.3g}; return float64, or {_MEND}"
    if float(wide.min()) == float(wide.max()):
        far = values.dtype == torch.float32 and abs(around) >= _WHOLE
        return f"are {around:.4g} in every row; if they were not, {step}" if far else ""
    if is_constant and _LAST_BITS * kind.eps * abs(around) < deviation < wide.numel() * _EPS * abs(around):
        return f"{said} is within the rounding of {wide.numel():,} values: taken for constant; {_MEND}"
    if not is_constant and values.dtype in (torch.float32, torch.float64):
        return f"{said} {step}"
    return ""


def description(dataset: Dataset, *, preprocess: str) -> str:
    """Return a text on the samples: their numbers, shapes and dtypes, and how they are mapped before they reach the model."""
    inputs, labels = dataset.train_inputs, dataset.train_labels
    measured = f"{preprocess} by channel" if preprocess != "none" else "as they are"
    measured += ", in float64 before they are staged" if "zero" in (dataset.affine or {}) else ""
    fate = measured if is_measured(inputs) else "as they are: whole numbers, so names"
    classes = f", {dataset.classes} classes" if dataset.classes else ""
    counts = f"{len(labels):,} samples to train on, {len(dataset.validation_labels):,} to validate"
    return f"{counts}; inputs: {_rows(inputs)}, {fate}; labels: {_rows(labels)}{classes}"


def _malformed(samples: Any) -> str:
    """Return what is wrong with the samples themselves, or an empty text."""
    if not isinstance(samples, Samples):
        return f"returned a {type(samples).__name__}; a crossover.learning.datasets.Samples is expected"
    if (samples.test_inputs is None) != (samples.test_labels is None):
        return "of test_inputs and test_labels one is None; both or neither are expected"
    parts = {"inputs": samples.inputs, "labels": samples.labels}
    if samples.test_inputs is not None:
        parts |= {"test_inputs": samples.test_inputs, "test_labels": samples.test_labels}  # type: ignore[dict-item]
    for name, part in parts.items():
        if problem := _no_tensor(name, part) or _not_finite(name, part):
            return problem
    if problem := batches.batch_problem(samples.inputs, samples.labels):
        return problem
    if samples.test_inputs is not None and samples.test_labels is not None:
        if problem := batches.batch_problem(samples.test_inputs, samples.test_labels):
            return f"of the test split, {problem}"
        pairs = (("inputs", samples.inputs, samples.test_inputs), ("labels", samples.labels, samples.test_labels))
        for name, part, test in pairs:
            if (part.shape[1:], part.dtype) != (test.shape[1:], test.dtype):
                return f"{name} are {_rows(part)}, test_{name} {_rows(test)}; rows of one shape and dtype are expected"
    return ""


def _no_tensor(name: str, part: Any) -> str:
    if isinstance(part, Tensor):
        return "" if part.ndim and len(part) else f"{name} are empty: a tensor of the shape {tuple(part.shape)}"
    if isinstance(part, Sequence) and len({_length(row) for row in part}) > 1:
        shortest, longest = min(map(_length, part)), max(map(_length, part))
        return f"{name} are a list whose rows have {shortest} to {longest} values; tensors of torch.int64 are expected, or one length"
    return f"{name} are a {type(part).__name__}; a torch tensor is expected, such as torch.as_tensor makes of it"


def _length(row: Any) -> int:
    return len(row) if hasattr(row, "__len__") and getattr(row, "ndim", True) else 1


def _not_finite(name: str, part: Tensor) -> str:
    rows = _rows_not_finite(part) if part.is_floating_point() else ""
    return f"{name} hold NaN or infinity in {rows}; fill them in or leave them out" if rows else ""


def _rows_not_finite(part: Tensor) -> str:
    """Return how many rows hold NaN or infinity, in words; empty if none does."""
    wrong = ~part.isfinite().reshape(len(part), -1).all(1)
    return (
        f"{int(wrong.sum())} of {len(part)} rows, the first is {int(wrong.nonzero()[0])}" if bool(wrong.any()) else ""
    )


def _told(experiment: Experiment, problem: str, loader: Callable[..., object] | None) -> CrossoverError:
    """Return the error that tells a data set's problem: the user's if `loader` is."""
    name = experiment.data.dataset
    if loader is None:
        return DataError(f"{FIELD}: {name}: {problem}")
    return user_code.build_user_code_error(FIELD, name, problem, place=user_code.find_definition_line(loader))


def _unfit(samples: Samples, experiment: Experiment) -> str:
    """Return why the loss cannot take the labels, or an empty text. A user loss is tried out elsewhere instead."""
    labels = [part for part in (samples.labels, samples.test_labels) if part is not None]
    found, loss = f"labels are {_rows(labels[0])}", experiment.training.loss
    if loss == "cross_entropy" and labels[0].dtype != torch.int64:
        return f"{found}; cross_entropy takes classes, torch.int64 (training.loss: mse takes numbers)"
    if loss in ("mse", "bce_with_logits") and labels[0].dtype not in (torch.float32, torch.float64):
        return f"{found}; training.loss: {loss} takes torch.float32 or torch.float64, such as labels.float()"
    if loss == "bce_with_logits" and any(bool(((part < 0) | (part > 1)).any()) for part in labels):
        return "labels lie beyond 0 and 1, which are all that training.loss: bce_with_logits takes"
    classes: Any = samples.classes
    if classes is None:
        return "classes is None; cross_entropy needs the number of classes" if loss == "cross_entropy" else ""
    if not isinstance(classes, int) or isinstance(classes, bool) or classes < 1:
        mend = f", such as int({classes!r}) makes" if isinstance(classes, float) and classes.is_integer() else ""
        return f"classes is {classes!r}; the number of classes is expected{mend}, None for labels that are numbers"
    for part in labels:
        known = part[part != NO_CLASS]
        if known.numel() and not 0 <= int(known.min()) <= int(known.max()) < classes:
            return f"labels {known.min()} to {known.max()} for {classes} classes; 0 to {classes - 1} are expected"
    return ""


def _impossible(samples: Samples, experiment: Experiment) -> str:
    """Return which setting does not fit these samples, or an empty text."""
    name, rows, training = experiment.data.dataset, _rows(samples.inputs), experiment.training
    images = samples.inputs.ndim == 4 and (samples.inputs.is_floating_point() or samples.inputs.dtype == torch.uint8)
    augment, begin = experiment.data.augment, training.image_size.begin
    if augment != "none" and not images:
        return f"data.augment: {augment} shifts and mirrors images (C, H, W); {name} has {rows}; expected none"
    if begin is not None and not images:
        return f"training.image_size.begin: {begin} pixels are for images (C, H, W); {name} has {rows}; leave it out"
    if begin is not None and begin >= samples.inputs.shape[2]:
        return sizes.not_smaller(begin, name, samples.inputs.shape[2])
    if experiment.faults.attack == "label_flip" and samples.classes is None:
        return f"faults.attack: label_flip exchanges classes, and {name} has none; expected sign_flip or gaussian"
    if training.model in zoo.MODELS and not (images and samples.classes):
        return (
            f"training.model: {training.model} tells classes of images (C, H, W) apart; {name} has {rows}"
            f"{'' if samples.classes else ' and no classes'}; expected package.module:factory, a model of your own"
        )
    return ""


def _rows(part: Tensor) -> str:
    shape = ", ".join(str(side) for side in part.shape[1:])
    return f"rows of the shape ({shape}) {part.dtype}" if shape else f"single values {part.dtype}"


# --- footprint --------------------------------------------------------------------------------------------------------
# What a model's step takes by itself: multiply-accumulates, and the memory that its gradient holds, counted on a few samples.
#
# Nothing is timed here: the counts are the same on every machine.

OF_SAMPLES = (2, 4)  # two batches, whose difference tells what grows with the batch
_AT_ONCE = 256  # samples of an evaluation's forward pass, as the learner takes them


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The footprint of one model on one kind of input. `macs`: multiply-accumulates of one sample forward.

    `kept_bytes`: what the forward pass of one sample leaves for the backward pass. `widest_bytes`: the largest layer's inputs and
    outputs of one sample, which is what an evaluation holds. `step`: what a training step asks of a device. `fixed_bytes`: of frozen
    parameters and other buffers, which each process has and none sends.
    """

    parameters: int
    buffers: int
    macs: int
    kept_bytes: float
    widest_bytes: int
    step: StepCounts
    fixed_bytes: int = 0

    @property
    def evaluation_bytes(self) -> int:
        """Of an evaluation's forward pass."""
        return _AT_ONCE * self.widest_bytes


def of_module(module: nn.Module, sample: Tensor) -> Footprint:
    """Return the footprint of a module. `sample`: one input as the model receives it, without the batch dimension."""
    memory = {each.untyped_storage().data_ptr(): each for each in (*module.parameters(), *module.buffers())}
    own, learnt, norms = set(memory), flat.trained(module), flat.moving_norms(module)
    elements = sum(each.numel() for each in learnt.values())
    statistics = sum(2 * each.num_features for each in norms.values())
    few, more = (_kept(module, _batch(sample, count), own) for count in OF_SAMPLES)
    with torch.no_grad(), _layer_by_layer(), FlopCounterMode(display=False) as counted:
        _passed(module, _batch(sample, 1), training=False)
    return Footprint(
        parameters=elements,
        buffers=statistics,
        macs=counted.get_total_flops() // 2,
        kept_bytes=(more - few) / (OF_SAMPLES[1] - OF_SAMPLES[0]),
        widest_bytes=_widest(module, _batch(sample, 1)),
        step=count_step(module, sample, run=lambda own, inputs: _passed(own, inputs, training=True)),
        fixed_bytes=sum(each.nbytes for each in memory.values()) - 4 * (elements + statistics),
    )


@contextmanager
def _layer_by_layer() -> Iterator[None]:
    """Disable torch's fused path for evaluated transformers in this context: the operation counter sees nothing in it."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def of_model(training: Training, *, classes: int | None, sample: Tensor) -> Footprint:
    """Return the footprint of `training.model` on samples like `sample`, which is as the data set has it."""
    (sample,) = Preparation(UNMAPPED, memory_format=training.memory_format)(sample.unsqueeze(0))
    built = skeleton(training, classes, tuple(sample.shape))
    module = built.to_empty(device="cpu") if any(each.is_meta for each in built.parameters()) else built
    with torch.no_grad():
        for each in (*module.parameters(), *module.buffers()):
            each.data = torch.zeros_like(each)  # a base's own memory is all learners'
    low = bool(training.weights.file) and training.precision == "bf16"
    with _fits(training, classes, tuple(sample.shape)), torch.autocast("cpu", torch.bfloat16, enabled=low):
        return of_module(module, sample)


@contextmanager
def _fits(training: Training, classes: int | None, shape: tuple[int, ...]) -> Iterator[None]:
    """Report a user model's failure on such samples, in this context, with what the model was built for."""
    name = training.model
    try:
        with user_code.blame("training.model", name, what=zoo.factory(name)):
            yield
    except OwnCodeError as error:
        labels = "labels that are numbers" if classes is None else f"{classes} classes"
        raise OwnCodeError(f"{error}; it was given inputs of shape {shape}, without the batch, and {labels}") from error


def training_share(training: Training, *, classes: int | None, shape: tuple[int, ...]) -> float:
    """Return the mean of `training_shares` over the epochs."""
    if training.image_size.begin is None:
        return 1.0
    return sum(training_shares(training, classes=classes, shape=shape)) / training.epochs


def training_shares(training: Training, *, classes: int | None, shape: tuple[int, ...]) -> list[float]:
    """Return, by epoch, the multiply-accumulates of a training step divided by those on images of `shape` (C, H, W):
    `training.image_size` scales images down.
    """
    sides = [image_side(training, shape[1], epoch=epoch) for epoch in range(1, training.epochs + 1)]
    macs = {side: _macs(training, classes, shape, side) for side in {*sides, shape[1]}}
    return [macs[side] / macs[shape[1]] for side in sides]


def _macs(training: Training, classes: int | None, shape: tuple[int, ...], side: int) -> int:
    """Return the multiply-accumulates of the forward pass of one image, scaled to `side`."""
    module = skeleton(training, classes, shape)
    device = next(module.parameters()).device
    image = torch.zeros(shape).unsqueeze(0)
    with _fits(training, classes, shape), torch.no_grad(), FlopCounterMode(display=False) as counted:
        _passed(module, to_side(image, side).to(device), training=False)
    return int(counted.get_total_flops()) // 2


def _batch(sample: Tensor, count: int) -> Tensor:
    return sample.unsqueeze(0).repeat(count, *[1] * sample.ndim)


def _passed(module: nn.Module, inputs: Tensor, *, training: bool) -> Any:
    """Return the outputs of a forward pass, each call of the module behind a border of its own: what it soils reaches no other."""
    with user_code.border():
        module.train() if training else module.eval()  # one that overrides it may return nothing
    with user_code.border():
        return module(inputs)


def _kept(module: nn.Module, inputs: Tensor, own: set[int]) -> int:
    """Return the bytes that autograd keeps, counting each memory once and leaving out the model's own."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # itself would be a cycle that nobody collects

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = _passed(module, inputs, training=True)
    total = sum(kept.values())
    del output
    return total


def _widest(module: nn.Module, inputs: Tensor) -> int:
    widest = 0

    def look(layer: nn.Module, given: Any, output: Any) -> None:
        nonlocal widest
        widest = max(widest, sum(t.nbytes for t in (*given, output) if isinstance(t, Tensor)))

    hooks: list[Callable[[], None]] = [
        layer.register_forward_hook(look).remove for layer in module.modules() if not list(layer.children())
    ]
    with torch.no_grad():
        _passed(module, inputs, training=False)
    for remove in hooks:
        remove()
    return widest
