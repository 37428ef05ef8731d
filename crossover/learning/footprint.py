"""What a model's step takes by itself: multiply-accumulates, and the memory that its gradient holds, counted on a few samples.

Nothing is timed here: the counts are the same on every machine.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from crossover import own_code
from crossover.algorithms.schedule import image_side
from crossover.errors import OwnCodeError
from crossover.experiment import Training
from crossover.learning import flat
from crossover.learning.images import to_side
from crossover.learning.learner import skeleton
from crossover.learning.models import registry

OF_SAMPLES = (2, 4)  # two batches, whose difference tells what grows with the batch
_AT_ONCE = 256  # samples of an evaluation's forward pass, as the learner takes them


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Of one model on one kind of input. `macs`: multiply-accumulates of one sample forward.

    `kept_bytes`: what the forward pass of one sample leaves for the backward pass. `widest_bytes`: the largest layer's inputs and
    outputs of one sample, which is what an evaluation holds. `fixed_bytes`: of frozen parameters and other buffers, which each process
    has and none sends.
    """

    parameters: int
    buffers: int
    macs: int
    kept_bytes: float
    widest_bytes: int
    fixed_bytes: int = 0

    @property
    def evaluation_bytes(self) -> int:
        """Of an evaluation's forward pass."""
        return _AT_ONCE * self.widest_bytes


def of_module(module: nn.Module, sample: Tensor) -> Footprint:
    """Of a module that takes batches of `sample`, one input without its first dimension."""
    memory = {each.untyped_storage().data_ptr(): each for each in (*module.parameters(), *module.buffers())}
    own, learnt, norms = set(memory), flat.trained(module), flat.moving_norms(module)
    elements = sum(each.numel() for each in learnt.values())
    statistics = sum(2 * each.num_features for each in norms.values())
    few, more = (_kept(module, _batch(sample, count), own) for count in OF_SAMPLES)
    module.eval()  # which one that overrides train() may return nothing from
    with torch.no_grad(), _layer_by_layer(), FlopCounterMode(display=False) as counted:
        module(_batch(sample, 1))
    return Footprint(
        parameters=elements,
        buffers=statistics,
        macs=counted.get_total_flops() // 2,
        kept_bytes=(more - few) / (OF_SAMPLES[1] - OF_SAMPLES[0]),
        widest_bytes=_widest(module, _batch(sample, 1)),
        fixed_bytes=sum(each.nbytes for each in memory.values()) - 4 * (elements + statistics),
    )


@contextmanager
def _layer_by_layer() -> Iterator[None]:
    """Without torch's fused path for transformers that are evaluated, in which the counter sees nothing."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def of_model(training: Training, *, classes: int | None, sample: Tensor) -> Footprint:
    """Of `training.model` on such samples."""
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
    """Around passes of the model: one of the user's own that does not take such samples is told with what it was built for."""
    name = training.model
    try:
        with own_code.blame("training.model", name, what=registry.factory(name)):
            yield
    except OwnCodeError as error:
        labels = "labels that are numbers" if classes is None else f"{classes} classes"
        raise OwnCodeError(f"{error}; it was given inputs of shape {shape}, without the batch, and {labels}") from error


def training_share(training: Training, *, classes: int | None, shape: tuple[int, ...]) -> float:
    """The mean of `training_shares`."""
    if training.image_size.begin is None:
        return 1.0
    return sum(training_shares(training, classes=classes, shape=shape)) / training.epochs


def training_shares(training: Training, *, classes: int | None, shape: tuple[int, ...]) -> list[float]:
    """Multiply-accumulates of a training step over those of one on images of `shape` (C, H, W), by epoch: `training.image_size` scales
    images down.
    """
    sides = [image_side(training, shape[1], epoch=epoch) for epoch in range(1, training.epochs + 1)]
    macs = {side: _macs(training, classes, shape, side) for side in {*sides, shape[1]}}
    return [macs[side] / macs[shape[1]] for side in sides]


def _macs(training: Training, classes: int | None, shape: tuple[int, ...], side: int) -> int:
    """Of one image forward, scaled to `side`."""
    module = skeleton(training, classes, shape)
    device = next(module.parameters()).device
    image = torch.zeros(shape).unsqueeze(0)
    module.eval()
    with _fits(training, classes, shape), torch.no_grad(), FlopCounterMode(display=False) as counted:
        module(to_side(image, side).to(device))
    return int(counted.get_total_flops()) // 2


def _batch(sample: Tensor, count: int) -> Tensor:
    return sample.unsqueeze(0).repeat(count, *[1] * sample.ndim)


def _kept(module: nn.Module, inputs: Tensor, own: set[int]) -> int:
    """Bytes that autograd keeps, each memory once, the model's own left out."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # itself would be a cycle that nobody collects

    module.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = module(inputs)
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
    module.eval()
    with torch.no_grad():
        module(inputs)
    for remove in hooks:
        remove()
    return widest
