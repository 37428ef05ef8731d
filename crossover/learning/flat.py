"""A torch module whose trained parameters, gradients and BatchNorm statistics are views of two flat vectors.

model = [P parameters | B buffers], gradient = [P gradient | B minibatch statistics], both (P + B,) float32. The P are the parameters that
the factory left to be trained (`requires_grad`), in the module's own order. The B values are, for each BatchNorm layer that is in training
when the module is, in module order, its means and then its variances.

What is frozen is in neither: parameters that take no gradient, and the statistics of a BatchNorm layer that stays in evaluation while the
module trains. Nor are other buffers: they are the module's own, as it was built.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import crossover.algorithms.first_calls  # noqa: F401  no first call is inexact
from crossover import user_code
from crossover.errors import Corrupt, Refused


@dataclass(frozen=True, slots=True)
class _Norm:
    """BatchNorm layer with the slices of its means and variances among the last B elements of the vectors; the slices count from 0 at the
    first of these B elements.
    """

    layer: _BatchNorm
    mean: slice
    variance: slice


class FlatModel:
    """Torch module whose trained parameters and BatchNorm statistics are views of one float32 vector, `model`, and whose gradients are
    views of another, `gradient`. Both have `parameters` + `buffers` elements: the parameters, then the statistics.

    `module`: the torch module; `shapes`: of its trained parameters, in the vectors' order; `norms`: its BatchNorm layers with statistics
    in the vectors, by name.
    """

    def __init__(self, module: nn.Module) -> None:
        """Allocate both vectors and make `module`, which is changed, use them. The parameters' values are copied into `model`, unless they
        are on the meta device; the statistics there are zero. BatchNorm layers in training get momentum 1, so that they write the
        minibatch's own statistics.
        """
        self.module = module
        distinct = list_trained(module)  # a parameter that is used twice is listed once
        self.norms = list_moving_norms(module)
        self._norms = list(_place_norms(self.norms.values()))
        self.shapes = tuple(tuple(parameter.shape) for parameter in distinct.values())
        self.parameters = sum(parameter.numel() for parameter in distinct.values())
        self.buffers = sum(2 * norm.layer.num_features for norm in self._norms)
        self.model = torch.zeros(self.parameters + self.buffers)
        self.gradient = torch.zeros_like(self.model)
        self._replace_parameters(list(distinct.values()))
        for norm in self._norms:
            # The layer writes the minibatch's own statistics: running = 1.0 * minibatch + 0.0 * running. Its count has no use then.
            norm.layer.momentum = 1.0
            norm.layer.num_batches_tracked = None

    def _replace_parameters(self, distinct: list[nn.Parameter]) -> None:
        """Make the given parameters views of `model`, into which their values are copied, and their gradients views of `gradient`.
        `distinct`: parameters in the vector's order, each once.
        """
        views: dict[int, nn.Parameter] = {}
        offset = 0
        for old in distinct:
            part = slice(offset, offset + old.numel())
            new, memory = old, self.model[part].view(old.shape)
            if old.is_meta:
                new = nn.Parameter(memory)
            else:  # the parameter itself goes on: its module may hold it elsewhere too
                memory.copy_(old.detach())
                old.data = memory
            new.grad = self.gradient[part].view(old.shape)  # backward adds into it in place
            views[id(old)], offset = new, part.stop
        for module in self.module.modules():
            for name, old_parameter in list(module._parameters.items()):
                if old_parameter is not None:
                    module._parameters[name] = views.get(id(old_parameter), old_parameter)

    def switch_to_training(self) -> None:
        """Switch the module to training mode: set `gradient` to zero, and let BatchNorm layers write the minibatch's statistics at
        its end.

        Raises Refused if a BatchNorm layer is in training mode in some steps only.
        """
        self.gradient.zero_()
        self._point_statistics(self.gradient)
        for norm in self._norms:
            self.gradient[self.parameters :][norm.variance].fill_(-1.0)  # until its layer is called
        for name in self.norms.keys() ^ list_moving_norms(self.module).keys():
            raise Refused(
                f"training.model: the BatchNorm layer {name} is in training at some steps and in evaluation at others"
            )

    def find_norm_problem(self) -> str:
        """Return in words which BatchNorm layer was not called in the last forward pass, so that `gradient` lacks its statistics;
        "" if all were called.
        """
        for name, norm in zip(self.norms, self._norms, strict=True):
            if self.gradient[self.parameters + norm.variance.start] < 0:
                return f"leaves its BatchNorm layer {name} out of a forward pass, and statistics of each pass are carried; call it in each"
        return ""

    def switch_to_evaluation(self) -> None:
        """Switch the module to evaluation mode: BatchNorm layers read the statistics at the end of `model`."""
        self._point_statistics(self.model)
        with user_code.isolate():
            self.module.eval()

    def list_frozen(self) -> dict[str, Tensor]:
        """Return the parameters that are not trained, by name, as detached tensors that share the module's memory."""
        return {name: each.detach() for name, each in self.module.named_parameters() if not each.requires_grad}

    def list_constants(self) -> dict[str, Tensor]:
        """Return the module's buffers that are not in the vectors, by name: the tensors themselves, including those that a state_dict
        omits.
        """
        own = {id(part) for norm in self.norms.values() for part in (norm.running_mean, norm.running_var)}
        return {name: each for name, each in self.module.named_buffers() if id(each) not in own}

    def take_constants(self, constants: Mapping[str, Tensor]) -> None:
        """Copy `constants`, the result of `list_constants()` for the same model elsewhere, into this module's buffers. Raises Corrupt, and
        copies nothing, if names, shapes or dtypes differ.
        """
        here = self.list_constants()
        if {name: (each.shape, each.dtype) for name, each in constants.items()} != {
            name: (each.shape, each.dtype) for name, each in here.items()
        }:
            raise Corrupt(f"constants: {', '.join(constants)} of the run's model; this module has {', '.join(here)}")
        for name, own in here.items():
            own.copy_(constants[name])

    def _point_statistics(self, vector: Tensor) -> None:
        """Make the running means and variances of all BatchNorm layers views of the last elements of `vector`."""
        # `.data`: the same memory under a version count of its own; backward, which saves the statistics, would otherwise take the
        # gradients' arrival elsewhere in the vector for a change to them.
        tail = vector[self.parameters :].data
        for norm in self._norms:
            norm.layer.running_mean, norm.layer.running_var = tail[norm.mean].data, tail[norm.variance].data


