"""What the synchronous architectures share: positions, a gradient, the update of a round, agreement at the end of an epoch.

An epoch is a pass over a worker's minibatches; a round ends with a synchronisation, after `training.sync_every` minibatches. Epochs count
from 1 (epoch 0 is the untrained model), rounds from 0 through the whole run. torch lives behind the functions that compute.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crossover import keys
from crossover.algorithms.convergence import verdict
from crossover.algorithms.dropping import Agree
from crossover.algorithms.schedule import learning_rate
from crossover.algorithms.update import Update
from crossover.context import Context
from crossover.dataplane.protocols import StateKeys, TensorCompute, TensorStore
from crossover.dataplane.vector import Kind, Vector, decode, header
from crossover.errors import Missing
from crossover.event import Event
from crossover.experiment import Experiment
from crossover.keys import Keys
from crossover.run_facts import RunFacts
from crossover.training import attempts

if TYPE_CHECKING:
    from crossover.learning.batch import Batch


# --- positions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Calendar:
    """Which minibatches and epochs the rounds of a run are."""

    minibatches: int  # of one worker in an epoch
    sync_every: int
    epochs: int

    @property
    def rounds_per_epoch(self) -> int:
        return -(-self.minibatches // self.sync_every)

    @property
    def rounds(self) -> int:
        return self.epochs * self.rounds_per_epoch

    def epoch(self, round: int) -> int:
        return round // self.rounds_per_epoch + 1

    def first_minibatch(self, round: int) -> int:
        """The epoch's minibatch that the round begins with."""
        return round % self.rounds_per_epoch * self.sync_every

    def minibatches_in(self, round: int) -> int:
        """How many minibatches a worker computes in the round; the epoch's last round may be shorter."""
        return min(self.sync_every, self.minibatches - self.first_minibatch(round))

    def ends_epoch(self, round: int) -> bool:
        return (round + 1) % self.rounds_per_epoch == 0


def calendar(facts: RunFacts) -> Calendar:
    return calendar_of(facts.experiment, facts.manifest)


def calendar_of(experiment: Experiment, manifest: Mapping[str, Any]) -> Calendar:
    training, minibatches = experiment.training, manifest["minibatches"]
    assert training.sync_every is not None, "the runner resolves sync_every before a run starts"
    return Calendar(
        minibatches, minibatches if training.sync_every == "epoch" else training.sync_every, training.epochs
    )


def at(ctx: Context, event: Event, round: int) -> Event:
    """The changes that move an event to the start of `round`."""
    days = calendar(ctx.facts)
    return {
        "epoch": days.epoch(round),
        "round": round,
        "minibatches": days.minibatches_in(round),
        "minibatch": 0,
        "synchronised": False,
    }


def ends_epoch(ctx: Context, event: Event) -> bool:
    return calendar(ctx.facts).ends_epoch(event["round"])


# --- a gradient -------------------------------------------------------------------------------------------------------


def fetch(ctx: Context, event: Event) -> "Batch":
    """The event's minibatch from the worker's own bucket."""
    from crossover.learning.batch import decode

    worker = event["worker"]
    number = calendar(ctx.facts).first_minibatch(event["round"]) + event["minibatch"]
    return decode(ctx.data[worker].get(keys.minibatch(ctx.facts.data, worker, number)))


def gradient(ctx: Context, event: Event, batch: "Batch") -> Vector:
    """The minibatch's gradient with its statistics, at the learner's model; a view of the learner's buffer. A faulty
    worker attacks here."""
    where = {name: event[name] for name in ("epoch", "round", "worker", "minibatch")}
    loss = ctx.learner.compute_gradient(batch, **where)
    ctx.note(loss=loss, samples=batch.samples)
    faults, data = ctx.experiment.faults, ctx.learner.gradient
    if event["worker"] in faults.workers and faults.attack not in ("none", "label_flip"):
        from crossover.algorithms import attacks, buffers
        from crossover.algorithms.randomness import generator

        # One direction per round: noise drawn anew for each minibatch would average away before the peers see it.
        random = generator("attack", ctx.experiment.seed, event["round"], event["worker"])
        data = buffers.view(
            attacks.attacked(
                buffers.tensor(data),
                attack=faults.attack,
                scale=faults.scale,
                generator=random,
                buffers=ctx.facts.buffers,
            )
        )
    return Vector(Kind.GRADIENT, data, samples=batch.samples)


