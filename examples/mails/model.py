"""A BERT (Devlin et al. 2019) in plain torch, with the names that all-MiniLM-L6-v2 gives its tensors, and a head for each of two tasks."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WORDS, PLACES, WIDTH, HEADS, LAYERS, INNER = 30_522, 512, 384, 12, 6, 1_536
DROPOUT, EPSILON = 0.1, 1e-12


class Embeddings(nn.Module):
    """(N, T) int64 to (N, T, WIDTH): the word, its place, and that it is of the first of two texts."""

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings, self.position_embeddings = nn.Embedding(WORDS, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.token_type_embeddings, self.LayerNorm = nn.Embedding(2, WIDTH), nn.LayerNorm(WIDTH, EPSILON)
        self.register_buffer("position_ids", torch.arange(PLACES).unsqueeze(0))

    def forward(self, tokens: Tensor) -> Tensor:
        places = self.position_embeddings.weight[: tokens.shape[1]]
        whole: Tensor = self.LayerNorm(self.word_embeddings(tokens) + places + self.token_type_embeddings.weight[0])
        return F.dropout(whole, DROPOUT, self.training)


class Added(nn.Module):
    """A layer's output, added to its input (N, T, WIDTH) and normalised."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense, self.LayerNorm = nn.Linear(width, WIDTH), nn.LayerNorm(WIDTH, EPSILON)

    def forward(self, found: Tensor, inputs: Tensor) -> Tensor:
        summed: Tensor = self.LayerNorm(F.dropout(self.dense(found), DROPOUT, self.training) + inputs)
        return summed


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            layer(inputs).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None])
        return seen.transpose(1, 2).flatten(2)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": Attention(), "output": Added(WIDTH)})
        self.intermediate, self.output = nn.ModuleDict({"dense": nn.Linear(WIDTH, INNER)}), Added(INNER)

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        seen = self.attention["output"](self.attention["self"](inputs, mask), inputs)
        found: Tensor = self.output(F.gelu(self.intermediate["dense"](seen)), seen)
        return found


class Mails(nn.Module):
    """Tokens (N, T) and their mask to logits: (N, classes) of the mean over a mail's tokens, with `each` (N, classes, T) of every one."""

    def __init__(self, classes: int, *, each: bool) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Layer() for _ in range(LAYERS))})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(WIDTH, WIDTH)})  # which the base has and nothing asks
        self.head, self.each = nn.Linear(WIDTH, classes), each

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        found: Tensor = self.embeddings(tokens)
        for layer in self.encoder["layer"]:
            found = layer(found, mask)
        if self.each:
            return torch.transpose(self.head(found), 1, 2)
        counted = mask.unsqueeze(-1)
        return torch.as_tensor(self.head((found * counted).sum(1) / counted.sum(1)))


def of_mails(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    return Mails(classes, each=False)


def of_tokens(classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    return Mails(classes, each=True)
