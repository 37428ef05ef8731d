"""At which checkpoints a resumed run's programs begin, and what is said of those that are damaged."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from crossover.errors import UserError
from crossover.experiment import Experiment
from crossover.running.resume import rewind
from crossover.stores.encoding import Vector, VectorKind
from crossover.stores.keys import Keys
from crossover.stores.memory import MemoryObjectStore
from crossover.stores.protocols import Traffic
from crossover.training import checkpoints
from crossover.training.checkpoints import Checkpoint, Position
from tests.architectures.harness import small

KEYS = Keys("run")
Rounds = Mapping[int, list[int]]  # by rank


def experiment(name: str) -> Experiment:
    """Return the small experiment that a case's name describes: GPU or peer-to-peer, and how it exchanges."""
    found = small("gpu" if "gpu" in name else "p2p_instance")
    match name:
        case "gpu, distributed":
            return replace(found, gpu=replace(found.gpu, exchange="distributed"))
        case "p2p, asynchronous":
            return replace(found, p2p=replace(found.p2p, mode="asynchronous"))
    return found


def saved(rounds: Rounds, damaged: list[tuple[int, int]]) -> MemoryObjectStore:
    """Return a store with every rank's checkpoints, of which those of some (rank, round) are damaged."""
    objects = MemoryObjectStore(Traffic())
    for rank, own in rounds.items():
        for round in own:
            model = Vector(VectorKind.MODEL, memoryview(bytes(64)))
            body = b"".join(map(bytes, checkpoints.encode(Checkpoint(Position(round), {"model": model}))))
            objects.put(KEYS.checkpoint(rank, round), body[:-1] + b"\1" if (rank, round) in damaged else body)
    return objects


def left(objects: MemoryObjectStore) -> Rounds:
    """Return the rounds of the checkpoints that the store still has, by rank."""
    found = (key.removeprefix(KEYS.own_checkpoints).split("/") for key in objects.list(KEYS.own_checkpoints))
    by_rank: dict[int, list[int]] = {}
    for rank, name in found:
        by_rank.setdefault(int(rank), []).append(int(name.partition(".")[0]))
    return by_rank


@pytest.mark.parametrize(
    ("name", "lost", "rounds", "damaged", "expected", "told"),
    [
        # All stand at 6, and what led there is gone: nobody needs what it would be made from again.
        ("p2p", True, {0: [5, 6], 1: [5, 6]}, [(0, 5)], {0: [6], 1: [5, 6]}, [(0, 5)]),
        ("p2p", False, {0: [5, 6], 1: [5, 6]}, [(0, 5)], {0: [5, 6], 1: [5, 6]}, []),  # its broker still holds it
        # The newest that is whole for all.
        ("p2p", True, {0: [4, 5, 6], 1: [4, 5]}, [(0, 5)], {0: [4], 1: [4]}, [(0, 5)]),
        ("p2p", False, {0: [5, 6], 1: [5, 6]}, [(1, 6)], {0: [5], 1: [5]}, [(1, 6)]),
        # A group meets at the oldest of the newest, which one of them reads from an older checkpoint.
        ("gpu, distributed", False, {0: [2, 4, 6], 1: [2, 4]}, [(0, 4)], {0: [2], 1: [2]}, [(0, 4)]),
        ("gpu", False, {0: [2, 4, 6], 1: [2, 4]}, [(0, 4)], {0: [2, 4, 6], 1: [2, 4]}, []),
        # Each by itself.
        ("p2p, asynchronous", True, {0: [5, 6], 1: [7, 8]}, [(0, 6)], {0: [5], 1: [7, 8]}, [(0, 6)]),
    ],
)
def test_programs_go_on_at_the_newest_round_that_is_whole(
    name: str, lost: bool, rounds: Rounds, damaged: list[tuple[int, int]], expected: Rounds, told: list[tuple[int, int]]
) -> None:
    """`rewind` deletes checkpoints so that programs resume at their newest undamaged rounds, and names the damaged ones in sentences.

    `rounds`, `expected`: checkpoints by rank, before and after; `damaged`, `told`: (rank, round) of damaged and of named ones; `lost`:
    whether messages are lost.
    """
    objects = saved(rounds, damaged)
    said = rewind(objects, KEYS, experiment(name), lost=lost)
    assert left(objects) == expected
    assert [sentence.partition(" ")[0].rstrip(":") for sentence in said] == [KEYS.checkpoint(*each) for each in told]
    assert all("checksum" in sentence and sentence.endswith("; it was passed over") for sentence in said)


def test_where_no_round_is_whole_for_all_nothing_is_deleted() -> None:
    """If no round is undamaged for all ranks, `rewind` raises UserError and deletes nothing."""
    rounds = {0: [5, 6], 1: [4, 5]}
    objects = saved(rounds, [(0, 5)])
    with pytest.raises(UserError, match=r"checkpoint/000000000000/0/00000005.*nothing was deleted.*start a new run"):
        rewind(objects, KEYS, experiment("p2p"), lost=True)
    assert left(objects) == rounds
