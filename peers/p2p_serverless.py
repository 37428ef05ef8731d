"""P2P with Lambda: every peer is a small EC2 instance whose functions compute its batches side by side."""

from typing import TYPE_CHECKING

from crossover import runtime
from crossover.algorithms.schedule import split_into_parts
from crossover.data.clients import Event
from crossover.data.encoding import Vector, VectorKind, build_header, decode
from crossover.errors import Corrupt
from crossover.training import checkpoints, progress
from crossover.training.checkpoints import Checkpoint, Position
from crossover.training.fleet import Membership, ServingSettings, serve
from crossover.training.progress import calendar, minibatch_weights
from crossover.workflow import ForEach
from crossover.workflow.architecture import EXCHANGES, Architecture, Program
from crossover.workflow.context import Context, Resources, process_resources
from functions.p2p_serverless import average_part, compute_gradient
from peers.p2p.checks import checks
from peers.p2p.instances import instances

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from crossover.training.peer import Replica


class ByFunctions:
    """Computation of a round's gradients by functions, in one execution of a state machine per round.

    It is ComputeBatchGradients: the model goes to the object store, and the gradients come from there, one at a time.
    """

    def __init__(self, ctx: Context, member: Membership) -> None:
        self._ctx, self._member = ctx, member

    def gradient(self, event: Event, out: "Tensor") -> None:
        """Write the mean gradient over the round's minibatches into `out`. Raises StaleAttempt if the run is over, or the rank was taken
        over.
        """
        ctx, model = self._ctx, Vector(VectorKind.MODEL, self._ctx.learner.model)
        self._member.confirm()
        key = ctx.keys.peer_model(event["round"], event["worker"])
        ctx.objects.put_new(key, [build_header(model), model.data])
        progress.roll_back_if_over(ctx, lambda: ctx.objects.delete(key))
        ctx.run_machine("gradients", event)
        if ctx.experiment.p2p.average_in == "lambda":
            ctx.run_machine("averages", event)
            self._collect(event, out)
        else:
            self._average(event, out)

    def steps(self, event: Event, replica: "Replica", history: list[tuple[float, float]]) -> None:
        """Take all local steps of the event's round in one function.

        The state of `replica` goes to it, and comes back, through the object store; the function reads the `history` of
        losses itself.
        """
        ctx, round, rank = self._ctx, event["round"], event["worker"]
        self._member.confirm()
        key, out = ctx.keys.peer_model(round, rank), ctx.keys.peer_gradient(round, rank, 0)
        state = Checkpoint(Position(round), checkpoints.vectors_of(ctx, replica.optimizer))
        ctx.objects.put_new(key, checkpoints.encode(state))
        progress.roll_back_if_over(ctx, lambda: ctx.objects.delete(key))
        ctx.run_machine("gradients", event)
        replica.adopt_steps(checkpoints.read(ctx.objects.get(out), key=out))

    def discard(self, round: int) -> None:
        """Delete the model and gradients of `round`. They are not needed once checkpoint and message are stored."""
        if round < 0:
            return
        ctx, rank = self._ctx, self._member.rank
        minibatches = calendar(ctx.facts).count_parallel(round)
        shares = range(len(self._parts(minibatches)))
        keys = [ctx.keys.peer_model(round, rank)]
        if ctx.experiment.p2p.average_in == "lambda":
            keys += [ctx.keys.peer_average(round, rank, part) for part in shares]
            keys += [ctx.keys.peer_gradient(round, rank, m, part) for m in range(minibatches) for part in shares]
        else:
            keys += [ctx.keys.peer_gradient(round, rank, m) for m in range(minibatches)]
        ctx.objects.delete(*keys)

    def _average(self, event: Event, out: "Tensor") -> None:
        """Fetch the gradients of all minibatches and write their mean into `out`."""
        from crossover.algorithms.averaging import RunningMean

        samples = minibatch_weights(self._ctx.facts, event["round"], worker=event["worker"])
        mean = RunningMean(samples, total=out)
        for gradient in self._gradients(event, samples):
            mean.add(gradient)
            del gradient  # before the next one comes
        mean.result()

    def _gradients(self, event: Event, samples: list[int]) -> "Iterator[Tensor]":
        """Yield the gradients of the round's minibatches. `samples`: of each."""
        for minibatch, expected in enumerate(samples):
            key = self._ctx.keys.peer_gradient(event["round"], event["worker"], minibatch)
            yield self._fetch_gradient(key, samples=expected, elements=self._elements)

    def _collect(self, event: Event, out: "Tensor") -> None:
        """Fetch the average that functions have computed, part by part, into `out`."""
        samples = sum(minibatch_weights(self._ctx.facts, event["round"], worker=event["worker"]))
        for number, part in enumerate(self._parts(event["minibatches"])):
            key = self._ctx.keys.peer_average(event["round"], event["worker"], number)
            out[part] = self._fetch_gradient(key, samples=samples, elements=part.stop - part.start)

    def _fetch_gradient(self, key: str, *, samples: int, elements: int) -> "Tensor":
        """Return the gradient stored under `key`. Raises Corrupt on another sample or element count."""
        from crossover.algorithms import buffers

        vector = decode(self._ctx.objects.get(key), key=key, kind=VectorKind.GRADIENT)
        if (vector.samples, vector.elements) != (samples, elements):
            raise Corrupt(
                f"{key}: {vector.elements} elements for {vector.samples} samples; {elements} for {samples} were expected"
            )
        return buffers.tensor(vector.data)

    def _parts(self, minibatches: int) -> list[slice]:
        """Return the slices of the vector that functions average, at most one per minibatch."""
        return split_into_parts(self._elements, most=minibatches)

    @property
    def _elements(self) -> int:
        """The number of elements of the run's model vector: parameters and buffers."""
        return self._ctx.facts.parameters + self._ctx.facts.buffers


def main(resources: Resources | None = None, settings: ServingSettings | None = None) -> None:
    """Be one peer of the fleet's runs. `resources`: by default those of this process; `settings`: by default from the environment."""
    serve(resources or process_resources(), settings or ServingSettings.from_environment(runtime.environment()), peer)


def peer(ctx: Context, member: Membership) -> None:
    """Train one peer of the run."""
    from crossover.training import peer as algorithm  # torch
    from peers.p2p import exchanges

    algorithm.train(
        ctx,
        member,
        computing=ByFunctions(ctx, member),
        exchange=exchanges.exchange_for_mode(ctx, member),
        step=PROGRAM.step,
        instance_type=ctx.experiment.p2p.instance_type,
    )


PROGRAM = Program(main, instances, uses_bus=True)
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
