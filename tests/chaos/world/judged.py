"""What a run is judged by."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos.world.history import RequestHistory
from tests.chaos.world.world import RunOutcome
from tests.chaos.world.yardstick import Yardstick

# Of an attempt, a round, and with MLLess the newest word applied: the digest of the model in each worker's checkpoint.
Models = dict[tuple[int, int, int | None], dict[int, str]]


@dataclass(frozen=True)
class JudgedRun:
    """The facts of one run that the oracles judge. `model`: digest of the model that it must end with, "" if that depends on who is late.
    `epochs`: what its decisions must say, None if that is unknown. `killed`: names of killed processes. `outlived`: roles of which an
    invocation came again after its caller had gone on. `dropped`: roles of workers that MLLess's supervisor has dropped. `state_lost`:
    whether databases have lost state that no other copy replaces, so that the run may fail, but not with a wrong model. `by_itself`: number
    of clients that the run may have had if all faults pass by themselves; 0 for any number. `models`: digests of models that workers which
    exchange in step have saved. `members`: of how many workers a state must exist before it is common, 0 if states were lost or workers are
    gone. `every`: a state is kept for sure every so many rounds. `keeps`: whether one is kept after each decision. `within_s`: longest
    duration in seconds, 0 for none. `seen`: of each asynchronous peer, by round, which versions of the others it has averaged.
    `wrong_steps`: in words, its rounds that led elsewhere than what it averaged. `wrong_words`: in words, what MLLess's supervisor and
    workers have said that is not so. `begun_late`: in words, gradients that no invocation should have begun, although no fault held it up.
    `kept_rounds`: how many rounds back a key may still exist; 0 if that is unknown. `evaluated`: loss and metric of the final model, None
    if there is none. `tolerant`: whether the others continue without a program that is gone. `overdue`: in words, steps that still polled
    long after their wait had timed out. `cut_off`: in words, long workers' invocations that their timeout ended, although no fault held
    them up.
    """

    history: RequestHistory
    outcome: RunOutcome
    model: str
    killed: Collection[str] = ()
    outlived: Collection[str] = ()
    dropped: Collection[str] = ()
    state_lost: bool = False
    workers: int = 0
    budget_usd: float | None = None
    by_itself: int = 0
    epochs: Yardstick | None = None
    models: Models = field(default_factory=dict)
    members: int = 0
    every: int = 1
    keeps: bool = False
    within_s: float = 0.0
    seen: Mapping[int, Mapping[int, Mapping[str, int]]] = field(default_factory=dict)
    wrong_steps: Sequence[str] = ()
    wrong_words: Sequence[str] = ()
    begun_late: Sequence[str] = ()
    kept_rounds: int = 0
    evaluated: tuple[float, float] | None = None
    cut_off: Sequence[str] = ()
    tolerant: bool = False
    overdue: Sequence[str] = ()
