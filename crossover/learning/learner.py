"""The learner: gradients and evaluations of one model, in memory that is allocated once and that the data plane receives into directly."""

import copy
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from crossover import own_code
from crossover.algorithms import buffers, codecs
from crossover.algorithms.aggregation import finite
from crossover.algorithms.randomness import generator
from crossover.algorithms.seeds import seed
from crossover.errors import ConfigError, Refused
from crossover.experiment import Experiment, Training
from crossover.learning import tensor_file, trial
from crossover.learning.affine import constants
from crossover.learning.batch import Batch
from crossover.learning.flat import FlatModel, flattened, trained
from crossover.learning.images import Preparation, at_size, augmented, first_of_each_size
from crossover.learning.memory import keep_freed_memory
from crossover.learning.models import adapters, registry
from crossover.learning.models.layers import Dropout
from crossover.learning.objectives import BatchScores, Evaluation, Objective
from crossover.own_code import faults

if TYPE_CHECKING:
    from crossover.learning.datasets import Dataset

Shape = tuple[int, ...]
# Samples of an evaluation's forward pass. Measured for MobileNet: 1,024 take half as long again and three times the memory.
_AT_ONCE = 256
_FROZEN = "frozen"  # what the digest of a run's frozen parameters is called beside its buffers
# Modules draw their first weights, and the user's own their dropout, from torch's global generator.
_drawing = threading.Lock()