# --- synchronisation and update ---------------------------------------------------------------------------------------


def await_members(ctx: Context, event: Event, *, patience_s: float) -> frozenset[int]:
    """Who has arrived at the event's round; looks again until all have or `patience_s` is over."""
    end_s, pause_s = time.monotonic() + patience_s, 0.005
    while True:
        present = ctx.bus.arrived(ctx.keys.barrier, round=event["round"], reader=event["worker"])
        if len(present) >= event["workers"] or time.monotonic() + pause_s > end_s:
            return present
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.1)


def dropping(ctx: Context, round: int) -> Agree:
    """Whom all drop from `round`: by whoever says so first, and before it combines, so that what was done stays written."""

    def agree(bad: list[int]) -> list[int]:
        if not bad:
            return bad
        told = json.dumps({"round": round, "epoch": calendar(ctx.facts).epoch(round), "workers": bad})
        agreed: list[int] = json.loads(ctx.objects.create(ctx.keys.dropped(round), told.encode()))["workers"]
        return agreed

    return agree


def update(ctx: Context, compute: TensorCompute, event: Event, *, gradient: str) -> None:
    """The worker's state of the next round from this one's and the combined gradient, in one command."""
    training, round, worker = ctx.experiment.training, event["round"], event["worker"]
    days = calendar(ctx.facts)
    rate = learning_rate(training, round=round, rounds=days.rounds, history=history(ctx, event["epoch"] - 1))
    old, new = (
        ctx.keys.state(r, worker, optimizer=training.optimizer, momentum=training.momentum) for r in (round, round + 1)
    )
    step = Update.of(training, number=round, rate=rate, buffers=ctx.facts.buffers, sync_every=days.sync_every)
    compute.update(old, gradient, out=new, update=step)


def settle(ctx: Context, worker: int, *stored: str) -> None:
    """After a step has stored something: raises StaleAttempt, and takes it back, where the run was resumed meanwhile."""
    if attempts.overtaken(ctx):
        ctx.tensors[worker].delete(*stored)
        attempts.give_way(ctx)


def spent(ctx: Context, names: Keys, round: int, worker: int) -> list[str]:
    """The tensor keys that `round` wrote for `worker`."""
    if round < 0:
        return []
    training, peers = ctx.experiment.training, range(ctx.experiment.workers)
    state = names.state(round, worker, optimizer=training.optimizer, momentum=training.momentum)
    count = calendar(ctx.facts).minibatches_in(round)
    return [
        state.model,
        *state.optimizer,
        *(names.gradient(round, worker, minibatch) for minibatch in range(count)),
        names.average(round, worker),
        *(names.average(round, worker, copy_of=peer) for peer in peers if peer != worker),
        names.aggregate(round, worker),
    ]


# --- agreement --------------------------------------------------------------------------------------------------------


def decision(ctx: Context, epoch: int) -> dict[str, Any]:
    """What all agreed on after `epoch`; for epoch 0 the start."""
    if epoch == 0:
        return {"epoch": 0, "history": [], "finished": False, "reason": "", "at": ctx.facts.created_at}
    agreed: dict[str, Any] = json.loads(ctx.objects.get(ctx.keys.decision(epoch)))
    return agreed


def history(ctx: Context, epoch: int) -> list[tuple[float, float]]:
    """(validation loss, validation metric) of the epochs 1..epoch."""
    if epoch == 0:
        return []
    return [(loss, metric) for loss, metric in decision(ctx, epoch)["history"]]


def decide(ctx: Context, event: Event, *, model: str) -> None:
    """Agreement after an epoch, by the model in the worker's store."""
    epoch = event["epoch"]
    if ctx.objects.exists(ctx.keys.decision(epoch)):
        return
    with ctx.stage("evaluate"):
        ctx.tensors[event["worker"]].get(model, kind=Kind.MODEL, out=ctx.learner.model)
        agree(ctx, epoch)


