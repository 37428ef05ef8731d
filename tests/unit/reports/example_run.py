"""Records of a small SPIRT run, made up but shaped like real ones: cold starts, polls, slot waits, a retry, a stale attempt."""

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crossover.experiment import Experiment, Functions, Training
from crossover.reports import folder
from crossover.reports.bill import Fleet, Infrastructure

STARTED_AT = 1_795_000_000.0
ALL = [
    "compute_gradients",
    "average_in_database",
    "notify_peers",
    "check_peers",
    "aggregate_peers",
    "update_model",
    "detect_convergence",
]
SECONDS = {
    "initialise": 0.6,
    "compute_gradients": 0.32,
    "average_in_database": 0.05,
    "notify_peers": 0.03,
    "check_peers": 0.12,
    "aggregate_peers": 0.09,
    "update_model": 0.06,
    "detect_convergence": 0.14,
    "collect": 0.4,
}
STAGES = {
    "compute_gradients": ("fetch", "compute", "store"),
    "average_in_database": ("average",),
    "notify_peers": ("synchronise",),
    "check_peers": ("synchronise",),
    "aggregate_peers": ("synchronise", "aggregate"),
    "update_model": ("update",),
    "detect_convergence": ("evaluate",),
}
SHARES = {"fetch": 0.2, "compute": 0.65, "store": 0.1, "aggregate": 0.3}
MODEL_BYTES = 160_000
VERSIONS = {"crossover": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "redis": "7.0.15", "rabbitmq": "3.10.8"}
SPIRT = Infrastructure(
    fleets=(Fleet(purpose="tensor database", instance_type="m7g.large", count=4),),
    broker_instance_type="mq.m7g.medium",
    interface_endpoints=1,
    secrets=2,
)


@dataclass(frozen=True, kw_only=True)
class Example:
    """The parts of a run, ready for `folder.build`: its experiment, records and epochs."""

    experiment: Experiment
    records: Sequence[dict[str, Any]]
    epochs: Sequence[dict[str, Any]]
    expected: Mapping[str, int]
    infrastructure: Infrastructure = SPIRT
    started_at: float = STARTED_AT

    def result(self, **changes: Any) -> dict[str, Any]:
        """Return the result.json of the example. `changes`: arguments of `folder.build` to replace."""
        arguments: dict[str, Any] = {
            "experiment": self.experiment,
            "label": "measured-local",
            "where": "local",
            "records": self.records,
            "epochs": self.epochs,
            "started_at": self.started_at,
            "versions": VERSIONS,
            "expected": self.expected,
            "infrastructure": self.infrastructure,
            "final": {"val_metric": self.epochs[-1]["val_metric"], "parameters_sha256": "5f" * 32},
            "data": {"dataset": "digits", "train_samples": 1_437, "validation_samples": 360, "minibatches": 6},
        }
        return folder.build(**(arguments | changes))


def spirt(
    *,
    workers: int = 4,
    minibatches: int = 6,
    epochs: int = 12,
    seed: int = 1,
    speed: float = 1.0,
    ceiling: float = 0.975,
    name: str = "spirt",
    architecture: str = "spirt",
    dataset: str = "digits",
    retry: bool = True,
) -> Example:
    """Return an example run of `epochs` epochs. `retry`: with one failed attempt that a second one replaced, and one stale attempt."""
    experiment = Experiment(
        name=name,
        architecture=architecture,
        workers=workers,
        training=Training(epochs=epochs),
        functions=Functions(memory_mb={"default": 1_769}),
    )
    run = _Run(experiment=experiment, random=random.Random(seed), speed=speed)
    moment = run.invoke("initialise", at=STARTED_AT + 0.2, worker=0, epoch=0, round=0)
    decisions = []
    for epoch in range(1, epochs + 1):
        moment = _round(run, at=moment + 0.05, epoch=epoch, workers=workers, minibatches=minibatches)
        loss = 2.3 * math.exp(-epoch / 3.2) + 0.09 + run.random.uniform(0, 0.02)
        accuracy = ceiling - 0.88 * math.exp(-epoch / 2.4) + run.random.uniform(-0.006, 0.006)
        decisions.append({"epoch": epoch, "val_loss": loss, "val_metric": min(1.0, accuracy), "at": moment - 0.01})
    run.invoke("collect", at=moment + 0.05, worker=0, epoch=epochs, round=epochs)
    if retry:
        run.fail_once("aggregate_peers", outcome="error", error="Unavailable: redis 2 does not answer")
        run.fail_once("compute_gradients", outcome="stale", error="StaleAttempt: compute_gradients: no such key")
    expected = Counter(record["step"] for record in run.records if record["outcome"] == "ok")
    return Example(experiment=experiment, records=run.records, epochs=decisions, expected=expected)


