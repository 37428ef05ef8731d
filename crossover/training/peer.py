"""Peers that train side by side and exchange gradients, each a program: what P2P and the GPU baseline share."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from crossover import runtime
from crossover.algorithms import buffers, codecs, contributions
from crossover.algorithms.aggregation import combine_vectors, is_finite
from crossover.algorithms.averaging import RunningMean
from crossover.algorithms.contributions import Contribution, Encoder
from crossover.algorithms.optimizers import Update
from crossover.algorithms.outer import compute_delta, take_outer_step
from crossover.algorithms.updates import step
from crossover.errors import ConfigError, Corrupt, CrossoverError, Missing, Refused, StaleAttempt
from crossover.experiment import Experiment
from crossover.learning.memory import find_free_bytes
from crossover.runtime import Pauses, PeriodicTimer
from crossover.stores.clients import Event
from crossover.stores.encoding import Vector, VectorKind, build_header, decode, exchanged_kind
from crossover.training import checkpoints, gradients, progress
from crossover.training.checkpoints import Checkpoint, CheckpointPace, Position
from crossover.training.fleet import InstanceReclaimed, Membership, record_step, stage
from crossover.training.progress import build_round_event, calendar, minibatch_weights, worker_weights
from crossover.workflow import first_event
from crossover.workflow.architecture import architecture_of
from crossover.workflow.context import Context

if TYPE_CHECKING:
    from torch import Tensor

    from crossover.learning.batches import Batch


# --- bodies -----------------------------------------------------------------------------------------------------------


class ContributionMessages:
    """Encoder and decoder of the messages in which peers exchange contributions. A peer creates one for all its messages: decoding reuses
    a buffer.
    """

    def __init__(self, experiment: Experiment) -> None:
        """Read from the experiment which kind of vector peers exchange, and whether values that are not finite are refused. The codec is
        that of each contribution.
        """
        self._kind = exchanged_kind(experiment.exchange.what)
        self._refuses = experiment.aggregation.non_finite == "refuse"
        self._decoded: Tensor | None = None

    def encode(self, own: Contribution, *, samples: int) -> list[bytes | memoryview]:
        """Return the message for the contribution `own` as a list of buffers: header and values, which are not copied. The same
        contribution always gives the same bytes.

        `samples`: number of samples that the contribution stands for.
        """
        if own.codec is None:
            vector = Vector(self._kind, buffers.view(own.values), samples)
        else:
            vector = Vector(VectorKind.QUANTIZED, buffers.view(own.bodies[0, own.values.numel()]), samples, "uint8")
        return [build_header(vector), vector.data]

    def decode(self, body: bytes | memoryview, *, own: Contribution, samples: int, what: str) -> "Tensor":
        """Decode `body`, a peer's message, into a (D,) float32 tensor: a view of `body` if it is not compressed, otherwise a buffer that
        the next call overwrites.

        `own`: this peer's contribution, which fixes size and codec; `samples`: count that the sender announced; `what`: name for errors.
        Raises Corrupt if the message does not match them, or if it has NaN or infinite values and the experiment refuses them.
        """
        vector = decode(body, key=what, kind=self._kind if own.codec is None else VectorKind.QUANTIZED)
        if vector.samples != samples:
            raise Corrupt(f"{what}: stands for {vector.samples} samples; the sender announced {samples}")
        elements, other = own.values.numel(), "its sender trains another model, or compresses in another way"
        if own.codec is None:
            if vector.elements != elements:
                raise Corrupt(f"{what}: {vector.elements} elements; this model makes {elements}: {other}")
            out = buffers.tensor(vector.data)  # not copied
        else:
            if self._decoded is None or self._decoded.numel() != elements:
                self._decoded = own.values.new_empty(elements)
            try:
                out = own.read(vector.data, out=self._decoded, first=0, what=what)
            except Corrupt as error:
                raise Corrupt(f"{error}: {other}") from error
        if self._refuses and not is_finite(out):
            raise Corrupt(f"{what}: contains NaN or infinite values")
        return out


# --- replica ----------------------------------------------------------------------------------------------------------
# A peer's replica: model and optimizer between two rounds, kept as one object per checkpoint.
#
# A checkpoint is created before anything of its round is published, so what others have seen of a round proves that its peer can start
# there again. Another attempt of the same peer writes the same bits; if it might not (asynchronous mode), the first one written counts
# for both.

KEPT_CHECKPOINTS = 2  # checkpoints of a peer: one may be half forgotten while another is being read


class Replica:
    """A peer's model and optimizer between two rounds, saved as one object per checkpoint.

    `model`, (P + B,): the learner's own memory, in a GPU if its vectors stay there; so are the optimizer's vectors. `round`: number of
    rounds done. `facts`: further plain values that the checkpoint holds. With local steps, `optimizer` is the peer's own, and `outer`
    holds the outer optimizer's vectors, which are equal on all peers. `codec`: encoder with the rounding errors of the peer's messages.
    `between`: if a round has two exchanges, the mean of the previous round's first exchange; with it the peer can send its second message
    again, even if no other peer is in that round any more.

    `confirm`: called before checkpoints are created or deleted; raises if another attempt holds the rank.
    """

    def __init__(self, ctx: Context, rank: int, *, confirm: Callable[[], None] = lambda: None) -> None:
        """Create the replica of the peer `rank` at round 0, with the learner's memory as its model. Call `restore` before using it.
        `confirm`: see the class.
        """
        self._ctx, self._rank, self._confirm = ctx, rank, confirm
        self.days = calendar(ctx.facts)
        self.model: Tensor = ctx.learner.model_vector
        self.optimizer: tuple[Tensor, ...] = ()
        self.outer: tuple[Tensor, ...] = ()
        self.codec: Encoder | None = None
        self.between: Tensor | None = None
        self._begun: Tensor | None = (
            None  # the model of all when the round began, once a step of its own has led away from it
        )
        self.round = 0
        self.facts: dict[str, Any] = {}
        self._saved: list[int] = []

    def restore(self, *, at: int | None = None, discard_later: bool = True) -> None:
        """Restore the newest checkpoint, or the one of round `at`. If there is none at all, restore the seeded model, which is the same on
        every peer.

        `at`: None for the newest; 0 stands for the seeded model if there is no checkpoint of it. `discard_later`: whether checkpoints
        after `at` are deleted: on a GPU the repeated rounds may give other bits. Raises Missing if there is no checkpoint of `at`, Corrupt
        if it is damaged, StaleAttempt if another attempt deletes checkpoints faster than they can be read.
        """
        for _ in range(3):
            saved = self._ctx.objects.list(self._ctx.keys.checkpoints_of(self._rank))
            if at is not None:
                later = [key for key in saved if _round_of(key) > at]
                saved = [key for key in saved if _round_of(key) == at]
                if at and not saved:
                    raise Missing(self._ctx.keys.checkpoint(self._rank, at))
                if later and discard_later:
                    self._confirm()
                    self._ctx.objects.delete(*later)
            if not saved:
                self._ctx.learner.initialise_model()
                self.optimizer, self.outer, self.round, self.facts = (), (), 0, {}
                self.codec, self.between = self._new_codec(), None
                if (scale := self._ctx.learner.loss_scale) is not None:
                    scale.restore()
                return
            try:
                self._restore_from(checkpoints.read(self._ctx.objects.get(saved[-1]), key=saved[-1]))
            except Missing:
                continue  # an older attempt that still runs has saved newer ones and deleted this one
            self._saved = [round for key in saved if (round := _round_of(key)) <= self.round]
            return
        raise StaleAttempt(f"peer {self._rank}: another attempt saves checkpoints faster than they can be read")

    def _restore_from(self, checkpoint: Checkpoint) -> None:
        """Set model, optimizers, round, loss scale, encoder, `between` and plain values to those of `checkpoint`. If it lacks the loss
        scale, that stays as it is; the encoder is a new one, whose state is what the checkpoint has of it.
        """
        self._adopt(checkpoint)
        self.outer = checkpoints.copy_optimizer(checkpoint, "outer")
        self.round, self.facts = checkpoint.position.round, dict(checkpoint.facts)
        saved_scale = self.facts.pop("loss_scale", None)
        if (scale := self._ctx.learner.loss_scale) is not None and saved_scale is not None:
            scale.restore(saved_scale)
        self.codec, found = self._new_codec(), checkpoint.vectors.get("between")
        checkpoints.restore_kept_vectors(checkpoint, self._kept_vectors())
        self.between = None if found is None else buffers.tensor(found.data).clone()

    def _new_codec(self) -> Encoder | None:
        """Return a new encoder with empty state for the experiment's compression, or None if it does not compress."""
        learner = self._ctx.learner
        return contributions.build_encoder(
            self._ctx.experiment, worker=self._rank, shapes=learner.shapes, parameters=learner.parameters
        )

    def _kept_vectors(self) -> "Mapping[str, Tensor]":
        """Return, by name, the encoder's tensors that a checkpoint stores; empty without an encoder."""
        return {} if self.codec is None else self.codec.state

    def save(self, *, agreed: bool = False) -> None:
        """Create the checkpoint of the current round, and delete all that this replica has found in `restore` or saved, but the newest
        two. Does nothing if this replica has saved that round or restored it from a checkpoint.

        `agreed`: whether to restore the stored checkpoint if another attempt has created it first, because its bits may differ. Otherwise
        such a checkpoint stays, and the replica keeps its own state. Raises StaleAttempt if the run is over, after deleting the round's
        checkpoint again, and what `confirm` raises.
        """
        if self.round in self._saved:
            return
        self._confirm()
        key = self._ctx.keys.checkpoint(self._rank, self.round)
        scale = self._ctx.learner.loss_scale
        facts = self.facts if scale is None else {**self.facts, "loss_scale": [scale.scale, scale.finite]}
        body = checkpoints.encode(Checkpoint(Position(self.round), self._vectors(), facts))
        created = self._ctx.objects.put_new(key, body)
        progress.roll_back_if_over(self._ctx, lambda: self._ctx.objects.delete(key))
        if not created and agreed:
            self._restore_from(checkpoints.read(self._ctx.objects.get(key), key=key))
        self._saved.append(self.round)
        spent, self._saved = self._saved[:-KEPT_CHECKPOINTS], self._saved[-KEPT_CHECKPOINTS:]
        if spent:
            self._ctx.objects.delete(*(self._ctx.keys.checkpoint(self._rank, round) for round in spent))

    def _vectors(self) -> dict[str, Vector]:
        """Return the vectors of a checkpoint by name: model, optimizers, `between`, and the encoder's. Except for those in a GPU's memory,
        they are views of the replica's own, not copies.
        """
        vectors = checkpoints.build_vectors(self._ctx, self.optimizer, self.outer)
        if self.between is not None:
            vectors["between"] = Vector(VectorKind.STATE, buffers.view(self.between))
        return vectors | checkpoints.wrap_kept_vectors(self._kept_vectors())

    def step(self, gradient: "Tensor", *, minibatch: int, history: list[tuple[float, float]]) -> None:
        """Move the model by one local optimizer step with `gradient`. Remembers the model first if the round is at its start.

        `minibatch`: number of the minibatch in the round, from 0; `history`: (validation loss, metric) of earlier epochs.
        """
        if minibatch == 0:
            self._begun = self.model.clone()
        self._step(gradient, gradients.build_update(self._ctx, self.round, history=history, minibatch=minibatch))

    def adopt_steps(self, after: Checkpoint) -> None:
        """Set model and optimizer to those of `after`, the state after all local steps of the round, which a function has computed.
        Remembers the model at the round's start first.
        """
        self._begun = self.model.clone()
        self._adopt(after)

    def _adopt(self, checkpoint: Checkpoint) -> None:
        """Copy the model in `checkpoint` into this replica's, and set the optimizer to new copies of its vectors, on the same device."""
        self.model.copy_(buffers.tensor(checkpoint.vectors["model"].data))
        self.optimizer = tuple(part.to(self.model.device) for part in checkpoints.copy_optimizer(checkpoint))

    def write_contribution(self, out: "Tensor") -> None:
        """Write what the peer contributes after its local steps into `out`, (P + B,) float32: its model, or if `exchange.what` is delta the
        model at the round's start minus its model, with the present BatchNorm statistics. Raises AssertionError before the round's first
        local step.
        """
        assert self._begun is not None, "a step of its own is behind it"
        delta = self._ctx.experiment.exchange.what == "delta"
        out.copy_(compute_delta(self._begun, self.model, buffers=self._ctx.facts.buffers) if delta else self.model)

    def advance(self, combined: "Tensor", *, history: list[tuple[float, float]]) -> None:
        """Advance to the next round. `combined`: the aggregated contribution, (P + B,) float32.

        Depending on `exchange.what`, step the optimizer with a gradient, copy an averaged model, or apply the outer optimizer to an
        averaged delta. `history`: (validation loss, metric) of earlier epochs, for the learning-rate schedule. Nothing is saved. Raises
        AssertionError for a delta if no local step was taken or adopted before.
        """
        exchange, count = self._ctx.experiment.exchange, self._ctx.facts.buffers
        match exchange.what:
            case "gradients":
                self._step(combined, gradients.build_update(self._ctx, self.round, history=history))
            case "model":
                self.model.copy_(combined)
            case "delta":
                assert self._begun is not None, "a step of its own is behind it"
                model, self.outer = take_outer_step(
                    self._begun, combined, self.outer, exchange.outer, number=self.round, buffers=count
                )
                self.model.copy_(model)
        self.round += 1

    def _step(self, gradient: "Tensor", update: Update) -> None:
        """Apply one optimizer step with `gradient` to the model and the optimizer's vectors. `update`: the step's parameters."""
        model, self.optimizer = step(self.model, gradient, self.optimizer, update)
        self.model.copy_(model)


