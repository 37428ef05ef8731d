"""What MLLess's supervisor and workers tell one another, and what both work out from it by the same rules. Free of torch.

A step is what other architectures call a round: `exchange.every` minibatches, then a synchronisation. After each step a worker stores
its update, if anything is significant, then its report: what it computed, and whether there is an update. Once the supervisor has the
reports of all, it stores its word on the step: whose updates everybody applies, and who leaves when. Announcements on the exchange only
wake those who wait; what counts is what reports and words say.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from crossover.algorithms.calendar import Calendar
from crossover.context import Context
from crossover.dataplane import plain
from crossover.dataplane.vector import Vector, VectorKind
from crossover.keys import Keys
from crossover.training.checkpoints import Checkpoint


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What a worker says of a step that it has computed."""

    loss: float | None = None  # mean over its samples; None in a farewell, which comes without a gradient
    samples: int = 0
    seconds: float = 0.0  # from the step's start to this report
    update: bool = False  # whether it published an update
    complaints: tuple[int, ...] = ()  # workers whose stored update could not be read


@dataclass(frozen=True, kw_only=True)
class Word:
    """What the supervisor says of a step once all have reported. What it says of workers holds from the step `visible_from` on."""

    step: int
    senders: tuple[int, ...] = ()  # by rank: exactly these updates are applied
    leaves: Mapping[int, int] = field(default_factory=dict)  # worker -> the step in which it sends all its residual
    dropped: tuple[int, ...] = ()  # workers that are gone: nothing of them is waited for
    loss: float | None = None
    at: float = 0.0  # unix seconds

    def computing(self, workers: int, step: int) -> list[int]:
        """The workers that compute in `step`."""
        return [w for w in range(workers) if w not in self.dropped and self.leaves.get(w, step + 1) > step]

    def reporting(self, workers: int, step: int) -> list[int]:
        """The workers that report on `step`: those who compute, and those who say farewell."""
        return [w for w in range(workers) if w not in self.dropped and self.leaves.get(w, step) >= step]

    def staying(self, workers: int) -> list[int]:
        """The workers that are neither gone nor told to leave."""
        return [w for w in range(workers) if w not in self.dropped and w not in self.leaves]


START = Word(step=-1)
# What these are as JSON, and what else a member's checkpoint says.
REPORT = {"loss": (float, None), "samples": int, "seconds": float, "update": bool, "complaints": [int]}
WORD = {"step": int, "senders": [int], "leaves": {int: int}, "dropped": [int], "loss": (float, None), "at": float}
FACTS = {"word?": WORD, "ahead?": [int], "curve?": [[float, float]], "seconds?": {int: [float]}, "settled_from?": int}


def encode(message: StepReport | Word) -> Vector:
    return Vector(VectorKind.RECORD, memoryview(json.dumps(asdict(message)).encode()), dtype="uint8")


def read_report(vector: Vector, *, key: str) -> StepReport:
    said = plain.read(bytes(vector.data), REPORT, key=key)
    return StepReport(**{name: said[name] for name in REPORT} | {"complaints": tuple(said["complaints"])})


def read_word(vector: Vector, *, key: str) -> Word:
    return _word(plain.read(bytes(vector.data), WORD, key=key))


def last_known(facts: Mapping[str, Any]) -> Word:
    """The last word that a checkpoint knows of; START before the first."""
    plain.expect(facts, FACTS, key="a checkpoint's facts")
    return _word(facts["word"]) if "word" in facts else START


def _word(said: Mapping[str, Any]) -> Word:
    """The Word that `asdict` made plain."""
    lists = {name: tuple(said[name]) for name in ("senders", "dropped")}
    leaves = {int(worker): step for worker, step in said["leaves"].items()}
    return Word(**{name: said[name] for name in WORD} | lists | {"leaves": leaves})


def applied_by(days: Calendar, step: int, *, slack: int, every: int) -> int:
    """The last step whose word a worker has applied once it is through with `step`: `slack` behind, and none behind where an epoch ends or
    a checkpoint is due, each `every` steps: what is on its way would be lost to a run that is resumed there.

    A fixed lag, not "whatever is there": so a restarted worker repeats its bits. It waits exactly when bounded staleness makes it wait.
    """
    if step == _drained(days, step, every=every):
        return step
    return max(step - slack, step - step % days.rounds_per_epoch - 1, step - step % every - 1)


def visible_from(days: Calendar, step: int, *, slack: int, every: int) -> int:
    """The first step that begins with the word on `step` applied."""
    return min(step + slack, _drained(days, step, every=every)) + 1


def _drained(days: Calendar, step: int, *, every: int) -> int:
    """The next step, or this one, at whose end no word is behind."""
    return min(_last(step, days.rounds_per_epoch), _last(step, every), days.rounds - 1)


def _last(step: int, span: int) -> int:
    return (step // span + 1) * span - 1


def without(checkpoint: Checkpoint, gone: Collection[int]) -> Checkpoint:
    """The same, but for workers that no longer take part: its word has them dropped."""
    word = last_known(checkpoint.facts)
    dropped = replace(word, dropped=(*word.dropped, *sorted(set(gone) - set(word.dropped))))
    return replace(checkpoint, facts={**checkpoint.facts, "word": asdict(dropped)})


def keys_of(keys: Keys, step: int, workers: Sequence[int]) -> list[str]:
    """Everything that a step left in the database."""
    return [keys.expected(step), *(key for w in workers for key in (keys.update(step, w), keys.report(step, w)))]


def supervisor_rank(ctx: Context) -> int:
    """The supervisor's number among the members: after the workers."""
    return ctx.experiment.workers
