"""A model, its loss and its metric behind one interface: parameters as one vector, gradients, evaluation; tried before a
run, and saved after it.
"""

import copy
import itertools
import json
import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from crossover import user_code
from crossover.algorithms import buffers, codecs
from crossover.algorithms.aggregation import is_finite
from crossover.algorithms.compression import make_generator
from crossover.algorithms.schedule import derive_seed
from crossover.errors import ConfigError, Corrupt, OwnCodeError, Refused
from crossover.experiment import Experiment, Training
from crossover.learning import batches, scaling, weights, zoo
from crossover.learning import batches as tensor_file
from crossover.learning import weights as adapters
from crossover.learning.batches import Batch
from crossover.learning.flat import FlatModel, flatten_module, flatten_statistics, list_trained
from crossover.learning.layers import Dropout
from crossover.learning.memory import check_room_for_gradient, keep_freed_memory, release_freed_memory
from crossover.learning.samples import (
    NO_CLASS,
    Affine,
    LabelScale,
    Preparation,
    augment_images,
    get_affine_map,
    is_measured,
    list_first_epochs,
    resize_for_epoch,
)
from crossover.learning.weights import DOWN, UP
from crossover.stores.encoding import Vector

if TYPE_CHECKING:
    from crossover.learning.loss_scale import LossScale
    from crossover.learning.samples import Dataset


# --- objectives -------------------------------------------------------------------------------------------------------