def agree(ctx: Context, epoch: int, *, by: int = 0) -> None:
    """Evaluate the learner's model and create the decision; the first one written holds for every worker. `by`: whose model it is."""
    result = evaluate(ctx)
    known = [*history(ctx, epoch - 1), (result.loss, result.metric)]
    reason = verdict(ctx.experiment.training, known)
    agreed = {
        "epoch": epoch,
        "val_loss": result.loss,
        "val_metric": result.metric,
        "history": known,
        "finished": bool(reason),
        "reason": reason,
        "by": by,
        "attempt": ctx.keys.attempt,
        "at": time.time(),
    }
    if ctx.experiment.lifetime.budget_usd is not None and ctx.facts.money:
        from crossover.costs import spending  # the price of everything: only for those that ask

        agreed |= spending.judged(ctx, decision(ctx, epoch - 1))
        if not reason and agreed["over_budget"]:
            agreed |= {"finished": True, "reason": f"budget: {agreed['over_budget']}"}
    ctx.objects.create(ctx.keys.decision(epoch), json.dumps(agreed).encode())


def evaluate(ctx: Context) -> Any:
    """The learner's model on the validation set: loss, metric, samples."""
    from crossover.learning.batch import decode

    facts = ctx.facts
    chunks = (keys.validation_chunk(facts.data, chunk) for chunk in range(facts.manifest["validation_chunks"]))
    return ctx.learner.evaluate(decode(ctx.data[0].get(key)) for key in chunks)


def advance(ctx: Context, event: Event) -> Event:
    """On to the next round: what the event's next state says."""
    if not ends_epoch(ctx, event):
        return {**at(ctx, event, event["round"] + 1), "epoch_finished": False}
    finished = decision(ctx, event["epoch"])["finished"]
    return {**at(ctx, event, event["round"] + 1), "epoch_finished": True, "finished": finished}


def gather_stages(ctx: Context) -> None:
    """A long invocation's stages added up by name, with their `count`: its record must not grow with every round."""
    table: dict[str, dict[str, Any]] = {}
    for stage in ctx.stages:
        row = table.setdefault(stage["stage"], {"stage": stage["stage"], "count": 0, "wall_s": 0.0, "cpu_s": 0.0})
        row["count"] += stage.get("count", 1)
        for figure in ("wall_s", "cpu_s"):
            row[figure] = round(row[figure] + stage[figure], 6)
        if "max_rss_mb" in stage:
            row["max_rss_mb"] = max(row.get("max_rss_mb", 0.0), stage["max_rss_mb"])
    ctx.stages[:] = table.values()


# --- begin and end ----------------------------------------------------------------------------------------------------


def start(ctx: Context, event: Event) -> Event:
    """The seeded model in every worker's store, or, when a run is resumed, the last round that every worker can take up. What attempts
    before this one left goes.
    """
    workers, days = range(event["workers"]), calendar(ctx.facts)

    def take_back() -> None:
        ctx.bus.remove(barriers=[(ctx.keys.barrier, len(workers))])
        if attempts.spare(ctx):
            _delete(ctx, ctx.keys, days, workers, decided=days.epochs)

    with attempts.setting_up(ctx, take_back):
        return at(ctx, event, _set_up(ctx, workers, days))


def _set_up(ctx: Context, workers: range, days: Calendar) -> int:
    """The round to begin at."""
    before = attempts.begin(ctx)
    ctx.bus.remove(barriers=[(names.barrier, len(workers)) for names in before])
    ctx.bus.declare(barriers=[(ctx.keys.barrier, len(workers))])
    decided = len(ctx.objects.list(ctx.keys.decisions))
    reached = [(resumable(ctx.tensors, each, days, decided=decided), each) for each in (ctx.keys, *before)]
    known = [(round, names) for round, names in reached if round is not None]
    if known:  # this attempt's own first: its first step may be tried again
        first, source = known[0] if known[0][1] is ctx.keys else max(known, key=lambda each: (each[0], each[1].attempt))
    else:
        first, source = _kept(ctx, decided), ctx.keys
    _share(ctx, workers, first, source)
    attempts.take(ctx, before)
    for names in before:
        _delete(ctx, names, days, workers, decided=decided + 1)
    return first


