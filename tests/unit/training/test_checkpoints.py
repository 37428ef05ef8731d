"""Checkpoints: read as written, refused when spoilt, found without listing, kept as long as anybody may need them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.errors import Corrupt, Missing
from crossover.stores.clients import MemoryClients
from crossover.stores.encoding import Vector, VectorKind
from crossover.training.checkpoints import (
    Checkpoint,
    CheckpointPace,
    Journal,
    Position,
    encode,
    list_common_rounds,
    read,
)
from crossover.workflow.context import Context, Resources


def vector(*values: int) -> Vector:
    """Return a model's vector whose bytes are the values, four times over."""
    return Vector(VectorKind.MODEL, memoryview(bytes(values) * 4))


@pytest.fixture
def ctx() -> Context:
    """Return the context of a run with two workers."""
    return Context(Resources(MemoryClients(workers=2)), run="r")


def saved(ctx: Context, worker: int = 0) -> list[str]:
    """Return the names of a worker's checkpoints."""
    prefix = ctx.keys.checkpoints_of(worker)
    return [key.removeprefix(prefix) for key in ctx.child().objects.list(prefix)]


@given(
    lengths=st.lists(st.integers(0, 40), max_size=4),
    round=st.integers(0, 10**6),
    minibatch=st.integers(0, 300),
    facts=st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9) | st.none(), max_size=3),
)
def test_read_gives_what_was_encoded(lengths: list[int], round: int, minibatch: int, facts: dict[str, object]) -> None:
    """An encoded checkpoint is read back equal."""
    vectors = {f"v{i}": Vector(VectorKind.VELOCITY, memoryview(bytes(4 * n)), samples=i) for i, n in enumerate(lengths)}
    checkpoint = Checkpoint(Position(round, minibatch), vectors, facts)
    assert read(b"".join(encode(checkpoint)), key="k") == checkpoint


