"""Count what one training step asks of a device: operations, bytes through its memory, multiply-accumulates.

The counts follow from shapes alone, so they are the same on every machine. `simulation/gpu_steps.py` turns them into seconds.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from crossover.learning.sizes import StepCounts

OF_SAMPLES = (2, 4)  # two batches, whose difference is what grows with the batch
NOT_RUN = {"empty", "empty_strided", "new_empty", "empty_like", "new_empty_strided", "detach", "_unsafe_view", "alias"}


class _UncompiledMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Base class of context managers that see each operation of torch, in programs that do not compile models."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch then does not hide the mode from its compiler, which it would import for that, in 1.5 s."""
        return False


class MacCounter(_UncompiledMode):
    """Context manager that counts the multiply-accumulates (`macs`) of everything torch computes in it: those of operations that torch's
    own counter of floating-point operations knows, as it counts them.
    """

    def __init__(self) -> None:
        """Start at zero."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._flops = 0

    @property
    def macs(self) -> int:
        """Multiply-accumulates so far."""
        return self._flops // 2

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation `func`, count it, and return its result."""
        given = dict(kwargs or {})
        found = func(*args, **given)
        if (formula := flop_registry.get(func.overloadpacket)) is not None:
            self._flops += formula(*args, **given, out_val=found)
        return found


class _Counter(_UncompiledMode):
    """Context manager that counts the operations, the bytes read and written, and the multiply-accumulates (`macs`, by kind) of
    everything torch computes in it.
    """

    def __init__(self) -> None:
        """Start with all counts at zero."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.operations, self.bytes = 0, 0
        self.macs = {"convolution": 0, "depthwise": 0, "matrix": 0}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation `func`, count it unless it is a view or only allocates, and return its result. torch calls this."""
        given = dict(kwargs or {})
        found = func(*args, **given)
        name = func.overloadpacket.__name__
        if not func.is_view and name not in NOT_RUN:
            self.operations += 1
            self.bytes += sum(each.numel() * each.element_size() for each in _list_tensors((args, given, found)))
            self._count_macs(func, name, args, given, found)
        return found

    def _count_macs(self, func: Any, name: str, args: tuple[Any, ...], given: Mapping[str, Any], found: Any) -> None:
        """Add one operation's multiply-accumulates to `macs`; nothing for operations that are neither convolutions nor known to torch.
        `func`, `name`: the operation; `args`, `given`: its positional and keyword arguments; `found`: its result.
        """
        if name in ("convolution", "convolution_backward"):
            back = name == "convolution_backward"
            inputs, weight = args[1:3] if back else args[:2]
            transposed = args[7] if back else args[6]
            # Each product of the convolution goes over all places of its smaller image, and over the whole filter at each.
            places = inputs if transposed else (args[0] if back else found)
            products = sum(args[10][:2]) if back else 1
            macs = products * places.shape[0] * places.shape[2:].numel() * weight.numel()
            self.macs["depthwise" if weight.shape[1] == 1 and inputs.shape[1] > 1 else "convolution"] += macs
        elif name.startswith("_scaled_dot_product_flash_attention_for_cpu"):  # torch's registry has those of GPUs alone
            back = name.endswith("_backward")
            queries, keys = args[1:3] if back else args[:2]
            products = 5 if back else 2  # backward computes the scores again
            self.macs["matrix"] += products * queries.numel() * keys.shape[-2]
        elif (formula := flop_registry.get(func.overloadpacket)) is not None:
            self.macs["matrix"] += formula(*args, **given, out_val=found) // 2


def _list_tensors(of: Any) -> list[Tensor]:
    """Return all tensors in the value `of`, including those in nested mappings, tuples and lists. Other objects have none."""
    if isinstance(of, Tensor):
        return [of]
    if isinstance(of, Mapping):
        return [found for each in of.values() for found in _list_tensors(each)]
    return [found for each in of for found in _list_tensors(each)] if isinstance(of, tuple | list) else []


def count_step(
    module: nn.Module, sample: Tensor, *, run: Callable[[nn.Module, Tensor], Any] | None = None
) -> StepCounts:
    """Return the counts of one forward and backward pass of `module`, without the optimizer's update. What grows with the batch is found
    from passes with 2 and 4 samples.

    `sample`: one input without the batch dimension, on the module's device, which may be `meta`. `run`: calls the module on inputs;
    `module(inputs)` unless given. The module's gradients are None afterwards.
    """
    few, more = (_count_pass(module, sample.unsqueeze(0).repeat(n, *[1] * sample.ndim), run) for n in OF_SAMPLES)
    apart = OF_SAMPLES[1] - OF_SAMPLES[0]
    each = {name: (more.macs[name] - few.macs[name]) / apart for name in few.macs}
    bytes_ = (more.bytes - few.bytes) / apart
    return StepCounts(
        operations=more.operations,
        bytes=few.bytes - OF_SAMPLES[0] * bytes_,
        of_sample_bytes=bytes_,
        of_sample_convolution=each["convolution"],
        of_sample_depthwise=each["depthwise"],
        of_sample_matrix=each["matrix"],
    )


def _count_pass(module: nn.Module, inputs: Tensor, run: Callable[[nn.Module, Tensor], Any] | None) -> _Counter:
    """Return the counter after one forward and backward pass of `module` over `inputs`; the module's gradients are None afterwards.
    `run`: calls the module on the inputs, by default `module(inputs)`.
    """
    counter = _Counter()
    with torch.enable_grad():
        with counter:
            outputs = module(inputs) if run is None else run(module, inputs)
        losses = [each for each in _list_tensors(outputs) if each.requires_grad]
        ones = [torch.ones_like(each) for each in losses]  # a loss's own, which is not counted
        with counter:
            torch.autograd.backward(losses, ones)
    for each in module.parameters():
        each.grad = None
    return counter