class Learner:
    """One model of one run. Not for two threads at once: a process that computes side by side has one for each.

    `slot` is held around computing only; `affine` is the manifest's, `input_shape` one input's.
    """

    def __init__(
        self,
        experiment: Experiment,
        *,
        classes: int | None,
        input_shape: Shape,
        affine: Mapping[str, Sequence[float]],
        slot: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        _check_precision(experiment)
        _make_deterministic()
        self.slot = slot
        self._experiment, self._classes, self._input_shape = experiment, classes, input_shape
        self._refuses = experiment.aggregation.non_finite == "refuse"
        self._hold(skeleton(experiment.training, classes, input_shape, seed_=experiment.seed))
        self._objective = Objective(experiment.training)
        self._shown: dict[Shape, Any] = {}  # outputs of one sample, and of two, by their width
        self._factory = registry.factory(experiment.training.model)
        self._own = is_own(experiment.training)
        self._prepare = Preparation(affine, memory_format=experiment.training.memory_format)
        self.shapes: tuple[Shape, ...] = self._flat.shapes  # of the parameters, in the vectors' order
        self.parameters: int = self._flat.parameters
        self.buffers: int = self._flat.buffers

    def _hold(self, module: nn.Module) -> None:
        self._flat = FlatModel(module)
        self._dropouts = [layer for layer in module.modules() if isinstance(layer, Dropout)]
        self.model: memoryview = buffers.view(self._flat.model)
        self.gradient: memoryview = buffers.view(self._flat.gradient)

    def initial_model(self) -> memoryview:
        """The model vector that `experiment.seed` alone decides, the same on every worker; also left in `model`."""
        self._flat.model.copy_(flattened(self._build()))
        return self.model

    def undecayed(self) -> list[tuple[int, int]]:
        """The elements of `model` that `training.no_decay` names. Raises ConfigError on a pattern that matches nothing."""
        learnt, field = trained(self._flat.module), "training.no_decay"
        spared = adapters.matching(self._experiment.training.no_decay, learnt, field=field, of="trained parameters")
        ends = list(itertools.accumulate(each.numel() for each in learnt.values()))
        return [
            (end - each.numel(), end) for (name, each), end in zip(learnt.items(), ends, strict=True) if name in spared
        ]

    def constants(self) -> bytes:
        """What of the module is in no vector and the same throughout a run: its other buffers, and a digest of what is frozen. Empty where
        all is in the vector.
        """
        about = {_FROZEN: tensor_file.digest(self._flat.frozen())}
        return tensor_file.encode(self._flat.constants(), about) if self.fixed() else b""

    def fixed(self) -> dict[str, Tensor]:
        """The same as tensors, by name."""
        return self._flat.frozen() | self._flat.constants()

    def take_constants(self, constants: bytes) -> None:
        """The buffers that the run began with. Raises ConfigError where what is frozen is built to other bits here."""
        take_constants(self._flat, constants, self._experiment.training.model)

    def _build(self) -> nn.Module:
        return _built(self._experiment.training, self._classes, self._input_shape, seed_=self._experiment.seed)

    def compute_gradient(self, batch: Batch, *, epoch: int, round: int, worker: int, minibatch: int) -> float:
        """The mean loss of `batch` at `model`; its gradient and the minibatch's statistics are left in `gradient`.

        The same arguments give the same bits in any process of the same machine type, torch build and thread count. Raises Refused on a
        loss or gradient that is not finite, unless `aggregation.non_finite` drops it behind; ConfigError where a BatchNorm layer sees a
        single value.
        """
        training, experiment = self._experiment.training, self._experiment
        where = f"worker {worker}, epoch {epoch}, round {round}, minibatch {minibatch}"
        keep_freed_memory()
        with self.slot():
            self._begin()
            inputs = augmented(batch.inputs, batch.sample_ids, experiment.data, seed=experiment.seed, epoch=epoch)
            inputs = at_size(self._prepare(inputs), training, epoch=epoch)
            self._flat.train()
            with self._seeded("dropout", experiment.seed, round, worker, minibatch):
                with self._autocast():
                    outputs = self._forward(inputs, where=where)
                loss = self._objective.loss(outputs, batch.labels, answers=batch.answers)
                value = float(loss.detach())
                if not math.isfinite(value) and self._refuses:
                    raise Refused(
                        f"{where}: the loss is {value}; a lower training.learning_rate or a warm-up may keep it finite"
                    )
                with own_code.blame("training.model", training.model, what=self._factory):
                    loss.backward()  # type: ignore[no-untyped-call]
            self._tell(self._flat.problem())
            if self._refuses and not finite(self._flat.gradient):
                raise Refused(f"{where}: the gradient has values that are not finite, though the loss is {value}")
        return value

    def evaluate(self, batches: Iterable[Batch]) -> Evaluation:
        """`model`, with the statistics behind it, on `batches`. Raises ValueError where there are none, Refused without an answer."""
        return self._objective.evaluation(*self._judged(batches))

    def answers(self, batch: Batch) -> int:
        """How many a loss of the user's own counts in the minibatch: it is asked, with the outputs of one sample for all."""
        if (shown := self._shown.get(width := batch.inputs.shape[1:])) is None:
            first = self._prepare(batch.inputs[:1])
            with torch.inference_mode(), self._autocast():
                self._begin()
                self._flat.evaluate()
                shown = self._shown[width] = [
                    self._forward(torch.cat([first] * count), where="a first sample") for count in (1, 2)
                ]
        like = tree_map(partial(_of_samples, batch.samples), *shown)
        return self._objective.answers(like, batch.labels)

    def _judged(self, batches: Iterable[Batch]) -> tuple[list[BatchScores], int]:
        """Of each part of an evaluation; and how many samples they are."""
        keep_freed_memory()
        judged, samples = list[BatchScores](), 0
        for batch in batches:
            with self.slot(), torch.inference_mode():
                self._begin()
                self._flat.evaluate()
                for inputs, labels in zip(
                    torch.split(batch.inputs, _AT_ONCE), torch.split(batch.labels, _AT_ONCE), strict=True
                ):
                    with self._autocast():
                        outputs = self._forward(self._prepare(inputs), where="evaluation")
                    judged.append(self._objective.judged(outputs, labels))
            samples += batch.samples
        return judged, samples

    def try_out(self, batch: Batch) -> None:
        """A gradient of each size that images have in the run, and an evaluation, of `batch` from the initial model: what model, loss or
        metric of the user's own do not take is told before anything starts. Raises OwnCodeError, ConfigError, Refused.
        """
        self.initial_model()
        began = trial.as_built(self._flat)
        model, exchange = self._experiment.training.model, self._experiment.exchange
        if reason := codecs.named(exchange).problem(self.shapes):
            raise ConfigError(reason)
        outputs = self._outputs(batch.inputs)
        if problem := self._objective.problem(outputs, batch.labels, classes=self._classes):
            if ":" not in model:
                raise ConfigError(f"training.loss: {model} {problem}")
            self._tell(problem)
        for epoch in first_of_each_size(batch.inputs, self._experiment.training):
            self.compute_gradient(batch, epoch=epoch, round=0, worker=0, minibatch=0)
        self._judged([batch])
        if ":" in model:
            compute = partial(self.compute_gradient, batch, epoch=1, round=0, worker=0, minibatch=0)
            decays = bool(self._experiment.training.weight_decay)
            problem = trial.problem(self._flat, began, compute, partial(self._judged, [batch]), decays=decays)
            self._tell(problem or trial.built_again(self._flat, *self._again(batch)))

    def _again(self, batch: Batch) -> tuple[FlatModel, Callable[[], object]]:
        """Another build of the model, with its own first weights, and what computes its gradient of `batch` after another minibatch."""
        again, module = copy.copy(self), self._build()
        weights = flattened(module)
        again._hold(module)
        again._flat.model.copy_(weights)

        def compute() -> None:
            again._outputs(batch.inputs[:1].expand_as(batch.inputs))
            again.compute_gradient(batch, epoch=1, round=0, worker=0, minibatch=0)

        return again._flat, compute

    def _outputs(self, inputs: Tensor) -> Tensor:
        """Of a minibatch that is tried out."""
        with self._seeded("dropout", 0), torch.no_grad(), self._autocast():
            self._flat.train()
            return self._forward(self._prepare(inputs), where="a first minibatch")

    def _tell(self, problem: str) -> None:
        """Raises OwnCodeError where the model has one."""
        if problem:
            raise faults.told(
                "training.model", self._experiment.training.model, problem, place=faults.of_definition(self._factory)
            )

    @contextmanager
    def _seeded(self, what: str, *key: int) -> Iterator[None]:
        """Random numbers drawn within it depend on the arguments alone: those of our own dropout layers, and in a model or loss of the
        user's own those of torch's global generator, which one at a time has to itself.
        """
        random = generator(what, *key) if self._dropouts else None
        for layer in self._dropouts:
            layer.generator = random
        if not self._own:
            yield
            return
        with _drawing, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed(what, *key))
            yield

    def _begin(self) -> None:
        threads = self._experiment.training.threads
        assert threads != "auto", "the runner says how many before a run starts"
        if torch.get_num_threads() != threads:  # every thread of the process has a number of its own
            torch.set_num_threads(threads)

    def _autocast(self) -> AbstractContextManager[object]:
        return torch.autocast("cpu", torch.bfloat16, enabled=self._experiment.training.precision == "bf16")

    def _forward(self, inputs: Tensor, *, where: str) -> Tensor:
        training = self._experiment.training
        with own_code.blame("training.model", training.model, what=self._factory):
            return self._called(inputs, where=where)

    def _called(self, inputs: Tensor, *, where: str) -> Tensor:
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
    """A learner by the data set itself, staged or not."""
    scale, shift = constants(dataset.train_inputs, experiment.data.preprocess)
    return Learner(
        experiment,
        classes=dataset.classes,
        input_shape=tuple(dataset.train_inputs.shape[1:]),
        affine={"scale": scale, "shift": shift},
    )


