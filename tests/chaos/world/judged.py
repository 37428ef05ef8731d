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
    """One run before its judges. `model`: the digest of what it must end with, "" where that depends on who is late. `epochs`: what its
    decisions must say, None where nothing tells.

    `killed`: names of processes. `outlived`: roles of which an invocation came again when its caller had gone on. `state_lost`: every
    database that held the model has lost its memory, or with local steps one, since each holds what no other does. No architecture
    promises to survive that: it may fail, in these words, but not with a wrong model. `by_itself`: how many clients the run may have had
    where all that went wrong passes by itself; 0 where it may have needed any number. `models`: what workers that exchange in step have
    saved. `members`: of how many a state must be there before it is common, 0 where databases have lost some, or somebody has gone;
    `every`: of how many rounds one is kept for sure; `keeps`: whether that is so behind each decision. `within_s`: how long the run may
    take, 0 where nothing bounds that. `seen`: of an asynchronous peer, by round, what it has averaged of whom.
    `wrong_steps`: in words, its rounds that led elsewhere than what it averaged. `kept_rounds`: how many rounds back a key may be there
    still; 0 where that is not known.
    """

    history: RequestHistory
    outcome: RunOutcome
    model: str
    killed: Collection[str] = ()
    outlived: Collection[str] = ()
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
    kept_rounds: int = 0