_OF_NUMBERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": F.mse_loss,
    "bce_with_logits": F.binary_cross_entropy_with_logits,
}
_LOSS, _METRIC = "training.loss", "training.metric.name"
PERPLEXITY = "perplexity"
_LARGEST_EXPONENT = 709.0  # of a float
BatchScores = tuple[float, int, float, int]  # a loss summed, over how many answers; a metric summed, over how many


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of evaluating a model on `samples` samples: the mean loss (cross entropy without label smoothing) and the run's
    metric, both over all labels that count; class labels of -100 do not.
    """

    loss: float
    metric: float
    samples: int


class Objective:
    """Loss and metric of one run, computed from the model's outputs and the labels. An "answer" is a label that counts: class
    labels of -100 do not. Errors of a user's loss or metric become OwnCodeError.
    """

    def __init__(self, training: Training, scale: LabelScale | None = None) -> None:
        """Load the loss and the metric that `training` names. `scale`: how numeric labels are scaled, None if they are not; reported losses
        and metrics are in the labels' own unit. Raises as `user_code.load` does if a user's function cannot be loaded.
        """
        self._training, self.scale = training, scale
        self._own_loss, self._own_metric = (
            cast(Callable[..., Any], user_code.load(name, field=field)) if ":" in name else None
            for name, field in ((training.loss, _LOSS), (training.metric.name, _METRIC))
        )

    def compute_loss(self, outputs: Tensor, labels: Tensor, *, answers: int | None = None) -> Tensor:
        """Return the mean loss of `outputs` against `labels` over the minibatch's answers (labels that count), as a scalar tensor
        to differentiate; 0 if there are none.

        `answers`: number of answers counted before the run, by which the run weights the minibatch. Raises OwnCodeError if the loss counts
        another number now, or if a user's loss fails.
        """
        mean, count = self._loss(_to_float32(outputs), labels, smoothing=self._training.label_smoothing)
        if answers not in (None, count):
            problem = f"counts {count} answers where it counted {answers} before the run; labels alone must decide how many they are"
            raise user_code.build_user_code_error(
                _LOSS, self._training.loss, problem, place=user_code.find_definition_line(self._own_loss)
            )
        return mean

    def convert_loss(self, loss: float, outputs: Any, labels: Tensor) -> float:
        """Return `loss`, the mean loss of `outputs` against `labels`, as it is reported. If labels are scaled and the loss is mse,
        it is computed again in the labels' own unit, squared; any other loss is returned unchanged.
        """
        if self.scale is None or self._training.loss != "mse":
            return loss
        return float(scaling.compute_distance(_to_float32(outputs), labels, self.scale).square().mean())

    def count_answers(self, outputs: Tensor, labels: Tensor) -> int:
        """Return the number of labels that the loss counts. `outputs`: any values of the shape of the model's outputs for these labels."""
        with torch.no_grad():
            return self._loss(_to_float32(outputs), labels, smoothing=0.0)[1]

    def score(self, outputs: Tensor, labels: Tensor) -> BatchScores:
        """Return (sum of the losses, number of labels they count, sum of the metric, number of labels it counts) for one part of an
        evaluation. For perplexity the last two repeat the first two. Raises OwnCodeError if a user's loss or metric fails.
        """
        outputs = _to_float32(outputs)
        mean, answers = self._loss(outputs, labels, smoothing=0.0)
        loss = self.convert_loss(float(mean), outputs, labels) * answers
        return (
            loss,
            answers,
            *((loss, answers) if self._training.metric.name == PERPLEXITY else self._metric(outputs, labels)),
        )

    def summarize(self, judged: Sequence[BatchScores], samples: int) -> Evaluation:
        """Return the Evaluation of a whole data set from `judged`, the `score` of each part. `samples`: number of evaluated
        samples; ValueError if it is 0. Perplexity is computed here, from the mean loss. Raises Refused if no label counts.
        """
        loss, answers, metric, counted = (
            (sum(column) for column in zip(*judged, strict=True)) if judged else (0, 0, 0, 0)
        )
        if not samples:
            raise ValueError("batches: none given; an evaluation needs at least one sample")
        if not answers or not counted:
            raise Refused(f"data.validation: none of the {samples} samples that validate asks for an answer")
        value = metric / counted
        if self._training.metric.name == PERPLEXITY:
            value = math.exp(value) if value < _LARGEST_EXPONENT else math.inf
        return Evaluation(loss / answers, value, samples)

    def find_output_problem(self, outputs: object, labels: Tensor, *, classes: int | None) -> str:
        """Return in words why a built-in loss or metric cannot be computed from the model's `outputs` for `labels` (wrong type,
        dtype or shape); "" if it can, or if loss and metric are user code.

        `classes`: number of classes; None if the labels are numbers, or to take it from the outputs.
        """
        loss, metric = self._training.loss, self._training.metric.name
        counted = ("cross_entropy", "accuracy", PERPLEXITY)
        by_class = [name for name in (loss, metric) if name in counted and not _are_numbers(labels)]
        by_number = [name for name in (loss, metric) if ":" not in name and name not in by_class]
        if not by_class and not by_number:
            return ""
        if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
            found = f"{outputs.dtype}" if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
            return f"returned {found}; {' and '.join([*by_class, *by_number])} need one tensor of float"
        found = f"returned {tuple(outputs.shape)} for labels {tuple(labels.shape)}"
        wanted = (len(labels), classes or outputs.shape[min(1, outputs.ndim - 1)], *labels.shape[1:])
        if by_class and tuple(outputs.shape) != wanted:
            transposed = labels.ndim > 1 and outputs.transpose(1, -1).shape == wanted
            mend = "; outputs.transpose(1, -1) has it" if transposed else ""
            return f"{found}; {by_class[0]} needs {wanted}, the classes in dimension 1{mend}"
        if by_number and outputs.shape != labels.shape:
            return f"{found}; {by_number[0]} needs the same shape, such as outputs.reshape(labels.shape)"
        return ""

    def _loss(self, outputs: Tensor, labels: Tensor, *, smoothing: float) -> tuple[Tensor, int]:
        """Return (mean loss as a scalar tensor, number of labels it counts): all labels, but for cross entropy not those of -100, and for
        a user's loss as many as it says. The number may be 0, and the loss is then 0 for cross entropy. `smoothing`: label smoothing of
        cross entropy, ignored by other losses. Raises OwnCodeError if a user's loss fails, returns no tensor, or, while gradients are
        recorded, one that cannot be differentiated.
        """
        name = self._training.loss
        if name == "cross_entropy":
            count = int(mask_answered(labels).sum())
            # A mean of no answers would be 0 / 0.
            reduction = "mean" if count else "sum"
            return F.cross_entropy(outputs, labels, label_smoothing=smoothing, reduction=reduction), count
        if self._own_loss is None:
            return _OF_NUMBERS[name](outputs, labels), len(labels)
        value, count = self._call_user_function(self._own_loss, _LOSS, name, outputs, labels)
        if not isinstance(value, Tensor) or (torch.is_grad_enabled() and not value.requires_grad):
            problem = f"returned {value!r:.60}; the mean over the minibatch is expected, made of the outputs by torch"
            raise user_code.build_user_code_error(
                _LOSS, name, problem, place=user_code.find_definition_line(self._own_loss)
            )
        return value.reshape(()), count

    def _metric(self, outputs: Tensor, labels: Tensor) -> tuple[float, int]:
        """Return (metric summed over the labels it counts, their number), in the labels' own unit. The built-in metric for numbers is the
        mean absolute error. Raises OwnCodeError if a user's metric fails or is not finite.
        """
        name = self._training.metric.name
        if name == "accuracy":
            return count_correct(outputs, labels)
        if self._own_metric is None and self.scale is not None:
            return float(scaling.compute_distance(outputs, labels, self.scale).abs().mean()) * len(labels), len(labels)
        if self._own_metric is None:
            return float((outputs - labels).abs().mean()) * len(labels), len(labels)
        if self.scale is not None:
            outputs, labels = (scaling.unscale(part, self.scale) for part in (outputs, labels))
        mean, count = self._call_user_function(self._own_metric, _METRIC, name, outputs, labels)
        value = float(mean)
        if not math.isfinite(value):
            problem = f"returned {value} for {len(labels)} samples; a finite number is expected, the mean over them"
            raise user_code.build_user_code_error(
                _METRIC, name, problem, place=user_code.find_definition_line(self._own_metric)
            )
        return value * count, count

    def _call_user_function(
        self, own: Callable[..., Any], field: str, name: str, outputs: Tensor, labels: Tensor
    ) -> tuple[Any, int]:
        """Call `own`, a user's loss or metric, and return (mean, number of labels it counts). `own` may return its mean over the samples,
        or a pair (sum, count). `field`, `name`: setting and its value, for errors. If the count is 0, the sum is taken for the mean. Raises
        OwnCodeError if `own` fails, or for any other result.
        """
        with user_code.attribute_errors(field, name, what=own):
            value = own(outputs, labels.clone())  # a copy: this memory is read-only
        if isinstance(value, tuple) and len(value) == 2 and all(map(_is_single_number, value)):
            count = int(value[1])
            if count == value[1] and count >= 0:
                return value[0] / max(1, count), count
        if _is_single_number(value):
            return value, len(labels)
        found = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        problem = f"returned {found}; one number is expected, the mean over the samples, or two, their sum and how many it counts"
        raise user_code.build_user_code_error(field, name, problem, place=user_code.find_definition_line(own))