def _round_of(key: str) -> int:
    """Return the round number in the key of a checkpoint."""
    return int(key.rpartition("/")[2].split(".")[0])


# --- exchange ---------------------------------------------------------------------------------------------------------
# What an architecture of peers hands to the algorithm: how a gradient comes about, and how gradients go round.


class Computing(Protocol):
    """Protocol of a way to compute a peer's part of a round, its gradient or its local steps: ComputeBatchGradients and
    AverageBatchesGradients of Algorithm 1.
    """

    def compute_gradient(self, event: Event, out: "Tensor") -> None:
        """Compute the weighted mean gradient over the minibatches of the event's round, and write it into `out`, (P + B,) float32.

        May raise the errors of stores and user code and, if functions compute, StaleAttempt (the run is over or the rank was taken over),
        and RunFailed or a UserError (a function failed).
        """

    def take_local_steps(self, event: Event, replica: Replica, history: list[tuple[float, float]]) -> None:
        """Take the local steps of the event's round on `replica`, one after each minibatch. Called instead of `compute_gradient` if the
        experiment exchanges models or deltas. The model and optimizer of `replica` are then those after the steps; its round stays.

        `history`: (validation loss, metric) of earlier epochs. May raise what `compute_gradient` raises.
        """

    def discard(self, round: int) -> None:
        """Delete the objects that computing `round` left in stores, because no peer returns to that round. Does nothing if there are none,
        or for a negative round.
        """


