"""Checkpoints: all of a long worker's state at a position, one create-only object each.

A worker writes one every `functions.checkpoint_every` rounds, before it publishes anything of that round, and one when it leaves. So a
peer's contribution to round t proves that the peer can restart at the last multiple at or before t: what older rounds left in the database
may go.
"""

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from crossover.algorithms.optimizers import OPTIMIZERS
from crossover.context import Context
from crossover.dataplane.plain import read as read_plain
from crossover.dataplane.protocols import Buffer
from crossover.dataplane.vector import HEADER_BYTES, Vector, VectorKind, decode, header
from crossover.errors import Corrupt, Missing
from crossover.keys import Keys

if TYPE_CHECKING:
    from torch import Tensor

_MAGIC, _FORMAT = b"XCKP", 1
_HEAD = struct.Struct("<4sIII")  # magic, format, length and crc32 of the JSON that follows
_LISTING = {
    "position": [int, int],
    "vectors": [[str, int]],
    "facts": {"kept?": [[int, int]], "waiting_since?": (float, None)},
}


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """`minibatch` minibatches of `round` are behind the worker; all of them: its contribution is made, the round not synchronised."""

    round: int
    minibatch: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`vectors` by name; `facts`: plain JSON, what else the worker knows."""

    position: Position
    vectors: Mapping[str, Vector]
    facts: Mapping[str, Any] = field(default_factory=dict)


def encode(checkpoint: Checkpoint) -> list[Buffer]:
    """The object's buffers, in order; the vectors' memory is not copied."""
    listing = {
        "position": [checkpoint.position.round, checkpoint.position.minibatch],
        "vectors": [[name, vector.data.nbytes] for name, vector in checkpoint.vectors.items()],
        "facts": checkpoint.facts,
    }
    plain = json.dumps(listing).encode()
    plain += b" " * (-(_HEAD.size + len(plain)) % 16)  # the vectors' payloads stay aligned
    parts: list[Buffer] = [_HEAD.pack(_MAGIC, _FORMAT, len(plain), zlib.crc32(plain)), plain]
    for vector in checkpoint.vectors.values():
        parts += [header(vector), vector.data, b"\0" * (-vector.data.nbytes % 16)]
    return parts


def read(body: bytes, *, key: str) -> Checkpoint:
    """The checkpoint in `body`, its vectors as views. Raises Corrupt, naming `key`."""
    view = memoryview(body)
    if view.nbytes < _HEAD.size or bytes(view[:4]) != _MAGIC:
        raise Corrupt(f"{key}: {view.nbytes} bytes that do not start with a checkpoint's header")
    _, version, length, crc = _HEAD.unpack(view[: _HEAD.size])
    plain = view[_HEAD.size : _HEAD.size + length]
    if version != _FORMAT:
        raise Corrupt(f"{key}: a checkpoint of format {version}; this version reads {_FORMAT}")
    if zlib.crc32(plain) != crc:
        raise Corrupt(f"{key}: the checksum of its header differs")
    listing = read_plain(bytes(plain), _LISTING, key=key)
    vectors, at = {}, _HEAD.size + length
    for name, bytes_ in listing["vectors"]:
        vectors[name] = decode(view[at : at + HEADER_BYTES + bytes_], key=f"{key} ({name})")
        at += HEADER_BYTES + bytes_ + -bytes_ % 16
    if at != view.nbytes:
        raise Corrupt(f"{key}: {view.nbytes} bytes where the vectors end at {at}")
    return Checkpoint(Position(*listing["position"]), vectors, listing["facts"])


def vectors_of(ctx: Context, optimizer: "Sequence[Tensor]", outer: "Sequence[Tensor]" = ()) -> dict[str, Vector]:
    """What every checkpoint of one who trains holds: the learner's model, the optimizer's vectors, and the outer one's with local steps."""
    from crossover.algorithms import buffers

    kind = VectorKind(OPTIMIZERS[ctx.experiment.training.optimizer].kind)
    held = {f"optimizer{i}": Vector(kind, buffers.view(part)) for i, part in enumerate(optimizer)}
    held |= {f"outer{i}": Vector(VectorKind.VELOCITY, buffers.view(part)) for i, part in enumerate(outer)}
    return {"model": Vector(VectorKind.MODEL, ctx.learner.model), **held}


def optimizer_of(checkpoint: Checkpoint, whose: str = "optimizer") -> "tuple[Tensor, ...]":
    """The optimizer's vectors, or the "outer" one's, as copies: what the checkpoint was read into is let go."""
    from crossover.algorithms import buffers

    names = sorted(name for name in checkpoint.vectors if name.startswith(whose))
    return tuple(buffers.tensor(checkpoint.vectors[name].data).clone() for name in names)