def count_correct(outputs: Tensor, labels: Tensor) -> tuple[int, int]:
    """Return (number of right predictions, number of labels that count), as whole numbers, so that their quotient is exact.

    The prediction is the class of the largest output. If labels are floats in [0, 1], each output is a logit, and the prediction is
    1 if it is above 0.
    """
    if _are_numbers(labels):
        return int(((outputs > 0) == (labels > 0.5)).sum()), labels.numel()
    counted = mask_answered(labels)
    return int(((outputs.argmax(1) == labels) & counted).sum()), int(counted.sum())


def mask_answered(labels: Tensor) -> Tensor:
    """Return a bool tensor of the shape of `labels`: True for each class label that counts, False for -100."""
    return labels != NO_CLASS


def _is_single_number(value: Any) -> bool:
    """Return whether `value` is one number of Python (bool included) or a tensor of one element of any shape. Other arrays and numpy's
    integers are none.
    """
    return isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)


def _are_numbers(labels: Tensor) -> bool:
    """Return whether the labels are floating-point numbers rather than classes."""
    return labels.is_floating_point()


def _to_float32(outputs: Any) -> Any:
    """Return a floating-point tensor as float32; anything else unchanged."""
    return outputs.float() if isinstance(outputs, Tensor) and outputs.is_floating_point() else outputs


# --- trial ------------------------------------------------------------------------------------------------------------
# What a module of the user's own does besides what is carried from worker to worker, seen on one minibatch.

Held = dict[str, object]  # by name, what tells two values apart


def find_trial_problem(
    flat: FlatModel, began: Held, compute: Callable[[], object], evaluate: Callable[[], object], *, decays: bool
) -> str:
    """Return in words why a run would not train a user's module as plain torch would; "" if it would. One minibatch is computed twice to
    find out.

    Reported are: weights limited by `max_norm`, tensors that no file can hold, values that a forward pass changes, a BatchNorm layer called
    twice, an adapter without effect, and weight decay on a parameter without gradient. `flat`: the module, with its parameters as one
    vector. `began`: result of `snapshot_fixed_values` before any pass. `compute`: computes the gradient of one fixed minibatch. `evaluate`:
    evaluates it once. `decays`: whether there is weight decay. Errors of `compute` and `evaluate` pass through. If nothing is wrong,
    `flat.gradient` then holds that minibatch's gradient, as `compare_builds` needs it.
    """
    for name, layer in flat.module.named_modules():
        if getattr(layer, "max_norm", None) is not None:
            return f"has {name}.max_norm, by which a forward pass changes weights, in one process alone; scale what it returns instead"
    with user_code.isolate():
        saved = flat.module.state_dict()
    if unsaved := batches.find_tensors_problem(saved | flat.list_constants()):
        return f"returned a module whose {unsaved}"
    calls, reached, learnt = Counter[str](), set[str](), list_trained(flat.module)
    hooks = [layer.register_forward_pre_hook(partial(_count_call, calls, name)) for name, layer in flat.norms.items()]
    for name, each in learnt.items():
        note = partial(_note_gradient, reached, name)
        hooks.append(each.register_post_accumulate_grad_hook(note))  # type: ignore[no-untyped-call]
    compute()
    for hook in hooks:
        hook.remove()
    once = _summarize_values(_list_values(flat.module))
    compute()
    changed = _list_differences(once, _summarize_values(_list_values(flat.module)))
    evaluate()
    if changed := _list_differences(began, snapshot_fixed_values(flat)) + changed:
        return (
            f"changes {changed[0]} in a forward pass, which stays in one process: what the optimizer does, and BatchNorm's statistics, are "
            "carried from worker to worker; make it one of these, compute it from the inputs, or leave it as it was built"
        )
    if twice := [name for name, count in calls.items() if count > 1]:
        return (
            f"calls its BatchNorm layer {twice[0]} {calls[twice[0]]} times in a forward pass, and the statistics of one call are "
            "carried; give each use a layer of its own"
        )
    idle = [name for name in learnt if name not in reached]
    if passed := [name for name in idle if f".{DOWN}." in f".{name}" or f".{UP}." in f".{name}"]:
        layer = passed[0].rpartition(".lora_")[0]
        return (
            f"takes {layer}'s weight without calling the layer, as torch.nn.MultiheadAttention does with out_proj: its adapter would do "
            "nothing; leave it out of training.adapters.targets"
        )
    if decays and idle:
        return (
            f"has {idle[0]}, which takes no part in the loss: training.weight_decay would shrink it here, where torch leaves it alone; "
            "freeze it by requires_grad_(False), or leave it out"
        )
    return ""


