"""The papers' deployments: fitted to their rows that are not held out, judged by those that are.

The rows: config/published.yaml; which are held out, and how errors are counted: config/held-out.yaml. The fits see calibration rows only
(`_rows` refuses the others).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from crossover.experiment import Database, Exchange, Experiment, Functions, Gpu, PeerToPeer, Training
from crossover.reports.published import Row, rows
from crossover.simulation.calibration import AWS, FREE, Calibration, Service
from crossover.simulation.fitting import Observed, fitted
from crossover.simulation.measured import REFERENCE_SAMPLE_S
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
VALIDATION = 10_000

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Judged:
    """One figure of one row. `held_out`: the fits have not seen it."""

    row: Row
    figure: str
    printed: float
    projected: float
    held_out: bool

    @property
    def error(self) -> float:
        return abs(self.projected / self.printed - 1)


@cache
def held_out() -> Mapping[tuple[str, str, str], tuple[str, ...]]:
    """The figures that are judged, by paper, table and row."""
    plain: dict[str, Any] = yaml.safe_load(HELD_OUT.read_text(encoding="utf-8"))
    return {(each["paper"], each["table"], each["row"]): tuple(each["figures"]) for each in plain["held_out"]}


def is_held_out(row: Row) -> bool:
    return (row.paper, row.table, row.row) in held_out()


def _row(paper: str, table: str, name: str) -> Row:
    """A calibration row. AssertionError for one that is held out: a fit must not see it."""
    found = next(each for each in rows(paper=paper, table=table) if each.row == name)
    assert not is_held_out(found), f"{found.source} is held out"
    return found


# --- the papers' experiments ------------------------------------------------------------------------------------------


def _experiment(
    architecture: str, model: str, *, workers: int = 4, memory_mb: int = 2_048, batch: int = 512, **parts: Any
) -> Experiment:
    training = Training(model=model, epochs=1, batch_size=batch, momentum=0.0)
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
    return simulate(experiment, replace(calibration, compute_sigma=0.0, request_sigma=0.0), workload=workload)


def _stages_s(run: Simulated, step: str, stages: tuple[str, ...] | None = None) -> float:
    """Seconds of a worker in a minibatch, in `stages` or all but what the papers leave out."""
    kept = {name: seconds for name, (seconds, _) in run.steps[step].stages.items()}
    names = stages or tuple(name for name in kept if name not in ("checkpoint", "evaluate"))
    return sum(kept.get(name, 0.0) for name in names) / (run.experiment.workers * run.workload.minibatches)


def _function_s(row: Row, calibration: Calibration) -> float:
    """2025, Table 2: seconds of one function, which computes one batch."""
    figures, architecture = row.figures, row.figures["architecture"]
    model = VARIANT[figures["model"]]
    workload = _workload(model, minibatches=figures["functions_per_worker"])
    if architecture == "gpu":
        gpu = Gpu(instances=4, instance_type=figures["instance_type"])
        return _run(_experiment("gpu", model, gpu=gpu), workload, calibration).seconds
    exchange = Exchange(minibatches_per_invocation=1)
    run = _run(
        _experiment(architecture, model, memory_mb=figures["memory_mb"], exchange=exchange), workload, calibration
    )
    return run.steps["compute_gradients"].mean_s if architecture == "spirt" else _stages_s(run, "train")


def _communication_s(row: Row, calibration: Calibration) -> float:
    """2025, section 4.2: a worker's communication in a round."""
    model = VARIANT[row.figures["model"]]
    workers = row.figures.get("workers", WORKERS_OF_THE_HIGHEST)
    run = _run(
        _experiment(row.figures["architecture"], model, workers=workers), _workload(model, minibatches=2), calibration
    )
    return _stages_s(run, "train", COMMUNICATION)


def _in_database_s(row: Row, calibration: Calibration, compute: str) -> float:
    """2025, section 4.2: averaging and update, fetched or inside the database."""
    model, step = VARIANT[row.figures["model"]], {"averaging": "average_in_database", "update": "update_model"}
    database = Database(compute="fetch" if compute == "fetch_s" else "in_database")
    run = _run(_experiment("spirt", model, database=database), _workload(model, minibatches=24), calibration)
    stage = "average" if row.figures["stage"] == "averaging" else "update"
    return run.steps[step[row.figures["stage"]]].stage_mean_s(stage)


def _peer_s(row: Row, calibration: Calibration, figure: str) -> float:
    """2023, Table I: a peer's stage in an epoch; computing per batch."""
    workload = _workload(row.figures["model"], minibatches=30, validation=VALIDATION)
    peers = PeerToPeer(instance_type=row.figures["instance_type"])
    run = _run(_experiment("p2p_instance", workload.model, p2p=peers), workload, calibration)
    seconds = run.steps["train_peer"].stage_mean_s(STAGES[row.figures["columns"].index(figure)])
    return seconds / workload.minibatches if figure == "compute" else seconds