class RunEnded(CrossoverError):
    """Error for a peer that joins when the other peers have ended the run, so that no round is left in which it could take part. `train`
    catches it.
    """


class PeerExchange(Protocol):
    """Protocol of a way for peers to exchange their contributions: SendGradientsToMyQueue, ConsumeGradientsFromQueue and, in some,
    SynchronisationBarrier of Algorithm 1. `every`: rounds between two checkpoints of a peer; `replicas_agree`: whether all peers hold the
    same bits after a round.
    """

    every: int
    replicas_agree: bool

    def open(self, replica: Replica) -> int | None:
        """Prepare the exchange for the restored `replica`. Return the round whose message must be sent again, or None.

        That is the case if this peer's message of the previous round is lost: other peers may still be in that round. An exchange in which
        all must start together may set `replica` back to an older checkpoint. May raise RunEnded, StaleAttempt (the run is over or the rank
        was taken over), RunFailed or WaitTimeout (another peer is gone for good) and Unavailable.
        """

    def send(self, own: "Contribution", round: int, *, exchange: int = 0) -> None:
        """Send `own`, this peer's contribution to `round`. `exchange`: number of the exchange within the round, from 0.

        If all peers must hold the same bits (`replicas_agree`) and an earlier attempt of this peer, which may have computed other bits, has
        already sent one, that one counts, and is copied into the values of `own`. An exchange that sends nothing before `receive` sends
        nothing here. May raise StaleAttempt (the run is over or the rank was taken over), Refused (a mailbox does not exist) and
        Unavailable.
        """

    def receive(self, own: "Contribution", round: int, out: "Tensor", *, exchange: int = 0) -> None:
        """Wait for the other peers' contributions to `round`, and write the aggregate of all, including `own`, into `out`, which is as long
        as the values of `own`. An asynchronous exchange waits only for as many as the experiment asks for, of any round.

        `exchange`: number of the exchange within the round, from 0. May raise StaleAttempt (the rank was taken over, or the others are
        beyond the round), RunFailed or WaitTimeout (another peer is gone for good), Corrupt (its message is damaged), Refused (a
        contribution cannot be used) and Unavailable.
        """

    def keep(self) -> None:
        """Store this peer's last messages again if they were lost, or overwritten by older ones. Called now and then while this peer waits
        for others, who may still read them.

        An exchange whose messages cannot be lost does nothing. May raise StaleAttempt (the rank was taken over), Refused (a mailbox does
        not exist), Corrupt (a mailbox holds something else than a message) and Unavailable.
        """

    def close(self) -> None:
        """Delete the mailboxes, barriers and keys of this exchange, those of other peers too, because no peer reads them any more. Missing
        ones are fine, so several peers may call it. Does nothing if there are none, or if they are deleted with the run's other keys.
        """