def compare_builds(flat: FlatModel, again: FlatModel, compute: Callable[[], object]) -> str:
    """Return in words the difference between two builds of a user's model from one seed, in weights, buffers or gradient; "" if
    there is none.

    `flat`: holds the gradient of a minibatch. `compute`: computes that minibatch's gradient in `again`, after a pass over another
    minibatch.
    """
    if not torch.equal(flat.model, again.model) or batches.compute_digest(
        flat.list_frozen() | flat.list_constants()
    ) != batches.compute_digest(again.list_frozen() | again.list_constants()):
        return (
            "returned other weights or buffers when called again with the same seed; it must draw them from torch alone"
        )
    compute()
    if not torch.equal(flat.gradient, again.gradient):
        return (
            "has another gradient of a minibatch, at the same weights, after another minibatch: it keeps something between forward passes, "
            "or draws random numbers elsewhere than from torch; nothing of that is carried from worker to worker"
        )
    return ""


# Errors of a model that takes identifiers, such as those of an embedding's rows, from numbers, or numbers from identifiers.
_ABOUT_VALUES = re.compile(r"type|index out of range|out of bounds|Class values")


@contextmanager
def explain_input_errors(inputs: Tensor, preprocess: str) -> Iterator[None]:
    """Within the `with` block, add to an OwnCodeError of a user's model how `inputs` reach the model, if it is about their type or about an
    index that is out of range. `inputs`: raw inputs of the data set; `preprocess`: value of `data.preprocess`.
    """
    try:
        yield
    except OwnCodeError as error:
        if not _ABOUT_VALUES.search(str(error.__cause__)):
            raise
        if not is_measured(inputs):
            how = f"are {inputs.dtype}, which reach the model as they are: .float() in the loader makes numbers of them"
        elif preprocess != "none":
            how = (
                f"reach the model as float32, and normalised by data.preprocess: {preprocess}, columns of ids too; "
                "--set data.preprocess=none leaves their values as they are (scale the others in the loader)"
            )
        else:
            how = "reach the model as float32 (data.preprocess: none leaves their values as they are)"
        raise OwnCodeError(f"{error}; inputs {how}") from error


def _list_values(module: nn.Module) -> dict[str, object]:
    """Return the value of each attribute and buffer of each layer. Keys: dotted name of the layer, a dot, the attribute's name."""
    return {
        f"{name}.{attribute}".lstrip("."): value
        for name, layer in module.named_modules()
        for attribute, value in {**layer._buffers, **vars(layer)}.items()
    }


def snapshot_fixed_values(flat: FlatModel) -> Held:
    """Return a comparable summary (see `_summarize_values`) of each value that no forward pass may change, by name: all parameters,
    and buffers other than BatchNorm's moving statistics.
    """
    return _summarize_values(flat.list_constants() | dict(flat.module.named_parameters()))


def _summarize_values(values: Mapping[str, object]) -> Held:
    """Return a short summary of each tensor or number, by its name, so that two values can be compared: shape, dtype and CRC-32 of
    a tensor, the text of a number. Values of other types are left out.
    """
    found: Held = {}
    for name, value in values.items():
        if isinstance(value, Tensor) and value.layout == torch.strided:
            found[name] = tuple(value.shape), value.dtype, crc32(buffers.view(value.detach().contiguous()))
        elif isinstance(value, int | float):
            found[name] = repr(value)  # NaN equals itself
    return found


def _list_differences(one: Held, other: Held) -> list[str]:
    """Return the names whose summaries differ, or that only one side has."""
    return [name for name in one | other if one.get(name) != other.get(name)]


def _count_call(calls: Counter[str], name: str, *_: object) -> None:
    """Count one call of the layer `name` in `calls`; a forward pre-hook, whose own arguments are ignored."""
    calls[name] += 1


def _note_gradient(reached: set[str], name: str, _: Tensor) -> None:
    """Add `name` to `reached`: a hook that torch calls once the parameter `name` has its gradient."""
    reached.add(name)


# --- learner ----------------------------------------------------------------------------------------------------------
# The learner: gradients and evaluations of one model, in memory that is allocated once and that the data plane receives into directly.

Shape = tuple[int, ...]
# Samples of an evaluation's forward pass. Measured for MobileNet: 1,024 take half as long again and three times the memory.
_EVALUATED_TOGETHER = 256
_FROZEN = "frozen"  # what the digest of a run's frozen parameters is called beside its buffers
# Modules draw their first weights, and the user's own their dropout, from torch's global generator.
_drawing = threading.Lock()


