"""Checkpoints: the whole state of a long worker at one position of the run, each stored as one create-only object.

A worker writes one every `functions.checkpoint_every` rounds, before it publishes anything of that round, and one when its invocation ends.
So a peer's contribution to round t proves that the peer can restart at the last multiple at or before t. What older rounds left in the
database can then be deleted.
"""

import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any

from crossover.algorithms.optimizers import OPTIMIZERS
from crossover.errors import Corrupt, Missing
from crossover.stores.encoding import HEADER_BYTES, Vector, VectorKind, build_header, decode, read_plain
from crossover.stores.keys import Keys
from crossover.stores.protocols import Buffer
from crossover.workflow.context import Context

if TYPE_CHECKING:
    from torch import Tensor

_MAGIC, _FORMAT = b"XCKP", 1
_HEAD = struct.Struct("<4sIII")  # magic, format, length and crc32 of the JSON that follows
_LISTING = {
    "position": [int, int],
    "vectors": [[str, int]],
    "facts": {"kept?": [[int, int]], "waiting_since?": (float, None), "loss_scale?": [float, int]},
}


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A worker's position in the run: it has computed `minibatch` minibatches of `round`.

    If that is all of them, its contribution is computed, but not synchronised yet. Both count from 0. Positions compare by round, then by
    minibatch.
    """

    round: int
    minibatch: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint's content: the `position` in the run, the `vectors` by name, and in `facts` the rest of the worker's state, as plain
    JSON values.
    """

    position: Position
    vectors: Mapping[str, Vector]
    facts: Mapping[str, Any] = field(default_factory=dict)


def encode(checkpoint: Checkpoint) -> list[Buffer]:
    """Return the bytes to store for `checkpoint`, as a list of buffers in order. The vectors' memory is not copied."""
    listing = {
        "position": [checkpoint.position.round, checkpoint.position.minibatch],
        "vectors": [[name, vector.data.nbytes] for name, vector in checkpoint.vectors.items()],
        "facts": checkpoint.facts,
    }
    plain = json.dumps(listing).encode()
    plain += b" " * (-(_HEAD.size + len(plain)) % 16)  # the vectors' payloads stay aligned
    parts: list[Buffer] = [_HEAD.pack(_MAGIC, _FORMAT, len(plain), zlib.crc32(plain)), plain]
    for vector in checkpoint.vectors.values():
        parts += [build_header(vector), vector.data, b"\0" * (-vector.data.nbytes % 16)]
    return parts


def read(body: bytes, *, key: str) -> Checkpoint:
    """Decode `body`, a stored checkpoint, and return it; its vectors are views of `body`. Raises Corrupt, naming `key`, if it is
    damaged.
    """
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
        raise Corrupt(f"{key}: {view.nbytes} bytes, but its vectors end at byte {at}")
    return Checkpoint(Position(*listing["position"]), vectors, listing["facts"])


def build_vectors(ctx: Context, optimizer: "Sequence[Tensor]", outer: "Sequence[Tensor]" = ()) -> dict[str, Vector]:
    """Return the vectors that every worker's checkpoint holds, as {name: vector}: "model", the learner's, then "optimizer0", ... and
    "outer0", .... Their data are views of the memory of the learner and of the given tensors; those in a GPU's memory
    are copied.

    `optimizer`: the optimizer's vectors; `outer`: the outer optimizer's vectors, with local steps.
    """
    from crossover.algorithms import buffers

    kind = VectorKind(OPTIMIZERS[ctx.experiment.training.optimizer].kind)
    held = {f"optimizer{i}": Vector(kind, buffers.view(part.cpu())) for i, part in enumerate(optimizer)}
    held |= {f"outer{i}": Vector(VectorKind.VELOCITY, buffers.view(part.cpu())) for i, part in enumerate(outer)}
    return {"model": Vector(VectorKind.MODEL, ctx.learner.model), **held}


def copy_optimizer(checkpoint: Checkpoint, whose: str = "optimizer") -> "tuple[Tensor, ...]":
    """Return copies of the optimizer's vectors in `checkpoint`, in their order, so that the checkpoint's memory can be freed; () if it
    holds none.

    `whose`: "optimizer" for the worker's own, "outer" for the outer optimizer.
    """
    from crossover.algorithms import buffers

    names = sorted(name for name in checkpoint.vectors if name.startswith(whose))
    return tuple(buffers.tensor(checkpoint.vectors[name].data).clone() for name in names)


def wrap_kept_vectors(kept: "Mapping[str, Tensor]") -> dict[str, Vector]:
    """Return the tensors `kept` as vectors to store in a checkpoint, named "extra ...". The memory is not copied.

    `kept`: by name, what a worker keeps between rounds in addition to model and optimizer, e.g. a codec's error feedback.
    """
    from crossover.algorithms import buffers

    return {f"extra {name}": Vector(VectorKind.STATE, buffers.view(own)) for name, own in kept.items()}


def restore_kept_vectors(checkpoint: Checkpoint, kept: "Mapping[str, Tensor]") -> None:
    """Copy the values that `wrap_kept_vectors` put into `checkpoint` back into the tensors `kept`, by name.

    A tensor that the checkpoint does not hold stays unchanged.
    """
    from crossover.algorithms import buffers

    for name, own in kept.items():
        if (found := checkpoint.vectors.get(f"extra {name}")) is not None:
            own.copy_(buffers.tensor(found.data).view_as(own))


