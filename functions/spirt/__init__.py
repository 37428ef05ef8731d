"""SPIRT: every worker has its own database, which averages its gradients and updates its model.

Barrak et al., "SPIRT: A Fault-Tolerant and Reliable Peer-to-Peer Serverless ML Training Architecture" (2023), as described in Table 1 of
"Cost-Performance Analysis" (2025): gradients of all minibatches in parallel, averaged inside the worker's database; a queue tells the
peers; each worker fetches its peers' averages into its own database, combines them there and updates its model there.
"""

from crossover.errors import WaitTimeout
from crossover.stores.clients import Event
from crossover.stores.encoding import VectorKind, exchanged_kind
from crossover.training import databases, gradients, progress
from crossover.training.progress import ends_epoch, minibatch_weights, worker_weights
from crossover.workflow import DAY_S, Child, ForEach, Repeat, Sequence, step
from crossover.workflow.architecture import Architecture
from crossover.workflow.context import Context
from functions.spirt import state


@step(torch=True, uses={"tensors", "bus"})
def initialise(ctx: Context, event: Event) -> Event:
    """Create the run's barrier on the message bus, and the same seeded model in every worker's database. If the run is resumed, restore its
    last complete round instead. Returns the changes of the event for the round to start at, such as `epoch`, `round` and `minibatches`.
    Raises StaleAttempt if a higher attempt has begun or the run has been concluded.
    """
    return state.start(ctx, event)


@step(torch=True, uses={"tensors"})
def compute_gradients(ctx: Context, event: Event) -> None:
    """Compute the gradient of the event's minibatch and store it in the worker's own database, unless it is stored: Table 1, Fetch and
    Compute.

    With local steps (`exchange.what` is not gradients) take all steps of the round instead, and store the worker's contribution. Raises
    StaleAttempt if the round is over or the attempt superseded, Missing if the database has no model of the round.
    """
    key = ctx.keys.gradient(event["round"], event["worker"], event["minibatch"])
    tensors = ctx.tensors[event["worker"]]
    if tensors.exists(key):
        return
    if ctx.experiment.exchange.what != "gradients":
        state.run_local_steps(ctx, event, out=key)
        return
    with ctx.stage("fetch"):
        tensors.get(ctx.keys.model(event["round"], event["worker"]), kind=VectorKind.MODEL, out=ctx.learner.model)
        batch = gradients.fetch_batch(ctx, event)
    with ctx.stage("compute"):
        gradient = gradients.compute_gradient(ctx, event, batch)
    with ctx.stage("store"):
        tensors.create(key, gradient)
        databases.roll_back_if_round_over(ctx, event["round"], event["worker"], key)


@step(torch="unless_in_database", uses={"tensors"})
def average_in_database(ctx: Context, event: Event) -> None:
    """Compute the mean of the worker's gradients of its minibatches, inside its database (in the function if `database.compute` is fetch),
    and store it there as the worker's average: Table 1, Compute. An average that is stored already stays. Raises StaleAttempt if the
    attempt was superseded, Missing if a gradient is not stored.
    """
    round, worker = event["round"], event["worker"]
    names = [ctx.keys.gradient(round, worker, minibatch) for minibatch in range(event["minibatches"])]
    if ctx.experiment.exchange.what == "gradients":
        names = _names_with_weight(names, minibatch_weights(ctx.facts, round, worker=worker))
    with ctx.stage("average"):
        ctx.compute[worker].mean(names, out=ctx.keys.average(round, worker))
        databases.roll_back_if_superseded(ctx, worker, ctx.keys.average(round, worker))


def _names_with_weight(names: list[str], weights: list[int]) -> list[str]:
    """Return those of `names` whose weight is above 0: the database would count a vector with weight 0 as one sample."""
    return [name for name, weight in zip(names, weights, strict=True) if weight]


@step(uses={"bus"})
def notify_peers(ctx: Context, event: Event) -> None:
    """Report on the message bus that this worker's average is stored: Table 1, Synchronisation."""
    with ctx.stage("synchronise"):
        ctx.bus.arrive(ctx.keys.barrier, round=event["round"], member=event["worker"])


@step(uses={"bus"}, waits=True)
def check_peers(ctx: Context, event: Event) -> Event:
    """Return {"synchronised": whether all workers have reported their average of this round}: Table 1, Synchronisation.

    Polls for up to one second, which costs less than running the step more often. Raises WaitTimeout if some are missing and the event's
    `timeout_s` has passed since its `since`.
    """
    with ctx.stage("synchronise"):
        present = state.await_members(ctx, event, within_s=1.0)
    missing = sorted(set(range(event["workers"])) - present)
    if missing and ctx.has_timed_out(event):
        raise WaitTimeout(
            f"worker {event['worker']} waited {event['timeout_s']} s in round {event['round']} for worker "
            + ", ".join(map(str, missing))
        )
    return {"synchronised": not missing}