class Learner:
    """Model of one run on the CPU, which computes gradients and evaluations in memory allocated once. Not for two threads at once.

    `model`: writable memoryview of bytes, the vector of P parameters and B BatchNorm statistics, float32. `gradient`: of the same size,
    for the gradient and the minibatch's statistics. `model_vector`, `gradient_vector`: both as (P + B,) tensors over that memory.
    `shapes`: of the parameters, in the vector's order; `parameters`: P; `buffers`: B;
    `slot`: returns a context that is entered while computing, such as one that limits how many learners compute at once. `loss_scale`:
    always None, since a CPU computes in no float16.
    """

    loss_scale: "LossScale | None" = None  # processors compute in no float16

    def __init__(
        self,
        experiment: Experiment,
        *,
        classes: int | None,
        input_shape: Shape,
        affine: Affine,
        slot: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Build the experiment's model, and make torch's operations deterministic in the whole process. A built-in model is built
        without weights, a user's by its factory, with weights drawn from the seed; `initialise_model` gives it those to start from.
        Raises ConfigError for fp16, and if the machine lacks memory for the model's gradient; also the errors of the user's factory.

        `classes`: number of classes, None if labels are numbers. `input_shape`: shape of one input. `affine`: how inputs and labels
        are scaled, from the data's manifest. `slot`: see the class.
        """
        _check_precision(experiment)
        _make_deterministic()
        self.slot = slot
        self._experiment, self._classes, self._input_shape = experiment, classes, input_shape
        self._refuses = experiment.aggregation.non_finite == "refuse"
        module = build_skeleton(experiment.training, classes, input_shape, seed_=experiment.seed)
        check_room_for_gradient(experiment.training.model, sum(each.numel() for each in list_trained(module).values()))
        self._adopt_module(module)
        self._objective = Objective(experiment.training, scaling.from_manifest(affine))
        self._shown: dict[Shape, Any] = {}  # outputs of one sample, and of two, by their width
        self._factory = zoo.find_factory(experiment.training.model)
        self._own = has_user_code(experiment.training)
        self._prepare = Preparation(affine, memory_format=experiment.training.memory_format)
        self.shapes: tuple[Shape, ...] = self._flat.shapes  # of the parameters, in the vectors' order
        self.parameters: int = self._flat.parameters
        self.buffers: int = self._flat.buffers

    def _adopt_module(self, module: nn.Module) -> None:
        """Make `module` the learner's model: its parameters and gradients become views of the vectors `model` and
        `gradient`.
        """
        self._flat = FlatModel(module)
        self._dropouts = [layer for layer in module.modules() if isinstance(layer, Dropout)]
        self.model_vector, self.gradient_vector = self._flat.model, self._flat.gradient
        self.model: memoryview = buffers.view(self.model_vector)
        self.gradient: memoryview = buffers.view(self.gradient_vector)

    def initialise_model(self) -> memoryview:
        """Fill `model` with the initial parameters and BatchNorm statistics, and return `model` itself, not a copy. They depend on
        `experiment.seed` alone, so every worker begins with equal ones. Raises the errors of a user's factory.
        """
        flatten_module(self._build(), out=self._flat.model)
        return self.model

    def list_undecayed(self) -> list[tuple[int, int]]:
        """Return the (begin, end) element ranges of `model` whose parameters match `training.no_decay`, so get no weight decay.
        Raises ConfigError if a pattern matches nothing.
        """
        learnt, field = list_trained(self._flat.module), "training.no_decay"
        spared = adapters.match_names(self._experiment.training.no_decay, learnt, field=field, of="trained parameters")
        ends = list(itertools.accumulate(each.numel() for each in learnt.values()))
        return [
            (end - each.numel(), end) for (name, each), end in zip(learnt.items(), ends, strict=True) if name in spared
        ]

    def encode_constants(self) -> bytes:
        """Return as a safetensors file what `model` does not hold: the module's other buffers, and a digest of its frozen
        parameters. Empty bytes if `model` holds everything.
        """
        about = {_FROZEN: tensor_file.compute_digest(self._flat.list_frozen())}
        return tensor_file.encode_tensors(self._flat.list_constants(), about) if self.list_fixed() else b""

    def list_fixed(self) -> dict[str, Tensor]:
        """Return the frozen parameters and the buffers that `model` does not hold, by name: the module's own memory, not copies."""
        return self._flat.list_frozen() | self._flat.list_constants()

    def take_constants(self, constants: bytes) -> None:
        """Copy the buffers in `constants`, which `encode_constants()` returned on the machine that started the run, into the module.
        `constants` must not be empty. Raises Corrupt if names, shapes or dtypes differ from the module's, ConfigError if frozen
        parameters differ there and here.
        """
        take_constants(self._flat, constants, self._experiment.training.model)

    def _build(self) -> nn.Module:
        """Return a new module of the experiment's model with its initial weights."""
        return _build_seeded(self._experiment.training, self._classes, self._input_shape, seed_=self._experiment.seed)

    def compute_gradient(self, batch: Batch, *, epoch: int, round: int, worker: int, minibatch: int) -> float:
        """Write the gradient of the loss on `batch` at the parameters in `model`, and the minibatch's BatchNorm statistics, to
        `gradient`, and return the mean loss (mse in the labels' own unit). `epoch` (from 1) sets augmentation and image size;
        `round`, `worker` and `minibatch` seed dropout.

        Equal arguments give equal bits in any process of one machine type, torch build and thread count. Raises Refused if the loss or
        gradient is not finite, unless `aggregation.non_finite` drops it later; ConfigError if a BatchNorm layer receives a single value;
        OwnCodeError if a user's model or loss fails, or if the model leaves a BatchNorm layer out.
        """
        training, experiment = self._experiment.training, self._experiment
        where = f"worker {worker}, epoch {epoch}, round {round}, minibatch {minibatch}"
        keep_freed_memory()
        with self.slot():
            self._set_thread_count()
            ids, zero = batch.sample_ids, self._prepare.zero
            inputs = augment_images(batch.inputs, ids, experiment.data, seed=experiment.seed, epoch=epoch, zero=zero)
            inputs = resize_for_epoch(self._prepare(inputs), training, epoch=epoch)
            self._flat.switch_to_training()
            with self._seed_random("dropout", experiment.seed, round, worker, minibatch):
                with self._autocast():
                    outputs = self._forward(inputs, where=where)
                loss = self._objective.compute_loss(outputs, batch.labels, answers=batch.answers)
                value = float(loss.detach())
                if not math.isfinite(value) and self._refuses:
                    raise Refused(
                        f"{where}: the loss is {value}; a lower training.learning_rate or a warm-up may keep it finite"
                    )
                with user_code.attribute_errors("training.model", training.model, what=self._factory):
                    loss.backward()  # type: ignore[no-untyped-call]
            self._raise_problem(self._flat.find_norm_problem())
            if self._refuses and not is_finite(self._flat.gradient):
                raise Refused(
                    f"{where}: the gradient has values that are not finite, though the loss is {value}; a lower training.learning_rate or "
                    "training.clip.norm may keep them finite"
                )
            return self._objective.convert_loss(value, outputs, batch.labels)

    def evaluate(self, batches: Iterable[Batch]) -> Evaluation:
        """Return the loss and metric of `model`, with its BatchNorm statistics, on all `batches`. Raises ValueError if there are no
        batches, Refused if no label counts, OwnCodeError if a user's model, loss or metric fails.
        """
        return self._objective.summarize(*self._score_batches(batches))

    def count_answers(self, batch: Batch) -> int:
        """Return the number of labels in the minibatch that the loss counts. The loss is called with made-up outputs: those of one sample,
        repeated for all. `model` and `gradient` do not change. Raises OwnCodeError if a user's model or loss fails. The outputs of a sample
        are computed at the first call for each input shape and kept, so later models are not asked.
        """
        if (shown := self._shown.get(width := batch.inputs.shape[1:])) is None:
            first = self._prepare(batch.inputs[:1])
            with torch.inference_mode(), self._autocast():
                self._set_thread_count()
                self._flat.switch_to_evaluation()
                shown = self._shown[width] = [
                    self._forward(torch.cat([first] * count), where="a first sample") for count in (1, 2)
                ]
        like = tree_map(partial(_repeat_outputs, batch.samples), *shown)
        return self._objective.count_answers(like, batch.labels)

    def _score_batches(self, batches: Iterable[Batch]) -> tuple[list[BatchScores], int]:
        """Return (the scores of each part of at most 256 samples, in order, see `Objective.score`; the total number of samples)."""
        keep_freed_memory()
        judged, samples = list[BatchScores](), 0
        for batch in batches:
            with self.slot(), torch.inference_mode():
                self._set_thread_count()
                self._flat.switch_to_evaluation()
                for inputs, labels in zip(
                    torch.split(batch.inputs, _EVALUATED_TOGETHER),
                    torch.split(batch.labels, _EVALUATED_TOGETHER),
                    strict=True,
                ):
                    with self._autocast():
                        outputs = self._forward(self._prepare(inputs), where="evaluation")
                    judged.append(self._objective.score(outputs, labels))
            samples += batch.samples
        return judged, samples

    def try_out(self, batch: Batch) -> None:
        """Compute, from the initial model, a gradient of `batch` for each image size of the run, and an evaluation, so that problems of
        the user's model, loss or metric are found before anything starts.

        A user's model is also checked by `find_trial_problem` and `compare_builds`. `model` then holds the initial model, and `gradient`
        is overwritten. Raises OwnCodeError for a problem of user code, ConfigError for a setting that does not fit, Refused if a loss or
        gradient is not finite.
        """
        self.initialise_model()
        began = snapshot_fixed_values(self._flat)
        model, exchange = self._experiment.training.model, self._experiment.exchange
        if reason := codecs.build_codec(exchange).find_shape_problem(self.shapes):
            raise ConfigError(reason)
        with explain_input_errors(batch.inputs, self._experiment.data.preprocess):
            outputs = self._compute_outputs(batch.inputs)
        if problem := self._objective.find_output_problem(outputs, batch.labels, classes=self._classes):
            if ":" not in model:
                raise ConfigError(f"training.loss: {model} {problem}")
            self._raise_problem(problem)
        if (scale := self._objective.scale) is not None:
            with self._seed_random("dropout", 0), self._autocast():
                graded = self._forward(self._prepare(batch.inputs), where="a first minibatch")
            if problem := scaling.find_scaling_problem(graded, batch.labels, scale):
                raise ConfigError(f"data.scale_labels: {self._experiment.data.scale_labels}: {problem}")
        for epoch in list_first_epochs(batch.inputs, self._experiment.training):
            self.compute_gradient(batch, epoch=epoch, round=0, worker=0, minibatch=0)
        self._score_batches([batch])
        if ":" in model:
            compute = partial(self.compute_gradient, batch, epoch=1, round=0, worker=0, minibatch=0)
            decays = bool(self._experiment.training.weight_decay)
            problem = find_trial_problem(
                self._flat, began, compute, partial(self._score_batches, [batch]), decays=decays
            )
            self._raise_problem(problem or compare_builds(self._flat, *self._build_second(batch)))

    def _build_second(self, batch: Batch) -> tuple[FlatModel, Callable[[], object]]:
        """Return (a second build of the model, a function that computes its gradient of `batch` after a pass over another minibatch)."""
        release_freed_memory()  # a large model's second build would not fit beside what the steps before it freed
        again, module = copy.copy(self), self._build()
        statistics = flatten_statistics(module)
        again._adopt_module(module)
        again._flat.model[again.parameters :].copy_(statistics)

        def compute() -> None:
            """Compute the second build's gradient of `batch` into its flat model, after a pass in training mode over another minibatch: the
            first sample repeated. Nothing is returned.
            """
            again._compute_outputs(batch.inputs[:1].expand_as(batch.inputs))
            again.compute_gradient(batch, epoch=1, round=0, worker=0, minibatch=0)

        return again._flat, compute

    def _compute_outputs(self, inputs: Tensor) -> Tensor:
        """Return the model's outputs for raw `inputs` in training mode, without gradients; used when a first minibatch is tried out."""
        with self._seed_random("dropout", 0), torch.no_grad(), self._autocast():
            self._flat.switch_to_training()
            return self._forward(self._prepare(inputs), where="a first minibatch")

    def _raise_problem(self, problem: str) -> None:
        """Raise OwnCodeError for the user's model if `problem` is not empty."""
        if problem:
            raise user_code.build_user_code_error(
                "training.model",
                self._experiment.training.model,
                problem,
                place=user_code.find_definition_line(self._factory),
            )

    @contextmanager
    def _seed_random(self, what: str, *key: int) -> Iterator[None]:
        """Within the `with` block, make random draws depend on `what` and `key` alone.

        This holds for this project's dropout layers. For a user's model or loss it holds for torch's global generator too, which
        one thread at a time uses and which is restored afterwards.
        """
        random = make_generator(what, *key) if self._dropouts else None
        for layer in self._dropouts:
            layer.generator = random
        if not self._own:
            yield
            return
        with _drawing, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive_seed(what, *key))
            yield

    def _set_thread_count(self) -> None:
        """Set torch's number of threads to `training.threads` for the calling thread."""
        threads = self._experiment.training.threads
        assert threads != "auto", "the runner says how many before a run starts"
        if torch.get_num_threads() != threads:  # every thread of the process has a number of its own
            torch.set_num_threads(threads)

    def _autocast(self) -> AbstractContextManager[object]:
        """Return the context for a forward pass: bfloat16 autocast if `training.precision` is bf16, otherwise one without effect."""
        return torch.autocast("cpu", torch.bfloat16, enabled=self._experiment.training.precision == "bf16")

    def _forward(self, inputs: Tensor, *, where: str) -> Tensor:
        """Return the model's outputs for prepared `inputs`. Errors of a user's model become OwnCodeError. `where`: names the
        minibatch in errors.
        """
        training = self._experiment.training
        with user_code.attribute_errors("training.model", training.model, what=self._factory):
            return self._call_module(inputs, where=where)

    def _call_module(self, inputs: Tensor, *, where: str) -> Tensor:
        """Return the module's outputs. Raises ConfigError if a BatchNorm layer receives a single value per channel. `where`: names
        the minibatch in that error.
        """
        try:
            outputs: Tensor = self._flat.module(inputs)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise ConfigError(
                f"training.batch_size: {where} has {len(inputs)} sample, and a BatchNorm layer of {self._experiment.training.model}"
                " sees one value per channel; set data.drop_last, or a batch size whose last minibatch has 2 samples or more"
            ) from error
        return outputs