class Journal:
    """Writer and reader of the checkpoints of one worker, which never lists the bucket. Each invocation of the worker makes one and calls
    `restore` before `save`.

    Checkpoints at multiples of `every` rounds are found by probing one key after another, the checkpoint of an ended invocation by the
    position in the event. Kept are those that a retry of this invocation could read, and the newest two multiples: workers are less than
    two multiples apart, so a resumed run finds a round of which all have a checkpoint.
    """

    def __init__(self, ctx: Context, worker: int, *, every: int) -> None:
        """Describe the journal of the member `worker` (a rank), which saves every `every` rounds; nothing is read yet."""
        self._ctx, self._worker, self._every = ctx, worker, every
        self._kept: list[Position] = []
        self._entered = Position(0)

    def _key(self, position: Position) -> str:
        """Return the key of this worker's checkpoint at `position`."""
        return self._ctx.keys.checkpoint(self._worker, position.round, position.minibatch)

    def restore(self, entered: Position) -> Checkpoint:
        """Read and return the newest checkpoint at or after `entered`, the position in the invocation's event.

        Raises Missing if a later invocation has already deleted the event's checkpoint, Corrupt if a checkpoint is damaged or holds another
        position than its key says.
        """
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
        """Return whether a checkpoint is due at the start of `round`: at round 0 and at multiples of `every`, which is at least 1."""
        return round % self._every == 0

    def save(self, position: Position, vectors: Mapping[str, Vector], facts: Mapping[str, Any]) -> None:
        """Create the checkpoint of `position`, then delete this worker's checkpoints that no attempt can need any more. Does nothing if
        this invocation has restored or saved `position` already; if another invocation has created the checkpoint, that one stays.

        `vectors`: the vectors to store, by name; `facts`: plain values that are stored with them.
        """
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

    def delete_all(self) -> None:
        """Delete all checkpoints of this worker that this invocation has read or saved, or found listed in the one that it read, and not
        deleted yet. For a superseded attempt.
        """
        self._ctx.objects.delete(*(self._key(each) for each in self._kept))

    def is_superseded(self, round: int) -> bool:
        """Return whether another invocation of this worker has saved a checkpoint beyond `round`. Only the next round at which one is due
        is looked up.
        """
        return self._ctx.objects.exists(self._key(self._next_multiple(Position(round))))

    def _next_multiple(self, position: Position) -> Position:
        """Return the position at the start of the next round after that of `position` at which a checkpoint is due."""
        return Position((position.round // self._every + 1) * self._every)


def list_common_rounds(ctx: Context, keys: Keys, workers: Sequence[int]) -> list[int]:
    """Return the rounds, ascending, at whose start every one of `workers` has a checkpoint of the attempt with these `keys`.

    Lists the bucket, so it is for set-up, not for training. Raises Missing if there is no such round.
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


# --- when to save -----------------------------------------------------------------------------------------------------
# A program that is alone saves by time: no other member has to meet it at a round.

CHECKPOINT_SHARE = 0.02  # of its time that the program may spend on checkpoints
LONGEST_INTERVAL_S = 600.0  # between two checkpoints


def checkpoint_interval_s(save_s: float) -> float:
    """Return the seconds to leave between two checkpoints if saving one takes `save_s` seconds, so that saving takes 2 % of the time; at
    most 600.
    """
    return min(LONGEST_INTERVAL_S, save_s / CHECKPOINT_SHARE)


class CheckpointPace:
    """The rule for when a program that is the only member of its run saves: rarely enough that saving takes only a small share of the
    time.

    `every`: save only at multiples of so many rounds, unless 600 s have passed since the last checkpoint. `clock`: returns seconds.
    """

    def __init__(self, every: int, clock: Callable[[], float]) -> None:
        """Start counting the time since the last checkpoint now. `every`, `clock`: see the class."""
        self._every, self._clock = every, clock
        self._saved_at, self._interval_s = clock(), 0.0

    def is_due(self, round: int) -> bool:
        """Return whether a checkpoint is due before `round` begins: at any round if 600 s have passed since the last checkpoint, otherwise
        at multiples of `every` if the interval that `note_saved` has chosen is over. Before the first call of `note_saved` there is no such
        interval.
        """
        passed_s = self.passed_s
        if passed_s >= LONGEST_INTERVAL_S:
            return True
        return round % self._every == 0 and passed_s >= self._interval_s

    @property
    def passed_s(self) -> float:
        """Seconds since the last checkpoint, or since the start before the first."""
        return self._clock() - self._saved_at

    def note_saved(self, took_s: float) -> None:
        """Note that a checkpoint was saved just now, which took `took_s` seconds; the next interval is chosen by that."""
        self._saved_at, self._interval_s = self._clock(), checkpoint_interval_s(took_s)

    def count_rounds_apart(self, round_s: float, took_s: float) -> int:
        """Return the number of rounds from one checkpoint to the next, at least 1, if each round takes `round_s` seconds, above 0, and
        saving takes `took_s`.
        """
        multiples = ceil(checkpoint_interval_s(took_s) / (self._every * round_s))
        return max(1, min(self._every * multiples, ceil(LONGEST_INTERVAL_S / round_s)))