def _round(run: "_Run", *, at: float, epoch: int, workers: int, minibatches: int) -> float:
    """Add the invocations of one round to a run, and return the time at which the round ends."""
    ready = []
    for worker in range(workers):
        where = {"worker": worker, "epoch": epoch, "round": epoch - 1}
        start = at + 0.02 * worker
        done = max(run.invoke("compute_gradients", at=start, minibatch=m, **where) for m in range(minibatches))
        done = run.invoke("average_in_database", at=done + 0.01, **where)
        ready.append(run.invoke("notify_peers", at=done + 0.01, **where))
    ends = []
    for worker, done in enumerate(ready):
        where = {"worker": worker, "epoch": epoch, "round": epoch - 1}
        moment = done
        while moment < max(ready):
            moment = run.invoke("check_peers", at=moment + 0.02, **where)
        for step in ("check_peers", "aggregate_peers", "update_model", "detect_convergence"):
            moment = run.invoke(step, at=moment + 0.01, **where)
        ends.append(moment)
    return max(ends)


@dataclass
class _Run:
    """Records of an example run under construction."""

    experiment: Experiment
    random: random.Random
    speed: float

    def __post_init__(self) -> None:
        """Begin without records, and with no warm environment."""
        self.records: list[dict[str, Any]] = []
        self.warm: set[tuple[str, int, int]] = set()

    def invoke(self, step: str, *, at: float, worker: int, epoch: int, round: int, minibatch: int = 0) -> float:
        """Add the record of one invocation of a step, and return the time at which it ends."""
        torch = step in ("initialise", "compute_gradients", "detect_convergence", "collect")
        environment = (step, worker, minibatch)
        cold = environment not in self.warm
        self.warm.add(environment)
        init_s = (1.4 if torch else 0.25) * self.random.uniform(0.8, 1.3) if cold else 0.0
        wall_s = SECONDS[step] / self.speed * self.random.uniform(0.85, 1.3)
        wait_s = self.random.uniform(0.0, 0.25) if step == "compute_gradients" and minibatch > 1 else 0.0
        started_at = at + init_s
        record = {
            "run": "example",
            "step": step,
            "architecture": self.experiment.architecture,
            "worker": worker,
            "epoch": epoch,
            "round": round,
            "minibatch": minibatch,
            "request_id": f"{self.random.getrandbits(128):032x}",
            "started_at": started_at,
            "wall_s": wall_s,
            "cpu_s": wall_s * 0.8,
            "slot_wait_s": wait_s,
            "max_rss_mb": self.random.uniform(420, 610) if torch else self.random.uniform(60, 90),
            "memory_mb": self.experiment.functions.memory_of(step, torch=torch),
            "cold": cold,
            "init_s": init_s,
            "outcome": "ok",
            "error": "",
            "stages": list(_stages(step, wall_s)),
            "traffic": _traffic(step, self.experiment.workers),
        }
        if step == "compute_gradients":
            record |= {"loss": 2.3 * math.exp(-epoch / 3.0) + self.random.uniform(0.05, 0.09), "samples": 60}
        self.records.append(record)
        return started_at + wall_s + wait_s

    def fail_once(self, step: str, *, outcome: str, error: str) -> None:
        """Add an attempt that failed just before the one that succeeded."""
        whole = next(r for r in self.records if r["step"] == step and r["epoch"] == 2)
        spent = whole["wall_s"] * 0.4
        attempt = whole | {"started_at": whole["started_at"] - spent - 0.05, "wall_s": spent, "cpu_s": spent * 0.5}
        self.records.append(attempt | {"outcome": outcome, "error": error, "stages": [], "request_id": "0" * 32})


def _stages(step: str, wall_s: float) -> Iterator[dict[str, Any]]:
    """Yield the stages of an invocation of the step."""
    names = STAGES.get(step, ())
    for stage in names:
        share = SHARES.get(stage, 0.9) if len(names) > 1 else 0.92
        share = 0.6 if (step, stage) == ("aggregate_peers", "synchronise") else share
        yield {"stage": stage, "wall_s": share * wall_s, "cpu_s": share * wall_s * 0.8}


def _traffic(step: str, workers: int) -> dict[str, dict[str, int]]:
    """Return the traffic of an invocation of the step."""

    def channel(into: int, out: int, requests: int) -> dict[str, int]:
        """Return one channel's traffic: bytes read, bytes written and requests."""
        return {"bytes_in": into, "bytes_out": out, "requests": requests}

    quiet = channel(0, 0, 0)
    match step:
        case "compute_gradients":
            store = channel(MODEL_BYTES, MODEL_BYTES, 3)
            return {"object_store": channel(64_000, 0, 1), "tensor_store": store, "bus": quiet}
        case "aggregate_peers":
            moved = MODEL_BYTES * (workers - 1)
            return {"object_store": quiet, "tensor_store": channel(moved, moved, 2 * workers), "bus": quiet}
        case "notify_peers" | "check_peers":
            return {"object_store": quiet, "tensor_store": quiet, "bus": channel(40, 40, 2)}
        case "collect":
            return {
                "object_store": channel(800, MODEL_BYTES, 4),
                "tensor_store": channel(MODEL_BYTES, 0, 2),
                "bus": quiet,
            }
    return {"object_store": channel(300, 300, 1), "tensor_store": channel(0, 200, 1), "bus": quiet}
