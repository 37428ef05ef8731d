"""P2P with Lambda: every peer is a small EC2 instance whose functions compute its batches side by side."""

from typing import TYPE_CHECKING

from crossover import runtime
from crossover.algorithms.chunking import parts
from crossover.architecture import EXCHANGES, Architecture, Program
from crossover.clients.protocol import Event
from crossover.context import Context, Resources, process_resources
from crossover.dataplane.vector import Vector, VectorKind, decode, header
from crossover.errors import Corrupt
from crossover.training import attempts, checkpoints
from crossover.training.calendar import calendar, minibatch_samples
from crossover.training.checkpoints import Checkpoint, Position
from crossover.training.fleet import Membership, ServingSettings, serve
from crossover.workflow import ForEach
from functions.p2p_serverless import average_part, compute_gradient
from peers.p2p.checks import checks
from peers.p2p.instances import instances

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from crossover.training.peer.replica import Replica


class ByFunctions:
    """ComputeBatchGradients by one execution per round: the model to the object store, the gradients from there, one at a time."""

    def __init__(self, ctx: Context, member: Membership) -> None:
        self._ctx, self._member = ctx, member

    def gradient(self, event: Event, out: "Tensor") -> None:
        ctx, model = self._ctx, Vector(VectorKind.MODEL, self._ctx.learner.model)
        self._member.confirm()
        key = ctx.keys.peer_model(event["round"], event["worker"])
        ctx.objects.put_new(key, [header(model), model.data])
        attempts.settle(ctx, lambda: ctx.objects.delete(key))
        ctx.run_machine("gradients", event)
        if ctx.experiment.p2p.average_in == "lambda":
            ctx.run_machine("averages", event)
            self._collect(event, out)
        else:
            self._average(event, out)

    def steps(self, event: Event, replica: "Replica", history: list[tuple[float, float]]) -> None:
        """One function takes all of the round's: the peer's state to the object store, and from there what it has come to."""
        ctx, round, rank = self._ctx, event["round"], event["worker"]
        self._member.confirm()
        key, out = ctx.keys.peer_model(round, rank), ctx.keys.peer_gradient(round, rank, 0)
        state = Checkpoint(Position(round), checkpoints.vectors_of(ctx, replica.optimizer))
        ctx.objects.put_new(key, checkpoints.encode(state))
        attempts.settle(ctx, lambda: ctx.objects.delete(key))
        ctx.run_machine("gradients", event)
        replica.stepped(checkpoints.read(ctx.objects.get(out), key=out))

    def forget(self, round: int) -> None:
        """Checkpoint and message stand: the round's model and gradients are of no use any more."""
        if round < 0:
            return
        ctx, rank = self._ctx, self._member.rank
        minibatches = calendar(ctx.facts).side_by_side(round)
        shares = range(len(self._parts(minibatches)))
        keys = [ctx.keys.peer_model(round, rank)]
        if ctx.experiment.p2p.average_in == "lambda":
            keys += [ctx.keys.peer_average(round, rank, part) for part in shares]
            keys += [ctx.keys.peer_gradient(round, rank, m, part) for m in range(minibatches) for part in shares]
        else:
            keys += [ctx.keys.peer_gradient(round, rank, m) for m in range(minibatches)]
        ctx.objects.delete(*keys)

    def _average(self, event: Event, out: "Tensor") -> None:
        from crossover.algorithms.running_mean import RunningMean

        samples = minibatch_samples(self._ctx.facts, event["round"], worker=event["worker"])
        mean = RunningMean(samples, total=out)
        for gradient in self._gradients(event, samples):
            mean.add(gradient)
            del gradient  # before the next one comes
        mean.result()

    def _gradients(self, event: Event, samples: list[int]) -> "Iterator[Tensor]":
        for minibatch, expected in enumerate(samples):
            key = self._ctx.keys.peer_gradient(event["round"], event["worker"], minibatch)
            yield self._received(key, samples=expected, elements=self._elements)

    def _collect(self, event: Event, out: "Tensor") -> None:
        """The average that functions have made, part by part."""
        samples = sum(minibatch_samples(self._ctx.facts, event["round"], worker=event["worker"]))
        for number, part in enumerate(self._parts(event["minibatches"])):
            key = self._ctx.keys.peer_average(event["round"], event["worker"], number)
            out[part] = self._received(key, samples=samples, elements=part.stop - part.start)

    def _received(self, key: str, *, samples: int, elements: int) -> "Tensor":
        from crossover.algorithms import buffers

        vector = decode(self._ctx.objects.get(key), key=key, kind=VectorKind.GRADIENT)
        if (vector.samples, vector.elements) != (samples, elements):
            raise Corrupt(
                f"{key}: {vector.elements} elements for {vector.samples} samples; {elements} for {samples} were expected"
            )
        return buffers.tensor(vector.data)

    def _parts(self, minibatches: int) -> list[slice]:
        return parts(self._elements, most=minibatches)

    @property
    def _elements(self) -> int:
        return self._ctx.facts.parameters + self._ctx.facts.buffers


def main(resources: Resources | None = None, settings: ServingSettings | None = None) -> None:
    """The program of one instance."""
    serve(resources or process_resources(), settings or ServingSettings.of(runtime.environment()), peer)


def peer(ctx: Context, member: Membership) -> None:
    from crossover.training.peer import algorithm  # torch
    from peers.p2p import exchanges

    algorithm.train(
        ctx,
        member,
        computing=ByFunctions(ctx, member),
        exchange=exchanges.by_mode(ctx, member),
        step=PROGRAM.step,
        instance_type=ctx.experiment.p2p.instance_type,
    )


PROGRAM = Program(main, instances, talks=True)
ARCHITECTURE = Architecture(
    "p2p_serverless",
    program=PROGRAM,
    machines={
        "gradients": ForEach("minibatch", "minibatches", compute_gradient),
        "averages": ForEach("minibatch", "minibatches", average_part),
    },
    sync_every="epoch",
    exchanges=EXCHANGES,
    checks=checks,
    claims={"equals_reference", "survives_kills", "resumes", "stops"},
)
