"""The scripts by which projections count requests and bytes, held to what the real steps ask over their wires."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from crossover import validation
from crossover.experiment import Experiment
from crossover.simulation import PURE_COMPUTE, Workload
from crossover.simulation.kernel import Tally, Usage, WhereInRun
from crossover.simulation.mirror import models_of, programs
from crossover.simulation.walk import Walk
from crossover.simulation.workload import TYPICAL, calendar
from crossover.simulation.world import World
from crossover.workflow.architecture import architecture_of, load
from tests.chaos.recording import RecordedInvocation, record_run

WORKERS, SHARE = 3, 0.25
# Parameters and buffers: parts of a third or a half are whole vectors of 16 bytes, and texts that name lengths are equally long.
FITTED = ((768, 384), (1_152, 384), (768, 768))
CHECKED = (1_536, 768)
DECLARED = (3_216_000, 21_888)
PUT, GET = ("objects", "put"), ("objects", "get")
TEXT_BYTES = 64  # by so much an object's text may be longer or shorter than its script says

LONG = ("all_reduce", "scatter_reduce", "mlless")
BEYOND = {"exchange.every": 4, "training.epochs": 3}  # a round of two epochs, and a shorter one
CASES = [
    ("spirt", {}),
    ("spirt", {"database.compute": "fetch", "exchange.every": 1}),
    ("spirt", {"training.momentum": 0.0, "database.compute": "fetch"}),
    ("spirt", {"training.optimizer": "adam", "exchange.every": 2}),
    *((name, {"storage.channel": channel}) for name in LONG[:2] for channel in ("redis", "s3")),
    *((name, {"exchange.what": "model", "exchange.every": 2}) for name in LONG[:2]),
    ("all_reduce", {"exchange.what": "delta", "exchange.every": 2, "exchange.minibatches_per_invocation": 1}),
    *(
        (name, {"exchange.what": "delta", "exchange.every": 2})
        for name in ("scatter_reduce", "p2p_instance", "p2p_serverless", "gpu", "spirt")
    ),
    ("spirt", {"exchange.what": "model", "database.compute": "fetch"}),
    *((name, {"exchange.what": "delta", **BEYOND}) for name in ("all_reduce", "spirt", "p2p_serverless", "gpu")),
    *((name, {"exchange.minibatches_per_invocation": 1, "functions.checkpoint_every": 2}) for name in LONG),
    *((name, {"exchange.minibatches_per_invocation": 1, "exchange.every": 2}) for name in LONG),
    ("scatter_reduce", {"aggregation.non_finite": "drop", "aggregation.rule": "median"}),
    ("mlless", {}),
    *(("p2p_instance", {"exchange.compression": way}) for way in ("none", "fp16")),
    ("p2p_instance", {"exchange.compression": "qsgd", "exchange.bucket": 128, "exchange.error_feedback": True}),
    *((name, {"exchange.compression": "powersgd", "exchange.rank": 1}) for name in ("p2p_instance", "gpu")),
    ("p2p_serverless", {"exchange.what": "delta", "exchange.compression": "top_k", "exchange.share": 0.25}),
    ("gpu", {"exchange.compression": "top_k", "exchange.share": 0.25, "functions.checkpoint_every": 2}),
    ("p2p_instance", {"p2p.message_limit_mb": 0.00005, "exchange.every": 1}),
    ("p2p_instance", {"p2p.mode": "asynchronous", "p2p.min_gradients": 3, "exchange.every": 1}),
    ("p2p_serverless", {}),
    ("p2p_serverless", {"p2p.average_in": "lambda"}),
    ("gpu", {"functions.checkpoint_every": 2}),
    *(("single", {"single.on": on, "exchange.every": 2}) for on in ("function", "instance")),
    ("single", {"exchange.minibatches_per_invocation": 1, "functions.checkpoint_every": 2}),
    *(
        # Of four: the last epoch ends early.
        (name, {"exchange.every": 1, "training.steps": 3, "data.limit": limit, "functions.checkpoint_every": 2})
        for names, limit in ((("spirt", *LONG, "p2p_instance", "p2p_serverless", "gpu"), 4 * WORKERS), (("single",), 4))
        for name in names
    ),
]
CHANCE = {
    ("bus", "arrived"),
    ("bus", "peek"),
}  # looks at what others have sent; bytes are compared where all wait for all
FREE = (
    "detect_convergence",
    "train_peer",
    "train_gpu",
)  # who of the workers evaluates, and who ends the run, is chance


def experiment(architecture: str, settings: Mapping[str, Any]) -> Experiment:
    """Return a small validated experiment of the architecture. `settings`: further settings, as {"SECTION.FIELD": value}."""
    plain: dict[str, Any] = {
        "name": "few",
        "architecture": architecture,
        "workers": 1 if load(architecture).alone else WORKERS,
        "training": {"model": "small_cnn", "epochs": 2, "batch_size": 2, "momentum": 0.5},
        "data": {"dataset": "digits"},
    }
    if architecture == "gpu":
        plain["gpu"] = {"instances": WORKERS}
    if architecture == "mlless":
        plain["mlless"] = {"threshold": 1e-6}
    for name, value in settings.items():
        section, _, field = name.partition(".")
        plain.setdefault(section, {})[field] = value
    return validation.validate(plain)


def place(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the place of an invocation in the run: step, worker, epoch, round, minibatch."""
    return tuple(record[name] for name in ("step", "worker", "epoch", "round", "minibatch"))


