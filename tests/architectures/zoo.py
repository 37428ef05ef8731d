"""Modules of torch itself, as an experiment names them (`zoo:attention`), and two small data sets for them.

Nothing of this project is in the modules: what a plain loop makes of them is what a run must make of them.
"""

import math
import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.ao.quantization import MinMaxObserver
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.parametrize import register_parametrization

from crossover.experiment import Adapters, Experiment
from crossover.learning.datasets import Samples

PLACES, WIDTH, WORDS, CLASSES = 4, 8, 7, 3
Shape = tuple[int, ...]


def rows(experiment: Experiment) -> Samples:
    """Return 64 samples of shape (4, 8) float32 with three classes, which a random projection decides."""
    random_ = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, PLACES, WIDTH, generator=random_)
    return Samples(inputs, (inputs.mean(1) @ torch.randn(WIDTH, CLASSES, generator=random_)).argmax(1), CLASSES)


def tokens(experiment: Experiment) -> Samples:
    """Return 64 sequences of 4 tokens, int64. The labels are the next tokens, at the first places of each sample: 1 to 4 answers."""
    random_ = torch.Generator().manual_seed(2)
    words = torch.randint(WORDS, (64, PLACES + 1), generator=random_)
    lengths = torch.randint(1, PLACES + 1, (64, 1), generator=random_)
    labels = words[:, 1:].where(torch.arange(PLACES) < lengths, -100)
    return Samples(words[:, :-1], labels, WORDS)


LONGEST = 9


def ragged(experiment: Experiment) -> Samples:
    """Return 64 sequences of 1 to 9 tokens. The label of each token is the token itself."""
    random_ = torch.Generator().manual_seed(4)
    lengths = torch.randint(1, LONGEST + 1, (64,), generator=random_).tolist()
    rows_ = [torch.randint(WORDS, (length,), generator=random_) for length in [*lengths[:-1], LONGEST]]
    return Samples(rows_, [row.clone() for row in rows_], WORDS)  # type: ignore[arg-type]


def beyond(experiment: Experiment) -> Samples:
    """Return `ragged` with one label outside the vocabulary."""
    made = ragged(experiment)
    made.labels[3][0] = WORDS
    return made


class Pooled(nn.Module):
    """A model that classifies each token from its embedding and the mean of its sequence, in which padding does not count."""

    def __init__(self) -> None:
        """Create the embedding and the head."""
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(2 * WIDTH, WORDS)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the logits, (N, classes, places). `mask`: 1 for tokens, 0 for padding."""
        found = self.words(tokens) * mask.unsqueeze(-1)
        mean = found.sum(1, keepdim=True) / mask.sum(1).reshape(-1, 1, 1)
        logits: Tensor = self.head(torch.cat([found, mean.expand_as(found)], -1))
        return logits.transpose(1, 2)


def pooled(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a second input, the mask of its tokens."""
    return Pooled()


class Model(nn.Module):
    """A model of `body` on inputs of shape (N, 4, 8), followed by the mean over the places and a linear head."""

    def __init__(self, body: nn.Module, width: int = WIDTH) -> None:
        """Add a linear head to `body`. `width`: number of values that the body returns per place."""
        super().__init__()
        self.body, self.head = body, nn.Linear(width, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits, (N, classes)."""
        found = self.body(inputs)
        found = found[0] if isinstance(found, tuple) else found
        logits: Tensor = self.head(found.flatten(1) if found.ndim == 2 else found.mean(1))
        return logits


class Flat(nn.Sequential):
    """Layers that are applied to inputs flattened to (N, 32)."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the layers to the flattened inputs."""
        found: Tensor = super().forward(inputs.flatten(1))
        return found


def flat(*layers: nn.Module) -> nn.Module:
    """Return a model of the given layers on inputs flattened to (N, 32)."""
    return Model(Flat(*layers), 16)


# --- those that train -------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Self-attention with a mask that is a buffer."""

    def __init__(self) -> None:
        """Create two attention heads and the mask."""
        super().__init__()
        self.heads = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(PLACES))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the attention's output, in the shape of the inputs."""
        found: Tensor = self.heads(inputs, inputs, inputs, attn_mask=self.mask, need_weights=False)[0]
        return found