@given(at=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_flipped_bit_is_noticed(at: int, bit: int) -> None:
    """Reading a checkpoint with a flipped bit raises Corrupt, or gives the same position, facts and vectors."""
    body = bytearray(b"".join(encode(Checkpoint(Position(3), {"model": vector(1, 2, 3)}, {"a": 1}))))
    body[at % len(body)] ^= 1 << bit
    try:
        found = read(bytes(body), key="the key")
    except Corrupt:
        return
    # Padding, or a vector's sample count, which a checkpoint does not use.
    assert found.position == Position(3) and found.facts == {"a": 1}
    assert found.vectors["model"].data == vector(1, 2, 3).data


def test_another_format_is_named() -> None:
    """Reading a checkpoint of another format raises Corrupt with the key and both formats."""
    body = b"".join(encode(Checkpoint(Position(3), {"model": vector(1)})))
    with pytest.raises(Corrupt, match="the key: a checkpoint of format 2; this version reads 1"):
        read(body[:4] + b"\2" + body[5:], key="the key")


def test_a_cut_body_is_corrupt() -> None:
    """Reading the beginning of a checkpoint raises Corrupt with the key."""
    body = b"".join(encode(Checkpoint(Position(3), {"model": vector(1)})))
    for length in (0, 3, 15, 30, len(body) - 1):
        with pytest.raises(Corrupt, match="the key"):
            read(body[:length], key="the key")


def test_the_highest_one_is_found_without_listing(ctx: Context) -> None:
    """A new invocation restores the newest checkpoint without listing the store."""
    journal = Journal(ctx, 0, every=2)
    for round in range(0, 9, 2):
        journal.save(Position(round), {"model": vector(round)}, {})
    later = Journal(ctx.child(), 0, every=2)
    assert later.restore(Position(0)).position == Position(8)
    assert ctx.traffic["object_store"].operations.get("list", 0) == 0


def test_a_position_within_a_round_is_found_by_the_event(ctx: Context) -> None:
    """The checkpoint at a position within a round is restored if that position is given, and another one raises Missing."""
    Journal(ctx, 0, every=4).save(Position(5, 3), {"model": vector(1)}, {"a": 1})
    found = Journal(ctx, 0, every=4).restore(Position(5, 3))
    assert found.position == Position(5, 3) and found.facts["a"] == 1
    with pytest.raises(Missing):
        Journal(ctx, 0, every=4).restore(Position(5, 2))


def test_the_two_newest_multiples_stay_and_what_this_invocation_could_be_retried_with(ctx: Context) -> None:
    """A journal deletes checkpoints except the two newest multiples of `every` and those from the position that its invocation began at."""
    first = Journal(ctx, 0, every=2)
    first.save(Position(0), {}, {})
    for round in (2, 4, 5):
        first.save(Position(round), {}, {})
    assert saved(ctx) == ["00000000.00000", "00000002.00000", "00000004.00000", "00000005.00000"], (
        "it may be retried at 0"
    )
    second = Journal(ctx, 0, every=2)
    second.restore(Position(5))
    for round in (6, 8, 10):
        second.save(Position(round), {}, {})
    kept = ["00000005.00000", "00000006.00000", "00000008.00000", "00000010.00000"]
    assert saved(ctx) == kept, "it may be retried at 5"
    third = Journal(ctx, 0, every=2)
    third.restore(Position(10))
    third.save(Position(12), {}, {})
    assert saved(ctx) == [*kept[-1:], "00000012.00000"]
    third.save(Position(13), {}, {})
    fourth = Journal(ctx, 0, every=2)
    fourth.restore(Position(13))
    fourth.save(Position(14), {}, {})
    left = ["00000012.00000", "00000013.00000", "00000014.00000"]
    assert saved(ctx) == left, "another worker may have got no further than 12"


def test_saving_again_changes_nothing(ctx: Context) -> None:
    """A checkpoint that exists at a position is not replaced by saving another one there."""
    journal = Journal(ctx, 0, every=2)
    journal.save(Position(2), {"model": vector(1)}, {})
    journal.save(Position(2), {"model": vector(9)}, {})
    other = Journal(ctx, 0, every=2)
    other.save(Position(2), {"model": vector(9)}, {})
    assert other.restore(Position(2)).vectors["model"] == vector(1)


def test_a_later_attempt_is_noticed(ctx: Context) -> None:
    """A journal is superseded at a round if a checkpoint of a later round exists."""
    journal = Journal(ctx, 0, every=4)
    assert not journal.is_superseded(3)
    Journal(ctx, 0, every=4).save(Position(4), {}, {})
    assert journal.is_superseded(3) and not journal.is_superseded(4)


def test_a_resumed_run_starts_where_all_can(ctx: Context) -> None:
    """The last common round is the newest whose checkpoint all workers have; a worker without any raises Missing."""
    for worker, rounds in enumerate([(4, 6, 8), (4, 6, 7)]):
        journal = Journal(ctx, worker, every=2)
        for round in rounds:
            journal.save(Position(round), {}, {})
    Journal(ctx, 1, every=2).save(Position(8, 1), {}, {})
    assert list_common_rounds(ctx, ctx.keys, [0, 1])[-1] == 6
    with pytest.raises(Missing, match="workers 0, 1, 2"):
        list_common_rounds(ctx, ctx.keys, [0, 1, 2])


def test_a_program_alone_spends_two_percent_of_its_time_on_checkpoints_and_saves_every_ten_minutes() -> None:
    """A checkpoint is due after 50 times the seconds that saving took, at the next multiple of rounds, and at any round after 600 s."""
    now = [0.0]
    pace = CheckpointPace(8, lambda: now[0])
    assert pace.is_due(8) and not pace.is_due(9)
    pace.note_saved(2.0)
    now[0] = 99.0
    assert not pace.is_due(16)
    now[0] = 100.0
    assert pace.is_due(16) and not pace.is_due(17)
    pace.note_saved(60.0)
    now[0] = 699.0
    assert not pace.is_due(24)
    now[0] = 700.0
    assert pace.is_due(25)


@pytest.mark.parametrize(("round_s", "took_s"), [(0.1, 0.1), (3.0, 2.0), (7.0, 11.9), (900.0, 1.0), (0.01, 60.0)])
def test_rounds_between_checkpoints_are_counted_as_they_become_due(round_s: float, took_s: float) -> None:
    """The rounds from one checkpoint to the next are as many as `is_due` lets pass if the clock moves on by a round each time."""
    now = [0.0]
    pace = CheckpointPace(8, lambda: now[0])
    pace.note_saved(took_s)
    apart = pace.count_rounds_apart(round_s, took_s)
    for round in range(1, 10**6):
        now[0] = round * round_s
        if pace.is_due(round):
            break
    assert round == apart