def learner_for(experiment: Experiment, dataset: "Dataset") -> Learner:
    """Return a new CPU learner of the experiment for `dataset`, whose shapes, classes and scaling it takes; nothing needs to be staged."""
    return Learner(
        experiment,
        classes=dataset.classes,
        input_shape=tuple(dataset.train_inputs.shape[1:]),
        affine={**get_affine_map(dataset, experiment.data.preprocess), **scaling.to_manifest(dataset.scale)},
    )


def has_user_code(training: Training) -> bool:
    """Return whether the model or the loss is user code (`module:name`), which may draw random numbers from torch's global generator."""
    return ":" in training.model or ":" in training.loss


def _repeat_outputs(count: int, one: Any, two: Any) -> Any:
    """Return outputs for `count` samples, made from those of one sample (`one`) and of two (`two`): `one` is repeated along each
    dimension in which the two shapes differ. Values that are not tensors are returned as they are.
    """
    if not isinstance(one, Tensor):
        return one
    return one.repeat([1 if size == other else count for size, other in zip(one.shape, two.shape, strict=True)])


def _check_precision(experiment: Experiment) -> None:
    """Raise ConfigError if the experiment's precision is fp16, which needs a GPU."""
    if experiment.training.precision == "fp16":
        raise ConfigError(
            "training.precision: fp16 needs a GPU (a processor without float16 arithmetic took 16 times as long as in fp32);"
            " fp32 or bf16 is expected here"
        )