def count_operations(tally: Tally) -> dict[tuple[str, str], int]:
    """Return how often each (channel, operation) was counted, without those that depend on chance (CHANCE)."""
    return {
        (channel, word): times
        for channel, counted in tally.operations.items()
        for word, times in counted.items()
        if times and (channel, word) not in CHANCE
    }


def count_bytes(tally: Tally) -> dict[tuple[str, str], int]:
    """Return the bytes moved by each channel, as (channel, "in" or "out") to bytes, zeros included."""
    ways = {"in": tally.bytes_in, "out": tally.bytes_out}
    return {
        (channel, way): bytes_.get(channel, 0)
        for way, bytes_ in ways.items()
        for channel in ("objects", "tensors", "bus")
    }


# --- what the real steps ask -------------------------------------------------------------------------------------------


def recordings(architecture: str, settings: Mapping[str, Any]) -> list[list[RecordedInvocation]]:
    """Return the recorded invocations of one run for each of the three fitted sizes and the fourth, checked one. Raises AssertionError
    unless all four have the same invocations in the same order.
    """
    found = [record_run(experiment(architecture, settings), sizes=sizes, share=SHARE) for sizes in (*FITTED, CHECKED)]
    assert len({tuple(place(each.record) for each in invoked) for invoked in found}) == 1
    return found


def extrapolate_bytes(bytes_: Sequence[int]) -> tuple[float, float]:
    """Return the bytes that are expected at the fourth size and at the declared one, from the bytes at the three fitted sizes: they are
    affine in parameters and buffers.
    """
    first, more_parameters, more_buffers = bytes_
    by_parameter = (more_parameters - first) / (FITTED[1][0] - FITTED[0][0])
    by_buffer = (more_buffers - first) / (FITTED[2][1] - FITTED[0][1])

    def at(sizes: tuple[int, int]) -> float:
        """Return the bytes at `sizes`, (parameters, buffers)."""
        return first + by_parameter * (sizes[0] - FITTED[0][0]) + by_buffer * (sizes[1] - FITTED[0][1])

    return at(CHECKED), at(DECLARED)


# --- what the scripts say ----------------------------------------------------------------------------------------------


class Noted(Usage):
    """A `Usage` that also keeps each use in `noted`, as (place of the invocation, its requests)."""

    def __init__(self, architecture: str) -> None:
        """Start with nothing noted. `architecture`: the architecture's name."""
        super().__init__(architecture)
        self.noted: list[tuple[tuple[Any, ...], Tally]] = []

    def add(self, use: Any, place: WhereInRun, *, tally: Tally, minibatch: int | None = None, **more: Any) -> None:
        """Keep the place and the requests of one use."""
        at = place.minibatch if minibatch is None else minibatch
        self.noted.append(((use.step, place.worker, place.epoch, place.round, at), tally))