def is_own(training: Training) -> bool:
    """Whether code of the user's own, which may draw random numbers, is under way in a gradient."""
    return ":" in training.model or ":" in training.loss


def _of_samples(count: int, one: Any, two: Any) -> Any:
    """Outputs of so many samples, or a part of them: along whichever dimensions two have more than one."""
    if not isinstance(one, Tensor):
        return one
    return one.repeat([1 if size == other else count for size, other in zip(one.shape, two.shape, strict=True)])


def _check_precision(experiment: Experiment) -> None:
    if experiment.training.precision == "fp16":
        raise ConfigError(
            "training.precision: fp16 needs a GPU (its gradients underflow without loss scaling, and processors have no fast fp16);"
            " fp32 or bf16 is expected here"
        )


def _make_deterministic() -> None:
    """Process-wide: operations without a deterministic form raise. Memory is not filled, which that mode would do by default."""
    # What torch.use_deterministic_algorithms(True) does for eager code, without importing torch's compiler (0.7 s, 100 MB).
    torch._C._set_deterministic_algorithms(True, warn_only=False)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def shapes_of(name: str, classes: int | None, input_shape: Shape) -> tuple[Shape, ...]:
    """Of the parameters of a model of the registry, in the order in which they stand in its vector."""
    return FlatModel(skeleton(Training(model=name), classes, input_shape)).shapes


def take_constants(flat: FlatModel, constants: bytes, model: str) -> None:
    """As `Learner.take_constants`."""
    tensors, about = tensor_file.decode(constants)
    flat.take_constants(tensors)
    if about.get(_FROZEN, "") != tensor_file.digest(flat.frozen()):
        raise ConfigError(
            f"training.model: {model}: its frozen parameters, {', '.join(flat.frozen())}, are built to other bits here than where the run "
            "was started, on another kind of machine; a buffer (register_buffer) is carried from there, or fill them by torch.rand"
        )


def skeleton(training: Training, classes: int | None, input_shape: Shape, *, seed_: int = 0) -> nn.Module:
    """The module without weights of its own: FlatModel brings the memory of what is trained. One from outside may need real tensors to be
    built; what is not trained it has from `seed_`.
    """
    if training.model in registry.MODELS:
        with torch.device("meta"), _Unfilled():
            return registry.factory(training.model)(classes, input_shape)
    return _built(training, classes, input_shape, seed_=seed_)


class _Unfilled(TorchFunctionMode):
    """Within it, in-place operations on tensors without memory are left out: there is nothing to fill.

    PyTorch would ask its compiler's shape arithmetic what filling does to a shape, which Lambda's layer does not carry.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, named = func.__name__, kwargs or {}
        target = args[0] if args else named.get("tensor")  # torch.nn.init names it
        if name.endswith("_") and not name.endswith("__") and isinstance(target, Tensor) and target.is_meta:
            return target
        return func(*args, **named)


def _built(training: Training, classes: int | None, input_shape: Shape, *, seed_: int) -> nn.Module:
    """The module with weights drawn from `seed_`; torch's global generator is left as it was."""
    with _drawing, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed("model", seed_))
        return registry.factory(training.model, partial(adapters.fit, training))(classes, input_shape)