# --- combining --------------------------------------------------------------------------------------------------------
# AverageGradients: the peers' gradients as one, by the rule of the YAML; the mean in the order of ranks, two vectors in memory.


def combine(ctx: Context, gradients: "Iterable[Tensor]", *, round: int, out: "Tensor") -> None:
    """Aggregate all peers' contributions to `round` into `out`, by the experiment's aggregation rule and the peers' weights.

    `gradients`: the contributions in rank order, this peer's included; for the mean, one may be overwritten once the next is requested.
    Raises Refused if one is not finite and `aggregation.non_finite` is refuse, or if more are left out than the rule tolerates.
    """
    samples, rule = worker_weights(ctx.facts, round), ctx.experiment.aggregation
    names = [f"round {round}: the gradient of peer {peer}" for peer in range(len(samples))]
    combine_vectors(gradients, samples, rule, names=names, agree=progress.drop_agreement(ctx, round), out=out)


# --- computing --------------------------------------------------------------------------------------------------------
# ComputeBatchGradients on the peer itself: its batches one after another, two vectors in memory.


class TrainingLoss:
    """Mean training loss of the current epoch so far, over all labels that count. It is noted in the peer's record."""

    def __init__(self, ctx: Context) -> None:
        """Start with no minibatches counted. `ctx`: context whose notes hold each minibatch's loss."""
        self._ctx = ctx
        self._loss, self._samples, self._answers, self._epoch = 0.0, 0, 0.0, 0

    def count(self, epoch: int) -> None:
        """Add the minibatch whose loss was just noted in the context, and replace that note by the mean over the epoch so far. Call it once
        after each minibatch: a second call would count the mean as another one. A new `epoch` starts from zero.
        """
        if epoch != self._epoch:
            self._loss, self._samples, self._answers, self._epoch = 0.0, 0, 0.0, epoch
        answers = gradients.get_noted_answers(self._ctx)
        self._loss += self._ctx.notes["loss"] * answers
        self._samples += self._ctx.notes["samples"]
        self._answers += answers
        gradients.note_loss(self._ctx, self._loss / max(1, self._answers), samples=self._samples, answers=self._answers)