@step(torch="unless_in_database", uses={"tensors"})
def aggregate_peers(ctx: Context, event: Event) -> None:
    """Copy every other worker's average into this worker's database, and combine all averages there by the experiment's aggregation rule:
    Table 1, Synchronisation.

    Does nothing if the result is stored already. Raises StaleAttempt if the round is over or the attempt superseded, Missing if an average
    is not stored, Refused if the rule cannot be applied, e.g. to values that are not finite.
    """
    round, worker = event["round"], event["worker"]
    own, kind = ctx.tensors[worker], exchanged_kind(ctx.experiment.exchange.what)
    out = ctx.keys.aggregate(round, worker)
    if own.exists(out):
        return
    copies = {peer: ctx.keys.average(round, worker, copy_of=peer) for peer in range(event["workers"]) if peer != worker}
    # The own one in its rank's place: the sum's order is the same on every worker.
    averages = [copies.get(peer, ctx.keys.average(round, worker)) for peer in range(event["workers"])]
    try:
        with ctx.stage("synchronise"):
            for peer, copy in copies.items():
                if not own.exists(copy):
                    own.create(copy, ctx.tensors[peer].get(ctx.keys.average(round, peer), kind=kind))
        with ctx.stage("aggregate"):
            rule, agree = ctx.experiment.aggregation, progress.drop_agreement(ctx, round)
            weighing = (
                _names_with_weight(averages, worker_weights(ctx.facts, round)) if rule.rule == "mean" else averages
            )
            ctx.compute[worker].combine(weighing, rule=rule, out=out, agree=agree)
    finally:  # also if an average is gone: copies of the others may have been stored too late
        databases.roll_back_if_round_over(ctx, round, worker, out, *averages)


@step(torch="unless_in_database", uses={"tensors"})
def update_model(ctx: Context, event: Event) -> None:
    """Compute the next round's state (parameters, momentum, buffers) inside the worker's database, and delete the keys of the previous
    round: Table 1, Model Update. A next state that is stored already stays. Raises StaleAttempt if the attempt was superseded, Missing if
    this round's state or aggregate is not stored.
    """
    round, worker = event["round"], event["worker"]
    with ctx.stage("update"):
        databases.update(ctx, event, holder=worker, gradient=ctx.keys.aggregate(round, worker))
        # All peers have reported this round, so all have finished the one before: its keys are not read again.
        ctx.tensors[worker].delete(*state.list_round_keys(ctx, ctx.keys, round - 1, worker))
        databases.roll_back_if_superseded(ctx, worker, *state.list_round_keys(ctx, ctx.keys, round + 1, worker))


@step(torch=True, uses={"tensors"})
def detect_convergence(ctx: Context, event: Event) -> Event:
    """Evaluate the model and store the decision whether training ends, if the event's round is the last of an epoch and no other worker
    has stored it. Return the event's changes for the next round, with `epoch_finished` and, at an epoch's end, `finished`: whether the
    stored decision, perhaps another worker's, ends training. Raises Missing if the worker's database has lost the model to evaluate.
    """
    if ends_epoch(ctx, event):
        databases.evaluate_and_decide(ctx, event, holder=event["worker"])
    return databases.build_next_event(ctx, event)


@step(torch=True, uses={"tensors", "bus"})
def collect(ctx: Context, event: Event) -> None:
    """Store the trained model and the run's outcome in the bucket, unless an outcome is stored, delete every database key and queue of the
    run, and mark the run as finished. Raises StaleAttempt if a higher attempt has begun, Missing if the outcome must be stored and the
    model is gone from the first worker's database.
    """
    progress.raise_if_superseded(ctx)
    ctx.bus.remove(barriers=[(ctx.keys.barrier, event["workers"])])  # all have passed the last round's
    databases.finish_run(ctx, range(event["workers"]), state.list_round_keys)


round_ = Sequence(
    ForEach("minibatch", "minibatches", compute_gradients),
    average_in_database,
    notify_peers,
    Repeat(check_peers, until="synchronised", every_s=1, timeout_s=900),
    aggregate_peers,
    update_model,
    detect_convergence,
)

ARCHITECTURE = Architecture(
    "spirt",
    run=Sequence(
        initialise,
        ForEach(
            "worker",
            "workers",
            together=True,
            body=Child(
                "worker",
                Repeat(
                    Child("epoch", Repeat(Child("round", round_), until="epoch_finished", timeout_s=DAY_S)),
                    until="finished",
                    timeout_s=DAY_S,
                ),
            ),
        ),
        collect,
    ),
    tensor_hosts="per_worker",
    state="database",
    sync_every="epoch",
    exchanges={"gradients": ("none",), "model": ("none",), "delta": ("none",)},
    why_not="its databases average float32 in place",
    claims={"equals_reference", "same_calls", "survives_kills", "resumes", "stops"},
)
