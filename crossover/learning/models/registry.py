"""Models by name: `training.model` of the experiment is a name from here, or `package.module:factory` for one's own.

A factory is called with the number of classes (None where labels are numbers) and the shape of one input, and returns a torch module. Ours
take images (C, H, W) to logits. BatchNorm layers' statistics travel with what is trained; other buffers must be constants, which a run
carries once, from where it was started. A frozen parameter is built by each process, from the seed.
"""

import difflib
from collections.abc import Callable

from torch import nn

from crossover import own_code
from crossover.errors import ConfigError
from crossover.learning.models import own_models
from crossover.learning.models.mobilenet import mobilenet
from crossover.learning.models.mobilenet_v3 import mobilenet_v3_small
from crossover.learning.models.resnet import resnet18, resnet18_cifar, resnet50, resnet50_cifar
from crossover.learning.models.small_cnn import small_cnn
from crossover.learning.models.squeezenet import squeezenet
from crossover.learning.models.vgg import vgg11

Factory = Callable[..., nn.Module]  # of (classes, input_shape)

MODELS: dict[str, Factory] = {
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


def factory(name: str, fit: Callable[[nn.Module], None] = lambda module: None) -> Factory:
    """The factory of `name`; `fit`: what is done to a module of the user's own before it is looked at. Raises ConfigError with the names
    that exist, and the likely one first.
    """
    if name in MODELS:
        return MODELS[name]
    if ":" in name:
        return own_models.checked(name, own_code.load(name, field=own_models.FIELD), fit)
    close = difflib.get_close_matches(name.replace("-", "_"), MODELS, n=1, cutoff=0.5)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise ConfigError(
        f"training.model: {name!r} is unknown{hint}; one of {', '.join(MODELS)}, or package.module:factory"
    )
