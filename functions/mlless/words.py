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
from crossover.errors import Corrupt
from crossover.stores import encoding
from crossover.stores.encoding import Vector, VectorKind
from crossover.stores.keys import Keys
from crossover.training import checkpoints
from crossover.training.checkpoints import Checkpoint
from crossover.workflow.context import Context


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """A worker's report on a step: the step it has computed, or, in a farewell, the step in which it leaves.

    `loss`: mean over its `samples`, None in a farewell, which comes without a gradient; `seconds`: from the step's start to this report;
    `update`: whether it published an update; `complaints`: ranks of workers whose stored update it could not read.
    """

    loss: float | None = None
    samples: int = 0
    seconds: float = 0.0
    update: bool = False
    complaints: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Word:
    """The supervisor's decision ("word") on a step once all workers have reported: which updates all workers apply, and which workers
    leave or are dropped.

    `senders`: ranks, ascending, of the workers whose updates of the step are applied; `leaves`: {rank: step in which that worker sends its
    whole residual and leaves}; `dropped`: ranks that are gone, for which no member waits; `loss`: mean training loss of the step, None if
    nobody computed; `at`: unix seconds of the decision. `list_computing` and the others answer for steps that begin with this word
    applied.
    """

    step: int
    senders: tuple[int, ...] = ()
    leaves: Mapping[int, int] = field(default_factory=dict)
    dropped: tuple[int, ...] = ()
    loss: float | None = None
    at: float = 0.0

    def list_computing(self, workers: int, step: int) -> list[int]:
        """Return the ranks of the workers that compute in `step`: neither dropped nor leaving by then. `workers`: number of workers at the
        run's start.
        """
        return [w for w in range(workers) if w not in self.dropped and self.leaves.get(w, step + 1) > step]

    def list_reporting(self, workers: int, step: int) -> list[int]:
        """Return the ranks of the workers that report on `step`: those that compute in it, and those that leave in it. `workers`: number of
        workers at the run's start.
        """
        return [w for w in range(workers) if w not in self.dropped and self.leaves.get(w, step) >= step]

    def list_staying(self, workers: int) -> list[int]:
        """Return the ranks of the workers that are neither dropped nor told to leave in any step. `workers`: number of workers at the run's
        start.
        """
        return [w for w in range(workers) if w not in self.dropped and w not in self.leaves]


START = Word(step=-1)
# The JSON form of these, and of the facts in a member's checkpoint.
REPORT = {"loss": (float, None), "samples": int, "seconds": float, "update": bool, "complaints": [int]}
WORD = {"step": int, "senders": [int], "leaves": {int: int}, "dropped": [int], "loss": (float, None), "at": float}
FACTS = {
    "word?": WORD,
    "ahead?": [int],
    "loss?": [float, float],
    "curve?": [[float, float]],
    "seconds?": {int: [float]},
    "settled_from?": int,
}


def encode(message: StepReport | Word) -> Vector:
    """Return `message`, a worker's report or the supervisor's word, as a vector of kind RECORD that holds the bytes of its JSON."""
    return Vector(VectorKind.RECORD, memoryview(json.dumps(asdict(message)).encode()), dtype="uint8")


def read_report(vector: Vector, *, key: str) -> StepReport:
    """Return the worker's report that `vector` holds as JSON. Raises Corrupt, naming `key`, if it has another form."""
    said = encoding.read_plain(bytes(vector.data), REPORT, key=key)
    return StepReport(**{name: said[name] for name in REPORT} | {"complaints": tuple(said["complaints"])})


def read_word(vector: Vector, *, key: str) -> Word:
    """Return the supervisor's word that `vector` holds as JSON. Raises Corrupt, naming `key`, if it has another form."""
    return _build_word(encoding.read_plain(bytes(vector.data), WORD, key=key))


def read_last_word(facts: Mapping[str, Any]) -> Word:
    """Return the supervisor's word that is stored in the `facts` of a checkpoint, or START if there is none. Raises Corrupt if they have
    another form.
    """
    encoding.check_shape(facts, FACTS, key="a checkpoint's facts")
    return _build_word(facts["word"]) if "word" in facts else START


def read_saved_word(ctx: Context, saved: Sequence[str]) -> Word:
    """Return the last word in the supervisor's newest checkpoint that can be read. `saved`: keys of its checkpoints, at least one. If none
    can be read, raises the Corrupt of the newest.
    """
    *older, key = sorted(saved)
    try:
        return read_last_word(checkpoints.read(ctx.objects.get(key), key=key).facts)
    except Corrupt as damaged:
        if not older:
            raise
        try:
            return read_saved_word(ctx, older)
        except Corrupt:
            raise damaged from None


def _build_word(said: Mapping[str, Any]) -> Word:
    """Return the Word that `said`, its JSON form as a dictionary, describes."""
    lists = {name: tuple(said[name]) for name in ("senders", "dropped")}
    leaves = {int(worker): step for worker, step in said["leaves"].items()}
    return Word(**{name: said[name] for name in WORD} | lists | {"leaves": leaves})


def last_applied_step(days: Calendar, step: int, *, slack: int, every: int) -> int:
    """Return the last step whose word (the supervisor's decision) every worker has applied once it has finished `step`. `days`: the run's
    calendar.

    Workers apply words `slack` steps late, but with no delay at the end of an epoch or before a checkpoint, which is due every `every`
    steps, because a run that is resumed there would lose updates on their way. The delay is fixed, so that a restarted worker repeats the
    same bits.
    """
    if step == _find_draining_step(days, step, every=every):
        return step
    return max(step - slack, step - step % days.rounds_per_epoch - 1, step - step % every - 1)


def visible_from(days: Calendar, step: int, *, slack: int, every: int) -> int:
    """Return the first step that begins with the word on `step` (the supervisor's decision) applied by every worker.

    `days`: the run's calendar; `slack`: steps by which words are applied late; `every`: steps between two checkpoints.
    """
    return min(step + slack, _find_draining_step(days, step, every=every)) + 1


def _find_draining_step(days: Calendar, step: int, *, every: int) -> int:
    """Return the first step, from `step` on, at whose end all words are applied: the last step of an epoch, before a checkpoint, or of the
    run.
    """
    return min(_last_of_group(step, days.rounds_per_epoch), _last_of_group(step, every), days.rounds - 1)


def _last_of_group(step: int, span: int) -> int:
    """Return the last step of the group of `span` consecutive steps that contains `step`."""
    return (step // span + 1) * span - 1


def mark_dropped(checkpoint: Checkpoint, gone: Collection[int]) -> Checkpoint:
    """Return a copy of `checkpoint` whose word also names the workers `gone` as dropped. Raises Corrupt as `read_last_word` does."""
    word = read_last_word(checkpoint.facts)
    dropped = replace(word, dropped=(*word.dropped, *sorted(set(gone) - set(word.dropped))))
    return replace(checkpoint, facts={**checkpoint.facts, "word": asdict(dropped)})


def keys_of(keys: Keys, step: int, workers: Sequence[int]) -> list[str]:
    """Return all keys that `step` may have left in the database: the supervisor's word, and an update and a report of each of the ranks
    `workers`. `keys`: of the attempt.
    """
    return [keys.supervisor_word(step), *(key for w in workers for key in (keys.update(step, w), keys.report(step, w)))]


def supervisor_rank(ctx: Context) -> int:
    """Return the supervisor's rank: the number of workers, because it follows their ranks."""
    return ctx.experiment.workers
