"""Limits that a schedule draws: what a small run never comes to happens in it, and breaks nothing."""

from itertools import pairwise

import pytest

from crossover.experiment import Experiment
from crossover.validation import load
from tests.architectures.harness import small
from tests.chaos.world.schedule import LIMITS, Fault
from tests.chaos.world.trials import Trial, Trials, reduce_experiment


def limit(name: str, which: int = 0) -> Fault:
    """Return the fault that sets the limit `name` to one of its values in LIMITS. `which`: index of the value."""
    return Fault(kind="limit", service=name, seconds=LIMITS[name][which])


def run(experiment: Experiment, *faults: Fault) -> Trial:
    """Run the experiment, reduced, with these faults, and return the trial. Raises AssertionError unless all faults took effect and no
    promise was broken.
    """
    trial = Trials(reduce_experiment(experiment)).run_with(faults, 1)
    assert set(trial.struck) == set(faults) and not trial.findings
    return trial


def test_gradients_are_averaged_in_parts() -> None:
    """Lower the size above which gradients are averaged in parts: functions average a second part, and no promise is broken."""
    trial = run(load("config/p2p-serverless.yaml", ["p2p.average_in=lambda"]), limit("part_bytes"))

    assert any(entry.role.startswith("average_part") and entry.key.endswith("/1") for entry in trial.history.entries)


def test_long_messages_lie_in_the_bucket() -> None:
    """Lower the largest message of peers: contributions are stored as objects."""
    trial = run(small("p2p_instance"), limit("body_bytes"))

    assert any("/body/" in entry.key for entry in trial.history.entries)


def test_listings_come_in_pages() -> None:
    """Let a page of a listing hold one key: the same run then sends more listing requests."""
    one = run(small("all_reduce"), Fault(kind="limit", service="page_keys", seconds=1.0))
    listed = [entry for entry in one.history.entries if entry.operation == "ListObjectsV2"]

    assert len(listed) > len([e for e in run(small("all_reduce")).history.entries if e.operation == "ListObjectsV2"])


def test_a_spare_takes_the_rank_of_a_program_that_is_gone() -> None:
    """Start spare instances and kill program 0: programs 2 and 3 take part."""
    trial = run(small("p2p_instance"), limit("spares", 1), Fault(kind="kill", role="program 0", request=30))

    assert {"program 2", "program 3"} <= {entry.role for entry in trial.history.entries}


def test_invocations_of_a_minute_outlast_patience_together() -> None:
    """Shorten invocations to a minute and slow minibatches down: the run takes longer than the patience of twice the timeout, and no
    promise is broken.
    """
    trial = run(small("all_reduce"), limit("timeout_s"), limit("minibatch_s", 1), limit("minibatches", 1))

    assert trial.history.entries[-1].at_s > 2 * LIMITS["timeout_s"][0]


@pytest.mark.parametrize("architecture", ["spirt", "mlless", "scatter_reduce", "p2p_serverless"])
def test_workers_of_unequal_data_train_what_the_reference_does(architecture: str) -> None:
    """Take samples from the data set so that workers have unequal numbers, or labels, so that a worker has none in a round: no promise is
    broken, that of the reference's model included.
    """
    run(small(architecture), limit("missing_samples"))
    run(small(architecture), limit("unlabelled"))


@pytest.mark.parametrize("architecture", ["spirt", "scatter_reduce", "p2p_instance", "gpu"])
def test_a_worker_whose_gradients_are_not_finite_is_left_out_by_all(architecture: str) -> None:
    trial = run(small(architecture, workers=3), limit("non_finite"))

    assert any("/dropped/" in entry.key and entry.changed for entry in trial.history.entries)


def test_a_function_that_computes_until_its_timeout_has_not_waited_until_then() -> None:
    """Give a minibatch more seconds than its function has: no finding says that a function waited until its timeout."""
    trials, short = Trials(reduce_experiment(small("all_reduce"))), limit("timeout_s")
    late = trials.run_with((short, Fault(kind="limit", service="even_s", seconds=90.0)), 1)
    assert not any(each.startswith("leaves_in_time: ended") for each in late.findings)


def test_workers_that_keep_step_hardly_wait() -> None:
    trial = run(small("all_reduce"), limit("even_s"))
    stored = [
        entry.at_s for entry in trial.history.entries if entry.key.endswith("/average") and entry.left and entry.changed
    ]

    assert all(other - one < 0.2 for one, other in zip(stored[2::2], stored[3::2], strict=True))