def _batches_s(row: Row, calibration: Calibration) -> float:
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


# --- the fits ---------------------------------------------------------------------------------------------------------


def _tensors(latency: bool) -> Callable[[Calibration, float], Calibration]:
    def change(calibration: Calibration, value: float) -> Calibration:
        known = calibration.tensors
        tensors = replace(known, latency_s=value) if latency else replace(known, client_bytes_s=_rate(value))
        return replace(calibration, tensors=tensors)

    return change


def _rate(seconds_per_byte: float) -> float:
    return 1 / seconds_per_byte if seconds_per_byte > 0 else float("inf")


def _set(name: str) -> Callable[[Calibration, float], Calibration]:
    return lambda calibration, value: replace(calibration, **{name: value})  # type: ignore[arg-type]


def _inverse(name: str) -> Callable[[Calibration, float], Calibration]:
    return lambda calibration, value: replace(calibration, **{name: _rate(value)})  # type: ignore[arg-type]


def _computing(calibration: Calibration, value: float) -> Calibration:
    """`value`: how much slower a function's vCPU is than the reference."""
    return replace(calibration, function_speed=_rate(value))


@cache
def lambdaml() -> Calibration:
    """2025: AllReduce, ScatterReduce, MLLess and SPIRT's computing. The store from ScatterReduce in section 4.2, computing from Table 2."""
    base = replace(
        AWS,
        name="2025 paper",
        basis=("fitted to the 2025 paper's rows that are not held out",),
        tensors=Service(latency_s=0.0),
        arithmetic_bytes_s=AWS.arithmetic_bytes_s,
        sample_s=REFERENCE_SAMPLE_S,
    )
    scatter = [_row(A, "Section 4.2", f"ScatterReduce / {model}") for model in ("ResNet-50", "MobileNet")]
    observed = [Observed(r.figures["communication_s"], lambda c, r=r: _communication_s(r, c)) for r in scatter]  # type: ignore[misc]
    stored = fitted(base, [_tensors(True), _tensors(False)], observed, probe=1e-6)
    functions = [
        _row(A, "Table 2", name) for name in ("MobileNet / SPIRT", "MobileNet / AllReduce", "ResNet-18 / ScatterReduce")
    ]
    timed = [Observed(r.figures["function_s"], lambda c, r=r: _function_s(r, c)) for r in functions]  # type: ignore[misc]
    computed = fitted(stored, [_set("function_batch_s"), _computing], timed)
    mlless = _row(A, "Table 2", "ResNet-18 / MLLess")
    return fitted(
        computed, [_set("supervisor_s")], [Observed(mlless.figures["function_s"], lambda c: _function_s(mlless, c))]
    )


@cache
def spirt() -> Calibration:
    """2025: SPIRT's database, naive and inside, from the averaging of section 4.2; else as `lambdaml`."""
    averaging = _row(A, "Section 4.2", "SPIRT averaging / ResNet-18")
    naive = Observed(averaging.figures["fetch_s"], lambda c: _in_database_s(averaging, c, "fetch_s"))
    inside = Observed(averaging.figures["in_database_s"], lambda c: _in_database_s(averaging, c, "in_database_s"))
    fetching = fitted(lambdaml(), [_inverse("arithmetic_bytes_s")], [naive], probe=1e-6)
    return fitted(fetching, [_inverse("database_bytes_s")], [inside], probe=1e-6)


@cache
def peers() -> Calibration:
    """2023, Table I, on MNIST: each model's computing, broker and object store, a peer's own work."""
    names = ("SqueezeNet 1.1 / MNIST", "MobileNet V3 Small / MNIST", "VGG-11 / MNIST")
    squeezenet, mobilenet, vgg = table = [_row(B, "Table I", name) for name in names]

    def seen(row: Row, figure: str) -> Observed:
        printed = row.figures["wall_s"][row.figures["columns"].index(figure)]
        return Observed(printed, lambda c: _peer_s(row, c, figure))

    found = replace(
        AWS, name="2023 paper, Table I", basis=("fitted to the 2023 paper's Table I on MNIST",), instance_bus=FREE
    )
    for row in table:
        model = row.figures["model"]

        def sample(calibration: Calibration, value: float, model: str = model) -> Calibration:
            return replace(calibration, sample_s={**calibration.sample_s, model: value})

        found = fitted(found, [sample], [seen(row, "compute")])
    found = fitted(found, [_inverse("arithmetic_bytes_s")], [seen(row, "update") for row in table], probe=1e-9)

    def bus(latency: bool) -> Callable[[Calibration, float], Calibration]:
        def change(calibration: Calibration, value: float) -> Calibration:
            known = calibration.instance_bus
            new = replace(known, latency_s=value) if latency else replace(known, client_bytes_s=_rate(value))
            return replace(calibration, instance_bus=new, bus=replace(calibration.bus, host_bytes_s=float("inf")))

        return change

    def objects(calibration: Calibration, value: float) -> Calibration:
        return replace(calibration, instance_objects=replace(calibration.instance_objects, client_bytes_s=_rate(value)))

    small = (squeezenet, mobilenet)  # within the broker's limit; VGG-11 goes through the object store
    found = fitted(found, [bus(True), bus(False)], [seen(row, "send") for row in small], probe=1e-6)
    found = fitted(found, [objects], [seen(vgg, "send"), seen(vgg, "receive")], probe=1e-6)
    found = fitted(found, [_set("mailbox_s")], [seen(row, "receive") for row in small])
    return fitted(found, [_set("evaluate_share")], [seen(row, "convergence") for row in table])