def adapt_to_processor(experiment: Experiment) -> Experiment:
    """Return the experiment with bf16 instead of fp16, which a CPU does not compute in, so that it can try what a GPU will train;
    unchanged if its precision is another.
    """
    if experiment.training.precision != "fp16":
        return experiment
    return replace(experiment, training=replace(experiment.training, precision="bf16"))


def _make_deterministic() -> None:
    """Make torch operations without a deterministic form raise, in the whole process. Uninitialised memory is left as it is, which
    torch's own deterministic mode would fill.
    """
    # What torch.use_deterministic_algorithms(True) does for eager code, without importing torch's compiler (0.7 s, 100 MB).
    torch._C._set_deterministic_algorithms(True, warn_only=False)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def list_shapes(name: str, classes: int | None, input_shape: Shape) -> tuple[Shape, ...]:
    """Return the shapes of the parameters of the built-in model `name`, in the order of its vector.

    `classes`: number of outputs, None if labels are numbers; `input_shape`: shape of one sample.
    """
    return FlatModel(build_skeleton(Training(model=name), classes, input_shape)).shapes


def take_constants(flat: FlatModel, constants: bytes, model: str) -> None:
    """Copy the buffers in `constants`, bytes that `Learner.encode_constants` returned on the machine that started the run, into `flat`.

    `constants` must not be empty. Raises Corrupt if names, shapes or dtypes differ from the module's; ConfigError, naming `model`, if the
    frozen parameters on that machine and here differ.
    """
    tensors, about = tensor_file.decode_tensors(constants)
    flat.take_constants(tensors)
    if about.get(_FROZEN, "") != tensor_file.compute_digest(flat.list_frozen()):
        raise ConfigError(
            f"training.model: {model}: its frozen parameters, {', '.join(flat.list_frozen())}, are built to other bits here than where the "
            "run was started, on another kind of machine; a buffer (register_buffer) is carried from there, or fill them by torch.rand"
        )


