"""P2P with Lambda: every peer is a small EC2 instance whose functions compute its batches side by side."""

from typing import TYPE_CHECKING

from crossover import runtime
from crossover.algorithms.schedule import split_into_parts
from crossover.errors import Corrupt
from crossover.stores.clients import Event
from crossover.stores.encoding import Vector, VectorKind, build_header, decode
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
    """Computation of a peer's gradients or local steps by Lambda functions: one execution of a state machine per round, two if functions
    also average.

    It is ComputeBatchGradients of Algorithm 1: the model goes to the functions, and the gradients come back, through the object store.
    """

    def __init__(self, ctx: Context, member: Membership) -> None:
        """Remember the peer's context and rank."""
        self._ctx, self._member = ctx, member

    def compute_gradient(self, event: Event, out: "Tensor") -> None:
        """Store the model, run the functions, and write the mean gradient over the round's minibatches into `out`.

        Raises StaleAttempt if the run is over, or if the rank was taken over; RunFailed or a UserError if a function failed; Corrupt if a
        stored gradient does not match.
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

    def take_local_steps(self, event: Event, replica: "Replica", history: list[tuple[float, float]]) -> None:
        """Store the state of `replica`, let one function take all local steps of the event's round, and set `replica` to the result.

        `history` is not used: the function reads the earlier losses itself. Raises StaleAttempt if the run is over, or if the rank was
        taken over; RunFailed or a UserError if the function failed; Corrupt if its result is damaged.
        """
        ctx, round, rank = self._ctx, event["round"], event["worker"]
        self._member.confirm()
        key, out = ctx.keys.peer_model(round, rank), ctx.keys.peer_gradient(round, rank, 0)
        state = Checkpoint(Position(round), checkpoints.build_vectors(ctx, replica.optimizer))
        ctx.objects.put_new(key, checkpoints.encode(state))
        progress.roll_back_if_over(ctx, lambda: ctx.objects.delete(key))
        ctx.run_machine("gradients", event)
        replica.adopt_steps(checkpoints.read(ctx.objects.get(out), key=out))

    def discard(self, round: int) -> None:
        """Delete the stored model, gradients and averages of `round`, which are not needed once the round's checkpoint and message are
        stored. Does nothing for a negative round.
        """
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
        """Fetch the gradients of the round's minibatches one by one, and write their weighted mean into `out`."""
        from crossover.algorithms.averaging import RunningMean

        samples = minibatch_weights(self._ctx.facts, event["round"], worker=event["worker"])
        mean = RunningMean(samples, total=out)
        for gradient in self._gradients(event, samples):
            mean.add(gradient)
            del gradient  # before the next one comes
        mean.result()

    def _gradients(self, event: Event, samples: list[int]) -> "Iterator[Tensor]":
        """Fetch and yield the gradient of each minibatch of the round, in order. `samples`: each minibatch's sample count. Raises what
        `_fetch_gradient` raises.
        """
        for minibatch, expected in enumerate(samples):
            key = self._ctx.keys.peer_gradient(event["round"], event["worker"], minibatch)
            yield self._fetch_gradient(key, samples=expected, elements=self._elements)

    def _collect(self, event: Event, out: "Tensor") -> None:
        """Fetch the mean gradient that functions have computed, part by part, into `out`. Raises what `_fetch_gradient` raises."""
        samples = sum(minibatch_weights(self._ctx.facts, event["round"], worker=event["worker"]))
        for number, part in enumerate(self._parts(event["minibatches"])):
            key = self._ctx.keys.peer_average(event["round"], event["worker"], number)
            out[part] = self._fetch_gradient(key, samples=samples, elements=part.stop - part.start)

    def _fetch_gradient(self, key: str, *, samples: int, elements: int) -> "Tensor":
        """Return the gradient stored under `key`. Raises Corrupt if it does not have the given numbers of `samples` and `elements`, Missing
        if nothing is stored.
        """
        from crossover.algorithms import buffers

        vector = decode(self._ctx.objects.get(key), key=key, kind=VectorKind.GRADIENT)
        if (vector.samples, vector.elements) != (samples, elements):
            raise Corrupt(
                f"{key}: {vector.elements} elements for {vector.samples} samples; {elements} for {samples} were expected"
            )
        return buffers.tensor(vector.data)

    def _parts(self, minibatches: int) -> list[slice]:
        """Return the slices into which the vector is cut if functions average, at most one per minibatch."""
        return split_into_parts(self._elements, most=minibatches)

    @property
    def _elements(self) -> int:
        """The number of elements of the run's model vector: parameters and buffers."""
        return self._ctx.facts.parameters + self._ctx.facts.buffers


def main(resources: Resources | None = None, settings: ServingSettings | None = None) -> None:
    """Run the program of one EC2 instance: serve the fleet's runs. `resources`, `settings`: those of this process and of its environment if
    None.
    """
    serve(resources or process_resources(), settings or ServingSettings.from_environment(runtime.environment()), peer)


def peer(ctx: Context, member: Membership) -> None:
    """Train the peer that holds a rank of the run, from its newest checkpoint to the end. Its minibatches are computed by functions."""
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
