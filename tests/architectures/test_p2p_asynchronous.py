"""Asynchronous peers: what holds whatever their pace (docs/correctness.md, 1 and 3)."""

import hashlib
import json
import threading
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from crossover.algorithms.contributions import Contribution
from crossover.errors import Refused, StaleAttempt
from crossover.experiment import Experiment
from crossover.stores.encoding import Vector, VectorKind
from crossover.training import peer as ending
from crossover.training import progress
from crossover.training.peer import Replica
from crossover.workflow.context import Context, Resources
from peers.p2p.latest import LatestMailboxes
from tests.architectures.fleet import Fleet, member, only
from tests.architectures.harness import FailAt, Job, Killed, small


def asynchronous(*, workers: int = 3, epochs: int = 3, **p2p: Any) -> Experiment:
    """Return an experiment of asynchronous peers that exchange after each minibatch. `p2p`: further fields of its p2p section."""
    experiment = small("p2p_instance", workers=workers, epochs=epochs, batch_size=10, every=1)
    return replace(experiment, p2p=replace(experiment.p2p, mode="asynchronous", **p2p))


def records(job: Job) -> list[dict[str, Any]]:
    """Return the records of the run's successful epochs."""
    store = job.clients.object_store
    found = [json.loads(store.get(key)) for key in store.list(job.prepared.keys.records)]
    return [record for record in found if record["outcome"] == "ok"]


def applied(job: Job) -> dict[int, list[tuple[int, int, int]]]:
    """Return what each worker applied, in order, as (its own round, peer, the peer's round)."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for record in sorted(records(job), key=lambda r: (r["worker"], r["epoch"])):
        for round, each in record.get("applied", []):
            found.setdefault(record["worker"], []).extend((round, peer, version) for peer, version in each)
    return found


def assert_invariants(job: Job, *, limit: int, reuse: bool = False) -> None:
    """Check that no peer applied its own gradients, gradients older than `limit` rounds, or older ones of a peer after newer ones. `reuse`:
    whether the same one may be applied again.
    """
    for reader, listed in applied(job).items():
        newest: dict[int, int] = {}
        for round, peer, version in listed:
            assert peer != reader
            assert round - version <= limit
            last = newest.get(peer, -1)
            assert version >= last if reuse else version > last, f"reader {reader}: peer {peer} fell to {version}"
            newest[peer] = version


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("limit", [0, 4])
def test_each_gradient_counts_once_and_versions_never_fall(
    limit: int, reuse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check which gradients asynchronous peers averaged: none twice unless `p2p.reuse` is set, none beyond the staleness limit, and no
    older one of a peer after a newer one.
    """
    fleet = Fleet(Job(asynchronous(staleness_limit=limit, reuse=reuse)))
    fleet.run(monkeypatch)
    assert_invariants(fleet.job, limit=limit, reuse=reuse)
    assert fleet.left_behind() == []
    assert fleet.job.queues() == {}
    epochs = {(record["worker"], record["epoch"]) for record in records(fleet.job)}
    assert epochs == {(worker, epoch) for worker in range(3) for epoch in (1, 2, 3)}


def test_min_gradients_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that with `p2p.min_gradients: 2` every round but a peer's last averages the other peer's gradient."""
    fleet = Fleet(Job(asynchronous(workers=2, min_gradients=2, reuse=True, staleness_limit=100)))
    fleet.run(monkeypatch)
    for record in records(fleet.job):
        for _, each in record["applied"][:-1]:  # in its last round the other may have left
            assert len(each) == 1


@pytest.mark.slow
def test_a_killed_peer_goes_on_where_its_checkpoint_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill an asynchronous peer, and check that the run ends and leaves nothing behind."""
    fleet = Fleet(Job(asynchronous()))
    fleet.hooks = only(1, FailAt(15, "after", Killed))
    fleet.run(monkeypatch)
    assert fleet.errors
    assert fleet.left_behind() == []


@pytest.mark.slow
def test_a_peer_that_never_joins_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that an asynchronous run ends although one of its peers never joins."""
    fleet = Fleet(Job(asynchronous(min_gradients=3)), members=2, absence_s=0.3)
    fleet.run(monkeypatch)
    assert fleet.job.clients.object_store.exists(fleet.job.prepared.keys.outcome)


@pytest.mark.slow
def test_a_peer_that_leaves_in_mid_epoch_for_good_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill an asynchronous peer that is not replaced, and check that the run ends."""
    fleet = Fleet(Job(asynchronous(min_gradients=3)), absence_s=0.5, lease_s=0.2, replaces=False)
    fleet.hooks = only(2, FailAt(15, "before", Killed))
    fleet.run(monkeypatch)
    assert len(fleet.errors) == 1
    assert fleet.job.clients.object_store.exists(fleet.job.prepared.keys.outcome)


