"""What a late invocation takes back of what it has stored in a database, and what it leaves to those who may go by it."""

from types import SimpleNamespace
from typing import Any

import pytest

from crossover.dataplane.memory import MemoryObjectStore, MemoryTensorStore
from crossover.dataplane.traffic import Traffic
from crossover.dataplane.vector import Vector, VectorKind
from crossover.errors import StaleAttempt
from crossover.keys import Keys
from crossover.training import databases

KEYS, ROUND, HOLDER = Keys("r", 0), 3, 0
CONTRIBUTION, VELOCITY = KEYS.gradient(ROUND, HOLDER, 0), KEYS.own_optimizer(ROUND + 1, HOLDER, "velocity")


class Stored:
    """Of a round's contribution, and the optimizer's vector that the next round begins with."""

    def __init__(self, *, models: tuple[int, ...]) -> None:
        self.objects, self.tensors = MemoryObjectStore(Traffic()), MemoryTensorStore(Traffic())
        for key in (CONTRIBUTION, VELOCITY, *(KEYS.model(round, HOLDER) for round in models)):
            self.tensors.create(key, Vector(VectorKind.MODEL, memoryview(bytearray(4)).cast("f")))

    def settle(self) -> None:
        ctx: Any = SimpleNamespace(run="r", keys=KEYS, objects=self.objects, tensors=[self.tensors])
        databases.settle_in(ctx, ROUND, HOLDER, CONTRIBUTION, following=[VELOCITY])

    def left(self) -> set[str]:
        return {key for key in (CONTRIBUTION, VELOCITY) if self.tensors.exists(key)}


def test_in_time_all_stays() -> None:
    stored = Stored(models=(ROUND,))
    stored.settle()

    assert stored.left() == {CONTRIBUTION, VELOCITY}


@pytest.mark.parametrize(
    ("models", "left"),
    [((ROUND + 1, ROUND + 2), {VELOCITY}), ((ROUND + 2, ROUND + 3), set())],
    ids=["the next one may be resumed", "and so is the next"],
)
def test_the_round_is_over(models: tuple[int, ...], left: set[str]) -> None:
    stored = Stored(models=models)
    with pytest.raises(StaleAttempt, match="round 3 is over"):
        stored.settle()

    assert stored.left() == left


@pytest.mark.parametrize("taken_over", [False, True])
def test_the_run_was_resumed(taken_over: bool) -> None:
    stored = Stored(models=(ROUND,))
    stored.objects.put_new(KEYS.overtaken, b"")
    if taken_over:
        stored.objects.put_new(KEYS.taken_over, b"")
    with pytest.raises(StaleAttempt, match="overtaken"):
        stored.settle()

    assert stored.left() == (set() if taken_over else {CONTRIBUTION, VELOCITY})  # the next attempt is yet to read them
