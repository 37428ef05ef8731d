"""A parameter server: workers send gradients to one database, which keeps the model, combines them and takes the optimizer's step itself.

Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (OSDI 2014), synchronous: a round's step waits for all workers.
"""

from crossover.stores.clients import Event
from crossover.stores.encoding import VectorKind
from crossover.stores.keys import Keys
from crossover.training import databases, gradients, progress
from crossover.training.progress import build_round_event, calendar, ends_epoch
from crossover.workflow import DAY_S, Child, ForEach, Repeat, Sequence, step
from crossover.workflow.architecture import CLAIMS, Architecture
from crossover.workflow.context import Context

SERVER = 0  # in whose place the model lies: all workers share one database


@step(torch=True, uses={"tensors"})
def initialise(ctx: Context, event: Event) -> Event:
    """Store the seeded model in the database, or adopt the last complete round of an earlier attempt; return the event for that round."""
    with databases.set_up_attempt(ctx, [SERVER], spent) as before:
        return build_round_event(ctx, databases.adopt_state(ctx, before, [SERVER], spent))


@step(torch=True, uses={"tensors"})
def send_gradient(ctx: Context, event: Event) -> None:
    """Compute one minibatch's gradient at the server's model, and store it in the database, unless it is there already."""
    key, tensors = ctx.keys.gradient(event["round"], event["worker"], event["minibatch"]), ctx.tensors[SERVER]
    if tensors.exists(key):
        return
    with ctx.stage("fetch"):
        tensors.get(ctx.keys.model(event["round"], SERVER), kind=VectorKind.MODEL, out=ctx.learner.model)
        batch = gradients.fetch_batch(ctx, event)
    with ctx.stage("compute"):
        gradient = gradients.compute_gradient(ctx, event, batch)
    with ctx.stage("store"):
        tensors.create(key, gradient)
        databases.roll_back_if_round_over(ctx, event["round"], SERVER, key)


@step(torch="unless_in_database", uses={"tensors"})
def update_model(ctx: Context, event: Event) -> None:
    """Average each worker's gradients, combine the averages by the configured rule, and take the optimizer step, all in the database. The
    state of the previous round is deleted.
    """
    round, server = event["round"], ctx.compute[SERVER]
    averages = [ctx.keys.average(round, worker) for worker in range(event["workers"])]
    out, agree = ctx.keys.aggregate(round, SERVER), progress.drop_agreement(ctx, round)
    with ctx.stage("aggregate"):
        for worker, average in enumerate(averages):
            server.mean(minibatches(ctx.keys, round, worker, event["minibatches"]), out=average)
        server.combine(averages, rule=ctx.experiment.aggregation, out=out, agree=agree)
    with ctx.stage("update"):
        databases.update(ctx, event, holder=SERVER, gradient=out)
        ctx.tensors[SERVER].delete(*spent(ctx, ctx.keys, round - 1, SERVER))
        databases.roll_back_if_superseded(ctx, SERVER, *spent(ctx, ctx.keys, round + 1, SERVER))


@step(torch=True, uses={"tensors"})
def detect_convergence(ctx: Context, event: Event) -> Event:
    """Make the decision about training's end at the end of an epoch, and return the event for the next round."""
    if ends_epoch(ctx, event):
        databases.evaluate_and_decide(ctx, event, holder=SERVER)
    return databases.build_next_event(ctx, event)


@step(uses={"tensors"})
def collect(ctx: Context, event: Event) -> None:
    """Store the trained model in the bucket; delete every key of the run."""
    progress.raise_if_superseded(ctx)
    databases.finish_run(ctx, [SERVER], spent)


def minibatches(names: Keys, round: int, worker: int, count: int) -> list[str]:
    """Return the keys of the gradients of a worker in the round."""
    return [names.gradient(round, worker, minibatch) for minibatch in range(count)]


def spent(ctx: Context, names: Keys, round: int, server: int) -> list[str]:
    """Return the keys that the round wrote, all of them in the one database."""
    workers, count = range(ctx.experiment.workers), calendar(ctx.facts).minibatches_in(round)
    state = databases.state_keys(ctx.experiment, names, round, server)
    sent = [key for worker in workers for key in minibatches(names, round, worker, count)]
    averages = [names.average(round, worker) for worker in workers]
    return [state.model, *state.optimizer, *sent, *averages, names.aggregate(round, server)]


all_send = ForEach(
    "worker", "workers", ForEach("minibatch", "minibatches", send_gradient)
)  # the next step waits for all
round_ = Child("round", Sequence(all_send, update_model, detect_convergence))
epoch = Child("epoch", Repeat(round_, until="epoch_finished", timeout_s=DAY_S))
run = Sequence(initialise, Repeat(epoch, until="finished", timeout_s=DAY_S), collect)

ARCHITECTURE = Architecture("parameter_server", run=run, tensor_hosts="shared", state="database", claims=CLAIMS)
