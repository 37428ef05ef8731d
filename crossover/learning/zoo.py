"""Models by name: SmallCNN, VGG, ResNet, SqueezeNet, MobileNet, MobileNet v3, and the user's own."""

import difflib
import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy

from crossover import runtime, user_code
from crossover.algorithms.optimizers import STATISTICS_MOMENTUM
from crossover.errors import ConfigError
from crossover.learning.flat import list_moving_norms, list_trained
from crossover.learning.layers import Activation, Chain, ConvNorm, Dropout, initialise, pad_to_size, relu

# --- small cnn --------------------------------------------------------------------------------------------------------


class SmallCNN(nn.Module):
    """Small convolutional network: images (N, C, H, W) -> logits (N, classes). About 26,000 parameters."""

    def __init__(self, classes: int, channels: int) -> None:
        """Build the network for images of `channels` channels and `classes` outputs, with torch's default weights."""
        super().__init__()
        self.features = nn.Sequential(
            ConvNorm(channels, 16, 3), ConvNorm(16, 32, 3, stride=2), ConvNorm(32, 64, 3, stride=2)
        )
        self.classifier = nn.Linear(64 * 4, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (N, classes) of images (N, C, H, W)."""
        # 2x2 positions are kept: where a stroke is tells digits apart.
        pooled = F.adaptive_avg_pool2d(self.features(images), 2)
        logits: Tensor = self.classifier(pooled.flatten(1))
        return logits


def small_cnn(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    """Build a SmallCNN for images of `input_shape` (C, H, W), of which only C matters, with weights by `initialise`."""
    return initialise(SmallCNN(classes, input_shape[0]))


# --- vgg --------------------------------------------------------------------------------------------------------------
# VGG-11 (Simonyan and Zisserman 2014, configuration A): 132,863,336 parameters at 1,000 classes and 3 channels.

_WIDTHS = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # each group ends in a max pooling


class VGG(nn.Module):
    """VGG-11 network: images (N, C, H, W) -> logits (N, classes). Images below 32x32 are padded, because of its five
    poolings.
    """

    def __init__(self, classes: int, channels: int) -> None:
        """Build the network for images of `channels` channels and `classes` outputs, with torch's default weights."""
        super().__init__()
        layers: list[nn.Module] = []
        width = channels
        for group in _WIDTHS:
            for out in group:
                layers += [nn.Conv2d(width, out, 3, padding=1), relu()]
                width = out
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(width * 49, 4096), relu(), Dropout(0.5),
            nn.Linear(4096, 4096), relu(), Dropout(0.5),
            nn.Linear(4096, classes),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (N, classes) of images (N, C, H, W)."""
        features = F.adaptive_avg_pool2d(self.features(pad_to_size(images, 32)), 7)
        logits: Tensor = self.classifier(features.flatten(1))
        return logits


def vgg11(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    """Build a VGG-11 for images of `input_shape` (C, H, W), of which only C matters, with weights by `initialise`."""
    return initialise(VGG(classes, input_shape[0]))


# --- resnet -----------------------------------------------------------------------------------------------------------
# ResNet (He et al. 2016): at 1,000 classes and 3 channels ResNet-18 has 11,689,512 parameters, ResNet-50 25,557,032.
#
# The CIFAR variants have a 3x3 stem of stride 1 and no pooling after it: 11,173,962 parameters for ResNet-18 at 10 classes.


class Residual(nn.Module):
    """Residual block: ReLU of `block`'s output plus its input. The input goes through a 1x1 convolution if the shape changes."""

    def __init__(self, block: nn.Module, *, inputs: int, out: int, stride: int) -> None:
        """Build the connection around `block`, which has `inputs` input and `out` output channels and this `stride`."""
        super().__init__()
        self.block = block
        changes = stride != 1 or inputs != out
        self.shortcut = ConvNorm(inputs, out, 1, stride=stride, activation=None) if changes else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Return the ReLU of the block's output plus its (if necessary projected) input."""
        return F.relu(self.block(images) + self.shortcut(images), inplace=True)


def _build_basic_block(inputs: int, width: int, stride: int) -> Residual:
    """Return a residual block of two 3x3 convolutions. `inputs`: input channels; `width`: output channels; `stride`: of the first
    convolution.
    """
    block = Chain(ConvNorm(inputs, width, 3, stride=stride), ConvNorm(width, width, 3, activation=None))
    return Residual(block, inputs=inputs, out=width, stride=stride)


def _build_bottleneck_block(inputs: int, width: int, stride: int) -> Residual:
    """Return a residual block of 1x1, 3x3 and 1x1 convolutions. `inputs`: input channels; `width`: inner channels, a quarter of the
    output channels; `stride`: of the 3x3 convolution.
    """
    block = Chain(
        ConvNorm(inputs, width, 1),
        ConvNorm(width, width, 3, stride=stride),
        ConvNorm(width, 4 * width, 1, activation=None),
    )
    return Residual(block, inputs=inputs, out=4 * width, stride=stride)


class ResNet(nn.Module):
    """ResNet: images (N, C, H, W) -> logits (N, classes). `depths`: number of blocks in each stage; `bottleneck`: use bottleneck
    instead of basic blocks; `cifar`: first layers for small images (3x3 convolution of stride 1, no pooling).
    """

    def __init__(self, classes: int, channels: int, depths: tuple[int, ...], *, bottleneck: bool, cifar: bool) -> None:
        """Build the network for images of `channels` channels and `classes` outputs, with torch's default weights; the other
        arguments are explained at the class.
        """
        super().__init__()
        layers: list[nn.Module] = [ConvNorm(channels, 64, 3 if cifar else 7, stride=1 if cifar else 2)]
        if not cifar:
            layers.append(nn.MaxPool2d(3, 2, padding=1))
        make, growth, inputs = (_build_bottleneck_block, 4, 64) if bottleneck else (_build_basic_block, 1, 64)
        for stage, depth in enumerate(depths):
            width = 64 << stage
            for number in range(depth):
                layers.append(make(inputs, width, 2 if stage and number == 0 else 1))
                inputs = width * growth
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (N, classes) of images (N, C, H, W)."""
        logits: Tensor = self.classifier(self.features(images).mean((2, 3)))
        return logits


def resnet18(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    """Build a ResNet-18 for images of `input_shape` (C, H, W), of which only C matters, with weights by `initialise`. Its first layers
    are those for large images; `resnet18_cifar` has those for small ones.
    """
    return initialise(ResNet(classes, input_shape[0], (2, 2, 2, 2), bottleneck=False, cifar=False))


def resnet50(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    """Build a ResNet-50 for images of `input_shape` (C, H, W), of which only C matters, with weights by `initialise`. Its first layers
    are those for large images; `resnet50_cifar` has those for small ones.
    """
    return initialise(ResNet(classes, input_shape[0], (3, 4, 6, 3), bottleneck=True, cifar=False))


def resnet18_cifar(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    """Build a ResNet-18 with first layers for small images, for `input_shape` (C, H, W), of which only C matters, with weights by
    `initialise`.
    """
    return initialise(ResNet(classes, input_shape[0], (2, 2, 2, 2), bottleneck=False, cifar=True))


def resnet50_cifar(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    """Build a ResNet-50 with first layers for small images, for `input_shape` (C, H, W), of which only C matters, with weights by
    `initialise`.
    """
    return initialise(ResNet(classes, input_shape[0], (3, 4, 6, 3), bottleneck=True, cifar=True))


# --- squeezenet -------------------------------------------------------------------------------------------------------
# SqueezeNet 1.1 (Iandola et al. 2016 and its authors' later revision): 1,235,496 parameters at 1,000 classes and 3 channels.

# (squeeze, expand to each of the two branches); None: max pooling
_FIRES = ((16, 64), (16, 64), None, (32, 128), (32, 128), None, (48, 192), (48, 192), (64, 256), (64, 256))


class Fire(nn.Module):
    """SqueezeNet's block: a 1x1 squeeze convolution, then a 1x1 and a 3x3 convolution side by side, whose outputs are concatenated."""

    def __init__(self, inputs: int, squeeze: int, expand: int) -> None:
        """Build the block. `inputs`: input channels; `squeeze`: channels between; `expand`: output channels of each branch."""
        super().__init__()
        self.squeeze = nn.Sequential(nn.Conv2d(inputs, squeeze, 1), relu())
        self.narrow = nn.Sequential(nn.Conv2d(squeeze, expand, 1), relu())
        self.wide = nn.Sequential(nn.Conv2d(squeeze, expand, 3, padding=1), relu())

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs of both branches, concatenated along the channels."""
        squeezed = self.squeeze(images)
        return torch.cat([self.narrow(squeezed), self.wide(squeezed)], 1)


class SqueezeNet(nn.Module):
    """SqueezeNet 1.1: images (N, C, H, W) -> logits (N, classes). Images below 32x32 are padded."""

    def __init__(self, classes: int, channels: int) -> None:
        """Build the network for images of `channels` channels and `classes` outputs, with torch's default weights."""
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, 64, 3, stride=2), relu(), nn.MaxPool2d(3, 2, ceil_mode=True)]
        width = 64
        for fire in _FIRES:
            if fire is None:
                layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
                continue
            squeeze, expand = fire
            layers.append(Fire(width, squeeze, expand))
            width = 2 * expand
        self.features = nn.Sequential(*layers)
        self.last = nn.Conv2d(width, classes, 1)
        self.classifier = nn.Sequential(Dropout(0.5), self.last, relu())

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (N, classes) of images (N, C, H, W)."""
        logits: Tensor = self.classifier(self.features(pad_to_size(images, 32))).mean((2, 3))
        return logits


def squeezenet(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    """Build a SqueezeNet for images of `input_shape` (C, H, W), of which only C matters, with weights by `initialise`, but those of its
    last layer drawn from N(0, 0.01), which gives small logits.
    """
    model = SqueezeNet(classes, input_shape[0])
    initialise(model)
    nn.init.normal_(model.last.weight, 0.0, 0.01)  # logits start small, as a linear layer's would
    return model


# --- mobilenet --------------------------------------------------------------------------------------------------------
# MobileNetV1 (Howard et al. 2017, table 1) for 32x32 images: 3,217,226 parameters at 10 classes, the papers' MobileNet.
#
# The CIFAR variant keeps stride 1 in the stem and the first block, so that a 32x32 image still has 2x2 positions at the end.

# (output channels, stride) of the 13 depthwise-separable blocks
_BLOCKS = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2),
    (512, 1), (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2), (1024, 1),
)  # fmt: skip

_NORM = 8.0
_LAST_SCALE = 0.25


class MobileNet(nn.Module):
    """MobileNetV1 for small images: images (N, C, 32, 32) -> logits (N, classes)."""

    def __init__(self, classes: int, channels: int) -> None:
        """Build the network for images of `channels` channels and `classes` outputs, with torch's default weights."""
        super().__init__()
        blocks = [ConvNorm(channels, 32, 3)]
        width = 32
        for out, stride in _BLOCKS:
            blocks += [ConvNorm(width, width, 3, stride=stride, groups=width), ConvNorm(width, out, 1)]
            width = out
        self.features = Chain(*blocks)
        self.classifier = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (N, classes) of images (N, C, H, W)."""
        logits: Tensor = self.classifier(self.features(images).mean((2, 3)))
        return logits


def mobilenet(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    """Build a MobileNetV1 for images of `input_shape` (C, H, W), of which only C matters, with initial weights that allow large learning
    rates (`_balance_initial_weights`).
    """
    model = MobileNet(classes, input_shape[0])
    initialise(model)
    if not model.classifier.weight.is_meta:
        _balance_initial_weights(model)
    return model


def _balance_initial_weights(model: MobileNet) -> None:
    """Set initial weights that allow large learning rates with large batches; without them a peak rate of 1.0 with batches of 2,048
    images diverges.

    - The scale of a convolution before BatchNorm only decides how fast its direction changes: by rate x gradient / norm. Gradients
    grow about 1.2-fold at each BatchNorm and ReLU on their way back, so with He's initialisation the first layer's relative steps
    are ten thousand times those of the last depthwise layer. One norm for all layers reduces that to a factor of some tens.

    - The mean of 1,024 rectified features is far from zero, which makes the classifier's problem badly conditioned. With a quarter
    of their scale (the last BatchNorm's weight, which is trained) a rate 16 times as large converges.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, 0.0, _NORM / math.sqrt(module.weight.numel()))
    last = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)][-1]
    nn.init.constant_(last.weight, _LAST_SCALE)