def kept_vectors(kept: "Mapping[str, Tensor]") -> dict[str, Vector]:
    """What else one who trains keeps from round to round, by name: what a codec left out, an outer velocity."""
    from crossover.algorithms import buffers

    return {f"extra {name}": Vector(VectorKind.STATE, buffers.view(own)) for name, own in kept.items()}


def take_kept(checkpoint: Checkpoint, kept: "Mapping[str, Tensor]") -> None:
    """Into the memory of each, what the checkpoint holds of it; of a first one that is nothing."""
    from crossover.algorithms import buffers

    for name, own in kept.items():
        if (found := checkpoint.vectors.get(f"extra {name}")) is not None:
            own.copy_(buffers.tensor(found.data).view_as(own))


class Journal:
    """The checkpoints of one worker, written and found without ever listing them.

    Those at multiples of `every` are found by asking for them one after another, a leaving worker's own by the position in the event. Kept
    are what this invocation's retry could ask for, and the newest two multiples: workers are less than two apart, so a resumed run finds a
    round that all have.
    """

    def __init__(self, ctx: Context, worker: int, *, every: int) -> None:
        self._ctx, self._worker, self._every = ctx, worker, every
        self._kept: list[Position] = []
        self._entered = Position(0)

    def _key(self, position: Position) -> str:
        return self._ctx.keys.checkpoint(self._worker, position.round, position.minibatch)

    def restore(self, entered: Position) -> Checkpoint:
        """The highest checkpoint from the event's position on. Raises Missing: a later invocation has been here."""
        newest, ahead = entered, self._next_multiple(entered)
        while self._ctx.objects.exists(self._key(ahead)):
            newest, ahead = ahead, self._next_multiple(ahead)
        key = self._key(newest)
        checkpoint = read(self._ctx.objects.get(key), key=key)
        if checkpoint.position != newest:
            raise Corrupt(f"{key}: holds the checkpoint of {checkpoint.position}")
        self._entered = entered
        self._kept = [Position(*each) for each in checkpoint.facts.get("kept", [])] + [newest]
        return checkpoint

    def is_due(self, round: int) -> bool:
        """Whether a checkpoint is due before anything of `round` is published."""
        return round % self._every == 0

    def save(self, position: Position, vectors: Mapping[str, Vector], facts: Mapping[str, Any]) -> None:
        """Create the checkpoint, then delete what nobody will ask for any more. Saving what is saved already costs nothing."""
        if position in self._kept:
            return
        kept = [*self._kept, position]
        multiples = sorted((each for each in kept if each.minibatch == 0 and self.is_due(each.round)), reverse=True)
        needed = {position, *multiples[:2], *(each for each in kept if each >= self._entered)}
        listed = [[each.round, each.minibatch] for each in kept if each in needed and each != position]
        checkpoint = Checkpoint(position, vectors, {**facts, "kept": listed})
        self._ctx.objects.put_new(self._key(position), encode(checkpoint))
        spent = [self._key(each) for each in kept if each not in needed]
        if spent:
            self._ctx.objects.delete(*spent)
        self._kept = [each for each in kept if each in needed]

    def forget(self) -> None:
        """An attempt that was overtaken takes back what it has saved."""
        self._ctx.objects.delete(*(self._key(each) for each in self._kept))

    def overtaken(self, round: int) -> bool:
        """Whether another invocation of this worker has a checkpoint beyond `round`."""
        return self._ctx.objects.exists(self._key(self._next_multiple(Position(round))))

    def _next_multiple(self, position: Position) -> Position:
        return Position((position.round // self._every + 1) * self._every)


def common_rounds(ctx: Context, keys: Keys, workers: Sequence[int]) -> list[int]:
    """The rounds at whose start every worker has a checkpoint of the attempt whose keys these are, ascending. Raises Missing where there is
    none. Lists: for set-up, not for training.
    """
    common: set[int] | None = None
    for worker in workers:
        prefix = keys.checkpoints_of(worker)
        names = (key.removeprefix(prefix).split(".") for key in ctx.objects.list(prefix))
        starts = {int(round) for round, minibatch in names if int(minibatch) == 0}
        common = starts if common is None else common & starts
    if not common:
        raise Missing(
            f"{keys.own_checkpoints}: a round that all of workers {', '.join(map(str, workers))} can start from"
        )
    return sorted(common)