def _delete(ctx: Context, names: Keys, days: Calendar, workers: range, *, decided: int) -> None:
    """What an attempt left in its workers' stores: around the round at which they stood."""
    round = resumable(ctx.tensors, names, days, decided=decided)
    if round is None:
        return
    for worker in workers:
        left = [key for near in range(round - 1, round + 3) for key in spent(ctx, names, near, worker)]
        ctx.tensors[worker].delete(*left)


def _share(ctx: Context, workers: range, round: int, source: Keys) -> None:
    """The state of `round` that any worker holds, to every worker; the seeded model where nobody holds one."""
    training = ctx.experiment.training

    def state(keys: Keys, worker: int) -> StateKeys:
        return keys.state(round, worker, optimizer=training.optimizer, momentum=training.momentum)

    donor = next((w for w in workers if ctx.tensors[w].exists(state(source, w).model)), None)
    for worker in workers:
        target = state(ctx.keys, worker)
        if donor is None:
            ctx.tensors[worker].create(target.model, Vector(Kind.MODEL, ctx.learner.initial_model()))
            continue
        pairs = zip(_keys(state(source, donor)), _keys(target), strict=True)
        for name, own in pairs if round else [(state(source, donor).model, target.model)]:
            if not ctx.tensors[worker].exists(own):
                ctx.tensors[worker].create(own, ctx.tensors[donor].get(name))


def _keys(state: StateKeys) -> tuple[str, ...]:
    return (*state.optimizer, state.model)  # the model last: it says that the state is whole


def resumable(tensors: Mapping[int, TensorStore], keys: Keys, days: Calendar, *, decided: int) -> int | None:
    """The newest round that any worker holds, or the one before, so that an unfinished decision is made again; None
    where no database holds any.

    Workers are never more than one round apart, and a round's keys go only once the next round is under way everywhere.
    """
    for round in range(min(decided + 1, days.epochs) * days.rounds_per_epoch, -1, -1):
        holders = [w for w in tensors if tensors[w].exists(keys.model(round, w))]
        if holders:
            before = any(tensors[w].exists(keys.model(round - 1, w)) for w in holders) if round else False
            return round - 1 if before else round
    return None


def _kept(ctx: Context, decided: int) -> int:
    """The round whose state lies in the bucket, put into worker 0's database; 0 where the run never got so far. Raises Missing."""
    kept = ctx.objects.list(ctx.keys.kept_states)
    if not kept and not decided:
        return 0
    if not kept:
        raise Missing(f"{ctx.run}: no worker's database holds a model of this run any more; start a new run")
    round = int(kept[0].removeprefix(ctx.keys.kept_states).partition("/")[0])
    training = ctx.experiment.training
    state = ctx.keys.state(round, 0, optimizer=training.optimizer, momentum=training.momentum)
    for target in _keys(state):
        source = ctx.keys.kept_state(round, target.rpartition("/")[2])
        if source in kept:  # the untrained model's optimizer has no state
            ctx.tensors[0].create(target, decode(ctx.objects.get(source), key=source))
    return round


def collect(ctx: Context, event: Event) -> None:
    """The model of the last round to the bucket, then an end to every tensor key of the run."""
    agreed = decision(ctx, len(ctx.objects.list(ctx.keys.decisions)))
    last = agreed["epoch"] * calendar(ctx.facts).rounds_per_epoch
    if not ctx.objects.exists(ctx.keys.outcome):
        conclude(ctx, agreed, ctx.tensors[0].get(ctx.keys.model(last, 0), kind=Kind.MODEL))
    for worker in range(event["workers"]):
        ctx.tensors[worker].delete(*(key for round in (last - 1, last) for key in spent(ctx, ctx.keys, round, worker)))


def conclude(ctx: Context, agreed: dict[str, Any], model: Vector) -> None:
    """The trained model and what the last epoch's decision says of it, to the bucket. The first outcome is the run's."""
    sha256 = hashlib.sha256(model.data).hexdigest()
    ctx.objects.put(ctx.keys.final_model(sha256), [header(model), model.data])
    outcome = {
        "val_metric": agreed["val_metric"],
        "val_loss": agreed["val_loss"],
        "epochs": agreed["epoch"],
        "reason": agreed["reason"],
        "parameters_sha256": sha256,
        "attempt": ctx.keys.attempt,
    }
    ctx.objects.create(ctx.keys.outcome, json.dumps(outcome).encode())
