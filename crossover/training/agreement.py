"""What all workers must hold the same view of: what follows an epoch, whose contributions a round leaves out, how the run ended.

Whoever comes first creates the object, and all others read what was created.
"""

import hashlib
from typing import Any

from crossover import keys, runtime
from crossover.algorithms.convergence import verdict
from crossover.algorithms.dropping import Agree
from crossover.context import Context
from crossover.dataplane import documents
from crossover.dataplane.vector import Vector, header
from crossover.training.calendar import calendar

DECISION = {
    "epoch": int,
    "val_loss": float,
    "val_metric": float,
    "history": [[float, float]],
    "finished": bool,
    "reason": str,
    "at": float,
}
DROPPED = {"round": int, "workers": [int]}


def decision(ctx: Context, epoch: int) -> dict[str, Any]:
    """What all agreed on after `epoch`; for epoch 0 the start."""
    if epoch == 0:
        return {"epoch": 0, "history": [], "finished": False, "reason": "", "at": ctx.facts.created_at}
    return documents.read(ctx.objects, ctx.keys.decision(epoch), DECISION)


def history(ctx: Context, epoch: int) -> list[tuple[float, float]]:
    """(validation loss, validation metric) of each evaluation up to the one after `epoch`."""
    if epoch == 0:
        return []
    return [(loss, metric) for loss, metric in decision(ctx, epoch)["history"]]


def known(ctx: Context, round: int) -> list[tuple[float, float]]:
    """The same, of all evaluations before `round`."""
    return history(ctx, calendar(ctx.facts).epochs_before(round))


def last(ctx: Context) -> dict[str, Any]:
    """The newest decision there is. Lists: for the end of a run, not for training."""
    return decision(ctx, calendar(ctx.facts).decided(len(ctx.objects.list(ctx.keys.decisions))))


def agree(ctx: Context, epoch: int, *, by: int = 0) -> None:
    """Evaluate the learner's model and create the decision; the first one written holds for every worker. `by`: whose model it is."""
    result = evaluate(ctx)
    span = calendar(ctx.facts).span
    before = (epoch - 1) // span * span
    seen = [*history(ctx, before), (result.loss, result.metric)]
    reason = verdict(ctx.experiment.training, seen, epochs=epoch)
    agreed = {
        "epoch": epoch,
        "val_loss": result.loss,
        "val_metric": result.metric,
        "history": seen,
        "finished": bool(reason),
        "reason": reason,
        "by": by,
        "attempt": ctx.keys.attempt,
        "at": runtime.time(),
    }
    if ctx.experiment.lifetime.budget_usd is not None and ctx.facts.money:
        from crossover.costs import spending  # the price of everything: only for those that ask

        agreed |= spending.judged(ctx, decision(ctx, before))
        if not reason and agreed["over_budget"]:
            agreed |= {"finished": True, "reason": f"budget: {agreed['over_budget']}"}
    ctx.objects.create(ctx.keys.decision(epoch), documents.sealed(agreed))


def evaluate(ctx: Context) -> Any:
    """The learner's model on the validation set: loss, metric, samples."""
    from crossover.learning.batch import decode

    facts = ctx.facts
    chunks = (keys.validation_chunk(facts.data, chunk) for chunk in range(facts.manifest["validation_chunks"]))
    return ctx.learner.evaluate(decode(ctx.data[0].get(key), key=key) for key in chunks)


def dropping(ctx: Context, round: int) -> Agree:
    """Whom all drop from `round`: by whoever says so first, and before it combines, so that what was done stays written."""

    def agree(bad: list[int]) -> list[int]:
        if not bad:
            return bad
        key = ctx.keys.dropped(round)
        told = documents.sealed({"round": round, "epoch": calendar(ctx.facts).epoch(round), "workers": bad})
        agreed: list[int] = documents.opened(ctx.objects.create(key, told), DROPPED, key=key)["workers"]
        return agreed

    return agree


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
    ctx.objects.create(ctx.keys.outcome, documents.sealed(outcome))