class OnInstance:
    """Computation of a peer's minibatches in its own process, one after another. A subclass may override how a minibatch is fetched
    (`fetch_batch`) and its gradient computed (`compute_minibatch_gradient`).
    """

    def __init__(self, ctx: Context) -> None:
        """Start the epoch's loss at zero. `ctx`: of the peer."""
        self._ctx, self._loss = ctx, TrainingLoss(ctx)

    def compute_gradient(self, event: Event, out: "Tensor") -> None:
        """Compute the gradients of the round's minibatches one after another, and write their weighted mean into `out`."""
        ctx = self._ctx
        mean = RunningMean(minibatch_weights(ctx.facts, event["round"], worker=event["worker"]), total=out)
        for minibatch in range(event["minibatches"]):
            place = {**event, "minibatch": minibatch}
            mean.add(self.compute_minibatch_gradient(place))
            self._loss.count(event["epoch"])
        mean.result()

    def take_local_steps(self, event: Event, replica: "Replica", history: list[tuple[float, float]]) -> None:
        """Take the local steps of the event's round on `replica`: compute each minibatch's gradient and step after it.

        `history`: (validation loss, metric) of earlier epochs.
        """
        for minibatch in range(replica.days.minibatches_in(event["round"])):
            place = {**event, "minibatch": minibatch}
            replica.step(self.compute_minibatch_gradient(place), minibatch=minibatch, history=history)
            self._loss.count(event["epoch"])

    def compute_minibatch_gradient(self, place: Event) -> "Tensor":
        """Fetch the minibatch that `place` names, and return its gradient, (P + B,), at the learner's model. It is valid until the next
        call. If the experiment makes this worker faulty by an attack on gradients, it is altered by that.

        `place`: an event, of which worker, round and minibatch count. The loss is noted in the context. Raises Missing if the minibatch is
        not staged, Corrupt if it is damaged, and the errors of stores and user code.
        """
        return buffers.tensor(gradients.compute_gradient(self._ctx, place, self.fetch_batch(place)).data)

    def fetch_batch(self, place: Event) -> "Batch":
        """Fetch and return the minibatch that `place`, an event, names."""
        return gradients.fetch_batch(self._ctx, place)

    def discard(self, round: int) -> None:
        """Do nothing: computing on an instance stores no objects."""


# --- ending -----------------------------------------------------------------------------------------------------------
# The end of a run of peers: each reports that it is done, waits for the others, and deletes the run's keys.


def leave(ctx: Context, member: Membership, exchange: "PeerExchange") -> None:
    """End this peer's part in the run: report that it is done, wait until all peers are, then delete the run's keys and mark the run as
    finished. Only reports and waits if another peer has marked the run by then.

    `ctx`: of the peer; `member`: its rank; `exchange`: stores lost messages again meanwhile, then is closed. If no peer has stored the
    run's outcome, this one stores its own model. Several peers may do all this at the same time. Raises StaleAttempt if the rank was taken
    over, and, unless peers are asynchronous, RunFailed or WaitTimeout if another peer is gone for good.
    """
    objects, keys = ctx.objects, ctx.keys
    member.confirm()
    objects.put_new(keys.leaving_marker(member.rank), b"")
    if not objects.exists(keys.clearing_marker):
        _await_others(ctx, member, exchange)
    if objects.exists(keys.finished_marker):
        return
    if not objects.exists(keys.outcome):
        _publish_as_result(ctx, member.rank)
    objects.put_new(keys.clearing_marker, b"")
    exchange.close()
    for prefix in (keys.bodies, keys.peer_work, keys.checkpoints):
        objects.delete_prefix(prefix)
    objects.put_new(keys.finished_marker, b"")


