"""The papers' rows as runs: which experiment a printed row was, and which simulated seconds stand beside its figures."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from crossover.errors import DataError
from crossover.experiment import Database, Exchange, Experiment, Functions, Gpu, PeerToPeer, Training
from crossover.learning.sizes import DATA
from crossover.reports.published import Row, rows
from crossover.simulation.calibration import Calibration
from crossover.simulation.simulate import Simulated, simulate
from crossover.simulation.workload import MODELS as SIZES
from crossover.simulation.workload import Workload

HELD_OUT = Path(__file__).parents[2] / "config" / "held-out.yaml"
A, B = PAPERS = "comparison-2025", "p2p-2023"
# What the papers call their models, in ours: the authors' ResNet-18 is the CIFAR variant (11,173,962 parameters).
VARIANT = {"resnet18": "resnet18_cifar", "resnet50": "resnet50_cifar", "mobilenet": "mobilenet"}
STATED = {"squeezenet": 1_200_000, "mobilenet_v3_small": 2_500_000, "vgg11": 132_900_000}  # 2023, section IV-B
COMMUNICATION = ("store", "aggregate", "synchronise")
STAGES = ("compute gradients", "send", "receive", "model update", "convergence detection")
WORKERS_OF_THE_HIGHEST = 16  # section 4.2 gives the highest of 4 to 16
AVERAGED_EPOCHS = 4  # 2023, Table I: averages of four epochs


@cache
def held_out() -> Mapping[tuple[str, str, str], tuple[str, ...]]:
    """The figures that are judged, by paper, table and row."""
    plain: dict[str, Any] = yaml.safe_load(HELD_OUT.read_text(encoding="utf-8"))
    return {(each["paper"], each["table"], each["row"]): tuple(each["figures"]) for each in plain["held_out"]}


@cache
def _measured() -> Mapping[tuple[str, str, int, int], bool]:
    plain: dict[str, Any] = yaml.safe_load(HELD_OUT.read_text(encoding="utf-8"))
    return {
        (each["gradient"], each["design"], each["aggregators"], each["memory_mb"]): each["held_out"]
        for each in plain["measured"]
    }


def measured_held_out(key: tuple[str, str, int, int]) -> bool:
    """Whether fits may not see the measured cell of that gradient, design, aggregators and memory. Raises DataError for one not listed."""
    if key not in _measured():
        raise DataError(
            f"{HELD_OUT.name}: measured: {key} is not listed: which side it is on must be said before it is fitted to"
        )
    return _measured()[key]


def is_held_out(row: Row) -> bool:
    return (row.paper, row.table, row.row) in held_out()


def _experiment(
    architecture: str,
    model: str,
    *,
    workers: int = 4,
    memory_mb: int = 2_048,
    batch: int = 512,
    epochs: int = 1,
    **parts: Any,
) -> Experiment:
    training = Training(model=model, epochs=epochs, batch_size=batch, momentum=0.0)
    functions = Functions(memory_mb={"default": memory_mb})
    return Experiment(
        name="paper", architecture=architecture, workers=workers, training=training, functions=functions, **parts
    )


def _workload(model: str, *, minibatches: int, batch: int = 512, validation: int = 0) -> Workload:
    """The paper's batches of CIFAR-sized images; `model`: ours, or one of the 2023 paper's with its stated parameters."""
    size = SIZES[model][(3, 32, 32)]
    parameters, buffers = (STATED[model], 0) if model in STATED else (size.parameters, size.buffers)
    return Workload(
        model=model,
        parameters=parameters,
        buffers=buffers,
        macs=size.macs,
        samples=(batch,) * minibatches,
        image_bytes=3 * 32 * 32,
        validation_samples=validation,
    )


def _run(experiment: Experiment, workload: Workload, calibration: Calibration) -> Simulated:
    return simulate(experiment, calibration.calm(), workload=workload)


def _stages_s(run: Simulated, step: str, stages: tuple[str, ...] | None = None) -> float:
    """Seconds of a worker in a minibatch, in `stages` or all but what the papers leave out."""
    kept = {name: seconds for name, (seconds, _) in run.steps[step].stages.items()}
    names = stages or tuple(name for name in kept if name not in ("checkpoint", "evaluate"))
    return sum(kept.get(name, 0.0) for name in names) / (run.experiment.workers * run.workload.minibatches)


def function_s(row: Row, calibration: Calibration) -> float:
    """2025, Table 2: seconds of one function, which computes one batch."""
    figures, architecture = row.figures, row.figures["architecture"]
    model = VARIANT[figures["model"]]
    workload = _workload(model, minibatches=figures["functions_per_worker"])
    if architecture == "gpu":
        gpu = Gpu(instances=4, instance_type=figures["instance_type"])
        return _run(_experiment("gpu", model, gpu=gpu), workload, calibration).epoch_s
    exchange = Exchange(minibatches_per_invocation=1)
    run = _run(
        _experiment(architecture, model, memory_mb=figures["memory_mb"], exchange=exchange), workload, calibration
    )
    return run.steps["compute_gradients"].mean_s if architecture == "spirt" else _stages_s(run, "train")


def communication_s(row: Row, calibration: Calibration) -> float:
    """2025, section 4.2: a worker's communication in a round."""
    model = VARIANT[row.figures["model"]]
    workers = row.figures.get("workers", WORKERS_OF_THE_HIGHEST)
    run = _run(
        _experiment(row.figures["architecture"], model, workers=workers), _workload(model, minibatches=2), calibration
    )
    return _stages_s(run, "train", COMMUNICATION)


def in_database_s(row: Row, calibration: Calibration, compute: str) -> float:
    """2025, section 4.2: averaging and update, fetched or inside the database."""
    model, step = VARIANT[row.figures["model"]], {"averaging": "average_in_database", "update": "update_model"}
    database = Database(compute="fetch" if compute == "fetch_s" else "in_database")
    run = _run(_experiment("spirt", model, database=database), _workload(model, minibatches=24), calibration)
    stage = "average" if row.figures["stage"] == "averaging" else "update"
    return run.steps[step[row.figures["stage"]]].stage_mean_s(stage)


def peer_s(row: Row, calibration: Calibration, figure: str) -> float:
    """2023, Table I: a peer's stage in an epoch; computing per batch."""
    workload = _workload(row.figures["model"], minibatches=30, validation=DATA["cifar10"].test or 0)
    peers = PeerToPeer(instance_type=row.figures["instance_type"])
    run = _run(_experiment("p2p_instance", workload.model, p2p=peers, epochs=AVERAGED_EPOCHS), workload, calibration)
    seconds = run.steps["train_peer"].stage_mean_s(STAGES[row.figures["columns"].index(figure)])
    return seconds / workload.minibatches if figure == "compute" else seconds


def batches_s(row: Row, calibration: Calibration) -> float:
    """2023, Tables II and III: computing an epoch's batches, by functions side by side or one after another."""
    figures = row.figures
    batches = figures.get("batches") or next(
        r.figures["batches"] for r in rows(paper=B, table="Table II") if r.row == row.row
    )
    workload = _workload("vgg11", minibatches=batches, batch=figures["batch_size"])
    peers = PeerToPeer(instance_type=figures["instance_type"])
    memory_mb = figures.get("memory_mb", 1_769)
    run = _run(
        _experiment(figures["architecture"], "vgg11", memory_mb=memory_mb, batch=figures["batch_size"], p2p=peers),
        workload,
        calibration,
    )
    if figures["architecture"] == "p2p_serverless":
        return run.steps["compute_gradient"].mean_s
    return run.steps["train_peer"].stage_mean_s("compute gradients")
