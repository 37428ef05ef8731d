"""A torch module whose parameters, gradients and BatchNorm statistics are views of two flat vectors.

model = [P parameters | B buffers], gradient = [P gradient | B minibatch statistics], both (P + B,) float32. The P parameters stand in the
module's own order; the B values are, for each BatchNorm layer in module order, its means and then its variances.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@dataclass(frozen=True, slots=True)
class _Norm:
    """A BatchNorm layer and where its statistics stand in the last B elements."""

    layer: _BatchNorm
    mean: slice
    variance: slice


class FlatModel:
    """`module` with its memory replaced by the vectors `model` and `gradient`, allocated here once."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._norms = _norms(module)
        distinct = list(module.parameters())  # a parameter that is used twice stands here once
        self.shapes = tuple(tuple(parameter.shape) for parameter in distinct)
        self.parameters = sum(parameter.numel() for parameter in distinct)
        self.buffers = sum(2 * norm.layer.num_features for norm in self._norms)
        self.model = torch.zeros(self.parameters + self.buffers)
        self.gradient = torch.zeros_like(self.model)
        self._replace_parameters(distinct)
        for norm in self._norms:
            # The layer writes the minibatch's own statistics: running = 1.0 * minibatch + 0.0 * running. Its count has no use then.
            norm.layer.momentum = 1.0
            norm.layer.num_batches_tracked = None

    def _replace_parameters(self, distinct: list[nn.Parameter]) -> None:
        views: dict[int, nn.Parameter] = {}
        offset = 0
        for old in distinct:
            part = slice(offset, offset + old.numel())
            new = nn.Parameter(self.model[part].view(old.shape), requires_grad=old.requires_grad)
            new.grad = self.gradient[part].view(old.shape)  # backward adds into it in place
            views[id(old)], offset = new, part.stop
        for module in self.module.modules():
            for name, old_parameter in list(module._parameters.items()):
                if old_parameter is not None:
                    module._parameters[name] = views[id(old_parameter)]

    def train(self) -> None:
        """Layers write minibatch statistics behind the gradient, which starts at zero."""
        self.gradient.zero_()
        self._point_statistics(self.gradient)
        self.module.train()

    def evaluate(self) -> None:
        """Layers read the statistics behind the model."""
        self._point_statistics(self.model)
        self.module.eval()

    def _point_statistics(self, vector: Tensor) -> None:
        # `.data`: the same memory under a version count of its own; backward, which saves the statistics, would otherwise take the
        # gradients' arrival elsewhere in the vector for a change to them.
        tail = vector[self.parameters :].data
        for norm in self._norms:
            norm.layer.running_mean, norm.layer.running_var = tail[norm.mean].data, tail[norm.variance].data


def flattened(module: nn.Module) -> Tensor:
    """[P parameters | B running statistics] of an ordinary module, as FlatModel orders them."""
    parts = [parameter.detach() for parameter in module.parameters()]
    for norm in _norms(module):
        assert norm.layer.running_mean is not None and norm.layer.running_var is not None
        parts += [norm.layer.running_mean, norm.layer.running_var]
    return torch.cat([part.reshape(-1).to(torch.float32) for part in parts])


def _norms(module: nn.Module) -> list[_Norm]:
    found, offset = [], 0
    for layer in module.modules():
        if isinstance(layer, _BatchNorm) and layer.track_running_stats:
            middle, end = offset + layer.num_features, offset + 2 * layer.num_features
            found.append(_Norm(layer, slice(offset, middle), slice(middle, end)))
            offset = end
    return found
