"""What peers tell one another: whose gradient of which round, and the gradient itself or where it lies.

Compressed or not, the minibatch statistics behind a gradient travel as float32: noise in a variance would make it negative.
"""

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from crossover.algorithms import buffers, compression
from crossover.algorithms.aggregation import finite
from crossover.algorithms.randomness import generator
from crossover.dataplane.vector import Kind, Vector, decode, header
from crossover.errors import Corrupt
from crossover.experiment import Experiment

if TYPE_CHECKING:
    from torch import Tensor

_MAGIC, VERSION = b"XP2P", 1
_HEAD = struct.Struct("<4sIII")  # magic, version, length and crc32 of the JSON that follows


@dataclass(frozen=True, slots=True)
class Message:
    """A peer's gradient of a round. `body`: the vector's wire format, or nothing where it lies in the object store under `key`."""

    run: str
    peer: int
    round: int
    samples: int
    key: str
    body: memoryview


def encode(message: Message, parts: Sequence[bytes | memoryview]) -> bytes:
    """The message as it stands in a mailbox; `parts`: its body's buffers, in order (none where it has a key)."""
    said = {name: getattr(message, name) for name in ("run", "peer", "round", "samples", "key")}
    plain = json.dumps(said).encode()
    plain += b" " * (-(_HEAD.size + len(plain)) % 16)  # the body's payload stays aligned
    return b"".join([_HEAD.pack(_MAGIC, VERSION, len(plain), zlib.crc32(plain)), plain, *parts])


def read(text: bytes, *, mailbox: str) -> Message:
    """The message in `text`. Raises Corrupt, naming the mailbox, on another version or on what is no message."""
    view = memoryview(text)
    if view.nbytes < _HEAD.size or bytes(view[:4]) != _MAGIC:
        raise Corrupt(f"{mailbox}: {view.nbytes} bytes that are no message of a peer")
    _, version, length, crc = _HEAD.unpack(view[: _HEAD.size])
    if version != VERSION:
        raise Corrupt(
            f"{mailbox}: a message of version {version}; this program reads version {VERSION}: deploy all peers anew"
        )
    plain = view[_HEAD.size : _HEAD.size + length]
    if zlib.crc32(plain) != crc:
        raise Corrupt(f"{mailbox}: checksum differs: the message was changed on its way")
    said = json.loads(bytes(plain))
    return Message(**said, body=view[_HEAD.size + length :])


class Codec:
    """Gradients to bodies and back, by `p2p.compression`. One per peer: what is received lands in memory that is used again."""

    def __init__(self, experiment: Experiment, *, parameters: int, statistics: int) -> None:
        self._experiment, self._parameters, self._statistics = experiment, parameters, statistics
        p2p = experiment.p2p
        self._compression = compression.named(p2p.compression, bits=p2p.bits, bucket=p2p.bucket, norm=p2p.norm)
        self._received = torch.empty(0 if self.lossless else parameters + statistics)

    @property
    def lossless(self) -> bool:
        return self._compression.lossless

    def encode(self, gradient: "Tensor", *, samples: int, round: int, peer: int) -> list[bytes | memoryview]:
        """The body's buffers. The same gradient of the same round and peer gives the same bytes."""
        if self.lossless:
            vector = Vector(Kind.GRADIENT, buffers.view(gradient), samples)
        else:
            values, statistics = gradient[: self._parameters], gradient[self._parameters :]
            random = generator("qsgd", self._experiment.seed, round, peer)
            small = self._compression.encode(values, random=random)
            body = torch.cat([small, statistics.view(torch.uint8)])
            vector = Vector(Kind.QUANTIZED, buffers.view(body), samples, "uint8")
        return [header(vector), vector.data]

    def decode(self, body: bytes | memoryview, *, samples: int, what: str) -> "Tensor":
        """The gradient, (P + B,) float32, to be read before the next call. Raises Corrupt where it is not one of this model."""
        vector = decode(body, key=what, kind=Kind.GRADIENT if self.lossless else Kind.QUANTIZED)
        if vector.samples != samples:
            raise Corrupt(f"{what}: stands for {vector.samples} samples where {samples} were announced")
        middle, expected = vector.data.nbytes - 4 * self._statistics, self._compression.nbytes(self._parameters)
        if middle != expected:
            raise Corrupt(
                f"{what}: {middle} bytes of gradient where this model's {self._parameters} parameters make {expected}: "
                "its sender trains another model, or compresses in another way"
            )
        if self.lossless:
            out = buffers.tensor(vector.data)  # read where it arrived
        else:
            out = self._received
            self._compression.decode(vector.data[:middle], out=out[: self._parameters], what=what)
            if self._statistics:
                # A copy: the statistics need not begin at a multiple of four bytes.
                out[self._parameters :] = buffers.tensor(bytes(vector.data[middle:]))
        if self._experiment.aggregation.non_finite == "refuse" and not finite(out):
            raise Corrupt(f"{what}: contains NaN or infinite values")
        return out
