"""Which epoch, round and minibatch come when: numbers worked out by hand."""

import pytest

from crossover.algorithms.schedule import Calendar


@pytest.mark.parametrize(
    ("days", "rounds"),
    [
        (  # two rounds an epoch, the second one shorter
            Calendar(minibatches=3, sync_every=2, epochs=2),
            [(1, True, [0, 1]), (1, False, [2]), (2, True, [0, 1]), (2, False, [2])],
        ),
        (Calendar(minibatches=2, sync_every=2, epochs=2), [(1, False, [0, 1]), (2, False, [0, 1])]),
        (  # a round of two epochs, and what is left of five
            Calendar(minibatches=2, sync_every=4, epochs=5, local=True),
            [(2, False, [0, 1, 0, 1]), (4, False, [0, 1, 0, 1]), (5, False, [0, 1])],
        ),
    ],
)
def test_rounds_of_a_run(days: Calendar, rounds: list[tuple[int, bool, list[int]]]) -> None:
    """A calendar's rounds have the given epochs and minibatches. `rounds`: (last epoch, whether that goes on afterwards, minibatches) of
    each.
    """
    assert days.rounds == len(rounds)
    before = 0
    for round, (epoch, within, numbers) in enumerate(rounds):
        assert (days.epoch(round), days.ends_epoch(round), days.list_minibatches(round)) == (epoch, not within, numbers)
        assert (days.minibatches_before(round), days.minibatches_in(round)) == (before, len(numbers))
        places = [divmod(before + each, days.minibatches) for each in range(len(numbers))]
        assert [days.locate_minibatch(round, each) for each in range(len(numbers))] == [(e + 1, n) for e, n in places]
        before += len(numbers)
    assert before == days.epochs * days.minibatches
    assert days.epoch(days.rounds) > days.epochs  # where a run that is over stands


def test_decisions_follow_the_epochs_that_end_with_a_round() -> None:
    """Decisions are numbered by the epochs that end with a round, of which some are passed over if rounds span several epochs."""
    days = Calendar(minibatches=2, sync_every=4, epochs=5, local=True)
    assert [days.epoch_of_decision(number) for number in (1, 2, 3)] == [2, 4, 5]
    assert (
        [days.decision_of_epoch(epoch) for epoch in (2, 4, 5)]
        == [1, 2, 3]
        == [days.rounds_until(epoch) for epoch in (2, 4, 5)]
    )
    assert [days.epochs_before(round) for round in range(3)] == [0, 2, 4]