@cache
def vgg_functions() -> Calibration:
    """2023, Table II: VGG-11 in functions. One thread, as everywhere here: memory above a vCPU's worth adds nothing."""
    table = [_row(B, "Table II", name) for name in ("batch 1024", "batch 128")]
    base = replace(
        AWS, name="2023 paper, Table II", basis=("fitted to the 2023 paper's Table II",), objects=FREE, torch_step_s=0.0
    )
    observed = [Observed(r.figures["compute_s"], lambda c, r=r: _batches_s(r, c)) for r in table]  # type: ignore[misc]
    return fitted(base, [_set("function_batch_s"), _sample_of_vgg], observed)


@cache
def vgg_instances() -> Calibration:
    """2023, Table III: VGG-11 on the instance."""
    table = [_row(B, "Table III", name) for name in ("batch 1024", "batch 128")]
    base = replace(
        AWS, name="2023 paper, Table III", basis=("fitted to the 2023 paper's Table III",), instance_objects=FREE
    )
    observed = [Observed(r.figures["compute_s"], lambda c, r=r: _batches_s(r, c)) for r in table]  # type: ignore[misc]
    return fitted(base, [_set("instance_batch_s"), _sample_of_vgg], observed)


def _sample_of_vgg(calibration: Calibration, value: float) -> Calibration:
    return replace(calibration, sample_s={"vgg11": value})


@cache
def gpus() -> Calibration:
    """2025: the GPU fleet. The object store as peers see it (2023, Table I), the rest per batch from MobileNet's epoch."""
    row = _row(A, "Table 2", "MobileNet / GPU")
    base = replace(
        AWS,
        name="2025 paper, GPU",
        basis=("fitted to the 2025 paper's MobileNet epoch",),
        instance_objects=peers().instance_objects,
    )
    return fitted(base, [_set("gpu_batch_s")], [Observed(row.figures["epoch_s"], lambda c: _function_s(row, c))])


def calibration(paper: str, architecture: str) -> Calibration:
    """The paper's deployment of an architecture."""
    if paper == B:
        return peers()
    return {"gpu": gpus, "spirt": spirt}.get(architecture, lambdaml)()


# --- the judgement ----------------------------------------------------------------------------------------------------


def projections(row: Row) -> Figures:
    """What the simulator says of a row's figures in seconds; nothing for a row without any that it can know."""
    figures = row.figures
    match (row.paper, row.table):
        case (str(), "Table 2") if row.paper == A:
            name = "epoch_s" if figures["architecture"] == "gpu" else "function_s"
            fleet = {"gpu": gpus}.get(figures["architecture"], lambdaml)()
            return {name: _function_s(row, fleet)}
        case (str(), "Section 4.2") if "stage" in figures:
            return {name: _in_database_s(row, spirt(), name) for name in ("fetch_s", "in_database_s")}
        case (str(), "Section 4.2") if "communication_s" in figures:
            return {"communication_s": _communication_s(row, lambdaml())}
        case (str(), "Table I"):
            return {f"wall_s.{name}": _peer_s(row, peers(), name) for name in figures["columns"]}
        case (str(), "Table II"):
            return {"compute_s": _batches_s(row, vgg_functions())}
        case (str(), "Table III"):
            return {"compute_s": _batches_s(row, vgg_instances())}
    return {}


@cache
def judged() -> tuple[Judged, ...]:
    """Every figure that can be projected, calibration rows too, in the order of the file."""
    found = []
    for row in rows():
        for figure, value in projections(row).items():
            name, _, part = figure.partition(".")
            printed = row.figures[name]
            if part:
                printed = printed[row.figures["columns"].index(part)]
            found.append(Judged(row, figure, float(printed), value, is_held_out(row)))
    return tuple(found)


def row_errors(*, held_out_rows: bool = True) -> dict[str, float]:
    """By row: the median of its figures' errors."""
    errors: dict[str, list[float]] = {}
    for each in judged():
        if each.held_out == held_out_rows:
            errors.setdefault(each.row.source, []).append(each.error)
    return {source: median(found) for source, found in errors.items()}


def median_error() -> float:
    """The headline: over the rows held out."""
    return median(row_errors().values())