def test_a_gradient_of_another_model_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one peer send a vector that is too short. Check that the other one leaves it out and that its record says so."""
    shown, send = threading.Event(), LatestMailboxes.send

    def send_second(mailboxes: LatestMailboxes, own: Contribution, round: int, *, exchange: int = 0) -> None:
        """Send the contribution; the other peer sends one that is too short, and rank 0 waits for that first, since it would otherwise end
        before.
        """
        if mailboxes._member.rank == 0:
            assert shown.wait(timeout=60)
        else:
            own = Contribution(own.values[:-1].clone())
        send(mailboxes, own, round)
        if mailboxes._member.rank == 1:
            shown.set()

    monkeypatch.setattr(LatestMailboxes, "send", send_second)
    fleet = Fleet(Job(asynchronous(workers=2)))
    fleet.run(monkeypatch)
    said = [record["refused_1"] for record in records(fleet.job) if "refused_1" in record]
    assert any("trains another model" in words for words in said)
    assert all(peer != 1 for _, peer, _ in applied(fleet.job).get(0, []))


def test_the_statistics_of_other_models_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that only the parameters' gradients are averaged: the minibatch statistics describe the model that made them."""
    job = Job(asynchronous(workers=2))
    taken: list[torch.Tensor] = []
    for rank in (1, 0):
        with Context(Resources(job.clients), run=job.prepared.run) as ctx:
            exchange, replica = LatestMailboxes(ctx, member(job, rank)), Replica(ctx, rank)
            replica.restore()
            exchange.open(replica)
            gradient = torch.full_like(replica.model, 1.0 + 2 * rank)
            exchange.send(Contribution(gradient), 0)
            taken.append(torch.empty_like(gradient))
            exchange.receive(Contribution(gradient), 0, taken[-1])
            parameters = ctx.facts.parameters
    assert taken[1][:parameters].unique().tolist() == [2.0]  # of 1 and 3, fresh and of as many samples
    assert taken[1][parameters:].unique().tolist() == [1.0]