def _await_others(ctx: Context, member: Membership, exchange: "PeerExchange") -> None:
    """Wait until every peer has reported that it is done, or the run is finished. In asynchronous mode a peer that is gone for good is not
    awaited; otherwise raises RunFailed or WaitTimeout, and StaleAttempt if this peer's rank was taken over. Stores this peer's last message
    again now and then if it was lost.
    """
    objects, keys, settings = ctx.objects, ctx.keys, member.settings
    pause, ask = Pauses(0.05, settings.look_s), PeriodicTimer(settings.look_s, settings.look_s)
    while not objects.exists(keys.finished_marker):
        here = [rank for rank in range(member.members) if not objects.exists(keys.leaving_marker(rank))]
        if ask():
            with suppress(Refused):  # another peer is already deleting the run's keys
                exchange.keep()
            if exchange.replicas_agree:
                member.raise_if_pointless(here, what="waited at the end for word")
            else:
                here = [rank for rank in here if not member.is_absent(rank)]
        if not here:
            return
        pause(calm_s=ask.left_s)


def _publish_as_result(ctx: Context, rank: int) -> None:
    """Restore this peer's newest checkpoint, evaluate it, and store model and metrics as the run's outcome, because the peer that should
    have done it is gone.

    `rank`: of this peer. Several peers may do it at the same time, each with its own model: the outcome written first counts.
    """
    Replica(ctx, rank).restore()  # this program may have taken the rank over without training it
    agreed = progress.read_newest_decision(ctx)
    result = progress.evaluate(ctx)
    agreed |= {"val_loss": result.loss, "val_metric": result.metric}
    progress.store_outcome(ctx, agreed, Vector(VectorKind.MODEL, ctx.learner.model))


# --- algorithm --------------------------------------------------------------------------------------------------------
# Peer-to-peer training, Algorithm 1 of Barrak et al., "Exploring the Impact of Serverless Computing on Peer To Peer Training Machine
# Learning" (2023): once, for peers that compute by themselves, by functions, or on GPUs.
#
# What differs is handed in: how a peer's gradient comes about (`Computing`), and how gradients go round (`PeerExchange`).


def train(
    ctx: Context,
    member: Membership,
    *,
    computing: Computing,
    exchange: PeerExchange,
    step: str,
    instance_type: str,
) -> None:
    """Train the peer that holds the rank of `member`, from its newest checkpoint to the end of the run, then leave the run.

    `computing`: computes the peer's gradient or takes its local steps; `exchange`: exchanges the contributions; `step`: step name for its
    records, one per epoch; `instance_type`: noted in the records, for their cost. If the run is over already, the peer only leaves it.
    Raises ConfigError if the peer's vectors do not fit into memory, InstanceReclaimed if EC2 takes the instance away, and the errors of
    `exchange` and `leave`.
    """
    peer = _Peer(ctx, member, computing, exchange)
    # Where the run is over, only clearing away is still to be done. One that has left has no round to come, and yet the others may wait
    # for the last that it sent: it starts, and what was lost of that is sent again.
    if not ctx.objects.exists(ctx.keys.clearing_marker):
        left = ctx.objects.exists(ctx.keys.leaving_marker(member.rank))
        with suppress(RunEnded):
            peer.start()
            finished = left or peer.detect_convergence()
            while not finished:
                with record_step(ctx, step, peer.event(), instance_type=instance_type):
                    peer.train_epoch()
                    with stage(ctx, "convergence detection"):
                        finished = peer.detect_convergence()
    leave(ctx, member, exchange)