# --- mobilenet v3 -----------------------------------------------------------------------------------------------------
# MobileNetV3-Small (Howard et al. 2019, table 2): 2,542,856 parameters at 1,000 classes and 3 channels.

_EPSILON = 1e-3  # of every BatchNorm, as the paper's reference implementation has it


def _hard_swish() -> nn.Module:
    """Return a hard-swish activation."""
    return nn.Hardswish(inplace=True)


# kernel, expanded width, output width, squeeze-and-excite, activation, stride
_V3_BLOCKS: tuple[tuple[int, int, int, bool, Activation, int], ...] = (
    (3, 16, 16, True, relu, 2),
    (3, 72, 24, False, relu, 2),
    (3, 88, 24, False, relu, 1),
    (5, 96, 40, True, _hard_swish, 2),
    (5, 240, 40, True, _hard_swish, 1),
    (5, 240, 40, True, _hard_swish, 1),
    (5, 120, 48, True, _hard_swish, 1),
    (5, 144, 48, True, _hard_swish, 1),
    (5, 288, 96, True, _hard_swish, 2),
    (5, 576, 96, True, _hard_swish, 1),
    (5, 576, 96, True, _hard_swish, 1),
)


class SqueezeExcite(nn.Module):
    """Squeeze-and-excite layer (Hu et al. 2018): multiplies each channel by a weight computed from all channels' means, with a
    quarter of the channels in between.
    """

    def __init__(self, width: int) -> None:
        """Build the layer for `width` channels."""
        super().__init__()
        between = _round_to_eight(width / 4)
        self.weights = nn.Sequential(
            nn.Conv2d(width, between, 1), relu(), nn.Conv2d(between, width, 1), nn.Hardsigmoid()
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the images (N, C, H, W) with each channel multiplied by its weight."""
        weighted: Tensor = images * self.weights(images.mean((2, 3), keepdim=True))
        return weighted


class InvertedResidual(nn.Module):
    """MobileNetV3's block: expand the channels, filter each, weight them (`excite`), project to `out` channels; the input is added
    if the shapes are equal.
    """

    def __init__(
        self, inputs: int, *, kernel: int, expanded: int, out: int, excite: bool, activation: Activation, stride: int
    ) -> None:
        """Build the block. `inputs`, `expanded`, `out`: channels before, within and after; `kernel`: side of the depthwise kernel;
        `excite`: whether to weight the channels.
        """
        super().__init__()
        layers: list[nn.Module] = []
        if expanded != inputs:
            layers.append(ConvNorm(inputs, expanded, 1, activation=activation, epsilon=_EPSILON))
        layers.append(
            ConvNorm(
                expanded, expanded, kernel, stride=stride, groups=expanded, activation=activation, epsilon=_EPSILON
            )
        )
        if excite:
            layers.append(SqueezeExcite(expanded))
        layers.append(ConvNorm(expanded, out, 1, activation=None, epsilon=_EPSILON))
        self.block = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == out

    def forward(self, images: Tensor) -> Tensor:
        """Return the block's output, plus its input if both have the same shape."""
        out: Tensor = self.block(images)
        return images + out if self.residual else out


class MobileNetV3(nn.Module):
    """MobileNetV3-Small: images (N, C, H, W) -> logits (N, classes). Images below 32x32 are padded."""

    def __init__(self, classes: int, channels: int) -> None:
        """Build the network for images of `channels` channels and `classes` outputs, with torch's default weights."""
        super().__init__()
        layers: list[nn.Module] = [ConvNorm(channels, 16, 3, stride=2, activation=_hard_swish, epsilon=_EPSILON)]
        width = 16
        for kernel, expanded, out, excite, activation, stride in _V3_BLOCKS:
            layers.append(
                InvertedResidual(
                    width,
                    kernel=kernel,
                    expanded=expanded,
                    out=out,
                    excite=excite,
                    activation=activation,
                    stride=stride,
                )
            )
            width = out
        layers.append(ConvNorm(width, 6 * width, 1, activation=_hard_swish, epsilon=_EPSILON))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(6 * width, 1024), _hard_swish(), Dropout(0.2), nn.Linear(1024, classes)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (N, classes) of images (N, C, H, W)."""
        logits: Tensor = self.classifier(self.features(pad_to_size(images, 32)).mean((2, 3)))
        return logits


def mobilenet_v3_small(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    """Build a MobileNetV3-Small for images of `input_shape` (C, H, W), of which only C matters, with weights by `initialise`."""
    return initialise(MobileNetV3(classes, input_shape[0]))


def _round_to_eight(width: float) -> int:
    """Return `width` rounded to a multiple of 8: at least 8, and the next one up if rounding would lose more than a tenth."""
    rounded = max(8, int(width + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * width else rounded


# --- own models -------------------------------------------------------------------------------------------------------
# Models of the user's own: what their factories return is looked at before it is trained.

FIELD = "training.model"
_Layout = list[tuple[str, tuple[int, ...]]]


def wrap_factory(name: str, factory: Callable[..., Any], fit: Callable[[nn.Module], None]) -> Callable[..., nn.Module]:
    """Return a function that calls the user's `factory` of the model `name`, removes DataParallel and compile wrappers from its module,
    applies `fit` to it and checks it. That function raises OwnCodeError if the factory fails or its module cannot be trained; errors of
    `fit` pass through.
    """

    @wraps(factory, updated=())
    def build(*arguments: Any) -> nn.Module:
        """Return the user's module without wrappers, changed by `fit` and checked. `arguments`: passed to the factory. Raises OwnCodeError,
        and what `fit` raises.
        """
        with user_code.attribute_errors(FIELD, name, what=factory), user_code.forbid_data_files(FIELD, name):
            module = _unwrap(factory(*arguments), user_code.find_definition_line(factory))
        if not (problem := _find_structure_problem(module, known=(factory, *arguments))):
            fit(module)
            problem = _find_training_problem(module)
        if problem:
            raise user_code.build_user_code_error(FIELD, name, problem, place=user_code.find_definition_line(factory))
        found: nn.Module = module
        return found

    return build


def _unwrap(module: Any, place: str | None) -> Any:
    """Return `module` without DataParallel and compile wrappers at any depth, because they change parameter names; those of layers are
    removed from `module` in place. Print a note for each. `place`: file and line to name in the note.
    """
    if held := _find_wrapped_name(module):
        words = f"{type(module).__name__} is left out: the module within is trained, and its own names are saved"
        user_code.report_note(words, place=place)
        return _unwrap(getattr(module, held), place)
    for layer in list(module.modules()) if isinstance(module, nn.Module) else ():
        for name, child in list(layer.named_children()):
            if _find_wrapped_name(child):
                layer._modules[name] = _unwrap(child, place)
    return module


def _find_wrapped_name(module: Any) -> str:
    """Return the name of the attribute in which a wrapper (DataParallel or torch.compile) holds its module; "" if `module` is not a
    wrapper.
    """
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return "module"
    return (
        "_orig_mod" if type(module).__name__ == "OptimizedModule" else ""
    )  # its class is in the compiler, which functions have not


def _find_structure_problem(module: object, *, known: tuple[Any, ...]) -> str:
    """Return in words why `module` cannot be used: it is no torch module, has no parameters, has one of unknown shape or without
    memory (meta), or differs in names or shapes from the factory's first result in this process; "" if it can. `known`: the
    factory and its arguments, which identify that first result.
    """
    if not isinstance(module, nn.Module):
        return f"returned a {type(module).__name__}; a torch.nn.Module is expected"
    parameters = dict(module.named_parameters())
    if not parameters:
        return "returned a module without parameters: there is nothing to train"
    if lazy := [each for each, parameter in parameters.items() if is_lazy(parameter)]:
        return f"returned a module whose {lazy[0]} gets its shape from the first input; give its layer the shape"
    if empty := [each for each, tensor in [*parameters.items(), *module.named_buffers()] if tensor.is_meta]:
        return f"returned a module whose {empty[0]} is on the device meta, without numbers; a module in main memory is expected"
    layout = [(each, tuple(parameter.shape)) for each, parameter in parameters.items()]
    layouts: dict[tuple[Any, ...], _Layout] = runtime.get_or_make(
        "layouts of own models", dict
    )  # of what a factory returned first
    first = layouts.setdefault(known, layout)
    if layout != first:
        (before, now), *_ = [pair for pair in _pair_layouts(first, layout) if pair[0] != pair[1]]
        return f"returned another shape when called again: {before}, then {now}; it must depend on its arguments alone"
    return ""


def _find_training_problem(module: nn.Module) -> str:
    """Return in words why the module cannot be trained as it is (all frozen, wrong dtype, gradient hooks, shared memory, BatchNorm
    momentum); "" if it can.
    """
    learnt = list_trained(module)
    if not learnt:
        return "returned a module whose parameters are all frozen: there is nothing to train"
    if unfit := {each: parameter for each, parameter in learnt.items() if parameter.dtype != torch.float32}:
        each, parameter = next(iter(unfit.items()))
        return (
            f"returned a module whose {each} is {parameter.dtype}; what is trained is torch.float32 here, which module.float() makes of it "
            "(training.precision: bf16 computes in bfloat16)"
        )
    if broken := [
        each for each, parameter in learnt.items() if not parameter.is_meta and not bool(parameter.isfinite().all())
    ]:
        return f"returned a module whose {broken[0]} holds NaN or infinity; finite numbers are expected"
    if synced := [each or "itself" for each, part in module.named_modules() if isinstance(part, nn.SyncBatchNorm)]:
        return (
            f"returned a module with SyncBatchNorm ({synced[0]}), which needs torch.distributed; BatchNorm is expected"
        )
    if hooked := [each for each, parameter in learnt.items() if _has_hook(parameter)]:
        return (
            f"returned a module whose {hooked[0]} has a hook on its gradient, which not every process would run alike; change the gradient "
            "in a torch.autograd.Function, or freeze what is not to move"
        )
    if twice := _find_shared_memory(module, learnt):
        return f"returned a module whose {twice} share memory, of which each has its own here; .clone() one, or make both one parameter"
    for each, norm in list_moving_norms(module).items():
        if norm.momentum != STATISTICS_MOMENTUM:
            return (
                f"returned a module whose {each}.momentum is {norm.momentum}; running statistics move by {STATISTICS_MOMENTUM} at each "
                f"synchronisation after one minibatch, else to the round's own: {STATISTICS_MOMENTUM} is expected, or a layer kept in eval"
            )
    return ""


def _has_hook(parameter: nn.Parameter) -> bool:
    """Return whether the parameter has a hook on its gradient."""
    return bool(parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None))


def _find_shared_memory(module: nn.Module, learnt: dict[str, nn.Parameter]) -> str:
    """Return `NAME and NAME` of a trained parameter and another parameter or buffer that share memory without being one parameter;
    "" if there are none.
    """
    owners: dict[int, str] = {}
    for name, each in [*learnt.items(), *module.named_parameters(), *module.named_buffers()]:
        owner = owners.get(at := each.untyped_storage().data_ptr(), name)
        if at and owner != name:
            return f"{owner} and {name}"
        if name in learnt:
            owners[at] = name
    return ""


def _pair_layouts(first: _Layout, layout: _Layout) -> list[tuple[str, str]]:
    """Return the entries of two layouts side by side, paired by position, equal pairs included, each as the text `name shape`. The
    shorter layout is filled up with "nothing".
    """
    longest = max(len(first), len(layout))
    one, other = (
        [f"{name} {shape}" for name, shape in each] + ["nothing"] * (longest - len(each)) for each in (first, layout)
    )
    return list(zip(one, other, strict=True))


# --- registry ---------------------------------------------------------------------------------------------------------
# Models by name: `training.model` of the experiment is a name from here, or `package.module:factory` for one's own.
#
# A factory is called with the number of classes (None where labels are numbers) and the shape of one input, and returns a torch module.
# Ours take images (C, H, W) to logits. BatchNorm layers' statistics travel with what is trained; other buffers must be constants, which a
# run carries once, from where it was started. A frozen parameter is built by each process, from the seed.

Factory = Callable[..., nn.Module]  # of (classes, input_shape)

MODEL_FACTORIES: dict[str, Factory] = {
    "mobilenet": mobilenet,
    "mobilenet_v3_small": mobilenet_v3_small,
    "resnet18": resnet18,
    "resnet18_cifar": resnet18_cifar,
    "resnet50": resnet50,
    "resnet50_cifar": resnet50_cifar,
    "small_cnn": small_cnn,
    "squeezenet": squeezenet,
    "vgg11": vgg11,
}


def find_factory(name: str, fit: Callable[[nn.Module], None] = lambda module: None) -> Factory:
    """Return the factory of the model `name`: called with (classes, input shape), it builds the module. `fit`: applied to a user's module
    before it is checked. Raises ConfigError, with the existing names and the most similar one, if the name is unknown; for `module:name`
    raises as `user_code.load` does.
    """
    if name in MODEL_FACTORIES:
        return MODEL_FACTORIES[name]
    if ":" in name:
        return wrap_factory(name, user_code.load(name, field=FIELD), fit)
    close = difflib.get_close_matches(name.replace("-", "_"), MODEL_FACTORIES, n=1, cutoff=0.5)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise ConfigError(
        f"training.model: {name!r} is unknown{hint}; one of {', '.join(MODEL_FACTORIES)}, or package.module:factory"
    )