def flatten_module(module: nn.Module, *, out: Tensor | None = None) -> Tensor:
    """Return the vector [parameters | BatchNorm statistics] of an ordinary module, in FlatModel's order, float32. `out`: tensor to
    write the vector to, instead of a new one.
    """
    parts = [parameter.detach().reshape(-1).to(torch.float32) for parameter in list_trained(module).values()]
    return torch.cat([*parts, flatten_statistics(module)], out=out)


def flatten_statistics(module: nn.Module) -> Tensor:
    """Return the running BatchNorm statistics of an ordinary module as one vector, in FlatModel's order, float32."""
    parts = [torch.empty(0)]
    for layer in list_moving_norms(module).values():
        assert layer.running_mean is not None and layer.running_var is not None
        parts += [layer.running_mean, layer.running_var]
    return torch.cat([part.reshape(-1).to(torch.float32) for part in parts])


def list_trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient, by name; one that is used twice is listed once."""
    return {name: each for name, each in module.named_parameters() if each.requires_grad}


def list_moving_norms(module: nn.Module) -> dict[str, _BatchNorm]:
    """Return by name the BatchNorm layers whose statistics change in a forward pass in training mode. Switches `module` to training
    mode and leaves it there.
    """
    with user_code.isolate():
        module.train()  # one that overrides it may return nothing
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, _BatchNorm) and layer.track_running_stats and layer.training
    }


def _place_norms(layers: Iterable[_BatchNorm]) -> Iterator[_Norm]:
    """Yield each BatchNorm layer with the slices of its statistics, placed one after another from element 0."""
    offset = 0
    for layer in layers:
        middle, end = offset + layer.num_features, offset + 2 * layer.num_features
        yield _Norm(layer, slice(offset, middle), slice(middle, end))
        offset = end