class _Peer:
    """State and actions of one peer during training: it computes, exchanges contributions with the other peers, and updates its replica of
    the model.
    """

    def __init__(self, ctx: Context, member: Membership, computing: Computing, exchange: PeerExchange) -> None:
        """Check that the peer's vectors fit into memory (raises ConfigError otherwise), and create its replica, which `start` restores.
        `member`: the peer's rank and attempt; `computing`: computes the peer's gradient or takes its local steps; `exchange`: exchanges the
        contributions.
        """
        self._ctx, self._member, self._computing, self._exchange = ctx, member, computing, exchange
        check_memory(ctx)
        self._replica = Replica(ctx, member.rank, confirm=member.confirm)
        self._own = self._replica.model.new_empty(0)
        self._received: dict[int, Tensor] = {}  # by length, what an exchange brings
        self._history: tuple[int, list[tuple[float, float]]] = (0, [])
        self._damaged = ""
        alone = architecture_of(ctx.experiment).alone
        self._pace = CheckpointPace(exchange.every, runtime.monotonic) if alone else None

    def start(self) -> None:
        """Restore the newest checkpoint, open the exchange, and send the message of an earlier round again if the exchange has lost it.
        Raises RunEnded if no round is left in which this peer could take part.
        """
        self._replica.restore()
        self._own = self._replica.model.new_empty(self._replica.model.numel())
        if (lost := self._exchange.open(self._replica)) is not None:
            self._send_again(lost)
        self._computing.discard(self._replica.round - 2)  # in case it was killed between saving and deleting

    def _send_again(self, round: int) -> None:
        """Compute the lost message of `round` again, bit by bit, from that round's checkpoint, and send it, because a peer that is one
        round behind waits for it. Then restore the newest checkpoint.

        A round's second message is sent, too, if the newest checkpoint holds the mean that it needs. Sends nothing if that round's
        checkpoint is gone, or if it is damaged and every peer is beyond `round`. Raises Corrupt if it is damaged and a peer is not.
        """
        between = self._replica.between
        with suppress(Missing):  # an older attempt that still runs has deleted that checkpoint
            try:
                self._replica.restore(at=round, discard_later=False)
            except Corrupt as error:
                if not self._all_are_beyond(round):
                    raise
                self._damaged = str(error)
                return
            self._compute()
            self._exchange.send(self._first_contribution(round), round)
            if between is not None and self._replica.codec is not None:
                second = self._replica.codec.proceed(between)
                assert isinstance(second, Contribution), "a mean is kept where another exchange follows"
                self._exchange.send(second, round, exchange=1)
        self._replica.restore()

    def _all_are_beyond(self, round: int) -> bool:
        """Return whether every peer has saved a checkpoint of the round after `round`."""
        objects, keys = self._ctx.objects, self._ctx.keys
        return all(objects.exists(keys.checkpoint(rank, round + 1)) for rank in range(self._member.members))

    def event(self) -> Event:
        """Build the event of the current round, as a state machine would pass it to a function: all fields, with this peer's rank as
        `worker`.
        """
        place = build_round_event(self._ctx, self._replica.round)
        return {**first_event(self._ctx.run, workers=self._member.members), **place, "worker": self._member.rank}

    def train_epoch(self) -> None:
        """Train the remaining rounds of the current epoch, at least one. Notes in the record the attempt, and the error of a damaged
        checkpoint that `start` has skipped. Raises InstanceReclaimed, after a checkpoint is saved, if EC2 has announced that it takes the
        instance away.
        """
        self._ctx.note(attempt=self._member.attempt)
        if self._damaged:
            self._ctx.note(damaged=self._damaged)
        while True:
            self._train_round()
            if self._replica.days.ends_epoch(self._replica.round - 1):
                return

    def _train_round(self) -> None:
        """Train one round: compute, exchange, update the model, and save if a checkpoint is due. If EC2 has announced that it takes the
        instance away, raises InstanceReclaimed after such a save, or, if the run has a single member, after one that is not due.
        """
        ctx, replica, exchange, round = self._ctx, self._replica, self._exchange, self._replica.round
        with stage(ctx, "compute gradients"):
            self._compute()
        combined = self._exchange_contribution(round)
        with stage(ctx, "model update"):
            replica.advance(combined, history=self._history_so_far())
        with stage(ctx, "checkpoint"):
            # Several meet anew at a round of which each has a checkpoint, so only one that is alone saves between two that are due.
            due = self._pace.is_due(replica.round) if self._pace else replica.round % exchange.every == 0
            leaves = self._member.interrupted and (due or self._member.members == 1)
            if due or leaves:
                began = runtime.monotonic()
                replica.save(agreed=not exchange.replicas_agree)
                if self._pace:
                    self._pace.note_saved(runtime.monotonic() - began)
                self._computing.discard(round - 1)  # the current round may have to be sent again
                self._member.report_progress()
        if leaves:
            raise InstanceReclaimed(
                f"peer {self._member.rank}: EC2 interrupts the spot instance; saved round {replica.round}"
            )

    def _compute(self) -> None:
        """Compute this peer's vector for the round, its gradient or the result of its local steps, into `_own`."""
        if self._ctx.experiment.exchange.what == "gradients":
            self._computing.compute_gradient(self.event(), self._own)
        else:
            self._computing.take_local_steps(self.event(), self._replica, self._history_so_far())
            self._replica.write_contribution(self._own)

    def _exchange_contribution(self, round: int) -> "Tensor":
        """Exchange the contribution to `round` in one or two exchanges, and return the (decoded) aggregate of all peers' contributions. The
        next round may overwrite the returned vector.
        """
        ctx, replica, exchange = self._ctx, self._replica, self._exchange
        following: Contribution | Tensor = self._first_contribution(round)
        for number in range(codecs.count_exchanges(ctx.experiment.exchange)):
            assert isinstance(following, Contribution)
            out = self._buffer_like(following.values)
            with stage(ctx, "send"):
                exchange.send(following, round, exchange=number)
            with stage(ctx, "receive"):
                exchange.receive(following, round, out, exchange=number)
            if replica.codec is None:
                return out
            with stage(ctx, "compress"):
                following = replica.codec.proceed(out)
            if isinstance(following, Contribution):
                replica.between = out.clone()
        assert not isinstance(following, Contribution)
        return following

    def _first_contribution(self, round: int) -> Contribution:
        """Return the contribution for the first exchange of `round`: this peer's vector, encoded if the experiment compresses. Raises
        Refused if it cannot be encoded.
        """
        if (codec := self._replica.codec) is None:
            return Contribution(self._own)
        with stage(self._ctx, "compress"):
            try:
                return codec.begin(self._own, round=round)
            except Refused as error:
                raise Refused(f"peer {self._member.rank}, round {round}: {error}") from error

    def _buffer_like(self, like: "Tensor") -> "Tensor":
        """Return an uninitialised buffer as long as `like`. Every call with the same length returns the same buffer."""
        if like.numel() not in self._received:
            self._received[like.numel()] = like.new_empty(like.numel())
        return self._received[like.numel()]

    def _history_so_far(self) -> list[tuple[float, float]]:
        """Return (validation loss, metric) of each evaluation before this round, oldest first. They are read from the store once per
        epoch; until then the same list is returned, which must not be changed.
        """
        before = self._replica.days.epochs_before(self._replica.round)
        if self._history[0] != before:
            self._history = (before, progress.read_history(self._ctx, before))
        return self._history[1]

    def detect_convergence(self) -> bool:
        """Return whether training is over. If an epoch has just ended, first evaluate the model and store the decision on the epoch,
        unless another peer has done so; otherwise return False.

        Every peer follows the decision that was created first. If it ends training, the peer whose model was evaluated stores the run's
        outcome and model; any peer does so if all have the same model. Raises Corrupt if the decision is damaged.
        """
        ctx, days, round = self._ctx, self._replica.days, self._replica.round
        if not round or not days.ends_epoch(round - 1):
            return False
        epoch = days.epoch(round - 1)
        if not _has_decision(ctx, epoch):
            progress.create_decision(ctx, epoch, by=self._member.rank)
        agreed = progress.read_decision(ctx, epoch)
        finished = bool(agreed["finished"])
        mine = self._exchange.replicas_agree or agreed["by"] == self._member.rank
        if finished and mine and not ctx.objects.exists(ctx.keys.outcome):
            progress.store_outcome(ctx, agreed, Vector(VectorKind.MODEL, ctx.learner.model))
        return finished


