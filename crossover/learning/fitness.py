"""Check that a user's model fits its data, and count its operations and its memory."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from crossover import runtime, user_code
from crossover.algorithms.schedule import compute_image_side
from crossover.errors import ConfigError, CrossoverError, DataError, OwnCodeError, print_line
from crossover.experiment import Experiment, Training
from crossover.learning import batches, flat, sizes, zoo
from crossover.learning.kept import compute_once
from crossover.learning.learner import build_skeleton
from crossover.learning.memory import check_room_for_gradient
from crossover.learning.samples import (
    NO_CLASS,
    UNMAPPED,
    Affine,
    Dataset,
    Preparation,
    Samples,
    describe_wrong_type,
    is_measured,
    resize_images,
)
from crossover.learning.sizes import StepCounts
from crossover.learning.step_counts import OF_SAMPLES, MacCounter, count_step

# --- fitness ----------------------------------------------------------------------------------------------------------

FIELD = "data.dataset"
_COARSE = 0.01  # of a deviation, or of minmax's range, in which values are rounded
_EPS = torch.finfo(torch.float64).eps
_WHOLE = 2**24  # from which on float32 leaves out whole numbers
_MEND = "take an offset off them in the loader"
MAX_LIKELY_CLASSES = 1_000  # more different whole numbers are hardly classes
_LAST_BITS = 16  # of the epsilons by which two ways to compute one number may differ


def check_samples(samples: Samples, experiment: Experiment, *, loader: Callable[..., object] | None) -> None:
    """Raise OwnCodeError (with a user's `loader`) or DataError (without) if the samples are malformed or the loss cannot take their
    labels; raise ConfigError if another setting of the experiment does not fit them. `loader`: the user's function, or None.
    """
    if problem := _find_malformed(samples) or _find_label_problem(samples, experiment):
        raise _build_error(experiment, problem, loader)
    if problem := _find_setting_problem(samples, experiment):
        raise ConfigError(problem)


def check_mapped(dataset: Dataset, experiment: Experiment, *, loader: Callable[..., object] | None) -> None:
    """Raise OwnCodeError (with a user's `loader`) or DataError (without) if inputs of `dataset`, already preprocessed, are NaN or
    infinite because float32 cannot hold them.
    """
    for inputs, of in ((dataset.train_inputs, "training"), (dataset.validation_inputs, "validation")):
        if rows := _describe_non_finite_rows(inputs):
            problem = (
                f"inputs are beyond float32, which the model is given, in {rows}, of the {of} set, after data.preprocess: "
                f"{experiment.data.preprocess}; scale them in the loader"
            )
            raise _build_error(experiment, problem, loader)


def note_blurred_channels(given: Dataset, whole: Affine) -> None:
    """Print to stderr, once per process each, a note for each channel whose spread is hidden by rounding, so that little of it reaches
    the model, or that is constant at a float32 number of 2^24 or more. `given`: data set before preprocessing, whose inputs must be
    floats (others raise TypeError); `whole`: scale and shift of its preprocessing.
    """
    inputs, told = given.train_inputs, runtime.get_or_make("notes on data sets", set[str])
    for channel, (scale, shift) in enumerate(zip(whole["scale"], whole["shift"], strict=True)):
        if not shift or (scale != 1.0 and torch.finfo(inputs.dtype).eps * abs(shift) < _COARSE):
            continue
        if words := _explain_blur(inputs if inputs.ndim == 1 else inputs[:, channel], is_constant=scale == 1.0):
            line = f"note: {FIELD}: {given.name}: inputs, channel {channel}, {words}"
            if line not in told:
                told.add(line)
                print_line(line, stderr=True)


def _explain_blur(values: Tensor, *, is_constant: bool) -> str:
    """Return in words how the rounding of a channel's `values` hides their spread, and what to do; "" if it does not.

    `is_constant`: whether preprocessing treats the channel as constant.
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


def describe_dataset(dataset: Dataset, *, preprocess: str) -> str:
    """Return one line of text about the data set: numbers of samples, shapes, dtypes, number of classes, and how inputs are
    preprocessed. `preprocess`: value of `data.preprocess`.
    """
    inputs, labels = dataset.train_inputs, dataset.train_labels
    measured = f"{preprocess} by channel" if preprocess != "none" else "as they are"
    measured += ", in float64 before they are staged" if "zero" in (dataset.affine or {}) else ""
    fate = measured if is_measured(inputs) else "as they are: whole numbers, so names"
    classes = f", {dataset.classes} classes" if dataset.classes else ""
    counts = f"{len(labels):,} samples to train on, {len(dataset.validation_labels):,} to validate"
    return f"{counts}; inputs: {_describe_rows(inputs)}, {fate}; labels: {_describe_rows(labels)}{classes}"


def _find_malformed(samples: Any) -> str:
    """Return in words the first problem of the samples themselves, such as a wrong type, a missing part, NaN, or parts that do not
    fit together; "" if there is none.
    """
    if not isinstance(samples, Samples):
        return describe_wrong_type(samples)
    if (samples.test_inputs is None) != (samples.test_labels is None):
        return "of test_inputs and test_labels one is None; both or neither are expected"
    parts = {"inputs": samples.inputs, "labels": samples.labels}
    if samples.test_inputs is not None:
        parts |= {"test_inputs": samples.test_inputs, "test_labels": samples.test_labels}  # type: ignore[dict-item]
    for name, part in parts.items():
        if problem := _find_type_problem(name, part) or _find_non_finite(name, part):
            return problem
    if problem := batches.find_batch_problem(samples.inputs, samples.labels):
        return problem
    if samples.test_inputs is not None and samples.test_labels is not None:
        if problem := batches.find_batch_problem(samples.test_inputs, samples.test_labels):
            return f"of the test split, {problem}"
        pairs = (("inputs", samples.inputs, samples.test_inputs), ("labels", samples.labels, samples.test_labels))
        for name, part, test in pairs:
            if (part.shape[1:], part.dtype) != (test.shape[1:], test.dtype):
                return f"{name} are {_describe_rows(part)}, test_{name} {_describe_rows(test)}; rows of one shape and dtype are expected"
    return ""


def _find_type_problem(name: str, part: Any) -> str:
    """Return in words why `part`, called `name` in the text, is not a tensor with at least one row; "" if it is."""
    if isinstance(part, Tensor):
        if part.layout != torch.strided or part.is_nested:
            return f"{name} are a tensor of the layout {part.layout}; a dense one is expected, such as .to_dense() makes of a sparse one"
        if part.device.type != "cpu":
            return f"{name} are on the device {part.device}; a tensor in main memory is expected, such as .cpu() makes of it"
        if part.requires_grad:
            return f"{name} are a part of a graph of gradients; data are expected, such as .detach() makes of it"
        return "" if part.ndim and len(part) else f"{name} are empty: a tensor of the shape {tuple(part.shape)}"
    if isinstance(part, Sequence) and len({_get_length(row) for row in part}) > 1:
        shortest, longest = min(map(_get_length, part)), max(map(_get_length, part))
        return f"{name} are a list whose rows have {shortest} to {longest} values; tensors of torch.int64 are expected, or one length"
    return f"{name} are a {type(part).__name__}; a torch tensor is expected, such as torch.as_tensor makes of it"


def _get_length(row: Any) -> int:
    """Return the number of values in `row`; 1 if it is a single value."""
    return len(row) if hasattr(row, "__len__") and getattr(row, "ndim", True) else 1


def _find_non_finite(name: str, part: Tensor) -> str:
    """Return a problem in words that names `part` by `name`, the number of its rows that contain NaN or infinity, and the first of them
    (from 0); "" if none does or if `part` holds no floats.
    """
    rows = _describe_non_finite_rows(part) if part.is_floating_point() else ""
    return f"{name} hold NaN or infinity in {rows}; fill them in or leave them out" if rows else ""


def _describe_non_finite_rows(part: Tensor) -> str:
    """Return in words how many rows contain NaN or infinity, and which is the first; "" if none does."""
    wrong = ~part.isfinite().reshape(len(part), -1).all(1)
    return (
        f"{int(wrong.sum())} of {len(part)} rows, the first is {int(wrong.nonzero()[0])}" if bool(wrong.any()) else ""
    )


def _build_error(experiment: Experiment, problem: str, loader: Callable[..., object] | None) -> CrossoverError:
    """Return the error about the `problem` of the experiment's data set: an OwnCodeError that names the user's `loader`, or a
    DataError if `loader` is None.
    """
    name = experiment.data.dataset
    if loader is None:
        return DataError(f"{FIELD}: {name}: {problem}")
    return user_code.build_user_code_error(FIELD, name, problem, place=user_code.find_definition_line(loader))


def _find_label_problem(samples: Samples, experiment: Experiment) -> str:
    """Return in words why the built-in loss cannot take the labels, or why `classes` is wrong for them; "" if all is well. `samples`:
    must have no problem that `_find_malformed` finds. A user's loss is not called: with one, only `classes` is checked, that is, its type
    and, unless it is None, that the labels are from 0 to `classes` - 1 or -100.
    """
    labels = [part for part in (samples.labels, samples.test_labels) if part is not None]
    found, loss = f"labels are {_describe_rows(labels[0])}", experiment.training.loss
    if loss == "cross_entropy" and labels[0].dtype != torch.int64:
        return f"{found}; cross_entropy takes classes, torch.int64 (training.loss: mse takes numbers)"
    if loss in ("mse", "bce_with_logits") and labels[0].dtype not in (torch.float32, torch.float64):
        return f"{found}; training.loss: {loss} takes torch.float32 or torch.float64{_suggest_labels(labels)}"
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


def _suggest_labels(labels: Sequence[Tensor]) -> str:
    """Return what a loader may return in place of these labels, which no loss of numbers takes: floats, or classes if each sample has one
    label and they are whole numbers from 0 to less than MAX_LIKELY_CLASSES. `labels`: of the training set, and of the test set if any.
    """
    least, most = 1, 0
    if labels[0].dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64) and labels[0].ndim == 1:
        least, most = min(int(part.min()) for part in labels), max(int(part.max()) for part in labels)
    if least != 0 or not 0 < most < MAX_LIKELY_CLASSES:
        return ", such as labels.float()"
    whole = "..." if labels[0].dtype == torch.int64 else "inputs, labels.long()"
    return (
        f"; if they are classes, return Samples({whole}, classes={most + 1}) (in a YAML also training.loss: cross_entropy); "
        "if they are numbers, labels.float()"
    )


def _find_setting_problem(samples: Samples, experiment: Experiment) -> str:
    """Return in words the first setting that does not fit these samples (augmentation, image size, label flips, built-in model); ""
    if all fit.
    """
    name, rows, training = experiment.data.dataset, _describe_rows(samples.inputs), experiment.training
    images = samples.inputs.ndim == 4 and (samples.inputs.is_floating_point() or samples.inputs.dtype == torch.uint8)
    augment, begin = experiment.data.augment, training.image_size.begin
    if augment != "none" and not images:
        return f"data.augment: {augment} shifts and mirrors images (C, H, W); {name} has {rows}; expected none"
    if begin is not None and not images:
        return f"training.image_size.begin: {begin} pixels are for images (C, H, W); {name} has {rows}; leave it out"
    if begin is not None and begin >= samples.inputs.shape[2]:
        return sizes.explain_too_large(begin, name, samples.inputs.shape[2])
    if experiment.faults.attack == "label_flip" and samples.classes is None:
        return f"faults.attack: label_flip exchanges classes, and {name} has none; expected sign_flip or gaussian"
    if training.model in zoo.MODEL_FACTORIES and not (images and samples.classes):
        return (
            f"training.model: {training.model} tells classes of images (C, H, W) apart; {name} has {rows}"
            f"{'' if samples.classes else ' and no classes'}; expected package.module:factory, a model of your own"
        )
    return ""


def _describe_rows(part: Tensor) -> str:
    """Return in words the shape and dtype of one row of `part`, such as `rows of the shape (3, 32, 32) torch.uint8`."""
    shape = ", ".join(str(side) for side in part.shape[1:])
    return f"rows of the shape ({shape}) {part.dtype}" if shape else f"single values {part.dtype}"


# --- footprint --------------------------------------------------------------------------------------------------------
# What a model's step takes by itself: multiply-accumulates, and the memory that its gradient holds, counted on a few samples.
#
# Nothing is timed here: the counts are the same on every machine.


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Computing and memory needs of one model for one kind of input. `parameters`, `buffers`: trained elements, and elements of
    BatchNorm statistics. `macs`: multiply-accumulates of one sample's forward pass.

    `kept_bytes`: bytes that one sample's forward pass keeps for the backward pass. `widest_bytes`: bytes of one sample's inputs and
    outputs at the largest layer. `step`: work of a training step. `fixed_bytes`: bytes of frozen parameters and other buffers,
    which are never exchanged.
    """

    parameters: int
    buffers: int
    macs: int
    kept_bytes: float
    widest_bytes: int
    step: StepCounts
    fixed_bytes: int = 0


def measure_module(module: nn.Module, sample: Tensor) -> Footprint:
    """Return the footprint of `module`, counted by running it on a few copies of `sample`, one input as the model receives it, without the
    batch dimension. Nothing is timed, so the counts are equal on every machine. The module's mode changes, and its gradients are None
    afterwards.
    """
    memory = {each.untyped_storage().data_ptr(): each for each in (*module.parameters(), *module.buffers())}
    own, learnt, norms = set(memory), flat.list_trained(module), flat.list_moving_norms(module)
    elements = sum(each.numel() for each in learnt.values())
    statistics = sum(2 * each.num_features for each in norms.values())
    widest, macs = _measure_evaluation(module, _repeat_sample(sample, 1))
    kept = list[int]()  # of each batch of the counted steps
    step = count_step(module, sample, run=lambda own_module, inputs: _run_noting_kept(own_module, inputs, own, kept))
    return Footprint(
        parameters=elements,
        buffers=statistics,
        macs=macs,
        kept_bytes=(kept[1] - kept[0]) / (OF_SAMPLES[1] - OF_SAMPLES[0]),
        widest_bytes=widest,
        step=step,
        fixed_bytes=sum(each.nbytes for each in memory.values()) - 4 * (elements + statistics),
    )


@contextmanager
def _disable_fused_path() -> Iterator[None]:
    """Within the `with` block, disable torch's fused path for transformers in evaluation, whose operations the counter would not see."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def measure_model(training: Training, *, classes: int | None, sample: Tensor) -> Footprint:
    """Build `training.model` and return its footprint for inputs like `sample`, one raw input of the data set. Within a block of
    `keep_results` it is counted once. `classes`: number of classes, None if labels are numbers. Raises OwnCodeError if a user's model fails
    on such inputs, ConfigError if the machine lacks memory for the gradient.
    """
    key = ("footprint", repr(replace(training, epochs=1)), classes, sample.shape, sample.dtype)
    return compute_once(key, lambda: _measure_model(training, classes, sample))


def _measure_model(training: Training, classes: int | None, sample: Tensor) -> Footprint:
    """Count the footprint of `training.model`, as `measure_model` returns it, without looking for an earlier result. `sample`: one raw
    input, without the batch dimension; `classes`: number of classes, None if labels are numbers. Raises what `measure_model` raises.
    """
    (sample,) = Preparation(UNMAPPED, memory_format=training.memory_format)(sample.unsqueeze(0))
    built = build_skeleton(training, classes, tuple(sample.shape))
    check_room_for_gradient(training.model, sum(each.numel() for each in flat.list_trained(built).values()))
    module = built.to_empty(device="cpu") if any(each.is_meta for each in built.parameters()) else built
    with torch.no_grad():
        for each in (*module.parameters(), *module.buffers()):
            each.data = torch.zeros_like(each)  # a base's own memory is all learners'
    low = bool(training.weights.file) and training.precision == "bf16"
    with (
        _report_misfit(training, classes, tuple(sample.shape)),
        torch.autocast("cpu", torch.bfloat16, enabled=low),
        _use_one_thread(),
    ):
        return measure_module(module, sample)


@contextmanager
def _use_one_thread() -> Iterator[None]:
    """Within the `with` block, set torch to one thread: on a busy machine several would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _report_misfit(training: Training, classes: int | None, shape: tuple[int, ...]) -> Iterator[None]:
    """Within the `with` block, turn an error of a user's model into an OwnCodeError that names the input `shape` and the classes
    that the model was built for.
    """
    name = training.model
    try:
        with user_code.attribute_errors("training.model", name, what=zoo.find_factory(name)):
            yield
    except OwnCodeError as error:
        labels = "labels that are numbers" if classes is None else f"{classes} classes"
        raise OwnCodeError(f"{error}; it was given inputs of shape {shape}, without the batch, and {labels}") from error


def compute_training_share(training: Training, *, classes: int | None, shape: tuple[int, ...]) -> float:
    """Return the multiply-accumulates of the whole training divided by those on full-size images: 1.0 unless `training.image_size`
    makes images smaller.

    `classes`: number of outputs, None if labels are numbers; `shape`: (C, H, W) of the full images. Raises OwnCodeError if a user's model
    fails on such images.
    """
    if training.image_size.begin is None:
        return 1.0
    return sum(compute_training_shares(training, classes=classes, shape=shape)) / training.epochs


def compute_training_shares(training: Training, *, classes: int | None, shape: tuple[int, ...]) -> list[float]:
    """Return for each epoch the multiply-accumulates of a training step divided by those on full-size images, as
    `training.image_size` makes images smaller.

    `classes`: number of outputs, None if labels are numbers; `shape`: (C, H, W) of the full images. Raises OwnCodeError if a user's model
    fails on such images.
    """
    sides = [compute_image_side(training, shape[1], epoch=epoch) for epoch in range(1, training.epochs + 1)]
    macs = {side: _count_macs(training, classes, shape, side) for side in {*sides, shape[1]}}
    return [macs[side] / macs[shape[1]] for side in sides]


def _count_macs(training: Training, classes: int | None, shape: tuple[int, ...], side: int) -> int:
    """Return the multiply-accumulates of a forward pass, in evaluation mode, of one image of zeros of `shape` (C, H, W), resized to height
    `side`. `classes`: number of outputs, None if labels are numbers. Raises OwnCodeError if a user's model fails with such an image.
    """
    module = build_skeleton(training, classes, shape)
    device = next(module.parameters()).device
    image = torch.zeros(shape).unsqueeze(0)
    with _report_misfit(training, classes, shape), torch.no_grad(), MacCounter() as counted:
        _run_forward(module, resize_images(image, side).to(device), training=False)
    return int(counted.macs)


def _repeat_sample(sample: Tensor, count: int) -> Tensor:
    """Return a batch of `count` copies of the sample."""
    return sample.unsqueeze(0).repeat(count, *[1] * sample.ndim)


def _run_forward(module: nn.Module, inputs: Tensor, *, training: bool) -> Any:
    """Switch the module to training or evaluation mode and return its outputs for `inputs`, with errors of user code marked as such."""
    with user_code.isolate():
        module.train() if training else module.eval()  # one that overrides it may return nothing
    with user_code.isolate():
        return module(inputs)


def _run_noting_kept(module: nn.Module, inputs: Tensor, own: set[int], kept_bytes: list[int]) -> Any:
    """Return the module's outputs for `inputs` in training mode, and append to `kept_bytes` the number of bytes that autograd keeps
    for the backward pass. Shared memory counts once, the model's own memory (`own`: data pointers) not at all.
    """
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        """Record in the outer call's `kept` the bytes of a tensor's whole memory that autograd saves, unless it is the model's own; return
        the tensor, detached.
        """
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # the tensor itself would be a reference cycle that is never collected

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = _run_forward(module, inputs, training=True)
    kept_bytes.append(sum(kept.values()))
    return output


def _measure_evaluation(module: nn.Module, inputs: Tensor) -> tuple[int, int]:
    """Return (bytes of inputs and outputs of the largest layer, multiply-accumulates) of one forward pass of `inputs` in evaluation
    mode.
    """
    widest = 0

    def note_bytes(layer: nn.Module, given: Any, output: Any) -> None:
        """Set the outer call's `widest` to the bytes of this layer's inputs (`given`) and `output` if they are more; torch calls this hook
        after each layer. Parts that are no tensors do not count.
        """
        nonlocal widest
        widest = max(widest, sum(t.nbytes for t in (*given, output) if isinstance(t, Tensor)))

    hooks: list[Callable[[], None]] = [
        layer.register_forward_hook(note_bytes).remove for layer in module.modules() if not list(layer.children())
    ]
    with torch.no_grad(), _disable_fused_path(), MacCounter() as counted:
        _run_forward(module, inputs, training=False)
    for remove in hooks:
        remove()
    return widest, counted.macs