def run_scripts(setting: Experiment, evaluators: Mapping[int, int]) -> list[tuple[tuple[Any, ...], Tally]]:
    """Run the simulator's scripts of the experiment without any duration, and return (place, requests) of every invocation that they make.
    `evaluators`: by epoch, the long worker that evaluates.
    """
    architecture = architecture_of(setting)
    parameters, buffers = DECLARED
    sizes: dict[str, Any] = {"parameters": parameters, "buffers": buffers, "macs": 0}
    work = Workload(model="x", samples=(2, 2), image_bytes=1, validation_samples=2, step=TYPICAL.step, **sizes)
    setting, usage = architecture.resolve(setting), Noted(setting.architecture)
    calibration = replace(PURE_COMPUTE, significant=SHARE, gpu_pace=0.0)
    world = World(setting, architecture, work, calibration, calendar(setting, work), usage)
    world.state |= {("evaluating", epoch): worker for epoch, worker in evaluators.items()}
    if setting.exchange.compression == "powersgd":  # as the recorded learner's parameters are shaped
        rows, rank = (work.parameters - 2) // 2, setting.exchange.rank
        first = 4 * (rows * rank + work.parameters - 2 * rows + work.buffers)
        world.state["travels"] = [(first, first), (4 * 2 * rank, 4 * 2 * rank)]
    walk = Walk(world, models_of(architecture))
    whole = programs.run(world, walk) if architecture.run is None else walk.run(architecture.run, WhereInRun())
    world.env.run(until=world.env.process(whole))
    return usage.noted


def build_id(value: str | Mapping[str, Any]) -> str:
    """Return a test id for an architecture's name or for settings."""
    return value if isinstance(value, str) else ",".join(f"{name}={given}" for name, given in value.items())


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "settings"), CASES, ids=build_id)
def test_scripts_ask_what_the_steps_ask(architecture: str, settings: Mapping[str, Any]) -> None:
    """Compare the simulator's scripts with the recorded requests of real steps: each invocation makes the same requests and moves the same
    bytes, up to the bytes of texts.
    """
    *fitted, checked = recordings(architecture, settings)
    evaluators = {
        int(asked.key[-11:-5]): each.record["worker"]
        for each in checked
        for asked in each.requests
        if asked.operation == "PutObject" and asked.key.startswith("runs//decision/")
    }
    scripts = defaultdict(list)
    for at, tally in run_scripts(experiment(architecture, settings), evaluators):
        scripts[build_comparison_key(at, count_operations(tally))].append(tally)
    for number, invoked in enumerate(checked):
        at, real = place(invoked.record), invoked.tally()
        known = scripts.get(build_comparison_key(at, count_operations(real)))
        assert known, f"{at}: no script for {count_operations(real)}"
        script = known[0] if at[0] in FREE or len(known) == 1 else known.pop(0)
        if at[0] == "train":
            assert differ_only_in_claims(real, script), (at, count_operations(script), count_operations(real))
        else:
            assert count_operations(script) == count_operations(real), at
        for way, bytes_ in count_bytes(real).items():
            if way == ("bus", "in") and settings.get("p2p.mode") == "asynchronous":
                continue
            at_fourth, expected = extrapolate_bytes([count_bytes(each[number].tally())[way] for each in fitted])
            assert at_fourth == bytes_, (at, way)
            text = TEXT_BYTES * sum(count_operations(real).values())
            assert count_bytes(script)[way] == pytest.approx(expected, abs=text), (at, way)


def differ_only_in_claims(real: Tally, script: Tally) -> bool:
    """Return whether both have the same requests, apart from up to two more or fewer claims of a decision, which depend on chance."""
    asked, said = count_operations(real), count_operations(script)
    more = asked[PUT] - said[PUT]
    said[PUT], said[GET] = said[PUT] + more, said[GET] + 2 * more
    return asked == said and abs(more) <= 2


def build_comparison_key(at: tuple[Any, ...], asked: Mapping[tuple[str, str], int]) -> tuple[Any, ...]:
    """Return the key under which an invocation is compared with its script. `at`: its place in the run; `asked`: its requests, by (channel,
    operation). For steps in FREE the key has the numbers of puts and gets instead of the worker.
    """
    if at[0] not in FREE:
        return at
    return (at[0], *at[2:], asked.get(PUT, 0), asked.get(GET, 0))
