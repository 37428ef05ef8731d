"""What a late invocation takes back of what it has stored in a database, and what it leaves to those who may go by it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from crossover.errors import Missing, StaleAttempt
from crossover.experiment import Exchange
from crossover.stores.encoding import Vector, VectorKind
from crossover.stores.keys import Keys
from crossover.stores.memory import MemoryObjectStore, MemoryTensorStore
from crossover.stores.protocols import Traffic
from crossover.training import databases
from tests.architectures.harness import small

KEYS, ROUND, HOLDER = Keys("r", 0), 3, 0
CONTRIBUTION, VELOCITY = KEYS.gradient(ROUND, HOLDER, 0), KEYS.own_optimizer(ROUND + 1, HOLDER, "velocity")


class Stored:
    """A database with a round's contribution, the optimizer's vector of the next round, and the models of the given rounds."""

    def __init__(self, *, models: tuple[int, ...]) -> None:
        """Store a contribution, the optimizer's vector, and a model of each of these rounds."""
        self.objects, self.tensors = MemoryObjectStore(Traffic()), MemoryTensorStore(Traffic())
        for key in (CONTRIBUTION, VELOCITY, *(KEYS.model(round, HOLDER) for round in models)):
            self.tensors.create(key, Vector(VectorKind.MODEL, memoryview(bytearray(4)).cast("f")))

    def settle(self) -> None:
        """Roll the database back if the round is over."""
        ctx: Any = SimpleNamespace(run="r", keys=KEYS, objects=self.objects, tensors=[self.tensors])
        databases.roll_back_if_round_over(ctx, ROUND, HOLDER, CONTRIBUTION, following=[VELOCITY])

    def left(self) -> set[str]:
        """Return which of the contribution and the optimizer's vector still exist."""
        return {key for key in (CONTRIBUTION, VELOCITY) if self.tensors.exists(key)}


def test_a_round_that_is_not_over_keeps_everything() -> None:
    """A database that still has the round's model is not rolled back."""
    stored = Stored(models=(ROUND,))
    stored.settle()

    assert stored.left() == {CONTRIBUTION, VELOCITY}


@pytest.mark.parametrize(
    ("models", "left"),
    [((ROUND + 1, ROUND + 2), {VELOCITY}), ((ROUND + 2, ROUND + 3), set())],
    ids=["the next one may be resumed", "and so is the next"],
)
def test_a_contribution_to_a_round_that_is_over_is_stale(models: tuple[int, ...], left: set[str]) -> None:
    """A contribution to a round whose model is gone is deleted and raises StaleAttempt. `models`: rounds whose models exist; `left`:
    what is kept.
    """
    stored = Stored(models=models)
    with pytest.raises(StaleAttempt, match="round 3 is over"):
        stored.settle()

    assert stored.left() == left


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_contribution_of_a_superseded_attempt_is_stale(taken_over: bool) -> None:
    """A superseded attempt raises StaleAttempt, and its contribution is deleted once the next attempt has taken over."""
    stored = Stored(models=(ROUND,))
    stored.objects.put_new(KEYS.superseded_marker, b"")
    if taken_over:
        stored.objects.put_new(KEYS.takeover_marker, b"")
    with pytest.raises(StaleAttempt, match="superseded"):
        stored.settle()

    assert stored.left() == (set() if taken_over else {CONTRIBUTION, VELOCITY})  # the next attempt is yet to read them


def test_a_database_that_has_lost_what_no_other_holds_is_named() -> None:
    """A database that lost a worker's own optimizer vector raises Missing with the worker, and no model of the new attempt is stored."""
    experiment = replace(small("spirt", workers=2), exchange=Exchange(what="delta", every=1))
    vector = Vector(VectorKind.STATE, memoryview(bytearray(4)).cast("f"))
    tensors = [MemoryTensorStore(Traffic()) for _ in range(2)]
    for worker, store in enumerate(tensors):
        for key in (*databases.state_keys(experiment, KEYS, ROUND, worker).optimizer, KEYS.model(ROUND, worker)):
            store.create(key, vector)
    tensors[0].create(KEYS.own_optimizer(ROUND, 0, "velocity"), vector)
    ctx: Any = SimpleNamespace(run="r", keys=Keys("r", 7), experiment=experiment, tensors=tensors)
    with pytest.raises(Missing, match=r"worker 1's database has lost .*; start a new run"):
        databases._copy_to_holders(ctx, (0, 1), ROUND, KEYS)

    assert not any(store.exists(ctx.keys.model(ROUND, worker)) for worker, store in enumerate(tensors))
