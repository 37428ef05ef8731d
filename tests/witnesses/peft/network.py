"""A block of a transformer, as both sides build it: attention by four Linear layers, two more behind it, a head."""

import torch
from torch import Tensor, nn

WIDTH, HEADS, CLASSES = 16, 2, 3


class Block(nn.Module):
    """A small transformer block: attention, and two layers that are added to its output."""

    def __init__(self) -> None:
        """Make the block's layers."""
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the block's output for a batch of sequences."""
        parts = (
            layer(inputs).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        seen = nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        found: Tensor = self.norm(inputs + self.output(seen))
        return found + self.down(torch.tanh(self.up(found)))


class Network(nn.Module):
    """A classifier of sequences: one block, the mean over the sequence, and a linear layer."""

    def __init__(self) -> None:
        """Make the block and the last layer."""
        super().__init__()
        self.block, self.head = Block(), nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the scores of each class for a batch of sequences."""
        found: Tensor = self.head(self.block(inputs).mean(1))
        return found


def network(classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Return a new classifier. The number of classes and the shape of inputs are fixed in this module."""
    return Network()