BASE_VECTORS = 8  # model and gradient, optimizer, own and average, one received, one in a message, one in a checkpoint
LOCAL_STEP_VECTORS = (
    3  # with local steps: the model at the round's start, the outer velocity, and its copy in the checkpoint
)
CODEC_VECTORS = (
    4  # with a codec: the contribution, what is sent of it, what was left out, and its copy in the checkpoint
)


def check_memory(ctx: Context) -> None:
    """Raise ConfigError if the vectors that a peer holds need more memory than is free on this machine.

    Called before anything large is allocated: a peer that the kernel kills for memory reports nothing.
    """
    asked = ctx.experiment.exchange
    count = (
        BASE_VECTORS + LOCAL_STEP_VECTORS * (asked.what != "gradients") + CODEC_VECTORS * (asked.compression != "none")
    )
    need_mb = count * 4 * (ctx.facts.parameters + ctx.facts.buffers) / 2**20
    free_mb = find_free_bytes() / 2**20
    if need_mb > free_mb:
        program = architecture_of(ctx.experiment).program
        assert program is not None, "peers are programs"
        machine = program.instances(ctx.experiment)
        raise ConfigError(
            f"training.model: {ctx.experiment.training.model} has {ctx.facts.parameters:,} parameters; a peer holds {count} such vectors, "
            f"{need_mb:,.0f} MB, and {free_mb:,.0f} MB are free here; use a larger {machine.setting} than {machine.instance_type}, or a "
            "smaller model"
        )


def _has_decision(ctx: Context, epoch: int) -> bool:
    """Return whether the decision after `epoch` is stored."""
    return ctx.objects.exists(ctx.keys.decision(epoch))
