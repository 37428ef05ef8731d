"""A BERT (Devlin et al. 2019) in plain torch, with the names that all-MiniLM-L6-v2 gives its tensors, and a head for each of two tasks."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WORDS, PLACES, WIDTH, HEADS, LAYERS, INNER = 30_522, 512, 384, 12, 6, 1_536
DROPOUT, EPSILON = 0.1, 1e-12


class Embeddings(nn.Module):
    """The first layer of BERT: tokens, int64 of shape (N, T), to vectors of shape (N, T, WIDTH), the sum of the embeddings of word,
    position, and text type (the first of two texts for all).
    """

    def __init__(self) -> None:
        """Create the layer with random weights, under the names that the pretrained file has."""
        super().__init__()
        self.word_embeddings, self.position_embeddings = nn.Embedding(WORDS, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.token_type_embeddings, self.LayerNorm = nn.Embedding(2, WIDTH), nn.LayerNorm(WIDTH, EPSILON)
        self.register_buffer("position_ids", torch.arange(PLACES).unsqueeze(0))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the normalised embeddings of `tokens`, with dropout during training."""
        places = self.position_embeddings.weight[: tokens.shape[1]]
        whole: Tensor = self.LayerNorm(self.word_embeddings(tokens) + places + self.token_type_embeddings.weight[0])
        return F.dropout(whole, DROPOUT, self.training)


class Added(nn.Module):
    """A residual layer: a linear map of a layer's output, with dropout, added to that layer's input, then normalised."""

    def __init__(self, width: int) -> None:
        """Create the layer. `width`: number of values per token of the output that is mapped to WIDTH."""
        super().__init__()
        self.dense, self.LayerNorm = nn.Linear(width, WIDTH), nn.LayerNorm(WIDTH, EPSILON)

    def forward(self, found: Tensor, inputs: Tensor) -> Tensor:
        """Return the normalised sum, of shape (N, T, WIDTH). `found`: output of the layer, (N, T, width); `inputs`: its input, (N, T,
        WIDTH).
        """
        summed: Tensor = self.LayerNorm(F.dropout(self.dense(found), DROPOUT, self.training) + inputs)
        return summed


class Attention(nn.Module):
    """Self-attention with HEADS heads over the tokens of a mail, without its output layer."""

    def __init__(self) -> None:
        """Create the layer with random weights."""
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Return the tokens after self-attention, of shape (N, T, WIDTH) like `inputs`. `mask`: bool of shape (N, T), False for padding, to
        which no token attends.
        """
        query, key, value = (
            layer(inputs).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None])
        return seen.transpose(1, 2).flatten(2)


class Layer(nn.Module):
    """One transformer layer of BERT: self-attention and two linear layers, each with a residual connection."""

    def __init__(self) -> None:
        """Create the layer with random weights, under the names that the pretrained file has."""
        super().__init__()
        self.attention = nn.ModuleDict({"self": Attention(), "output": Added(WIDTH)})
        self.intermediate, self.output = nn.ModuleDict({"dense": nn.Linear(WIDTH, INNER)}), Added(INNER)

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Return the tokens after this layer, of shape (N, T, WIDTH) like `inputs`. `mask`: (N, T), False for padding."""
        seen = self.attention["output"](self.attention["self"](inputs, mask), inputs)
        found: Tensor = self.output(F.gelu(self.intermediate["dense"](seen)), seen)
        return found


class Mails(nn.Module):
    """BERT with a linear head. Tokens (N, T) and their mask (N, T) become logits: (N, classes) of the mean over a mail's tokens, or with
    `each` (N, classes, T), one per token.
    """

    def __init__(self, classes: int, *, each: bool) -> None:
        """Create the model with random weights. `classes`: number of outputs; `each`: classify each token, not the whole mail."""
        super().__init__()
        self.embeddings = Embeddings()
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Layer() for _ in range(LAYERS))})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(WIDTH, WIDTH)})  # which the base has and nothing asks
        self.head, self.each = nn.Linear(WIDTH, classes), each

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the logits. `tokens`: int64 of shape (N, T); `mask`: bool of the same shape, False for padding."""
        found: Tensor = self.embeddings(tokens)
        for layer in self.encoder["layer"]:
            found = layer(found, mask)
        if self.each:
            return torch.transpose(self.head(found), 1, 2)
        counted = mask.unsqueeze(-1)
        return torch.as_tensor(self.head((found * counted).sum(1) / counted.sum(1)))


def of_mails(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Return a model that puts a mail into one of `classes` classes. A factory for `training.model`; `input_shape` is not used, because any
    number of tokens is accepted.
    """
    return Mails(classes, each=False)


def of_tokens(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Return a model that puts each token of a mail into one of `classes` classes. A factory for `training.model`; `input_shape` is not
    used, because any number of tokens is accepted.
    """
    return Mails(classes, each=True)