def test_training_ends_early_where_the_loss_rises() -> None:
    """Set 4 epochs with early stopping: there are 2 to 4 decisions. A run of 2 epochs without early stopping has exactly 2."""
    epochs = {
        number: [e for e in run(small("spirt"), *given).history.entries if "/decision/" in e.key and e.changed]
        for number, given in {2: (), 4: (limit("epochs", 1),)}.items()
    }

    assert len(epochs[2]) == 2 and 2 <= len(epochs[4]) <= 4


def test_a_gradient_of_a_gpu_counts_as_it_was_stored_first() -> None:
    """Kill a GPU program after it has stored its gradient. Its successor computes other bits, and the stored ones count for all."""
    killed = Fault(kind="kill", role="program 0", request=30)
    trial = run(small("gpu"), limit("own_bits"), killed)

    assert len({entry.process for entry in trial.history.entries if entry.role.startswith("program ")}) > 2


@pytest.mark.parametrize("name", ["minibatches", "time_to_live_s"])
def test_other_limits_change_no_promise(name: str) -> None:
    """Set the limit `name` on MLLess: no promise is broken."""
    run(small("mlless"), limit(name))


def test_an_invocation_that_leaves_as_soon_as_it_waits_asks_first_whether_its_round_is_over() -> None:
    """A second delivery is frozen before it stores its chunk. Meanwhile the first one deletes the round's keys, and no later invocation
    would delete what the second one then stores.
    """
    short = limit("timeout_s"), limit("minibatch_s"), limit("minibatches")
    again = Fault(kind="duplicate", role="train 0", request=1, side="after", seconds=0.1)
    trial = run(small("scatter_reduce"), *short, again, Fault(kind="freeze", role="train 0", request=28, seconds=44.0))

    chunk = [entry for entry in trial.history.entries if entry.key.endswith("/0/0/chunk/1") and entry.changed]
    assert [entry.operation for entry in chunk] == ["AI.TENSORSET", "UNLINK"] * 2


def test_a_worker_clears_away_what_a_twin_stored_late_before_it_was_killed() -> None:
    """Deliver an invocation of each of two workers twice, and kill one of them after a late write: what it stored is deleted, and no
    promise is broken.
    """
    faults = (
        limit("checkpoint_every"),
        limit("minibatch_s"),
        Fault(kind="duplicate", role="train 0", request=1, side="after", seconds=0.02),
        Fault(kind="duplicate", role="train 1", request=1, seconds=0.283),
        Fault(kind="kill", role="train 1", request=81, side="after"),
    )
    trial = Trials(reduce_experiment(small("scatter_reduce"))).run_with(faults, 5217)

    assert trial.struck == faults and not trial.findings


def test_a_mailbox_is_used_again_where_peers_exchange_each_minibatch() -> None:
    """Let peers exchange after every minibatch: each mailbox gets two messages."""
    trial = run(small("p2p_instance"), limit("exchange_every"))
    sent = [
        entry.key for entry in trial.history.entries if entry.operation == "basic.publish" and "mailbox" in entry.key
    ]

    assert len(sent) == 2 * len(set(sent))


def test_others_write_while_a_listing_is_read() -> None:
    """Between two pages of a spare's listing of leases, another takes the rank of a program that is gone."""
    slow = limit("page_keys"), limit("page_s", 1), limit("spares", 1)
    entries = run(small("p2p_instance"), *slow, Fault(kind="kill", role="program 0", request=30)).history.entries
    read = [
        (entry.process, entry.at_s) for entry in entries if entry.key.endswith("/lease/") and entry.role != "client"
    ]
    pages = [(one[1], other[1]) for one, other in pairwise(sorted(read)) if one[0] == other[0]]
    taken = [entry.at_s for entry in entries if "/lease/" in entry.key and entry.changed]

    assert all(after - before >= 2.0 for before, after in pages)
    assert any(before < at_s < after for before, after in pages for at_s in taken)


def test_an_older_message_comes_again_behind_the_next_one_of_its_mailbox_and_its_sender_puts_it_right() -> None:
    """Repeat a peer's first message after its next one to the same mailbox: no promise is broken, and the only message that may follow in
    that mailbox is the newer one again.
    """
    again = Fault(kind="message", role="program 0", request=1, side="after", behind=1, seconds=0.001)
    entries = run(small("p2p_instance"), limit("exchange_every"), again).history.entries
    sent = [entry for entry in entries if entry.operation == "basic.publish"]
    nature = next(number for number, entry in enumerate(sent) if entry.role == "nature")
    mine = [(entry.role, entry.left) for entry in sent if entry.key == sent[nature].key]

    assert mine[2] == ("nature", mine[0][1]) and [left for _, left in mine[3:]] in ([], [mine[1][1]])