@pytest.mark.parametrize(("seen", "waits"), [(7, False), (6, True)])
def test_peers_that_are_ahead_are_not_waited_for(seen: int, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a peer does not wait for new gradients if the others' newest, averaged already, are of its own round or later.

    Those peers may be waiting for this one's. If one of them is of an earlier round, the peer waits.
    """

    class Waited(Exception):
        """The error raised instead of a pause: nothing new had come at the first poll."""

    def wait(_: float, *, calm_s: float) -> None:
        """Raise Waited in place of a pause."""
        raise Waited

    job = Job(asynchronous(workers=3, min_gradients=3, epochs=10))
    with Context(Resources(job.clients), run=job.prepared.run) as ctx:
        exchange, replica = LatestMailboxes(ctx, member(job)), Replica(ctx, 0)
        replica.restore()
        replica.facts["seen"] = {"1": seen, "2": 7}
        exchange.open(replica)
        gradient = torch.full_like(replica.model, 2.0)
        exchange.send(Contribution(gradient), 7)
        monkeypatch.setattr("crossover.runtime.pause", wait)
        with pytest.raises(Waited) if waits else nullcontext():
            exchange.receive(Contribution(gradient), 7, out := torch.empty_like(gradient))
            assert torch.equal(out, gradient)


def test_a_message_that_came_late_over_a_newer_one_is_replaced_while_one_waits() -> None:
    """Check that a waiting peer puts its newest message back if a late one has replaced it in its mailbox.

    The late message is of an older attempt. The other peer waits for the newer message, and this peer for the other.
    """
    job = Job(asynchronous(workers=2, min_gradients=2, staleness_limit=100, epochs=6))
    looks = 0
    with Context(Resources(job.clients), run=job.prepared.run) as ctx:
        mailbox, bus, exchanges = ctx.keys.mailbox(0), ctx.bus, list[LatestMailboxes]()
        for rank in (0, 1):
            exchanges.append(LatestMailboxes(ctx, member(job, rank, look_s=0.0)))
            replica = Replica(ctx, rank)
            replica.restore()
            exchanges[rank].open(replica)
            replica.facts["seen"] = {str(1 - rank): 3}
        this, other = exchanges
        gradient = torch.full_like(replica.model, 2.0)
        this.send(Contribution(gradient), 2)
        late = bus.peek(mailbox)
        assert late is not None
        this.send(Contribution(gradient), 4)
        newer = bus.peek(mailbox)
        bus.replace(mailbox, late)

        def look(_: float, *, calm_s: float) -> None:
            """Replace a pause: when the newer message is back in the mailbox, let the other peer send round 4. Fails after 10 pauses."""
            nonlocal looks
            looks += 1
            assert looks < 10, "both wait for ever"
            if bus.peek(mailbox) == newer:
                other.send(Contribution(gradient), 4)  # it has what it waited for

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("crossover.runtime.pause", look)
            this.receive(Contribution(gradient), 4, torch.empty_like(gradient))
    assert ctx.notes["applied"] == [[4, [(1, 4)]]]


def surviving(job: Job, rank: int, *, value: float) -> Context:
    """Store a checkpoint of round 1 for a peer, in which each element of the model is `value`, and return the peer's context."""
    ctx = Context(Resources(job.clients), run=job.prepared.run)
    replica = Replica(ctx, rank)
    replica.restore()
    replica.model.fill_(value)
    replica.round = 1
    replica.save(agreed=True)
    return ctx


def assert_outcome_is_the_models(job: Job) -> None:
    """Check that the digest and the loss in the run's outcome are those of its final model."""
    store, keys = job.clients.object_store, job.prepared.keys
    outcome, model = json.loads(store.get(keys.outcome)), job.model()
    assert outcome["parameters_sha256"] == hashlib.sha256(model).hexdigest()
    with Context(Resources(job.clients), run=job.prepared.run) as ctx:
        ctx.learner.model[:] = memoryview(model)
        assert outcome["val_loss"] == progress.evaluate(ctx).loss


@pytest.mark.parametrize("pause", ["read_decision", "evaluate", "store_outcome"])
def test_two_survivors_that_conclude_side_by_side_say_what_is_so(pause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the outcome describes the stored model if two survivors conclude at once, one of them stopped half way.

    The peer that was to conclude is gone.
    """
    job = Job(asynchronous())
    first, second = surviving(job, 0, value=0.25), surviving(job, 1, value=0.5)
    step, paused = getattr(progress, pause), list[Context]()

    def stop(ctx: Context, *arguments: Any) -> Any:
        """Take the step; at the first call let the other survivor publish its result before."""
        if not paused:
            paused.append(ctx)
            ending._publish_as_result(second, 1)
        return step(ctx, *arguments)

    monkeypatch.setattr(progress, pause, stop)
    ending._publish_as_result(first, 0)
    assert paused == [first]
    assert_outcome_is_the_models(job)


def test_a_decider_that_comes_late_overwrites_nothing() -> None:
    """Check that a frozen peer which was to conclude overwrites nothing after another has concluded in its place."""
    job = Job(asynchronous())
    decider, survivor = surviving(job, 0, value=0.25), surviving(job, 1, value=0.5)
    ending._publish_as_result(survivor, 1)
    agreed = {**progress.read_decision(decider, len(job.decisions())), "val_loss": 9.0, "val_metric": 0.0}
    progress.store_outcome(decider, agreed, Vector(VectorKind.MODEL, decider.learner.model))
    assert set(memoryview(job.model()).cast("f")) == {0.5}
    assert_outcome_is_the_models(job)


def test_who_took_over_to_clear_away_concludes_with_what_was_trained() -> None:
    """Check that a program which takes over and has trained nothing concludes with the model of a peer that died."""
    job = Job(asynchronous())
    with surviving(job, 0, value=0.25):
        pass
    with Context(Resources(job.clients), run=job.prepared.run) as ctx:
        ending._publish_as_result(ctx, 0)
    assert set(memoryview(job.model()).cast("f")) == {0.25}
    assert_outcome_is_the_models(job)


def test_an_overtaken_attempt_declares_nothing() -> None:
    """Check that an overtaken attempt raises StaleAttempt before it declares a mailbox, which nobody might delete."""
    job = Job(asynchronous(workers=2))
    store, keys = job.clients.object_store, job.prepared.keys
    with Context(Resources(job.clients), run=job.prepared.run) as ctx:
        exchange, replica = LatestMailboxes(ctx, member(job)), Replica(ctx, 0)
        store.create(keys.lease(0, 1), b"another")
        with pytest.raises(StaleAttempt):
            exchange.open(replica)
        with pytest.raises(Refused):
            ctx.bus.peek(keys.mailbox(0))
