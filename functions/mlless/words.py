"""Messages between MLLess's supervisor and workers, and the rules by which both read them. This module does not import torch.

A step is what other architectures call a round: `exchange.every` minibatches, then a synchronisation. After each step a worker stores its
update, if anything is significant, then its report: what it computed, and whether there is an update. Once the supervisor has all reports,
it stores its word on the step: whose updates everybody applies, and who leaves when. Announcements on the exchange only wake those who
wait; only reports and words count.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from crossover.algorithms.schedule import Calendar
from crossover.data import encoding
from crossover.data.encoding import Vector, VectorKind
from crossover.data.keys import Keys
from crossover.training.checkpoints import Checkpoint
from crossover.workflow.context import Context


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """A worker's report on a step that it has computed."""

    loss: float | None = None  # mean over its samples; None in a farewell, which comes without a gradient
    samples: int = 0
    seconds: float = 0.0  # from the step's start to this report
    update: bool = False  # whether it published an update
    complaints: tuple[int, ...] = ()  # workers whose stored update could not be read


@dataclass(frozen=True, kw_only=True)
class Word:
    """The supervisor's decision on a step once all workers have reported, which all workers follow.

    Its statements about workers apply from step `visible_from` on.
    """

    step: int
    senders: tuple[int, ...] = ()  # by rank: exactly these updates are applied
    leaves: Mapping[int, int] = field(default_factory=dict)  # worker -> the step in which it sends all its residual
    dropped: tuple[int, ...] = ()  # workers that are gone: no member waits for them
    loss: float | None = None
    at: float = 0.0  # unix seconds

    def list_computing(self, workers: int, step: int) -> list[int]:
        """Return the workers that compute in `step`. `workers`: their initial number."""
        return [w for w in range(workers) if w not in self.dropped and self.leaves.get(w, step + 1) > step]

    def list_reporting(self, workers: int, step: int) -> list[int]:
        """Return the workers that report on `step`: those that compute, and those that leave in it. `workers`: their initial number."""
        return [w for w in range(workers) if w not in self.dropped and self.leaves.get(w, step) >= step]

    def list_staying(self, workers: int) -> list[int]:
        """Return the workers that are neither dropped nor told to leave. `workers`: their initial number."""
        return [w for w in range(workers) if w not in self.dropped and w not in self.leaves]


START = Word(step=-1)
# The JSON form of these, and of the facts in a member's checkpoint.
REPORT = {"loss": (float, None), "samples": int, "seconds": float, "update": bool, "complaints": [int]}
WORD = {"step": int, "senders": [int], "leaves": {int: int}, "dropped": [int], "loss": (float, None), "at": float}
FACTS = {"word?": WORD, "ahead?": [int], "curve?": [[float, float]], "seconds?": {int: [float]}, "settled_from?": int}


def encode(message: StepReport | Word) -> Vector:
    """Return the worker's report or the supervisor's word as a RECORD vector: the bytes of its JSON."""
    return Vector(VectorKind.RECORD, memoryview(json.dumps(asdict(message)).encode()), dtype="uint8")


def read_report(vector: Vector, *, key: str) -> StepReport:
    """Return the report in `vector`. Raises Corrupt, naming `key`."""
    said = encoding.read_plain(bytes(vector.data), REPORT, key=key)
    return StepReport(**{name: said[name] for name in REPORT} | {"complaints": tuple(said["complaints"])})


def read_word(vector: Vector, *, key: str) -> Word:
    """Return the word in `vector`. Raises Corrupt, naming `key`."""
    return _word(encoding.read_plain(bytes(vector.data), WORD, key=key))


def last_known(facts: Mapping[str, Any]) -> Word:
    """Return the last word in a checkpoint's facts, or START before the first word."""
    encoding.check_shape(facts, FACTS, key="a checkpoint's facts")
    return _word(facts["word"]) if "word" in facts else START


def _word(said: Mapping[str, Any]) -> Word:
    """Return the Word from its plain form, as `asdict` and JSON made it."""
    lists = {name: tuple(said[name]) for name in ("senders", "dropped")}
    leaves = {int(worker): step for worker, step in said["leaves"].items()}
    return Word(**{name: said[name] for name in WORD} | lists | {"leaves": leaves})


def last_applied_step(days: Calendar, step: int, *, slack: int, every: int) -> int:
    """Return the last step whose word a worker has applied once it has finished `step`. `days`: the run's calendar.

    It is `slack` steps behind, but none at the end of an epoch or before a checkpoint, which is due every `every`
    steps: updates on their way would be lost to a run that is resumed there. The lag is fixed instead of "whatever is
    there", so that a restarted worker repeats its bits. The worker waits exactly when bounded staleness makes it wait.
    """
    if step == _find_draining_step(days, step, every=every):
        return step
    return max(step - slack, step - step % days.rounds_per_epoch - 1, step - step % every - 1)


def visible_from(days: Calendar, step: int, *, slack: int, every: int) -> int:
    """Return the first step that begins with the word on `step` applied.

    `days`, `slack`, `every`: as in `last_applied_step`.
    """
    return min(step + slack, _find_draining_step(days, step, every=every)) + 1


def _find_draining_step(days: Calendar, step: int, *, every: int) -> int:
    """Return the next step, or this one, at whose end every word is applied."""
    return min(_last(step, days.rounds_per_epoch), _last(step, every), days.rounds - 1)


def _last(step: int, span: int) -> int:
    """Return the last step of the group of `span` steps that contains `step`."""
    return (step // span + 1) * span - 1


def mark_dropped(checkpoint: Checkpoint, gone: Collection[int]) -> Checkpoint:
    """Return the checkpoint with the workers `gone` marked as dropped in its word."""
    word = last_known(checkpoint.facts)
    dropped = replace(word, dropped=(*word.dropped, *sorted(set(gone) - set(word.dropped))))
    return replace(checkpoint, facts={**checkpoint.facts, "word": asdict(dropped)})


def keys_of(keys: Keys, step: int, workers: Sequence[int]) -> list[str]:
    """Return all keys that a step may have left in the database: its word, and an update and a report of each of `workers`."""
    return [keys.supervisor_word(step), *(key for w in workers for key in (keys.update(step, w), keys.report(step, w)))]


def supervisor_rank(ctx: Context) -> int:
    """Return the supervisor's rank among the members: it follows the workers'."""
    return ctx.experiment.workers