def attention(classes: int, shape: Shape) -> nn.Module:
    """Build a model with masked self-attention."""
    return Model(Attention())


def transformer(classes: int, shape: Shape) -> nn.Module:
    """Build a model with one encoder layer of a transformer, with dropout."""
    return Model(nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.2, batch_first=True))


def gru(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a GRU."""
    return Model(nn.GRU(WIDTH, 8, batch_first=True))


def lstm(classes: int, shape: Shape) -> nn.Module:
    """Build a model with an LSTM of two layers, with dropout between them."""
    return Model(nn.LSTM(WIDTH, 8, num_layers=2, dropout=0.2, batch_first=True))


def convolution(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a convolution and pooling."""
    return Model(nn.Sequential(nn.Conv1d(PLACES, 6, 3, padding=1), nn.ReLU(), nn.MaxPool1d(1)))


def group_norm(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a convolution and group normalization."""
    return Model(nn.Sequential(nn.Conv1d(PLACES, 6, 1), nn.GroupNorm(2, 6), nn.GELU()))


def layer_norm(classes: int, shape: Shape) -> nn.Module:
    """Build a model with layer normalization."""
    return Model(nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.SiLU()))


def instance_norm(classes: int, shape: Shape) -> nn.Module:
    """Build a model with instance normalization that keeps no statistics."""
    return Model(nn.Sequential(nn.InstanceNorm1d(PLACES, affine=True), nn.Linear(WIDTH, WIDTH), nn.Tanh()))


def dropout(classes: int, shape: Shape) -> nn.Module:
    """Build a model with dropout and a PReLU."""
    return flat(nn.Linear(32, 16), nn.Dropout(0.5), nn.PReLU())


class Fourier(nn.Module):
    """Layer of random Fourier features (Rahimi and Recht 2007), drawn once: one buffer is in the state_dict, one is not."""

    def __init__(self) -> None:
        """Draw frequencies and phases; only the frequencies are in the state_dict."""
        super().__init__()
        self.register_buffer("frequencies", torch.randn(32, 16))
        self.register_buffer("phases", 2 * math.pi * torch.rand(16), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the cosines of the inputs' random projections."""
        return torch.cos(inputs @ self.frequencies + self.phases)


def random_features(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a layer of fixed random features."""
    return flat(Fourier())


class Persistent(Fourier):
    """Random Fourier features whose buffers are all saved in the state_dict."""

    def __init__(self) -> None:
        """Save the phases in the state_dict too."""
        super().__init__()
        self.register_buffer("phases", self.phases)


def random_features_in_the_file(classes: int, shape: Shape) -> nn.Module:
    """Build a model whose fixed random features are saved in the state_dict."""
    return flat(Persistent())


class Masked(nn.Linear):
    """A linear layer in which only the larger half of its initial weights is used."""

    def __init__(self) -> None:
        """Create the layer, and a mask of the weights above the median magnitude."""
        super().__init__(32, 16)
        self.register_buffer("mask", (self.weight.detach().abs() > self.weight.detach().abs().median()).float())

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the layer with its masked weights."""
        return nn.functional.linear(inputs, self.weight * self.mask, self.bias)


def mask_from_weights(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a mask that is computed from its initial weights."""
    return flat(Masked(), nn.ReLU())


def pruned(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a layer that torch's pruning has changed."""
    return flat(prune.l1_unstructured(nn.Linear(32, 16), "weight", amount=0.5), nn.ReLU())


def weight_norm(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a layer whose weight is normalized by a parametrization."""
    return flat(parametrizations.weight_norm(nn.Linear(32, 16)), nn.ReLU())


class Symmetric(nn.Module):
    """A parametrization that makes a matrix symmetric."""

    def forward(self, whole: Tensor) -> Tensor:
        """Return the symmetric matrix with the upper triangle of `whole`."""
        return whole.triu() + whole.triu(1).mT


def parametrized(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a layer whose weight is parametrized."""
    layer = nn.Linear(WIDTH, WIDTH)
    register_parametrization(layer, "weight", Symmetric())
    return Model(nn.Sequential(layer, nn.Tanh()))


class Anchored(nn.Linear):
    """A linear layer from whose weights half of the initial weights are subtracted, as in L2-SP (Li et al. 2018)."""

    def __init__(self) -> None:
        """Create the layer, and keep a copy of its initial weights."""
        super().__init__(32, 16)
        self.register_buffer("anchor", self.weight.detach().clone())

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the layer with half of its initial weights subtracted."""
        return nn.functional.linear(inputs, self.weight - 0.5 * self.anchor, self.bias)


def anchored(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a copy of its initial weights."""
    return flat(Anchored(), nn.ReLU())


class Listed(nn.Module):
    """Layers whose parameters are also kept in a plain list, which torch does not search."""

    def __init__(self) -> None:
        """Create two layers, and list their parameters."""
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 16), nn.Linear(16, 16)])
        self.pairs = [(layer.weight, layer.bias) for layer in self.layers]

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply each layer, by the parameters in the list, and a tanh."""
        for weight, bias in self.pairs:
            inputs = torch.tanh(nn.functional.linear(inputs, weight, bias))  # type: ignore[arg-type]
        return inputs


def listed(classes: int, shape: Shape) -> nn.Module:
    """Build a model with parameters in a plain list."""
    return flat(Listed())


class Extractor(nn.Sequential):
    """A body that always stays in evaluation mode, whatever `train` is called with."""

    def train(self, mode: bool = True) -> "Extractor":
        """Stay in evaluation mode, whatever `mode` is."""
        return super().train(False)


def _body() -> list[nn.Module]:
    """Return a body with running statistics as if it had been trained elsewhere."""
    norm = nn.BatchNorm1d(16, momentum=0.01)
    norm.running_mean, norm.running_var = torch.randn(16), torch.rand(16) + 0.5
    return [nn.Flatten(), nn.Linear(32, 16), norm, nn.ReLU()]


def frozen_extractor(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a body in evaluation mode whose weights are not trained."""
    return Model(Extractor(*_body()).requires_grad_(False), 16)


def extractor_whose_weights_train(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a body in evaluation mode whose weights are trained."""
    return Model(Extractor(*_body()), 16)


class Quiet(nn.Sequential):
    """A model whose `train` keeps the first layer in evaluation mode and returns None, as many users write it."""

    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        """Set the mode, except for the first layer, which stays in evaluation mode."""
        super().train(mode)
        self[0].eval()


def body_in_evaluation(classes: int, shape: Shape) -> nn.Module:
    """Build a model whose own `train` keeps its body in evaluation mode."""
    return Quiet(nn.Sequential(*_body()), nn.Linear(16, CLASSES))


def batch_norm(classes: int, shape: Shape) -> nn.Module:
    """Build a model with batch normalization of the usual momentum."""
    return Model(nn.Sequential(nn.Flatten(), nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU()), 16)


def frozen_batch_norm_in_training(classes: int, shape: Shape) -> nn.Module:
    """Build a model whose BatchNorm is frozen by requires_grad alone: its statistics train, as in torch."""
    model = batch_norm(classes, shape)
    model.get_submodule("body").requires_grad_(False)
    return model


def frozen_first_layer(classes: int, shape: Shape) -> nn.Module:
    """Build a model whose first layer is frozen."""
    return flat(nn.Linear(32, 16).requires_grad_(False), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())


class Adapted(nn.Module):
    """A low-rank adapter beside a frozen layer (Hu et al. 2021)."""

    def __init__(self) -> None:
        """Create a frozen layer and the adapter's two matrices."""
        super().__init__()
        self.base = nn.Linear(32, 16).requires_grad_(False)
        self.down, self.up = nn.Linear(32, 2, bias=False), nn.Linear(2, 16, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the tanh of the layer's and the adapter's outputs, added."""
        found: Tensor = self.base(inputs) + self.up(self.down(inputs))
        return found.tanh()


def adapters(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a low-rank adapter."""
    return flat(Adapted())


def perceptron(classes: int, shape: Shape) -> nn.Module:
    """Build a perceptron for images of any size."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 16), nn.Tanh(), nn.Linear(16, classes))


# Of `perceptron`: adapters beside its first layer, which is frozen, and its last layer.
TUNED: dict[str, Any] = {
    "model": "zoo:perceptron",
    "adapters": Adapters(rank=2, targets=("1",)),
    "trainable": ("3.*",),
}


class Language(nn.Module):
    """A model of the next token whose embedding and head share their weights."""

    def __init__(self) -> None:
        """Create embedding, GRU and head; the head uses the embedding's weights."""
        super().__init__()
        self.words, self.body = nn.Embedding(WORDS, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits, (N, words, places)."""
        logits: Tensor = self.head(self.body(self.words(tokens))[0])
        return logits.transpose(1, -1)


def tied(classes: int, shape: Shape) -> nn.Module:
    """Build a language model with shared weights."""
    return Language()


def embedding_with_padding(classes: int, shape: Shape) -> nn.Module:
    """Build a model of tokens whose embedding has a padding index, which gets no gradient."""
    return nn.Sequential(nn.Embedding(WORDS, WIDTH, padding_idx=0), nn.Conv1d(PLACES, PLACES, 1), Last())


class Last(nn.Linear):
    """A linear layer whose output, the logits of each token, has the classes on its second axis."""

    def __init__(self) -> None:
        """Create the layer, of WIDTH inputs and WORDS outputs."""
        super().__init__(WIDTH, WORDS)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the layer's output with its last axis moved to the second place."""
        return super().forward(inputs).transpose(1, -1)


# --- those that are refused ---------------------------------------------------------------------------------------------


def instance_norm_with_statistics(classes: int, shape: Shape) -> nn.Module:
    """Build a model with instance normalization that keeps running statistics."""
    return Model(nn.Sequential(nn.InstanceNorm1d(PLACES, track_running_stats=True), nn.Linear(WIDTH, WIDTH)))


def spectral_norm(classes: int, shape: Shape) -> nn.Module:
    """Build a model with spectral normalization, which changes its buffers in each pass."""
    return flat(parametrizations.spectral_norm(nn.Linear(32, 16)))


class Codebook(nn.Module):
    """A layer of codes that move by an exponential average during training, as in VQ-VAE (van den Oord et al. 2017)."""

    def __init__(self) -> None:
        """Draw five codes of 32 elements, kept as the buffer `codes`."""
        super().__init__()
        self.register_buffer("codes", torch.randn(5, 32))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the code nearest to each input; in training, move the first chosen code."""
        chosen = torch.cdist(inputs, self.codes).argmin(1)
        if self.training:
            self.codes[chosen[0]] = 0.9 * self.codes[chosen[0]] + 0.1 * inputs[0].detach()
        return self.codes[chosen]


def codebook(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a `Codebook`."""
    return flat(nn.Linear(32, 32), Codebook(), nn.Linear(32, 16))


def observer(classes: int, shape: Shape) -> nn.Module:
    """Build a model with an observer of quantization, which records the smallest and largest values."""
    return flat(nn.Linear(32, 16), MinMaxObserver())


class Counting(nn.Module):
    """A layer that counts its calls and depends on their number."""

    def __init__(self) -> None:
        """Set the number of calls to 0."""
        super().__init__()
        self.steps = 0

    def forward(self, inputs: Tensor) -> Tensor:
        """Count the call, and return the inputs times a factor that grows up to the tenth call."""
        self.steps += 1
        return inputs * min(1.0, self.steps / 10)


def step_counter(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a `Counting` layer."""
    return flat(nn.Linear(32, 16), Counting())


class Remembering(nn.Module):
    """A layer that adds the mean of the previous minibatch, which it keeps outside of the state_dict."""

    def __init__(self) -> None:
        """Begin with no previous minibatch."""
        super().__init__()
        self.past: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs plus the mean of the previous minibatch; in training, keep this one's outputs."""
        found = inputs + sum(each.mean(0) for each in self.past)
        if self.training:
            self.past = [found.detach()]
        return found


def remembering(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a `Remembering` layer."""
    return flat(nn.Linear(32, 16), Remembering())


class Scaled(nn.Module):
    """A layer that divides by the standard deviation of the first minibatch."""

    def __init__(self) -> None:
        """Leave the scale to the first call."""
        super().__init__()
        self.scale: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs divided by the scale, which the first call sets."""
        if self.scale is None:
            self.scale = inputs.detach().std()
        return inputs / self.scale


def scale_of_the_first_minibatch(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a `Scaled` layer."""
    return flat(nn.Linear(32, 16), Scaled())


class Clipped(nn.Embedding):
    """An embedding with a largest norm, indexed by the sign of the first input."""

    def __init__(self) -> None:
        """Create two embeddings of 16 elements with a largest norm of 9."""
        super().__init__(2, 16, max_norm=9.0)  # of which the first weights know nothing

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the embedding of 1 for a positive first input, else of 0."""
        return super().forward((inputs[:, 0] > 0).long())


class Centred(nn.Module):
    """A layer that subtracts the mean of the first minibatch, as ActNorm does (Kingma and Dhariwal 2018)."""

    def __init__(self) -> None:
        """Create the centre, 16 zeros, as a parameter."""
        super().__init__()
        self.centre, self.begun = nn.Parameter(torch.zeros(16)), False

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs minus the centre, which the first call sets."""
        if not self.begun:
            self.centre.data.copy_(inputs.mean(0))
            self.begun = True
        return inputs - self.centre


def centre_of_the_first_minibatch(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a `Centred` layer."""
    return flat(nn.Linear(32, 16), Centred())


def embedding_with_a_largest_norm(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a `Clipped` embedding, which torch rescales in each pass."""
    return flat(Clipped())


class Kept(nn.Module):
    """A layer that creates a constant in its first call, equal in every process, and keeps its last inputs."""

    def __init__(self) -> None:
        """Leave the constant to the first call."""
        super().__init__()
        self.waves: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs times the constant, and keep the inputs."""
        if self.waves is None:
            self.waves = torch.arange(16.0).cos()
        self.seen = inputs.detach()
        return inputs * self.waves


def waves_when_first_called(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a `Kept` layer."""
    return flat(nn.Linear(32, 16), Kept())


def gradient_hook(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a hook that changes a gradient."""
    layer = nn.Linear(32, 16)
    layer.weight.register_hook(lambda gradient: gradient * 0)
    return flat(layer)


def post_accumulate_hook(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a hook that is called after a gradient was accumulated."""
    layer = nn.Linear(32, 16)
    layer.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    return flat(layer)


def half(classes: int, shape: Shape) -> nn.Module:
    """Build a model whose parameters are bfloat16."""
    return flat(nn.Linear(32, 16)).to(torch.bfloat16)


def double(classes: int, shape: Shape) -> nn.Module:
    """Build a model whose parameters are float64."""
    return flat(nn.Linear(32, 16)).double()


def own_momentum(classes: int, shape: Shape) -> nn.Module:
    """Build a model with batch normalization of an unusual momentum."""
    return flat(nn.Linear(32, 16), nn.BatchNorm1d(16, momentum=0.01))


def cumulative_momentum(classes: int, shape: Shape) -> nn.Module:
    """Build a model with batch normalization that averages over all minibatches."""
    return flat(nn.Linear(32, 16), nn.BatchNorm1d(16, momentum=None))


def all_frozen(classes: int, shape: Shape) -> nn.Module:
    """Build a model in which nothing is trained."""
    return flat(nn.Linear(32, 16)).requires_grad_(False)


def shared_memory(classes: int, shape: Shape) -> nn.Module:
    """Build a model in which a buffer and a parameter share their memory."""
    layer = nn.Linear(32, 16)
    layer.register_buffer("same", layer.weight.detach())
    return flat(layer)


class Twice(nn.Module):
    """A layer that applies its normalization twice."""

    def __init__(self) -> None:
        """Create the normalization, of 16 features."""
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the normalization twice, with a tanh between."""
        found: Tensor = self.norm(self.norm(inputs).tanh())
        return found


def norm_used_twice(classes: int, shape: Shape) -> nn.Module:
    """Build a model that applies one normalization twice."""
    return flat(nn.Linear(32, 16), Twice())


class Depth(Twice):
    """A layer with stochastic depth (Huang et al. 2016): its normalization is left out of some passes."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs themselves in training with a minibatch of 8, else their normalization."""
        found: Tensor = inputs if self.training and len(inputs) == 8 else self.norm(inputs)
        return found


def norm_left_out(classes: int, shape: Shape) -> nn.Module:
    """Build a model with stochastic depth around its normalization."""
    return flat(nn.Linear(32, 16), Depth())


class Idle(nn.Linear):
    """A layer with a parameter that does not affect its output."""

    def __init__(self) -> None:
        """Create the layer, of 32 inputs and 16 outputs, and the parameter without effect."""
        super().__init__(32, 16)
        self.idle = nn.Parameter(torch.ones(3))


def idle_parameter(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a parameter that does not affect its output."""
    return flat(Idle())


def drawn_elsewhere(classes: int, shape: Shape) -> nn.Module:
    """Build a model with a value drawn from Python's own random generator."""
    layer = nn.Linear(32, 16)
    nn.init.constant_(layer.bias, random.random())
    return flat(layer)


TRAINED = {
    each.__name__: (each, "rows")
    for each in (
        attention, transformer, gru, lstm, convolution, group_norm, layer_norm, instance_norm, dropout, random_features,
        waves_when_first_called,
        random_features_in_the_file, mask_from_weights, pruned, weight_norm, parametrized, anchored, listed,
        frozen_extractor, extractor_whose_weights_train, body_in_evaluation, batch_norm, frozen_batch_norm_in_training, frozen_first_layer,
        adapters,
    )
} | {each.__name__: (each, "tokens") for each in (tied, embedding_with_padding)}  # fmt: skip
# By what is named in each.
REFUSED = {
    instance_norm_with_statistics: "running_mean", spectral_norm: "_u", codebook: "codes", observer: "min_val",
    step_counter: "steps", centre_of_the_first_minibatch: "centre", scale_of_the_first_minibatch: "gradient",
    embedding_with_a_largest_norm: "max_norm",
    remembering: "gradient", gradient_hook: "weight", post_accumulate_hook: "weight",
    half: "torch.bfloat16", double: "torch.float64", own_momentum: "momentum", cumulative_momentum: "momentum",
    all_frozen: "frozen", shared_memory: "same", norm_used_twice: "norm", norm_left_out: "norm out",
    idle_parameter: "idle", drawn_elsewhere: "again",
}  # fmt: skip


# --- answers: losses and metrics that count them --------------------------------------------------------------------------


def sparse(experiment: Experiment) -> Samples:
    """Return `tokens` with 0 to 4 answers: two thirds of the samples have none, so that whole minibatches and whole steps have none."""
    made, random_ = tokens(experiment), torch.Generator().manual_seed(3)
    silent = torch.rand(64, 1, generator=random_) < 2 / 3
    return Samples(made.inputs, made.labels.masked_fill(silent, -100), WORDS)


def summed(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the cross entropy, and the number of answers."""
    return nn.functional.cross_entropy(outputs, labels, reduction="sum"), (labels != -100).sum()


class Sided(Language):
    """A language model that returns its logits with the places first, and beside them values that belong to no sample."""

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, float]:  # type: ignore[override]
        """Return (logits with the places first, a mean that belongs to no sample, 0)."""
        logits = super().forward(tokens)
        return logits.permute(2, 0, 1), logits.square().mean(), 0.0


def sided(classes: int, shape: Shape) -> nn.Module:
    """Build a model that returns several outputs."""
    return Sided()


def summed_beside(outputs: tuple[Tensor, Tensor, float], labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the summed loss and number of labels for the first of several outputs."""
    return summed(outputs[0].permute(1, 2, 0), labels)


def right_beside(outputs: tuple[Tensor, Tensor, float], labels: Tensor) -> tuple[int, int]:
    """Return the number of right answers and of labels for the first of several outputs."""
    return right(outputs[0].permute(1, 2, 0), labels)


def right(outputs: Tensor, labels: Tensor) -> tuple[int, int]:
    """Return the number of right answers and the number of answers; labels of -100 count in neither. `outputs`: scores, with the classes in
    dimension 1.
    """
    answered = labels != -100
    return int((outputs.argmax(1) == labels).logical_and(answered).sum()), int(answered.sum())


def moody(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return a loss over the answers of which the model is sure: their number cannot be known before the run."""
    sure = outputs.detach().softmax(1).amax(1) > 0.2
    return (nn.functional.cross_entropy(outputs, labels, reduction="none") * sure).sum(), sure.sum()