def build_skeleton(training: Training, classes: int | None, input_shape: Shape, *, seed_: int = 0) -> nn.Module:
    """Return the module of `training.model`. A built-in model has meta tensors without memory, which FlatModel replaces; a user's
    model is built with real weights, drawn from `seed_`.

    `classes`: number of outputs, None if labels are numbers; `input_shape`: shape of one sample.
    """
    if training.model in zoo.MODEL_FACTORIES:
        with torch.device("meta"), _SkipFilling():
            return zoo.find_factory(training.model)(classes, input_shape)
    return _build_seeded(training, classes, input_shape, seed_=seed_)


class _SkipFilling(TorchFunctionMode):
    """Context in which in-place operations on tensors without memory (meta) are skipped: there is nothing to fill.

    PyTorch would otherwise load its compiler's shape arithmetic, which Lambda's layer does not carry.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return the result of `func`, or its target unchanged if it would fill a tensor without memory."""
        name, named = func.__name__, kwargs or {}
        target = args[0] if args else named.get("tensor")  # torch.nn.init names it
        if name.endswith("_") and not name.endswith("__") and isinstance(target, Tensor) and target.is_meta:
            return target
        return func(*args, **named)


def _build_seeded(training: Training, classes: int | None, input_shape: Shape, *, seed_: int) -> nn.Module:
    """Return the module of `training.model`, on torch's default device. On the processor its weights are drawn from `seed_`, and torch's
    global CPU generator is left unchanged; a GPU's generator is neither seeded nor restored. `classes`, `input_shape`: see
    `build_skeleton`.
    """
    with _drawing, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed("model", seed_))
        return zoo.find_factory(training.model, partial(adapters.prepare_module, training))(classes, input_shape)


# --- saving -----------------------------------------------------------------------------------------------------------
# The trained model as a safetensors file: names and shapes of the module's own state_dict, readable by any safetensors library.


def encode_model(
    experiment: Experiment, manifest: Mapping[str, Any], vector: Vector, *, constants: bytes | None = None
) -> bytes:
    """Return the trained model as the bytes of a safetensors file: the tensors that `training.save` selects, from the model vector
    `vector`. `manifest`: the data's. `constants`: result of `Learner.encode_constants`, None to keep the module's own buffers. Raises
    Corrupt if the vector's size is not the model's; for `constants` as `take_constants` does. Raises OwnCodeError if a user's model fails.
    """
    classes, shape = manifest["classes"], tuple(manifest["input_shape"])
    flat = FlatModel(build_skeleton(experiment.training, classes, shape, seed_=experiment.seed))
    if vector.elements != flat.model.numel():
        raise Corrupt(f"model: {vector.elements} elements; {experiment.training.model} has {flat.model.numel()}")
    if constants is not None:
        take_constants(flat, constants, experiment.training.model)
    flat.model.copy_(buffers.tensor(vector.data))
    flat.switch_to_evaluation()
    about = {"model": experiment.training.model, "classes": str(classes)}
    if scale := scaling.from_manifest(manifest.get("affine", {})):  # its outputs are (label - mean) / deviation
        about |= {scaling.MEAN: json.dumps(scale.mean), scaling.DEVIATION: json.dumps(scale.deviation)}
    with user_code.attribute_errors("training.model", experiment.training.model):
        state = _select_tensors(experiment.training, flat)
    return batches.encode_tensors(state, about)


def _select_tensors(training: Training, flat: FlatModel) -> Mapping[str, Tensor]:
    """Return the tensors to save, by name, as `training.save` asks: the whole state_dict, the state_dict with adapters merged into
    their layers, or only the trained tensors (adapters).
    """
    match training.save:
        case "merged":
            return weights.merge_adapters(flat.module, training.adapters)
        case "adapters":
            fixed = flat.list_frozen() | flat.list_constants()
            return {name: value for name, value in flat.module.state_dict().items() if name not in fixed}
    return flat.module.state_dict()
